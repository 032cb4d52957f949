#include "server/answer.h"
#include "base/utf8.h"
#include "server/limits.h"

void answer_init(struct answer *a, const struct tokenizer *t, bool keeps_tokens, int64_t n_chars)
{
    *a = (struct answer){ .tokenizer = t, .keeps_tokens = keeps_tokens, .n_chars = n_chars };
    buf_init(&a->bytes, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&a->tokens, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES * 2u);
    buf_init(&a->marks, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
}

void answer_release(struct answer *a)
{
    buf_release(&a->bytes);
    buf_release(&a->tokens);
    buf_release(&a->marks);
}

static bool answer_is_lead(char c)
{
    return ((unsigned char)c & 0xC0) != 0x80;
}

void answer_add(struct answer *a, const struct engine_token *token)
{
    struct tokenizer_str s = tokenizer_bytes(a->tokenizer, token->id, false);
    int64_t start = a->shown + (int64_t)a->bytes.len;
    bool is_mark = a->style && s.len == 0 && split_style_is_mark(a->style, token->id);
    if (is_mark) {
        struct answer_mark m = { start, token->id };
        buf_add(&a->marks, &m, sizeof(m));
        a->n_marks++;
    }
    if (a->keeps_tokens) {
        bool is_inside = s.len > 0 && !answer_is_lead(s.data[0]) && a->n_chars > 0;
        struct answer_token t = { *token,
                                  start,
                                  start + (int64_t)s.len,
                                  a->n_chars - is_inside,
                                  -1,
                                  is_mark ? a->n_marks : 0 };
        buf_add(&a->tokens, &t, sizeof(t));
        for (size_t i = 0; i < s.len; i++)
            a->n_chars += answer_is_lead(s.data[i]);
    }
    buf_add(&a->bytes, s.data, s.len);
}

/* Tokens that end at byte `end` of the answer or before, or begin before it if it is the last, have become all of the text so far. */
static void answer_note_tokens(struct answer *a, int64_t end, bool is_end)
{
    struct answer_token *t = (struct answer_token *)(void *)a->tokens.data;
    size_t have = a->tokens.len / sizeof(*t), i = have;
    while (i > 0 && t[i - 1].text_end < 0)
        i--;
    for (; i < have && (t[i].end <= end || (is_end && t[i].start < end)); i++) {
        if (t[i].mark > a->n_marks_shown)
            return;
        t[i].text_end = a->n_text;
    }
}

/* Marks that stand at byte `at` of the answer. */
static void answer_show_marks(struct answer *a, int64_t at, struct buf *out)
{
    while (a->marks.len > 0) {
        const struct answer_mark *m = (const struct answer_mark *)(const void *)a->marks.data;
        if (m->at > at)
            return;
        struct tokenizer_str s = tokenizer_bytes(a->tokenizer, m->id, true);
        buf_add_char(out, SPLIT_MARK);
        buf_add(out, s.data, s.len);
        buf_add_char(out, SPLIT_MARK_END);
        a->n_text += (int64_t)s.len + 2;
        buf_drop(&a->marks, sizeof(*m));
        a->n_marks_shown++;
        if (a->keeps_tokens)
            answer_note_tokens(a, at, false);
    }
}

void answer_show(struct answer *a, int64_t text_safe, bool is_end, struct buf *out)
{
    int64_t safe = text_safe - a->shown;
    size_t n = safe < 0 ? 0 : (size_t)safe < a->bytes.len ? (size_t)safe : a->bytes.len;
    a->safe = text_safe;
    n = utf8_complete_prefix(a->bytes.data, n);
    answer_show_marks(a, a->shown, out);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const char *p = a->bytes.data + i;
        size_t len = utf8_decode(p, n - i, &cp), had = out->len;
        if (len > 0) {
            buf_add(out, p, len);
        } else {
            len = utf8_bad_length(p, n - i);
            buf_add_code_point(out, UTF8_REPLACEMENT);
        }
        i += len;
        a->n_text += (int64_t)(out->len - had);
        if (a->keeps_tokens)
            answer_note_tokens(a, a->shown + (int64_t)i, false);
        answer_show_marks(a, a->shown + (int64_t)i, out);
    }
    buf_drop(&a->bytes, n);
    a->shown += (int64_t)n;
    if (a->keeps_tokens)
        answer_note_tokens(a, a->shown, is_end);
    if (is_end) /* half a code point, and what a stop string cut off */
        buf_drop(&a->bytes, a->bytes.len);
}

const struct answer_token *answer_peek_tokens(const struct answer *a, bool is_end, size_t *n)
{
    const struct answer_token *t = (const struct answer_token *)(const void *)a->tokens.data;
    size_t have = a->tokens.len / sizeof(*t);
    *n = 0;
    while (*n < have &&
           (is_end ? t[*n].start < a->shown || t[*n].end <= a->shown : t[*n].end <= a->shown))
        (*n)++;
    return t;
}

void answer_drop_tokens(struct answer *a, size_t n)
{
    buf_drop(&a->tokens, n * sizeof(struct answer_token));
}
