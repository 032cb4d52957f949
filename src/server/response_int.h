/* response_int.h - the records of a response's log. */
#ifndef PLUMB_SERVER_RESPONSE_INT_H
#define PLUMB_SERVER_RESPONSE_INT_H

#include "server/response.h"

/* What the log is made of, after its first byte: a kind, the length of what follows (LEB128), and that many bytes. Stored: never change
 * the meaning of a letter. */
enum response_record_kind {
    RESPONSE_RECORD_STARTED = 'S',
    RESPONSE_RECORD_KEEP_ALIVE = 'K',
    RESPONSE_RECORD_REASONING = 'R', /* text */
    RESPONSE_RECORD_CONTENT = 'C',   /* text */
    RESPONSE_RECORD_LOGPROBS =
        'L', /* of the content record that follows: JSON values, comma-separated */
    RESPONSE_RECORD_FUNCTION = 'F',  /* a call begins: its id, NUL, its name */
    RESPONSE_RECORD_CUSTOM = 'X',    /* the same of a custom tool */
    RESPONSE_RECORD_ARGUMENTS = 'A', /* text: a function's arguments, a custom tool's input */
    RESPONSE_RECORD_END = 'E',       /* the call is whole */
    /* Behind the answer, once each; they take up no number in the stream. */
    RESPONSE_RECORD_DIAGNOSIS = 'D', /* JSON: "cache_diagnostics" of the usage */
    RESPONSE_RECORD_IDS = 'T',       /* JSON: the ids of the whole answer */
    RESPONSE_RECORD_COMPARED = 'P',  /* JSON: "prompt_cache_diagnostics" */
};

struct response_record {
    enum response_record_kind kind;
    const char *text; /* [n], borrowed from the log */
    size_t n;
};

/* The record at *at, and *at moves on. False: the log ends here, or what stands here is none. */
bool response_next_record(const struct buf *log, size_t *at, struct response_record *out);

#endif
