/* fields.h - the fields of a generation request: one table that parsing, the list of ignored names, docs/api.md and the schemas of
 * /openapi.json are made from. A null value counts as absent everywhere. */
#ifndef PLUMB_SERVER_FIELDS_H
#define PLUMB_SERVER_FIELDS_H

#include "server/api_error.h"
#include "server/limits.h"
#include "json/json.h"

enum fields_route {
    FIELDS_ROUTE_CHAT = 1 << 0,
    FIELDS_ROUTE_COMPLETIONS = 1 << 1,
    FIELDS_ROUTE_SIGNAL = 1 << 2,
    FIELDS_ROUTE_RESPONSES = 1 << 3,
    FIELDS_ROUTE_MESSAGES = 1 << 4,
    FIELDS_ROUTE_EMBEDDINGS = 1 << 5,
    FIELDS_ROUTE_INFILL = 1 << 6,
    FIELDS_ROUTE_RERANK = 1 << 7,
    FIELDS_ROUTE_SCORE = 1 << 8,
    FIELDS_ROUTE_ALL = FIELDS_ROUTE_CHAT | FIELDS_ROUTE_COMPLETIONS,
};

#define FIELDS_UNSET INT64_MIN /* of integers; numbers are NAN */

struct fields {
    double temperature, top_p, min_p, typical_p, xtc_probability, xtc_threshold;
    double repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, penalty_last_n, seed;
    int64_t max_tokens, max_completion_tokens, n, best_of;
    int64_t n_prompt_logprobs, priority, deadline_ms;
    int64_t dimensions; /* of embeddings */
    int64_t top_n;      /* of documents, as return_documents */
    int64_t truncate;   /* truncate_prompt_tokens */
    bool return_documents;
    int64_t count; /* of a signal, as minimum */
    double minimum;
    int64_t n_logprobs; /* completions: logprobs; chat: top_logprobs */
    bool logprobs;      /* chat */
    bool stream, echo, ignore_eos, background;
    bool store; /* true unless given */
    bool add_generation_prompt, parallel_tool_calls;
    bool cache_diagnostics, return_token_ids;
    int64_t thinking_budget;
    bool speculation; /* true unless given */
};

/* Read the plain fields of body (an object) for that route, and name the fields that nobody knows in ignored[LIMIT_IGNORED_BYTES]
 * ("a,b"; names are cut to harmless characters). False: e says which field and why (400). */
bool fields_read(const struct json *body, enum fields_route route, struct fields *out,
                 char *ignored, struct api_error *e) MUST_CHECK;

/* Append a name that came from a client to ignored[LIMIT_IGNORED_BYTES]: only characters that cannot do harm in a header, bounded. */
void fields_ignore(char *ignored, const char *name, size_t len);

/* Append names as they stand in another such list. */
void fields_ignore_list(char *ignored, const char *names);

/* The table as Markdown, for docs/api.md. */
void fields_print(struct buf *out);

/* The fields of one route as the JSON Schema of its body. required: the names that must be there, between commas; null is a value of
 * the others. more: further members of the schema, or NULL. */
void fields_write_schema(struct buf *out, enum fields_route route, const char *required,
                         const char *more);

#endif
