/* Commands: recorded by the ops, run at a flush; lists that come again as CUDA graphs; host arrays that commands read. */
#include "kernels/cuda/cuda_int.h"

#include <cuda_runtime_api.h>
#include <string.h>

#define GRAPH_BYTES_MIN 2048 /* of commands: shorter lists are launched one by one */
#define ARRAYS_BYTES    (CUDA_PAGES_BYTES + CUDA_ARENA_BYTES)

struct command {
    uint32_t op, bytes; /* of the parameters; rounded up to 16 they follow */
    uint64_t pad;
};

typedef int launch_fn(const void *params, cu_stream s);

#define LAUNCHER(name)                                     \
    static int run_##name(const void *params, cu_stream s) \
    {                                                      \
        return cu_launch_##name(params, s);                \
    }
LAUNCHER(clear)
LAUNCHER(embed)
LAUNCHER(quantise)
LAUNCHER(linear)
LAUNCHER(linear_wgmma)
LAUNCHER(linear_ring)
LAUNCHER(linear_plain)
LAUNCHER(elementwise)
LAUNCHER(norm)
LAUNCHER(row_norm)
LAUNCHER(glu)
LAUNCHER(rope_store)
LAUNCHER(rope_kvq_store)
LAUNCHER(rope_table)
LAUNCHER(rope)
LAUNCHER(kv_store)
LAUNCHER(kvq_store)
LAUNCHER(kvq_expand)
LAUNCHER(attention)
LAUNCHER(attention_plain)
LAUNCHER(best)
LAUNCHER(shortlist)
LAUNCHER(route)
LAUNCHER(group)
LAUNCHER(experts)
LAUNCHER(combine)
LAUNCHER(conv)
LAUNCHER(delta_gates)
LAUNCHER(delta)

static const struct {
    launch_fn *run;
    const char *name;
} launchers[CUDA_OP_COUNT] = {
    [CUDA_OP_CLEAR] = { run_clear, "clear" },
    [CUDA_OP_EMBED] = { run_embed, "embed" },
    [CUDA_OP_QUANTISE] = { run_quantise, "activations to bf16" },
    [CUDA_OP_LINEAR] = { run_linear, "linear" },
    [CUDA_OP_LINEAR_WGMMA] = { run_linear_wgmma, "linear (wgmma)" },
    [CUDA_OP_LINEAR_RING] = { run_linear_ring, "linear (ring)" },
    [CUDA_OP_LINEAR_PLAIN] = { run_linear_plain, "linear (plain)" },
    [CUDA_OP_ELEMENTWISE] = { run_elementwise, "element-wise" },
    [CUDA_OP_NORM] = { run_norm, "norm" },
    [CUDA_OP_ROW_NORM] = { run_row_norm, "add and norm" },
    [CUDA_OP_GLU] = { run_glu, "glu" },
    [CUDA_OP_ROPE_STORE] = { run_rope_store, "rope and kv_store" },
    [CUDA_OP_ROPE_KVQ_STORE] = { run_rope_kvq_store, "rope and kv_store (quantised)" },
    [CUDA_OP_ROPE_TABLE] = { run_rope_table, "rope table" },
    [CUDA_OP_ROPE] = { run_rope, "rope" },
    [CUDA_OP_KV_STORE] = { run_kv_store, "kv_store" },
    [CUDA_OP_KVQ_STORE] = { run_kvq_store, "kv_store (quantised)" },
    [CUDA_OP_KVQ_EXPAND] = { run_kvq_expand, "quantised pages" },
    [CUDA_OP_ATTENTION] = { run_attention, "attention" },
    [CUDA_OP_ATTENTION_PLAIN] = { run_attention_plain, "attention (plain)" },
    [CUDA_OP_BEST] = { run_best, "best" },
    [CUDA_OP_SHORTLIST] = { run_shortlist, "short lists" },
    [CUDA_OP_ROUTE] = { run_route, "choice of experts" },
    [CUDA_OP_GROUP] = { run_group, "rows by expert" },
    [CUDA_OP_EXPERTS] = { run_experts, "experts" },
    [CUDA_OP_COMBINE] = { run_combine, "sum of experts" },
    [CUDA_OP_CONV] = { run_conv, "conv" },
    [CUDA_OP_DELTA_GATES] = { run_delta_gates, "delta gates" },
    [CUDA_OP_DELTA] = { run_delta, "delta rule" },
};

void cuda_fault(struct cuda_state *st, const char *what, int error)
{
    if (!error || st->has_failed)
        return;
    st->has_failed = true;
    err_set(&st->fault, ERR_IO, "GPU %d, %s: %s", st->device, what,
            cudaGetErrorString((cudaError_t)error));
}

static void forget_last(struct cuda_state *st)
{
    for (int i = 0; i < CUDA_FUSED; i++)
        st->last[i] = SIZE_MAX;
}

enum err_code cuda_record_init(struct cuda_state *st, struct err *err)
{
    forget_last(st);
    st->cmds = mem_try(MEM_CAT_SCRATCH, CUDA_COMMANDS_MAX);
    st->graph_cmds = mem_try_big(MEM_CAT_SCRATCH, CUDA_GRAPH_BYTES);
    st->row_views = mem_try_array(MEM_CAT_SCRATCH, BACKEND_ROWS_MAX + 1, sizeof(*st->row_views));
    bool ok = st->cmds && st->graph_cmds && st->row_views;
    for (int i = 0; i < CUDA_PLANS; i++) {
        st->plans[i].copy =
            mem_try_array(MEM_CAT_SCRATCH, BACKEND_ROWS_MAX, sizeof(*st->plans[i].copy));
        ok = ok && st->plans[i].copy;
    }
    if (!ok || cudaMallocHost((void **)&st->arrays, ARRAYS_BYTES) ||
        cudaMallocHost((void **)&st->staging, CUDA_STAGING))
        return err_set(err, ERR_NOMEM, "GPU %d: no host memory for a step's arrays", st->device);
    st->dev_arrays = cuda_take(st, MEM_CAT_SCRATCH, ARRAYS_BYTES, "step buffers", err);
    if (!st->dev_arrays)
        return ERR_NOMEM;
    st->arena = st->arrays + CUDA_PAGES_BYTES;
    st->dev_arena = st->dev_arrays + CUDA_PAGES_BYTES;
    return ERR_OK;
}

static void graph_drop(struct cuda_graph *g)
{
    if (g->exec)
        (void)cudaGraphExecDestroy((cudaGraphExec_t)g->exec);
    *g = (struct cuda_graph){ 0 };
}

void cuda_record_release(struct cuda_state *st)
{
    for (int i = 0; i < CUDA_GRAPHS; i++)
        graph_drop(&st->graphs[i]);
    for (int i = 0; i < CUDA_PLANS; i++)
        mem_free(MEM_CAT_SCRATCH, st->plans[i].copy);
    mem_free(MEM_CAT_SCRATCH, st->cmds);
    mem_free(MEM_CAT_SCRATCH, st->row_views);
    mem_free_big(MEM_CAT_SCRATCH, st->graph_cmds, CUDA_GRAPH_BYTES);
    (void)cudaFreeHost(st->arrays);
    (void)cudaFreeHost(st->staging);
    cuda_give(st, MEM_CAT_SCRATCH, st->dev_arrays, ARRAYS_BYTES);
}

void cuda_append(struct cuda_state *st, enum cuda_op op, const void *params, size_t n)
{
    if (st->n_cmds + sizeof(struct command) + CUDA_ALIGN(n) > CUDA_COMMANDS_MAX)
        cuda_flush(st);
    struct command c = { .op = (uint32_t)op, .bytes = (uint32_t)n };
    memcpy(st->cmds + st->n_cmds, &c, sizeof(c));
    memset(st->cmds + st->n_cmds + sizeof(c), 0, CUDA_ALIGN(n));
    memcpy(st->cmds + st->n_cmds + sizeof(c), params, n);
    memmove(st->last + 1, st->last, (CUDA_FUSED - 1) * sizeof(*st->last));
    st->last[0] = st->n_cmds;
    st->n_cmds += sizeof(c) + CUDA_ALIGN(n);
}

void *cuda_last(struct cuda_state *st, int i, enum cuda_op op)
{
    struct command c;
    if (st->last[i] == SIZE_MAX)
        return NULL;
    memcpy(&c, st->cmds + st->last[i], sizeof(c));
    return c.op == (uint32_t)op ? st->cmds + st->last[i] + sizeof(c) : NULL;
}

void cuda_drop(struct cuda_state *st, int n)
{
    st->n_cmds = st->last[n - 1];
    for (int i = 0; i < CUDA_FUSED; i++)
        st->last[i] = i + n < CUDA_FUSED ? st->last[i + n] : SIZE_MAX;
}

void cuda_add(struct cuda_state *st, enum cuda_op op, const void *params, size_t n)
{
    if (st->is_plain || !cuda_fuse(st, op, params))
        cuda_append(st, op, params, n);
}

/* --- running --- */

static void run_commands(struct cuda_state *st)
{
    for (size_t at = 0; at < st->n_cmds && !st->has_failed;) {
        struct command c;
        memcpy(&c, st->cmds + at, sizeof(c));
        at += sizeof(c);
        cuda_fault(st, launchers[c.op].name, launchers[c.op].run(st->cmds + at, st->stream));
        at += CUDA_ALIGN(c.bytes);
    }
}

static uint64_t hash_of(const uint8_t *p, size_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t v;
        memcpy(&v, p + i, 8);
        h = (h ^ v) * 1099511628211u;
        h ^= h >> 29;
    }
    return h;
}

static bool graph_is(const struct cuda_state *st, const struct cuda_graph *g)
{
    return g->n == st->n_cmds && memcmp(g->cmds, st->cmds, g->n) == 0;
}

/* The graph of these commands, or NULL. Steps come in turns, so what followed the last one is looked at first. */
static struct cuda_graph *graph_find(struct cuda_state *st, uint64_t *hash)
{
    struct cuda_graph *g = &st->graphs[st->graphs[st->graph_i].next];
    if (graph_is(st, g))
        return g;
    *hash = hash_of(st->cmds, st->n_cmds);
    for (int i = 0; i < CUDA_GRAPHS; i++) {
        g = &st->graphs[i];
        if (g->hash == *hash && graph_is(st, g))
            return g;
    }
    return NULL;
}

/* The graph that these commands get: the oldest one's place, and whatever stood where they are kept now. */
static struct cuda_graph *graph_take(struct cuda_state *st, uint64_t hash)
{
    struct cuda_graph *g = &st->graphs[st->graph_next];
    if (st->graph_at + st->n_cmds > CUDA_GRAPH_BYTES)
        st->graph_at = 0;
    uint8_t *at = st->graph_cmds + st->graph_at;
    graph_drop(g);
    for (int i = 0; i < CUDA_GRAPHS; i++) {
        struct cuda_graph *old = &st->graphs[i];
        if (old->n > 0 && old->cmds < at + st->n_cmds && at < old->cmds + old->n)
            graph_drop(old);
    }
    memcpy(at, st->cmds, st->n_cmds);
    st->graph_at += st->n_cmds;
    st->graph_next = (st->graph_next + 1) % CUDA_GRAPHS;
    g->cmds = at;
    g->n = st->n_cmds;
    g->hash = hash;
    return g;
}

/* Whether commands that have no graph come for the second time. A server that takes prompts makes many lists that never come again:
 * they take no graph from those of its decoding. */
static bool graph_is_due(struct cuda_state *st, uint64_t hash)
{
    uint64_t *seen = &st->seen[hash % CUDA_SEEN];
    bool is_due = *seen == hash;
    *seen = hash;
    return is_due;
}

static void graph_capture(struct cuda_state *st, struct cuda_graph *g)
{
    cudaGraph_t graph = NULL;
    cudaStream_t s = (cudaStream_t)st->stream;
    int e = (int)cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    cuda_fault(st, "capture", e);
    if (e)
        return;
    run_commands(st);
    e = (int)cudaStreamEndCapture(s, &graph);
    if (!e &&
        !st->has_failed) /* what a command that failed has left out would be left out for good */
        e = (int)cudaGraphInstantiate((cudaGraphExec_t *)&g->exec, graph, 0);
    if (graph)
        (void)cudaGraphDestroy(graph);
    if (e == (int)cudaErrorMemoryAllocation)
        (void)cudaGetLastError(); /* no fault: the commands are run one by one */
    else
        cuda_fault(st, "capture", e);
}

/* Bytes of the arena, from `from` on. */
static void send_bytes(struct cuda_state *st, int64_t from, size_t n)
{
    if (n > 0)
        cuda_fault(st, "upload of a step's arrays",
                   (int)cudaMemcpyAsync(st->dev_arena + from, st->arena + from, n,
                                        cudaMemcpyHostToDevice, (cudaStream_t)st->stream));
}

static void send(struct cuda_state *st)
{
    size_t n = st->arena_used - st->arena_sent, m = st->pages_used - st->pages_sent;
    if (st->arena_sent == 0 && st->pages_sent == 0) {
        send_bytes(st, -(int64_t)m, m + n);
    } else {
        send_bytes(st, (int64_t)st->arena_sent, n);
        send_bytes(st, -(int64_t)st->pages_used, m);
    }
    st->arena_sent = st->arena_used;
    st->pages_sent = st->pages_used;
}

/* A list that comes again is a graph from then on. The second time it is run as it is, too: a capture takes long, but not from a device
 * that works meanwhile. */
static void run_as_graph(struct cuda_state *st)
{
    uint64_t hash = 0;
    struct cuda_graph *g = graph_find(st, &hash);
    if (g && g->exec) {
        cuda_fault(st, "step",
                   (int)cudaGraphLaunch((cudaGraphExec_t)g->exec, (cudaStream_t)st->stream));
    } else {
        run_commands(st);
        if (!g && !st->has_failed && graph_is_due(st, hash)) {
            g = graph_take(st, hash);
            graph_capture(st, g);
            if (st->has_failed)
                graph_drop(g);
        }
    }
    if (!g)
        return;
    st->graphs[st->graph_i].next = (int)(g - st->graphs);
    st->graph_i = (int)(g - st->graphs);
}

void cuda_flush(struct cuda_state *st)
{
    st->n_plans = st->n_tables = st->xq_i = 0;
    st->pos_at = NULL;
    forget_last(st);
    for (int i = 0; i < CUDA_TABLES; i++)
        st->tables[i].rows = 0;
    if (st->n_cmds == 0)
        return;
    send(st);
    if (st->is_plain || st->n_cmds < GRAPH_BYTES_MIN)
        run_commands(st);
    else if (!st->has_failed) /* since the last wait: nothing that follows is of use */
        run_as_graph(st);
    st->n_cmds = 0;
}

void cuda_sync(struct cuda_state *st)
{
    cuda_flush(st);
    cuda_fault(st, "step", (int)cudaStreamSynchronize((cudaStream_t)st->stream));
    st->arena_used = st->arena_sent = 0;
    st->pages_used = st->pages_sent = 0;
}
