/* weights.c - opening one file or a split set, and reading what was found. */
#include "weights/weights_int.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A nested array takes 12 bytes of the file and 64 here; everything else takes less. */
#define WEIGHTS_ARENA_FACTOR 8
/* A sparse file of terabytes justifies nothing. The largest vocabularies known (256k tokens with merges) take 20 MiB. */
#define WEIGHTS_ARENA_MAX ((size_t)1 << 30)

/* --- open and close --- */

struct weights *weights_new(int n_files)
{
    struct weights *w = mem_try(MEM_CAT_WEIGHTS, sizeof(*w));
    if (!w)
        return NULL;
    w->files = mem_try_array(MEM_CAT_WEIGHTS, (size_t)n_files, sizeof(*w->files));
    if (!w->files) {
        mem_free(MEM_CAT_WEIGHTS, w);
        return NULL;
    }
    w->n_files = n_files;
    for (int i = 0; i < n_files; i++)
        map_init(&w->files[i].meta.keys, MEM_CAT_WEIGHTS);
    map_init(&w->names, MEM_CAT_WEIGHTS);
    arena_init(&w->arena, MEM_CAT_WEIGHTS, 0);
    return w;
}

static void weights_file_release(struct weights_file *f)
{
    mem_free(MEM_CAT_WEIGHTS, f->meta.entries);
    map_release(&f->meta.keys);
    mem_free(MEM_CAT_WEIGHTS, (void *)(uintptr_t)f->image.name);
    file_map_close(&f->map);
}

void weights_close(struct weights *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->n_files; i++)
        weights_file_release(&w->files[i]);
    for (int i = 0; i < WEIGHTS_TEXTS; i++)
        file_map_close(&w->texts[i].map);
    mem_free(MEM_CAT_WEIGHTS, w->files);
    mem_free(MEM_CAT_WEIGHTS, w->tensors);
    map_release(&w->names);
    arena_release(&w->arena);
    mem_free(MEM_CAT_WEIGHTS, w);
}

/* Room in files for n; the first stays. */
static enum err_code weights_grow_files(struct weights *w, int n, struct err *err)
{
    struct weights_file *files = mem_try_array(MEM_CAT_WEIGHTS, (size_t)n, sizeof(*files));
    if (!files)
        return err_set(err, ERR_NOMEM, "no memory for a set of %d files", n);
    files[0] = w->files[0];
    for (int i = 1; i < n; i++)
        map_init(&files[i].meta.keys, MEM_CAT_WEIGHTS);
    mem_free(MEM_CAT_WEIGHTS, w->files);
    w->files = files;
    w->n_files = n;
    return ERR_OK;
}

enum err_code weights_read(struct weights *w, int i, const struct weights_image *image,
                           struct err *err)
{
    struct weights_file *f = &w->files[i];
    size_t n = strlen(image->name);
    char *name = mem_try(MEM_CAT_WEIGHTS, n + 1);
    if (!name)
        return err_set(err, ERR_NOMEM, "%s: no memory for the path", image->name);
    memcpy(name, image->name, n);
    f->image = (struct weights_image){ .name = name, .data = image->data, .size = image->size };
    size_t room = WEIGHTS_ARENA_MAX - w->arena.max;
    w->arena.max +=
        image->size < room / WEIGHTS_ARENA_FACTOR ? image->size * WEIGHTS_ARENA_FACTOR : room;
    return w->is_dir ? safetensors_read(w, i, err) : gguf_read(w, i, err);
}

enum err_code weights_read_path(struct weights *w, int i, const char *path, struct err *err)
{
    struct weights_file *f = &w->files[i];
    enum err_code code = file_map_open(&f->map, path, err);
    if (code)
        return code;
    return weights_read(w, i, &(struct weights_image){ path, f->map.data, f->map.size }, err);
}

/* --- split sets: keys split.no (from 0), split.count, split.tensors.count; names NAME-00001-of-00003.gguf --- */

/* An integer key of file i; fallback where absent. */
static enum err_code weights_split_key(const struct weights *w, int i, const char *key, int64_t max,
                                       int64_t fallback, int64_t *out, struct err *err)
{
    const struct meta_table *meta = &w->files[i].meta;
    int32_t at = map_get(&meta->keys, key, strlen(key));
    *out = fallback;
    if (at < 0)
        return ERR_OK;
    const struct meta_value *v = &meta->entries[at].value;
    if (!meta_is_int(v->type))
        return err_set(err, ERR_INVALID, "%s: key '%s' is of type %s, want an integer",
                       w->files[i].image.name, key, meta_type_name(v->type));
    if (v->u > (uint64_t)max)
        return err_set(err, ERR_INVALID, "%s: key '%s' is %" PRId64 ", want 0 to %" PRId64,
                       w->files[i].image.name, key, v->i, max);
    *out = v->i;
    return ERR_OK;
}

/* Check that file i says that it is part i of n. */
static enum err_code weights_check_part(const struct weights *w, int i, int n, struct err *err)
{
    int64_t no, count;
    enum err_code code = weights_split_key(w, i, "split.count", WEIGHTS_FILES_MAX, 1, &count, err);
    if (!code)
        code = weights_split_key(w, i, "split.no", WEIGHTS_FILES_MAX, 0, &no, err);
    if (code)
        return code;
    if ((count > 1 ? count : 1) == n && no == i)
        return ERR_OK;
    if (i == 0)
        return err_set(err, ERR_INVALID,
                       "%s: this is part %" PRId64 " of %d (key 'split.no'); open part 1",
                       w->files[i].image.name, no + 1, n);
    return err_set(err, ERR_INVALID,
                   "%s: says part %" PRId64 " of %" PRId64
                   " (keys 'split.no', 'split.count'), want %d of %d",
                   w->files[i].image.name, no + 1, count, i + 1, n);
}

static enum err_code weights_check_total(const struct weights *w, struct err *err)
{
    int64_t total;
    enum err_code code =
        weights_split_key(w, 0, "split.tensors.count", INT32_MAX, w->n_tensors, &total, err);
    if (!code && total != w->n_tensors)
        code = err_set(err, ERR_INVALID,
                       "%s: key 'split.tensors.count' is %" PRId64 ", the %d files hold %d tensors",
                       w->files[0].image.name, total, w->n_files, w->n_tensors);
    return code;
}

/* How many files the set of file 0 has, 1 if it is none. */
static enum err_code weights_count_parts(const struct weights *w, int *n, struct err *err)
{
    int64_t count;
    enum err_code code = weights_split_key(w, 0, "split.count", WEIGHTS_FILES_MAX, 1, &count, err);
    if (code)
        return code;
    *n = count > 1 ? (int)count : 1;
    return weights_check_part(w, 0, *n, err);
}

/* Map and read parts 2..n, whose names follow from the first's. */
static enum err_code weights_read_parts(struct weights *w, int n, struct err *err)
{
    char tail[32];
    const char *first = w->files[0].image.name;
    int tail_len = snprintf(tail, sizeof(tail), "-%05d-of-%05d.gguf", 1, n);
    size_t len = strlen(first);
    if (len < (size_t)tail_len || strcmp(first + len - tail_len, tail) != 0)
        return err_set(err, ERR_INVALID,
                       "%s: part 1 of %d (key 'split.count'), so its name must end in %s", first, n,
                       tail);
    enum err_code code = weights_grow_files(w, n, err);
    struct buf path;
    buf_init(&path, MEM_CAT_WEIGHTS, len + 1);
    for (int i = 1; i < n && !code; i++) {
        buf_reset(&path);
        buf_add(&path, w->files[0].image.name, len - (size_t)tail_len);
        buf_printf(&path, "-%05d-of-%05d.gguf", i + 1, n);
        code = path.failed ? err_set(err, ERR_NOMEM, "no memory for a path")
                           : weights_read_path(w, i, path.data, err);
        if (!code)
            code = weights_check_part(w, i, n, err);
        else
            err_prefix(err, code, "part %d of %d", i + 1, n);
    }
    buf_release(&path);
    return code;
}

enum err_code weights_open(const char *path, struct weights **out, struct err *err)
{
    int n;
    if (dir_is_model(path))
        return dir_open(path, out, err);
    struct weights *w = weights_new(1);
    if (!w)
        return err_set(err, ERR_NOMEM, "%s: no memory to open it", path);
    enum err_code code = weights_read_path(w, 0, path, err);
    if (!code)
        code = weights_count_parts(w, &n, err);
    if (!code && n > 1)
        code = weights_read_parts(w, n, err);
    if (!code)
        code = weights_check_total(w, err);
    if (code)
        weights_close(w);
    else
        *out = w;
    return code;
}

enum err_code weights_open_images(const struct weights_image *images, int n, struct weights **out,
                                  struct err *err)
{
    BUG_ON(n < 1 || n > WEIGHTS_FILES_MAX);
    struct weights *w = weights_new(n);
    enum err_code code = ERR_OK;
    if (!w)
        return err_set(err, ERR_NOMEM, "%s: no memory to open it", images[0].name);
    for (int i = 0; i < n && !code; i++) {
        code = weights_read(w, i, &images[i], err);
        if (!code)
            code = weights_check_part(w, i, n, err);
    }
    if (!code)
        code = weights_check_total(w, err);
    if (code)
        weights_close(w);
    else
        *out = w;
    return code;
}

enum err_code weights_reserve(struct weights *w, uint64_t n, struct err *err)
{
    if (n > (uint64_t)(WEIGHTS_TENSORS_MAX - w->n_tensors))
        return err_set(err, ERR_INVALID, "%" PRIu64 " tensors: at most %d in all files", n,
                       WEIGHTS_TENSORS_MAX);
    struct weights_tensor *all =
        mem_try_array(MEM_CAT_WEIGHTS, (size_t)w->n_tensors + (size_t)n, sizeof(*all));
    if (!all)
        return err_set(err, ERR_NOMEM, "no memory for %" PRIu64 " tensors", n);
    if (w->n_tensors)
        memcpy(all, w->tensors, (size_t)w->n_tensors * sizeof(*all));
    mem_free(MEM_CAT_WEIGHTS, w->tensors);
    w->tensors = all;
    return ERR_OK;
}

int weights_by_offset(const void *a, const void *b)
{
    const struct weights_tensor *x = *(const struct weights_tensor *const *)a;
    const struct weights_tensor *y = *(const struct weights_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x > y) -
           (x < y); /* at one place: in file order, so that the message is always the same */
}

/* --- what was found --- */

int weights_gguf_version(const struct weights *w)
{
    return w->files[0].version;
}

size_t weights_alignment(const struct weights *w)
{
    return w->is_dir ? 1 : w->files[0].alignment;
}

int weights_n_files(const struct weights *w)
{
    return w->n_files;
}

const char *weights_file_path(const struct weights *w, int i)
{
    BUG_ON(i < 0 || i >= w->n_files);
    return w->files[i].image.name;
}

size_t weights_file_bytes(const struct weights *w, int i)
{
    BUG_ON(i < 0 || i >= w->n_files);
    return w->files[i].image.size;
}

int32_t weights_n_tensors(const struct weights *w)
{
    return w->n_tensors;
}

const struct weights_tensor *weights_tensor_at(const struct weights *w, int32_t i)
{
    BUG_ON(i < 0 || i >= w->n_tensors);
    return &w->tensors[i];
}

const struct weights_tensor *weights_find(const struct weights *w, const char *name)
{
    int32_t i = map_get(&w->names, name, strlen(name));
    return i < 0 ? NULL : &w->tensors[i];
}

void weights_drop(const struct weights *w, const uint8_t *data, size_t n)
{
    for (int i = 0; i < w->n_files; i++) {
        const struct file_map *m = &w->files[i].map;
        if (m->data && data >= m->data && data < m->data + m->size) {
            BUG_ON(n > m->size - (size_t)(data - m->data));
            file_map_drop(m, (size_t)(data - m->data), n);
        }
    }
}

int32_t weights_n_meta(const struct weights *w)
{
    return w->files[0].meta.n;
}

const struct meta_value *weights_meta_at(const struct weights *w, int32_t i, const char **key)
{
    const struct meta_table *meta = &w->files[0].meta;
    BUG_ON(i < 0 || i >= meta->n);
    *key = meta->entries[i].key;
    return &meta->entries[i].value;
}

static const struct meta_entry *weights_entry(const struct weights *w, const char *key)
{
    const struct meta_table *meta = &w->files[0].meta;
    int32_t i = map_get(&meta->keys, key, strlen(key));
    return i < 0 ? NULL : &meta->entries[i];
}

const struct meta_value *weights_meta(const struct weights *w, const char *key)
{
    const struct meta_entry *e = weights_entry(w, key);
    return e ? &e->value : NULL;
}

/* --- typed reads --- */

static enum err_code weights_absent(const struct weights *w, const char *key, struct err *err)
{
    return err_set(err, ERR_NOT_FOUND, "%s: key '%s' is missing", w->files[0].image.name, key);
}

static enum err_code weights_wrong_type(const struct weights *w, const char *key,
                                        const struct meta_value *v, const char *want,
                                        struct err *err)
{
    return err_set(err, ERR_INVALID, "%s: key '%s' is of type %s, want %s", w->files[0].image.name,
                   key, meta_type_name(v->type), want);
}

static enum err_code weights_value_int(const struct weights *w, const char *key,
                                       const struct meta_value *v, int64_t min, int64_t max,
                                       int64_t *out, struct err *err)
{
    if (!meta_is_int(v->type))
        return weights_wrong_type(w, key, v, "an integer", err);
    if (v->type == META_TYPE_U64 && v->u > INT64_MAX)
        return err_set(err, ERR_INVALID,
                       "%s: key '%s' is %" PRIu64 ", want %" PRId64 " to %" PRId64,
                       w->files[0].image.name, key, v->u, min, max);
    if (v->i < min || v->i > max)
        return err_set(err, ERR_INVALID,
                       "%s: key '%s' is %" PRId64 ", want %" PRId64 " to %" PRId64,
                       w->files[0].image.name, key, v->i, min, max);
    *out = v->i;
    return ERR_OK;
}

enum err_code weights_int(const struct weights *w, const char *key, int64_t min, int64_t max,
                          int64_t *out, struct err *err)
{
    const struct meta_value *v = weights_meta(w, key);
    return v ? weights_value_int(w, key, v, min, max, out, err) : weights_absent(w, key, err);
}

enum err_code weights_int_or(const struct weights *w, const char *key, int64_t min, int64_t max,
                             int64_t fallback, int64_t *out, struct err *err)
{
    const struct meta_value *v = weights_meta(w, key);
    if (v)
        return weights_value_int(w, key, v, min, max, out, err);
    *out = fallback;
    return ERR_OK;
}

enum err_code weights_float_or(const struct weights *w, const char *key, double fallback,
                               double *out, struct err *err)
{
    const struct meta_value *v = weights_meta(w, key);
    if (!v) {
        *out = fallback;
        return ERR_OK;
    }
    if (!meta_is_float(v->type) && !meta_is_int(v->type))
        return weights_wrong_type(w, key, v, "a number", err);
    double f = meta_is_float(v->type)    ? v->f
               : meta_is_signed(v->type) ? (double)v->i
                                         : (double)v->u;
    if (!isfinite(f))
        return err_set(err, ERR_INVALID, "%s: key '%s' is %g, want a finite number",
                       w->files[0].image.name, key, f);
    *out = f;
    return ERR_OK;
}

enum err_code weights_bool_or(const struct weights *w, const char *key, bool fallback, bool *out,
                              struct err *err)
{
    const struct meta_value *v = weights_meta(w, key);
    if (v && v->type != META_TYPE_BOOL)
        return weights_wrong_type(w, key, v, "bool", err);
    *out = v ? v->u != 0 : fallback;
    return ERR_OK;
}

enum err_code weights_str(const struct weights *w, const char *key, const char **out,
                          struct err *err)
{
    const struct meta_entry *e = weights_entry(w, key);
    if (!e)
        return weights_absent(w, key, err);
    if (e->value.type != META_TYPE_STRING)
        return weights_wrong_type(w, key, &e->value, "string", err);
    if (memchr(e->value.s.data, 0, e->value.s.len))
        return err_set(err, ERR_INVALID, "%s: key '%s' is a string with a NUL byte inside",
                       w->files[0].image.name, key);
    *out = e->str;
    return ERR_OK;
}

enum err_code weights_array_int(const struct weights *w, const char *key, uint64_t i, int64_t *out,
                                struct err *err)
{
    struct meta_value one;
    const struct meta_value *v = weights_meta(w, key);
    if (!v)
        return weights_absent(w, key, err);
    if (v->type == META_TYPE_ARRAY) {
        if (i >= v->array.n)
            return err_set(err, ERR_INVALID,
                           "%s: key '%s' has %" PRIu64 " elements, element %" PRIu64 " is wanted",
                           w->files[0].image.name, key, v->array.n, i);
        meta_array_at(v, i, &one);
        v = &one;
    }
    if (v->type == META_TYPE_BOOL) {
        *out = (int64_t)v->u;
        return ERR_OK;
    }
    return weights_value_int(w, key, v, INT64_MIN, INT64_MAX, out, err);
}
