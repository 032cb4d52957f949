/* model.h - a loaded model: hyperparameters, packed weights, and the forward pass of one step over the rows of many sequences.
 *
 * Owns: what it packed and uploaded to its backend. Does not know: requests, sampling, page pools (the caller brings page tables
 * and cache slabs). The weights file may be closed after model_load.
 * Thread: engine thread. Allocation: none in model_step_run.
 * Letters: T rows of the step, O rows that need logits, D width, H query heads, G kv heads, K head size, F ffn width,
 * V vocabulary, L layers, E experts, X ffn width of an expert. */
#ifndef PLUMB_MODEL_MODEL_H
#define PLUMB_MODEL_MODEL_H

#include "tensor/backend.h"
#include "tensor/route.h"
#include "weights/weights.h"

/* Cache groups: layers whose sequences keep the same pages. */
enum model_group {
    MODEL_GROUP_FULL,   /* every position */
    MODEL_GROUP_WINDOW, /* the last `window` positions */
    MODEL_GROUP_STATE,  /* no positions: a state of fixed size (recurrent layers) */
    MODEL_GROUP_COUNT
};

/* What of a text's hidden states is its embedding. */
enum model_pooling {
    MODEL_POOLING_LAST, /* the last row's */
    MODEL_POOLING_MEAN, /* of all rows, summed by ascending positions */
    MODEL_POOLING_CLS,  /* the first row's */
};

/* A hyper-connection: of S residual streams side by side, what a branch sees and how much of its output each of them gets. R: rank. */
struct model_mix {
    const float *norm;        /* [S*D] */
    struct weight *down, *up; /* [R][S*D] [S*D][R] */
    struct weight *inject;    /* [S][S*D]; NULL in front of the vocabulary's head */
};

#define MODEL_NGRAM_MAX       8  /* tokens of an n-gram */
#define MODEL_NGRAM_HEADS_MAX 64 /* hashes of a token's n-grams, all lengths together */

/* Hashed embeddings of the n-grams that end at a token (qwen4exp), which one layer adds to its streams. E: numbers of all heads. */
struct model_ngrams {
    int n_heads;          /* 0 = there are none */
    int size, per_size;   /* the longest n-gram; heads of each length from 2 on */
    int64_t layer_i, dim; /* where they are added; numbers of a head */
    int32_t end_id;       /* n-grams do not reach across it */
    uint64_t factors[MODEL_NGRAM_MAX];
    int64_t firsts[MODEL_NGRAM_HEADS_MAX], rows[MODEL_NGRAM_HEADS_MAX]; /* of the table, by heads */
    int64_t n_parts, part_rows; /* the table is one matrix or several of as many rows */
    int64_t taps; /* of the convolution behind them, the ones between the kernel's zero */
};

/* One layer. Vectors are backend memory; NULL where the family or the file has none. */
struct model_layer {
    enum model_group group;
    int n_heads, n_kv_heads, head_dim,
        n_ff;   /* as the model's, but for families that say otherwise */
    int rope_i; /* which of the model's ropes; -1 = positions are not rotated in */
    struct attn_params attn;
    const float *attn_norm, *attn_post_norm; /* [D] */
    const float *q_norm, *k_norm;            /* [K]; [H*K] and [G*K] where is_qk_norm_wide */
    const float *bq, *bk, *bv, *bo;          /* [H*K] [G*K] [G*K] [D] */
    const float *ffn_norm, *ffn_post_norm;   /* [D] */
    struct weight *wq, *wk, *wv, *wo;        /* [H*K][D] [G*K][D] [G*K][D] [D][H*K] */
    struct weight *w_gate, *w_up, *w_down;   /* [F][D] [F][D] [D][F]; w_gate NULL: act(up) alone */
    /* Layer norms have these; else the norms are root mean squares. */
    const float *attn_norm_b, *ffn_norm_b;           /* [D] */
    const float *attn_post_norm_b, *ffn_post_norm_b; /* [D] */
    const float *b_up, *b_down;                      /* [F] [D] */
    /* A mixture of experts in place of the ffn. */
    struct weight *router;                          /* [E][D]; NULL = none */
    const float *b_router;                          /* [E] */
    struct weight **w_gate_e, **w_up_e, **w_down_e; /* [E] of [X][D] [X][D] [D][X] */
    const float *b_gate_e, *b_up_e, *b_down_e;      /* [E][X] [E][X] [E][D] */
    /* Gemma 4: experts beside the ffn, each with norms of its own; the router has one too, all of the residual stream */
    const float *router_norm, *expert_norm;      /* [D] */
    const float *ffn_out_norm, *expert_out_norm; /* [D] */
    const float *expert_scale; /* host memory [E]: the weights are multiplied by it */
    struct weight *
        w_shared_gate; /* [1][D]: beside the experts w_gate, w_up, w_down work for every row, times sigmoid of this */
    int kv_from; /* the layer whose keys and values it reads; its own number where it has some */
    /* Per-layer inputs (Gemma 3n and 4), and what the residual stream is multiplied by at the end. P: their width */
    struct weight *w_inp_gate, *w_inp_proj; /* [P][D] [D][P] */
    const float *inp_norm;                  /* [D] */
    const float *out_scale;                 /* host memory [1], or NULL */
    /* Sparse attention: an index of the keys, whose best blocks are seen. I: index_dim, J: its heads */
    struct weight *w_index_q, *w_index_k;     /* [J*I][D] [I][D] */
    const float *index_q_norm, *index_k_norm; /* [I] */
    /* qwen4exp: in the place of norms; and in one layer n-grams */
    struct model_mix mix_attn, mix_ffn;
    struct weight *w_ngram_key, *w_ngram_value;                       /* [S*D][E] [D][E] */
    const float *ngram_key_norm, *ngram_query_norm, *ngram_conv_norm; /* [S*D] */
    const float *ngram_conv_w;                                        /* [taps][S*D] */
    /* Projected models: convolutions before and after a branch. t: their taps, g: groups of columns */
    struct weight *w_conv_attn, *w_conv_ffn; /* [2*t*g][D] */
    const float *conv_attn, *conv_ffn;       /* host memory [2][t][D] */
    /* MODEL_GROUP_STATE. C: 2 Gs Ks + Hs Vs */
    struct weight *w_mix, *w_z, *w_decay, *w_beta; /* [C][D] [Hs*Vs][D] [Hs][D] [Hs][D] */
    struct weight *w_beta_decay; /* or the last two in one, by key heads: [Gs * (beta decay)][D] */
    struct weight *w_delta_out;  /* [D][Hs*Vs] */
    const float *conv_w, *delta_norm;      /* [W][C] [Vs] */
    const float *decay_bias, *decay_scale; /* [Hs] [Hs] */
};

#define MODEL_ROPES_MAX 2

/* Told the residual stream [T][D] after each layer (in the last one only the rows with logits are left): for tests and
 * comparisons. */
struct model_tap {
    void (*fn)(void *ctx, int layer_i, struct tensor x); /* NULL = none */
    void *ctx;
};

/* States that a step gives of every row beside its output, for drafters (engine/draft.h). */
#define MODEL_TAPS_MAX 16
struct model_taps {
    int n; /* 0 = none */
    /* Ascending: the residual stream behind layer at[i], in front of the first one (-1), or (at[i] = n_layers) what stands behind the final
     * norm, which logits are made of. The last two make a step compute its last layer for all rows, not for those with output alone. */
    int at[MODEL_TAPS_MAX];
};

/* What turns the logits of a block's rows into guesses, one after the other (model/projected.h). */
enum projected_head {
    PROJECTED_HEAD_NONE,
    PROJECTED_HEAD_PLAIN,     /* a bias by the guess before */
    PROJECTED_HEAD_GATED,     /* ... which the row's state dims */
    PROJECTED_HEAD_RECURRENT, /* ... by a state that goes on from guess to guess */
    PROJECTED_HEAD_SELECTOR, /* of the likeliest ids the one that goes best with the guess before and the row's state */
};

/* A model that reads another one's hidden states and guesses its next tokens, a block at a time (family_projected.c). R: rank of the
 * head's bias. It may have no embedding and no vocabulary head: model_project borrows the other one's. */
struct model_projected {
    int32_t block; /* rows of a block, the text's last token in front; 0 = it is no such model */
    int32_t
        first_out; /* the first row that guesses: 1, or 0 where each row guesses what comes behind it */
    int32_t mask_id;         /* what stands in a block for a token that is to be guessed */
    int64_t n_target_layers; /* of the other model; 0 = the file does not say */
    struct model_taps taps;  /* ... and its states that are read */
    struct weight *fc;       /* [D][taps.n * D] */
    const float *fc_norm;    /* [D] of what it gives */
    enum projected_head head;
    int64_t rank;                          /* R */
    struct weight *markov_in, *markov_out; /* [V][R] [V][R] */
    struct weight *w_markov_gate;          /* [R][D+R] */
    struct weight *w_markov_joint; /* [3R][R+R+D]: state, the guess before, the row's state */
    const float *b_markov_gate, *b_markov_joint; /* [R] [3R] */
    struct weight *w_selector; /* [R][D]; markov_in and markov_out are its codebooks */
    int32_t n_candidates;      /* that it looks at */
    /* Around both branches of a layer: each row and those before it in the block, by weights of which a part is the layer's and a part the
     * row's own, one for so many columns. 0 taps: there are none */
    int32_t conv_taps, conv_cols;
    struct weight *w_confidence; /* [1][D] or [1][D+R]; NULL = none */
    const float *b_confidence;   /* [1], or NULL */
    bool confidence_has_markov;
    bool borrows_embed, borrows_head;
};

/* Sizes of every recurrent layer: see struct state_layer. All 0: the model has none. */
struct model_state {
    int64_t taps, conv_cols, n_heads, n_key_heads, key_dim, value_dim;
    bool is_tiled;
};

struct model {
    const struct model_family *family;
    struct backend *be;
    /* A second backend, whose memory the host's is, or NULL: it computes the first n_host_layers with what comes before them, and
     * the experts of the first n_host_experts layers. What a layer has is in the memory of the one that computes it. */
    struct backend *host;
    int64_t n_host_layers, n_host_experts;
    const char *arch;
    int64_t n_layers, width, n_heads, n_kv_heads, head_dim, n_ff, n_vocab;
    int64_t n_experts, n_experts_used, n_ff_expert; /* 0 = none */
    int64_t n_layers_ignored; /* of the file, behind the n_layers: of the head that nextn is */
    int64_t n_ctx_train;
    struct index_pick pick; /* of layers with w_index_q; n_heads 0: there are none */
    int64_t index_dim, index_ratio;
    int64_t n_streams; /* S: the residual stream is [T][S*D]; 1 */
    int64_t mix_rank;  /* R */
    struct model_ngrams ngrams;
    struct model_mix mix_out;
    struct weight **ngram_table; /* [n_parts] of [part_rows][dim] */
    int32_t window;              /* MODEL_GROUP_WINDOW: positions kept; 0 = no layer has one */
    bool has_group[MODEL_GROUP_COUNT];
    float eps;               /* of every norm */
    float embed_scale;       /* 1 = none */
    float residual_scale;    /* a branch is multiplied by this before it is added; 1 = none */
    float logit_scale;       /* 1 = none */
    float logit_softcap;     /* 0 = none */
    bool is_qk_norm_wide;    /* the norms of q and k go over all heads together */
    bool is_v_normed;        /* values too are divided by the root of their mean square, by heads */
    enum glu_kind delta_glu; /* what z does to a recurrent layer's output */
    bool is_q_gated; /* wq is [H * (q gate)][D]: heads' outputs are multiplied by sigmoid(gate) */
    enum glu_kind glu;
    struct route route; /* of mixtures of experts */
    /* Rows see what comes after them: a text is taken whole, in one step, and the model makes embeddings alone. */
    bool is_two_way;
    enum model_pooling pooling;
    int64_t
        n_embd; /* of an embedding: D, or what the last of w_dense gives; n_labels of a classifier */
    int64_t n_dense; /* between the two of them; 0 = there are none */
    /* A classifier gives each text a logit for each label in the place of an embedding, and writes no answers. */
    int64_t n_labels; /* 0 = it is none */
    /* Rows behind the first one with this id have the second type of token_type: pairs of texts. -1 (or one type): none has. Whoever
     * has the tokenizer sets it after model_load. */
    int32_t sep_id;
    struct model_tap tap;
    struct model_projected projected;
    struct model_state state; /* MODEL_GROUP_STATE */
    struct rope ropes[MODEL_ROPES_MAX];
    struct model_layer *layers; /* [L] */
    struct weight *embed;       /* [V][D] */
    struct weight *
        head; /* [V][D]; tied: the same as embed, or where another backend has that, packed once more */
    bool is_head_tied;
    struct weight *pos_embed; /* [n_ctx_train][D], added to the embedding; NULL = none */
    const float *token_type;  /* [n_types][D]: each row's is added too */
    int64_t n_types;
    const float *embed_norm, *embed_norm_b; /* [D] of the sum */
    struct weight *w_dense[2];          /* [n_dense][D] [n_embd][n_dense], of the pooled state */
    struct weight *w_class, *w_labels;  /* [D][D] with tanh behind it, or NULL; [n_labels][D] */
    const float *b_class, *b_labels;    /* [D] [n_labels], or NULL */
    int64_t n_inp;                      /* P; 0 = none */
    struct weight *inp_embed;           /* [V][L*P] */
    struct weight *inp_proj;            /* [L*P][D] */
    const float *inp_proj_norm;         /* [P] */
    const float *out_norm, *out_norm_b; /* [D] */
    /* A head that guesses the token behind the next one (multi-token prediction; DeepSeek-V3, 2024): a model of one layer, which reads this
     * model's state behind the final norm (struct model_taps) beside the id that follows it. NULL: none was asked for, or there is
     * none. It borrows from this model what it has in common with it. */
    struct model *nextn;
    struct weight *w_join;                          /* of such a head: [D][2*D] */
    const float *join_embed_norm, *join_state_norm; /* of such a head: [D] */
    int64_t n_params;                               /* elements of all tensors */
    size_t weight_bytes;                            /* as packed */
    struct model_block *blocks;                     /* private to load.c: what to free */
    float *inv_freq[MODEL_ROPES_MAX];               /* private to model.c */
};

/* Activations of a step, sized once. */
struct model_scratch {
    struct backend *be;
    struct model_scratch *host; /* those of the model's second backend; NULL = it has none */
    int max_rows, max_out;
    size_t bytes;
    float *block; /* one allocation of `bytes` */
    /* [max_rows][D D H*K G*K G*K H*K F F]; after a step with output h holds what logits were made of [O][D], or embeddings [O][n_embd] */
    float *x, *h, *q, *k, *v, *att, *gate, *up; /* gate, up: the wider of F and X */
    float *mix;  /* [max_rows][.] q and its gate; the convolution's input */
    float *join; /* [max_rows][2*D] of heads that guess */
    float *conv, *z, *decay, *beta,
        *joint;           /* [max_rows][C] [Hs*Vs] [Hs] [Hs] [.] of recurrent layers */
    float *inp, *inp_mix; /* [max_rows][L*P] per-layer inputs */
    /* streams: [max_rows][S*D S*D S*D], [max_rows][R S E], [max_out][S] */
    float *mixed, *mix_gate, *mix_conv, *mix_low, *inject, *ngram, *inject_out;
    int32_t *ngram_rows;                   /* [n_heads] host memory */
    float *conv_own, *conv_to;             /* [max_rows][2*t*g D] of projected models */
    float *index_q, *index_k, *index_mean; /* [max_rows][J*I I I] */
    int32_t *index_first;                  /* [max_rows] host memory */
    float *x_out, *att_out, *logits;       /* [max_out][D H*K V] */
    uint8_t *out_failed;                   /* [max_out] host memory */
    uint8_t *tail_failed;                  /* [max_rows] host memory */
    struct model_moe *moe;                 /* private to block_moe.c; NULL = no experts */
};

/* What tentative rows brought to their recurrent layers, so that those that stay can be stepped again (model_state_replay). */
struct state_keep {
    int n_rows;          /* kept rows of a layer, all sequences together */
    float *mix;          /* backend memory [L of the group][n_rows][C] inputs of the convolution */
    float *decay, *beta; /* backend memory [L of the group][n_rows][Hs] */
    float *ngram;        /* backend memory [n_rows][S*D], or NULL */
    const struct state_keep
        *host; /* the same of the second backend's layers; NULL = there is none */
};

/* The rows of one step and what they need. Everything is borrowed during model_step_run. */
struct model_step {
    const int32_t *ids; /* [T] */
    const int32_t *pos; /* [T] absolute positions */
    int n_rows;         /* T <= scratch->max_rows */
    const struct seq_view
        *seqs[MODEL_GROUP_COUNT]; /* [n_seqs]: the same rows, each group's pages */
    int n_seqs;
    const int32_t *out_rows; /* [n_out] ascending row numbers whose output is wanted */
    int n_out;               /* O, 0..scratch->max_out */
    int n_logits; /* 0..n_out: the first so many get logits, the others end behind the final norm */
    /* Two-way models: every sequence is whole, from position 0, n_logits is 0, and out_rows are of different sequences: what is
     * given of each is its embedding. */
    struct kv_layer *kv;             /* [L] */
    struct state_layer *state;       /* [L] those of MODEL_GROUP_STATE are used */
    struct index_layer *index;       /* [L] of layers with one */
    uint64_t *picked;                /* host memory [T][picked_words] */
    int64_t picked_words;            /* pages of the longest sequence */
    float *pick_scores;              /* host memory, the blocks of the longest sequence */
    struct state_layer *ngram_state; /* of models with n-grams: their convolution's */
    const int32_t *const *
        ids_before; /* [n_seqs] of these: behind the ids in front of each sequence's rows; [-1] is the last */
    const struct state_keep *keep; /* NULL: no row is tentative */
    const int32_t *keep_rows;      /* [T] kept row of each tentative row */
    uint8_t *failed;               /* out [T] host memory: 1 = a non-finite value met this row */
    /* NULL, or out [n_logits] host memory: the likeliest id of each row of logits, as the backend's op best says it (which is there) */
    int32_t *best;
    /* NULL, or [n_logits] host memory: beside best, the rows' temperatures for the op shortlist (which is there), and where lists go */
    const float *list_t;
    struct shortlist *lists;
    /* NULL, or which states go to tapped [T][taps->n * D] (backend memory), side by side. Output and failed are the same bits with it.
     * Not of two-way models and those of several streams. */
    const struct model_taps *taps;
    struct tensor tapped;
    /* Of projected models: [T][taps.n * D] the other model's states of as many tokens, whose keys and values are all that comes of the
     * step then; rows 0: the ids are a block. Of heads (nextn): [T][D] the states in front of the ids. */
    struct tensor inputs;
    struct model_scratch *scratch;
    /* NULL, or what the host does once the backend, which has start, has been given its work, before it is waited for. */
    void (*meanwhile)(void *ctx);
    void *meanwhile_ctx;
    /* private to the blocks from here: */
    int first, end;            /* layers that are computed: all, or a backend's */
    const struct model *model; /* as it is, where a backend's layers have a copy, and its own x */
    float *model_x;
    struct tensor x, h;   /* residual stream and the current branch */
    bool is_whole;        /* taps see the end of the last layer */
    struct tensor inject; /* [x.rows][S] */
    uint8_t *flags;       /* [x.rows] where failed rows of x are told */
};

/* Give an opened Hugging Face directory the keys and tensor names that GGUF has; nothing happens to a GGUF file, or the second time.
 * Errors: ERR_UNSUPPORTED - architecture, activation, rope type (names them); ERR_INVALID - config.json; ERR_NOMEM. */
enum err_code model_adapt(struct weights *w, struct err *err) MUST_CHECK;

/* The backend that has layer i, and what the arithmetic of all of it is called. */
static inline struct backend *model_layer_be(const struct model *m, int64_t i)
{
    return i < m->n_host_layers ? m->host : m->be;
}
#define MODEL_NUMERICS 96
const char *model_numerics(const struct model *m, char out[MODEL_NUMERICS]);

/* Load every tensor of the file (after model_adapt). on_tensor (may be NULL) is told of progress: tensors done and all.
 * Errors: ERR_UNSUPPORTED - architecture, a scaling kind, a tensor type, a layer of be that reads the keys of one of host's; ERR_INVALID - a tensor is missing, has a wrong shape, is
 * not used, or holds non-finite values (names it); ERR_NOMEM. */
struct model_load_options {
    struct weights *weights;
    struct backend *
        be; /* NULL: keys, names, shapes and types are checked, no data is read; only for model_free */
    void (*on_tensor)(void *ctx, int32_t done, int32_t all);
    void *ctx;
    struct err
        *nextn_err; /* set: a head that guesses is loaded, too, or this says why there is none */
    struct backend *host; /* as in struct model: all three */
    int64_t n_host_layers, n_host_experts;
    /* Told of every matrix and vector (rows of one) of a backend's memory; layer_i: its layer, or one of these. */
    void (*on_size)(void *ctx, int64_t layer_i, bool is_expert, const struct weight_source *src);
#define MODEL_SIZE_OUTPUT (-1) /* behind the layers */
#define MODEL_SIZE_INPUT  (-2) /* before them; a tied head is told once, as this */
};
enum err_code model_load(const struct model_load_options *o, struct model **out,
                         struct err *err) MUST_CHECK;
void model_free(struct model *m);

/* Give up all tensors, and load them again as they were loaded; in between the model may not be stepped. Errors of model_reload: those of
 * model_load; the tensors are given up then. */
void model_unload(struct model *m);
enum err_code model_reload(struct model *m, const struct model_load_options *o,
                           struct err *err) MUST_CHECK;

enum err_code model_scratch_init(struct model_scratch *s, const struct model *m, int max_rows,
                                 int max_out, struct err *err) MUST_CHECK;
/* Backend memory of it, on either backend. */
size_t model_scratch_bytes(const struct model *m, int max_rows, int max_out);
void model_scratch_release(struct model_scratch *s);

/* Run the forward pass: the rows' keys and values go to their pages, the wanted rows' logits to scratch->logits [O][V] (backend
 * memory). A device fault is seen at the backend's wait(). */
void model_step_run(const struct model *m, struct model_step *st);

/* Step the recurrent layers of n_seqs sequences once more from what was kept of their tentative rows: seqs[i].row0 is the first
 * kept row, n_rows those that stay. Their slots are then as if no other row had been there. */
void model_state_replay(const struct model *m, struct model_step *st, const struct seq_view *seqs,
                        int n_seqs);

/* Bytes of one slot, all recurrent layers and the n-grams' convolution together; 0 = the model has none. */
size_t model_state_bytes(const struct model *m);

#endif
