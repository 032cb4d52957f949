/* sha.h - SHA-256 behind plain functions: OpenSSL's headers and base/err.h both define ERR_STATE. */
#ifndef PLUMB_TESTS_EXACT_SHA_H
#define PLUMB_TESTS_EXACT_SHA_H

#include <stddef.h>

struct sha;
struct sha *sha_new(void);
void sha_add(struct sha *s, const void *data, size_t n);
void sha_finish(struct sha *s, char out[65]); /* 64 hex digits; frees s */

#endif
