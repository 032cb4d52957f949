/* ugm.c - SentencePiece's unigram model (Kudo 2018): the path of pieces with the greatest sum of log probabilities (Viterbi).
 *
 * Normalising follows SentencePiece: the precompiled map (a double-array trie from spellings to their replacement, and the
 * replacements as one block of strings), then spaces: runs count once, one in front, U+2581 for each.
 * The map comes from the model file: every index into it is checked. */
#include "tokenizer/tokenizer_int.h"

#include <float.h>
#include <math.h>

#define UGM_UNK_PENALTY 10.0f /* an unknown character costs this much more than the worst piece */

struct ugm {
    double *scores; /* [n_tokens] */
    bool is_double; /* sums are f64 (tokenizers), not f32 (SentencePiece): ties fall otherwise */
    bool *usable;   /* [n_tokens] can be on a path */
    double unk_score;
    uint32_t max_len;
    uint32_t *units; /* [n_units] the trie */
    size_t n_units;
    char *strings; /* [n_strings], each ends with NUL */
    size_t n_strings;
};

static uint32_t ugm_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Blob: u32 size of the trie in bytes, the trie as u32 units, the strings. */
static enum err_code ugm_init_map(struct ugm *u, const uint8_t *blob, size_t bytes, struct err *err)
{
    size_t trie = bytes >= 4 ? ugm_u32(blob) : 0;
    if (bytes < 4 || trie % 4 != 0 || trie > bytes - 4)
        return err_set(err, ERR_INVALID,
                       "tokenizer.ggml.precompiled_charsmap: a trie of %zu bytes in a map of %zu "
                       "bytes: the file is damaged",
                       trie, bytes);
    u->n_units = trie / 4;
    u->n_strings = bytes - 4 - trie;
    u->units = mem_try_array(MEM_CAT_TOKENIZER, u->n_units, sizeof(*u->units));
    u->strings = mem_try(MEM_CAT_TOKENIZER, u->n_strings + 1); /* zeroed: the last one ends too */
    if (!u->units || !u->strings)
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for a map of %zu bytes", bytes);
    for (size_t i = 0; i < u->n_units; i++)
        u->units[i] = ugm_u32(blob + 4 + i * 4);
    memcpy(u->strings, blob + 4 + trie, u->n_strings);
    return ERR_OK;
}

enum err_code ugm_init(struct tokenizer *t, const struct tokenizer_spec *spec, struct err *err)
{
    struct ugm *u = mem_alloc(MEM_CAT_TOKENIZER, sizeof(*u));
    double least = FLT_MAX;
    t->ugm = u;
    u->is_double = spec->exact_scores != NULL;
    if (!spec->scores && !spec->exact_scores)
        return err_set(err, ERR_INVALID,
                       "tokenizer: a unigram vocabulary needs tokenizer.ggml.scores");
    u->scores = mem_try_array(MEM_CAT_TOKENIZER, (size_t)t->n_tokens, sizeof(*u->scores));
    u->usable = mem_try_array(MEM_CAT_TOKENIZER, (size_t)t->n_tokens, sizeof(*u->usable));
    if (!u->scores || !u->usable)
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for %d scores", t->n_tokens);
    for (int32_t id = 0; id < t->n_tokens; id++) {
        u->usable[id] = t->types[id] == TOKEN_TYPE_NORMAL && t->texts[id].piece_len > 0;
        if (!u->usable[id])
            continue;
        u->scores[id] = spec->exact_scores ? spec->exact_scores[id] : (double)spec->scores[id];
        if (!isfinite(u->scores[id]))
            return err_set(err, ERR_INVALID, "tokenizer: the score of token %d is not finite", id);
        least = u->scores[id] < least ? u->scores[id] : least;
        if (t->texts[id].piece_len > u->max_len)
            u->max_len = t->texts[id].piece_len;
    }
    u->unk_score = (least == FLT_MAX ? 0 : least) - UGM_UNK_PENALTY;
    if (!u->is_double) /* as SentencePiece: its rounding decides ties between paths behind an unknown */
        u->unk_score = (double)(float)u->unk_score;
    return spec->charsmap_bytes > 0 ? ugm_init_map(u, spec->charsmap, spec->charsmap_bytes, err)
                                    : ERR_OK;
}

void ugm_free(struct ugm *u)
{
    if (!u)
        return;
    mem_free(MEM_CAT_TOKENIZER, u->scores);
    mem_free(MEM_CAT_TOKENIZER, u->usable);
    mem_free(MEM_CAT_TOKENIZER, u->units);
    mem_free(MEM_CAT_TOKENIZER, u->strings);
    mem_free(MEM_CAT_TOKENIZER, u);
}

/* The longest key of the map at text[0..len): its length (0 = none) and its replacement.
 * A unit: bits 0..7 label, 8 has a value, 9 and 10..30 offset of the children, 31 marks a value (Darts-clone's layout). */
static size_t ugm_map_longest(const struct ugm *u, const char *text, size_t len,
                              const char **replacement)
{
    size_t best = 0;
    if (u->n_units == 0)
        return 0;
    uint32_t unit = u->units[0];
    size_t node = (size_t)(unit >> 10) << ((unit & 0x200) >> 6);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        node ^= c;
        if (node >= u->n_units || (u->units[node] & 0x800000FF) != c || c == 0)
            break;
        unit = u->units[node];
        node ^= (size_t)(unit >> 10) << ((unit & 0x200) >> 6);
        if ((unit & 0x100) && node < u->n_units) {
            uint32_t at = u->units[node] & 0x7FFFFFFF;
            if (at >= u->n_strings)
                break;
            best = i + 1;
            *replacement = u->strings + at;
        }
    }
    return best;
}

/* Replacement of the prefix of text: from the map, else the code point itself. Returns the bytes that it stands for. */
size_t ugm_next(const struct ugm *u, const char *text, size_t len, const char **out,
                size_t *out_len)
{
    size_t k = ugm_map_longest(u, text, len, out);
    if (k > 0) {
        *out_len = strlen(*out);
        return k;
    }
    uint32_t cp;
    k = utf8_decode(text, len, &cp);
    *out = text;
    *out_len = k > 0 ? k : 1;
    return *out_len;
}

static void ugm_normalise(const struct tokenizer *t, const char *text, size_t len, struct buf *out)
{
    bool squeeze = t->remove_extra_spaces;
    bool after_space = squeeze; /* leading ones go */
    size_t kept = 0;            /* up to the last thing that is no space */
    if (t->add_space_prefix)
        buf_add(out, SPACE_MARK, SPACE_MARK_LEN);
    for (size_t i = 0; i < len;) {
        const char *r;
        size_t n;
        i += ugm_next(t->ugm, text + i, len - i, &r, &n);
        for (size_t j = 0; j < n; j++) {
            if (r[j] != ' ') {
                buf_add_char(out, r[j]);
                after_space = false;
                kept = out->len;
            } else if (!squeeze || !after_space) {
                buf_add(out, SPACE_MARK, SPACE_MARK_LEN);
                after_space = true;
            }
        }
    }
    if (squeeze && !out->failed) /* trailing ones too; nothing but spaces is an empty text */
        out->len = kept;
}

struct ugm_best { /* of the paths that end before a byte */
    double score;
    int32_t id;
    uint32_t from;
};

static void ugm_relax(const struct ugm *u, struct ugm_best *best, size_t from, size_t to,
                      double score, int32_t id)
{
    double sum = best[from].score + score;
    sum = u->is_double ? sum : (double)(float)sum;
    if (sum > best[to].score)
        best[to] = (struct ugm_best){ sum, id, (uint32_t)from };
}

static void ugm_viterbi(const struct encoder *e, const char *s, size_t n, struct ugm_best *best)
{
    const struct tokenizer *t = e->t;
    const struct ugm *u = t->ugm;
    for (size_t i = 0; i <= n; i++)
        best[i] = (struct ugm_best){ -FLT_MAX, -1, 0 };
    best[0].score = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t k = utf8_decode(s + i, n - i, &cp);
        bool has_single = false;
        k = k > 0 ? k : 1;
        size_t end = n - i < u->max_len ? n - i : u->max_len;
        for (size_t len = k; len <= end; len++) {
            int32_t id = map_get(&t->pieces, s + i, len);
            if (id >= 0 && u->usable[id]) {
                ugm_relax(u, best, i, i + len, u->scores[id], id);
                has_single |= len == k;
            }
        }
        if (!has_single)
            ugm_relax(u, best, i, i + k, u->unk_score, t->unk);
        i += k;
    }
}

/* The best path is found from its end: collect it backwards, then turn it. A run of unknowns is one unk. */
static enum err_code ugm_push_path(struct encoder *e, const struct ugm_best *best, size_t n)
{
    int32_t before = e->out->n;
    enum err_code code = ERR_OK;
    bool after_unk = false;
    for (size_t i = n; i > 0 && !code; i = best[i].from) {
        bool is_unk = best[i].id == e->t->unk || best[i].id < 0;
        if (best[i].id >= 0 && !(is_unk && after_unk))
            code = encoder_push(e, best[i].id);
        after_unk = is_unk;
    }
    int32_t *ids = e->out->ids; /* NULL while the list is empty */
    for (int32_t i = before, j = e->out->n - 1; i < j; i++, j--) {
        int32_t swap = ids[i];
        ids[i] = ids[j];
        ids[j] = swap;
    }
    return code;
}

enum err_code ugm_encode_piece(struct encoder *e, const char *text, size_t len)
{
    if (len == 0)
        return ERR_OK;
    struct ugm_best *best = mem_try_array(MEM_CAT_TOKENIZER, len + 1, sizeof(*best));
    if (!best)
        return err_set(e->err, ERR_NOMEM, "tokenizer: no memory for a text of %zu bytes", len);
    ugm_viterbi(e, text, len, best);
    enum err_code code = ugm_push_path(e, best, len);
    mem_free(MEM_CAT_TOKENIZER, best);
    return code;
}

enum err_code ugm_encode(struct encoder *e, const char *text, size_t len)
{
    buf_reset(&e->work);
    ugm_normalise(e->t, text, len, &e->work);
    enum err_code code = buf_check(&e->work, "normalised text", e->err);
    return code ? code : ugm_encode_piece(e, e->work.data, e->work.len);
}

double ugm_score(const struct tokenizer *t, const int32_t *ids, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += t->ugm->usable[ids[i]] ? t->ugm->scores[ids[i]] : t->ugm->unk_score;
    return sum;
}
