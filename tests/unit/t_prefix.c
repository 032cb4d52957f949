#include "base/philox.h"
#include "engine/prefix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define P KV_PAGE_TOKENS
enum { N_PAGES = 40, CAP = 8, N_SEQS = 3, MAX = CAP * P };

/* A cache whose pages hold, for each position, a hash of all ids up to there: what keys and values depend on. */
struct world {
    struct kv_pool pool;
    struct prefix prefix;
    uint64_t cells[N_PAGES][P];
    struct kv_table tables[N_SEQS];
    int32_t ids[N_SEQS][MAX], len[N_SEQS];
    uint8_t salts[N_SEQS][ENGINE_SALT_BYTES];
    bool is_open[N_SEQS];
};

static uint64_t mix(uint64_t h, int32_t id)
{
    return (h ^ (uint64_t)(id + 1)) * 0x9E3779B97F4A7C15u + (h >> 29);
}

static uint64_t hash_of(const uint8_t *salt, const int32_t *ids, int32_t n)
{
    uint64_t h = salt[0];
    for (int32_t i = 0; i < n; i++)
        h = mix(h, ids[i]);
    return h;
}

static void world_open(struct world *w, int32_t max_idle)
{
    struct err err;
    memset(w, 0, sizeof(*w));
    assert_int_equal(kv_pool_init(&w->pool, N_PAGES, &err), ERR_OK);
    assert_int_equal(prefix_init(&w->prefix, &w->pool, max_idle, &err), ERR_OK);
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(kv_table_init(&w->tables[i], CAP, &err), ERR_OK);
}

static void world_check(const struct world *w)
{
    struct err err = { 0 };
    int32_t held[N_PAGES] = { 0 };
    const struct kv_table *tables[N_SEQS];
    for (int i = 0; i < N_SEQS; i++)
        tables[i] = &w->tables[i];
    prefix_count_held(&w->prefix, held);
    if (kv_pool_check(&w->pool, tables, N_SEQS, held, &err) || prefix_check(&w->prefix, &err))
        fail_msg("%s", err.text);
}

static void world_close(struct world *w)
{
    for (int i = 0; i < N_SEQS; i++) {
        kv_table_reset(&w->pool, &w->tables[i]);
        kv_table_release(&w->tables[i]);
    }
    prefix_release(&w->prefix);
    assert_int_equal(w->pool.n_free, N_PAGES);
    kv_pool_release(&w->pool);
}

/* Free pages, giving up kept ones where none are left. False: sequences use them all. */
static bool make_room(struct world *w, int32_t n)
{
    int32_t lacks = n - (w->pool.n_free - w->pool.n_reserved);
    return lacks <= 0 || prefix_evict(&w->prefix, lacks) >= lacks;
}

static bool seq_extend(struct world *w, int s, const int32_t *ids, int32_t n)
{
    struct kv_table *t = &w->tables[s];
    struct err err;
    int32_t lacks = kv_pages_for(w->len[s] + n) - t->n - t->n_reserved;
    if (lacks > 0 && (!make_room(w, lacks) || kv_table_reserve(&w->pool, t, lacks, &err)))
        return false;
    assert_int_equal(kv_table_extend(&w->pool, t, w->len[s] + n, &err), ERR_OK);
    for (int32_t i = 0; i < n; i++) {
        int32_t at = w->len[s]++;
        assert_false(kv_table_is_shared(&w->pool, t, at / P));
        w->ids[s][at] = ids[i];
        w->cells[t->pages[at / P]][at % P] = hash_of(w->salts[s], w->ids[s], at + 1);
    }
    return true;
}

/* Begin with what is kept of ids [n]: whole pages shared, the last one copied. Returns how many. */
static int32_t seq_begin(struct world *w, int s, uint8_t salt, const int32_t *ids, int32_t n)
{
    int32_t pages[CAP], nodes[CAP];
    struct prefix_hit hit = { .pages = pages, .nodes = nodes };
    struct kv_table *t = &w->tables[s];
    w->is_open[s] = true;
    w->len[s] = 0;
    memset(w->salts[s], salt, ENGINE_SALT_BYTES);
    prefix_find(&w->prefix, w->salts[s], ids, n, &hit);
    struct kv_table found = { .pages = pages, .n = hit.n_tokens / P, .cap = CAP };
    kv_table_share(&w->pool, t, &found, hit.n_tokens / P);
    if (hit.n_tokens % P != 0) {
        struct err err;
        kv_pool_hold(&w->pool,
                     pages[found.n]); /* what is copied must not be given up for the copy */
        bool has_room = make_room(w, 1) && kv_table_reserve(&w->pool, t, 1, &err) == ERR_OK;
        if (has_room) {
            assert_int_equal(kv_table_extend(&w->pool, t, hit.n_tokens, &err), ERR_OK);
            memcpy(w->cells[t->pages[found.n]], w->cells[pages[found.n]], sizeof(w->cells[0]));
        }
        kv_pool_drop(&w->pool, pages[found.n]);
        if (!has_room)
            hit.n_tokens = found.n * P;
    }
    memcpy(w->ids[s], ids, (size_t)hit.n_tokens * sizeof(*ids));
    w->len[s] = hit.n_tokens;
    for (int32_t i = 0; i < hit.n_tokens; i++)
        if (w->cells[t->pages[i / P]][i % P] != hash_of(w->salts[s], ids, i + 1))
            fail_msg("position %d is another history's", i);
    return hit.n_tokens;
}

static void seq_end(struct world *w, int s, bool is_kept)
{
    if (is_kept)
        prefix_put(&w->prefix, w->salts[s], w->ids[s], w->len[s], w->tables[s].pages, 1e-3, false);
    kv_table_reset(&w->pool, &w->tables[s]);
    prefix_trim(&w->prefix);
    w->is_open[s] = false;
}

static void fill(int32_t *ids, int32_t n, int32_t from)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = from + i;
}

static void the_longest_kept_beginning_is_found(void **state)
{
    (void)state;
    struct world w;
    int32_t a[MAX], b[MAX];
    world_open(&w, N_PAGES);
    fill(a, MAX, 0);
    assert_int_equal(seq_begin(&w, 0, 0, a, 200), 0);
    assert_true(seq_extend(&w, 0, a, 200));
    seq_end(&w, 0, true);
    world_check(&w);
    const int32_t lengths[] = { 1, 63, 64, 65, 128, 199, 200, 201, 400 };
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
        int32_t n = lengths[i];
        assert_int_equal(seq_begin(&w, 1, 0, a, n), n < 200 ? n : 200);
        world_check(&w);
        seq_end(&w, 1, false);
    }
    memcpy(b, a, sizeof(b));
    b[130] = -1; /* a change in the middle keeps what is before it */
    assert_int_equal(seq_begin(&w, 1, 0, b, 300), 130);
    assert_true(seq_extend(&w, 1, b + 130, 170));
    seq_end(&w, 1, true);
    world_check(&w);
    assert_int_equal(seq_begin(&w, 0, 0, a, 300), 200);
    assert_int_equal(seq_begin(&w, 1, 0, b, 300), 300);
    assert_int_equal(seq_begin(&w, 2, 7, a, 300), 0); /* another salt */
    world_check(&w);
    world_close(&w);
}

static void siblings_hold_the_beginning_that_they_share(void **state)
{
    (void)state;
    struct world w;
    int32_t a[MAX], b[MAX], pages[CAP], nodes[2][CAP];
    world_open(&w, N_PAGES);
    fill(a, MAX, 0);
    fill(b, MAX, 0);
    b[100] = -1;
    const int32_t *texts[] = { a, b };
    for (int i = 0; i < 2; i++) {
        int32_t got = seq_begin(&w, 0, 0, texts[i], 2 * P);
        assert_true(seq_extend(&w, 0, texts[i] + got, 2 * P - got));
        seq_end(&w, 0, true);
    }
    struct prefix_hit hits[2] = { { .pages = pages, .nodes = nodes[0] },
                                  { .pages = pages, .nodes = nodes[1] } };
    for (int i = 0; i < 2; i++)
        prefix_find(&w.prefix, w.salts[0], texts[i], 2 * P, &hits[i]);
    assert_int_equal(nodes[0][0], nodes[1][0]);
    assert_int_not_equal(nodes[0][1], nodes[1][1]);
    for (int32_t n = P + 1; n <= 2 * P; n++) {
        assert_true(prefix_holds(&w.prefix, &hits[0], nodes[0][1], a, n));
        assert_int_equal(prefix_holds(&w.prefix, &hits[0], nodes[1][1], a, n), n <= 100);
    }
    assert_false(prefix_holds(&w.prefix, &hits[0], nodes[0][0], a, P + 1));
    assert_true(prefix_holds(&w.prefix, &hits[0], nodes[0][0], a, 5));
    world_close(&w);
}

static void a_longer_tail_takes_the_place_of_a_shorter_one(void **state)
{
    (void)state;
    struct world w;
    int32_t a[MAX];
    world_open(&w, N_PAGES);
    fill(a, MAX, 0);
    for (int32_t n = 10; n <= 150; n += 10) {
        int32_t got = seq_begin(&w, 0, 0, a, n);
        assert_int_equal(got, n - 10);
        assert_true(seq_extend(&w, 0, a + got, n - got));
        seq_end(&w, 0, true);
        world_check(&w);
        assert_int_equal(w.prefix.n_nodes, kv_pages_for(n));
        assert_int_equal(w.pool.n_free, N_PAGES - kv_pages_for(n));
    }
    world_close(&w);
}

static void a_running_sequence_shares_its_full_pages_at_once(void **state)
{
    (void)state;
    struct world w;
    int32_t a[MAX];
    world_open(&w, N_PAGES);
    fill(a, MAX, 0);
    seq_begin(&w, 0, 0, a, 150);
    assert_true(seq_extend(&w, 0, a, 150));
    prefix_put(&w.prefix, w.salts[0], a, 150, w.tables[0].pages, 1e-3, true);
    world_check(&w);
    assert_int_equal(prefix_idle(&w.prefix), 0);
    assert_int_equal(prefix_evict(&w.prefix, 5), 0); /* the sequence uses them */
    world_check(&w);
    assert_int_equal(seq_begin(&w, 1, 0, a, 150), 128);
    assert_true(seq_extend(&w, 0, a + 150, 100));
    assert_true(seq_extend(&w, 1, a + 128, 22));
    world_check(&w);
    seq_end(&w, 0, true);
    seq_end(&w, 1, true);
    world_check(&w);
    assert_int_equal(w.prefix.n_nodes, 4);
    world_close(&w);
}

static void the_least_worth_goes_first_and_parents_after_children(void **state)
{
    (void)state;
    struct world w;
    int32_t a[MAX], b[MAX];
    world_open(&w, N_PAGES);
    fill(a, MAX, 0);
    fill(b, MAX, 10000);
    seq_begin(&w, 0, 0, a, 3 * P);
    assert_true(seq_extend(&w, 0, a, 3 * P));
    prefix_put(&w.prefix, w.salts[0], a, 3 * P, w.tables[0].pages, 1.0, false); /* dear */
    seq_end(&w, 0, false);
    seq_begin(&w, 1, 0, b, 3 * P);
    assert_true(seq_extend(&w, 1, b, 3 * P));
    prefix_put(&w.prefix, w.salts[1], b, 3 * P, w.tables[1].pages, 1e-6, false); /* cheap */
    seq_end(&w, 1, false);
    for (int32_t left = 3; left-- > 0;) {
        assert_int_equal(prefix_evict(&w.prefix, 1), 1);
        world_check(&w);
        assert_int_equal(seq_begin(&w, 1, 0, b, 3 * P), left * P); /* from the end */
        seq_end(&w, 1, false);
        assert_int_equal(seq_begin(&w, 0, 0, a, 3 * P), 3 * P);
        seq_end(&w, 0, false);
    }
    /* The clock rises, so that what nobody asks for goes in the end, dear as it was. */
    for (int i = 0; i < 2000 && prefix_idle(&w.prefix) > 0; i++) {
        fill(b, P, 20000 + P * i);
        seq_begin(&w, 1, 0, b, P);
        assert_true(seq_extend(&w, 1, b, P));
        prefix_put(&w.prefix, w.salts[1], b, P, w.tables[1].pages, 0.1, false);
        seq_end(&w, 1, false);
        prefix_evict(&w.prefix, 1);
    }
    assert_int_equal(seq_begin(&w, 0, 0, a, 3 * P), 0);
    world_check(&w);
    world_close(&w);
}

/* Why no more was found: where it goes on otherwise, where it ends, what was given up. */
static void a_look_tells_how_the_nearest_history_goes_on(void **state)
{
    (void)state;
    struct world w;
    struct engine_miss m;
    int32_t a[MAX], b[MAX];
    uint8_t other[ENGINE_SALT_BYTES] = { 9 };
    world_open(&w, N_PAGES);
    fill(a, MAX, 0);
    seq_begin(&w, 0, 0, a, 200);
    assert_false(prefix_look(&w.prefix, w.salts[0], a, 200, &m));
    assert_true(seq_extend(&w, 0, a, 200));
    seq_end(&w, 0, true);
    for (int32_t at = 0; at < 200; at += 3) {
        memcpy(b, a, sizeof(b));
        b[at] = -1;
        assert_true(prefix_look(&w.prefix, w.salts[0], b, 300, &m));
        int32_t left = 200 - at < ENGINE_MISS_IDS ? 200 - at : ENGINE_MISS_IDS;
        assert_int_equal(m.n_found, at);
        assert_int_equal(m.n_given_up, 0);
        assert_int_equal(m.n_kept, left);
        for (int32_t i = 0; i < left; i++)
            assert_int_equal(m.kept[i], a[at + i]);
    }
    assert_true(prefix_look(&w.prefix, w.salts[0], a, 300, &m));
    assert_int_equal(m.n_found, 200); /* and nothing behind it */
    assert_int_equal(m.n_kept, 0);
    assert_false(prefix_look(&w.prefix, other, a, 300, &m)); /* another salt's is not there */
    assert_int_equal(m.n_found + m.n_kept + m.n_given_up, 0);
    for (int32_t left = 3; left >= 0; left--) { /* of 4 pages, from the end */
        assert_int_equal(prefix_evict(&w.prefix, 1), 1);
        assert_int_equal(prefix_look(&w.prefix, w.salts[0], a, 300, &m), left > 0);
        assert_int_equal(m.n_found, left * P);
        assert_int_equal(m.n_given_up, 200 - left * P);
        assert_int_equal(prefix_look(&w.prefix, w.salts[0], a, 150, &m), left > 0);
        assert_int_equal(m.n_given_up,
                         left * P < 128 ? 128 - left * P : 0); /* the tail was another */
        assert_false(prefix_look(&w.prefix, other, a, 300, &m));
        assert_int_equal(m.n_given_up, 0);
    }
    world_check(&w);
    world_close(&w);
}

static void the_budget_bounds_what_is_idle(void **state)
{
    (void)state;
    struct world w;
    int32_t a[MAX];
    for (int32_t budget = 0; budget < 6; budget++) {
        world_open(&w, budget);
        for (int i = 0; i < 20; i++) {
            fill(a, MAX, i * 1000);
            int32_t n = 1 + i * 19;
            seq_begin(&w, 0, 0, a, n);
            assert_true(seq_extend(&w, 0, a, n));
            seq_end(&w, 0, true);
            world_check(&w);
            assert_true(prefix_idle(&w.prefix) <= budget);
            assert_int_equal(w.pool.n_free, N_PAGES - prefix_idle(&w.prefix));
        }
        world_close(&w);
    }
}

static void salts_beyond_the_bound_are_not_kept(void **state)
{
    (void)state;
    struct world w;
    int32_t a[MAX];
    world_open(&w, N_PAGES);
    fill(a, MAX, 0);
    for (int i = 0; i < PREFIX_ROOTS + 5; i++) {
        assert_int_equal(seq_begin(&w, 0, (uint8_t)i, a, 3), 0);
        assert_true(seq_extend(&w, 0, a, 3));
        seq_end(&w, 0, true);
        world_check(&w);
    }
    assert_true(w.prefix.n_roots <= PREFIX_ROOTS);
    while (prefix_evict(&w.prefix, 1) == 1)
        world_check(&w);
    assert_int_equal(w.prefix.n_roots, 0); /* an empty root makes room for another salt */
    world_close(&w);
}

/* --- pins --- */

#define PINS 3

struct pins {
    int32_t nodes[PINS]; /* -1 = none */
};

static void pins_moved(void *ctx, int32_t node, int32_t heir)
{
    struct pins *pins = ctx;
    for (int i = 0; i < PINS; i++)
        if (pins->nodes[i] == node) {
            assert_true(heir >= 0); /* else it was given up */
            pins->nodes[i] = heir;
        }
}

static void pinned_histories_stay_and_what_they_stand_on(void **state)
{
    (void)state;
    struct world w;
    struct pins pins = { { -1, -1, -1 } };
    int32_t a[MAX], pages[CAP], nodes[CAP];
    struct prefix_hit hit = { .pages = pages, .nodes = nodes };
    world_open(&w, N_PAGES);
    w.prefix.removed = pins_moved;
    w.prefix.ctx = &pins;
    fill(a, MAX, 0);
    assert_int_equal(seq_begin(&w, 0, 0, a, 2 * P + 5), 0);
    assert_true(seq_extend(&w, 0, a, 2 * P + 5));
    seq_end(&w, 0, true);
    prefix_find(&w.prefix, w.salts[0], a, 2 * P + 5, &hit);
    pins.nodes[0] = nodes[2];
    prefix_pin(&w.prefix, nodes[2]);
    prefix_pin(&w.prefix, nodes[2]);
    world_check(&w);
    assert_int_equal(w.prefix.n_pinned, 3);
    assert_true(prefix_is_pinned(&w.prefix, nodes[0]));
    assert_true(prefix_stands_on(&w.prefix, nodes[2], nodes[0]));
    assert_false(prefix_stands_on(&w.prefix, nodes[0], nodes[2]));
    assert_int_equal(prefix_evict(&w.prefix, 3), 0);
    /* Others come and go beside them. */
    int32_t b[MAX];
    fill(b, MAX, 5000);
    assert_int_equal(seq_begin(&w, 0, 0, b, 2 * P), 0);
    assert_true(seq_extend(&w, 0, b, 2 * P));
    seq_end(&w, 0, true);
    assert_int_equal(prefix_evict(&w.prefix, 5), 2);
    world_check(&w);
    /* A longer one takes the tail's place, and its pins. */
    assert_int_equal(seq_begin(&w, 0, 0, a, 3 * P), 2 * P + 5);
    assert_true(seq_extend(&w, 0, a + 2 * P + 5, P - 5));
    seq_end(&w, 0, true);
    world_check(&w);
    assert_int_equal(w.prefix.n_pinned, 3);
    assert_int_equal(prefix_evict(&w.prefix, 3), 0);
    prefix_unpin(&w.prefix, pins.nodes[0]);
    assert_int_equal(prefix_evict(&w.prefix, 3), 0); /* pinned twice */
    prefix_unpin(&w.prefix, pins.nodes[0]);
    world_check(&w);
    assert_int_equal(w.prefix.n_pinned, 0);
    pins.nodes[0] = -1;
    assert_int_equal(prefix_evict(&w.prefix, 5), 3);
    world_check(&w);
    world_close(&w);
}

/* Let go of one of the pins and hold another history by it: of ids [n], as far as they are kept. */
static void pins_change(struct world *w, struct pins *pins, int at, const uint8_t *salt,
                        const int32_t *ids, int32_t n)
{
    int32_t pages[CAP], nodes[CAP];
    struct prefix_hit hit = { .pages = pages, .nodes = nodes };
    if (pins->nodes[at] >= 0)
        prefix_unpin(&w->prefix, pins->nodes[at]);
    pins->nodes[at] = -1;
    prefix_find(&w->prefix, salt, ids, n, &hit);
    if (hit.n_tokens == 0 || hit.n_tokens > 4 * P) /* some room is left */
        return;
    pins->nodes[at] = nodes[(hit.n_tokens - 1) / P];
    prefix_pin(&w->prefix, pins->nodes[at]);
}

static void draw4(uint32_t a, uint32_t b, uint32_t out[4])
{
    philox4x32((const uint32_t[4]){ a, b, 0, 0 }, (const uint32_t[2]){ 11, 0 }, out);
}

/* Random conversations over few ids, so that they meet often; every cell that a lookup gives is compared with its own history. */
static void random_histories_never_mix(void **state)
{
    (void)state;
    struct world w;
    uint32_t draw[4];
    int64_t found = 0, asked = 0, n_evicted = 0;
    for (uint32_t round = 0; round < 40; round++) {
        struct pins pins = { { -1, -1, -1 } };
        world_open(&w, round % 4 == 0 ? 7 : N_PAGES);
        w.prefix.removed = pins_moved;
        w.prefix.ctx = &pins;
        for (uint32_t turn = 0; turn < 150; turn++) {
            int32_t ids[MAX];
            draw4(round, turn, draw);
            int s = (int)(draw[0] % N_SEQS);
            int32_t n = 1 + (int32_t)(draw[1] % (MAX / 2));
            for (int32_t i = 0; i < n; i++) {
                uint32_t d[4];
                draw4(1000 + draw[2] % 5, (uint32_t)i, d); /* one of five texts ... */
                ids[i] = (int32_t)(d[0] % 3);
            }
            if (draw[3] % 4 == 0)
                ids[draw[3] % (uint32_t)n] = 9; /* ... with a change now and then */
            if (round % 2 == 1 && draw[0] % 7 == 0)
                pins_change(&w, &pins, (int)(draw[2] % PINS), w.salts[s], ids, n);
            if (w.is_open[s]) {
                seq_end(&w, s, draw[3] % 5 != 0);
            } else {
                int32_t got = seq_begin(&w, s, (uint8_t)(draw[3] % 2), ids, n);
                found += got;
                asked += n;
                if (!seq_extend(&w, s, ids + got, n - got))
                    seq_end(&w, s, false);
                else if (draw[2] % 3 == 0)
                    prefix_put(&w.prefix, w.salts[s], w.ids[s], w.len[s], w.tables[s].pages,
                               1e-4 * (draw[2] % 7), true);
            }
            world_check(&w);
        }
        n_evicted += w.prefix.n_evicted;
        world_close(&w);
    }
    assert_true(found > asked / 4);
    assert_true(n_evicted > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_kept_beginning_is_found),
        cmocka_unit_test(siblings_hold_the_beginning_that_they_share),
        cmocka_unit_test(a_longer_tail_takes_the_place_of_a_shorter_one),
        cmocka_unit_test(a_running_sequence_shares_its_full_pages_at_once),
        cmocka_unit_test(the_least_worth_goes_first_and_parents_after_children),
        cmocka_unit_test(a_look_tells_how_the_nearest_history_goes_on),
        cmocka_unit_test(the_budget_bounds_what_is_idle),
        cmocka_unit_test(salts_beyond_the_bound_are_not_kept),
        cmocka_unit_test(pinned_histories_stay_and_what_they_stand_on),
        cmocka_unit_test(random_histories_never_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
