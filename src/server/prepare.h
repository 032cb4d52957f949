/* prepare.h - from the bytes of a request's body to what the scheduler takes, or to a whole reply, or to an error.
 *
 * Pure: reads the model and the configuration, which never change, and touches nothing but the kept grammars. Thread: preparation workers. */
#ifndef PLUMB_SERVER_PREPARE_H
#define PLUMB_SERVER_PREPARE_H

#include "sched/sched.h"
#include "server/api_error.h"
#include "server/diagnosis.h"
#include "server/grammars.h"
#include "server/limits.h"
#include "server/prints.h"
#include "server/server.h"
#include "server/split.h"
#include "server/store.h"

enum prepare_kind {
    PREPARE_CHAT,
    PREPARE_COMPLETIONS,
    PREPARE_SIGNAL,
    PREPARE_RESPONSES,
    PREPARE_MESSAGES,
    PREPARE_INFILL,
    PREPARE_EMBEDDINGS,
    PREPARE_RERANK,
    PREPARE_SCORE,
    PREPARE_COUNT_TOKENS,
    PREPARE_TOKENIZE,
    PREPARE_DETOKENIZE,
    PREPARE_APPLY_TEMPLATE,
    PREPARE_INPUT_TOKENS,   /* as RESPONSES, but only counted */
    PREPARE_RESTORE,        /* of a session: made without a body (call_session.c) */
    PREPARE_RESPONSE_ITEMS, /* the body is a kept input, `list` says what of it */
};

struct prepare_list { /* which input items of a response */
    int32_t limit;    /* at most so many */
    bool is_ascending;
    char after[STORE_ID_BYTES * 2]; /* behind the item of that id; "" = from the beginning */
};

struct prepare_context {
    const struct server_model *model;
    const struct server_config *config;
    const char *model_id;
    struct grammars *grammars; /* NULL: no answer can be constrained */
    int64_t
        now_s; /* the time that templates are given; 0 = the configuration's, else the clock's */
};

enum prepare_disconnect { /* what becomes of an answer when its client goes */
                          PREPARE_DISCONNECT_CANCEL,
                          PREPARE_DISCONNECT_FINISH, /* it goes on to its end, and is kept for prompts that begin with it */
                          PREPARE_DISCONNECT_RESUMABLE, /* it stops; who asks for it gets what there is, and the rest */
};

struct prepare_input {
    enum prepare_kind kind;
    const char *body; /* [n] bytes, read only */
    size_t n;
    uint64_t seed;                    /* what to use where the request names none */
    uint64_t trace;                   /* track; 0 = none */
    const _Atomic bool *is_cancelled; /* may be NULL; when true the result is not wanted any more */
    const char *id;                   /* of the answer; RESPONSES */
    const char *session;              /* that the request's head names; may be NULL */
    struct store_job
        *history; /* RESPONSES: the CHAIN that was asked for, its rows are used up; or NULL */
    const struct prepare_list *list; /* RESPONSE_ITEMS */
    const struct json
        *custom; /* RESPONSES: an array of tools, of which the custom ones count; or NULL */
};

/* What a request of the Responses API is beside the chat request that it is made. */
struct prepared_response {
    /* Kept responses are named and not there: prepare again with their CHAIN. Nothing else is set then. */
    bool needs_history;
    char previous[STORE_ID_BYTES];
    char (*more)[STORE_ID_BYTES]; /* [n_more], MEM_CAT_SERVER */
    int32_t n_more;
    bool is_stored, is_background, has_summary;
    struct buf frame, input, custom; /* of struct response */
};

/* One prompt of a request. */
struct prepared_prompt {
    int32_t first, n_choices; /* its answers: [first, first + n_choices) */
    int32_t n_tokens;
    char *echo;        /* text before each answer, or NULL */
    bool echo_special; /* control tokens are part of that text */
    /* NULL, or [n_tokens]: filled by the engine with the first answer's first token or end */
    struct engine_token *scores;
};

struct prepared_embeddings {
    int32_t n_embd,
        n_dims; /* of each hidden state; of them shown. 0 = the request is none for embeddings */
    bool is_base64;
    float *hidden; /* [n_prompts][n_embd]: filled by the engine */
};

/* Documents against queries: each answer is one token, yes or no; of a classifier its labels, in prepared_embeddings. */
struct prepared_ranking {
    int32_t yes, no;  /* ids */
    int32_t n_labels; /* 0 = the model is no classifier */
    int32_t top_n;    /* results that are told; 0 = the request is none of this kind */
    char **texts;     /* [n_texts] of the documents where they are told too; else NULL */
    int32_t n_texts;
};

/* One prepared request. */
struct prepared {
    enum prepare_kind kind;
    struct api_error error; /* status != 0: only this is set */
    struct buf reply;       /* not a generation: the JSON to send */
    /* a generation from here */
    bool is_stream, includes_usage;
    bool echoes_logprobs; /* the prompt's log-probabilities stand before the answer's */
    bool is_background;   /* of the requests, as priority */
    enum prepare_disconnect disconnect;
    char session[LIMIT_SESSION_BYTES + 1]; /* that it is a turn of; "" = of none */
    int32_t n_logprobs;                    /* -1 = none */
    int32_t n_prompt_logprobs;             /* -1 = none */
    int32_t priority;
    int64_t deadline_ms; /* after arrival; 0 = none */
    int32_t n_choices;   /* prompts x n, prompt-major */
    int32_t n_prompts;
    /* [n_choices]; ids, key, deadline and track are not set yet; NULL once taken */
    struct sched_request **requests;
    struct prepared_prompt *prompts; /* [n_prompts] */
    int32_t max_choices;             /* room in both */
    int64_t score_bytes;             /* of all scores and hidden states */
    struct engine_signal signal;     /* its bins are ours */
    struct prepared_embeddings embeddings;
    struct prepared_ranking ranking;
    int64_t prompt_tokens; /* each prompt once */
    uint64_t seed;
    bool is_split; /* the answers are looked through for reasoning and tool calls */
    struct split_config split;
    struct tools *tools;           /* that the request offers; or NULL */
    char *stops[ENGINE_STOPS_MAX]; /* [n_stops] its stop strings */
    int32_t n_stops;
    char ignored[LIMIT_IGNORED_BYTES];
    struct prepared_response *response; /* RESPONSES */
    bool keeps_ids, returns_ids;        /* of the answers: gathered; and told */
    struct diagnosis *diagnosis;        /* NULL: not asked for */
    struct print
        *print;    /* MESSAGES, RESPONSES: what later requests may be compared with; or NULL */
    bool compares; /* ... and this one with an earlier one, ... */
    char compare_with[PRINTS_ID_BYTES]; /* ... the answer of that id; "" = nothing yet */
};

/* Might the body ask for a grammar? Then its preparation may take long. */
bool prepare_is_constrained(const char *body, size_t n);
struct prepared *prepare_request(const struct prepare_context *ctx, const struct prepare_input *in);
/* And the requests that nobody took. The engine must be done with scores and bins. */
void prepare_free(struct prepared *p);

#endif
