#include "base/map.h"

#include <string.h>

struct map_slot {
    const char *key; /* NULL = free */
    uint32_t n;
    int32_t value;
    uint64_t hash;
};

/* FNV-1a over 8-byte words with a final mix: keys are short, and the table grows before chains do. */
static uint64_t map_hash(const char *key, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u ^ n;
    while (n >= 8) {
        uint64_t w;
        memcpy(&w, key, 8);
        h = (h ^ w) * 0x100000001b3u;
        h ^= h >> 29;
        key += 8;
        n -= 8;
    }
    for (; n; n--)
        h = (h ^ (unsigned char)*key++) * 0x100000001b3u;
    h ^= h >> 32;
    h *= 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

void map_init(struct map *m, enum mem_cat cat)
{
    *m = (struct map){ .cat = cat };
}

void map_release(struct map *m)
{
    mem_free(m->cat, m->slots);
    map_init(m, m->cat);
}

static struct map_slot *map_find(const struct map *m, const char *key, size_t n, uint64_t hash)
{
    for (size_t i = hash & (m->cap - 1);; i = (i + 1) & (m->cap - 1)) {
        struct map_slot *s = &m->slots[i];
        if (!s->key || (s->hash == hash && s->n == n && memcmp(s->key, key, n) == 0))
            return s;
    }
}

static void map_resize(struct map *m, size_t cap)
{
    struct map_slot *old = m->slots;
    size_t old_cap = m->cap;
    m->cap = cap;
    m->slots = mem_alloc(m->cat, m->cap * sizeof(*m->slots));
    for (size_t i = 0; i < old_cap; i++)
        if (old[i].key)
            *map_find(m, old[i].key, old[i].n, old[i].hash) = old[i];
    mem_free(m->cat, old);
}

void map_reserve(struct map *m, size_t n)
{
    size_t cap = m->cap ? m->cap : 64;
    while (cap < n * 2)
        cap *= 2;
    if (cap > m->cap)
        map_resize(m, cap);
}

bool map_add(struct map *m, const char *key, size_t n, int32_t value)
{
    BUG_ON(!key || n > UINT32_MAX || value < 0);
    if ((m->len + 1) * 2 > m->cap)
        map_resize(m, m->cap ? m->cap * 2 : 64);
    uint64_t hash = map_hash(key, n);
    struct map_slot *s = map_find(m, key, n, hash);
    if (s->key)
        return false;
    *s = (struct map_slot){ .key = key, .n = (uint32_t)n, .value = value, .hash = hash };
    m->len++;
    return true;
}

int32_t map_get(const struct map *m, const char *key, size_t n)
{
    if (m->cap == 0)
        return -1;
    const struct map_slot *s = map_find(m, key, n, map_hash(key, n));
    return s->key ? s->value : -1;
}
