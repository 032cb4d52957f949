/* tier_index.h - what is on disk, in memory: found by key, listed by parent, given up by age and worth.
 *
 * Owns: one entry for each file, with its ids (0.03 % of the file). Files of other namespaces are entries without ids: they count to
 * the cap and go by age. Thread: none of its own; tier.c holds its lock around every call.
 * Invariants: (1) an entry is found by its key iff it is of this namespace; (2) n_bytes is the sum over all entries. */
#ifndef PLUMB_ENGINE_TIER_INDEX_H
#define PLUMB_ENGINE_TIER_INDEX_H

#include "engine/tier_file.h"

struct tier_entry {
    struct tier_key key, parent;
    enum tier_kind kind;
    int32_t offset, n_ids; /* n_ids -1: the slot is free, its parent_next the next free one */
    int32_t window_first, n_window;
    int32_t *ids; /* [n_ids] */
    int64_t bytes, used_s;
    double seconds;
    char *path; /* of another namespace's file; NULL: it is one of ours */
    int32_t key_next, parent_next;
};

struct tier_index {
    struct tier_entry *entries;  /* [n_slots] */
    int32_t *by_key, *by_parent; /* [n_buckets] a power of two; -1 = empty */
    int32_t n_slots, n_buckets, free_slot, n_entries;
    int64_t n_bytes;
};

void tier_index_init(struct tier_index *ix);
void tier_index_release(struct tier_index *ix);

/* Errors: ERR_NOMEM. The record's key must not be there yet. */
enum err_code tier_index_add(struct tier_index *ix, const struct tier_record *r, int64_t bytes,
                             int64_t used_s, struct err *err) MUST_CHECK;
enum err_code tier_index_add_other(struct tier_index *ix, const char *path, int64_t bytes,
                                   int64_t used_s, struct err *err) MUST_CHECK;
void tier_index_remove(struct tier_index *ix, int32_t i);

/* All: -1 = there is none. */
int32_t tier_index_find(const struct tier_index *ix, struct tier_key key);
int32_t tier_index_child(const struct tier_index *ix, struct tier_key parent); /* the first */
int32_t tier_index_next(const struct tier_index *ix, int32_t i); /* of the same parent */
/* The one to give up: nothing stands on it, and it was used longest ago; what is costly to compute lives longer. */
int32_t tier_index_victim(const struct tier_index *ix);

void tier_index_record(const struct tier_index *ix, int32_t i,
                       const uint8_t salt[ENGINE_SALT_BYTES], struct tier_record *out);

#endif
