/* wpm.c - BERT's WordPiece (Devlin et al. 2018): clean and normalise, split at white space and marks, longest piece first.
 *
 * Spellings are GGUF's: U+2581 in front of a piece that begins a word, none in front of one that goes on ("##" in BERT). A word
 * of which any part is no piece is unk as a whole, as is one of more than 100 characters. */
#include "tokenizer/tokenizer_int.h"

#include <utf8proc.h>

#define WPM_WORD_MAX 100

/* Han in BERT's sense: these stand as words of their own. */
bool wpm_is_han(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) ||
           (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
           (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static bool wpm_is_mark(uint32_t c)
{
    if (c < 128)
        return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
               (c >= 123 && c <= 126);
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool wpm_is_dropped(uint32_t c)
{
    if (c == '\t' || c == '\n' || c == '\r')
        return false;
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return c == 0 || c == UTF8_REPLACEMENT || k == UTF8PROC_CATEGORY_CC ||
           k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

void wpm_add_lower(uint32_t c, struct buf *out)
{
    if (c == 0x130) { /* the one letter whose lower case is two */
        buf_add_str(out, "i\xCC\x87");
        return;
    }
    buf_add_code_point(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

/* BERT's cleaning: what shows nothing is dropped, white space is ' ', Han stands alone. */
static void wpm_clean(const char *text, size_t len, struct buf *out)
{
    for (size_t i = 0; i < len;) {
        uint32_t c;
        size_t k = utf8_decode(text + i, len - i, &c);
        i += k > 0 ? k : 1;
        if (wpm_is_dropped(c)) { /* first: U+0085 and VT are dropped, not spaces */
            continue;
        } else if (text_is_space(c)) {
            buf_add_char(out, ' ');
        } else if (wpm_is_han(c)) {
            buf_add_char(out, ' ');
            buf_add_code_point(out, c);
            buf_add_char(out, ' ');
        } else {
            buf_add_code_point(out, c);
        }
    }
}

static enum err_code wpm_normalise(const struct tokenizer *t, const struct buf *clean,
                                   struct buf *out, struct err *err)
{
    enum err_code code = ERR_OK;
    utf8proc_int32_t *cps = NULL;
    const utf8proc_option_t options =
        t->strip_accents ? UTF8PROC_STABLE | UTF8PROC_DECOMPOSE : UTF8PROC_STABLE;
    utf8proc_ssize_t n = utf8proc_decompose((const utf8proc_uint8_t *)clean->data,
                                            (utf8proc_ssize_t)clean->len, NULL, 0, options);
    if (n >= 0)
        cps = mem_try_array(MEM_CAT_TOKENIZER, (size_t)n + 1, sizeof(*cps));
    if (!cps)
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for a text of %zu bytes", clean->len);
    n = utf8proc_decompose((const utf8proc_uint8_t *)clean->data, (utf8proc_ssize_t)clean->len, cps,
                           n, options);
    for (utf8proc_ssize_t i = 0; i < n; i++)
        if (!t->strip_accents || utf8proc_category(cps[i]) != UTF8PROC_CATEGORY_MN) {
            if (t->lowercase)
                wpm_add_lower((uint32_t)cps[i], out);
            else
                buf_add_code_point(out, (uint32_t)cps[i]);
        }
    mem_free(MEM_CAT_TOKENIZER, cps);
    code = buf_check(out, "normalised text", err);
    return code;
}

/* The longest piece at the start of word[0..len); *id -1 if none. Returns its length. */
static size_t wpm_longest(const struct tokenizer *t, const char *word, size_t len, bool starts,
                          int32_t *id)
{
    char key[SPACE_MARK_LEN + WPM_WORD_MAX * 4];
    size_t head = starts ? SPACE_MARK_LEN : 0;
    *id = -1;
    if (!starts && len >= SPACE_MARK_LEN && memcmp(word, SPACE_MARK, SPACE_MARK_LEN) == 0)
        return 0; /* the text's own character: a spelling that begins with it is a word's first piece */
    memcpy(key, SPACE_MARK, head);
    memcpy(key + head, word, len);
    for (size_t n = len; n > 0; n--) {
        *id = map_get(&t->pieces, key, head + n);
        if (*id >= 0)
            return n;
    }
    return 0;
}

enum err_code wpm_word(struct encoder *e, const char *word, size_t len)
{
    int32_t before = e->out->n;
    bool is_whole = utf8_count(word, len) <= WPM_WORD_MAX;
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < len && is_whole && !code;) {
        int32_t id;
        size_t k = wpm_longest(e->t, word + i, len - i, i == 0, &id);
        is_whole = id >= 0;
        if (is_whole)
            code = encoder_push(e, id);
        i += k;
    }
    if (!is_whole && !code) {
        e->out->n = before;
        if (e->t->unk >= 0)
            code = encoder_push(e, e->t->unk);
    }
    return code;
}

enum err_code wpm_encode(struct encoder *e, const char *text, size_t len)
{
    struct buf clean;
    buf_init(&clean, MEM_CAT_TOKENIZER, SIZE_MAX);
    buf_reset(&e->work);
    wpm_clean(text, len, &clean);
    enum err_code code = buf_check(&clean, "cleaned text", e->err);
    if (!code)
        code = wpm_normalise(e->t, &clean, &e->work, e->err);
    buf_release(&clean);
    const char *s = e->work.data;
    size_t n = e->work.len;
    size_t word = 0;
    for (size_t i = 0; i < n && !code;) {
        uint32_t c;
        size_t k = utf8_decode(s + i, n - i, &c);
        BUG_ON(k == 0);
        bool is_mark = wpm_is_mark(c);
        if (is_mark || text_is_space(c)) {
            if (i > word)
                code = wpm_word(e, s + word, i - word);
            if (is_mark && !code)
                code = wpm_word(e, s + i, k);
            word = i + k;
        }
        i += k;
    }
    if (!code && n > word)
        code = wpm_word(e, s + word, n - word);
    return code;
}
