/* nfa_class.c - characters as bytes: UTF-8 (RFC 3629), and JSON's escapes. Part of nfa.c. */
#include "base/utf8.h"
#include "grammar/grammar_int.h"

#include <string.h>

/* Bytes x[0..n) to y[0..n), each running freely between its bounds. */
static void nfa_class_chain(struct nfa *a, const char *x, const char *y, size_t n, int32_t from,
                            int32_t to)
{
    for (size_t i = 0; i < n; i++) {
        int32_t next = i + 1 == n ? to : nfa_state(a);
        nfa_byte(a, from, (uint8_t)x[i], (uint8_t)y[i], next);
        from = next;
    }
}

/* The code points [lo, hi], cut until the encodings of a piece are the product of its bytes' ranges. */
static void nfa_class_split(struct nfa *a, uint32_t lo, uint32_t hi, int32_t from, int32_t to)
{
    static const uint32_t ends[] = { 0x7F, 0x7FF, 0xFFFF };
    char x[4], y[4];
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        if (lo <= ends[i] && hi > ends[i]) {
            nfa_class_split(a, lo, ends[i], from, to);
            nfa_class_split(a, ends[i] + 1, hi, from, to);
            return;
        }
    size_t n = utf8_encode(lo, x);
    for (size_t i = 1; i < n; i++) { /* whole blocks of 64, 4096, ... code points */
        uint32_t mask = (1u << 6 * i) - 1;
        if ((lo & ~mask) == (hi & ~mask))
            break;
        if (lo & mask) {
            nfa_class_split(a, lo, lo | mask, from, to);
            nfa_class_split(a, (lo | mask) + 1, hi, from, to);
            return;
        }
        if ((hi & mask) != mask) {
            nfa_class_split(a, lo, (hi & ~mask) - 1, from, to);
            nfa_class_split(a, hi & ~mask, hi, from, to);
            return;
        }
    }
    utf8_encode(hi, y);
    nfa_class_chain(a, x, y, n, from, to);
}

/* The plain spelling of a character that must not stand raw in a JSON string. */
static void nfa_class_escape(struct nfa *a, uint32_t cp, int32_t from, int32_t to)
{
    static const char letters[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    static const char hex[] = "0123456789abcdef";
    int32_t slash = nfa_state(a);
    const char *p = cp ? strchr(letters, (int)cp) : NULL;
    nfa_byte(a, from, '\\', '\\', slash);
    if (p) {
        nfa_byte(a, slash, (uint8_t)names[p - letters], (uint8_t)names[p - letters], to);
        return;
    }
    const char text[] = { 'u', '0', '0', hex[cp >> 4], hex[cp & 15] };
    nfa_class_chain(a, text, text, sizeof(text), slash, to);
}

/* In a JSON string: raw where that may be, else escaped. */
static void nfa_class_json(struct nfa *a, uint32_t lo, uint32_t hi, int32_t from, int32_t to)
{
    static const struct expr_range raw[] = { { 0x20, 0x21 }, { 0x23, 0x5B }, { 0x5D, 0x10FFFF } };
    for (uint32_t cp = lo; cp <= hi && cp <= '\\'; cp++)
        if (cp < 0x20 || cp == '"' || cp == '\\')
            nfa_class_escape(a, cp, from, to);
    for (size_t i = 0; i < ARRAY_LEN(raw); i++) {
        uint32_t x = lo > raw[i].lo ? lo : raw[i].lo, y = hi < raw[i].hi ? hi : raw[i].hi;
        if (x <= y)
            nfa_class_split(a, x, y, from, to);
    }
}

void nfa_emit_class(struct nfa *a, const struct expr *e, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < e->n && !a->b->code; i++) {
        if (e->is_json)
            nfa_class_json(a, e->ranges[i].lo, e->ranges[i].hi, from, to);
        else
            nfa_class_split(a, e->ranges[i].lo, e->ranges[i].hi, from, to);
    }
}
