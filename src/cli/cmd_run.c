/* cmd_run.c - one answer on the terminal, printed as it comes. */
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "cli/load.h"
#include "cli/load_template.h"
#include "cli/serve_model.h"
#include "json/json.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RUN_TEXT_MAX ((size_t)64 << 20)

struct run_options {
    struct load_options load;
    const char *prompt, *system;
    bool raw, json;
    int64_t max_tokens, top_k, seed;
    double temperature, top_p, min_p;
};

/* The answer so far. */
struct run_answer {
    struct buf ids; /* int32_t each */
    int32_t n_ids;
    struct buf bytes; /* of all tokens */
    size_t n_shown;   /* of bytes, printed */
    enum finish finish;
    int64_t prompt_us, decode_us;
};

static void run_defaults(void *options)
{
    struct run_options *o = options;
    o->max_tokens = -1;
    o->seed = -1;
    o->top_k = -1;
    o->temperature = o->top_p = o->min_p = NAN;
}

static float run_pick(double flag, double model, double otherwise)
{
    return (float)(!isnan(flag) ? flag : !isnan(model) ? model : otherwise);
}

/* Flag, else the model's advice, else temperature 0.7 and all else off. */
static enum err_code run_sampling(const struct run_options *o, const struct load *l,
                                  struct sample_params *out, struct err *err)
{
    struct server_sampling model;
    enum err_code code = serve_model_sampling(l->weights, &model, err);
    int64_t top_k = o->top_k >= 0 ? o->top_k : model.top_k;
    *out = (struct sample_params){
        .temperature = run_pick(o->temperature, model.temperature, 0.7),
        .top_k = top_k > 0 ? (int32_t)top_k : 0,
        .top_p = run_pick(o->top_p, model.top_p, 1),
        .min_p = run_pick(o->min_p, model.min_p, 0),
        .typical_p = run_pick(NAN, model.typical_p, 1),
        .xtc_threshold = 1,
        .repetition_penalty = run_pick(NAN, model.repetition_penalty, 1),
        .n_logprobs = -1,
        .seed = o->seed < 0 ? (uint64_t)clock_us() : (uint64_t)o->seed,
    };
    return code;
}

/* {"messages":[...],"add_generation_prompt":true} */
static enum err_code run_write_messages(const struct run_options *o, struct buf *out,
                                        struct err *err)
{
    const struct {
        const char *role, *content;
    } messages[] = { { "system", o->system }, { "user", o->prompt } };
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_array(&w, "messages");
    for (size_t i = 0; i < ARRAY_LEN(messages); i++) {
        if (!messages[i].content)
            continue;
        json_begin_object(&w);
        json_field_str(&w, "role", messages[i].role);
        json_field_str(&w, "content", messages[i].content);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_field_bool(&w, "add_generation_prompt", true);
    json_end_object(&w);
    return buf_check(out, "the messages", err);
}

/* The user's text cannot become control tokens: the template says which bytes are its own. */
static enum err_code run_chat_prompt(const struct run_options *o, const struct load *l,
                                     struct token_list *ids, struct err *err)
{
    struct buf text;
    struct json_doc doc = { 0 };
    struct template_output out;
    struct template_input in = { .caller = &doc.root, .own = &l->template_own.root };
    buf_init(&text, MEM_CAT_BASE, RUN_TEXT_MAX);
    template_output_init(&out, RUN_TEXT_MAX);
    enum err_code code = run_write_messages(o, &text, err);
    if (!code)
        code = json_parse(&doc, text.data, text.len, RUN_TEXT_MAX * 8, err);
    if (!code)
        code = load_template_now(&in.now, err);
    if (!code)
        code = template_render(l->chat_template, &in, &out, err);
    if (!code)
        code = tokenizer_encode(l->tokenizer, out.text.data, out.text.len, &out.caller,
                                TOKENIZER_FLAG_BOS | TOKENIZER_FLAG_SPECIAL, ids, err);
    template_output_release(&out);
    json_doc_release(&doc);
    buf_release(&text);
    return code;
}

static enum err_code run_prompt(const struct run_options *o, struct load *l, struct token_list *ids,
                                struct err *err)
{
    enum err_code code = o->raw ? ERR_OK : load_chat(l, err);
    if (code)
        return code;
    if (l->chat_template)
        return run_chat_prompt(o, l, ids, err);
    return tokenizer_encode(l->tokenizer, o->prompt, strlen(o->prompt), NULL,
                            TOKENIZER_FLAG_BOS | TOKENIZER_FLAG_SPECIAL, ids, err);
}

/* Print what may be shown and is whole; all of it at the end. */
static void run_show(struct run_answer *a, int64_t text_safe, bool is_end)
{
    size_t n = (size_t)text_safe;
    if (!is_end)
        n = a->n_shown + utf8_complete_prefix(a->bytes.data + a->n_shown, n - a->n_shown);
    if (n <= a->n_shown)
        return;
    fwrite(a->bytes.data + a->n_shown, 1, n - a->n_shown, stdout);
    fflush(stdout);
    a->n_shown = n;
}

static enum err_code run_take(const struct load *l, const struct run_options *o,
                              struct run_answer *a, const struct engine_result *res,
                              struct err *err)
{
    for (int32_t i = 0; i < res->n_tokens; i++) {
        int32_t id = res->tokens[i].id;
        buf_add(&a->ids, &id, sizeof(id));
        a->n_ids++;
        buf_add(&a->bytes, l->token_bytes[id].data, l->token_bytes[id].len);
    }
    a->finish = res->finish;
    if (!o->json)
        run_show(a, res->text_safe, res->finish != FINISH_NONE);
    if (res->finish == FINISH_ERROR) {
        *err = res->err;
        return res->err.code;
    }
    if (res->finish != FINISH_NONE)
        a->bytes.len = (size_t)res->text_safe;
    return buf_check(&a->bytes, "the answer", err);
}

static enum err_code run_generate(struct load *l, const struct run_options *o,
                                  const struct token_list *prompt, struct run_answer *a,
                                  struct err *err)
{
    struct engine *e = l->engine;
    struct engine_request req = { .prompt = prompt->ids,
                                  .n_prompt = prompt->n,
                                  .max_tokens = (int32_t)o->max_tokens };
    struct engine_work work = { 0 };
    struct engine_result res = { 0 };
    enum err_code code = run_sampling(o, l, &req.sample, err);
    if (!code)
        code = e->ops->open(e, &req, &work.row, err);
    if (code)
        return code;
    code = e->ops->grow(e, work.row, INT32_MAX, err); /* nobody else wants the cache */
    int64_t start = clock_us();
    work.n_tokens = e->info.max_step_rows; /* or what is pending */
    int32_t left = prompt->n;
    while (!code && res.finish == FINISH_NONE) {
        code = e->ops->step(e, &work, 1, &res, err);
        if (!code)
            code = run_take(l, o, a, &res, err);
        if (left > 0 && left <= res.n_taken)
            a->prompt_us = clock_us() - start;
        left -= res.n_taken;
    }
    a->decode_us = clock_us() - start - a->prompt_us;
    e->ops->close(e, work.row);
    return code;
}

static double run_rate(int64_t n, int64_t us)
{
    return us > 0 ? (double)n * 1e6 / (double)us : 0;
}

static enum err_code run_print_json(const struct load *l, const struct token_list *prompt,
                                    const struct run_answer *a, struct err *err)
{
    static const char *const names[] = { "none", "end", "stop", "length", "error" };
    struct buf out;
    struct json_writer w;
    buf_init(&out, MEM_CAT_BASE, RUN_TEXT_MAX * 8);
    json_writer_init(&w, &out);
    json_begin_object(&w);
    json_field_str(&w, "model", l->id);
    json_field_strn(&w, "text", a->bytes.data, a->bytes.len);
    json_field_str(&w, "finish", names[a->finish]);
    json_field_array(&w, "prompt_ids");
    for (int32_t i = 0; i < prompt->n; i++)
        json_int(&w, prompt->ids[i]);
    json_end_array(&w);
    json_field_array(&w, "ids");
    const int32_t *ids = (const int32_t *)(const void *)a->ids.data;
    for (int32_t i = 0; i < a->n_ids; i++)
        json_int(&w, ids[i]);
    json_end_array(&w);
    json_field_double(&w, "prompt_tokens_per_second", run_rate(prompt->n, a->prompt_us));
    json_field_double(&w, "tokens_per_second", run_rate(a->n_ids - 1, a->decode_us));
    json_field_str(&w, "fingerprint", l->engine->info.fingerprint);
    json_end_object(&w);
    buf_add_char(&out, '\n');
    enum err_code code = buf_check(&out, "the JSON answer", err);
    if (!code)
        fwrite(out.data, 1, out.len, stdout);
    buf_release(&out);
    return code;
}

static int run_run(void *options)
{
    const struct run_options *o = options;
    struct load l = { 0 };
    struct token_list prompt;
    struct run_answer a = { 0 };
    struct err err;
    if (!o->prompt)
        return cli_usage("run", "--prompt is missing");
    token_list_init(&prompt, INT32_MAX);
    buf_init(&a.ids, MEM_CAT_BASE, RUN_TEXT_MAX);
    buf_init(&a.bytes, MEM_CAT_BASE, RUN_TEXT_MAX);
    log_set_level(LOG_LEVEL_WARN);
    enum err_code code = load_open(&l, &o->load, &err);
    if (!code)
        code = load_engine(&l, 1, &(struct load_engine_options){ 0 }, &err);
    if (!code)
        code = run_prompt(o, &l, &prompt, &err);
    if (!code)
        code = run_generate(&l, o, &prompt, &a, &err);
    if (!code && o->json)
        code = run_print_json(&l, &prompt, &a, &err);
    if (!code && !o->json) {
        printf("\n");
        if (isatty(STDERR_FILENO))
            fprintf(stderr, "%d prompt tokens at %.1f/s, %d tokens at %.1f/s\n", prompt.n,
                    run_rate(prompt.n, a.prompt_us), a.n_ids, run_rate(a.n_ids - 1, a.decode_us));
    }
    token_list_release(&prompt);
    buf_release(&a.ids);
    buf_release(&a.bytes);
    load_close(&l);
    return code ? cli_fail("run", &err) : 0;
}

const struct cli_verb cmd_run = {
    .name = "run",
    .summary = "answer one prompt on the terminal",
    .usage =
        "--model M --prompt TEXT [--raw] [--max-tokens N] [--temperature T] [--seed S] [--json]",
    .flags =
        (const struct cli_flag[]){
            LOAD_FLAGS(struct run_options, load),
            { "prompt", "TEXT", "the user's message, or with --raw the text to go on with",
              CLI_FLAG_STRING, offsetof(struct run_options, prompt), 0, 0 },
            { "system", "TEXT", "system message; default the template's own", CLI_FLAG_STRING,
              offsetof(struct run_options, system), 0, 0 },
            { "raw", NULL, "no chat template (models without one never use one)", CLI_FLAG_BOOL,
              offsetof(struct run_options, raw), 0, 0 },
            { "max-tokens", "N", "length of the answer; default until the model ends it",
              CLI_FLAG_INT, offsetof(struct run_options, max_tokens), 1, INT_MAX },
            { "temperature", "T", "0 = greedy; default the model's, else 0.7", CLI_FLAG_FLOAT,
              offsetof(struct run_options, temperature), 0, 100 },
            { "top-p", "P", "nucleus; 1 = off; default the model's, else off", CLI_FLAG_FLOAT,
              offsetof(struct run_options, top_p), 0, 1 },
            { "top-k", "K", "most likely candidates; 0 = off; default the model's, else off",
              CLI_FLAG_INT, offsetof(struct run_options, top_k), 0, INT_MAX },
            { "min-p", "P",
              "share of the best candidate's probability; default the model's, else 0 = off",
              CLI_FLAG_FLOAT, offsetof(struct run_options, min_p), 0, 1 },
            { "seed", "S", "the same seed gives the same answer; default a new one each time",
              CLI_FLAG_INT, offsetof(struct run_options, seed), 0, 9e15 },
            { "json", NULL, "print one JSON object at the end", CLI_FLAG_BOOL,
              offsetof(struct run_options, json), 0, 0 },
            { 0 },
        },
    .options_bytes = sizeof(struct run_options),
    .defaults = run_defaults,
    .run = run_run,
};
