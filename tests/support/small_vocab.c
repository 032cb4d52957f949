#include "support/small_vocab.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

#define MARK "\xE2\x96\x81"

static struct tokenizer_str small_keep(struct small_vocab *v, const char *s, size_t n)
{
    BUG_ON(v->used + n > sizeof(v->text));
    memcpy(v->text + v->used, s, n);
    v->used += n;
    return (struct tokenizer_str){ v->text + v->used - n, n };
}

static int32_t small_add(struct small_vocab *v, const char *s, enum token_type type, float score)
{
    int32_t id = v->spec.n_tokens++;
    BUG_ON(id >= SMALL_VOCAB_MAX);
    v->pieces[id] = small_keep(v, s, strlen(s));
    v->types[id] = (uint8_t)type;
    v->scores[id] = score;
    return id;
}

/* One merge and its result. */
static void small_merge(struct small_vocab *v, const char *left, const char *right)
{
    char text[64];
    BUG_ON(v->spec.n_merges >= SMALL_VOCAB_MAX);
    int n = snprintf(text, sizeof(text), "%s %s", left, right);
    v->merges[v->spec.n_merges++] = small_keep(v, text, (size_t)n);
    snprintf(text, sizeof(text), "%s%s", left, right);
    small_add(v, text, TOKEN_TYPE_NORMAL, -(float)v->spec.n_merges);
}

/* GPT-2's character for a byte, the inverse of what the tokenizer does. */
static uint32_t small_char_of_byte(uint32_t b)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c <= b; c++) {
        bool is_itself = (c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xAC) || c >= 0xAE;
        if (c == b)
            return is_itself ? b : 0x100 + n;
        n += !is_itself;
    }
    return 0;
}

static void small_add_bytes(struct small_vocab *v, bool as_chars)
{
    for (uint32_t b = 0; b < 256; b++) {
        char s[8] = "";
        if (as_chars)
            utf8_encode(small_char_of_byte(b), s);
        else
            snprintf(s, sizeof(s), "<0x%02X>", b);
        small_add(v, s, as_chars ? TOKEN_TYPE_NORMAL : TOKEN_TYPE_BYTE, 0);
    }
}

static void small_add_pieces(struct small_vocab *v, const char *space)
{
    char two[16], four[32];
    snprintf(two, sizeof(two), "%s%s", space, space);
    snprintf(four, sizeof(four), "%s%s", two, two);
    small_merge(v, "h", "e");
    small_merge(v, "l", "l");
    small_merge(v, "he", "ll");
    small_merge(v, "hell", "o");
    small_merge(v, space, "w");
    small_merge(v, "A", "A");
    small_merge(v, "AA", "AA");
    small_merge(v, "AAAA", "AAAA");
    small_merge(v, space, space);
    small_merge(v, two, two);
    small_merge(v, four, four);
}

static void small_add_words(struct small_vocab *v)
{
    static const char *const words[] = { MARK "hello", MARK "world", MARK "un", "want", "ed",
                                         MARK ".",     MARK "<",     MARK ">",  "ing" };
    for (char c = 'a'; c <= 'z'; c++) {
        char s[8];
        snprintf(s, sizeof(s), "%c", c);
        small_add(v, s, TOKEN_TYPE_NORMAL, -8);
        snprintf(s, sizeof(s), MARK "%c", c);
        small_add(v, s, TOKEN_TYPE_NORMAL, -8);
    }
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        small_add(v, words[i], TOKEN_TYPE_NORMAL, -3);
}

void small_vocab_init(struct small_vocab *v, enum tokenizer_kind kind, const char *pre)
{
    memset(v, 0, sizeof(*v));
    struct tokenizer_spec *s = &v->spec;
    *s = (struct tokenizer_spec){ .kind = kind,
                                  .pieces = v->pieces,
                                  .scores = v->scores,
                                  .types = v->types,
                                  .merges = v->merges,
                                  .pre = pre,
                                  .eot = -1,
                                  .eom = -1,
                                  .sep = -1,
                                  .pad = -1,
                                  .cls = -1,
                                  .mask = -1,
                                  .add_bos = true };
    bool is_wpm = kind == TOKENIZER_KIND_WPM;
    s->unk = small_add(v, is_wpm ? "[UNK]" : "<unk>", TOKEN_TYPE_UNKNOWN, 0);
    s->bos = small_add(v, is_wpm ? "[CLS]" : "<s>", TOKEN_TYPE_CONTROL, 0);
    s->eos = small_add(v, is_wpm ? "[SEP]" : "</s>", TOKEN_TYPE_CONTROL, 0);
    small_add(v, "<|im_start|>", TOKEN_TYPE_CONTROL, 0);
    small_add(v, "<|im_end|>", TOKEN_TYPE_CONTROL, 0);
    small_add(v, "<|im|>", TOKEN_TYPE_CONTROL, 0);
    small_add(v, "<tool>", TOKEN_TYPE_USER, 0);
    small_add(v, "<tool>!", TOKEN_TYPE_USER, 0);
    if (!is_wpm)
        small_add_bytes(v, kind == TOKENIZER_KIND_BPE);
    if (is_wpm || kind == TOKENIZER_KIND_UGM) {
        small_add_words(v);
        return;
    }
    if (kind != TOKENIZER_KIND_BPE) {
        static const char *const chars[] = { MARK, "h", "e", "l", "o", "w", "A", "\xC3\xA9" };
        for (size_t i = 0; i < ARRAY_LEN(chars); i++)
            small_add(v, chars[i], TOKEN_TYPE_NORMAL, -100);
    }
    small_add_pieces(v, kind == TOKENIZER_KIND_BPE ? "\xC4\xA0" : MARK);
}
