/* gguf.c - reads a GGUF header (format document in the ggml repository, docs/gguf.md).
 *
 * Everything in the file is hostile until checked: a count is compared with the bytes that are left before anything is
 * allocated for it, so that memory is at most a small multiple of the file's size. All numbers are little-endian.
 *
 *   file      "GGUF"  u32 version  u64 n_tensors  u64 n_keys  keys  tensor infos  padding to alignment  tensor data
 *   string    u64 n, n bytes
 *   key       string name (1..65535 bytes)  u32 type  value
 *   array     u32 element type  u64 n  values
 *   tensor    string name  u32 n_dims (1..4)  u64 dims (each >= 1)  u32 type  u64 offset (a multiple of the alignment, from
 *             the start of the tensor data) */
#include "base/utf8.h"
#include "weights/weights_int.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define GGUF_KEY_MAX       65535
#define GGUF_ALIGN_DEFAULT 32
#define GGUF_ALIGN_MAX     (1 << 20)
/* Least bytes of a key (length, one byte, type, value), a tensor's info, an array in an array, a string. */
#define GGUF_KEY_MIN    14
#define GGUF_TENSOR_MIN 33
#define GGUF_ARRAY_MIN  12
#define GGUF_STRING_MIN 8

/* The file's type numbers. 4, 5 and 31..33, 36..38 were withdrawn. */
static const int8_t gguf_dtypes[] = {
    [0] = DTYPE_F32,
    [1] = DTYPE_F16,
    [2] = DTYPE_Q4_0,
    [3] = DTYPE_Q4_1,
    [4] = -1,
    [5] = -1,
    [6] = DTYPE_Q5_0,
    [7] = DTYPE_Q5_1,
    [8] = DTYPE_Q8_0,
    [9] = DTYPE_Q8_1,
    [10] = DTYPE_Q2_K,
    [11] = DTYPE_Q3_K,
    [12] = DTYPE_Q4_K,
    [13] = DTYPE_Q5_K,
    [14] = DTYPE_Q6_K,
    [15] = DTYPE_Q8_K,
    [16] = DTYPE_IQ2_XXS,
    [17] = DTYPE_IQ2_XS,
    [18] = DTYPE_IQ3_XXS,
    [19] = DTYPE_IQ1_S,
    [20] = DTYPE_IQ4_NL,
    [21] = DTYPE_IQ3_S,
    [22] = DTYPE_IQ2_S,
    [23] = DTYPE_IQ4_XS,
    [24] = DTYPE_I8,
    [25] = DTYPE_I16,
    [26] = DTYPE_I32,
    [27] = DTYPE_I64,
    [28] = DTYPE_F64,
    [29] = DTYPE_IQ1_M,
    [30] = DTYPE_BF16,
    [31] = -1,
    [32] = -1,
    [33] = -1,
    [34] = DTYPE_TQ1_0,
    [35] = DTYPE_TQ2_0,
    [36] = -1,
    [37] = -1,
    [38] = -1,
    [39] = DTYPE_MXFP4,
    [40] = DTYPE_NVFP4,
    [41] = DTYPE_Q1_0,
    [42] = DTYPE_Q2_0,
};

int gguf_type_number(enum dtype type)
{
    for (size_t i = 0; i < ARRAY_LEN(gguf_dtypes); i++)
        if (gguf_dtypes[i] == (int)type)
            return (int)i;
    return -1;
}

struct gguf_reader {
    struct arena *arena;
    const uint8_t *data;
    size_t size, pos; /* pos <= size */
};

static size_t gguf_left(const struct gguf_reader *r)
{
    return r->size - r->pos;
}

/* The next n bytes; NULL with an ERR_INVALID where the file ends before. */
static const uint8_t *gguf_take(struct gguf_reader *r, uint64_t n, const char *what,
                                struct err *err)
{
    if (n > gguf_left(r)) {
        err_set(err, ERR_INVALID, "%s needs %" PRIu64 " bytes at %zu, the file has %zu: is it cut?",
                what, n, r->pos, r->size);
        return NULL;
    }
    const uint8_t *p = r->data + r->pos;
    r->pos += (size_t)n;
    return p;
}

static enum err_code gguf_u32(struct gguf_reader *r, const char *what, uint32_t *out,
                              struct err *err)
{
    const uint8_t *p = gguf_take(r, 4, what, err);
    if (!p)
        return ERR_INVALID;
    memcpy(out, p, 4);
    return ERR_OK;
}

static enum err_code gguf_u64(struct gguf_reader *r, const char *what, uint64_t *out,
                              struct err *err)
{
    const uint8_t *p = gguf_take(r, 8, what, err);
    if (!p)
        return ERR_INVALID;
    memcpy(out, p, 8);
    return ERR_OK;
}

static enum err_code gguf_string(struct gguf_reader *r, const char *what, struct meta_str *out,
                                 struct err *err)
{
    uint64_t n;
    enum err_code code = gguf_u64(r, what, &n, err);
    if (code)
        return code;
    out->data = (const char *)gguf_take(r, n, what, err);
    out->len = (size_t)n;
    return out->data ? ERR_OK : ERR_INVALID;
}

/* A key's or tensor's name, checked and copied with a terminator. */
static enum err_code gguf_name(struct gguf_reader *r, const char *what, size_t max,
                               struct meta_str *out, struct err *err)
{
    char quoted[META_QUOTE_MAX];
    enum err_code code = gguf_string(r, what, out, err);
    if (code)
        return code;
    if (out->len == 0 || out->len > max)
        return err_set(err, ERR_INVALID, "%s has %zu bytes, want 1 to %zu", what, out->len, max);
    if (!meta_name_is_clean(out->data, out->len))
        return err_set(err, ERR_INVALID, "%s %s is not UTF-8 without control characters", what,
                       meta_quote(quoted, out->data, out->len));
    out->data = arena_strndup(r->arena, out->data, out->len);
    return out->data ? ERR_OK : err_set(err, ERR_NOMEM, "no memory for %s", what);
}

/* --- metadata --- */

static enum err_code gguf_value(struct gguf_reader *r, enum meta_type type, int depth,
                                struct meta_value *v, struct err *err);

static enum err_code gguf_meta_type(struct gguf_reader *r, enum meta_type *out, struct err *err)
{
    uint32_t type;
    enum err_code code = gguf_u32(r, "the value's type", &type, err);
    if (code)
        return code;
    if (type > META_TYPE_F64)
        return err_set(err, ERR_UNSUPPORTED,
                       "value type %" PRIu32 " is unknown (0 to %d are known)", type,
                       META_TYPE_F64);
    *out = (enum meta_type)type;
    return ERR_OK;
}

static enum err_code gguf_check_bools(const uint8_t *p, uint64_t n, struct err *err)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1)
            return err_set(err, ERR_INVALID, "a bool has the value %d, want 0 or 1", p[i]);
    return ERR_OK;
}

static enum err_code gguf_array_scalars(struct gguf_reader *r, struct meta_value *v,
                                        struct err *err)
{
    v->array.data = gguf_take(r, v->array.n * meta_scalar_bytes(v->array.type), "the array", err);
    if (!v->array.data)
        return ERR_INVALID;
    return v->array.type == META_TYPE_BOOL ? gguf_check_bools(v->array.data, v->array.n, err)
                                           : ERR_OK;
}

static enum err_code gguf_array_strings(struct gguf_reader *r, struct meta_value *v,
                                        struct err *err)
{
    struct meta_str *strs = arena_alloc(r->arena, (size_t)v->array.n * sizeof(*strs));
    enum err_code code = ERR_OK;
    if (!strs)
        return err_set(err, ERR_NOMEM, "no memory for an array of %" PRIu64 " strings", v->array.n);
    for (uint64_t i = 0; i < v->array.n && !code; i++)
        if ((code = gguf_string(r, "a string", &strs[i], err)))
            err_prefix(err, code, "element %" PRIu64 " of %" PRIu64, i, v->array.n);
    v->array.strs = strs;
    return code;
}

static enum err_code gguf_array_nested(struct gguf_reader *r, int depth, struct meta_value *v,
                                       struct err *err)
{
    if (depth == WEIGHTS_META_NESTING)
        return err_set(err, ERR_INVALID, "arrays are nested over %d deep", WEIGHTS_META_NESTING);
    struct meta_value *values = arena_alloc(r->arena, (size_t)v->array.n * sizeof(*values));
    enum err_code code = ERR_OK;
    if (!values)
        return err_set(err, ERR_NOMEM, "no memory for an array of %" PRIu64 " arrays", v->array.n);
    for (uint64_t i = 0; i < v->array.n && !code; i++)
        code = gguf_value(r, META_TYPE_ARRAY, depth + 1, &values[i], err);
    v->array.values = values;
    return code;
}

static enum err_code gguf_array(struct gguf_reader *r, int depth, struct meta_value *v,
                                struct err *err)
{
    enum err_code code = gguf_meta_type(r, &v->array.type, err);
    if (code || (code = gguf_u64(r, "the array's length", &v->array.n, err)))
        return code;
    enum meta_type type = v->array.type;
    size_t each = type == META_TYPE_ARRAY    ? GGUF_ARRAY_MIN
                  : type == META_TYPE_STRING ? GGUF_STRING_MIN
                                             : meta_scalar_bytes(type);
    if (v->array.n > gguf_left(r) / each)
        return err_set(err, ERR_INVALID,
                       "an array of %" PRIu64
                       " elements (%s) at %zu does not fit the file's %zu bytes: is it cut?",
                       v->array.n, meta_type_name(type), r->pos, r->size);
    if (type == META_TYPE_ARRAY)
        return gguf_array_nested(r, depth, v, err);
    if (type == META_TYPE_STRING)
        return gguf_array_strings(r, v, err);
    return gguf_array_scalars(r, v, err);
}

static enum err_code gguf_value(struct gguf_reader *r, enum meta_type type, int depth,
                                struct meta_value *v, struct err *err)
{
    v->type = type;
    if (type == META_TYPE_ARRAY)
        return gguf_array(r, depth, v, err);
    if (type == META_TYPE_STRING)
        return gguf_string(r, "the string", &v->s, err);
    const uint8_t *p = gguf_take(r, meta_scalar_bytes(type), "the value", err);
    if (!p)
        return ERR_INVALID;
    meta_scalar(type, p, v);
    return type == META_TYPE_BOOL ? gguf_check_bools(p, 1, err) : ERR_OK;
}

static enum err_code gguf_entry(struct gguf_reader *r, struct meta_entry *e, struct err *err)
{
    char quoted[META_QUOTE_MAX];
    struct meta_str key;
    enum meta_type type = META_TYPE_U8;
    enum err_code code = gguf_name(r, "a key", GGUF_KEY_MAX, &key, err);
    if (code)
        return code;
    e->key = key.data;
    code = gguf_meta_type(r, &type, err);
    if (!code)
        code = gguf_value(r, type, 1, &e->value, err);
    if (!code && type == META_TYPE_STRING &&
        !(e->str = arena_strndup(r->arena, e->value.s.data, e->value.s.len)))
        code = err_set(err, ERR_NOMEM, "no memory for a string of %zu bytes", e->value.s.len);
    return code ? err_prefix(err, code, "key %s", meta_quote(quoted, key.data, key.len)) : ERR_OK;
}

static enum err_code gguf_meta(struct gguf_reader *r, struct meta_table *meta, uint64_t n,
                               struct err *err)
{
    char quoted[META_QUOTE_MAX];
    if (n > WEIGHTS_META_MAX || n > gguf_left(r) / GGUF_KEY_MIN)
        return err_set(err, ERR_INVALID,
                       "the header tells of %" PRIu64 " keys: at most %d, and %zu fit the file", n,
                       WEIGHTS_META_MAX, gguf_left(r) / GGUF_KEY_MIN);
    meta->entries = mem_try_array(MEM_CAT_WEIGHTS, (size_t)n, sizeof(*meta->entries));
    if (!meta->entries)
        return err_set(err, ERR_NOMEM, "no memory for %" PRIu64 " keys", n);
    for (int32_t i = 0; i < (int32_t)n; i++) {
        struct meta_entry *e = &meta->entries[i];
        enum err_code code = gguf_entry(r, e, err);
        if (code)
            return err_prefix(err, code, "metadata %d of %" PRIu64, i + 1, n);
        if (!map_add(&meta->keys, e->key, strlen(e->key), i))
            return err_set(err, ERR_INVALID, "key %s is there twice",
                           meta_quote(quoted, e->key, strlen(e->key)));
        meta->n = i + 1;
    }
    return ERR_OK;
}

/* --- tensors --- */

static enum err_code gguf_tensor_shape(struct gguf_reader *r, struct weights_tensor *t,
                                       struct err *err)
{
    uint32_t n_dims;
    enum err_code code = gguf_u32(r, "n_dims", &n_dims, err);
    if (code)
        return code;
    if (n_dims < 1 || n_dims > WEIGHTS_DIMS_MAX)
        return err_set(err, ERR_INVALID, "n_dims is %" PRIu32 ", want 1 to %d", n_dims,
                       WEIGHTS_DIMS_MAX);
    t->n_dims = (int)n_dims;
    int64_t elems = 1;
    for (int i = 0; i < WEIGHTS_DIMS_MAX; i++) {
        uint64_t dim = 1;
        if (i < t->n_dims && (code = gguf_u64(r, "a dimension", &dim, err)))
            return code;
        if (dim < 1 || dim > INT64_MAX)
            return err_set(err, ERR_INVALID,
                           "dimension %d is %" PRIu64 ", want at least 1 and under 2^63", i, dim);
        t->shape[i] = (int64_t)dim;
        if (__builtin_mul_overflow(elems, t->shape[i], &elems))
            return err_set(err, ERR_INVALID,
                           "dimension %d is %" PRIu64 ": over 2^63 elements in all", i, dim);
    }
    return ERR_OK;
}

/* Type and bytes. Need: the shape is read. */
static enum err_code gguf_tensor_type(struct gguf_reader *r, struct weights_tensor *t,
                                      struct err *err)
{
    uint32_t type;
    enum err_code code = gguf_u32(r, "the type", &type, err);
    if (code)
        return code;
    if (type >= ARRAY_LEN(gguf_dtypes) || gguf_dtypes[type] < 0)
        return err_set(err, ERR_UNSUPPORTED, "tensor type %" PRIu32 " is unknown or withdrawn",
                       type);
    t->type = (enum dtype)gguf_dtypes[type];
    const struct dtype_info *info = dtype_info(t->type);
    if (t->shape[0] % info->block_elems)
        return err_set(err, ERR_INVALID, "dimension 0 is %" PRId64 ", %s needs a multiple of %d",
                       t->shape[0], info->name, info->block_elems);
    /* The product of the dimensions fits int64_t, so this can only wrap by the size of an element. */
    size_t bytes = (size_t)(t->shape[0] / info->block_elems);
    if (__builtin_mul_overflow(bytes, (size_t)(t->shape[1] * t->shape[2] * t->shape[3]), &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)info->block_bytes, &bytes))
        return err_set(err, ERR_INVALID, "the tensor's size is over 2^64 bytes");
    t->bytes = bytes;
    return ERR_OK;
}

/* One tensor's info; t->offset counts from the start of the tensor data. */
static enum err_code gguf_tensor(struct gguf_reader *r, size_t alignment, struct weights_tensor *t,
                                 struct err *err)
{
    char quoted[META_QUOTE_MAX];
    struct meta_str name;
    enum err_code code = gguf_name(r, "a tensor's name", WEIGHTS_NAME_MAX, &name, err);
    if (code)
        return code;
    t->name = name.data;
    code = gguf_tensor_shape(r, t, err);
    if (!code)
        code = gguf_tensor_type(r, t, err);
    if (!code)
        code = gguf_u64(r, "the offset", &t->offset, err);
    if (!code && t->offset % alignment)
        code =
            err_set(err, ERR_INVALID, "offset %" PRIu64 " is not a multiple of the alignment %zu",
                    t->offset, alignment);
    return code ? err_prefix(err, code, "tensor %s", meta_quote(quoted, name.data, name.len))
                : ERR_OK;
}

static enum err_code gguf_tensors(struct weights *w, struct gguf_reader *r, int file_i, uint64_t n,
                                  struct err *err)
{
    char quoted[META_QUOTE_MAX];
    if (n > gguf_left(r) / GGUF_TENSOR_MIN)
        return err_set(err, ERR_INVALID,
                       "the header tells of %" PRIu64 " tensors: at most %d, and %zu fit the file",
                       n, WEIGHTS_TENSORS_MAX, gguf_left(r) / GGUF_TENSOR_MIN);
    enum err_code code = weights_reserve(w, n, err);
    if (code)
        return code;
    for (uint64_t i = 0; i < n; i++) {
        struct weights_tensor *t = &w->tensors[w->n_tensors];
        t->file_i = file_i;
        if ((code = gguf_tensor(r, w->files[file_i].alignment, t, err)))
            return err_prefix(err, code, "tensor %" PRIu64 " of %" PRIu64, i + 1, n);
        if (!map_add(&w->names, t->name, strlen(t->name), w->n_tensors))
            return err_set(err, ERR_INVALID, "tensor %s is there twice",
                           meta_quote(quoted, t->name, strlen(t->name)));
        w->n_tensors++;
    }
    return ERR_OK;
}

static enum err_code gguf_check_overlap(struct weights_tensor *tensors, int32_t n, struct err *err)
{
    const struct weights_tensor **order = mem_try_array(MEM_CAT_WEIGHTS, (size_t)n, sizeof(*order));
    enum err_code code = ERR_OK;
    if (!order)
        return err_set(err, ERR_NOMEM, "no memory to sort %d tensors", n);
    for (int32_t i = 0; i < n; i++)
        order[i] = &tensors[i];
    qsort(order, (size_t)n, sizeof(*order), weights_by_offset);
    for (int32_t i = 1; i < n && !code; i++)
        if (order[i]->offset < order[i - 1]->offset + order[i - 1]->bytes)
            code = err_set(err, ERR_INVALID, "tensor '%s' at byte %" PRIu64 " overlaps '%s'",
                           order[i]->name, order[i]->offset, order[i - 1]->name);
    mem_free(MEM_CAT_WEIGHTS, order);
    return code;
}

/* Turn offsets into places in the file, which must hold every byte of every tensor. */
static enum err_code gguf_place(struct weights_tensor *tensors, int32_t n,
                                const struct gguf_reader *r, size_t alignment, struct err *err)
{
    uint64_t start = ((uint64_t)r->pos + alignment - 1) / alignment * alignment;
    for (int32_t i = 0; i < n; i++) {
        struct weights_tensor *t = &tensors[i];
        if (start > r->size || t->offset > r->size - start ||
            t->bytes > r->size - start - t->offset)
            return err_set(err, ERR_INVALID,
                           "tensor '%s' has %zu bytes at %" PRIu64
                           " of the tensor data, which has %" PRIu64 ": is the file cut?",
                           t->name, t->bytes, t->offset, start > r->size ? 0 : r->size - start);
        t->offset += start;
        t->data = r->data + t->offset;
    }
    return gguf_check_overlap(tensors, n, err);
}

/* --- the file --- */

static enum err_code gguf_header(struct gguf_reader *r, struct weights_file *f, uint64_t *n_tensors,
                                 uint64_t *n_meta, struct err *err)
{
    char quoted[META_QUOTE_MAX];
    uint32_t version;
    const uint8_t *magic = gguf_take(r, 4, "the magic number", err);
    if (!magic)
        return ERR_INVALID;
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(err, ERR_INVALID, "not a GGUF file: it starts with %s, want 'GGUF'",
                       meta_quote(quoted, (const char *)magic, 4));
    enum err_code code = gguf_u32(r, "the version", &version, err);
    if (code)
        return code;
    if (version && (version & 0xFFFF) == 0)
        return err_set(err, ERR_UNSUPPORTED,
                       "a big-endian GGUF file (version %" PRIu32 "); convert it to little-endian",
                       __builtin_bswap32(version));
    if (version != 2 && version != 3)
        return err_set(err, ERR_UNSUPPORTED, "GGUF version %" PRIu32 "; 2 and 3 are known",
                       version);
    f->version = (int)version;
    if ((code = gguf_u64(r, "the number of tensors", n_tensors, err)))
        return code;
    return gguf_u64(r, "the number of keys", n_meta, err);
}

static enum err_code gguf_alignment(struct weights_file *f, struct err *err)
{
    static const char key[] = "general.alignment";
    int32_t i = map_get(&f->meta.keys, key, sizeof(key) - 1);
    f->alignment = GGUF_ALIGN_DEFAULT;
    if (i < 0)
        return ERR_OK;
    const struct meta_value *v = &f->meta.entries[i].value;
    if (v->type != META_TYPE_U32)
        return err_set(err, ERR_INVALID, "key '%s' is of type %s, want u32", key,
                       meta_type_name(v->type));
    if (v->u < 8 || v->u % 8 || v->u > GGUF_ALIGN_MAX)
        return err_set(err, ERR_INVALID, "key '%s' is %" PRIu64 ", want a multiple of 8 up to %d",
                       key, v->u, GGUF_ALIGN_MAX);
    f->alignment = (size_t)v->u;
    return ERR_OK;
}

enum err_code gguf_read(struct weights *w, int file_i, struct err *err)
{
    struct weights_file *f = &w->files[file_i];
    struct gguf_reader r = { .arena = &w->arena, .data = f->image.data, .size = f->image.size };
    int32_t first = w->n_tensors;
    uint64_t n_tensors = 0, n_meta = 0;
    enum err_code code = gguf_header(&r, f, &n_tensors, &n_meta, err);
    if (!code)
        code = gguf_meta(&r, &f->meta, n_meta, err);
    if (!code)
        code = gguf_alignment(f, err);
    if (!code)
        code = gguf_tensors(w, &r, file_i, n_tensors, err);
    if (!code)
        code = gguf_place(w->tensors + first, w->n_tensors - first, &r, f->alignment, err);
    return code ? err_prefix(err, code, "%s", f->image.name) : ERR_OK;
}
