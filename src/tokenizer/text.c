/* text.c - the text as the vocabulary sees it: well-formed UTF-8 and, for SentencePiece kinds, U+2581 for each space.
 *
 * Spans move along with the bytes. One that begins or ends inside a part that changed covers the whole replacement: in doubt a
 * byte is the caller's. */
#include "tokenizer/tokenizer_int.h"

bool text_is_space(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
           c == 0x205F || c == 0x3000;
}

struct span_move {
    const struct span_list *from;
    struct span *to;
    size_t i0, i1; /* first spans whose begin, end is not known yet */
};

/* Bytes [p0, p1) of the old text became [q0, q1) of the new one. Called in ascending order. */
static void span_move_over(struct span_move *m, size_t p1, size_t q0, size_t q1)
{
    if (!m->from)
        return;
    while (m->i0 < m->from->n && m->from->spans[m->i0].p0 < p1)
        m->to[m->i0++].p0 = q0;
    while (m->i1 < m->i0 && m->from->spans[m->i1].p1 <= p1)
        m->to[m->i1++].p1 = q1;
}

static void norm_rewrite(struct norm_text *n, const char *text, size_t len, bool escape,
                         struct span_move *move)
{
    for (size_t i = 0; i < len;) {
        size_t q0 = n->own.len;
        uint32_t cp;
        size_t k = utf8_decode(text + i, len - i, &cp);
        if (k == 0) {
            k = utf8_bad_length(text + i, len - i);
            buf_add_code_point(&n->own, UTF8_REPLACEMENT);
        } else if (escape && cp == ' ') {
            buf_add(&n->own, SPACE_MARK, SPACE_MARK_LEN);
        } else {
            buf_add(&n->own, text + i, k);
        }
        i += k;
        span_move_over(move, i, q0, n->own.len);
    }
    /* spans that reach over the end of the text */
    for (; move->from && move->i0 < move->from->n; move->i0++)
        move->to[move->i0].p0 = n->own.len;
    for (; move->from && move->i1 < move->from->n; move->i1++)
        move->to[move->i1].p1 = n->own.len;
}

enum err_code norm_text_init(struct norm_text *n, const char *text, size_t len,
                             const struct span_list *caller, bool escape, struct err *err)
{
    *n = (struct norm_text){ .text = text, .len = len };
    buf_init(&n->own, MEM_CAT_TOKENIZER, len > SIZE_MAX / 4 ? SIZE_MAX : len * 3 + 1);
    if (caller)
        n->caller = *caller;
    if (utf8_is_valid(text, len) && !(escape && len > 0 && memchr(text, ' ', len)))
        return ERR_OK;
    struct span_move move = { .from = caller };
    if (caller && caller->n > 0) {
        n->spans = mem_try_array(MEM_CAT_TOKENIZER, caller->n, sizeof(*n->spans));
        if (!n->spans)
            return err_set(err, ERR_NOMEM, "tokenizer: no memory for %zu spans", caller->n);
        move.to = n->spans;
        n->caller.spans = n->spans;
    }
    norm_rewrite(n, text, len, escape, &move);
    n->text = n->own.data;
    n->len = n->own.len;
    if (n->own.failed)
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for a text of %zu bytes", len);
    return ERR_OK;
}

void norm_text_release(struct norm_text *n)
{
    buf_release(&n->own);
    mem_free(MEM_CAT_TOKENIZER, n->spans);
    *n = (struct norm_text){ 0 };
}

size_t text_skip_spaces(const char *text, size_t len, bool has_marks)
{
    size_t i = 0;
    while (i < len) {
        uint32_t c;
        size_t k = utf8_decode(text + i, len - i, &c);
        if (k == 0 || !(text_is_space(c) || (has_marks && c == 0x2581)))
            break;
        i += k;
    }
    return i;
}

size_t text_trim_spaces(const char *text, size_t from, size_t to)
{
    while (to > from) {
        uint32_t c;
        size_t i = to - 1;
        while (i > from && ((unsigned char)text[i] & 0xC0) == 0x80)
            i--;
        if (utf8_decode(text + i, to - i, &c) != to - i || !text_is_space(c))
            break;
        to = i;
    }
    return to;
}
