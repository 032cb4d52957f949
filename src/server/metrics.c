#include "server/metrics.h"
#include "base/clock.h"
#include "server/schema.h"
#include "server/server_int.h"
#include "json/json.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* All numbers at one time. Those of scheduler, workers and memory are atomics of other threads; the rest is this thread's. */
struct metrics {
    struct sched_stats sched;
    struct worker_stats workers[WORKER_CLASS_COUNT];
    int64_t memory[MEM_CAT_COUNT], device_memory[MEM_CAT_COUNT];
    int64_t replies[6]; /* by hundreds of their status */
    int64_t outcomes[CALL_OUTCOME_COUNT];
    int64_t ready, connections, calls, step_us, uptime_us, score_bytes;
    int64_t fds, threads, resident;
    struct store_stats store;
    struct journal_stats journal;
    struct grammars_stats grammars;
    int64_t resumed, resume_refused;
    int64_t sessions, sessions_saved, sessions_restored;
};

enum metrics_kind { METRICS_COUNTER, METRICS_GAUGE, METRICS_HISTOGRAM };

enum metrics_label { /* which rows have a value for each of several things */
                     METRICS_LABEL_NONE,
                     METRICS_LABEL_CATEGORY,
                     METRICS_LABEL_GROUP,
                     METRICS_LABEL_CLASS,
                     METRICS_LABEL_STATUS,
                     METRICS_LABEL_OUTCOME,
};

struct metrics_row {
    const char *name; /* without "plumb_" */
    enum metrics_kind kind;
    const char *key;   /* in /stats; rows of one labelled key stand together */
    const char *field; /* within a labelled key; NULL = the value itself */
    size_t offset;     /* in struct metrics, of an int64_t or a histogram_snapshot */
    size_t stride;     /* to the next label's */
    enum metrics_label label;
    double scale; /* /stats' number to /metrics' unit */
    const char *doc;
};

#define AT(member)  offsetof(struct metrics, member), 0, METRICS_LABEL_NONE, 1
#define US(member)  offsetof(struct metrics, member), 0, METRICS_LABEL_NONE, 1e-6
#define HIST(index) AT(sched.histograms[SCHED_HISTOGRAM_##index])
#define GROUP(field)                                       \
    offsetof(struct metrics, sched.cache.groups[0].field), \
        sizeof(((struct engine_usage *)0)->groups[0]), METRICS_LABEL_GROUP, 1
#define CLASS(field) \
    offsetof(struct metrics, workers[0].field), sizeof(struct worker_stats), METRICS_LABEL_CLASS, 1
#define EACH(member, label) \
    offsetof(struct metrics, member[0]), sizeof(int64_t), METRICS_LABEL_##label, 1
#define COUNTER   METRICS_COUNTER
#define GAUGE     METRICS_GAUGE
#define HISTOGRAM METRICS_HISTOGRAM

/* clang-format off */
static const struct metrics_row metrics_table[] = {
    { "ready", GAUGE, "ready", NULL, AT(ready), "1 if requests are taken: loaded, not stopping, not wedged" },
    { "uptime_seconds", GAUGE, "uptime_us", NULL, US(uptime_us), "since the program started to listen" },
    { "connections", GAUGE, "connections", NULL, AT(connections), "open client connections" },
    { "http_replies_total", COUNTER, "replies", NULL, EACH(replies, STATUS), "replies begun, by their status" },
    { "calls_open", GAUGE, "calls", NULL, AT(calls), "API requests from the end of their body to the end of their reply" },
    { "calls_total", COUNTER, "outcomes", NULL, EACH(outcomes, OUTCOME), "API requests that are over; abort: the client went first" },
    { "requests_waiting", GAUGE, "waiting", NULL, AT(sched.waiting), "answers accepted and not started" },
    { "requests_running", GAUGE, "running", NULL, AT(sched.running), "answers that have a row in the batch" },
    { "requests_paused", GAUGE, "paused", NULL, AT(sched.paused), "running ones whose client does not read" },
    { "requests_accepted_total", COUNTER, "accepted", NULL, AT(sched.accepted), "answers accepted by the scheduler" },
    { "requests_finished_total", COUNTER, "finished", NULL, AT(sched.finished), "answers that ended in any way" },
    { "requests_cancelled_total", COUNTER, "cancelled", NULL, AT(sched.cancelled), "of those, by their client or a DELETE" },
    { "requests_failed_total", COUNTER, "failed", NULL, AT(sched.failed), "of those, by an error" },
    { "requests_expired_total", COUNTER, "expired", NULL, AT(sched.expired), "of those, by their deadline" },
    { "requests_refused_total", COUNTER, "refused", NULL, AT(sched.refused), "not accepted: the line was full" },
    { "requests_preempted_total", COUNTER, "preempted", NULL, AT(sched.preempted), "times that a row gave up its memory" },
    { "steps_total", COUNTER, "steps", NULL, AT(sched.steps), "steps of the engine" },
    { "prompt_tokens_total", COUNTER, "prompt_tokens", NULL, AT(sched.prompt_tokens), "prompt tokens computed" },
    { "shared_tokens_total", COUNTER, "shared_tokens", NULL, AT(sched.shared_tokens), "prompt tokens that another answer of the request had computed" },
    { "cached_tokens_total", COUNTER, "cached_tokens", NULL, AT(sched.cached_tokens), "prompt tokens that had been computed for a request before" },
    { "drafted_tokens_total", COUNTER, "drafted_tokens", NULL, AT(sched.drafted_tokens), "guesses of next tokens that steps have verified" },
    { "accepted_tokens_total", COUNTER, "accepted_tokens", NULL, AT(sched.accepted_tokens), "of those, that came true" },
    { "recomputed_tokens_total", COUNTER, "recomputed_tokens", NULL, AT(sched.recomputed_tokens), "tokens computed again after a row had given up its memory" },
    { "tokens_total", COUNTER, "tokens", NULL, AT(sched.tokens), "tokens of answers" },
    { "last_step_seconds", GAUGE, "last_step_us", NULL, US(sched.last_step_us), "the newest whole step" },
    { "step_running_seconds", GAUGE, "step_us_now", NULL, US(step_us), "the step that runs now, so far; 0: none" },
    { "queue_seconds", HISTOGRAM, "queue_seconds", NULL, HIST(QUEUE), "acceptance to start" },
    { "prefill_seconds", HISTOGRAM, "prefill_seconds", NULL, HIST(PREFILL), "start to first token" },
    { "decode_seconds", HISTOGRAM, "decode_seconds", NULL, HIST(DECODE), "first token to end" },
    { "time_to_first_token_seconds", HISTOGRAM, "time_to_first_token_seconds", NULL, HIST(FIRST_TOKEN), "acceptance to first token" },
    { "inter_token_seconds", HISTOGRAM, "inter_token_seconds", NULL, HIST(INTER_TOKEN), "between two tokens of an answer" },
    { "request_seconds", HISTOGRAM, "request_seconds", NULL, HIST(REQUEST), "acceptance to end" },
    { "step_seconds", HISTOGRAM, "step_seconds", NULL, HIST(STEP), "one step" },
    { "grammar_mask_seconds", HISTOGRAM, "grammar_mask_seconds", NULL, HIST(MASK), "a grammar's masks of one answer in a step" },
    { "grammar_compile_seconds", HISTOGRAM, "grammar_compile_seconds", NULL, AT(grammars.compile), "compiling a grammar" },
    { "grammars_kept", GAUGE, "grammars_kept", NULL, AT(grammars.n), "compiled grammars that are kept" },
    { "grammars_kept_bytes", GAUGE, "grammars_kept_bytes", NULL, AT(grammars.bytes), "their memory, with room for their masks; at most --grammar-cache" },
    { "grammars_found_total", COUNTER, "grammars_found", NULL, AT(grammars.found), "requests whose grammar was kept" },
    { "grammars_compiled_total", COUNTER, "grammars_compiled", NULL, AT(grammars.compiled), "requests whose grammar was compiled" },
    { "grammars_refused_total", COUNTER, "grammars_refused", NULL, AT(grammars.refused), "requests whose grammar could not be compiled" },
    { "grammars_evicted_total", COUNTER, "grammars_evicted", NULL, AT(grammars.evicted), "kept grammars given up for others" },
    { "grammar_vocabulary_seconds", GAUGE, "grammar_vocabulary_us", NULL, US(grammars.vocab_us), "what the vocabulary's trie took, made for the first grammar" },
    { "step_requests", HISTOGRAM, "step_requests", NULL, HIST(STEP_ROWS), "answers in a step" },
    { "cache_page_bytes", GAUGE, "cache", "page_bytes", GROUP(page_bytes), "bytes of one page" },
    { "cache_pages", GAUGE, "cache", "pages", GROUP(n_pages), "pages that there are" },
    { "cache_pages_free", GAUGE, "cache", "free", GROUP(n_free), "of those, with nothing in them" },
    { "cache_pages_kept", GAUGE, "cache", "kept", GROUP(n_kept), "in no row, but kept for prompts that begin alike; given up when rows need them" },
    { "cache_pages_pinned", GAUGE, "cache", "pinned", GROUP(n_pinned), "that sessions hold: not given up for other kept ones" },
    { "cache_pages_promised", GAUGE, "cache", "promised", GROUP(n_promised), "of the free ones, promised to rows" },
    { "sessions", GAUGE, "sessions", NULL, AT(sessions), "sessions that are known" },
    { "session_pins_lost_total", COUNTER, "session_pins_lost", NULL, AT(sched.cache.n_pins_lost), "histories that sessions held and that gave way: to rows, to other sessions, or as too large" },
    { "sessions_saved_total", COUNTER, "sessions_saved", NULL, AT(sessions_saved), "sessions saved" },
    { "sessions_restored_total", COUNTER, "sessions_restored", NULL, AT(sessions_restored), "sessions restored" },
    { "disk_cache_on", GAUGE, "disk_cache_on", NULL, AT(sched.disk.is_on), "1 if --ssd-cache is read and written; 0: not given, or its disk failed or is slow" },
    { "disk_cache_files", GAUGE, "disk_cache_files", NULL, AT(sched.disk.files), "files there, of all models" },
    { "disk_cache_bytes", GAUGE, "disk_cache_bytes", NULL, AT(sched.disk.bytes), "bytes of those" },
    { "disk_cache_limit_bytes", GAUGE, "disk_cache_limit_bytes", NULL, AT(sched.disk.max_bytes), "--ssd-cache-max" },
    { "disk_cache_pending", GAUGE, "disk_cache_pending", NULL, AT(sched.disk.pending), "pages and ends that wait to be written" },
    { "device_mended_total", COUNTER, "device_mended", NULL, AT(sched.mended), "times that the GPU was lost, opened anew and the model loaded again" },
    { "disk_cache_waits_total", COUNTER, "disk_cache_waits", NULL, AT(sched.disk_waits), "answers that waited for their prompt to be read from there" },
    { "disk_cache_written_total", COUNTER, "disk_cache_written", NULL, AT(sched.disk.written), "files written" },
    { "disk_cache_written_bytes_total", COUNTER, "disk_cache_written_bytes", NULL, AT(sched.disk.written_bytes), "bytes of those" },
    { "disk_cache_read_total", COUNTER, "disk_cache_read", NULL, AT(sched.disk.read), "files read" },
    { "disk_cache_read_bytes_total", COUNTER, "disk_cache_read_bytes", NULL, AT(sched.disk.read_bytes), "bytes of those" },
    { "disk_cache_dropped_total", COUNTER, "disk_cache_dropped", NULL, AT(sched.disk.dropped), "pages and ends that gave way, or found no room, before they were written" },
    { "disk_cache_evicted_total", COUNTER, "disk_cache_evicted", NULL, AT(sched.disk.evicted), "files given up for newer ones" },
    { "disk_cache_failed_total", COUNTER, "disk_cache_failed", NULL, AT(sched.disk.failed), "times that the disk failed or was too slow: it is left alone for a minute" },
    { "disk_cache_quarantined_total", COUNTER, "disk_cache_quarantined", NULL, AT(sched.disk.quarantined), "files that could not be used" },
    { "preparation_slots", GAUGE, "preparation", "slots", CLASS(slots), "requests prepared at a time" },
    { "preparation_queued", GAUGE, "preparation", "queued", CLASS(queued), "requests that wait for a slot" },
    { "preparation_running", GAUGE, "preparation", "running", CLASS(running), "requests being prepared" },
    { "preparation_done_total", COUNTER, "preparation", "done", CLASS(done), "requests prepared" },
    { "preparation_cancelled_total", COUNTER, "preparation", "cancelled", CLASS(cancelled), "ended while queued or being prepared" },
    { "preparation_refused_total", COUNTER, "preparation", "refused", CLASS(refused), "not taken: the line was full" },
    { "prompt_score_bytes", GAUGE, "score_bytes", NULL, AT(score_bytes), "held for log-probabilities of prompts" },
    { "store_on", GAUGE, "store_on", NULL, AT(store.is_on), "1 if responses are kept; 0: switched off, or the disk failed" },
    { "store_responses", GAUGE, "store_responses", NULL, AT(store.rows), "responses that are kept" },
    { "store_bytes", GAUGE, "store_bytes", NULL, AT(store.bytes), "bytes of those" },
    { "store_writes_total", COUNTER, "store_writes", NULL, AT(store.puts), "responses that were to be kept" },
    { "store_losses_total", COUNTER, "store_losses", NULL, AT(store.losses), "of those, that could not be" },
    { "resumed_total", COUNTER, "resumed", NULL, AT(resumed), "requests that were given what had been generated before: after a restart, a lost connection, or beside another reader" },
    { "resume_refused_total", COUNTER, "resume_refused", NULL, AT(resume_refused), "of an id with another body, or begun under another model or other settings (409)" },
    { "journal_on", GAUGE, "journal_on", NULL, AT(journal.is_on), "1 if generations have records; 0: not asked for, or the disk failed" },
    { "journal_records", GAUGE, "journal_records", NULL, AT(journal.records), "records that there are" },
    { "journal_bytes", GAUGE, "journal_bytes", NULL, AT(journal.bytes), "bytes of those" },
    { "journal_begun_total", COUNTER, "journal_begun", NULL, AT(journal.begun), "generations that were to have one" },
    { "journal_losses_total", COUNTER, "journal_losses", NULL, AT(journal.losses), "times that something could not be written" },
    { "memory_bytes", GAUGE, "memory", NULL, EACH(memory, CATEGORY), "live host memory, by what it is for" },
    { "device_memory_bytes", GAUGE, "device_memory", NULL, EACH(device_memory, CATEGORY), "memory of the GPU that is in use, by what it is for" },
    { "process_open_fds", GAUGE, "fds", NULL, AT(fds), "open file descriptors" },
    { "process_threads", GAUGE, "threads", NULL, AT(threads), "threads" },
    { "process_resident_bytes", GAUGE, "resident_bytes", NULL, AT(resident), "resident memory of the process" },
};
/* clang-format on */

/* --- labels --- */

static const char *const metrics_label_names[] = { "",      "category", "group",
                                                   "class", "status",   "outcome" };

static int metrics_n_labels(const struct metrics *m, enum metrics_label l)
{
    const int n[] = {
        [METRICS_LABEL_NONE] = 1,
        [METRICS_LABEL_CATEGORY] = MEM_CAT_COUNT,
        [METRICS_LABEL_GROUP] = m->sched.cache.n_groups,
        [METRICS_LABEL_CLASS] = WORKER_CLASS_COUNT,
        [METRICS_LABEL_STATUS] = 6,
        [METRICS_LABEL_OUTCOME] = CALL_OUTCOME_COUNT,
    };
    return n[l];
}

static const char *metrics_label_value(const struct metrics *m, enum metrics_label l, int i)
{
    static const char *const statuses[] = { "other", "1xx", "2xx", "3xx", "4xx", "5xx" };
    switch (l) {
    case METRICS_LABEL_CATEGORY:
        return mem_cat_name((enum mem_cat)i);
    case METRICS_LABEL_GROUP:
        return m->sched.cache.groups[i].name;
    case METRICS_LABEL_CLASS:
        return worker_class_name((enum worker_class)i);
    case METRICS_LABEL_STATUS:
        return statuses[i];
    case METRICS_LABEL_OUTCOME:
        return call_outcome_name((enum call_outcome)i);
    default:
        return "";
    }
}

/* --- numbers --- */

static int64_t metrics_count_fds(void)
{
    int64_t n = -1; /* the one that counts */
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void metrics_read_process(struct metrics *m)
{
    struct stat st;
    long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*s %lld", &pages) == 1)
        m->resident = pages * sysconf(_SC_PAGESIZE);
    if (f)
        fclose(f);
    if (stat("/proc/self/task", &st) == 0)
        m->threads = (int64_t)st.st_nlink - 2;
    m->fds = metrics_count_fds();
}

static void metrics_read(struct server *s, struct metrics *m)
{
    *m = (struct metrics){ 0 };
    sched_read_stats(s->sched, &m->sched);
    for (int i = 0; i < WORKER_CLASS_COUNT; i++)
        worker_read_stats(s->workers, (enum worker_class)i, &m->workers[i]);
    for (int i = 0; i < MEM_CAT_COUNT; i++)
        m->memory[i] = mem_bytes((enum mem_cat)i),
        m->device_memory[i] = mem_device_bytes((enum mem_cat)i);
    for (int i = 0; i < 6; i++)
        m->replies[i] = http_server_replies(s->http, i);
    memcpy(m->outcomes, s->n_outcomes, sizeof(m->outcomes));
    m->step_us = server_step_us(s);
    m->ready = s->state == SERVER_STATE_READY && !server_is_wedged(s);
    m->connections = http_server_connections(s->http);
    m->calls = s->n_calls - s->n_makers;
    m->resumed = s->n_resumed;
    m->resume_refused = s->n_resume_refused;
    m->sessions = s->sessions.n;
    m->sessions_saved = s->n_sessions_saved;
    m->sessions_restored = s->n_sessions_restored;
    journal_read_stats(s->journal, &m->journal);
    grammars_read_stats(s->grammars, &m->grammars);
    m->uptime_us = clock_us() - s->started_us;
    m->score_bytes = s->score_bytes;
    store_read_stats(s->store, &m->store);
    metrics_read_process(m);
}

static const void *metrics_at(const struct metrics *m, const struct metrics_row *r, int label)
{
    return (const char *)m + r->offset + r->stride * (size_t)label;
}

static int64_t metrics_int(const struct metrics *m, const struct metrics_row *r, int label)
{
    return *(const int64_t *)metrics_at(m, r, label);
}

static const char *metrics_type(enum metrics_kind kind)
{
    static const char *const types[] = { "counter", "gauge", "histogram" };
    return types[kind];
}

/* --- Prometheus --- */

static void metrics_text_number(struct buf *out, double v)
{
    char text[32];
    size_t n = json_format_double(v, text);
    buf_add(out, text, n);
    buf_add_char(out, '\n');
}

static void metrics_text_histogram(struct buf *out, const char *name,
                                   const struct histogram_snapshot *h)
{
    int64_t below = 0;
    for (int i = 0; h->bounds && i < h->bounds->n; i++) {
        below += h->counts[i];
        buf_printf(out, "plumb_%s_bucket{le=\"%g\"} %lld\n", name, h->bounds->bounds[i],
                   (long long)below);
    }
    /* Not `count`, which is read by itself and may have moved on: the last bucket is never below the one before. */
    below += h->bounds ? h->counts[h->bounds->n] : 0;
    buf_printf(out, "plumb_%s_bucket{le=\"+Inf\"} %lld\nplumb_%s_sum ", name, (long long)below,
               name);
    metrics_text_number(out, h->sum);
    buf_printf(out, "plumb_%s_count %lld\n", name, (long long)below);
}

static void metrics_text_row(struct buf *out, const struct metrics *m, const struct metrics_row *r)
{
    buf_printf(out, "# HELP plumb_%s %s\n# TYPE plumb_%s %s\n", r->name, r->doc, r->name,
               metrics_type(r->kind));
    if (r->kind == METRICS_HISTOGRAM) {
        metrics_text_histogram(out, r->name, metrics_at(m, r, 0));
        return;
    }
    for (int i = 0; i < metrics_n_labels(m, r->label); i++) {
        buf_printf(out, "plumb_%s", r->name);
        if (r->label != METRICS_LABEL_NONE)
            buf_printf(out, "{%s=\"%s\"}", metrics_label_names[r->label],
                       metrics_label_value(m, r->label, i));
        buf_add_char(out, ' ');
        if (r->scale == 1)
            buf_printf(out, "%lld\n", (long long)metrics_int(m, r, i));
        else
            metrics_text_number(out, (double)metrics_int(m, r, i) * r->scale);
    }
}

void metrics_write_text(struct server *s, struct buf *out)
{
    struct metrics m;
    metrics_read(s, &m);
    for (size_t i = 0; i < ARRAY_LEN(metrics_table); i++)
        metrics_text_row(out, &m, &metrics_table[i]);
}

/* --- JSON --- */

static void metrics_json_histogram(struct json_writer *w, const struct histogram_snapshot *h)
{
    int64_t below = 0;
    int n = h->bounds ? h->bounds->n : 0;
    json_begin_object(w);
    json_field_double(w, "sum", h->sum);
    json_key(w, "buckets"); /* [bound, values up to it]; null is no bound */
    json_begin_array(w);
    for (int i = 0; i <= n; i++) {
        below += h->counts[i];
        json_begin_array(w);
        if (i < n)
            json_double(w, h->bounds->bounds[i]);
        else
            json_null(w);
        json_int(w, below);
        json_end_array(w);
    }
    json_end_array(w);
    json_field_int(w, "count", below);
    json_end_object(w);
}

/* The n rows of a labelled key: an object with a member for each label. */
static void metrics_json_family(struct json_writer *w, const struct metrics *m,
                                const struct metrics_row *rows, size_t n)
{
    json_begin_object(w);
    for (int i = 0; i < metrics_n_labels(m, rows->label); i++) {
        json_key(w, metrics_label_value(m, rows->label, i));
        if (!rows->field) {
            json_int(w, metrics_int(m, rows, i));
            continue;
        }
        json_begin_object(w);
        for (size_t k = 0; k < n; k++) {
            json_field_int(w, rows[k].field, metrics_int(m, &rows[k], i));
        }
        json_end_object(w);
    }
    json_end_object(w);
}

/* The number of rows of the row's key: fields of one label stand together. */
static size_t metrics_family(const struct metrics_row *r)
{
    size_t n = 1;
    while (r->field && r + n < metrics_table + ARRAY_LEN(metrics_table) &&
           strcmp(r[n].key, r->key) == 0)
        n++;
    return n;
}

void metrics_write_json(struct server *s, struct buf *out)
{
    struct metrics m;
    struct json_writer w;
    size_t n;
    metrics_read(s, &m);
    json_writer_init(&w, out);
    json_begin_object(&w);
    for (size_t i = 0; i < ARRAY_LEN(metrics_table); i += n) {
        const struct metrics_row *r = &metrics_table[i];
        n = metrics_family(r);
        json_key(&w, r->key);
        if (r->label != METRICS_LABEL_NONE)
            metrics_json_family(&w, &m, r, n);
        else if (r->kind == METRICS_HISTOGRAM)
            metrics_json_histogram(&w, metrics_at(&m, r, 0));
        else
            json_int(&w, metrics_int(&m, r, 0));
    }
    json_end_object(&w);
}

/* --- JSON Schema --- */

static void metrics_schema_member(struct json_writer *w, const char *key, const char *value)
{
    json_field_str(w, key, value);
}

static void metrics_schema_int(struct json_writer *w, const char *doc)
{
    json_begin_object(w);
    if (doc)
        metrics_schema_member(w, "description", doc);
    metrics_schema_member(w, "type", "integer");
    json_end_object(w);
}

/* An object of labels; of numbers, or of objects with the n rows' fields. */
static void metrics_schema_family(struct json_writer *w, const struct metrics_row *rows, size_t n)
{
    json_begin_object(w);
    metrics_schema_member(w, "type", "object");
    if (!rows->field)
        metrics_schema_member(w, "description", rows->doc);
    json_key(w, "additionalProperties");
    if (rows->field) {
        json_begin_object(w);
        metrics_schema_member(w, "type", "object");
        json_field_object(w, "properties");
        for (size_t i = 0; i < n; i++) {
            json_key(w, rows[i].field);
            metrics_schema_int(w, rows[i].doc);
        }
        json_end_object(w);
        json_end_object(w);
    } else {
        metrics_schema_int(w, NULL);
    }
    json_end_object(w);
}

void metrics_write_schema(struct json_writer *w)
{
    struct buf text;
    size_t n;
    buf_init(&text, MEM_CAT_SERVER, 1 << 16);
    json_begin_object(w);
    metrics_schema_member(w, "type", "object");
    json_field_object(w, "properties");
    for (size_t i = 0; i < ARRAY_LEN(metrics_table); i += n) {
        const struct metrics_row *r = &metrics_table[i];
        n = metrics_family(r);
        json_key(w, r->key);
        if (r->label != METRICS_LABEL_NONE) {
            metrics_schema_family(w, r, n);
        } else if (r->kind == METRICS_HISTOGRAM) {
            buf_reset(&text);
            schema_write(&text, "{sum: number, count: int(0), buckets: (number | null)[2,2][1]}",
                         false, r->doc);
            json_raw(w, text.data, text.len);
        } else {
            metrics_schema_int(w, r->doc);
        }
    }
    json_end_object(w);
    json_field_array(w, "required");
    for (size_t i = 0; i < ARRAY_LEN(metrics_table); i += metrics_family(&metrics_table[i]))
        json_str(w, metrics_table[i].key);
    json_end_array(w);
    json_end_object(w);
    buf_release(&text);
}

/* --- docs --- */

void metrics_print(struct buf *out)
{
    buf_add_str(out, "| metric | type | `/stats` | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < ARRAY_LEN(metrics_table); i++) {
        const struct metrics_row *r = &metrics_table[i];
        buf_printf(out, "| `plumb_%s%s%s%s` | %s | `%s", r->name, r->label ? "{" : "",
                   metrics_label_names[r->label], r->label ? "}" : "", metrics_type(r->kind),
                   r->key);
        if (r->label)
            buf_printf(out, ".%s", metrics_label_names[r->label]);
        if (r->field)
            buf_printf(out, ".%s", r->field);
        buf_printf(out, "` | %s |\n", r->doc);
    }
}
