#include "server/answer.h"
#include "base/utf8.h"
#include "server/limits.h"

void answer_init(struct answer *a, const struct tokenizer *t, bool keeps_tokens, int64_t n_chars)
{
    *a = (struct answer){ .tokenizer = t, .keeps_tokens = keeps_tokens, .n_chars = n_chars };
    buf_init(&a->bytes, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&a->tokens, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES * 2u);
}

void answer_release(struct answer *a)
{
    buf_release(&a->bytes);
    buf_release(&a->tokens);
}

static bool answer_is_lead(char c)
{
    return ((unsigned char)c & 0xC0) != 0x80;
}

void answer_add(struct answer *a, const struct engine_token *token)
{
    struct tokenizer_str s = tokenizer_bytes(a->tokenizer, token->id, false);
    int64_t start = a->shown + (int64_t)a->bytes.len;
    if (a->keeps_tokens) {
        bool is_inside = s.len > 0 && !answer_is_lead(s.data[0]) && a->n_chars > 0;
        struct answer_token t = { *token, start, start + (int64_t)s.len, a->n_chars - is_inside,
                                  -1 };
        buf_add(&a->tokens, &t, sizeof(t));
        for (size_t i = 0; i < s.len; i++)
            a->n_chars += answer_is_lead(s.data[i]);
    }
    buf_add(&a->bytes, s.data, s.len);
}

/* Tokens whose bytes are shown by now learn where their text ends: exactly, but where bytes were replaced. n: what became of the
 * bytes from `from` on. */
static void answer_mark_tokens(struct answer *a, int64_t from, size_t n, bool is_end)
{
    struct answer_token *t = (struct answer_token *)(void *)a->tokens.data;
    size_t have = a->tokens.len / sizeof(*t), i = have;
    while (i > 0 && t[i - 1].text_end < 0)
        i--;
    for (; i < have && (t[i].end <= a->shown || (is_end && t[i].start < a->shown)); i++) {
        int64_t len = t[i].end - from;
        t[i].text_end = a->n_text + (len > (int64_t)n ? (int64_t)n : len > 0 ? len : 0);
    }
    a->n_text += (int64_t)n;
}

void answer_show(struct answer *a, int64_t text_safe, bool is_end, struct buf *out)
{
    int64_t safe = text_safe - a->shown, from = a->shown;
    size_t had = out->len;
    a->safe = text_safe;
    if (safe <= 0) {
        answer_mark_tokens(a, from, 0, is_end);
        return;
    }
    size_t n = (size_t)safe < a->bytes.len ? (size_t)safe : a->bytes.len;
    n = utf8_complete_prefix(a->bytes.data, n);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const char *p = a->bytes.data + i;
        size_t len = utf8_decode(p, n - i, &cp);
        if (len > 0) {
            buf_add(out, p, len);
        } else {
            len = utf8_bad_length(p, n - i);
            buf_add_code_point(out, UTF8_REPLACEMENT);
        }
        i += len;
    }
    buf_drop(&a->bytes, n);
    a->shown += (int64_t)n;
    answer_mark_tokens(a, from, out->len - had, is_end);
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
