#include "base/utf8.h"

/* Expected length and the allowed range of the second byte for a lead byte (Unicode 15, table 3-7). 0 = not a lead. */
static size_t utf8_lead(unsigned char b, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (b < 0x80)
        return 1;
    if (b >= 0xC2 && b <= 0xDF)
        return 2;
    if (b >= 0xE0 && b <= 0xEF) {
        if (b == 0xE0)
            *lo = 0xA0;
        if (b == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (b >= 0xF0 && b <= 0xF4) {
        if (b == 0xF0)
            *lo = 0x90;
        if (b == 0xF4)
            *hi = 0x8F;
        return 4;
    }
    return 0;
}

/* Bytes of a well-formed start at s (1 for a bad lead), and whether the sequence is whole. */
static size_t utf8_scan(const char *s, size_t n, size_t *want)
{
    unsigned char lo, hi;
    size_t len = utf8_lead((unsigned char)s[0], &lo, &hi);
    *want = len;
    if (len <= 1)
        return 1;
    size_t i = 1;
    while (i < len && i < n) {
        unsigned char c = (unsigned char)s[i];
        if (i == 1 ? (c < lo || c > hi) : (c & 0xC0) != 0x80)
            break;
        i++;
    }
    return i;
}

size_t utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    static const unsigned char mask[5] = { 0, 0x7F, 0x1F, 0x0F, 0x07 };
    size_t want;
    size_t got = utf8_scan(s, n, &want);
    if (want == 0 || got < want) {
        *cp = UTF8_REPLACEMENT;
        return 0;
    }
    uint32_t v = (unsigned char)s[0] & mask[want];
    for (size_t i = 1; i < want; i++)
        v = v << 6 | ((unsigned char)s[i] & 0x3F);
    *cp = v;
    return want;
}

size_t utf8_encode(uint32_t cp, char *out)
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        cp = UTF8_REPLACEMENT;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t n = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };
    for (size_t i = n - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (char)(lead[n] | cp);
    return n;
}

bool utf8_is_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = utf8_decode(s + i, n - i, &cp);
        if (len == 0)
            return false;
        i += len;
    }
    return true;
}

size_t utf8_bad_length(const char *s, size_t n)
{
    size_t want;
    return utf8_scan(s, n, &want);
}

size_t utf8_complete_prefix(const char *s, size_t n)
{
    size_t back = n < 3 ? n : 3;
    for (size_t k = 1; k <= back; k++) {
        size_t want;
        const char *p = s + n - k;
        if (((unsigned char)*p & 0xC0) == 0x80)
            continue;
        size_t got = utf8_scan(p, k, &want);
        return want > k && got == k ? n - k : n;
    }
    return n;
}

size_t utf8_count(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; count++) {
        uint32_t cp;
        size_t len = utf8_decode(s + i, n - i, &cp);
        i += len ? len : utf8_bad_length(s + i, n - i);
    }
    return count;
}
