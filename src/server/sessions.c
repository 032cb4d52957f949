#include "server/sessions.h"

#include <string.h>

#define PAGE 64 /* tokens of a page of the engine's cache */

static bool is_like(const struct session *x, const struct session_record *like)
{
    return !x->is_gone && strcmp(x->record.name, like->name) == 0 &&
           memcmp(x->record.who, like->who, sizeof(like->who)) == 0 &&
           memcmp(x->record.salt, like->salt, sizeof(like->salt)) == 0 &&
           strcmp(x->record.model, like->model) == 0;
}

struct session *sessions_find(const struct sessions *s, const struct session_record *like)
{
    struct session *x = s->first;
    while (x && !is_like(x, like))
        x = x->next;
    return x;
}

struct session *sessions_add(struct sessions *s, const struct session_record *like, uint64_t key,
                             int64_t now_s)
{
    struct session *x = mem_alloc(MEM_CAT_SERVER, sizeof(*x));
    x->record = *like;
    x->record.n_histories = 0;
    x->record.created_s = x->used_s = now_s;
    x->record.saved_s = 0;
    x->key = key;
    x->age = s->next_age++;
    x->next = s->first;
    s->first = x;
    s->n++;
    return x;
}

struct session *sessions_victim(const struct sessions *s, const unsigned char *who, bool is_new)
{
    int32_t n_own = 0;
    struct session *oldest = NULL;
    for (const struct session *x = s->first; x; x = x->next)
        n_own += !x->is_gone && memcmp(x->record.who, who, SESSION_WHO_BYTES) == 0;
    bool is_own = n_own + is_new > LIMIT_SESSIONS / 2;
    if (!is_own && s->n + is_new <= LIMIT_SESSIONS && s->bytes <= LIMIT_SESSION_IDS)
        return NULL;
    for (struct session *x = s->first; x; x = x->next)
        if (!x->is_gone && x->n_live == 0 && (!oldest || x->age < oldest->age) &&
            (!is_own || memcmp(x->record.who, who, SESSION_WHO_BYTES) == 0))
            oldest = x;
    return oldest;
}

static void session_free(struct sessions *s, struct session *session)
{
    struct session **at = &s->first;
    while (*at != session)
        at = &(*at)->next;
    *at = session->next;
    session_record_release(&session->record);
    mem_free(MEM_CAT_SERVER, session);
}

static size_t session_bytes(const struct session *x)
{
    size_t n = 0;
    for (int32_t i = 0; i < x->record.n_histories; i++)
        n += (size_t)x->record.histories[i].n * sizeof(int32_t);
    return n;
}

void sessions_remove(struct sessions *s, struct session *session)
{
    s->n--;
    s->bytes -= session_bytes(session);
    session->is_gone = true;
    if (session->n_live == 0)
        session_free(s, session);
}

void sessions_ref(struct sessions *s, struct session *session, int64_t now_s)
{
    session->n_live++;
    session->used_s = now_s;
    session->age = s->next_age++;
}

bool sessions_unref(struct sessions *s, struct session *session)
{
    session->n_live--;
    if (session->n_live > 0 || !session->is_gone)
        return false;
    session_free(s, session);
    return true;
}

/* --- histories --- */

static int32_t count_alike(const struct session_history *h, const int32_t *ids, int32_t n)
{
    int32_t i = 0;
    while (i < n && i < h->n && ids[i] == h->ids[i])
        i++;
    return i;
}

/* The place of a new history; -1: there is one that goes on with it. */
static int32_t history_place(const struct session_record *r, const int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < r->n_histories; i++) {
        const struct session_history *h = &r->histories[i];
        int32_t alike = count_alike(h, ids, n);
        if (alike == n && h->n > n)
            return -1;
        if (alike >= h->n / PAGE * PAGE)
            return i;
    }
    return r->n_histories < SESSION_BRANCHES ? r->n_histories : SESSION_BRANCHES - 1;
}

void sessions_put(struct sessions *s, struct session *session, const int32_t *ids, int32_t n,
                  int32_t cut)
{
    struct session_record *r = &session->record;
    int32_t at = history_place(r, ids, n);
    int32_t *copy = mem_try_array(MEM_CAT_SERVER, (size_t)n, sizeof(*copy));
    session->n_turns++;
    if (at < 0 || !copy) {
        mem_free(MEM_CAT_SERVER, copy);
        return;
    }
    size_t before = session_bytes(session);
    memcpy(copy, ids, (size_t)n * sizeof(*copy));
    if (at == r->n_histories)
        r->n_histories++;
    else
        mem_free(MEM_CAT_SERVER, r->histories[at].ids);
    memmove(&r->histories[1], &r->histories[0], (size_t)at * sizeof(r->histories[0]));
    r->histories[0] = (struct session_history){ .ids = copy, .n = n, .cut = cut <= n ? cut : 0 };
    if (!session->is_gone)
        s->bytes += session_bytes(session) - before;
}

void sessions_release(struct sessions *s)
{
    while (s->first)
        session_free(s, s->first);
}
