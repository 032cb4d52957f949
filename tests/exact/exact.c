/* exact.c - models x backend configurations x scenarios x requests: every cell must give the bytes of the first one.
 *
 *   exact [--quick] [--families | --models] [--write-digests] [--device cuda] [--part I/N] [MODEL...]
 * from the repository's root
 *
 * --device cuda: the GPU's configurations instead of the CPU's, with its plain kernels as the base.
 *
 * The base of a tiny model is the ref backend with whole prompts alone. Real models are slow on ref: their base is the fast backend
 * and plain C computes one short request. --quick leaves out the real models but the default one. --write-digests computes the base's
 * digests and nothing else. The tiny models of tests/golden/families have no digests, and a line that counts the cells of three
 * columns; --families runs them alone, --models all others. Those of tests/golden/mtp have a head that guesses. --part: of the scenarios,
 * configuration by configuration, every Nth from the Ith on (0 to N - 1), and the bases. */
#include "exact.h"
#include "base/log.h"
#include "digests.h"
#include "kernels/cuda/cuda_backend.h"
#include "support/test_model.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>

#define FAMILIES "tests/golden/families/"
#define HEADS    "tests/golden/mtp/"

static int n_passed, n_failed, n_skipped;

static void pass(void)
{
    n_passed++;
}

static void fail(const char *model, const char *config, const char *scenario, const char *what)
{
    printf("FAIL: %s, %s, %s: %s\n", model, config, scenario, what);
    n_failed++;
}

static void skip(const char *reason, const char *detail)
{
    printf("skip: %s: %s\n", reason, detail);
    n_skipped++;
}

/* --- the table --- */

/* Cells of a family: cuts of the prompt, company, instruction sets and threads. */
enum column { COLUMN_CHUNK, COLUMN_BATCH, COLUMN_MASK, COLUMN_COUNT };

static struct {
    int n, n_equal;
} columns[COLUMN_COUNT];

static const struct exact_model models[] = {
    { "llama", false, true, true, 150, 60, false, false },
    { "llama-yarn", false, true, false, 150, 60, false, false },
    { "qwen2", false, true, true, 150, 60, false, false },
    { "qwen2-kq", false, true, false, 150, 60, false, false },
    { "gemma3", false, true, true, 150, 60, false, false },
    { EXACT_TARGET, false, true, false, 150, 60, false, false },
    { "smollm2", true, true, true, 70, 16, false, false },
    { "gemma3-270m", true, false, false, 70, 12, false, false },
    { "qwen2.5-coder-0.5b", true, false, false, 70, 12, false, false },
};

static const struct lab_config configs[] = {
    { "ref", "ref", NULL, 1, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu 1 thread", "cpu", NULL, 1, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu 2 threads", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu 3 threads", "cpu", NULL, 3, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu generic", "cpu", "generic", 2, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu avx2", "cpu", "avx2", 2, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu avxvnni", "cpu", "avxvnni", 2, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu avx512", "cpu", "avx512", 2, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu amx", "cpu", "amx", 2, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu, kept", "cpu", NULL, 2, DTYPE_F16, 1000, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu, kept in 5 pages", "cpu", NULL, 2, DTYPE_F16, 5, DRAFTS_NONE, false, SPLIT_NONE },
    { "cpu, guesses right", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_RIGHT, false, SPLIT_NONE },
    { "cpu, guesses wrong", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_WRONG, false, SPLIT_NONE },
    { "cpu, guesses random", "cpu", NULL, 2, DTYPE_F16, 1000, DRAFTS_RANDOM, false, SPLIT_NONE },
    { "cpu, lookup", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_LOOKUP, false, SPLIT_NONE },
    { "cpu, lookup auto", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_LOOKUP_AUTO, false, SPLIT_NONE },
    { "cpu, expected", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_EXPECTED, false, SPLIT_NONE },
    { "cpu, draft model", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_MODEL, false, SPLIT_NONE },
    { "cpu, dflash", "cpu", NULL, 2, DTYPE_F16, 1000, DRAFTS_DFLASH, false, SPLIT_NONE },
    { "cpu, dflash with windows", "cpu", NULL, 2, DTYPE_F16, 5, DRAFTS_DFLASH_WINDOW, false,
      SPLIT_NONE },
    { "cpu, dflash2", "cpu", NULL, 2, DTYPE_F16, 1000, DRAFTS_DFLASH2, false, SPLIT_NONE },
    { "cpu, dspark", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_DSPARK, false, SPLIT_NONE },
    { "cpu, disk, dspark", "cpu", NULL, 2, DTYPE_F16, 1000, DRAFTS_DSPARK, true, SPLIT_NONE },
    { "cpu, head", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_HEAD, false, SPLIT_NONE },
    { "cpu generic, head", "cpu", "generic", 3, DTYPE_F16, 1000, DRAFTS_HEAD, false, SPLIT_NONE },
    { "cpu, head, kept in 5 pages", "cpu", NULL, 2, DTYPE_F16, 5, DRAFTS_HEAD, false, SPLIT_NONE },
    { "cpu, head, disk", "cpu", NULL, 2, DTYPE_F16, 1000, DRAFTS_HEAD, true, SPLIT_NONE },
    { "cpu, disk", "cpu", NULL, 2, DTYPE_F16, 1000, DRAFTS_NONE, true, SPLIT_NONE },
    { "cpu, disk, kept in 5 pages", "cpu", NULL, 2, DTYPE_F16, 5, DRAFTS_NONE, true, SPLIT_NONE },
    { "cpu, disk, guesses random", "cpu", NULL, 2, DTYPE_F16, 1000, DRAFTS_RANDOM, true,
      SPLIT_NONE },
    { "cpu, layers on ref", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_LAYERS },
    { "cpu, layers on ref, kept", "cpu", NULL, 2, DTYPE_F16, 1000, DRAFTS_RANDOM, false,
      SPLIT_LAYERS },
    { "cpu, layers on ref, disk", "cpu", NULL, 2, DTYPE_F16, 5, DRAFTS_RANDOM, true, SPLIT_LAYERS },
    { "cpu, experts on ref", "cpu", NULL, 2, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_EXPERTS },
};

/* The GPU's: the plain kernels are the base. */
static const struct lab_config gpu_configs[] = {
    { "cuda plain", "cuda plain", NULL, 1, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cuda", "cuda", NULL, 1, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_NONE },
    { "cuda, kept", "cuda", NULL, 1, DTYPE_F16, 1000, DRAFTS_NONE, false, SPLIT_NONE },
    { "cuda, kept in 5 pages", "cuda", NULL, 1, DTYPE_F16, 5, DRAFTS_NONE, false, SPLIT_NONE },
    { "cuda, guesses right", "cuda", NULL, 1, DTYPE_F16, 0, DRAFTS_RIGHT, false, SPLIT_NONE },
    { "cuda, guesses random", "cuda", NULL, 1, DTYPE_F16, 1000, DRAFTS_RANDOM, false, SPLIT_NONE },
    { "cuda, lookup", "cuda", NULL, 1, DTYPE_F16, 0, DRAFTS_LOOKUP, false, SPLIT_NONE },
    { "cuda, head", "cuda", NULL, 1, DTYPE_F16, 1000, DRAFTS_HEAD, false, SPLIT_NONE },
    { "cuda, disk", "cuda", NULL, 1, DTYPE_F16, 1000, DRAFTS_NONE, true, SPLIT_NONE },
    { "cuda, disk, kept in 5 pages", "cuda", NULL, 1, DTYPE_F16, 5, DRAFTS_NONE, true, SPLIT_NONE },
    { "cuda, disk, guesses random", "cuda", NULL, 1, DTYPE_F16, 1000, DRAFTS_RANDOM, true,
      SPLIT_NONE },
};

/* Layers of two kinds of numbers are numbers of their own: the first of each kind is the base of the others. */
static const struct lab_config gpu_split_configs[] = {
    { "cuda plain, layers on cpu", "cuda plain", NULL, 1, DTYPE_F16, 0, DRAFTS_NONE, false,
      SPLIT_LAYERS },
    { "cuda, layers on cpu", "cuda", NULL, 1, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_LAYERS },
    { "cuda, layers on cpu, kept", "cuda", NULL, 1, DTYPE_F16, 1000, DRAFTS_RANDOM, false,
      SPLIT_LAYERS },
    { "cuda, layers on cpu, disk", "cuda", NULL, 1, DTYPE_F16, 5, DRAFTS_NONE, true, SPLIT_LAYERS },
    { "cuda plain, experts on cpu", "cuda plain", NULL, 1, DTYPE_F16, 0, DRAFTS_NONE, false,
      SPLIT_EXPERTS },
    { "cuda, experts on cpu", "cuda", NULL, 1, DTYPE_F16, 0, DRAFTS_NONE, false, SPLIT_EXPERTS },
};
static bool is_gpu;       /* --device cuda */
static bool is_simulated; /* ... which has numbers of its own, that no digest is kept of */
static int part, n_parts = 1, n_asked;

static bool is_in_part(void)
{
    return n_asked++ % n_parts == part;
}

static const struct scenario scenarios[] = {
    { "whole", SCHEDULE_ALONE, 0 },           { "chunk 1", SCHEDULE_ALONE, 1 },
    { "chunk 7", SCHEDULE_ALONE, 7 },         { "chunk 64", SCHEDULE_ALONE, 64 },
    { "mixed 1", SCHEDULE_MIXED, 1 },         { "mixed 2", SCHEDULE_MIXED, 2 },
    { "mixed 3", SCHEDULE_MIXED, 3 },         { "preempted 1", SCHEDULE_PREEMPTED, 1 },
    { "preempted 2", SCHEDULE_PREEMPTED, 2 }, { "shared prompt", SCHEDULE_FORKED, 100 },
    { "shared half", SCHEDULE_FORKED, 50 },   { "warm", SCHEDULE_WARM, 100 },
    { "warm half", SCHEDULE_WARM, 50 },       { "warm end", SCHEDULE_WARM, -50 },
    { "killed 1", SCHEDULE_KILLED, 1 },       { "killed 2", SCHEDULE_KILLED, 2 },
    { "disk-warm", SCHEDULE_DISK, 100 },      { "disk-warm half", SCHEDULE_DISK, 50 },
    { "disk-warm end", SCHEDULE_DISK, -50 },  { "disk-warm mixed", SCHEDULE_DISK_MIXED, 1 },
    { "session", SCHEDULE_SESSION, 3 },       { "restored", SCHEDULE_RESTORED, 3 },
};

/* Other cache types, each against itself: what depends on the type (storing and reading pages) at every level, page borders from
 * other chunks, company. The first cell that runs is the base. */
static const enum dtype cache_types[] = { DTYPE_BF16, DTYPE_F32, DTYPE_KV_Q8, DTYPE_KV_Q4 };

static const struct cache_cell {
    const char *backend, *level;
    int threads;
    const char *scenarios[3];
    bool is_real; /* on the default model too */
} cache_cells[] = {
    { "ref", NULL, 1, { "whole" }, false },
    { "cpu", NULL, 2, { "whole", "chunk 7", "mixed 1" }, true },
    { "cpu", NULL, 1, { "chunk 1", "shared half" }, false },
    { "cpu", NULL, 3, { "chunk 64", "preempted 1", "shared prompt" }, true },
    { "cpu", "generic", 1, { "mixed 2" }, false },
    { "cpu", "avx2", 2, { "mixed 3" }, true },
    { "cpu", "avx512", 1, { "whole" }, false },
};

static const struct cache_cell gpu_cache_cells[] = {
    { "cuda plain", NULL, 1, { "whole" }, false },
    { "cuda", NULL, 1, { "whole", "chunk 7", "mixed 1" }, true },
    { "cuda", NULL, 1, { "chunk 1", "preempted 1", "shared half" }, true },
};

#define CACHE_REQUESTS 3 /* short, greedy, logprobs */

/* Real models: the scenarios of the configurations whose numbers are already known to agree on the tiny models. Preemption and
 * sharing cut the work in other ways still; one configuration shows it. */
static bool is_wanted(const struct exact_model *m, const struct lab_config *c,
                      const struct scenario *s)
{
    bool is_second = (s->schedule == SCHEDULE_PREEMPTED && s->chunk > 1) ||
                     (s->schedule == SCHEDULE_KILLED && s->chunk > 1) ||
                     (s->schedule == SCHEDULE_FORKED && s->chunk < 100);
    bool is_of_disk = s->schedule == SCHEDULE_DISK || s->schedule == SCHEDULE_DISK_MIXED;
    if (m->is_real && !m->is_quick && is_second)
        return false; /* one of a kind: the largest ones take half a minute each */
    if (s->schedule == SCHEDULE_SESSION || s->schedule == SCHEDULE_RESTORED)
        return c->keep_pages > 0 && (c->drafts == DRAFTS_NONE || !m->is_real);
    if (c->has_disk != is_of_disk)
        return c->has_disk && s->chunk == 1 &&
               (s->schedule == SCHEDULE_PREEMPTED || s->schedule == SCHEDULE_KILLED);
    if (c->has_disk)
        return true;
    if (c->drafts != DRAFTS_NONE)
        return s->schedule != SCHEDULE_FORKED &&
               (s->schedule == SCHEDULE_ALONE ? s->chunk == 0
                                              : s->schedule != SCHEDULE_WARM || c->keep_pages > 0);
    if (c->keep_pages > 0)
        return s->schedule != SCHEDULE_FORKED && s->schedule != SCHEDULE_ALONE;
    if (strcmp(c->name, "cpu 2 threads") == 0 || strcmp(c->name, "cuda") == 0 ||
        strcmp(c->name, "cuda, layers on cpu") == 0)
        return s->schedule != SCHEDULE_WARM;
    if (is_gpu) /* the plain kernels: their speed is no matter of theirs */
        return s->schedule == SCHEDULE_ALONE && s->chunk == 0;
    if (!m->is_real)
        return s->schedule == SCHEDULE_ALONE || s->schedule == SCHEDULE_MIXED;
    return s->schedule == SCHEDULE_ALONE && s->chunk == 0;
}

static bool is_embedder; /* the model at hand writes no answers: embeddings or labels alone ... */
static bool is_whole;    /* ... and reads both ways */

/* A text that is read both ways is not cut, and nothing of it is kept. */
static bool is_for_texts(const struct scenario *s)
{
    return (s->schedule == SCHEDULE_ALONE && (s->chunk == 0 || !is_whole)) ||
           s->schedule == SCHEDULE_MIXED || s->schedule == SCHEDULE_PREEMPTED;
}

/* --- running --- */

static struct buf base[EXACT_REQUESTS_MAX]; /* the records that all others must equal */

static void compare(const struct exact_model *m, const struct lab_config *c,
                    const struct scenario *s, const struct exact_request *req,
                    const struct buf *got, const struct buf *want)
{
    char what[128];
    size_t n = got->len < want->len ? got->len : want->len, at = 0;
    enum column col = s->schedule != SCHEDULE_ALONE ? COLUMN_BATCH
                      : s->chunk > 0                ? COLUMN_CHUNK
                                                    : COLUMN_MASK;
    columns[col].n++;
    if (got->len == want->len && memcmp(got->data, want->data, n) == 0) {
        columns[col].n_equal++;
        pass();
        return;
    }
    while (at < n && got->data[at] == want->data[at])
        at++;
    snprintf(what, sizeof(what), "request %s differs at byte %zu of %zu and %zu", req->name, at,
             got->len, want->len);
    fail(m->name, c->name, s->name, what);
}

/* Plain C takes minutes for what the others do in a second: a real model computes its first request only there. */
static bool is_plain(const struct lab_config *c)
{
    return strcmp(c->backend, "ref") == 0 || (c->level && strcmp(c->level, "generic") == 0);
}

static int n_requests_of(const struct exact_model *m, const struct lab_config *c, int n)
{
    if (m->is_real && is_plain(c))
        return 1;
    return c->cache_type == DTYPE_F16 ? n : CACHE_REQUESTS;
}

static void run_scenario(struct lab *lab, const struct exact_model *m, const struct lab_config *c,
                         const struct scenario *s, bool is_base)
{
    static struct exact_request requests[EXACT_REQUESTS_MAX];
    struct buf records[EXACT_REQUESTS_MAX];
    int32_t ids[EXACT_ANSWER_MAX];
    struct err err;
    int n = is_embedder ? requests_embed(requests, m, lab->n_vocab)
                        : n_requests_of(m, c, requests_init(requests, m, lab));
    for (int i = 0; i < n; i++)
        buf_init(&records[i], MEM_CAT_BASE, (size_t)1 << 22);
    if (scenario_run(lab, s, requests, n, records, &err)) {
        fail(m->name, c->name, s->name, err.text);
    } else {
        for (int i = 0; i < n; i++) {
            if (is_base) {
                buf_reset(&base[i]);
                buf_add(&base[i], records[i].data, records[i].len);
                exact_truth_set(i, requests[i].prompt, ids,
                                record_ids(&base[i], ids, EXACT_ANSWER_MAX));
            }
            compare(m, c, s, &requests[i], &records[i], &base[i]);
        }
    }
    for (int i = 0; i < n; i++)
        buf_release(&records[i]);
}

/* --- digests --- */

static bool is_writing;

static void run_digest(struct lab *lab, const struct exact_model *m, const struct lab_config *c)
{
    struct exact_request req;
    struct err err;
    char sum[65];
    const char *numerics = lab->be->ops->numerics;
    bool is_slow = m->is_real && strcmp(c->backend, "ref") == 0;
    request_init(&req, "digest", m, lab->n_vocab, 0);
    if (is_slow || is_simulated)
        return; /* minutes; the short request compares ref with the fast backend */
    if (lab_digest(lab, req.prompt, m->n_prompt, 8, sum, &err)) {
        fail(m->name, c->name, "digest", err.text);
        return;
    }
    if (digest_is(m->name, numerics, sum, is_writing))
        pass();
    else
        fail(m->name, c->name, "digest", sum);
}

/* --- models --- */

/* Where the backend makes short lists, requests that are drawn are drawn by them. Other schedules may leave a new engine. */
static void check_lists(const struct lab *lab, const struct exact_model *m,
                        const struct lab_config *c, const struct scenario *s)
{
    const struct runner *r = engine_model_runner(lab->engine);
    bool is_old = s->schedule == SCHEDULE_ALONE || s->schedule == SCHEDULE_MIXED;
    if (is_old && !is_embedder && r->lists && r->n_chosen == 0)
        fail(m->name, c->name, s->name, "nothing was chosen by short lists");
}

/* The scenarios of a configuration that this run has; false: none. */
static bool choose(const struct exact_model *m, const struct lab_config *c, bool is_base,
                   bool has[ARRAY_LEN(scenarios)])
{
    bool any = false;
    for (size_t s = 0; s < ARRAY_LEN(scenarios); s++) {
        has[s] = is_wanted(m, c, &scenarios[s]) && (is_in_part() || (is_base && s == 0));
        any = any || has[s];
    }
    return any;
}

static void run_config(const struct exact_model *m, const char *path, const struct lab_config *c,
                       bool is_base)
{
    struct lab lab;
    struct err err;
    bool has[ARRAY_LEN(scenarios)];
    if (c->split && m->is_real && !is_gpu)
        return; /* ref is slow */
    if (!choose(m, c, is_base, has))
        return;
    enum err_code code = lab_open(&lab, path, c, &err);
    if (code == ERR_UNSUPPORTED && c->split)
        return; /* a model without experts; what else is not there the configurations before have told */
    if (code == ERR_UNSUPPORTED) {
        skip(is_gpu ? "no-gpu" : "cpu-feature", err.text);
        return;
    }
    if (code) {
        fail(m->name, c->name, "load", err.text);
        return;
    }
    is_whole = lab.engine->info.is_embedder;
    is_embedder = is_whole || lab.engine->info.n_labels > 0;
    if (is_base && !is_embedder) {
        struct exact_request req;
        request_init(&req, "greedy", m, lab.n_vocab, 0);
        if (answer_compute(&lab, &req, &err))
            fail(m->name, c->name, "greedy", err.text);
    }
    if (c->drafts == DRAFTS_EXPECTED && !is_embedder && answer_expect(&lab, &err))
        fail(m->name, c->name, "expected", err.text);
    for (size_t s = 0; s < ARRAY_LEN(scenarios) && !is_writing; s++)
        if (has[s] && (!is_embedder || is_for_texts(&scenarios[s]))) {
            run_scenario(&lab, m, c, &scenarios[s], is_base && s == 0);
            check_lists(&lab, m, c, &scenarios[s]);
        }
    /* Forced ids, which come with every configuration, are guesses that are right. */
    bool must_accept = c->drafts == DRAFTS_RIGHT || c->drafts == DRAFTS_RANDOM ||
                       c->drafts == DRAFTS_MODEL || c->drafts == DRAFTS_DFLASH ||
                       c->drafts == DRAFTS_DSPARK || c->drafts == DRAFTS_EXPECTED;
    if (!is_writing && !is_embedder && n_parts == 1 &&
        ((must_accept && lab.n_accepted == 0) ||
         (c->drafts == DRAFTS_WRONG && lab.n_drafted < 5 * lab.n_accepted)))
        fail(m->name, c->name, "guesses", "none was made as it should");
    /* Its head says nearly what it says: 47 of 100 guesses of all requests come true, by chance one in 288. */
    if (!is_writing && n_parts == 1 && c->drafts == DRAFTS_HEAD && strcmp(m->name, "agrees") == 0 &&
        lab.n_accepted < lab.n_drafted / 3)
        fail(m->name, c->name, "guesses", "its head's do not come true");
    /* A runner of its own computes it: what the configurations' engines have beside the backend does not touch it. */
    bool is_plain_engine = c->drafts == DRAFTS_NONE && c->keep_pages == 0 && !c->split;
    if (!m->is_family && !m->has_head && is_plain_engine)
        run_digest(&lab, m, c);
    lab_close(&lab);
}

static const struct scenario *scenario_named(const char *name)
{
    size_t s = 0;
    while (strcmp(scenarios[s].name, name) != 0)
        s++;
    return &scenarios[s];
}

static void run_cache_cell(const struct exact_model *m, const char *path,
                           const struct cache_cell *k, enum dtype type, bool *is_base)
{
    char name[64];
    struct lab lab;
    struct err err;
    struct lab_config c = { name, k->backend,  k->level, k->threads, type,
                            0,    DRAFTS_NONE, false,    SPLIT_NONE };
    snprintf(name, sizeof(name), "%s %s %d, cache %s", k->backend, k->level ? k->level : "auto",
             k->threads, dtype_info(type)->name);
    enum err_code code = lab_open(&lab, path, &c, &err);
    if (code == ERR_UNSUPPORTED || (is_gpu && code == ERR_NOT_FOUND))
        return; /* told by the configurations */
    if (code) {
        fail(m->name, name, "load", err.text);
        return;
    }
    for (size_t s = 0; s < ARRAY_LEN(k->scenarios) && k->scenarios[s]; s++) {
        if (!is_in_part() && !*is_base)
            continue;
        run_scenario(&lab, m, &c, scenario_named(k->scenarios[s]), *is_base);
        *is_base = false;
    }
    lab_close(&lab);
}

/* A real model runs the two types that round most. */
static void run_caches(const struct exact_model *m, const char *path)
{
    for (size_t t = 0; t < ARRAY_LEN(cache_types); t++) {
        bool is_base = true;
        const struct cache_cell *cells = is_gpu ? gpu_cache_cells : cache_cells;
        size_t n = is_gpu ? ARRAY_LEN(gpu_cache_cells) : ARRAY_LEN(cache_cells);
        if (is_gpu ? cache_types[t] == DTYPE_F32
                   : m->is_real && dtype_info(cache_types[t])->block_elems == 1)
            continue;
        for (size_t k = 0; k < n; k++)
            if (cells[k].is_real || !m->is_real)
                run_cache_cell(m, path, &cells[k], cache_types[t], &is_base);
    }
}

static bool is_target(const struct exact_model *m)
{
    return strcmp(m->name, EXACT_TARGET) == 0;
}

/* Models with a head run its columns, and those of the same model without that are most like them. */
static bool is_column(const struct exact_model *m, const struct lab_config *c)
{
    bool is_head = c->drafts == DRAFTS_HEAD, is_projected = exact_projected(c->drafts);
    bool is_like = strcmp(c->name, "cpu 2 threads") == 0 || c->drafts == DRAFTS_RANDOM ||
                   strcmp(c->name, "cuda") == 0;
    return m->has_head ? is_head || (is_like && !c->has_disk && !c->split)
                       : !is_head && (!is_projected || is_target(m));
}

static void run_model(const struct exact_model *m)
{
    char path[4096];
    const char *folder = m->is_family ? FAMILIES : m->has_head ? HEADS : EXACT_PROJECTED;
    if (m->is_family || m->has_head || is_target(m)) {
        snprintf(path, sizeof(path), "%s%s.gguf", folder, m->name);
    } else if (!test_model_path(m->name, !m->is_real, path, sizeof(path))) {
        skip("model-not-fetched", m->name);
        return;
    }
    memset(columns, 0, sizeof(columns));
    int before = n_failed, passed = n_passed;
    const struct lab_config *all = is_gpu ? gpu_configs : configs;
    size_t first = m->is_real && !is_gpu ? 2 : 0; /* "cpu 2 threads" or the oracle */
    size_t n = is_gpu ? ARRAY_LEN(gpu_configs) : ARRAY_LEN(configs);
    run_config(m, path, &all[first], true);
    for (size_t c = 0; c < n && !is_writing; c++)
        if (c != first && is_column(m, &all[c]))
            run_config(m, path, &all[c], false);
    for (size_t c = 0; is_gpu && !m->has_head && c < ARRAY_LEN(gpu_split_configs) && !is_writing;
         c++)
        run_config(m, path, &gpu_split_configs[c],
                   strncmp(gpu_split_configs[c].backend, "cuda plain", 10) == 0);
    if (m->has_caches && !is_writing)
        run_caches(m, path);
    if (m->is_family && is_whole)
        printf("family %s: batch %d of %d, mask %d of %d\n", m->name, columns[COLUMN_BATCH].n_equal,
               columns[COLUMN_BATCH].n, columns[COLUMN_MASK].n_equal, columns[COLUMN_MASK].n);
    else if (m->is_family)
        printf("family %s: chunk %d of %d, batch %d of %d, mask %d of %d\n", m->name,
               columns[COLUMN_CHUNK].n_equal, columns[COLUMN_CHUNK].n,
               columns[COLUMN_BATCH].n_equal, columns[COLUMN_BATCH].n, columns[COLUMN_MASK].n_equal,
               columns[COLUMN_MASK].n);
    printf("%s: %d cells equal, %d not\n", m->name, n_passed - passed, n_failed - before);
    fflush(stdout);
}

static bool is_named(const char *name, int argc, char **argv)
{
    bool has_names = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--device") == 0 || strcmp(argv[i], "--part") == 0)
            i++;
        else if (strcmp(argv[i], name) == 0)
            return true;
        else
            has_names = has_names || strncmp(argv[i], "--", 2) != 0;
    }
    return !has_names;
}

/* The tiny models of a folder; heads: those that have one. */
static void run_folder(const char *folder, bool heads, int argc, char **argv)
{
    glob_t found = { 0 };
    char pattern[128];
    snprintf(pattern, sizeof(pattern), "%s*.gguf", folder);
    if (glob(pattern, 0, NULL, &found))
        fail(folder, "all", "all", "there are no models in it");
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *name = found.gl_pathv[i] + strlen(folder);
        name[strlen(name) - strlen(".gguf")] = '\0';
        if (is_named(name, argc, argv))
            run_model(&(struct exact_model){ .name = name,
                                             .is_quick = true,
                                             .n_prompt = 100,
                                             .n_new = 24,
                                             .is_family = !heads,
                                             .has_head = heads });
    }
    globfree(&found);
}

int main(int argc, char **argv)
{
    bool is_quick = false, has_families = true, has_models = true;
    log_set_level(LOG_LEVEL_WARN);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0)
            is_quick = true;
        else if (strcmp(argv[i], "--write-digests") == 0)
            is_writing = true;
        else if (strcmp(argv[i], "--families") == 0)
            has_models = false;
        else if (strcmp(argv[i], "--models") == 0)
            has_families = false;
        else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc)
            is_gpu = strcmp(argv[++i], "cuda") == 0;
        else if (strcmp(argv[i], "--part") == 0 && i + 1 < argc &&
                 sscanf(argv[i + 1], "%d/%d", &part, &n_parts) == 2 && part >= 0 && part < n_parts)
            i++;
        else if (argv[i][0] == '-') {
            fprintf(stderr, "usage: exact [--quick] [--families | --models] [--write-digests] "
                            "[--device cuda] [--part I/N] [MODEL...]\n");
            return 2;
        }
    }
    struct cuda_device gpu;
    struct err err;
    if (is_gpu && cuda_device_find(0, &gpu, &err)) {
        skip("no-gpu", err.text);
        printf("0 passed, 0 failed, 1 skipped\n");
        return 0;
    }
    is_simulated = is_gpu && strcmp(gpu.name, "simulated device") == 0;
    for (int i = 0; i < EXACT_REQUESTS_MAX; i++)
        buf_init(&base[i], MEM_CAT_BASE, (size_t)1 << 22);
    digests_read();
    for (size_t m = 0; m < ARRAY_LEN(models) && has_models; m++) {
        if (!is_named(models[m].name, argc, argv) || (is_gpu && is_target(&models[m])))
            continue; /* what looks at its states runs on the CPU alone */
        if (is_quick && !models[m].is_quick)
            skip("model-not-fetched", models[m].name);
        else
            run_model(&models[m]);
    }
    if (!is_writing && has_families)
        run_folder(FAMILIES, false, argc, argv);
    if (!is_writing && has_models)
        run_folder(HEADS, true, argc, argv);
    for (int i = 0; i < EXACT_REQUESTS_MAX; i++)
        buf_release(&base[i]);
    if (is_writing && !digests_write())
        fail("all", "all", "digests", "cannot write " DIGESTS_PATH);
    printf("%d passed, %d failed, %d skipped\n", n_passed, n_failed, n_skipped);
    return n_failed != 0;
}
