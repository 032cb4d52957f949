/* openapi.h - the description of the API that GET /openapi.json gives (OpenAPI 3.1), made from the table of routes (route.c), the table
 * of fields (fields.c), the table of metrics, and what is written down here: operations (openapi.c) and schemas (openapi_types.c). */
#ifndef PLUMB_SERVER_OPENAPI_H
#define PLUMB_SERVER_OPENAPI_H

#include "base/buf.h"

/* What a route does. Routes of one operation are aliases of each other. */
enum openapi_operation {
    OPENAPI_HEALTH,
    OPENAPI_LIVE,
    OPENAPI_METRICS,
    OPENAPI_STATS,
    OPENAPI_INDEX,
    OPENAPI_DESCRIPTION,
    OPENAPI_MODELS,
    OPENAPI_MODEL,
    OPENAPI_CHAT,
    OPENAPI_COMPLETIONS,
    OPENAPI_RESPONSES,
    OPENAPI_INPUT_TOKENS,
    OPENAPI_RESPONSE_GET, /* and of its input items */
    OPENAPI_RESPONSE_POST,
    OPENAPI_RESPONSE_DELETE,
    OPENAPI_INFILL,
    OPENAPI_EMBEDDINGS,
    OPENAPI_RERANK,
    OPENAPI_SCORE,
    OPENAPI_MESSAGES,
    OPENAPI_COUNT_TOKENS,
    OPENAPI_SIGNAL,
    OPENAPI_REQUEST_STREAM,
    OPENAPI_CANCEL,
    OPENAPI_SESSION_LIST,
    OPENAPI_SESSION_GET,
    OPENAPI_SESSION_POST,
    OPENAPI_SESSION_DELETE,
    OPENAPI_FLUSH,
    OPENAPI_TOKENIZE,
    OPENAPI_DETOKENIZE,
    OPENAPI_APPLY_TEMPLATE,
};

struct openapi_route {
    const char *path;        /* with is_prefix an id follows */
    const char *method;      /* lower case */
    bool is_prefix, is_open; /* is_open: asks for no key */
    enum openapi_operation operation;
};

struct openapi_about { /* the server that is described */
    bool has_keys;
    int32_t n_vocab; /* token ids are below; 0 = not known yet */
};

/* Append the description of routes[n], in their order. */
void openapi_write(struct buf *out, const struct openapi_route *routes, size_t n,
                   const struct openapi_about *about);

/* --- openapi_types.c: schemas that no other table has --- */
struct openapi_type {
    const char *name, *type; /* in the notation of schema.h */
    const char *doc;         /* NULL = none */
};

/* The i-th, or NULL behind the last. */
const struct openapi_type *openapi_type(size_t i);

#endif
