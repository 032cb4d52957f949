/* dialect_embeddings.c - the reply of /v1/embeddings: hidden states, cut and normalised to length 1. */
#define ERR_STATE OPENSSL_ERR_STATE /* a type of theirs has the name of a code of ours */
#include <openssl/evp.h>
#undef ERR_STATE

#include "server/dialect.h"
#include "json/json.h"

#include <math.h>
#include <stdio.h>

/* out [n]. The sum goes up by index, in double: the same bits wherever it is made. A text without direction stays zero. */
static void embeddings_normalise(const float *v, int32_t n, float *out)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    double length = sqrt(sum);
    for (int32_t i = 0; i < n; i++)
        out[i] = length > 0 ? (float)((double)v[i] / length) : 0;
}

static void embeddings_write_base64(struct json_writer *w, const float *v, int32_t n)
{
    size_t bytes = (size_t)n * sizeof(*v);
    char *text = mem_alloc(MEM_CAT_REQUEST, (bytes + 2) / 3 * 4 + 1);
    int len = EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)v, (int)bytes);
    json_strn(w, text, (size_t)len);
    mem_free(MEM_CAT_REQUEST, text);
}

static void embeddings_write_floats(struct json_writer *w, const float *v, int32_t n)
{
    char text[32]; /* nine digits tell every float from its neighbours */
    json_begin_array(w);
    for (int32_t i = 0; i < n; i++) {
        int len = snprintf(text, sizeof(text), "%.9g", (double)v[i]);
        json_raw(w, text, (size_t)len);
    }
    json_end_array(w);
}

static void embeddings_whole(struct buf *out, const struct dialect_head *h,
                             const struct dialect_choice *c, int32_t n,
                             const struct dialect_usage *u)
{
    float *v = mem_alloc(MEM_CAT_REQUEST, sizeof(*v) * (size_t)h->n_dims);
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_str(&w, "object", "list");
    json_field_array(&w, "data");
    for (int32_t i = 0; i < n; i++) {
        embeddings_normalise(c[i].hidden, h->n_dims, v);
        json_begin_object(&w);
        json_field_str(&w, "object", "embedding");
        json_field_int(&w, "index", c[i].index);
        json_key(&w, "embedding");
        if (h->is_base64)
            embeddings_write_base64(&w, v, h->n_dims);
        else
            embeddings_write_floats(&w, v, h->n_dims);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_field_str(&w, "model", h->model);
    json_field_object(&w, "usage");
    json_field_int(&w, "prompt_tokens", u->prompt_tokens);
    json_field_int(&w, "total_tokens", u->prompt_tokens);
    json_end_object(&w);
    json_end_object(&w);
    mem_free(MEM_CAT_REQUEST, v);
}

const struct dialect dialect_embeddings = { .id_prefix = "embd-", .whole = embeddings_whole };
