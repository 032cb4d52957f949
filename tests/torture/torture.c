/* torture.c - random schedules of real answers: each is the answer that the request gets alone, byte for byte.
 *
 *   torture [--model NAME] [--draft PATH] [--schedules N] [--seed N] [--first N]      from the repository's root; default smollm2, the
 *   model itself, 30, a fresh seed, 0; --first begins with a later schedule of the seed
 *
 * A schedule starts an engine of random shape (rows, step size, a cache that is too small) and a scheduler with a random stall
 * bound, and throws requests at it at random moments: alone or as several choices of one prompt, of three keys and two priorities, some
 * as background work, some with a deadline; some are cancelled, some paused. In most schedules next tokens are guessed, by lookup or by the
 * model itself with a cache that forgets (or by its head, where it has one, or by what --draft names), as many as pay or all of them. Where histories are kept, most schedules have a disk for them
 * too: with files of the schedules before, with a cap that is too small, in part slow or failing at some call. What is compared: ids, logprob bits, alternatives, the bytes
 * that may be shown after each token, and how it ended; of one that was cut short, all that it said before. */
#include "base/clock.h"
#include "base/fio.h"
#include "base/log.h"
#include "base/philox.h"
#include "cli/load.h"
#include "engine/engine_model.h"
#include "sched/sched.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KINDS      24
#define CHOICES    2
#define SESSIONS   5
#define CTX        512
#define LIVE_MAX   28 /* requests of one schedule */
#define RECORD_MAX (1 << 20)
#define WAIT_US    60000000
#define FLUSH_ID   LIVE_MAX /* of an event that is no request's */

struct kind {
    struct engine_request engine;
    struct buf alone[CHOICES]; /* the record of each choice */
};

struct ticket { /* a request of the schedule */
    const struct kind *kind;
    uint32_t choice;
    bool is_over;
    struct buf record;
};

struct torture {
    struct load load;
    struct load_options options;
    const char *draft; /* a path, or NULL */
    uint64_t seed;
    uint32_t schedule, n_drawn;
    int32_t *text; /* ids that prompts are cut from */
    struct kind kinds[KINDS];
    struct ticket tickets[LIVE_MAX];
    int32_t n_tickets, n_over;
    int64_t n_events;
    int64_t n_whole, n_cut, n_wrong, preempted, shared, recomputed, steps, pins_lost, drafted,
        accepted;
    char disk_dir[64];
    int64_t files_written, files_read, disk_waits, disk_failed;
};

static struct engine_bytes stops[] = { { " the", 4 }, { "\n", 1 } };
static const struct logit_bias bias[] = { { 30, -100 }, { 260, 1.5f } };

/* The next of the schedule's random numbers, in [0, n). */
static uint32_t draw(struct torture *t, uint32_t n)
{
    uint32_t counter[4] = { t->n_drawn++, t->schedule, 7, 0 }, out[4];
    uint32_t key[2] = { (uint32_t)t->seed, (uint32_t)(t->seed >> 32) };
    philox4x32(counter, key, out);
    return out[0] % n;
}

/* --- kinds --- */

static void kind_init(struct torture *t, int i)
{
    static const int32_t lengths[] = { 1, 2, 15, 40, 64, 65, 128, 150, 300 };
    static const int32_t answers[] = { 1, 20, 64, 110 };
    struct engine_request *r = &t->kinds[i].engine;
    *r = (struct engine_request){
        .prompt = t->text + i * 5,
        .n_prompt = lengths[i % ARRAY_LEN(lengths)],
        .max_tokens = answers[i / 2 % ARRAY_LEN(answers)],
        .sample = { .top_p = 1,
                    .typical_p = 1,
                    .xtc_threshold = 1,
                    .repetition_penalty = 1,
                    .n_logprobs = i % 3 == 0 ? 4 : -1 },
    };
    if (i % 4 != 0) {
        r->sample.temperature = 0.9f;
        r->sample.top_p = 0.95f;
        r->sample.seed = (uint64_t)i * 77;
    }
    if (i % 5 == 1) {
        r->sample.repetition_penalty = 1.2f;
        r->sample.frequency_penalty = 0.4f;
        r->sample.penalty_last_n = 50;
    }
    if (i % 5 == 2) {
        r->sample.bias = bias;
        r->sample.n_bias = ARRAY_LEN(bias);
    }
    if (i % 7 == 3) {
        r->stops = stops;
        r->n_stops = ARRAY_LEN(stops);
    }
    r->ignore_end = i % 2 == 0;
}

static enum err_code torture_read_text(struct torture *t, struct err *err)
{
    static const char words[] =
        "The river ran past the old mill, and nobody in the village could say when its wheel had "
        "last turned. "
        "int main(void) { for (int i = 0; i < 10; i++) printf(\"%d\\n\", i * i); return 0; } "
        "What do you call a number that is divided only by one and by itself? ";
    struct token_list ids;
    enum err_code code = ERR_OK;
    int32_t n = 0, need = 300 + KINDS * 5;
    t->text = mem_alloc(MEM_CAT_BASE, (size_t)need * sizeof(*t->text));
    token_list_init(&ids, 1 << 16);
    code = tokenizer_encode(t->load.tokenizer, words, strlen(words), NULL, 0, &ids, err);
    for (; !code && n < need; n++)
        t->text[n] = ids.ids[n % ids.n];
    token_list_release(&ids);
    return code;
}

/* --- records --- */

static void record_token(struct buf *record, const struct sched_token *s)
{
    const struct engine_token *e = &s->token;
    buf_add(record, &e->id, sizeof(e->id));
    buf_add(record, &s->text_safe, sizeof(s->text_safe));
    if (e->n_top == 0)
        return;
    buf_add(record, &e->logprob, sizeof(e->logprob));
    buf_add(record, e->top, (size_t)e->n_top * sizeof(e->top[0]));
}

static void record_end(struct buf *record, const struct sched_finished *f)
{
    int64_t end[] = {
        -1, (int64_t)f->finish, f->stop_index, f->text_safe, f->n_tokens, f->n_prompt
    };
    buf_add(record, end, sizeof(end));
}

static bool was_cut(const struct sched_finished *f)
{
    return f->finish == FINISH_ERROR &&
           (f->err.code == ERR_CANCELLED || f->err.code == ERR_TIMEOUT);
}

/* --- the disk --- */

static struct disk_trouble {
    int64_t fail_at; /* of the calls to the disk, the one that fails; 0 = none */
    int64_t sleep_us;
    _Atomic int64_t n_calls;
} trouble;

static int disk_hook(void *arg, enum fio_op op, const char *path)
{
    if (trouble.sleep_us > 0)
        clock_sleep_us(trouble.sleep_us);
    return ++trouble.n_calls == trouble.fail_at ? op == FIO_READ ? EIO : ENOSPC : 0;
}

/* --- one scheduler --- */

enum guesses { GUESSES_NONE, GUESSES_AUTO, GUESSES_ALWAYS, GUESSES_MODEL_ALWAYS };

struct shape {
    struct torture *t;
    int32_t max_rows, max_step_rows;
    int64_t kv_bytes, stall_us, keep_bytes, disk_bytes; /* disk 0: none */
    enum guesses guesses;
    struct drafter *lookup, *slow;
    struct load_draft draft;
};

static enum err_code shape_load_draft(struct shape *s, const struct draft_model_options *d,
                                      struct err *err)
{
    const struct load *l = &s->t->load;
    struct load_draft_options o = { .path = s->t->draft,
                                    .model = l->model,
                                    .tokenizer = l->tokenizer,
                                    .be = l->be,
                                    .n_ctx = CTX,
                                    .kv_bytes = 2 * s->kv_bytes,
                                    .max_rows = s->max_rows,
                                    .cache_type = d->cache_type };
    return load_draft_open(&s->draft, &o, err);
}

/* The engine's drafters; they are the shape's, who outlives the engine. */
static enum err_code shape_guess(struct shape *s, struct engine_model_options *o, struct err *err)
{
    struct draft_model_options d = { .model = o->model,
                                     .n_vocab = (int32_t)o->model->n_vocab,
                                     .end_ids = o->end_ids,
                                     .n_end = o->n_end,
                                     .n_ctx = CTX,
                                     .kv_bytes = s->kv_bytes,
                                     .max_rows = s->max_rows,
                                     .cache_type = DTYPE_KV_Q4 };
    struct draft_mtp_options h = { .model = o->model,
                                   .end_ids = o->end_ids,
                                   .n_end = o->n_end,
                                   .n_ctx = CTX,
                                   .kv_bytes = s->kv_bytes,
                                   .max_rows = s->max_rows,
                                   .cache_type = DTYPE_KV_Q8 };
    enum err_code code = ERR_OK;
    if (s->guesses != GUESSES_NONE)
        code = draft_lookup_new(s->max_rows, &s->lookup, err);
    if (!code && s->t->draft && s->guesses != GUESSES_NONE)
        code = shape_load_draft(s, &d, err);
    else if (!code && o->model->nextn && s->guesses != GUESSES_NONE)
        code = draft_mtp_new(&h, &s->slow, err);
    else if (!code && s->guesses == GUESSES_MODEL_ALWAYS)
        code = draft_model_new(&d, &s->slow, err);
    o->drafter = s->lookup;
    o->slow_drafter = s->slow ? s->slow : s->draft.drafter;
    o->drafts_always = s->guesses == GUESSES_MODEL_ALWAYS || s->guesses == GUESSES_ALWAYS;
    return code;
}

static void shape_release(struct shape *s)
{
    if (s->lookup)
        s->lookup->ops->free(s->lookup);
    if (s->slow)
        s->slow->ops->free(s->slow);
    load_draft_close(&s->draft);
}

static enum err_code shape_load(void *arg, struct engine **out, struct err *err)
{
    struct shape *s = arg;
    struct load *l = &s->t->load;
    struct engine_model_options o = { .model = l->model,
                                      .token_bytes = l->token_bytes,
                                      .model_id = l->id,
                                      .weights_digest = "",
                                      .n_ctx = CTX,
                                      .kv_bytes = s->kv_bytes,
                                      .keep_bytes = s->keep_bytes,
                                      .disk_dir = s->disk_bytes > 0 ? s->t->disk_dir : NULL,
                                      .disk_bytes = s->disk_bytes,
                                      .max_rows = s->max_rows,
                                      .max_step_rows = s->max_step_rows,
                                      .cache_type = DTYPE_F16 };
    o.end_ids = tokenizer_end_ids(l->tokenizer, &o.n_end);
    enum err_code code = shape_guess(s, &o, err);
    return code ? code : engine_model_new(&o, out, err);
}

static bool torture_event(struct torture *t, const struct sched_event *ev)
{
    struct ticket *k = &t->tickets[ev->id];
    t->n_events++;
    if (ev->kind == SCHED_EVENT_FLUSHED)
        return ev->id == FLUSH_ID;
    if (ev->kind == SCHED_EVENT_TOKEN) {
        record_token(&k->record, &ev->token);
        return !k->is_over;
    }
    if (ev->kind != SCHED_EVENT_FINISHED || k->is_over)
        return false;
    const struct buf *want = &k->kind->alone[k->choice];
    bool is_cut = was_cut(&ev->finished);
    if (!is_cut)
        record_end(&k->record, &ev->finished);
    k->is_over = true;
    t->n_over++;
    t->n_whole += !is_cut;
    t->n_cut += is_cut;
    t->shared += ev->finished.n_shared;
    bool is_same = k->record.len <= want->len && (is_cut || k->record.len == want->len) &&
                   memcmp(k->record.data, want->data, k->record.len) == 0;
    t->n_wrong += !is_same;
    if (!is_same)
        printf("seed %llu schedule %u: request %d (kind %d, choice %u): %s differs from the lone "
               "answer: %s\n",
               (unsigned long long)t->seed, t->schedule, (int)ev->id, (int)(k->kind - t->kinds),
               k->choice, is_cut ? "the beginning" : "it", ev->finished.err.text);
    return true;
}

static enum err_code shape_start(struct shape *shape, struct sched **out, struct err *err)
{
    struct sched_event ev;
    struct sched_config config = { .max_waiting = 64,
                                   .max_stall_us = shape->stall_us,
                                   .n_events = 256,
                                   .load = shape_load,
                                   .load_arg = shape };
    enum err_code code = sched_start(&config, out, err);
    if (code)
        return code;
    code = sched_next_event(*out, &ev, WAIT_US);
    if (!code && ev.kind == SCHED_EVENT_READY)
        return ERR_OK;
    sched_stop(*out);
    return err_set(err, code ? code : ev.err.code, "engine: %s", code ? "no answer" : ev.err.text);
}

/* --- alone --- */

static enum err_code torture_alone(struct torture *t, struct err *err)
{
    struct shape shape = {
        .t = t, .max_rows = 1, .max_step_rows = 512, .kv_bytes = 64 << 20, .stall_us = 250000
    };
    struct sched *s;
    struct sched_event ev = { 0 };
    enum err_code code = shape_start(&shape, &s, err);
    for (int i = 0; i < KINDS * CHOICES && !code; i++) {
        struct kind *k = &t->kinds[i / CHOICES];
        struct buf *record = &k->alone[i % CHOICES];
        k->engine.sample.choice = (uint32_t)(i % CHOICES);
        struct sched_request *r = sched_request_new(0, &k->engine);
        buf_init(record, MEM_CAT_BASE, RECORD_MAX);
        code = sched_submit(s, &r, 1, err);
        for (ev.kind = SCHED_EVENT_TOKEN; !code && ev.kind != SCHED_EVENT_FINISHED;) {
            code = sched_next_event(s, &ev, WAIT_US);
            if (!code && ev.kind == SCHED_EVENT_TOKEN)
                record_token(record, &ev.token);
        }
        if (!code && ev.finished.finish == FINISH_ERROR)
            code = err_set(err, ev.finished.err.code, "alone: %s", ev.finished.err.text);
        record_end(record, &ev.finished);
    }
    sched_stop(s);
    return code;
}

/* --- a schedule --- */

/* One choice or all of a random kind. */
static enum err_code torture_submit(struct torture *t, struct sched *s, struct err *err)
{
    struct sched_request *r[CHOICES];
    struct kind *kind = &t->kinds[draw(t, KINDS)];
    int32_t n = draw(t, 3) == 0 ? CHOICES : 1, first = t->n_tickets;
    uint32_t choice = n == 1 ? draw(t, CHOICES) : 0, key = draw(t, 3), dice = draw(t, 40);
    if (first + n > LIVE_MAX)
        return ERR_OK;
    for (int32_t i = 0; i < n; i++) {
        struct ticket *k = &t->tickets[t->n_tickets++];
        *k = (struct ticket){ .kind = kind, .choice = choice + (uint32_t)i };
        buf_init(&k->record, MEM_CAT_BASE, RECORD_MAX);
        kind->engine.sample.choice = k->choice;
        r[i] = sched_request_new((req_id)(first + i), &kind->engine);
        r[i]->leader = (req_id)first;
        r[i]->key = key;
        r[i]->priority = (int32_t)(dice & 1);
        r[i]->is_background = dice == 2;
        r[i]->deadline_us = dice == 4 ? clock_us() + 30000 : 0;
        r[i]->engine.session = i == 0 && dice % 2 == 0 ? 1 + draw(t, SESSIONS) : 0;
    }
    return sched_submit(s, r, n, err);
}

static enum err_code torture_act(struct torture *t, struct sched *s, struct err *err)
{
    uint32_t dice = draw(t, 12);
    if (dice == 10)
        return sched_flush(s, FLUSH_ID);
    if (dice < 7 || t->n_tickets == 0)
        return torture_submit(t, s, err);
    if (dice == 11)
        return sched_unpin(s, 1 + draw(t, SESSIONS));
    req_id id = draw(t, (uint32_t)t->n_tickets);
    return dice == 7 ? sched_cancel(s, id) : sched_pause(s, id, dice == 8);
}

static enum err_code torture_take(struct torture *t, struct sched *s, int64_t until_us,
                                  struct err *err)
{
    struct sched_event ev;
    for (int64_t now = clock_us(); t->n_over < t->n_tickets && now < until_us; now = clock_us()) {
        enum err_code code = sched_next_event(s, &ev, until_us - now);
        if (code == ERR_TIMEOUT)
            return ERR_OK;
        if (code)
            return err_set(err, code, "no event");
        if (!torture_event(t, &ev))
            return err_set(err, ERR_STATE, "request %d: an event after its end", (int)ev.id);
    }
    return ERR_OK;
}

/* Until all are over, or nothing has come for WAIT_US: a machine that others load is slow, not stuck. */
static enum err_code torture_take_rest(struct torture *t, struct sched *s, struct err *err)
{
    int64_t seen = -1;
    enum err_code code = ERR_OK;
    while (!code && t->n_over < t->n_tickets && t->n_events != seen) {
        seen = t->n_events;
        code = torture_take(t, s, clock_us() + WAIT_US, err);
    }
    if (!code && t->n_over < t->n_tickets)
        code = err_set(err, ERR_TIMEOUT, "%d of %d requests never ended", t->n_tickets - t->n_over,
                       t->n_tickets);
    return code;
}

/* After the end nothing is held. */
static enum err_code torture_check_end(struct torture *t, struct sched *s, struct err *err)
{
    struct sched_stats st;
    sched_read_stats(s, &st);
    t->preempted += st.preempted;
    t->recomputed += st.recomputed_tokens;
    t->steps += st.steps;
    t->drafted += st.drafted_tokens;
    t->accepted += st.accepted_tokens;
    t->files_written += st.disk.written;
    t->files_read += st.disk.read;
    t->disk_waits += st.disk_waits;
    t->disk_failed += st.disk.failed;
    t->pins_lost += st.cache.n_pins_lost;
    for (int32_t g = 0; g < st.cache.n_groups; g++)
        if (st.cache.groups[g].n_free + st.cache.groups[g].n_kept != st.cache.groups[g].n_pages ||
            st.cache.groups[g].n_promised)
            return err_set(
                err, ERR_STATE, "%lld of %lld pages are free or kept at the end, %lld promised",
                (long long)(st.cache.groups[g].n_free + st.cache.groups[g].n_kept),
                (long long)st.cache.groups[g].n_pages, (long long)st.cache.groups[g].n_promised);
    if (st.running != 0 || st.waiting != 0)
        return err_set(err, ERR_STATE, "%lld running, %lld waiting at the end",
                       (long long)st.running, (long long)st.waiting);
    return ERR_OK;
}

static struct shape torture_shape(struct torture *t)
{
    int64_t page =
        64 * 2 * 2 * t->load.model->n_layers * t->load.model->n_kv_heads * t->load.model->head_dim;
    struct shape shape = { .t = t,
                           .max_rows = 3 + (int32_t)draw(t, 12),
                           .stall_us = 2000 + draw(t, 100000) };
    shape.max_step_rows = shape.max_rows + (int32_t)draw(t, 200);
    shape.kv_bytes = page * (CTX / 64 + draw(t, 4));
    shape.guesses = (enum guesses)draw(t, 4);
    shape.keep_bytes =
        page * draw(t, 3) * draw(t, 8); /* nothing in every third schedule and more */
    if (shape.keep_bytes > 0 && draw(t, 4) > 0)
        shape.disk_bytes = page * (4 + draw(t, 80));
    trouble.n_calls = 0;
    trouble.fail_at = draw(t, 4) == 0 ? 20 + draw(t, 300) : 0;
    trouble.sleep_us = draw(t, 4) == 0 ? draw(t, 5000) : 0;
    return shape;
}

static enum err_code torture_run(struct torture *t, struct err *err)
{
    t->n_drawn = 0;
    t->n_tickets = t->n_over = 0;
    struct shape shape = torture_shape(t);
    struct sched *s;
    enum err_code code = shape_start(&shape, &s, err);
    if (code) {
        shape_release(&shape);
        return code;
    }
    int n_acts = 10 + (int)draw(t, 10);
    for (int i = 0; i < n_acts && !code; i++) {
        code = torture_act(t, s, err);
        if (!code)
            code = torture_take(t, s, clock_us() + draw(t, draw(t, 2) ? 60000 : 3000), err);
    }
    for (int32_t i = 0; i < t->n_tickets && !code; i++)
        code = sched_pause(s, (req_id)i, false);
    if (!code)
        code = torture_take_rest(t, s, err);
    if (!code)
        code = torture_check_end(t, s, err);
    sched_stop(s);
    shape_release(&shape);
    for (int32_t i = 0; i < t->n_tickets; i++)
        buf_release(&t->tickets[i].record);
    return code;
}

/* --- the program --- */

static int torture_all(struct torture *t, uint32_t n_schedules)
{
    struct err err = { 0 };
    int n_passed = 0, n_failed = 0;
    enum err_code code = torture_read_text(t, &err);
    for (int i = 0; i < KINDS && !code; i++)
        kind_init(t, i);
    if (!code)
        code = torture_alone(t, &err);
    if (code) {
        printf("%s\n0 passed, 1 failed, 0 skipped\n", err.text);
        return 1;
    }
    printf("seed %llu\n", (unsigned long long)t->seed);
    for (uint32_t i = 1; i <= n_schedules; i++, t->schedule++) {
        int64_t wrong = t->n_wrong;
        code = torture_run(t, &err);
        if (code)
            printf("seed %llu schedule %u: %s\n", (unsigned long long)t->seed, t->schedule,
                   err.text);
        bool is_fine = !code && t->n_wrong == wrong;
        n_passed += is_fine;
        n_failed += !is_fine;
        if (i % 100 == 0)
            printf("%u schedules, %d failed\n", i, n_failed);
    }
    printf("%u schedules: %lld answers whole, %lld cut short, %lld wrong; %lld steps, %lld times "
           "memory given up, "
           "%lld tokens taken again, %lld shared, %lld histories of sessions gave way\n",
           n_schedules, (long long)t->n_whole, (long long)t->n_cut, (long long)t->n_wrong,
           (long long)t->steps, (long long)t->preempted, (long long)t->recomputed,
           (long long)t->shared, (long long)t->pins_lost);
    printf("%lld guesses were verified, %lld came true\n", (long long)t->drafted,
           (long long)t->accepted);
    printf("disk: %lld files written, %lld read, %lld requests waited for them; it failed %lld "
           "times\n",
           (long long)t->files_written, (long long)t->files_read, (long long)t->disk_waits,
           (long long)t->disk_failed);
    if (n_schedules >= 20 &&
        (t->preempted == 0 || t->shared == 0 || t->n_cut == 0 || t->files_read == 0 ||
         t->pins_lost == 0 || t->accepted == 0 || t->accepted == t->drafted)) {
        printf("the schedules never gave memory up, shared a prompt, cut an answer, read a "
               "file, cost a session its place or verified guesses right and wrong\n");
        n_failed++;
    }
    printf("%d passed, %d failed, 0 skipped\n", n_passed, n_failed);
    return n_failed > 0;
}

int main(int argc, char **argv)
{
    static struct torture t;
    struct err err;
    char command[96];
    uint32_t n_schedules = 30;
    log_set_level(LOG_LEVEL_WARN); /* not the memory table of every schedule */
    t.seed = (uint64_t)clock_wall_s();
    t.options.model = "smollm2";
    t.options.wants_head = true;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--model") == 0)
            t.options.model = argv[i + 1];
        else if (strcmp(argv[i], "--draft") == 0)
            t.draft = argv[i + 1];
        else if (strcmp(argv[i], "--schedules") == 0)
            n_schedules = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--first") == 0)
            t.schedule = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            t.seed = strtoull(argv[i + 1], NULL, 10);
    }
    snprintf(t.disk_dir, sizeof(t.disk_dir), "/tmp/torture.XXXXXX");
    if (!mkdtemp(t.disk_dir)) {
        printf("%s: %s\n0 passed, 1 failed, 0 skipped\n", t.disk_dir, strerror(errno));
        return 1;
    }
    if (load_open(&t.load, &t.options, &err) != ERR_OK) {
        printf("%s\n0 passed, 1 failed, 0 skipped\n", err.text);
        return 1;
    }
    fio_set_hook(disk_hook, NULL);
    int rc = torture_all(&t, n_schedules);
    snprintf(command, sizeof(command), "rm -rf '%s'", t.disk_dir);
    rc = system(command) == 0 ? rc : 1;
    for (int i = 0; i < KINDS; i++)
        for (int c = 0; c < CHOICES; c++)
            buf_release(&t.kinds[i].alone[c]);
    mem_free(MEM_CAT_BASE, t.text);
    load_close(&t.load);
    return rc;
}
