/* kv_pool.h - the pages of one cache group and the tables that map a sequence's positions onto them.
 *
 * Owns: page ids and their reference counts, not the pages' bytes (runner.h has those: page i is page i of every layer of the
 * group). A page holds KV_PAGE_TOKENS positions aligned to absolute position. Never grows after kv_pool_init.
 * A *table* belongs to one sequence. Its claim (pages held + pages reserved) is what it can use without asking again: pages
 * that it gives up by truncate or drop stay reserved for it until kv_table_reset, so what was promised once is there.
 * Thread: engine thread. Allocation: none after the init functions.
 * Invariants: (1) a page is free xor referenced; (2) a page's count is the number of table entries that name it and of other holders; (3) a table maps
 * [first, n) without holes and nothing below first; (4) the tables' reserved pages sum to n_reserved <= n_free.
 * kv_pool_check() verifies all four; tests call it after every operation. */
#ifndef PLUMB_ENGINE_KV_POOL_H
#define PLUMB_ENGINE_KV_POOL_H

#include "base/mem.h"

struct kv_pool {
    int32_t n_pages;    /* total, fixed */
    int32_t n_free;     /* unreferenced ones */
    int32_t n_reserved; /* of the free ones, promised to tables */
    int32_t n_idle;     /* kept ones (kv_pool_keep) that nothing else names */
    /* private to kv_pool.c from here */
    int32_t *free_list; /* [n_pages], the first n_free are valid */
    int32_t *refs;      /* [n_pages] */
    uint8_t *is_kept;   /* [n_pages] */
};

struct kv_table {
    int32_t
        *pages;    /* [cap]; entry i holds positions [i*P, (i+1)*P); -1 below first and from n on */
    int32_t first; /* lowest entry that is held */
    int32_t n;     /* one past the highest entry held */
    int32_t n_reserved; /* pages that it may take without asking */
    int32_t cap;
};

/* Errors: ERR_NOMEM. Release with the release functions (fine on zeroed structs). */
enum err_code kv_pool_init(struct kv_pool *p, int32_t n_pages, struct err *err) MUST_CHECK;
void kv_pool_release(struct kv_pool *p);

enum err_code kv_table_init(struct kv_table *t, int32_t cap, struct err *err) MUST_CHECK;
/* Frees the table's memory; its pages must have been given back by kv_table_reset. */
void kv_table_release(struct kv_table *t);

/* Give every page and reservation back. */
void kv_table_reset(struct kv_pool *p, struct kv_table *t);

/* Promise n more pages to the table. Errors: ERR_FULL (names both numbers); nothing changed. */
enum err_code kv_table_reserve(struct kv_pool *p, struct kv_table *t, int32_t n,
                               struct err *err) MUST_CHECK;

/* Positions [0, n) that the table may cover with what it holds and was promised. */
int32_t kv_table_room(const struct kv_table *t);

/* Make the table cover positions [.., n_tokens) with reserved pages.
 * Errors: ERR_FULL - n_tokens is over the table's cap; ERR_STATE - too few pages were reserved; nothing changed. */
enum err_code kv_table_extend(struct kv_pool *p, struct kv_table *t, int32_t n_tokens,
                              struct err *err) MUST_CHECK;

/* Give up the pages above position n_tokens (a rollback) or wholly below position pos (a window moved on). */
void kv_table_truncate(struct kv_pool *p, struct kv_table *t, int32_t n_tokens);
void kv_table_drop_below(struct kv_pool *p, struct kv_table *t, int32_t pos);

/* An empty table begins at entry first: nothing below is held. */
void kv_table_begin_at(struct kv_table *t, int32_t first);

/* Does another table hold the page of entry i too? */
bool kv_table_is_shared(const struct kv_pool *p, const struct kv_table *t, int32_t i);

/* Make an empty table name the first n pages of another one, each with one reference more. Need: from->first == 0. */
void kv_table_share(struct kv_pool *p, struct kv_table *t, const struct kv_table *from, int32_t n);

/* Make an empty table name the pages of another one, wherever it begins, with one reference more each. */
void kv_table_hold(struct kv_pool *p, struct kv_table *t, const struct kv_table *from);

/* Pages needed for n tokens. */
int32_t kv_pages_for(int32_t n_tokens);

/* A holder that is no table (prefix.h): one reference more of a page that is in use, one less; the references it has. */
void kv_pool_hold(struct kv_pool *p, int32_t page);
void kv_pool_drop(struct kv_pool *p, int32_t page);
int32_t kv_pool_refs(const struct kv_pool *p, int32_t page);
/* The same, and the page counts as kept in between: in n_idle while it has no other reference. Once at a time. */
void kv_pool_keep(struct kv_pool *p, int32_t page);
void kv_pool_unkeep(struct kv_pool *p, int32_t page);

/* Verify the invariants over all of the pool's tables. held [n_pages]: references of other holders; NULL = none.
 * Errors: ERR_STATE, naming the first violation. */
enum err_code kv_pool_check(const struct kv_pool *p, const struct kv_table *const *tables,
                            int32_t n_tables, const int32_t *held, struct err *err) MUST_CHECK;

#endif
