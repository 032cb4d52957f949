/* dialect.h - what an answer looks like on the wire: one descriptor per API. Pure writers, no state.
 *
 * Stream writers append whole server-sent events, `whole` one JSON object. */
#ifndef PLUMB_SERVER_DIALECT_H
#define PLUMB_SERVER_DIALECT_H

#include "server/answer.h"
#include "server/api_error.h"

struct dialect_head { /* the same in all parts of a reply */
    const char *id, *model, *fingerprint;
    int64_t created;
    const struct tokenizer *tokenizer;
    bool has_logprobs;
    bool includes_usage; /* of a stream */
};

struct dialect_usage {
    int64_t prompt_tokens, completion_tokens;
    int64_t prompt_us, decode_us; /* summed over the answers */
};

struct dialect_choice {
    int32_t index;
    const char *text;
    size_t n;
    const struct answer_token *tokens; /* [n_tokens] if has_logprobs */
    size_t n_tokens;
    enum finish finish;
};

struct dialect {
    const char *id_prefix;
    void (*begin)(struct buf *out, const struct dialect_head *h, int32_t index); /* may be NULL */
    void (*text)(struct buf *out, const struct dialect_head *h, const struct dialect_choice *c);
    void (*end)(struct buf *out, const struct dialect_head *h, const struct dialect_choice *c);
    void (*close)(struct buf *out, const struct dialect_head *h, const struct dialect_usage *u);
    void (*error)(struct buf *out, const struct api_error *e); /* ends the stream */
    void (*whole)(struct buf *out, const struct dialect_head *h, const struct dialect_choice *c,
                  int32_t n, const struct dialect_usage *u);
};

extern const struct dialect dialect_chat;
extern const struct dialect dialect_completions;

#endif
