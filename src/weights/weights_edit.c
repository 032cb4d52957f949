#include "weights/weights_edit.h"
#include "weights/weights_int.h"

#include <inttypes.h>
#include <string.h>

#define EDIT_KEYS_LEAST 64
#define EDIT_KEY_MAX    255

void *weights_alloc(struct weights *w, size_t n)
{
    return arena_alloc(&w->arena, n);
}

char *weights_strndup(struct weights *w, const char *s, size_t n)
{
    return arena_strndup(&w->arena, s, n);
}

static enum err_code edit_grow(struct meta_table *meta, struct err *err)
{
    int32_t cap = meta->cap ? meta->cap * 2 : meta->n + EDIT_KEYS_LEAST;
    if (meta->n < meta->cap)
        return ERR_OK;
    if (meta->n >= WEIGHTS_META_MAX)
        return err_set(err, ERR_INVALID, "over %d keys", WEIGHTS_META_MAX);
    struct meta_entry *entries = mem_try_array(MEM_CAT_WEIGHTS, (size_t)cap, sizeof(*entries));
    if (!entries)
        return err_set(err, ERR_NOMEM, "no memory for %" PRId32 " keys", cap);
    if (meta->n)
        memcpy(entries, meta->entries, (size_t)meta->n * sizeof(*entries));
    mem_free(MEM_CAT_WEIGHTS, meta->entries);
    meta->entries = entries;
    meta->cap = cap;
    return ERR_OK;
}

enum err_code weights_set_meta(struct weights *w, const char *key, const struct meta_value *v,
                               struct err *err)
{
    char quoted[META_QUOTE_MAX];
    struct meta_table *meta = &w->files[0].meta;
    struct meta_entry e = { .value = *v };
    size_t n = strlen(key);
    int32_t at = map_get(&meta->keys, key, n);
    if (n == 0 || n > EDIT_KEY_MAX || !meta_name_is_clean(key, n))
        return err_set(err, ERR_INVALID,
                       "key %s: want 1 to %d bytes of UTF-8 without control characters",
                       meta_quote(quoted, key, n), EDIT_KEY_MAX);
    enum err_code code = at < 0 ? edit_grow(meta, err) : ERR_OK;
    if (code)
        return err_prefix(err, code, "key %s", meta_quote(quoted, key, n));
    e.key = at < 0 ? arena_strndup(&w->arena, key, n) : meta->entries[at].key;
    if (v->type == META_TYPE_STRING) {
        e.str = arena_strndup(&w->arena, v->s.data, v->s.len);
        e.value.s.data = e.str;
    }
    if (!e.key || (v->type == META_TYPE_STRING && !e.str))
        return err_set(err, ERR_NOMEM, "key %s: no memory", meta_quote(quoted, key, n));
    if (at < 0) {
        at = meta->n++;
        BUG_ON(!map_add(&meta->keys, e.key, n, at));
    }
    meta->entries[at] = e;
    return ERR_OK;
}

enum err_code weights_set_int(struct weights *w, const char *key, int64_t v, struct err *err)
{
    return weights_set_meta(w, key, &(struct meta_value){ .type = META_TYPE_I64, .i = v }, err);
}

enum err_code weights_set_float(struct weights *w, const char *key, double v, struct err *err)
{
    return weights_set_meta(w, key, &(struct meta_value){ .type = META_TYPE_F64, .f = v }, err);
}

enum err_code weights_set_bool(struct weights *w, const char *key, bool v, struct err *err)
{
    return weights_set_meta(w, key, &(struct meta_value){ .type = META_TYPE_BOOL, .u = v }, err);
}

enum err_code weights_set_str(struct weights *w, const char *key, const char *v, struct err *err)
{
    return weights_set_meta(
        w, key, &(struct meta_value){ .type = META_TYPE_STRING, .s = { v, strlen(v) } }, err);
}

enum err_code weights_set_ints(struct weights *w, const char *key, const int64_t *v, uint64_t n,
                               struct err *err)
{
    uint8_t *data = arena_alloc(&w->arena, (size_t)n * sizeof(*v));
    if (!data)
        return err_set(err, ERR_NOMEM, "key %s: no memory for %" PRIu64 " numbers", key, n);
    memcpy(data, v, (size_t)n * sizeof(*v));
    struct meta_value value = { .type = META_TYPE_ARRAY };
    value.array.type = META_TYPE_I64;
    value.array.n = n;
    value.array.data = data;
    return weights_set_meta(w, key, &value, err);
}

enum err_code weights_set_tensors(struct weights *w, const struct weights_tensor *tensors,
                                  int32_t n, struct err *err)
{
    struct map names;
    struct weights_tensor *all = mem_try_array(MEM_CAT_WEIGHTS, (size_t)n + 1, sizeof(*all));
    if (!all)
        return err_set(err, ERR_NOMEM, "no memory for %" PRId32 " tensors", n);
    map_init(&names, MEM_CAT_WEIGHTS);
    for (int32_t i = 0; i < n; i++) {
        all[i] = tensors[i];
        if (map_add(&names, all[i].name, strlen(all[i].name), i))
            continue;
        map_release(&names);
        mem_free(MEM_CAT_WEIGHTS, all);
        return err_set(err, ERR_INVALID, "tensor '%s' is there twice", tensors[i].name);
    }
    mem_free(MEM_CAT_WEIGHTS, w->tensors);
    map_release(&w->names);
    w->tensors = all;
    w->n_tensors = n;
    w->names = names;
    return ERR_OK;
}
