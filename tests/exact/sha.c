#include "sha.h"

#include <openssl/evp.h>
#include <stdio.h>

struct sha *sha_new(void)
{
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    EVP_DigestInit_ex(md, EVP_sha256(), NULL);
    return (struct sha *)md;
}

void sha_add(struct sha *s, const void *data, size_t n)
{
    EVP_DigestUpdate((EVP_MD_CTX *)s, data, n);
}

void sha_finish(struct sha *s, char out[65])
{
    unsigned char sum[32];
    EVP_DigestFinal_ex((EVP_MD_CTX *)s, sum, NULL);
    EVP_MD_CTX_free((EVP_MD_CTX *)s);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
}
