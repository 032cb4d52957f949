/* model_int.h - what a family file needs: its descriptor, the blocks that steps are written in, shared parsing. */
#ifndef PLUMB_MODEL_MODEL_INT_H
#define PLUMB_MODEL_MODEL_INT_H

#include "model/hf.h"
#include "model/model.h"

/* --- descriptors --- */

enum tensor_kind {
    TENSOR_KIND_MATRIX,  /* packed by the backend: struct weight * */
    TENSOR_KIND_VECTOR,  /* f32 in backend memory, rows one after the other: const float * */
    TENSOR_KIND_HOST,    /* f32 in host memory: const float * */
    TENSOR_KIND_EXPERTS, /* [E][rows][cols], each expert a matrix packed alone: struct weight **, [E]. The file has the stack, or a
                            matrix for each: "ffn_gate_exps" stands for "ffn_gate.%d" then */
    TENSOR_KIND_PARTS, /* n-grams' table: one matrix, or "NAME.%d.weight" one after the other: struct weight **, [n_parts] */
    TENSOR_KIND_PARSED, /* read by the family's parse, or known and not needed: no field */
};

enum tensor_flags {
    TENSOR_FLAG_LAYER =
        1 << 0, /* one per layer; the name has %d, the field is in struct model_layer */
    TENSOR_FLAG_OPTIONAL = 1 << 1, /* may be absent */
    TENSOR_FLAG_DENSE = 1 << 2,    /* of models without experts alone */
    TENSOR_FLAG_MOE = 1 << 3,      /* of models with experts alone */
    TENSOR_FLAG_ATTN = 1 << 4,     /* of layers with attention only ... */
    TENSOR_FLAG_STATE = 1 << 5,    /* ... of recurrent ones only */
    TENSOR_FLAG_KV = 1 << 7,       /* of layers with keys and values of their own only */
    TENSOR_FLAG_INPUTS = 1 << 8,   /* of models with inputs for layers only */
    TENSOR_FLAG_NGRAMS =
        1 << 9, /* of the layer with n-grams only, or (no layer's) of models with such */
    TENSOR_FLAG_SPREAD =
        1
        << 10, /* a turned vector: rows of zeros between, as many as an n-gram is longer than one token */
    TENSOR_FLAG_INDEX = 1 << 11, /* of models with an index only */
    TENSOR_FLAG_TURNED = 1 << 6, /* a vector: the file's columns become rows */
};

/* One row of a family's tensor table. Loading and validation read it. shape: outermost dimension first, products of the letters
 * D H G K F V E X L P T (positions) N (n_dense) Y (n_embd) Q (n_labels) Z (n_streams) M (mix_rank) U (n-gram numbers) O (taps of their kernel) I (index_dim) J (index heads), of recurrent layers C W S (heads) R (key heads) A (Ks) B (Vs), of projected ones t (taps) r (rank) c (model_conv_own), and their sums, as "[H*K][D]"; NULL = any. Where a file has q, k and v, or gate and up, in one tensor (model.c, fused), a row stands
 * for its part of it. */
struct tensor_rule {
    const char *name;
    const char *shape;
    enum tensor_kind kind;
    unsigned flags;
    size_t offset;
};

struct model_family {
    const char *name;
    const char *const *archs; /* values of general.architecture, NULL ends */
    /* Fill hyperparameters, ropes and the layers' attention from the metadata. m->arch and zeroed layers are not there yet:
     * parse calls model_parse_common first. */
    enum err_code (*parse)(const struct weights *w, struct model *m, struct err *err);
    const struct tensor_rule *tensors; /* ends with name NULL */
    void (*step)(const struct model *m, struct model_step *st);
    const struct hf_map
        *hf; /* the directories that are of this family, ended by arch NULL; NULL = none */
};

const struct model_family *model_family_find(const char *arch); /* NULL = unknown */
const struct model_family *model_family_at(int i);              /* NULL past the last */

extern const struct model_family family_llama, family_qwen2, family_gemma3, family_smollm3,
    family_minicpm, family_granite, family_qwen3, family_gemma, family_gemma2, family_phi3,
    family_olmo2, family_glm4, family_qwen3moe, family_gpt_oss, family_starcoder2, family_qwen35,
    family_bert, family_nomic_bert, family_qwen35moe, family_qwen3next, family_gemma4,
    family_qwen2moe, family_qwen4exp, family_projected;

/* Rows that most tables share. */
#define RULE_MODEL(tensor, shape_, kind_, flags_, field)                           \
    {                                                                              \
        tensor, shape_, TENSOR_KIND_##kind_, flags_, offsetof(struct model, field) \
    }
#define RULE_LAYER(tensor, shape_, kind_, flags_, field)                             \
    {                                                                                \
        "blk.%d." tensor, shape_, TENSOR_KIND_##kind_, TENSOR_FLAG_LAYER | (flags_), \
            offsetof(struct model_layer, field)                                      \
    }

/* What hybrids of attention and gated delta nets share. */
#define RULES_GATED_ATTN                                                           \
    RULE_LAYER("attn_q.weight", "[H*K+H*K][D]", MATRIX, TENSOR_FLAG_ATTN, wq),     \
        RULE_LAYER("attn_q_norm.weight", "[K]", VECTOR, TENSOR_FLAG_ATTN, q_norm), \
        RULE_LAYER("attn_k.weight", "[G*K][D]", MATRIX, TENSOR_FLAG_ATTN, wk),     \
        RULE_LAYER("attn_k_norm.weight", "[K]", VECTOR, TENSOR_FLAG_ATTN, k_norm), \
        RULE_LAYER("attn_v.weight", "[G*K][D]", MATRIX, TENSOR_FLAG_ATTN, wv),     \
        RULE_LAYER("attn_output.weight", "[D][H*K]", MATRIX, TENSOR_FLAG_ATTN, wo)
#define RULES_DELTA                                                                           \
    RULE_LAYER("ssm_conv1d.weight", "[C][W]", VECTOR, TENSOR_FLAG_STATE | TENSOR_FLAG_TURNED, \
               conv_w),                                                                       \
        RULE_LAYER("ssm_dt.bias", "[S]", VECTOR, TENSOR_FLAG_STATE, decay_bias),              \
        RULE_LAYER("ssm_a", "[S]", VECTOR, TENSOR_FLAG_STATE, decay_scale),                   \
        RULE_LAYER("ssm_norm.weight", "[B]", VECTOR, TENSOR_FLAG_STATE, delta_norm),          \
        RULE_LAYER("ssm_out.weight", "[D][S*B]", MATRIX, TENSOR_FLAG_STATE, w_delta_out)

#define RULES_SHARED_MOE                                                          \
    RULE_LAYER("ffn_gate_inp.weight", "[E][D]", MATRIX, 0, router),               \
        RULE_LAYER("ffn_gate_exps.weight", "[E][X][D]", EXPERTS, 0, w_gate_e),    \
        RULE_LAYER("ffn_up_exps.weight", "[E][X][D]", EXPERTS, 0, w_up_e),        \
        RULE_LAYER("ffn_down_exps.weight", "[E][D][X]", EXPERTS, 0, w_down_e),    \
        RULE_LAYER("ffn_gate_inp_shexp.weight", "[D]", MATRIX, 0, w_shared_gate), \
        RULE_LAYER("ffn_gate_shexp.weight", "[F][D]", MATRIX, 0, w_gate),         \
        RULE_LAYER("ffn_up_shexp.weight", "[F][D]", MATRIX, 0, w_up),             \
        RULE_LAYER("ffn_down_shexp.weight", "[D][F]", MATRIX, 0, w_down)

/* The table against the file. Errors: model_load. */
enum err_code model_load_tensors(struct model *m, const struct model_load_options *o,
                                 struct err *err);
void model_free_tensors(struct model *m); /* what was loaded so far; the fields are NULL then */

/* --- a head that guesses (nextn.c) --- */

struct model_loading; /* private to load.c */
/* Load the head of o->weights into m->nextn. What is wrong with it is said in o->nextn_err, and the model does without. */
void model_load_nextn(struct model *m, struct model_loading *ld,
                      const struct model_load_options *o);
void model_free_nextn(struct model *m); /* NULL then; fine without one */
/* The model is loaded: the head gets what it has of it. */
void model_nextn_borrow(struct model *m);

/* What the head needs of load.c: one tensor, of its layer or (NULL) of itself; the tensors of a rule freed, layer_i -1: of no layer; all
 * vectors freed. */
enum err_code model_load_beside(struct model *head, struct model_loading *ld,
                                const struct tensor_rule *rule, const char *name,
                                struct model_layer *layer, struct err *err);
void model_free_field(struct model *m, const struct tensor_rule *rule, int64_t layer_i);
void model_free_blocks(struct model *m);

/* --- parsing --- */

/* Sizes, eps, context; allocates the layers with full attention at scale 1/sqrt(K). Keys are "<arch>.<name>". */
enum err_code model_parse_common(const struct weights *w, struct model *m, struct err *err);

/* "<arch>.<name>" into out[128]; returns out. */
const char *model_key(const struct model *m, const char *name, char out[128]);

/* Build ropes[i] from the file's rope keys: dimension count, scaling (none, linear, yarn, longrope) and the tensors rope_freqs.weight,
 * rope_factors_long.weight and rope_factors_short.weight.
 * base_key names the frequency base's key, base its default. With is_scaled false the scaling keys are ignored. */
struct model_rope_spec {
    int rope_i;
    enum rope_kind kind;
    const char *base_key;
    double base;
    bool is_scaled;
    const char *dims_key; /* NULL: rope.dimension_count */
    bool is_yarn_exact;   /* the borders of yarn's mix are no whole pairs */
};
enum err_code model_parse_rope(const struct weights *w, struct model *m,
                               const struct model_rope_spec *spec, struct err *err);

/* "<arch>.<name>" where the file has it: a number in (0, 1e6], as a float. */
enum err_code model_parse_scale(const struct weights *w, const struct model *m, const char *name,
                                float fallback, float *out, struct err *err);

/* Which layers have a sliding window: the key attention.sliding_window (default `fallback`, 0 = none has), and either the array
 * attention.sliding_window_pattern or all but every `period`-th (0: all). Sets group and attn.window. */
enum err_code model_parse_windows(const struct weights *w, struct model *m, int64_t fallback,
                                  int64_t period, struct err *err);

/* Number and width of the experts (keys expert_count, expert_used_count, expert_feed_forward_length, expert_gating_func,
 * expert_weights_norm, expert_weights_scale); without the first key nothing. m->route holds the family's defaults. */
enum err_code model_parse_experts(const struct weights *w, struct model *m, struct err *err);

/* Which layers are recurrent (attention.recurrent_layers, or all but every full_attention_interval-th), the sizes of their states,
 * and the layers at the end that only draft (nextn_predict_layers): they are no part of n_layers then. */
/* model_parse_experts, and the shared expert's width as every layer's n_ff (expert_shared_feed_forward_length). */
enum err_code model_parse_shared_experts(const struct weights *w, struct model *m, struct err *err);
/* Two-way models: attention of all layers, what is pooled (key pooling_type, mean without one). Errors: ERR_UNSUPPORTED - another pooling. */
enum err_code model_parse_two_way(const struct weights *w, struct model *m, struct err *err);
enum err_code model_parse_delta(const struct weights *w, struct model *m, struct err *err);

/* S streams and their hyper-connections (hyper_connection.count, low_rank); n-grams (ple.*). */
enum err_code model_parse_streams(const struct weights *w, struct model *m, struct err *err);
enum err_code model_parse_ngrams(const struct weights *w, struct model *m, struct err *err);

/* The step of hybrids: each layer with attention or a gated delta net, then its feed-forward part. */
void block_step_hybrid(const struct model *m, struct model_step *st);
/* The step of the families whose branches have a norm before them and nothing after: llama and its relatives. */
void block_step_pre_norm(const struct model *m, struct model_step *st);
/* ... of those whose norms stand behind the sum: bert. */
void block_step_post_norm(const struct model *m, struct model_step *st);
/* ... and of those with a norm on both sides. */
void block_step_both_norms(const struct model *m, struct model_step *st);

/* Weights that a row has of its own for a branch's two convolutions; 0 = the model has none. */
static inline int64_t model_conv_own(const struct model *m)
{
    const struct model_projected *p = &m->projected;
    return p->conv_taps > 0 ? 2 * p->conv_taps * (m->width / p->conv_cols) : 0;
}

/* --- blocks: each works on st->x (residual stream) and st->h (branch) --- */

void block_embed(const struct model *m, struct model_step *st); /* x = embedding * embed_scale */
/* x = w_join [norm(embedding) norm(inputs)] */
void block_join(const struct model *m, struct model_step *st);
void block_norm(const struct model *m, struct model_step *st, const float *w); /* h = norm(x) */
void block_layer_norm(const struct model *m, struct model_step *st, const float *w,
                      const float *b); /* h = x without its mean, normed, + b */
void block_post_norm(const struct model *m, struct model_step *st,
                     const float *w);                         /* h = norm(h) */
void block_add(const struct model *m, struct model_step *st); /* x += h * residual_scale */
/* Layer layer_i is done: what the tap wants to know. */
void block_layer_end(const struct model *m, struct model_step *st, int layer_i);
/* h = attention(h), with the layer's biases, head norms and rope. In the last layer the rows that need no logits are left out
 * from here on; false = no row is left, the step is done. */
bool block_attn(const struct model *m, struct model_step *st, int layer_i);
bool block_attn_of(const struct model *m, struct model_step *st, int layer_i,
                   struct tensor x); /* h = attention(x) */
/* The keys and values of layer layer_i, made of x and stored: block_attn without the rest. */
void block_keys(const struct model *m, struct model_step *st, int layer_i, struct tensor x);
/* h = gated delta net(h) of a recurrent layer; as block_attn. */
bool block_delta(const struct model *m, struct model_step *st, int layer_i);
/* The backend is about to be waited for, the first time in the step if that has a `meanwhile`. */
void block_start(const struct model *m, struct model_step *st);
/* Layer layer_i has stored what later rows need. False: no row is left to go on with, the step is done. */
bool block_goes_on(const struct model *m, struct model_step *st, int layer_i);
/* From here on only the rows whose logits are wanted: branch (whose matrix is still to come) and x shrink to them. */
void block_narrow(const struct model *m, struct model_step *st, struct tensor *branch);
void block_ffn(const struct model *m, struct model_step *st,
               const struct model_layer *l); /* h = down(act(gate h) * up h), or block_moe */
void block_ffn_of(const struct model *m, struct model_step *st, const struct model_layer *l,
                  struct tensor x); /* the same of x, which may be h */
void block_ffn_dense(const struct model *m, struct model_step *st, const struct model_layer *l,
                     struct tensor x); /* the same without experts, where there are some */
/* h = the sum over the experts of each row, by the router's weights and in the order of their ids, of what they make of x. The rows
 * of an expert are computed together, each as if it were alone. h has another buffer afterwards, x keeps its own. */
void block_moe(const struct model *m, struct model_step *st, const struct model_layer *l,
               struct tensor x);
/* ... and beside it w_down(act(w_gate x) * w_up x) * sigmoid(w_shared_gate x), which every row has. x is no longer what it was. */
void block_moe_shared(const struct model *m, struct model_step *st, const struct model_layer *l,
                      struct tensor x);
/* h = norm(ffn(h)) + norm(the experts of norm(x)), routed by norm(x) / sqrt(D): Gemma 4. */
void block_moe_beside(const struct model *m, struct model_step *st, const struct model_layer *l);
/* --- streams: x is [T][S*D] --- */
void block_embed_streams(const struct model *m,
                         struct model_step *st); /* each stream = embedding */
/* h = what the branch sees of the streams; inject = how much of its output each of them will get. */
void block_mix(const struct model *m, struct model_step *st, const struct model_mix *mix);
void block_inject(const struct model *m, struct model_step *st); /* stream s += inject[s] * h */
/* Each stream normed by itself. w [S*D] */
void block_stream_norm(const struct model *m, struct tensor y, struct tensor x, const float *w);
void block_ngrams(const struct model *m, struct model_step *st, const struct model_layer *l);
/* The n-grams' convolution once more, of what was kept of the rows (model_state_replay). */
void block_ngrams_replay(const struct model *m, struct model_step *st, const struct seq_view *seq);

/* Errors: ERR_NOMEM. *out NULL where the model has no experts. */
enum err_code block_moe_scratch(const struct model *m, int max_rows, struct model_moe **out,
                                struct err *err);
void block_moe_release(struct model_moe *moe);

/* h = the texts' embeddings, of x. */
void block_pool(const struct model *m, struct model_step *st);
/* logits or embeddings, whichever the model makes. */
void block_head(const struct model *m,
                struct model_step *st); /* logits = head(norm(x)), scaled, softcapped */

#endif
