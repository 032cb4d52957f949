/* A model's own head guesses just what it says of the model's states, whatever it has guessed before and wherever a row began. */
#include "base/philox.h"
#include "engine/draft.h"
#include "engine/sample.h"
#include "engine_rows.h"
#include "weights/weights.h"

#include "kernels/cpu/cpu_backend.h"

#define HEADS    "tests/golden/mtp/"
#define N_PROMPT 150
#define N_ALL    280
#define WIDTH    64
#define MAX_ROWS 3

static const char *const heads[] = { HEADS "agrees.gguf", HEADS "qwen35moe.gguf",
                                     HEADS "qwen3next.gguf", HEADS "hf/qwen35" };

/* A text with the model's state of each position. */
struct head_lab {
    struct backend *be;
    struct weights *weights;
    struct model *model;
    struct drafter *d;
    struct runner *head; /* guesses from the text's beginning each time */
    struct engine_request req;
    int32_t ids[N_ALL];
    float states[N_ALL][WIDTH];
};

static void lab_open(struct head_lab *lab, const char *path, int64_t kv_bytes)
{
    struct err err = { 0 }, why = { 0 };
    struct cpu_options cpu = { .threads = 1 };
    struct runner *r;
    *lab = (struct head_lab){ 0 };
    prompt_fill(lab->ids, N_ALL, 0, 1);
    assert_int_equal(cpu_backend_open(&cpu, &lab->be, &err), ERR_OK);
    assert_int_equal(weights_open(path, &lab->weights, &err), ERR_OK);
    struct model_load_options o = { .weights = lab->weights, .be = lab->be, .nextn_err = &why };
    if (model_load(&o, &lab->model, &err))
        fail_msg("%s", err.text);
    assert_non_null(lab->model->nextn);
    struct runner_options ro = { .model = lab->model,
                                 .n_ctx = N_CTX,
                                 .max_seqs = 1,
                                 .max_rows = N_CTX,
                                 .max_out = 1,
                                 .cache_type = DTYPE_F32,
                                 .taps = { .n = 1, .at = { (int)lab->model->n_layers } } };
    assert_int_equal(runner_new(&ro, &r, &err), ERR_OK);
    struct runner_item it = { .ids = lab->ids, .n = N_ALL, .wants_taps = true };
    assert_int_equal(runner_open(r, &it.seq, &err), ERR_OK);
    assert_int_equal(runner_reserve(r, it.seq, N_ALL, &err), ERR_OK);
    assert_int_equal(runner_step(r, &it, 1, &err), ERR_OK);
    size_t width = (size_t)lab->model->width;
    assert_in_range(width, 1, WIDTH);
    for (size_t i = 0; i < N_ALL; i++)
        memcpy(lab->states[i], it.tapped + i * width, width * sizeof(float));
    runner_free(r);
    ro.model = lab->model->nextn;
    ro.taps.n = 0;
    assert_int_equal(runner_new(&ro, &lab->head, &err), ERR_OK);
    struct draft_mtp_options mo = { .model = lab->model,
                                    .n_ctx = N_CTX,
                                    .kv_bytes = kv_bytes,
                                    .max_rows = MAX_ROWS,
                                    .cache_type = DTYPE_F32 };
    if (draft_mtp_new(&mo, &lab->d, &err))
        fail_msg("%s", err.text);
    lab->req = request(lab->ids, N_PROMPT, N_ALL - N_PROMPT);
}

static void lab_close(struct head_lab *lab)
{
    lab->d->ops->free(lab->d);
    runner_free(lab->head);
    model_free(lab->model);
    weights_close(lab->weights);
    lab->be->ops->close(lab->be);
}

/* What the head says behind ids [n], of which it has read the pairs from position `from` on: n_guesses ids one after another. */
static void head_says(struct head_lab *lab, int32_t from, int32_t n, int32_t n_guesses,
                      int32_t *out)
{
    static float beside[N_ALL * WIDTH];
    struct err err = { 0 };
    int64_t width = lab->model->width, n_vocab = lab->model->n_vocab;
    for (int32_t i = from; i < n - 1; i++)
        memcpy(beside + (i - from) * width, lab->states[i], (size_t)width * sizeof(float));
    struct runner_item it = {
        .ids = lab->ids + from + 1,
        .n = n - 1 - from,
        .n_out = 1,
        .inputs = { beside, n - 1 - from, width, width },
    };
    assert_int_equal(runner_open(lab->head, &it.seq, &err), ERR_OK);
    assert_int_equal(runner_reserve(lab->head, it.seq, it.n + n_guesses, &err), ERR_OK);
    for (int32_t i = 0; i < n_guesses; i++) {
        assert_int_equal(runner_step(lab->head, &it, 1, &err), ERR_OK);
        out[i] = sample_argmax(it.logits, (int32_t)n_vocab);
        it = (struct runner_item){
            .seq = it.seq,
            .ids = &out[i],
            .n = 1,
            .n_out = 1,
            .inputs = { it.made, 1, width, width },
        };
    }
    runner_close(lab->head, it.seq);
}

static void see(struct head_lab *lab, row_id row, int32_t pos, int32_t n)
{
    static float states[N_ALL * WIDTH];
    int64_t width = lab->model->width;
    for (int32_t i = 0; i < n; i++)
        memcpy(states + i * width, lab->states[pos + i], (size_t)width * sizeof(float));
    int32_t n_ids = pos + n + 1 > N_PROMPT ? pos + n + 1 : N_PROMPT;
    struct draft_seen s = { .row = row,
                            .pos = pos,
                            .n = n,
                            .ids = lab->ids,
                            .n_ids = n_ids,
                            .states = { states, n, width, width } };
    lab->d->ops->see(lab->d, &s, 1);
}

/* Guesses behind ids [n], whose states but the last one's it has seen. */
static void guesses_are_right(struct head_lab *lab, row_id row, int32_t from, int32_t n,
                              int32_t n_guesses)
{
    int32_t want[DRAFT_MAX];
    struct draft_ask a = { .row = row, .ids = lab->ids, .n_ids = n, .n_max = n_guesses };
    head_says(lab, from, n, n_guesses, want);
    lab->d->ops->draft(lab->d, &a, 1);
    assert_int_equal(a.n, n_guesses);
    assert_memory_equal(a.ids_out, want, (size_t)n_guesses * sizeof(*want));
    for (int32_t i = 0; i < a.n; i++)
        assert_in_range(a.sure[i], DRAFT_MODEL_SURE, DRAFT_MODEL_BEFORE - 1);
}

static void row_open(struct head_lab *lab, row_id row)
{
    struct err err = { 0 };
    assert_int_equal(lab->d->ops->open(lab->d, row, &lab->req, N_ALL, &err), ERR_OK);
}

/* The prompt in chunks of all sizes, then some tokens a step, asked or not; and once the row begins again from the first position. */
static void guesses_are_what_the_head_says(void **state)
{
    static const int32_t chunks[] = { 1, 7, 64, 65, N_PROMPT };
    static struct head_lab lab;
    for (size_t f = 0; f < ARRAY_LEN(heads); f++)
        for (size_t c = 0; c < ARRAY_LEN(chunks); c++) {
            lab_open(&lab, heads[f], 0);
            row_open(&lab, 1);
            int32_t n = 0;
            for (; n < N_PROMPT; n += chunks[c])
                see(&lab, 1, n, N_PROMPT - n < chunks[c] ? N_PROMPT - n : chunks[c]);
            n = N_PROMPT;
            for (uint32_t turn = 0; n + 20 < N_ALL; turn++) {
                uint32_t counter[4] = { turn, (uint32_t)c, 0, 0 }, key[2] = { 3, 8 }, dice[4];
                philox4x32(counter, key, dice);
                if (dice[0] % 3 > 0)
                    guesses_are_right(&lab, 1, 0, n + 1, 1 + (int32_t)(dice[1] % 6));
                if (turn == 9) { /* it gave up its memory: all is computed once more */
                    see(&lab, 1, 0, 100);
                    see(&lab, 1, 100, n - 100);
                }
                int32_t more = 1 + (int32_t)(dice[2] % 5);
                see(&lab, 1, n, more);
                n += more;
            }
            lab.d->ops->close(lab.d, 1, lab.ids, n + 1);
            lab_close(&lab);
        }
    (void)state;
}

/* A row that begins with what nobody computed sees less, unless the head has kept it. */
static void a_prefix_is_what_was_kept(void **state)
{
    static struct head_lab lab;
    for (size_t f = 0; f < ARRAY_LEN(heads); f++) {
        lab_open(&lab, heads[f], 0);
        row_open(&lab, 0);
        see(&lab, 0, 90, N_PROMPT - 90);
        guesses_are_right(&lab, 0, 90, N_PROMPT + 1, 4);
        row_open(&lab, 1);
        see(&lab, 1, 0, N_PROMPT);
        guesses_are_right(&lab, 1, 0, N_PROMPT + 1, 4);
        row_open(&lab, 2); /* while row 1 goes on, whose last pairs nobody has read yet */
        see(&lab, 2, 64, N_PROMPT - 64);
        guesses_are_right(&lab, 2, 0, N_PROMPT + 1, 4);
        lab.d->ops->close(lab.d, 0, lab.ids, N_PROMPT + 1);
        lab.d->ops->close(lab.d, 1, lab.ids, N_PROMPT + 1);
        row_open(&lab, 0);
        see(&lab, 0, 120, N_PROMPT - 120); /* within a page, of what row 1 has left */
        guesses_are_right(&lab, 0, 0, N_PROMPT + 1, 4);
        see(&lab, 0, N_PROMPT, 40);
        guesses_are_right(&lab, 0, 0, N_PROMPT + 41, 4);
        see(&lab, 0, N_PROMPT + 60, 5); /* it was rewound and began with more than it had */
        guesses_are_right(&lab, 0, N_PROMPT + 60, N_PROMPT + 66, 4);
        lab.d->ops->close(lab.d, 0, lab.ids, N_PROMPT + 66);
        lab.ids[0]++; /* another text, though all that follows is the same */
        row_open(&lab, 0);
        see(&lab, 0, 120, N_PROMPT - 120);
        guesses_are_right(&lab, 0, 120, N_PROMPT + 1, 4);
        lab.d->ops->close(lab.d, 0, lab.ids, N_PROMPT + 1);
        lab_close(&lab);
    }
    (void)state;
}

/* All rows at once are guessed as each alone, however much of theirs waits. */
static void rows_are_guessed_together(void **state)
{
    static const int32_t lengths[MAX_ROWS] = { 100, 64, N_PROMPT };
    static struct head_lab lab;
    for (size_t f = 0; f < ARRAY_LEN(heads); f++) {
        struct draft_ask asks[MAX_ROWS];
        lab_open(&lab, heads[f], 0);
        for (int i = 0; i < MAX_ROWS; i++) {
            row_open(&lab, i);
            see(&lab, i, 0, lengths[i]);
            asks[i] = (struct draft_ask){
                .row = i, .ids = lab.ids, .n_ids = lengths[i] + 1, .n_max = 3 + i
            };
        }
        lab.d->ops->draft(lab.d, asks, MAX_ROWS);
        for (int i = 0; i < MAX_ROWS; i++) {
            int32_t want[DRAFT_MAX];
            head_says(&lab, 0, lengths[i] + 1, 3 + i, want);
            assert_int_equal(asks[i].n, 3 + i);
            assert_memory_equal(asks[i].ids_out, want, (size_t)asks[i].n * sizeof(*want));
        }
        assert_true(lab.d->ops->guess_us(lab.d, MAX_ROWS) >= 0);
        for (int i = 0; i < MAX_ROWS; i++)
            lab.d->ops->close(lab.d, i, lab.ids, lengths[i] + 1);
        lab_close(&lab);
    }
    (void)state;
}

/* What it has not seen all of, and what has no memory, is not guessed, and disturbs nobody. */
static void without_states_or_room_nothing_is_guessed(void **state)
{
    static struct head_lab lab;
    struct draft_ask a = { .row = 0, .n_ids = 51, .n_max = 4 };
    lab_open(&lab, heads[0], 64 * 1024);
    a.ids = lab.ids;
    row_open(&lab, 0);
    lab.d->ops->draft(lab.d, &a, 1);
    assert_int_equal(a.n, 0); /* no state at all */
    see(&lab, 0, 0, 49);
    lab.d->ops->draft(lab.d, &a, 1);
    assert_int_equal(a.n, 0); /* one is missing */
    see(&lab, 0, 49, 1);
    guesses_are_right(&lab, 0, 0, 51, 4);
    lab.d->ops->draft(lab.d, &a, 1);
    assert_int_equal(a.n, 0); /* nothing new has come */
    row_open(&lab, 1);
    see(&lab, 1, 0, 200);
    row_open(&lab, 2);
    see(&lab, 2, 0, 250);
    see(&lab, 0, 50, 10);
    guesses_are_right(&lab, 0, 0, 61, 4);
    for (int i = 0; i < MAX_ROWS; i++)
        lab.d->ops->close(lab.d, i, lab.ids, 61);
    lab_close(&lab);
    (void)state;
}

/* Steps of a greedy answer of n tokens, of which the ids are given back. */
static int32_t answer_steps(struct head_lab *lab, bool has_head, int32_t n, int32_t *out,
                            struct engine_speculation *told)
{
    static struct engine_bytes bytes[512];
    int32_t end_id = 287, n_steps = 0, n_got = 0;
    struct err err = { 0 };
    struct engine *e;
    for (size_t i = 0; i < ARRAY_LEN(bytes); i++)
        bytes[i] = (struct engine_bytes){ "x", 1 };
    struct engine_model_options o = { .model = lab->model,
                                      .token_bytes = bytes,
                                      .end_ids = &end_id,
                                      .n_end = 1,
                                      .model_id = "head",
                                      .weights_digest = "",
                                      .n_ctx = N_CTX,
                                      .max_rows = MAX_ROWS,
                                      .cache_type = DTYPE_F16,
                                      .slow_drafter = has_head ? lab->d : NULL,
                                      .drafts_always = true };
    assert_int_equal(engine_model_new(&o, &e, &err), ERR_OK);
    struct engine_request req = request(lab->ids, 60, n);
    struct engine_result res = { 0 };
    struct engine_work work = { .n_tokens = 60 };
    assert_int_equal(e->ops->open(e, &req, &work.row, &err), ERR_OK);
    assert_int_equal(e->ops->grow(e, work.row, INT32_MAX, &err), ERR_OK);
    while (res.finish == FINISH_NONE) {
        assert_int_equal(e->ops->step(e, &work, 1, &res, &err), ERR_OK);
        for (int32_t i = 0; i < res.n_tokens; i++)
            out[n_got++] = res.tokens[i].id;
        n_steps++;
    }
    assert_int_equal(n_got, n);
    *told = res.speculation;
    e->ops->close(e, work.row);
    e->ops->free(e);
    return n_steps;
}

/* A head that says what the model says takes the answer several tokens a step, and not another answer; measured: 42 steps for 200 tokens,
 * 5 tokens in each round whose guesses all come true. */
static void rounds_give_several_tokens(void **state)
{
    enum { N_NEW = 200 };
    static struct head_lab lab;
    int32_t plain[N_NEW], guessed[N_NEW];
    struct engine_speculation told;
    lab_open(&lab, HEADS "agrees.gguf", 0);
    int32_t n_plain = answer_steps(&lab, false, N_NEW, plain, &told);
    assert_int_equal(n_plain, N_NEW);
    assert_int_equal(told.drafted, 0);
    int32_t n_steps = answer_steps(&lab, true, N_NEW, guessed, &told);
    print_message("%d tokens: %d steps, %d of %d guesses taken, by place %d %d %d %d\n", N_NEW,
                  n_steps, told.accepted, told.drafted, told.accepted_at[0], told.accepted_at[1],
                  told.accepted_at[2], told.accepted_at[3]);
    assert_memory_equal(guessed, plain, sizeof(plain));
    assert_int_equal(n_steps + told.accepted, N_NEW);
    assert_true(n_steps < N_NEW / 3);
    lab_close(&lab);
    (void)state;
}

/* A model without a head says so, and all that is said of it without being asked for one stays. */
static void a_head_is_loaded_where_it_is_wanted(void **state)
{
    static const struct {
        const char *path;
        bool has_head;
    } files_of[] = { { HEADS "qwen35.gguf", true },
                     { HEADS "hf/qwen3next", true },
                     { "tests/golden/families/qwen35.gguf", false },
                     { TINY "llama.gguf", false } };
    for (size_t i = 0; i < ARRAY_LEN(files_of); i++)
        for (int wants = 0; wants < 2; wants++) {
            struct err err = { 0 }, why = { 0 };
            struct backend *be;
            struct weights *w;
            struct model *m;
            assert_int_equal(cpu_backend_open(&(struct cpu_options){ .threads = 1 }, &be, &err),
                             ERR_OK);
            assert_int_equal(weights_open(files_of[i].path, &w, &err), ERR_OK);
            struct model_load_options o = { .weights = w,
                                            .be = be,
                                            .nextn_err = wants ? &why : NULL };
            assert_int_equal(model_load(&o, &m, &err), ERR_OK);
            assert_int_equal(m->nextn != NULL, wants && files_of[i].has_head);
            if (wants && !files_of[i].has_head)
                assert_non_null(strstr(why.text, "no head for multi-token prediction"));
            model_free(m);
            weights_close(w);
            be->ops->close(be);
        }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guesses_are_what_the_head_says),
        cmocka_unit_test(a_prefix_is_what_was_kept),
        cmocka_unit_test(rows_are_guessed_together),
        cmocka_unit_test(without_states_or_room_nothing_is_guessed),
        cmocka_unit_test(rounds_give_several_tokens),
        cmocka_unit_test(a_head_is_loaded_where_it_is_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
