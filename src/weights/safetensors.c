/* safetensors.c - reads the header of a safetensors file (format: README of the safetensors repository).
 *
 *   file    u64 n  header[n]  data           little-endian; the header is JSON, padded with spaces
 *   header  {"__metadata__": {"key": "text", ...}, "tensor's name": {"dtype": "BF16", "shape": [out, in],
 *            "data_offsets": [begin, end]}, ...}   offsets count from the start of the data
 *
 * Everything is hostile until checked. The tensors cover the data without overlap and without holes, as the published reader asks:
 * a file that does not is cut, or carries something that nobody should read. */
#include "weights/safetensors_write.h"
#include "weights/weights_int.h"
#include "json/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SAFETENSORS_DIMS_MAX   8
#define SAFETENSORS_HEADER_MAX ((size_t)100000000) /* of the published reader */
/* A number in an array takes two bytes of the header and 72 here (56 of struct json, 16 of spelling), and as much again while
 * its array grows. */
#define SAFETENSORS_JSON_FACTOR 160
#define SAFETENSORS_JSON_LEAST  ((size_t)64 << 10)

static const struct {
    const char *name;
    enum dtype type;
} safetensors_dtypes[] = {
    { "F32", DTYPE_F32 },    { "F16", DTYPE_F16 },         { "BF16", DTYPE_BF16 },
    { "F64", DTYPE_F64 },    { "I64", DTYPE_I64 },         { "I32", DTYPE_I32 },
    { "I16", DTYPE_I16 },    { "I8", DTYPE_I8 },           { "U64", DTYPE_U64 },
    { "U32", DTYPE_U32 },    { "U16", DTYPE_U16 },         { "U8", DTYPE_U8 },
    { "BOOL", DTYPE_U8 },    { "F8_E4M3", DTYPE_F8_E4M3 }, { "F8_E5M2", DTYPE_F8_E5M2 },
    { "F8_E8M0", DTYPE_U8 },
};

const char *safetensors_type_name(enum dtype type)
{
    for (size_t i = 0; i < ARRAY_LEN(safetensors_dtypes); i++)
        if (safetensors_dtypes[i].type == type)
            return safetensors_dtypes[i].name;
    return NULL;
}

static enum err_code safetensors_dtype(const struct json *v, enum dtype *out, struct err *err)
{
    char quoted[META_QUOTE_MAX];
    if (!json_is(v, JSON_TYPE_STRING))
        return err_set(err, ERR_INVALID, "dtype: want a string");
    for (size_t i = 0; i < ARRAY_LEN(safetensors_dtypes); i++)
        if (json_str_eq(v, safetensors_dtypes[i].name)) {
            *out = safetensors_dtypes[i].type;
            return ERR_OK;
        }
    return err_set(err, ERR_UNSUPPORTED, "dtype %s is not known",
                   meta_quote(quoted, v->text, v->len));
}

/* Outermost first in the file. No dimension at all is one element; of more than WEIGHTS_DIMS_MAX (convolutions of video towers)
 * the innermost count as one. */
static enum err_code safetensors_shape(const struct json *v, struct weights_tensor *t,
                                       struct err *err)
{
    int64_t elems = 1;
    if (!json_is(v, JSON_TYPE_ARRAY) || v->n > SAFETENSORS_DIMS_MAX)
        return err_set(err, ERR_INVALID, "shape: want an array of at most %d numbers",
                       SAFETENSORS_DIMS_MAX);
    int n = (int)v->n, merged = n > WEIGHTS_DIMS_MAX ? n - WEIGHTS_DIMS_MAX : 0;
    t->n_dims = n ? n - merged : 1;
    t->is_merged = merged > 0;
    for (int i = 0; i < WEIGHTS_DIMS_MAX; i++)
        t->shape[i] = 1;
    for (int i = 0; i < n; i++) {
        int64_t dim, *out = &t->shape[i > merged ? i - merged : 0];
        enum err_code code = json_to_int(&v->items[n - 1 - i], "shape", 1, INT64_MAX, &dim, err);
        if (code)
            return code;
        if (__builtin_mul_overflow(elems, dim, &elems))
            return err_set(err, ERR_INVALID, "shape: over 2^63 elements in all");
        *out *= dim;
    }
    return ERR_OK;
}

static enum err_code safetensors_place(const struct json *v, const struct weights_image *image,
                                       size_t start, struct weights_tensor *t, struct err *err)
{
    int64_t at[2];
    size_t room = image->size - start, bytes;
    if (!json_is(v, JSON_TYPE_ARRAY) || v->n != 2)
        return err_set(err, ERR_INVALID, "data_offsets: want an array of two numbers");
    for (int i = 0; i < 2; i++) {
        enum err_code code = json_to_int(&v->items[i], "data_offsets", 0, INT64_MAX, &at[i], err);
        if (code)
            return code;
    }
    if (at[0] > at[1] || (uint64_t)at[1] > room)
        return err_set(err, ERR_INVALID,
                       "data_offsets are %" PRId64 " to %" PRId64
                       ", the tensor data has %zu bytes: is the file cut?",
                       at[0], at[1], room);
    size_t elems = (size_t)(t->shape[0] * t->shape[1] * t->shape[2] * t->shape[3]);
    if (__builtin_mul_overflow(elems, (size_t)dtype_info(t->type)->block_bytes, &bytes) ||
        bytes != (size_t)(at[1] - at[0]))
        return err_set(err, ERR_INVALID,
                       "data_offsets span %" PRId64 " bytes, %zu elements of %s have another size",
                       at[1] - at[0], elems, dtype_info(t->type)->name);
    t->bytes = bytes;
    t->offset = start + (uint64_t)at[0];
    t->data = image->data + t->offset;
    return ERR_OK;
}

static enum err_code safetensors_name(struct weights *w, const char *prefix,
                                      const struct json_member *m, const char **out,
                                      struct err *err)
{
    char name[2 * WEIGHTS_NAME_MAX];
    size_t n = strlen(prefix);
    if (m->key_len == 0 || m->key_len + n > WEIGHTS_NAME_MAX)
        return err_set(err, ERR_INVALID, "a name of %zu bytes, want 1 to %d", m->key_len,
                       WEIGHTS_NAME_MAX);
    if (!meta_name_is_clean(m->key, m->key_len))
        return err_set(err, ERR_INVALID, "control characters in a name");
    memcpy(name, prefix, n);
    memcpy(name + n, m->key, m->key_len);
    *out = arena_strndup(&w->arena, name, n + m->key_len);
    return *out ? ERR_OK : err_set(err, ERR_NOMEM, "no memory for a name");
}

static enum err_code safetensors_tensor(struct weights *w, int file_i, const struct json_member *m,
                                        size_t start, struct err *err)
{
    char quoted[META_QUOTE_MAX];
    struct weights_tensor *t = &w->tensors[w->n_tensors];
    *t = (struct weights_tensor){ .file_i = file_i };
    enum err_code code = safetensors_name(w, w->files[file_i].prefix, m, &t->name, err);
    if (!code && m->value.type != JSON_TYPE_OBJECT)
        code = err_set(err, ERR_INVALID, "want an object with dtype, shape and data_offsets");
    if (!code)
        code = safetensors_dtype(json_get(&m->value, "dtype"), &t->type, err);
    if (!code)
        code = safetensors_shape(json_get(&m->value, "shape"), t, err);
    if (!code)
        code = safetensors_place(json_get(&m->value, "data_offsets"), &w->files[file_i].image,
                                 start, t, err);
    if (!code && !map_add(&w->names, t->name, strlen(t->name), w->n_tensors))
        code = err_set(err, ERR_INVALID, "is in another file too");
    if (!code)
        w->n_tensors++;
    return code ? err_prefix(err, code, "tensor %s", meta_quote(quoted, m->key, m->key_len))
                : ERR_OK;
}

/* Texts that the file's writer left ("format": "pt"); they say nothing about the weights. */
static enum err_code safetensors_check_metadata(const struct json *v, struct err *err)
{
    if (v->type != JSON_TYPE_OBJECT)
        return err_set(err, ERR_INVALID, "__metadata__: want an object");
    for (size_t i = 0; i < v->n; i++)
        if (v->members[i].value.type != JSON_TYPE_STRING)
            return err_set(err, ERR_INVALID, "__metadata__: want strings only");
    return ERR_OK;
}

/* The tensors stand one behind the other and fill the data. */
static enum err_code safetensors_check_cover(const struct weights *w, int32_t first, size_t start,
                                             size_t size, struct err *err)
{
    int32_t n = w->n_tensors - first;
    enum err_code code = ERR_OK;
    uint64_t end = start;
    const struct weights_tensor **order =
        mem_try_array(MEM_CAT_WEIGHTS, (size_t)n + 1, sizeof(*order));
    if (!order)
        return err_set(err, ERR_NOMEM, "no memory to sort %d tensors", n);
    for (int32_t i = 0; i < n; i++)
        order[i] = &w->tensors[first + i];
    qsort(order, (size_t)n, sizeof(*order), weights_by_offset);
    for (int32_t i = 0; i < n && !code; end = order[i]->offset + order[i]->bytes, i++)
        if (order[i]->offset != end)
            code = err_set(err, ERR_INVALID, "tensor '%s' at byte %" PRIu64 " %s byte %" PRIu64,
                           order[i]->name, order[i]->offset,
                           order[i]->offset < end ? "overlaps the tensor that ends at"
                                                  : "leaves a hole from",
                           end);
    if (!code && end != size)
        code = err_set(err, ERR_INVALID, "%" PRIu64 " bytes behind the last tensor belong to none",
                       size - end);
    mem_free(MEM_CAT_WEIGHTS, order);
    return code;
}

static enum err_code safetensors_tensors(struct weights *w, int file_i, const struct json *root,
                                         size_t start, struct err *err)
{
    int32_t first = w->n_tensors;
    enum err_code code = weights_reserve(w, root->n, err);
    for (size_t i = 0; i < root->n && !code; i++) {
        const struct json_member *m = &root->members[i];
        if (strcmp(m->key, "__metadata__") == 0)
            code = safetensors_check_metadata(&m->value, err);
        else
            code = safetensors_tensor(w, file_i, m, start, err);
    }
    return code ? code : safetensors_check_cover(w, first, start, w->files[file_i].image.size, err);
}

/* Length of the header, checked against the file. */
static enum err_code safetensors_header(const struct weights_image *image, size_t *n,
                                        struct err *err)
{
    static const char lfs[] = "version https://git-lfs";
    uint64_t len;
    if (image->size >= sizeof(lfs) - 1 && memcmp(image->data, lfs, sizeof(lfs) - 1) == 0)
        return err_set(err, ERR_INVALID,
                       "a git-lfs pointer, not the file itself: fetch it with 'git lfs pull'");
    if (image->size < 8)
        return err_set(err, ERR_INVALID, "not a safetensors file: it has %zu bytes, want 8 or more",
                       image->size);
    memcpy(&len, image->data, 8);
    if (len > SAFETENSORS_HEADER_MAX || len > image->size - 8)
        return err_set(err, ERR_INVALID,
                       "a header of %" PRIu64 " bytes: at most %zu, and the file has %zu: is it a "
                       "safetensors file, and whole?",
                       len, SAFETENSORS_HEADER_MAX, image->size - 8);
    if (len == 0 || image->data[8] != '{')
        return err_set(err, ERR_INVALID,
                       "not a safetensors file: its header does not start with {");
    *n = (size_t)len;
    return ERR_OK;
}

enum err_code safetensors_read(struct weights *w, int file_i, struct err *err)
{
    char quoted[META_QUOTE_MAX];
    const struct weights_image *image = &w->files[file_i].image;
    struct json_doc doc = { 0 };
    size_t n = 0;
    enum err_code code = safetensors_header(image, &n, err);
    if (!code)
        code = json_parse(&doc, (const char *)image->data + 8, n,
                          SAFETENSORS_JSON_LEAST + n * SAFETENSORS_JSON_FACTOR, err);
    if (!code && doc.twice)
        code = err_set(err, ERR_INVALID, "the header has %s twice",
                       meta_quote(quoted, doc.twice, strlen(doc.twice)));
    if (!code)
        code = safetensors_tensors(w, file_i, &doc.root, 8 + n, err);
    json_doc_release(&doc);
    return code ? err_prefix(err, code, "%s", image->name) : ERR_OK;
}
