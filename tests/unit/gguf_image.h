/* gguf_image.h - GGUF images made byte by byte, for tests. */
#ifndef PLUMB_TESTS_UNIT_GGUF_IMAGE_H
#define PLUMB_TESTS_UNIT_GGUF_IMAGE_H

#include "weights/weights_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

struct image {
    _Alignas(64) uint8_t data[8192];
    size_t n;
};

static inline void put(struct image *m, const void *p, size_t n)
{
    assert_true(n <= sizeof(m->data) - m->n);
    memcpy(m->data + m->n, p, n);
    m->n += n;
}

static inline void put_u32(struct image *m, uint32_t v)
{
    put(m, &v, 4);
}

static inline void put_u64(struct image *m, uint64_t v)
{
    put(m, &v, 8);
}

static inline void put_str(struct image *m, const char *s)
{
    put_u64(m, strlen(s));
    put(m, s, strlen(s));
}

static inline void put_header(struct image *m, uint32_t version, uint64_t n_tensors,
                              uint64_t n_keys)
{
    m->n = 0;
    put(m, "GGUF", 4);
    put_u32(m, version);
    put_u64(m, n_tensors);
    put_u64(m, n_keys);
}

static inline void put_key(struct image *m, const char *key, enum meta_type type)
{
    put_str(m, key);
    put_u32(m, (uint32_t)type);
}

static inline void put_key_u32(struct image *m, const char *key, uint32_t v)
{
    put_key(m, key, META_TYPE_U32);
    put_u32(m, v);
}

static inline void put_array(struct image *m, enum meta_type type, uint64_t n)
{
    put_u32(m, (uint32_t)type);
    put_u64(m, n);
}

static inline void put_tensor(struct image *m, const char *name, uint32_t type, uint64_t d0,
                              uint64_t d1, uint64_t offset)
{
    put_str(m, name);
    put_u32(m, d1 ? 2 : 1);
    put_u64(m, d0);
    if (d1)
        put_u64(m, d1);
    put_u32(m, type);
    put_u64(m, offset);
}

static inline void put_padding(struct image *m, size_t alignment)
{
    while (m->n % alignment)
        put(m, "", 1);
}

static inline void put_data(struct image *m, size_t n, uint8_t first)
{
    for (size_t i = 0; i < n; i++)
        put(m, &(uint8_t){ (uint8_t)(first + i) }, 1);
}

#define GOOD_KEYS 17

static inline void put_scalar_keys(struct image *m)
{
    put_key(m, "key.u8", META_TYPE_U8);
    put(m, "\xFF", 1);
    put_key(m, "key.i8", META_TYPE_I8);
    put(m, "\xFE", 1);
    put_key(m, "key.u16", META_TYPE_U16);
    put(m, &(uint16_t){ 65535 }, 2);
    put_key(m, "key.i16", META_TYPE_I16);
    put(m, &(int16_t){ -300 }, 2);
    put_key_u32(m, "key.u32", UINT32_MAX);
    put_key(m, "key.i32", META_TYPE_I32);
    put(m, &(int32_t){ INT32_MIN }, 4);
    put_key(m, "key.u64", META_TYPE_U64);
    put_u64(m, UINT64_MAX);
    put_key(m, "key.i64", META_TYPE_I64);
    put_u64(m, (uint64_t)INT64_MIN);
    put_key(m, "key.f32", META_TYPE_F32);
    put(m, &(float){ 0.1f }, 4);
    put_key(m, "key.f64", META_TYPE_F64);
    put(m, &(double){ 0.1 }, 8);
    put_key(m, "key.bool", META_TYPE_BOOL);
    put(m, "\1", 1);
}

static inline void put_array_keys(struct image *m)
{
    put_key(m, "arr.str", META_TYPE_ARRAY);
    put_array(m, META_TYPE_STRING, 3);
    put_str(m, "a");
    put_str(m, "");
    put_str(m, "\xFF\xC0raw");
    put_key(m, "arr.i16", META_TYPE_ARRAY);
    put_array(m, META_TYPE_I16, 2);
    put(m, &(int16_t[2]){ -1, 7 }, 4);
    put_key(m, "arr.bool", META_TYPE_ARRAY);
    put_array(m, META_TYPE_BOOL, 2);
    put(m, "\0\1", 2);
    put_key(m, "arr.arr", META_TYPE_ARRAY);
    put_array(m, META_TYPE_ARRAY, 2);
    put_array(m, META_TYPE_U32, 1);
    put_u32(m, 77);
    put_array(m, META_TYPE_STRING, 1);
    put_str(m, "inner");
}

/* Tensors: t.zero F32 [4, 2] at 0, t.one Q8_0 [32, 3] at 32 (102 bytes), t.two F16 [8] at 160. */
static inline void make_good(struct image *m)
{
    put_header(m, 3, 3, GOOD_KEYS);
    put_key(m, "general.architecture", META_TYPE_STRING);
    put_str(m, "llama");
    put_key_u32(m, "general.alignment", 32);
    put_scalar_keys(m);
    put_array_keys(m);
    put_tensor(m, "t.zero", 0, 4, 2, 0);
    put_tensor(m, "t.one", 8, 32, 3, 32);
    put_tensor(m, "t.two", 1, 8, 0, 160);
    put_padding(m, 32);
    put_data(m, 176, 1);
}

static inline enum err_code open_image(const struct image *m, struct weights **w, struct err *err)
{
    *w = NULL;
    memset(err, 0, sizeof(*err));
    return weights_open_images(&(struct weights_image){ "m.gguf", m->data, m->n }, 1, w, err);
}

static inline struct weights *open_good(const struct image *m)
{
    struct weights *w;
    struct err err;
    if (open_image(m, &w, &err))
        fail_msg("%s", err.text);
    return w;
}

/* Where the bytes behind the anchor's first place begin; NULL is the file's start. */
static inline uint8_t *find_anchor(struct image *m, const char *anchor)
{
    uint8_t *p = anchor ? memmem(m->data, m->n, anchor, strlen(anchor)) : m->data;
    assert_non_null(p);
    return p + (anchor ? strlen(anchor) : 0);
}

#endif
