/* runner.h - a model with its paged cache: sequences of ids in, logits out. What the engine, the benchmark and the perplexity
 * measurement stand on.
 *
 * Owns: the cache slabs, page tables, step buffers. All memory is sized in runner_new; a step allocates
 * nothing (enforced in debug builds). Does not know: sampling, requests, text.
 * Thread: engine thread. */
#ifndef PLUMB_ENGINE_RUNNER_H
#define PLUMB_ENGINE_RUNNER_H

#include "engine/engine.h"
#include "engine/kv_pool.h"
#include "engine/prefix.h"
#include "engine/tier.h"
#include "model/model.h"

struct runner_item;
struct runner_options {
    struct model *model; /* borrowed, outlives the runner */
    int64_t
        n_ctx; /* longest sequence; 0 = the model's own, or what fits in half the cache memory */
    int64_t
        kv_bytes; /* cache memory; 0 = RUNNER_KV_DEFAULT (the commands pass what the machine allows) */
    int32_t max_seqs; /* sequences open at a time */
    int32_t max_rows; /* tokens in one step, all sequences together */
    int32_t max_out;  /* rows of one step with logits */
    int32_t
        max_tentative; /* rows of a sequence in one step that may be taken back (recurrent layers keep memory for them) */
    enum dtype cache_type; /* F16, BF16, F32, KV_Q8 or KV_Q4 */
    /* Bytes of the cache that histories nobody uses may keep; 0 = nothing is kept, RUNNER_KEEP_ALL = while nobody needs it */
    int64_t keep_bytes;
    struct model_taps
        taps; /* states that items may want beside; memory for those of a whole step */
    /* NULL, or who chooses by short lists: called in a step with all of its items */
    void (*choose)(void *ctx, struct runner_item *items, int32_t n);
    void *choose_ctx;
};

#define RUNNER_KEEP_ALL INT64_MAX

#define RUNNER_KV_DEFAULT ((int64_t)1 << 30)

/* Guesses of a sequence that are in the cache and not yet known to be right (runner_round.c). */
enum runner_round_state { ROUND_NONE, ROUND_OPEN, ROUND_POISONED };
struct runner_round {
    enum runner_round_state state;
    int32_t base;   /* tokens before its rows */
    int32_t n_rows; /* the sure one and the guesses */
    int32_t n_good; /* rows before the first one with a non-finite value */
};

struct runner_seq {
    bool is_open;
    int32_t len;         /* tokens in the cache */
    int32_t n_tentative; /* of them not yet in the state of recurrent layers */
    struct runner_round round;
    struct kv_table tables[MODEL_GROUP_COUNT];
};

/* The state of a sequence's recurrent layers behind its first len tokens, in a slot of its own. */
struct runner_snapshot {
    int32_t seq, len;
    uint64_t age;
    struct kv_table table; /* its slot, where it is held */
};

struct runner_tier; /* runner_tier.c */

/* Memory of all layers, one block for each backend that computes some: the model's and its second one. */
struct runner_slab {
    void *data[2];
    size_t bytes[2];
};

/* What a sequence that has ended left of windows and states behind its first len tokens (0 = nothing is held). */
struct runner_end {
    bool is_due;     /* to be written to disk */
    bool is_flushed; /* a flush wants it there */
    bool is_pinned;
    int32_t node; /* of the tree, in which the last of the tokens lies */
    int32_t len;
    uint64_t age;
    struct kv_table tables[MODEL_GROUP_COUNT]; /* none of full layers: the tree has those */
};

#define RUNNER_ENDS_PER_SEQ 8

/* What a session holds: runner_pins.c. */
struct runner_pin {
    uint64_t session; /* 0: nothing */
    uint64_t salt;    /* its first bytes: a digest */
    int32_t node;     /* of the tree, in which the last of its tokens lies */
    int32_t len;
    int32_t cut_node,
        cut_len; /* the same of its prompt's stable boundary; -1 and 0: there is none */
    uint64_t age;
};

#define RUNNER_PINS_MAX 256
#define RUNNER_BRANCHES 4 /* histories of one session */

struct runner {
    const struct model *model;
    int32_t n_ctx;
    int32_t max_seqs, max_rows, max_out;
    enum dtype cache_type;
    /* The model's; and full, where histories are kept: the tree goes by its pages, which are bare numbers if no layer has any. */
    bool has_group[MODEL_GROUP_COUNT];
    struct kv_pool pools[MODEL_GROUP_COUNT]; /* n_pages 0 where there is no such group */
    size_t page_bytes[MODEL_GROUP_COUNT];    /* of all the group's layers together */
    struct runner_seq *seqs;                 /* [max_seqs] */
    struct prefix prefix; /* over the pages of full layers; zeroed where nothing is kept */
    double token_seconds; /* of a prompt, by the last steps; 0 = not known */
    /* private to runner.c from here */
    struct kv_layer *layers; /* [L] */
    struct runner_slab slab; /* that the layers share */
    struct model_scratch scratch;
    int32_t *hit_pages;      /* [2 * kv_pages_for(n_ctx)] pages, then nodes */
    struct kv_table spare;   /* of the full group: a page on its way into the tree */
    struct runner_end *ends; /* [n_ends] */
    int32_t n_ends;
    uint64_t next_end;
    const struct runner_end *end_in_use; /* that a sequence is beginning with: not to be dropped */
    int64_t keep_bytes_max;
    struct runner_pin *pins; /* [n_pins] */
    int32_t n_pins;
    int64_t n_pins_lost;                       /* that gave way */
    struct runner_tier *tier;                  /* NULL: nothing is kept on disk */
    int32_t *ids, *pos;                        /* [max_rows] */
    uint8_t *failed;                           /* [max_rows] */
    int32_t *out_rows;                         /* [max_out] */
    struct seq_view *views[MODEL_GROUP_COUNT]; /* [max_seqs] */
    int32_t max_tentative;
    struct state_layer *states;               /* [L] */
    struct runner_slab state_slab, keep_slab; /* that the states share, and the kept rows */
    struct state_keep keep, keep_host;        /* row i of sequence s is s * max_tentative + i */
    int32_t *keep_rows;                       /* [max_rows] */
    struct index_layer *index;                /* [L] of layers with sparse attention; or NULL */
    struct runner_slab index_slab;
    uint64_t *picked;                  /* [max_rows][pages of n_ctx] */
    float *pick_scores;                /* [n_ctx] */
    struct state_layer ngram_state;    /* of models with n-grams */
    int32_t *history;                  /* ... [max_seqs][n_ctx] the sequences' ids; else NULL */
    const int32_t **ids_before;        /* ... [max_seqs] */
    struct runner_snapshot *snapshots; /* [n_snapshots] */
    int32_t n_snapshots;
    uint64_t next_age;
    struct model_taps taps;
    float *tapped; /* [max_rows][taps.n * D] backend memory; NULL = there are no taps */
    size_t tapped_bytes;
    float *inputs; /* [max_rows][.] backend memory, of projected models and of heads */
    size_t inputs_bytes;
    struct err fault; /* of the backend, met between steps; code ERR_OK = none */
    float *logits;    /* [max_out][V] host memory */
    float *hidden;    /* [max_out][D] host memory */
    int32_t *best;    /* [max_out] */
    /* Short lists, where the backend makes them and somebody chooses by them; else NULL */
    void (*choose)(void *ctx, struct runner_item *items, int32_t n);
    void *choose_ctx;
    void (*meanwhile)(void *ctx); /* runner_set_meanwhile */
    void *meanwhile_ctx;
    float *list_t;              /* [max_out] */
    struct shortlist *lists;    /* [BACKEND_SHORTLISTS_MAX or max_out] host memory */
    int64_t n_listed, n_chosen; /* items that had lists, and those whose choices they said */
};

/* A sequence's part of a step: append ids at its end. */
struct runner_item {
    int32_t seq;
    const int32_t *ids; /* [n]; NULL where there are inputs in their place */
    int32_t n;          /* >= 1 */
    int32_t n_out;      /* 0..n: logits are wanted of the last so many */
    float *
        logits; /* set by the step: [n_out][V] host memory, writable, valid until the next step; NULL for none */
    bool
        wants_best; /* the likeliest ids will do: where the backend knows them, logits are not set */
    const int32_t
        *best; /* set by the step: [n_out] the rows' likeliest ids; NULL: look at the logits */
    float
        list_t; /* > 0: short lists at this temperature may do. Where they do, logits are not set */
    const struct shortlist
        *lists;        /* set by the step for who chooses: [n_out]; NULL: there are none */
    bool is_chosen;    /* set by who chooses: the lists have said all that is wanted */
    bool wants_hidden; /* beside logits */
    bool has_no_head;  /* only hidden states are wanted: no logits are computed */
    bool
        is_tentative; /* the rows but the first are guesses: the step begins a round, see runner_resolve; need: n <= max_tentative where layers are recurrent */
    int32_t
        n_back; /* tokens before these rows that may be taken back, too: windows keep what they see; at most max_rows - n */
    const float *
        hidden; /* set by the step where it is wanted: [n_out][D] what the logits were made of; as logits */
    /* States of all n rows: what comes of the step is the same bits with them, its last layer takes longer. */
    bool wants_taps;
    const float *
        tapped; /* set by the step where it is wanted: [n][taps.n * D] backend memory, valid until the next step */
    /* Of projected models (model.h): [n] rows of another model's states, backend memory, in the place of ids; n_out is 0. All items of a
     * step have some, or none has. Of heads (nextn): the states in front of the ids, [n][D]; they are copied before anything else is
     * computed, so that what an earlier step has `made` will do. */
    struct tensor inputs;
    float *
        made; /* set by the step: what hidden is in backend memory, [n_out][D], valid until the next one */
    int32_t
        shift; /* tokens of the text before and between those that the sequence has: positions begin behind them */
    bool has_failed; /* set by the step: a non-finite value met one of the rows ... */
    int32_t n_good;  /* ... and so many rows come before it */
};

/* Errors: ERR_NOMEM, ERR_INVALID (a limit that cannot be met, with the arithmetic), ERR_UNSUPPORTED (the backend's caches; taps of a
 * model that has none). */
enum err_code runner_new(const struct runner_options *o, struct runner **out,
                         struct err *err) MUST_CHECK;
void runner_free(struct runner *r);

/* What backend memory holds may be wrong: sequences stay open and have no tokens, kept histories and sessions' hold on them are given up
 * (those on disk stay). */
void runner_forget(struct runner *r);
/* ... or the model's device is lost: all backend memory is freed, too. runner_restore, once the model is loaded again, before anything else.
 * Errors of runner_restore: those of runner_new. */
void runner_lose(struct runner *r);
enum err_code runner_restore(struct runner *r, struct err *err) MUST_CHECK;
/* A step of one token, of which nothing stays: a device has what it takes for steps from then on, and is known to compute. Before the
 * first sequence, or where none has tokens and one can be opened. Errors: those of a step. */
enum err_code runner_warm(struct runner *r, struct err *err) MUST_CHECK;

/* fn is called in each step, at least once: while a device works, or before the host computes. It may not call the runner. NULL: nothing. */
void runner_set_meanwhile(struct runner *r, void (*fn)(void *ctx), void *ctx);
/* ... and is called now, as something else is going to take time before the step. */
void runner_meanwhile(struct runner *r);

/* Open an empty sequence; it has no pages. Errors: ERR_NOMEM - all sequences are open. */
enum err_code runner_open(struct runner *r, int32_t *seq, struct err *err) MUST_CHECK;
void runner_close(struct runner *r, int32_t seq);

/* Promise pages of every group for a sequence of n_tokens in all; what was promised before counts and stays.
 * Errors: ERR_FULL - n_tokens is over n_ctx; ERR_NOMEM - the pages are promised to others (text has the numbers). Nothing
 * changed then. */
enum err_code runner_reserve(struct runner *r, int32_t seq, int32_t n_tokens,
                             struct err *err) MUST_CHECK;

/* Tokens that the sequence can take by what was promised to it. */
int32_t runner_room(const struct runner *r, int32_t seq);

/* Begin an empty sequence without promises with the first n_tokens of another one, or as many of them as the pages that are not
 * promised allow: whole pages of full layers are shared; the last, partly used one and what the window sees are copied, so that
 * a page that two sequences hold is never written and the window's promises stay exact. Need: n_tokens <= the other's length.
 * Recurrent layers begin with a copy of a state: only where the other's own or a snapshot of it stands at that very token.
 * Returns the number of tokens, 0 too where the other has let go of positions that the next token needs. */
int32_t runner_share(struct runner *r, int32_t seq, int32_t from, int32_t n_tokens);

/* Keep the sequence's tokens, whose ids are ids[0, n_tokens), for others that begin alike; n_tokens <= its length. only_full: it goes on,
 * so its last, partly used page is left out. Nothing is computed or copied; what is over keep_bytes is given up. */
void runner_keep(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                 const int32_t *ids, int32_t n_tokens, bool only_full);

/* Keep what the sequence, which goes on, has of windows and states now, for others that begin with just these ids [n]; n is its length.
 * It is copied: what it writes next must not be seen. to_disk: where there is one. Nothing happens where the tree alone is enough. False:
 * there is no room. */
bool runner_keep_end(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                     const int32_t *ids, int32_t n, bool to_disk);

/* What is kept of ids [n] belongs to the session from now on: it is given up for no other kept history, as long as all sessions hold half
 * of what may be kept at most (else the one unused for longest lets go), and for a row only where nothing else is left. The session's
 * history that these ids go on with is let go; of others it holds RUNNER_BRANCHES. cut: tokens of a beginning whose end is held, too; 0 =
 * none. Nothing happens where not all of it is kept. */
void runner_pin(struct runner *r, uint64_t session, const uint8_t salt[ENGINE_SALT_BYTES],
                const int32_t *ids, int32_t n, int32_t cut);
/* All that it holds is as if it had no session. */
void runner_unpin(struct runner *r, uint64_t session);

/* Begin an empty sequence without promises with what is kept of ids [n]: as runner_share. Returns the number of tokens. */
int32_t runner_reuse(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                     const int32_t *ids, int32_t n);
/* The same, which also tells what there was and why it was no more. */
int32_t runner_reuse_told(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                          const int32_t *ids, int32_t n, struct engine_miss *miss);
/* Keep what recurrent layers know behind the sequence's last token in a slot of its own, for runner_share and runner_truncate, until
 * the sequence is rewound or closed, is cut below it, or a promise needs the slot. False: no slot is free. A model without such layers
 * needs none: true. */
bool runner_snapshot(struct runner *r, int32_t seq);

/* Forget all tokens, pages and promises. */
void runner_rewind(struct runner *r, int32_t seq);

/* Forget the sequence's tokens from n_tokens on. Need (runner_can_truncate): the window still holds what the next token sees, and
 * no other sequence holds the page that the next token goes into; recurrent layers: the rows beyond were tentative ones of its last
 * step, or a snapshot stands at n_tokens. */
void runner_truncate(struct runner *r, int32_t seq, int32_t n_tokens);
bool runner_can_truncate(const struct runner *r, int32_t seq, int32_t n_tokens);

/* End the round that a step of tentative rows has begun: the first row and the n_accepted guesses behind it stay, the others have
 * never been. Errors: ERR_STATE - no round is open (it began with no guess, or was resolved), or it is poisoned; ERR_INVALID -
 * n_accepted is negative or over the guesses (the round is open still); ERR_NUMERIC - a row that would stay met a non-finite value: the
 * sequence is poisoned, and only rewind and close are possible. */
enum err_code runner_resolve(struct runner *r, int32_t seq, int32_t n_accepted,
                             struct err *err) MUST_CHECK;

/* Run one step over n items of different sequences. Need: the sum of rows <= max_rows, of rows with logits <= max_out.
 * Errors: ERR_STATE - an item is over what was promised to its sequence, or its round is not resolved; nothing changed. ERR_IO and others of the backend: the
 * sequences are as before but the cache above their lengths is undefined. */
enum err_code runner_step(struct runner *r, struct runner_item *items, int32_t n,
                          struct err *err) MUST_CHECK;

/* --- kept histories on disk (tier.h) --- */

struct runner_tier_options {
    const char *dir;
    int64_t max_bytes;
    const char *
        weights_digest; /* 64 hex digits, as weights_digest writes them; shorter ones count as they are */
    uint8_t content[16]; /* of all the tensors' bytes (tier_space_content) */
    const char *numerics;
};

/* From now on what is kept is written behind to files of a directory, and what is not in memory is looked for there. Need: keep_bytes > 0
 * and a model that keeps. Errors: those of tier_open; ERR_INVALID - nothing is kept in memory. */
enum err_code runner_tier_open(struct runner *r, const struct runner_tier_options *o,
                               struct err *err) MUST_CHECK;
/* On the disk thread, when runner_tier_tend has something to do. */
void runner_tier_set_wake(struct runner *r, void (*wake)(void *arg), void *arg);
/* Between steps: take what was read into memory, hand over what is to be written. Never waits, allocates nothing. Returns the clock_us()
 * at which it is due again at the latest; 0 = only when woken. Without a directory: 0. */
int64_t runner_tier_tend(struct runner *r);

/* Look on disk for a longer beginning of ids [n] than what is kept in memory. True: it is being read and will be there for runner_reuse;
 * the ids stay where they are until runner_is_fetching says no, or the sequence is rewound or closed. */
bool runner_fetch(struct runner *r, int32_t seq, const uint8_t salt[ENGINE_SALT_BYTES],
                  const int32_t *ids, int32_t n);
bool runner_is_fetching(const struct runner *r, int32_t seq);

/* Make all that is kept now durable. runner_flush_state: whether it is over, and then what became of it. */
void runner_flush(struct runner *r);
bool runner_flush_is_over(struct runner *r, bool *is_durable);
void runner_tier_stats(const struct runner *r, struct tier_stats *out);

/* The ledger of the pools. */
void runner_usage(const struct runner *r, struct engine_usage *out);

/* kv_pool_check of every group, the state of every round, and the invariants of what is kept. For tests. */
enum err_code runner_check(const struct runner *r, struct err *err) MUST_CHECK;

#endif
