/* special.c - where added tokens stand in a text: leftmost, then longest, as Hugging Face's added vocabulary.
 *
 * The tokens are sorted by bytes; at a position the range of those that share the text's next bytes is narrowed one byte at a
 * time, so a token that is a prefix of others is met before them and the last one met whole is the longest. */
#include "tokenizer/tokenizer_int.h"

#include <stdlib.h>
#include <utf8proc.h>

static int special_compare(const void *pa, const void *pb)
{
    const struct special *a = pa;
    const struct special *b = pb;
    int c = memcmp(a->text, b->text, a->len < b->len ? a->len : b->len);
    if (c != 0)
        return c;
    if (a->len != b->len)
        return a->len < b->len ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

/* Spelling as text.c leaves the text: SentencePiece kinds match after ' ' became U+2581. */
static void special_spell(const struct tokenizer *t, int32_t id, struct buf *out)
{
    struct tokenizer_str piece = tokenizer_piece(t, id);
    bool escape =
        !t->has_pipeline && (t->kind == TOKENIZER_KIND_SPM || t->kind == TOKENIZER_KIND_BPE_SPM);
    for (size_t i = 0; i < piece.len; i++) {
        if (escape && piece.data[i] == ' ')
            buf_add(out, SPACE_MARK, SPACE_MARK_LEN);
        else
            buf_add_char(out, piece.data[i]);
    }
}

/* A spelling that is no UTF-8 (a damaged file) never matches: what lies between matches stays well-formed, which the regular
 * expressions and the encoders rely on. */
static bool special_is_added(const struct tokenizer *t, int32_t id)
{
    uint8_t type = t->types[id];
    struct tokenizer_str piece = tokenizer_piece(t, id);
    return (type == TOKEN_TYPE_CONTROL || type == TOKEN_TYPE_USER || type == TOKEN_TYPE_UNKNOWN) &&
           piece.len > 0 && utf8_is_valid(piece.data, piece.len);
}

/* Phi-3, the one family that has this: all its markers but these three, and </s>, which its files call a user's token. */
static bool special_takes_space(const struct tokenizer *t, int32_t id)
{
    static const char *const plain[] = { "<unk>", "<s>", "<|endoftext|>" };
    struct tokenizer_str piece = tokenizer_piece(t, id);
    for (size_t i = 0; i < ARRAY_LEN(plain); i++)
        if (piece.len == strlen(plain[i]) && memcmp(piece.data, plain[i], piece.len) == 0)
            return false;
    return t->types[id] != TOKEN_TYPE_USER ||
           (piece.len == 4 && memcmp(piece.data, "</s>", 4) == 0);
}

/* Which tokens a set has. */
struct special_pick {
    const struct tokenizer *t;
    const uint8_t *flags; /* may be NULL */
    bool is_normal;       /* those that are looked for in the normalised text, or the others */
    bool strip;
};

/* A control token is looked for in the text as it comes, whatever its flag says: the caller's bytes are known there. */
static bool special_is_picked(const struct special_pick *p, int32_t id)
{
    bool is_normal =
        p->flags && (p->flags[id] & TOKEN_FLAG_NORMAL) && p->t->types[id] == TOKEN_TYPE_USER;
    return special_is_added(p->t, id) && is_normal == p->is_normal;
}

static enum err_code special_add(struct special_set *s, const struct special_pick *p, int32_t id,
                                 struct buf *spelled, struct err *err)
{
    const struct tokenizer *t = p->t;
    struct tokenizer_str piece = tokenizer_piece(t, id);
    uint8_t flags = p->flags ? p->flags[id] : 0;
    enum err_code code = ERR_OK;
    buf_reset(spelled);
    if (p->is_normal)
        code = pipeline_normalise(t->pipeline, t, piece.data, piece.len, spelled, err);
    else
        special_spell(t, id, spelled);
    if (!code)
        code = buf_check(spelled, "an added token", err);
    if (code || spelled->len == 0)
        return code;
    s->items[s->n++] = (struct special){
        .text = mem_strndup(MEM_CAT_TOKENIZER, spelled->data, spelled->len),
        .len = (uint32_t)spelled->len,
        .id = id,
        .is_control = t->types[id] != TOKEN_TYPE_USER,
        .takes_space = (flags & TOKEN_FLAG_RSTRIP) || (p->strip && special_takes_space(t, id)),
        .takes_left = flags & TOKEN_FLAG_LSTRIP,
        .is_word = flags & TOKEN_FLAG_WORD,
    };
    return ERR_OK;
}

static enum err_code special_set_fill(struct special_set *s, const struct special_pick *p,
                                      struct err *err)
{
    enum err_code code = ERR_OK;
    struct buf spelled;
    int32_t n = 0;
    *s = (struct special_set){ 0 };
    buf_init(&spelled, MEM_CAT_TOKENIZER, UINT32_MAX);
    for (int32_t id = 0; id < p->t->n_tokens; id++)
        n += special_is_picked(p, id);
    s->items = mem_try_array(MEM_CAT_TOKENIZER, (size_t)n + 1, sizeof(*s->items));
    if (!s->items)
        code = err_set(err, ERR_NOMEM, "tokenizer: no memory for %d added tokens", n);
    for (int32_t id = 0; id < p->t->n_tokens && !code; id++)
        if (special_is_picked(p, id))
            code = special_add(s, p, id, &spelled, err);
    buf_release(&spelled);
    if (code)
        return code;
    qsort(s->items, (size_t)s->n, sizeof(*s->items), special_compare);
    for (int b = 0, i = 0; b <= 256; b++) {
        while (i < s->n && (unsigned char)s->items[i].text[0] < b)
            i++;
        s->first[b] = i;
    }
    return ERR_OK;
}

enum err_code special_set_init(struct special_set *s, const struct tokenizer *t,
                               const uint8_t *flags, bool strip, struct err *err)
{
    return special_set_fill(s, &(struct special_pick){ .t = t, .flags = flags, .strip = strip },
                            err);
}

enum err_code special_set_init_normal(struct special_set *s, const struct tokenizer *t,
                                      const uint8_t *flags, struct err *err)
{
    return special_set_fill(s, &(struct special_pick){ .t = t, .flags = flags, .is_normal = true },
                            err);
}

void special_set_release(struct special_set *s)
{
    for (int32_t i = 0; i < s->n; i++)
        mem_free(MEM_CAT_TOKENIZER, (char *)s->items[i].text);
    mem_free(MEM_CAT_TOKENIZER, s->items);
    *s = (struct special_set){ 0 };
}

static bool span_list_touches(const struct span_list *l, size_t p0, size_t p1)
{
    if (!l)
        return false;
    size_t lo = 0;
    size_t hi = l->n;
    while (lo < hi) { /* the first span that ends after p0 */
        size_t mid = lo + (hi - lo) / 2;
        if (l->spans[mid].p1 > p0)
            hi = mid;
        else
            lo = mid + 1;
    }
    for (; lo < l->n && l->spans[lo].p0 < p1; lo++)
        if (l->spans[lo].p0 < l->spans[lo].p1) /* an empty one touches nothing */
            return true;
    return false;
}

/* The first item of [lo, hi) whose byte at depth is >= b (items shorter than that come first). */
static int32_t special_bound(const struct special_set *s, int32_t lo, int32_t hi, uint32_t depth,
                             int b)
{
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        const struct special *m = &s->items[mid];
        if (m->len <= depth || (unsigned char)m->text[depth] < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* What a word is made of in the published sense: letters and what is used as such, digits, marks, connectors, joiners. */
static bool special_in_word(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    bool is_letter_like = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                          (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC ||
           c == 0x200C || c == 0x200D || is_letter_like;
}

/* Whether no word goes over the borders of text[p0..p1). */
static bool special_is_word(const char *text, size_t len, size_t p0, size_t p1)
{
    uint32_t c;
    size_t before = p0;
    while (before > 0 && ((unsigned char)text[--before] & 0xC0) == 0x80)
        continue;
    if (p0 > 0 && utf8_decode(text + before, p0 - before, &c) && special_in_word(c))
        return false;
    return !(p1 < len && utf8_decode(text + p1, len - p1, &c) && special_in_word(c));
}

/* The longest token that stands at text[at..]; id -1 if none. */
static struct special_match special_at(const struct special_set *s, const char *text, size_t len,
                                       size_t at, const struct span_list *caller, bool has_control)
{
    struct special_match best = { .p0 = at, .id = -1 };
    int32_t lo = s->first[(unsigned char)text[at]];
    int32_t hi = s->first[(unsigned char)text[at] + 1];
    for (uint32_t depth = 1; lo < hi; depth++) {
        for (int32_t i = lo; i < hi && s->items[i].len == depth; i++) {
            const struct special *m = &s->items[i];
            if (m->is_control && (!has_control || span_list_touches(caller, at, at + depth)))
                continue;
            if (m->is_word && !special_is_word(text, len, at, at + depth))
                continue;
            best.p1 = at + depth;
            best.id = m->id;
            best.takes_space = m->takes_space;
            best.takes_left = m->takes_left;
            break; /* of equal spellings the first id */
        }
        if (at + depth >= len)
            break;
        int b = (unsigned char)text[at + depth];
        lo = special_bound(s, lo, hi, depth, b);
        hi = special_bound(s, lo, hi, depth, b + 1);
    }
    return best;
}

struct special_match special_find(const struct special_set *s, const char *text, size_t len,
                                  size_t from, const struct span_list *caller, bool has_control)
{
    for (size_t at = from; at < len; at++) {
        unsigned char b = (unsigned char)text[at];
        if (s->first[b] == s->first[b + 1])
            continue;
        struct special_match m = special_at(s, text, len, at, caller, has_control);
        if (m.id >= 0)
            return m;
    }
    return (struct special_match){ .p0 = len, .p1 = len, .id = -1 };
}
