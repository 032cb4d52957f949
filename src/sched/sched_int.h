/* sched_int.h - the scheduler's state, for the files of sched/.
 *
 * sched.c: life, mail, the loop.  rank.c: accounts, who goes first.  admit.c: rows begin, grow, give up their memory, end.
 * step.c: what a step holds and what becomes of it.  stats.c: counters. */
#ifndef PLUMB_SCHED_SCHED_INT_H
#define PLUMB_SCHED_SCHED_INT_H

#include "base/queue.h"
#include "sched/sched.h"

/* Memory is promised so many tokens ahead. A row that uses up a promise has emitted so many since it was let in, so that it may itself
 * be asked to give up its memory: somebody always may. */
#define SCHED_PROMISE 64

enum sched_state { SCHED_STATE_LOADING, SCHED_STATE_READY, SCHED_STATE_CLOSED };

/* What a key has had. */
struct sched_account {
    uint64_t key;
    double service; /* tokens of prompts + 2 * tokens of answers, counted from a common floor */
    int32_t n_live; /* its requests, waiting and running */
};

/* A request that has a row in the engine. */
struct sched_row {
    struct sched_request *request;
    row_id row;
    int32_t n_ids;      /* prompt and answer so far */
    int32_t n_fed;      /* of them taken by the model: the rest is pending */
    int32_t n_promised; /* ids that its memory is promised for */
    int32_t n_prompt;   /* the most of the prompt that was ever taken or shared */
    int32_t
        n_again; /* ids that had been taken when it gave up its memory: they are taken a second time */
    int32_t n_kept;   /* tokens emitted by then */
    bool is_paused;   /* its reader is slow */
    bool is_parked;   /* has no memory; waits for some, or for: */
    bool is_fetching; /* more of its ids, from disk */
    bool asks_disk;   /* before it goes on: memory may have lost what it had */
    bool is_new;      /* it has not been let in yet */
    bool is_done;     /* retired before the next step */
    int64_t opened_us, first_token_us, last_token_us;
    struct sched_finished result;
};

/* Tokens of a row that nobody has been told of, where the engine has them. */
struct sched_due {
    req_id id;
    int32_t n;
    const struct engine_token *tokens; /* [n] */
    const int64_t *safe_at;            /* [n] */
};

#define SCHED_FLUSHES 16 /* at a time */

struct sched_counters {                /* one writer each unless said; read from anywhere */
    _Atomic int64_t waiting;           /* written by submitters too */
    _Atomic int64_t accepted, refused; /* written by submitters */
    _Atomic int64_t running, paused, finished, cancelled, failed, expired, preempted;
    _Atomic int64_t steps, prompt_tokens, tokens, shared_tokens, recomputed_tokens, cached_tokens,
        drafted_tokens, accepted_tokens;
    _Atomic int64_t last_step_us, step_started_us, disk_waits, mended;
    _Atomic int32_t n_groups; /* written once, after names and sizes */
    const char *group_names[ENGINE_GROUPS_MAX];
    int64_t group_page_bytes[ENGINE_GROUPS_MAX], group_pages[ENGINE_GROUPS_MAX];
    _Atomic int64_t group_free[ENGINE_GROUPS_MAX], group_promised[ENGINE_GROUPS_MAX];
    _Atomic int64_t group_kept[ENGINE_GROUPS_MAX], group_pinned[ENGINE_GROUPS_MAX], pins_lost;
    struct histogram histograms[SCHED_HISTOGRAM_COUNT];
};

struct sched {
    struct sched_config config;
    struct queue mail, events;
    pthread_t thread;
    _Atomic int state;
    struct sched_counters stats;
    _Atomic bool is_woken; /* mail says that the engine has something to tend */
    /* Of the loaded engine, for sched_read_stats; NULL before. */
    _Atomic(struct engine *) shown;
    /* engine thread only from here */
    struct engine *engine;
    bool has_failed; /* the engine cannot go on: */
    struct err failure;
    struct sched_request *first, *last; /* waiting, oldest first */
    struct sched_account *accounts;     /* [n_accounts] */
    int32_t n_accounts;
    double floor;     /* least service of the accounts that have requests: where a new one starts */
    uint64_t n_taken; /* requests ever taken from the mail */
    struct sched_row *rows; /* [n_rows] in order of arrival */
    int32_t n_rows;
    struct engine_work *work; /* [n_work] the step being made */
    struct sched_row **work_rows;
    struct sched_row **prompts; /* scratch: rows with much pending */
    struct engine_result *results;
    int32_t n_work;
    struct sched_due *due; /* [n_due] of the last step; the rows' requests are there */
    int32_t n_due;
    int32_t n_step_prompt; /* tokens of prompts in it */
    int64_t step_start_us, step_end_us;
    double us_per_token;           /* of a prompt, by the last steps; 0 = not known */
    bool has_unread;               /* events pushed since the last wake */
    int64_t tend_us;               /* when the engine is to be tended again; 0 = when it says so */
    req_id flushes[SCHED_FLUSHES]; /* [n_flushes] that are under way */
    int32_t n_flushes;
};

/* --- rank.c --- */
/* The request enters and leaves the count of its account. */
void rank_enter(struct sched *s, struct sched_request *r);
void rank_leave(struct sched *s, struct sched_request *r);
void rank_charge(const struct sched_request *r, double tokens);
/* a is more entitled than b: a strict order of all live requests. */
bool rank_is_before(const struct sched_request *a, const struct sched_request *b);
/* a's class (priority, background) is above b's. */
bool rank_is_above(const struct sched_request *a, const struct sched_request *b);

/* --- admit.c --- */
void sched_expire(struct sched *s); /* deadlines that have passed */
void sched_retire(struct sched *s); /* rows that are done */
void sched_grow(struct sched *s);   /* promises for what the next step writes */
void sched_admit(
    struct sched *s); /* rows that start, or go on after they had given up their memory */
int64_t sched_next_deadline(const struct sched *s);                   /* clock_us(), or 0 */
bool sched_rests(const struct sched *s, const struct sched_row *row); /* takes no part for now */
bool sched_has_sibling_waiting(const struct sched *s, const struct sched_request *r);
void sched_cancel_now(struct sched *s, req_id id);
void sched_end_all(struct sched *s); /* all that is left ends as cancelled */

/* --- step.c --- */
void sched_build_step(struct sched *s);
void sched_forward(struct sched *s);
/* A step has failed (err, which gets what is said if the engine cannot go on: has_failed), with the device or without it: rows are
 * parked, those of the step too. */
void sched_mend(struct sched *s, bool is_lost, struct err *err);
void sched_route(struct sched *s);
/* Events of what is due; and a wake, where there are any that nobody was woken for. */
void sched_deliver(struct sched *s);
void sched_tell(struct sched *s);

/* --- sched.c --- */
void sched_publish(struct sched *s, const struct sched_event *ev);
void sched_wake(struct sched *s);

/* --- stats.c --- */
void sched_stats_init(struct sched_counters *c);
void sched_stats_rows(struct sched *s); /* after any change of rows or memory */

#endif
