/* hf.c - a Hugging Face directory's config and tensors under GGUF's keys and names. */
#include "model/hf.h"
#include "base/log.h"
#include "model/hf_nextn.h"
#include "model/model_int.h"

#include <stdio.h>
#include <string.h>

#define HF_LAYERS_MAX 1024
#define HF_PATH_MAX   256

/* --- tables that most families share --- */

static const struct hf_key hf_keys[] = {
    { "num_hidden_layers", "block_count" },
    { "hidden_size", "embedding_length" },
    { "intermediate_size", "feed_forward_length" },
    { "num_attention_heads", "attention.head_count" },
    { "num_key_value_heads", "attention.head_count_kv" },
    { "head_dim", "attention.key_length" },
    { "head_dim", "attention.value_length" },
    { "max_position_embeddings", "context_length" },
    { "rms_norm_eps", "attention.layer_norm_rms_epsilon" },
    { "vocab_size", "vocab_size" },
    { "num_experts", "expert_count" },
    { "num_local_experts", "expert_count" },
    { "num_experts_per_tok", "expert_used_count" },
    { "moe_intermediate_size", "expert_feed_forward_length" },
    { "shared_expert_intermediate_size", "expert_shared_feed_forward_length" },
    { "norm_topk_prob", "expert_weights_norm" },
    { "final_logit_softcapping", "final_logit_softcapping" },
    { "attn_logit_softcapping", "attn_logit_softcapping" },
    { NULL, NULL },
};

static const struct hf_name hf_names[] = {
    { "model.embed_tokens.weight", "token_embd.weight", HF_TRANSFORM_NONE },
    { "model.norm.weight", "output_norm.weight", HF_TRANSFORM_NONE },
    { "lm_head.weight", "output.weight", HF_TRANSFORM_NONE },
    HF_LAYER("input_layernorm.weight", "attn_norm.weight"),
    HF_LAYER("self_attn.q_proj.weight", "attn_q.weight"),
    HF_LAYER("self_attn.q_proj.bias", "attn_q.bias"),
    HF_LAYER("self_attn.k_proj.weight", "attn_k.weight"),
    HF_LAYER("self_attn.k_proj.bias", "attn_k.bias"),
    HF_LAYER("self_attn.v_proj.weight", "attn_v.weight"),
    HF_LAYER("self_attn.v_proj.bias", "attn_v.bias"),
    HF_LAYER("self_attn.o_proj.weight", "attn_output.weight"),
    HF_LAYER("self_attn.o_proj.bias", "attn_output.bias"),
    HF_LAYER("self_attn.q_norm.weight", "attn_q_norm.weight"),
    HF_LAYER("self_attn.k_norm.weight", "attn_k_norm.weight"),
    HF_LAYER("post_attention_layernorm.weight", "ffn_norm.weight"),
    HF_LAYER("mlp.gate_proj.weight", "ffn_gate.weight"),
    HF_LAYER("mlp.up_proj.weight", "ffn_up.weight"),
    HF_LAYER("mlp.down_proj.weight", "ffn_down.weight"),
    HF_LAYER("mlp.gate.weight", "ffn_gate_inp.weight"),
    { "model.layers.%d.mlp.experts.%d.gate_proj.weight", "blk.%d.ffn_gate.%d.weight", 0 },
    { "model.layers.%d.mlp.experts.%d.up_proj.weight", "blk.%d.ffn_up.%d.weight", 0 },
    { "model.layers.%d.mlp.experts.%d.down_proj.weight", "blk.%d.ffn_down.%d.weight", 0 },
    /* stacks, as newer checkpoints and mlx-lm have them */
    HF_LAYER("mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"),
    HF_LAYER("mlp.experts.down_proj", "ffn_down_exps.weight"),
    HF_LAYER("mlp.switch_mlp.gate_proj.weight", "ffn_gate_exps.weight"),
    HF_LAYER("mlp.switch_mlp.up_proj.weight", "ffn_up_exps.weight"),
    HF_LAYER("mlp.switch_mlp.down_proj.weight", "ffn_down_exps.weight"),
    HF_LAYER("mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"),
    HF_LAYER("mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"),
    HF_LAYER("mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"),
    HF_LAYER("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"),
    /* Tables of rotary frequencies that old checkpoints carry; config.json says the same. */
    { "model.layers.%d.self_attn.rotary_emb.inv_freq", NULL, HF_TRANSFORM_DROP },
    { "model.rotary_emb.inv_freq", NULL, HF_TRANSFORM_DROP },
    { NULL, NULL, 0 },
};

/* Heads for labels: of decoders, of BERT (whose pooler is a part of it), of RoBERTa. */
static const struct hf_name hf_classifier_names[] = {
    { "score.weight", "cls.output.weight", HF_TRANSFORM_NONE },
    { "classifier.weight", "cls.output.weight", HF_TRANSFORM_NONE },
    { "classifier.bias", "cls.output.bias", HF_TRANSFORM_NONE },
    { "bert.pooler.dense.weight", "cls.weight", HF_TRANSFORM_NONE },
    { "bert.pooler.dense.bias", "cls.bias", HF_TRANSFORM_NONE },
    { "classifier.dense.weight", "cls.weight", HF_TRANSFORM_NONE },
    { "classifier.dense.bias", "cls.bias", HF_TRANSFORM_NONE },
    { "classifier.out_proj.weight", "cls.output.weight", HF_TRANSFORM_NONE },
    { "classifier.out_proj.bias", "cls.output.bias", HF_TRANSFORM_NONE },
    { NULL, NULL, 0 },
};

/* How text models are called inside models of text and more, and the name without that. */
static const struct {
    const char *prefix, *plain;
} hf_prefixes[] = {
    { "model.language_model.", "model." }, { "language_model.model.", "model." },
    { "model.text_model.", "model." },     { "language_model.lm_head.", "lm_head." },
    { "bert.encoder.", "encoder." },       { "bert.embeddings.", "embeddings." },
    { "roberta.encoder.", "encoder." },    { "roberta.embeddings.", "embeddings." },
};

/* Towers and heads that text models have not. */
static const char *const hf_ignored[] = { "model.visual.",
                                          "visual.",
                                          "model.vision_tower.",
                                          "vision_tower.",
                                          "vision_model.",
                                          "model.vision_model.",
                                          "model.audio_tower.",
                                          "audio_tower.",
                                          "model.embed_vision.",
                                          "model.embed_audio.",
                                          "multi_modal_projector.",
                                          "model.multi_modal_projector.",
                                          "mtp.",
                                          "model.mtp.",
                                          NULL };

/* --- reading config.json --- */

static const char *hf_path(const struct hf *h, const char *path, char out[HF_PATH_MAX])
{
    snprintf(out, HF_PATH_MAX, "config.text_config.%.200s", path);
    if (!weights_meta(h->w, out))
        snprintf(out, HF_PATH_MAX, "config.%.200s", path);
    return out;
}

const struct meta_value *hf_config(const struct hf *h, const char *path)
{
    char full[HF_PATH_MAX];
    return weights_meta(h->w, hf_path(h, path, full));
}

/* The first of the paths that is there, else the last. */
static const char *hf_first(const struct hf *h, const char *paths, char out[HF_PATH_MAX])
{
    char path[HF_PATH_MAX - 64];
    for (const char *p = paths; *p;) {
        size_t n = strcspn(p, " ");
        snprintf(path, sizeof(path), "%.*s", (int)n, p);
        if (weights_meta(h->w, hf_path(h, path, out)))
            break;
        p += n + strspn(p + n, " ");
    }
    return out;
}

enum err_code hf_int(const struct hf *h, const char *paths, int64_t min, int64_t max,
                     int64_t fallback, int64_t *out, struct err *err)
{
    char key[HF_PATH_MAX];
    return weights_int_or(h->w, hf_first(h, paths, key), min, max, fallback, out, err);
}

enum err_code hf_float(const struct hf *h, const char *paths, double fallback, double *out,
                       struct err *err)
{
    char key[HF_PATH_MAX];
    return weights_float_or(h->w, hf_first(h, paths, key), fallback, out, err);
}

enum err_code hf_bool(const struct hf *h, const char *paths, bool fallback, bool *out,
                      struct err *err)
{
    char key[HF_PATH_MAX];
    return weights_bool_or(h->w, hf_first(h, paths, key), fallback, out, err);
}

enum err_code hf_str(const struct hf *h, const char *paths, const char *fallback, const char **out,
                     struct err *err)
{
    char key[HF_PATH_MAX];
    *out = fallback;
    return weights_meta(h->w, hf_first(h, paths, key)) ? weights_str(h->w, key, out, err) : ERR_OK;
}

enum err_code hf_layer_is(const struct hf *h, int64_t i, const char *kind, bool fallback, bool *out,
                          struct err *err)
{
    const struct meta_value *v = hf_config(h, "layer_types");
    *out = fallback;
    if (!v)
        return ERR_OK;
    if (v->type != META_TYPE_ARRAY || v->array.type != META_TYPE_STRING ||
        (uint64_t)i >= v->array.n)
        return err_set(err, ERR_INVALID, "config.json: layer_types: no text for layer %lld",
                       (long long)i);
    const struct meta_str *s = &v->array.strs[i];
    *out = s->len == strlen(kind) && memcmp(s->data, kind, s->len) == 0;
    return ERR_OK;
}

/* --- writing keys --- */

static const char *hf_key_of(const struct hf *h, const char *name, char out[HF_PATH_MAX])
{
    snprintf(out, HF_PATH_MAX, "%s.%s", h->map->arch, name);
    return out;
}

enum err_code hf_set_int(struct hf *h, const char *name, int64_t v, struct err *err)
{
    char key[HF_PATH_MAX];
    return weights_set_int(h->w, hf_key_of(h, name, key), v, err);
}

enum err_code hf_set_float(struct hf *h, const char *name, double v, struct err *err)
{
    char key[HF_PATH_MAX];
    return weights_set_float(h->w, hf_key_of(h, name, key), v, err);
}

enum err_code hf_set_bool(struct hf *h, const char *name, bool v, struct err *err)
{
    char key[HF_PATH_MAX];
    return weights_set_bool(h->w, hf_key_of(h, name, key), v, err);
}

enum err_code hf_set_str(struct hf *h, const char *name, const char *v, struct err *err)
{
    char key[HF_PATH_MAX];
    return weights_set_str(h->w, hf_key_of(h, name, key), v, err);
}

enum err_code hf_set_ints(struct hf *h, const char *name, const int64_t *v, uint64_t n,
                          struct err *err)
{
    char key[HF_PATH_MAX];
    return weights_set_ints(h->w, hf_key_of(h, name, key), v, n, err);
}

enum err_code hf_window(struct hf *h, struct err *err)
{
    int64_t window, n_ctx;
    enum err_code code = hf_int(h, "sliding_window", 1, INT32_MAX, INT32_MAX, &window, err);
    if (!code)
        code = hf_int(h, "max_position_embeddings", 1, INT32_MAX, INT32_MAX, &n_ctx, err);
    if (!code && window < n_ctx)
        code = hf_set_int(h, "attention.sliding_window", window, err);
    return code;
}

enum err_code hf_windows(struct hf *h, int64_t period, struct err *err)
{
    int64_t window = 0, n = 0, pattern[HF_LAYERS_MAX];
    enum err_code code = hf_int(h, "sliding_window", 1, INT32_MAX, 0, &window, err);
    if (!code)
        code = hf_int(h, "num_hidden_layers", 1, HF_LAYERS_MAX, 0, &n, err);
    for (int64_t i = 0; i < n && !code; i++) {
        bool is_local;
        code = hf_layer_is(h, i, "sliding_attention", (i + 1) % period != 0, &is_local, err);
        pattern[i] = is_local;
    }
    if (code || window == 0)
        return code;
    code = hf_set_int(h, "attention.sliding_window", window, err);
    return code ? code
                : hf_set_ints(h, "attention.sliding_window_pattern", pattern, (uint64_t)n, err);
}

static enum err_code hf_copy_keys(struct hf *h, const struct hf_key *keys, struct err *err)
{
    char key[HF_PATH_MAX];
    enum err_code code = ERR_OK;
    for (; keys && keys->hf && !code; keys++) {
        const struct meta_value *v = hf_config(h, keys->hf);
        if (!v || weights_meta(h->w, hf_key_of(h, keys->gguf, key)))
            continue;
        struct meta_value copy = *v; /* the table may move under v */
        code = weights_set_meta(h->w, key, &copy, err);
    }
    return code;
}

/* --- tensors --- */

static enum err_code hf_by_table(struct hf *h, const struct hf_name *names,
                                 const struct weights_tensor *t, const char *name, bool *is_done,
                                 struct err *err)
{
    for (const struct hf_name *row = names; row && row->hf; row++) {
        int64_t at[2] = { 0, 0 };
        int n;
        if (!hf_match(row->hf, name, at, &n))
            continue;
        *is_done = true;
        return hf_emit_as(h, t, row->gguf ? row->gguf : "", at, n, row->transform, err);
    }
    return ERR_OK;
}

/* The name in a text-only checkpoint. Models saved without their head have no "model." in front. */
static void hf_plain_name(const char *name, char out[HF_NAME_MAX])
{
    static const char *const bare[] = { "layers.", "embed_tokens.", "norm." };
    for (size_t i = 0; i < ARRAY_LEN(hf_prefixes); i++) {
        size_t n = strlen(hf_prefixes[i].prefix);
        if (strncmp(name, hf_prefixes[i].prefix, n) == 0) {
            snprintf(out, HF_NAME_MAX, "%s%s", hf_prefixes[i].plain, name + n);
            return;
        }
    }
    const char *prefix = "";
    for (size_t i = 0; i < ARRAY_LEN(bare); i++)
        if (strncmp(name, bare[i], strlen(bare[i])) == 0)
            prefix = "model.";
    snprintf(out, HF_NAME_MAX, "%s%s", prefix, name);
}

static bool hf_has_prefix(const char *const *prefixes, const char *name)
{
    for (; prefixes && *prefixes; prefixes++)
        if (strncmp(name, *prefixes, strlen(*prefixes)) == 0)
            return true;
    return false;
}

/* One tensor of the directory. A name that nobody knows stays, so that loading refuses it by that name. */
static enum err_code hf_translate(struct hf *h, const struct weights_tensor *t, bool is_tied,
                                  int32_t *n_ignored, struct err *err)
{
    char name[HF_NAME_MAX];
    bool is_done = false;
    hf_plain_name(t->name, name);
    hf_nextn_name(h, name);
    if (is_tied && strcmp(name, "lm_head.weight") == 0)
        return ERR_OK; /* a copy of the embedding, or stale: the model never reads it */
    enum err_code code = h->map->take ? h->map->take(h, t, name, &is_done, err) : ERR_OK;
    if (!code && !is_done && h->is_classifier)
        code = hf_by_table(h, hf_classifier_names, t, name, &is_done, err);
    if (!code && !is_done && h->map->is_permuted)
        code = hf_take_permuted(h, t, name, &is_done, err);
    if (!code && !is_done)
        code = hf_by_table(h, h->map->tensors, t, name, &is_done, err);
    if (!code && !is_done)
        code = hf_by_table(h, hf_names, t, name, &is_done, err);
    if (code || is_done)
        return code;
    if (hf_has_prefix(h->map->ignored, name) || hf_has_prefix(hf_ignored, t->name)) {
        (*n_ignored)++;
        return ERR_OK;
    }
    return hf_push(h, t, t->name, err);
}

static enum err_code hf_translate_all(struct hf *h, struct err *err)
{
    int32_t n_ignored = 0, n = weights_n_tensors(h->w);
    bool is_tied = false;
    enum err_code code = hf_bool(h, "tie_word_embeddings", false, &is_tied, err);
    for (int32_t i = 0; i < n && !code; i++)
        code = hf_translate(h, weights_tensor_at(h->w, i), is_tied, &n_ignored, err);
    if (!code && n_ignored)
        log_info("model", "%d of %d tensors are of other inputs than text and not loaded",
                 (int)n_ignored, (int)n);
    const char *head = "output.weight";
    const struct meta_value *tied = hf_config(h, "tie_word_embeddings");
    bool has_head = !tied || is_tied || !h->is_generator;
    for (int32_t i = 0; i < h->n && !has_head; i++)
        has_head = strcmp(h->tensors[i].name, head) == 0;
    if (!code && !has_head)
        code = err_set(err, ERR_INVALID,
                       "tensor lm_head.weight: missing, and config.json says that it is not the "
                       "embedding (tie_word_embeddings)");
    return code ? code : weights_set_tensors(h->w, h->tensors, h->n, err);
}

/* --- the whole --- */

static bool hf_in_list(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; n && (p = strstr(p, word)) != NULL; p += n)
        if ((p == list || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return true;
    return false;
}

const struct hf_name *hf_common_names(void)
{
    return hf_names;
}

const struct hf_key *hf_common_keys(void)
{
    return hf_keys;
}

static const struct hf_map *hf_map_of(const char *name)
{
    const struct model_family *f;
    for (int i = 0; name && (f = model_family_at(i)) != NULL; i++)
        for (const struct hf_map *m = f->hf; m && m->arch; m++)
            if (hf_in_list(m->names, name))
                return m;
    return NULL;
}

/* By architectures[0], else by the kind of model that the text part says it is. */
static enum err_code hf_find(struct hf *h, struct err *err)
{
    const struct meta_value *v = weights_meta(h->w, "config.architectures");
    const char *type = NULL, *outer = NULL;
    char name[128] = "";
    if (v && v->type == META_TYPE_ARRAY && v->array.type == META_TYPE_STRING)
        snprintf(name, sizeof(name), "%.*s", (int)(v->array.strs[0].len & 127),
                 v->array.strs[0].data);
    if (weights_str(h->w, "config.text_config.model_type", &type, NULL))
        type = NULL;
    if (weights_str(h->w, "config.model_type", &outer, NULL))
        outer = NULL;
    h->is_classifier = strstr(name, "ForSequenceClassification") != NULL;
    h->is_generator = strstr(name, "ForCausalLM") || strstr(name, "ForConditionalGeneration");
    h->map = hf_map_of(name);
    if (!h->map)
        h->map = hf_map_of(type);
    if (!h->map)
        h->map = hf_map_of(outer);
    if (h->map)
        return ERR_OK;
    return err_set(err, ERR_UNSUPPORTED,
                   "config.json: architecture '%s' (model_type '%.64s') is not supported as a "
                   "directory",
                   name, outer ? outer : "");
}

static enum err_code hf_check(const struct hf *h, struct err *err)
{
    const char *act;
    const char *acts = h->map->acts ? h->map->acts : "silu swish";
    enum err_code code =
        hf_str(h, "hidden_activation hidden_act activation_function", "", &act, err);
    if (!code && *act && !hf_in_list(acts, act))
        code =
            err_set(err, ERR_UNSUPPORTED, "config.json: activation '%.64s' is not one of %s's: %s",
                    act, h->map->arch, acts);
    const struct meta_value *types = hf_config(h, "layer_types");
    if (!types || h->map->has_layer_types || code)
        return code;
    for (uint64_t i = 0; i < types->array.n && types->type == META_TYPE_ARRAY && !code; i++) {
        bool is_full;
        code = hf_layer_is(h, (int64_t)i, "full_attention", true, &is_full, err);
        if (!code && !is_full)
            code = err_set(err, ERR_UNSUPPORTED,
                           "config.json: layer_types: layer %d of a %s model is not full_attention",
                           (int)i, h->map->arch);
    }
    return code;
}

enum err_code model_adapt(struct weights *w, struct err *err)
{
    struct hf h = { .w = w };
    if (!weights_is_dir(w) || weights_meta(w, "general.architecture"))
        return ERR_OK;
    enum err_code code = hf_find(&h, err);
    if (!code)
        code = hf_check(&h, err);
    if (!code)
        code = hf_copy_keys(&h, h.map->keys, err);
    if (!code)
        code = hf_copy_keys(&h, hf_keys, err);
    if (!code && !h.map->has_ropes)
        code = hf_rope(&h, err);
    if (!code && h.map->more)
        code = h.map->more(&h, err);
    if (!code && h.is_classifier)
        code = hf_set_int(&h, "pooling_type", 4, err); /* rank */
    if (!code)
        code = hf_translate_all(&h, err);
    if (!code)
        code = weights_set_str(w, "general.architecture", h.map->arch, err);
    mem_free(MEM_CAT_WEIGHTS, h.tensors);
    return code ? err_prefix(err, code, "%s", weights_file_path(w, 0)) : ERR_OK;
}
