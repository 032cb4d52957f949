/* items.h - the items of the Responses API, made into the messages of a chat request.
 *
 * System and developer messages and the instructions are gathered into one system message at the front. What an assistant said in
 * several items (reasoning, text, calls) becomes one message. Items of kinds that this server does not know are skipped and named. */
#ifndef PLUMB_SERVER_ITEMS_H
#define PLUMB_SERVER_ITEMS_H

#include "server/api_error.h"
#include "json/json.h"

struct items {
    struct buf system;   /* text of the system message */
    struct buf messages; /* JSON: the others, comma-separated */
    struct buf origins;  /* int32_t: of each of those, as in diagnosis.h */
    int32_t origin;      /* of what is added now: set before items_add; 0 = each item's own index */
    int32_t opened_at;   /* of the assistant's message that is being gathered */
    int32_t n_users;     /* user messages met so far */
    int32_t
        n_skip; /* turns to leave out: everything but system texts before the (n_skip + 1)-th user message */
    char *ignored; /* of fields_ignore; NULL = name nothing */
    /* what item_reference names: NULL = unknown. May be NULL. */
    const struct json *(*find)(void *arg, const char *id);
    void *find_arg;
    /* JSON: the ids of the reply whose items are added next: they go with its first message; "" = none. Set before items_add. */
    struct buf ids;
    /* the assistant's message that is being gathered */
    bool is_open, has_text, has_calls;
    struct buf reasoning, text, calls;
};

void items_init(struct items *x);
void items_release(struct items *x);

/* Append a text to the system message. */
void items_add_system(struct items *x, const char *text, size_t n);
/* Add the items of v: a string (one user message) or an array. `where` names it in errors: "input". False: e (400). */
bool items_add(struct items *x, const struct json *v, const char *where, struct api_error *e);
/* The whole list, as a JSON array of messages. False: e. */
bool items_write_messages(struct items *x, struct buf *out, struct api_error *e);

/* The items of v as they are kept and listed: an array in which each has an id, a type, and content in parts. id: of the response. */
void items_write_input(const struct json *v, const char *id, struct buf *out);

#endif
