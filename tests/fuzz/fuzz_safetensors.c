/* fuzz_safetensors.c - any bytes as a model directory: an error, or tensors that lie inside their file, under GGUF's names where the
 * configuration is of a known family.
 *
 * Input: u16 bytes of config.json, its bytes; u16 bytes of tokenizer_config.json, its bytes; the rest is the tensor file. */
#include "model/model.h"
#include "weights/weights_int.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct meta_str take_text(const uint8_t **data, size_t *size)
{
    uint16_t n = 0;
    size_t k = *size < 2 ? *size : 2;
    memcpy(&n, *data, k);
    *data += k;
    *size -= k;
    n = n > *size ? (uint16_t)*size : n;
    struct meta_str s = { n ? (const char *)*data : NULL, n };
    *data += n;
    *size -= n;
    return s;
}

/* The promises of weights.h about a tensor that is the file's. */
static void use_tensor(const struct weights *w, const struct weights_tensor *t,
                       const struct weights_image *image)
{
    BUG_ON(weights_find(w, t->name) != t);
    BUG_ON(t->n_dims < 1 || t->n_dims > WEIGHTS_DIMS_MAX);
    for (int i = 0; i < WEIGHTS_DIMS_MAX; i++)
        BUG_ON(t->shape[i] < 1);
    BUG_ON(t->bytes != dtype_row_bytes(t->type, t->shape[0]) *
                           (size_t)(t->shape[1] * t->shape[2] * t->shape[3]));
    if (t->data < image->data || t->data >= image->data + image->size)
        return; /* made while adapting */
    BUG_ON(t->bytes > (size_t)(image->data + image->size - t->data));
    BUG_ON(dtype_info(t->type)->has_scales && (t->scales.rows < 1 || t->scales.cols < 1));
    if (!dtype_info(t->type)->has_scales || !t->scales.scales)
        return;
    int64_t rows = t->shape[1] * t->shape[2] * t->shape[3];
    size_t n = (size_t)((rows - 1) / t->scales.rows + 1) *
               (size_t)((t->shape[0] - 1) / t->scales.cols + 1);
    size_t bytes = n * (size_t)dtype_info(t->scales.type)->block_bytes;
    const uint8_t *parts[] = { t->scales.scales, t->scales.biases };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        BUG_ON(parts[i] && (parts[i] < image->data || parts[i] > image->data + image->size ||
                            bytes > (size_t)(image->data + image->size - parts[i])));
}

static void use_tensors(const struct weights *w, const struct weights_image *image)
{
    char digest[65];
    for (int32_t i = 0; i < weights_n_tensors(w); i++)
        use_tensor(w, weights_tensor_at(w, i), image);
    weights_digest(w, digest);
    BUG_ON(strlen(digest) != 64);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct meta_str texts[WEIGHTS_TEXTS] = { { NULL, 0 } };
    struct weights *w = NULL;
    struct err err = { 0 };
    int64_t before = mem_bytes(MEM_CAT_WEIGHTS);
    texts[WEIGHTS_TEXT_CONFIG] = take_text(&data, &size);
    texts[WEIGHTS_TEXT_TOKENIZER_CONFIG] = take_text(&data, &size);
    uint8_t *copy = malloc(size ? size : 1); /* of its own size, so that a read behind it is seen */
    BUG_ON(!copy);
    memcpy(copy, data, size);
    struct weights_image image = { "one", copy, size };
    if (dir_open_images(&image, 1, texts, &w, &err)) {
        BUG_ON(w || err.text[0] == '\0');
    } else {
        use_tensors(w, &image);
        if (model_adapt(w, &err))
            BUG_ON(err.text[0] == '\0');
        else
            use_tensors(w, &image);
        weights_close(w);
    }
    free(copy);
    BUG_ON(mem_bytes(MEM_CAT_WEIGHTS) != before);
    return 0;
}
