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
    int32_t n_vocab;           /* of the model: may be more than the tokenizer's */
    int32_t n_logprobs;        /* likeliest tokens beside each; -1 = no log-probabilities */
    int32_t n_prompt_logprobs; /* the same of the prompt, by themselves */
    bool echoes_logprobs;      /* the prompt's stand before the answer's */
    bool includes_usage;       /* of a stream */
};

struct dialect_usage {
    int64_t prompt_tokens, completion_tokens;
    int64_t prompt_us, decode_us; /* summed over the answers */
};

struct dialect_choice {
    int32_t index;
    const char *text;
    size_t n;
    const struct answer_token *tokens; /* [n_tokens] if n_logprobs >= 0 */
    size_t n_tokens;
    /* Scores of the prompt, in the part that tells them; else NULL. */
    const struct engine_token *prompt; /* [n_prompt] */
    int32_t n_prompt;
    int64_t n_echo;    /* code points of the prompt's text in `text` */
    bool echo_special; /* control tokens are part of that text */
    const struct engine_signal *signal;
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
extern const struct dialect dialect_signal; /* has but `whole` and `id_prefix` */

/* --- dialect_logprobs.c: a member "logprobs" or "prompt_logprobs" of a choice --- */
struct json_writer;
void dialect_chat_logprobs(struct json_writer *w, const struct dialect_head *h,
                           const struct dialect_choice *c);
void dialect_text_logprobs(struct json_writer *w, const struct dialect_head *h,
                           const struct dialect_choice *c);
/* Nothing where none are asked for or this is not the part that tells them. */
void dialect_prompt_logprobs(struct json_writer *w, const struct dialect_head *h,
                             const struct dialect_choice *c);

#endif
