/* prepare_grammar.c - what a request says of the form of its answer, compiled: response_format, structured_outputs, guided_*, grammar,
 * json_schema, tools that are strict or must be called. One constraint at most; what cannot be enforced is refused, or named. */
#include "base/log.h"
#include "server/prepare_grammar_int.h"

#include <string.h>

#define GRAMMAR_SOURCES   4    /* alternatives of one answer */
#define GRAMMAR_NOTES     1024 /* bytes of keywords that are told */
#define GRAMMAR_BYTES_MAX (2 * (size_t)GRAMMAR_SOURCE_BYTES)

/* --- what is asked for --- */

static bool grammar_set(struct prepare_generation *g, const char *field, enum grammar_kind kind,
                        const struct json *v, bool is_text, struct api_error *e)
{
    struct prepare_grammar *x = &g->grammar;
    struct json_writer w;
    if (x->field)
        return api_error_set(e, 400, "conflict", field,
                             "%s: the answer is constrained by %s already; give one of them", field,
                             x->field);
    x->field = field;
    x->kind = kind;
    buf_init(&x->text, MEM_CAT_REQUEST, GRAMMAR_BYTES_MAX);
    if (is_text) {
        buf_add(&x->text, v->text, v->len);
    } else if (v) {
        json_writer_init(&w, &x->text);
        json_value(&w, v);
    }
    return !x->text.failed || api_error_set(e, 400, "grammar_too_large", field, "%s: over %d bytes",
                                            field, GRAMMAR_SOURCE_BYTES);
}

/* A text that is itself a notation; one that is empty is none. */
static bool grammar_text(struct prepare_generation *g, const char *field, enum grammar_kind kind,
                         const struct json *v, struct api_error *e)
{
    if (!json_is(v, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, field, "%s: must be a string", field);
    return v->len == 0 || grammar_set(g, field, kind, v, true, e);
}

/* A JSON schema, or the text of one. */
static bool grammar_schema(struct prepare_generation *g, const char *field, const struct json *v,
                           struct api_error *e)
{
    if (json_is(v, JSON_TYPE_STRING))
        return grammar_text(g, field, GRAMMAR_KIND_SCHEMA, v, e);
    if (!json_is(v, JSON_TYPE_OBJECT) && !json_is(v, JSON_TYPE_BOOL))
        return api_error_set(e, 400, NULL, field, "%s: must be a JSON schema", field);
    return grammar_set(g, field, GRAMMAR_KIND_SCHEMA, v, false, e);
}

static bool grammar_choice(struct prepare_generation *g, const char *field, const struct json *v,
                           struct api_error *e)
{
    if (!json_is(v, JSON_TYPE_ARRAY))
        return api_error_set(e, 400, NULL, field, "%s: must be an array of strings", field);
    return grammar_set(g, field, GRAMMAR_KIND_CHOICE, v, false, e);
}

/* Tags: an object, or the text of one. */
static bool grammar_tags(struct prepare_generation *g, const char *field, const struct json *v,
                         struct api_error *e)
{
    if (json_is(v, JSON_TYPE_STRING))
        return grammar_text(g, field, GRAMMAR_KIND_TAGS, v, e);
    if (!json_is(v, JSON_TYPE_OBJECT))
        return api_error_set(e, 400, NULL, field, "%s: must be an object", field);
    return grammar_set(g, field, GRAMMAR_KIND_TAGS, v, false, e);
}

static bool grammar_response_format(struct prepare_generation *g, struct api_error *e)
{
    static const char field[] = "response_format";
    const struct json *v = json_get_set(g->body, field), *type = json_get(v, "type");
    const struct json *nested = json_get_set(v, "json_schema");
    const struct json *schema =
        json_get_set(json_is(nested, JSON_TYPE_OBJECT) ? nested : v, "schema");
    if (!v || json_str_eq(type, "text"))
        return true;
    if (json_str_eq(type, "json_schema") && !schema)
        return api_error_set(e, 400, NULL, field, "response_format: json_schema needs a schema");
    if (json_str_eq(type, "json_schema") || (json_str_eq(type, "json_object") && schema))
        return grammar_schema(g, field, schema, e);
    if (json_str_eq(type, "json_object"))
        return grammar_set(g, field, GRAMMAR_KIND_OBJECT, NULL, false, e);
    if (json_str_eq(type, "structural_tag"))
        return grammar_tags(g, field, v, e);
    return api_error_set(e, 400, NULL, field,
                         "response_format: must be an object of type text, json_object, "
                         "json_schema or structural_tag");
}

static bool grammar_outputs(struct prepare_generation *g, struct api_error *e)
{
    static const char field[] = "structured_outputs";
    const struct json *v = json_get_set(g->body, field);
    if (!v)
        return true;
    if (!json_is(v, JSON_TYPE_OBJECT))
        return api_error_set(e, 400, NULL, field, "structured_outputs: must be an object");
    for (size_t i = 0; i < v->n; i++) {
        const struct json *one = &v->members[i].value;
        const char *name = v->members[i].key;
        bool is_fine = true;
        if (one->type == JSON_TYPE_NULL)
            continue;
        if (strcmp(name, "json") == 0)
            is_fine = grammar_schema(g, field, one, e);
        else if (strcmp(name, "regex") == 0)
            is_fine = grammar_text(g, field, GRAMMAR_KIND_REGEX, one, e);
        else if (strcmp(name, "choice") == 0)
            is_fine = grammar_choice(g, field, one, e);
        else if (strcmp(name, "grammar") == 0)
            is_fine = grammar_text(g, field, GRAMMAR_KIND_GBNF, one, e);
        else if (strcmp(name, "structural_tag") == 0)
            is_fine = grammar_tags(g, field, one, e);
        else if (strcmp(name, "json_object") == 0 && json_is(one, JSON_TYPE_BOOL))
            is_fine = !one->boolean || grammar_set(g, field, GRAMMAR_KIND_OBJECT, NULL, false, e);
        else if (strcmp(name, "disable_any_whitespace") == 0 && json_is(one, JSON_TYPE_BOOL))
            g->grammar.is_compact = one->boolean;
        else if (strcmp(name, "any_order") == 0 && json_is(one, JSON_TYPE_BOOL))
            g->grammar.is_any_order = one->boolean;
        else
            return api_error_set(e, 400, "unsupported_value", field,
                                 "structured_outputs: '%.60s' is none of json, json_object, regex, "
                                 "choice, grammar, structural_tag, disable_any_whitespace and "
                                 "any_order",
                                 name);
        if (!is_fine)
            return false;
    }
    return true;
}

bool prepare_grammar_read(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v;
    if (!grammar_response_format(g, e) || !grammar_outputs(g, e))
        return false;
    if ((v = json_get_set(g->body, "json_schema")) && !grammar_schema(g, "json_schema", v, e))
        return false;
    if ((v = json_get_set(g->body, "grammar")) &&
        !grammar_text(g, "grammar", GRAMMAR_KIND_GBNF, v, e))
        return false;
    if ((v = json_get_set(g->body, "guided_json")) && !grammar_schema(g, "guided_json", v, e))
        return false;
    if ((v = json_get_set(g->body, "guided_regex")) &&
        !grammar_text(g, "guided_regex", GRAMMAR_KIND_REGEX, v, e))
        return false;
    if ((v = json_get_set(g->body, "guided_choice")) && !grammar_choice(g, "guided_choice", v, e))
        return false;
    v = json_get_set(g->body, "guided_grammar");
    return !v || grammar_text(g, "guided_grammar", GRAMMAR_KIND_GBNF, v, e);
}

bool prepare_is_constrained(const char *body, size_t n)
{
    static const char *const words[] = {
        "_format\"", "format\"",     "json_schema\"", "grammar\"",
        "\"guided_", "structured_o", "\"tool_choice", "\"strict\""
    };
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (memmem(body, n, words[i], strlen(words[i])))
            return true;
    return false;
}

void prepare_grammar_release(struct prepare_generation *g)
{
    grammar_unref(g->engine.grammar);
    grammar_unref(g->engine.expected);
    g->engine.grammar = g->engine.expected = NULL;
    buf_release(&g->grammar.text);
}

/* --- sources --- */

struct grammar_list {
    struct grammar_source sources[GRAMMAR_SOURCES];
    struct buf texts[GRAMMAR_SOURCES];  /* of schemas */
    struct buf around[GRAMMAR_SOURCES]; /* what stands before and after, each terminated */
    int32_t n;
};

static struct grammar_list *grammar_list_new(void)
{
    return mem_alloc(MEM_CAT_REQUEST, sizeof(struct grammar_list));
}

static void grammar_list_free(struct grammar_list *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        buf_release(&l->texts[i]);
        buf_release(&l->around[i]);
    }
    mem_free(MEM_CAT_REQUEST, l);
}

/* One more source, whose text is written to the buffer returned; before, after: as the splitter is fed them. */
static struct buf *grammar_list_add(struct prepare_generation *g, struct grammar_list *l,
                                    enum grammar_kind kind, const char *before, const char *after)
{
    const struct server_model *m = g->ctx->model;
    static const char open[] = { SPLIT_MARK, '\0' }, close[] = { SPLIT_MARK_END, '\0' };
    BUG_ON(l->n == GRAMMAR_SOURCES);
    struct buf *text = &l->texts[l->n], *around = &l->around[l->n];
    buf_init(text, MEM_CAT_REQUEST, GRAMMAR_BYTES_MAX);
    buf_init(around, MEM_CAT_REQUEST, 1 << 16);
    split_style_spell(&m->style, m->tokenizer, before, open, close, around);
    buf_add_char(around, '\0');
    split_style_spell(&m->style, m->tokenizer, after, open, close, around);
    l->sources[l->n++] = (struct grammar_source){ .kind = kind,
                                                  .is_compact = g->grammar.is_compact,
                                                  .is_any_order = g->grammar.is_any_order };
    return text;
}

/* The texts are written: point to them. */
static void grammar_list_close(struct grammar_list *l)
{
    for (int32_t i = 0; i < l->n; i++) {
        struct grammar_source *s = &l->sources[i];
        s->text = l->texts[i].data;
        s->n = l->texts[i].len;
        s->before = l->around[i].data;
        s->after = l->around[i].data + strlen(l->around[i].data) + 1;
    }
}

/* The text that is asked for, between what the model's format puts around content. */
static bool grammar_add_text(struct prepare_generation *g, struct grammar_list *l,
                             struct api_error *e)
{
    const struct split_style *style = &g->ctx->model->style;
    bool is_framed = g->p->kind == PREPARE_CHAT && split_style_is_framed(style);
    if (is_framed && !split_style_has_frames(style))
        return api_error_set(e, 400, "unsupported_value", g->grammar.field,
                             "%s: content cannot be constrained in this model's format (%s)",
                             g->grammar.field, split_style_name(style));
    for (int i = 0; i == 0 || (is_framed && split_style_frame(style, i)); i++) {
        struct buf *text = grammar_list_add(g, l, g->grammar.kind,
                                            is_framed ? split_style_frame(style, i) : "", "");
        buf_add(text, g->grammar.text.data, g->grammar.text.len);
    }
    return true;
}

static bool grammar_add_calls(struct prepare_generation *g, struct grammar_list *l,
                              enum grammar_kind kind, struct api_error *e)
{
    struct json_writer w;
    if (!prepare_calls_check(g, e))
        return false;
    json_writer_init(&w, grammar_list_add(g, l, kind, "", ""));
    if (kind == GRAMMAR_KIND_CALLS)
        prepare_calls_write(g, g->must_call, &w);
    else if (kind == GRAMMAR_KIND_MESSAGES)
        prepare_calls_write_messages(g, false, &w);
    else
        prepare_calls_write_tags(g, false, &w);
    if (kind == GRAMMAR_KIND_TAGS)
        g->p->split.exact = prepare_calls_are_spelled(g) ? SPLIT_EXACT_SPELLED : SPLIT_EXACT_MARKED;
    return true;
}

/* --- compiling --- */

static bool grammar_refuse(struct api_error *e, const char *field, const char *tool,
                           const struct err *err)
{
    const char *code = err->code == ERR_UNSUPPORTED ? "unsupported_value"
                       : err->code == ERR_FULL      ? "grammar_too_large"
                                                    : NULL;
    if (err->code == ERR_NOMEM) {
        api_error_from(e, err);
        return false;
    }
    return api_error_set(e, 400, code, field, "%s%s%s: %s", field, tool ? ": " : "",
                         tool ? tool : "", err->text);
}

/* Which tool's schema is at fault? */
static bool grammar_blame_tool(const struct prepare_generation *g, const struct err *first,
                               struct api_error *e)
{
    const struct tools *tools = g->p->tools;
    for (size_t i = 0; tools && i < tools->n; i++) {
        struct buf text;
        struct json_writer w;
        struct grammar *one = NULL;
        struct err err;
        buf_init(&text, MEM_CAT_REQUEST, GRAMMAR_BYTES_MAX);
        json_writer_init(&w, &text);
        prepare_calls_write_one(g, &tools->tools[i], !g->must_call && !tools->tools[i].is_strict,
                                &w);
        struct grammar_source s = { .kind = GRAMMAR_KIND_CALLS, .text = text.data, .n = text.len };
        enum err_code code = grammar_compile(&s, NULL, &one, NULL, &err);
        grammar_unref(one);
        buf_release(&text);
        if (code)
            return grammar_refuse(e, "tools", tools->tools[i].name, &err);
    }
    return grammar_refuse(e, "tools", NULL, first);
}

/* Keywords that say more than is enforced. */
static void grammar_tell(struct prepared *p, const char *notes)
{
    for (const char *at = notes; *at; at += strspn(at, ",")) {
        char name[80];
        size_t n = strcspn(at, ",");
        snprintf(name, sizeof(name), "schema.%.*s", (int)(n < 64 ? n : 64), at);
        fields_ignore(p->ignored, name, strlen(name));
        at += n;
    }
}

static bool grammar_compile_list(struct prepare_generation *g, struct grammar_list *l,
                                 bool has_tools, struct api_error *e)
{
    struct buf notes;
    struct err err;
    bool is_text = g->grammar.field != NULL;
    buf_init(&notes, MEM_CAT_REQUEST, GRAMMAR_NOTES);
    grammar_list_close(l);
    enum err_code code =
        g->ctx->grammars
            ? grammars_get(g->ctx->grammars, l->sources, l->n, &g->engine.grammar, &notes, &err)
            : err_set(&err, ERR_UNSUPPORTED, "grammars are not at hand here");
    if (!code)
        grammar_tell(g->p, notes.len > 0 ? notes.data : "");
    buf_release(&notes);
    if (!code)
        return true;
    return has_tools && !is_text
               ? grammar_blame_tool(g, &err, e)
               : grammar_refuse(e, is_text ? g->grammar.field : "tools", NULL, &err);
}

/* Some tool of the request is strict? */
static bool grammar_is_strict(const struct tools *tools)
{
    for (size_t i = 0; tools && i < tools->n; i++)
        if (tools->tools[i].is_strict)
            return true;
    return false;
}

/* Calls of the tools on offer, as the model would write them: next tokens are guessed from it, nothing is enforced. What cannot be
 * compiled is not expected. */
static void grammar_expect(struct prepare_generation *g)
{
    bool is_framed = split_style_is_framed(&g->ctx->model->style);
    struct api_error ignored;
    struct json_writer w;
    struct err err;
    struct buf notes;
    if (g->engine.no_drafts || !g->ctx->grammars || !prepare_calls_check(g, &ignored))
        return;
    struct grammar_list *l = grammar_list_new();
    json_writer_init(
        &w, grammar_list_add(g, l, is_framed ? GRAMMAR_KIND_MESSAGES : GRAMMAR_KIND_TAGS, "", ""));
    if (is_framed)
        prepare_calls_write_messages(g, true, &w);
    else
        prepare_calls_write_tags(g, true, &w);
    l->sources[0].has_no_masks = true;
    l->sources[0].is_compact = l->sources[0].is_any_order = false;
    grammar_list_close(l);
    buf_init(&notes, MEM_CAT_REQUEST, GRAMMAR_NOTES);
    if (grammars_get(g->ctx->grammars, l->sources, l->n, &g->engine.expected, &notes, &err))
        log_debug("server", "tools: no calls are guessed: %s", err.text);
    buf_release(&notes);
    grammar_list_free(l);
}

bool prepare_constrain(struct prepare_generation *g, struct api_error *e)
{
    const struct split_style *style = &g->ctx->model->style;
    bool offers_tools = g->p->split.tools != NULL, is_text = g->grammar.field != NULL;
    bool is_strict = offers_tools && grammar_is_strict(g->p->split.tools), is_fine = true;
    if (is_text && g->must_call && strcmp(g->grammar.field, "response_format") != 0)
        return api_error_set(e, 400, "conflict", g->grammar.field,
                             "%s: tool_choice asks for a call; the answer cannot be both",
                             g->grammar.field);
    bool has_calls = offers_tools && (g->must_call || is_text);
    if (offers_tools && !has_calls && !is_strict)
        grammar_expect(g);
    if (!has_calls && !is_strict && !is_text)
        return true;
    struct grammar_list *l = grammar_list_new();
    if (is_text && !g->must_call)
        is_fine = grammar_add_text(g, l, e);
    if (is_fine && has_calls)
        is_fine = grammar_add_calls(g, l, GRAMMAR_KIND_CALLS, e);
    else if (is_fine && is_strict)
        is_fine = grammar_add_calls(
            g, l, split_style_is_framed(style) ? GRAMMAR_KIND_MESSAGES : GRAMMAR_KIND_TAGS, e);
    is_fine = is_fine && grammar_compile_list(g, l, has_calls || is_strict, e);
    if (is_text && !g->must_call)
        g->p->split.exact = SPLIT_EXACT_MARKED;
    grammar_list_free(l);
    return is_fine;
}
