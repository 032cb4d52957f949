/* spm.c - SentencePiece's BPE (Kudo and Richardson 2018): join the neighbours whose text is the best-scored piece.
 *
 * Scores become dense ranks at load, so that the loop in merge.c compares integers. A text is cut where no piece crosses (before
 * U+2581, in most vocabularies): the merges on both sides are independent, and short stretches are cheap. */
#include "tokenizer/tokenizer_int.h"

#include <limits.h>
#include <stdlib.h>

struct spm_scored {
    float score;
    int32_t id;
};

static int spm_compare(const void *pa, const void *pb)
{
    const struct spm_scored *a = pa;
    const struct spm_scored *b = pb;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

void spm_init_cuts(struct tokenizer *t)
{
    for (int b = 0; b < 256; b++)
        t->is_cut[b] = true;
    for (int32_t id = 0; id < t->n_tokens; id++) {
        if (t->types[id] != TOKEN_TYPE_NORMAL)
            continue;
        const char *s = t->blob + t->texts[id].piece;
        size_t n = t->texts[id].piece_len;
        bool after_mark = true; /* a piece may begin with marks */
        for (size_t i = 0; i < n;) {
            bool is_mark =
                n - i >= SPACE_MARK_LEN && memcmp(s + i, SPACE_MARK, SPACE_MARK_LEN) == 0;
            if (is_mark && !after_mark)
                t->is_cut[(unsigned char)s[i - 1]] = false;
            after_mark = is_mark;
            i += is_mark ? SPACE_MARK_LEN : 1;
        }
    }
}

size_t spm_stretch(const struct tokenizer *t, const char *text, size_t len)
{
    const char *at = text;
    const char *end = text + len;
    bool after_mark = true;
    while (at < end) {
        bool is_mark = *at == SPACE_MARK[0] && end - at >= SPACE_MARK_LEN &&
                       memcmp(at, SPACE_MARK, SPACE_MARK_LEN) == 0;
        if (is_mark && !after_mark && t->is_cut[(unsigned char)at[-1]])
            return (size_t)(at - text);
        after_mark = is_mark;
        at += is_mark ? SPACE_MARK_LEN : 1;
    }
    return len;
}

enum err_code spm_init(struct tokenizer *t, const struct tokenizer_spec *spec, struct err *err)
{
    struct spm_scored *all = mem_try_array(MEM_CAT_TOKENIZER, (size_t)t->n_tokens, sizeof(*all));
    t->ranks = mem_try_array(MEM_CAT_TOKENIZER, (size_t)t->n_tokens, sizeof(*t->ranks));
    if (!all || !t->ranks) {
        mem_free(MEM_CAT_TOKENIZER, all);
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for %d scores", t->n_tokens);
    }
    int32_t n = 0;
    for (int32_t id = 0; id < t->n_tokens; id++) {
        t->ranks[id] = INT32_MAX;
        if (t->types[id] != TOKEN_TYPE_NORMAL)
            continue;
        all[n++] = (struct spm_scored){ spec->scores ? spec->scores[id] : -(float)id, id };
        if (t->texts[id].piece_len > t->max_len)
            t->max_len = t->texts[id].piece_len;
    }
    qsort(all, (size_t)n, sizeof(*all), spm_compare);
    for (int32_t i = 0, rank = 0; i < n; i++) {
        rank += i > 0 && all[i].score != all[i - 1].score;
        t->ranks[all[i].id] = rank;
    }
    mem_free(MEM_CAT_TOKENIZER, all);
    t->joins_by_text = true;
    spm_init_cuts(t);
    return ERR_OK;
}

/* A symbol that is no token: its bytes, or unk once for a run of such symbols. */
static enum err_code spm_push_unknown(struct encoder *e, const char *text, size_t len,
                                      bool *after_unk)
{
    const struct tokenizer *t = e->t;
    enum err_code code = ERR_OK;
    bool has_bytes = true;
    for (size_t i = 0; i < len; i++)
        has_bytes &= t->byte_ids[(unsigned char)text[i]] >= 0;
    if (has_bytes) {
        for (size_t i = 0; i < len && !code; i++)
            code = encoder_push(e, t->byte_ids[(unsigned char)text[i]]);
        *after_unk = false;
        return code;
    }
    if (t->unk >= 0 && !*after_unk)
        code = encoder_push(e, t->unk);
    *after_unk = true;
    return code;
}

static enum err_code spm_encode_stretch(struct encoder *e, const char *text, size_t len,
                                        bool *after_unk)
{
    const struct tokenizer *t = e->t;
    enum err_code code = encoder_need_syms(e, len);
    int32_t n = 0;
    for (size_t i = 0; i < len && !code;) {
        uint32_t cp;
        size_t k = utf8_decode(text + i, len - i, &cp);
        BUG_ON(k == 0);
        e->syms[n++] = (struct merge_sym){ .id = -1, .pos = (uint32_t)i, .len = (uint32_t)k };
        i += k;
    }
    if (code || n == 0)
        return code;
    code = merge_run(e, text, n);
    for (int32_t i = 0; i >= 0 && !code; i = e->syms[i].next) {
        const struct merge_sym *s = &e->syms[i];
        int32_t id = s->id >= 0 ? s->id : map_get(&t->pieces, text + s->pos, s->len);
        if (id >= 0 && t->ranks[id] != INT32_MAX) {
            code = encoder_push(e, id);
            *after_unk = false;
        } else {
            code = spm_push_unknown(e, text + s->pos, s->len, after_unk);
        }
    }
    return code;
}

static bool spm_is_mark(const char *text, size_t len)
{
    return len >= SPACE_MARK_LEN && memcmp(text, SPACE_MARK, SPACE_MARK_LEN) == 0;
}

/* Where it stands at the start alone, a text that begins with one gets no second, as the published code has it. */
static bool spm_adds_space(const struct encoder *e, const char *text, size_t len)
{
    if (e->t->space_at_start && (!e->is_start || spm_is_mark(text, len)))
        return false;
    return e->t->add_space_prefix;
}

/* e->work = text with the space in front and without the extra ones that the model does not want. */
static enum err_code spm_prepare(struct encoder *e, const char *text, size_t len)
{
    bool squeeze = e->t->remove_extra_spaces;
    bool after_mark = squeeze;
    size_t kept = 0;
    struct buf *w = &e->work;
    buf_reset(w);
    if (spm_adds_space(e, text, len))
        buf_add(w, SPACE_MARK, SPACE_MARK_LEN);
    for (size_t i = 0; i < len;) {
        bool is_mark = spm_is_mark(text + i, len - i);
        size_t k = is_mark ? SPACE_MARK_LEN : 1;
        if (!(squeeze && is_mark && after_mark))
            buf_add(w, text + i, k);
        if (!is_mark || !squeeze)
            kept = w->len;
        after_mark = is_mark;
        i += k;
    }
    if (!w->failed)
        w->len = kept;
    return buf_check(w, "prepared text", e->err);
}

enum err_code spm_encode(struct encoder *e, const char *text, size_t len)
{
    enum err_code code = ERR_OK;
    bool after_unk = false;
    if (e->t->add_space_prefix || e->t->remove_extra_spaces) {
        code = spm_prepare(e, text, len);
        text = e->work.data;
        len = e->work.len;
    }
    for (size_t i = 0; i < len && !code;) {
        size_t k = spm_stretch(e->t, text + i, len - i);
        code = spm_encode_stretch(e, text + i, k, &after_unk);
        i += k;
    }
    return code;
}
