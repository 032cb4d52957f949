/* uni.c - character classes and case maps as Python's str methods have them: utf8proc, and tables for the rest. */
#include "template/template_int.h"
#include "template/uni_tab.h"

#include <utf8proc.h>

static bool uni_in(const struct uni_range *r, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (r[mid].p1 < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && r[lo].p0 <= cp;
}

static utf8proc_category_t uni_category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool uni_is_space(uint32_t cp)
{
    return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
           cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool uni_is_line_end(uint32_t cp)
{
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

bool uni_is_printable(uint32_t cp)
{
    if (cp < 0x7F)
        return cp >= 0x20;
    switch (uni_category(cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

bool uni_is_alpha(uint32_t cp)
{
    utf8proc_category_t c = uni_category(cp);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

bool uni_is_digit(uint32_t cp)
{
    return uni_category(cp) == UTF8PROC_CATEGORY_ND ||
           uni_in(uni_other_digit, ARRAY_LEN(uni_other_digit), cp);
}

bool uni_is_numeric(uint32_t cp)
{
    utf8proc_category_t c = uni_category(cp);
    return (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO) ||
           uni_in(uni_other_numeric, ARRAY_LEN(uni_other_numeric), cp);
}

bool uni_is_word(uint32_t cp)
{
    return cp == '_' || uni_is_alpha(cp) || uni_is_numeric(cp) || uni_is_digit(cp);
}

bool uni_is_upper(uint32_t cp)
{
    return uni_category(cp) == UTF8PROC_CATEGORY_LU ||
           uni_in(uni_other_upper, ARRAY_LEN(uni_other_upper), cp);
}

bool uni_is_lower(uint32_t cp)
{
    return uni_category(cp) == UTF8PROC_CATEGORY_LL ||
           uni_in(uni_other_lower, ARRAY_LEN(uni_other_lower), cp);
}

bool uni_is_title(uint32_t cp)
{
    return uni_category(cp) == UTF8PROC_CATEGORY_LT;
}

bool uni_is_cased(uint32_t cp)
{
    return uni_is_upper(cp) || uni_is_lower(cp) || uni_is_title(cp);
}

static int uni_full_map(const struct uni_full *t, size_t n, uint32_t cp, uint32_t out[3])
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (t[mid].cp < cp)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == n || t[lo].cp != cp)
        return 0;
    int len = 0;
    for (; len < 3 && t[lo].to[len]; len++)
        out[len] = t[lo].to[len];
    return len;
}

int uni_map(uint32_t cp, enum uni_case to, uint32_t out[3])
{
    int n = 0, boundary = 0;
    utf8proc_int32_t fold[8];
    switch (to) {
    case UNI_UPPER:
        n = uni_full_map(uni_full_upper, ARRAY_LEN(uni_full_upper), cp, out);
        out[0] = n ? out[0] : (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
        return n ? n : 1;
    case UNI_TITLE:
        n = uni_full_map(uni_full_title, ARRAY_LEN(uni_full_title), cp, out);
        out[0] = n ? out[0] : (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
        return n ? n : 1;
    case UNI_LOWER:
        if (cp == 0x130) { /* the only one that becomes two */
            out[0] = 'i';
            out[1] = 0x307;
            return 2;
        }
        out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
        return 1;
    case UNI_FOLD:
        n = (int)utf8proc_decompose_char((utf8proc_int32_t)cp, fold, 8, UTF8PROC_CASEFOLD,
                                         &boundary);
        for (int i = 0; i < n && i < 3; i++)
            out[i] = (uint32_t)fold[i];
        if (n < 1)
            out[0] = cp;
        return n < 1 ? 1 : n > 3 ? 3 : n;
    }
    return 0;
}
