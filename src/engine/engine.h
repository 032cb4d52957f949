/* engine.h - what the scheduler asks of an engine: rows that are opened, stepped and closed. A vtable, so that scheduler and
 * server run against a scripted engine without a model.
 *
 * An engine takes and returns token ids, never text or JSON. A *row* is one running generation. Each step the scheduler says
 * which rows take part and how much of their prompt; the engine runs the forward pass, samples, matches stop strings on the
 * tokens' bytes and reports. The answer of a row does not depend on which other rows took part or how the prompt was cut.
 * Thread: engine thread only, except engine_info (immutable). */
#ifndef PLUMB_ENGINE_ENGINE_H
#define PLUMB_ENGINE_ENGINE_H

#include "base/err.h"

#include <stdint.h>

#define ENGINE_ENDS_MAX        12  /* end ids of a request, beside the model's */
#define ENGINE_STOPS_MAX       16  /* stop strings per request */
#define ENGINE_STOP_BYTES      256 /* bytes of one stop string */
#define ENGINE_LOGPROBS_MAX    20
#define ENGINE_BIAS_MAX        4096 /* biased ids per request */
#define ENGINE_SIGNAL_BINS_MAX 4096
#define ENGINE_GROUPS_MAX      4   /* kinds of cache memory */
#define ENGINE_MARK_BYTES      48  /* of a think span's marker */
#define ENGINE_HIDDEN_MAX      4   /* control tokens that markers are made of */
#define ENGINE_CLOSE_MAX       32  /* ids that end a span */
#define ENGINE_FORCED_MAX      384 /* ids that an answer begins with */
#define ENGINE_SALT_BYTES      32
#define ENGINE_DRAFTS_MAX      16  /* guesses of a row that one step verifies */
#define ENGINE_MISS_IDS        32  /* ids told of a kept history that differs */
#define ENGINE_CUTS_MAX        8   /* places of a prompt where an end is kept */
#define ENGINE_CUT_LEAST       256 /* tokens: below, computing again costs less */

struct grammar;

struct engine_bytes { /* borrowed bytes, not terminated */
    const char *data;
    size_t len;
};

struct logit_bias {
    int32_t id;
    float bias; /* -100 and below: never */
};

/* How the next token is chosen. Order and meaning: docs/sampling.md. All "off" values are the zero of their field's note. */
struct sample_params {
    float temperature;        /* 0 = greedy */
    int32_t top_k;            /* 0 = off */
    float top_p;              /* 1 = off */
    float min_p;              /* 0 = off */
    float typical_p;          /* 1 = off */
    float xtc_probability;    /* 0 = off */
    float xtc_threshold;      /* over 0.5 = off */
    float repetition_penalty; /* 1 = off */
    float presence_penalty;   /* 0 = off */
    float frequency_penalty;  /* 0 = off */
    int32_t penalty_last_n;   /* tokens of history looked at; 0 = whole */
    uint64_t seed;
    uint32_t choice;    /* 0 for a single answer */
    int32_t n_logprobs; /* -1 = none, else top alternatives 0..ENGINE_LOGPROBS_MAX */
    const struct logit_bias *bias;
    int32_t n_bias;
};

struct engine_logprob {
    int32_t id;
    float logprob;
};

/* An emitted token, or a scored one of the prompt. An end token is not emitted: it finishes the row. */
struct engine_token {
    int32_t id;
    float logprob; /* set if the request asked for logprobs */
    int32_t n_top;
    struct engine_logprob top[ENGINE_LOGPROBS_MAX]; /* descending, ties to the lowest id */
};

/* A histogram of the log-softmax after the prompt: bin i of n_bins counts the ids whose logprob lies in
 * minimum + [i, i + 1) * -minimum / n_bins; lower ones are counted in the first bin, 0 in the last. */
struct engine_signal {
    int32_t n_bins; /* 1..ENGINE_SIGNAL_BINS_MAX; 0 = the request is no signal */
    float minimum;  /* finite, below 0 */
    int32_t *bins;  /* [n_bins] the caller's, filled when the row finishes */
};

struct engine_hidden { /* a control token: no text, but part of a marker */
    int32_t id, n;
    char text[ENGINE_MARK_BYTES]; /* [n] */
};

/* What governs an answer beside sampling; all zero: nothing. Forced ids are emitted as if they had been sampled (their logprobs are
 * the model's) and count as tokens of the answer. */
struct engine_guide {
    /* A think span at the answer's start, by its markers' bytes. n_close 0: there is none. Stop strings are not looked for in it. */
    char open[ENGINE_MARK_BYTES], close[ENGINE_MARK_BYTES]; /* [n_open], [n_close] */
    int32_t n_open, n_close;
    struct engine_hidden hidden[ENGINE_HIDDEN_MAX]; /* [n_hidden] */
    int32_t n_hidden;
    bool is_open;    /* the prompt has opened it */
    bool has_budget; /* after `budget` tokens of the span close_ids are forced */
    int32_t budget;
    int32_t close_ids[ENGINE_CLOSE_MAX]; /* [n_close_ids] */
    int32_t n_close_ids;
    /* Forced at the answer's start, or behind a span that is open there; no end token comes before them. */
    int32_t forced[ENGINE_FORCED_MAX]; /* [n_forced] */
    int32_t n_forced;
};

enum engine_miss_reason {
    ENGINE_MISS_UNKNOWN,  /* nobody has looked yet */
    ENGINE_MISS_WHOLE,    /* all was reused but the last id, which is always computed */
    ENGINE_MISS_ENDS,     /* the nearest kept history ends there: the prompt goes on */
    ENGINE_MISS_DIFFERS,  /* the nearest kept history goes on otherwise */
    ENGINE_MISS_EMPTY,    /* nothing is kept of this salt */
    ENGINE_MISS_GIVEN_UP, /* it was kept, and given up for others */
    ENGINE_MISS_STATE,    /* windows or states stand only where histories ended */
    ENGINE_MISS_NO_ROOM,  /* no page was free for the copy of a partly used one */
    ENGINE_MISS_SCORED,   /* scores of the prompt are asked for: it is computed whole */
    ENGINE_MISS_OFF, /* nothing is kept: switched off, or a model whose every layer has a window */
};

/* What a row found of kept histories when it began, and why it was no more. */
struct engine_miss {
    enum engine_miss_reason reason;
    int32_t n_found;    /* ids of the prompt that the nearest kept history begins with */
    int32_t n_reused;   /* ... and of these the ones that need not be computed; */
    int32_t n_disk;     /* of which so many came from disk */
    int32_t n_given_up; /* GIVEN_UP: ids behind them that were kept once */
    int32_t n_kept;     /* how the nearest kept history goes on: kept[0, n_kept) */
    int32_t kept[ENGINE_MISS_IDS];
};

/* One generation. What is pointed to is borrowed until open returns (the engine copies what it keeps), but for the arrays
 * that the engine fills: they stay the caller's and must live until the row is closed. */
struct engine_request {
    const int32_t *prompt; /* [n_prompt], n_prompt >= 1, every id in [0, n_vocab) */
    int32_t n_prompt;
    /* < 0: until the model ends or the context is full; clamped to the room. 0: only with prompt_scores, signal or hidden, then the
     * row finishes with its prompt (FINISH_LENGTH). */
    int32_t max_tokens;
    bool ignore_end; /* end tokens do not end the row (benchmarks) */
    int32_t end_ids
        [ENGINE_ENDS_MAX]; /* [n_end_ids] that end this answer as the model's own end tokens do */
    int32_t n_end_ids;
    struct sample_params sample;
    const struct engine_bytes *stops; /* [n_stops] */
    int32_t n_stops;
    /* NULL, or [n_prompt]: filled before the row's first token or its finish. Entry i is prompt[i] by the plain log-softmax after
     * prompt[0, i) with the n_score_top likeliest ids; entry 0 has only its id (logprob 0, n_top 0). */
    struct engine_token *prompt_scores;
    int32_t n_score_top;         /* 0..ENGINE_LOGPROBS_MAX */
    struct engine_signal signal; /* max_tokens is 0 then */
    /* NULL, or [n_embd]: filled when the row finishes with what the vocabulary's head sees after the last id of the prompt: the
     * hidden state behind the final norm. max_tokens is 0 then. */
    float *hidden;
    struct engine_miss *miss; /* NULL, or filled before the row's first token or its finish */
    struct engine_guide guide;
    struct grammar *
        grammar; /* what the answer must be (grammar/grammar.h), behind a span and forced ids; NULL: anything */
    /* What the answer has begun with elsewhere: ids that were emitted for this very request. They are taken as the prompt is, count as
     * tokens of the answer everywhere (positions, penalties, guide, max_tokens) and are not emitted again. The answer goes on as it
     * would have there. */
    const int32_t *begun; /* [n_begun] */
    int32_t n_begun;
    bool no_drafts; /* the next ids are not guessed; the answer is the same */
    /* What the answer is expected to say, for whoever guesses its ids; it changes no answer. */
    const int32_t *predicted; /* [n_predicted] */
    int32_t n_predicted;
    struct grammar *
        expected; /* the same as a form that is not enforced (grammar_source.is_guess); NULL: none is known */
    /* Prompts of different salts never share what was computed. All zero: the usual one. */
    uint8_t cache_salt[ENGINE_SALT_BYTES];
    /* The conversation that it is a turn of: what it leaves is held until another turn goes on with it, or `unpin`. 0 = of none. */
    uint64_t session;
    /* Numbers of the prompt's first tokens that later prompts may begin with, where layers keep no more than a window or a state:
     * ascending, the one most worth keeping last. What stands there is kept (from ENGINE_CUT_LEAST on). 0: the engine chooses. */
    int32_t cuts[ENGINE_CUTS_MAX];
    int32_t n_cuts;
};

enum finish {
    FINISH_NONE,        /* still running */
    FINISH_END,         /* the model ended */
    FINISH_STOP_STRING, /* a stop string matched: stop_index says which */
    FINISH_LENGTH,      /* max_tokens or the context's end */
    FINISH_ERROR,       /* this row alone failed; err says why */
};

typedef int32_t row_id; /* index in [0, max_rows) of the engine */

/* A row's ids (its prompt and what it has emitted) are *pending* until the model has taken them. Taking the last pending one
 * yields the next token: decoding is a row with one pending id, and a row whose memory was given up is one with all of them. */
struct engine_work {
    row_id row;
    int32_t n_tokens; /* pending ids to take now, >= 1 */
};

/* What guessing the next ids (draft.h) has brought a row so far. */
struct engine_speculation {
    int32_t rounds; /* steps with guesses */
    int32_t drafted, accepted;
    int32_t
        computed; /* guesses that a drafter with a model of its own has computed, verified or not */
    int32_t accepted_at
        [ENGINE_DRAFTS_MAX]; /* of the first guesses of each round, the second ones, ... */
};

struct engine_result {
    row_id row;
    int32_t
        n_taken; /* of the pending ids; less than asked where the engine's room for scored rows is short, never 0 */
    int32_t n_tokens; /* emitted in this step: more than one where guesses came true */
    const struct engine_token *
        tokens; /* [n_tokens], valid until the row is closed, or the next step's set_meanwhile is over */
    const int64_t *safe_at; /* [n_tokens] text_safe behind each of them */
    /* Bytes of the row's whole answer so far that may be shown: the rest might still become part of a stop string, or was cut
     * by one. Counts the concatenated bytes of all emitted tokens. Never decreases; at a finish it is final. */
    int64_t text_safe;
    int32_t n_reasoning; /* tokens of the think span so far */
    int32_t mask_us;     /* that the grammar's masks of this step took; 0: there were none */
    struct engine_speculation speculation;
    enum finish finish;
    int32_t stop_index; /* FINISH_STOP_STRING */
    struct err err;     /* FINISH_ERROR */
};

/* Said where an answer is asked of a model that writes none (engine_info.is_embedder). */
#define ENGINE_EMBEDDER_TEXT \
    "this model reads texts both ways: it makes embeddings (/v1/embeddings) and writes no answers"

/* ... and of a classifier (engine_info.n_labels). */
#define ENGINE_CLASSIFIER_TEXT                                                                    \
    "this model is a classifier: it judges pairs of texts (/v1/rerank, /v1/score) and writes no " \
    "answers"

struct engine_info {
    const char *model_id;    /* name the API shows */
    const char *fingerprint; /* "fp_" + 12 hex digits: model, build and numerics */
    const char *
        identity; /* what it is made of: "weights' digest/version/numerics/cache type"; NULL: not known */
    int32_t n_vocab;
    int32_t n_embd;        /* numbers in a hidden state */
    int32_t n_ctx;         /* longest sequence, prompt and answer */
    int32_t n_ctx_train;   /* the model's own */
    int32_t max_rows;      /* rows open at a time */
    int32_t max_step_rows; /* tokens in one step, all rows together */
    bool
        keeps_ends; /* kept histories go on only where a window or a state stands: cuts are of use */
    int32_t
        step_block;  /* ... which are computed in blocks of so many: one more costs a block more */
    int64_t created; /* Unix seconds */
    /* The model reads both ways: requests want a hidden state and nothing else, and a row takes all its ids in one step. */
    bool is_embedder;
    /* A classifier: hidden is a logit for each label, of two the first is yes, and there is nothing else. 0 = it is none */
    int32_t n_labels;
};

/* The ledger of cache memory, by kind ("full", "window"). */
struct engine_usage {
    int32_t n_groups;
    struct {
        const char *name;
        int64_t page_bytes, n_pages;
        int64_t
            n_kept; /* pages that only kept histories hold: they are given up when rows need them */
        int64_t n_pinned;   /* pages that sessions hold, rows' or kept ones */
        int64_t n_free;     /* unreferenced pages ... */
        int64_t n_promised; /* ... and how many of them are promised to rows */
    } groups[ENGINE_GROUPS_MAX];
    int64_t n_pins_lost; /* sessions' histories that gave way to others since the start */
};

/* Kept histories on disk, each number by itself. */
struct engine_disk_stats {
    int64_t is_there; /* a directory was given */
    int64_t is_on;    /* it is read and written: no trouble */
    int64_t files, bytes, max_bytes;
    int64_t written, written_bytes, read, read_bytes; /* files, since the start */
    int64_t dropped;              /* gave way, or were over the cap, before they were written */
    int64_t failed;               /* calls that the disk refused */
    int64_t evicted, quarantined; /* files */
    int64_t pending;              /* to be written */
};

/* Memory is promised, then used: a step takes only ids for which `grow` has promised room, so that it never finds none. */
struct engine;
struct engine_ops {
    /* Start a row; it has no memory yet. Errors: ERR_INVALID - the request cannot run at all (text for the client; over the
     * context, so that it would not fit alone: code ERR_FULL with both numbers; begun with an answer that has ended); ERR_NOMEM -
     * no free row now. */
    enum err_code (*open)(struct engine *e, const struct engine_request *req, row_id *row,
                          struct err *err);
    /* Promise memory for the row's first n_tokens ids in all; more than the row can ever have counts as that. Never takes a promise back.
     * Errors: ERR_NOMEM - not so much is free and unpromised (text has the arithmetic); nothing changed. */
    enum err_code (*grow)(struct engine *e, row_id row, int32_t n_tokens, struct err *err);
    /* A row that has taken nothing and was not grown starts with what `from` has taken of the ids that both begin with, but for the
     * last of its own prompt. Whole pages are shared, a partly used one and what a window holds are copied into unpromised pages.
     * Returns the number of ids that are no longer pending: 0 where nothing can be shared. */
    int32_t (*share)(struct engine *e, row_id row, row_id from);
    /* The same with what is kept of rows that have taken the same ids before, whoever had them. */
    int32_t (*reuse)(struct engine *e, row_id row);
    /* The session holds nothing any more; NULL where an engine knows none. */
    void (*unpin)(struct engine *e, uint64_t session);
    /* Kept histories on disk; NULL where an engine knows none. Look there for more of the ids of a row that has no memory than reuse would
     * find. True: it is being read, and reuse will find it once is_fetching says no. */
    bool (*fetch)(struct engine *e, row_id row);
    bool (*is_fetching)(const struct engine *e, row_id row);
    /* Between steps: what the disk has done and what it is to do. Returns the clock_us() at which it is due again at the latest; 0 = only
     * when woken. */
    int64_t (*tend)(struct engine *e);
    /* On a thread of the engine's own, when tend has something to do; before the first row. Must not block. */
    void (*set_wake)(struct engine *e, void (*wake)(void *arg), void *arg);
    /* From now on each step calls fn(arg) on its own thread, at least once: while a device works, or before the host computes. What
     * the step before has told is still valid then; fn may not call the engine. Not called by a step that fails before that. */
    void (*set_meanwhile)(struct engine *e, void (*fn)(void *arg), void *arg);
    /* Make all that is kept now durable; flush_is_over: whether that is over (asked after tend), and what became of it. */
    void (*flush)(struct engine *e);
    bool (*flush_is_over)(struct engine *e, bool *is_durable);
    /* Thread: any. */
    void (*disk_stats)(const struct engine *e, struct engine_disk_stats *out);
    /* Give up the row's memory and promises: all its ids are pending again. */
    void (*rewind)(struct engine *e, row_id row);
    /* Run one step. work [n], each row once; sum of tokens <= max_step_rows. results [n] in the order of work.
     * An error return means that the step as a whole failed: every row in it is to be closed. ERR_LOST: no row has any memory left;
     * ERR_IO: what rows and kept histories have in memory may be wrong. Nothing but mend, where there is one, may be called then. */
    enum err_code (*step)(struct engine *e, const struct engine_work *work, int32_t n,
                          struct engine_result *results, struct err *err);
    /* After ERR_LOST and ERR_IO: make the device and the model ready again; all rows are as after rewind, kept histories are gone but for
     * those on disk. NULL: an engine that loses nothing. Errors: the engine cannot go on. */
    enum err_code (*mend)(struct engine *e, struct err *err);
    void (*close)(struct engine *e,
                  row_id row); /* any time between steps; frees the row's memory */
    void (*usage)(const struct engine *e, struct engine_usage *out);
    void (*free)(struct engine *e);
};

struct engine {
    const struct engine_ops *ops;
    struct engine_info info; /* immutable after creation: any thread */
};

#endif
