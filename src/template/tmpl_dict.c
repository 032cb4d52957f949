/* tmpl_dict.c - lists and insertion-ordered dicts. */
#include "template/template_int.h"

#include <math.h>
#include <string.h>

/* Dicts up to this size are searched entry by entry. */
#define DICT_LINEAR 8

enum err_code tmpl_list_new(struct env *e, enum vtype type, size_t cap, struct value *out)
{
    struct seq *seq = tmpl_alloc(e, sizeof(*seq));
    struct value *items = cap ? tmpl_alloc_array(e, cap, sizeof(*items)) : NULL;
    TRY(tmpl_check(e));
    seq->items = items;
    seq->cap = cap;
    *out = (struct value){ .type = (uint8_t)type, .seq = seq };
    return ERR_OK;
}

enum err_code tmpl_push(struct env *e, struct value *list, struct value item)
{
    struct seq *seq = list->seq;
    if (seq->n == seq->cap) {
        size_t cap = seq->cap ? seq->cap * 2 : 4;
        struct value *items = tmpl_alloc_array(e, cap, sizeof(*items));
        TRY(tmpl_check(e));
        if (seq->n)
            memcpy(items, seq->items, seq->n * sizeof(*items));
        seq->items = items;
        seq->cap = cap;
    }
    seq->items[seq->n++] = item;
    return tmpl_step(e, 1);
}

enum err_code tmpl_dict_new(struct env *e, struct value *out)
{
    struct dict *d = tmpl_alloc(e, sizeof(*d));
    TRY(tmpl_check(e));
    *out = (struct value){ .type = V_DICT, .dict = d };
    return ERR_OK;
}

static uint64_t hash_bytes(uint64_t h, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001B3u;
    return h;
}

/* Equal values have equal hashes: 1, 1.0 and true too. False for a value that cannot be a key. */
static bool hash_value(const struct value *v, uint64_t *h)
{
    *h = 0xCBF29CE484222325u;
    switch (v->type) {
    case V_STR:
    case V_BIG:
        *h = hash_bytes(*h, v->s->s, v->s->n);
        return true;
    case V_BOOL:
    case V_INT:
    case V_FLOAT: {
        double d = v->type == V_BOOL ? v->b : v->type == V_INT ? (double)v->i : v->f;
        d = d == 0 ? 0 : d;
        *h = hash_bytes(*h, (const char *)&d, sizeof(d));
        return true;
    }
    case V_TUPLE:
        for (size_t i = 0; i < v->seq->n; i++) {
            uint64_t item;
            if (!hash_value(&v->seq->items[i], &item))
                return false;
            *h = hash_bytes(*h, (const char *)&item, sizeof(item));
        }
        return true;
    case V_LIST:
    case V_DICT:
    case V_VIEW:
        return false;
    default:
        *h += v->type;
        return true;
    }
}

static enum err_code dict_hash(struct env *e, const struct value *key, uint64_t *h)
{
    if (hash_value(key, h))
        return ERR_OK;
    return tmpl_fail(e, "TypeError: unhashable type: '%s'",
                     key->type == V_TUPLE ? "list" : tmpl_type_name(key));
}

static void dict_index_add(struct dict *d, size_t entry)
{
    size_t at = d->entries[entry].hash & (d->index_cap - 1);
    while (d->index[at])
        at = (at + 1) & (d->index_cap - 1);
    d->index[at] = (uint32_t)entry + 1;
}

static enum err_code dict_find(struct env *e, const struct dict *d, const struct value *key,
                               uint64_t h, struct dict_entry **out)
{
    bool is_same = false;
    *out = NULL;
    if (!d->index) {
        for (size_t i = 0; i < d->n && !is_same; i++) {
            if (d->entries[i].hash != h)
                continue;
            TRY(tmpl_equal(e, &d->entries[i].key, key, &is_same));
            if (is_same)
                *out = &d->entries[i];
        }
        return ERR_OK;
    }
    for (size_t at = h & (d->index_cap - 1); d->index[at]; at = (at + 1) & (d->index_cap - 1)) {
        struct dict_entry *entry = &d->entries[d->index[at] - 1];
        if (entry->hash != h)
            continue;
        TRY(tmpl_equal(e, &entry->key, key, &is_same));
        if (is_same) {
            *out = entry;
            break;
        }
    }
    return ERR_OK;
}

static enum err_code dict_grow(struct env *e, struct dict *d)
{
    size_t cap = d->cap ? d->cap * 2 : 4;
    struct dict_entry *entries = tmpl_alloc_array(e, cap, sizeof(*entries));
    TRY(tmpl_check(e));
    if (d->n)
        memcpy(entries, d->entries, d->n * sizeof(*entries));
    d->entries = entries;
    d->cap = cap;
    if (cap <= DICT_LINEAR)
        return ERR_OK;
    d->index_cap = cap * 2;
    d->index = tmpl_alloc_array(e, d->index_cap, sizeof(*d->index));
    TRY(tmpl_check(e));
    for (size_t i = 0; i < d->n; i++)
        dict_index_add(d, i);
    return ERR_OK;
}

enum err_code tmpl_dict_set(struct env *e, struct dict *d, struct value key, struct value value)
{
    uint64_t h;
    struct dict_entry *entry;
    TRY(dict_hash(e, &key, &h));
    TRY(dict_find(e, d, &key, h, &entry));
    if (entry) {
        entry->value = value;
        return ERR_OK;
    }
    if (d->n == d->cap)
        TRY(dict_grow(e, d));
    d->entries[d->n++] = (struct dict_entry){ .key = key, .value = value, .hash = h };
    if (d->index)
        dict_index_add(d, d->n - 1);
    return ERR_OK;
}

enum err_code tmpl_dict_get(struct env *e, const struct dict *d, const struct value *key,
                            struct value **out)
{
    uint64_t h;
    struct dict_entry *entry;
    TRY(dict_hash(e, key, &h));
    TRY(dict_find(e, d, key, h, &entry));
    *out = entry ? &entry->value : NULL;
    return ERR_OK;
}

struct value *tmpl_dict_str(const struct dict *d, const char *key, size_t n)
{
    struct str s = { .s = key, .n = n };
    struct value v = { .type = V_STR, .s = &s };
    struct dict_entry *entry = NULL;
    uint64_t h;
    if (!hash_value(&v, &h) || dict_find(NULL, d, &v, h, &entry) || !entry)
        return NULL;
    return &entry->value;
}

bool tmpl_len(const struct value *v, size_t *n)
{
    switch (v->type) {
    case V_UNDEF:
        *n = 0;
        return true;
    case V_STR:
        *n = str_chars(v->s);
        return true;
    case V_LIST:
    case V_TUPLE:
        *n = v->seq->n;
        return true;
    case V_DICT:
        *n = v->dict->n;
        return true;
    case V_VIEW:
        *n = v->view->dict->n;
        return true;
    case V_RANGE:
        *n = v->range->n;
        return true;
    default:
        return false;
    }
}
