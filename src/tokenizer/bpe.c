/* bpe.c - byte-level BPE (Sennrich et al. 2016 over GPT-2's bytes), and BPE over characters with byte fallback.
 *
 * Merges work on ids: a pair of ids has at most one rank and one result, so that no string is built or hashed while encoding. */
#include "base/log.h"
#include "tokenizer/tokenizer_int.h"

#include <limits.h>

static bool bpe_is_join(const struct tokenizer *t, int32_t id, struct tokenizer_str left,
                        struct tokenizer_str right)
{
    if (id < 0 || id >= t->n_tokens)
        return false;
    struct tokenizer_str piece = tokenizer_piece(t, id);
    return piece.len == left.len + right.len && memcmp(piece.data, left.data, left.len) == 0 &&
           memcmp(piece.data + left.len, right.data, right.len) == 0;
}

/* The id of left + right, both pieces of the vocabulary. Most vocabularies list tokens in the order of their merges, so that the
 * result of the merge before and the token after it are tried first: a third of the look-ups at load. */
static int32_t bpe_find_join(const struct tokenizer *t, struct tokenizer_str left,
                             struct tokenizer_str right, int32_t last, struct buf *work)
{
    for (int32_t id = last; id <= last + 1; id++)
        if (bpe_is_join(t, id, left, right))
            return id;
    buf_reset(work);
    buf_add(work, left.data, left.len);
    buf_add(work, right.data, right.len);
    return work->failed ? -1 : map_get(&t->pieces, work->data, work->len);
}

/* "left right"; right stays empty where the merge is not that. From the second byte: a part may itself begin with a space. */
static void bpe_cut_merge(struct tokenizer_str m, struct tokenizer_str *left,
                          struct tokenizer_str *right)
{
    const char *space = m.len > 2 ? memchr(m.data + 1, ' ', m.len - 1) : NULL;
    if (!space)
        return;
    *left = (struct tokenizer_str){ m.data, (size_t)(space - m.data) };
    *right = (struct tokenizer_str){ space + 1, m.len - left->len - 1 };
}

static enum err_code bpe_add_merges(struct tokenizer *t, const struct tokenizer_spec *spec,
                                    struct err *err)
{
    enum err_code code = merge_table_init(&t->merges, spec->n_merges, err);
    int32_t n_lost = 0;
    int32_t last = -1;
    struct buf work;
    buf_init(&work, MEM_CAT_TOKENIZER, 1 << 20);
    for (int32_t i = 0; i < spec->n_merges && !code; i++) {
        struct tokenizer_str m = spec->merges[i];
        struct tokenizer_str left = m, right = { "", 0 };
        if (spec->rights)
            right = spec->rights[i];
        else
            bpe_cut_merge(m, &left, &right);
        if (left.len == 0 || right.len == 0) {
            code = err_set(err, ERR_INVALID,
                           "tokenizer: merge %d '%.*s' is not two pieces with a space between: "
                           "the file is damaged, convert it again",
                           i, (int)(m.len < 80 ? m.len : 80), m.data);
            break;
        }
        int32_t l = map_get(&t->pieces, left.data, left.len);
        int32_t r = map_get(&t->pieces, right.data, right.len);
        int32_t id = l < 0 || r < 0 ? -1 : bpe_find_join(t, left, right, last, &work);
        if (work.failed) /* lack of memory must not pass for a lost piece */
            code = buf_check(&work, "a merge", err);
        else if (id < 0)
            n_lost++;
        else
            merge_table_add(&t->merges, l, r, i, last = id);
    }
    if (n_lost > 0 && !code)
        log_warn("tokenizer", "%d of %d merges name pieces that are not in the vocabulary: ignored",
                 n_lost, spec->n_merges);
    buf_release(&work);
    return code;
}

/* Bytes that UTF-8 never uses need no token. */
static bool bpe_byte_occurs(int b)
{
    return b != 0xC0 && b != 0xC1 && b < 0xF5;
}

static void bpe_find_bytes(struct tokenizer *t)
{
    int n_missing = 0;
    int missing = 0;
    for (int32_t id = 0; id < t->n_tokens; id++) {
        const struct token_text *x = &t->texts[id];
        unsigned char b = (unsigned char)t->blob[x->bytes];
        if (t->types[id] == TOKEN_TYPE_NORMAL && x->bytes_len == 1 && t->byte_ids[b] < 0)
            t->byte_ids[b] = id;
    }
    for (int b = 0; b < 256; b++) {
        if (t->byte_ids[b] < 0 && bpe_byte_occurs(b)) {
            n_missing++;
            missing = b;
        }
    }
    if (n_missing > 0)
        log_debug("tokenizer",
                  "%d bytes have no token (0x%02X is one): text loses them, as published",
                  n_missing, (unsigned)missing);
}

/* Decoded bytes of every normal token -> its id. */
static void bpe_map_whole(struct tokenizer *t)
{
    map_reserve(&t->whole, (size_t)t->n_tokens);
    for (int32_t id = 0; id < t->n_tokens; id++) {
        const struct token_text *x = &t->texts[id];
        if (t->types[id] == TOKEN_TYPE_NORMAL && x->bytes_len > 0)
            map_add(&t->whole, t->blob + x->bytes, x->bytes_len, id);
    }
}

/* A vocabulary without merges (tiktoken's form): a token's id is the rank of making it. */
static enum err_code bpe_init_ranks(struct tokenizer *t, struct err *err)
{
    t->ranks = mem_try_array(MEM_CAT_TOKENIZER, (size_t)t->n_tokens, sizeof(*t->ranks));
    if (!t->ranks)
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for %d ranks", t->n_tokens);
    for (int32_t id = 0; id < t->n_tokens; id++) {
        t->ranks[id] = id;
        if (t->types[id] == TOKEN_TYPE_NORMAL && t->texts[id].bytes_len > t->max_len)
            t->max_len = t->texts[id].bytes_len;
    }
    t->joins_by_text = true;
    return ERR_OK;
}

enum err_code bpe_init(struct tokenizer *t, const struct tokenizer_spec *spec, struct err *err)
{
    enum err_code code = bpe_add_merges(t, spec, err);
    if (code)
        return code;
    if (t->kind == TOKENIZER_KIND_BPE_SPM) {
        t->ignores_merges = spec->pipeline && spec->pipeline->ignores_merges;
        spm_init_cuts(t);
        return ERR_OK;
    }
    bpe_find_bytes(t);
    if (!spec->pipeline)
        code = pretok_new(spec->pre, &t->pretok, err);
    if (!code && spec->n_merges == 0)
        code = bpe_init_ranks(t, err);
    if (code)
        return code;
    const struct pretok_info *info = pretok_info(spec->pre);
    t->ignores_merges =
        spec->pipeline ? spec->pipeline->ignores_merges : info && info->ignores_merges;
    if (t->ignores_merges || t->joins_by_text)
        bpe_map_whole(t);
    return ERR_OK;
}

static enum err_code bpe_push_syms(struct encoder *e)
{
    enum err_code code = ERR_OK;
    for (int32_t i = 0; i >= 0 && !code; i = e->syms[i].next)
        if (e->syms[i].id >= 0)
            code = encoder_push(e, e->syms[i].id);
    return code;
}

enum err_code bpe_encode_piece(struct encoder *e, const char *text, size_t len)
{
    const struct tokenizer *t = e->t;
    if (t->ignores_merges) {
        int32_t id = map_get(&t->whole, text, len);
        if (id >= 0)
            return encoder_push(e, id);
    }
    if (len == 1 && t->byte_ids[(unsigned char)text[0]] >= 0)
        return encoder_push(e, t->byte_ids[(unsigned char)text[0]]);
    enum err_code code = encoder_need_syms(e, len);
    int32_t n = 0;
    for (size_t i = 0; i < len && !code; i++) {
        int32_t id = t->byte_ids[(unsigned char)text[i]];
        if (id >= 0)
            e->syms[n++] = (struct merge_sym){ .id = id, .pos = (uint32_t)i, .len = 1 };
    }
    if (code || n == 0)
        return code;
    code = merge_run(e, text, n);
    return code ? code : bpe_push_syms(e);
}

enum err_code bpe_encode(struct encoder *e, const char *text, size_t len)
{
    return pretok_run(e->t->pretok, e, text, len, bpe_encode_piece);
}

/* Whether a pipeline spells an unknown character in bytes. */
static bool bpe_has_bytes(const struct tokenizer *t, const char *text, size_t len)
{
    bool has = t->has_bytes;
    for (size_t i = 0; i < len && has; i++)
        has = t->byte_ids[(unsigned char)text[i]] >= 0;
    return has;
}

/* One stretch of a BPE over characters: what is not a token is spelled in bytes before merging. */
enum err_code bpe_spm_encode_whole(struct encoder *e, const char *text, size_t len)
{
    const struct tokenizer *t = e->t;
    if (t->ignores_merges) {
        int32_t id = map_get(&t->pieces, text, len);
        if (id >= 0 && t->types[id] == TOKEN_TYPE_NORMAL)
            return encoder_push(e, id);
    }
    enum err_code code = encoder_need_syms(e, len);
    int32_t n = 0;
    bool after_unk = false;
    for (size_t i = 0; i < len && !code;) {
        uint32_t cp;
        size_t k = utf8_decode(text + i, len - i, &cp);
        BUG_ON(k == 0);
        int32_t id = map_get(&t->pieces, text + i, k);
        bool is_known = id >= 0 && t->types[id] == TOKEN_TYPE_NORMAL;
        if (is_known) {
            e->syms[n++] = (struct merge_sym){ .id = id };
        } else if (t->has_pipeline && !bpe_has_bytes(t, text + i, k)) {
            if (t->unk >= 0 && !(after_unk && t->fuses_unk))
                e->syms[n++] = (struct merge_sym){ .id = t->unk };
            after_unk = true;
            i += k;
            continue;
        } else {
            for (size_t j = 0; j < k; j++) {
                int32_t byte_id = t->byte_ids[(unsigned char)text[i + j]];
                e->syms[n++] = (struct merge_sym){ .id = byte_id >= 0 ? byte_id : t->unk };
            }
        }
        after_unk = false;
        i += k;
    }
    if (code || n == 0)
        return code;
    code = merge_run(e, text, n);
    return code ? code : bpe_push_syms(e);
}

enum err_code bpe_spm_encode(struct encoder *e, const char *text, size_t len)
{
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < len && !code;) {
        size_t k = spm_stretch(e->t, text + i, len - i);
        code = bpe_spm_encode_whole(e, text + i, k);
        i += k;
    }
    return code;
}
