/* fuzz_calls.c - what grammars of calls let through, read as the server reads it: walks over the grammar of a request with tools, in every way
 * that models call, are split; every call is of a tool that was offered, its arguments are of the tool's schema, and where a call
 * must be made there is one. Input: way, options, then what the walk chooses. */
#include "base/utf8.h"
#include "server/prepare.h"
#include "support/byte_vocab.h"
#include "support/engine_script.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

#define TEXT_MAX 1200

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* As much of published templates as tells what they are. */
static const char *const templates[] = {
    "<atem:function_calls> <|message|>",
    ">>>all",
    "｜DSML｜ function_calls>",
    "<|channel|><|message|>",
    "<|tool_call>",
    "<｜tool▁calls▁begin｜>```json",
    "<｜tool▁calls▁begin｜>",
    "<|tool_calls_section_begin|>",
    "[TOOL_CALLS][CALL_ID][ARGS]",
    "[TOOL_CALLS][ARGS]",
    "[TOOL_CALLS]",
    "<minimax:tool_call>",
    "<seed:tool_call>",
    "<arg_key>",
    "<function name= <param name=",
    "<function= <parameter=",
    "<|START_ACTION|>",
    "Action: \"tool_name\"",
    "<|tools_prefix|>",
    "functools[",
    "function call <|role_sep|>",
    "<|tool_call_start|>",
    "<TOOLCALL>",
    "<tool_calls>[",
    "<tool_calls>",
    "<|tool_call|>",
    "<tool_call>",
    "<function=",
    "<|python_start|>",
    "",
};

static const char body[] =
    "{\"input\": \"x\", \"tools\": ["
    "{\"type\": \"function\", \"name\": \"get\", \"strict\": true, \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"s\": {\"type\": \"string\"}, \"e\": {\"enum\": [\"a\", "
    "\"<b>\", "
    "\"it's\", 5]}, \"p\": {\"type\": \"string\", \"pattern\": \"^[|<'\\\"x]+\"}, \"u\": "
    "{\"type\": "
    "[\"string\", \"boolean\"]}, \"k\": {\"type\": \"string\", \"maxLength\": 5}}, \"required\": "
    "[\"s\"], \"additionalProperties\": false}},"
    "{\"type\": \"function\", \"name\": \"go.on-2\", \"strict\": true, \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"n\": {\"type\": \"integer\", \"maximum\": 99}, \"l\": "
    "{\"type\": "
    "\"array\", \"items\": {\"type\": \"string\"}}, \"o\": {\"type\": \"object\", \"properties\": "
    "{\"b\": {\"type\": \"boolean\"}}, \"required\": [\"b\"]}, \"z\": {\"type\": \"null\"}}, "
    "\"required\": [\"o\", \"n\"], \"additionalProperties\": false}},"
    "{\"type\": \"custom\", \"name\": \"sum\", \"format\": {\"type\": \"grammar\", \"syntax\": "
    "\"lark\", \"definition\": \"start: start \\\"+\\\" x | x\\nx: /[0-9<'\\\\\\\"\\\\n]/ | "
    "\\\"(\\\" "
    "start \\\")\\\"\"}}], \"tool_choice\": \"%s\", \"parallel_tool_calls\": %s}";

struct way {
    struct split_style style;
    struct prepared *p;
    struct grammar *grammar;
    struct buf forced; /* the bytes of the ids that the answer begins with, marks as they are fed */
};

static struct way ways[ARRAY_LEN(templates)][4];
static struct grammars *kept[ARRAY_LEN(templates)];
static struct grammar *schemas[3]; /* by the tools above, values in any order */
static struct tokenizer *tok;

static void make_forced(struct way *w)
{
    const struct engine_guide *g = &w->p->requests[0]->engine.guide;
    buf_init(&w->forced, MEM_CAT_BASE, 1 << 12);
    for (int32_t i = 0; i < g->n_forced; i++) {
        bool is_mark = split_style_is_mark(&w->style, g->forced[i]);
        struct tokenizer_str s = is_mark ? tokenizer_piece(tok, g->forced[i])
                                         : tokenizer_bytes(tok, g->forced[i], false);
        if (is_mark)
            buf_add_char(&w->forced, SPLIT_MARK);
        buf_add(&w->forced, s.data, s.len);
        if (is_mark)
            buf_add_char(&w->forced, SPLIT_MARK_END);
    }
}

static void make_way(struct server_model *model, const struct prepare_context *ctx, size_t way,
                     int options)
{
    struct way *w = &ways[way][options];
    char text[4096];
    int n = snprintf(text, sizeof(text), body, options & 1 ? "required" : "auto",
                     options & 2 ? "false" : "true");
    struct prepare_input in = { .kind = PREPARE_RESPONSES, .body = text, .n = (size_t)n };
    in.id = "resp_fedcba9876543210fedcba9876543210";
    split_style_init(&model->style, templates[way], tok);
    w->style = model->style;
    w->p = prepare_request(ctx, &in);
    if (w->p->error.status != 0)
        fprintf(stderr, "%s: %s\n", templates[way], w->p->error.text);
    BUG_ON(w->p->error.status != 0);
    w->p->split.style = &w->style;
    w->grammar = w->p->requests[0]->engine.grammar;
    BUG_ON(!w->grammar);
    make_forced(w);
}

static void make_schema(int i, enum grammar_kind kind, const char *text, size_t n,
                        const char *before, const char *after)
{
    struct grammar_source s = { .kind = kind, .text = text, .n = n, .is_any_order = true };
    s.before = before;
    s.after = after;
    BUG_ON(grammar_compile(&s, NULL, &schemas[i], NULL, NULL) != ERR_OK);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static struct server_model model;
    static struct server_config config;
    static struct prepare_context ctx = { .model = &model, .config = &config, .model_id = "m" };
    static const struct engine_script_config script = { .n_ctx = 4096,
                                                        .max_rows = 1,
                                                        .max_step_rows = 64 };
    struct template *tmpl;
    BUG_ON(byte_vocab_new(&tok, NULL) != ERR_OK || byte_vocab_template(&tmpl, NULL) != ERR_OK);
    model.engine = engine_script_new(&script);
    model.tokenizer = tok;
    model.chat_template = tmpl;
    server_sampling_unset(&model.sampling);
    server_sampling_unset(&config.sampling);
    for (size_t i = 0; i < ARRAY_LEN(templates); i++) {
        ctx.grammars = kept[i] =
            grammars_new(&model, (int64_t)64 << 20); /* marks are the style's */
        for (int options = 0; options < 4; options++)
            make_way(&model, &ctx, i, options);
    }
    const struct tools *tools = ways[0][0].p->tools;
    for (int i = 0; i < 2; i++) {
        struct buf text;
        struct json_writer w;
        buf_init(&text, MEM_CAT_BASE, 1 << 16);
        json_writer_init(&w, &text);
        json_value(&w, tools->tools[i].schema);
        make_schema(i, GRAMMAR_KIND_SCHEMA, text.data, text.len, NULL, NULL);
        buf_release(&text);
    }
    make_schema(2, GRAMMAR_KIND_LARK, tools->tools[2].grammar, strlen(tools->tools[2].grammar),
                NULL, NULL);
    return 0;
}

/* --- what is read --- */

struct told {
    const struct tools *tools;
    const char *text;
    struct buf args;
    int32_t n_calls;
};

static bool fits(struct grammar *g, const char *text, size_t n)
{
    struct grammar_state *s;
    BUG_ON(grammar_state_new(g, &s, NULL) != ERR_OK);
    bool is_fine = grammar_step(s, text, n) && grammar_is_complete(s);
    grammar_state_free(s);
    return is_fine;
}

static void check_call(struct told *t, const char *name)
{
    struct json_doc doc = { 0 };
    struct json_writer w;
    struct buf text;
    const struct tool *tool = tools_find(t->tools, name, strlen(name));
    BUG_ON(!tool || json_parse(&doc, t->args.data, t->args.len, 1 << 20, NULL) != ERR_OK);
    long i = tool - t->tools->tools;
    const struct json *input = json_get(&doc.root, "input");
    buf_init(&text, MEM_CAT_BASE, 1 << 16);
    json_writer_init(&w, &text);
    json_value(&w, &doc.root);
    bool is_fine = i == 2 ? doc.root.n == 1 && json_is(input, JSON_TYPE_STRING) &&
                                fits(schemas[2], input->text, input->len)
                          : fits(schemas[i], text.data, text.len);
    if (!is_fine)
        fprintf(stderr, "%s\n%s: %s\n", t->text, name, text.data);
    BUG_ON(!is_fine);
    buf_release(&text);
    json_doc_release(&doc);
}

static void tell(void *arg, const struct part *p)
{
    struct told *t = arg;
    if (p->kind == PART_CALL_BEGIN)
        buf_reset(&t->args);
    if (p->kind == PART_CALL_ARGUMENTS)
        buf_add(&t->args, p->text, p->n);
    if (p->kind != PART_CALL_END)
        return;
    t->n_calls++;
    check_call(t, p->name);
}

/* --- walks --- */

/* What the input chooses of the bytes that may come; once it is used up, what closes most. */
static int choose(const struct grammar_state *s, const uint8_t **data, const uint8_t *end)
{
    static const char closing[] = "\"'\xFE}]),>|/<";
    uint32_t allowed[8];
    int list[256], n = 0;
    grammar_next_bytes(s, allowed);
    for (int c = 0; c < 256; c++)
        if (allowed[c / 32] >> c % 32 & 1)
            list[n++] = c;
    for (const char *p = closing; *p && *data == end; p++)
        if (allowed[(uint8_t)*p / 32] >> (uint8_t)*p % 32 & 1)
            return (uint8_t)*p;
    if (n == 0)
        return -1;
    if (n == 1 || *data == end)
        return list[0];
    int c = *(*data)++;
    return allowed[c / 32] >> c % 32 & 1 ? c : list[c % n];
}

/* A whole text of the grammar; false: none was found. */
static bool walk(struct grammar *g, const uint8_t *data, size_t size, struct buf *out)
{
    struct grammar_state *s;
    const uint8_t *end = data + size;
    bool is_whole = false;
    BUG_ON(grammar_state_new(g, &s, NULL) != ERR_OK);
    while (out->len < TEXT_MAX) {
        is_whole = grammar_is_complete(s) && (data == end || grammar_is_over(s));
        int c = is_whole ? -1 : choose(s, &data, end);
        char byte = (char)c;
        if (c < 0 || !grammar_step(s, &byte, 1))
            break;
        buf_add_char(out, byte);
    }
    grammar_state_free(s);
    return is_whole;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf text;
    if (size < 3 || size > 2000)
        return 0;
    int options = data[1] & 3;
    const struct way *w = &ways[data[0] % ARRAY_LEN(templates)][options];
    struct told t = { .tools = w->p->tools };
    buf_init(&text, MEM_CAT_BASE, 1 << 16);
    buf_init(&t.args, MEM_CAT_BASE, 1 << 16);
    buf_add(&text, w->forced.data, w->forced.len);
    if (walk(w->grammar, data + 2, size - 2, &text)) {
        t.text = text.data ? text.data : "";
        struct splitter *s = splitter_new(&w->p->split, tell, &t);
        for (size_t from = 0, n; from < text.len; from += n) {
            n = 1 + (from * 7 + data[1]) % 9;
            n = n < text.len - from ? n : text.len - from;
            splitter_feed(s, text.data + from, n);
        }
        splitter_finish(s, false);
        splitter_free(s);
        bool is_wrong = (options & 1 && t.n_calls == 0) || (options & 2 && t.n_calls > 1);
        if (is_wrong)
            fprintf(stderr, "%s\n%d calls\n", t.text, t.n_calls);
        BUG_ON(is_wrong);
    }
    buf_release(&text);
    buf_release(&t.args);
    return 0;
}
