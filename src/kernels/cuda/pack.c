/* Weights for the device: every type becomes 4-bit or 8-bit codes with a bf16 scale and bias for 16, 32 or 64 columns, or bf16 values
 * (docs/numerics.md, section CUDA). The layout is that of weight.cuh. */
#include "kernels/cuda/cuda_int.h"

#include "base/clock.h"
#include "tensor/group.h"
#include "tensor/half.h"
#include "tensor/source.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define PACK_THREADS_MAX 32
#define UNIT_GROUPS      (CU_UNIT / GROUP)

/* How a type is packed. */
struct form {
    int format, group;
    int first; /* the code that becomes 0 */
};

static struct form form_of(const struct weight_source *src)
{
    switch (src->type) {
    case DTYPE_Q4_0:
        return (struct form){ CU_FORMAT_4BIT, 32, -8 };
    case DTYPE_Q4_1:
    case DTYPE_Q4_K:
        return (struct form){ CU_FORMAT_4BIT, 32, 0 };
    case DTYPE_Q2_K:
        return (struct form){ CU_FORMAT_4BIT, 16, 0 };
    case DTYPE_Q3_K:
        return (struct form){ CU_FORMAT_4BIT, 16, -4 };
    case DTYPE_Q5_0:
        return (struct form){ CU_FORMAT_8BIT, 32, -16 };
    case DTYPE_Q5_1:
    case DTYPE_Q5_K:
        return (struct form){ CU_FORMAT_8BIT, 32, 0 };
    case DTYPE_Q6_K:
        return (struct form){ CU_FORMAT_8BIT, 16, -32 };
    case DTYPE_MXFP4:
        return (struct form){ CU_FORMAT_8BIT, 32, -16 };
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
        return (struct form){ CU_FORMAT_8BIT, 32, -128 };
    default:
        break;
    }
    int bits = dtype_mlx_bits(src->type);
    if (bits)
        return (struct form){ bits <= 4 ? CU_FORMAT_4BIT : CU_FORMAT_8BIT,
                              src->scales.cols >= 64 ? 64 : 32, 0 };
    return (struct form){ CU_FORMAT_BF16, 0, 0 };
}

static size_t code_bytes(int format) /* of a tile's unit */
{
    return format == CU_FORMAT_4BIT ? 512 : format == CU_FORMAT_8BIT ? 1024 : 2048;
}

static size_t scale_words(int group)
{
    return group ? (size_t)(CU_TILE_ROWS * CU_UNIT / group) : 0;
}

/* One packing: tiles [tile0, tile0 + n_tiles), shared out over threads. */
struct job {
    const struct weight_source *src;
    struct form form;
    int units, shift;
    int64_t tile0, n_tiles;
    uint8_t *codes;
    uint32_t *scales;
    int64_t next; /* atomic: the next tile */
    int max_exp;  /* atomic max: exponent of the largest scale */
};

/* Where the code of row r and column c of a unit lies: byte, or bit for 4-bit codes (weight.cuh). */
static void code_put(uint8_t *unit, int format, int r, int c, unsigned v)
{
    int j = c / 16, k = c % 16, lane = r % 8 * 4 + k % 8 / 2, i = k / 8 * 4 + r / 8 * 2 + k % 2;
    if (format == CU_FORMAT_4BIT) {
        uint8_t *word = unit + lane * 16 + j * 4;
        int bit = i % 2 * 16 + i / 2 * 4;
        word[bit / 8] = (uint8_t)(word[bit / 8] | v << bit % 8);
    } else if (format == CU_FORMAT_8BIT) {
        unit[(j / 2 * 32 + lane) * 16 + j % 2 * 8 + i] = (uint8_t)v;
    } else {
        uint16_t h = (uint16_t)v;
        memcpy(unit + ((j * 32 + lane) * 8 + i) * 2, &h, 2);
    }
}

static uint32_t scale_word(const struct job *b, int r, float s, float bias)
{
    int up = (b->form.format == CU_FORMAT_4BIT && r >= 8 ? 129 : 133) - b->shift;
    float scaled = ldexpf(bf16_to_f32(f32_to_bf16(s)), up);
    float moved = ldexpf(bf16_to_f32(f32_to_bf16(bias)), -b->shift);
    return f32_to_bf16(scaled) | (uint32_t)f32_to_bf16(moved) << 16;
}

static void note_scale(struct job *b, float s)
{
    int e = 0, old = __atomic_load_n(&b->max_exp, __ATOMIC_RELAXED);
    frexpf(bf16_to_f32(f32_to_bf16(s)), &e); /* |s| < 2^e */
    while (s != 0 && e > old &&
           !__atomic_compare_exchange_n(&b->max_exp, &old, e, false, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
}

/* Group g (32 columns) of row r of a tile. */
static void pack_group(struct job *b, uint8_t *codes, uint32_t *scales, int r, int64_t g,
                       const struct group *from)
{
    const struct form *f = &b->form;
    int64_t u = g / UNIT_GROUPS;
    int c0 = (int)(g % UNIT_GROUPS) * GROUP, per_row = CU_UNIT / f->group;
    uint8_t *unit = codes + (size_t)u * code_bytes(f->format);
    uint32_t *words =
        scales + (size_t)u * scale_words(f->group) + r % 8 * 2 * per_row + r / 8 * per_row;
    for (int i = 0; i < GROUP; i++)
        code_put(unit, f->format, r, c0 + i, (unsigned)(from->c[i] - f->first));
    for (int h = 0; h < 2; h++) {
        float s = from->d * (float)from->s[h];
        float s16 = bf16_to_f32(f32_to_bf16(s));
        float bias =
            group_is_affine(b->src->type) ? from->m * (float)from->o[h] : s16 * (float)f->first;
        words[(c0 + 16 * h) / f->group] = scale_word(b, r, s, bias);
        note_scale(b, s);
    }
}

static float plain_value(const struct weight_source *src, const uint8_t *row, int64_t r, int64_t i)
{
    if (!source_is_f8(src->type))
        return source_float(row, src->type, i);
    float v = src->type == DTYPE_F8_E4M3 ? f8_e4m3_to_f32(row[i]) : f8_e5m2_to_f32(row[i]);
    return v * source_f8_scale(&src->scales, src->in, r, i / source_f8_cols(&src->scales, src->in));
}

static void pack_row(struct job *b, int64_t tile, int r, uint8_t *codes, uint32_t *scales,
                     struct group *groups)
{
    const struct weight_source *src = b->src;
    int64_t row = tile * CU_TILE_ROWS + r;
    const uint8_t *data = src->data + (size_t)row * dtype_row_bytes(src->type, src->in);
    if (b->form.format == CU_FORMAT_BF16) {
        for (int64_t i = 0; i < src->in; i++)
            code_put(codes + (size_t)(i / CU_UNIT) * code_bytes(CU_FORMAT_BF16), CU_FORMAT_BF16, r,
                     (int)(i % CU_UNIT), f32_to_bf16(plain_value(src, data, row, i)));
        return;
    }
    struct scales sc = { 0 };
    if (src->scales.scales)
        sc = scales_from_row(&src->scales, row, src->in);
    group_decode(src->type, data, &sc, 0, src->in / GROUP, groups);
    for (int64_t g = 0; g < src->in / GROUP; g++)
        pack_group(b, codes, scales, r, g, &groups[g]);
}

static void *pack_thread(void *ctx)
{
    struct job *b = ctx;
    size_t codes = (size_t)b->units * code_bytes(b->form.format);
    size_t words = (size_t)b->units * scale_words(b->form.group);
    struct group *groups =
        mem_alloc(MEM_CAT_WEIGHTS, (size_t)(b->src->in / GROUP + 1) * sizeof(*groups));
    for (;;) {
        int64_t i = __atomic_fetch_add(&b->next, 1, __ATOMIC_RELAXED);
        if (i >= b->n_tiles)
            break;
        memset(b->codes + (size_t)i * codes, 0, codes);
        if (words)
            memset(b->scales + (size_t)i * words, 0, words * 4);
        for (int r = 0; r < CU_TILE_ROWS; r++)
            if ((b->tile0 + i) * CU_TILE_ROWS + r < b->src->out)
                pack_row(b, b->tile0 + i, r, b->codes + (size_t)i * codes,
                         b->scales + (size_t)i * words, groups);
    }
    mem_free(MEM_CAT_WEIGHTS, groups);
    return NULL;
}

static void pack_tiles(struct job *b)
{
    pthread_t threads[PACK_THREADS_MAX];
    int n = 0, want = (int)sysconf(_SC_NPROCESSORS_ONLN);
    want = want < PACK_THREADS_MAX ? want : PACK_THREADS_MAX;
    want = b->n_tiles < want ? (int)b->n_tiles : want;
    b->next = 0;
    while (n + 1 < want && pthread_create(&threads[n], NULL, pack_thread, b) == 0)
        n++;
    pack_thread(b);
    while (n > 0)
        pthread_join(threads[--n], NULL);
}

/* All tiles, in pieces that the staging memory holds. */
static enum err_code pack_all(struct cuda_state *st, struct job *b, struct weight *w,
                              struct err *err)
{
    size_t codes = (size_t)b->units * code_bytes(b->form.format);
    size_t words = (size_t)b->units * scale_words(b->form.group);
    int64_t tiles = (b->src->out + CU_TILE_ROWS - 1) / CU_TILE_ROWS;
    int64_t piece = (int64_t)(CUDA_STAGING / (codes + 4 * words));
    BUG_ON(piece < 1);
    for (b->tile0 = 0; b->tile0 < tiles; b->tile0 += b->n_tiles) {
        b->n_tiles = tiles - b->tile0 < piece ? tiles - b->tile0 : piece;
        b->codes = (uint8_t *)st->staging;
        b->scales = (uint32_t *)(void *)(b->codes + (size_t)b->n_tiles * codes);
        pack_tiles(b);
        int e = cuda_transfer(st, (uint8_t *)w->w.codes + (size_t)b->tile0 * codes, b->codes,
                              (size_t)b->n_tiles * codes, cudaMemcpyHostToDevice);
        if (!e && words)
            e = cuda_transfer(st, (uint32_t *)w->w.scales + (size_t)b->tile0 * words, b->scales,
                              (size_t)b->n_tiles * words * 4, cudaMemcpyHostToDevice);
        if (e)
            return err_set(err, ERR_IO, "%s: the copy to the GPU failed: %s", b->src->name,
                           cudaGetErrorString((cudaError_t)e));
    }
    return ERR_OK;
}

bool cuda_supports(const struct backend *be, enum dtype type)
{
    return group_is_type(type) || source_is_f8(type) || type == DTYPE_F32 || type == DTYPE_F16 ||
           type == DTYPE_BF16;
}

/* Scales that do not fit the exponent: the whole weight is packed smaller, and its products are multiplied by that power of two. */
static enum err_code pack_weight(struct cuda_state *st, const struct weight_source *src,
                                 struct weight *w, struct err *err)
{
    struct job b = { .src = src, .form = form_of(src), .units = w->w.units, .max_exp = -1000 };
    enum err_code code = pack_all(st, &b, w, err);
    if (!code && b.form.group && b.max_exp > -6) {
        b.shift = b.max_exp + 6;
        code = pack_all(st, &b, w, err);
    }
    w->w.post = ldexpf(1, b.shift);
    return code;
}

/* Bytes of the codes, of the scales behind them. */
static void packed_sizes(const struct weight_source *src, size_t *codes, size_t *scales)
{
    struct form form = form_of(src);
    size_t tiles = (size_t)((src->out + CU_TILE_ROWS - 1) / CU_TILE_ROWS);
    size_t units = (size_t)((src->in + CU_UNIT - 1) / CU_UNIT);
    *codes = tiles * units * code_bytes(form.format);
    *scales = tiles * units * scale_words(form.group) * 4;
}

size_t cuda_packed_bytes(const struct backend *be, const struct weight_source *src)
{
    size_t codes, scales;
    packed_sizes(src, &codes, &scales);
    return codes + scales;
}

enum err_code cuda_pack(struct backend *be, const struct weight_source *src, struct weight **out,
                        struct err *err)
{
    struct cuda_state *st = cuda_of(be);
    enum err_code code = ERR_OK;
    if (!cuda_supports(be, src->type))
        return err_set(err, ERR_UNSUPPORTED, "%s: this build does not compute with type %s",
                       src->name, dtype_info(src->type)->name);
    code = source_check(src, err);
    if (!code)
        code = cuda_reserve_rows(st, src->in, err);
    if (code)
        return code;
    struct form form = form_of(src);
    size_t codes, scales;
    packed_sizes(src, &codes, &scales);
    size_t bytes = codes + scales;
    struct weight *w = mem_alloc(MEM_CAT_WEIGHTS, sizeof(*w));
    w->shape = (struct weight_shape){ src->type, src->out, src->in, bytes };
    w->w = (struct cu_weight){ .out = (int)src->out,
                               .in = (int)src->in,
                               .units = (int)((src->in + CU_UNIT - 1) / CU_UNIT),
                               .format = form.format,
                               .group = form.group };
    uint8_t *data = cuda_take(st, MEM_CAT_WEIGHTS, bytes, src->name, err);
    w->w.codes = data;
    if (!data) {
        mem_free(MEM_CAT_WEIGHTS, w);
        return ERR_NOMEM;
    }
    w->w.scales = form.group ? (const uint32_t *)(void *)(data + codes) : NULL;
    code = pack_weight(st, src, w, err);
    if (code) {
        cuda_unpack_free(be, w);
        return code;
    }
    if (src->drop)
        src->drop(src->drop_ctx, src->data, dtype_row_bytes(src->type, src->in) * (size_t)src->out);
    *out = w;
    return ERR_OK;
}

void cuda_unpack_free(struct backend *be, struct weight *w)
{
    if (!w)
        return;
    cuda_sync(cuda_of(be));
    cuda_give(cuda_of(be), MEM_CAT_WEIGHTS, w->set, (size_t)w->n_set * sizeof(*w->set));
    cuda_give(cuda_of(be), MEM_CAT_WEIGHTS, (void *)w->w.codes, w->shape.bytes);
    mem_free(MEM_CAT_WEIGHTS, w);
}

const struct weight_shape *cuda_shape(const struct weight *w)
{
    return &w->shape;
}
