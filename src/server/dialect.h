/* dialect.h - what an answer looks like on the wire: one descriptor per API. Pure writers: what they have to remember of a stream
 * is in struct dialect_state.
 *
 * Stream writers append whole server-sent events, `whole` one JSON object. */
#ifndef PLUMB_SERVER_DIALECT_H
#define PLUMB_SERVER_DIALECT_H

#include "server/answer.h"
#include "server/api_error.h"
#include "server/split.h"

struct response;
struct prepared_ranking;
struct diagnosis;
struct print_result;

struct dialect_head { /* the same in all parts of a reply */
    const char *id, *model, *fingerprint;
    int64_t created;
    int64_t prompt_tokens;
    const struct tokenizer *tokenizer;
    int32_t n_vocab;           /* of the model: may be more than the tokenizer's */
    int32_t n_logprobs;        /* likeliest tokens beside each; -1 = no log-probabilities */
    int32_t n_prompt_logprobs; /* the same of the prompt, by themselves */
    bool echoes_logprobs;      /* the prompt's stand before the answer's */
    bool includes_usage;       /* of a stream */
    int32_t n_dims;            /* of embeddings */
    bool is_base64;
    const struct prepared_ranking *ranking; /* of rerank and score */
    struct response *response;              /* Responses: where the answer is kept; else NULL */
    const struct diagnosis *diagnosis;      /* of the first prompt; NULL: not asked for */
    const struct print_result *compared;    /* with an earlier request; NULL: not asked for */
    bool has_earlier;                       /* ... false: there is none yet */
    bool returns_ids;                       /* the end of an answer brings its ids */
    const char *session;                    /* the one that is restored */
};

struct dialect_usage {
    int64_t prompt_tokens, completion_tokens;
    int64_t reasoning_tokens; /* of the completion's */
    int64_t cached_tokens;    /* of the prompt's */
    struct engine_speculation speculation;
    int64_t prompt_us, decode_us; /* summed over the answers */
};

/* What a dialect remembers of an answer's stream. All zero at its start; nobody else looks at it. */
struct dialect_state {
    int32_t n_blocks;    /* content blocks or output items begun so far */
    bool is_open;        /* the last one has not ended */
    bool is_ended;       /* so has the answer */
    enum part_kind open; /* what it holds */
    int64_t
        sequence; /* of the next event; only the first answer's counts where events are numbered through */
    size_t n_text; /* bytes of the answer's parts before the open one */
    char item_id[48];
};

/* An answer, or the part of one that is being told. */
struct dialect_choice {
    int32_t index;
    const struct answer_token
        *tokens; /* [n_tokens] if n_logprobs >= 0: those of the part's content */
    size_t n_tokens;
    /* Scores of the prompt, in the part that tells them; else NULL. */
    const struct engine_token *prompt; /* [n_prompt] */
    int32_t n_prompt;
    int64_t n_echo;    /* code points of the prompt's text in the part */
    bool echo_special; /* control tokens are part of that text */
    const struct engine_signal *signal;
    const float *hidden; /* of an embedding: at least n_dims */
    /* `end`, `whole`, `close` */
    enum finish finish;
    int32_t n_calls;         /* tool calls in the answer */
    const char *stop_string; /* the one that ended it, or NULL */
    /* `whole`, and `end` and `close` where the dialect collects: the answer so far. Neighbours of one kind are joined; a call is one
     * part of kind PART_CALL_ARGUMENTS. */
    const struct part *parts; /* [n_parts] */
    size_t n_parts;
    const int32_t *ids; /* [n_ids] that spell what is shown, where they are kept */
    size_t n_ids;
};

struct dialect {
    const char *id_prefix;
    bool collects; /* `end` and `close` are given the parts again */
    /* Of an answer's stream. begin may be NULL. part: called with c's tokens and prompt scores (a content part with n = 0 may carry
     * only those). end: not called for an answer that failed. */
    void (*begin)(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                  const struct dialect_choice *c);
    void (*part)(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                 const struct dialect_choice *c, const struct part *p);
    void (*end)(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                const struct dialect_choice *c);
    /* Of the whole stream: all answers have ended; or an error ends it (st may be NULL: nothing was streamed). c and st: [n]. */
    void (*close)(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                  const struct dialect_choice *c, int32_t n, const struct dialect_usage *u);
    void (*error)(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                  const struct api_error *e);
    /* Something that counts as activity while nothing can be sent. NULL: a comment. */
    void (*keep_alive)(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                       int32_t n);
    void (*whole)(struct buf *out, const struct dialect_head *h, const struct dialect_choice *c,
                  int32_t n, const struct dialect_usage *u);
};

extern const struct dialect dialect_chat;
extern const struct dialect dialect_completions;
extern const struct dialect dialect_messages;
extern const struct dialect dialect_embeddings;            /* as dialect_signal */
extern const struct dialect dialect_rerank, dialect_score; /* as dialect_signal */
extern const struct dialect dialect_infill;
extern const struct dialect dialect_signal; /* has but `whole` and `id_prefix` */
/* Writes nothing: the answer goes into the log of head->response, from which streams and replies are told (call_response.c). */
extern const struct dialect dialect_responses;

/* --- dialect_logprobs.c: a member "logprobs" or "prompt_logprobs" of a choice --- */
struct json_writer;
/* A member "token_ids", where it is asked for; of a stream's end. dialect_openai.c */
void dialect_ids(struct json_writer *w, const struct dialect_head *h,
                 const struct dialect_choice *c);
/* A member "cache_diagnostics" of the usage, where it is asked for. dialect_openai.c */
void dialect_diagnosis(struct json_writer *w, const struct dialect_head *h);
/* A member "timings", as llama.cpp's clients read them. dialect_openai.c */
void dialect_timings(struct json_writer *w, const struct dialect_usage *u);
void dialect_chat_logprobs(struct json_writer *w, const struct dialect_head *h,
                           const struct dialect_choice *c);
/* The values of that member's list alone, comma-separated. */
void dialect_chat_tokens(struct json_writer *w, const struct dialect_head *h,
                         const struct dialect_choice *c);
void dialect_text_logprobs(struct json_writer *w, const struct dialect_head *h,
                           const struct dialect_choice *c);
/* Nothing where none are asked for or this is not the part that tells them. */
void dialect_prompt_logprobs(struct json_writer *w, const struct dialect_head *h,
                             const struct dialect_choice *c);

#endif
