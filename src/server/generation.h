/* generation.h - an answer (or several of one request) that outlives its connections, and what the journal is told of it.
 *
 * Its tokens are kept in memory while anybody makes or reads them, and written behind to the journal: every `checkpoint` tokens, at
 * most a second late. Whoever reads shows them by means of his own: what may be shown after each token is found by the same guide that
 * the engine steps, so a token that was emitted before a restart shows what it showed then.
 * Does not know: connections, dialects' forms. Thread: I/O thread. */
#ifndef PLUMB_SERVER_GENERATION_H
#define PLUMB_SERVER_GENERATION_H

#include "engine/guide.h"
#include "server/journal.h"
#include "server/prepare.h"

struct call;

struct generation_choice {
    struct journal_tokens tokens;
    struct buf safe; /* int64_t: bytes of the answer that may be shown after each token */
    struct guide guide;
    int32_t n_given;   /* tokens that a record had: not computed again but for the last */
    int32_t n_written; /* tokens that the journal has been given */
    bool is_done;      /* all that is wanted is there; the model goes on until it hears of it */
    bool is_over, is_end_written;
    struct sched_finished end; /* is_over */
};

struct generation {
    struct generation *prev, *next; /* of the server's */
    struct journal *journal;
    int32_t checkpoint; /* tokens between two writes, at most */
    int32_t n_refs;     /* calls that make or read it */
    int32_t n_readers;  /* of these, readers that have not gone */
    struct call *maker; /* NULL: nothing comes any more */
    enum prepare_kind kind;
    char name[JOURNAL_NAME_BYTES];
    struct journal_head head;
    struct buf body;
    struct journal_record *record; /* that was found; until its tokens are taken over */
    struct prepared *prepared;
    struct generation_choice *choices; /* [head.n_choices] once prepared */
    bool is_ready;                     /* accepted: readers have begun */
    bool is_dying;     /* it is cut off: who comes now waits for its end and finds its record */
    bool is_failing;   /* its readers are told of an error */
    bool is_journaled; /* the journal has its beginning */
    bool is_unsynced;  /* what the journal was given is not durable yet */
    bool is_told;      /* a reader has had its end */
    bool has_failed;   /* for a reason that would come again */
    bool is_wrong;     /* its record does not agree with the model */
};

/* The dialect as records name it; NULL: its requests are not resumable. */
const char *generation_dialect(enum prepare_kind kind);
bool generation_kind(const char *dialect, enum prepare_kind *out);

/* One reference, the caller's. head: who, digest and id are set by the caller. */
struct generation *generation_new(struct journal *j, int32_t checkpoint, enum prepare_kind kind,
                                  const char *name);
/* Its end is told to the journal. The caller has taken it off its list. */
void generation_free(struct generation *g);

/* In what the model that answers now differs from the one that the record is of. */
void generation_say_change(const struct journal_head *was, const struct engine_info *now, char *out,
                           size_t n);

/* Can what was prepared be resumed at all? */
bool generation_fits(const struct prepared *p);
/* It is prepared: head is completed, the record's tokens are taken over. Errors: ERR_STATE - the record is of other settings, text says
 * which; ERR_INVALID - the record cannot be of this request; ERR_NOMEM. */
enum err_code generation_open(struct generation *g, const struct engine_info *info,
                              const struct tokenizer *t, struct err *err) MUST_CHECK;
/* The journal hears of it. */
void generation_begin(struct generation *g);

/* The i-th request with what its answer has begun with; NULL: no memory. The caller's. */
struct sched_request *generation_request(const struct generation *g, int32_t i);

/* A token of a choice. False: it is one that the record has, and another one there. */
bool generation_add(struct generation *g, int32_t choice, int32_t index,
                    const struct engine_token *token, const struct tokenizer *t) MUST_CHECK;
void generation_get(const struct generation *g, int32_t choice, int32_t index,
                    struct sched_token *out);
void generation_finish(struct generation *g, int32_t choice, const struct sched_finished *f);

/* Hand what is new to the journal where enough of it is there. */
void generation_checkpoint(struct generation *g);
/* Hand all of it over, durable from then on. */
void generation_flush(struct generation *g);

#endif
