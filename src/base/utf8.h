/* utf8.h - decoding, encoding and checking UTF-8 (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF). */
#ifndef PLUMB_BASE_UTF8_H
#define PLUMB_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_REPLACEMENT 0xFFFDu

/* Decode the code point at s[0..n). Returns its length 1..4 and sets *cp; at an ill-formed or cut sequence returns 0 (and
 * *cp = U+FFFD). Need: n > 0. */
size_t utf8_decode(const char *s, size_t n, uint32_t *cp);

/* Write cp (surrogates and values over U+10FFFF as U+FFFD) to out[4]; returns the length. */
size_t utf8_encode(uint32_t cp, char *out);

bool utf8_is_valid(const char *s, size_t n);

/* Length of the longest prefix of s[0..n) that does not end inside a code point that more bytes could complete: what a
 * stream may show now. Ill-formed bytes count as complete. */
size_t utf8_complete_prefix(const char *s, size_t n);

/* Number of bytes at s[0..n) that one U+FFFD stands for (maximal subpart, Unicode 3.9, as Python's errors="replace").
 * Need: n > 0 and utf8_decode(s, n) == 0. */
size_t utf8_bad_length(const char *s, size_t n);

/* Code points in s[0..n); each maximal ill-formed part counts as one. */
size_t utf8_count(const char *s, size_t n);

#endif
