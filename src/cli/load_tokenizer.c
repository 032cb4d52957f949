/* load_tokenizer.c - GGUF's tokenizer.ggml.* keys (the GGUF document, "Tokenizer") to struct tokenizer_spec. */
#include "cli/load_tokenizer.h"
#include "cli/model_path.h"

#include <limits.h>
#include <string.h>

#define KEY "tokenizer.ggml."

static const struct {
    const char *name;
    enum tokenizer_kind kind;
} load_kinds[] = {
    { "gpt2", TOKENIZER_KIND_BPE },  { "gemma4", TOKENIZER_KIND_BPE_SPM },
    { "llama", TOKENIZER_KIND_SPM }, { "bert", TOKENIZER_KIND_WPM },
    { "t5", TOKENIZER_KIND_UGM },
};

static enum err_code load_kind(const struct weights *w, enum tokenizer_kind *out, struct err *err)
{
    const char *model;
    enum err_code code = weights_str(w, KEY "model", &model, err);
    if (code)
        return code;
    for (size_t i = 0; i < ARRAY_LEN(load_kinds); i++) {
        if (strcmp(load_kinds[i].name, model) == 0) {
            *out = load_kinds[i].kind;
            return ERR_OK;
        }
    }
    return err_set(err, ERR_UNSUPPORTED,
                   KEY "model: '%.40s' is not known; known are gpt2, gemma4, llama, bert and t5",
                   model);
}

/* An array of strings as pieces; n = 0 if absent and not needed. Freed by the caller. */
static enum err_code load_strings(const struct weights *w, const char *key, bool is_needed,
                                  struct tokenizer_str **out, int32_t *n, struct err *err)
{
    const struct meta_value *v = weights_meta(w, key);
    *n = 0;
    if (!v && !is_needed)
        return ERR_OK;
    if (!v)
        return err_set(err, ERR_NOT_FOUND, "%s is not in the file: it has no vocabulary", key);
    if (v->type != META_TYPE_ARRAY || (v->array.type != META_TYPE_STRING && v->array.n > 0))
        return err_set(err, ERR_INVALID, "%s is not an array of strings", key);
    if (v->array.n > INT32_MAX / 4)
        return err_set(err, ERR_INVALID, "%s has %llu entries, more than %d", key,
                       (unsigned long long)v->array.n, INT32_MAX / 4);
    struct tokenizer_str *s = mem_try_array(MEM_CAT_TOKENIZER, v->array.n, sizeof(*s));
    if (!s)
        return err_set(err, ERR_NOMEM, "%s: no memory for %llu strings", key,
                       (unsigned long long)v->array.n);
    for (uint64_t i = 0; i < v->array.n; i++)
        s[i] = (struct tokenizer_str){ v->array.strs[i].data, v->array.strs[i].len };
    *out = s;
    *n = (int32_t)v->array.n;
    return ERR_OK;
}

/* One entry for each token, or ERR_INVALID. */
static enum err_code load_check_length(const struct meta_value *v, const char *key,
                                       enum meta_type type, int32_t n, struct err *err)
{
    if (v->type != META_TYPE_ARRAY || v->array.type != type)
        return err_set(err, ERR_INVALID, "%s is not an array of %s", key,
                       type == META_TYPE_F32 ? "f32" : "i32");
    if (v->array.n != (uint64_t)n)
        return err_set(err, ERR_INVALID, "%s has %llu entries, the vocabulary has %d: damaged file",
                       key, (unsigned long long)v->array.n, n);
    return ERR_OK;
}

static enum err_code load_scores(const struct weights *w, int32_t n, float **out, struct err *err)
{
    const struct meta_value *v = weights_meta(w, KEY "scores");
    if (!v)
        return ERR_OK;
    enum err_code code = load_check_length(v, KEY "scores", META_TYPE_F32, n, err);
    if (code)
        return code;
    *out = mem_try_array(MEM_CAT_TOKENIZER, (size_t)n, sizeof(**out));
    if (!*out)
        return err_set(err, ERR_NOMEM, KEY "scores: no memory for %d entries", n);
    memcpy(*out, v->array.data, (size_t)n * sizeof(**out));
    for (int32_t i = 0; i < n; i++)
        if ((*out)[i] != (*out)[i])
            return err_set(err, ERR_INVALID, KEY "scores: entry %d is not a number", i);
    return ERR_OK;
}

static enum err_code load_types(const struct weights *w, int32_t n, uint8_t **out, struct err *err)
{
    const struct meta_value *v = weights_meta(w, KEY "token_type");
    if (!v)
        return ERR_OK;
    enum err_code code = load_check_length(v, KEY "token_type", META_TYPE_I32, n, err);
    if (code)
        return code;
    *out = mem_try(MEM_CAT_TOKENIZER, (size_t)n);
    if (!*out)
        return err_set(err, ERR_NOMEM, KEY "token_type: no memory for %d entries", n);
    for (int32_t i = 0; i < n; i++) {
        int32_t type;
        memcpy(&type, v->array.data + (size_t)i * sizeof(type), sizeof(type));
        if (type < 0 || type > TOKEN_TYPE_BYTE)
            return err_set(err, ERR_INVALID, KEY "token_type: entry %d is %d, not a token type", i,
                           type);
        (*out)[i] = type == 0 ? TOKEN_TYPE_NORMAL : (uint8_t)type;
    }
    return ERR_OK;
}

struct load_id {
    const char *key;
    int32_t *out;
    int32_t fallback[TOKENIZER_KIND_UGM + 1]; /* what a kind has where the file is silent */
};

static enum err_code load_ids(const struct weights *w, struct tokenizer_spec *s, struct err *err)
{
    enum {
        BPE = TOKENIZER_KIND_BPE,
        SPM = TOKENIZER_KIND_SPM,
        WPM = TOKENIZER_KIND_WPM,
        UGM = TOKENIZER_KIND_UGM,
        BPS = TOKENIZER_KIND_BPE_SPM
    };
    const struct load_id ids[] = {
        { KEY "bos_token_id",
          &s->bos,
          { [BPE] = -1, [BPS] = -1, [SPM] = 1, [WPM] = -1, [UGM] = -1 } },
        { KEY "eos_token_id",
          &s->eos,
          { [BPE] = -1, [BPS] = -1, [SPM] = 2, [WPM] = -1, [UGM] = 1 } },
        { KEY "unknown_token_id",
          &s->unk,
          { [BPE] = -1, [BPS] = -1, [SPM] = 0, [WPM] = 100, [UGM] = 2 } },
        { KEY "cls_token_id",
          &s->cls,
          { [BPE] = -1, [BPS] = -1, [SPM] = -1, [WPM] = 101, [UGM] = -1 } },
        /* the key is spelled so in files */
        { KEY "seperator_token_id",
          &s->sep,
          { [BPE] = -1, [BPS] = -1, [SPM] = -1, [WPM] = 102, [UGM] = -1 } },
        { KEY "padding_token_id", &s->pad, { -1, -1, -1, -1, -1 } },
        { KEY "mask_token_id", &s->mask, { -1, -1, -1, -1, -1 } },
        { KEY "eot_token_id", &s->eot, { -1, -1, -1, -1, -1 } },
        { KEY "eom_token_id", &s->eom, { -1, -1, -1, -1, -1 } },
    };
    for (size_t i = 0; i < ARRAY_LEN(ids); i++) {
        int64_t id;
        int32_t fallback = ids[i].fallback[s->kind];
        enum err_code code = weights_int_or(w, ids[i].key, -1, UINT32_MAX,
                                            fallback < s->n_tokens ? fallback : -1, &id, err);
        if (code)
            return code;
        if (id >= s->n_tokens && id != UINT32_MAX) /* some converters write "none" so */
            return err_set(err, ERR_INVALID, "%s is %lld, outside the vocabulary of %d tokens",
                           ids[i].key, (long long)id, s->n_tokens);
        *ids[i].out = id == UINT32_MAX ? -1 : (int32_t)id;
    }
    return ERR_OK;
}

static enum err_code load_bools(const struct weights *w, struct tokenizer_spec *s, struct err *err)
{
    bool is_spm = s->kind == TOKENIZER_KIND_SPM;
    bool is_ugm = s->kind == TOKENIZER_KIND_UGM;
    bool is_wpm = s->kind == TOKENIZER_KIND_WPM;
    bool by_pre = s->kind == TOKENIZER_KIND_BPE && tokenizer_pre_adds_bos(s->pre);
    const struct {
        const char *key;
        bool *out;
        bool fallback;
    } bools[] = {
        { KEY "add_bos_token", &s->add_bos, is_spm || is_wpm || by_pre },
        { KEY "add_eos_token", &s->add_eos, is_ugm || is_wpm },
        { KEY "add_sep_token", &s->add_sep, is_ugm },
        { KEY "add_space_prefix", &s->add_space_prefix, is_spm || is_ugm },
        { KEY "remove_extra_whitespaces", &s->remove_extra_spaces, false },
        { KEY "normalizer.lowercase", &s->lowercase, is_wpm },
    };
    for (size_t i = 0; i < ARRAY_LEN(bools); i++) {
        enum err_code code = weights_bool_or(w, bools[i].key, bools[i].fallback, bools[i].out, err);
        if (code)
            return code;
    }
    s->add_sep = s->add_sep && !is_wpm; /* its one mark between texts is the eos here */
    /* BERT strips accents where it lowers case, unless it is told otherwise */
    return weights_bool_or(w, KEY "normalizer.strip_accents", s->lowercase, &s->strip_accents, err);
}

static enum err_code load_charsmap(const struct weights *w, struct tokenizer_spec *s,
                                   struct err *err)
{
    const struct meta_value *v = weights_meta(w, KEY "precompiled_charsmap");
    if (!v || s->kind != TOKENIZER_KIND_UGM)
        return ERR_OK;
    if (v->type != META_TYPE_ARRAY ||
        (v->array.type != META_TYPE_U8 && v->array.type != META_TYPE_I8))
        return err_set(err, ERR_INVALID, KEY "precompiled_charsmap is not an array of bytes");
    s->charsmap = v->array.data;
    s->charsmap_bytes = v->array.n;
    return ERR_OK;
}

/* Phi-3's added tokens take the white space after them; its files do not say so. */
static bool load_is_phi3(const struct weights *w)
{
    const struct meta_value *v = weights_meta(w, "general.architecture");
    return v && v->type == META_TYPE_STRING && v->s.len == 4 && memcmp(v->s.data, "phi3", 4) == 0;
}

/* Ids that config.json and generation_config.json say end a generation: a number or a list. */
static int32_t load_ends(const struct weights *w, int32_t ends[LOAD_ENDS_MAX])
{
    static const char *const keys[] = { "generation_config.eos_token_id", "config.eos_token_id",
                                        "config.text_config.eos_token_id" };
    int32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct meta_value *v = weights_meta(w, keys[i]);
        uint64_t all = v && v->type == META_TYPE_ARRAY ? v->array.n : v ? 1 : 0;
        for (uint64_t k = 0; k < all && n < LOAD_ENDS_MAX; k++) {
            int64_t id;
            if (!weights_array_int(w, keys[i], k, &id, NULL) && id >= 0 && id <= INT32_MAX)
                ends[n++] = (int32_t)id;
        }
    }
    return n;
}

enum err_code load_vocab_texts(const struct weights *w, int32_t ends[LOAD_ENDS_MAX],
                               struct tokenizer_json_source *out, struct err *err)
{
    struct meta_str text = weights_text(w, "tokenizer.json");
    struct meta_str config = weights_text(w, "tokenizer_config.json");
    if (!text.data)
        return err_set(err, ERR_NOT_FOUND,
                       "%s: neither tokenizer.json nor tokenizer.model beside it (a vocab.json "
                       "alone is not read; save the tokenizer with transformers' fast class)",
                       weights_file_path(w, 0));
    *out = (struct tokenizer_json_source){ .tokenizer = { text.data, text.len },
                                           .config = { config.data, config.len },
                                           .ends = ends,
                                           .n_ends = load_ends(w, ends) };
    return ERR_OK;
}

bool load_vocab_model(const struct weights *w, int32_t ends[LOAD_ENDS_MAX],
                      struct tokenizer_model_source *out)
{
    struct meta_str model = weights_text(w, "tokenizer.model");
    struct meta_str config = weights_text(w, "tokenizer_config.json");
    struct meta_str added = weights_text(w, "added_tokens.json");
    *out = (struct tokenizer_model_source){ .model = { model.data, model.len },
                                            .config = { config.data, config.len },
                                            .added = { added.data, added.len },
                                            .ends = ends,
                                            .n_ends = load_ends(w, ends) };
    return model.data && !weights_text(w, "tokenizer.json").data;
}

static enum err_code load_tokenizer_dir(const struct weights *w, struct tokenizer **out,
                                        struct err *err)
{
    int32_t ends[LOAD_ENDS_MAX];
    struct tokenizer_json_source src;
    struct tokenizer_model_source pieces;
    if (load_vocab_model(w, ends, &pieces))
        return tokenizer_new_model(&pieces, out, err);
    enum err_code code = load_vocab_texts(w, ends, &src, err);
    return code ? code : tokenizer_new_json(&src, out, err);
}

enum err_code load_vocab_open(struct load_vocab *v, const struct weights *w, struct err *err)
{
    *v = (struct load_vocab){ .spec = { .n_tokens = 0 } };
    struct tokenizer_spec *s = &v->spec;
    enum err_code code = load_kind(w, &s->kind, err);
    if (!code)
        code = load_strings(w, KEY "tokens", true, &v->pieces, &s->n_tokens, err);
    if (!code)
        code = load_strings(w, KEY "merges", false, &v->merges, &s->n_merges, err);
    if (!code)
        code = load_scores(w, s->n_tokens, &v->scores, err);
    if (!code)
        code = load_types(w, s->n_tokens, &v->types, err);
    if (!code && weights_meta(w, KEY "pre"))
        code = weights_str(w, KEY "pre", &s->pre, err);
    if (!code)
        code = load_ids(w, s, err);
    if (!code)
        code = load_bools(w, s, err);
    if (!code)
        code = load_charsmap(w, s, err);
    s->pieces = v->pieces;
    s->merges = v->merges;
    s->scores = v->scores;
    s->types = v->types;
    s->strip_after_special = load_is_phi3(w);
    return code;
}

void load_vocab_close(struct load_vocab *v)
{
    mem_free(MEM_CAT_TOKENIZER, v->pieces);
    mem_free(MEM_CAT_TOKENIZER, v->merges);
    mem_free(MEM_CAT_TOKENIZER, v->scores);
    mem_free(MEM_CAT_TOKENIZER, v->types);
    *v = (struct load_vocab){ .pieces = NULL };
}

enum err_code load_tokenizer(const struct weights *w, struct tokenizer **out, struct err *err)
{
    struct load_vocab v;
    if (weights_is_dir(w))
        return load_tokenizer_dir(w, out, err);
    enum err_code code = load_vocab_open(&v, w, err);
    if (!code)
        code = tokenizer_new(&v.spec, out, err);
    load_vocab_close(&v);
    return code;
}

enum err_code load_tokenizer_of(const char *model, struct tokenizer **out, struct err *err)
{
    struct buf path;
    struct weights *w = NULL;
    buf_init(&path, MEM_CAT_BASE, 4096);
    enum err_code code = model_path(model, &path, err);
    if (!code)
        code = weights_open(path.data, &w, err);
    if (!code)
        code = load_tokenizer(w, out, err);
    weights_close(w);
    buf_release(&path);
    return code;
}
