/* prints.h - fingerprints of chat requests, so that a later one can be told in what it differs from the one whose answer's id it names:
 * the forms of diagnosis that Anthropic's and OpenAI's APIs have.
 *
 * A print holds hashes and sizes, no text. The last PRINTS_MAX are remembered, in memory alone; who asks finds only his own.
 * Hashes are not cryptographic: nothing but a diagnosis hangs on them. Thread: print_new any; the rest the I/O thread. */
#ifndef PLUMB_SERVER_PRINTS_H
#define PLUMB_SERVER_PRINTS_H

#include "json/json.h"

#define PRINTS_MAX          256
#define PRINTS_ID_BYTES     80
#define PRINTS_MESSAGES_MAX 1024 /* a longer conversation has no print */

struct print_message {
    uint64_t hash; /* of this and all before it */
    int64_t bytes; /* idem */
};

struct print {
    uint64_t system, tools, effort, options;
    int64_t bytes;                  /* of system texts and tools */
    struct print_message *messages; /* [n] those behind the leading system messages */
    int32_t n;
    int64_t n_tokens; /* of the prompt */
};

enum print_change { /* the first of these that is so */
                    PRINT_NOT_FOUND,
                    PRINT_SAME, /* the new one begins with all that the old one had */
                    PRINT_TOOLS,
                    PRINT_SYSTEM,
                    PRINT_EFFORT,
                    PRINT_OPTIONS, /* other fields that the prompt depends on, or the cache's salt */
                    PRINT_MESSAGES,
};

struct print_result {
    enum print_change change;
    int64_t before_tokens; /* of the prompt that is compared with */
    int64_t missed_tokens; /* of these, about as many as stand behind the change */
};

/* Of a chat request; NULL: it has too many messages. Free with print_free. */
struct print *print_new(const struct json *body);
void print_free(struct print *p); /* may be NULL */

struct prints_entry {
    char id[PRINTS_ID_BYTES];
    uint64_t account;
    struct print *print; /* NULL: empty */
};

struct prints {
    struct prints_entry entries[PRINTS_MAX]; /* a ring */
    int32_t at;
};

/* Remember the print (its owner from now on) of the request that is answered under that id. */
void prints_put(struct prints *p, const char *id, uint64_t account, struct print *print);
struct print_result prints_compare(const struct prints *p, const char *id, uint64_t account,
                                   const struct print *now); /* now may be NULL */
void prints_release(struct prints *p);

#endif
