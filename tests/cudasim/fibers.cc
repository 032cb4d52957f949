/* fibers.cc - a kernel's grid on one thread of the host: blocks one after the other, a block's threads as fibers that run until they wait.
 *
 * What hardware leaves open is tried both ways by turns, launch by launch: the order of blocks, the order of threads (a thread runs far
 * ahead of its neighbours, so that a missing barrier shows), and when copies land (copies.cc). */
#include "sim.h"

#include <cuda_runtime.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cudasim
{

#define THREADS_MAX 1024
#define WARP        32
#define WARPS       4 /* of a warpgroup */
#define STACK_BYTES ((size_t)256 << 10)

/* Threads that come together: of a warp, of four, of the block. */
struct meeting {
    int first, n, living, arrived;
    unsigned times;
    what kind;
    void *args[WARP * WARPS];
    void (*fn)(void **args, int n);
};

struct fiber {
    void *sp;
    uint8_t *stack;
    uint3 index;
    bool is_over;
    bool (*ready)(const void *at, unsigned value); /* NULL: it can run */
    const void *at;
    unsigned value;
};

static struct {
    const char *kernel;
    const std::function<void()> *body;
    fiber fibers[THREADS_MAX];
    int n, self; /* -1: none runs */
    void *sp;    /* of who runs the block */
    const void *stack;
    size_t stack_bytes;
    meeting warps[THREADS_MAX / WARP], groups[THREADS_MAX / WARP / WARPS + 1], block;
    uint64_t events;
    uint8_t *shared;
    size_t shared_bytes;
    unsigned launches;
    int order[THREADS_MAX]; /* of threads, in this launch */
} run;

/* --- switching --- */

/* Save what a callee must keep on this stack, go on where the other one has saved it. */
extern "C" void cudasim_switch(void **from, void *to);
asm(".text\n"
    ".type cudasim_switch, @function\n"
    "cudasim_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq "
    "%r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n");

static void switch_to(void **from, void *to, const void *stack, size_t bytes, bool is_last)
{
#if defined(__SANITIZE_ADDRESS__)
    void *fake = NULL;
    __sanitizer_start_switch_fiber(is_last ? NULL : &fake, stack, bytes);
    cudasim_switch(from, to);
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#else
    cudasim_switch(from, to);
#endif
}

static void leave(bool is_last)
{
    switch_to(&run.fibers[run.self].sp, run.sp, run.stack, run.stack_bytes, is_last);
}

static void finish_meeting(meeting &m)
{
    if (m.fn)
        m.fn(m.args, m.n);
    if (m.n <= WARP * WARPS)
        memset(m.args, 0, (size_t)m.n * sizeof(*m.args));
    m.arrived = 0;
    m.times++;
    run.events++;
}

/* Who has ended is waited for no more. */
static void drop(meeting &m)
{
    m.living--;
    if (m.living > 0 && m.arrived == m.living)
        finish_meeting(m);
}

static void fiber_main()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &run.stack, &run.stack_bytes);
#endif
    (*run.body)();
    end_thread(run.self);
    run.fibers[run.self].is_over = true;
    run.events++;
    drop(run.warps[run.self / WARP]);
    drop(run.groups[run.self / WARP / WARPS]);
    drop(run.block);
    leave(true);
    abort();
}

static void make_fiber(fiber &f)
{
    if (!f.stack) {
        f.stack = (uint8_t *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (f.stack == MAP_FAILED)
            fail("no memory for a thread's stack");
    }
    void **sp = (void **)(f.stack + STACK_BYTES) - 1;
    *--sp = (void *)fiber_main; /* the stack as a function finds it */
    sp -= 6;
    memset(sp, 0, 6 * sizeof(*sp));
    f.sp = sp;
    f.is_over = false;
    f.ready = NULL;
}

/* --- the block --- */

void fail(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    fflush(stdout);
    fprintf(stderr, "cudasim: ");
    if (run.self >= 0)
        fprintf(stderr, "kernel at %p, block %u,%u,%u, thread %u: ", (const void *)run.kernel,
                blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x);
    vfprintf(stderr, format, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    abort();
}

void wait_until(bool (*ready)(const void *at, unsigned value), const void *at, unsigned value)
{
    fiber &f = run.fibers[run.self];
    if (ready(at, value))
        return;
    f.ready = ready;
    f.at = at;
    f.value = value;
    leave(false);
}

int this_thread()
{
    return run.self;
}

void note_progress()
{
    run.events++;
}

void *dynamic_shared()
{
    return run.shared;
}

static bool has_met(const void *at, unsigned value)
{
    return ((const meeting *)at)->times != value;
}

static void meet(meeting &m, what kind, void *arg, void (*fn)(void **args, int n))
{
    if (m.arrived > 0 && (m.kind != kind || m.fn != fn))
        fail("its neighbours are at another instruction (%d, this one's is %d)", m.kind, kind);
    if (m.n <= WARP * WARPS)
        m.args[run.self - m.first] = arg;
    m.kind = kind;
    m.fn = fn;
    unsigned before = m.times;
    if (++m.arrived == m.living)
        finish_meeting(m);
    else
        wait_until(has_met, &m, before);
}

void meet_warp(what w, void *arg, void (*fn)(void **args, int n))
{
    meet(run.warps[run.self / WARP], w, arg, fn);
}

void meet_warps(what w, void *arg, void (*fn)(void **args, int n))
{
    meet(run.groups[run.self / WARP / WARPS], w, arg, fn);
}

void sync_block()
{
    meet(run.block, SYNC, NULL, NULL);
}

static void check_mask(uint32_t mask)
{
    if (mask != 0xFFFFFFFFu)
        fail("a mask of %08x: only whole warps are simulated", mask);
}

void sync_warp(uint32_t mask)
{
    check_mask(mask);
    meet_warp(SYNC, NULL, NULL);
}

static void exchange(void **args, int n)
{
    for (int i = 0; i < n; i++) {
        swap *s = (swap *)args[i];
        if (!s)
            continue;
        int from = s->kind == SHUFFLE       ? s->from % WARP
                   : s->kind == SHUFFLE_XOR ? i ^ s->from
                                            : i - s->from;
        if (from < 0 || from >= n || !args[from]) /* one that has ended gives what is not defined */
            s->out = s->kind == SHUFFLE_UP && from < 0 ? s->in : 0xFFFFFFFFFFFFFFFFu;
        else
            s->out = ((swap *)args[from])->in;
    }
}

void shuffle_bits(uint32_t mask, swap &s)
{
    check_mask(mask);
    meet_warp(s.kind, &s, exchange);
}

static void vote(void **args, int n)
{
    uint32_t all = 0;
    for (int i = 0; i < n; i++)
        all |= args[i] && *(uint32_t *)args[i] ? 1u << i : 0;
    for (int i = 0; i < n; i++)
        if (args[i])
            *(uint32_t *)args[i] = all;
}

uint32_t ballot(uint32_t mask, int is)
{
    uint32_t v = is != 0;
    check_mask(mask);
    meet_warp(BALLOT, &v, vote);
    return v;
}

static void open_meeting(meeting &m, int first, int n)
{
    memset(&m, 0, sizeof(m));
    m.first = first;
    m.n = m.living = n;
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Thread i of the order that a launch has. */
static int in_order(int i, int n)
{
    switch (run.launches % 4) {
    case 0:
        return i;
    case 1:
        return n - 1 - i;
    case 2: /* the warps by turns, a lane each */
        return n % WARP ? i : i % (n / WARP) * WARP + i / (n / WARP);
    default:
        return (int)((i * 7919LL + run.launches) % n); /* a prime above every n */
    }
}

static void resume(int i)
{
    fiber &f = run.fibers[i];
    run.self = i;
    threadIdx = f.index;
    f.ready = NULL;
    switch_to(&run.sp, f.sp, f.stack, STACK_BYTES, false);
    run.self = -1;
}

static void run_block()
{
    int n = run.n, left = n;
    for (int i = 0; i < n; i++) {
        unsigned u = (unsigned)i, x = blockDim.x, y = blockDim.y;
        make_fiber(run.fibers[i]);
        run.fibers[i].index = { u % x, u / x % y, u / x / y };
    }
    for (int w = 0; w * WARP < n; w++)
        open_meeting(run.warps[w], w * WARP, least(WARP, n - w * WARP));
    for (int w = 0; w * WARP * WARPS < n; w++)
        open_meeting(run.groups[w], w * WARP * WARPS, least(WARP * WARPS, n - w * WARP * WARPS));
    open_meeting(run.block, 0, n);
    memset(run.shared, 0xFF, run.shared_bytes); /* NaN: nobody has written it yet */
    while (left > 0) {
        uint64_t before = run.events;
        for (int k = 0; k < n; k++) {
            int i = run.order[k];
            fiber &f = run.fibers[i];
            if (f.is_over || (f.ready && !f.ready(f.at, f.value)))
                continue;
            resume(i);
            left -= f.is_over;
        }
        if (run.events == before && !land_late_copies()) {
            run.self = 0;
            fail("its block waits for what does not come (%d threads are left)", left);
        }
    }
    end_block();
}

void run_grid(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes,
              const std::function<void()> &body)
{
    int64_t blocks = (int64_t)grid.x * grid.y * grid.z;
    run.kernel = (const char *)kernel;
    run.body = &body;
    run.n = (int)(block.x * block.y * block.z);
    run.self = -1;
    run.launches++;
    for (int i = 0; i < run.n; i++)
        run.order[i] = in_order(i, run.n);
    copies_are_late = run.launches / 4 % 2;
    run.shared_bytes = (shared_bytes + 1023) / 1024 * 1024;
    run.shared = (uint8_t *)aligned_alloc(1024, run.shared_bytes + 1024);
    if (!run.shared)
        fail("no memory for %zu bytes of shared memory", shared_bytes);
    blockDim = block;
    gridDim = grid;
    for (int64_t i = 0; i < blocks; i++) {
        int64_t b = run.launches % 2 ? i : blocks - 1 - i;
        blockIdx = { (unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                     (unsigned)(b / grid.x / grid.y) };
        run_block();
    }
    free(run.shared);
    run.shared = NULL;
}

} // namespace cudasim
