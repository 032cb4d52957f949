/* places.h - which message or tool of a chat request a byte of its rendered prompt comes from.
 *
 * Found by looking for the messages' texts, in their order, among the bytes that the template marks as the caller's. A template that
 * changes a text (beyond cutting blanks off its ends) hides that message: its bytes count to the one before it. */
#ifndef PLUMB_SERVER_PLACES_H
#define PLUMB_SERVER_PLACES_H

#include "base/span.h"
#include "json/json.h"

#define PLACES_NAME_BYTES 64

struct place {
    size_t from, to; /* bytes of the rendered text; from = to: it was not found */
    size_t begin;    /* of a message: where its role or, without one, its text begins */
    char
        name[PLACES_NAME_BYTES]; /* the message's role, the tool's name; cut at a character's end */
};

struct places {
    struct place *messages; /* [n_messages] texts, in the order of the request */
    struct place *tools;    /* [n_tools] */
    int32_t n_messages, n_tools;
    struct span_list caller; /* a copy */
};

/* body: the chat request that text[0..n) was rendered of. Release with places_release (fine on a zeroed struct). */
void places_find(struct places *p, const struct json *body, const char *text, size_t n,
                 const struct span_list *caller);
void places_release(struct places *p);

bool places_is_caller(const struct places *p, size_t at);
/* The first of the caller's bytes from `at` on, before `end`; `at` where there is none. */
size_t places_first_caller(const struct places *p, size_t at, size_t end);
/* What the byte belongs to: a tool's index, or a message's (-1: none, what stands before them all). */
int32_t places_tool_at(const struct places *p, size_t at); /* -1 = no tool */
int32_t places_message_at(const struct places *p, size_t at);

#endif
