/* response.h - one response of the Responses API: what was asked, what has been answered, and how both look on the wire.
 *
 * An answer is kept as a log of parts, with everything that takes up a number in the stream of events. The object and the events,
 * numbers included, are pure functions of frame, log and outcome: a stream can be told again from any number, while it runs or
 * after a restart, and what was streamed is what the object holds. Not thread-safe. */
#ifndef PLUMB_SERVER_RESPONSE_H
#define PLUMB_SERVER_RESPONSE_H

#include "server/api_error.h"
#include "server/limits.h"
#include "server/split.h"
#include "server/store.h"

struct json_writer;

enum response_status {
    RESPONSE_STATUS_QUEUED,
    RESPONSE_STATUS_IN_PROGRESS,
    RESPONSE_STATUS_COMPLETED, /* over from here on */
    RESPONSE_STATUS_INCOMPLETE,
    RESPONSE_STATUS_FAILED,
    RESPONSE_STATUS_CANCELLED,
};

struct response_outcome {
    enum response_status status;
    int64_t completed_s; /* Unix time; 0 = not completed */
    char error_code[48]; /* FAILED */
    char error_text[ERR_TEXT_MAX];
    bool has_usage;
    int64_t input_tokens, cached_tokens, output_tokens, reasoning_tokens;
};

enum response_flags {
    RESPONSE_FLAG_BACKGROUND = 1 << 0,
    RESPONSE_FLAG_SUMMARY = 1 << 1, /* reasoning is told as a summary, where clients look for one */
};

struct response {
    int32_t n_refs;
    char id[STORE_ID_BYTES], previous[STORE_ID_BYTES];
    int64_t created_s;
    struct buf frame;  /* JSON members of the object that the answer does not change: "a":1,"b":2 */
    struct buf input;  /* JSON array of the request's items */
    struct buf custom; /* names of custom tools, each in line feeds */
    struct buf log;    /* its first byte: enum response_flags */
    struct response_outcome outcome;
    /* of the call that is being logged */
    bool is_custom;       /* its tool is a custom one */
    bool is_in_custom;    /* the string that is its input has not ended */
    bool has_custom_text; /* ... and has begun */
    struct buf arguments; /* a function's so far; of a custom tool, what is not logged yet */
};

/* Empty, with one reference. */
struct response *response_new(const char *id, unsigned flags);
struct response *response_ref(struct response *r);
void response_unref(struct response *r); /* may be NULL */
unsigned response_flags(const struct response *r);
bool response_is_over(const struct response *r);
void response_interrupt(struct response *r); /* it failed, as the server that made it ended */

/* --- the log --- */
void response_add_started(struct response *r); /* a background response leaves the queue */
/* logprobs: of a content part: JSON values, comma-separated, or NULL. */
void response_add_part(struct response *r, const struct part *p, const struct buf *logprobs);
void response_add_keep_alive(struct response *r);
/* The ids that the answer was sampled with. Once, behind the last part. */
void response_add_ids(struct response *r, const int32_t *ids, size_t n);
/* The same as a JSON array into out; nothing where there are none. */
void response_write_ids(const struct response *r, struct buf *out);
/* What the object tells of the cache: JSON each, or empty. Once, behind the last part. */
void response_add_cache(struct response *r, const struct buf *diagnosis,
                        const struct buf *compared);
bool response_has_failed(const struct response *r); /* it is larger than may be kept */

/* --- the wire --- */
/* A place in the stream of events. All zero: its beginning. */
struct response_view {
    size_t at; /* in the log */
    int64_t n_events;
    int64_t
        after; /* events numbered below it were seen elsewhere: they are counted and not written */
    bool is_ended; /* the last event is out */
    /* the open item */
    bool is_open;
    int32_t n_items; /* begun */
    size_t item_at;  /* its first record */
};

/* Append events to out from the view's place on, until the log ends or out holds max_bytes; the last one once the response is over. */
void response_write_events(const struct response *r, struct response_view *v, size_t max_bytes,
                           struct buf *out);
void response_write_object(const struct response *r, struct buf *out);
/* The output alone, as a JSON array. */
void response_write_output(const struct response *r, struct buf *out);

/* --- the store --- */
/* Copies; the row's buffers are empty. */
void response_to_row(const struct response *r, struct store_row *row);
/* The row's buffers go to the response. NULL: err, ERR_INVALID. */
struct response *response_from_row(struct store_row *row, struct err *err);

#endif
