/* sample_cands.c - candidates in order, sorted as far as somebody asks. */
#include "engine/sample_int.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define SAMPLE_SORT_MIN \
    64 /* candidates sorted at a time, doubling: most draws end within the first lot */
#define SAMPLE_SORT_PART \
    32 /* of those held, in later lots: to sort them costs as much as to find them */
#define SAMPLE_SORT_MANY 512
#define SAMPLE_BAND \
    8.0f /* logits below the best that the first look takes in, then as many again, then doubling */

/* Many keys: by digits of 11 bits, the lowest first, leaving out those that all share (262,144 keys: 3.7 ms, by merging
 * 17; 512: 6 us and 16). n > 0. */
static void cands_sort_many(uint64_t *keys, uint64_t *tmp, int32_t n)
{
    enum { BITS = 11, DIGITS = 6, VALUES = 1 << BITS };
    uint64_t *from = keys, *to = tmp;
    int32_t counts[DIGITS][VALUES];
    memset(counts, 0, sizeof(counts));
    for (int32_t i = 0; i < n; i++)
        for (int d = 0; d < DIGITS; d++)
            counts[d][keys[i] >> BITS * d & (VALUES - 1)]++;
    for (int d = 0; d < DIGITS; d++) {
        int32_t *at = counts[d], sum = 0;
        if (at[keys[0] >> BITS * d & (VALUES - 1)] == n)
            continue;
        for (int v = 0; v < VALUES; v++) {
            int32_t count = at[v];
            at[v] = sum;
            sum += count;
        }
        for (int32_t i = 0; i < n; i++)
            to[at[from[i] >> BITS * d & (VALUES - 1)]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != keys)
        memcpy(keys, from, (size_t)n * sizeof(*keys));
}

/* Few: merge sort, from runs of 8 by insertion. */
void cands_sort_keys(uint64_t *keys, uint64_t *tmp, int32_t n)
{
    int32_t n_ascending = 1;
    while (n_ascending < n && keys[n_ascending - 1] < keys[n_ascending])
        n_ascending++;
    if (n_ascending >= n) /* equal logits: made with ascending ids */
        return;
    if (n >= SAMPLE_SORT_MANY) {
        cands_sort_many(keys, tmp, n);
        return;
    }
    for (int32_t a = 0; a < n; a += 8) {
        int32_t b = a + 8 < n ? a + 8 : n;
        for (int32_t i = a + 1; i < b; i++) {
            uint64_t k = keys[i];
            int32_t j = i;
            for (; j > a && keys[j - 1] > k; j--)
                keys[j] = keys[j - 1];
            keys[j] = k;
        }
    }
    for (int32_t width = 8; width < n; width *= 2) {
        for (int32_t a = 0; a < n; a += 2 * width) {
            int32_t mid = n - a > width ? a + width : n;
            int32_t end = n - mid > width ? mid + width : n;
            int32_t i = a, j = mid;
            for (int32_t o = a; o < end; o++)
                tmp[o] = j >= end || (i < mid && keys[i] <= keys[j]) ? keys[i++] : keys[j++];
        }
        memcpy(keys, tmp, (size_t)n * sizeof(*keys));
    }
}

void cands_restart(struct cands *c)
{
    c->n_held = c->n_sorted = 0;
    c->floor = INFINITY;
    c->width = SAMPLE_BAND;
}

/* Make keys of all candidates with logits in [lo, hi). Whole blocks without one are passed over by vector code. */
static void cands_hold_logits(struct cands *c, float lo, float hi)
{
    enum { BLOCK = 64 };
    lo = lo > c->last ? lo : c->last;
    for (int32_t b = 0; b < c->n_vocab; b += BLOCK) {
        const float *l = c->logits + b;
        int32_t n = c->n_vocab - b < BLOCK ? c->n_vocab - b : BLOCK, any = 0;
        for (int32_t i = 0; i < n; i++)
            any |= (l[i] >= lo) & !(l[i] >= hi);
        for (int32_t i = 0; any && i < n; i++)
            if (l[i] >= lo && !(l[i] >= hi) && (l[i] > lo || cands_has(c, b + i)))
                c->keys[c->n_held++] = shortlist_key(shortlist_order(l[i]), b + i);
    }
}

/* Take those of the list. */
static void cands_hold_listed(struct cands *c, float lo, float hi)
{
    for (int i = 0; i < SHORTLIST_PARTS; i++) {
        const struct shortlist_part *p = &c->list->parts[i];
        for (int32_t k = 0; k < p->n; k++) {
            float logit = cands_key_logit(p->keys[k]);
            if (logit >= lo && !(logit >= hi) && shortlist_key_order(p->keys[k]) >= c->list_floor)
                c->keys[c->n_held++] = p->keys[k];
        }
    }
}

/* The next band: logits in [floor - width, floor). */
static void cands_hold(struct cands *c)
{
    float hi = c->floor, lo = hi - c->width;
    if (hi == INFINITY)
        lo = c->max - c->width;
    bool is_listed = c->list && c->list_floor > 0 && lo <= shortlist_logit(c->list_floor);
    if (!(lo > -1e4f) || is_listed) /* so far below nothing is worth a band of its own */
        lo = -FLT_MAX;
    if (c->list)
        cands_hold_listed(c, lo, hi);
    else
        cands_hold_logits(c, lo, hi);
    c->floor = lo;
    c->width = hi == INFINITY ? SAMPLE_BAND : c->width * 2;
}

/* Sort the next lot of those that are held, at least `want` in all where there are so many. The lot is found by a histogram of the
 * keys between the last sorted one and the band's end, so the cost is linear in their number with a small factor and no input is bad. */
static void cands_sort_lot(struct cands *c, int32_t want)
{
    int32_t need = want - c->n_sorted;
    uint64_t *keys = c->keys + c->n_sorted;
    int32_t n = c->n_held - c->n_sorted, m = n;
    if (need < c->n_sorted)
        need = c->n_sorted;
    if (need < SAMPLE_SORT_MIN)
        need = SAMPLE_SORT_MIN;
    if (c->n_sorted >= SAMPLE_SORT_MIN && need < n / SAMPLE_SORT_PART)
        need = n / SAMPLE_SORT_PART;
    if (need < n) {
        int32_t histogram[4096] = { 0 }, shift = 0;
        uint64_t first = c->n_sorted ? keys[-1] : shortlist_key(shortlist_order(c->max), 0);
        uint64_t end = shortlist_key(shortlist_order(c->floor), -1);
        while ((end - first) >> shift >= ARRAY_LEN(histogram))
            shift++;
        for (int32_t i = 0; i < n; i++)
            histogram[(keys[i] - first) >> shift]++;
        uint64_t last = 0;
        int32_t sum = histogram[0];
        while (sum < need)
            sum += histogram[++last];
        last = first + ((last + 1) << shift) - 1;
        m = 0;
        for (int32_t i = 0; i < n; i++) {
            uint64_t k = keys[i];
            if (k > last)
                continue;
            keys[i] = keys[m];
            keys[m++] = k;
        }
    }
    cands_sort_keys(keys, c->tmp, m);
    c->n_sorted += m;
}

bool cands_sort(struct cands *c, int32_t want)
{
    if (want > c->n)
        want = c->n;
    while (c->n_sorted < want) {
        while (c->n_held == c->n_sorted && c->floor > -FLT_MAX)
            cands_hold(c);
        if (c->n_held == c->n_sorted)
            break;
        cands_sort_lot(c, want);
    }
    c->is_unknown = c->is_unknown || (c->list && c->n_sorted < want);
    return !c->is_unknown;
}

void cands_keep(struct cands *c, int32_t n)
{
    c->is_cut = c->is_cut || n < c->n;
    c->n = c->n_held = c->n_sorted = n;
}

void cands_cut(struct cands *c, int32_t n)
{
    BUG_ON(n < 1 || n > c->n);
    if (n < c->n && cands_sort(c, n))
        cands_keep(c, n);
}

void cands_cut_behind(struct cands *c, uint64_t last)
{
    int32_t n = 0;
    c->last = cands_key_logit(last);
    c->last_id = cands_key_id(last);
    for (int32_t i = 0; i < c->n_vocab; i++)
        n += cands_has(c, i);
    c->is_cut = c->is_cut || n < c->n;
    c->n = n;
    cands_restart(c);
    if (n <= c->n_vocab / 32 && cands_sort(c, n))
        cands_keep(c, n);
}

void cands_drop(struct cands *c, int32_t n, const int32_t *keep, int32_t n_keep)
{
    int32_t n_kept = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = cands_key_id(c->keys[i]), k = 0;
        while (k < n_keep && keep[k] != id)
            k++;
        if (k < n_keep)
            c->keys[n_kept++] = c->keys[i];
        else
            c->dropped[c->n_dropped++] = id;
    }
    memmove(c->keys + n_kept, c->keys + n, (size_t)(c->n_held - n) * sizeof(*c->keys));
    c->is_cut = c->is_cut || c->n_dropped > 0;
    c->n -= c->n_dropped;
    c->n_held -= c->n_dropped;
    c->n_sorted -= c->n_dropped;
}

/* Of all of the vocabulary; nothing is held. */
static struct cands cands_of(struct sampler *s, float max)
{
    return (struct cands){ .n_vocab = s->n_vocab,
                           .keys = s->keys,
                           .tmp = s->tmp,
                           .alt = s->alt,
                           .dropped = (int32_t *)s->alt,
                           .last = -FLT_MAX,
                           .last_id = INT32_MAX,
                           .n = s->n_vocab,
                           .max = max };
}

void cands_init(struct cands *c, struct sampler *s, const float *logits, float max, bool may_lack)
{
    *c = cands_of(s, max);
    c->logits = logits;
    for (int32_t i = 0; may_lack && i < s->n_vocab; i++)
        c->n -= logits[i] == -INFINITY;
    cands_restart(c);
}

void cands_init_list(struct cands *c, struct sampler *s, const struct shortlist *list)
{
    *c = cands_of(s, list->parts[0].max);
    c->list = list;
    for (int i = 0; i < SHORTLIST_PARTS; i++)
        if (list->parts[i].floor > c->list_floor)
            c->list_floor = list->parts[i].floor;
    cands_restart(c);
}
