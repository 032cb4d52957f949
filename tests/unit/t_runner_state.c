/* Recurrent layers under the runner: rows that are taken back, snapshots, and company change no logits. */
#include "base/philox.h"
#include "support/tiny_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define FAMILIES "tests/golden/families/"
enum { N_IDS = 90, N_SEQS = 3, TENTATIVE = 4, V_MAX = 288 };

static const char *const files[] = { FAMILIES "qwen35.gguf", FAMILIES "qwen35moe.gguf",
                                     FAMILIES "qwen3next.gguf", FAMILIES "qwen4exp.gguf",
                                     FAMILIES "qwen4exp-sparse.gguf" };

struct world {
    struct tiny_engine lab; /* for its model */
    struct runner *r;
    int64_t v;
    int32_t ids[N_SEQS][N_IDS];
    float want[N_SEQS][N_IDS][V_MAX]; /* logits after each id, taken one by one and alone */
    int32_t seqs[N_SEQS], len[N_SEQS];
    uint32_t seed, n_draws;
};

static uint32_t dice(struct world *w, uint32_t n)
{
    uint32_t out[4];
    philox4x32((const uint32_t[4]){ w->n_draws++, 0, 0, 0 }, (const uint32_t[2]){ w->seed, 5 },
               out);
    return out[0] % n;
}

static struct runner *open_runner(const struct world *w, int32_t max_tentative)
{
    struct runner *r;
    struct err err = { 0 };
    struct runner_options o = { .model = w->lab.model,
                                .n_ctx = 128,
                                .max_seqs = N_SEQS,
                                .max_rows = 64,
                                .max_out = N_SEQS * TENTATIVE,
                                .max_tentative = max_tentative,
                                .cache_type = DTYPE_F16 };
    if (runner_new(&o, &r, &err))
        fail_msg("%s", err.text);
    return r;
}

static int32_t open_seq(struct runner *r)
{
    int32_t seq;
    struct err err;
    assert_int_equal(runner_open(r, &seq, &err), ERR_OK);
    assert_int_equal(runner_reserve(r, seq, N_IDS, &err), ERR_OK);
    return seq;
}

static void world_open(struct world *w, const char *file, uint32_t seed)
{
    struct err err;
    w->seed = seed;
    w->n_draws = 0;
    tiny_engine_open(&w->lab, &(struct tiny_config){ .file = file, .n_ctx = 64, .max_rows = 1 });
    w->v = w->lab.model->n_vocab;
    assert_in_range(w->v, 1, V_MAX);
    struct runner *alone = open_runner(w, 0);
    for (int s = 0; s < N_SEQS; s++) {
        struct runner_item item = { .seq = open_seq(alone), .n = 1, .n_out = 1 };
        for (int32_t i = 0; i < N_IDS; i++) {
            w->ids[s][i] = (i * 37 + i * i * 11 + s * 53) % 280;
            item.ids = &w->ids[s][i];
            assert_int_equal(runner_step(alone, &item, 1, &err), ERR_OK);
            memcpy(w->want[s][i], item.logits, (size_t)w->v * sizeof(float));
        }
        runner_close(alone, item.seq);
    }
    runner_free(alone);
    w->r = open_runner(w, TENTATIVE);
    for (int s = 0; s < N_SEQS; s++) {
        w->seqs[s] = open_seq(w->r);
        w->len[s] = 0;
    }
}

static void world_close(struct world *w)
{
    runner_free(w->r);
    tiny_engine_close(&w->lab);
}

static void world_check(const struct world *w)
{
    struct err err = { 0 };
    if (runner_check(w->r, &err))
        fail_msg("%s", err.text);
}

/* A part of a step: ids that belong there, then (tentative ones) others. */
struct part {
    int s;
    int32_t ids[TENTATIVE + 8], n, n_true;
    bool is_tentative;
};

static void part_draw(struct world *w, int s, struct part *p)
{
    int32_t left = N_IDS - w->len[s];
    p->s = s;
    p->is_tentative = dice(w, 3) > 0;
    p->n = 1 + (int32_t)dice(w, p->is_tentative ? TENTATIVE : TENTATIVE + 8);
    p->n = p->n < left ? p->n : left;
    p->is_tentative = p->is_tentative && p->n > 1;
    p->n_true = p->is_tentative ? (int32_t)dice(w, (uint32_t)p->n + 1) : p->n;
    for (int32_t i = 0; i < p->n; i++)
        p->ids[i] = (w->ids[s][w->len[s] + i] + (i < p->n_true ? 0 : 7)) % 280;
}

/* Logits of the rows whose ids are the sequence's, for a tentative part all of them, else of the last. */
static void part_compare(const struct world *w, const struct part *p, const struct runner_item *it)
{
    int32_t first = p->n - it->n_out;
    for (int32_t i = first; i < p->n_true; i++)
        if (memcmp(it->logits + (i - first) * w->v, w->want[p->s][w->len[p->s] + i],
                   (size_t)w->v * sizeof(float)) != 0)
            fail_msg("sequence %d: row %d of %d after %d", p->s, i, p->n, w->len[p->s]);
}

static void world_step(struct world *w)
{
    struct part parts[N_SEQS];
    struct runner_item items[N_SEQS];
    struct err err = { 0 };
    int32_t n = 0;
    for (int s = 0; s < N_SEQS; s++) {
        if (w->len[s] == N_IDS || dice(w, 4) == 0)
            continue;
        part_draw(w, s, &parts[n]);
        items[n] = (struct runner_item){ .seq = w->seqs[s],
                                         .ids = parts[n].ids,
                                         .n = parts[n].n,
                                         .n_out = parts[n].is_tentative ? parts[n].n : 1,
                                         .is_tentative = parts[n].is_tentative };
        n++;
    }
    if (n == 0)
        return;
    if (runner_step(w->r, items, n, &err))
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < n; i++)
        part_compare(w, &parts[i], &items[i]);
    world_check(w);
    for (int32_t i = 0; i < n; i++) {
        int32_t *len = &w->len[parts[i].s];
        *len += parts[i].n_true;
        if (parts[i].is_tentative && parts[i].n_true > 0) {
            assert_int_equal(runner_resolve(w->r, items[i].seq, parts[i].n_true - 1, &err), ERR_OK);
        } else if (parts[i].n_true < parts[i].n) { /* the sure row, too */
            assert_true(runner_can_truncate(w->r, items[i].seq, *len));
            runner_truncate(w->r, items[i].seq, *len);
        }
    }
    world_check(w);
}

static void rows_that_are_taken_back_leave_no_trace(void **state)
{
    (void)state;
    static struct world w;
    for (size_t f = 0; f < ARRAY_LEN(files); f++)
        for (uint32_t seed = 0; seed < 3; seed++) {
            world_open(&w, files[f], seed);
            for (int turn = 0; turn < 400; turn++) {
                world_step(&w);
                int s = (int)dice(&w, N_SEQS);
                if (dice(&w, 12) == 0 || w.len[s] == N_IDS) { /* from the start again */
                    struct err err;
                    runner_rewind(w.r, w.seqs[s]);
                    assert_int_equal(runner_reserve(w.r, w.seqs[s], N_IDS, &err), ERR_OK);
                    w.len[s] = 0;
                }
            }
            world_close(&w);
        }
}

/* Take so many ids of sequence 0 and compare the last one's logits. */
static void go_on(struct world *w, int32_t n)
{
    struct err err;
    struct runner_item item = {
        .seq = w->seqs[0], .ids = w->ids[0] + w->len[0], .n = n, .n_out = 1
    };
    assert_int_equal(runner_step(w->r, &item, 1, &err), ERR_OK);
    w->len[0] += n;
    assert_memory_equal(item.logits, w->want[0][w->len[0] - 1], (size_t)w->v * sizeof(float));
    world_check(w);
}

static void a_snapshot_is_a_way_back(void **state)
{
    (void)state;
    static struct world w;
    for (size_t f = 0; f < ARRAY_LEN(files); f++) {
        world_open(&w, files[f], 0);
        go_on(&w, 20);
        assert_false(runner_can_truncate(w.r, w.seqs[0], 10)); /* there is no way back ... */
        assert_true(runner_snapshot(w.r, w.seqs[0]));
        go_on(&w, 13);
        assert_false(runner_can_truncate(w.r, w.seqs[0], 30));
        assert_true(runner_can_truncate(w.r, w.seqs[0], 20)); /* ... but to where one was left */
        runner_truncate(w.r, w.seqs[0], 20);
        w.len[0] = 20;
        go_on(&w, 1);
        go_on(&w, 30);
        world_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_that_are_taken_back_leave_no_trace),
        cmocka_unit_test(a_snapshot_is_a_way_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
