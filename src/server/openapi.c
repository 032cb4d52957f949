#include "server/openapi.h"
#include "server/fields.h"
#include "server/metrics.h"
#include "server/schema.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

/* What one method of one path does. Of an operation with ids there may be several: `tail` is what follows the id. */
struct operation {
    enum openapi_operation operation;
    const char *tail;
    const char *tag, *summary;
    const char *body;   /* schema, or NULL */
    const char *reply;  /* schema, or NULL: text */
    const char *events; /* schema of a stream's events, or NULL */
    const char *errors; /* statuses beside those of every operation */
};

#define RUN     "400 404 413 429 499 500 503 504" /* prepared and run, by a model that may be named */
#define TOKENS  "400 413 429 499 500 503"         /* prepared alone */
#define KEPT    "400 404 500 503"                 /* of what is kept */
#define CHAT    "chat and completions"
#define RESP    "responses"
#define MSG     "messages"
#define VECTORS "embeddings and signal"
#define TEXTS   "tokens and templates"
#define SERVER  "the server"

/* clang-format off */
static const struct operation operations[] = {
    { OPENAPI_HEALTH, "", SERVER, "Are requests taken?", NULL, "State", NULL, "503" },
    { OPENAPI_LIVE, "", SERVER, "Does the process answer?", NULL, "State", NULL, "" },
    { OPENAPI_METRICS, "", SERVER, "Numbers in Prometheus' text format", NULL, NULL, NULL, "" },
    { OPENAPI_STATS, "", SERVER, "The same numbers as JSON", NULL, "Stats", NULL, "" },
    { OPENAPI_INDEX, "", SERVER, "Name, version, model and paths", NULL, "Index", NULL, "" },
    { OPENAPI_DESCRIPTION, "", SERVER, "This description", NULL, "Description", NULL, "" },
    { OPENAPI_MODELS, "", SERVER, "The loaded model, as a list", NULL, "ModelList", NULL, "503" },
    { OPENAPI_MODEL, "", SERVER, "The loaded model, if it has that id", NULL, "Model", NULL, "404 503" },
    { OPENAPI_CHAT, "", CHAT, "Messages in, an answer out", "ChatRequest", "ChatCompletion", "ChatEvent", RUN },
    { OPENAPI_COMPLETIONS, "", CHAT, "The same for a raw prompt, without a chat template", "CompletionRequest", "Completion", "CompletionEvent", RUN },
    { OPENAPI_INFILL, "", CHAT, "What stands between input_prefix and input_suffix", "InfillRequest", "Infill", "InfillEvent", RUN },
    { OPENAPI_RESPONSES, "", RESP, "Make a response", "ResponseRequest", "Response", "ResponseEvent", RUN },
    { OPENAPI_INPUT_TOKENS, "", RESP, "How many tokens the same request would put in", "ResponseRequest", "InputTokens", NULL, TOKENS " 404" },
    { OPENAPI_RESPONSE_GET, "", RESP, "A response as it is now, or its events", NULL, "Response", "ResponseEvent", KEPT " 409" },
    { OPENAPI_RESPONSE_GET, "/input_items", RESP, "What was sent", NULL, "ItemList", NULL, KEPT " 429" },
    { OPENAPI_RESPONSE_POST, "/cancel", RESP, "End a background response", NULL, "Response", NULL, KEPT " 409" },
    { OPENAPI_RESPONSE_DELETE, "", RESP, "Forget a response; a background one is ended first", NULL, "ResponseDeleted", NULL, KEPT },
    { OPENAPI_MESSAGES, "", MSG, "Messages in, an answer out: Anthropic's API", "MessagesRequest", "Message", "MessagesEvent", RUN },
    { OPENAPI_COUNT_TOKENS, "", MSG, "How many tokens the same request would put in", "CountTokensRequest", "TokenCount", NULL, TOKENS },
    { OPENAPI_EMBEDDINGS, "", VECTORS, "Hidden states of texts", "EmbeddingsRequest", "Embeddings", NULL, RUN },
    { OPENAPI_RERANK, "", VECTORS, "Documents in the order of how well they fit a query", "RerankRequest", "Ranking", NULL, RUN },
    { OPENAPI_SCORE, "", VECTORS, "How well texts fit others", "ScoreRequest", "Scores", NULL, RUN },
    { OPENAPI_SIGNAL, "", VECTORS, "How sure the model is after a prompt (or messages)", "SignalRequest", "Signal", NULL, RUN },
    { OPENAPI_TOKENIZE, "", TEXTS, "Text or messages to token ids", "TokenizeRequest", "Tokens", NULL, TOKENS },
    { OPENAPI_DETOKENIZE, "", TEXTS, "Token ids to text", "DetokenizeRequest", "Text", NULL, TOKENS },
    { OPENAPI_APPLY_TEMPLATE, "", TEXTS, "Messages as the prompt that the template makes of them", "ApplyTemplateRequest", "Prompt", NULL, TOKENS },
    { OPENAPI_REQUEST_STREAM, "/stream", CHAT, "The events of a request that runs or can be resumed", NULL, NULL, "ResumedEvent", RUN " 409" },
    { OPENAPI_CANCEL, "", SERVER, "End the requests of that x-request-id", NULL, "Cancelled", NULL, "404" },
    { OPENAPI_SESSION_LIST, "", SERVER, "The sessions of this API key, known and saved", NULL, "SessionList", NULL, "400 503" },
    { OPENAPI_SESSION_GET, "", SERVER, "A session", NULL, "Session", NULL, "400 404 503" },
    { OPENAPI_SESSION_POST, "/save", SERVER, "Save a session: it can be restored after a restart", NULL, "SessionSaved", NULL, "400 404 503 507" },
    { OPENAPI_SESSION_POST, "/restore", SERVER, "Compute or read what a saved session had, so that its next turn begins there", NULL, "SessionRestored", NULL, RUN },
    { OPENAPI_SESSION_DELETE, "", SERVER, "Forget a session and its record", NULL, "SessionDeleted", NULL, "400 404 503" },
    { OPENAPI_FLUSH, "", SERVER, "Make all kept histories durable (--ssd-cache)", NULL, "Flushed", NULL, "400 503" },
};

/* What may follow the question mark. */
static const struct parameter {
    enum openapi_operation operation;
    const char *tail, *name, *type, *doc;
} parameters[] = {
    { OPENAPI_RESPONSE_GET, "", "stream", "bool", "its events from the beginning; what still runs is followed to its end" },
    { OPENAPI_RESPONSE_GET, "", "starting_after", "int(0,2147483647)", "of a stream: only the events numbered over it" },
    { OPENAPI_REQUEST_STREAM, "/stream", "from", "string", "the id of the last event that is known, or a number of tokens; unset: from the beginning" },
    { OPENAPI_SESSION_LIST, "", "cache_salt", "string(0,256)", "of the requests whose sessions are meant; unset: of none" },
    { OPENAPI_SESSION_GET, "", "cache_salt", "string(0,256)", "as in the list" },
    { OPENAPI_SESSION_POST, "/save", "cache_salt", "string(0,256)", "as in the list" },
    { OPENAPI_SESSION_POST, "/restore", "cache_salt", "string(0,256)", "as in the list" },
    { OPENAPI_SESSION_DELETE, "", "cache_salt", "string(0,256)", "as in the list" },
    { OPENAPI_RESPONSE_GET, "/input_items", "limit", "int(1,100)", "so many at most; 20 unless given" },
    { OPENAPI_RESPONSE_GET, "/input_items", "order", "'asc' | 'desc'", "desc unless given" },
    { OPENAPI_RESPONSE_GET, "/input_items", "after", "string", "the items behind the one of that id" },
};

/* Bodies whose fields are in the table of fields. */
static const struct {
    const char *name;
    enum fields_route route;
    const char *required;
    const char *more; /* of its schema, as JSON: which of several fields must be there */
} bodies[] = {
    { "ChatRequest", FIELDS_ROUTE_CHAT, "messages", NULL },
    { "CompletionRequest", FIELDS_ROUTE_COMPLETIONS, "prompt", NULL },
    { "InfillRequest", FIELDS_ROUTE_INFILL, "",
      "\"anyOf\":[{\"required\":[\"input_prefix\"],\"properties\":{\"input_prefix\":{\"type\":\"string\"}}},"
      "{\"required\":[\"input_suffix\"],\"properties\":{\"input_suffix\":{\"type\":\"string\"}}}]" },
    { "ResponseRequest", FIELDS_ROUTE_RESPONSES, "input", NULL },
    { "MessagesRequest", FIELDS_ROUTE_MESSAGES, "messages,max_tokens", NULL },
    { "CountTokensRequest", FIELDS_ROUTE_MESSAGES, "messages", NULL },
    { "EmbeddingsRequest", FIELDS_ROUTE_EMBEDDINGS, "input", NULL },
    { "RerankRequest", FIELDS_ROUTE_RERANK, "query,documents", NULL },
    { "ScoreRequest", FIELDS_ROUTE_SCORE, "text_1,text_2", NULL },
    { "SignalRequest", FIELDS_ROUTE_SIGNAL, "",
      "\"oneOf\":[{\"required\":[\"prompt\"],\"properties\":{\"prompt\":{\"type\":[\"string\",\"array\"]}}},"
      "{\"required\":[\"messages\"],\"properties\":{\"messages\":{\"type\":\"array\"}}}]" },
};

static const struct { const char *status, *doc; } statuses[] = {
    { "400", "The request: a field of the wrong type, out of range, or not fitting the others or the model" },
    { "401", "No API key, or one that the server does not know" },
    { "403", "Host or Origin may not use this server" },
    { "404", "There is no such thing" },
    { "409", "The id is another request's, its record is of another model or of other settings, or it runs in another process" },
    { "413", "The body is over its limit" },
    { "429", "Too many requests wait" },
    { "499", "A DELETE ended the request" },
    { "500", "This answer failed; others go on" },
    { "503", "Loading, stopping, out of memory, or the disk is behind" },
    { "504", "The request's deadline_ms are over" },
    { "507", "No room on the disk, or as many are saved as may be" },
};
/* clang-format on */

static const char openapi_doc[] =
    "One loaded model for the clients of OpenAI's and Anthropic's APIs. The answer is a pure "
    "function "
    "of model, prompt, parameters and seed. null counts as absent; fields that are not listed are "
    "ignored and named in the header x-plumb-ignored. HEAD works wherever GET does. Of a "
    "text/event-stream the schema is that of each event.";

/* --- operations --- */

struct openapi {
    struct buf *out;
    struct json_writer w;
    const struct openapi_about *about;
};

/* A member whose value is a schema. */
static void openapi_schema(struct openapi *o, const char *key, const char *type, const char *doc)
{
    struct buf text;
    buf_init(&text, MEM_CAT_SERVER, 1 << 20);
    schema_write(&text, type, false, doc);
    json_field_raw(&o->w, key, text.data, text.len);
    o->out->failed = o->out->failed || text.failed;
    buf_release(&text);
}

static void openapi_string(struct openapi *o, const char *key, const char *value)
{
    json_field_str(&o->w, key, value);
}

static void openapi_begin(struct openapi *o, const char *key)
{
    json_field_object(&o->w, key);
}

static void openapi_end(struct openapi *o)
{
    json_end_object(&o->w);
}

static void openapi_ref(struct openapi *o, const char *key, const char *kind, const char *name)
{
    char ref[96];
    snprintf(ref, sizeof(ref), "#/components/%s/%s", kind, name);
    openapi_begin(o, key);
    openapi_string(o, "$ref", ref);
    openapi_end(o);
}

static bool openapi_is_messages(const struct operation *op)
{
    return op->operation == OPENAPI_MESSAGES || op->operation == OPENAPI_COUNT_TOKENS;
}

/* Is there an answer? What can miss a deadline is computed. */
static bool openapi_is_run(const struct operation *op)
{
    return strstr(op->errors, "504") != NULL;
}

static void openapi_parameter(struct openapi *o, const char *name, bool is_query, const char *type,
                              const char *doc)
{
    json_begin_object(&o->w);
    openapi_string(o, "name", name);
    openapi_string(o, "in", is_query ? "query" : "path");
    json_field_bool(&o->w, "required", !is_query);
    openapi_string(o, "description", doc);
    openapi_schema(o, "schema", type, NULL);
    openapi_end(o);
}

static bool openapi_has(const struct parameter *p, const struct operation *op)
{
    return p->operation == op->operation && strcmp(p->tail, op->tail) == 0;
}

static void openapi_parameters(struct openapi *o, const struct openapi_route *r,
                               const struct operation *op)
{
    bool is_session = op->operation >= OPENAPI_SESSION_LIST && op->operation < OPENAPI_FLUSH;
    bool has_any = r->is_prefix;
    for (size_t i = 0; i < ARRAY_LEN(parameters); i++)
        has_any = has_any || openapi_has(&parameters[i], op);
    if (!has_any)
        return;
    json_field_array(&o->w, "parameters");
    if (r->is_prefix)
        openapi_parameter(o, "id", false, is_session ? "word(1,128)" : "string(1)",
                          op->operation == OPENAPI_CANCEL || op->operation == OPENAPI_REQUEST_STREAM
                              ? "of requests: their x-request-id"
                          : op->operation == OPENAPI_MODEL ? "of the model"
                          : is_session                     ? "of the session: its name"
                                                           : "of the response");
    for (size_t i = 0; i < ARRAY_LEN(parameters); i++)
        if (openapi_has(&parameters[i], op))
            openapi_parameter(o, parameters[i].name, true, parameters[i].type, parameters[i].doc);
    json_end_array(&o->w);
}

static void openapi_json_content(struct openapi *o, const char *schema)
{
    openapi_begin(o, "application/json");
    openapi_ref(o, "schema", "schemas", schema);
    openapi_end(o);
}

/* The schema is that of each event, as OpenAPI has it before 3.2. */
static void openapi_stream(struct openapi *o, const struct operation *op)
{
    char data[192];
    bool has_done = op->operation == OPENAPI_CHAT || op->operation == OPENAPI_COMPLETIONS ||
                    op->operation == OPENAPI_REQUEST_STREAM;
    snprintf(data, sizeof(data),
             "%s{\"type\":\"string\",\"contentMediaType\":\"application/json\","
             "\"contentSchema\":{\"$ref\":\"#/components/schemas/%s\"}}%s",
             has_done ? "{\"anyOf\":[{\"const\":\"[DONE]\"}," : "", op->events,
             has_done ? "]}" : "");
    openapi_begin(o, "text/event-stream");
    openapi_begin(o, "schema");
    openapi_string(o, "type", "object");
    openapi_begin(o, "properties");
    openapi_schema(o, "event", "string", NULL);
    json_field_raw(&o->w, "data", data, strlen(data));
    openapi_end(o);
    json_field_raw(&o->w, "required", "[\"data\"]", 8);
    openapi_end(o);
    openapi_end(o);
}

static void openapi_reply(struct openapi *o, const struct operation *op)
{
    openapi_begin(o, "200");
    openapi_string(o, "description", op->summary);
    openapi_begin(o, "headers");
    openapi_ref(o, "x-request-id", "headers", "RequestId");
    if (openapi_is_messages(op))
        openapi_ref(o, "request-id", "headers", "RequestId");
    if (openapi_is_run(op)) {
        openapi_ref(o, "x-plumb-seed", "headers", "Seed");
        openapi_ref(o, "x-plumb-ignored", "headers", "Ignored");
        openapi_ref(o, "x-plumb-resumable", "headers", "Resumable");
    }
    openapi_end(o);
    openapi_begin(o, "content");
    if (op->reply)
        openapi_json_content(o, op->reply);
    if (op->events)
        openapi_stream(o, op);
    if (!op->reply && !op->events) {
        openapi_begin(o, "text/plain");
        openapi_schema(o, "schema", "string", NULL);
        openapi_end(o);
    }
    openapi_end(o);
    openapi_end(o);
}

static void openapi_replies(struct openapi *o, const struct openapi_route *r,
                            const struct operation *op)
{
    const char *prefix = openapi_is_messages(op) ? "MessagesError" : "Error";
    char name[32];
    openapi_begin(o, "responses");
    openapi_reply(o, op);
    for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
        const char *status = statuses[i].status;
        bool is_there = strcmp(status, "403") == 0 || strstr(op->errors, status) ||
                        (strcmp(status, "401") == 0 && o->about->has_keys && !r->is_open);
        snprintf(name, sizeof(name), "%s%s", prefix, status);
        if (is_there)
            openapi_ref(o, status, "responses", name);
    }
    snprintf(name, sizeof(name), "%sHTTP", prefix);
    openapi_ref(o, "default", "responses", name);
    openapi_end(o);
}

/* "post_v1_responses_id_cancel" */
static void openapi_id(struct openapi *o, const struct openapi_route *r, const char *path)
{
    char id[128];
    size_t at = (size_t)snprintf(id, sizeof(id), "%s", r->method);
    for (const char *p = path; *p && at + 1 < sizeof(id); p++)
        if ((*p != '{' && *p != '}') && !(*p == '/' && id[at - 1] == '_'))
            id[at++] = (char)((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') ? *p : '_');
    id[at] = '\0';
    openapi_string(o, "operationId", id);
}

static void openapi_operation(struct openapi *o, const struct openapi_route *r,
                              const struct operation *op, const char *path)
{
    openapi_begin(o, r->method);
    openapi_id(o, r, path);
    openapi_string(o, "summary", op->summary);
    json_field_array(&o->w, "tags");
    json_str(&o->w, op->tag);
    json_end_array(&o->w);
    if (r->is_open) {
        json_field_array(&o->w, "security");
        json_end_array(&o->w);
    }
    openapi_parameters(o, r, op);
    if (op->body) {
        openapi_begin(o, "requestBody");
        json_field_bool(&o->w, "required", true);
        openapi_begin(o, "content");
        openapi_json_content(o, op->body);
        openapi_end(o);
        openapi_end(o);
    }
    openapi_replies(o, r, op);
    openapi_end(o);
}

/* --- paths --- */

static void openapi_path(const struct openapi_route *r, const struct operation *op, char out[96])
{
    snprintf(out, 96, "%s%s%s", r->path, r->is_prefix ? "{id}" : "", op->tail);
}

/* One after the other: all pairs of a route and what it does. */
static bool openapi_next(const struct openapi_route *routes, size_t n, size_t *i, size_t *k)
{
    for (; *i < n; (*i)++, *k = 0)
        for (; *k < ARRAY_LEN(operations); (*k)++)
            if (operations[*k].operation == routes[*i].operation)
                return true;
    return false;
}

/* All methods of the path that the pair (i, k) has, unless an earlier pair has it too. */
static void openapi_methods(struct openapi *o, const struct openapi_route *routes, size_t n,
                            size_t i, size_t k)
{
    char path[96], other[96];
    bool is_open = false;
    openapi_path(&routes[i], &operations[k], path);
    for (size_t a = 0, b = 0; openapi_next(routes, n, &a, &b); b++) {
        openapi_path(&routes[a], &operations[b], other);
        if (strcmp(path, other) != 0)
            continue;
        bool is_earlier = a < i || (a == i && b < k);
        if (is_earlier)
            return;
        if (!is_open)
            openapi_begin(o, path);
        is_open = true;
        openapi_operation(o, &routes[a], &operations[b], path);
    }
    openapi_end(o);
}

/* --- components --- */

static void openapi_bodies(struct openapi *o)
{
    struct buf text;
    buf_init(&text, MEM_CAT_SERVER, 1 << 20);
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        buf_reset(&text);
        fields_write_schema(&text, bodies[i].route, bodies[i].required, bodies[i].more);
        json_field_raw(&o->w, bodies[i].name, text.data, text.len);
    }
    buf_release(&text);
}

static void openapi_schemas(struct openapi *o)
{
    const struct openapi_type *t;
    openapi_begin(o, "schemas");
    openapi_bodies(o);
    for (size_t i = 0; (t = openapi_type(i)); i++) {
        char token[32];
        bool is_token = strcmp(t->name, "Token") == 0 && o->about->n_vocab > 0;
        snprintf(token, sizeof(token), "int(0,%d)", o->about->n_vocab - 1);
        openapi_schema(o, t->name, is_token ? token : t->type, t->doc);
    }
    json_key(&o->w, "Stats");
    metrics_write_schema(&o->w);
    openapi_end(o);
}

static void openapi_header(struct openapi *o, const char *name, const char *type, const char *doc)
{
    openapi_begin(o, name);
    openapi_string(o, "description", doc);
    openapi_schema(o, "schema", type, NULL);
    openapi_end(o);
}

static void openapi_headers(struct openapi *o)
{
    openapi_begin(o, "headers");
    openapi_header(o, "RequestId", "string(1,128)", "the client's, if it sent a harmless one");
    openapi_header(o, "Seed", "int",
                   "the seed that was used: send it to get the same answer again");
    openapi_header(o, "Ignored", "string", "fields that nobody here knows, between commas");
    openapi_header(o, "Resumable", "'true'", "the answer has a record: it can be resumed");
    openapi_header(o, "RetryAfter", "int(0)", "seconds");
    openapi_end(o);
}

static void openapi_error(struct openapi *o, const char *schema, const char *status,
                          const char *doc)
{
    char name[32];
    snprintf(name, sizeof(name), "%s%s", schema, status);
    openapi_begin(o, name);
    openapi_string(o, "description", doc);
    openapi_begin(o, "headers");
    openapi_ref(o, "x-request-id", "headers", "RequestId");
    if (strcmp(status, "429") == 0 || strcmp(status, "503") == 0)
        openapi_ref(o, "retry-after", "headers", "RetryAfter");
    openapi_end(o);
    openapi_begin(o, "content");
    openapi_json_content(o, schema);
    openapi_end(o);
    openapi_end(o);
}

static void openapi_errors(struct openapi *o)
{
    static const char *const schemas[] = { "Error", "MessagesError" };
    openapi_begin(o, "responses");
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
        for (size_t k = 0; k < ARRAY_LEN(statuses); k++)
            openapi_error(o, schemas[i], statuses[k].status, statuses[k].doc);
        openapi_error(o, schemas[i], "HTTP",
                      "HTTP: another method (405), too slow (408), too large (431), not "
                      "understood (400, 501, 505)");
    }
    openapi_end(o);
}

static void openapi_security(struct openapi *o)
{
    static const char requirement[] = "[{\"bearer\":[]},{\"key\":[]}]";
    static const char schemes[] =
        "{\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"},"
        "\"key\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"x-api-key\"}}";
    json_field_raw(&o->w, "securitySchemes", schemes, strlen(schemes));
    openapi_end(o); /* of the components */
    json_field_raw(&o->w, "security", requirement, strlen(requirement));
}

void openapi_write(struct buf *out, const struct openapi_route *routes, size_t n,
                   const struct openapi_about *about)
{
    struct openapi o = { .out = out, .about = about };
    json_writer_init(&o.w, out);
    json_begin_object(&o.w);
    openapi_string(&o, "openapi", "3.1.0");
    openapi_begin(&o, "info");
    openapi_string(&o, "title", "plumb");
    openapi_string(&o, "version", PLUMB_VERSION);
    openapi_string(&o, "description", openapi_doc);
    openapi_end(&o);
    openapi_begin(&o, "paths");
    for (size_t i = 0, k = 0; openapi_next(routes, n, &i, &k); k++)
        openapi_methods(&o, routes, n, i, k);
    openapi_end(&o);
    openapi_begin(&o, "components");
    openapi_schemas(&o);
    openapi_headers(&o);
    openapi_errors(&o);
    if (about->has_keys)
        openapi_security(&o);
    else
        openapi_end(&o);
    openapi_end(&o);
}
