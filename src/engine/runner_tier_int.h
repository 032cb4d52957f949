/* runner_tier_int.h - kept histories between memory and disk: what runner_tier.c (writing, turns, life) and runner_fetch.c (reading)
 * share. */
#ifndef PLUMB_ENGINE_RUNNER_TIER_INT_H
#define PLUMB_ENGINE_RUNNER_TIER_INT_H

#include "engine/runner_int.h"

struct fetch {
    bool is_wanted;     /* in line, or being read */
    const int32_t *ids; /* the caller's [n] */
    int32_t n;
    uint8_t salt[ENGINE_SALT_BYTES];
    int64_t since_us;
    uint64_t ticket; /* order of arrival, and the tag of its jobs */
    int32_t n_read;  /* ids that came */
};

struct runner_tier {
    struct tier *tier;
    struct tier_key *keys; /* [nodes of the tree] */
    int32_t *wishes;       /* [wish_cap] ring of nodes to write; -1 = gone */
    int32_t *wish_at;      /* [nodes of the tree] place in the ring; -1 = none, WISH_OUT */
    int32_t wish_cap, wish_first, n_wishes;
    struct fetch *fetches; /* [max_seqs] */
    uint64_t next_ticket;
    /* The fetch that is being read. */
    int32_t active; /* sequence; -1 = none */
    int64_t deadline_us;
    int32_t level, n_levels; /* nodes of the prompt: next to ask for, last to ask for + 1 */
    int32_t n_out;           /* reads that are not back */
    struct tier_key at;      /* key of the node before `level` */
    bool has_last;           /* then: */
    struct tier_record last;
    int32_t last_run; /* of its ids */
    double seconds;   /* that computing all that would take */
    bool has_waited;  /* for the index, in vain: nobody does any more */
    /* A flush. */
    uint64_t flush_id; /* tag of its sync */
    bool is_flushing, is_syncing;
    bool is_flush_over, is_durable;
    int32_t n_flush_wishes;                 /* of the line, the first so many are the flush's */
    int64_t dropped_before, flush_until_us; /* until then something must come back from the disk */
};

/* Page `page` of a group's layers, or a slot, to (is_out) or from `bytes`. Returns what follows. */
uint8_t *runner_move_page(struct runner *r, int group, int32_t page, uint8_t *bytes, bool is_out);
uint8_t *runner_move_slot(struct runner *r, int32_t slot, uint8_t *bytes, bool is_out);

/* The next in line begins, if memory still lacks what it wants; then ask for as much as there are buffers for. */
void fetch_begin(struct runner *r);
void fetch_ask(struct runner *r);
/* A read of the active fetch came back. */
void fetch_back(struct runner *r, const struct tier_job *job);
void fetch_over(struct runner_tier *t);
/* What waits or reads for too long ends. Returns the clock_us() at which that is due next; 0 = nothing is. */
int64_t fetch_expire(struct runner *r);

#endif
