#include "server/generation.h"
#include "grammar/grammar.h"

#include <stdio.h>
#include <string.h>

static const struct {
    enum prepare_kind kind;
    const char *name; /* stored: never changed */
} generation_dialects[] = {
    { PREPARE_CHAT, "chat" },           { PREPARE_COMPLETIONS, "completions" },
    { PREPARE_MESSAGES, "messages" },   { PREPARE_INFILL, "infill" },
    { PREPARE_RESPONSES, "responses" },
};

const char *generation_dialect(enum prepare_kind kind)
{
    for (size_t i = 0; i < ARRAY_LEN(generation_dialects); i++)
        if (generation_dialects[i].kind == kind)
            return generation_dialects[i].name;
    return NULL;
}

bool generation_kind(const char *dialect, enum prepare_kind *out)
{
    for (size_t i = 0; i < ARRAY_LEN(generation_dialects); i++) {
        if (strcmp(generation_dialects[i].name, dialect) != 0)
            continue;
        *out = generation_dialects[i].kind;
        return true;
    }
    return false;
}

/* --- life --- */

struct generation *generation_new(struct journal *j, int32_t checkpoint, enum prepare_kind kind,
                                  const char *name)
{
    struct generation *g = mem_alloc(MEM_CAT_REQUEST, sizeof(*g));
    g->journal = j;
    g->checkpoint = checkpoint;
    g->kind = kind;
    g->n_refs = 1;
    snprintf(g->name, sizeof(g->name), "%s", name);
    snprintf(g->head.dialect, sizeof(g->head.dialect), "%s", generation_dialect(kind));
    buf_init(&g->body, MEM_CAT_REQUEST, JOURNAL_RECORD_BYTES);
    return g;
}

static bool generation_is_whole(const struct generation *g)
{
    bool is_whole = g->choices != NULL;
    for (int32_t i = 0; i < g->head.n_choices && is_whole; i++)
        is_whole = g->choices[i].is_over && g->choices[i].end.finish != FINISH_ERROR;
    return is_whole;
}

/* An answer that was told to its end needs no record, unless its client has said that it may come back for it. */
static enum journal_op generation_last_op(const struct generation *g)
{
    if (g->is_wrong)
        return JOURNAL_OP_DISTRUST;
    bool may_come_back = g->prepared && g->prepared->disconnect == PREPARE_DISCONNECT_RESUMABLE;
    if (g->has_failed || (generation_is_whole(g) && g->is_told && !may_come_back))
        return JOURNAL_OP_REMOVE;
    return JOURNAL_OP_KEEP;
}

static void generation_submit(struct generation *g, struct journal_job *job)
{
    if (journal_submit(g->journal, job) != ERR_OK)
        journal_job_free(job);
}

void generation_free(struct generation *g)
{
    if (g->is_journaled) {
        enum journal_op op = generation_last_op(g);
        if (op == JOURNAL_OP_KEEP)
            generation_flush(g);
        generation_submit(g, journal_job_new(op, g->name));
    }
    for (int32_t i = 0; g->choices && i < g->head.n_choices; i++) {
        journal_tokens_release(&g->choices[i].tokens);
        buf_release(&g->choices[i].safe);
        guide_release(&g->choices[i].guide);
    }
    mem_free(MEM_CAT_REQUEST, g->choices);
    if (g->record)
        journal_record_release(g->record);
    mem_free(MEM_CAT_SERVER, g->record);
    prepare_free(g->prepared);
    buf_release(&g->body);
    mem_free(MEM_CAT_REQUEST, g);
}

/* --- settings: what an answer depends on beside model and body --- */

struct generation_hash { /* FNV-1a, 64 bits: an identity, not a secret */
    uint64_t h;
};

static void hash_add(struct generation_hash *x, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        x->h = (x->h ^ p[i]) * 1099511628211u;
}

#define HASH(x, value) hash_add(x, &(value), sizeof(value))

static void hash_sampling(struct generation_hash *x, const struct sample_params *s)
{
    HASH(x, s->temperature);
    HASH(x, s->top_k);
    HASH(x, s->top_p);
    HASH(x, s->min_p);
    HASH(x, s->typical_p);
    HASH(x, s->xtc_probability);
    HASH(x, s->xtc_threshold);
    HASH(x, s->repetition_penalty);
    HASH(x, s->presence_penalty);
    HASH(x, s->frequency_penalty);
    HASH(x, s->penalty_last_n);
    HASH(x, s->seed);
    HASH(x, s->choice);
    HASH(x, s->n_logprobs);
    for (int32_t i = 0; i < s->n_bias; i++) {
        HASH(x, s->bias[i].id);
        HASH(x, s->bias[i].bias);
    }
}

static void hash_guide(struct generation_hash *x, const struct engine_guide *g)
{
    hash_add(x, g->open, (size_t)g->n_open);
    hash_add(x, g->close, (size_t)g->n_close);
    for (int32_t i = 0; i < g->n_hidden; i++) {
        HASH(x, g->hidden[i].id);
        hash_add(x, g->hidden[i].text, (size_t)g->hidden[i].n);
    }
    HASH(x, g->is_open);
    HASH(x, g->has_budget);
    HASH(x, g->budget);
    hash_add(x, g->close_ids, sizeof(g->close_ids[0]) * (size_t)g->n_close_ids);
    hash_add(x, g->forced, sizeof(g->forced[0]) * (size_t)g->n_forced);
}

/* max_tokens as it will be clamped: another --ctx matters only to answers that it cuts. */
static void hash_limits(struct generation_hash *x, const struct engine_request *r, int32_t n_ctx)
{
    int32_t room = n_ctx - r->n_prompt;
    int32_t max = r->max_tokens < 0 || r->max_tokens > room ? room : r->max_tokens;
    HASH(x, max);
    HASH(x, r->ignore_end);
    hash_add(x, r->end_ids, sizeof(r->end_ids[0]) * (size_t)r->n_end_ids);
    for (int32_t i = 0; i < r->n_stops; i++) {
        HASH(x, r->stops[i].len);
        hash_add(x, r->stops[i].data, r->stops[i].len);
    }
    hash_guide(x, &r->guide);
    uint64_t grammar = r->grammar ? grammar_id(r->grammar) : 0;
    if (r->grammar)
        HASH(x, grammar);
}

static void generation_hash(const struct prepared *p, int32_t n_ctx, uint64_t *out)
{
    struct generation_hash x[JOURNAL_SETTINGS];
    for (int i = 0; i < JOURNAL_SETTINGS; i++)
        x[i].h = 14695981039346656037u;
    for (int32_t i = 0; i < p->n_choices; i++) {
        const struct engine_request *r = &p->requests[i]->engine;
        hash_add(&x[0], r->prompt, sizeof(*r->prompt) * (size_t)r->n_prompt);
        HASH(&x[0], r->n_prompt);
        hash_sampling(&x[1], &r->sample);
        hash_limits(&x[2], r, n_ctx);
    }
    for (int i = 0; i < JOURNAL_SETTINGS; i++)
        out[i] = x[i].h;
}

static enum err_code generation_check_record(const struct generation *g, struct err *err)
{
    static const char *const names[JOURNAL_SETTINGS] = {
        "the prompt (chat template or tokenizer)",
        "sampling (the server's or the model's defaults)",
        "ends and limits (--ctx, stop strings, reasoning, grammar)",
    };
    const struct journal_head *was = &g->record->head, *now = &g->head;
    char text[256] = "";
    for (int i = 0; i < JOURNAL_SETTINGS; i++)
        if (was->settings[i] != now->settings[i])
            snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", text[0] ? ", " : "",
                     names[i]);
    if (text[0])
        return err_set(err, ERR_STATE,
                       "the answer was begun with other settings of the server: %s; start it as "
                       "it was, or ask under a new id",
                       text);
    if (was->n_choices != now->n_choices || was->n_logprobs != now->n_logprobs)
        return err_set(err, ERR_INVALID, "a record of %d answers cannot be of this request of %d",
                       was->n_choices, now->n_choices);
    return ERR_OK;
}

void generation_say_change(const struct journal_head *was, const struct engine_info *now, char *out,
                           size_t n)
{
    static const char *const names[] = { "weights", "program's version", "arithmetic",
                                         "cache type" };
    const char *a = was->identity, *b = now->identity ? now->identity : "";
    int at =
        snprintf(out, n, "the answer was begun under system_fingerprint %s, this server's is %s",
                 was->fingerprint, now->fingerprint);
    for (size_t i = 0; i < ARRAY_LEN(names) && at < (int)n; i++) {
        size_t n_a = strcspn(a, "/"), n_b = strcspn(b, "/");
        if (n_a != n_b || memcmp(a, b, n_a) != 0)
            at += snprintf(out + at, n - (size_t)at, "; %s: was %.*s, is %.*s", names[i],
                           (int)(n_a < 24 ? n_a : 24), a, (int)(n_b < 24 ? n_b : 24), b);
        a += n_a + (a[n_a] != '\0');
        b += n_b + (b[n_b] != '\0');
    }
}

/* --- opening --- */

bool generation_fits(const struct prepared *p)
{
    bool fits = p->n_choices > 0 && generation_dialect(p->kind) && p->signal.n_bins == 0;
    for (int32_t i = 0; i < p->n_prompts;
         i++) /* nothing of an answer is told before its prompt's scores */
        fits = fits && !p->prompts[i].scores;
    return fits;
}

static enum err_code generation_init_choices(struct generation *g, const struct engine_info *info,
                                             struct err *err)
{
    const struct prepared *p = g->prepared;
    g->choices = mem_alloc(MEM_CAT_REQUEST, sizeof(*g->choices) * (size_t)p->n_choices);
    g->head.n_choices = p->n_choices;
    for (int32_t i = 0; i < p->n_choices; i++) {
        struct generation_choice *c = &g->choices[i];
        journal_tokens_init(&c->tokens, p->n_logprobs);
        buf_init(&c->safe, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES * 2u);
        enum err_code code = guide_init(&c->guide, &p->requests[i]->engine, info->n_vocab, err);
        if (code)
            return code;
    }
    return ERR_OK;
}

/* Step the guide over a token that was emitted, and note what may be shown. */
static void generation_step(struct generation_choice *c, const struct engine_token *token,
                            const struct tokenizer *t)
{
    struct tokenizer_str s = tokenizer_bytes(t, token->id, false);
    (void)guide_feed(&c->guide, token->id, s.data, s.len); /* its end is the engine's to tell */
    int64_t safe = c->guide.text_safe;
    buf_add(&c->safe, &safe, sizeof(safe));
}

static enum err_code generation_take_record(struct generation *g, const struct engine_info *info,
                                            const struct tokenizer *t, struct err *err)
{
    for (int32_t i = 0; i < g->head.n_choices; i++) {
        struct generation_choice *c = &g->choices[i];
        struct journal_choice *from = &g->record->choices[i];
        for (int32_t k = 0; k < from->tokens.n; k++) {
            struct engine_token token;
            journal_tokens_get(&from->tokens, k, &token);
            if (token.id >= info->n_vocab)
                return err_set(err, ERR_INVALID, "a record has token %d of %d", token.id,
                               info->n_vocab);
            generation_step(c, &token, t);
        }
        journal_tokens_release(&c->tokens);
        c->tokens = from->tokens;
        journal_tokens_init(&from->tokens, g->head.n_logprobs);
        c->n_given = c->n_written = c->tokens.n;
        c->is_over = c->is_end_written = from->is_over;
        c->end = from->end;
    }
    return ERR_OK;
}

enum err_code generation_open(struct generation *g, const struct engine_info *info,
                              const struct tokenizer *t, struct err *err)
{
    struct journal_head *h = &g->head;
    h->n_logprobs = g->prepared->n_logprobs;
    snprintf(h->fingerprint, sizeof(h->fingerprint), "%s", info->fingerprint);
    snprintf(h->identity, sizeof(h->identity), "%s", info->identity ? info->identity : "");
    generation_hash(g->prepared, info->n_ctx, h->settings);
    enum err_code code = generation_init_choices(g, info, err);
    if (!code && g->record)
        code = generation_check_record(g, err);
    if (!code && g->record)
        code = generation_take_record(g, info, t, err);
    return code;
}

void generation_begin(struct generation *g)
{
    struct journal_job *job =
        journal_job_new(g->record ? JOURNAL_OP_RESUME : JOURNAL_OP_BEGIN, g->name);
    struct buf head;
    buf_init(&head, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES);
    if (g->record) {
        job->n_valid = g->record->n_valid;
        memcpy(job->check, g->record->check, sizeof(job->check));
    } else {
        journal_write_head(&g->head, &g->body, &head);
        journal_add_frame(job, 'H', &head);
    }
    bool is_lost = head.failed || job->frames.failed;
    buf_release(&head);
    buf_release(&g->body);
    buf_init(&g->body, MEM_CAT_REQUEST, JOURNAL_RECORD_BYTES);
    g->is_journaled = !is_lost && journal_submit(g->journal, job) == ERR_OK;
    g->is_unsynced = g->is_journaled;
    if (!g->is_journaled)
        journal_job_free(job);
}

struct sched_request *generation_request(const struct generation *g, int32_t i)
{
    const struct generation_choice *c = &g->choices[i];
    const struct sched_request *from = g->prepared->requests[i];
    struct engine_request again = from->engine;
    int32_t n = c->n_given > 0 ? c->n_given - 1 : 0;
    int32_t *ids = mem_alloc(MEM_CAT_REQUEST, sizeof(*ids) * (size_t)(n + 1));
    for (int32_t k = 0; k < n; k++) {
        struct engine_token token;
        journal_tokens_get(&c->tokens, k, &token);
        ids[k] = token.id;
    }
    again.begun = ids;
    again.n_begun = n;
    struct sched_request *r = sched_request_new(0, &again);
    mem_free(MEM_CAT_REQUEST, ids);
    if (r) {
        r->priority = from->priority;
        r->is_background = from->is_background;
    }
    return r;
}

/* --- tokens --- */

static bool generation_is_same(const struct journal_tokens *t, int32_t i,
                               const struct engine_token *token)
{
    struct engine_token was;
    journal_tokens_get(t, i, &was);
    return was.id == token->id &&
           (t->n_logprobs < 0 ||
            (memcmp(&was.logprob, &token->logprob, sizeof(was.logprob)) == 0 &&
             was.n_top == token->n_top &&
             memcmp(was.top, token->top, sizeof(was.top[0]) * (size_t)was.n_top) == 0));
}

bool generation_add(struct generation *g, int32_t choice, int32_t index,
                    const struct engine_token *token, const struct tokenizer *t)
{
    struct generation_choice *c = &g->choices[choice];
    BUG_ON(index > c->tokens.n);
    if (index < c->tokens.n)
        return generation_is_same(&c->tokens, index, token);
    journal_tokens_add(&c->tokens, token);
    generation_step(c, token, t);
    return true;
}

void generation_get(const struct generation *g, int32_t choice, int32_t index,
                    struct sched_token *out)
{
    const struct generation_choice *c = &g->choices[choice];
    journal_tokens_get(&c->tokens, index, &out->token);
    memcpy(&out->text_safe, c->safe.data + sizeof(int64_t) * (size_t)index, sizeof(int64_t));
}

void generation_finish(struct generation *g, int32_t choice, const struct sched_finished *f)
{
    struct generation_choice *c = &g->choices[choice];
    c->is_over = true;
    c->end = *f;
    if (f->finish != FINISH_STOP_STRING)
        c->end.stop_index = 0;
    if (c->is_done) { /* how far the model got meanwhile is chance */
        c->end.finish = FINISH_END;
        c->end.n_tokens = c->tokens.n;
        c->end.n_reasoning = c->guide.n_reasoning;
    }
    if (c->end.finish == FINISH_ERROR && f->err.code != ERR_CANCELLED &&
        f->err.code != ERR_TIMEOUT && f->err.code != ERR_LOST)
        g->has_failed = true;
}

/* --- the journal --- */

/* Frames of what is new. */
static void generation_collect(struct generation *g, struct journal_job *job)
{
    struct buf payload;
    buf_init(&payload, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES);
    for (int32_t i = 0; i < g->head.n_choices; i++) {
        const struct generation_choice *c = &g->choices[i];
        if (c->tokens.n > c->n_written) {
            buf_reset(&payload);
            journal_write_tokens(i, &c->tokens, c->n_written, c->tokens.n - c->n_written, &payload);
            journal_add_frame(job, 'T', &payload);
        }
        if (c->is_over && !c->is_end_written && c->end.finish != FINISH_ERROR) {
            buf_reset(&payload);
            journal_write_end(i, &c->end, &payload);
            journal_add_frame(job, 'E', &payload);
        }
    }
    buf_release(&payload);
}

static void generation_append(struct generation *g, bool is_synced)
{
    struct journal_job *job = journal_job_new(JOURNAL_OP_APPEND, g->name);
    generation_collect(g, job);
    job->is_synced = is_synced;
    if (job->frames.failed || journal_submit(g->journal, job) != ERR_OK) {
        journal_job_free(job); /* again with the next */
        return;
    }
    for (int32_t i = 0; i < g->head.n_choices; i++) {
        struct generation_choice *c = &g->choices[i];
        c->n_written = c->tokens.n;
        c->is_end_written = c->is_over;
    }
    g->is_unsynced = !is_synced;
}

void generation_checkpoint(struct generation *g)
{
    bool is_due = false;
    for (int32_t i = 0; i < g->head.n_choices; i++)
        is_due = is_due || g->choices[i].tokens.n - g->choices[i].n_written >= g->checkpoint;
    if (is_due && g->is_journaled)
        generation_append(g, false);
}

void generation_flush(struct generation *g)
{
    bool is_due = g->is_unsynced;
    for (int32_t i = 0; g->choices && i < g->head.n_choices; i++) {
        const struct generation_choice *c = &g->choices[i];
        is_due = is_due || c->tokens.n > c->n_written || (c->is_over && !c->is_end_written);
    }
    if (is_due && g->is_journaled)
        generation_append(g, true);
}
