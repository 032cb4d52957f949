/* split_messages.c - Harmony (gpt-oss) and the like: an answer is messages with a channel or a recipient in their headers. */
#include "server/split_int.h"

#include <string.h>

#define HEADER_BYTES 512

/* Headers begin with one of these: its bytes (split_match); anything else is text by itself. */
static long header_starts(const struct splitter *s, size_t at)
{
    const struct split_messages *m = s->format->messages;
    long found = 0;
    if (at == s->in.len)
        return s->is_end ? 0 : -1;
    for (size_t i = 0; i < ARRAY_LEN(m->starts) && found <= 0; i++) {
        long n = split_match(s, at, m->starts[i]);
        found = n != 0 ? n : found;
    }
    return found;
}

/* The word behind `what` in the header, its marks taken out. */
static size_t header_word(const char *header, const char *what, const char **word)
{
    const char *p = strstr(header, what);
    if (!p)
        return 0;
    *word = p + strlen(what);
    return strcspn(*word, " \t\r\n<");
}

static void header_read(struct splitter *s, size_t end)
{
    char header[HEADER_BYTES + 1];
    const char *word;
    size_t n = 0;
    for (size_t i = s->pos; i < end && n < HEADER_BYTES; i++)
        if (s->in.data[i] != SPLIT_MARK && s->in.data[i] != SPLIT_MARK_END && s->in.data[i])
            header[n++] = s->in.data[i];
    header[n] = '\0';
    s->tool = NULL;
    s->message = PART_CONTENT;
    n = header_word(header, "to=", &word);
    if (n > 0 && s->config.tools)
        s->tool = split_find_tool(s, word, n);
    if (s->tool)
        s->message = PART_CALL_ARGUMENTS;
    else if (strstr(header, s->format->messages->reasoning))
        s->message = PART_REASONING;
}

bool split_header(struct splitter *s)
{
    size_t at = split_skip_blanks(s, s->pos), i = at;
    long starts = header_starts(s, at), n = 0;
    if (starts < 0)
        return false;
    if (starts == 0) { /* blanks are only framing if nothing else comes */
        if (at == s->in.len) {
            s->pos = at;
            return false;
        }
        s->message = PART_CONTENT;
        s->state = SPLIT_MESSAGE;
        return true;
    }
    for (; i < s->in.len && i - at < HEADER_BYTES; i++)
        if ((n = split_match(s, i, s->format->messages->text)) != 0)
            break;
    if (n > 0) {
        header_read(s, i);
        s->pos = s->scan = i + (size_t)n;
        s->state = SPLIT_MESSAGE;
        return true;
    }
    if (n == 0 && i - at >= HEADER_BYTES) { /* no header: text behind a marker */
        s->pos = s->scan = at + (size_t)starts;
        s->message = PART_CONTENT;
        s->state = SPLIT_MESSAGE;
        return true;
    }
    if (s->is_end) /* half a header says nothing */
        s->pos = s->scan = s->in.len;
    return false;
}

/* A message to a tool: its arguments, or elements. */
static bool message_call(struct splitter *s)
{
    const struct split_format *f = s->format;
    size_t at = split_skip_blanks(s, s->pos);
    long n = f->elements ? split_match(s, at, f->open) : 0;
    if (n < 0 || (at == s->in.len && !s->is_end))
        return false;
    if (n > 0) {
        split_open(s, at, (size_t)n, SPLIT_OPENING_MARKER);
        return true;
    }
    enum split_verdict v = at < s->in.len ? split_start_arguments(s, s->tool, at, 0) : SPLIT_NO;
    if (v == SPLIT_NO)
        s->message = PART_CONTENT;
    return v != SPLIT_MORE;
}

bool split_message(struct splitter *s)
{
    const char *const *ends = s->format->messages->ends;
    if (s->message == PART_CALL_ARGUMENTS)
        return message_call(s);
    for (size_t i = s->pos; i < s->in.len; i++) {
        long n = 0;
        for (size_t k = 0; k < ARRAY_LEN(s->format->messages->ends) && n == 0; k++)
            n = s->in.data[i] == '<' || s->in.data[i] == SPLIT_MARK ? split_match(s, i, ends[k])
                                                                    : 0;
        if (n > 0) {
            split_emit_text(s, s->message, i);
            s->state = SPLIT_HEADER;
            return true;
        }
        if (n < 0) {
            split_emit_text(s, s->message, i);
            return false;
        }
        i = split_skip_mark(s, i);
    }
    split_emit_text(s, s->message, s->in.len);
    return false;
}
