#include "support/engine_script.h"
#include "base/buf.h"
#include "base/clock.h"
#include "engine/constraint.h"
#include "support/byte_vocab.h"
#include "json/json.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SCRIPT_EMBD     8
#define SCRIPT_TEXT_MAX (1 << 24)

struct script_row {
    bool is_open;
    struct buf script; /* what it will say: struct engine_token ids, int32_t each */
    int32_t n_said;    /* of them */
    int32_t *ids;      /* [n_prompt] */
    int32_t n_prompt, n_fed, n_tokens, max_tokens;
    int32_t n_pages; /* promised */
    int32_t n_saved; /* ids that the disk has */
    int32_t n_back;  /* of them, those that came back from there */
    int64_t back_us; /* clock_us() at which they do; 0 = none are waited for */
    struct engine_token *scores;
    int32_t n_scored; /* entries that are filled: never again, whoever asked may read them */
    int32_t n_score_top;
    struct engine_signal signal;
    float *hidden;
    int32_t fail_at; /* token index; -1 = never */
    enum err_code fail_code;
    bool is_endless, ignore_end;
    enum err_code breaks_step; /* as the whole step's error */
    bool is_ruin;              /* ... and it cannot be mended */
    int32_t shift;
    int32_t n_logprobs;
    struct guide guide;
    struct constraint constraint;
    struct engine_token token;
    int64_t safe_at;
};

struct engine_script {
    struct engine engine;
    struct engine_script_config config;
    struct script_row *rows; /* [max_rows] */
    _Atomic int32_t n_open, n_promised, n_fetches;
    bool is_lost, is_ruined;
    void (*meanwhile)(void *arg);
    void *meanwhile_arg;
};

#define SCRIPT_PAGE_TOKENS 64

static void script_sleep(int64_t us)
{
    struct timespec ts = { us / 1000000, us % 1000000 * 1000 };
    if (us > 0)
        nanosleep(&ts, NULL);
}

static void script_say(struct buf *out, int32_t id)
{
    buf_add(out, &id, sizeof(id));
}

/* Text in which the spelling of a control token stands for it. */
static void script_say_text(struct buf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t len;
        int32_t id = byte_vocab_control(s + i, n - i, &len);
        script_say(out, id >= 0 ? id : (unsigned char)s[i]);
        i += id >= 0 ? len : 1;
    }
}

static void script_read_hex(struct buf *out, const char *s)
{
    while (*s && *s != '\n') {
        char two[3] = { s[0], s[0] ? s[1] : '\0', '\0' };
        char *end;
        long v = strtol(two, &end, 16);
        if (*s == ' ' || end != two + 2) {
            s++;
            continue;
        }
        script_say(out, (int32_t)v);
        s += 2;
    }
}

/* Find the last command in text and fill the row's plan. Returns false for !refuse. */
static bool script_plan(struct script_row *row, const struct engine_request *req, const char *text)
{
    const char *cmd = strrchr(text, '!');
    size_t line = cmd ? strcspn(cmd, "\n\x01") : 0;
    const char *arg = cmd ? memchr(cmd, ' ', line) : NULL;
    long n = arg ? strtol(arg + 1, NULL, 10) : 0;
    row->fail_at = -1;
    row->fail_code = ERR_IO;
    if (cmd && strncmp(cmd, "!say ", 5) == 0) {
        for (size_t i = 5; i < line; i++)
            script_say(&row->script, (unsigned char)cmd[i]);
    } else if (cmd && strncmp(cmd, "!json ", 6) == 0) {
        struct json_doc doc;
        if (json_parse(&doc, cmd + 6, line - 6, 1 << 20, NULL) != ERR_OK)
            return false;
        script_say_text(&row->script, doc.root.text, doc.root.len);
        json_doc_release(&doc);
    } else if (cmd && strncmp(cmd, "!hex ", 5) == 0) {
        script_read_hex(&row->script, cmd + 5);
    } else if (cmd && strncmp(cmd, "!count ", 7) == 0) {
        for (long i = 0; i < n; i++)
            script_say(&row->script, '0' + (int32_t)(i % 10));
    } else if (cmd && strncmp(cmd, "!fail ", 6) == 0) {
        row->fail_at = (int32_t)n;
        row->is_endless = true;
    } else if (cmd && strncmp(cmd, "!nan", 4) == 0) {
        row->fail_at = 0;
        row->fail_code = ERR_NUMERIC;
    } else if (cmd && strncmp(cmd, "!refuse", 7) == 0) {
        return false;
    } else if (cmd && strncmp(cmd, "!break", 6) == 0) {
        row->breaks_step = ERR_IO;
    } else if (cmd && (strncmp(cmd, "!lose", 5) == 0 || strncmp(cmd, "!ruin", 5) == 0)) {
        row->breaks_step = ERR_LOST;
        row->is_ruin = cmd[1] == 'r';
    } else if (cmd && strncmp(cmd, "!cuts", 5) == 0) {
        for (int32_t i = 0; i < req->n_cuts; i++) {
            char number[16];
            int len = snprintf(number, sizeof(number), "%d ", req->cuts[i]);
            script_say_text(&row->script, number, (size_t)len);
        }
    } else if (cmd && strncmp(cmd, "!forever", 8) == 0) {
        row->is_endless = true;
    } else {
        for (size_t i = 0; i < 64 && text[i]; i++)
            script_say(&row->script, (unsigned char)text[i]);
    }
    return true;
}

/* What the script says next; -1: it is over. */
static int32_t script_next(const struct script_row *row)
{
    const int32_t *script = (const int32_t *)(const void *)row->script.data;
    bool is_over = (size_t)row->n_said >= row->script.len / sizeof(*script);
    return is_over ? -1 : script[row->n_said] + row->shift;
}

/* The answer goes on with id. Returns as guide_feed does. */
static int32_t script_feed(struct script_row *row, int32_t id, enum err_code *code, struct err *err)
{
    bool is_forced = guide_next(&row->guide) != NULL;
    enum guide_phase was = row->guide.phase;
    char byte = (char)id;
    int32_t next = script_next(row);
    row->n_said += !is_forced && next >= 0 && (!row->constraint.state || next == id);
    row->n_tokens++;
    int32_t stop = guide_feed(&row->guide, id, &byte, id < 256);
    if (row->constraint.state)
        *code = constraint_feed(&row->constraint, &row->guide, was, is_forced, id, err);
    return stop;
}

/* One more token that the answer has begun with. False: the answer has ended with it. */
static bool script_begin(struct script_row *row, int32_t id)
{
    enum err_code code = ERR_OK;
    struct err err;
    return script_feed(row, id, &code, &err) < 0 && !code && row->n_tokens < row->max_tokens;
}

/* What the grammar lets through of what the script wants; else what ends the text soon, or anything. Below 0: an end. */
static int32_t script_constrained(struct script_row *row, int32_t wanted, struct err *err)
{
    static const int32_t end = BYTE_VOCAB_STOP, closing[] = { '"', '}', ']', '\n', '<', '0' };
    const struct constraint_ends ends = { .ids = &end, .n_ids = 1, .is_ignored = row->ignore_end };
    const uint32_t *mask;
    if (constraint_mask(&row->constraint, &row->guide, &ends, &mask, err))
        return -2;
    if (wanted >= 0 && mask[wanted / 32] >> wanted % 32 & 1)
        return wanted;
    if (mask[end / 32] >> end % 32 & 1)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(closing); i++)
        if (mask[closing[i] / 32] >> closing[i] % 32 & 1)
            return closing[i];
    for (int32_t i = 0; i < BYTE_VOCAB_SIZE; i++) {
        int32_t id = (i * 7 + row->n_tokens * 31) % BYTE_VOCAB_SIZE;
        if (mask[id / 32] >> id % 32 & 1)
            return id;
    }
    return -1;
}

static enum err_code script_open(struct engine *e, const struct engine_request *req, row_id *out,
                                 struct err *err)
{
    struct engine_script *s = (struct engine_script *)e;
    if (req->n_prompt + (req->max_tokens != 0) > e->info.n_ctx)
        return err_set(err, ERR_FULL, "the prompt has %d tokens, the context holds %d",
                       req->n_prompt, e->info.n_ctx);
    int32_t i = 0;
    while (i < e->info.max_rows && s->rows[i].is_open)
        i++;
    if (i == e->info.max_rows)
        return err_set(err, ERR_NOMEM, "no free row");
    struct script_row *row = &s->rows[i];
    *row =
        (struct script_row){ .is_open = true, .n_prompt = req->n_prompt, .shift = s->config.shift };
    buf_init(&row->script, MEM_CAT_REQUEST, SCRIPT_TEXT_MAX);
    struct buf text;
    buf_init(&text, MEM_CAT_REQUEST, SCRIPT_TEXT_MAX);
    for (int32_t k = 0; k < req->n_prompt; k++)
        buf_add_char(&text,
                     req->prompt[k] == 0 || req->prompt[k] > 255 ? '\x01' : (char)req->prompt[k]);
    bool is_fine = script_plan(row, req, text.data);
    buf_release(&text);
    row->ids = mem_alloc(MEM_CAT_REQUEST, (size_t)req->n_prompt * sizeof(*row->ids));
    memcpy(row->ids, req->prompt, (size_t)req->n_prompt * sizeof(*row->ids));
    row->scores = req->prompt_scores;
    row->n_score_top = req->n_score_top;
    row->signal = req->signal;
    row->hidden = req->hidden;
    int32_t room = e->info.n_ctx - req->n_prompt;
    row->max_tokens = req->max_tokens < 0 || req->max_tokens > room ? room : req->max_tokens;
    row->ignore_end = req->ignore_end;
    row->n_logprobs = req->sample.n_logprobs;
    is_fine = guide_init(&row->guide, req, e->info.n_vocab, err) == ERR_OK &&
              constraint_init(&row->constraint, req->grammar, e->info.n_vocab, err) == ERR_OK &&
              is_fine;
    for (int32_t k = 0; k < req->n_begun && is_fine; k++)
        is_fine = script_begin(row, req->begun[k]);
    s->n_open++;
    *out = i;
    if (is_fine)
        return ERR_OK;
    e->ops->close(e, i);
    return err_set(err, ERR_INVALID, "refused as the script says");
}

static void script_close(struct engine *e, row_id id)
{
    struct engine_script *s = (struct engine_script *)e;
    struct script_row *row = &s->rows[id];
    BUG_ON(!row->is_open);
    e->ops->rewind(e, id);
    mem_free(MEM_CAT_REQUEST, row->ids);
    buf_release(&row->script);
    guide_release(&row->guide);
    constraint_release(&row->constraint);
    row->is_open = false;
    s->n_open--;
}

/* --- memory --- */

static enum err_code script_grow(struct engine *e, row_id id, int32_t n_tokens, struct err *err)
{
    struct engine_script *s = (struct engine_script *)e;
    struct script_row *row = &s->rows[id];
    int32_t most = row->n_prompt + row->max_tokens;
    int32_t want =
        ((n_tokens < most ? n_tokens : most) + SCRIPT_PAGE_TOKENS - 1) / SCRIPT_PAGE_TOKENS;
    int32_t more = want - row->n_pages;
    if (more <= 0)
        return ERR_OK;
    if (s->config.n_pages > 0 && s->n_promised + more > s->config.n_pages)
        return err_set(err, ERR_NOMEM, "%d pages needed, %d of %d are not promised", more,
                       s->config.n_pages - s->n_promised, s->config.n_pages);
    s->n_promised += more;
    row->n_pages = want;
    return ERR_OK;
}

/* What is shared is charged in full: the sharer's first grow pays for it. */
static int32_t script_share(struct engine *e, row_id id, row_id from_id)
{
    struct engine_script *s = (struct engine_script *)e;
    struct script_row *row = &s->rows[id];
    const struct script_row *from = &s->rows[from_id];
    int32_t n = 0;
    BUG_ON(!row->is_open || !from->is_open || row->n_fed != 0 || row->n_pages != 0);
    while (!row->scores && n < row->n_prompt - 1 && n < from->n_prompt && n < from->n_fed &&
           row->ids[n] == from->ids[n])
        n++;
    return row->n_fed = n;
}

static int32_t script_reuse(struct engine *e, row_id id)
{
    struct script_row *row = &((struct engine_script *)e)->rows[id];
    return row->n_fed = row->n_back;
}

static bool script_is_fetching(const struct engine *e, row_id id)
{
    return ((const struct engine_script *)e)->rows[id].back_us != 0;
}

static bool script_fetch(struct engine *e, row_id id)
{
    struct engine_script *s = (struct engine_script *)e;
    struct script_row *row = &s->rows[id];
    BUG_ON(row->n_fed > 0 || row->n_pages > 0);
    row->n_back = 0; /* others have had its memory */
    if (s->config.fetch_us > 0 && (row->n_saved > 0 || s->config.fetches_first))
        row->back_us = clock_us() + s->config.fetch_us;
    return row->back_us != 0;
}

static void script_rewind(struct engine *e, row_id id)
{
    struct engine_script *s = (struct engine_script *)e;
    struct script_row *row = &s->rows[id];
    s->n_promised -= row->n_pages;
    if (row->n_fed > row->n_saved)
        row->n_saved = row->n_fed;
    row->n_pages = row->n_fed = 0; /* what came back is kept */
    row->back_us = 0;
}

static enum err_code script_mend(struct engine *e, struct err *err)
{
    struct engine_script *s = (struct engine_script *)e;
    if (s->is_ruined)
        return err_set(err, ERR_IO, "nothing answers there");
    s->is_lost = false;
    for (row_id i = 0; i < s->config.max_rows; i++)
        if (s->rows[i].is_open)
            script_rewind(e, i);
    return ERR_OK;
}

static void script_usage(const struct engine *e, struct engine_usage *out)
{
    const struct engine_script *s = (const struct engine_script *)e;
    int32_t n = s->config.n_pages;
    *out = (struct engine_usage){ .n_groups = 1 };
    out->groups[0].name = "full";
    out->groups[0].page_bytes = 1024;
    out->groups[0].n_pages = n;
    out->groups[0].n_free = n;
    out->groups[0].n_promised = n > 0 ? s->n_promised : 0;
}

/* --- steps --- */

static void script_emit(struct script_row *row, int32_t id)
{
    row->token = (struct engine_token){ .id = id, .logprob = -0.5f };
    for (int32_t i = 0; i < row->n_logprobs; i++)
        row->token.top[row->token.n_top++] =
            (struct engine_logprob){ (id + i) % 256, -0.5f - (float)i };
}

static void script_decode(struct script_row *row, struct engine_result *res)
{
    if (row->n_tokens == row->fail_at) {
        res->finish = FINISH_ERROR;
        err_set(&res->err, row->fail_code,
                row->fail_code == ERR_NUMERIC ? "non-finite logits" : "failed as the script says");
        return;
    }
    if (row->max_tokens == 0) {
        for (int32_t i = 0; i < row->signal.n_bins; i++)
            row->signal.bins[i] = i + 1;
        for (int32_t i = 0; row->hidden && i < SCRIPT_EMBD; i++)
            row->hidden[i] = (float)(row->ids[row->n_prompt - 1] - 4 * row->n_prompt + i);
        res->finish = FINISH_LENGTH;
        return;
    }
    const int32_t *forced = guide_next(&row->guide);
    int32_t next = script_next(row), id = forced ? *forced : next < 0 ? 'x' : next;
    bool is_end =
        next < 0 && !forced && !row->is_endless && !row->ignore_end && !guide_goes_on(&row->guide);
    if (row->constraint.state && !forced) {
        id = script_constrained(row, next, &res->err);
        is_end = id < 0;
        res->mask_us = 1;
    }
    if (is_end) {
        guide_finish(&row->guide);
        res->finish = id == -2 ? FINISH_ERROR : FINISH_END;
        res->text_safe = row->guide.text_safe;
        return;
    }
    enum err_code code = ERR_OK;
    script_emit(row, id);
    res->n_tokens = 1;
    res->tokens = &row->token;
    res->stop_index = script_feed(row, id, &code, &res->err);
    if (code) {
        res->finish = FINISH_ERROR;
    } else if (res->stop_index >= 0) {
        res->finish = FINISH_STOP_STRING;
    } else if (row->constraint.state && constraint_is_over(&row->constraint, &row->guide)) {
        res->finish = FINISH_END;
        guide_finish(&row->guide);
    } else if (row->n_tokens >= row->max_tokens) {
        res->finish = FINISH_LENGTH;
        guide_finish(&row->guide);
    }
    res->text_safe = row->guide.text_safe;
    row->safe_at = res->text_safe;
    res->safe_at = &row->safe_at;
}

static void script_score(struct script_row *row, int32_t first, int32_t n)
{
    if (first < row->n_scored) {
        n -= row->n_scored - first;
        first = row->n_scored;
    }
    for (int32_t i = first; row->scores && i < first + n && i < row->n_prompt; i++) {
        row->n_scored = i + 1;
        struct engine_token *t = &row->scores[i];
        *t = (struct engine_token){ .id = row->ids[i], .logprob = i > 0 ? -0.25f : 0 };
        for (int32_t k = 0; i > 0 && k < row->n_score_top; k++)
            t->top[t->n_top++] =
                (struct engine_logprob){ (row->ids[i] + k) % 256, -0.25f - (float)k };
    }
}

static enum err_code script_step(struct engine *e, const struct engine_work *work, int32_t n,
                                 struct engine_result *results, struct err *err)
{
    struct engine_script *s = (struct engine_script *)e;
    int64_t us = s->config.step_us;
    int32_t n_tokens = 0;
    for (int32_t i = 0; i < n; i++) {
        n_tokens += work[i].n_tokens;
        us += (work[i].n_tokens - 1) * s->config.prompt_us;
    }
    BUG_ON(n_tokens > e->info.max_step_rows);
    s->meanwhile(s->meanwhile_arg);
    script_sleep(us);
    for (int32_t i = 0; i < n; i++) {
        struct script_row *row = &s->rows[work[i].row];
        int32_t n_ids = row->n_prompt + row->n_tokens;
        BUG_ON(!row->is_open || work[i].n_tokens < 1 || row->n_fed + work[i].n_tokens > n_ids);
        BUG_ON(row->n_fed + work[i].n_tokens > row->n_pages * SCRIPT_PAGE_TOKENS);
        results[i] = (struct engine_result){ .row = work[i].row,
                                             .n_taken = work[i].n_tokens,
                                             .text_safe = row->guide.text_safe };
        script_score(row, row->n_fed, work[i].n_tokens);
        row->n_fed += work[i].n_tokens;
        s->is_lost = row->breaks_step == ERR_LOST;
        s->is_ruined = row->is_ruin;
        if (row->breaks_step)
            return err_set(err, row->breaks_step, "the device is gone");
        if (row->n_fed == n_ids)
            script_decode(row, &results[i]);
        results[i].n_reasoning = row->guide.n_reasoning;
    }
    return ERR_OK;
}

static void script_free(struct engine *e)
{
    struct engine_script *s = (struct engine_script *)e;
    BUG_ON(s->n_open != 0 || s->n_promised != 0); /* the scheduler closes what it opened */
    mem_free(MEM_CAT_SERVER, s->rows);
    mem_free(MEM_CAT_SERVER, s);
}

/* A disk on which all is durable. */
static int64_t script_tend(struct engine *e)
{
    struct engine_script *s = (struct engine_script *)e;
    int64_t now = clock_us(), due = 0;
    for (int32_t i = 0; i < e->info.max_rows; i++) {
        struct script_row *row = &s->rows[i];
        if (row->back_us == 0)
            continue;
        if (row->back_us > now) {
            due = due == 0 || row->back_us < due ? row->back_us : due;
            continue;
        }
        row->back_us = 0;
        row->n_back = row->n_saved;
        s->n_fetches++;
    }
    return due;
}

static void script_set_meanwhile(struct engine *e, void (*fn)(void *arg), void *arg)
{
    struct engine_script *s = (struct engine_script *)e;
    s->meanwhile = fn;
    s->meanwhile_arg = arg;
}

static void script_flush(struct engine *e)
{
}

static bool script_flush_is_over(struct engine *e, bool *is_durable)
{
    *is_durable = true;
    return true;
}

static void script_disk_stats(const struct engine *e, struct engine_disk_stats *out)
{
    *out = (struct engine_disk_stats){ .is_there = 1, .is_on = 1 };
}

static const struct engine_ops script_ops = {
    .open = script_open,
    .grow = script_grow,
    .share = script_share,
    .reuse = script_reuse,
    .rewind = script_rewind,
    .mend = script_mend,
    .step = script_step,
    .close = script_close,
    .fetch = script_fetch,
    .is_fetching = script_is_fetching,
    .tend = script_tend,
    .set_meanwhile = script_set_meanwhile,
    .flush = script_flush,
    .flush_is_over = script_flush_is_over,
    .disk_stats = script_disk_stats,
    .usage = script_usage,
    .free = script_free,
};

struct engine *engine_script_new(const struct engine_script_config *config)
{
    struct engine_script *s = mem_alloc(MEM_CAT_SERVER, sizeof(*s));
    s->config = *config;
    s->rows = mem_alloc(MEM_CAT_SERVER, sizeof(*s->rows) * (size_t)config->max_rows);
    s->engine.ops = &script_ops;
    s->engine.info = (struct engine_info){
        .model_id = "script",
        .fingerprint = config->fingerprint ? config->fingerprint : "fp_000000000000",
        .identity = config->fingerprint ? "script/2/script/none" : "script/1/script/none",
        .n_vocab = BYTE_VOCAB_SIZE,
        .n_embd = SCRIPT_EMBD,
        .n_ctx = config->n_ctx,
        .n_ctx_train = config->n_ctx,
        .max_rows = config->max_rows,
        .max_step_rows = config->max_step_rows,
        .step_block = 1,
        .keeps_ends = config->keeps_ends != 0,
        .created = 1764000000,
    };
    return &s->engine;
}

int32_t engine_script_rows(const struct engine *e)
{
    return ((const struct engine_script *)e)->n_open;
}

int32_t engine_script_pages(const struct engine *e)
{
    return ((const struct engine_script *)e)->n_promised;
}

int32_t engine_script_fetches(const struct engine *e)
{
    return ((const struct engine_script *)e)->n_fetches;
}
