/* Packed weights: repacking a matrix by all threads (pack_tile.c), and reading one back. */
#include "kernels/cpu/cpu_int.h"

#include <string.h>

static enum lin_kind kind_of(enum dtype type)
{
    static const int kinds[DTYPE_COUNT] = {
#define KIND(k) [DTYPE_##k] = LIN_KIND_##k + 1,
        LIN_KINDS_GROUPED(KIND) KIND(F16) KIND(BF16) KIND(F32) KIND(F8_E4M3) KIND(F8_E5M2)
#undef KIND
    };
    return kinds[type] ? (enum lin_kind)(kinds[type] - 1) : LIN_KIND_COUNT;
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

/* The scales of an MLX tile: to the heads of its blocks. */
static void pack_mlx_scales(const struct pack_job *j, int64_t tile, uint8_t *to)
{
    const struct weight *w = j->w;
    const struct scales *s = &j->src->scales;
    const size_t size = dtype_row_bytes(s->type, 1);
    const int64_t n = w->n_groups >> w->block.shift;
    for (int64_t r = 0; r < TILE && tile * TILE + r < w->shape.out; r++) {
        struct scales row = scales_from_row(s, tile * TILE + r, w->shape.in);
        for (int64_t i = 0; i < n; i++) {
            uint8_t *at = to + i * w->block.bytes + (size_t)r * size;
            memcpy(at, row.scales + (size_t)i * size, size);
            memcpy(at + TILE * size, row.biases + (size_t)i * size, size);
        }
    }
}

static void pack_f8_scales(const struct pack_job *j, int64_t tile, uint8_t *to)
{
    const struct weight *w = j->w;
    for (int64_t c = 0; c * w->scale_cols < w->shape.in; c++) {
        for (int64_t r = 0; r < TILE && tile * TILE + r < w->shape.out; r++) {
            float f = source_f8_scale(&j->src->scales, w->shape.in, tile * TILE + r, c);
            memcpy(to + (c * TILE + r) * 4, &f, 4);
        }
    }
}

static void pack_tile(void *ctx, int64_t tile, int thread)
{
    const struct pack_job *j = ctx;
    const struct weight *w = j->w;
    uint8_t *to = w->data + (size_t)tile * w->tile_bytes;
    const uint8_t *rows = j->src->data + (size_t)(tile * TILE) * j->row_bytes;
    cpu_pack_tile(w, to, j->tail && tile == w->n_tiles - 1 ? j->tail : rows, j->row_bytes);
    if (dtype_mlx_bits(w->shape.type))
        pack_mlx_scales(j, tile, to);
    else if (source_is_f8(w->shape.type))
        pack_f8_scales(j, tile, to);
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

static struct lin_block block_of(enum lin_kind kind, const struct scales *s)
{
    if (kind < LIN_KIND_MLX2)
        return lin_block_of(kind);
    if (kind >= LIN_KIND_GROUPED)
        return (struct lin_block){ 0 };
    int shift = s->cols == 32 ? 0 : s->cols == 64 ? 1 : 2, head = s->type == DTYPE_F32 ? 128 : 64;
    return (struct lin_block){ shift, head + (lin_code_bytes(kind) << shift), head };
}

static size_t tile_bytes_of(const struct weight *w)
{
    const size_t in = (size_t)w->shape.in;
    int64_t per = (int64_t)1 << w->block.shift;
    switch (w->kind) {
    case LIN_KIND_F32:
        return in * TILE * 4;
    case LIN_KIND_F16:
    case LIN_KIND_BF16:
        return in * TILE * 2;
    case LIN_KIND_F8_E4M3:
    case LIN_KIND_F8_E5M2: /* tiles begin at multiples of 64 bytes */
        return cpu_f8_scale_bytes(w) + (in * TILE + 63) / 64 * 64;
    default:
        return (size_t)((w->n_groups + per - 1) / per) * (size_t)w->block.bytes;
    }
}

static struct weight weight_of(const struct weight_source *src)
{
    const enum lin_kind kind = kind_of(src->type);
    struct weight w = {
        .shape = { src->type, src->out, src->in, 0 },
        .kind = kind,
        .n_groups = src->in / GROUP,
        .n_tiles = (src->out + TILE - 1) / TILE,
        .block = block_of(kind, &src->scales),
        .scale_type = src->scales.type,
    };
    if (source_is_f8(src->type))
        w.scale_cols = source_f8_cols(&src->scales, src->in);
    w.tile_bytes = tile_bytes_of(&w);
    w.shape.bytes = w.tile_bytes * (size_t)w.n_tiles;
    return w;
}

enum err_code cpu_pack(struct backend *be, const struct weight_source *src, struct weight **out,
                       struct err *err)
{
    struct cpu_state *st = cpu_of(be);
    if (!cpu_supports(be, src->type))
        return err_set(err, ERR_UNSUPPORTED, "%s: this build does not compute with type %s",
                       src->name, dtype_info(src->type)->name);
    enum err_code code = source_check(src, err);
    if (code)
        return code;
    struct weight made = weight_of(src);
    size_t row_bytes = dtype_row_bytes(src->type, src->in);
    uint8_t *tail = src->out % TILE ? pack_tail(src, row_bytes) : NULL;
    made.data = mem_region_take(&st->region, made.shape.bytes);
    if (!made.data || (src->out % TILE && !tail) || !cpu_linear_reserve(st, src->in)) {
        mem_free(MEM_CAT_WEIGHTS, tail);
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu bytes", src->name, made.shape.bytes);
    }
    struct weight *w = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*w));
    *w = made;
    struct pack_job job = { src, w, row_bytes, tail };
    pool_run(st->pool, pack_tile, &job, w->n_tiles);
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

/* Code of element k of row r in group g. */
static int tile_code(const uint8_t *codes, enum lin_kind kind, int r, int k)
{
    const enum lin_code code = lin_code(kind);
    int at = 4 * r + k % 4, j = k / 4, c;
    if (code == LIN_CODE_8)
        return codes[64 * j + at] - lin_bias(kind);
    if (code == LIN_CODE_2 || code == LIN_CODE_3)
        c = codes[64 * (k / 16) + at] >> 2 * (j % 4) & 3;
    else
        c = codes[64 * (j % 4) + at] >> 4 * (k / 16) & 15;
    if (code == LIN_CODE_TABLE)
        c = lin_table(kind)[c];
    if (code == LIN_CODE_3)
        c |= (codes[128 + at] >> j & 1) << 2;
    if (code == LIN_CODE_5)
        c |= (codes[256 + at] >> j & 1) << 4;
    if (code == LIN_CODE_6)
        c |= (codes[256 + 64 * (k / 16) + at] >> 2 * (j % 4) & 3) << 4;
    return c - lin_bias(kind);
}

/* The scales of row r, group `sub` of the block at b. */
static void tile_scales(const struct weight *w, const uint8_t *b, int r, int sub, struct group *out)
{
    const enum lin_scales form = lin_scales(w->kind);
    const bool each = form == LIN_SCALES_D || form == LIN_SCALES_BF16;
    enum dtype type = form == LIN_SCALES_BF16 ? DTYPE_BF16 : DTYPE_F16;
    if (form == LIN_SCALES_MLX)
        type = w->scale_type;
    out->d = source_float(b + (each ? 32 * sub : 0), type, r);
    if (lin_is_affine(w->kind))
        out->m = source_float(b, type, TILE + r);
    if (form == LIN_SCALES_K) {
        out->d *= (float)b[64 + 32 * sub + r];
        out->m *= (float)b[80 + 32 * sub + r];
    }
    if (form == LIN_SCALES_XS)
        out->d *= (float)(int8_t)b[32 + 16 * sub + r];
    for (int h = 0; h < 2; h++) {
        if (form == LIN_SCALES_HALVES)
            out->s[h] = (int8_t)b[32 + 32 * sub + 16 * h + r];
        if (form == LIN_SCALES_MINS) {
            out->s[h] = (int8_t)(b[64 + 32 * sub + 16 * h + r] & 15);
            out->o[h] = b[64 + 32 * sub + 16 * h + r] >> 4;
        }
    }
}

void cpu_weight_group(const struct weight *w, const uint8_t *tile, int r, int64_t g,
                      struct group *out)
{
    const struct lin_block *at = &w->block;
    int sub = (int)(g & ((1 << at->shift) - 1));
    const uint8_t *b = tile + (g >> at->shift) * at->bytes;
    *out = (struct group){ .s = { 1, 1 }, .o = { 1, 1 } };
    tile_scales(w, b, r, sub, out);
    for (int i = 0; i < GROUP; i++)
        out->c[i] =
            (int16_t)tile_code(b + at->codes + sub * lin_code_bytes(w->kind), w->kind, r, i);
}

float cpu_weight_element(const struct weight *w, const uint8_t *codes, int64_t i, int r)
{
    if (w->kind == LIN_KIND_F8_E4M3)
        return f8_e4m3_to_f32(codes[i * TILE + r]);
    if (w->kind == LIN_KIND_F8_E5M2)
        return f8_e5m2_to_f32(codes[i * TILE + r]);
    return source_float(codes, w->shape.type, i * TILE + r);
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
        out[i] = cpu_weight_element(w, tile + cpu_f8_scale_bytes(w), i, r);
        if (source_is_f8(w->shape.type))
            out[i] *= source_float(tile, DTYPE_F32, i / w->scale_cols * TILE + r);
    }
}
