/* family_llama.c - Llama 1 to 3.2 and the many models of the same shape (SmolLM, TinyLlama, Mistral, Mixtral, ...).
 * Touvron et al. 2023. GGUF files hold q and k permuted so that rotary pairs are neighbours. */
#include "model/model_int.h"

static enum err_code llama_parse(const struct weights *w, struct model *m, struct err *err)
{
    static const struct model_rope_spec rope = {
        .kind = ROPE_KIND_NORMAL, .base_key = "rope.freq_base", .base = 10000, .is_scaled = true
    };
    enum err_code code = model_parse_common(w, m, err);
    m->route.is_normed = true;
    if (!code)
        code = model_parse_experts(w, m, err);
    if (!code)
        code = model_parse_rope(w, m, &rope, err);
    return code ? code : model_parse_windows(w, m, 0, 0, err); /* Mistral 7B 0.1: every layer */
}

static const struct tensor_rule llama_tensors[] = {
    RULE_MODEL("token_embd.weight", "[V][D]", MATRIX, 0, embed),
    RULE_MODEL("output_norm.weight", "[D]", VECTOR, 0, out_norm),
    RULE_MODEL("output.weight", "[V][D]", MATRIX, TENSOR_FLAG_OPTIONAL, head),
    { "rope_freqs.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    { "rope_factors_long.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    { "rope_factors_short.weight", NULL, TENSOR_KIND_PARSED, TENSOR_FLAG_OPTIONAL, 0 },
    RULE_LAYER("attn_norm.weight", "[D]", VECTOR, 0, attn_norm),
    RULE_LAYER("attn_q.weight", "[H*K][D]", MATRIX, 0, wq),
    RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, 0, wk),
    RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, 0, wv),
    RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, 0, wo),
    RULE_LAYER("attn_q.bias", "[H*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bq),
    RULE_LAYER("attn_k.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bk),
    RULE_LAYER("attn_v.bias", "[G*K]", VECTOR, TENSOR_FLAG_OPTIONAL, bv),
    RULE_LAYER("attn_output.bias", "[D]", VECTOR, TENSOR_FLAG_OPTIONAL, bo),
    { "blk.%d.attn_rot_embd.weight", NULL, TENSOR_KIND_PARSED,
      TENSOR_FLAG_LAYER | TENSOR_FLAG_OPTIONAL, 0 },
    RULE_LAYER("ffn_norm.weight", "[D]", VECTOR, 0, ffn_norm),
    RULE_LAYER("ffn_gate.weight", "[F][D]", MATRIX, TENSOR_FLAG_DENSE, w_gate),
    RULE_LAYER("ffn_up.weight", "[F][D]", MATRIX, TENSOR_FLAG_DENSE, w_up),
    RULE_LAYER("ffn_down.weight", "[D][F]", MATRIX, TENSOR_FLAG_DENSE, w_down),
    RULE_LAYER("ffn_gate_inp.weight", "[E][D]", MATRIX, TENSOR_FLAG_MOE, router),
    RULE_LAYER("ffn_gate_exps.weight", "[E][X][D]", EXPERTS, TENSOR_FLAG_MOE, w_gate_e),
    RULE_LAYER("ffn_up_exps.weight", "[E][X][D]", EXPERTS, TENSOR_FLAG_MOE, w_up_e),
    RULE_LAYER("ffn_down_exps.weight", "[E][D][X]", EXPERTS, TENSOR_FLAG_MOE, w_down_e),
    { 0 },
};

static const struct hf_name llama_names[] = {
    { "model.layers.%d.block_sparse_moe.gate.weight", "blk.%d.ffn_gate_inp.weight",
      HF_TRANSFORM_NONE },
    { "model.layers.%d.block_sparse_moe.experts.%d.w1.weight", "blk.%d.ffn_gate.%d.weight",
      HF_TRANSFORM_NONE },
    { "model.layers.%d.block_sparse_moe.experts.%d.w3.weight", "blk.%d.ffn_up.%d.weight",
      HF_TRANSFORM_NONE },
    { "model.layers.%d.block_sparse_moe.experts.%d.w2.weight", "blk.%d.ffn_down.%d.weight",
      HF_TRANSFORM_NONE },
    /* mlx-lm */
    HF_LAYER("block_sparse_moe.switch_mlp.gate_proj.weight", "ffn_gate_exps.weight"),
    HF_LAYER("block_sparse_moe.switch_mlp.up_proj.weight", "ffn_up_exps.weight"),
    HF_LAYER("block_sparse_moe.switch_mlp.down_proj.weight", "ffn_down_exps.weight"),
    { 0 },
};

static const struct hf_map llama_hf[] = {
    { .arch = "llama",
      .names =
          "LlamaForCausalLM MistralForCausalLM MistralModel LlamaModel MixtralForCausalLM llama "
          "mistral mixtral",
      .is_permuted = true,
      .tensors = llama_names,
      .more = hf_window },
    { 0 },
};

const struct model_family family_llama = {
    .name = "llama",
    .archs = (const char *const[]){ "llama", NULL },
    .parse = llama_parse,
    .tensors = llama_tensors,
    .step = block_step_pre_norm,
    .hf = llama_hf,
};
