/* threads.cc - a block's threads as fibers of one thread of the host, each of which runs until it waits: for others of its warp or block,
 * for a barrier, for the kernels before. */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace cudasim
{

#define STACK_BYTES ((size_t)256 << 10)

block *now;

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
    switch_to(&now->fibers[now->self].sp, now->sp, now->stack, now->stack_bytes, is_last);
}

static void finish_meeting(meeting &m)
{
    if (m.fn)
        m.fn(m.args, m.n);
    if (m.n <= WARP * WARPS)
        memset(m.args, 0, (size_t)m.n * sizeof(*m.args));
    m.arrived = 0;
    m.times++;
    now->events++;
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
    __sanitizer_finish_switch_fiber(NULL, &now->stack, &now->stack_bytes);
#endif
    now->k->body();
    if (!now->fibers[now->self].products.empty())
        fail("a thread has ended before its products");
    end_copies(&now->fibers[now->self]);
    now->fibers[now->self].is_over = true;
    now->left--;
    now->events++;
    drop(now->warps[now->self / WARP]);
    drop(now->groups[now->self / WARP / WARPS]);
    drop(now->all);
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
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(f.stack, STACK_BYTES); /* a thread that was given up */
#endif
    void **sp = (void **)(f.stack + STACK_BYTES) - 1;
    *--sp = (void *)fiber_main; /* the stack as a function finds it */
    sp -= 6;
    memset(sp, 0, 6 * sizeof(*sp));
    f.sp = sp;
    f.is_over = false;
    f.ready = NULL;
    f.copies.clear();
    f.products.clear();
    f.group = 0;
}

/* --- waiting --- */

void fail(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    fflush(stdout);
    fprintf(stderr, "cudasim: ");
    if (now && now->self >= 0)
        fprintf(stderr, "kernel at %p, block %u,%u,%u, thread %u: ", now->k->at, blockIdx.x,
                blockIdx.y, blockIdx.z, threadIdx.x);
    vfprintf(stderr, format, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    abort();
}

void wait_until(bool (*ready)(const void *at, unsigned value), const void *at, unsigned value)
{
    fiber &f = now->fibers[now->self];
    if (ready(at, value))
        return;
    f.ready = ready;
    f.at = at;
    f.value = value;
    leave(false);
}

void note_progress()
{
    now->events++;
}

void *dynamic_shared()
{
    return now->shared;
}

static bool may_read(const void *at, unsigned value)
{
    return *(const bool *)at;
}

void wait_for_kernels()
{
    wait_until(may_read, &now->may_read, 0);
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
        m.args[now->self - m.first] = arg;
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
    meet(now->warps[now->self / WARP], w, arg, fn);
}

void meet_warps(what w, void *arg, void (*fn)(void **args, int n))
{
    meet(now->groups[now->self / WARP / WARPS], w, arg, fn);
}

void sync_block()
{
    meet(now->all, SYNC, NULL, NULL);
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

void make_threads(block *b)
{
    unsigned x = b->k->threads.x, y = b->k->threads.y;
    int n = b->n = b->left = (int)(x * y * b->k->threads.z), group = WARP * WARPS;
    b->self = -1;
    for (int i = 0; i < n; i++) {
        unsigned u = (unsigned)i;
        make_fiber(b->fibers[i]);
        b->fibers[i].index = { u % x, u / x % y, u / x / y };
    }
    for (int i = 0; i < n; i += WARP)
        open_meeting(b->warps[i / WARP], i, least(WARP, n - i));
    for (int i = 0; i < n; i += group)
        open_meeting(b->groups[i / group], i, least(group, n - i));
    open_meeting(b->all, 0, n);
}

static void resume(block *b, int i)
{
    fiber &f = b->fibers[i];
    b->self = i;
    threadIdx = f.index;
    f.ready = NULL;
    switch_to(&b->sp, f.sp, f.stack, STACK_BYTES, false);
    b->self = -1;
}

void run_threads(block *b, int begin, int end, bool is_again)
{
    now = b;
    blockIdx = b->index;
    blockDim = b->k->threads;
    gridDim = b->k->grid;
    for (bool any = true; any;) {
        any = false;
        for (int k = begin; k < end; k++) {
            fiber &f = b->fibers[b->order[k]];
            if (f.is_over || (f.ready && !f.ready(f.at, f.value)))
                continue;
            resume(b, b->order[k]);
            any = is_again;
        }
    }
}

} // namespace cudasim
