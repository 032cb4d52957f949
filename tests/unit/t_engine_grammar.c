/* Rows whose answers must be of a grammar: masks, ends, spans and forced ids before it, resumed answers, guesses. */
#include "engine_rows.h"
#include "grammar/grammar.h"

#include <math.h>
#include <stdio.h>

#define END 287

static char letters[512];

/* An engine whose token i < 256 is the byte i; the rest but the end are two letters. */
static void letters_open(struct tiny_engine *t, struct grammar_vocab **v)
{
    struct grammar_bytes bytes[512] = { 0 };
    struct err err;
    tiny_engine_open(t, &(struct tiny_config){ .file = files[0], .n_ctx = N_CTX, .max_rows = 4 });
    int32_t n = t->engine->info.n_vocab;
    for (int32_t i = 0; i < n; i++) {
        letters[i] = (char)i;
        t->bytes[i] = i < 256   ? (struct engine_bytes){ &letters[i], 1 }
                      : i < END ? (struct engine_bytes){ "aa", 2 }
                                : (struct engine_bytes){ "", 0 };
        bytes[i] = (struct grammar_bytes){ t->bytes[i].data, t->bytes[i].len };
    }
    if (grammar_vocab_new(bytes, n, v, &err))
        fail_msg("%s", err.text);
}

static struct grammar *compile(struct grammar_vocab *v, enum grammar_kind kind, const char *text)
{
    struct grammar_source s = { .kind = kind, .text = text, .n = strlen(text) };
    struct grammar *g = NULL;
    struct err err;
    if (grammar_compile(&s, v, &g, NULL, &err))
        fail_msg("%s: %s", text, err.text);
    return g;
}

static const char schema[] =
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"maxLength\": 6}, "
    "\"b\": {\"enum\": [true, 12, null]}}, \"required\": [\"a\", \"b\"], "
    "\"additionalProperties\": false}";

static void text_of(const struct tiny_engine *t, const struct answer *a, int32_t from, char *out)
{
    for (int32_t i = from; i < a->n; i++)
        for (size_t k = 0; k < t->bytes[a->tokens[i].id].len; k++)
            *out++ = t->bytes[a->tokens[i].id].data[k];
    *out = '\0';
}

static bool fits(struct grammar *g, const char *text, bool *is_complete)
{
    struct grammar_state *s;
    assert_int_equal(grammar_state_new(g, &s, NULL), ERR_OK);
    bool is_fine = grammar_step(s, text, strlen(text));
    *is_complete = is_fine && grammar_is_complete(s);
    grammar_state_free(s);
    return is_fine;
}

/* What one step may give with guesses that are certain: the test's answers are gathered whole. */
static void constrained_run(struct tiny_engine *t, const struct engine_request *req,
                            struct answer *a, int *n_steps)
{
    row_id row = open_row(t, req);
    struct engine_result res = { 0 };
    memset(a, 0, sizeof(*a));
    grow(t, row, INT32_MAX);
    for (*n_steps = 0; res.finish == FINISH_NONE; ++*n_steps) {
        res = step(t, row, t->engine->info.max_step_rows);
        for (int32_t i = 0; i < res.n_tokens; i++)
            a->tokens[a->n++] = res.tokens[i];
        assert_in_range(a->n, 0, ANSWER_MAX - 1);
    }
    a->finish = res.finish;
    a->text_safe = res.text_safe;
    if (res.finish == FINISH_ERROR)
        print_message("%s\n", res.err.text);
    t->engine->ops->close(t->engine, row);
}

static void an_answer_is_of_its_grammar_and_ends_with_it(void **state)
{
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct grammar_vocab *v;
    struct answer a;
    int n_steps, n_ends = 0, n_cut = 0;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    letters_open(&t, &v);
    struct grammar *g = compile(v, GRAMMAR_KIND_SCHEMA, schema);
    for (int i = 0; i < 40; i++) {
        struct engine_request req = request(ids, 10 + i, i % 4 == 3 ? 8 : 39);
        char text[ANSWER_MAX * 2];
        bool is_complete;
        req.grammar = g;
        req.ignore_end = i % 2 == 0;
        req.sample.temperature = i < 2 ? 0 : 1.5f;
        req.sample.seed = (uint64_t)i;
        constrained_run(&t, &req, &a, &n_steps);
        text_of(&t, &a, 0, text);
        assert_true(fits(g, text, &is_complete));
        assert_true(a.finish == FINISH_END ? is_complete : a.finish == FINISH_LENGTH);
        assert_int_equal(a.text_safe, strlen(text));
        n_ends += a.finish == FINISH_END;
        n_cut += a.finish == FINISH_LENGTH;
    }
    assert_in_range(n_ends, 5, 39);
    assert_in_range(n_cut, 10, 39);
    grammar_unref(g);
    grammar_vocab_free(v);
    tiny_engine_close(&t);
}

/* An end id comes exactly where the text may end: never before, even if it is all that the model wants; then nothing else is left. */
static void an_end_comes_where_the_text_may_end(void **state)
{
    static const struct logit_bias wants_end[] = { { END, 100 } };
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct grammar_vocab *v;
    struct answer a;
    int n_steps;
    char text[ANSWER_MAX * 2];
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    letters_open(&t, &v);
    struct grammar *g = compile(v, GRAMMAR_KIND_REGEX, "x{12}y*");
    struct engine_request req = request(ids, 20, 30);
    req.grammar = g;
    req.ignore_end = false;
    req.sample.bias = wants_end;
    req.sample.n_bias = 1;
    req.sample.n_logprobs = 5;
    constrained_run(&t, &req, &a, &n_steps);
    text_of(&t, &a, 0, text);
    assert_string_equal(text, "xxxxxxxxxxxx");
    assert_int_equal(a.finish, FINISH_END);
    for (int i = 0; i < a.n; i++) { /* of the masked distribution: one token has it all */
        assert_true(a.tokens[i].logprob == 0);
        assert_int_equal(a.tokens[i].n_top, 1);
    }
    assert_in_range(n_steps, 2, 6); /* certain tokens come many at a time */
    req.ignore_end = true;          /* the ends are ignored: y for ever */
    constrained_run(&t, &req, &a, &n_steps);
    text_of(&t, &a, 0, text);
    assert_string_equal(text, "xxxxxxxxxxxxyyyyyyyyyyyyyyyyyy");
    assert_int_equal(a.finish, FINISH_LENGTH);
    grammar_unref(g);
    g = compile(v, GRAMMAR_KIND_CHOICE, "[\"xyzzy\", \"plugh\"]"); /* nothing follows: over */
    req.grammar = g;
    req.max_tokens = 5;
    constrained_run(&t, &req, &a, &n_steps);
    text_of(&t, &a, 0, text);
    assert_true(strcmp(text, "xyzzy") == 0 || strcmp(text, "plugh") == 0);
    assert_int_equal(a.finish, FINISH_END);
    req.end_ids[0] = 'x'; /* an end that has bytes is one none the less */
    req.end_ids[1] = 'p';
    req.n_end_ids = 2;
    row_id row = open_row(&t, &req);
    grow(&t, row, INT32_MAX);
    struct engine_result res = step(&t, row, 20);
    assert_int_equal(res.finish, FINISH_ERROR);
    assert_non_null(strstr(res.err.text, "no token"));
    t.engine->ops->close(t.engine, row);
    grammar_unref(g);
    grammar_vocab_free(v);
    tiny_engine_close(&t);
}

/* The grammar begins behind a span that the prompt has opened, or that the answer opens, and behind forced ids. */
static void it_begins_behind_a_span_and_forced_ids(void **state)
{
    static const struct logit_bias wants[] = { { '<', 30 } };
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct grammar_vocab *v;
    struct answer a;
    int n_steps, n_thought = 0;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    letters_open(&t, &v);
    struct grammar *g = compile(v, GRAMMAR_KIND_SCHEMA, schema);
    for (int i = 0; i < 40; i++) {
        struct engine_request req = request(ids, 10 + i, 39);
        char text[ANSWER_MAX * 2], *at = text;
        bool is_complete, is_open = i % 4 == 0, is_forced = i % 2 == 1;
        req.grammar = g;
        req.ignore_end = false;
        req.sample.temperature = 1;
        req.sample.seed = (uint64_t)i;
        if (i % 4 == 2) {
            req.sample.bias = wants;
            req.sample.n_bias = 1;
        }
        req.guide = (struct engine_guide){ .open = "<t>",
                                           .n_open = 3,
                                           .close = "</t>",
                                           .n_close = 4,
                                           .is_open = is_open,
                                           .has_budget = true,
                                           .budget = 6,
                                           .close_ids = { '<', '/', 't', '>', '\n' },
                                           .n_close_ids = 5,
                                           .forced = { 'F', ':' },
                                           .n_forced = is_forced ? 2 : 0 };
        constrained_run(&t, &req, &a, &n_steps);
        assert_true(a.finish == FINISH_END || a.finish == FINISH_LENGTH);
        text_of(&t, &a, 0, text);
        bool has_span = is_open || strncmp(text, "<t>", 3) == 0;
        n_thought += has_span && !is_open;
        if (has_span) {
            at = strstr(text, "</t>");
            if (!at) { /* half an end is not cut */
                assert_int_equal(a.finish, FINISH_LENGTH);
                continue;
            }
            for (at += 4; *at == '\n' || *at == ' ' || *at == '\t' || *at == '\r'; at++)
                ;
        }
        if (is_forced) {
            assert_memory_equal(at, "F:", 2);
            at += 2;
        }
        assert_true(fits(g, at, &is_complete));
        assert_true(is_complete == (a.finish == FINISH_END) || a.finish == FINISH_LENGTH);
    }
    assert_in_range(n_thought, 1, 39);
    grammar_unref(g);
    grammar_vocab_free(v);
    tiny_engine_close(&t);
}

/* A span's end that a token goes on behind: what follows must begin the text. */
static void a_token_that_ends_a_span_begins_the_text(void **state)
{
    static const struct logit_bias wants[] = { { 256, 60 }, { 257, 40 }, { 'q', 20 } };
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct grammar_bytes bytes[512];
    struct grammar_vocab *v;
    struct answer a;
    int n_steps;
    char text[ANSWER_MAX * 2];
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    letters_open(&t, &v);
    grammar_vocab_free(v);
    t.bytes[256] = (struct engine_bytes){ "</t>b", 5 }; /* wanted most, and not allowed */
    t.bytes[257] = (struct engine_bytes){ "</t> \nx", 7 };
    for (int32_t i = 0; i <= END; i++)
        bytes[i] = (struct grammar_bytes){ t.bytes[i].data, t.bytes[i].len };
    assert_int_equal(grammar_vocab_new(bytes, END + 1, &v, NULL), ERR_OK);
    struct grammar *g = compile(v, GRAMMAR_KIND_REGEX, "x[yz]");
    struct engine_request req = request(ids, 20, 30);
    req.grammar = g;
    req.ignore_end = false;
    req.sample.bias = wants;
    req.sample.n_bias = 3;
    req.guide = (struct engine_guide){
        .open = "<t>", .n_open = 3, .close = "</t>", .n_close = 4, .is_open = true
    };
    constrained_run(&t, &req, &a, &n_steps);
    text_of(&t, &a, 0, text);
    assert_memory_equal(text, "</t> \nx", 7);
    assert_true(text[7] == 'y' || text[7] == 'z');
    assert_int_equal(text[8], '\0');
    assert_int_equal(a.finish, FINISH_END);
    grammar_unref(g);
    grammar_vocab_free(v);
    tiny_engine_close(&t);
}

static void a_resumed_answer_goes_on_in_its_grammar(void **state)
{
    int32_t ids[PROMPT_MAX], begun[ANSWER_MAX];
    struct tiny_engine t;
    struct grammar_vocab *v;
    struct answer a, b;
    int n_steps;
    struct err err;
    row_id row;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    letters_open(&t, &v);
    struct grammar *g = compile(v, GRAMMAR_KIND_SCHEMA, schema);
    struct engine_request req = request(ids, 30, 39);
    req.grammar = g;
    req.sample.temperature = 1;
    req.sample.n_logprobs = 4;
    req.sample.seed = 5;
    req.guide = (struct engine_guide){ .forced = { 'F', ':' }, .n_forced = 2 };
    constrained_run(&t, &req, &a, &n_steps);
    for (int32_t i = 0; i < a.n; i++)
        begun[i] = a.tokens[i].id;
    for (int32_t n = 1; n < a.n; n++) {
        req.begun = begun;
        req.n_begun = n;
        constrained_run(&t, &req, &b, &n_steps);
        assert_int_equal(b.n, a.n - n);
        assert_int_equal(b.finish, a.finish);
        for (int32_t i = 0; i < b.n; i++)
            token_equals(&b.tokens[i], &a.tokens[n + i]);
    }
    begun[4] = 'q'; /* what the grammar never gave */
    begun[2] = 'q';
    req.n_begun = 6;
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_FULL);
    assert_non_null(strstr(err.text, "token 113 ('q')"));
    grammar_unref(g);
    grammar_vocab_free(v);
    tiny_engine_close(&t);
}

/* Where a text can be read in more ways than there are stacks for, some are dropped: the grammar is narrower then, never wider. */
static void too_many_stacks_make_it_narrower(void **state)
{
    static const struct logit_bias wants[] = { { 'a', 50 }, { 'b', 4 } };
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct grammar_vocab *v;
    struct answer a;
    int n_steps, n_ends = 0;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    letters_open(&t, &v);
    struct grammar *g =
        compile(v, GRAMMAR_KIND_GBNF,
                "root ::= \"a\" \"a\" \"a\" s\ns ::= \"a\" s \"b\" | \"a\" s \"c\" | \"d\"\n");
    for (int i = 0; i < 20; i++) {
        struct engine_request req = request(ids, 10 + i, 39);
        char text[ANSWER_MAX * 2];
        req.grammar = g;
        req.sample.temperature = 4;
        req.sample.seed = (uint64_t)i;
        req.sample.bias = wants;
        req.sample.n_bias = i % 2 == 0 ? 2 : 0;
        constrained_run(&t, &req, &a, &n_steps);
        text_of(&t, &a, 0, text);
        size_t n = strspn(text, "a"), d = text[n] == 'd';
        assert_int_equal(n + d + strspn(text + n + d, "bc"), strlen(text));
        assert_true(a.finish == FINISH_END || a.finish == FINISH_LENGTH);
        if (a.finish == FINISH_END)
            assert_int_equal(strlen(text), 3 + 2 * (n - 3) + 1);
        n_ends += a.finish == FINISH_END;
    }
    assert_in_range(n_ends, 1, 19);
    grammar_unref(g);
    grammar_vocab_free(v);
    tiny_engine_close(&t);
}

static void a_grammar_of_another_vocabulary_is_refused(void **state)
{
    static const struct grammar_bytes two[] = { { "a", 1 }, { "b", 1 } };
    int32_t ids[PROMPT_MAX];
    struct tiny_engine t;
    struct grammar_vocab *v, *other;
    struct err err;
    row_id row;
    prompt_fill(ids, PROMPT_MAX, 0, 1);
    letters_open(&t, &v);
    assert_int_equal(grammar_vocab_new(two, 2, &other, NULL), ERR_OK);
    struct grammar *g = compile(other, GRAMMAR_KIND_REGEX, "[ab]+");
    struct engine_request req = request(ids, 10, 10);
    req.grammar = g;
    assert_int_equal(t.engine->ops->open(t.engine, &req, &row, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "2 tokens, the model has 288"));
    grammar_unref(g);
    grammar_vocab_free(other);
    grammar_vocab_free(v);
    tiny_engine_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_of_its_grammar_and_ends_with_it),
        cmocka_unit_test(an_end_comes_where_the_text_may_end),
        cmocka_unit_test(it_begins_behind_a_span_and_forced_ids),
        cmocka_unit_test(a_token_that_ends_a_span_begins_the_text),
        cmocka_unit_test(a_resumed_answer_goes_on_in_its_grammar),
        cmocka_unit_test(too_many_stacks_make_it_narrower),
        cmocka_unit_test(a_grammar_of_another_vocabulary_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
