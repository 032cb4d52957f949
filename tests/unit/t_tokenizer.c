/* The tokenizer without a model: small vocabularies of each kind, provenance, streams cut at every byte, lack of memory. */
#include "base/log.h"
#include "base/philox.h"
#include "support/small_vocab.h"
#include "tokenizer/tokenizer_int.h"

#include <limits.h>
#include <setjmp.h>
#include <stdio.h>

#include <cmocka.h>

static struct tokenizer *make(enum tokenizer_kind kind, const char *pre)
{
    static struct small_vocab v;
    struct tokenizer *t = NULL;
    struct err err;
    small_vocab_init(&v, kind, pre);
    v.spec.lowercase = v.spec.strip_accents = kind == TOKENIZER_KIND_WPM;
    if (tokenizer_new(&v.spec, &t, &err))
        fail_msg("%s", err.text);
    return t;
}

/* Pieces of the ids, a bar between: "hello| w|<tool>". */
static char *pieces(const struct tokenizer *t, const char *text, size_t len,
                    const struct span_list *caller, unsigned flags)
{
    static char out[4096];
    struct token_list ids;
    size_t n = 0;
    token_list_init(&ids, INT32_MAX);
    assert_int_equal(tokenizer_encode(t, text, len, caller, flags, &ids, NULL), ERR_OK);
    for (int32_t i = 0; i < ids.n; i++) {
        struct tokenizer_str s = tokenizer_bytes(t, ids.ids[i], true);
        n += (size_t)snprintf(out + n, sizeof(out) - n, "%s%.*s", i ? "|" : "", (int)s.len, s.data);
    }
    out[n] = 0;
    token_list_release(&ids);
    return out;
}

static void check(const struct tokenizer *t, const char *text, unsigned flags, const char *want)
{
    assert_string_equal(pieces(t, text, strlen(text), NULL, flags), want);
}

static void each_kind_splits_as_its_rules_say(void **state)
{
    static const struct {
        enum tokenizer_kind kind;
        const char *text, *want;
    } rows[] = {
        { TOKENIZER_KIND_BPE, "hello wAAAAA", "hello| w|AAAA|A" },
        { TOKENIZER_KIND_BPE, "hellhe", "hell|he" },
        { TOKENIZER_KIND_BPE, "h\xC3\xA9", "h|\xC3|\xA9" },
        { TOKENIZER_KIND_BPE_SPM, "hello wAAAAA", "hello| w|AAAA|A" },
        { TOKENIZER_KIND_BPE_SPM, "\xC3\xA9\xC3\xA8", "\xC3\xA9|\xC3|\xA8" },
        { TOKENIZER_KIND_SPM, "hello wAAAAA", "hello| w|AAAA|A" },
        { TOKENIZER_KIND_SPM, "     w", "    | w" },
        { TOKENIZER_KIND_SPM, "\xE2\x96\x81w!", " w|!" },
        { TOKENIZER_KIND_SPM, "", "" },
        { TOKENIZER_KIND_WPM, "H\xC3\xA9LLO, unwanted.", " hello| [UNK]| un|want|ed| ." },
        { TOKENIZER_KIND_WPM, " \x01\x02 ", "" },
        { TOKENIZER_KIND_UGM, "wanting", "want|ing" },
        { TOKENIZER_KIND_UGM, "ab??c", "a|b|<unk>|c" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct tokenizer *t = make(rows[i].kind, "gpt-2");
        check(t, rows[i].text, 0, rows[i].want);
        tokenizer_free(t);
    }
}

static void added_tokens_match_leftmost_then_longest(void **state)
{
    for (int kind = TOKENIZER_KIND_BPE; kind <= TOKENIZER_KIND_SPM; kind++) {
        struct tokenizer *t = make((enum tokenizer_kind)kind, "gpt-2");
        check(t, "<tool>!<tool>", 0, "<tool>!|<tool>");
        check(t, "hello<tool>w", 0, "hello|<tool>|w");
        check(t, "<|im|><|im_end|>", TOKENIZER_FLAG_SPECIAL, "<|im|>|<|im_end|>");
        check(t, "<|im|>", 0, "<|||i|m|||>"); /* the bar is a token, too */
        check(t, "<<s><|im_end|", TOKENIZER_FLAG_SPECIAL, "<|<s>|<|||i|m|_|e|n|d||");
        tokenizer_free(t);
    }
}

/* Found by fuzzing: a token that is half a character cut the text inside one. */
static void an_added_token_that_is_no_utf8_never_matches(void **state)
{
    for (int kind = TOKENIZER_KIND_BPE; kind <= TOKENIZER_KIND_SPM; kind++) {
        static struct small_vocab v;
        struct tokenizer *t;
        small_vocab_init(&v, (enum tokenizer_kind)kind, "gpt-2");
        v.pieces[6] = (struct tokenizer_str){ "\xC3", 1 }; /* was <tool> */
        assert_int_equal(tokenizer_new(&v.spec, &t, NULL), ERR_OK);
        check(t, "w\xC3\xA9", 0, kind == TOKENIZER_KIND_BPE ? "w|\xC3|\xA9" : "w|\xC3\xA9");
        tokenizer_free(t);
    }
}

static void a_control_token_needs_every_byte_from_the_template(void **state)
{
    static const char text[] = "<|im_end|>hello<|im_end|>";
    struct tokenizer *t = make(TOKENIZER_KIND_BPE, "gpt-2");
    int32_t end = tokenizer_find(t, "<|im_end|>", 10);
    for (size_t p0 = 0; p0 < sizeof(text) - 1; p0++) {
        for (size_t p1 = p0; p1 < sizeof(text); p1++) {
            struct span span = { p0, p1 };
            struct span_list caller = { &span, 1 };
            struct token_list ids;
            int n = 0;
            token_list_init(&ids, 100);
            assert_int_equal(tokenizer_encode(t, text, sizeof(text) - 1, &caller,
                                              TOKENIZER_FLAG_SPECIAL, &ids, NULL),
                             ERR_OK);
            for (int32_t i = 0; i < ids.n; i++)
                n += ids.ids[i] == end;
            int want = (p0 == p1 || p0 >= 10) + (p0 == p1 || p1 <= 15);
            assert_int_equal(n, want);
            token_list_release(&ids);
        }
    }
    tokenizer_free(t);
}

static void merges_cross_the_border_of_the_callers_text(void **state)
{
    struct tokenizer *t = make(TOKENIZER_KIND_BPE, "gpt-2");
    struct span span = { 0, 3 };
    struct span_list caller = { &span, 1 };
    assert_string_equal(pieces(t, "hello w", 7, &caller, TOKENIZER_FLAG_SPECIAL), "hello| w");
    span = (struct span){ 0, 6 }; /* tokens of users match there, control tokens do not */
    assert_string_equal(pieces(t, "<tool><s>", 9, &caller, TOKENIZER_FLAG_SPECIAL), "<tool>|<s>");
    span = (struct span){ 0, 9 };
    assert_string_equal(pieces(t, "<tool><s>", 9, &caller, TOKENIZER_FLAG_SPECIAL), "<tool>|<|s|>");
    tokenizer_free(t);
}

static void spans_move_with_the_text(void **state)
{
    /* bytes: 'a' ' ' bad 'b' ' ' 'c' */
    struct span spans[] = { { 1, 3 }, { 4, 6 }, { 9, 12 } };
    struct span_list caller = { spans, 3 };
    struct norm_text n;
    assert_int_equal(norm_text_init(&n,
                                    "a \xFF"
                                    "b c",
                                    6, &caller, true, NULL),
                     ERR_OK);
    assert_int_equal(n.len, 1 + 3 + 3 + 1 + 3 + 1);
    assert_memory_equal(n.text,
                        "a\xE2\x96\x81\xEF\xBF\xBD"
                        "b\xE2\x96\x81"
                        "c",
                        n.len);
    assert_int_equal(n.caller.spans[0].p0, 1);
    assert_int_equal(n.caller.spans[0].p1, 7);
    assert_int_equal(n.caller.spans[1].p0, 8);
    assert_int_equal(n.caller.spans[1].p1, 12);
    assert_int_equal(n.caller.spans[2].p0, 12); /* beyond the end: empty at the end */
    assert_int_equal(n.caller.spans[2].p1, 12);
    norm_text_release(&n);
}

static void bos_and_eos_stand_once(void **state)
{
    static struct small_vocab v;
    struct tokenizer *t;
    small_vocab_init(&v, TOKENIZER_KIND_BPE, "gpt-2");
    v.spec.add_eos = true;
    assert_int_equal(tokenizer_new(&v.spec, &t, NULL), ERR_OK);
    unsigned all = TOKENIZER_FLAG_SPECIAL | TOKENIZER_FLAG_BOS | TOKENIZER_FLAG_EOS;
    check(t, "w", 0, "w");
    check(t, "w", all, "<s>|w|</s>");
    check(t, "<s>w", all, "<s>|w|</s>");
    check(t, "<s>", all, "<s>|</s>");
    check(t, "", all, "<s>|</s>");
    check(t, "<s>w", TOKENIZER_FLAG_BOS, "<s>|<|s|>|w");
    tokenizer_free(t);
}

static void a_space_goes_in_front_where_the_model_wants_one(void **state)
{
    static struct small_vocab v;
    struct tokenizer *t;
    struct token_list ids;
    struct buf out;
    small_vocab_init(&v, TOKENIZER_KIND_SPM, NULL);
    v.spec.add_space_prefix = true;
    assert_int_equal(tokenizer_new(&v.spec, &t, NULL), ERR_OK);
    check(t, "w", 0, " w");
    check(t, " w", 0, " | w");
    check(t, "w<s>w", TOKENIZER_FLAG_SPECIAL, " w|<s>| w");
    token_list_init(&ids, 100);
    buf_init(&out, MEM_CAT_BASE, 100);
    assert_int_equal(tokenizer_encode(t, " hello", 6, NULL, 0, &ids, NULL), ERR_OK);
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.n, false, &out, NULL), ERR_OK);
    assert_string_equal(out.data, " hello");
    buf_release(&out);
    token_list_release(&ids);
    tokenizer_free(t);
    v.spec.remove_extra_spaces = true;
    assert_int_equal(tokenizer_new(&v.spec, &t, NULL), ERR_OK);
    check(t, "  w   w  ", 0, " w| w");
    tokenizer_free(t);
}

/* Feed text byte by byte (each is a token), stop after n: what came is whole code points of text, in order. */
static void check_cut(const struct tokenizer *t, const char *text, size_t n, const char *want,
                      size_t dropped)
{
    struct detok_stream s;
    struct buf out;
    buf_init(&out, MEM_CAT_BASE, 1000);
    detok_stream_init(&s, t, true, false);
    for (size_t i = 0; i < n; i++) {
        detok_stream_push(&s, t->byte_ids[(unsigned char)text[i]], &out);
        assert_true(utf8_is_valid(out.data, out.len));
    }
    assert_int_equal(detok_stream_finish(&s), dropped);
    assert_int_equal(out.len, strlen(want));
    assert_memory_equal(out.data, want, out.len);
    buf_release(&out);
}

static void a_stream_never_shows_half_a_code_point(void **state)
{
    static const char text[] =
        "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9 ne\xCC\x81 \xE6\x97\xA5";
    struct tokenizer *t = make(TOKENIZER_KIND_BPE, "gpt-2");
    for (size_t n = 0; n <= sizeof(text) - 1; n++) {
        char want[sizeof(text)] = "";
        size_t whole = utf8_complete_prefix(text, n);
        memcpy(want, text, whole);
        check_cut(t, text, n, want, n - whole);
    }
    tokenizer_free(t);
}

static void bytes_that_are_no_text_are_replaced_once(void **state)
{
    struct tokenizer *t = make(TOKENIZER_KIND_BPE, "gpt-2");
    check_cut(t, "\x80", 1, "\xEF\xBF\xBD", 0);
    check_cut(t, "a\xFFz", 3, "a\xEF\xBF\xBDz", 0);
    check_cut(t, "\xE2\x82z", 3, "\xEF\xBF\xBDz", 0);               /* a cut sequence is one */
    check_cut(t, "\xF0\x9F\xC3\xA9", 4, "\xEF\xBF\xBD\xC3\xA9", 0); /* the next one survives it */
    check_cut(t, "\xED\xA0\x80", 3, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 0);
    check_cut(t, "ok\xF0\x9F\x98", 5, "ok", 3);
    tokenizer_free(t);
}

/* The definition: again and again, the pair of least rank, leftmost. */
static int32_t naive_merge(const struct tokenizer *t, int32_t *ids, int32_t n)
{
    for (;;) {
        const struct merge_slot *best = NULL;
        int32_t at = 0;
        for (int32_t i = 0; i + 1 < n; i++) {
            const struct merge_slot *m = merge_table_find(&t->merges, ids[i], ids[i + 1]);
            if (m && (!best || m->rank < best->rank)) {
                best = m;
                at = i;
            }
        }
        if (!best)
            return n;
        ids[at] = best->id;
        memmove(ids + at + 1, ids + at + 2, (size_t)(n - at - 2) * sizeof(*ids));
        n--;
    }
}

static void long_and_short_stretches_merge_as_defined(void **state)
{
    enum { MAX = 600 };
    static const char letters[] = "heloAA";
    struct tokenizer *t = make(TOKENIZER_KIND_BPE, "gpt-2");
    uint32_t draw = 0;
    for (int run = 0; run < 400; run++) {
        char text[MAX];
        int32_t want[MAX];
        struct token_list ids;
        int32_t n =
            1 + (int32_t)(philox_uniform(7, (uint64_t)run, 0, 0) * (run % 2 ? MAX - 1 : 60));
        int width = run % 3 == 0 ? 6 : run % 3 == 1 ? 2 : 4;
        for (int32_t i = 0; i < n; i++) {
            int k = (int)(philox_uniform(7, draw++, 1, 0) * (float)width);
            text[i] = run % 3 == 1 ? "lA"[k] : letters[k];
            want[i] = t->byte_ids[(unsigned char)text[i]];
        }
        token_list_init(&ids, MAX);
        assert_int_equal(tokenizer_encode(t, text, (size_t)n, NULL, 0, &ids, NULL), ERR_OK);
        assert_int_equal(ids.n, naive_merge(t, want, n));
        assert_memory_equal(ids.ids, want, (size_t)ids.n * sizeof(*want));
        token_list_release(&ids);
    }
    tokenizer_free(t);
}

static void a_long_run_is_no_trouble(void **state)
{
    enum { N = 1 << 20 };
    static const int kinds[] = { TOKENIZER_KIND_BPE, TOKENIZER_KIND_BPE_SPM, TOKENIZER_KIND_SPM };
    char *text = mem_alloc(MEM_CAT_BASE, N);
    memset(text, 'A', N);
    for (size_t k = 0; k < ARRAY_LEN(kinds); k++) {
        struct tokenizer *t = make((enum tokenizer_kind)kinds[k], "llama-bpe");
        struct token_list ids;
        token_list_init(&ids, INT32_MAX);
        assert_int_equal(tokenizer_encode(t, text, N, NULL, 0, &ids, NULL), ERR_OK);
        assert_int_equal(ids.n, N / 8);
        assert_int_equal(ids.ids[0], tokenizer_find(t, "AAAAAAAA", 8));
        assert_int_equal(ids.ids[N / 8 - 1], ids.ids[0]);
        token_list_release(&ids);
        tokenizer_free(t);
    }
    mem_free(MEM_CAT_BASE, text);
}

static void too_many_tokens_leave_the_list_as_it_was(void **state)
{
    struct tokenizer *t = make(TOKENIZER_KIND_BPE, "gpt-2");
    struct token_list ids;
    struct err err;
    token_list_init(&ids, 5);
    assert_int_equal(tokenizer_encode(t, "hello w", 7, NULL, 0, &ids, &err), ERR_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(tokenizer_encode(t, "zzzz", 4, NULL, 0, &ids, &err), ERR_FULL);
    assert_non_null(strstr(err.text, "5 tokens"));
    assert_int_equal(ids.n, 2);
    assert_int_equal(tokenizer_encode(t, "zzz", 3, NULL, 0, &ids, &err), ERR_OK);
    assert_int_equal(ids.n, 5);
    token_list_release(&ids);
    tokenizer_free(t);
}

static void a_rank_file_without_merges_joins_by_id(void **state)
{
    static struct small_vocab v;
    struct tokenizer *t;
    small_vocab_init(&v, TOKENIZER_KIND_BPE, "kimi-k2");
    v.spec.n_merges = 0;
    assert_int_equal(tokenizer_new(&v.spec, &t, NULL), ERR_OK);
    check(t, "hello wAAAAAA", 0, "hello| w|AAAA|AA");
    tokenizer_free(t);
}

static void end_ids_are_eos_and_the_known_markers(void **state)
{
    struct tokenizer *t = make(TOKENIZER_KIND_BPE, "gpt-2");
    int32_t n;
    const int32_t *ids = tokenizer_end_ids(t, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], tokenizer_find(t, "</s>", 4));
    assert_int_equal(ids[1], tokenizer_find(t, "<|im_end|>", 10));
    assert_int_equal(tokenizer_eos(t), ids[0]);
    tokenizer_free(t);
}

static void the_byte_alphabet_is_gpt2s(void **state)
{
    bool seen[256] = { 0 };
    assert_int_equal(detok_byte_of_char('!'), '!');
    assert_int_equal(detok_byte_of_char(0x120), ' ');
    assert_int_equal(detok_byte_of_char(0x10A), '\n');
    assert_int_equal(detok_byte_of_char(0x121), 0x7F);
    assert_int_equal(detok_byte_of_char(0x142), 0xA0);
    assert_int_equal(detok_byte_of_char(0x143), 0xAD);
    assert_int_equal(detok_byte_of_char(0x144), -1);
    assert_int_equal(detok_byte_of_char(' '), -1);
    for (uint32_t c = 0; c < 0x200; c++) {
        int b = detok_byte_of_char(c);
        if (b >= 0) {
            assert_false(seen[b]);
            seen[b] = true;
        }
    }
    for (int b = 0; b < 256; b++)
        assert_true(seen[b]);
}

static void damaged_specifications_are_refused(void **state)
{
    static struct small_vocab v;
    struct tokenizer *t = NULL;
    struct err err;
    small_vocab_init(&v, TOKENIZER_KIND_BPE, "gpt-2");
    v.spec.eos = v.spec.n_tokens;
    assert_int_equal(tokenizer_new(&v.spec, &t, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "eos id"));
    small_vocab_init(&v, TOKENIZER_KIND_BPE, "gpt-2");
    v.merges[3] = (struct tokenizer_str){ "hell", 4 };
    assert_int_equal(tokenizer_new(&v.spec, &t, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "merge 3 'hell'"));
    small_vocab_init(&v, TOKENIZER_KIND_UGM, NULL);
    static const uint8_t map[] = { 8, 0, 0, 0, 1, 2, 3, 4 };
    v.spec.charsmap = map;
    v.spec.charsmap_bytes = sizeof(map);
    assert_int_equal(tokenizer_new(&v.spec, &t, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "precompiled_charsmap"));
    v.spec.n_tokens = 0;
    assert_int_equal(tokenizer_new(&v.spec, &t, &err), ERR_INVALID);
    assert_null(t);
}

static void lack_of_memory_is_an_error_at_every_allocation(void **state)
{
    static const char text[] =
        "hello \xFF w\xC3\xA9 hellhellhellhellhellhellhellhellhellohellhellhell<s>";
    for (int kind = TOKENIZER_KIND_BPE; kind <= TOKENIZER_KIND_UGM; kind++) {
        static struct small_vocab v;
        struct span span = { 2, 4 };
        struct span_list caller = { &span, 1 };
        struct tokenizer *t = NULL;
        struct token_list ids;
        int64_t before = mem_bytes(MEM_CAT_TOKENIZER);
        enum err_code code = ERR_NOMEM;
        small_vocab_init(&v, (enum tokenizer_kind)kind, "gpt-2");
        for (int64_t n = 1; code; n++) {
            assert_in_range(n, 1, 1000);
            mem_fail_nth(n);
            code = tokenizer_new(&v.spec, &t, NULL);
            mem_fail_nth(0);
            assert_true(code == ERR_OK || code == ERR_NOMEM || code == ERR_FULL);
            if (code)
                assert_int_equal(mem_bytes(MEM_CAT_TOKENIZER), before);
        }
        token_list_init(&ids, 1000);
        code = ERR_NOMEM;
        for (int64_t n = 1; code; n++) {
            assert_in_range(n, 1, 1000);
            mem_fail_nth(n);
            code = tokenizer_encode(t, text, sizeof(text) - 1, &caller, TOKENIZER_FLAG_SPECIAL,
                                    &ids, NULL);
            mem_fail_nth(0);
            assert_true(code == ERR_OK || code == ERR_NOMEM || code == ERR_FULL);
            assert_true(code == ERR_OK || ids.n == 0);
        }
        assert_true(ids.n > 0);
        token_list_release(&ids);
        tokenizer_free(t);
        assert_int_equal(mem_bytes(MEM_CAT_TOKENIZER), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_kind_splits_as_its_rules_say),
        cmocka_unit_test(added_tokens_match_leftmost_then_longest),
        cmocka_unit_test(an_added_token_that_is_no_utf8_never_matches),
        cmocka_unit_test(a_control_token_needs_every_byte_from_the_template),
        cmocka_unit_test(merges_cross_the_border_of_the_callers_text),
        cmocka_unit_test(spans_move_with_the_text),
        cmocka_unit_test(bos_and_eos_stand_once),
        cmocka_unit_test(a_space_goes_in_front_where_the_model_wants_one),
        cmocka_unit_test(a_stream_never_shows_half_a_code_point),
        cmocka_unit_test(bytes_that_are_no_text_are_replaced_once),
        cmocka_unit_test(long_and_short_stretches_merge_as_defined),
        cmocka_unit_test(a_long_run_is_no_trouble),
        cmocka_unit_test(too_many_tokens_leave_the_list_as_it_was),
        cmocka_unit_test(a_rank_file_without_merges_joins_by_id),
        cmocka_unit_test(end_ids_are_eos_and_the_known_markers),
        cmocka_unit_test(the_byte_alphabet_is_gpt2s),
        cmocka_unit_test(damaged_specifications_are_refused),
        cmocka_unit_test(lack_of_memory_is_an_error_at_every_allocation),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
