/* server.h - the HTTP server over one model: OpenAI's chat and completions, tokens, health.
 *
 * Threads: the caller's becomes the I/O thread; preparation workers and the engine thread are started and joined here.
 * I/O -> preparation -> I/O -> engine -> I/O, a bounded queue at each step. */
#ifndef PLUMB_SERVER_SERVER_H
#define PLUMB_SERVER_SERVER_H

#include "engine/engine.h"
#include "server/split.h"
#include "template/template.h"
#include "tokenizer/tokenizer.h"

struct server_sampling { /* NAN or a negative top_k: not said */
    double temperature, top_p, min_p, typical_p, repetition_penalty;
    int64_t top_k;
};
void server_sampling_unset(struct server_sampling *s);

/* What serves. All but the engine stays the loader's and is read by several threads until server_run returns. */
struct server_model {
    struct engine *engine; /* the server's from a successful load on */
    const struct tokenizer *tokenizer;
    const struct template *chat_template; /* NULL: no chat, only completions */
    bool knows_developer;                 /* the template names the role "developer" */
    struct server_sampling sampling;      /* the model's own advice */
    struct split_style style;             /* how it writes reasoning and tool calls */
};

struct server_config {
    const char *host;
    int port;                /* 0 = any free one */
    const char *allow_hosts; /* more names that Host may have, comma-separated; NULL = none */
    /* Origins of web pages that may call, comma-separated; "*": of any, where keys are asked for. NULL = none. */
    const char *cors_origins;
    const char *const
        *api_keys;      /* [n_api_keys] one of them is asked for; read while server_run starts */
    int32_t n_api_keys; /* 0: everyone who reaches the address may use it */
    bool is_metrics_public;         /* /metrics asks for no key */
    bool is_insecure_listen;        /* an address beyond this machine without a key */
    const char *tls_cert, *tls_key; /* PEM files; both or none */
    const char *alias;              /* name of the model in the API; NULL = the engine's */
    bool is_model_strict;
    bool hoists_volatile;   /* hoist.h */
    int64_t grammar_bytes;  /* of kept grammars; 0 = LIMIT_GRAMMAR_BYTES */
    int64_t max_body;       /* bytes; 0 = LIMIT_BODY_BYTES */
    int64_t drain_seconds;  /* after SIGTERM; negative = LIMIT_DRAIN_SECONDS */
    int32_t max_waiting;    /* 0 = LIMIT_WAITING */
    int64_t max_stall_ms;   /* 0 = 250 */
    int64_t wedged_seconds; /* a step that runs longer is reported; 0 = LIMIT_WEDGED_SECONDS */
    int head_seconds, body_seconds, idle_seconds, stall_seconds; /* of connections; 0 = limits.h */
    int64_t keep_alive_ms; /* longest silence on a stream; 0 = LIMIT_KEEP_ALIVE_MS */
    const char *state_dir; /* where responses are kept; NULL = they are not */
    int64_t store_bytes;   /* of all of them; 0 = LIMIT_STORE_BYTES */
    int64_t store_days;    /* since their last use; 0 = LIMIT_STORE_DAYS */
    int32_t checkpoint; /* tokens between two writes of a generation's record; 0 = there are none */
    const char *journal_dir;         /* where those are; needed with checkpoint */
    const char *session_dir;         /* where sessions are saved; NULL = they cannot be */
    int64_t journal_bytes;           /* of all of them; 0 = LIMIT_JOURNAL_BYTES */
    int64_t resume_ttl_s;            /* since nobody used one; 0 = LIMIT_RESUME_TTL_SECONDS */
    struct server_sampling sampling; /* flags: before the model's, after the request's */
    /* Unix seconds that templates take for now, moved to local time; NULL: the clock, UTC. Any thread. */
    int64_t (*now)(void *arg);
    void *now_arg;
    /* On the engine thread, once. */
    enum err_code (*load)(void *arg, struct server_model *out, struct err *err);
    void *load_arg;
    /* On the I/O thread: listening (the model still loads), then ready. Either may be NULL. */
    void (*listening)(void *arg, const char *url);
    void (*ready)(void *arg, const char *url);
    void *arg;
};

/* Serve until SIGTERM or SIGINT and the drain after it. ERR_OK after a drain.
 * Errors: ERR_INVALID - settings that would let anyone in (guard.h's rules); of certificates, of listening and of load. ERR_CANCELLED: asked to stop while the model was loading. ERR_TIMEOUT: asked to stop twice, or
 * the engine did not come back from a step after the drain. After these two the engine's thread still runs, nothing has been freed,
 * and the process should end. */
enum err_code server_run(const struct server_config *config, struct err *err) MUST_CHECK;

#endif
