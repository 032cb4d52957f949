#include "engine/speculate.h"

#include <string.h>

#define STEP_COST_NEW 0.2f /* a new time's share of the mean */
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
    double rate = (all->taken[sure] + 1) / (all->n[sure] + 2);
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

int32_t speculate_plan(const struct step_cost *c, int32_t n_rows, struct draft_ask *asks,
                       const double *chance, int32_t n, int32_t n_decode, int32_t n_max)
{
    double reach[STEP_COST_ROWS], cost = step_cost_of(c, n_rows), tokens = n_decode;
    int32_t used[STEP_COST_ROWS] = { 0 }, kept[STEP_COST_ROWS] = { 0 }, n_kept = 0;
    double best = cost > 0 ? tokens / cost * PLAN_MARGIN : 0;
    n = n < STEP_COST_ROWS ? n : STEP_COST_ROWS;
    for (int32_t i = 0; i < n; i++)
        reach[i] = chance[i];
    for (int32_t m = 1; m <= n_max && n_rows + m <= STEP_COST_ROWS; m++) {
        int32_t i = plan_next(asks, reach, used, n);
        if (i < 0)
            break;
        used[i]++;
        tokens += reach[i];
        reach[i] *= chance[i];
        cost = step_cost_of(c, n_rows + m);
        if (cost <= 0 || tokens / cost <= best)
            continue;
        best = tokens / cost;
        n_kept = m;
        memcpy(kept, used, sizeof(kept));
    }
    for (int32_t i = 0; i < n; i++)
        asks[i].n = kept[i];
    return n_kept;
}
