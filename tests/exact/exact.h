/* exact.h - the exactness harness: one request, many ways of computing it, the same bytes.
 *
 * A *record* is all that an engine said about a request: per token id, logprob bits, alternatives, text_safe, how it ended, the
 * scores of its prompt and its signal.
 * A *lab* is a model on one backend configuration. A *scenario* is a way of cutting the work into steps. */
#ifndef PLUMB_TESTS_EXACT_EXACT_H
#define PLUMB_TESTS_EXACT_EXACT_H

#include "base/buf.h"
#include "engine/engine_model.h"
#include "grammar/grammar.h"

#define EXACT_STEP_ROWS 96
#define EXACT_PROJECTED "tests/golden/projected/" /* a model, EXACT_TARGET, and drafters for it */
#define EXACT_TARGET    "target"

/* Who guesses what comes next. All but DRAFTS_LOOKUP_AUTO have every guess verified. */
enum drafts {
    DRAFTS_NONE,
    DRAFTS_RIGHT,  /* the base's answers (exact_truth) */
    DRAFTS_WRONG,  /* never them */
    DRAFTS_RANDOM, /* so many as the dice say, three of four right */
    DRAFTS_LOOKUP,
    DRAFTS_LOOKUP_AUTO,
    DRAFTS_EXPECTED, /* lookup, and the greedy answer as the form that all are expected to have */
    DRAFTS_MODEL,    /* the model itself, which remembers badly: mostly right */
    DRAFTS_DFLASH,   /* drafters that read its states (exact_projected) */
    DRAFTS_DFLASH_WINDOW,
    DRAFTS_DFLASH2,
    DRAFTS_DSPARK,
    DRAFTS_HEAD, /* the model's head for multi-token prediction */
};

/* What a second backend has: ref, or beside a GPU the CPU's. */
enum split { SPLIT_NONE, SPLIT_LAYERS /* the first half */, SPLIT_EXPERTS };

struct lab_config {
    const char *name;
    const char *backend; /* "ref", "cpu", "cuda", or "cuda plain": its oracle */
    const char *level;   /* cpu: name of a level; NULL = all that the machine has */
    int threads;
    enum dtype cache_type;
    int32_t keep_pages; /* of the cache, for histories that rows may begin with */
    enum drafts drafts;
    bool has_disk; /* what is kept is on disk too; needs keep_pages */
    enum split split;
};

struct lab {
    struct weights *weights;
    struct backend *be, *host; /* host: of a split; else NULL */
    struct model *model;
    struct engine *engine;
    struct engine_bytes *token_bytes;
    int32_t n_vocab;
    int32_t end_id;
    bool keeps_plenty;
    struct engine_model_options options; /* of the engine */
    int64_t n_reused;                    /* ids that rows began with */
    char disk_dir[32];                   /* "" = none */
    int64_t n_read;                      /* files of it that came back */
    struct drafter *drafter, *slow;
    struct weights *slow_weights; /* of a drafter that reads states */
    struct model *slow_model;
    struct grammar_vocab *vocab;
    struct grammar *grammar, *expected; /* expected: NULL unless drafts are DRAFTS_EXPECTED */
    int64_t n_drafted, n_accepted;      /* guesses, of all rows that were taken to their end */
};

/* Errors: those of opening. ERR_UNSUPPORTED: the machine lacks the level. Close with lab_close (fine on a zeroed lab). */
enum err_code lab_open(struct lab *lab, const char *path, const struct lab_config *config,
                       struct err *err) MUST_CHECK;
void lab_close(struct lab *lab);

#define EXACT_REQUESTS_MAX 14
#define EXACT_PROMPT_MAX   160
#define EXACT_BINS         64
#define EXACT_EMBD_MAX     8192

struct exact_request {
    const char *name;
    int32_t prompt[EXACT_PROMPT_MAX];
    struct engine_request engine;
    struct engine_bytes stops[2];
    struct engine_token scores[EXACT_PROMPT_MAX]; /* where engine.prompt_scores points */
    int32_t bins[EXACT_BINS];                     /* where engine.signal.bins points */
    float hidden[EXACT_EMBD_MAX];                 /* where engine.hidden points */
};

/* --- requests.c --- */

struct exact_model {
    const char *name; /* file in tests/golden/tiny, or in the model cache */
    bool is_real;
    bool is_quick;
    bool has_caches; /* runs the other cache types too */
    int32_t n_prompt, n_new;
    bool is_family; /* file in tests/golden/families */
    bool has_head;  /* file in tests/golden/mtp: columns of its head and a few others */
};

void request_init(struct exact_request *r, const char *name, const struct exact_model *m,
                  int32_t n_vocab, int32_t shift);
/* Of every kind into r [EXACT_REQUESTS_MAX]. Returns how many. */
int requests_init(struct exact_request *r, const struct exact_model *m, const struct lab *lab);
/* Texts of a model that makes embeddings alone. Returns how many. */
int requests_embed(struct exact_request *r, const struct exact_model *m, int32_t n_vocab);
/* Compute the greedy answer, which requests' stop strings and expectations are made of; lab->expected from it. Errors: the engine's. */
enum err_code answer_compute(struct lab *lab, const struct exact_request *req,
                             struct err *err) MUST_CHECK;
enum err_code answer_expect(struct lab *lab, struct err *err) MUST_CHECK;

/* What DRAFTS_RIGHT and its like know: the answer to a request, by its prompt's address (borrowed). */
#define EXACT_ANSWER_MAX 128
void exact_truth_set(int i, const int32_t *prompt, const int32_t *ids, int32_t n);
/* The directory of a drafter that reads states; NULL: it is no such drafter. */
const char *exact_projected(enum drafts drafts);
/* DRAFTS_NONE, DRAFTS_MODEL, DRAFTS_HEAD and those of exact_projected: *out is NULL. */
enum err_code exact_drafter_new(enum drafts drafts, int32_t max_rows, struct drafter **out,
                                struct err *err) MUST_CHECK;
/* The ids of a record. Returns how many. */
int32_t record_ids(const struct buf *record, int32_t *ids, int32_t n_max);

enum schedule {
    SCHEDULE_ALONE, /* one request at a time, prompts in chunks of `chunk` (0 = whole) */
    SCHEDULE_MIXED, /* all at once: random joins, chunks and pauses, and a stranger that is cancelled; chunk is the seed */
    SCHEDULE_PREEMPTED, /* the same, and rows give up their memory at random points */
    SCHEDULE_FORKED, /* each request begins with what a row of the same prompt has computed, chunk per cent of it */
    SCHEDULE_KILLED, /* each answer is cut at up to 3 random tokens; a new engine goes on from its ids; chunk is the seed */
    SCHEDULE_DISK,   /* as WARM, but a new engine has only the disk */
    SCHEDULE_DISK_MIXED, /* the disk has all that one alone leaves; then MIXED: what a row has there comes back while others go on */
    SCHEDULE_WARM, /* each begins with what is kept of a row that had chunk per cent of its prompt and went on otherwise; below 0: that ended there */
    SCHEDULE_SESSION, /* each is a turn of the session that a row of half its prompt was one of; chunk others without a session come between */
    SCHEDULE_RESTORED, /* the same in a new engine, in which the session's ids were taken again; chunk as above */
};

struct scenario {
    const char *name;
    enum schedule schedule;
    int32_t chunk;
};

/* Run the requests; records [n] are appended to. In a mixed schedule the cache's invariants are checked after every step. */
enum err_code scenario_run(struct lab *lab, const struct scenario *sc,
                           const struct exact_request *requests, int n, struct buf *records,
                           struct err *err) MUST_CHECK;

/* SHA-256 (64 hex digits) over the logits of every position of ids and of n_new greedy tokens, and the ids. */
enum err_code lab_digest(struct lab *lab, const int32_t *ids, int32_t n, int32_t n_new,
                         char out[65], struct err *err) MUST_CHECK;

#endif
