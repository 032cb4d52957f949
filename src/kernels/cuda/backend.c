/* The CUDA backend's device: finding it, memory, order, faults. */
#include "kernels/cuda/cuda_int.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#define ARCH_MIN 80

bool cuda_is_built(void)
{
    return true;
}

enum err_code cuda_device_find(int device, struct cuda_device *out, struct err *err)
{
    int n = 0;
    struct cudaDeviceProp prop;
    cudaError_t e = cudaGetDeviceCount(&n);
    size_t free_bytes = 0, bytes = 0;
    if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0))
        return err_set(err, ERR_NOT_FOUND, "no NVIDIA GPU is here; --device cpu runs without");
    if (e != cudaSuccess)
        return err_set(err, ERR_NOT_FOUND,
                       "no NVIDIA GPU can be used: %s (is the driver installed?); --device cpu "
                       "runs without",
                       cudaGetErrorString(e));
    if (device < 0 || device >= n)
        return err_set(err, ERR_NOT_FOUND, "there is no GPU %d: %d are here, counted from 0",
                       device, n);
    e = cudaGetDeviceProperties(&prop, device);
    if (e == cudaSuccess)
        e = cudaSetDevice(device);
    if (e == cudaSuccess)
        e = cudaMemGetInfo(&free_bytes, &bytes);
    if (e != cudaSuccess)
        return err_set(err, ERR_IO, "GPU %d: %s", device, cudaGetErrorString(e));
    snprintf(out->name, sizeof(out->name), "%.127s", prop.name);
    out->major = prop.major;
    out->minor = prop.minor;
    out->free_bytes = (int64_t)free_bytes;
    out->bytes = (int64_t)bytes;
    if (prop.major * 10 + prop.minor < ARCH_MIN)
        return err_set(err, ERR_UNSUPPORTED,
                       "GPU %d, %s: compute capability %d.%d, at least 8.0 is needed", device,
                       prop.name, prop.major, prop.minor);
    return ERR_OK;
}

/* --- memory --- */

void *cuda_take(struct cuda_state *st, enum mem_cat cat, size_t bytes, const char *what,
                struct err *err)
{
    void *p = NULL;
    cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    if (e == cudaSuccess) /* in the stream's order, as everything that touches the memory */
        e = cudaMemsetAsync(p, 0, bytes, (cudaStream_t)st->stream);
    if (e == cudaSuccess) {
        st->bytes += (int64_t)bytes;
        mem_count_device(cat, (int64_t)bytes);
        return p;
    }
    if (p)
        (void)cudaFree(p);
    if (e != cudaErrorMemoryAllocation) {
        cuda_fault(st, what, (int)e);
        err_set(err, ERR_IO, "%s", st->fault.text);
        return NULL;
    }
    size_t free_bytes = 0, all = 0;
    (void)cudaGetLastError(); /* a refused allocation is not a fault of the device */
    (void)cudaMemGetInfo(&free_bytes, &all);
    err_set(err, ERR_NOMEM,
            "%s: no memory for %zu MiB on GPU %d: %zu of %zu MiB are free, %lld are ours", what,
            bytes >> 20, st->device, free_bytes >> 20, all >> 20, (long long)(st->bytes >> 20));
    return NULL;
}

void cuda_give(struct cuda_state *st, enum mem_cat cat, void *p, size_t bytes)
{
    if (!p)
        return;
    (void)cudaFree(p);
    st->bytes -= (int64_t)bytes;
    mem_count_device(cat, -(int64_t)bytes);
}

static int64_t cuda_free_bytes(const struct backend *be)
{
    size_t free_bytes = 0, all = 0;
    return cudaMemGetInfo(&free_bytes, &all) == cudaSuccess ? (int64_t)free_bytes : 0;
}

static size_t xq_bytes(int64_t in)
{
    size_t cols = (size_t)((in + CU_UNIT - 1) / CU_UNIT * CU_UNIT);
    return (cols * CUDA_ROW_CHUNK + (size_t)CUDA_ROW_SLACK * CU_UNIT) * sizeof(uint16_t);
}

enum err_code cuda_reserve_rows(struct cuda_state *st, int64_t in, struct err *err)
{
    if (in <= st->xq_in)
        return ERR_OK;
    size_t bytes = xq_bytes(in);
    uint16_t *xq[2] = { cuda_take(st, MEM_CAT_SCRATCH, bytes, "activations", err), NULL };
    if (xq[0])
        xq[1] = cuda_take(st, MEM_CAT_SCRATCH, bytes, "activations", err);
    if (!xq[1]) {
        cuda_give(st, MEM_CAT_SCRATCH, xq[0], bytes);
        return ERR_NOMEM;
    }
    cuda_sync(st);
    for (int i = 0; i < 2; i++) {
        cuda_give(st, MEM_CAT_SCRATCH, st->xq[i], xq_bytes(st->xq_in));
        st->xq[i] = xq[i];
    }
    st->xq_in = in;
    return ERR_OK;
}

static void *cuda_alloc(struct backend *be, enum mem_cat cat, size_t bytes)
{
    return cuda_take(cuda_of(be), cat, bytes, "memory", NULL);
}

static void cuda_free(struct backend *be, enum mem_cat cat, void *p, size_t bytes)
{
    cuda_sync(cuda_of(be));
    cuda_give(cuda_of(be), cat, p, bytes);
}

/* In the stream and to its end: a copy that is none of the stream's may go on after cudaMemcpy has returned, and lands on what the stream's
 * kernels have written meanwhile (small ones from memory that is not pinned; seen where another process kept the GPU busy). */
int cuda_transfer(struct cuda_state *st, void *dst, const void *src, size_t bytes, int kind)
{
    cudaStream_t s = (cudaStream_t)st->stream;
    int e = (int)cudaMemcpyAsync(dst, src, bytes, (enum cudaMemcpyKind)kind, s);
    return e ? e : (int)cudaStreamSynchronize(s);
}

static void cuda_upload(struct backend *be, void *dst, const void *host, size_t bytes)
{
    struct cuda_state *st = cuda_of(be);
    cuda_sync(st);
    cuda_fault(st, "upload", cuda_transfer(st, dst, host, bytes, cudaMemcpyHostToDevice));
}

static void cuda_download(struct backend *be, void *host, const void *src, size_t bytes)
{
    struct cuda_state *st = cuda_of(be);
    cuda_sync(st);
    cuda_fault(st, "download", cuda_transfer(st, host, src, bytes, cudaMemcpyDeviceToHost));
}

/* The flags of n rows and the best ranks, in one copy, and what short lists there are in another. */
static void fetch_out(struct cuda_state *st, int n)
{
    cudaStream_t s = (cudaStream_t)st->stream;
    size_t bytes = st->best_to ? st->best_at + (size_t)st->n_best * CU_BEST * sizeof(uint64_t)
                               : (size_t)n * sizeof(*st->flags);
    if (bytes > 0)
        cuda_fault(
            st, "row flags",
            (int)cudaMemcpyAsync(st->host_flags, st->flags, bytes, cudaMemcpyDeviceToHost, s));
    if (st->lists_to)
        cuda_fault(st, "short lists",
                   (int)cudaMemcpyAsync(st->lists_to, st->lists,
                                        (size_t)st->n_lists * sizeof(*st->lists),
                                        cudaMemcpyDeviceToHost, s));
    st->lists_to = NULL;
}

static void give_best(struct cuda_state *st)
{
    const uint64_t *rank = (const uint64_t *)((const uint8_t *)st->host_flags + st->best_at);
    for (int t = 0; st->best_to && t < st->n_best; t++) {
        uint64_t most = 0;
        for (int i = 0; i < CU_BEST; i++, rank++)
            most = *rank > most ? *rank : most;
        st->best_to[t] = most == CU_BEST_ODD ? -1 : (int32_t) ~(uint32_t)most;
    }
    st->best_to = NULL;
}

static void cuda_best(struct backend *be, struct tensor x, int32_t *best)
{
    struct cuda_state *st = cuda_of(be);
    struct cu_best c;
    BUG_ON(st->best_to != NULL); /* one at a time */
    memset(&c, 0, sizeof(c));
    st->best_at = CUDA_ALIGN((size_t)st->n_rows * sizeof(*st->flags));
    c.x = (struct cu_tensor){ x.data, x.stride, (int)x.rows, (int)x.cols };
    c.best = (unsigned long long *)((uint8_t *)st->flags + st->best_at);
    cuda_add(st, CUDA_OP_BEST, &c, sizeof(c));
    st->best_to = best;
    st->n_best = (int)x.rows;
}

static void cuda_shortlist(struct backend *be, struct tensor x, const float *t,
                           struct shortlist *lists)
{
    struct cuda_state *st = cuda_of(be);
    void *host;
    struct cu_shortlist c;
    BUG_ON(!st->best_to || st->n_best != x.rows || st->lists_to); /* best's ranks */
    cuda_room(st);
    memset(&c, 0, sizeof(c));
    c.x = cu_of(x);
    c.best = (unsigned long long *)((uint8_t *)st->flags + st->best_at);
    c.lists = st->lists;
    c.rows = cuda_put(st, NULL, (size_t)x.rows * sizeof(*c.rows), &host);
    struct cu_shortlist_row *rows = host;
    st->n_lists = 0;
    for (int64_t i = 0; i < x.rows; i++)
        rows[i] = (struct cu_shortlist_row){ t[i], t[i] > 0 ? st->n_lists++ : -1 };
    BUG_ON(st->n_lists > BACKEND_SHORTLISTS_MAX);
    cuda_add(st, CUDA_OP_SHORTLIST, &c, sizeof(c));
    st->lists_to = st->n_lists > 0 ? lists : NULL;
}

/* Whether the error was one that stays. */
static bool is_lost(struct cuda_state *st)
{
    (void)cudaGetLastError();
    cudaError_t e = cudaMemsetAsync(st->flags, 0, sizeof(*st->flags), (cudaStream_t)st->stream);
    return e != cudaSuccess || cudaStreamSynchronize((cudaStream_t)st->stream) != cudaSuccess;
}

static void cuda_start(struct backend *be)
{
    cuda_flush(cuda_of(be));
}

static enum err_code cuda_wait(struct backend *be, struct err *err)
{
    struct cuda_state *st = cuda_of(be);
    cuda_flush(st);
    fetch_out(st, 0);
    cuda_sync(st);
    give_best(st);
    if (!st->has_failed)
        return ERR_OK;
    st->has_failed = false;
    return err_set(err, is_lost(st) ? ERR_LOST : ERR_IO, "%s", st->fault.text);
}

static void *cuda_host_alloc(struct backend *be, size_t bytes)
{
    void *p = NULL;
    if (cudaMallocHost(&p, bytes) == cudaSuccess)
        return p;
    (void)cudaGetLastError();
    return NULL;
}

static void cuda_host_free(struct backend *be, void *p)
{
    (void)cudaFreeHost(p);
}

static void cuda_begin(struct backend *be, int n_rows)
{
    struct cuda_state *st = cuda_of(be);
    struct cu_clear c = { .flags = st->flags, .n = n_rows };
    st->n_rows = n_rows;
    cuda_add(st, CUDA_OP_CLEAR, &c, sizeof(c));
}

static void cuda_failed(struct backend *be, uint8_t *flags)
{
    struct cuda_state *st = cuda_of(be);
    cuda_flush(st);
    fetch_out(st, st->n_rows);
    cuda_sync(st);
    give_best(st);
    for (int t = 0; t < st->n_rows; t++)
        flags[t] |= st->has_failed || st->host_flags[t];
}

/* --- open and close --- */

/* All that the state holds; what frees it in a lost context fails, which does not matter. */
static void cuda_release(struct cuda_state *st)
{
    if (st->stream)
        (void)cudaStreamSynchronize((cudaStream_t)st->stream);
    cuda_record_release(st);
    cuda_moe_release(st);
    cuda_give(st, MEM_CAT_KV, st->expanded, st->expanded_bytes);
    for (int i = 0; i < CUDA_TABLES; i++)
        cuda_give(st, MEM_CAT_SCRATCH, st->tables[i].data, st->tables[i].bytes);
    cuda_give(st, MEM_CAT_SCRATCH, st->flags, CUDA_OUT_BYTES);
    cuda_give(st, MEM_CAT_SCRATCH, st->lists, CUDA_LISTS_BYTES);
    for (int i = 0; i < 2; i++)
        cuda_give(st, MEM_CAT_SCRATCH, st->xq[i], xq_bytes(st->xq_in));
    cuda_give(st, MEM_CAT_SCRATCH, st->partial, CUDA_PARTIAL);
    (void)cudaFreeHost(st->host_flags);
    if (st->stream)
        (void)cudaStreamDestroy((cudaStream_t)st->stream);
}

static void cuda_close(struct backend *be)
{
    cuda_release(cuda_of(be));
    mem_free(MEM_CAT_BASE, (void *)be->ops);
    mem_free(MEM_CAT_BASE, cuda_of(be));
    mem_free(MEM_CAT_BASE, be);
}

static void cuda_exp_scaled(struct backend *be, float *y, const float *x, int64_t n, float max,
                            float t)
{
    struct backend *host = cuda_of(be)->host;
    host->ops->exp_scaled(host, y, x, n, max, t);
}

static int64_t cuda_argmax(struct backend *be, const float *x, int64_t n, bool *finite)
{
    struct backend *host = cuda_of(be)->host;
    return host->ops->argmax(host, x, n, finite);
}

static int cuda_threads(const struct backend *be)
{
    struct backend *host = cuda_of(be)->host;
    return host->ops->threads(host);
}

static void cuda_parallel(struct backend *be, void (*fn)(void *ctx, int64_t i), void *ctx,
                          int64_t n)
{
    struct backend *host = cuda_of(be)->host;
    host->ops->parallel(host, fn, ctx, n);
}

static enum err_code cuda_init(struct cuda_state *st, struct err *err)
{
    cudaStream_t stream = NULL;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ||
        cudaMallocHost((void **)&st->host_flags, CUDA_OUT_BYTES) ||
        cudaDeviceGetAttribute(&st->n_sm, cudaDevAttrMultiProcessorCount, st->device))
        return err_set(err, ERR_IO, "GPU %d: %s", st->device,
                       cudaGetErrorString(cudaGetLastError()));
    st->stream = stream;
    for (int i = 0; i < CUDA_TABLES; i++) {
        st->tables[i].data = cuda_take(st, MEM_CAT_SCRATCH, CUDA_TABLE_BYTES, "step buffers", err);
        st->tables[i].bytes = st->tables[i].data ? CUDA_TABLE_BYTES : 0;
        if (!st->tables[i].data)
            return ERR_NOMEM;
    }
    st->flags = cuda_take(st, MEM_CAT_SCRATCH, CUDA_OUT_BYTES, "step buffers", err);
    st->lists = cuda_take(st, MEM_CAT_SCRATCH, CUDA_LISTS_BYTES, "step buffers", err);
    st->partial = cuda_take(st, MEM_CAT_SCRATCH, CUDA_PARTIAL, "step buffers", err);
    return st->flags && st->lists && st->partial ? cuda_record_init(st, err) : ERR_NOMEM;
}

/* A sticky error (an address that is none, a hardware fault) stays with the context, and every call says it again. cudaDeviceReset destroys
 * it; whether the process gets another is the driver's affair. After a bad address 580.159 gives it none: the reset succeeds and all that
 * follows says that the device is busy or unavailable, for as long as was waited (12 s); so after cuDevicePrimaryCtxReset. A process
 * that is started by exec in this one's place has it at once (cli/again.h). */
static enum err_code cuda_reset(struct backend *be, struct err *err)
{
    struct cuda_state *st = cuda_of(be);
    struct cuda_device dev;
    struct cuda_state fresh = {
        .host = st->host, .is_plain = st->is_plain, .device = st->device, .arch = st->arch
    };
    memcpy(fresh.numerics, st->numerics, sizeof(fresh.numerics));
    cuda_release(st);
    *st = fresh;
    cudaError_t e = cudaDeviceReset();
    (void)cudaGetLastError();
    enum err_code code = cuda_device_find(st->device, &dev, err);
    if (code && e != cudaSuccess)
        return err_set(err, ERR_IO, "GPU %d cannot be reset: %s", st->device,
                       cudaGetErrorString(e));
    return code ? code : cuda_init(st, err);
}

/* Each backend has its own table: what the host backend lends is in it or not. */
static const struct backend_ops *cuda_table(struct cuda_state *st, struct backend *host,
                                            bool is_plain)
{
    struct backend_ops *ops = mem_alloc(MEM_CAT_BASE, sizeof(*ops));
    *ops = cuda_ops_base;
    snprintf(st->numerics, sizeof(st->numerics), "cuda-%d-sm_%d", CUDA_NUMERICS, st->arch);
    ops->numerics = st->numerics;
    ops->alloc = cuda_alloc;
    ops->free = cuda_free;
    ops->free_bytes = cuda_free_bytes;
    ops->upload = cuda_upload;
    ops->download = cuda_download;
    ops->start = cuda_start;
    ops->wait = cuda_wait;
    ops->reset = cuda_reset;
    ops->close = cuda_close;
    ops->begin = cuda_begin;
    ops->best = cuda_best;
    if (!is_plain) /* the oracle looks at all logits */
        ops->shortlist = cuda_shortlist;
    ops->host_alloc = cuda_host_alloc;
    ops->host_free = cuda_host_free;
    ops->failed = cuda_failed;
    if (host && host->ops->exp_scaled)
        ops->exp_scaled = cuda_exp_scaled;
    if (host && host->ops->argmax)
        ops->argmax = cuda_argmax;
    if (host && host->ops->threads && host->ops->parallel) {
        ops->threads = cuda_threads;
        ops->parallel = cuda_parallel;
    }
    return ops;
}

/* A build has kernels for the devices that it was asked for. */
static enum err_code cuda_check_kernels(struct cuda_state *st, const struct cuda_device *dev,
                                        struct err *err)
{
    struct cu_clear c = { .flags = st->flags, .n = 1 };
    int e = cu_launch_clear(&c, st->stream);
    if (!e)
        e = (int)cudaStreamSynchronize((cudaStream_t)st->stream);
    if (e == (int)cudaErrorNoKernelImageForDevice)
        return err_set(err, ERR_UNSUPPORTED,
                       "GPU %d, %s: this build has no kernels for compute capability %d.%d: build "
                       "with make CUDA=1 CUDA_ARCHS=all",
                       st->device, dev->name, dev->major, dev->minor);
    return e ? err_set(err, ERR_IO, "GPU %d: %s", st->device, cudaGetErrorString((cudaError_t)e))
             : ERR_OK;
}

enum err_code cuda_backend_open(const struct cuda_options *o, struct backend **out, struct err *err)
{
    struct cuda_device dev;
    enum err_code code = cuda_device_find(o->device, &dev, err);
    if (code)
        return code;
    struct backend *be = mem_alloc(MEM_CAT_BASE, sizeof(*be));
    struct cuda_state *st = mem_alloc(MEM_CAT_BASE, sizeof(*st));
    be->state = st;
    st->arch = dev.major * 10 + dev.minor;
    be->ops = cuda_table(st, o->host, o->is_plain);
    st->host = o->host;
    st->device = o->device;
    st->is_plain = o->is_plain;
    code = cuda_init(st, err);
    if (!code)
        code = cuda_check_kernels(st, &dev, err);
    if (code) {
        cuda_close(be);
        return code;
    }
    *out = be;
    return ERR_OK;
}
