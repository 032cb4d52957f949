/* split_recipient.c - Functionary: ">>>NAME", a line end and arguments; ">>>all", a line end and content. The prompt ends with the
 * first ">>>", so that an answer begins with a name. */
#include "server/split_int.h"

#include <string.h>

/* Does a recipient's line begin at in[at]? *tool NULL: all. *end: behind the line. */
enum split_verdict split_recipient_at(const struct splitter *s, size_t at, const struct tool **tool,
                                      size_t *end)
{
    bool is_first = s->base == 0 && s->pos == at && s->n_calls == 0;
    long n = split_match(s, at, ">>>");
    if (n < 0)
        return SPLIT_MORE;
    if (n == 0 && !is_first)
        return SPLIT_NO;
    size_t from = at + (size_t)n, to = from;
    while (to < s->in.len && split_is_word(s->in.data[to]) && to - from < TOOLS_NAME_BYTES)
        to++;
    if (to == s->in.len)
        return s->is_end ? SPLIT_NO : SPLIT_MORE;
    *end = to + 1;
    *tool = NULL;
    if (s->in.data[to] != '\n')
        return SPLIT_NO;
    if (to - from == 3 && memcmp(s->in.data + from, "all", 3) == 0)
        return SPLIT_YES;
    *tool = s->config.tools ? split_find_tool(s, s->in.data + from, to - from) : NULL;
    return *tool ? SPLIT_YES : SPLIT_NO;
}

/* Before a recipient's line, or text that has none. */
bool split_recipient(struct splitter *s)
{
    const struct tool *tool;
    size_t end, at;
    if (s->pos == s->in.len)
        return false;
    enum split_verdict v = split_recipient_at(s, s->pos, &tool, &end);
    if (v == SPLIT_MORE)
        return false;
    split_to_text(s);
    if (v == SPLIT_NO)
        return true;
    if (!tool) {
        s->pos = s->scan = end;
        s->drops_blanks = true;
        return true;
    }
    at = split_skip_blanks(s, end);
    bool is_code = strcmp(tool->name, "python") == 0;
    v = at < s->in.len && s->in.data[at] == '{' ? split_start_arguments(s, tool, at, 0)
        : at < s->in.len && is_code             ? split_start_code(s, tool, end)
        : at == s->in.len && !s->is_end         ? SPLIT_MORE
                                                : SPLIT_NO;
    if (v == SPLIT_MORE)
        s->state = SPLIT_HEADER;
    if (v == SPLIT_NO) /* the line is content, too */
        split_emit_text(s, PART_CONTENT, end);
    return v != SPLIT_MORE;
}

bool split_recipient_message(struct splitter *s)
{
    const struct tool *tool;
    size_t i, end, text_end = s->pos;
    for (i = s->pos; i < s->in.len; i++) {
        enum split_verdict v =
            s->in.data[i] == '>' ? split_recipient_at(s, i, &tool, &end) : SPLIT_NO;
        if (v == SPLIT_YES) {
            split_emit_text(s, PART_CONTENT, text_end);
            s->pos = s->scan = i;
            s->state = SPLIT_HEADER;
            return true;
        }
        if (v == SPLIT_MORE)
            break;
        i = split_skip_mark(s, i);
        if (!strchr(" \t\r\n\xFE", s->in.data[i]))
            text_end = i + 1;
    }
    split_emit_text(s, PART_CONTENT, s->is_end ? i : text_end);
    return false;
}
