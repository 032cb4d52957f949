/* check [--quick] [--bench] [--mask LEVEL] [--threads N] [--device cuda] [FILTER]: kernels against ref at every instruction-set level of
 * the machine; --device cuda: the GPU's instead. */
#include "check.h"

#include "kernels/cpu/cpu_backend.h"
#include "kernels/ref/ref.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool check_that(struct check *c, bool ok, const char *fmt, ...)
{
    if (ok) {
        c->passed++;
        return true;
    }
    c->failed++;
    va_list ap;
    va_start(ap, fmt);
    printf("FAIL ");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    return false;
}

bool check_wants(const struct check *c, const char *group)
{
    return !c->filter || strstr(group, c->filter);
}

static uint64_t rand_state = 0x9E3779B97F4A7C15u;

uint32_t check_rand(void) /* xorshift64* */
{
    rand_state ^= rand_state >> 12;
    rand_state ^= rand_state << 25;
    rand_state ^= rand_state >> 27;
    return (uint32_t)(rand_state * 0x2545F4914F6CDD1Du >> 32);
}

int check_range(int lo, int hi)
{
    return lo + (int)(check_rand() % (uint32_t)(hi - lo + 1));
}

float check_normal(void)
{
    float s = -6;
    for (int i = 0; i < 12; i++)
        s += (float)(check_rand() >> 8) * 0x1p-24f;
    return s;
}

void check_fill(float *x, size_t n, int kind)
{
    for (size_t i = 0; i < n; i++) {
        float v = check_normal();
        switch (kind) {
        case 1: /* a few large channels */
            v *= i % 97 == 5 ? 300.0f : 1.0f;
            break;
        case 2: /* sparse, both zeros */
            v = check_rand() % 4 ? (check_rand() % 2 ? 0.0f : -0.0f) : v;
            break;
        case 3: /* around the smallest group that is not zero, and denormals */
            v *= i / 32 % 3 == 0 ? 0x1p-120f : i / 32 % 3 == 1 ? 0x1p-121f : 0x1p-130f;
            break;
        case 4: /* wide range of magnitudes */
            v = ldexpf(v, check_range(-60, 20));
            break;
        case 5: /* ties of the rounding: multiples of half a step */
            v = (float)check_range(-254, 254) * 0.5f;
            if (i % 32 == 0)
                v = 127.0f;
            break;
        default:
            break;
        }
        x[i] = v;
    }
}

#define CANARY 0x7FA5A5A5u /* a signalling NaN: no op makes one */

struct check_buf check_buf_new(int64_t rows, int64_t cols, int64_t stride)
{
    struct check_buf b = { .n = (size_t)(rows * stride) + 32 };
    float *p = mem_alloc(MEM_CAT_SCRATCH, b.n * sizeof(float));
    b.t = (struct tensor){ .data = p, .rows = rows, .cols = cols, .stride = stride };
    check_buf_reset(&b);
    return b;
}

void check_buf_free(struct check_buf *b)
{
    mem_free(MEM_CAT_SCRATCH, b->t.data);
    b->t.data = NULL;
}

void check_buf_reset(struct check_buf *b)
{
    for (size_t i = 0; i < b->n; i++) {
        uint32_t u = CANARY;
        memcpy(b->t.data + i, &u, 4);
    }
}

bool check_buf_same(const struct check_buf *a, const struct check_buf *b, bool any_nan)
{
    for (size_t i = 0; i < a->n; i++) {
        uint32_t u = half_bits_of_f32(a->t.data[i]), v = half_bits_of_f32(b->t.data[i]);
        if (u == v ||
            (any_nan && isnan(a->t.data[i]) && isnan(b->t.data[i]) && u != CANARY && v != CANARY))
            continue;
        printf("  first difference: row %zu col %zu: %08x (%g) and %08x (%g)\n",
               i / (size_t)a->t.stride, i % (size_t)a->t.stride, u, (double)a->t.data[i], v,
               (double)b->t.data[i]);
        return false;
    }
    return true;
}

/* --- weights --- */

/* Offsets of the f16 fields of a block; -1: none. */
static const int half_fields[DTYPE_COUNT][2] = {
    [DTYPE_Q4_0] = { 0, -1 },   [DTYPE_Q4_1] = { 0, 2 },    [DTYPE_Q5_0] = { 0, -1 },
    [DTYPE_Q5_1] = { 0, 2 },    [DTYPE_Q8_0] = { 0, -1 },   [DTYPE_Q4_K] = { 0, 2 },
    [DTYPE_Q5_K] = { 0, 2 },    [DTYPE_Q6_K] = { 208, -1 }, [DTYPE_Q2_K] = { 80, 82 },
    [DTYPE_Q3_K] = { 108, -1 }, [DTYPE_IQ4_NL] = { 0, -1 }, [DTYPE_IQ4_XS] = { 0, -1 },
    [DTYPE_MXFP4] = { -1, -1 }, [DTYPE_MLX2] = { -1, -1 },  [DTYPE_MLX3] = { -1, -1 },
    [DTYPE_MLX4] = { -1, -1 },  [DTYPE_MLX5] = { -1, -1 },  [DTYPE_MLX6] = { -1, -1 },
    [DTYPE_MLX8] = { -1, -1 },
};

static uint16_t random_scale(void)
{
    int kind = check_range(0, 19);
    if (kind == 0)
        return (uint16_t)(check_rand() % 2 ? 0x8000 : 0); /* both zeros */
    if (kind == 1)
        return (uint16_t)(check_rand() & 0x83FF); /* denormal */
    return f32_to_f16(check_normal() * 0.02f);
}

static void random_plain(enum dtype type, uint8_t *at)
{
    if (dtype_info(type)->block_bytes == 1) { /* fp8, finite */
        *at =
            (uint8_t)(check_rand() % (type == DTYPE_F8_E4M3 ? 0x7F : 0x7C) | (check_rand() & 0x80));
        return;
    }
    float v = check_normal() * (check_rand() % 16 ? 0.1f : 1e-6f);
    uint16_t h = type == DTYPE_F16 ? f32_to_f16(v) : f32_to_bf16(v);
    if (check_rand() % 32 == 0)
        h = (uint16_t)(check_rand() & 0x807F), v = half_f32_of_bits(check_rand() & 0x807FFFFFu);
    if (type == DTYPE_F32)
        memcpy(at, &v, 4);
    else
        memcpy(at, &h, 2);
}

uint8_t *check_weight(enum dtype type, int64_t out, int64_t in)
{
    const struct dtype_info *info = dtype_info(type);
    size_t n = dtype_row_bytes(type, in) * (size_t)out;
    uint8_t *p = mem_alloc(MEM_CAT_WEIGHTS, n);
    bool plain = info->block_elems == 1;
    for (size_t i = 0; i < n; i += (size_t)info->block_bytes) {
        if (plain) {
            random_plain(type, p + i);
            continue;
        }
        for (int k = 0; k < info->block_bytes; k++)
            p[i + (size_t)k] = (uint8_t)check_rand();
        for (int f = 0; f < 2; f++) {
            uint16_t h = random_scale();
            if (half_fields[type][f] >= 0)
                memcpy(p + i + half_fields[type][f], &h, 2);
        }
        if (type == DTYPE_MXFP4) /* denormal scales too */
            p[i] = (uint8_t)(check_rand() % 16 ? check_range(110, 130) : check_range(0, 3));
    }
    return p;
}

static void random_scale_of(enum dtype type, uint8_t *at)
{
    uint16_t h = random_scale();
    float f = f16_to_f32(h) + (check_rand() % 8 ? 1e-9f * check_normal() : 0);
    uint16_t b = check_rand() % 32 ? f32_to_bf16(f) : (uint16_t)(check_rand() & 0x807F);
    if (type == DTYPE_F32)
        memcpy(at, &f, 4);
    else
        memcpy(at, type == DTYPE_F16 ? &h : &b, 2);
}

uint8_t *check_scaled_weight(enum dtype type, int64_t out, int64_t in, int form,
                             struct scales *scales)
{
    static const enum dtype types[3] = { DTYPE_BF16, DTYPE_F16, DTYPE_F32 };
    static const int cols[3] = { 64, 32, 128 };
    uint8_t *p = check_weight(type, out, in);
    *scales = (struct scales){ 0 };
    if (!dtype_info(type)->has_scales || (form == 8 && !dtype_mlx_bits(type)))
        return p;
    scales->type = types[form % 3];
    scales->rows = 1;
    scales->cols = cols[form / 3];
    if (dtype_mlx_bits(type)) {
        while (in % scales->cols)
            scales->cols /= 2;
    } else { /* fp8: of the whole matrix, of each row, of tiles */
        scales->cols = form / 3 == 2 ? 48 : in;
        scales->rows = form / 3 == 0 ? out : form / 3 == 1 ? 1 : 24;
    }
    size_t n = (size_t)((out + scales->rows - 1) / scales->rows) *
               (size_t)((in + scales->cols - 1) / scales->cols);
    size_t size = dtype_row_bytes(scales->type, 1), bytes = dtype_row_bytes(type, in) * (size_t)out;
    uint8_t *all = mem_alloc(MEM_CAT_WEIGHTS, bytes + 2 * n * size);
    memcpy(all, p, bytes);
    mem_free(MEM_CAT_WEIGHTS, p);
    for (size_t i = 0; i < 2 * n; i++)
        random_scale_of(scales->type, all + bytes + i * size);
    scales->scales = all + bytes;
    scales->biases = dtype_mlx_bits(type) ? all + bytes + n * size : NULL;
    return all;
}

struct weight *check_pack(struct backend *be, enum dtype type, int64_t out, int64_t in,
                          const uint8_t *data, const struct scales *scales)
{
    struct weight_source src = { .name = "w", .type = type, .out = out, .in = in, .data = data };
    if (scales)
        src.scales = *scales;
    struct weight *w = NULL;
    struct err err = { 0 };
    if (be->ops->pack(be, &src, &w, &err) != ERR_OK) {
        printf("pack: %s\n", err.text);
        exit(1);
    }
    return w;
}

/* --- main --- */

static void open_ref(struct check *c)
{
    struct err err = { 0 };
    if (ref_backend_open(&c->ref, &err) != ERR_OK) {
        printf("open: %s\n", err.text);
        exit(1);
    }
}

static void open_backends(struct check *c, enum cpu_level mask)
{
    static const int threads[] = { 1, 3 };
    struct err err = { 0 };
    for (int l = CPU_LEVEL_GENERIC; l < CPU_LEVEL_COUNT; l++) {
        enum cpu_level level = (enum cpu_level)l;
        if (!cpu_level_is_native(level) || (mask != CPU_LEVEL_AUTO && level > mask))
            continue;
        if (!cpu_level_available(level)) {
            printf("skip: cpu-feature: %s\n", cpu_level_name(level));
            c->skipped++;
            continue;
        }
        for (size_t i = 0; i < ARRAY_LEN(threads); i++) {
            struct check_backend *b = &c->cpu[c->n_cpu++];
            struct cpu_options o = { .threads = threads[i], .level = level };
            snprintf(b->name, sizeof(b->name), "%s/%d", cpu_level_name(level), threads[i]);
            if (cpu_backend_open(&o, &b->be, &err) != ERR_OK)
                goto fail;
        }
    }
    return;
fail:
    printf("open: %s\n", err.text);
    exit(1);
}

int main(int argc, char **argv)
{
    struct check c = { 0 };
    bool bench = false, is_cuda = false;
    int threads = 0;
    enum cpu_level mask = CPU_LEVEL_AUTO;
    struct err err = { 0 };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0) {
            bench = true;
        } else if (strcmp(argv[i], "--quick") == 0) {
            c.is_quick = true;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            threads = (int)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc &&
                   strcmp(argv[i + 1], "cuda") == 0) {
            is_cuda = true;
            i++;
        } else if (strcmp(argv[i], "--mask") == 0 && i + 1 < argc) {
            if (cpu_level_parse(argv[++i], &mask, &err) != ERR_OK) {
                fprintf(stderr, "check: %s\n", err.text);
                return 2;
            }
        } else if (argv[i][0] == '-') {
            fprintf(stderr, "usage: check [--quick] [--bench] [--mask LEVEL] [--threads N] "
                            "[--device cuda] [FILTER]\n");
            return 2;
        } else {
            c.filter = argv[i];
        }
    }
    if (bench) {
        check_bench(c.filter, threads, (int)mask);
        return 0;
    }
    if (is_cuda) {
        open_ref(&c);
        check_cuda(&c);
    } else {
        open_ref(&c);
        open_backends(&c, mask);
        check_linear(&c);
        check_rows(&c);
        check_attention(&c);
        check_state(&c);
    }
    c.ref->ops->close(c.ref);
    for (int i = 0; i < c.n_cpu; i++)
        c.cpu[i].be->ops->close(c.cpu[i].be);
    for (int cat = 0; cat < MEM_CAT_COUNT; cat++)
        check_that(&c, mem_bytes((enum mem_cat)cat) == 0, "leak: %s holds %lld bytes",
                   mem_cat_name((enum mem_cat)cat), (long long)mem_bytes((enum mem_cat)cat));
    printf("%d passed, %d failed, %d skipped\n", c.passed, c.failed, c.skipped);
    return c.failed ? 1 : 0;
}
