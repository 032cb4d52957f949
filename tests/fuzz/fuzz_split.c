/* An answer's text in pieces: the splitter gives the same parts as at once, calls are numbered, whole and valid JSON, and no text is lost
 * where nothing is a call. The first bytes choose format, tools and cuts. */
#include "base/utf8.h"
#include "server/split.h"
#include "support/byte_vocab.h"

#include <stdio.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *tok;
static struct tools *tools;

static const char *const templates[] = {
    "<tool_call><think>",
    "<tool_call><function=<parameter=",
    "<tool_call><arg_key>",
    "<function name= <param name=",
    "{\"name\": function name, \"parameters\":",
    "[TOOL_CALLS]",
    "[TOOL_CALLS][ARGS]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁begin｜>```json",
    "<|tool_call><|channel>thought",
    "<|channel|><|message|>",
    "<|tool_calls_section_begin|>",
    "<minimax:tool_call>",
    "<|START_ACTION|>",
    "<|tool_call_start|>",
    ">>>all",
    "｜DSML｜<think>function_calls>",
    "<atem:function_calls><|message|>",
    "Action: \"tool_name\"",
    "<|tools_prefix|>",
    "functools[",
    "function call<|role_sep|>",
    "<|python_start|>",
    "",
};

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    static const char text[] =
        "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":"
        "\"string\"},\"n\":{\"type\":"
        "\"integer\"},\"o\":{\"type\":\"object\"}}}}},{\"function\":{\"name\":\"ping\"}},{"
        "\"function\":{\"name\":\"python\"}}]}";
    struct json_doc doc;
    struct api_error e;
    BUG_ON(byte_vocab_new(&tok, NULL) != ERR_OK);
    BUG_ON(json_parse(&doc, text, strlen(text), 1 << 20, NULL) != ERR_OK);
    BUG_ON(!tools_read(&doc.root, &tools, &e));
    json_doc_release(&doc);
    return 0;
}

struct told {
    struct buf log, args; /* kinds and texts, neighbours joined; the open call's arguments */
    int last;
    int32_t n_calls;
    bool is_open, was_cut;
};

static void tell(void *arg, const struct part *p)
{
    struct told *t = arg;
    bool is_text = p->kind == PART_CONTENT || p->kind == PART_REASONING;
    BUG_ON(is_text && (t->is_open || p->n == 0 || !utf8_is_valid(p->text, p->n)));
    if ((int)p->kind != t->last)
        buf_printf(&t->log, "\n%d:", (int)p->kind);
    t->last = (int)p->kind;
    if (is_text || p->kind == PART_CALL_ARGUMENTS)
        buf_add(&t->log, p->text, p->n);
    if (is_text)
        return;
    BUG_ON(p->kind == PART_CALL_BEGIN ? t->is_open : !t->is_open);
    if (p->kind == PART_CALL_BEGIN) {
        BUG_ON(p->call != t->n_calls++ || !tools_find(tools, p->name, strlen(p->name)));
        buf_reset(&t->args);
        buf_add_str(&t->log, p->id);
    }
    if (p->kind == PART_CALL_ARGUMENTS) {
        BUG_ON(!utf8_is_valid(p->text, p->n));
        buf_add(&t->args, p->text, p->n);
    }
    t->is_open = p->kind != PART_CALL_END;
    if (p->kind == PART_CALL_END && !t->was_cut) {
        struct json_doc doc;
        struct err err;
        if (json_parse(&doc, t->args.data, t->args.len, 1 << 28, &err) != ERR_OK) {
            fprintf(stderr, "%s\n%s\n", err.text, t->args.data);
            BUG_ON(true);
        }
        BUG_ON(!json_is(&doc.root, JSON_TYPE_OBJECT));
        json_doc_release(&doc);
    }
}

static void run(const struct split_config *c, const char *text, size_t n, uint32_t cuts,
                bool was_cut, struct told *t)
{
    struct splitter *s = splitter_new(c, tell, t);
    *t = (struct told){ .last = -1, .was_cut = was_cut };
    buf_init(&t->log, MEM_CAT_BASE, 1 << 26);
    buf_init(&t->args, MEM_CAT_BASE, 1 << 26);
    for (size_t from = 0; from < n;) {
        cuts = cuts * 1664525u + 1013904223u;
        size_t len = cuts == 1013904223u ? n : 1 + (cuts >> 16) % 7;
        len = len < n - from ? len : n - from;
        splitter_feed(s, text + from, len);
        from += len;
    }
    splitter_finish(s, was_cut);
    BUG_ON(t->is_open);
    splitter_free(s);
}

/* Valid text with marks: 0x01 of the input begins one, which ends with a bracket, as control tokens do. */
static void make_text(const uint8_t *data, size_t size, struct buf *out)
{
    bool is_open = false;
    for (size_t i = 0; i < size;) {
        uint32_t cp;
        size_t n = utf8_decode((const char *)data + i, size - i, &cp);
        bool opens = data[i] == 1 && i + 1 < size && (data[i + 1] == '<' || data[i + 1] == '[');
        if (opens && !is_open)
            buf_add_char(out, SPLIT_MARK);
        else if (n > 0 && data[i] > 2)
            buf_add(out, data + i, n);
        is_open = is_open || opens;
        if (is_open && (data[i] == '>' || data[i] == ']' || data[i] <= ' ') && data[i] != 1) {
            buf_add_char(out, SPLIT_MARK_END);
            is_open = false;
        }
        i += n > 0 ? n : 1;
    }
    if (is_open)
        buf_add_char(out, SPLIT_MARK_END);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct split_style style;
    struct told whole, cut;
    struct buf text;
    if (size < 4 || size > 1 << 14)
        return 0;
    uint32_t cuts = data[2] * 2654435761u + data[3];
    bool was_cut = data[1] & 8;
    split_style_init(&style, templates[data[0] % ARRAY_LEN(templates)], tok);
    struct split_config c = { .style = &style,
                              .tools = data[1] & 1 ? NULL : tools,
                              .finds_thought = true,
                              .starts_in_thought = (data[1] & 2) && style.thought,
                              .is_forced = data[1] & 4,
                              .is_single = data[1] & 16 };
    buf_init(&text, MEM_CAT_BASE, 1 << 20);
    make_text(data + 4, size - 4, &text);
    run(&c, text.data, text.len, 0, was_cut, &whole);
    run(&c, text.data, text.len, cuts | 1, was_cut, &cut);
    if (whole.log.len != cut.log.len || memcmp(whole.log.data, cut.log.data, cut.log.len) != 0) {
        fprintf(stderr, "%s\n--- at once:%s\n--- cut:%s\n", split_style_name(&style),
                whole.log.data, cut.log.data);
        BUG_ON(true);
    }
    buf_release(&whole.log);
    buf_release(&whole.args);
    buf_release(&cut.log);
    buf_release(&cut.args);
    buf_release(&text);
    return 0;
}
