/* fuzz_gguf.c - any bytes as a model file: an error or a file whose every part can be read, never more memory than it justifies.
 *
 * Input: one image; or "SPLT", u32 length of the first, then two images of a split set. */
#include "weights/weights_int.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t use_value(const struct meta_value *v)
{
    struct meta_value item;
    uint64_t sum = (uint64_t)v->type;
    if (v->type == META_TYPE_STRING)
        for (size_t i = 0; i < v->s.len; i++)
            sum += (unsigned char)v->s.data[i];
    if (v->type == META_TYPE_ARRAY)
        for (uint64_t i = 0; i < v->array.n; i++) {
            meta_array_at(v, i, &item);
            sum += use_value(&item);
        }
    return sum;
}

static void use_typed_reads(const struct weights *w, const char *key)
{
    struct err err;
    int64_t i;
    double f;
    bool b;
    const char *s;
    BUG_ON(!weights_meta(w, key));
    if (weights_int(w, key, -1000, 1000, &i, &err) == ERR_OK)
        BUG_ON(i < -1000 || i > 1000);
    if (weights_float_or(w, key, 0, &f, &err) == ERR_OK)
        BUG_ON(f != f);
    if (weights_str(w, key, &s, &err) == ERR_OK)
        BUG_ON(strlen(s) != weights_meta(w, key)->s.len);
    (void)!weights_bool_or(w, key, false, &b, &err);
    (void)!weights_array_int(w, key, 1, &i, &err);
}

/* The promises of weights.h about a tensor. */
static void use_tensor(const struct weights *w, const struct weights_tensor *t,
                       const struct weights_image *images)
{
    float y[256];
    const struct dtype_info *info = dtype_info(t->type);
    const struct weights_image *image = &images[t->file_i];
    BUG_ON(weights_find(w, t->name) != t);
    BUG_ON(t->n_dims < 1 || t->n_dims > WEIGHTS_DIMS_MAX);
    for (int i = 0; i < WEIGHTS_DIMS_MAX; i++)
        BUG_ON(t->shape[i] < 1);
    BUG_ON(t->bytes != dtype_row_bytes(t->type, t->shape[0]) *
                           (size_t)(t->shape[1] * t->shape[2] * t->shape[3]));
    BUG_ON((uintptr_t)t->data % 8 != 0);
    BUG_ON(t->data < image->data || t->data + t->bytes > image->data + image->size);
    if (info->can_decode) /* the last block: the sanitizer sees a read behind it */
        BUG_ON(weights_dequantize(t->type, t->data + t->bytes - info->block_bytes,
                                  info->block_elems, y, NULL));
}

static void fuzz_images(const struct weights_image *images, int n)
{
    struct weights *w = NULL;
    struct err err = { 0 };
    char digest[65];
    size_t size = 0;
    int64_t before = mem_bytes(MEM_CAT_WEIGHTS);
    for (int i = 0; i < n; i++)
        size += images[i].size;
    if (weights_open_images(images, n, &w, &err)) {
        BUG_ON(w || err.text[0] == '\0');
        BUG_ON(mem_bytes(MEM_CAT_WEIGHTS) != before);
        return;
    }
    BUG_ON((size_t)(mem_bytes(MEM_CAT_WEIGHTS) - before) > ((size_t)64 << 10) + 32 * size);
    for (int32_t i = 0; i < weights_n_meta(w); i++) {
        const char *key;
        volatile uint64_t sum = use_value(weights_meta_at(w, i, &key));
        (void)sum;
        use_typed_reads(w, key);
    }
    for (int32_t i = 0; i < weights_n_tensors(w); i++)
        use_tensor(w, weights_tensor_at(w, i), images);
    weights_digest(w, digest);
    BUG_ON(strlen(digest) != 64);
    weights_close(w);
    BUG_ON(mem_bytes(MEM_CAT_WEIGHTS) != before);
}

/* A copy of exactly n bytes, aligned as a map is. */
static uint8_t *copy_of(const uint8_t *data, size_t n)
{
    uint8_t *p = NULL;
    BUG_ON(posix_memalign((void **)&p, 64, n ? n : 1));
    memcpy(p, data, n);
    return p;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint32_t first = 0;
    bool is_split = size >= 8 && memcmp(data, "SPLT", 4) == 0;
    if (is_split) {
        memcpy(&first, data + 4, 4);
        data += 8;
        size -= 8;
        first = first > size ? (uint32_t)size : first;
    } else {
        first = (uint32_t)size;
    }
    uint8_t *a = copy_of(data, first), *b = copy_of(data + first, size - first);
    struct weights_image images[2] = { { "one", a, first }, { "two", b, size - first } };
    fuzz_images(images, is_split ? 2 : 1);
    free(a);
    free(b);
    return 0;
}
