/* t_gguf.c - the GGUF reader against images made here byte by byte: what a good one holds, and every way to lie in one. */
#include "gguf_image.h"

#include <stdio.h>

/* The image is refused with code, the text has each of the words (separated by '|'), and nothing stays allocated. */
static void assert_refused(const struct image *m, enum err_code want, const char *words)
{
    struct weights *w;
    struct err err;
    char copy[256];
    char *rest = copy;
    enum err_code code = open_image(m, &w, &err);
    if (code == ERR_OK)
        fail_msg("opened, should say: %s", words);
    assert_null(w);
    snprintf(copy, sizeof(copy), "%s", words);
    for (char *word; (word = strsep(&rest, "|"));)
        if (!strstr(err.text, word))
            fail_msg("'%s' does not say '%s'", err.text, word);
    if (code != want)
        fail_msg("%s: code %d, want %d", err.text, code, want);
    assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), 0);
}

static void good_files_are_read_whole(void **state)
{
    static struct image m;
    make_good(&m);
    struct weights *w = open_good(&m);
    assert_int_equal(weights_n_tensors(w), 3);
    assert_int_equal(weights_n_meta(w), GOOD_KEYS);
    assert_int_equal(weights_gguf_version(w), 3);
    assert_int_equal(weights_alignment(w), 32);
    const struct weights_tensor *t = weights_find(w, "t.one");
    assert_ptr_equal(t, weights_tensor_at(w, 1));
    assert_string_equal(t->name, "t.one");
    assert_int_equal(t->type, DTYPE_Q8_0);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 32);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->shape[2] * t->shape[3], 1);
    assert_int_equal(t->bytes, 102);
    assert_int_equal(t->data[0], 33); /* put_data counts from 1 */
    assert_ptr_equal(t->data, m.data + t->offset);
    assert_int_equal(weights_find(w, "t.two")->shape[1], 1);
    assert_int_equal(weights_find(w, "t.two")->bytes, 16);
    assert_null(weights_find(w, "t.on"));
    weights_drop(w, t->data, t->bytes); /* nothing is mapped: no effect */
    weights_close(w);
    assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), 0);
}

static void version_2_is_read_too(void **state)
{
    static struct image m;
    make_good(&m);
    m.data[4] = 2;
    struct weights *w = open_good(&m);
    assert_int_equal(weights_gguf_version(w), 2);
    weights_close(w);
}

static void assert_int_key(const struct weights *w, const char *key, int64_t want)
{
    int64_t v = 0;
    struct err err;
    if (weights_int(w, key, INT64_MIN, INT64_MAX, &v, &err))
        fail_msg("%s", err.text);
    assert_true(v == want);
}

static void every_metadata_type_is_read(void **state)
{
    static struct image m;
    struct meta_value v, inner;
    double f;
    bool b = false;
    make_good(&m);
    struct weights *w = open_good(&m);
    assert_int_key(w, "key.u8", 255);
    assert_int_key(w, "key.i8", -2);
    assert_int_key(w, "key.u16", 65535);
    assert_int_key(w, "key.i16", -300);
    assert_int_key(w, "key.u32", UINT32_MAX);
    assert_int_key(w, "key.i32", INT32_MIN);
    assert_int_key(w, "key.i64", INT64_MIN);
    assert_true(weights_meta(w, "key.u64")->u == UINT64_MAX);
    assert_int_equal(weights_float_or(w, "key.f32", 0, &f, NULL), ERR_OK);
    assert_true(f == (double)0.1f);
    assert_int_equal(weights_float_or(w, "key.f64", 0, &f, NULL), ERR_OK);
    assert_true(f == 0.1);
    assert_int_equal(weights_bool_or(w, "key.bool", false, &b, NULL), ERR_OK);
    assert_true(b);
    const struct meta_value *strs = weights_meta(w, "arr.str");
    assert_int_equal(strs->array.n, 3);
    meta_array_at(strs, 2, &v);
    assert_int_equal(v.s.len, 5);
    assert_memory_equal(v.s.data, "\xFF\xC0raw", 5);
    meta_array_at(weights_meta(w, "arr.i16"), 0, &v);
    assert_true(v.i == -1 && v.type == META_TYPE_I16);
    const struct meta_value *nested = weights_meta(w, "arr.arr");
    assert_int_equal(nested->array.type, META_TYPE_ARRAY);
    meta_array_at(nested, 0, &v);
    meta_array_at(&v, 0, &inner);
    assert_int_equal(inner.u, 77);
    meta_array_at(nested, 1, &v);
    assert_memory_equal(v.array.strs[0].data, "inner", 5);
    weights_close(w);
}

/* --- lies: bytes behind an anchor (a name, or NULL for the file's start) are overwritten --- */

struct lie {
    const char *anchor;
    int at; /* bytes from the anchor's end */
    int width;
    uint64_t value;
    enum err_code code;
    const char *words;
};

/* Behind a tensor's name: u32 n_dims, u64 dims, u32 type, u64 offset. Behind a key: u32 type, value. */
static const struct lie lies[] = {
    { NULL, 0, 4, 0x58554747, ERR_INVALID, "m.gguf|not a GGUF file|'GGUX'" },
    { NULL, 0, 4, 0x0A1B0001, ERR_INVALID, "'\\x01\\x00\\x1B\\x0A'" },
    { NULL, 4, 4, 0, ERR_UNSUPPORTED, "version 0" },
    { NULL, 4, 4, 1, ERR_UNSUPPORTED, "version 1" },
    { NULL, 4, 4, 4, ERR_UNSUPPORTED, "version 4" },
    { NULL, 4, 4, UINT32_MAX, ERR_UNSUPPORTED, "version 4294967295" },
    { NULL, 4, 4, 0x03000000, ERR_UNSUPPORTED, "big-endian|version 3" },
    { NULL, 8, 8, (uint64_t)1 << 63, ERR_INVALID, "9223372036854775808 tensors" },
    { NULL, 8, 8, (uint64_t)1 << 60, ERR_INVALID, "1152921504606846976 tensors" },
    { NULL, 8, 8, 4, ERR_INVALID, "tensor 4 of 4" },
    { NULL, 16, 8, (uint64_t)1 << 63, ERR_INVALID, "9223372036854775808 keys" },
    { NULL, 16, 8, UINT64_MAX, ERR_INVALID, "18446744073709551615 keys" },
    { NULL, 16, 8, 65537, ERR_INVALID, "65537 keys" },
    { NULL, 24, 8, INT64_MAX, ERR_INVALID, "a key|9223372036854775807 bytes" },
    { NULL, 24, 8, UINT64_MAX - 8, ERR_INVALID, "a key|18446744073709551607 bytes" },
    { NULL, 24, 8, 0, ERR_INVALID, "a key has 0 bytes" },
    { NULL, 32, 1, 0x1B, ERR_INVALID, "'\\x1Beneral.architecture' is not UTF-8" },
    { NULL, 32, 1, 0xFF, ERR_INVALID, "'\\xFFeneral.architecture' is not UTF-8" },
    { NULL, 32, 1, 0, ERR_INVALID, "'\\x00eneral.architecture' is not UTF-8" },
    { "general.architecture", 0, 4, 13, ERR_UNSUPPORTED, "'general.architecture'|value type 13" },
    { "general.architecture", 0, 4, UINT32_MAX, ERR_UNSUPPORTED, "value type 4294967295" },
    { "general.architecture", 4, 8, (uint64_t)1 << 40, ERR_INVALID,
      "'general.architecture'|1099511627776" },
    { "general.architecture", 4, 8, UINT64_MAX - 7, ERR_INVALID, "'general.architecture'" },
    { "general.alignment", 0, 4, META_TYPE_I32, ERR_INVALID,
      "'general.alignment' is of type i32, want u32" },
    { "general.alignment", 4, 4, 0, ERR_INVALID, "'general.alignment' is 0" },
    { "general.alignment", 4, 4, 4, ERR_INVALID, "'general.alignment' is 4" },
    { "general.alignment", 4, 4, 33, ERR_INVALID, "'general.alignment' is 33" },
    { "general.alignment", 4, 4, 1u << 31, ERR_INVALID, "'general.alignment' is 2147483648" },
    { "general.alignment", 4, 4, 64, ERR_INVALID, "'t.one'|offset 32|alignment 64" },
    { "key.bool", 4, 1, 2, ERR_INVALID, "'key.bool'|value 2" },
    { "arr.bool", 16, 1, 255, ERR_INVALID, "'arr.bool'|value 255" },
    { "arr.str", 4, 4, 99, ERR_UNSUPPORTED, "'arr.str'|value type 99" },
    { "arr.str", 8, 8, (uint64_t)1 << 61, ERR_INVALID,
      "'arr.str'|2305843009213693952 elements (string)" },
    { "arr.str", 16, 8, (uint64_t)1 << 40, ERR_INVALID, "'arr.str'|element 0 of 3|1099511627776" },
    { "arr.i16", 8, 8, (uint64_t)1 << 63, ERR_INVALID,
      "'arr.i16'|9223372036854775808 elements (i16)" },
    { "arr.i16", 8, 8, UINT64_MAX, ERR_INVALID, "'arr.i16'|18446744073709551615 elements" },
    { "arr.arr", 8, 8, (uint64_t)1 << 60, ERR_INVALID,
      "'arr.arr'|1152921504606846976 elements (array)" },
    { "t.zero", 0, 4, 0, ERR_INVALID, "'t.zero'|n_dims is 0" },
    { "t.zero", 0, 4, 5, ERR_INVALID, "'t.zero'|n_dims is 5" },
    { "t.zero", 0, 4, UINT32_MAX, ERR_INVALID, "'t.zero'|n_dims is 4294967295" },
    { "t.zero", 4, 8, 0, ERR_INVALID, "'t.zero'|dimension 0 is 0" },
    { "t.zero", 12, 8, 0, ERR_INVALID, "'t.zero'|dimension 1 is 0" },
    { "t.zero", 4, 8, UINT64_MAX, ERR_INVALID, "'t.zero'|dimension 0 is 18446744073709551615" },
    { "t.zero", 12, 8, (uint64_t)1 << 63, ERR_INVALID,
      "'t.zero'|dimension 1 is 9223372036854775808" },
    { "t.zero", 12, 8, ((uint64_t)1 << 62) + 1, ERR_INVALID, "'t.zero'|over 2^63 elements" },
    { "t.zero", 12, 8, (uint64_t)1 << 60, ERR_INVALID, "'t.zero'|over 2^64 bytes" },
    { "t.zero", 12, 8, (uint64_t)1 << 57, ERR_INVALID, "'t.zero'|bytes at 0" },
    { "t.zero", 20, 4, 255, ERR_UNSUPPORTED, "'t.zero'|type 255" },
    { "t.zero", 20, 4, 4, ERR_UNSUPPORTED, "'t.zero'|type 4" },
    { "t.zero", 20, 4, 38, ERR_UNSUPPORTED, "'t.zero'|type 38" },
    { "t.zero", 20, 4, 43, ERR_UNSUPPORTED, "'t.zero'|type 43" },
    { "t.zero", 20, 4, 8, ERR_INVALID, "'t.zero'|dimension 0 is 4, Q8_0 needs a multiple of 32" },
    { "t.one", 4, 8, 33, ERR_INVALID, "'t.one'|dimension 0 is 33" },
    { "t.one", 24, 8, 33, ERR_INVALID, "'t.one'|offset 33 is not a multiple" },
    { "t.one", 24, 8, UINT64_MAX - 31, ERR_INVALID, "'t.one'|18446744073709551584" },
    { "t.one", 24, 8, 192, ERR_INVALID,
      "'t.one'|102 bytes at 192 of the tensor data, which has 176" },
    { "t.one", 24, 8, 96, ERR_INVALID, "'t.one'|102 bytes at 96" },
    { "t.one", 24, 8, 0, ERR_INVALID, "'t.one'|overlaps 't.zero'" },
    { "t.two", 16, 8, 128, ERR_INVALID, "'t.two'|overlaps 't.one'" },
};

static void every_lie_is_named(void **state)
{
    static struct image m;
    for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
        make_good(&m);
        memcpy(find_anchor(&m, lies[i].anchor) + lies[i].at, &lies[i].value, (size_t)lies[i].width);
        assert_refused(&m, lies[i].code, lies[i].words);
    }
}

static void every_cut_is_refused(void **state)
{
    static struct image m;
    make_good(&m);
    size_t whole = m.n;
    for (m.n = 0; m.n < whole; m.n++)
        assert_refused(&m, ERR_INVALID, "m.gguf: ");
}

/* Any result is right but a crash (and what the sanitizers see). Tensors that are handed out are inside. */
static void any_wrong_byte_is_survived(void **state)
{
    static struct image m;
    static const uint8_t flips[] = { 0x01, 0x80, 0xFF, 0x10 };
    struct err err;
    make_good(&m);
    for (size_t i = 0; i < m.n; i++)
        for (size_t f = 0; f < ARRAY_LEN(flips); f++) {
            struct weights *w;
            m.data[i] ^= flips[f];
            if (open_image(&m, &w, &err) == ERR_OK)
                for (int32_t t = 0; t < weights_n_tensors(w); t++) {
                    const struct weights_tensor *x = weights_tensor_at(w, t);
                    assert_true(x->data >= m.data && x->data + x->bytes <= m.data + m.n);
                }
            weights_close(w);
            m.data[i] ^= flips[f];
        }
    assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), 0);
}

static void keys_and_tensors_are_unique(void **state)
{
    static struct image m;
    put_header(&m, 3, 0, 2);
    put_key_u32(&m, "same", 1);
    put_key_u32(&m, "same", 1);
    assert_refused(&m, ERR_INVALID, "key 'same' is there twice");
    put_header(&m, 3, 2, 0);
    put_tensor(&m, "same", 0, 8, 0, 0);
    put_tensor(&m, "same", 0, 8, 0, 32);
    put_padding(&m, 32);
    put_data(&m, 64, 0);
    assert_refused(&m, ERR_INVALID, "tensor 'same' is there twice");
}

static void nesting_is_bounded(void **state)
{
    static struct image m;
    for (int depth = WEIGHTS_META_NESTING; depth <= WEIGHTS_META_NESTING + 1; depth++) {
        put_header(&m, 3, 0, 1);
        put_key(&m, "deep", META_TYPE_ARRAY);
        for (int i = 1; i < depth; i++)
            put_array(&m, META_TYPE_ARRAY, 1);
        put_array(&m, META_TYPE_U8, 1);
        put(&m, "\5", 1);
        if (depth == WEIGHTS_META_NESTING)
            weights_close(open_good(&m));
    }
    assert_refused(&m, ERR_INVALID, "key 'deep'|nested over 8 deep");
}

static void names_have_a_limit(void **state)
{
    static struct image m;
    char name[WEIGHTS_NAME_MAX + 2];
    memset(name, 'n', sizeof(name));
    for (size_t n = WEIGHTS_NAME_MAX; n <= WEIGHTS_NAME_MAX + 1; n++) {
        name[n] = '\0';
        put_header(&m, 3, 1, 0);
        put_tensor(&m, name, 0, 1, 0, 0);
        put_padding(&m, 32);
        put_data(&m, 4, 0);
        if (n == WEIGHTS_NAME_MAX)
            weights_close(open_good(&m));
        name[n] = 'n';
    }
    assert_refused(&m, ERR_INVALID, "256 bytes, want 1 to 255");
}

static void vocabulary_files_have_no_tensor_data(void **state)
{
    static struct image m;
    put_header(&m, 3, 0, 1);
    put_key_u32(&m, "k", 1);
    assert_true(m.n % 32 != 0);
    struct weights *w = open_good(&m);
    assert_int_equal(weights_n_tensors(w), 0);
    weights_close(w);
}

static void tensors_may_stand_in_any_order_with_holes(void **state)
{
    static struct image m;
    put_header(&m, 3, 2, 1);
    put_key_u32(&m, "general.alignment", 8);
    put_tensor(&m, "late", 0, 2, 0, 64);
    put_tensor(&m, "early", 0, 2, 0, 8);
    put_padding(&m, 8);
    put_data(&m, 72, 0);
    struct weights *w = open_good(&m);
    assert_int_equal(weights_find(w, "late")->data[0], 64);
    assert_int_equal(weights_find(w, "early")->data[0], 8);
    weights_close(w);
}

static void every_published_tensor_type_is_listed(void **state)
{
    static struct image m;
    static const uint32_t withdrawn[] = { 4, 5, 31, 32, 33, 36, 37, 38 };
    bool is_seen[DTYPE_COUNT] = { false };
    for (uint32_t type = 0; type <= 42; type++) {
        bool is_known = true;
        struct weights *w;
        struct err err;
        for (size_t i = 0; i < ARRAY_LEN(withdrawn); i++)
            is_known = is_known && withdrawn[i] != type;
        put_header(&m, 3, 1, 0);
        put_tensor(&m, "t", type, 256, 0, 0);
        put_padding(&m, 32);
        put_data(&m, 2048, 0);
        assert_int_equal(open_image(&m, &w, &err), is_known ? ERR_OK : ERR_UNSUPPORTED);
        if (is_known)
            is_seen[weights_tensor_at(w, 0)->type] = true;
        weights_close(w);
    }
    for (int t = 0; t < DTYPE_KV_Q8; t++) /* from there on: types of caches */
        assert_true(is_seen[t]);
}

/* --- memory --- */

/* Fail the n-th allocation, for all n: a clean error, nothing left behind. */
static void every_failed_allocation_is_an_error(void **state)
{
    static struct image m;
    struct err err;
    enum err_code code = ERR_NOMEM;
    int64_t n = 1;
    make_good(&m);
    for (; code != ERR_OK && n < 200; n++) {
        struct weights *w;
        mem_fail_nth(n);
        code = open_image(&m, &w, &err);
        mem_fail_nth(0);
        if (code) {
            assert_int_equal(code, ERR_NOMEM);
            assert_non_null(strstr(err.text, "no memory"));
        }
        weights_close(w);
        assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), 0);
    }
    assert_int_equal(code, ERR_OK);
    assert_true(n > 6);
}

static void files_that_are_none_are_refused(void **state)
{
    struct weights *w = NULL;
    struct err err;
    assert_int_equal(weights_open("/nonexistent/x.gguf", &w, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/x.gguf"));
    assert_int_equal(weights_open("/tmp", &w, &err),
                     ERR_NOT_FOUND); /* a directory without config.json */
    assert_int_equal(weights_open("/dev/null", &w, &err), ERR_INVALID);
    assert_null(w);
    weights_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_files_are_read_whole),
        cmocka_unit_test(version_2_is_read_too),
        cmocka_unit_test(every_metadata_type_is_read),
        cmocka_unit_test(every_lie_is_named),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(any_wrong_byte_is_survived),
        cmocka_unit_test(keys_and_tensors_are_unique),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(names_have_a_limit),
        cmocka_unit_test(vocabulary_files_have_no_tensor_data),
        cmocka_unit_test(tensors_may_stand_in_any_order_with_holes),
        cmocka_unit_test(every_published_tensor_type_is_listed),
        cmocka_unit_test(every_failed_allocation_is_an_error),
        cmocka_unit_test(files_that_are_none_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
