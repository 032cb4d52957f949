/* sim.h - what the files of the simulated device share. device.cc: the runtime's functions: memory, streams, graphs. grid.cc: a kernel's
 * blocks. threads.cc: a block's threads, what they do together. copies.cc: copies to shared memory and barriers. numbers.cc: products and
 * 16-bit numbers. */
#ifndef PLUMB_CUDASIM_SIM_H
#define PLUMB_CUDASIM_SIM_H

#include <cuda_runtime.h>

#include <vector>

namespace cudasim
{

#define THREADS_MAX 1024
#define WARP        32
#define WARPS       4 /* of a warpgroup */

struct kernel {
    const void *at;
    dim3 grid, threads;
    size_t shared_bytes;
    std::function<void()> body;
};

/* Threads that come together: of a warp, of four, of the block. */
struct meeting {
    int first, n, living, arrived;
    unsigned times;
    what kind;
    void *args[WARP * WARPS];
    void (*fn)(void **args, int n);
};

/* A copy of 16 bytes to shared memory that has not landed. */
struct copy {
    void *dst;
    const void *src;
    int group;
};

/* A bulk copy that a barrier waits for. */
struct bulk {
    void *dst;
    const void *src;
    int bytes;
    uint64_t *bar;
};

/* A thread's part of a product of its warpgroup that is under way: its operands are read when it ends. */
struct product {
    float *c;
    const uint32_t *a;
    uint64_t b;
    int n, keep;
};

struct fiber {
    void *sp;
    uint8_t *stack;
    uint3 index;
    bool is_over;
    bool (*ready)(const void *at, unsigned value); /* NULL: it can run */
    const void *at;
    unsigned value;
    std::vector<copy> copies; /* under way, oldest first */
    int group;                /* of the next one */
    std::vector<product> products;
};

/* A block that runs, or has begun and waits for the kernels before its own. */
struct block {
    const kernel *k;
    uint3 index;
    fiber fibers[THREADS_MAX];
    int n, left, self; /* threads; those that have not ended; the one that runs, -1: none */
    int order[THREADS_MAX];
    void *sp; /* of who runs the block */
    const void *stack;
    size_t stack_bytes;
    meeting warps[THREADS_MAX / WARP], groups[THREADS_MAX / WARP / WARPS], all;
    uint64_t events;
    bool may_read;        /* what the kernels before have written */
    bool is_warp_ahead;   /* a warp's threads go on together as far as they can */
    bool copies_are_late; /* copies land when they are waited for, not when they are begun */
    bool products_are_late;
    std::vector<bulk> bulks;
    uint8_t *shared; /* [shared_bytes] */
    size_t shared_bytes;
    std::vector<uint8_t> statics; /* of one that waits: what its other shared memory holds */
};

extern block *now; /* the one that runs */

/* --- threads.cc --- */

void make_threads(block *b);
/* The threads [begin, end) of the order, each as far as it goes; is_again: as long as that brings one of them on. */
void run_threads(block *b, int begin, int end, bool is_again);

/* --- grid.cc --- */

/* A block of the kernel until all of its threads wait for the kernels before it; run_grid goes on with it. */
block *begin_ahead(const kernel *k);
void drop_ahead(block *b);
/* ahead: NULL: none */
void run_grid(const kernel *k, block *ahead);

/* --- copies.cc --- */

void end_copies(fiber *f);
/* Land what no thread has waited for yet; false: there is none. */
bool land_late_copies(block *b);

} // namespace cudasim

#endif
