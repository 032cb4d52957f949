/* The CPU backend's device services: memory, flags, dispatch and the table of ops. */
#include "kernels/cpu/cpu_int.h"

#include <string.h>
#include <unistd.h>

static void *cpu_alloc(struct backend *be, enum mem_cat cat, size_t bytes)
{
    return mem_try_big(cat, bytes);
}

static void cpu_free(struct backend *be, enum mem_cat cat, void *p, size_t bytes)
{
    mem_free_big(cat, p, bytes);
}

static void cpu_upload(struct backend *be, void *dst, const void *host, size_t bytes)
{
    memcpy(dst, host, bytes);
}

static void cpu_download(struct backend *be, void *host, const void *src, size_t bytes)
{
    memcpy(host, src, bytes);
}

static enum err_code cpu_wait(struct backend *be, struct err *err)
{
    return ERR_OK;
}

static void cpu_begin(struct backend *be, int n_rows)
{
    struct cpu_state *st = cpu_of(be);
    pool_set_fp(); /* the caller works too, whatever else ran on its thread */
    st->n_rows = n_rows;
    memset(st->flags, 0, (size_t)n_rows);
    rope_cache_clear(st->rope_cache);
}

static void cpu_failed(struct backend *be, uint8_t *flags)
{
    struct cpu_state *st = cpu_of(be);
    for (int t = 0; t < st->n_rows; t++)
        flags[t] |= st->flags[t];
}

static void cpu_close(struct backend *be)
{
    struct cpu_state *st = cpu_of(be);
    int threads = st->pool ? pool_threads(st->pool) : 0;
    pool_free(st->pool);
    mem_region_release(&st->region);
    mem_free_big(MEM_CAT_SCRATCH, st->act_mem, st->act_bytes);
    if (threads) {
        mem_free_big(MEM_CAT_SCRATCH, st->scratch, (size_t)threads * sizeof(*st->scratch));
        cpu_attention_release(st, threads);
        cpu_state_release(st, threads);
    }
    if (st->rope_cache)
        rope_cache_free(st->rope_cache);
    mem_free(MEM_CAT_BASE, st);
    mem_free(MEM_CAT_BASE, be);
}

static int cpu_threads(const struct backend *be)
{
    return pool_threads(((const struct cpu_state *)be->state)->pool);
}

struct parallel_job {
    void (*fn)(void *ctx, int64_t i);
    void *ctx;
};

static void parallel_chunk(void *ctx, int64_t chunk, int thread)
{
    const struct parallel_job *j = ctx;
    j->fn(j->ctx, chunk);
}

static void cpu_parallel(struct backend *be, void (*fn)(void *ctx, int64_t i), void *ctx, int64_t n)
{
    struct cpu_state *st = cpu_of(be);
    struct parallel_job j = { fn, ctx };
    st->is_parallel = true;
    pool_run(st->pool, parallel_chunk, &j, n);
    st->is_parallel = false;
}

static const struct backend_ops cpu_ops = {
    .api_version = BACKEND_API,
    .name = "cpu",
    .numerics = BACKEND_NUMERICS_CPU,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .upload = cpu_upload,
    .is_host = true,
    .download = cpu_download,
    .wait = cpu_wait,
    .close = cpu_close,
    .supports = cpu_supports,
    .pack = cpu_pack,
    .unpack_free = cpu_unpack_free,
    .shape = cpu_shape,
    .kv_page_bytes = cpu_kv_page_bytes,
    .embed = cpu_embed,
    .linear = cpu_linear,
    .add_bias = cpu_add_bias,
    .rms_norm = cpu_rms_norm,
    .rope = cpu_rope,
    .kv_store = cpu_kv_store,
    .kv_copy_page = cpu_kv_copy_page,
    .attention = cpu_attention,
    .glu = cpu_glu,
    .add = cpu_add,
    .scale = cpu_scale,
    .softcap = cpu_softcap,
    .exp_scaled = cpu_exp_scaled,
    .argmax = cpu_argmax,
    .threads = cpu_threads,
    .parallel = cpu_parallel,
    .copy = cpu_copy,
    .gate_rows = cpu_gate_rows,
    .root_dots = cpu_root_dots,
    .index_add = cpu_index_add,
    .index_pick = cpu_index_pick,
    .gather = cpu_gather,
    .l2_norm = cpu_l2_norm,
    .act = cpu_act,
    .layer_norm = cpu_layer_norm,
    .scatter_add = cpu_scatter_add,
    .route = cpu_route,
    .conv_silu = cpu_conv_silu,
    .delta_gates = cpu_delta_gates,
    .delta_rule = cpu_delta_rule,
    .state_copy = cpu_state_copy,
    .begin = cpu_begin,
    .failed = cpu_failed,
    .linear_many = cpu_linear_many,
};

/* Plain C, then each better instruction set in order; the first that is out of reach ends it. */
static void cpu_dispatch(struct cpu_state *st, enum cpu_level level)
{
    st->lin = lin_ops_c;
    st->rows = rows_ops_c;
    st->attn = attn_ops_c;
    st->state = state_ops_c;
#if defined(__x86_64__)
    if (level < CPU_LEVEL_AVX2)
        return;
    st->lin = lin_ops_avx2;
    st->rows = rows_ops_avx2;
    st->attn = attn_ops_avx2;
    st->state = state_ops_avx2;
    if (level < CPU_LEVEL_AVXVNNI)
        return;
    if (cpu_level_available(CPU_LEVEL_AVXVNNI))
        st->lin = lin_ops_avxvnni;
    if (level < CPU_LEVEL_AVX512)
        return;
    st->lin = lin_ops_avx512;
    st->rows = rows_ops_avx512;
    st->attn = attn_ops_avx512;
    st->state = state_ops_avx512;
    if (level < CPU_LEVEL_AMX)
        return;
    st->lin = lin_ops_amx;
#elif defined(__aarch64__)
    if (level < CPU_LEVEL_NEON)
        return;
    st->lin = lin_ops_neon;
    st->rows = rows_ops_neon;
    st->attn = attn_ops_neon;
    st->state = state_ops_neon;
#endif
}

/* Addresses for packed weights: more than a machine can hold, so that one range is enough. */
static size_t region_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    size_t ram = pages > 0 && size > 0 ? (size_t)pages * (size_t)size : (size_t)1 << 36;
    return 2 * ram;
}

/* See cpu_should_bind. */
static void bind_threads(struct pool *p)
{
    cpu_set_t *cores = mem_alloc(MEM_CAT_BASE, CPU_THREADS_MAX * sizeof(*cores));
    int n = cpu_cores(cores, CPU_THREADS_MAX);
    if (cpu_should_bind(pool_threads(p), cores, n))
        pool_bind(p, cores);
    mem_free(MEM_CAT_BASE, cores);
}

enum err_code cpu_backend_open(const struct cpu_options *opt, struct backend **out, struct err *err)
{
    struct cpu_options o = opt ? *opt : (struct cpu_options){ 0 };
    if (o.threads < 0 || o.threads > CPU_THREADS_MAX)
        return err_set(err, ERR_INVALID, "threads: %d is not in 1..%d", o.threads, CPU_THREADS_MAX);
    int threads = o.threads ? o.threads : cpu_threads_default();
    struct backend *be = mem_alloc(MEM_CAT_BASE, sizeof(*be));
    struct cpu_state *st = mem_alloc(MEM_CAT_BASE, sizeof(*st));
    be->ops = &cpu_ops;
    be->state = st;
    st->level = cpu_level_resolve(o.level);
    cpu_dispatch(st, st->level);
    enum err_code rc = pool_new(threads, &st->pool, err);
    if (rc == ERR_OK) {
        bind_threads(st->pool);
        st->scratch = mem_try_big(MEM_CAT_SCRATCH, (size_t)threads * sizeof(*st->scratch));
        st->rope_cache = rope_cache_new();
        if (!st->scratch || !st->rope_cache || !cpu_attention_init(st, threads) ||
            !cpu_state_init(st, threads) ||
            !mem_region_init(&st->region, MEM_CAT_WEIGHTS, region_bytes()))
            rc = err_set(err, ERR_NOMEM, "no memory for the scratch of %d threads", threads);
    }
    if (rc != ERR_OK) {
        cpu_close(be);
        return rc;
    }
    *out = be;
    return ERR_OK;
}
