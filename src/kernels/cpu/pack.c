/* Repacking of weights: from rows of blocks to tiles of 16 rows (layout in cpu_int.h), by all threads, 32-bit words at a time.
 *
 * Four elements of a row are the unit of every code vector, and the formats' own bytes hold them side by side, so a word of the
 * source becomes a word of the tile with a few masks and shifts. */
#include "kernels/cpu/cpu_int.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

#include <string.h>

static uint32_t load32(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}

/* Word j of row r in the code vectors at codes. */
static void put32(uint8_t *codes, int j, int r, uint32_t u)
{
    memcpy(codes + 64 * j + 4 * r, &u, 4);
}

static void put16(uint8_t *at, int r, uint16_t u)
{
    memcpy(at + 2 * r, &u, 2);
}

/* Bits 0..3 of x to bit 0 of four bytes. */
static uint32_t spread4(uint32_t x)
{
    return ((x & 15) * 0x00204081u) & 0x01010101u;
}

/* 16 bytes of the file's nibble order, which is the tile's. */
static void pack_nibbles(uint8_t *codes, int r, const uint8_t *qs)
{
    for (int j = 0; j < 4; j++)
        put32(codes, j, r, load32(qs + 4 * j));
}

static void pack_fifth(uint8_t *codes, int r, uint32_t qh)
{
    uint32_t u = 0;
    for (int j = 0; j < 8; j++)
        u |= spread4(qh >> 4 * j) << j;
    put32(codes, 4, r, u);
}

/* Sub-block j of a K block's 4-bit codes: 32 bytes, the low or the high nibble of each. */
static void pack_nibbles_k(uint8_t *codes, int r, const uint8_t *qs, int shift)
{
    for (int j = 0; j < 4; j++) {
        uint32_t lo = load32(qs + 4 * j) >> shift & 0x0F0F0F0Fu;
        uint32_t hi = load32(qs + 16 + 4 * j) >> shift & 0x0F0F0F0Fu;
        put32(codes, j, r, lo | hi << 4);
    }
}

typedef void pack_row_fn(uint8_t *tile, int r, const uint8_t *row, int64_t n_groups);

static uint8_t *block_of(uint8_t *tile, enum lin_kind k, int64_t g)
{
    return tile + (g >> lin_log2_groups(k)) * lin_block_bytes(k);
}

static uint8_t *codes_of(uint8_t *tile, enum lin_kind k, int64_t g)
{
    int sub = (int)(g & ((1 << lin_log2_groups(k)) - 1));
    return block_of(tile, k, g) + lin_code_offset(k) + sub * lin_code_bytes(k);
}

static void pack_q4_0(uint8_t *tile, int r, const uint8_t *row, int64_t n_groups)
{
    const struct block_q4_0 *b = (const struct block_q4_0 *)row;
    for (int64_t g = 0; g < n_groups; g++) {
        put16(block_of(tile, LIN_KIND_Q4_0, g) + 32 * (g & 1), r, b[g].d);
        pack_nibbles(codes_of(tile, LIN_KIND_Q4_0, g), r, b[g].qs);
    }
}

static void pack_q4_1(uint8_t *tile, int r, const uint8_t *row, int64_t n_groups)
{
    const struct block_q4_1 *b = (const struct block_q4_1 *)row;
    for (int64_t g = 0; g < n_groups; g++) {
        uint8_t *at = block_of(tile, LIN_KIND_Q4_1, g);
        put16(at, r, b[g].d);
        put16(at + 32, r, b[g].m);
        pack_nibbles(at + 64, r, b[g].qs);
    }
}

static void pack_q5_0(uint8_t *tile, int r, const uint8_t *row, int64_t n_groups)
{
    const struct block_q5_0 *b = (const struct block_q5_0 *)row;
    for (int64_t g = 0; g < n_groups; g++) {
        uint8_t *codes = codes_of(tile, LIN_KIND_Q5_0, g);
        put16(block_of(tile, LIN_KIND_Q5_0, g) + 32 * (g & 1), r, b[g].d);
        pack_nibbles(codes, r, b[g].qs);
        pack_fifth(codes, r, load32(b[g].qh));
    }
}

static void pack_q5_1(uint8_t *tile, int r, const uint8_t *row, int64_t n_groups)
{
    const struct block_q5_1 *b = (const struct block_q5_1 *)row;
    for (int64_t g = 0; g < n_groups; g++) {
        uint8_t *at = block_of(tile, LIN_KIND_Q5_1, g);
        put16(at, r, b[g].d);
        put16(at + 32, r, b[g].m);
        pack_nibbles(at + 64, r, b[g].qs);
        pack_fifth(at + 64, r, load32(b[g].qh));
    }
}

static void pack_q8_0(uint8_t *tile, int r, const uint8_t *row, int64_t n_groups)
{
    const struct block_q8_0 *b = (const struct block_q8_0 *)row;
    for (int64_t g = 0; g < n_groups; g++) {
        uint8_t *codes = codes_of(tile, LIN_KIND_Q8_0, g);
        put16(block_of(tile, LIN_KIND_Q8_0, g) + 32 * (g & 1), r, b[g].d);
        for (int j = 0; j < 8; j++) /* plus 128 is a flip of the top bit */
            put32(codes, j, r, load32((const uint8_t *)b[g].qs + 4 * j) ^ 0x80808080u);
    }
}

/* d, -dmin and the scales of a Q4_K or Q5_K block. */
static void pack_k_scales(uint8_t *at, int r, uint16_t d, uint16_t dmin, const uint8_t *scales)
{
    put16(at, r, d);
    put16(at + 32, r, dmin ^ 0x8000u);
    for (int j = 0; j < 8; j++) {
        int s, m;
        block_k_scales(scales, j, &s, &m);
        at[64 + 32 * j + r] = (uint8_t)s;
        at[80 + 32 * j + r] = (uint8_t)m;
    }
}

static void pack_q4_k(uint8_t *tile, int r, const uint8_t *row, int64_t n_groups)
{
    const struct block_q4_k *b = (const struct block_q4_k *)row;
    for (int64_t i = 0; i < n_groups / 8; i++) {
        pack_k_scales(block_of(tile, LIN_KIND_Q4_K, 8 * i), r, b[i].d, b[i].dmin, b[i].scales);
        for (int j = 0; j < 8; j++)
            pack_nibbles_k(codes_of(tile, LIN_KIND_Q4_K, 8 * i + j), r, b[i].qs + 32 * (j / 2),
                           4 * (j % 2));
    }
}

static void pack_q5_k(uint8_t *tile, int r, const uint8_t *row, int64_t n_groups)
{
    const struct block_q5_k *b = (const struct block_q5_k *)row;
    for (int64_t i = 0; i < n_groups / 8; i++) {
        pack_k_scales(block_of(tile, LIN_KIND_Q5_K, 8 * i), r, b[i].d, b[i].dmin, b[i].scales);
        for (int j = 0; j < 8; j++) {
            uint8_t *codes = codes_of(tile, LIN_KIND_Q5_K, 8 * i + j);
            pack_nibbles_k(codes, r, b[i].qs + 32 * (j / 2), 4 * (j % 2));
            uint32_t u = 0;
            for (int k = 0; k < 8; k++)
                u |= (load32(b[i].qh + 4 * k) >> j & 0x01010101u) << k;
            put32(codes, 4, r, u);
        }
    }
}

static void pack_q6_k(uint8_t *tile, int r, const uint8_t *row, int64_t n_groups)
{
    const struct block_q6_k *b = (const struct block_q6_k *)row;
    for (int64_t i = 0; i < n_groups / 8; i++) {
        uint8_t *at = block_of(tile, LIN_KIND_Q6_K, 8 * i);
        put16(at, r, b[i].d);
        for (int j = 0; j < 8; j++) {
            uint8_t *codes = codes_of(tile, LIN_KIND_Q6_K, 8 * i + j);
            const uint8_t *qh = b[i].qh + 32 * (j / 4);
            at[32 + 32 * j + r] = (uint8_t)b[i].scales[2 * j];
            at[48 + 32 * j + r] = (uint8_t)b[i].scales[2 * j + 1];
            pack_nibbles_k(codes, r, b[i].ql + 64 * (j / 4) + 32 * (j % 2), 4 * (j / 2 % 2));
            for (int h = 0; h < 2; h++) {
                uint32_t u = 0;
                for (int k = 0; k < 4; k++)
                    u |= (load32(qh + 16 * h + 4 * k) >> 2 * (j % 4) & 0x03030303u) << 2 * k;
                put32(codes, 4 + h, r, u);
            }
        }
    }
}

static pack_row_fn *const pack_rows[LIN_KIND_GROUPED] = {
    [LIN_KIND_Q4_0] = pack_q4_0, [LIN_KIND_Q4_1] = pack_q4_1, [LIN_KIND_Q5_0] = pack_q5_0,
    [LIN_KIND_Q5_1] = pack_q5_1, [LIN_KIND_Q8_0] = pack_q8_0, [LIN_KIND_Q4_K] = pack_q4_k,
    [LIN_KIND_Q5_K] = pack_q5_k, [LIN_KIND_Q6_K] = pack_q6_k,
};

/* n rows of 16-bit or 32-bit elements to [in][16]. */
static void pack_plain(uint8_t *tile, const uint8_t *rows, int n, int64_t in, int size)
{
    for (int r = 0; r < n; r++) {
        const uint8_t *row = rows + (size_t)r * (size_t)in * (size_t)size;
        for (int64_t i = 0; i < in; i++)
            memcpy(tile + (i * TILE + r) * size, row + i * size, (size_t)size);
    }
}

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
};

static void pack_tile(void *ctx, int64_t tile, int thread)
{
    const struct pack_job *j = ctx;
    const struct weight *w = j->w;
    int n = (int)min_i64(TILE, w->shape.out - tile * TILE);
    const uint8_t *rows = j->src->data + (size_t)(tile * TILE) * j->row_bytes;
    uint8_t *out = w->data + (size_t)tile * w->tile_bytes;
    if (w->kind >= LIN_KIND_GROUPED) {
        pack_plain(out, rows, n, w->shape.in, w->kind == LIN_KIND_F32 ? 4 : 2);
        return;
    }
    for (int r = 0; r < n; r++)
        pack_rows[w->kind](out, r, rows + (size_t)r * j->row_bytes, w->n_groups);
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
    uint8_t *data = mem_region_take(&st->region, bytes);
    if (!data || !cpu_linear_reserve(st, src->in))
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu bytes", src->name, bytes);
    struct weight *w = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*w));
    *w = (struct weight){
        .shape = { src->type, src->out, src->in, bytes },
        .kind = kind,
        .n_groups = src->in / GROUP,
        .n_tiles = n_tiles,
        .tile_bytes = tile_bytes,
        .data = data,
    };
    struct pack_job job = { src, w, dtype_row_bytes(src->type, src->in) };
    pool_run(st->pool, pack_tile, &job, n_tiles);
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
