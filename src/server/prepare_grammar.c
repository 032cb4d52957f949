/* prepare_grammar.c - what a request says of the form of its answer, compiled: response_format, structured_outputs, guided_*, grammar,
 * json_schema, tools that are strict or must be called. One constraint at most; what cannot be enforced is refused, or named. */
#include "server/prepare_int.h"

#include <stdio.h>
#include <string.h>

#define GRAMMAR_SOURCES 256  /* alternatives of one answer */
#define GRAMMAR_SPELLED 64   /* tools whose calls are constrained as JSON by itself, too */
#define GRAMMAR_NOTES   1024 /* bytes of keywords that are told */
#define GRAMMAR_MARK \
    "\xEF\xB7\x90" /* U+FDD0 and U+FDD1: a control token in a tag (docs/structured-output.md) */
#define GRAMMAR_MARK_END  "\xEF\xB7\x91"
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
    g->engine.grammar = NULL;
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

/* A tool's arguments are an object, whatever else its schema says. */
static void grammar_write_arguments(const struct tool *tool, bool is_free, struct json_writer *w)
{
    json_begin_object(w);
    if (!tool->schema || !json_get(tool->schema, "type") || is_free)
        json_field_str(w, "type", "object");
    for (size_t i = 0; tool->schema && !is_free && i < tool->schema->n; i++)
        json_field_value(w, tool->schema->members[i].key, &tool->schema->members[i].value);
    json_end_object(w);
}

/* A text of a tag: control tokens as tags have them. */
static void grammar_write_text(const struct prepare_generation *g, struct json_writer *w,
                               const char *key, const char *text)
{
    const struct server_model *m = g->ctx->model;
    struct buf spelled;
    buf_init(&spelled, MEM_CAT_REQUEST, 1 << 13);
    split_style_spell(&m->style, m->tokenizer, text, GRAMMAR_MARK, GRAMMAR_MARK_END, &spelled);
    if (key)
        json_field_strn(w, key, spelled.len > 0 ? spelled.data : "", spelled.len);
    else
        json_strn(w, spelled.len > 0 ? spelled.data : "", spelled.len);
    buf_release(&spelled);
}

/* The arguments as the style writes them: their schema; or, where they are elements, all that says how. */
static void grammar_write_elements(const struct prepare_generation *g, const struct tool *tool,
                                   bool is_free, const struct split_element *x,
                                   struct json_writer *w)
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
        grammar_write_arguments(tool, false, w);
    }
    grammar_write_text(g, w, "open", x->open);
    grammar_write_text(g, w, "raw", x->raw);
    grammar_write_text(g, w, "json", x->json);
    grammar_write_text(g, w, "stop", x->stop);
    grammar_write_text(g, w, "close", x->close);
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

static bool grammar_name_is_fine(const struct tool *tool, struct api_error *e)
{
    static const char fine[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/";
    return strspn(tool->name, fine) == strlen(tool->name) ||
           api_error_set(e, 400, NULL, "tools",
                         "tools: '%.80s' has characters that a call cannot be constrained with",
                         tool->name);
}

/* The calls that may be made: of the one tool that must be called, behind the forced ids, or of each. `skipped`: bytes of a call that
 * stand before. */
static bool grammar_add_calls(struct prepare_generation *g, struct grammar_list *l, bool is_forced,
                              struct api_error *e)
{
    const struct split_style *style = &g->ctx->model->style;
    const struct tools *tools = g->p->tools;
    if (tools->n + (size_t)l->n > GRAMMAR_SOURCES)
        return api_error_set(e, 400, NULL, "tools", "tools: more than %d cannot be constrained",
                             GRAMMAR_SOURCES);
    for (size_t i = 0; i < tools->n; i++) {
        struct buf before;
        struct json_writer w;
        if (is_forced && g->named && g->named != &tools->tools[i])
            continue;
        if (!grammar_name_is_fine(&tools->tools[i], e))
            return false;
        buf_init(&before, MEM_CAT_REQUEST, 1 << 12);
        split_style_call(style, tools->tools[i].name, &before);
        size_t skipped = is_forced ? prepare_forced_bytes(g, &before) : strspn(before.data, " \n");
        struct split_element x;
        bool has_elements = split_style_elements(style, &x);
        struct buf *text =
            grammar_list_add(g, l, has_elements ? GRAMMAR_KIND_ELEMENTS : GRAMMAR_KIND_SCHEMA,
                             before.data + skipped, split_style_call_end(style));
        json_writer_init(&w, text);
        if (has_elements)
            grammar_write_elements(g, &tools->tools[i], false, &x, &w);
        else
            grammar_write_arguments(&tools->tools[i], false, &w);
        buf_release(&before);
    }
    return true;
}

struct grammar_tags {
    struct prepare_generation *g;
    struct json_writer w;
    int n;     /* structures that are written */
    int first; /* of the tool's, the one with its arguments as JSON; -1 = none yet */
};

/* The calls of one tool: in the style's own way (way < 0), or as JSON by itself. False: there are no more ways. trigger_only: what a
 * call begins with, of the latter. */
static bool grammar_tag(struct grammar_tags *t, const struct tool *tool, int way, bool trigger_only)
{
    const struct split_style *style = &t->g->ctx->model->style;
    const char *end = split_style_call_end(style);
    struct buf before;
    bool is_there = true;
    buf_init(&before, MEM_CAT_REQUEST, 1 << 12);
    if (way < 0)
        split_style_call(style, tool->name, &before);
    else
        is_there = split_style_spelling(style, way, tool->name, &before, &end);
    const char *text = before.len > 0 ? before.data + strspn(before.data, " \n") : "";
    if (is_there && trigger_only) {
        grammar_write_text(t->g, &t->w, NULL, text);
    } else if (is_there) {
        json_begin_object(&t->w);
        grammar_write_text(t->g, &t->w, "begin", text);
        struct split_element x;
        bool has_elements = way < 0 && split_style_elements(style, &x);
        if (has_elements || t->first < 0)
            json_key(&t->w, has_elements ? "elements" : "schema");
        if (has_elements)
            grammar_write_elements(t->g, tool, !tool->is_strict, &x, &t->w);
        else if (t->first >= 0)
            json_field_int(&t->w, "same", t->first);
        else
            grammar_write_arguments(tool, !tool->is_strict, &t->w);
        if (!has_elements && t->first < 0)
            t->first = t->n;
        t->n++;
        grammar_write_text(t->g, &t->w, "end", end);
        json_end_object(&t->w);
    }
    buf_release(&before);
    return is_there;
}

static void grammar_write_tags(struct grammar_tags *t, bool is_spelled)
{
    const struct split_style *style = &t->g->ctx->model->style;
    const struct tools *tools = t->g->p->tools;
    struct buf before;
    json_begin_object(&t->w);
    json_field_array(&t->w, "triggers");
    if (split_style_is_marked(style)) {
        buf_init(&before, MEM_CAT_REQUEST, 1 << 12);
        split_style_opening(style, NULL, &before);
        size_t blanks = strspn(before.data, " \n");
        buf_cut(&before, blanks + split_style_trigger(style));
        grammar_write_text(t->g, &t->w, NULL, before.data + blanks);
        buf_release(&before);
    }
    for (size_t i = 0; i < tools->n && is_spelled; i++)
        for (int way = 0; grammar_tag(t, &tools->tools[i], way, true); way++)
            ;
    json_end_array(&t->w);
    json_field_array(&t->w, "structures");
    for (size_t i = 0; i < tools->n; i++) {
        t->first = -1;
        if (split_style_is_marked(style))
            grammar_tag(t, &tools->tools[i], -1, false);
        for (int way = 0; is_spelled && grammar_tag(t, &tools->tools[i], way, false); way++)
            ;
    }
    json_end_array(&t->w);
    json_end_object(&t->w);
}

/* Free text in which calls are constrained: tags for each tool. Those that are not strict have any object. */
static bool grammar_add_tags(struct prepare_generation *g, struct grammar_list *l,
                             struct api_error *e)
{
    const struct tools *tools = g->p->tools;
    struct buf *text = grammar_list_add(g, l, GRAMMAR_KIND_TAGS, "", "");
    struct grammar_tags t = { .g = g };
    for (size_t i = 0; i < tools->n; i++)
        if (!grammar_name_is_fine(&tools->tools[i], e))
            return false;
    bool is_spelled = tools->n <= GRAMMAR_SPELLED || !split_style_is_marked(&g->ctx->model->style);
    g->p->split.exact = is_spelled ? SPLIT_EXACT_SPELLED : SPLIT_EXACT_MARKED;
    json_writer_init(&t.w, text);
    grammar_write_tags(&t, is_spelled);
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
        grammar_write_arguments(&tools->tools[i], !g->must_call && !tools->tools[i].is_strict, &w);
        struct grammar_source s = { .kind = GRAMMAR_KIND_SCHEMA, .text = text.data, .n = text.len };
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

bool prepare_constrain(struct prepare_generation *g, struct api_error *e)
{
    const struct split_style *style = &g->ctx->model->style;
    bool offers_tools = g->p->split.tools != NULL, has_arguments = split_style_has_arguments(style);
    bool is_strict = offers_tools && grammar_is_strict(g->p->split.tools), is_fine = true;
    bool is_text = g->grammar.field != NULL;
    if (is_text && g->must_call && strcmp(g->grammar.field, "response_format") != 0)
        return api_error_set(e, 400, "conflict", g->grammar.field,
                             "%s: tool_choice asks for a call; the answer cannot be both",
                             g->grammar.field);
    bool may_tag = has_arguments && !split_style_is_framed(style);
    if (is_strict && !(may_tag || (has_arguments && (g->must_call || is_text)))) /* not enforced */
        fields_ignore(g->p->ignored, "tools.strict", strlen("tools.strict"));
    bool has_calls = offers_tools && has_arguments && (g->must_call || is_text);
    bool has_tags = is_strict && may_tag && !g->must_call && !is_text;
    if (!has_calls && !has_tags && (!is_text || g->must_call))
        return true;
    struct grammar_list *l = grammar_list_new();
    if (is_text && !g->must_call)
        is_fine = grammar_add_text(g, l, e);
    if (is_fine && has_calls)
        is_fine = grammar_add_calls(g, l, g->must_call, e);
    if (is_fine && has_tags)
        is_fine = grammar_add_tags(g, l, e);
    is_fine = is_fine && grammar_compile_list(g, l, has_calls || has_tags, e);
    if (is_text && !g->must_call)
        g->p->split.exact = SPLIT_EXACT_MARKED;
    grammar_list_free(l);
    return is_fine;
}
