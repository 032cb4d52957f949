/* family_qwen4exp.c - Qwen3.8-Flash-Next (Qwen4-Exp), the text part: Qwen3.5's hybrid of gated delta nets and gated attention with experts,
 * hyper-connections over several residual streams in the place of norms, n-gram embeddings in one layer, and attention that sees the blocks of
 * keys that an index picks (QSA). */
#include "model/hf_delta.h"
#include "model/model_int.h"
#include "tensor/ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The index of the layers with attention; a file without its keys has none, and full attention. */
static enum err_code qwen4exp_index(const struct weights *w, struct model *m, struct err *err)
{
    char key[128];
    int64_t budget = 0, heads = 0, ratio = 0;
    enum err_code code = ERR_OK;
    bool has_list = weights_meta(w, model_key(m, "attention.compress_ratios", key)) != NULL;
    for (int64_t i = 0; i < m->n_layers && has_list && !code; i++) {
        int64_t one = 0;
        bool is_state = m->layers[i].group == MODEL_GROUP_STATE;
        code = weights_array_int(w, key, (uint64_t)i, &one, err);
        ratio = ratio ? ratio : one;
        if (!code && one != (is_state ? 0 : ratio))
            code = err_set(err, ERR_UNSUPPORTED,
                           "%s: %lld of layer %lld: layers with attention share one ratio, others "
                           "have none",
                           key, (long long)one, (long long)i);
    }
    if (code || ratio == 0)
        return code;
    if (ratio < 0 || KV_PAGE_TOKENS % ratio != 0)
        return err_set(err, ERR_UNSUPPORTED, "%s: %lld does not divide %d", key, (long long)ratio,
                       KV_PAGE_TOKENS);
    code =
        weights_int(w, model_key(m, "attention.indexer.top_k", key), ratio, 1 << 24, &budget, err);
    if (!code)
        code =
            weights_int(w, model_key(m, "attention.indexer.head_count", key), 1, 1024, &heads, err);
    if (!code)
        code = weights_int(w, model_key(m, "attention.indexer.key_length", key), 2,
                           BACKEND_HEAD_DIM_MAX, &m->index_dim, err);
    if (!code && budget % ratio != 0)
        code = err_set(err, ERR_INVALID, "%s.attention.indexer.top_k: %lld is no multiple of %lld",
                       m->arch, (long long)budget, (long long)ratio);
    m->index_ratio = ratio;
    m->pick = (struct index_pick){ .n_heads = (int)heads, .n_blocks = (int32_t)(budget / ratio) };
    return code;
}

static enum err_code qwen4exp_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NEOX, .base_key = "rope.freq_base", .base = 10000000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    if (!code)
        code = model_parse_delta(w, m, err);
    m->state.is_tiled = true;
    m->is_q_gated = true;
    m->route.is_normed = true;
    m->delta_glu = GLU_KIND_SIGMOID;
    if (!code)
        code = model_parse_shared_experts(w, m, err);
    if (!code)
        code = model_parse_streams(w, m, err);
    if (!code)
        code = model_parse_ngrams(w, m, err);
    if (!code)
        code = qwen4exp_index(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    if (!code && m->pick.n_heads > 0 && m->ropes[0].n_dims > m->index_dim)
        code =
            err_set(err, ERR_INVALID, "%s.rope.dimension_count: %d is over the index' keys of %lld",
                    m->arch, m->ropes[0].n_dims, (long long)m->index_dim);
    return code;
}

#define RULES_MIX(part, field)                                                    \
    RULE_LAYER("hc_" part "_norm.weight", "[Z*D]", VECTOR, 0, field.norm),        \
        RULE_LAYER("hc_" part "_down.weight", "[M][Z*D]", MATRIX, 0, field.down), \
        RULE_LAYER("hc_" part "_up.weight", "[Z*D][M]", MATRIX, 0, field.up),     \
        RULE_LAYER("hc_" part "_inject.weight", "[Z][Z*D]", MATRIX, 0, field.inject)

static const struct tensor_rule qwen4exp_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_hc_norm.weight", "[Z*D]", VECTOR, 0, mix_out.norm),
    RULE_MODEL("output_hc_down.weight", "[M][Z*D]", MATRIX, 0, mix_out.down),
    RULE_MODEL("output_hc_up.weight", "[Z*D][M]", MATRIX, 0, mix_out.up),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    RULE_MODEL("per_layer_token_embd.weight", NULL, PARTS, TENSOR_FLAG_NGRAMS, ngram_table),
    RULES_MIX("attn", mix_attn),
    RULES_MIX("ffn", mix_ffn),
    RULE_LAYER("ple_key.weight", "[Z*D][U]", MATRIX, TENSOR_FLAG_NGRAMS, w_ngram_key),
    RULE_LAYER("ple_value.weight", "[D][U]", MATRIX, TENSOR_FLAG_NGRAMS, w_ngram_value),
    RULE_LAYER("ple_norm_key.weight", "[Z*D]", VECTOR, TENSOR_FLAG_NGRAMS, ngram_key_norm),
    RULE_LAYER("ple_norm_query.weight", "[Z*D]", VECTOR, TENSOR_FLAG_NGRAMS, ngram_query_norm),
    RULE_LAYER("ple_norm_conv.weight", "[Z*D]", VECTOR, TENSOR_FLAG_NGRAMS, ngram_conv_norm),
    RULE_LAYER("ple_conv1d.weight", "[Z*D][O]", VECTOR,
               TENSOR_FLAG_NGRAMS | TENSOR_FLAG_TURNED | TENSOR_FLAG_SPREAD, ngram_conv_w),
    RULES_GATED_ATTN,
    RULE_LAYER("indexer.q_proj.weight", "[J*I][D]", MATRIX, TENSOR_FLAG_ATTN | TENSOR_FLAG_INDEX,
               w_index_q),
    RULE_LAYER("indexer.k_proj.weight", "[I][D]", MATRIX, TENSOR_FLAG_ATTN | TENSOR_FLAG_INDEX,
               w_index_k),
    RULE_LAYER("indexer.q_norm.weight", "[I]", VECTOR, TENSOR_FLAG_ATTN | TENSOR_FLAG_INDEX,
               index_q_norm),
    RULE_LAYER("indexer.k_norm.weight", "[I]", VECTOR, TENSOR_FLAG_ATTN | TENSOR_FLAG_INDEX,
               index_k_norm),
    RULES_DELTA,
    RULE_LAYER("attn_qkv.weight", "[C][D]", MATRIX, TENSOR_FLAG_STATE, w_mix),
    RULE_LAYER("attn_gate.weight", "[S*B][D]", MATRIX, TENSOR_FLAG_STATE, w_z),
    RULE_LAYER("ssm_alpha.weight", "[S][D]", MATRIX, TENSOR_FLAG_STATE, w_decay),
    RULE_LAYER("ssm_beta.weight", "[S][D]", MATRIX, TENSOR_FLAG_STATE, w_beta),
    RULES_SHARED_MOE,
    { 0 },
};

static void qwen4exp_step(const struct model *m, struct model_step *st)
{
    block_embed_streams(m, st);
    for (int i = st->first; i < st->end; i++) {
        const struct model_layer *l = &m->layers[i];
        if (l->w_ngram_key)
            block_ngrams(m, st, l);
        block_mix(m, st, &l->mix_attn);
        bool goes_on = l->group == MODEL_GROUP_STATE ? block_delta(m, st, i) : block_attn(m, st, i);
        if (!goes_on)
            return;
        block_inject(m, st);
        block_mix(m, st, &l->mix_ffn);
        block_ffn(m, st, l);
        block_inject(m, st);
        block_layer_end(m, st, i);
    }
    if (st->end < m->n_layers)
        return;
    block_mix(m, st, &m->mix_out);
    if (st->n_logits > 0)
        ops_linear(m->be, tensor_of(st->scratch->logits, st->n_logits, m->n_vocab),
                   tensor_of(st->h.data, st->n_logits, m->width), m->head);
}

/* --- directories --- */

#define MIX_NAMES(hf_, gguf_)                                                                   \
    HF_LAYER_AS(hf_ "_hyper_connection.hc_norm.weight", "hc_" gguf_ "_norm.weight",             \
                HF_TRANSFORM_ADD_ONE),                                                          \
        HF_LAYER(hf_ "_hyper_connection.input_mix_weight_down.weight",                          \
                 "hc_" gguf_ "_down.weight"),                                                   \
        HF_LAYER(hf_ "_hyper_connection.input_mix_weight_up.weight", "hc_" gguf_ "_up.weight"), \
        HF_LAYER(hf_ "_hyper_connection.block_inject_weight.weight", "hc_" gguf_ "_inject.weight")

static const struct hf_name qwen4exp_names[] = {
    MIX_NAMES("attn", "attn"),
    MIX_NAMES("mlp", "ffn"),
    { "model.hyper_connection_mixer.hc_norm.weight", "output_hc_norm.weight",
      HF_TRANSFORM_ADD_ONE },
    { "model.hyper_connection_mixer.input_mix_weight_down.weight", "output_hc_down.weight", 0 },
    { "model.hyper_connection_mixer.input_mix_weight_up.weight", "output_hc_up.weight", 0 },
    HF_LAYER("ple.key_proj.weight", "ple_key.weight"),
    HF_LAYER("ple.value_proj.weight", "ple_value.weight"),
    HF_LAYER_AS("ple.norm_key.weight", "ple_norm_key.weight", HF_TRANSFORM_ADD_ONE),
    HF_LAYER_AS("ple.norm_query.weight", "ple_norm_query.weight", HF_TRANSFORM_ADD_ONE),
    HF_LAYER_AS("ple.norm_conv.weight", "ple_norm_conv.weight", HF_TRANSFORM_ADD_ONE),
    HF_LAYER_AS("ple.conv1d.weight", "ple_conv1d.weight", HF_TRANSFORM_SQUEEZE),
    HF_LAYER_AS("self_attn.indexer.q_layernorm.weight", "indexer.q_norm.weight",
                HF_TRANSFORM_ADD_ONE),
    HF_LAYER_AS("self_attn.indexer.k_layernorm.weight", "indexer.k_norm.weight",
                HF_TRANSFORM_ADD_ONE),
    /* the hashes are made of config.json */
    HF_LAYER_AS("ple.ple_embedding.layer_multipliers", "", HF_TRANSFORM_DROP),
    HF_LAYER_AS("ple.ple_embedding.ngram_heads_vocab_sizes", "", HF_TRANSFORM_DROP),
    HF_LAYER_AS("ple.ple_embedding.ngram_heads_offsets", "", HF_TRANSFORM_DROP),
    HF_LAYER("linear_attn.norm.weight", "ssm_norm.weight"),
    { 0 },
};

/* The queries' rows, and behind them the keys'. */
static enum err_code qwen4exp_index_parts(struct hf *h, const struct weights_tensor *t,
                                          int64_t layer_i, struct err *err)
{
    char name[64];
    int64_t dim;
    enum err_code code = hf_int(h, "indexer_head_dim", 1, 1 << 16, 1, &dim, err);
    if (!code && (t->shape[1] <= dim || t->scales.scales))
        code =
            err_set(err, ERR_UNSUPPORTED, "tensor %s: %lld rows for keys of %lld, or scaled codes",
                    t->name, (long long)t->shape[1], (long long)dim);
    for (int i = 0; i < 2 && !code; i++) {
        struct weights_tensor part = *t;
        size_t row = dtype_row_bytes(t->type, t->shape[0]);
        part.shape[1] = i == 0 ? t->shape[1] - dim : dim;
        part.data += i == 0 ? 0 : row * (size_t)(t->shape[1] - dim);
        part.bytes = row * (size_t)part.shape[1];
        snprintf(name, sizeof(name), "blk.%" PRId64 ".indexer.%s_proj.weight", layer_i,
                 i == 0 ? "q" : "k");
        code = hf_emit(h, &part, name, HF_TRANSFORM_NONE, err);
    }
    return code;
}

/* The table's shards are one matrix in GGUF, here parts under numbers. */
static enum err_code qwen4exp_take(struct hf *h, const struct weights_tensor *t, const char *name,
                                   bool *is_done, struct err *err)
{
    char part[64];
    int64_t at[2];
    int n;
    *is_done =
        hf_match("model.layers.%d.ple.ple_embedding.ngram_embedding.shard_%d.weight", name, at, &n);
    if (*is_done) {
        snprintf(part, sizeof(part), "per_layer_token_embd.%" PRId64 ".weight", at[1]);
        return hf_emit(h, t, part, HF_TRANSFORM_NONE, err);
    }
    *is_done = hf_match("model.layers.%d.self_attn.indexer.index_qk_proj.weight", name, at, &n);
    if (*is_done)
        return qwen4exp_index_parts(h, t, at[0], err);
    *is_done = hf_match("model.layers.%d.ple.ple_embedding.ngram_embedding.weight", name, at, &n);
    if (*is_done)
        return hf_emit(h, t, "per_layer_token_embd.weight", HF_TRANSFORM_NONE, err);
    return hf_delta_take_tiled(h, t, name, is_done, err);
}

static uint64_t qwen4exp_splitmix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* The factors of ids: odd, of random numbers by the seed, so small that no product overflows. */
static enum err_code qwen4exp_factors(struct hf *h, int64_t size, struct err *err)
{
    int64_t seed, n_vocab, factors[MODEL_NGRAM_MAX];
    enum err_code code = hf_int(h, "seed", 0, INT32_MAX, 1234, &seed, err);
    if (!code)
        code = hf_int(h, "vocab_size", 1, INT32_MAX, 1, &n_vocab, err);
    for (int64_t i = 0; i < size && !code; i++) {
        int64_t bound = INT64_MAX / n_vocab / 2;
        uint64_t x = (uint64_t)seed + 0x9E3779B97F4A7C15u * (uint64_t)(i + 1);
        factors[i] = (int64_t)(2 * (qwen4exp_splitmix(x) % (uint64_t)(bound > 1 ? bound : 1)) + 1);
    }
    return code ? code : hf_set_ints(h, "ple.layer_multipliers", factors, (uint64_t)size, err);
}

static bool qwen4exp_is_prime(int64_t x)
{
    if (x < 2 || x % 2 == 0)
        return x == 2;
    for (int64_t d = 3; d * d <= x; d += 2)
        if (x % d == 0)
            return false;
    return true;
}

/* Each head has as many rows as the next prime says. */
static enum err_code qwen4exp_heads(struct hf *h, int64_t n, struct err *err)
{
    int64_t base, rows[MODEL_NGRAM_HEADS_MAX], firsts[MODEL_NGRAM_HEADS_MAX], first = 0;
    enum err_code code = hf_int(h, "ngram_vocab_size_base", 1, INT32_MAX / 2, 20000000, &base, err);
    for (int64_t i = 0, x = base - 1; i < n && !code; i++) {
        do
            x++;
        while (!qwen4exp_is_prime(x));
        rows[i] = x;
        firsts[i] = first;
        first += x;
    }
    if (!code)
        code = hf_set_ints(h, "ple.head_vocab_sizes", rows, (uint64_t)n, err);
    return code ? code : hf_set_ints(h, "ple.head_offsets", firsts, (uint64_t)n, err);
}

static enum err_code qwen4exp_ngrams(struct hf *h, struct err *err)
{
    char key[64];
    const struct meta_value *layers = hf_config(h, "ple_layer_ids");
    const struct meta_value *ends = hf_config(h, "eos_token_id");
    int64_t layer, size, per, kernel, end;
    if (!layers || layers->type != META_TYPE_ARRAY || layers->array.n == 0)
        return ERR_OK;
    if (layers->array.n > 1)
        return err_set(err, ERR_UNSUPPORTED,
                       "config.json: ple_layer_ids: %d layers with n-grams, one is supported",
                       (int)layers->array.n);
    snprintf(key, sizeof(key), "%s",
             weights_meta(h->w, "config.text_config.ple_layer_ids")
                 ? "config.text_config.ple_layer_ids"
                 : "config.ple_layer_ids");
    enum err_code code = weights_array_int(h->w, key, 0, &layer, err);
    layer--; /* they count from one */
    if (!code)
        code = hf_int(h, "ngram_size", 2, MODEL_NGRAM_MAX, 3, &size, err);
    if (!code)
        code = hf_int(h, "heads_per_ngram", 1, MODEL_NGRAM_HEADS_MAX / (size - 1), 8, &per, err);
    if (!code)
        code = hf_int(h, "ple_conv_kernel_size", 2, 64, 4, &kernel, err);
    if (!code && !ends)
        code = err_set(err, ERR_INVALID, "config.json: eos_token_id: missing, n-grams end at it");
    snprintf(key, sizeof(key), "%s",
             weights_meta(h->w, "config.text_config.eos_token_id")
                 ? "config.text_config.eos_token_id"
                 : "config.eos_token_id");
    if (!code) /* of a list the first */
        code = weights_array_int(h->w, key, 0, &end, err);
    if (!code)
        code = hf_set_ints(h, "ple.layers", &layer, 1, err);
    if (!code)
        code = hf_set_int(h, "ple.ngram_size", size, err);
    if (!code)
        code = hf_set_int(h, "ple.heads_per_ngram", per, err);
    if (!code)
        code = hf_set_int(h, "ple.conv_kernel", kernel, err);
    if (!code)
        code = hf_set_int(h, "ple.eos_token_id", end, err);
    if (!code)
        code = qwen4exp_factors(h, size, err);
    return code ? code : qwen4exp_heads(h, (size - 1) * per, err);
}

static enum err_code qwen4exp_more(struct hf *h, struct err *err)
{
    const char *gate;
    int64_t n = 0, ratio = 0, ratios[1024];
    enum err_code code = hf_delta_more(h, err);
    if (!code)
        code = hf_str(h, "output_gate_type", "silu", &gate, err);
    if (!code && strcmp(gate, "sigmoid") != 0)
        code = err_set(err, ERR_UNSUPPORTED,
                       "config.json: output_gate_type: '%.64s' is not sigmoid", gate);
    if (!code)
        code = hf_int(h, "num_hidden_layers", 1, (int64_t)ARRAY_LEN(ratios), 1, &n, err);
    if (!code)
        code = hf_int(h, "indexer_compress_ratio", 0, 1 << 20, 0, &ratio, err);
    for (int64_t i = 0; i < n && !code; i++) {
        bool is_state;
        code = hf_layer_is(h, i, "linear_attention", (i + 1) % 4 != 0, &is_state, err);
        ratios[i] = is_state ? 0 : ratio;
    }
    if (!code)
        code = hf_set_ints(h, "attention.compress_ratios", ratios, (uint64_t)n, err);
    return code ? code : qwen4exp_ngrams(h, err);
}

static const struct hf_key qwen4exp_keys[] = {
    { "hc_count", "hyper_connection.count" },
    { "hc_lowrank", "hyper_connection.low_rank" },
    { "indexer_budget", "attention.indexer.top_k" },
    { "indexer_n_heads", "attention.indexer.head_count" },
    { "indexer_head_dim", "attention.indexer.key_length" },
    { 0 },
};

static const struct hf_map qwen4exp_hf[] = {
    {
        .arch = "qwen4exp",
        .names = "Qwen4ExpForCausalLM Qwen4ExpForConditionalGeneration Qwen4ExpTextModel "
                 "Qwen4ExpModel qwen4_exp_text qwen4_exp",
        .has_layer_types = true,
        .tensors = qwen4exp_names,
        .keys = qwen4exp_keys,
        .more = qwen4exp_more,
        .take = qwen4exp_take,
    },
    { 0 },
};

const struct model_family family_qwen4exp = {
    .name = "qwen4exp",
    .archs = (const char *const[]){ "qwen4exp", NULL },
    .parse = qwen4exp_parse,
    .tensors = qwen4exp_tensors,
    .hf = qwen4exp_hf,
    .step = qwen4exp_step,
};
