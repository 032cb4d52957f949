/* drafters.c - drafters that know the answers, or never do. */
#include "base/philox.h"
#include "exact.h"

#include <string.h>

static struct truth {
    const int32_t *prompt;
    int32_t ids[EXACT_ANSWER_MAX], n;
} truths[EXACT_REQUESTS_MAX];

void exact_truth_set(int i, const int32_t *prompt, const int32_t *ids, int32_t n)
{
    truths[i].prompt = prompt;
    truths[i].n = n;
    memcpy(truths[i].ids, ids, (size_t)n * sizeof(*ids));
}

struct oracle {
    struct drafter base; /* first: the vtable casts */
    enum drafts drafts;
    uint32_t n_asked;
    struct {
        const struct truth *truth; /* NULL = a request that is not known */
        int32_t n_prompt;
    } rows[EXACT_REQUESTS_MAX + 1];
};

static enum err_code oracle_open(struct drafter *d, row_id row, const struct engine_request *req,
                                 int32_t ids_max, struct err *err)
{
    struct oracle *o = (struct oracle *)(void *)d;
    (void)ids_max;
    (void)err;
    o->rows[row].truth = NULL;
    o->rows[row].n_prompt = req->n_prompt;
    for (int i = 0; i < EXACT_REQUESTS_MAX; i++)
        if (truths[i].prompt == req->prompt)
            o->rows[row].truth = &truths[i];
    return ERR_OK;
}

static void oracle_close(struct drafter *d, row_id row, const int32_t *ids, int32_t n_ids)
{
    (void)d;
    (void)row;
    (void)ids;
    (void)n_ids;
}

static void oracle_draft_row(struct oracle *o, struct draft_ask *a)
{
    const struct truth *t = o->rows[a->row].truth;
    uint32_t counter[4] = { o->n_asked++, 0, 0, 0 }, key[2] = { 3, 5 }, dice[4];
    philox4x32(counter, key, dice);
    int32_t at = a->n_ids - o->rows[a->row].n_prompt;
    int32_t n = o->drafts == DRAFTS_RANDOM ? (int32_t)(dice[0] % (DRAFT_MAX + 1)) : DRAFT_MAX;
    n = n < a->n_max ? n : a->n_max;
    memset(a->sure, (int)(dice[1] % DRAFT_CLASSES), sizeof(a->sure));
    for (a->n = 0; a->n < n; a->n++) {
        bool is_known = t && at + a->n < t->n;
        bool is_right = o->drafts == DRAFTS_RIGHT ||
                        (o->drafts == DRAFTS_RANDOM && (dice[2] >> 2 * (a->n % 16) & 3) > 0);
        int32_t id = is_known ? t->ids[at + a->n] : a->ids[a->n_ids - 1];
        a->ids_out[a->n] = is_right ? id : id > 0 ? id - 1 : 1;
    }
}

static void oracle_draft(struct drafter *d, struct draft_ask *asks, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        oracle_draft_row((struct oracle *)(void *)d, &asks[i]);
}

static void oracle_free(struct drafter *d)
{
    mem_free(MEM_CAT_BASE, d);
}

static const struct drafter_ops oracle_ops = { .name = "oracle",
                                               .open = oracle_open,
                                               .draft = oracle_draft,
                                               .close = oracle_close,
                                               .free = oracle_free };

const char *exact_projected(enum drafts drafts)
{
    return drafts == DRAFTS_DFLASH          ? EXACT_PROJECTED "dflash"
           : drafts == DRAFTS_DFLASH_WINDOW ? EXACT_PROJECTED "dflash-window"
           : drafts == DRAFTS_DFLASH2       ? EXACT_PROJECTED "dflash2"
           : drafts == DRAFTS_DSPARK        ? EXACT_PROJECTED "dspark"
                                            : NULL;
}

enum err_code exact_drafter_new(enum drafts drafts, int32_t max_rows, struct drafter **out,
                                struct err *err)
{
    *out = NULL;
    if (drafts == DRAFTS_NONE || drafts == DRAFTS_MODEL || drafts == DRAFTS_HEAD ||
        exact_projected(drafts))
        return ERR_OK;
    if (drafts == DRAFTS_LOOKUP || drafts == DRAFTS_LOOKUP_AUTO || drafts == DRAFTS_EXPECTED)
        return draft_lookup_new(max_rows, out, err);
    struct oracle *o = mem_alloc(MEM_CAT_BASE, sizeof(*o));
    o->base.ops = &oracle_ops;
    o->drafts = drafts;
    *out = &o->base;
    return ERR_OK;
}
