/* numbers.cc - 16-bit numbers and the tensor core's products (PTX ISA: fragments of mma.m16n8k16 and wgmma.m64nNk16). A step of 16 columns is
 * summed in double and rounded once: more exactly than a device does it, but the same for each instruction, which is what kernels of one
 * contract count on. */
#include "sim.h"

namespace cudasim
{

static float float_of_bits(uint32_t u)
{
    return __uint_as_float(u);
}

float float_of_bf16(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

uint16_t bf16_of(float x)
{
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7FFFFFFFu) > 0x7F800000u)
        return 0x7FFF;
    return (uint16_t)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}

/* Rounded once: to float towards what keeps the last bit odd, where anything is lost, then to nearest. */
uint16_t bf16_of_double(double x)
{
    float f = (float)x;
    uint32_t u = __float_as_uint(f);
    if ((double)f != x && x == x && (u & 0x7F800000u) != 0x7F800000u) {
        if (((double)f > x) == !(u >> 31)) /* rounded away from zero: back */
            u--;
        u |= 1;
    }
    return bf16_of(float_of_bits(u));
}

float float_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 31)
        return float_of_bits(sign | 0x7F800000u | m << 13);
    if (e == 0)
        return (sign ? -1.0f : 1.0f) * (float)m * 0x1p-24f;
    return float_of_bits(sign | (e + 112) << 23 | m << 13);
}

uint16_t f16_of(float x)
{
    uint32_t u = __float_as_uint(x), sign = u >> 16 & 0x8000, a = u & 0x7FFFFFFFu;
    if (a > 0x7F800000u)
        return 0x7FFF;
    if (a >= 0x477FF000u) /* 65520 and above */
        return (uint16_t)(sign | 0x7C00);
    if (a < 0x38800000u) /* below 2^-14: steps of 2^-24, halves to even */
        return (uint16_t)(sign | (uint32_t)lrint((double)float_of_bits(a) * 0x1p24));
    return (uint16_t)(sign | (a - 0x38000000u + 0xFFF + (a >> 13 & 1)) >> 13);
}

static float float_of(bool is_bf16, uint32_t half)
{
    return is_bf16 ? float_of_bf16((uint16_t)half) : float_of_f16((uint16_t)half);
}

typedef double row __attribute__((vector_size(64))); /* eight columns */

/* A tile of products: c [16][8] = c + a [16][16] b [16][8], each in double from the left and rounded once. */
__attribute__((target_clones("avx2", "default"))) static void step(row c[16],
                                                                   const double a[16][16],
                                                                   const row b[16])
{
    for (int r = 0; r < 16; r++) {
        row sum = c[r];
        for (int k = 0; k < 16; k++)
            sum += a[r][k] * b[k];
        c[r] = sum;
    }
}

/* Row of A, its columns: where lane (g, q) has value i of a fragment of four words of two. */
static int a_row(int lane, int i)
{
    return lane / 4 + i / 2 % 2 * 8;
}

static int a_column(int lane, int i)
{
    return lane % 4 * 2 + i % 2 + i / 4 * 8;
}

static void read_a(double to[16][16], bool is_bf16, const uint32_t a[4], int lane)
{
    for (int i = 0; i < 8; i++)
        to[a_row(lane, i)][a_column(lane, i)] = float_of(is_bf16, a[i / 2] >> i % 2 * 16 & 0xFFFF);
}

struct mma_arg {
    bool is_bf16;
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

static void run_mma(void **args, int n)
{
    double a[16][16];
    row b[16], c[16];
    for (int l = 0; l < n; l++) {
        const mma_arg *m = (const mma_arg *)args[l];
        if (!m || n != 32)
            fail("a product of less than a warp");
        read_a(a, m->is_bf16, m->a, l);
        for (int i = 0; i < 4; i++) {
            b[l % 4 * 2 + i % 2 + i / 2 * 8][l / 4] =
                float_of(m->is_bf16, m->b[i / 2] >> i % 2 * 16 & 0xFFFF);
            c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2] = m->c[i];
        }
    }
    step(c, a, b);
    for (int l = 0; l < n; l++)
        for (int i = 0; i < 4; i++)
            ((const mma_arg *)args[l])->c[i] = (float)c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}

void mma(bool is_bf16, float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    mma_arg m = { is_bf16, c, a, { b0, b1 } };
    meet_warp(MMA, &m, run_mma);
}

struct turn_arg {
    uint32_t *to;
    const uint16_t *row;
};

static void run_turn(void **args, int n)
{
    for (int l = 0; l < n; l++) {
        if (!args[l] || n != 32 || (uintptr_t)((const turn_arg *)args[l])->row % 16 != 0)
            fail("matrices of less than a warp, or rows that do not stand at 16 bytes");
        for (int m = 0; m < 4; m++) {
            const turn_arg *lo = (const turn_arg *)args[m * 8 + l % 4 * 2];
            const turn_arg *hi = (const turn_arg *)args[m * 8 + l % 4 * 2 + 1];
            ((const turn_arg *)args[l])->to[m] = lo->row[l / 4] | (uint32_t)hi->row[l / 4] << 16;
        }
    }
}

void turned(uint32_t to[4], const void *row)
{
    turn_arg t = { to, (const uint16_t *)row };
    meet_warp(TURN, &t, run_turn);
}

/* Eight columns of B from `token` on: rows of 128 bytes in shared memory, whose 16-byte pieces are swizzled by the row's number. */
static void read_b(row to[16], uint64_t operand, int token)
{
    for (int t = 0; t < 8; t++)
        for (int k = 0; k < 16; k++) {
            uint64_t at = (operand << 4) + (uint64_t)(token + t) * 128 + (uint64_t)k * 2;
            at ^= (at >> 7 & 7) << 4;
            to[k][t] = float_of_bf16(*(const uint16_t *)(uintptr_t)at);
        }
}

/* Where a warp's threads have their sums of eight tokens: row r, token t of them. */
static float &sum_at(void **args, int warp, int token, int r, int t)
{
    const product *m = (const product *)args[warp * 32 + r % 8 * 4 + t / 2];
    return m->c[token / 2 + r / 8 * 2 + t % 2];
}

static void run_wgmma(void **args, int n)
{
    double a[4][16][16];
    row b[16], c[16];
    const product *first = (const product *)args[0];
    for (int l = 0; l < n; l++) {
        const product *m = (const product *)args[l];
        if (!m || n != 128 || m->b != first->b || m->keep != first->keep || m->n != first->n)
            fail("a product of a warpgroup whose threads do not agree");
        read_a(a[l / 32], true, m->a, l % 32);
    }
    for (int token = 0; token < first->n; token += 8) {
        read_b(b, first->b, token);
        for (int w = 0; w < 4; w++) {
            for (int i = 0; i < 128; i++)
                c[i / 8][i % 8] = first->keep ? sum_at(args, w, token, i / 8, i % 8) : 0;
            step(c, a[w], b);
            for (int i = 0; i < 128; i++)
                sum_at(args, w, token, i / 8, i % 8) = (float)c[i / 8][i % 8];
        }
    }
}

void wgmma(int n, float *c, const uint32_t a[4], uint64_t b, int keep)
{
    product m = { c, a, b, n, keep != 0 };
    if (now->products_are_late)
        now->fibers[now->self].products.push_back(m);
    else
        meet_warps(WGMMA, &m, run_wgmma);
}

/* The warpgroup's products, in the order in which they were begun. */
static void end_products(void **args, int n)
{
    const fiber *first = (const fiber *)args[0];
    void *parts[WARP * WARPS];
    for (size_t i = 0; first && i < first->products.size(); i++) {
        for (int l = 0; l < n; l++) {
            fiber *f = (fiber *)args[l];
            parts[l] = f && i < f->products.size() ? &f->products[i] : NULL;
        }
        run_wgmma(parts, n);
    }
    for (int l = 0; l < n; l++)
        if (args[l])
            ((fiber *)args[l])->products.clear();
}

void wgmma_wait()
{
    meet_warps(WGMMA_WAIT, &now->fibers[now->self], end_products);
}

} // namespace cudasim
