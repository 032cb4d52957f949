/* Recurrent layers of the CPU backend: threads share sequences, heads and columns, never the tokens of one. */
#include "kernels/cpu/cpu_int.h"
#include "tensor/fmath.h"

#include <string.h>

#define CONV_COLS  512 /* columns of a chunk */
#define GATES_ROWS 16  /* rows of a chunk */

bool cpu_state_init(struct cpu_state *st, int threads)
{
    size_t bytes = (size_t)threads * BACKEND_STATE_DIM_MAX * STATE_COLS * sizeof(float);
    st->state_work = mem_try_big(MEM_CAT_SCRATCH, bytes);
    return st->state_work;
}

void cpu_state_release(struct cpu_state *st, int threads)
{
    size_t bytes = (size_t)threads * BACKEND_STATE_DIM_MAX * STATE_COLS * sizeof(float);
    mem_free_big(MEM_CAT_SCRATCH, st->state_work, bytes);
}

struct conv_run {
    struct cpu_state *cpu;
    struct tensor y, x;
    const float *w;
    struct state_layer *st;
    const struct seq_view *seqs;
    int64_t n_parts; /* chunks of a sequence */
};

static void conv_chunk(void *ctx, int64_t chunk, int thread)
{
    const struct conv_run *r = ctx;
    const struct seq_view *s = &r->seqs[chunk / r->n_parts];
    int64_t c0 = chunk % r->n_parts * CONV_COLS, c1 = min_i64(c0 + CONV_COLS, r->x.cols);
    struct conv_job j = { .seq = s, .y = r->y, .x = r->x, .w = r->w, .taps = r->st->taps };
    j.state = r->st->conv + (int64_t)s->slot * (r->st->taps - 1) * r->st->conv_cols;
    if (s->n_rows > 0)
        r->cpu->state.conv(&j, c0, c1);
}

void cpu_conv_silu(struct backend *be, struct tensor y, struct tensor x, const float *w,
                   struct state_layer *st, const struct seq_view *seqs, int n_seqs)
{
    struct conv_run r = { cpu_of(be), y, x, w, st, seqs, (x.cols + CONV_COLS - 1) / CONV_COLS };
    pool_run(r.cpu->pool, conv_chunk, &r, r.n_parts * n_seqs);
}

struct gates_run {
    struct tensor a, b;
    const float *bias, *s;
};

static void gates_chunk(void *ctx, int64_t chunk, int thread)
{
    const struct gates_run *r = ctx;
    int64_t t1 = min_i64((chunk + 1) * GATES_ROWS, r->a.rows);
    for (int64_t t = chunk * GATES_ROWS; t < t1; t++)
        for (int64_t h = 0; h < r->a.cols; h++) {
            float *pa = r->a.data + t * r->a.stride + h, *pb = r->b.data + t * r->b.stride + h;
            *pa = fmath_exp(r->s[h] * fmath_softplus(*pa + r->bias[h]));
            *pb = fmath_sigmoid(*pb);
        }
}

void cpu_delta_gates(struct backend *be, struct tensor a, struct tensor b, const float *bias,
                     const float *s)
{
    struct gates_run r = { a, b, bias, s };
    pool_run(cpu_of(be)->pool, gates_chunk, &r, (a.rows + GATES_ROWS - 1) / GATES_ROWS);
}

struct delta_run {
    struct cpu_state *cpu;
    struct tensor out, q, k, v, decay, beta;
    struct state_layer *st;
    const struct seq_view *seqs;
    int64_t n_parts; /* chunks of a head */
};

static void delta_chunk(void *ctx, int64_t chunk, int thread)
{
    const struct delta_run *r = ctx;
    const struct state_layer *st = r->st;
    int64_t h = chunk / r->n_parts % st->n_heads;
    const struct seq_view *s = &r->seqs[chunk / r->n_parts / st->n_heads];
    int64_t g = st->is_tiled ? h % st->n_key_heads : h / (st->n_heads / st->n_key_heads);
    int64_t row = s->row0, c0 = chunk % r->n_parts * STATE_COLS;
    struct delta_job j = {
        .seq = s,
        .q = r->q.data + row * r->q.stride + g * st->key_dim,
        .k = r->k.data + row * r->k.stride + g * st->key_dim,
        .v = r->v.data + row * r->v.stride + h * st->value_dim,
        .out = r->out.data + row * r->out.stride + h * st->value_dim,
        .decay = r->decay.data + row * r->decay.stride + h,
        .beta = r->beta.data + row * r->beta.stride + h,
        .q_stride = r->q.stride,
        .k_stride = r->k.stride,
        .v_stride = r->v.stride,
        .out_stride = r->out.stride,
        .decay_stride = r->decay.stride,
        .beta_stride = r->beta.stride,
        .matrix = st->matrix + (s->slot * (int64_t)st->n_heads + h) * st->key_dim * st->value_dim,
        .key_dim = st->key_dim,
        .value_dim = st->value_dim,
        .work = r->cpu->state_work + (int64_t)thread * BACKEND_STATE_DIM_MAX * STATE_COLS,
    };
    if (s->n_rows > 0)
        r->cpu->state.delta(&j, (int)c0, (int)min_i64(c0 + STATE_COLS, st->value_dim));
}

void cpu_delta_rule(struct backend *be, struct tensor out, struct tensor q, struct tensor k,
                    struct tensor v, struct tensor decay, struct tensor beta,
                    struct state_layer *st, const struct seq_view *seqs, int n_seqs)
{
    struct delta_run r = {
        cpu_of(be), out,  q,  k,    v,
        decay,      beta, st, seqs, (st->value_dim + STATE_COLS - 1) / STATE_COLS
    };
    pool_run(r.cpu->pool, delta_chunk, &r, r.n_parts * st->n_heads * n_seqs);
}

void cpu_state_copy(struct backend *be, struct state_layer *st, int32_t dst, int32_t src)
{
    size_t conv = (size_t)(st->taps - 1) * (size_t)st->conv_cols;
    size_t matrix = (size_t)st->n_heads * (size_t)st->key_dim * (size_t)st->value_dim;
    memcpy(st->conv + (size_t)dst * conv, st->conv + (size_t)src * conv, conv * sizeof(float));
    memcpy(st->matrix + (size_t)dst * matrix, st->matrix + (size_t)src * matrix,
           matrix * sizeof(float));
}
