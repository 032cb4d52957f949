/* meta.c - single metadata values. */
#include "base/utf8.h"
#include "weights/weights_int.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} meta_types[] = {
    [META_TYPE_U8] = { "u8", 1 },         [META_TYPE_I8] = { "i8", 1 },
    [META_TYPE_U16] = { "u16", 2 },       [META_TYPE_I16] = { "i16", 2 },
    [META_TYPE_U32] = { "u32", 4 },       [META_TYPE_I32] = { "i32", 4 },
    [META_TYPE_F32] = { "f32", 4 },       [META_TYPE_BOOL] = { "bool", 1 },
    [META_TYPE_STRING] = { "string", 0 }, [META_TYPE_ARRAY] = { "array", 0 },
    [META_TYPE_U64] = { "u64", 8 },       [META_TYPE_I64] = { "i64", 8 },
    [META_TYPE_F64] = { "f64", 8 },
};

const char *meta_type_name(enum meta_type type)
{
    BUG_ON((unsigned)type >= ARRAY_LEN(meta_types));
    return meta_types[type].name;
}

size_t meta_scalar_bytes(enum meta_type type)
{
    BUG_ON((unsigned)type >= ARRAY_LEN(meta_types));
    return meta_types[type].bytes;
}

bool meta_is_signed(enum meta_type type)
{
    return type == META_TYPE_I8 || type == META_TYPE_I16 || type == META_TYPE_I32 ||
           type == META_TYPE_I64;
}

bool meta_is_float(enum meta_type type)
{
    return type == META_TYPE_F32 || type == META_TYPE_F64;
}

bool meta_is_int(enum meta_type type)
{
    return meta_scalar_bytes(type) && !meta_is_float(type) && type != META_TYPE_BOOL;
}

void meta_scalar(enum meta_type type, const uint8_t *p, struct meta_value *out)
{
    size_t n = meta_scalar_bytes(type);
    BUG_ON(n == 0);
    out->type = type;
    if (type == META_TYPE_F32) {
        float f;
        memcpy(&f, p, 4);
        out->f = f;
    } else if (type == META_TYPE_F64) {
        memcpy(&out->f, p, 8);
    } else {
        uint64_t u = 0;
        memcpy(&u, p, n); /* little-endian host: blocks.h asserts it */
        if (meta_is_signed(type) && n < 8 && u >> (8 * n - 1))
            u |= ~(uint64_t)0 << 8 * n;
        out->u = u;
    }
}

void meta_array_at(const struct meta_value *v, uint64_t i, struct meta_value *out)
{
    BUG_ON(v->type != META_TYPE_ARRAY || i >= v->array.n);
    if (v->array.type == META_TYPE_ARRAY)
        *out = v->array.values[i];
    else if (v->array.type == META_TYPE_STRING)
        *out = (struct meta_value){ .type = META_TYPE_STRING, .s = v->array.strs[i] };
    else
        meta_scalar(v->array.type, v->array.data + i * meta_scalar_bytes(v->array.type), out);
}

const char *meta_quote(char out[META_QUOTE_MAX], const char *s, size_t n)
{
    size_t pos = 0, i = 0;
    out[pos++] = '\'';
    while (i < n && pos < META_QUOTE_MAX - 16) {
        uint32_t cp;
        size_t len = utf8_decode(s + i, n - i, &cp);
        if (len == 0 || cp < 0x20 || (cp >= 0x7F && cp < 0xA0)) {
            pos += (size_t)snprintf(out + pos, 5, "\\x%02X", (unsigned char)s[i]);
            i++;
        } else {
            memcpy(out + pos, s + i, len);
            pos += len;
            i += len;
        }
    }
    snprintf(out + pos, META_QUOTE_MAX - pos, "%s'", i < n ? "..." : "");
    return out;
}

bool meta_name_is_clean(const char *s, size_t n)
{
    bool is_clean = utf8_is_valid(s, n);
    for (size_t i = 0; i < n && is_clean; i++)
        is_clean = (unsigned char)s[i] >= 0x20 && s[i] != 0x7F;
    return is_clean;
}
