/* convert_tokenizer.c - vocabularies: a directory's texts as tokenizer.ggml.* keys, and the other way. */
#include "base/map.h"
#include "cli/convert.h"
#include "cli/convert_vocab.h"
#include "tokenizer/pretok_match.h"
#include "tokenizer/tokenizer_write.h"
#include "weights/gguf_write.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

#define KEY              "tokenizer.ggml."
#define CONVERT_TEXT_MAX ((size_t)512 << 20)
#define CONVERT_PAD      24 /* bytes of "[PAD12345]" */

/* --- to GGUF --- */

/* The steps of a SentencePiece vocabulary's tokenizer.json: spaces become U+2581, one in front where it says so. */
static enum err_code convert_check_spm(const struct tokenizer_spec *s, bool *has_prefix,
                                       struct err *err)
{
    const struct pipeline_spec *p = s->pipeline;
    *has_prefix = false;
    for (int i = 0; i < p->n_norms; i++) {
        const struct norm_step *n = &p->norms[i];
        if (n->kind == NORM_KIND_PREPEND && strcmp(n->content, "\xE2\x96\x81") == 0)
            *has_prefix = true;
        else if (n->kind != NORM_KIND_REPLACE || strcmp(n->content, "\xE2\x96\x81") != 0)
            return err_set(err, ERR_UNSUPPORTED,
                           "tokenizer.json: normalizer step %d cannot be said in GGUF", i);
    }
    for (int i = 0; i < p->n_splits; i++) {
        const struct split_step *t = &p->splits[i];
        if (t->kind == SPLIT_KIND_METASPACE)
            *has_prefix = t->prepend != SPLIT_PREPEND_NEVER;
        else if (t->kind != SPLIT_KIND_PATTERN || strcmp(t->pattern, " ") != 0)
            return err_set(err, ERR_UNSUPPORTED,
                           "tokenizer.json: pre_tokenizer '%.100s' of a vocabulary without bytes "
                           "cannot be said in GGUF",
                           t->pattern ? t->pattern : "ByteLevel");
    }
    return ERR_OK;
}

/* GGUF's name of the vocabulary's kind. Gemma 4's keeps merges, others have scores. */
static enum err_code convert_vocab_kind(const struct convert *c, const struct tokenizer_spec *s,
                                        const char **model, struct err *err)
{
    static const char *const names[] = { [TOKENIZER_KIND_BPE] = "gpt2",
                                         [TOKENIZER_KIND_BPE_SPM] = "llama",
                                         [TOKENIZER_KIND_SPM] = "llama",
                                         [TOKENIZER_KIND_WPM] = "bert",
                                         [TOKENIZER_KIND_UGM] = "t5" };
    const char *arch;
    enum err_code code = weights_str(c->w, "general.architecture", &arch, err);
    *model = names[s->kind];
    if (!code && s->kind == TOKENIZER_KIND_BPE_SPM && strcmp(arch, "gemma4") == 0)
        *model = "gemma4";
    return code;
}

static void convert_put_array_of(struct gguf_writer *g, const char *key, enum meta_type type,
                                 uint64_t n, const void *data, const struct meta_str *strs)
{
    struct meta_value v = { .type = META_TYPE_ARRAY };
    v.array.type = type;
    v.array.n = n;
    v.array.data = data;
    v.array.strs = strs;
    gguf_write_meta(g, key, &v);
}

/* Tokens and their types; ids that only the embedding has are padding. */
static enum err_code convert_put_tokens(struct gguf_writer *g, const struct tokenizer_spec *s,
                                        int64_t n, struct err *err)
{
    struct meta_str *strs = mem_try_array(MEM_CAT_TOKENIZER, (size_t)n, sizeof(*strs));
    int32_t *types = mem_try_array(MEM_CAT_TOKENIZER, (size_t)n, sizeof(*types));
    char(*pads)[CONVERT_PAD] = mem_try_array(MEM_CAT_TOKENIZER, (size_t)n, sizeof(*pads));
    enum err_code code = ERR_OK;
    if (!strs || !types || !pads)
        code = err_set(err, ERR_NOMEM, "no memory for %lld tokens", (long long)n);
    for (int64_t i = 0; i < n && !code; i++) {
        if (i < s->n_tokens) {
            strs[i] = (struct meta_str){ s->pieces[i].data, s->pieces[i].len };
            types[i] =
                s->kind == TOKENIZER_KIND_BPE_SPM && i == s->unk ? TOKEN_TYPE_UNKNOWN : s->types[i];
        } else {
            strs[i].len = (size_t)snprintf(pads[i], CONVERT_PAD, "[PAD%lld]", (long long)i);
            strs[i].data = pads[i];
            types[i] = TOKEN_TYPE_UNUSED;
        }
    }
    if (!code) {
        convert_put_array_of(g, KEY "tokens", META_TYPE_STRING, (uint64_t)n, NULL, strs);
        convert_put_array_of(g, KEY "token_type", META_TYPE_I32, (uint64_t)n, types, NULL);
    }
    mem_free(MEM_CAT_TOKENIZER, strs);
    mem_free(MEM_CAT_TOKENIZER, types);
    mem_free(MEM_CAT_TOKENIZER, pads);
    return code;
}

/* "left right" of merge i. */
static void convert_merge(const struct tokenizer_spec *s, int32_t i, const char *gap,
                          struct buf *out)
{
    buf_reset(out);
    buf_add(out, s->merges[i].data, s->merges[i].len);
    if (s->rights) {
        buf_add_str(out, gap);
        buf_add(out, s->rights[i].data, s->rights[i].len);
    } else if (!*gap) { /* the blank between them goes */
        char *blank = memchr(out->data, ' ', out->len);
        if (blank) {
            memmove(blank, blank + 1, (size_t)(out->data + out->len - blank - 1));
            buf_cut(out, out->len - 1);
        }
    }
}

static enum err_code convert_put_merges(struct gguf_writer *g, const struct tokenizer_spec *s,
                                        struct err *err)
{
    struct arena arena;
    struct buf text;
    enum err_code code = ERR_OK;
    arena_init(&arena, MEM_CAT_TOKENIZER, CONVERT_TEXT_MAX);
    buf_init(&text, MEM_CAT_TOKENIZER, (size_t)1 << 20);
    struct meta_str *strs =
        mem_try_array(MEM_CAT_TOKENIZER, (size_t)s->n_merges + 1, sizeof(*strs));
    for (int32_t i = 0; i < s->n_merges && !code && strs; i++) {
        convert_merge(s, i, " ", &text);
        strs[i] = (struct meta_str){ arena_strndup(&arena, text.data, text.len), text.len };
        if (!strs[i].data || text.failed)
            code = err_set(err, ERR_NOMEM, "no memory for %d merges", s->n_merges);
    }
    if (!strs)
        code = err_set(err, ERR_NOMEM, "no memory for %d merges", s->n_merges);
    if (!code)
        convert_put_array_of(g, KEY "merges", META_TYPE_STRING, (uint64_t)s->n_merges, NULL, strs);
    mem_free(MEM_CAT_TOKENIZER, strs);
    buf_release(&text);
    arena_release(&arena);
    return code;
}

/* The vocabulary's own, of padding 0. */
static enum err_code convert_put_own_scores(struct gguf_writer *g, const struct tokenizer_spec *s,
                                            int64_t n, struct err *err)
{
    float *scores = mem_try_array(MEM_CAT_TOKENIZER, (size_t)n, sizeof(*scores));
    if (!scores)
        return err_set(err, ERR_NOMEM, "no memory for %lld scores", (long long)n);
    for (int64_t i = 0; i < n; i++)
        scores[i] = i >= s->n_tokens  ? 0
                    : s->exact_scores ? (float)s->exact_scores[i]
                    : s->scores       ? s->scores[i]
                                      : 0;
    convert_put_array_of(g, KEY "scores", META_TYPE_F32, (uint64_t)n, scores, NULL);
    mem_free(MEM_CAT_TOKENIZER, scores);
    return ERR_OK;
}

/* SentencePiece joins the pair whose result has the best score: that is the merges' order. What no merge makes is never joined to. */
static enum err_code convert_put_scores(struct gguf_writer *g, const struct tokenizer_spec *s,
                                        int64_t n, struct err *err)
{
    struct map ids;
    struct buf text;
    float *scores = mem_try_array(MEM_CAT_TOKENIZER, (size_t)n, sizeof(*scores));
    if (!scores)
        return err_set(err, ERR_NOMEM, "no memory for %lld scores", (long long)n);
    map_init(&ids, MEM_CAT_TOKENIZER);
    map_reserve(&ids, (size_t)s->n_tokens);
    buf_init(&text, MEM_CAT_TOKENIZER, (size_t)1 << 20);
    for (int64_t i = 0; i < n; i++)
        scores[i] = i < s->n_tokens && s->types[i] == TOKEN_TYPE_NORMAL ? -1e9f : 0;
    for (int32_t i = 0; i < s->n_tokens; i++)
        map_add(&ids, s->pieces[i].data, s->pieces[i].len, i);
    for (int32_t i = s->n_merges - 1; i >= 0; i--) {
        convert_merge(s, i, "", &text);
        int32_t id = map_get(&ids, text.data, text.len);
        if (id >= 0)
            scores[id] = -(float)i;
    }
    convert_put_array_of(g, KEY "scores", META_TYPE_F32, (uint64_t)n, scores, NULL);
    mem_free(MEM_CAT_TOKENIZER, scores);
    buf_release(&text);
    map_release(&ids);
    return ERR_OK;
}

static void convert_put_ids(struct gguf_writer *g, const struct tokenizer_spec *s)
{
    bool is_words = s->kind == TOKENIZER_KIND_WPM;
    int32_t eos = s->eos >= 0 ? s->eos : s->n_ends ? s->ends[0] : -1, eot = s->eot;
    for (int32_t i = 0; i < s->n_ends && eot < 0; i++)
        if (s->ends[i] != eos && s->ends[i] < s->n_tokens)
            eot = s->ends[i];
    const struct {
        const char *key;
        int32_t id;
    } ids[] = { { KEY "bos_token_id", s->bos },
                { KEY "eos_token_id", eos },
                { KEY "eot_token_id", eot },
                { KEY "unknown_token_id", s->unk },
                { KEY "padding_token_id", s->pad },
                { KEY "seperator_token_id",
                  is_words && s->pipeline->tail >= 0 ? s->pipeline->tail : s->sep },
                { KEY "cls_token_id",
                  is_words && s->pipeline->head >= 0 ? s->pipeline->head : s->cls },
                { KEY "mask_token_id", s->mask } };
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        if (ids[i].id >= 0)
            gguf_write_u32(g, ids[i].key, (uint32_t)ids[i].id);
}

/* The pre-tokenizer's name: what --pre says, else by its cuts. Normal forms of Unicode are not said in GGUF; other steps change texts. */
static enum err_code convert_put_pre(const struct convert *c, struct gguf_writer *g,
                                     const struct tokenizer_spec *s, struct err *err)
{
    char name[PRETOK_NAME_MAX];
    enum err_code code = ERR_OK;
    for (int i = 0; i < s->pipeline->n_norms; i++)
        if (s->pipeline->norms[i].kind > NORM_KIND_NFKD)
            return err_set(err, ERR_UNSUPPORTED,
                           "tokenizer.json: normalizer step %d cannot be said in GGUF", i);
    if (c->o->pre)
        snprintf(name, sizeof(name), "%s", c->o->pre);
    else
        code = pretok_match(s, name, err);
    if (!code)
        gguf_write_str(g, KEY "pre", name, strlen(name));
    return code;
}

/* Byte-level BPE, and BPE over characters of a tokenizer.json. */
static enum err_code convert_put_bpe(const struct convert *c, struct gguf_writer *g,
                                     const struct tokenizer_spec *s, const char *model, int64_t n,
                                     struct err *err)
{
    bool has_prefix = false;
    enum err_code code = s->kind == TOKENIZER_KIND_BPE ? convert_put_pre(c, g, s, err)
                                                       : convert_check_spm(s, &has_prefix, err);
    if (!code)
        code = convert_put_tokens(g, s, n, err);
    if (!code && strcmp(model, "llama") == 0)
        code = convert_put_scores(g, s, n, err);
    else if (!code)
        code = convert_put_merges(g, s, err);
    if (!code && s->kind != TOKENIZER_KIND_BPE)
        gguf_write_bool(g, KEY "add_space_prefix", has_prefix);
    return code;
}

/* WordPiece, Unigram, and SentencePiece's own file. */
static enum err_code convert_put_pieces(struct gguf_writer *g, const struct tokenizer_spec *s,
                                        int64_t n, struct err *err)
{
    struct convert_vocab v;
    enum err_code code = convert_vocab_check(s, &v, err);
    if (!code)
        code = convert_put_tokens(g, s, n, err);
    if (code)
        return code;
    if (s->kind == TOKENIZER_KIND_WPM) {
        gguf_write_bool(g, KEY "normalizer.lowercase", v.lowercase);
        gguf_write_bool(g, KEY "normalizer.strip_accents", v.strip_accents);
        return ERR_OK;
    }
    gguf_write_bool(g, KEY "add_space_prefix", v.has_prefix);
    gguf_write_bool(g, KEY "remove_extra_whitespaces", v.squeezes);
    if (s->charsmap_bytes)
        convert_put_array_of(g, KEY "precompiled_charsmap", META_TYPE_U8, s->charsmap_bytes,
                             s->charsmap, NULL);
    return convert_put_own_scores(g, s, n, err);
}

static enum err_code convert_put_vocab(const struct convert *c, struct gguf_writer *g,
                                       const struct tokenizer_spec *s, int64_t n, struct err *err)
{
    const char *model = "";
    const struct meta_value *chat = weights_meta(c->w, "tokenizer.chat_template");
    const struct weights_tensor *types = weights_find(c->w, "token_types.weight");
    bool is_bpe = s->kind == TOKENIZER_KIND_BPE || s->kind == TOKENIZER_KIND_BPE_SPM;
    enum err_code code = convert_vocab_kind(c, s, &model, err);
    if (code)
        return code;
    gguf_write_str(g, KEY "model", model, strlen(model));
    code = is_bpe ? convert_put_bpe(c, g, s, model, n, err) : convert_put_pieces(g, s, n, err);
    if (code)
        return code;
    convert_put_ids(g, s);
    gguf_write_bool(g, KEY "add_bos_token", s->add_bos);
    gguf_write_bool(g, KEY "add_eos_token", s->add_eos);
    if (types) /* an encoder's, which readers take the shape from */
        gguf_write_u32(g, KEY "token_type_count", (uint32_t)types->shape[1]);
    if (chat && chat->type == META_TYPE_STRING)
        gguf_write_meta(g, "tokenizer.chat_template", chat);
    return ERR_OK;
}

static enum err_code convert_fit_vocab(const struct convert *c, struct gguf_writer *g,
                                       const struct tokenizer_spec *s, int64_t n_rows,
                                       struct err *err)
{
    if (s->n_tokens > n_rows)
        return err_set(err, ERR_INVALID, "the vocabulary has %d tokens, the embedding %lld rows",
                       s->n_tokens, (long long)n_rows);
    return convert_put_vocab(c, g, s, n_rows, err);
}

enum err_code convert_write_vocab(const struct convert *c, struct gguf_writer *g, int64_t n_rows,
                                  struct err *err)
{
    int32_t ends[LOAD_ENDS_MAX];
    struct tokenizer_json_source src;
    struct tokenizer_model_source pieces;
    struct tokenizer_model_file *m = NULL;
    struct tokenizer_file *f = NULL;
    enum err_code code;
    if (load_vocab_model(c->w, ends, &pieces)) {
        code = tokenizer_model_open(&pieces, &m, err);
        if (!code)
            code = convert_fit_vocab(c, g, tokenizer_model_spec(m), n_rows, err);
        tokenizer_model_close(m);
        return code;
    }
    code = load_vocab_texts(c->w, ends, &src, err);
    if (!code)
        code = tokenizer_file_open(&src, &f, err);
    if (!code)
        code = convert_fit_vocab(c, g, tokenizer_file_spec(f), n_rows, err);
    tokenizer_file_close(f);
    return code;
}

/* --- to a directory --- */

static void convert_named(struct json_writer *j, const char *key, const struct tokenizer_spec *s,
                          int32_t id)
{
    struct tokenizer_str p = tokenizer_write_piece(s, id);
    if (p.data)
        json_field_strn(j, key, p.data, p.len);
    else
        json_field_null(j, key);
}

static enum err_code convert_put_tokenizer_config(const struct convert *c,
                                                  const struct tokenizer_spec *s, const char *dir,
                                                  struct err *err)
{
    struct buf text;
    struct json_writer j;
    int64_t n_ctx = 0;
    const char *arch, *key = "";
    char full[160];
    buf_init(&text, MEM_CAT_TOKENIZER, CONVERT_TEXT_MAX);
    json_writer_init(&j, &text);
    if (!weights_str(c->w, "general.architecture", &arch, NULL)) {
        snprintf(full, sizeof(full), "%.100s.context_length", arch);
        key = full;
    }
    json_begin_object(&j);
    json_field_str(&j, "tokenizer_class", "PreTrainedTokenizerFast");
    json_field_bool(&j, "add_bos_token", s->add_bos);
    json_field_bool(&j, "add_eos_token", s->add_eos);
    convert_named(&j, "bos_token", s, s->bos);
    convert_named(&j, "eos_token", s, s->eos);
    convert_named(&j, "unk_token", s, s->unk);
    convert_named(&j, "pad_token", s, s->pad);
    if (s->kind == TOKENIZER_KIND_WPM || s->kind == TOKENIZER_KIND_UGM) {
        convert_named(&j, "cls_token", s, s->cls);
        convert_named(&j, "sep_token", s, s->sep);
        convert_named(&j, "mask_token", s, s->mask);
    }
    json_field_bool(&j, "clean_up_tokenization_spaces", false);
    if (!weights_int(c->w, key, 1, INT64_MAX, &n_ctx, NULL))
        json_field_int(&j, "model_max_length", n_ctx);
    json_end_object(&j);
    buf_add_char(&text, '\n');
    enum err_code code = buf_check(&text, "tokenizer_config.json", err);
    if (!code)
        code = convert_write_text(dir, "tokenizer_config.json", text.data, text.len, err);
    buf_release(&text);
    return code;
}

static void convert_put_samplers(struct json_writer *j, const struct weights *w)
{
    static const struct {
        const char *gguf, *dir;
    } floats[] = { { "general.sampling.temp", "temperature" },
                   { "general.sampling.top_p", "top_p" },
                   { "general.sampling.min_p", "min_p" },
                   { "general.sampling.penalty_repeat", "repetition_penalty" } };
    int64_t top_k;
    bool has = false;
    double v;
    for (size_t i = 0; i < ARRAY_LEN(floats); i++) {
        if (!weights_meta(w, floats[i].gguf) || weights_float_or(w, floats[i].gguf, 0, &v, NULL))
            continue;
        char number[32];
        snprintf(number, sizeof(number), "%.6g", v);
        json_field_raw(j, floats[i].dir, number, strlen(number));
        has = true;
    }
    if (!weights_int(w, "general.sampling.top_k", 0, INT32_MAX, &top_k, NULL)) {
        json_field_int(j, "top_k", top_k);
        has = true;
    }
    if (has)
        json_field_bool(j, "do_sample", true);
}

/* Every id that ends a generation, so that a reader stops where this program does. */
static enum err_code convert_put_generation(const struct convert *c, const struct tokenizer_spec *s,
                                            const char *dir, struct err *err)
{
    struct buf text;
    struct json_writer j;
    struct tokenizer *t = NULL;
    int32_t n = 0;
    enum err_code code = load_tokenizer(c->w, &t, err);
    if (code)
        return code;
    const int32_t *ends = tokenizer_end_ids(t, &n);
    buf_init(&text, MEM_CAT_TOKENIZER, CONVERT_TEXT_MAX);
    json_writer_init(&j, &text);
    json_begin_object(&j);
    if (s->bos >= 0)
        json_field_int(&j, "bos_token_id", s->bos);
    if (s->pad >= 0)
        json_field_int(&j, "pad_token_id", s->pad);
    json_field_array(&j, "eos_token_id");
    for (int32_t i = 0; i < n; i++)
        json_int(&j, ends[i]);
    json_end_array(&j);
    convert_put_samplers(&j, c->w);
    json_end_object(&j);
    buf_add_char(&text, '\n');
    code = buf_check(&text, "generation_config.json", err);
    if (!code)
        code = convert_write_text(dir, "generation_config.json", text.data, text.len, err);
    buf_release(&text);
    tokenizer_free(t);
    return code;
}

enum err_code convert_write_texts(const struct convert *c, const char *dir, struct err *err)
{
    struct load_vocab v;
    struct buf text;
    const struct meta_value *chat = weights_meta(c->w, "tokenizer.chat_template");
    buf_init(&text, MEM_CAT_TOKENIZER, CONVERT_TEXT_MAX);
    enum err_code code = load_vocab_open(&v, c->w, err);
    if (!code)
        code = tokenizer_write_json(&v.spec, &text, err);
    if (!code)
        code = convert_write_text(dir, "tokenizer.json", text.data, text.len, err);
    if (!code)
        code = convert_put_tokenizer_config(c, &v.spec, dir, err);
    if (!code)
        code = convert_put_generation(c, &v.spec, dir, err);
    if (!code && chat && chat->type == META_TYPE_STRING)
        code = convert_write_text(dir, "chat_template.jinja", chat->s.data, chat->s.len, err);
    load_vocab_close(&v);
    buf_release(&text);
    return code;
}
