/* What governs an answer: think spans found in the bytes however they are cut into tokens, stop strings behind them only, budgets,
 * forced ids. */
#include "engine/guide.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define V 300

static void mark(char *to, int32_t *n, const char *text)
{
    *n = (int32_t)strlen(text);
    memcpy(to, text, strlen(text));
}

static struct engine_request thinker(const struct engine_bytes *stop)
{
    struct engine_request r = { .stops = stop, .n_stops = stop ? 1 : 0 };
    mark(r.guide.open, &r.guide.n_open, "<think>");
    mark(r.guide.close, &r.guide.n_close, "</think>");
    return r;
}

/* Feed text in tokens of `cut` bytes, forced ids (single bytes) before them where they are due. Returns the stop or -1; *fed: bytes. */
static int32_t feed(struct guide *g, const char *text, size_t cut, size_t *fed)
{
    size_t n = strlen(text);
    int32_t stop = -1;
    *fed = 0;
    for (size_t i = 0; i < n && stop < 0; i += cut) {
        size_t len = cut < n - i ? cut : n - i;
        stop = guide_feed(g, 1, text + i, len);
        *fed += len;
    }
    return stop;
}

static void stops_are_looked_for_behind_the_span(void **state)
{
    static const char text[] = "\n<think>a STOP b</thin</think>\n\nc STOP d";
    static const struct engine_bytes stop = { "STOP", 4 };
    struct engine_request r = thinker(&stop);
    for (size_t cut = 1; cut < sizeof(text); cut++) {
        struct guide g;
        size_t fed;
        assert_int_equal(guide_init(&g, &r, V, NULL), ERR_OK);
        assert_int_equal(feed(&g, text, cut, &fed), 0);
        assert_int_equal(g.text_safe, strstr(text, "c STOP") + 2 - text);
        guide_release(&g);
    }
}

static void a_prompt_may_have_opened_it(void **state)
{
    static const struct engine_bytes stop = { "x", 1 };
    struct engine_request r = thinker(&stop);
    struct guide g;
    size_t fed;
    r.guide.is_open = true;
    assert_int_equal(guide_init(&g, &r, V, NULL), ERR_OK);
    assert_int_equal(feed(&g, "xx</think>ab", 1, &fed), -1);
    assert_int_equal(g.n_reasoning, 10);
    assert_int_equal(g.text_safe, 12);
    assert_int_equal(feed(&g, "cx", 1, &fed), 0);
    assert_int_equal(g.text_safe, 13);
    guide_release(&g);
}

static void without_a_span_all_is_as_before(void **state)
{
    static const char *const texts[] = { "<thing> STOP", "a<think> STOP", "  <t STOP",
                                         "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n STOP" };
    static const struct engine_bytes stop = { "STOP", 4 };
    struct engine_request r = thinker(&stop);
    for (size_t i = 0; i < 4; i++) {
        struct guide g;
        size_t fed;
        assert_int_equal(guide_init(&g, &r, V, NULL), ERR_OK);
        assert_int_equal(feed(&g, texts[i], 3, &fed), 0);
        assert_int_equal(g.text_safe, (int64_t)strlen(texts[i]) - 4);
        assert_int_equal(g.n_reasoning, 0);
        guide_release(&g);
    }
    struct guide g;
    size_t fed;
    assert_int_equal(guide_init(&g, &r, V, NULL), ERR_OK);
    assert_int_equal(feed(&g, " <thi", 1, &fed), -1);
    assert_int_equal(g.text_safe, 0);
    guide_finish(&g);
    assert_int_equal(g.text_safe, 5);
    guide_release(&g);
}

static void control_tokens_count_by_their_spelling(void **state)
{
    struct engine_request r = thinker(NULL);
    struct guide g;
    r.guide.n_hidden = 2;
    r.guide.hidden[0].id = 258;
    r.guide.hidden[1].id = 259;
    mark(r.guide.hidden[0].text, &r.guide.hidden[0].n, "<think>");
    mark(r.guide.hidden[1].text, &r.guide.hidden[1].n, "</think>");
    assert_int_equal(guide_init(&g, &r, V, NULL), ERR_OK);
    guide_feed(&g, 258, "", 0);
    guide_feed(&g, 'a', "a", 1);
    assert_int_equal(g.text_safe, 1);
    assert_int_equal(g.n_reasoning, 1);
    guide_feed(&g, 259, "", 0);
    guide_feed(&g, 'b', "b", 1);
    assert_int_equal(g.n_reasoning, 2);
    assert_int_equal(g.text_safe, 2);
    guide_release(&g);
}

static void a_budget_ends_the_span_and_the_answer_goes_on(void **state)
{
    struct engine_request r = thinker(NULL);
    r.guide.has_budget = true;
    for (int32_t budget = 0; budget < 4; budget++) {
        struct guide g;
        int32_t n = 0;
        r.guide.budget = budget;
        r.guide.is_open = true;
        r.guide.n_close_ids = 8;
        for (int i = 0; i < 8; i++)
            r.guide.close_ids[i] = "</think>"[i];
        r.guide.n_forced = 2;
        r.guide.forced[0] = 'F';
        r.guide.forced[1] = 'G';
        assert_int_equal(guide_init(&g, &r, V, NULL), ERR_OK);
        char said[64];
        for (int i = 0; i < 20; i++) {
            const int32_t *id = guide_next(&g);
            assert_true(id || guide_goes_on(&g) == (i < budget));
            said[n++] = id ? (char)*id : 'm';
            guide_feed(&g, said[n - 1], &said[n - 1], 1);
        }
        char want[64];
        memset(want, 'm', sizeof(want));
        memcpy(want + budget, "</think>FG", 10);
        assert_memory_equal(said, want, 20);
        assert_int_equal(g.n_reasoning, budget + 8);
        guide_release(&g);
    }
}

static void forced_ids_come_first(void **state)
{
    struct engine_request r = thinker(NULL);
    struct guide g;
    r.guide.n_forced = 1;
    r.guide.forced[0] = 7;
    assert_int_equal(guide_init(&g, &r, V, NULL), ERR_OK);
    assert_int_equal(*guide_next(&g), 7);
    guide_feed(&g, 7, "F", 1);
    assert_null(guide_next(&g));
    assert_false(guide_goes_on(&g));
    guide_release(&g);
    r.guide.forced[0] = V;
    assert_int_equal(guide_init(&g, &r, V, NULL), ERR_INVALID);
    guide_release(&g);
    r.guide.n_forced = ENGINE_FORCED_MAX + 1;
    assert_int_equal(guide_init(&g, &r, V, NULL), ERR_INVALID);
    guide_release(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stops_are_looked_for_behind_the_span),
        cmocka_unit_test(a_prompt_may_have_opened_it),
        cmocka_unit_test(without_a_span_all_is_as_before),
        cmocka_unit_test(control_tokens_count_by_their_spelling),
        cmocka_unit_test(a_budget_ends_the_span_and_the_answer_goes_on),
        cmocka_unit_test(forced_ids_come_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
