/* A request's body, as every kind of request: never a crash; an error has a status and a text; what is accepted is within its bounds. */
#include "base/utf8.h"
#include "server/prepare.h"
#include "support/byte_vocab.h"
#include "support/engine_script.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

static struct server_model model;
static struct server_config config;
static struct prepare_context ctx = { .model = &model, .config = &config, .model_id = "script" };

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const struct engine_script_config script = { .n_ctx = 4096,
                                                        .max_rows = 1,
                                                        .max_step_rows = 64 };
    struct tokenizer *t;
    struct template *tmpl;
    BUG_ON(byte_vocab_new(&t, NULL) != ERR_OK || byte_vocab_template(&tmpl, NULL) != ERR_OK);
    model.engine = engine_script_new(&script);
    model.tokenizer = t;
    model.chat_template = tmpl;
    split_style_init(&model.style, "<tool_call><think>", t);
    ctx.grammars = grammars_new(&model, (int64_t)64 << 20);
    server_sampling_unset(&model.sampling);
    server_sampling_unset(&config.sampling);
    config.state_dir = "/nowhere"; /* not looked at: responses count as kept */
    return 0;
}

static void check_json(const struct buf *text)
{
    struct json_doc doc;
    BUG_ON(!utf8_is_valid(text->data, text->len));
    BUG_ON(json_parse(&doc, text->data, text->len, 1 << 28, NULL) != ERR_OK);
    json_doc_release(&doc);
}

static void check_error(const struct api_error *e)
{
    struct buf out;
    BUG_ON(e->status < 400 || e->status > 599 || e->text[0] == '\0');
    buf_init(&out, MEM_CAT_BASE, 1 << 16);
    api_error_write(&out, e);
    check_json(&out);
    buf_release(&out);
}

/* Something fits where the answer begins. */
static void check_grammar(struct grammar *g)
{
    struct grammar_state *s;
    uint32_t mask[(BYTE_VOCAB_SIZE + 31) / 32];
    BUG_ON(grammar_state_new(g, &s, NULL) != ERR_OK);
    BUG_ON(grammar_mask(s, mask, NULL) == 0 && !grammar_is_complete(s));
    grammar_state_free(s);
}

static void check_generation(const struct prepared *p)
{
    BUG_ON(p->n_choices < 1 || p->n_choices > p->max_choices);
    BUG_ON(p->max_choices > (p->embeddings.hidden ? LIMIT_INPUTS : LIMIT_CHOICES));
    for (const char *s = p->ignored; *s; s++)
        BUG_ON((unsigned char)*s <= ' ' || (unsigned char)*s > '~');
    for (int32_t i = 0; i < p->n_choices; i++) {
        const struct engine_request *r = &p->requests[i]->engine;
        bool is_empty = r->max_tokens == 0;
        if (r->grammar && i == 0)
            check_grammar(r->grammar);
        BUG_ON(r->n_prompt < 1 || r->n_prompt + !is_empty > model.engine->info.n_ctx);
        BUG_ON(is_empty && !r->prompt_scores && r->signal.n_bins == 0 && !r->hidden);
        BUG_ON(r->signal.n_bins > ENGINE_SIGNAL_BINS_MAX || (r->signal.bins && !is_empty));
        BUG_ON(r->n_score_top < 0 || r->n_score_top > ENGINE_LOGPROBS_MAX);
        for (int32_t k = 0; k < r->n_prompt; k++)
            BUG_ON(r->prompt[k] < 0 || r->prompt[k] >= BYTE_VOCAB_SIZE);
        for (int32_t k = 0; k < r->n_stops; k++)
            BUG_ON(r->stops[k].len < 1 || r->stops[k].len > ENGINE_STOP_BYTES);
        for (int32_t k = 0; k < r->sample.n_bias; k++)
            BUG_ON(r->sample.bias[k].id < 0 || r->sample.bias[k].id >= BYTE_VOCAB_SIZE);
        BUG_ON(!(r->sample.temperature >= 0) || !(r->sample.top_p >= 0) || r->sample.top_k < 0);
    }
}

/* A kept response with that body as its input, as the store would give it. */
static struct store_job *make_history(const uint8_t *data, size_t size)
{
    struct store_job *job = store_job_new(STORE_OP_CHAIN, 1);
    struct store_row *row = &job->rows[0];
    snprintf(row->id, sizeof(row->id), "resp_0123456789abcdef0123456789abcdef");
    row->status = STORE_STATUS_OVER;
    buf_add(&row->input, data, size);
    buf_add_str(&row->log, "?C\2ok");
    row->log.data[0] = '\0';
    buf_add_str(&row->outcome,
                "{\"status\":2,\"completed\":1,\"has_usage\":0,\"input\":0,\"cached\":0,"
                "\"output\":0,\"reasoning\":0,\"code\":\"\",\"text\":\"\"}");
    job->n_chain = 1;
    return job;
}

static void check_response(const struct prepared *p)
{
    const struct prepared_response *r = p->response;
    struct buf text;
    if (r->needs_history) {
        BUG_ON(!r->previous[0] && r->n_more == 0);
        return;
    }
    buf_init(&text, MEM_CAT_BASE, 1 << 26);
    buf_printf(&text, "{%s}", r->frame.data);
    check_json(&text);
    check_json(&r->input);
    buf_release(&text);
    check_generation(p);
}

static void check_kind(enum prepare_kind kind, const uint8_t *data, size_t size, bool has_history)
{
    const struct prepare_list list = { .limit = 3, .is_ascending = size & 1 };
    struct prepare_input in = {
        .kind = kind, .body = (const char *)data, .n = size, .seed = 1, .list = &list
    };
    in.id = "resp_fedcba9876543210fedcba9876543210";
    in.history = has_history ? make_history(data, size) : NULL;
    struct prepared *p = prepare_request(&ctx, &in);
    if (p->error.status != 0)
        check_error(&p->error);
    else if (p->response)
        check_response(p);
    else if (kind <= PREPARE_SIGNAL || kind == PREPARE_MESSAGES || kind == PREPARE_EMBEDDINGS ||
             kind == PREPARE_INFILL)
        check_generation(p);
    else
        check_json(&p->reply);
    prepare_free(p);
    store_job_free(in.history);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    for (int kind = PREPARE_CHAT; kind <= PREPARE_RESPONSE_ITEMS; kind++)
        check_kind((enum prepare_kind)kind, data, size, false);
    check_kind(PREPARE_RESPONSES, data, size, true);
    BUG_ON(mem_bytes(MEM_CAT_REQUEST) != 0);
    return 0;
}
