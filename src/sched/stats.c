/* stats.c - what other threads may read of the scheduler: atomics, each by itself. */
#include "sched/sched_int.h"

void sched_stats_init(struct sched_counters *c)
{
    for (int i = 0; i < SCHED_HISTOGRAM_COUNT; i++)
        histogram_init(&c->histograms[i], i == SCHED_HISTOGRAM_STEP_ROWS ? &histogram_counts
                                          : i == SCHED_HISTOGRAM_MASK    ? &histogram_micros
                                                                         : &histogram_seconds);
}

void sched_stats_rows(struct sched *s)
{
    struct sched_counters *c = &s->stats;
    struct engine_usage u = { 0 };
    int64_t paused = 0;
    for (int32_t i = 0; i < s->n_rows; i++)
        paused += s->rows[i].is_paused;
    c->running = s->n_rows;
    c->paused = paused;
    s->engine->ops->usage(s->engine, &u);
    for (int32_t i = 0; i < u.n_groups; i++) {
        if (c->n_groups == 0) {
            c->group_names[i] = u.groups[i].name;
            c->group_page_bytes[i] = u.groups[i].page_bytes;
            c->group_pages[i] = u.groups[i].n_pages;
        }
        c->group_free[i] = u.groups[i].n_free;
        c->group_promised[i] = u.groups[i].n_promised;
        c->group_kept[i] = u.groups[i].n_kept;
        c->group_pinned[i] = u.groups[i].n_pinned;
    }
    c->pins_lost = u.n_pins_lost;
    if (c->n_groups == 0)
        c->n_groups = u.n_groups;
}

static void sched_read_cache(const struct sched_counters *c, struct engine_usage *out)
{
    out->n_groups = c->n_groups;
    out->n_pins_lost = c->pins_lost;
    for (int32_t i = 0; i < out->n_groups; i++) {
        out->groups[i].name = c->group_names[i];
        out->groups[i].page_bytes = c->group_page_bytes[i];
        out->groups[i].n_pages = c->group_pages[i];
        out->groups[i].n_free = c->group_free[i];
        out->groups[i].n_promised = c->group_promised[i];
        out->groups[i].n_kept = c->group_kept[i];
        out->groups[i].n_pinned = c->group_pinned[i];
    }
}

void sched_read_stats(const struct sched *s, struct sched_stats *out)
{
    const struct sched_counters *c = &s->stats;
    *out = (struct sched_stats){
        .waiting = c->waiting,
        .running = c->running,
        .paused = c->paused,
        .accepted = c->accepted,
        .finished = c->finished,
        .cancelled = c->cancelled,
        .failed = c->failed,
        .expired = c->expired,
        .refused = c->refused,
        .preempted = c->preempted,
        .steps = c->steps,
        .prompt_tokens = c->prompt_tokens,
        .tokens = c->tokens,
        .shared_tokens = c->shared_tokens,
        .recomputed_tokens = c->recomputed_tokens,
        .cached_tokens = c->cached_tokens,
        .drafted_tokens = c->drafted_tokens,
        .accepted_tokens = c->accepted_tokens,
        .last_step_us = c->last_step_us,
        .step_started_us = c->step_started_us,
        .disk_waits = c->disk_waits,
        .mended = c->mended,
    };
    const struct engine *e = atomic_load(&s->shown);
    if (e && e->ops->disk_stats)
        e->ops->disk_stats(e, &out->disk);
    sched_read_cache(c, &out->cache);
    for (int i = 0; i < SCHED_HISTOGRAM_COUNT; i++)
        histogram_read(&c->histograms[i], &out->histograms[i]);
}
