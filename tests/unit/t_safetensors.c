/* t_safetensors.c - headers of safetensors files, good and hostile, and what a directory's config.json becomes. */
#include "weights/weights_edit.h"
#include "weights/weights_int.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define GOOD                                                                     \
    "{\"__metadata__\":{\"format\":\"pt\"},"                                     \
    "\"a.weight\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[0,12]}," \
    "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"           \
    "\"c\":{\"dtype\":\"U8\",\"shape\":[1,2,2,1,3],\"data_offsets\":[16,28]}}"
#define GOOD_DATA 28

struct image {
    _Alignas(16) uint8_t data[4096];
    size_t n;
};

static void make(struct image *m, const char *header, size_t n_data)
{
    uint64_t n = strlen(header);
    assert_true(8 + n + n_data <= sizeof(m->data));
    memcpy(m->data, &n, 8);
    memcpy(m->data + 8, header, n);
    for (size_t i = 0; i < n_data; i++)
        m->data[8 + n + i] = (uint8_t)i;
    m->n = 8 + (size_t)n + n_data;
}

static enum err_code open_images(const struct image *m, int n, const char *config,
                                 struct weights **w, struct err *err)
{
    struct weights_image images[2] = { { "one", m[0].data, m[0].n } };
    struct meta_str texts[WEIGHTS_TEXTS] = { { NULL, 0 } };
    if (n > 1)
        images[1] = (struct weights_image){ "two", m[1].data, m[1].n };
    if (config)
        texts[WEIGHTS_TEXT_CONFIG] = (struct meta_str){ config, strlen(config) };
    *w = NULL;
    *err = (struct err){ 0 };
    return dir_open_images(images, n, texts, w, err);
}

static void a_good_file_is_read(void **state)
{
    static struct image m;
    struct weights *w;
    struct err err;
    make(&m, GOOD, GOOD_DATA);
    assert_int_equal(open_images(&m, 1, NULL, &w, &err), ERR_OK);
    assert_int_equal(weights_n_tensors(w), 3);
    const struct weights_tensor *a = weights_find(w, "a.weight"), *b = weights_find(w, "b"),
                                *c = weights_find(w, "c");
    assert_int_equal(a->type, DTYPE_BF16);
    assert_int_equal(a->n_dims, 2);
    assert_int_equal(a->shape[0], 2); /* the contiguous one */
    assert_int_equal(a->shape[1], 3);
    assert_int_equal(a->bytes, 12);
    assert_ptr_equal(a->data, m.data + m.n - GOOD_DATA);
    assert_int_equal(b->n_dims, 1);
    assert_int_equal(b->shape[0], 1);
    assert_int_equal(b->data[0], 12);
    assert_int_equal(c->n_dims, 4); /* five dimensions: the two innermost count as one */
    assert_int_equal(c->shape[0], 3);
    assert_int_equal(c->shape[1], 2);
    assert_int_equal(c->shape[3], 1);
    assert_true(weights_is_dir(w));
    assert_int_equal(weights_gguf_version(w), 0);
    weights_close(w);
}

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void hostile_headers_are_refused_by_name(void **state)
{
    static const struct {
        const char *header;
        size_t n_data;
        enum err_code code;
        const char *text; /* a part of the message */
    } bad[] = {
        { "", 8, ERR_INVALID, "does not start with {" },
        { "[]", 8, ERR_INVALID, "does not start with {" },
        { "{", 8, ERR_INVALID, "JSON line 1" },
        { "{} x", 0, ERR_INVALID, "JSON line 1" },
        { "{\"\xff\":1}", 0, ERR_INVALID, "not UTF-8" },
        { "{" T("a", "F32", "[2]", "[0,8]") "," T("a", "F32", "[2]", "[8,16]") "}", 16, ERR_INVALID,
          "'a' twice" },
        { "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
          ERR_INVALID, "'dtype' twice" },
        { "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12, ERR_INVALID,
          "'b' at byte" },
        { "{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[12,16]") "}", 16,
          ERR_INVALID, "leaves a hole" },
        { "{" T("a", "F32", "[2]", "[0,8]") "}", 9, ERR_INVALID, "1 bytes behind the last" },
        { "{" T("a", "F32", "[2]", "[0,8]") "}", 7, ERR_INVALID, "is the file cut" },
        { "{" T("a", "F32", "[2]", "[8,0]") "}", 8, ERR_INVALID, "8 to 0" },
        { "{" T("a", "F32", "[3]", "[0,8]") "}", 8, ERR_INVALID, "another size" },
        { "{" T("a", "F32", "[0]", "[0,0]") "}", 0, ERR_INVALID, "shape" },
        { "{" T("a", "F32", "[-1]", "[0,8]") "}", 8, ERR_INVALID, "shape" },
        { "{" T("a", "F32", "[2.5]", "[0,8]") "}", 8, ERR_INVALID, "shape" },
        { "{" T("a", "F32", "[4611686018427387904,4]", "[0,8]") "}", 8, ERR_INVALID, "2^63" },
        { "{" T("a", "F64", "[4611686018427387904]", "[0,8]") "}", 8, ERR_INVALID, "another size" },
        { "{" T("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, ERR_INVALID, "at most 8" },
        { "{" T("a", "F32", "2", "[0,8]") "}", 8, ERR_INVALID, "shape" },
        { "{" T("a", "F32", "[2]", "[0]") "}", 8, ERR_INVALID, "data_offsets" },
        { "{" T("a", "F32", "[2]", "[0,1e400]") "}", 8, ERR_INVALID, "data_offsets" },
        { "{" T("a", "F32", "[2]", "[0,18446744073709551616]") "}", 8, ERR_INVALID,
          "data_offsets" },
        { "{" T("a", "Q4", "[2]", "[0,8]") "}", 8, ERR_UNSUPPORTED, "dtype 'Q4' is not known" },
        { "{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, ERR_INVALID, "dtype" },
        { "{\"a\":7}", 8, ERR_INVALID, "want an object" },
        { "{" T("", "F32", "[2]", "[0,8]") "}", 8, ERR_INVALID, "a name of 0 bytes" },
        { "{" T("a\\n", "F32", "[2]", "[0,8]") "}", 8, ERR_INVALID, "control characters" },
        { "{" T("a\\u0000b", "F32", "[2]", "[0,8]") "}", 8, ERR_INVALID, "control characters" },
        { "{\"__metadata__\":7}", 0, ERR_INVALID, "__metadata__" },
        { "{\"__metadata__\":{\"a\":7}}", 0, ERR_INVALID, "__metadata__" },
    };
    static struct image m;
    struct weights *w;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        int64_t before = mem_bytes(MEM_CAT_WEIGHTS);
        make(&m, bad[i].header, bad[i].n_data);
        enum err_code code = open_images(&m, 1, NULL, &w, &err);
        if (code != bad[i].code || !strstr(err.text, bad[i].text))
            fail_msg("%s: %s: %s", bad[i].header, err_name(code), err.text);
        assert_null(w);
        assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), before);
    }
}

static void lengths_of_the_header_are_checked(void **state)
{
    static const uint64_t lengths[] = { 0, 1, 1000, 100000001, UINT64_MAX, UINT64_MAX - 7 };
    static struct image m;
    struct weights *w;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        make(&m, "{}", 0);
        memcpy(m.data, &lengths[i], 8);
        assert_int_equal(open_images(&m, 1, NULL, &w, &err), ERR_INVALID);
    }
    for (size_t n = 1; n < 8; n++) {
        m.n = n;
        assert_int_equal(open_images(&m, 1, NULL, &w, &err), ERR_INVALID);
    }
    strcpy((char *)m.data, "version https://git-lfs.github.com/spec/v1");
    m.n = 43;
    assert_int_equal(open_images(&m, 1, NULL, &w, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "git lfs pull"));
}

static void every_cut_of_a_file_is_refused(void **state)
{
    static struct image m;
    struct weights *w;
    struct err err;
    make(&m, GOOD, GOOD_DATA);
    for (size_t n = m.n - 1; n > 0; n--) {
        m.n = n;
        assert_int_equal(open_images(&m, 1, NULL, &w, &err), ERR_INVALID);
    }
}

static void a_tensor_in_two_files_is_refused(void **state)
{
    static struct image m[2];
    struct weights *w;
    struct err err;
    make(&m[0], "{" T("a", "F32", "[2]", "[0,8]") "}", 8);
    make(&m[1], "{" T("b", "F32", "[2]", "[0,8]") "}", 8);
    assert_int_equal(open_images(m, 2, NULL, &w, &err), ERR_OK);
    assert_int_equal(weights_find(w, "b")->file_i, 1);
    weights_close(w);
    make(&m[1], "{" T("a", "F32", "[2]", "[0,8]") "}", 8);
    assert_int_equal(open_images(m, 2, NULL, &w, &err), ERR_INVALID);
    assert_string_equal(err.text, "two: tensor 'a': is in another file too");
}

static void config_json_becomes_metadata(void **state)
{
    static struct image m;
    struct weights *w;
    struct err err;
    int64_t i;
    double f;
    bool b;
    const char *s;
    make(&m, GOOD, GOOD_DATA);
    assert_int_equal(
        open_images(&m, 1,
                    "{\"n\": 12, \"eps\": 1e-6, \"none\": null, \"tied\": true, "
                    "\"act\": \"si\\u006cu\", \"big\": 123456789012345678901, "
                    "\"limit\": [0.0, Infinity], \"ids\": [1, 2, 3], \"mix\": [1, 0.5], "
                    "\"bools\": [true, false], \"kinds\": [\"a\", \"\"], \"empty\": [], "
                    "\"rope\": {\"factor\": 8.0, \"deep\": {\"x\": 1}}, "
                    "\"odd\": [1, \"two\", [3]]}",
                    &w, &err),
        ERR_OK);
    assert_int_equal(weights_int(w, "config.n", 0, 99, &i, &err), ERR_OK);
    assert_int_equal(i, 12);
    assert_int_equal(weights_float_or(w, "config.eps", 0, &f, &err), ERR_OK);
    assert_true(f == 1e-6);
    assert_null(weights_meta(w, "config.none"));
    assert_null(weights_meta(w, "config.empty"));
    assert_int_equal(weights_bool_or(w, "config.tied", false, &b, &err), ERR_OK);
    assert_true(b);
    assert_int_equal(weights_str(w, "config.act", &s, &err), ERR_OK);
    assert_string_equal(s, "silu");
    assert_true(weights_meta(w, "config.big")->f == 123456789012345678901.0);
    struct meta_value one;
    meta_array_at(weights_meta(w, "config.limit"), 1, &one);
    assert_true(one.type == META_TYPE_F64 && one.f > 1e308);
    assert_int_equal(weights_array_int(w, "config.ids", 2, &i, &err), ERR_OK);
    assert_int_equal(i, 3);
    meta_array_at(weights_meta(w, "config.mix"), 0, &one);
    assert_true(one.type == META_TYPE_F64 && one.f == 1);
    assert_int_equal(weights_array_int(w, "config.bools", 0, &i, &err), ERR_OK);
    assert_int_equal(i, 1);
    assert_int_equal(weights_meta(w, "config.kinds")->array.strs[1].len, 0);
    assert_int_equal(weights_float_or(w, "config.rope.factor", 0, &f, &err), ERR_OK);
    assert_true(f == 8);
    assert_int_equal(weights_int(w, "config.rope.deep.x", 0, 9, &i, &err), ERR_OK);
    assert_int_equal(weights_str(w, "config.odd.1", &s, &err), ERR_OK);
    assert_int_equal(weights_array_int(w, "config.odd.2", 0, &i, &err), ERR_OK);
    assert_int_equal(i, 3);
    weights_close(w);
}

static void hostile_configs_are_refused(void **state)
{
    static const struct {
        const char *config, *text;
    } bad[] = {
        { "[]", "want an object" },
        { "{\"a\":", "config.json: JSON line 1" },
        { "{\"a\\n\":1}", "without control characters" },
        { "{\"a\\u0000\":1}", "NUL" },
        { "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":1}}}}}}}}}", "nested" },
    };
    static struct image m;
    struct weights *w;
    struct err err;
    static char deep[600];
    make(&m, GOOD, GOOD_DATA);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(open_images(&m, 1, bad[i].config, &w, &err), ERR_INVALID);
        if (!strstr(err.text, bad[i].text))
            fail_msg("%s: %s", bad[i].config, err.text);
    }
    memset(deep, 'k', sizeof(deep) - 1);
    memcpy(deep, "{\"", 2);
    memcpy(deep + sizeof(deep) - 5, "\":1}", 5);
    assert_int_equal(open_images(&m, 1, deep, &w, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "paths are at most"));
}

/* --- matrices with scales --- */

#define MLX(words, bits_scales)                            \
    "{" T("m.weight", "U32", "[2," words "]",              \
          "[0,64]") "," T("m.scales", "BF16", bits_scales, \
                          "[64,68]") "," T("m.biases", "BF16", bits_scales, "[68,72]") "}"

static void scales_are_joined_with_their_matrix(void **state)
{
    static struct image m;
    struct weights *w;
    struct err err;
    make(&m, MLX("8", "[2,1]"), 72);
    assert_int_equal(
        open_images(&m, 1, "{\"quantization\":{\"group_size\":32,\"bits\":8}}", &w, &err), ERR_OK);
    assert_int_equal(weights_n_tensors(w), 1);
    const struct weights_tensor *t = weights_find(w, "m.weight");
    assert_int_equal(t->type, DTYPE_MLX8);
    assert_int_equal(t->shape[0], 32);
    assert_int_equal(t->shape[1], 2);
    assert_int_equal(t->scales.cols, 32);
    assert_int_equal(t->scales.type, DTYPE_BF16);
    assert_ptr_equal(t->scales.scales, t->data + 64);
    assert_ptr_equal(t->scales.biases, t->data + 68);
    weights_close(w);
    /* the module's own numbers count */
    assert_int_equal(open_images(&m, 1,
                                 "{\"quantization\":{\"group_size\":32,\"bits\":8,\"m\":"
                                 "{\"group_size\":64,\"bits\":4}}}",
                                 &w, &err),
                     ERR_OK);
    assert_int_equal(weights_find(w, "m.weight")->type, DTYPE_MLX4);
    assert_int_equal(weights_find(w, "m.weight")->shape[0], 64);
    weights_close(w);
}

static void scales_of_another_form_are_refused(void **state)
{
    static const struct {
        const char *config, *text;
    } bad[] = {
        { "{}", "quantization.bits" },
        { "{\"quantization\":{\"group_size\":32,\"bits\":7}}", "7 bits" },
        { "{\"quantization\":{\"group_size\":33,\"bits\":8}}", "groups of 33" },
        { "{\"quantization\":{\"group_size\":64,\"bits\":8}}", "do not fit" },
        { "{\"quantization\":{\"group_size\":32,\"bits\":8,\"mode\":\"mxfp4\"}}", "'mxfp4'" },
        { "{\"quantization_config\":{\"quant_method\":\"gptq\"}}", "'gptq'" },
    };
    static struct image m;
    struct weights *w;
    struct err err;
    make(&m, MLX("8", "[2,1]"), 72);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_not_equal(open_images(&m, 1, bad[i].config, &w, &err), ERR_OK);
        if (!strstr(err.text, bad[i].text))
            fail_msg("%s: %s", bad[i].config, err.text);
    }
}

static void scales_of_fp8_are_one_or_by_row_or_by_block(void **state)
{
    static const struct {
        const char *shape, *offsets, *config;
        size_t n_data;
        int64_t rows, cols;
    } good[] = {
        { "[]", "[8,12]", "{}", 12, 2, 4 },
        { "[2,1]", "[8,16]", "{}", 16, 1, 4 },
        { "[1,2]", "[8,16]",
          "{\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[1,4]}}", 16, 1,
          4 },
    };
    static struct image m;
    struct weights *w;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        char header[400];
        snprintf(header, sizeof(header),
                 "{" T("m.weight", "F8_E4M3", "[2,4]", "[0,8]") "," T("m.weight_scale_inv", "F32",
                                                                      "%s", "%s") "}",
                 good[i].shape, good[i].offsets);
        make(&m, header, good[i].n_data);
        if (open_images(&m, 1, good[i].config, &w, &err))
            fail_msg("%s: %s", good[i].shape, err.text);
        const struct weights_tensor *t = weights_find(w, "m.weight");
        assert_int_equal(weights_n_tensors(w), 1);
        assert_int_equal(t->scales.rows, good[i].rows);
        assert_int_equal(t->scales.cols, good[i].cols);
        assert_ptr_equal(t->scales.scales, t->data + 8);
        weights_close(w);
    }
    make(&m,
         "{" T("m.weight", "F8_E4M3", "[2,4]", "[0,8]") "," T("m.weight_scale", "F32", "[3]",
                                                              "[8,20]") "}",
         20);
    assert_int_equal(open_images(&m, 1, "{}", &w, &err), ERR_UNSUPPORTED);
}

/* --- directories --- */

static char folder[] = "/tmp/plumb-dir-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(path_of(name), "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static void open_is(const char *name, enum err_code want, const char *text)
{
    struct weights *w = NULL;
    struct err err = { 0 };
    enum err_code code = weights_open(path_of(name), &w, &err);
    if (code != want || !strstr(err.text, text))
        fail_msg("%s: %s: %s", name, err_name(code), err.text);
    weights_close(w);
}

static void directories_open_by_index_or_by_name(void **state)
{
    static struct image m;
    static const char *const files[] = { "config.json",
                                         "model-00001-of-00002.safetensors",
                                         "model-00002-of-00002.safetensors",
                                         "model.safetensors.index.json",
                                         "other.safetensors",
                                         "pytorch_model.bin" };
    static const char index[] = "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":"
                                "\"model-00002-of-00002.safetensors\"}}";
    static const char wrong[] = "{\"weight_map\":{\"b\":\"model-00001-of-00002.safetensors\",\"a\":"
                                "\"model-00002-of-00002.safetensors\"}}";
    assert_non_null(mkdtemp(folder));
    open_is("", ERR_NOT_FOUND, "no config.json");
    open_is("none.safetensors", ERR_NOT_FOUND, "no config.json");
    write_file(files[0], "{\"model_type\":\"x\"}", 18);
    open_is("", ERR_NOT_FOUND, "no .safetensors file");
    write_file(files[5], "x", 1);
    open_is("", ERR_UNSUPPORTED, "pickled");
    make(&m, "{" T("a", "F32", "[2]", "[0,8]") "}", 8);
    write_file(files[1], m.data, m.n);
    make(&m, "{" T("b", "F32", "[2]", "[0,8]") "}", 8);
    write_file(files[2], m.data, m.n);
    make(&m, "{" T("c", "F32", "[2]", "[0,8]") "}", 8);
    write_file(files[4], m.data, m.n);
    write_file(files[3], index, sizeof(index) - 1);
    static const char *const whole[] = { "", "model.safetensors.index.json",
                                         "model-00002-of-00002.safetensors" };
    for (size_t i = 0; i < ARRAY_LEN(whole); i++) {
        struct weights *w = NULL;
        struct err err;
        if (weights_open(path_of(whole[i]), &w, &err))
            fail_msg("%s", err.text);
        assert_int_equal(weights_n_tensors(w), 2); /* not the file that the index leaves out */
        assert_int_equal(weights_text(w, "config.json").len, 18);
        assert_null(weights_text(w, "tokenizer.json").data);
        weights_close(w);
    }
    open_is("other.safetensors", ERR_OK, "");
    write_file(files[3], wrong, sizeof(wrong) - 1);
    open_is("", ERR_INVALID, "tensor 'b' should be in model-00001");
    static const char *const bad[] = { "{}", "{\"weight_map\":{\"a\":\"../x.safetensors\"}}",
                                       "{\"weight_map\":{\"a\":7}}",
                                       "{\"weight_map\":{\"a\":\"x.bin\"}}" };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        write_file(files[3], bad[i], strlen(bad[i]));
        open_is("", ERR_INVALID, "weight_map");
    }
    static const char absent[] = "{\"weight_map\":{\"a\":\"x.safetensors\"}}";
    write_file(files[3], absent, sizeof(absent) - 1);
    open_is("", ERR_NOT_FOUND, "x.safetensors");
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        unlink(path_of(files[i]));
    assert_int_equal(rmdir(folder), 0);
}

/* --- edits --- */

static void tensors_and_keys_can_be_replaced(void **state)
{
    static struct image m;
    struct weights *w;
    struct err err;
    const char *s;
    int64_t i;
    make(&m, GOOD, GOOD_DATA);
    assert_int_equal(open_images(&m, 1, "{\"n\":1}", &w, &err), ERR_OK);
    struct weights_tensor t[2] = { *weights_find(w, "b"), *weights_find(w, "b") };
    t[0].name = "x";
    t[1].name = "x";
    assert_int_equal(weights_set_tensors(w, t, 2, &err), ERR_INVALID);
    assert_non_null(weights_find(w, "b"));
    t[1].name = "y";
    assert_int_equal(weights_set_tensors(w, t, 2, &err), ERR_OK);
    assert_null(weights_find(w, "b"));
    assert_int_equal(weights_find(w, "y")->data[0], 12);
    for (int k = 0; k < 200; k++) {
        char key[16];
        snprintf(key, sizeof(key), "k.%d", k);
        assert_int_equal(weights_set_int(w, key, k, &err), ERR_OK);
    }
    assert_int_equal(weights_set_str(w, "k.7", "seven", &err), ERR_OK);
    assert_int_equal(weights_str(w, "k.7", &s, &err), ERR_OK);
    assert_string_equal(s, "seven");
    assert_int_equal(weights_int(w, "k.199", 0, 999, &i, &err), ERR_OK);
    assert_int_equal(i, 199);
    assert_int_equal(weights_n_meta(w), 201);
    weights_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file_is_read),
        cmocka_unit_test(hostile_headers_are_refused_by_name),
        cmocka_unit_test(lengths_of_the_header_are_checked),
        cmocka_unit_test(every_cut_of_a_file_is_refused),
        cmocka_unit_test(a_tensor_in_two_files_is_refused),
        cmocka_unit_test(config_json_becomes_metadata),
        cmocka_unit_test(hostile_configs_are_refused),
        cmocka_unit_test(scales_are_joined_with_their_matrix),
        cmocka_unit_test(scales_of_another_form_are_refused),
        cmocka_unit_test(scales_of_fp8_are_one_or_by_row_or_by_block),
        cmocka_unit_test(directories_open_by_index_or_by_name),
        cmocka_unit_test(tensors_and_keys_can_be_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
