/* digest.c - the identity of a model's weights. */
#define ERR_STATE OPENSSL_ERR_STATE /* a type of theirs has the name of a code of ours */
#include <openssl/evp.h>
#undef ERR_STATE

#include "weights/weights_int.h"

#include <string.h>

#define DIGEST_SAMPLE 4096 /* bytes at the start, middle and end of a tensor */

static void digest_bytes(EVP_MD_CTX *md, const void *data, size_t n)
{
    BUG_ON(EVP_DigestUpdate(md, data, n) != 1);
}

static void digest_u64(EVP_MD_CTX *md, uint64_t v)
{
    digest_bytes(md, &v, 8);
}

/* Lengths go first, so that no two different sequences of strings give the same bytes. */
static void digest_string(EVP_MD_CTX *md, const char *s, size_t n)
{
    digest_u64(md, n);
    digest_bytes(md, s, n);
}

static void digest_value(EVP_MD_CTX *md, const struct meta_value *v)
{
    digest_u64(md, (uint64_t)v->type);
    if (v->type == META_TYPE_STRING) {
        digest_string(md, v->s.data, v->s.len);
    } else if (v->type != META_TYPE_ARRAY) {
        digest_u64(
            md, v->u); /* the bits, for floats too: the union's members share their first 8 bytes */
    } else {
        digest_u64(md, (uint64_t)v->array.type);
        digest_u64(md, v->array.n);
        if (v->array.type == META_TYPE_STRING) {
            for (uint64_t i = 0; i < v->array.n; i++)
                digest_string(md, v->array.strs[i].data, v->array.strs[i].len);
        } else if (v->array.type == META_TYPE_ARRAY) {
            for (uint64_t i = 0; i < v->array.n; i++)
                digest_value(md, &v->array.values[i]);
        } else {
            digest_bytes(md, v->array.data, (size_t)v->array.n * meta_scalar_bytes(v->array.type));
        }
    }
}

static void digest_tensor(EVP_MD_CTX *md, const struct weights_tensor *t)
{
    digest_string(md, t->name, strlen(t->name));
    digest_string(md, dtype_info(t->type)->name, strlen(dtype_info(t->type)->name));
    for (int i = 0; i < WEIGHTS_DIMS_MAX; i++)
        digest_u64(md, (uint64_t)t->shape[i]);
    size_t n = t->bytes < DIGEST_SAMPLE ? t->bytes : DIGEST_SAMPLE;
    digest_bytes(md, t->data, n);
    digest_bytes(md, t->data + (t->bytes - n) / 2, n);
    digest_bytes(md, t->data + (t->bytes - n), n);
}

/* How the bytes are laid out in files says nothing about the weights. */
static bool digest_skips(const char *key)
{
    return strncmp(key, "split.", 6) == 0 || strcmp(key, "general.alignment") == 0;
}

void weights_digest(const struct weights *w, char out[65])
{
    static const char hex[] = "0123456789abcdef";
    unsigned char sum[EVP_MAX_MD_SIZE];
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    BUG_ON(!md || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1);
    for (int32_t i = 0; i < weights_n_meta(w); i++) {
        const char *key;
        const struct meta_value *v = weights_meta_at(w, i, &key);
        if (digest_skips(key))
            continue;
        digest_string(md, key, strlen(key));
        digest_value(md, v);
    }
    for (int i = 0; i < WEIGHTS_TEXTS;
         i++) /* the vocabulary of a directory is none of its metadata */
        if (w->texts[i].text.data)
            digest_string(md, w->texts[i].text.data, w->texts[i].text.len);
    for (int32_t i = 0; i < w->n_tensors; i++)
        digest_tensor(md, &w->tensors[i]);
    BUG_ON(EVP_DigestFinal_ex(md, sum, NULL) != 1);
    EVP_MD_CTX_free(md);
    for (int i = 0; i < 32; i++) {
        out[2 * i] = hex[sum[i] >> 4];
        out[2 * i + 1] = hex[sum[i] & 15];
    }
    out[64] = '\0';
}
