/* rank.c - who goes first: classes, then the service that a request's account has had, then age.
 *
 * The counters are those of Sheng et al., "Fairness in Serving Large Language Models" (2024): a prompt's tokens are charged when
 * it is admitted, an answer's as they come; an account that comes back starts no lower than the least served one that is there. */
#include "sched/sched_int.h"

static double rank_floor(const struct sched *s)
{
    double least = -1;
    for (int32_t i = 0; i < s->n_accounts; i++)
        if (s->accounts[i].n_live > 0 && (least < 0 || s->accounts[i].service < least))
            least = s->accounts[i].service;
    return least > s->floor ? least : s->floor;
}

/* The key's account, or the one of those without requests that had least: what it forgets is least. One is free, because there are more
 * accounts than live requests. */
static struct sched_account *rank_account(struct sched *s, uint64_t key)
{
    struct sched_account *spare = NULL;
    for (int32_t i = 0; i < s->n_accounts; i++) {
        struct sched_account *a = &s->accounts[i];
        if (a->key == key)
            return a;
        if (a->n_live == 0 && (!spare || a->service < spare->service))
            spare = a;
    }
    BUG_ON(!spare);
    *spare = (struct sched_account){ .key = key };
    return spare;
}

void rank_enter(struct sched *s, struct sched_request *r)
{
    s->floor = rank_floor(s);
    r->seq = ++s->n_taken;
    r->account = rank_account(s, r->key);
    if (r->account->n_live++ == 0 && r->account->service < s->floor)
        r->account->service = s->floor;
}

void rank_leave(struct sched *s, struct sched_request *r)
{
    s->floor = rank_floor(s);
    r->account->n_live--;
}

void rank_charge(const struct sched_request *r, double tokens)
{
    r->account->service += tokens;
}

bool rank_is_above(const struct sched_request *a, const struct sched_request *b)
{
    if (a->is_background != b->is_background)
        return b->is_background;
    return a->priority < b->priority;
}

bool rank_is_before(const struct sched_request *a, const struct sched_request *b)
{
    if (rank_is_above(a, b) || rank_is_above(b, a))
        return rank_is_above(a, b);
    if (a->account->service != b->account->service)
        return a->account->service < b->account->service;
    return a->seq < b->seq;
}
