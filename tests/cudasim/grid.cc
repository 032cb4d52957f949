/* grid.cc - a kernel's blocks, one after the other.
 *
 * What hardware leaves open is tried in several ways by turns, launch by launch: the order of blocks, the order of threads (each runs as far
 * as it can before the next one does, a lane ahead of its warp or a warp ahead of the block, so that a missing barrier shows), when copies
 * land (copies.cc), and how early a kernel begins: a block of it may run up to its wait for the kernels before (cu_grid_wait) when one or two
 * of these have not run at all, so that what it reads too soon is old. */
#include "sim.h"

#include <stdlib.h>

/* All that kernels declare as shared: the variables of their files, which the Makefile puts into a section of their own, between marks that
 * the linker makes of its name. */
extern "C" uint8_t __start_cudasim_shared[], __stop_cudasim_shared[];

namespace cudasim
{

__attribute__((section("cudasim_shared"), used)) static uint8_t at_least[16];

static auto &idle = *new std::vector<block *>(); /* there until the process has ended */
static unsigned launches;

/* Thread i of the order that a launch has. */
static int in_order(int i, int n)
{
    switch (launches % 4) {
    case 0:
        return i;
    case 1:
        return n - 1 - i;
    case 2: /* a warp's lanes from both ends */
        return n % WARP ? i : i / WARP * WARP + (i % 2 ? WARP - 1 - i % WARP / 2 : i % WARP / 2);
    default:
        return n % WARP ? n - 1 - i : (n / WARP - 1 - i / WARP) * WARP + i % WARP;
    }
}

/* A block for the kernel's, with an order of its own. */
static block *open_block(const kernel *k)
{
    block *b = idle.empty() ? new block() : idle.back();
    if (!idle.empty())
        idle.pop_back();
    launches++;
    b->k = k;
    b->shared_bytes = (k->shared_bytes + 1023) / 1024 * 1024;
    b->shared = (uint8_t *)aligned_alloc(1024, b->shared_bytes + 1024);
    if (!b->shared)
        fail("no memory for %zu bytes of shared memory", k->shared_bytes);
    int n = (int)(k->threads.x * k->threads.y * k->threads.z);
    for (int i = 0; i < n; i++)
        b->order[i] = in_order(i, n);
    b->copies_are_late = launches / 4 % 2;
    b->is_warp_ahead = launches / 8 % 2;
    b->products_are_late = launches % 3 != 0;
    return b;
}

static void close_block(block *b)
{
    free(b->shared);
    b->shared = NULL;
    b->bulks.clear();
    idle.push_back(b);
}

static void begin_block(block *b, int64_t i, bool may_read)
{
    dim3 g = b->k->grid;
    b->index = { (unsigned)(i % g.x), (unsigned)(i / g.x % g.y), (unsigned)(i / g.x / g.y) };
    b->may_read = may_read;
    make_threads(b);
    memset(b->shared, 0xFF, b->shared_bytes); /* NaN: nobody has written it yet */
}

/* One turn for each thread; false: nothing came of it. */
static bool turn(block *b)
{
    uint64_t before = b->events;
    int step = b->is_warp_ahead ? WARP : b->n;
    for (int k = 0; k < b->n; k += step)
        run_threads(b, k, k + step < b->n ? k + step : b->n, b->is_warp_ahead);
    return b->events != before;
}

static void end_block(block *b)
{
    while (b->left > 0)
        if (!turn(b) && !land_late_copies(b)) {
            b->self = 0;
            fail("its block waits for what does not come (%d threads are left)", b->left);
        }
    if (!b->bulks.empty())
        fail("%zu bulk copies that nobody has waited for", b->bulks.size());
}

/* Over the marks that a sanitizer keeps between variables, too: not by memcpy, which looks at them. */
static void copy_over(void *dst, const void *src, size_t bytes)
{
    asm volatile("rep movsb" : "+D"(dst), "+S"(src), "+c"(bytes)::"memory");
}

static int64_t blocks_of(const kernel *k)
{
    return (int64_t)k->grid.x * k->grid.y * k->grid.z;
}

block *begin_ahead(const kernel *k)
{
    block *b = open_block(k);
    begin_block(b, launches % 2 ? blocks_of(k) - 1 : 0, false);
    while (turn(b))
        ;
    b->statics.resize((size_t)(__stop_cudasim_shared - __start_cudasim_shared));
    copy_over(b->statics.data(), __start_cudasim_shared, b->statics.size());
    return b;
}

void drop_ahead(block *b)
{
    close_block(b);
}

void run_grid(const kernel *k, block *ahead)
{
    int64_t n = blocks_of(k), done = -1;
    if (ahead) {
        dim3 g = k->grid;
        done = ahead->index.x + (int64_t)g.x * (ahead->index.y + (int64_t)g.y * ahead->index.z);
        copy_over(__start_cudasim_shared, ahead->statics.data(), ahead->statics.size());
        ahead->may_read = true;
        ahead->events++;
        end_block(ahead);
        close_block(ahead);
    }
    block *b = open_block(k);
    bool is_upwards = launches % 2;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = is_upwards ? i : n - 1 - i;
        if (at == done)
            continue;
        begin_block(b, at, true);
        end_block(b);
    }
    close_block(b);
}

} // namespace cudasim
