/* mem.h - the ledger of memory: accounted allocation by category, arenas, a guard against allocating in a step.
 *
 * Nothing outside base/ calls malloc (the lint checks it). Every block has a category; the counters are what /metrics and
 * leak checks read. Thread: any; the guard is per thread. */
#ifndef PLUMB_BASE_MEM_H
#define PLUMB_BASE_MEM_H

#include "base/err.h"

#include <stdint.h>

enum mem_cat {
    MEM_CAT_BASE,
    MEM_CAT_WEIGHTS,
    MEM_CAT_KV,
    MEM_CAT_SCRATCH, /* step buffers */
    MEM_CAT_TOKENIZER,
    MEM_CAT_TEMPLATE,
    MEM_CAT_GRAMMAR,
    MEM_CAT_REQUEST,
    MEM_CAT_SERVER,
    MEM_CAT_COUNT
};

/* Bookkeeping, small and bounded: aborts when the system has no memory. Zeroed. Never NULL (n = 0 gives a block). */
void *mem_alloc(enum mem_cat cat, size_t n) __attribute__((malloc, returns_nonnull));

/* Grow or shrink; the added bytes are not zeroed. p may be NULL. Aborts as mem_alloc. */
void *mem_realloc(enum mem_cat cat, void *p, size_t n);

/* Sized by input, model or concurrency: NULL when there is none (or the test hook says so). Zeroed. */
void *mem_try(enum mem_cat cat, size_t n) MUST_CHECK;

/* As mem_try for n elements of size bytes; NULL also when the product overflows. */
void *mem_try_array(enum mem_cat cat, size_t n, size_t size) MUST_CHECK;

/* 64-byte aligned, zeroed; from 2 MiB up it asks for huge pages. NULL when there is none. Freed by mem_free_big alone. */
void *mem_try_big(enum mem_cat cat, size_t n) MUST_CHECK;
void mem_free_big(enum mem_cat cat, void *p, size_t n);

/* One range of addresses that fills from the front, for many large blocks that live together (packed weights): no block pays
 * for rounding to a huge page. Memory is committed as it is taken. Not thread-safe. */
struct mem_region {
    enum mem_cat cat;
    char *base;
    size_t max;       /* bytes of addresses */
    size_t used;      /* bytes handed out, padding included */
    size_t committed; /* bytes that may be touched */
};

bool mem_region_init(struct mem_region *r, enum mem_cat cat, size_t max) MUST_CHECK;
void mem_region_release(struct mem_region *r); /* a zeroed region is fine */
/* 64-byte aligned, zeroed. NULL: max is reached or the system has no memory. */
void *mem_region_take(struct mem_region *r, size_t n) MUST_CHECK;
/* Empty it; every block is gone. */
void mem_region_reset(struct mem_region *r);

void mem_free(enum mem_cat cat, void *p); /* p may be NULL */
char *mem_strdup(enum mem_cat cat, const char *s);
char *mem_strndup(enum mem_cat cat, const char *s,
                  size_t n); /* copies n bytes, adds a terminator */

int64_t mem_bytes(enum mem_cat cat); /* live bytes, atomic read */
/* Memory of a device, which its backend takes and gives: counted beside, under the same categories. */
void mem_count_device(enum mem_cat cat, int64_t delta);
int64_t mem_device_bytes(enum mem_cat cat);
const char *mem_cat_name(enum mem_cat cat);

/* While armed, mem_* on this thread is a bug in debug builds (no effect in release). Nests. */
void mem_guard_enter(void);
void mem_guard_leave(void);
/* Set it aside, for a tool that allocates in the middle of a step (tensor/compare.h); returns what resume takes. */
int mem_guard_suspend(void) MUST_CHECK;
void mem_guard_resume(int depth);

/* Test hook: the n-th mem_try* from now fails (0 = off). */
void mem_fail_nth(int64_t n);

/* An arena: bump allocation, dropped once. Not thread-safe. */
struct arena {
    enum mem_cat cat;
    size_t max;  /* byte cap over all blocks */
    size_t used; /* bytes handed out, padding included */
    struct arena_block *blocks;
};

void arena_init(struct arena *a, enum mem_cat cat, size_t max);
void arena_release(struct arena *a);
void arena_reset(struct arena *a); /* empty; keeps the first block */

/* 16-byte aligned, zeroed. NULL when the cap is reached or the system has no memory. */
void *arena_alloc(struct arena *a, size_t n) MUST_CHECK;
char *arena_strndup(struct arena *a, const char *s, size_t n) MUST_CHECK;

#endif
