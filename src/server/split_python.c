/* split_python.c - calls written as Python writes them (LFM2, Llama 3.2 and 4): NAME(KEY=VALUE, ...), in a list or not; and code by
 * itself, where a tool runs code. */
#include "server/split_int.h"

#include <string.h>

bool split_is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '-';
}

static size_t python_word(const struct splitter *s, size_t at)
{
    while (at < s->in.len && split_is_word(s->in.data[at]))
        at++;
    return at;
}

/* The name of an argument: whatever no bracket, quote or blank is in. */
static size_t python_key(const struct splitter *s, size_t at)
{
    while (at < s->in.len && (unsigned char)s->in.data[at] > ' ' &&
           !strchr("{}[]()\"':,=\\<>|", s->in.data[at]) && s->in.data[at] != SPLIT_MARK)
        at++;
    return at;
}

static const struct tool *python_tool(const struct splitter *s, const char *name, size_t n)
{
    static const char method[] = ".call"; /* Llama 3.1's own tools */
    size_t len = sizeof(method) - 1;
    const struct tool *tool = split_find_tool(s, name, n);
    if (!tool && n > len && memcmp(name + n - len, method, len) == 0)
        tool = split_find_tool(s, name, n - len);
    return tool;
}

/* Behind the bracket: KEY= or the closing one, so that it is a call and no text about one. */
static enum split_verdict python_arguments(const struct splitter *s, size_t at)
{
    size_t p = split_skip_blanks(s, at), end = python_key(s, p);
    if (end == s->in.len && end - at < TOOLS_NAME_BYTES)
        return SPLIT_MORE;
    if (end == p)
        return s->in.data[p] == ')' ? SPLIT_YES : SPLIT_NO;
    end = split_skip_blanks(s, end);
    if (end + 1 >= s->in.len)
        return end - at < TOOLS_NAME_BYTES ? SPLIT_MORE : SPLIT_NO;
    return s->in.data[end] == '=' && s->in.data[end + 1] != '=' ? SPLIT_YES : SPLIT_NO;
}

enum split_verdict split_try_python(struct splitter *s, size_t at)
{
    bool is_list = s->in.data[at] == '[';
    bool is_sure = s->config.is_forced && s->n_calls == 0;
    size_t from = is_list ? split_skip_blanks(s, at + 1) : at, to = python_word(s, from);
    if (to == s->in.len)
        return to - from < TOOLS_NAME_BYTES && !s->is_end ? SPLIT_MORE : SPLIT_NO;
    const struct tool *tool = to - from < TOOLS_NAME_BYTES && s->in.data[to] == '('
                                  ? python_tool(s, s->in.data + from, to - from)
                                  : NULL;
    enum split_verdict v = !tool ? SPLIT_NO : is_sure ? SPLIT_YES : python_arguments(s, to + 1);
    if (v != SPLIT_YES)
        return v == SPLIT_MORE && s->is_end ? SPLIT_NO : v;
    split_begin_call(s, tool);
    relaxed_release(&s->json);
    relaxed_init(&s->json, &s->args);
    relaxed_push(&s->json, '{');
    s->json.is_plausible = true;
    s->is_list = s->is_list || is_list;
    s->is_python = true;
    s->parens = 0;
    s->n_parens = s->envelope = 0;
    s->pos = s->scan = to + 1;
    s->state = SPLIT_ARGUMENTS;
    return SPLIT_YES;
}

/* KEY=VALUE becomes KEY:VALUE, a tuple an array, the closing bracket the object's. */
void split_push_python(struct splitter *s, char c)
{
    struct relaxed *r = &s->json;
    if (relaxed_in_string(r)) {
        relaxed_push(r, c);
    } else if (c == ')' && s->n_parens == 0) {
        relaxed_finish(r);
    } else if (c == '(' && s->n_parens < 64) {
        bool is_tuple = relaxed_wants_value(r);
        s->parens = s->parens << 1 | is_tuple;
        s->n_parens++;
        relaxed_push(r, is_tuple ? '[' : c);
    } else if (c == ')') {
        relaxed_push(r, s->parens & 1 ? ']' : c);
        s->parens >>= 1;
        s->n_parens--;
    } else {
        bool is_equals = c == '=' && r->depth == 1 && relaxed_in_name(r);
        relaxed_push(r, is_equals ? ':' : c);
    }
}

/* --- code --- */

enum split_verdict split_start_code(struct splitter *s, const struct tool *tool, size_t at)
{
    const struct json *all = json_get_set(tool->schema, "properties");
    const char *key = json_is(all, JSON_TYPE_OBJECT) && all->n == 1 ? all->members[0].key : "code";
    split_begin_call(s, tool);
    buf_add_str(&s->args, "{\"");
    relaxed_escape(&s->args, key, strlen(key));
    buf_add_str(&s->args, "\": \"");
    s->pos = s->scan = at;
    s->state = SPLIT_CODE;
    return SPLIT_YES;
}

enum split_verdict split_try_code(struct splitter *s, size_t at)
{
    static const char *const names[] = { "code_interpreter", "ipython", "python" };
    const struct tool *tool = NULL;
    for (size_t i = 0; i < ARRAY_LEN(names) && !tool; i++)
        tool = tools_find(s->config.tools, names[i], strlen(names[i]));
    bool is_next = s->pos == s->open_end; /* no opening of its own: it stands behind a call */
    return tool && !is_next && !s->config.is_forced ? split_start_code(s, tool, at) : SPLIT_NO;
}

/* The bytes of what ends the code at in[at], which stays or is dropped; 0 = nothing does, -1 = not to be told yet. */
static long code_ends(const struct splitter *s, size_t at)
{
    const struct split_format *f = s->format;
    const struct tool *tool;
    size_t end;
    if (!f->names_recipient)
        return split_match(s, at, f->close);
    enum split_verdict v =
        s->in.data[at] == '>' ? split_recipient_at(s, at, &tool, &end) : SPLIT_NO;
    return v == SPLIT_YES ? 1 : v == SPLIT_MORE ? -1 : 0;
}

bool split_code(struct splitter *s)
{
    long n = 0;
    for (; s->pos < s->in.len; s->pos++) {
        char c = s->in.data[s->pos];
        if ((n = code_ends(s, s->pos)) != 0)
            break;
        if (c == SPLIT_MARK)
            s->pos = split_skip_mark(s, s->pos);
        else if (c != SPLIT_MARK_END)
            relaxed_escape(&s->args, &c, 1);
    }
    s->scan = s->pos;
    if (n <= 0 && (!s->is_end || s->was_cut))
        return false;
    buf_add_str(&s->args, "\"}");
    split_end_call(s);
    return true;
}
