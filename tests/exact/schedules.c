/* schedules.c - what is recorded of an answer, and the ways in which steps are cut, mixed, given up and begun again. */
#include "base/philox.h"
#include "lab_int.h"

#include <stdio.h>
#include <string.h>

/* A token, or with id -1 the end. However many tokens a step gave, the record is the same. */
struct record_part {
    int64_t text_safe;
    int32_t id, n_top, finish, stop_index;
    float logprob;
    int32_t unused;
};

static void record_add(struct buf *record, const struct engine_result *res)
{
    for (int32_t i = 0; i < res->n_tokens; i++) {
        const struct engine_token *t = &res->tokens[i];
        struct record_part part = {
            .text_safe = res->safe_at[i], .id = t->id, .n_top = t->n_top, .logprob = t->logprob
        };
        buf_add(record, &part, sizeof(part));
        buf_add(record, t->top, (size_t)t->n_top * sizeof(t->top[0]));
    }
    struct record_part end = { .text_safe = res->text_safe,
                               .id = -1,
                               .finish = (int32_t)res->finish,
                               .stop_index = res->stop_index };
    if (res->finish != FINISH_NONE)
        buf_add(record, &end, sizeof(end));
}

int32_t record_ids(const struct buf *record, int32_t *ids, int32_t n_max)
{
    int32_t n = 0;
    struct record_part part;
    for (size_t at = 0; at + sizeof(part) <= record->len && n < n_max;) {
        memcpy(&part, record->data + at, sizeof(part));
        at += sizeof(part) + (size_t)part.n_top * sizeof(struct engine_logprob);
        if (part.id < 0)
            break;
        ids[n++] = part.id;
    }
    return n;
}

/* The request is over: what it filled beside its answer. */
static void record_end(struct buf *record, const struct exact_request *req, int32_t n_embd)
{
    const struct engine_request *e = &req->engine;
    for (int32_t i = 0; e->prompt_scores && i < e->n_prompt; i++) {
        const struct engine_token *t = &e->prompt_scores[i];
        buf_add(record, &t->id, sizeof(t->id));
        buf_add(record, &t->logprob, sizeof(t->logprob));
        buf_add(record, &t->n_top, sizeof(t->n_top));
        buf_add(record, t->top, (size_t)t->n_top * sizeof(t->top[0]));
    }
    buf_add(record, e->signal.bins, (size_t)e->signal.n_bins * sizeof(*e->signal.bins));
    if (e->hidden)
        buf_add(record, e->hidden, (size_t)n_embd * sizeof(*e->hidden));
}

static enum err_code row_open(struct lab *lab, const struct exact_request *req,
                              struct runner_row *row, struct err *err)
{
    *row = (struct runner_row){ .req = req,
                                .pending = req->engine.n_prompt,
                                .n_embd = lab->engine->info.n_embd };
    enum err_code code = lab->engine->ops->open(lab->engine, &req->engine, &row->row, err);
    row->is_open = code == ERR_OK;
    return code;
}

/* Begin with what is kept, where the lab keeps anything. */
static void row_reuse(struct lab *lab, struct runner_row *row)
{
    int32_t n = lab->engine->ops->reuse(lab->engine, row->row);
    row->pending -= n;
    lab->n_reused += n;
}

enum err_code row_begin(struct lab *lab, struct runner_row *row, struct err *err)
{
    row->is_fetching = false;
    if (row->pending == row->req->engine.n_prompt + row->n_emitted)
        row_reuse(lab, row);
    return lab->engine->ops->grow(lab->engine, row->row, INT32_MAX, err);
}

/* As row_begin, once the disk has been asked. */
static enum err_code row_grow(struct lab *lab, struct runner_row *row, enum err_code code,
                              struct err *err)
{
    if (!code)
        lab_disk_fetch(lab, row, true);
    return code ? code : row_begin(lab, row, err);
}

/* The same, but the row waits for the disk while others go on. */
static enum err_code row_join(struct lab *lab, struct runner_row *row, enum err_code code,
                              struct err *err)
{
    if (!code)
        lab_disk_fetch(lab, row, false);
    return code || row->is_fetching ? code : row_begin(lab, row, err);
}

/* What a step said of a row. record may be NULL. */
static void row_take(struct lab *lab, struct runner_row *row, const struct engine_result *res,
                     struct buf *record)
{
    row->pending -= res->n_taken - res->n_tokens;
    row->n_emitted += res->n_tokens;
    if (record && (res->n_tokens > 0 || res->finish != FINISH_NONE))
        record_add(record, res);
    if (record && res->finish != FINISH_NONE) {
        record_end(record, row->req, row->n_embd);
        lab->n_drafted += res->speculation.drafted;
        lab->n_accepted += res->speculation.accepted;
    }
}

void row_close(struct lab *lab, struct runner_row *row)
{
    if (row->is_open)
        lab->engine->ops->close(lab->engine, row->row);
    row->is_open = false;
}

enum err_code alone_run(struct lab *lab, int32_t chunk, const struct exact_request *req,
                        struct buf *record, struct err *err)
{
    struct runner_row row;
    struct engine_result res = { 0 };
    enum err_code code = row_grow(lab, &row, row_open(lab, req, &row, err), err);
    while (!code && res.finish == FINISH_NONE) {
        int32_t take = chunk > 0 && chunk < EXACT_STEP_ROWS ? chunk : EXACT_STEP_ROWS;
        struct engine_work work = { .row = row.row, .n_tokens = take };
        code = lab->engine->ops->step(lab->engine, &work, 1, &res, err);
        if (!code)
            row_take(lab, &row, &res, record);
    }
    row_close(lab, &row);
    return code;
}

/* A long answer without end, which nobody waits for. */
static void request_make_leader(struct engine_request *e)
{
    e->ignore_end = true;
    e->max_tokens = 60;
    e->n_stops = 0;
    e->prompt_scores = NULL;
    e->signal.n_bins = 0;
    e->hidden = NULL;
}

/* --- killed and resumed --- */

#define KILLED_CUTS 3

/* Emit until the answer has n tokens or is over, from what it has so far: ids [*have]. */
static enum err_code killed_part(struct lab *lab, const struct exact_request *req, int32_t *ids,
                                 int32_t *have, int32_t n, bool *is_over, struct buf *record,
                                 struct err *err)
{
    struct runner_row row = { .req = req, .n_emitted = *have, .n_embd = lab->engine->info.n_embd };
    struct engine_request again = req->engine;
    struct engine_result res = { 0 };
    again.begun = ids;
    again.n_begun = *have;
    enum err_code code = lab->engine->ops->open(lab->engine, &again, &row.row, err);
    row.is_open = code == ERR_OK;
    row.pending = again.n_prompt + again.n_begun;
    code = row_grow(lab, &row, code, err);
    while (!code && res.finish == FINISH_NONE && *have < n) {
        struct engine_work work = { .row = row.row, .n_tokens = 40 };
        code = lab->engine->ops->step(lab->engine, &work, 1, &res, err);
        if (code)
            break;
        row_take(lab, &row, &res, record);
        for (int32_t i = 0; i < res.n_tokens; i++)
            ids[(*have)++] = res.tokens[i].id;
    }
    *is_over = res.finish != FINISH_NONE;
    row_close(lab, &row);
    return code;
}

static enum err_code killed_run(struct lab *lab, uint32_t seed, uint32_t index,
                                const struct exact_request *req, struct buf *record,
                                struct err *err)
{
    static int32_t ids[512];
    int32_t have = 0, left = req->engine.max_tokens;
    bool is_over = false;
    enum err_code code = ERR_OK;
    for (uint32_t cut = 0; !code && !is_over && cut <= KILLED_CUTS; cut++) {
        uint32_t counter[4] = { cut, index, 0, 0 }, key[2] = { seed, 99 }, out[4];
        philox4x32(counter, key, out);
        int32_t n =
            cut == KILLED_CUTS || left <= 1 ? INT32_MAX : have + (int32_t)(out[0] % (uint32_t)left);
        code = killed_part(lab, req, ids, &have, n, &is_over, record, err);
        left = req->engine.max_tokens - have;
        if (code)
            break;
        lab->engine->ops->free(lab->engine);
        lab->engine = NULL;
        code = engine_model_new(&lab->options, &lab->engine, err);
    }
    return code;
}

/* --- the mixed schedule --- */

struct mixed {
    struct lab *lab;
    bool is_preempting;
    uint32_t seed, turn;
    const struct exact_request *requests;
    int n, n_done;
    struct exact_request stranger;
    struct runner_row rows[EXACT_REQUESTS_MAX + 1]; /* the last one is the stranger */
    bool is_done[EXACT_REQUESTS_MAX + 1];
};

static uint32_t mixed_random(const struct mixed *m, uint32_t what)
{
    uint32_t counter[4] = { m->turn, what, 0, 0 }, key[2] = { m->seed, 77 }, out[4];
    philox4x32(counter, key, out);
    return out[0];
}

/* Open rows that join now; the stranger takes the first request's prompt from its third token on and leaves at any time. */
static enum err_code mixed_join(struct mixed *m, struct err *err)
{
    enum err_code code = ERR_OK;
    for (int i = 0; i < m->n && !code; i++)
        if (!m->rows[i].is_open && !m->is_done[i] && mixed_random(m, 100 + (uint32_t)i) % 5 == 0)
            code = row_join(m->lab, &m->rows[i],
                            row_open(m->lab, &m->requests[i], &m->rows[i], err), err);
    struct runner_row *stranger = &m->rows[m->n];
    uint32_t dice = mixed_random(m, 200);
    if (!code && !stranger->is_open && dice % 3 == 0) {
        m->stranger = m->requests[dice % (uint32_t)m->n];
        m->stranger.engine.hidden = m->stranger.hidden; /* of a model that makes embeddings alone */
        if (!m->lab->engine->info.is_embedder && m->lab->engine->info.n_labels == 0) {
            request_make_leader(&m->stranger.engine);
            m->stranger.engine.prompt += 3;
            m->stranger.engine.n_prompt -= 3;
        }
        code = row_join(m->lab, stranger, row_open(m->lab, &m->stranger, stranger, err), err);
    } else if (stranger->is_open && dice % 11 == 0) {
        row_close(m->lab, stranger);
    }
    return code;
}

/* The work of this turn, in a random order of rows; which[k] is the row of work[k]. */
static int32_t mixed_plan(const struct mixed *m, struct engine_work *work, int *which)
{
    int32_t n = 0, room = EXACT_STEP_ROWS;
    int first = (int)(mixed_random(m, 300) % (uint32_t)(m->n + 1));
    for (int k = 0; k <= m->n; k++) {
        int i = (first + k) % (m->n + 1);
        const struct runner_row *row = &m->rows[i];
        if (!row->is_open || row->is_fetching || room == 0 ||
            mixed_random(m, 400 + (uint32_t)i) % 4 == 0)
            continue;
        int32_t take = 1 + (int32_t)(mixed_random(m, 500 + (uint32_t)i) % 40);
        if (m->lab->engine->info.is_embedder) /* a text is one step */
            take = row->pending;
        if (take > room && m->lab->engine->info.is_embedder)
            continue;
        take = take < row->pending ? take : row->pending;
        take = take < room ? take : room;
        room -= take;
        which[n] = i;
        work[n++] = (struct engine_work){ .row = row->row, .n_tokens = take };
    }
    return n;
}

/* Some rows give up their memory, each at most 4 times: they go on from nothing. */
static enum err_code mixed_preempt(struct mixed *m, struct err *err)
{
    enum err_code code = ERR_OK;
    for (int i = 0; i <= m->n && m->is_preempting && !code; i++) {
        struct runner_row *row = &m->rows[i];
        if (!row->is_open || row->is_fetching || row->n_preempted == 4 ||
            mixed_random(m, 600 + (uint32_t)i) % 12 != 0)
            continue;
        m->lab->engine->ops->rewind(m->lab->engine, row->row);
        row->pending = row->req->engine.n_prompt + row->n_emitted;
        row->n_preempted++;
        code = row_join(m->lab, row, runner_check(engine_model_runner(m->lab->engine), err), err);
    }
    return code;
}

/* What came back from disk, for rows that waited for it. */
static enum err_code mixed_tend(struct mixed *m, struct err *err)
{
    enum err_code code = ERR_OK;
    lab_disk_tend(m->lab);
    for (int i = 0; i <= m->n && !code; i++)
        if (m->rows[i].is_open && m->rows[i].is_fetching &&
            !m->lab->engine->ops->is_fetching(m->lab->engine, m->rows[i].row))
            code = row_begin(m->lab, &m->rows[i], err);
    return code;
}

static enum err_code mixed_turn(struct mixed *m, struct buf *records, struct err *err)
{
    struct engine_work work[EXACT_REQUESTS_MAX + 1];
    struct engine_result res[EXACT_REQUESTS_MAX + 1];
    int which[EXACT_REQUESTS_MAX + 1];
    enum err_code code = mixed_tend(m, err);
    if (!code)
        code = mixed_join(m, err);
    if (!code)
        code = mixed_preempt(m, err);
    int32_t n = code ? 0 : mixed_plan(m, work, which);
    if (!code && n > 0)
        code = m->lab->engine->ops->step(m->lab->engine, work, n, res, err);
    if (!code)
        code = runner_check(engine_model_runner(m->lab->engine), err);
    for (int32_t k = 0; k < n && !code; k++) {
        struct runner_row *row = &m->rows[which[k]];
        bool is_stranger = which[k] == m->n;
        row_take(m->lab, row, &res[k], is_stranger ? NULL : &records[which[k]]);
        if (res[k].finish == FINISH_NONE)
            continue;
        row_close(m->lab, row);
        m->is_done[which[k]] = !is_stranger;
        m->n_done += !is_stranger;
    }
    return code;
}

enum err_code mixed_run(struct lab *lab, const struct scenario *sc,
                        const struct exact_request *requests, int n, struct buf *records,
                        struct err *err)
{
    static struct mixed m;
    enum err_code code = ERR_OK;
    m = (struct mixed){ .lab = lab,
                        .is_preempting = sc->schedule == SCHEDULE_PREEMPTED,
                        .seed = (uint32_t)sc->chunk,
                        .requests = requests,
                        .n = n };
    for (; m.turn < 100000 && m.n_done < n && !code; m.turn++)
        code = mixed_turn(&m, records, err);
    for (int i = 0; i <= n; i++)
        row_close(lab, &m.rows[i]);
    if (!code && m.n_done < n)
        code = err_set(err, ERR_STATE, "%d of %d requests ended within 100000 turns", m.n_done, n);
    return code;
}

/* --- forks --- */

/* A row that has taken the request's prompt: all of it, or the first percent of it and then other ids. */
enum err_code fork_lead(struct lab *lab, struct exact_request *lead, int32_t percent,
                        struct runner_row *row, struct err *err)
{
    request_make_leader(&lead->engine);
    lead->engine.prompt = lead->prompt;
    for (int32_t i = lead->engine.n_prompt * percent / 100; i < lead->engine.n_prompt; i++)
        lead->prompt[i] = (lead->prompt[i] + 1) % lab->n_vocab;
    enum err_code code = row_grow(lab, row, row_open(lab, lead, row, err), err);
    while (!code && row->n_emitted == 0) {
        /* A step ends before the prompt's last token, as the scheduler has it where others wait: recurrent states can be shared there. */
        int32_t n = row->pending > 1 ? row->pending - 1 : 1;
        struct engine_work work = { row->row, n < EXACT_STEP_ROWS ? n : EXACT_STEP_ROWS };
        struct engine_result res;
        code = lab->engine->ops->step(lab->engine, &work, 1, &res, err);
        if (!code)
            row_take(lab, row, &res, NULL);
    }
    return code;
}

/* The follower shares and then both go on side by side, the leader until it leaves in the middle. */
static enum err_code fork_run(struct lab *lab, int32_t percent, const struct exact_request *req,
                              struct buf *record, int *n_shared, struct err *err)
{
    static struct exact_request lead;
    struct runner_row rows[2] = { 0 }; /* the follower, the leader */
    struct engine_result res[2] = { 0 };
    lead = *req;
    enum err_code code = fork_lead(lab, &lead, percent, &rows[1], err);
    if (!code)
        code = row_open(lab, req, &rows[0], err);
    if (!code) {
        int32_t n = lab->engine->ops->share(lab->engine, rows[0].row, rows[1].row);
        rows[0].pending -= n;
        *n_shared += n > 0;
        code = runner_check(engine_model_runner(lab->engine), err);
    }
    code = row_grow(lab, &rows[0], code, err);
    for (int turn = 0; !code && res[0].finish == FINISH_NONE; turn++) {
        struct engine_work work[2] = { { rows[0].row, 7 }, { rows[1].row, 1 } };
        if (turn == 20)
            row_close(lab, &rows[1]);
        int32_t n = rows[1].is_open ? 2 : 1;
        code = lab->engine->ops->step(lab->engine, work, n, res, err);
        if (!code)
            row_take(lab, &rows[0], &res[0], record);
        if (!code)
            code = runner_check(engine_model_runner(lab->engine), err);
    }
    row_close(lab, &rows[0]);
    row_close(lab, &rows[1]);
    return code;
}

/* --- kept histories --- */

static enum err_code warm_run(struct lab *lab, int32_t percent, const struct exact_request *req,
                              struct buf *record, struct err *err)
{
    static struct exact_request lead;
    struct runner_row row;
    lead = *req;
    if (percent < 0)
        lead.engine.n_prompt = lead.engine.n_prompt * -percent / 100 + 1;
    enum err_code code = fork_lead(lab, &lead, percent < 0 ? 100 : percent, &row, err);
    row_close(lab, &row);
    if (!code)
        code = runner_check(engine_model_runner(lab->engine), err);
    return code ? code : alone_run(lab, 7, req, record, err);
}

#define SESSION 9

/* Take part of the request's prompt (the first half, or ids of a stranger) to an answer of a few tokens. */
static enum err_code session_turn(struct lab *lab, const struct exact_request *req, int stranger,
                                  int32_t max_tokens, struct err *err)
{
    static struct exact_request lead;
    struct runner_row row;
    struct engine_result res = { 0 };
    lead = *req;
    request_make_leader(&lead.engine);
    lead.engine.prompt = lead.prompt;
    lead.engine.n_prompt = stranger > 0 ? lead.engine.n_prompt : lead.engine.n_prompt / 2 + 1;
    lead.engine.max_tokens = max_tokens;
    lead.engine.session = stranger > 0 ? 0 : SESSION;
    for (int32_t i = 0; i < lead.engine.n_prompt; i++)
        lead.prompt[i] = (lead.prompt[i] + stranger) % lab->n_vocab;
    enum err_code code = row_grow(lab, &row, row_open(lab, &lead, &row, err), err);
    while (!code && res.finish == FINISH_NONE) {
        struct engine_work work = { .row = row.row, .n_tokens = 40 };
        code = lab->engine->ops->step(lab->engine, &work, 1, &res, err);
        if (!code)
            row_take(lab, &row, &res, NULL);
    }
    row_close(lab, &row);
    return code ? code : runner_check(engine_model_runner(lab->engine), err);
}

static enum err_code session_run(struct lab *lab, const struct scenario *sc,
                                 const struct exact_request *req, struct buf *record,
                                 struct err *err)
{
    static struct exact_request turn;
    /* An answer of one token: what it leaves is the prompt alone, and so the turn's beginning. */
    enum err_code code = session_turn(lab, req, 0, 1, err);
    if (!code && sc->schedule == SCHEDULE_RESTORED) {
        lab->engine->ops->free(lab->engine);
        lab->engine = NULL;
        code = engine_model_new(&lab->options, &lab->engine, err);
        if (!code)
            code = session_turn(lab, req, 0, 1, err);
    }
    for (int i = 1; i <= sc->chunk && !code; i++)
        code = session_turn(lab, req, i, 5, err);
    turn = *req;
    turn.engine.session = SESSION;
    lab->n_reused = 0; /* by the turn alone */
    return code ? code : alone_run(lab, 7, &turn, record, err);
}

/* Windows and states are found only where a row has ended, and where there is room for theirs. */
static bool lab_must_reuse(const struct lab *lab, const struct scenario *sc)
{
    bool has_ends =
        lab->model->has_group[MODEL_GROUP_WINDOW] || lab->model->has_group[MODEL_GROUP_STATE];
    return !has_ends || (sc->chunk < 0 && lab->keeps_plenty);
}

enum err_code scenario_run(struct lab *lab, const struct scenario *sc,
                           const struct exact_request *requests, int n, struct buf *records,
                           struct err *err)
{
    enum err_code code = ERR_OK;
    int n_shared = 0;
    switch (sc->schedule) {
    case SCHEDULE_ALONE:
        for (int i = 0; i < n && !code; i++)
            code = alone_run(lab, sc->chunk, &requests[i], &records[i], err);
        return code;
    case SCHEDULE_KILLED:
        for (int i = 0; i < n && !code; i++)
            code =
                killed_run(lab, (uint32_t)sc->chunk, (uint32_t)i, &requests[i], &records[i], err);
        return code;
    case SCHEDULE_WARM:
        lab->n_reused = 0;
        for (int i = 0; i < n && !code; i++)
            code = warm_run(lab, sc->chunk, &requests[i], &records[i], err);
        if (!code && lab->n_reused == 0 && lab_must_reuse(lab, sc))
            code = err_set(err, ERR_STATE, "no request began with what was kept");
        return code;
    case SCHEDULE_DISK:
    case SCHEDULE_DISK_MIXED:
        code = disk_run(lab, sc, requests, n, records, err);
        if (!code && lab->n_read == 0 && lab_must_reuse(lab, sc))
            code = err_set(err, ERR_STATE, "nothing came from disk");
        return code;
    case SCHEDULE_SESSION:
    case SCHEDULE_RESTORED:
        for (int i = 0; i < n && !code; i++) {
            code = session_run(lab, sc, &requests[i], &records[i], err);
            n_shared += lab->n_reused > 0;
            lab->engine->ops->unpin(lab->engine, SESSION);
        }
        if (!code && n_shared == 0 && lab_must_reuse(lab, &(struct scenario){ .chunk = -1 }))
            code = err_set(err, ERR_STATE, "no turn began with what its session had left");
        return code;
    case SCHEDULE_FORKED:
        for (int i = 0; i < n && !code; i++)
            code = fork_run(lab, sc->chunk, &requests[i], &records[i], &n_shared, err);
        /* Recurrent layers share nothing but what a state stands behind: not the half of a prompt. */
        if (!code && n_shared == 0 &&
            !(lab->model->has_group[MODEL_GROUP_STATE] && sc->chunk < 100))
            code = err_set(err, ERR_STATE, "no request shared anything");
        return code;
    default:
        return mixed_run(lab, sc, requests, n, records, err);
    }
}
