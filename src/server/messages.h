/* messages.h - the messages of a chat request, made into the variables that chat templates expect. */
#ifndef PLUMB_SERVER_MESSAGES_H
#define PLUMB_SERVER_MESSAGES_H

#include "server/api_error.h"
#include "json/json.h"

#define MESSAGES_TOKEN_IDS \
    "token_ids" /* of an assistant's message: the ids that it was sampled with; no template sees it */

enum messages_flags {
    MESSAGES_FLAG_DEVELOPER =
        1 << 0, /* the template knows the role "developer": else it becomes "system" */
    MESSAGES_FLAG_NO_NULL = 1 << 1, /* null content becomes "": for templates that fail on it */
    /* enable_thinking and thinking are set, unless the caller's chat_template_kwargs set them */
    MESSAGES_FLAG_THOUGHT = 1 << 2,    /* true */
    MESSAGES_FLAG_NO_THOUGHT = 1 << 3, /* false */
    MESSAGES_FLAG_DEPTHS =
        1 << 4, /* reasoning_effort is low, medium or high: others become one of these */
    MESSAGES_FLAG_MERGE =
        1
        << 5, /* turns of one role in a row become one: for templates that want turns to alternate */
};

/* Write the template's variables for body (a chat request) as one JSON object to out: messages, tools, chat_template_kwargs'
 * members, documents, reasoning_effort. Text parts are joined by a newline, tool-call arguments become objects, null
 * members go, everything else stays as it came. *seen: what of it some templates cannot take.
 * False: e names the message and what is wrong with it (400). */
struct messages_seen {
    bool has_null;   /* a content that is null */
    bool has_repeat; /* turns of one role in a row */
};
bool messages_write(const struct json *body, unsigned flags, struct buf *out,
                    struct messages_seen *seen, struct api_error *e) MUST_CHECK;

#endif
