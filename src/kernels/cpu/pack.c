/* Packed weights: repacking a matrix by all threads (pack_tile.c), and reading one back. */
#include "kernels/cpu/cpu_int.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

#include <string.h>

static enum lin_kind kind_of(enum dtype type)
{
    switch (type) {
    case DTYPE_Q4_0:
        return LIN_KIND_Q4_0;
    case DTYPE_Q4_1:
        return LIN_KIND_Q4_1;
    case DTYPE_Q5_0:
        return LIN_KIND_Q5_0;
    case DTYPE_Q5_1:
        return LIN_KIND_Q5_1;
    case DTYPE_Q8_0:
        return LIN_KIND_Q8_0;
    case DTYPE_Q4_K:
        return LIN_KIND_Q4_K;
    case DTYPE_Q5_K:
        return LIN_KIND_Q5_K;
    case DTYPE_Q6_K:
        return LIN_KIND_Q6_K;
    case DTYPE_F16:
        return LIN_KIND_F16;
    case DTYPE_BF16:
        return LIN_KIND_BF16;
    case DTYPE_F32:
        return LIN_KIND_F32;
    default:
        return LIN_KIND_COUNT;
    }
}

bool cpu_supports(const struct backend *be, enum dtype type)
{
    return kind_of(type) != LIN_KIND_COUNT;
}

struct pack_job {
    const struct weight_source *src;
    struct weight *w;
    size_t row_bytes;
    const uint8_t *
        tail; /* the last tile's rows where they are fewer than 16, filled up with zero bytes; else NULL */
};

static void pack_tile(void *ctx, int64_t tile, int thread)
{
    const struct pack_job *j = ctx;
    const struct weight *w = j->w;
    const uint8_t *rows = j->src->data + (size_t)(tile * TILE) * j->row_bytes;
    cpu_pack_tile(w->kind, w->data + (size_t)tile * w->tile_bytes,
                  j->tail && tile == w->n_tiles - 1 ? j->tail : rows, j->row_bytes);
}

/* The rows past the last whole tile, as one tile's. NULL: no memory. */
static uint8_t *pack_tail(const struct weight_source *src, size_t row_bytes)
{
    size_t n = (size_t)(src->out % TILE);
    uint8_t *p = mem_try_array(MEM_CAT_WEIGHTS, TILE, row_bytes);
    if (p)
        memcpy(p, src->data + (size_t)(src->out / TILE * TILE) * row_bytes, n * row_bytes);
    return p;
}

static size_t tile_bytes_of(enum lin_kind k, int64_t in)
{
    if (k >= LIN_KIND_GROUPED)
        return (size_t)in * TILE * (k == LIN_KIND_F32 ? 4 : 2);
    int64_t per = (int64_t)1 << lin_log2_groups(k);
    int64_t blocks = (in / GROUP + per - 1) / per;
    return (size_t)blocks * (size_t)lin_block_bytes(k);
}

enum err_code cpu_pack(struct backend *be, const struct weight_source *src, struct weight **out,
                       struct err *err)
{
    struct cpu_state *st = cpu_of(be);
    const struct dtype_info *info = dtype_info(src->type);
    if (!cpu_supports(be, src->type))
        return err_set(err, ERR_UNSUPPORTED, "%s: this build does not compute with type %s",
                       src->name, info->name);
    if (src->in <= 0 || src->out <= 0 || src->in % info->block_elems != 0)
        return err_set(err, ERR_INVALID, "%s: shape [%lld][%lld] does not fit type %s", src->name,
                       (long long)src->out, (long long)src->in, info->name);
    enum lin_kind kind = kind_of(src->type);
    size_t tile_bytes = tile_bytes_of(kind, src->in);
    int64_t n_tiles = (src->out + TILE - 1) / TILE;
    size_t bytes = tile_bytes * (size_t)n_tiles;
    size_t row_bytes = dtype_row_bytes(src->type, src->in);
    uint8_t *tail = src->out % TILE ? pack_tail(src, row_bytes) : NULL;
    uint8_t *data = mem_region_take(&st->region, bytes);
    if (!data || (src->out % TILE && !tail) || !cpu_linear_reserve(st, src->in)) {
        mem_free(MEM_CAT_WEIGHTS, tail);
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu bytes", src->name, bytes);
    }
    struct weight *w = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*w));
    *w = (struct weight){
        .shape = { src->type, src->out, src->in, bytes },
        .kind = kind,
        .n_groups = src->in / GROUP,
        .n_tiles = n_tiles,
        .tile_bytes = tile_bytes,
        .data = data,
    };
    struct pack_job job = { src, w, row_bytes, tail };
    pool_run(st->pool, pack_tile, &job, n_tiles);
    mem_free(MEM_CAT_WEIGHTS, tail);
    if (src->drop)
        src->drop(src->drop_ctx, src->data, job.row_bytes * (size_t)src->out);
    st->n_weights++;
    *out = w;
    return ERR_OK;
}

void cpu_unpack_free(struct backend *be, struct weight *w)
{
    struct cpu_state *st = cpu_of(be);
    if (!w)
        return;
    mem_free(MEM_CAT_WEIGHTS, w);
    if (--st->n_weights == 0)
        mem_region_reset(&st->region);
}

const struct weight_shape *cpu_shape(const struct weight *w)
{
    return &w->shape;
}

/* Code of element k of row r in group g, without its bias. */
static int tile_code(const uint8_t *codes, enum lin_kind kind, int r, int k)
{
    int at = 4 * r + k % 4, j = k / 4;
    if (kind == LIN_KIND_Q8_0)
        return codes[64 * j + at] - 128;
    int c = codes[64 * (j % 4) + at] >> 4 * (k / 16) & 15;
    if (kind == LIN_KIND_Q5_0 || kind == LIN_KIND_Q5_1 || kind == LIN_KIND_Q5_K)
        c |= (codes[256 + at] >> j & 1) << 4;
    if (kind == LIN_KIND_Q6_K)
        c |= (codes[256 + 64 * (k / 16) + at] >> 2 * (j % 4) & 3) << 4;
    return c - lin_bias(kind);
}

void cpu_weight_group(const struct weight *w, const uint8_t *tile, int r, int64_t g,
                      struct group *out)
{
    enum lin_kind k = w->kind;
    int sub = (int)(g & ((1 << lin_log2_groups(k)) - 1));
    const uint8_t *b = tile + (g >> lin_log2_groups(k)) * lin_block_bytes(k);
    const uint8_t *codes = b + lin_code_offset(k) + sub * lin_code_bytes(k);
    *out = (struct group){ .s = { 1, 1 }, .o = { 1, 1 } };
    uint16_t d, m;
    bool two = lin_log2_groups(k) == 1; /* the block holds two groups' d, and no m */
    memcpy(&d, b + 2 * r + (two ? 32 * sub : 0), 2);
    memcpy(&m, b + 32 + 2 * r, 2);
    out->d = f16_to_f32(d);
    if (lin_is_affine(k))
        out->m = f16_to_f32(m);
    if (k == LIN_KIND_Q4_K || k == LIN_KIND_Q5_K) {
        out->d *= (float)b[64 + 32 * sub + r];
        out->m *= (float)b[80 + 32 * sub + r];
    }
    if (k == LIN_KIND_Q6_K) {
        out->s[0] = (int8_t)b[32 + 32 * sub + r];
        out->s[1] = (int8_t)b[48 + 32 * sub + r];
    }
    for (int i = 0; i < GROUP; i++)
        out->c[i] = (int8_t)tile_code(codes, k, r, i);
}

void cpu_weight_row(const struct weight *w, int64_t row, float *out)
{
    const uint8_t *tile = w->data + (size_t)(row / TILE) * w->tile_bytes;
    int r = (int)(row % TILE);
    if (w->kind < LIN_KIND_GROUPED) {
        for (int64_t g = 0; g < w->n_groups; g++) {
            struct group x;
            cpu_weight_group(w, tile, r, g, &x);
            for (int i = 0; i < GROUP; i++)
                out[g * GROUP + i] = group_value(&x, i);
        }
        return;
    }
    for (int64_t i = 0; i < w->shape.in; i++) {
        uint16_t h;
        if (w->kind == LIN_KIND_F32) {
            memcpy(&out[i], tile + (i * TILE + r) * 4, 4);
            continue;
        }
        memcpy(&h, tile + (i * TILE + r) * 2, 2);
        out[i] = w->kind == LIN_KIND_F16 ? f16_to_f32(h) : bf16_to_f32(h);
    }
}
