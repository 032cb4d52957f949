#include "base/philox.h"
#include "engine/kv_pool.h"
#include "tensor/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define P KV_PAGE_TOKENS
enum { N_TABLES = 5, N_PAGES = 23, CAP = 12 };

struct world {
    struct kv_pool pool;
    struct kv_table tables[N_TABLES];
};

static void world_open(struct world *w)
{
    struct err err;
    assert_int_equal(kv_pool_init(&w->pool, N_PAGES, &err), ERR_OK);
    for (int i = 0; i < N_TABLES; i++)
        assert_int_equal(kv_table_init(&w->tables[i], CAP, &err), ERR_OK);
}

static void world_check(const struct world *w)
{
    struct err err = { 0 };
    const struct kv_table *tables[N_TABLES];
    for (int i = 0; i < N_TABLES; i++)
        tables[i] = &w->tables[i];
    if (kv_pool_check(&w->pool, tables, N_TABLES, NULL, &err))
        fail_msg("%s", err.text);
}

static void world_close(struct world *w)
{
    for (int i = 0; i < N_TABLES; i++) {
        kv_table_reset(&w->pool, &w->tables[i]);
        world_check(w);
    }
    assert_int_equal(w->pool.n_free, N_PAGES);
    assert_int_equal(w->pool.n_reserved, 0);
    for (int i = 0; i < N_TABLES; i++)
        kv_table_release(&w->tables[i]);
    kv_pool_release(&w->pool);
}

/* Reserve what the table lacks for n tokens and take it. */
static enum err_code cover(struct world *w, struct kv_table *t, int32_t n, struct err *err)
{
    int32_t lacks = kv_pages_for(n) - t->n - t->n_reserved;
    enum err_code code = lacks > 0 ? kv_table_reserve(&w->pool, t, lacks, err) : ERR_OK;
    return code ? code : kv_table_extend(&w->pool, t, n, err);
}

static void pages_come_and_go_with_the_tokens(void **state)
{
    struct world w;
    struct err err;
    struct kv_table *t;
    world_open(&w);
    t = &w.tables[0];
    assert_int_equal(cover(&w, t, 1, &err), ERR_OK);
    assert_int_equal(t->n, 1);
    assert_int_equal(cover(&w, t, P, &err), ERR_OK);
    assert_int_equal(t->n, 1);
    assert_int_equal(cover(&w, t, P + 1, &err), ERR_OK);
    assert_int_equal(t->n, 2);
    world_check(&w);
    kv_table_truncate(&w.pool, t, P);
    assert_int_equal(t->n, 1);
    assert_int_equal(t->n_reserved, 1); /* what it had it may have again */
    world_check(&w);
    kv_table_truncate(&w.pool, t, 0);
    assert_int_equal(w.pool.n_free, N_PAGES);
    world_close(&w);
}

static void a_promise_is_kept_against_others(void **state)
{
    struct world w;
    struct err err;
    world_open(&w);
    assert_int_equal(kv_table_reserve(&w.pool, &w.tables[0], 10, &err), ERR_OK);
    assert_int_equal(cover(&w, &w.tables[1], 12 * P, &err), ERR_OK);
    assert_int_equal(cover(&w, &w.tables[2], 2 * P, &err), ERR_FULL);
    assert_int_equal(w.tables[2].n, 0); /* nothing changed */
    assert_int_equal(kv_table_reserve(&w.pool, &w.tables[2], 2, &err), ERR_FULL);
    assert_non_null(strstr(err.text, "1 of 23"));
    assert_int_equal(cover(&w, &w.tables[0], 10 * P, &err), ERR_OK);
    assert_int_equal(kv_table_room(&w.tables[0]), 10 * P);
    assert_int_equal(kv_table_extend(&w.pool, &w.tables[0], 10 * P + 1, &err), ERR_STATE);
    assert_non_null(strstr(err.text, "641 tokens where room for 640"));
    assert_int_equal(cover(&w, &w.tables[0], 12 * P, &err), ERR_FULL);
    assert_int_equal(cover(&w, &w.tables[0], 11 * P, &err), ERR_OK);
    world_check(&w);
    world_close(&w);
}

static void the_cap_is_the_longest_sequence(void **state)
{
    struct world w;
    struct err err;
    world_open(&w);
    assert_int_equal(kv_table_extend(&w.pool, &w.tables[0], CAP * P + 1, &err), ERR_FULL);
    assert_int_equal(cover(&w, &w.tables[0], CAP * P, &err), ERR_OK);
    world_close(&w);
}

static void a_window_lets_go_of_what_is_wholly_below_it(void **state)
{
    struct world w;
    struct err err;
    world_open(&w);
    struct kv_table *t = &w.tables[0];
    assert_int_equal(cover(&w, t, 4 * P, &err), ERR_OK);
    kv_table_drop_below(&w.pool, t, -5);
    assert_int_equal(t->first, 0);
    kv_table_drop_below(&w.pool, t, P - 1);
    assert_int_equal(t->first, 0);
    kv_table_drop_below(&w.pool, t, 2 * P);
    assert_int_equal(t->first, 2);
    assert_int_equal(t->pages[1], -1);
    assert_true(t->pages[2] >= 0);
    assert_int_equal(w.pool.n_free, N_PAGES - 2);
    world_check(&w);
    assert_int_equal(cover(&w, t, 6 * P, &err), ERR_OK); /* from its own claim */
    assert_int_equal(t->n_reserved, 0);
    world_check(&w);
    kv_table_drop_below(&w.pool, t, 100 * P);
    assert_int_equal(t->first, 6);
    world_check(&w);
    world_close(&w);
}

static void shared_pages_live_until_the_last_table(void **state)
{
    struct world w;
    struct err err;
    world_open(&w);
    assert_int_equal(cover(&w, &w.tables[0], 3 * P, &err), ERR_OK);
    kv_table_share(&w.pool, &w.tables[1], &w.tables[0], 2);
    world_check(&w);
    assert_true(kv_table_is_shared(&w.pool, &w.tables[0], 1));
    assert_false(kv_table_is_shared(&w.pool, &w.tables[0], 2));
    assert_false(kv_table_is_shared(&w.pool, &w.tables[1], 2));
    assert_int_equal(w.pool.n_free, N_PAGES - 3);
    kv_table_reset(&w.pool, &w.tables[0]);
    world_check(&w);
    assert_int_equal(w.pool.n_free, N_PAGES - 2);
    assert_int_equal(cover(&w, &w.tables[1], 3 * P, &err), ERR_OK);
    world_check(&w);
    world_close(&w);
}

static void random_operations_keep_the_invariants(void **state)
{
    struct world w;
    struct err err;
    world_open(&w);
    for (uint32_t i = 0; i < 20000; i++) {
        uint32_t counter[4] = { i, 0, 0, 0 }, key[2] = { 3, 4 }, r[4];
        philox4x32(counter, key, r);
        struct kv_table *t = &w.tables[r[0] % N_TABLES];
        int32_t tokens = (int32_t)(r[1] % (CAP * P + 40));
        int32_t free_before = w.pool.n_free, reserved = w.pool.n_reserved, n = t->n;
        switch (r[2] % 6) {
        case 0:
        case 1:
            if (kv_table_extend(&w.pool, t, tokens, &err)) {
                assert_int_equal(w.pool.n_free, free_before);
                assert_int_equal(w.pool.n_reserved, reserved);
                assert_int_equal(t->n, n);
            }
            break;
        case 2:
            if (kv_pages_for(tokens) >= t->first)
                kv_table_truncate(&w.pool, t, tokens);
            break;
        case 3:
            kv_table_drop_below(&w.pool, t, tokens / 3);
            break;
        case 4:
            if (r[3] % 3 == 0)
                kv_table_reset(&w.pool, t);
            else if (kv_table_reserve(&w.pool, t, (int32_t)(r[3] % 6), &err))
                assert_int_equal(w.pool.n_reserved, reserved);
            break;
        default: {
            const struct kv_table *from = &w.tables[r[3] % N_TABLES];
            if (t != from && t->n == 0 && from->first == 0)
                kv_table_share(&w.pool, t, from, from->n);
            else if (t->n == t->first)
                kv_table_begin_at(t, (int32_t)(r[1] % CAP));
        }
        }
        world_check(&w);
    }
    world_close(&w);
}

static void the_checker_finds_planted_faults(void **state)
{
    struct world w;
    struct err err;
    const struct kv_table *tables[N_TABLES];
    world_open(&w);
    for (int i = 0; i < N_TABLES; i++)
        tables[i] = &w.tables[i];
    assert_int_equal(cover(&w, &w.tables[0], 2 * P, &err), ERR_OK);
    int32_t page = w.tables[0].pages[1];
    w.tables[0].pages[1] = -1; /* a hole */
    assert_int_equal(kv_pool_check(&w.pool, tables, N_TABLES, NULL, &err), ERR_STATE);
    w.tables[0].pages[1] = w.tables[0].pages[0]; /* one page twice */
    assert_int_equal(kv_pool_check(&w.pool, tables, N_TABLES, NULL, &err), ERR_STATE);
    w.tables[0].pages[1] = w.pool.free_list[0]; /* a free page in use */
    assert_int_equal(kv_pool_check(&w.pool, tables, N_TABLES, NULL, &err), ERR_STATE);
    w.tables[0].pages[1] = page;
    w.pool.n_reserved++;
    assert_int_equal(kv_pool_check(&w.pool, tables, N_TABLES, NULL, &err), ERR_STATE);
    w.pool.n_reserved--;
    world_check(&w);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_and_go_with_the_tokens),
        cmocka_unit_test(a_promise_is_kept_against_others),
        cmocka_unit_test(the_cap_is_the_longest_sequence),
        cmocka_unit_test(a_window_lets_go_of_what_is_wholly_below_it),
        cmocka_unit_test(shared_pages_live_until_the_last_table),
        cmocka_unit_test(random_operations_keep_the_invariants),
        cmocka_unit_test(the_checker_finds_planted_faults),
    };
    return cmocka_run_group_tests_name("kv_pool", tests, NULL, NULL);
}
