/* sessions.h - the sessions that the server knows: which histories each client's conversations have left, by their ids.
 *
 * What a session is called is the client's affair: the same name of another API key or cache_salt is another session. Ids are kept for
 * saving alone: no prompt is made of them, so that no answer depends on what is remembered here.
 * Bounded by LIMIT_SESSIONS and LIMIT_SESSION_IDS: sessions_victim says who goes. Thread: I/O thread. */
#ifndef PLUMB_SERVER_SESSIONS_H
#define PLUMB_SERVER_SESSIONS_H

#include "server/session_record.h"

struct session {
    struct session *next;
    struct session_record record; /* its histories: the newest first */
    uint64_t key;                 /* what the engine calls it; never 0 */
    int64_t used_s;
    uint64_t age; /* by last use */
    int64_t n_turns;
    int32_t n_live; /* calls that refer to it */
    bool is_gone;   /* it was deleted, and goes with its last call */
};

struct sessions {
    struct session *first;
    int32_t n;    /* that are not gone */
    size_t bytes; /* of their ids */
    uint64_t next_age;
};

/* That of who, salt, model and name of `like`; NULL. */
struct session *sessions_find(const struct sessions *s, const struct session_record *like);
/* A new one. */
struct session *sessions_add(struct sessions *s, const struct session_record *like, uint64_t key,
                             int64_t now_s);
/* Who is to go before another one of that key begins, or because ids take too much: the session unused for longest without calls, of that
 * key where it has half of all. NULL: nobody need. */
struct session *sessions_victim(const struct sessions *s, const unsigned char *who, bool is_new);
/* It is not found any more; freed, now or by the last sessions_unref. */
void sessions_remove(struct sessions *s, struct session *session);
void sessions_ref(struct sessions *s, struct session *session, int64_t now_s);
/* True: it had been removed, and this was the last call of it. */
bool sessions_unref(struct sessions *s, struct session *session);

/* A history: ids [n] (copied). It takes the place of the one that it goes on with (what differs within the last KV_PAGE_TOKENS does not
 * count), or of the oldest where there are SESSION_BRANCHES. Not enough memory: nothing happens. */
void sessions_put(struct sessions *s, struct session *session, const int32_t *ids, int32_t n,
                  int32_t cut);
void sessions_release(struct sessions *s);

#endif
