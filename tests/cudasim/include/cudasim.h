/* cudasim.h - what simulated instructions are made of: meetings of a block's threads, copies that end late, 16-bit numbers. */
#ifndef PLUMB_CUDASIM_INCLUDE_CUDASIM_H
#define PLUMB_CUDASIM_INCLUDE_CUDASIM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace cudasim
{

/* --- meetings (threads.cc) --- */

/* What threads meet for: those of one meeting must agree. */
enum what {
    SYNC,
    SHUFFLE,
    SHUFFLE_XOR,
    SHUFFLE_UP,
    BALLOT,
    MMA,
    TURN,
    WGMMA,
    WGMMA_FENCE,
    WGMMA_WAIT
};

/* All living threads of a warp (or of four) come with what they have; the last one runs fn over all of it: args [32] or [128], NULL for
 * threads that have ended. */
void meet_warp(what w, void *arg, void (*fn)(void **args, int n));
void meet_warps(what w, void *arg, void (*fn)(void **args, int n));
void sync_block();
void sync_warp(uint32_t mask);
uint32_t ballot(uint32_t mask, int is);

/* One lane's part of a shuffle. */
struct swap {
    uint64_t in, out;
    int from; /* as the instruction names it */
    what kind;
};

void shuffle_bits(uint32_t mask, swap &s);

template <typename T> static inline T shuffle(uint32_t mask, T v, what kind, int from)
{
    static_assert(sizeof(T) <= 8, "at most 64 bits");
    swap s = { 0, 0, from, kind };
    T out;
    memcpy(&s.in, &v, sizeof(v));
    shuffle_bits(mask, s);
    memcpy(&out, &s.out, sizeof(out));
    return out;
}

/* Let others run until ready(at, value). */
void wait_until(bool (*ready)(const void *at, unsigned value), const void *at, unsigned value);
/* Something happened that a thread may wait for. */
void note_progress();
/* Until the kernels before this one have ended. */
void wait_for_kernels();
/* The block's shared memory of the size that the launch gave, at a multiple of 1024 bytes. */
void *dynamic_shared();
/* The simulation cannot go on: which kernel, block and thread, and why. */
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* --- copies (copies.cc) --- */

void copy16(void *dst, const void *src);
void copy_group();
void copy_wait(int n);
void copy_wait_all();
/* Barriers in shared memory, eight bytes each. */
void bar_init(uint64_t *bar, int count);
void bar_wait(uint64_t *bar, int parity);
void bar_arrive(uint64_t *bar, int bytes);
void copy_bulk(void *dst, const void *src, int bytes, uint64_t *bar);

/* --- products and numbers (numbers.cc) --- */

float float_of_bf16(uint16_t h);
float float_of_f16(uint16_t h);
uint16_t bf16_of(float x); /* nearest even */
uint16_t bf16_of_double(double x);
uint16_t f16_of(float x);
/* Fragments as PTX names them. */
void mma(bool is_bf16, float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1);
/* Four turned matrices of 8 x 8 halves; the lane's row of one of them. */
void turned(uint32_t to[4], const void *row);
void wgmma(int n, float *c, const uint32_t a[4], uint64_t b, int keep);
void wgmma_wait();

} // namespace cudasim

#endif
