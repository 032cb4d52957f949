/* t_weights.c - typed reads of metadata, the digest, split sets. */
#include "gguf_image.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void typed_reads_name_key_value_and_range(void **state)
{
    static struct image m;
    struct err err;
    int64_t i = 5;
    double f = 5;
    bool b = true;
    const char *s;
    make_good(&m);
    struct weights *w = open_good(&m);
    assert_int_equal(weights_int(w, "no.such", 0, 9, &i, &err), ERR_NOT_FOUND);
    assert_string_equal(err.text, "m.gguf: key 'no.such' is missing");
    assert_int_equal(weights_int(w, "key.u8", 1, 254, &i, &err), ERR_INVALID);
    assert_string_equal(err.text, "m.gguf: key 'key.u8' is 255, want 1 to 254");
    assert_int_equal(weights_int(w, "key.u64", 0, INT64_MAX, &i, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "18446744073709551615"));
    assert_int_equal(weights_int(w, "key.f32", 0, 9, &i, &err), ERR_INVALID);
    assert_string_equal(err.text, "m.gguf: key 'key.f32' is of type f32, want an integer");
    assert_int_equal(weights_int(w, "key.bool", 0, 9, &i, &err), ERR_INVALID);
    assert_int_equal(i, 5);
    assert_int_equal(weights_int_or(w, "no.such", 0, 9, 44, &i, &err), ERR_OK);
    assert_int_equal(i, 44);
    assert_int_equal(weights_int_or(w, "key.u8", 0, 9, 44, &i, &err), ERR_INVALID);
    assert_int_equal(weights_float_or(w, "key.i16", 0, &f, &err), ERR_OK);
    assert_true(f == -300);
    assert_int_equal(weights_float_or(w, "arr.str", 0, &f, &err), ERR_INVALID);
    assert_int_equal(weights_bool_or(w, "key.u8", true, &b, &err), ERR_INVALID);
    assert_int_equal(weights_bool_or(w, "no.such", false, &b, &err), ERR_OK);
    assert_false(b);
    assert_int_equal(weights_str(w, "general.architecture", &s, &err), ERR_OK);
    assert_string_equal(s, "llama");
    assert_int_equal(weights_str(w, "key.u8", &s, &err), ERR_INVALID);
    assert_int_equal(weights_str(w, "no.such", &s, NULL), ERR_NOT_FOUND);
    assert_int_equal(weights_array_int(w, "arr.i16", 1, &i, &err), ERR_OK);
    assert_int_equal(i, 7);
    assert_int_equal(weights_array_int(w, "arr.bool", 1, &i, &err), ERR_OK);
    assert_int_equal(i, 1);
    assert_int_equal(weights_array_int(w, "arr.i16", 2, &i, &err), ERR_INVALID);
    assert_string_equal(err.text, "m.gguf: key 'arr.i16' has 2 elements, element 2 is wanted");
    assert_int_equal(weights_array_int(w, "key.u8", 30, &i, &err), ERR_OK);
    assert_int_equal(i, 255);
    assert_int_equal(weights_array_int(w, "arr.str", 0, &i, &err), ERR_INVALID);
    weights_close(w);
}

static void strings_with_nul_and_numbers_without_end_are_refused(void **state)
{
    static struct image m;
    struct err err;
    const char *s;
    double f;
    put_header(&m, 3, 0, 2);
    put_key(&m, "nul", META_TYPE_STRING);
    put_u64(&m, 3);
    put(&m, "a\0b", 3);
    put_key(&m, "inf", META_TYPE_F32);
    put(&m, &(float){ INFINITY }, 4);
    struct weights *w = open_good(&m);
    assert_int_equal(weights_str(w, "nul", &s, &err), ERR_INVALID);
    assert_int_equal(weights_meta(w, "nul")->s.len, 3);
    assert_int_equal(weights_float_or(w, "inf", 0, &f, &err), ERR_INVALID);
    weights_close(w);
}

/* --- digest --- */

static void digest_of(const struct image *m, char out[65])
{
    struct weights *w = open_good(m);
    weights_digest(w, out);
    weights_close(w);
    assert_int_equal(strspn(out, "0123456789abcdef"), 64);
}

static void the_digest_tells_weights_apart(void **state)
{
    static struct image m;
    static const struct {
        const char *anchor;
        int at;
    } changes[] = { { "general.architecture", 12 },
                    { "key.f32", 4 },
                    { "arr.str", 24 },
                    { "arr.i16", 17 },
                    { "arr.arr", 28 } };
    char base[65], other[65];
    make_good(&m);
    digest_of(&m, base);
    digest_of(&m, other);
    assert_string_equal(base, other);
    for (size_t i = 0; i < ARRAY_LEN(changes); i++) {
        make_good(&m);
        find_anchor(&m, changes[i].anchor)[changes[i].at] ^= 1;
        digest_of(&m, other);
        assert_string_not_equal(base, other);
    }
    make_good(&m);
    m.data[m.n - 1] ^= 1; /* the last byte of t.two */
    digest_of(&m, other);
    assert_string_not_equal(base, other);
    make_good(&m);
    find_anchor(&m, "t.two")[-1] = 'x';
    digest_of(&m, other);
    assert_string_not_equal(base, other);
}

static void the_digest_does_not_see_the_layout(void **state)
{
    static struct image m;
    char digests[2][65];
    for (uint32_t alignment = 8; alignment <= 64; alignment += 56) {
        put_header(&m, 3, 1, 1);
        put_key_u32(&m, "general.alignment", alignment);
        put_tensor(&m, "t", 0, 2, 0, 0);
        put_padding(&m, alignment);
        put_data(&m, 8, 3);
        digest_of(&m, digests[alignment / 64]);
    }
    assert_string_equal(digests[0], digests[1]);
}

/* --- split sets --- */

/* Part i of n with one tensor t.<i> F32 [2]; total 0 leaves its key out. */
static void make_part(struct image *m, int i, int n, int total)
{
    char name[8];
    put_header(m, 3, 1, total ? 4 : 3);
    put_key(m, "split.no", META_TYPE_U16);
    put(m, &(uint16_t){ (uint16_t)i }, 2);
    put_key(m, "split.count", META_TYPE_U16);
    put(m, &(uint16_t){ (uint16_t)n }, 2);
    if (total) {
        put_key(m, "split.tensors.count", META_TYPE_I32);
        put_u32(m, (uint32_t)total);
    }
    put_key_u32(m, i == 0 ? "only.first" : "only.later", 3);
    snprintf(name, sizeof(name), "t.%d", i);
    put_tensor(m, name, 0, 2, 0, 0);
    put_padding(m, 32);
    put_data(m, 8, (uint8_t)(10 * i));
}

static enum err_code open_two(const struct image m[2], struct weights **w, struct err *err)
{
    struct weights_image images[2] = { { "one", m[0].data, m[0].n }, { "two", m[1].data, m[1].n } };
    *w = NULL;
    return weights_open_images(images, 2, w, err);
}

static void a_split_set_is_one_model(void **state)
{
    static struct image m[2];
    struct weights *w;
    struct err err;
    make_part(&m[0], 0, 2, 2);
    make_part(&m[1], 1, 2, 2);
    if (open_two(m, &w, &err))
        fail_msg("%s", err.text);
    assert_int_equal(weights_n_tensors(w), 2);
    assert_int_equal(weights_n_files(w), 2);
    assert_int_equal(weights_find(w, "t.0")->data[0], 0);
    assert_int_equal(weights_find(w, "t.1")->data[0], 10);
    assert_int_equal(weights_find(w, "t.1")->file_i, 1);
    assert_non_null(weights_meta(w, "only.first"));
    assert_null(weights_meta(w, "only.later"));
    weights_close(w);
    assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), 0);
}

static void split_sets_that_lie_are_refused(void **state)
{
    static const struct {
        int no[2], count[2], total;
        const char *words;
    } sets[] = {
        { { 0, 1 }, { 2, 3 }, 2, "two: says part 2 of 3" },
        { { 0, 0 }, { 2, 2 }, 0, "t.0' is there twice" },
        { { 0, 5 }, { 2, 2 }, 2, "two: says part 6 of 2|want 2 of 2" },
        { { 1, 0 }, { 2, 2 }, 2, "one: this is part 2 of 2|open part 1" },
        { { 0, 1 }, { 2, 2 }, 3, "'split.tensors.count' is 3|hold 2 tensors" },
        { { 0, 1 }, { 3, 2 }, 2, "one: " },
        { { 0, 1 }, { 60000, 2 }, 2, "one: key 'split.count' is 60000" },
    };
    static struct image m[2];
    struct weights *w;
    struct err err;
    for (size_t i = 0; i < ARRAY_LEN(sets); i++) {
        char copy[128];
        char *rest = copy;
        make_part(&m[0], sets[i].no[0], sets[i].count[0], sets[i].total);
        make_part(&m[1], sets[i].no[1], sets[i].count[1], sets[i].total);
        assert_int_equal(open_two(m, &w, &err), ERR_INVALID);
        assert_null(w);
        snprintf(copy, sizeof(copy), "%s", sets[i].words);
        for (char *word; (word = strsep(&rest, "|"));)
            if (!strstr(err.text, word))
                fail_msg("'%s' does not say '%s'", err.text, word);
        assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), 0);
    }
}

static void split_keys_are_integers(void **state)
{
    static struct image m;
    struct weights *w;
    struct err err;
    put_header(&m, 3, 0, 1);
    put_key(&m, "split.count", META_TYPE_F64);
    put_u64(&m, 2);
    assert_int_equal(open_image(&m, &w, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "'split.count' is of type f64"));
    assert_null(w);
}

static void write_file(const char *path, const struct image *m)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(m->data, 1, m->n, f), m->n);
    assert_int_equal(fclose(f), 0);
}

static void split_files_are_found_by_name(void **state)
{
    static struct image m;
    char dir[] = "/tmp/t_gguf.XXXXXX";
    char path[3][64];
    struct weights *w = NULL;
    struct err err;
    assert_non_null(mkdtemp(dir));
    snprintf(path[0], sizeof(path[0]), "%s/m-00001-of-00002.gguf", dir);
    snprintf(path[1], sizeof(path[1]), "%s/m-00002-of-00002.gguf", dir);
    snprintf(path[2], sizeof(path[2]), "%s/other.gguf", dir);
    make_part(&m, 0, 2, 2);
    write_file(path[0], &m);
    write_file(path[2], &m);
    assert_int_equal(weights_open(path[0], &w, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "part 2 of 2"));
    assert_non_null(strstr(err.text, "m-00002-of-00002.gguf"));
    assert_int_equal(weights_open(path[2], &w, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "must end in -00001-of-00002.gguf"));
    make_part(&m, 1, 2, 2);
    write_file(path[1], &m);
    assert_int_equal(weights_open(path[1], &w, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "open part 1"));
    assert_null(w);
    if (weights_open(path[0], &w, &err))
        fail_msg("%s", err.text);
    const struct weights_tensor *t = weights_find(w, "t.1");
    assert_int_equal(t->data[0], 10);
    weights_drop(w, t->data, t->bytes);
    assert_int_equal(t->data[0], 10);
    assert_string_equal(weights_file_path(w, 1), path[1]);
    weights_close(w);
    assert_int_equal(mem_bytes(MEM_CAT_WEIGHTS), 0);
    for (int i = 0; i < 3; i++)
        unlink(path[i]);
    rmdir(dir);
}

static void the_digest_of_a_split_set_is_that_of_the_whole(void **state)
{
    static struct image m[2];
    char split[65], whole[65];
    struct weights *w;
    struct err err;
    make_part(&m[0], 0, 2, 2);
    make_part(&m[1], 1, 2, 2);
    assert_int_equal(open_two(m, &w, &err), ERR_OK);
    weights_digest(w, split);
    weights_close(w);
    put_header(&m[0], 3, 2, 1);
    put_key_u32(&m[0], "only.first", 3);
    put_tensor(&m[0], "t.0", 0, 2, 0, 0);
    put_tensor(&m[0], "t.1", 0, 2, 0, 32);
    put_padding(&m[0], 32);
    put_data(&m[0], 8, 0);
    put_padding(&m[0], 32);
    put_data(&m[0], 8, 10);
    digest_of(&m[0], whole);
    assert_string_equal(split, whole);
}

/* 64 GiB of zeros that cost no disk hold 2^32 empty strings: refused before 64 GiB are asked for. */
static void a_sparse_file_justifies_no_memory(void **state)
{
    static struct image m;
    char path[] = "/tmp/t_weights.XXXXXX";
    struct weights *w = NULL;
    struct err err;
    int fd = mkstemp(path);
    put_header(&m, 3, 0, 1);
    put_key(&m, "many", META_TYPE_ARRAY);
    put_array(&m, META_TYPE_STRING, (uint64_t)1 << 32);
    assert_int_equal(write(fd, m.data, m.n), (ssize_t)m.n);
    assert_int_equal(ftruncate(fd, (off_t)1 << 36), 0);
    close(fd);
    assert_int_equal(weights_open(path, &w, &err), ERR_NOMEM);
    assert_non_null(strstr(err.text, "key 'many': no memory for an array of 4294967296 strings"));
    assert_null(w);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(typed_reads_name_key_value_and_range),
        cmocka_unit_test(strings_with_nul_and_numbers_without_end_are_refused),
        cmocka_unit_test(the_digest_tells_weights_apart),
        cmocka_unit_test(the_digest_does_not_see_the_layout),
        cmocka_unit_test(a_split_set_is_one_model),
        cmocka_unit_test(split_sets_that_lie_are_refused),
        cmocka_unit_test(split_keys_are_integers),
        cmocka_unit_test(split_files_are_found_by_name),
        cmocka_unit_test(the_digest_of_a_split_set_is_that_of_the_whole),
        cmocka_unit_test(a_sparse_file_justifies_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
