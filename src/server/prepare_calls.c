/* prepare_calls.c - the calls that an answer may hold, as a grammar's source: written as the model writes them, with arguments of their
 * tools' schemas. The grammar module reads the JSON that this makes (grammar/calls.c, grammar/tags.c). */
#include "server/prepare_grammar_int.h"

#include <string.h>

#define CALLS_TOOLS   256
#define CALLS_SPELLED 64 /* tools whose calls are constrained as JSON by itself, too */
#define CALLS_MARK \
    "\xEF\xB7\x90" /* U+FDD0 and U+FDD1: a control token in a tag (docs/structured-output.md) */
#define CALLS_MARK_END "\xEF\xB7\x91"

/* --- texts --- */

/* Control tokens as tags have them. key NULL: an array's item. */
static void calls_write_text(const struct prepare_generation *g, struct json_writer *w,
                             const char *key, const char *text)
{
    const struct server_model *m = g->ctx->model;
    struct buf spelled;
    buf_init(&spelled, MEM_CAT_REQUEST, 1 << 13);
    split_style_spell(&m->style, m->tokenizer, text, CALLS_MARK, CALLS_MARK_END, &spelled);
    if (key)
        json_field_strn(w, key, spelled.len > 0 ? spelled.data : "", spelled.len);
    else
        json_strn(w, spelled.len > 0 ? spelled.data : "", spelled.len);
    buf_release(&spelled);
}

/* A text that a reader takes for the same, in plain characters: where it differs, nothing may follow it. */
static void calls_write_plain(const struct prepare_generation *g, struct json_writer *w,
                              const char *text)
{
    const struct server_model *m = g->ctx->model;
    struct buf spelled;
    buf_init(&spelled, MEM_CAT_REQUEST, 1 << 13);
    split_style_spell(&m->style, m->tokenizer, text, CALLS_MARK, CALLS_MARK_END, &spelled);
    if (spelled.len != strlen(text))
        json_str(w, text);
    buf_release(&spelled);
}

static void calls_write_marks(const struct prepare_generation *g, struct json_writer *w)
{
    const struct server_model *m = g->ctx->model;
    json_field_array(w, "marks");
    for (int32_t i = 0; i < m->style.n_marks; i++) {
        struct tokenizer_str piece = tokenizer_piece(m->tokenizer, m->style.marks[i]);
        struct buf text;
        buf_init(&text, MEM_CAT_REQUEST, 1 << 13);
        buf_add_str(&text, CALLS_MARK);
        buf_add(&text, piece.data, piece.len);
        buf_add_str(&text, CALLS_MARK_END);
        json_strn(w, text.data, text.len);
        buf_release(&text);
    }
    json_end_array(w);
}

/* --- arguments --- */

/* The text of a custom tool: a pattern of its string. */
static void calls_write_pattern(const struct tool *tool, struct json_writer *w)
{
    struct buf pattern;
    buf_init(&pattern, MEM_CAT_REQUEST, strlen(tool->grammar) + 16);
    buf_printf(&pattern, "^(?:%s)$", tool->grammar);
    json_begin_object(w);
    json_field_str(w, "type", "object");
    json_field_object(w, "properties");
    json_field_object(w, TOOLS_CUSTOM_KEY);
    json_field_str(w, "type", "string");
    json_field_str(w, "pattern", pattern.data);
    json_end_object(w);
    json_end_object(w);
    json_field_array(w, "required");
    json_str(w, TOOLS_CUSTOM_KEY);
    json_end_array(w);
    json_end_object(w);
    buf_release(&pattern);
}

/* A tool's arguments are an object, whatever else its schema says. */
static void calls_write_schema(const struct tool *tool, bool is_free, struct json_writer *w)
{
    if (tool->grammar && !tool->is_lark) {
        calls_write_pattern(tool, w);
        return;
    }
    json_begin_object(w);
    if (!tool->schema || !json_get(tool->schema, "type") || is_free)
        json_field_str(w, "type", "object");
    for (size_t i = 0; tool->schema && !is_free && i < tool->schema->n; i++)
        json_field_value(w, tool->schema->members[i].key, &tool->schema->members[i].value);
    json_end_object(w);
}

/* Where they are elements: all that says how. */
static void calls_write_elements(const struct prepare_generation *g, const struct tool *tool,
                                 bool is_free, const struct split_element *x, struct json_writer *w)
{
    const struct json *props = json_get_set(tool->schema, "properties");
    json_begin_object(w);
    if (is_free) { /* names alone */
        json_field_object(w, "schema");
        json_field_object(w, "properties");
        for (size_t i = 0; json_is(props, JSON_TYPE_OBJECT) && i < props->n; i++)
            json_field_bool(w, props->members[i].key, true);
        json_end_object(w);
        json_end_object(w);
    } else {
        json_key(w, "schema");
        calls_write_schema(tool, false, w);
    }
    calls_write_text(g, w, "open", x->open);
    calls_write_text(g, w, "raw", x->raw);
    calls_write_text(g, w, "json", x->json);
    json_field_str(w, "stop", x->stop); /* whatever token spells it */
    json_field_array(w, "over");
    for (size_t i = 0; i < ARRAY_LEN(x->over) && x->over[i]; i++)
        json_str(w, x->over[i]);
    json_end_array(w);
    calls_write_text(g, w, "close", x->close);
    json_field_bool(w, "trims", x->trims);
    json_field_object(w, "types");
    for (size_t i = 0; json_is(props, JSON_TYPE_OBJECT) && i < props->n; i++) {
        enum tools_type type =
            tools_type_of(tool, props->members[i].key, props->members[i].key_len);
        if (type != TOOLS_TYPE_UNKNOWN)
            json_field_str(w, props->members[i].key,
                           type == TOOLS_TYPE_STRING ? "string" : "other");
    }
    json_end_object(w);
    json_end_object(w);
}

/* One of the list `arguments`; as_json: not in the style's way. */
static void calls_write_argument(const struct prepare_generation *g, const struct tool *tool,
                                 bool is_free, bool as_json, struct json_writer *w)
{
    const struct split_style *style = &g->ctx->model->style;
    struct split_element x;
    const char *values = as_json ? NULL : split_style_values(style);
    json_begin_object(w);
    if (tool->grammar && tool->is_lark) {
        json_field_str(w, "lark", tool->grammar);
        json_field_str(w, "name", TOOLS_CUSTOM_KEY);
    }
    if (!as_json && split_style_elements(style, &x)) {
        json_key(w, "elements");
        calls_write_elements(g, tool, is_free, &x, w);
    } else {
        json_key(w, "schema");
        calls_write_schema(tool, is_free, w);
        if (values)
            json_field_str(w, "spelling", values);
        if (values && split_style_quote(style))
            calls_write_text(g, w, "quote", split_style_quote(style));
    }
    json_end_object(w);
}

/* Are the style's own arguments plain JSON? */
static bool calls_are_json(const struct split_style *style)
{
    struct split_element x;
    return !split_style_values(style) && !split_style_elements(style, &x);
}

/* --- one behind another --- */

static void calls_write_call(const struct prepare_generation *g, struct json_writer *w,
                             const char *begin, size_t index, const char *end)
{
    json_begin_object(w);
    calls_write_text(g, w, "begin", begin);
    json_field_int(w, "arguments", (int64_t)index);
    if (end)
        calls_write_text(g, w, "end", end);
    json_end_object(w);
}

/* Calls behind the beginning that they share, and what stands between two of them where more than one may come. */
static void calls_write_next(const struct prepare_generation *g, const struct tool *tools, size_t n,
                             struct json_writer *w)
{
    const struct split_style *style = &g->ctx->model->style;
    struct buf opening, call;
    buf_init(&opening, MEM_CAT_REQUEST, 1 << 12);
    split_style_call(style, NULL, &opening);
    json_field_array(w, "calls");
    for (size_t i = 0; i < n; i++) {
        buf_init(&call, MEM_CAT_REQUEST, 1 << 12);
        split_style_call(style, tools[i].name, &call);
        calls_write_call(g, w, call.data + opening.len, i, NULL);
        buf_release(&call);
    }
    json_end_array(w);
    if (split_style_between(style) && !g->takes_one_call)
        calls_write_text(g, w, "between", split_style_between(style));
    buf_release(&opening);
}

void prepare_calls_write(const struct prepare_generation *g, bool is_forced, struct json_writer *w)
{
    const struct split_style *style = &g->ctx->model->style;
    const struct tools *all = g->p->tools;
    bool is_one = is_forced && g->named;
    const struct tool *tools = is_one ? g->named : all->tools;
    size_t n = is_one ? 1 : all->n;
    struct buf call;
    json_begin_object(w);
    json_field_array(w, "arguments");
    for (size_t i = 0; i < n; i++)
        calls_write_argument(g, &tools[i], false, false, w);
    json_end_array(w);
    json_field_array(w, "first");
    for (size_t i = 0; i < n; i++) {
        buf_init(&call, MEM_CAT_REQUEST, 1 << 12);
        split_style_call(style, tools[i].name, &call);
        size_t skipped = is_forced ? prepare_forced_bytes(g, &call) : strspn(call.data, " \n");
        calls_write_call(g, w, call.data + skipped, i, NULL);
        buf_release(&call);
    }
    json_end_array(w);
    calls_write_next(g, tools, n, w);
    calls_write_text(g, w, "end", split_style_call_end(style));
    json_end_object(w);
}

void prepare_calls_write_one(const struct prepare_generation *g, const struct tool *tool,
                             bool is_free, struct json_writer *w)
{
    json_begin_object(w);
    json_field_array(w, "arguments");
    calls_write_argument(g, tool, is_free, false, w);
    json_end_array(w);
    json_field_array(w, "calls");
    calls_write_call(g, w, "", 0, NULL);
    json_end_array(w);
    json_field_str(w, "end", "");
    json_end_object(w);
}

/* --- in free text --- */

bool prepare_calls_are_spelled(const struct prepare_generation *g)
{
    return g->p->tools->n <= CALLS_SPELLED || !split_style_is_marked(&g->ctx->model->style);
}

/* The call of a tool as JSON by itself: its trigger, or (index >= 0) the whole. False: there are no more ways. */
static bool calls_write_spelling(const struct prepare_generation *g, const struct tool *tool,
                                 int way, int64_t index, struct json_writer *w)
{
    const char *end;
    struct buf before;
    buf_init(&before, MEM_CAT_REQUEST, 1 << 12);
    bool is_there = split_style_spelling(&g->ctx->model->style, way, tool->name, &before, &end);
    if (is_there && index < 0)
        calls_write_text(g, w, NULL, before.data);
    else if (is_there)
        calls_write_call(g, w, before.data, (size_t)index, end);
    buf_release(&before);
    return is_there;
}

static void calls_write_triggers(const struct prepare_generation *g, bool is_spelled,
                                 struct json_writer *w)
{
    const struct split_style *style = &g->ctx->model->style;
    const struct tools *tools = g->p->tools;
    json_field_array(w, "triggers");
    if (split_style_is_marked(style)) {
        struct buf before;
        buf_init(&before, MEM_CAT_REQUEST, 1 << 12);
        split_style_call(style, NULL, &before);
        size_t blanks = strspn(before.data, " \n");
        buf_cut(&before, blanks + split_style_trigger(style));
        calls_write_text(g, w, NULL, before.data + blanks);
        calls_write_plain(g, w, before.data + blanks);
        buf_release(&before);
    }
    for (size_t i = 0; i < tools->n && is_spelled; i++)
        for (int way = 0; calls_write_spelling(g, &tools->tools[i], way, -1, w); way++)
            ;
    json_end_array(w);
}

void prepare_calls_write_tags(const struct prepare_generation *g, bool is_guess,
                              struct json_writer *w)
{
    const struct split_style *style = &g->ctx->model->style;
    const struct tools *tools = g->p->tools;
    bool is_spelled = prepare_calls_are_spelled(g), is_json = calls_are_json(style);
    json_begin_object(w);
    calls_write_marks(g, w);
    json_field_array(w, "arguments");
    for (int as_json = 0; as_json < 1 + (is_spelled && !is_json); as_json++)
        for (size_t i = 0; i < tools->n; i++)
            calls_write_argument(g, &tools->tools[i], !is_guess && !tools->tools[i].is_strict,
                                 as_json, w);
    json_end_array(w);
    calls_write_triggers(g, is_spelled, w);
    json_field_array(w, "structures");
    if (split_style_is_marked(style)) {
        struct buf opening;
        buf_init(&opening, MEM_CAT_REQUEST, 1 << 12);
        split_style_call(style, NULL, &opening);
        json_begin_object(w);
        calls_write_text(g, w, "begin", opening.data + strspn(opening.data, " \n"));
        calls_write_next(g, tools->tools, tools->n, w);
        calls_write_text(g, w, "end", split_style_call_end(style));
        json_end_object(w);
        buf_release(&opening);
    }
    for (size_t i = 0; i < tools->n && is_spelled; i++)
        for (int way = 0; calls_write_spelling(g, &tools->tools[i], way,
                                               (int64_t)(is_json ? i : tools->n + i), w);
             way++)
            ;
    json_end_array(w);
    json_end_object(w);
}

/* --- in messages --- */

static void calls_write_texts(const struct prepare_generation *g, struct json_writer *w,
                              const char *key, const char *const *texts, size_t n)
{
    json_field_array(w, key);
    for (size_t i = 0; i < n && texts[i]; i++)
        calls_write_text(g, w, NULL, texts[i]);
    json_end_array(w);
}

/* A message to the tool: the word that says so, and what stands before the arguments behind the header. */
static void calls_write_message(const struct prepare_generation *g, const struct split_framing *f,
                                size_t i, struct json_writer *w)
{
    const struct split_style *style = &g->ctx->model->style;
    const struct tool *tool = &g->p->tools->tools[i];
    struct buf call, word;
    buf_init(&call, MEM_CAT_REQUEST, 1 << 12);
    buf_init(&word, MEM_CAT_REQUEST, 1 << 12);
    split_style_call(style, tool->name, &call);
    const char *text = f->text ? strstr(call.data, f->text) : NULL;
    buf_printf(&word, "%s%s", f->word, tool->name);
    json_begin_object(w);
    json_field_str(w, "word", word.data);
    calls_write_text(g, w, "begin", text ? text + strlen(f->text) : call.data);
    json_field_int(w, "arguments", (int64_t)i);
    calls_write_text(g, w, "end", split_style_call_end(style));
    json_end_object(w);
    buf_release(&call);
    buf_release(&word);
}

void prepare_calls_write_messages(const struct prepare_generation *g, bool is_guess,
                                  struct json_writer *w)
{
    const struct tools *tools = g->p->tools;
    struct split_framing f;
    split_style_framing(&g->ctx->model->style, &f);
    json_begin_object(w);
    json_field_array(w, "arguments");
    for (size_t i = 0; i < tools->n; i++)
        calls_write_argument(g, &tools->tools[i], !is_guess && !tools->tools[i].is_strict, false,
                             w);
    json_end_array(w);
    json_field_array(w, "calls");
    for (size_t i = 0; i < tools->n; i++)
        calls_write_message(g, &f, i, w);
    json_end_array(w);
    json_field_array(w, "names");
    for (size_t i = 0; i < tools->n; i++)
        json_str(w, tools->tools[i].name);
    json_end_array(w);
    calls_write_texts(g, w, "prefixes", split_tool_prefixes, SPLIT_TOOL_PREFIXES);
    if (f.recipient) {
        calls_write_text(g, w, "recipient", f.recipient);
        calls_write_text(g, w, "all", f.all);
    } else {
        calls_write_marks(g, w);
        calls_write_text(g, w, "to", "to=");
        calls_write_text(g, w, "text", f.text);
        calls_write_texts(g, w, "ends", f.ends, f.n_ends);
        calls_write_texts(g, w, "starts", f.starts, f.n_starts);
    }
    json_end_object(w);
}

/* --- what cannot be --- */

bool prepare_calls_check(const struct prepare_generation *g, struct api_error *e)
{
    static const char fine[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/";
    const struct tools *tools = g->p->tools;
    struct split_framing f;
    bool is_framed = split_style_framing(&g->ctx->model->style, &f);
    if (tools->n > CALLS_TOOLS)
        return api_error_set(e, 400, NULL, "tools", "tools: more than %d cannot be constrained",
                             CALLS_TOOLS);
    for (size_t i = 0; i < tools->n; i++) {
        const char *name = tools->tools[i].name;
        char word[2 * TOOLS_NAME_BYTES];
        if (strspn(name, fine) != strlen(name) ||
            (split_style_has_words(&g->ctx->model->style) && strpbrk(name, ":/")))
            return api_error_set(
                e, 400, NULL, "tools",
                "tools: '%.80s' has characters that a call cannot be constrained with", name);
        int n = snprintf(word, sizeof(word), "%s%s", is_framed ? f.word : "", name);
        const struct tool *found = tools_find(tools, word, (size_t)n);
        if (found && found != &tools->tools[i])
            return api_error_set(e, 400, NULL, "tools",
                                 "tools: '%.80s' and '%.80s' are called by the same name here",
                                 name, found->name);
    }
    return true;
}
