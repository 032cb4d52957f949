#include "engine/speculate.h"

#include <string.h>

#define STEP_COST_NEW 0.2f /* a new time's share of the mean */
/* A count that is not measured again comes nearer by this to the line of those below with each step: a time that something else had
 * spoilt must not forbid it for good. Seen: 19 ms for the first step of 3 rows, where one took 5 ms, and no guess was verified after it. */
#define STEP_COST_FADE 0.02f
#define STEP_COST_SLOPE \
    0.06 /* of a step of one row, for each row more: 1.14 at 4 rows, 1.4 at 8 (docs/performance.md) */
#define RATE_MEMORY 32 /* guesses that count; older ones fade */
#define RATE_PRIOR \
    1 /* guesses that a row's own rate begins with, at all rows' rate: a losing row is off after ten */
#define PLAN_MARGIN 1.03 /* what is expected must gain so much: times wander by as much */

void step_cost_add(struct step_cost *c, int32_t n_rows, int64_t us)
{
    if (n_rows < 1 || n_rows > STEP_COST_ROWS || us <= 0)
        return;
    float *mean = &c->us[n_rows], now = (float)us;
    if (*mean > 0 && now > 2 * *mean)
        now = 2 * *mean; /* something else took the processor */
    *mean = *mean > 0 ? *mean + STEP_COST_NEW * (now - *mean) : now;
    float one = *mean / (float)(1 + STEP_COST_SLOPE * (n_rows - 1));
    for (int32_t i = n_rows + 1; i <= STEP_COST_ROWS; i++) {
        float line = one * (float)(1 + STEP_COST_SLOPE * (i - 1));
        if (c->us[i] > line)
            c->us[i] -= STEP_COST_FADE * (c->us[i] - line);
    }
}

double step_cost_of(const struct step_cost *c, int32_t n_rows)
{
    int32_t n = n_rows < STEP_COST_ROWS ? n_rows : STEP_COST_ROWS, below = n, above = n + 1;
    double low = 0, one = 0;
    while (below > 0 && c->us[below] <= 0)
        below--;
    while (above <= STEP_COST_ROWS && c->us[above] <= 0)
        above++;
    if (below == 0 && above > STEP_COST_ROWS)
        return 0;
    for (int32_t i = 1; i <= below; i++) /* noise does not make more rows cheaper */
        low = c->us[i] > low ? c->us[i] : low;
    if (below == 0)
        return c->us[above] / (1 + STEP_COST_SLOPE * (above - 1)) * (1 + STEP_COST_SLOPE * (n - 1));
    if (below == n)
        return low;
    if (above <= STEP_COST_ROWS && c->us[above] > low)
        return low + (c->us[above] - low) * (n - below) / (above - below);
    if (above <= STEP_COST_ROWS)
        return low;
    one = low / (1 + STEP_COST_SLOPE * (below - 1));
    return low + one * STEP_COST_SLOPE * (n_rows - below);
}

void draft_rate_add(struct draft_rate *r, int32_t sure, bool is_taken)
{
    float keep = 1 - 1.0f / RATE_MEMORY;
    r->n[sure] = r->n[sure] * keep + 1;
    r->taken[sure] = r->taken[sure] * keep + (float)is_taken;
}

double draft_rate_of(const struct draft_rate *row, const struct draft_rate *all, int32_t sure)
{
    /* Of a draft model the middle of what it gives, and enough to begin with. */
    static const float first[DRAFT_CLASSES] = { 0.5f,  0.5f,  0.5f,  0.5f, 0.5f,  0.5f,  0.5f,
                                                0.5f,  0.15f, 0.4f,  0.6f, 0.75f, 0.85f, 0.9f,
                                                0.95f, 0.98f, 0.75f, 0.5f, 0.75f };
    double rate = (all->taken[sure] + 2 * first[sure]) / (all->n[sure] + 2);
    return (row->taken[sure] + RATE_PRIOR * rate) / (row->n[sure] + RATE_PRIOR);
}

/* The guess that is likeliest to be reached of those that are not counted yet; -1 = none is left. */
static int32_t plan_next(const struct draft_ask *asks, const double *reach, const int32_t *used,
                         int32_t n)
{
    int32_t best = -1;
    for (int32_t i = 0; i < n; i++)
        if (used[i] < asks[i].n && (best < 0 || reach[i] > reach[best]))
            best = i;
    return best;
}

/* us in which the guesses that are due are made: one after another or in a block, of all rows together. */
static double plan_slow_us(const struct drafter *slow, const struct draft_ask *asks,
                           const int32_t *used, int32_t n)
{
    double us = 0;
    int32_t n_levels = slow && slow->ops->is_block ? 1 : DRAFT_MAX;
    for (int32_t level = 1; slow && level <= n_levels; level++) {
        int32_t n_rows = 0;
        for (int32_t i = 0; i < n; i++)
            n_rows += asks[i].is_due && used[i] >= level;
        if (n_rows == 0)
            break;
        us += slow->ops->guess_us(slow, n_rows);
    }
    return us;
}

double speculate_plan(const struct step_cost *c, const struct drafter *slow,
                      const struct speculate_room *room, struct draft_ask *asks, int32_t n)
{
    double reach[STEP_COST_ROWS], cost = step_cost_of(c, room->n_rows), tokens = room->n_decode;
    int32_t used[STEP_COST_ROWS] = { 0 }, kept[STEP_COST_ROWS] = { 0 };
    double rate = cost > 0 ? tokens / cost : 0, best = rate * PLAN_MARGIN;
    for (int32_t i = STEP_COST_ROWS; i < n; i++)
        asks[i].n = 0;
    n = n < STEP_COST_ROWS ? n : STEP_COST_ROWS;
    for (int32_t i = 0; i < n; i++)
        reach[i] = asks[i].chance[0];
    for (int32_t m = 1; m <= room->n_max && room->n_rows + m <= STEP_COST_ROWS; m++) {
        int32_t i = plan_next(asks, reach, used, n);
        if (i < 0)
            break;
        tokens += reach[i];
        if (++used[i] < asks[i].n)
            reach[i] *= asks[i].chance[used[i]];
        cost = step_cost_of(c, room->n_rows + m) + plan_slow_us(slow, asks, used, n);
        if (cost <= 0 || tokens / cost <= best)
            continue;
        best = rate = tokens / cost;
        memcpy(kept, used, sizeof(kept));
    }
    for (int32_t i = 0; i < n; i++)
        asks[i].n = kept[i];
    return rate;
}
