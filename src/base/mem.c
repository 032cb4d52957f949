#include "base/mem.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static _Atomic int64_t mem_live[MEM_CAT_COUNT], mem_device[MEM_CAT_COUNT];
static _Atomic int64_t mem_fail_countdown;
static _Thread_local int mem_guard_depth;

static const char *const mem_names[MEM_CAT_COUNT] = {
    [MEM_CAT_BASE] = "base",
    [MEM_CAT_WEIGHTS] = "weights",
    [MEM_CAT_KV] = "kv",
    [MEM_CAT_SCRATCH] = "scratch",
    [MEM_CAT_TOKENIZER] = "tokenizer",
    [MEM_CAT_TEMPLATE] = "template",
    [MEM_CAT_GRAMMAR] = "grammar",
    [MEM_CAT_REQUEST] = "request",
    [MEM_CAT_SERVER] = "server",
};

const char *mem_cat_name(enum mem_cat cat)
{
    BUG_ON((unsigned)cat >= MEM_CAT_COUNT);
    return mem_names[cat];
}

static void mem_count(enum mem_cat cat, int64_t delta)
{
    atomic_fetch_add_explicit(&mem_live[cat], delta, memory_order_relaxed);
}

void mem_count_device(enum mem_cat cat, int64_t delta)
{
    atomic_fetch_add_explicit(&mem_device[cat], delta, memory_order_relaxed);
}

int64_t mem_device_bytes(enum mem_cat cat)
{
    BUG_ON((unsigned)cat >= MEM_CAT_COUNT);
    return atomic_load_explicit(&mem_device[cat], memory_order_relaxed);
}

static void mem_check_guard(void)
{
#ifdef PLUMB_DEBUG
    BUG_ON(mem_guard_depth > 0);
#endif
}

void mem_guard_enter(void)
{
    mem_guard_depth++;
}

void mem_guard_leave(void)
{
    BUG_ON(mem_guard_depth == 0);
    mem_guard_depth--;
}

int mem_guard_suspend(void)
{
    int depth = mem_guard_depth;
    mem_guard_depth = 0;
    return depth;
}

void mem_guard_resume(int depth)
{
    BUG_ON(mem_guard_depth != 0);
    mem_guard_depth = depth;
}

void mem_fail_nth(int64_t n)
{
    atomic_store(&mem_fail_countdown, n);
}

static bool mem_should_fail(void)
{
    if (atomic_load_explicit(&mem_fail_countdown, memory_order_relaxed) == 0)
        return false;
    return atomic_fetch_sub(&mem_fail_countdown, 1) == 1;
}

static void *mem_get(enum mem_cat cat, size_t n)
{
    mem_check_guard();
    void *p = calloc(1, n ? n : 1);
    if (p)
        mem_count(cat, (int64_t)malloc_usable_size(p));
    return p;
}

void *mem_alloc(enum mem_cat cat, size_t n)
{
    void *p = mem_get(cat, n);
    BUG_ON(!p);
    return p;
}

void *mem_realloc(enum mem_cat cat, void *p, size_t n)
{
    mem_check_guard();
    int64_t before = p ? (int64_t)malloc_usable_size(p) : 0;
    void *q = realloc(p, n ? n : 1);
    BUG_ON(!q);
    mem_count(cat, (int64_t)malloc_usable_size(q) - before);
    return q;
}

void *mem_try(enum mem_cat cat, size_t n)
{
    if (mem_should_fail())
        return NULL;
    return mem_get(cat, n);
}

void *mem_try_array(enum mem_cat cat, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        return NULL;
    return mem_try(cat, bytes);
}

#define MEM_HUGE ((size_t)2 << 20)

static size_t mem_big_size(size_t n)
{
    size_t unit = n >= MEM_HUGE ? MEM_HUGE : 4096;
    return (n + unit - 1) / unit * unit;
}

void *mem_try_big(enum mem_cat cat, size_t n)
{
    mem_check_guard();
    if (mem_should_fail() || n > SIZE_MAX / 2)
        return NULL;
    size_t size = mem_big_size(n ? n : 1);
    size_t span = size >= MEM_HUGE ? size + MEM_HUGE : size;
    char *p = mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if (span !=
        size) { /* cut to a huge page border, so that the kernel can use huge pages throughout */
        char *at = (char *)(((uintptr_t)p + MEM_HUGE - 1) & ~(uintptr_t)(MEM_HUGE - 1));
        if (at > p)
            munmap(p, (size_t)(at - p));
        if (p + span > at + size)
            munmap(at + size, (size_t)(p + span - (at + size)));
        p = at;
        madvise(p, size, MADV_HUGEPAGE);
    }
    mem_count(cat, (int64_t)size);
    return p;
}

void mem_free_big(enum mem_cat cat, void *p, size_t n)
{
    if (!p)
        return;
    size_t size = mem_big_size(n ? n : 1);
    munmap(p, size);
    mem_count(cat, -(int64_t)size);
}

/* Committed in steps of this: few system calls, little memory beyond what is used (untouched pages cost nothing). */
#define REGION_STEP ((size_t)64 << 20)

bool mem_region_init(struct mem_region *r, enum mem_cat cat, size_t max)
{
    *r = (struct mem_region){ .cat = cat };
    if (max > SIZE_MAX / 2 - MEM_HUGE)
        return false;
    max = mem_big_size(max);
    char *p =
        mmap(NULL, max + MEM_HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return false;
    char *at = (char *)(((uintptr_t)p + MEM_HUGE - 1) & ~(uintptr_t)(MEM_HUGE - 1));
    if (at > p)
        munmap(p, (size_t)(at - p));
    if (p + MEM_HUGE > at)
        munmap(at + max, (size_t)(p + MEM_HUGE - at));
    r->base = at;
    r->max = max;
    return true;
}

void mem_region_release(struct mem_region *r)
{
    if (!r->base)
        return;
    mem_count(r->cat, -(int64_t)r->used);
    munmap(r->base, r->max);
    *r = (struct mem_region){ .cat = r->cat };
}

void *mem_region_take(struct mem_region *r, size_t n)
{
    mem_check_guard();
    if (mem_should_fail() || !r->base || n > r->max - r->used)
        return NULL;
    n = (n + 63) & ~(size_t)63;
    if (n > r->max - r->used)
        return NULL;
    size_t end = r->used + n;
    if (end > r->committed) {
        size_t to = (end + REGION_STEP - 1) / REGION_STEP * REGION_STEP;
        to = to < r->max ? to : r->max;
        char *at = r->base + r->committed;
        if (mprotect(at, to - r->committed, PROT_READ | PROT_WRITE) != 0)
            return NULL;
        madvise(at, to - r->committed, MADV_HUGEPAGE);
        r->committed = to;
    }
    void *p = r->base + r->used;
    r->used = end;
    mem_count(r->cat, (int64_t)n);
    return p;
}

void mem_region_reset(struct mem_region *r)
{
    if (r->committed)
        madvise(r->base, r->committed, MADV_DONTNEED); /* also makes it zero again */
    mem_count(r->cat, -(int64_t)r->used);
    r->used = 0;
}

void mem_free(enum mem_cat cat, void *p)
{
    if (!p)
        return;
    mem_check_guard();
    mem_count(cat, -(int64_t)malloc_usable_size(p));
    free(p);
}

char *mem_strndup(enum mem_cat cat, const char *s, size_t n)
{
    char *p = mem_alloc(cat, n + 1);
    memcpy(p, s, n);
    return p;
}

char *mem_strdup(enum mem_cat cat, const char *s)
{
    return mem_strndup(cat, s, strlen(s));
}

int64_t mem_bytes(enum mem_cat cat)
{
    return atomic_load_explicit(&mem_live[cat], memory_order_relaxed);
}

/* --- arenas --- */

#define ARENA_BLOCK ((size_t)16 << 10) /* first block; later ones double up to 1 MiB */

struct arena_block {
    struct arena_block *next;
    size_t size, used;
    _Alignas(16) char data[];
};

void arena_init(struct arena *a, enum mem_cat cat, size_t max)
{
    *a = (struct arena){ .cat = cat, .max = max };
}

void arena_release(struct arena *a)
{
    while (a->blocks) {
        struct arena_block *b = a->blocks;
        a->blocks = b->next;
        mem_free(a->cat, b);
    }
    a->used = 0;
}

void arena_reset(struct arena *a)
{
    while (a->blocks && a->blocks->next) {
        struct arena_block *b = a->blocks;
        a->blocks = b->next;
        mem_free(a->cat, b);
    }
    if (a->blocks) {
        memset(a->blocks->data, 0, a->blocks->used);
        a->blocks->used = 0;
    }
    a->used = 0;
}

void *arena_alloc(struct arena *a, size_t n)
{
    if (n > SIZE_MAX - 16)
        return NULL;
    n = n ? (n + 15) & ~(size_t)15 : 16;
    if (n > a->max - a->used)
        return NULL;
    struct arena_block *b = a->blocks;
    if (!b || b->size - b->used < n) {
        size_t size = b ? b->size * 2 : ARENA_BLOCK;
        if (size > (size_t)1 << 20)
            size = (size_t)1 << 20;
        if (size < n)
            size = n;
        b = mem_try(a->cat, sizeof(*b) + size);
        if (!b)
            return NULL;
        b->size = size;
        b->next = a->blocks;
        a->blocks = b;
    }
    void *p = b->data + b->used;
    b->used += n;
    a->used += n;
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    if (p && n)
        memcpy(p, s, n);
    return p;
}
