/* map.h - byte string -> int32 hash map (open addressing, seeded), for vocabularies and names.
 *
 * Keys are borrowed: the caller keeps them alive and unmoved. Values are >= 0. Not thread-safe for writing. */
#ifndef PLUMB_BASE_MAP_H
#define PLUMB_BASE_MAP_H

#include "base/mem.h"

struct map {
    size_t len; /* entries */
    enum mem_cat cat;
    /* private to map.c from here */
    struct map_slot *slots;
    size_t cap; /* power of two, or 0 */
};

void map_init(struct map *m, enum mem_cat cat);
void map_release(struct map *m);

/* Make room for n entries in all, so that adding them does not rebuild the table. */
void map_reserve(struct map *m, size_t n);

/* Set key to value. Returns false and changes nothing if the key is there already. */
bool map_add(struct map *m, const char *key, size_t n, int32_t value);

/* The value, or -1. */
int32_t map_get(const struct map *m, const char *key, size_t n);

#endif
