#include "engine/tier_index.h"
#include "base/mem.h"

#include <string.h>

/* A second of work per MiB is worth ten minutes of age. */
#define TIER_WORTH_S 600

void tier_index_init(struct tier_index *ix)
{
    *ix = (struct tier_index){ .free_slot = -1 };
}

void tier_index_release(struct tier_index *ix)
{
    for (int32_t i = 0; i < ix->n_slots; i++) {
        mem_free(MEM_CAT_KV, ix->entries[i].ids);
        mem_free(MEM_CAT_KV, ix->entries[i].path);
    }
    mem_free(MEM_CAT_KV, ix->entries);
    mem_free(MEM_CAT_KV, ix->by_key);
    mem_free(MEM_CAT_KV, ix->by_parent);
    tier_index_init(ix);
}

/* --- hashing --- */

static int32_t *bucket(const struct tier_index *ix, int32_t *table, struct tier_key key)
{
    return &table[key.lo & (uint64_t)(ix->n_buckets - 1)];
}

static void link_in(struct tier_index *ix, int32_t i)
{
    struct tier_entry *e = &ix->entries[i];
    int32_t *k = bucket(ix, ix->by_key, e->key), *p = bucket(ix, ix->by_parent, e->parent);
    e->key_next = *k;
    *k = i;
    e->parent_next = *p;
    *p = i;
}

static bool index_grow(struct tier_index *ix)
{
    int32_t n = ix->n_slots > 0 ? ix->n_slots * 2 : 256;
    struct tier_entry *entries = mem_try_array(MEM_CAT_KV, (size_t)n, sizeof(*entries));
    int32_t *by_key = mem_try_array(MEM_CAT_KV, (size_t)n, sizeof(*by_key));
    int32_t *by_parent = mem_try_array(MEM_CAT_KV, (size_t)n, sizeof(*by_parent));
    bool is_ok = n < INT32_MAX / 2 && entries && by_key && by_parent;
    if (is_ok && ix->n_slots > 0)
        memcpy(entries, ix->entries, (size_t)ix->n_slots * sizeof(*entries));
    mem_free(MEM_CAT_KV, is_ok ? ix->entries : entries);
    mem_free(MEM_CAT_KV, is_ok ? ix->by_key : by_key);
    mem_free(MEM_CAT_KV, is_ok ? ix->by_parent : by_parent);
    if (!is_ok)
        return false;
    ix->entries = entries;
    ix->by_key = by_key;
    ix->by_parent = by_parent;
    ix->n_buckets = n;
    memset(by_key, 0xFF, (size_t)n * sizeof(*by_key));
    memset(by_parent, 0xFF, (size_t)n * sizeof(*by_parent));
    for (int32_t i = 0; i < ix->n_slots; i++)
        if (entries[i].n_ids >= 0 && !entries[i].path)
            link_in(ix, i);
    for (int32_t i = n; i-- > ix->n_slots;) {
        entries[i] = (struct tier_entry){ .n_ids = -1, .parent_next = ix->free_slot };
        ix->free_slot = i;
    }
    ix->n_slots = n;
    return true;
}

static struct tier_entry *take_slot(struct tier_index *ix, int32_t *slot)
{
    if (ix->free_slot < 0 && !index_grow(ix))
        return NULL;
    *slot = ix->free_slot;
    struct tier_entry *e = &ix->entries[*slot];
    ix->free_slot = e->parent_next;
    return e;
}

static void give_slot(struct tier_index *ix, int32_t i)
{
    ix->entries[i] = (struct tier_entry){ .n_ids = -1, .parent_next = ix->free_slot };
    ix->free_slot = i;
}

/* --- entries --- */

enum err_code tier_index_add(struct tier_index *ix, const struct tier_record *r, int64_t bytes,
                             int64_t used_s, struct err *err)
{
    int32_t i;
    struct tier_entry *e = take_slot(ix, &i);
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for the list of %d files", ix->n_slots);
    *e = (struct tier_entry){ .key = r->key,
                              .parent = r->parent,
                              .kind = r->kind,
                              .offset = r->offset,
                              .n_ids = r->n_ids,
                              .window_first = r->window_first,
                              .n_window = r->n_window,
                              .ids = mem_try_array(MEM_CAT_KV, (size_t)r->n_ids, sizeof(*r->ids)),
                              .bytes = bytes,
                              .used_s = used_s,
                              .seconds = r->seconds };
    if (!e->ids) {
        give_slot(ix, i);
        return err_set(err, ERR_NOMEM, "no memory for the list of %d files", ix->n_slots);
    }
    memcpy(e->ids, r->ids, (size_t)r->n_ids * sizeof(*r->ids));
    link_in(ix, i);
    ix->n_entries++;
    ix->n_bytes += bytes;
    return ERR_OK;
}

enum err_code tier_index_add_other(struct tier_index *ix, const char *path, int64_t bytes,
                                   int64_t used_s, struct err *err)
{
    int32_t i;
    struct tier_entry *e = take_slot(ix, &i);
    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for the list of %d files", ix->n_slots);
    *e = (struct tier_entry){ .bytes = bytes,
                              .used_s = used_s,
                              .path = mem_strdup(MEM_CAT_KV, path),
                              .key_next = -1,
                              .parent_next = -1 };
    ix->n_entries++;
    ix->n_bytes += bytes;
    return ERR_OK;
}

void tier_index_remove(struct tier_index *ix, int32_t i)
{
    struct tier_entry *e = &ix->entries[i];
    BUG_ON(e->n_ids < 0);
    if (!e->path) {
        int32_t *at = bucket(ix, ix->by_key, e->key);
        while (*at != i)
            at = &ix->entries[*at].key_next;
        *at = e->key_next;
        at = bucket(ix, ix->by_parent, e->parent);
        while (*at != i)
            at = &ix->entries[*at].parent_next;
        *at = e->parent_next;
    }
    ix->n_entries--;
    ix->n_bytes -= e->bytes;
    mem_free(MEM_CAT_KV, e->ids);
    mem_free(MEM_CAT_KV, e->path);
    give_slot(ix, i);
}

int32_t tier_index_find(const struct tier_index *ix, struct tier_key key)
{
    int32_t i = ix->n_buckets > 0 ? *bucket(ix, ix->by_key, key) : -1;
    while (i >= 0 && !tier_key_equal(ix->entries[i].key, key))
        i = ix->entries[i].key_next;
    return i;
}

static int32_t of_parent(const struct tier_index *ix, int32_t i, struct tier_key parent)
{
    while (i >= 0 && !tier_key_equal(ix->entries[i].parent, parent))
        i = ix->entries[i].parent_next;
    return i;
}

int32_t tier_index_child(const struct tier_index *ix, struct tier_key parent)
{
    return ix->n_buckets > 0 ? of_parent(ix, *bucket(ix, ix->by_parent, parent), parent) : -1;
}

int32_t tier_index_next(const struct tier_index *ix, int32_t i)
{
    return of_parent(ix, ix->entries[i].parent_next, ix->entries[i].parent);
}

int32_t tier_index_victim(const struct tier_index *ix)
{
    int32_t best = -1;
    double least = 0;
    for (int32_t i = 0; i < ix->n_slots; i++) {
        const struct tier_entry *e = &ix->entries[i];
        if (e->n_ids < 0 || (!e->path && tier_index_child(ix, e->key) >= 0))
            continue;
        double mib = (double)e->bytes / 0x1p20;
        double worth = (double)e->used_s + TIER_WORTH_S * e->seconds / (mib > 0.001 ? mib : 0.001);
        if (best < 0 || worth < least) {
            best = i;
            least = worth;
        }
    }
    return best;
}

void tier_index_record(const struct tier_index *ix, int32_t i,
                       const uint8_t salt[ENGINE_SALT_BYTES], struct tier_record *out)
{
    const struct tier_entry *e = &ix->entries[i];
    *out = (struct tier_record){ .kind = e->kind,
                                 .key = e->key,
                                 .parent = e->parent,
                                 .offset = e->offset,
                                 .n_ids = e->n_ids,
                                 .window_first = e->window_first,
                                 .n_window = e->n_window,
                                 .seconds = e->seconds };
    memcpy(out->salt, salt, ENGINE_SALT_BYTES);
    memcpy(out->ids, e->ids, (size_t)e->n_ids * sizeof(*e->ids));
}
