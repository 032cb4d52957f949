/* tokenizer.c - building a tokenizer from a specification, and the walk over one text. */
#include "base/log.h"
#include "tokenizer/tokenizer_int.h"

#include <limits.h>
#include <stdlib.h>

/* Texts are indexed by 31 bits while merging, three bytes for a space included. */
#define TOKENIZER_ENDS_MAX 32 /* of a spec */
#define TOKENIZER_TEXT_MAX ((size_t)INT32_MAX / 4)

/* Spellings of tokens that end a turn or a text in published models; where one is an added token, it ends a generation. */
static const char *const end_markers[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<EOS_TOKEN>",
    "<|END_OF_TURN_TOKEN|>",
    "<|eot|>",
    "<|eom|>",
    "[e~[",
    "<|end_of_turn|>",
    "<end_of_utterance>",
    "<|tool_response>",
    "[|endofturn|]",
    "<|END_OF_TURN|>",
    "<｜end▁of▁sentence｜>",
};

/* --- building --- */

static enum err_code tokenizer_check(const struct tokenizer_spec *spec, struct err *err)
{
    uint64_t bytes = 0;
    if (spec->n_tokens <= 0 || !spec->pieces)
        return err_set(err, ERR_INVALID, "tokenizer: the vocabulary is empty");
    if (spec->n_merges < 0 || (spec->n_merges > 0 && !spec->merges))
        return err_set(err, ERR_INVALID, "tokenizer: %d merges are announced but none is there",
                       spec->n_merges);
    for (int32_t id = 0; id < spec->n_tokens; id++)
        bytes += spec->pieces[id].len;
    if (bytes > INT32_MAX)
        return err_set(err, ERR_INVALID,
                       "tokenizer: the vocabulary has %llu bytes of text, more than 2 GiB",
                       (unsigned long long)bytes);
    const struct {
        const char *name;
        int32_t id;
    } ids[] = {
        { "bos", spec->bos }, { "eos", spec->eos }, { "eot", spec->eot },
        { "eom", spec->eom }, { "unk", spec->unk }, { "sep", spec->sep },
        { "pad", spec->pad }, { "cls", spec->cls }, { "mask", spec->mask },
    };
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        if (ids[i].id < -1 || ids[i].id >= spec->n_tokens)
            return err_set(err, ERR_INVALID,
                           "tokenizer: the %s id %d is outside the vocabulary of %d tokens",
                           ids[i].name, ids[i].id, spec->n_tokens);
    return ERR_OK;
}

/* Copy spellings, types and what tokens decode to. */
static enum err_code tokenizer_copy_pieces(struct tokenizer *t, const struct tokenizer_spec *spec,
                                           struct err *err)
{
    enum err_code code = ERR_OK;
    struct buf blob;
    buf_init(&blob, MEM_CAT_TOKENIZER, UINT32_MAX);
    t->texts = mem_try_array(MEM_CAT_TOKENIZER, (size_t)t->n_tokens, sizeof(*t->texts));
    t->types = mem_try(MEM_CAT_TOKENIZER, (size_t)t->n_tokens);
    if (!t->texts || !t->types) {
        code = err_set(err, ERR_NOMEM, "tokenizer: no memory for %d tokens", t->n_tokens);
        goto out;
    }
    for (int32_t id = 0; id < t->n_tokens; id++) {
        struct token_text *x = &t->texts[id];
        struct tokenizer_str piece = spec->pieces[id];
        t->types[id] = spec->types ? spec->types[id] : TOKEN_TYPE_NORMAL;
        x->piece = (uint32_t)blob.len;
        x->piece_len = (uint32_t)piece.len;
        buf_add(&blob, piece.data, piece.len);
        x->bytes = (uint32_t)blob.len;
        detok_token_bytes(t->kind, t->types[id], piece.data, piece.len, &blob);
        x->bytes_len = (uint32_t)blob.len - x->bytes;
        if (x->bytes_len == x->piece_len &&
            memcmp(blob.data + x->bytes, blob.data + x->piece, x->piece_len) == 0) {
            blob.len = x->bytes; /* the same text once */
            x->bytes = x->piece;
        }
    }
    code = buf_check(&blob, "the vocabulary's text", err);
    if (!code)
        t->blob = buf_take(&blob, &(size_t){ 0 });
out:
    buf_release(&blob);
    return code;
}

static void tokenizer_index(struct tokenizer *t)
{
    int32_t n_again = 0;
    int32_t again = 0;
    map_init(&t->pieces, MEM_CAT_TOKENIZER);
    map_init(&t->whole, MEM_CAT_TOKENIZER);
    map_reserve(&t->pieces, (size_t)t->n_tokens);
    for (int b = 0; b < 256; b++)
        t->byte_ids[b] = -1;
    for (int32_t id = 0; id < t->n_tokens; id++) {
        const struct token_text *x = &t->texts[id];
        if (!map_add(&t->pieces, t->blob + x->piece, x->piece_len, id)) {
            n_again++;
            again = id;
        }
        unsigned char b = (unsigned char)t->blob[x->bytes];
        if (t->types[id] == TOKEN_TYPE_BYTE && x->bytes_len == 1 && t->byte_ids[b] < 0)
            t->byte_ids[b] = id;
    }
    if (n_again > 0)
        log_warn("tokenizer", "%d tokens repeat an earlier spelling (%d is one): the first is used",
                 n_again, again);
}

static int tokenizer_compare_ids(const void *pa, const void *pb)
{
    int32_t a = *(const int32_t *)pa;
    int32_t b = *(const int32_t *)pb;
    return (a > b) - (a < b);
}

/* Harmony (gpt-oss): an answer is several messages, and "<|end|>" ends only one of them. */
static bool tokenizer_is_harmony(const struct tokenizer *t)
{
    return tokenizer_find(t, "<|return|>", 10) >= 0 && tokenizer_find(t, "<|channel|>", 11) >= 0;
}

static void tokenizer_find_ends(struct tokenizer *t, const struct tokenizer_spec *spec)
{
    int32_t ids[ARRAY_LEN(end_markers) + 8 + TOKENIZER_ENDS_MAX];
    int32_t n = 0;
    const int32_t given[] = { spec->eos, spec->eot, spec->eom };
    for (size_t i = 0; i < ARRAY_LEN(given); i++)
        if (given[i] >= 0)
            ids[n++] = given[i];
    for (size_t i = 0; i < ARRAY_LEN(end_markers); i++) {
        int32_t id = tokenizer_find(t, end_markers[i], strlen(end_markers[i]));
        if (id >= 0 && t->types[id] == TOKEN_TYPE_CONTROL &&
            !(strcmp(end_markers[i], "<|end|>") == 0 && tokenizer_is_harmony(t)))
            ids[n++] = id;
    }
    for (int32_t i = 0; i < spec->n_ends && i < TOKENIZER_ENDS_MAX; i++)
        if (spec->ends[i] >= 0 && spec->ends[i] < t->n_tokens)
            ids[n++] = spec->ends[i];
    /* GLM ends its turn by opening the next one */
    int32_t glm = tokenizer_find(t, "[gMASK]", 7);
    static const char *const glm_turns[] = { "<|user|>", "<|observation|>" };
    for (size_t i = 0; i < ARRAY_LEN(glm_turns) && glm >= 0; i++) {
        int32_t id = tokenizer_find(t, glm_turns[i], strlen(glm_turns[i]));
        if (id >= 0)
            ids[n++] = id;
    }
    qsort(ids, (size_t)n, sizeof(*ids), tokenizer_compare_ids);
    t->end_ids = mem_alloc(MEM_CAT_TOKENIZER, (size_t)n * sizeof(*ids));
    for (int32_t i = 0; i < n; i++)
        if (i == 0 || ids[i] != ids[i - 1])
            t->end_ids[t->n_end_ids++] = ids[i];
}

static enum err_code tokenizer_init_kind(struct tokenizer *t, const struct tokenizer_spec *spec,
                                         struct err *err)
{
    switch (t->kind) {
    case TOKENIZER_KIND_BPE:
    case TOKENIZER_KIND_BPE_SPM:
        return bpe_init(t, spec, err);
    case TOKENIZER_KIND_SPM:
        return spm_init(t, spec, err);
    case TOKENIZER_KIND_UGM:
        return ugm_init(t, spec, err);
    case TOKENIZER_KIND_WPM:
        return ERR_OK;
    }
    return err_set(err, ERR_UNSUPPORTED, "tokenizer: kind %d is not known", (int)t->kind);
}

enum err_code tokenizer_new(const struct tokenizer_spec *spec, struct tokenizer **out,
                            struct err *err)
{
    enum err_code code = tokenizer_check(spec, err);
    if (code)
        return code;
    const struct pretok_info *info = spec->pipeline ? NULL : pretok_info(spec->pre);
    struct tokenizer *t = mem_alloc(MEM_CAT_TOKENIZER, sizeof(*t));
    t->kind = spec->kind;
    if (t->kind == TOKENIZER_KIND_BPE && info && info->is_spm)
        t->kind = TOKENIZER_KIND_BPE_SPM;
    t->n_tokens = spec->n_tokens;
    t->unk = spec->unk;
    t->bos = spec->bos;
    t->eos = spec->eos;
    if (t->kind == TOKENIZER_KIND_WPM) {
        t->bos = spec->cls >= 0 ? spec->cls : spec->bos;
        t->eos = spec->sep >= 0 ? spec->sep : spec->eos;
    }
    t->head = spec->pipeline ? spec->pipeline->head : t->bos;
    t->tail = spec->pipeline ? spec->pipeline->tail : t->eos;
    t->n_between = spec->pipeline ? spec->pipeline->n_between : spec->add_sep ? 2 : 1;
    t->add_bos = spec->add_bos;
    t->add_eos = spec->add_eos;
    t->add_space_prefix = spec->add_space_prefix && t->kind != TOKENIZER_KIND_BPE;
    t->remove_extra_spaces = spec->remove_extra_spaces;
    t->space_at_start = spec->space_at_start;
    t->lowercase = spec->lowercase;
    t->strip_accents = spec->strip_accents;
    t->has_pipeline = spec->pipeline != NULL;
    t->fuses_unk = spec->pipeline && spec->pipeline->fuses_unk;
    t->has_bytes = spec->pipeline && spec->pipeline->has_bytes;
    code = tokenizer_copy_pieces(t, spec, err);
    if (!code) {
        tokenizer_index(t);
        code = special_set_init(&t->specials, t, spec->flags, spec->strip_after_special, err);
    }
    if (!code)
        code = tokenizer_init_kind(t, spec, err);
    if (!code && spec->pipeline)
        code = pipeline_new(t, spec, err);
    if (code) {
        tokenizer_free(t);
        return code;
    }
    tokenizer_find_ends(t, spec);
    *out = t;
    return ERR_OK;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    pipeline_free(t->pipeline);
    ugm_free(t->ugm);
    pretok_free(t->pretok);
    merge_table_release(&t->merges);
    special_set_release(&t->specials);
    map_release(&t->pieces);
    map_release(&t->whole);
    mem_free(MEM_CAT_TOKENIZER, t->ranks);
    mem_free(MEM_CAT_TOKENIZER, t->end_ids);
    mem_free(MEM_CAT_TOKENIZER, t->blob);
    mem_free(MEM_CAT_TOKENIZER, t->types);
    mem_free(MEM_CAT_TOKENIZER, t->texts);
    mem_free(MEM_CAT_TOKENIZER, t);
}

bool tokenizer_pre_adds_bos(const char *pre)
{
    const struct pretok_info *info = pretok_info(pre);
    return info && info->adds_bos;
}

/* --- encoding --- */

void token_list_init(struct token_list *l, int32_t max)
{
    *l = (struct token_list){ .max = max };
}

void token_list_release(struct token_list *l)
{
    mem_free(MEM_CAT_TOKENIZER, l->ids);
    *l = (struct token_list){ .max = l->max };
}

enum err_code encoder_push(struct encoder *e, int32_t id)
{
    struct token_list *l = e->out;
    if (l->n == l->cap) {
        if (l->n >= l->max)
            return err_set(e->err, ERR_FULL, "the text has more than %d tokens", l->max);
        size_t want = l->n < 32 ? 64 : (size_t)l->n * 2;
        size_t cap = (size_t)l->cap;
        void *p = l->ids;
        enum err_code code = encoder_grow(&p, &cap, want < (size_t)l->max ? want : (size_t)l->max,
                                          sizeof(*l->ids), e->err);
        if (code)
            return code;
        l->ids = p;
        l->cap = cap < (size_t)l->max ? (int32_t)cap : l->max;
    }
    l->ids[l->n++] = id;
    return ERR_OK;
}

enum err_code token_list_add(struct token_list *l, const int32_t *ids, int32_t n, struct err *err)
{
    struct encoder e = { .out = l, .err = err };
    enum err_code code = ERR_OK;
    int32_t before = l->n;
    for (int32_t i = 0; i < n && code == ERR_OK; i++)
        code = encoder_push(&e, ids[i]);
    if (code)
        l->n = before;
    return code;
}

/* A stretch between two added tokens. */
static enum err_code tokenizer_encode_stretch(struct encoder *e, const char *text, size_t len)
{
    if (e->t->pipeline)
        return pipeline_encode(e, text, len);
    switch (e->t->kind) {
    case TOKENIZER_KIND_BPE:
        return bpe_encode(e, text, len);
    case TOKENIZER_KIND_BPE_SPM:
        return bpe_spm_encode(e, text, len);
    case TOKENIZER_KIND_SPM:
        return spm_encode(e, text, len);
    case TOKENIZER_KIND_WPM:
        return wpm_encode(e, text, len);
    case TOKENIZER_KIND_UGM:
        return ugm_encode(e, text, len);
    }
    return ERR_OK;
}

static enum err_code tokenizer_walk(struct encoder *e, const struct norm_text *n, bool has_control)
{
    const struct tokenizer *t = e->t;
    enum err_code code = ERR_OK;
    size_t at = 0;
    while (at < n->len && !code) {
        struct special_match m =
            special_find(&t->specials, n->text, n->len, at, &n->caller, has_control);
        size_t p0 = m.takes_left ? text_trim_spaces(n->text, at, m.p0) : m.p0;
        e->is_start = at == 0;
        if (p0 > at)
            code = tokenizer_encode_stretch(e, n->text + at, p0 - at);
        at = m.p1;
        if (m.id < 0 || code)
            continue;
        code = encoder_push(e, m.id);
        if (m.takes_space)
            at += text_skip_spaces(n->text + at, n->len - at, !t->has_pipeline);
    }
    return code;
}

static void encoder_release(struct encoder *e)
{
    mem_free(MEM_CAT_TOKENIZER, e->syms);
    mem_free(MEM_CAT_TOKENIZER, e->heap);
    for (int i = 0; i < MERGE_QUEUES; i++)
        mem_free(MEM_CAT_TOKENIZER, e->queues[i].keys);
    buf_release(&e->work);
    pretok_scratch_free(e->pretok);
}

enum err_code tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                               const struct span_list *caller, unsigned flags,
                               struct token_list *out, struct err *err)
{
    int32_t n_before = out->n;
    struct encoder e = { .t = t, .out = out, .err = err };
    struct norm_text norm = { 0 };
    bool escape =
        !t->has_pipeline && (t->kind == TOKENIZER_KIND_SPM || t->kind == TOKENIZER_KIND_BPE_SPM);
    if (len > TOKENIZER_TEXT_MAX)
        return err_set(err, ERR_FULL, "a text of %zu bytes is more than the %zu that fit at once",
                       len, TOKENIZER_TEXT_MAX);
    buf_init(&e.work, MEM_CAT_TOKENIZER, SIZE_MAX);
    enum err_code code = norm_text_init(&norm, text, len, caller, escape, err);
    bool has_bos = (flags & TOKENIZER_FLAG_BOS) && t->add_bos && t->head >= 0;
    if (!code && has_bos)
        code = encoder_push(&e, t->head);
    if (!code)
        code = tokenizer_walk(&e, &norm, flags & TOKENIZER_FLAG_SPECIAL);
    if (!code && has_bos && out->n > n_before + 1 && out->ids[n_before + 1] == t->head) {
        out->n--; /* the text brought its own */
        memmove(&out->ids[n_before], &out->ids[n_before + 1],
                (size_t)(out->n - n_before) * sizeof(*out->ids));
    }
    if (!code && (flags & TOKENIZER_FLAG_EOS) && t->add_eos && t->tail >= 0)
        code = encoder_push(&e, t->tail);
    if (code)
        out->n = n_before;
    norm_text_release(&norm);
    encoder_release(&e);
    return code;
}

/* --- questions --- */

enum tokenizer_kind tokenizer_kind(const struct tokenizer *t)
{
    return t->kind;
}

int32_t tokenizer_n_tokens(const struct tokenizer *t)
{
    return t->n_tokens;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t)
{
    return t->add_bos;
}

struct tokenizer_frame tokenizer_frame(const struct tokenizer *t)
{
    return (struct tokenizer_frame){ .head = t->add_bos ? t->head : -1,
                                     .tail = t->add_eos ? t->tail : -1,
                                     .n_between = t->n_between };
}

struct tokenizer_str tokenizer_piece(const struct tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_tokens)
        return (struct tokenizer_str){ .data = "" };
    return (struct tokenizer_str){ t->blob + t->texts[id].piece, t->texts[id].piece_len };
}

int32_t tokenizer_find(const struct tokenizer *t, const char *piece, size_t len)
{
    return map_get(&t->pieces, piece, len);
}

const int32_t *tokenizer_end_ids(const struct tokenizer *t, int32_t *n)
{
    *n = t->n_end_ids;
    return t->end_ids;
}
