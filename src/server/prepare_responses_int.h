/* prepare_responses_int.h - what the files of the Responses API's preparation share. */
#ifndef PLUMB_SERVER_PREPARE_RESPONSES_INT_H
#define PLUMB_SERVER_PREPARE_RESPONSES_INT_H

#include "server/prepare_int.h"

struct responses_turn { /* a kept response */
    char id[STORE_ID_BYTES];
    struct json_doc input, output;
    struct buf ids; /* JSON: that it was sampled with; "" = none are kept */
};

struct responses {
    const struct prepare_context *ctx;
    const struct prepare_input *in;
    const struct json *body;
    struct fields fields;
    struct prepared_response *r;
    char *ignored;
    bool is_auto;                                             /* truncation */
    const struct json *effort, *summary, *verbosity, *format; /* format: NULL = text */
    struct responses_turn *turns; /* [n_turns]: the conversation, then what references name */
    int32_t n_turns, n_chain;
    struct buf origins; /* int32_t: of the messages, as in diagnosis.h */
    struct buf tools;   /* of the chat request: JSON, comma-separated */
    struct buf served;  /* the same as the client wrote them */
};

/* A member that is set, copied with its name. */
void prepare_responses_copy(struct json_writer *w, const struct json *from, const char *name);
/* Tools as chat has them, into q->tools. False: e. */
bool prepare_responses_tools(struct responses *q, struct api_error *e);
/* tool_choice as chat has it, with its key. False: e. */
bool prepare_responses_choice(const struct responses *q, struct json_writer *w,
                              struct api_error *e);

#endif
