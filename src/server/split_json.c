/* split_json.c - calls whose arguments are JSON: objects that hold name and arguments, and names followed by arguments. */
#include "server/limits.h"
#include "server/split_int.h"

#include <string.h>

#define HEAD_BYTES 512 /* of a name and what stands before it */

static const char *const name_keys[] = { "name", "tool_name", "function", "tool", "function_name" };
static const char *const args_keys[] = { "arguments", "parameters", "input", "args", "kwargs" };
static const char *const other_keys[] = { "id", "type", "tool_call_id", "call_id", "index" };

static bool json_key_in(const char *const *keys, size_t n_keys, const char *key, size_t n)
{
    for (size_t i = 0; i < n_keys; i++)
        if (strlen(keys[i]) == n && memcmp(keys[i], key, n) == 0)
            return true;
    return false;
}

#define KEY_IN(keys, key, n) json_key_in(keys, ARRAY_LEN(keys), key, n)

/* --- arguments as they come --- */

/* Gemma quotes strings with a marker of its own: split_match of it. */
static long json_quote(const struct splitter *s, size_t at)
{
    bool may_be = !s->config.style->has_quote || s->in.data[at] == SPLIT_MARK;
    return s->format->quote && may_be ? split_match(s, at, s->format->quote) : 0;
}

enum split_verdict split_start_arguments(struct splitter *s, const struct tool *tool, size_t at,
                                         int envelope)
{
    /* A call for sure once its first name, or its end, has come; one that was forced is one whatever comes. */
    bool is_sure = s->config.is_forced && s->n_calls == 0;
    relaxed_release(&s->json);
    buf_reset(&s->args);
    relaxed_init(&s->json, &s->args);
    size_t i = at;
    while (!is_sure && i < s->in.len && !s->json.is_plausible && !s->json.has_failed) {
        char c = s->in.data[i++];
        long quote = c == SPLIT_MARK || c == '<' ? json_quote(s, i - 1) : 0;
        if (quote > 0) {
            i += (size_t)quote - 1;
            c = RELAXED_QUOTE;
        }
        if (c != SPLIT_MARK && c != SPLIT_MARK_END)
            relaxed_push(&s->json, c);
    }
    buf_reset(&s->args);
    if (s->json.has_failed)
        return SPLIT_NO;
    if (!s->json.is_plausible && !is_sure)
        return s->is_end ? SPLIT_NO : SPLIT_MORE;
    relaxed_release(&s->json);
    split_begin_call(s, tool);
    relaxed_init(&s->json, &s->args);
    s->json.is_plausible = is_sure;
    s->is_python = false;
    s->envelope = envelope;
    s->pos = s->scan = at;
    s->state = SPLIT_ARGUMENTS;
    return SPLIT_YES;
}

/* What may end the arguments though brackets are missing. */
static long arguments_end(const struct splitter *s)
{
    const struct split_format *f = s->format;
    const char *const ends[] = { f->close,
                                 f->alt_close,
                                 f->item_close,
                                 f->elements ? f->elements->call_close : NULL,
                                 f->messages ? f->messages->ends[0] : NULL,
                                 f->messages ? f->messages->ends[1] : NULL,
                                 f->messages ? f->messages->ends[2] : NULL };
    bool is_mark = s->in.data[s->pos] == SPLIT_MARK;
    long best = 0;
    if (relaxed_in_string(&s->json) && !is_mark)
        return 0;
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        long n = split_match(s, s->pos, ends[i]);
        if (n > 0)
            return n;
        best = n < 0 ? n : best;
    }
    return best;
}

static bool arguments_over(struct splitter *s)
{
    if (s->envelope > 0) {
        s->state = SPLIT_ENVELOPE;
        split_reset_scan(s, s->pos);
    } else {
        split_end_call(s);
    }
    return true;
}

bool split_arguments(struct splitter *s)
{
    while (s->pos < s->in.len && !s->json.is_done) {
        char c = s->in.data[s->pos];
        size_t n = 1;
        if (c == SPLIT_MARK || c == '<') {
            long quote = json_quote(s, s->pos), end = quote > 0 ? 0 : arguments_end(s);
            if (end > 0) {
                relaxed_finish(&s->json);
                break;
            }
            if (quote < 0 || end < 0)
                return false;
            if (quote > 0) {
                c = RELAXED_QUOTE;
                n = (size_t)quote;
            } else if (c == SPLIT_MARK) { /* a control token inside is no text */
                while (s->pos + n < s->in.len && s->in.data[s->pos + n - 1] != SPLIT_MARK_END)
                    n++;
                s->pos += n;
                continue;
            }
        }
        if (c != SPLIT_MARK_END && s->is_python)
            split_push_python(s, c);
        else if (c != SPLIT_MARK_END)
            relaxed_push(&s->json, c);
        s->pos += n;
    }
    s->scan = s->pos;
    if (!s->json.is_done && s->is_end && !s->was_cut)
        relaxed_finish(&s->json);
    return s->json.is_done && arguments_over(s);
}

/* Behind the arguments: the rest of the objects around them, which says nothing more. */
bool split_envelope(struct splitter *s)
{
    for (; s->pos < s->in.len && s->envelope > 0; s->pos++) {
        char c = s->in.data[s->pos];
        if (c == '\n' && !s->in_string && s->pos + 1 == s->in.len && !s->is_end)
            return false;
        if (!s->in_string && (c == '<' || c == SPLIT_MARK)) {
            long n = arguments_end(s);
            if (n < 0)
                return false;
            s->envelope = 0; /* its bracket is missing */
            break;
        }
        if (s->in_escape)
            s->in_escape = false;
        else if (c == '"')
            s->in_string = !s->in_string;
        else if (s->in_string)
            s->in_escape = c == '\\';
        else if (c == '{')
            s->envelope++;
        else if (c == '}')
            s->envelope--;
        else if (c == '\n' && s->in.data[s->pos + 1] == '{')
            s->envelope = 0; /* another call: the bracket is missing */
    }
    s->scan = s->pos;
    if (s->envelope > 0 && !s->is_end)
        return false;
    split_end_call(s);
    return true;
}

/* --- objects with a name --- */

void split_reset_scan(struct splitter *s, size_t at)
{
    s->seen = at;
    s->depth = 0;
    s->in_string = s->in_escape = false;
}

/* A simple string at in[*at]: its content, *at behind it. */
static enum split_verdict head_string(const struct splitter *s, size_t *at, const char **text,
                                      size_t *n)
{
    size_t i = *at;
    if (i == s->in.len)
        return SPLIT_MORE;
    char quote = s->in.data[i];
    if (quote != '"' && quote != '\'')
        return SPLIT_NO;
    for (i++; i < s->in.len && s->in.data[i] != quote; i++)
        if (s->in.data[i] == '\\' || s->in.data[i] == '\n')
            return SPLIT_NO;
    if (i == s->in.len)
        return SPLIT_MORE;
    *text = s->in.data + *at + 1;
    *n = i - *at - 1;
    *at = i + 1;
    return SPLIT_YES;
}

static enum split_verdict head_char(const struct splitter *s, size_t *at, char c)
{
    *at = split_skip_blanks(s, *at);
    if (*at == s->in.len)
        return SPLIT_MORE;
    if (s->in.data[*at] != c)
        return SPLIT_NO;
    (*at)++;
    return SPLIT_YES;
}

/* The usual order, name first: then the arguments can be streamed. SPLIT_NO: not told here, the whole object must be looked at;
 * *is_foreign: it is surely no call. */
static enum split_verdict head_scan(struct splitter *s, size_t at, const struct tool **tool,
                                    size_t *args, int *depth, bool *is_foreign)
{
    const char *text;
    size_t n, p = at;
    *tool = NULL;
    *depth = 0;
    for (bool is_first = true; p - at < HEAD_BYTES; is_first = false) {
        enum split_verdict v = SPLIT_YES;
        if (is_first || s->in.data[p - 1] == '{') {
            v = is_first ? head_char(s, &p, '{') : v;
            *depth += is_first;
        }
        p = split_skip_blanks(s, p);
        if (v == SPLIT_YES)
            v = head_string(s, &p, &text, &n);
        if (v != SPLIT_YES) {
            *is_foreign = v == SPLIT_NO && is_first && s->opening == SPLIT_OPENING_BARE;
            return v;
        }
        if (is_first && s->format->is_keyed && (*tool = tools_find(s->config.tools, text, n))) {
            v = head_char(s, &p, ':');
            p = v == SPLIT_YES ? split_skip_blanks(s, p) : p;
            *args = p;
            return v != SPLIT_YES ? v : p == s->in.len ? SPLIT_MORE : SPLIT_YES;
        }
        bool is_name = KEY_IN(name_keys, text, n), is_args = KEY_IN(args_keys, text, n);
        if (!is_name && !is_args && !KEY_IN(other_keys, text, n)) {
            *is_foreign = is_first && s->opening == SPLIT_OPENING_BARE;
            return SPLIT_NO;
        }
        if ((v = head_char(s, &p, ':')) != SPLIT_YES)
            return v;
        p = split_skip_blanks(s, p);
        if (p == s->in.len)
            return SPLIT_MORE;
        if (s->in.data[p] == '{' && is_args && *tool) {
            *args = p;
            return SPLIT_YES;
        }
        if (s->in.data[p] == '{' && is_name && !*tool) { /* "function": { */
            p++;
            (*depth)++;
            continue;
        }
        if ((v = head_string(s, &p, &text, &n)) != SPLIT_YES)
            return v;
        if (is_name && !(*tool = tools_find(s->config.tools, text, n))) {
            *is_foreign = true;
            return SPLIT_NO;
        }
        if ((v = head_char(s, &p, ',')) != SPLIT_YES)
            return v;
    }
    return SPLIT_NO;
}

/* Where the object that begins at `at` ends. SPLIT_NO: an end marker came first, or the answer's end: *end is there. */
static enum split_verdict object_end(struct splitter *s, size_t at, size_t *end)
{
    const struct split_format *f = s->format;
    if (s->seen < at)
        split_reset_scan(s, at);
    for (; s->seen < s->in.len; s->seen++) {
        char c = s->in.data[s->seen];
        *end = s->seen;
        if (!s->in_string && (c == '<' || c == SPLIT_MARK)) {
            long a = split_match(s, s->seen, f->close), b = split_match(s, s->seen, f->alt_close);
            long e = split_match(s, s->seen, f->item_close);
            if (a > 0 || b > 0 || e > 0)
                return SPLIT_NO;
            if (a < 0 || b < 0 || e < 0)
                return SPLIT_MORE;
        }
        if (s->in_escape) {
            s->in_escape = false;
        } else if (s->in_string) {
            s->in_escape = c == '\\';
            s->in_string = c != s->string_quote;
        } else if (c == '"' || c == '\'') {
            s->in_string = true;
            s->string_quote = c;
        } else if (c == '{' || c == '[') {
            s->depth++;
        } else if ((c == '}' || c == ']') && --s->depth == 0) {
            *end = ++s->seen;
            return SPLIT_YES;
        }
    }
    *end = s->in.len;
    return s->is_end ? SPLIT_NO : SPLIT_MORE;
}

static const struct json *object_member(const struct json *object, const char *const *keys,
                                        size_t n_keys)
{
    for (size_t i = 0; i < n_keys; i++) {
        const struct json *v = json_get_set(object, keys[i]);
        if (v)
            return v;
    }
    return NULL;
}

/* All members but those that say what the object is. */
static void object_rest(struct json_writer *w, const struct json *object)
{
    json_begin_object(w);
    for (size_t i = 0; i < object->n; i++) {
        const struct json_member *m = &object->members[i];
        bool is_null = json_is(&m->value, JSON_TYPE_NULL);
        if (KEY_IN(name_keys, m->key, m->key_len) || KEY_IN(other_keys, m->key, m->key_len) ||
            (is_null && KEY_IN(args_keys, m->key, m->key_len)))
            continue;
        json_field_value(w, m->key, &m->value);
    }
    json_end_object(w);
}

/* The tool and its arguments (as text) that an object names in whatever order and place. */
static const struct tool *object_read(const struct splitter *s, const struct json *root,
                                      struct buf *args)
{
    const struct json *inner = json_get_set(root, "function");
    const struct json *object = json_is(inner, JSON_TYPE_OBJECT) ? inner : root;
    const struct json *name = object_member(object, name_keys, ARRAY_LEN(name_keys));
    const struct json *v = object_member(object, args_keys, ARRAY_LEN(args_keys));
    struct json_writer w;
    json_writer_init(&w, args);
    if (!name && json_is(v, JSON_TYPE_OBJECT)) { /* the name slipped into the arguments */
        object = v;
        name = object_member(object, name_keys, ARRAY_LEN(name_keys));
        v = object_member(object, args_keys, ARRAY_LEN(args_keys));
    }
    if (!json_is(name, JSON_TYPE_STRING))
        return NULL;
    const struct tool *tool = tools_find(s->config.tools, name->text, name->len);
    if (json_is(v, JSON_TYPE_OBJECT)) {
        json_value(&w, v);
    } else if (json_is(v, JSON_TYPE_STRING)) {
        if (!relaxed_repair(v->text, v->len, args) || args->data[0] != '{')
            return NULL;
    } else if (v) {
        return NULL;
    } else {
        object_rest(&w, object);
    }
    return tool;
}

static enum split_verdict object_whole(struct splitter *s, size_t at, size_t end)
{
    struct json_doc doc = { 0 }, args_doc = { 0 };
    struct buf text, args;
    const struct tool *tool = NULL;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&args, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    if (relaxed_repair(s->in.data + at, end - at, &text) &&
        json_parse(&doc, text.data, text.len, LIMIT_JSON_VALUES, NULL) == ERR_OK &&
        json_is(&doc.root, JSON_TYPE_OBJECT))
        tool = object_read(s, &doc.root, &args);
    if (tool && s->opening == SPLIT_OPENING_BARE && !s->config.is_forced &&
        (json_parse(&args_doc, args.data, args.len, LIMIT_JSON_VALUES, NULL) != ERR_OK ||
         !tools_allows(tool, &args_doc.root)))
        tool = NULL;
    if (tool) {
        s->pos = s->scan = end;
        split_begin_call(s, tool);
        buf_add(&s->args, args.data, args.len);
        split_end_call(s);
    }
    json_doc_release(&doc);
    json_doc_release(&args_doc);
    buf_release(&text);
    buf_release(&args);
    return tool ? SPLIT_YES : SPLIT_NO;
}

/* A fence, a bracket of a list, or (inside markers) some words before the object. */
static enum split_verdict json_prefix(struct splitter *s, size_t *at)
{
    size_t p = *at;
    for (int turn = 0; turn < 4; turn++) {
        p = split_skip_blanks(s, p);
        if (p == s->in.len)
            return SPLIT_MORE;
        char c = s->in.data[p];
        long fence = split_match(s, p, "```");
        if (fence < 0)
            return SPLIT_MORE;
        if (c == '{')
            break;
        if (c == '[') {
            s->is_list = true;
            p++;
        } else if (fence > 0) {
            s->is_fenced = true;
            p += (size_t)fence; /* then perhaps a word: json, tool_call */
            while (p < s->in.len && p - *at < 32 &&
                   (s->in.data[p] == '_' || (s->in.data[p] >= 'a' && s->in.data[p] <= 'z')))
                p++;
        } else {
            if (s->opening == SPLIT_OPENING_BARE)
                return SPLIT_NO;
            while (p < s->in.len && s->in.data[p] != '{') { /* words */
                if (p - *at > HEAD_BYTES || s->in.data[p] == '<' || s->in.data[p] == SPLIT_MARK)
                    return SPLIT_NO;
                p++;
            }
        }
    }
    *at = p;
    return p == s->in.len ? SPLIT_MORE : s->in.data[p] == '{' ? SPLIT_YES : SPLIT_NO;
}

enum split_verdict split_try_json(struct splitter *s, size_t at)
{
    const struct tool *tool = NULL;
    size_t args = 0, end;
    int depth = 0;
    bool is_foreign = false;
    enum split_verdict v = json_prefix(s, &at);
    if (v == SPLIT_MORE && s->is_end)
        v = SPLIT_NO;
    if (v != SPLIT_YES)
        return v;
    if (s->config.exact == SPLIT_EXACT_SPELLED && s->opening == SPLIT_OPENING_BARE) {
        long n = split_match_spelled(s, at);
        if (n <= 0)
            return n < 0 && !s->is_end ? SPLIT_MORE : SPLIT_NO;
    }
    bool streams = s->opening != SPLIT_OPENING_BARE || s->config.is_forced ||
                   (s->format->is_bare && !s->is_fenced && !s->has_content);
    v = head_scan(s, at, &tool, &args, &depth, &is_foreign);
    if (v == SPLIT_YES && streams)
        return split_start_arguments(s, tool, args, depth);
    if (v == SPLIT_YES)
        v = SPLIT_NO;
    else if (v == SPLIT_MORE && s->is_end)
        v = SPLIT_NO;
    if (v != SPLIT_NO || is_foreign)
        return v;
    if ((v = object_end(s, at, &end)) == SPLIT_MORE)
        return v;
    if (v == SPLIT_NO && (s->was_cut || s->opening == SPLIT_OPENING_BARE))
        return SPLIT_NO;
    return object_whole(s, at, end);
}

bool split_is_bare_open(const struct splitter *s, size_t at)
{
    char c = s->in.data[at];
    return c == '{' || (c == '[' && split_is_first(s, at));
}

/* --- a name, then its arguments --- */

const char *const split_tool_prefixes[SPLIT_TOOL_PREFIXES] = { "functions.", "call:", "tools." };

const struct tool *split_find_tool(const struct splitter *s, const char *name, size_t n)
{
    const struct tool *tool = tools_find(s->config.tools, name, n);
    for (size_t i = 0; i < ARRAY_LEN(split_tool_prefixes) && !tool; i++) {
        size_t len = strlen(split_tool_prefixes[i]);
        if (n > len && memcmp(name, split_tool_prefixes[i], len) == 0)
            tool = split_find_tool(s, name + len, n - len);
    }
    for (size_t i = n; i > 1 && !tool && name[i - 1] >= '0' && name[i - 1] <= '9'; i--)
        if (name[i - 2] == ':')
            tool = tools_find(s->config.tools, name, i - 2);
    return tool;
}

static void named_trim(const char *data, size_t *from, size_t *to)
{
    while (*from < *to && strchr(" \t\r\n\xFE", data[*from]))
        (*from)++;
    while (*to > *from && strchr(" \t\r\n\xFF", data[*to - 1]))
        (*to)--;
}

enum split_verdict split_try_named(struct splitter *s, size_t at)
{
    const struct split_format *f = s->format;
    size_t p = at, from = at, to;
    long n = 0;
    for (; p < s->in.len && p - at < HEAD_BYTES; p++) {
        n = split_match(s, p, f->name_end);
        if (n != 0)
            break;
    }
    if (n <= 0)
        return p - at < HEAD_BYTES && !s->is_end ? SPLIT_MORE : SPLIT_NO;
    to = p;
    for (size_t i = at; i < p; i++) /* Mistral puts an id between */
        if (split_match(s, i, "[CALL_ID]") > 0) {
            to = i;
            break;
        }
    p += *f->name_end == '{' ? 0 : (size_t)n;
    p = split_skip_blanks(s, p);
    if (p == s->in.len)
        return s->is_end ? SPLIT_NO : SPLIT_MORE;
    if (s->in.data[p] != '{' && s->in.data[p] != '`') { /* DeepSeek R1: the name has its own line */
        const char *line = memchr(s->in.data + p, '\n', s->in.len - p);
        if (!line)
            return s->in.len - p < HEAD_BYTES && !s->is_end ? SPLIT_MORE : SPLIT_NO;
        from = p;
        to = (size_t)(line - s->in.data);
        p = to;
    }
    named_trim(s->in.data, &from, &to);
    const struct tool *tool = split_find_tool(s, s->in.data + from, to - from);
    if (!tool)
        return SPLIT_NO;
    enum split_verdict v = json_prefix(s, &p);
    if (v != SPLIT_YES)
        return v == SPLIT_MORE && s->is_end ? SPLIT_NO : v;
    s->is_list = false;
    return split_start_arguments(s, tool, p, 0);
}
