/* route.c - which path does what, and what a head alone decides: Host, Origin, method, size. */
#include "server/fim.h"
#include "server/openapi.h"
#include "server/server_int.h"
#include "json/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

struct route {
    const char *path;
    enum http_method method; /* HEAD goes where GET goes */
    /* Answer at once, on the I/O thread; or NULL, then the body is prepared as `kind`. rest: of the path, where is_prefix. */
    void (*now)(struct server *s, const char *rest, struct buf *out, struct api_error *e);
    /* Or take the request over, to reply later; rest as above. */
    void (*later)(struct server *s, struct http_conn *c, const struct http_head *head,
                  const char *rest);
    enum prepare_kind kind;
    enum openapi_operation doc; /* what /openapi.json says of it */
    bool is_prefix;             /* an id follows */
    bool is_open;               /* asks for no key */
    const char *content_type;   /* NULL: JSON */
};

static void route_write_state(struct server *s, struct buf *out)
{
    static const char *const names[] = { "loading", "ok", "draining" };
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_str(&w, "status", names[s->state]);
    json_end_object(&w);
}

static void route_health(struct server *s, const char *rest, struct buf *out, struct api_error *e)
{
    if (s->state == SERVER_STATE_LOADING)
        api_error_set(e, 503, "loading", NULL, "the model is loading");
    else if (s->state == SERVER_STATE_DRAINING)
        api_error_set(e, 503, "draining", NULL, "the server is stopping");
    else if (server_is_wedged(s))
        api_error_set(e, 503, "wedged", NULL, "a step of the engine has been running for %lld s",
                      (long long)(server_step_us(s) / 1000000));
    else
        route_write_state(s, out);
}

static void route_live(struct server *s, const char *rest, struct buf *out, struct api_error *e)
{
    route_write_state(s, out);
}

static void route_write_flag(struct json_writer *w, const char *name, bool v)
{
    json_field_bool(w, name, v);
}

/* What a request that says nothing gets: the flags, else the model's advice; null: this server's own. */
static void route_write_default(struct json_writer *w, const char *name, double flag, double model)
{
    double v = isnan(flag) ? model : flag;
    json_key(w, name);
    if (isnan(v))
        json_null(w);
    else
        json_double(w, v);
}

static void route_write_defaults(const struct server *s, struct json_writer *w)
{
    const struct server_sampling *flag = &s->config.sampling, *model = &s->model.sampling;
    int64_t top_k = flag->top_k >= 0 ? flag->top_k : model->top_k;
    json_field_object(w, "gen_defaults");
    route_write_default(w, "temperature", flag->temperature, model->temperature);
    route_write_default(w, "top_p", flag->top_p, model->top_p);
    route_write_default(w, "top_k", NAN, top_k >= 0 ? (double)top_k : NAN);
    json_end_object(w);
}

static void route_write_model(struct server *s, struct json_writer *w)
{
    const struct engine_info *info = &s->model.engine->info;
    bool has_chat = s->model.chat_template != NULL, thinks = s->model.style.thought != NULL;
    time_t created = (time_t)info->created;
    char created_at[40];
    struct tm tm;
    gmtime_r(&created, &tm);
    strftime(created_at, sizeof(created_at), "%Y-%m-%dT%H:%M:%SZ", &tm);
    json_begin_object(w);
    json_field_str(w, "id", s->model_id);
    json_field_str(w, "object", "model");
    json_field_int(w, "created", info->created);
    json_field_str(w, "owned_by", "plumb");
    json_field_int(w, "context_window", info->n_ctx);
    json_key(w, "max_model_len"); /* the same, as clients of vLLM read it */
    json_int(w, info->n_ctx);
    json_key(w, "type"); /* from here to created_at as Anthropic's clients read it */
    json_str(w, "model");
    json_field_str(w, "display_name", s->model_id);
    json_field_str(w, "created_at", created_at);
    json_field_str(w, "batch_mode", "batch");
    route_write_defaults(s, w);
    const struct {
        const char *name;
        bool is_there;
        bool is_outer; /* clients look for it beside `capabilities` too */
    } flags[] = {
        { "chat_completions", has_chat, false },
        { "text_completions", true, false },
        { "anthropic_messages", has_chat, false },
        { "responses", has_chat, false },
        { "streaming", true, false },
        { "tools", has_chat, true },
        { "reasoning", thinks, true },
        { "structured_output", true, true },
        { "logprobs", true, false },
        { "embeddings", true, true },
        { "rerank", true, false },
        { "infill", fim_find(s->model.tokenizer) != NULL, false },
        { "vision", false, true },
        { "audio", false, true },
        { "adapters", false, true },
        { "training", false, true },
    };
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        if (flags[i].is_outer)
            route_write_flag(w, flags[i].name, flags[i].is_there);
    json_field_object(w, "capabilities");
    for (size_t i = 0; i < ARRAY_LEN(flags); i++)
        route_write_flag(w, flags[i].name, flags[i].is_there);
    json_end_object(w);
    json_end_object(w);
}

static void route_models(struct server *s, const char *rest, struct buf *out, struct api_error *e)
{
    struct json_writer w;
    if (!s->model_id) {
        api_error_set(e, 503, "loading", NULL, "the model is loading");
        return;
    }
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_str(&w, "object", "list");
    json_field_array(&w, "data");
    route_write_model(s, &w);
    json_end_array(&w);
    json_key(&w, "has_more"); /* as Anthropic's clients page */
    json_bool(&w, false);
    json_field_str(&w, "first_id", s->model_id);
    json_field_str(&w, "last_id", s->model_id);
    json_end_object(&w);
}

static void route_model(struct server *s, const char *rest, struct buf *out, struct api_error *e)
{
    struct json_writer w;
    if (!s->model_id) {
        api_error_set(e, 503, "loading", NULL, "the model is loading");
        return;
    }
    if (strcmp(rest, s->model_id) != 0 && strcmp(rest, s->model.engine->info.model_id) != 0) {
        api_error_set(e, 404, "model_not_found", "model", "the model '%.80s' does not exist", rest);
        return;
    }
    json_writer_init(&w, out);
    route_write_model(s, &w);
}

/* End the requests of an X-Request-Id, wherever they are. */
static void route_cancel(struct server *s, const char *rest, struct buf *out, struct api_error *e)
{
    struct json_writer w;
    int32_t n = call_cancel_id(s, rest);
    if (n == 0) {
        api_error_set(e, 404, "request_not_found", "id", "no live request has the id '%.128s'",
                      rest);
        return;
    }
    buf_reset(out); /* the ended requests used it */
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_str(&w, "id", rest);
    json_field_str(&w, "object", "request");
    json_field_int(&w, "cancelled", n);
    json_end_object(&w);
}

static void route_metrics(struct server *s, const char *rest, struct buf *out, struct api_error *e)
{
    metrics_write_text(s, out);
}

static void route_stats(struct server *s, const char *rest, struct buf *out, struct api_error *e)
{
    metrics_write_json(s, out);
}

static void route_index(struct server *s, const char *rest, struct buf *out, struct api_error *e);
static void route_openapi(struct server *s, const char *rest, struct buf *out, struct api_error *e);

#define METRICS_TYPE "text/plain; version=0.0.4; charset=utf-8"

/* clang-format off */
static const struct route routes[] = {
    { "/health", HTTP_METHOD_GET, .doc = OPENAPI_HEALTH, .now = route_health, .is_open = true },
    { "/health/live", HTTP_METHOD_GET, .doc = OPENAPI_LIVE, .now = route_live, .is_open = true },
    { "/health/ready", HTTP_METHOD_GET, .doc = OPENAPI_HEALTH, .now = route_health, .is_open = true },
    { "/v1/health", HTTP_METHOD_GET, .doc = OPENAPI_HEALTH, .now = route_health, .is_open = true },
    { "/metrics", HTTP_METHOD_GET, .doc = OPENAPI_METRICS, .now = route_metrics, .content_type = METRICS_TYPE },
    { "/stats", HTTP_METHOD_GET, .doc = OPENAPI_STATS, .now = route_stats },
    { "/v1", HTTP_METHOD_GET, .doc = OPENAPI_INDEX, .now = route_index },
    { "/openapi.json", HTTP_METHOD_GET, .doc = OPENAPI_DESCRIPTION, .now = route_openapi },
    { "/v1/models", HTTP_METHOD_GET, .doc = OPENAPI_MODELS, .now = route_models },
    { "/v1/models/", HTTP_METHOD_GET, .doc = OPENAPI_MODEL, .now = route_model, .is_prefix = true },
    { "/models", HTTP_METHOD_GET, .doc = OPENAPI_MODELS, .now = route_models },
    { "/v1/chat/completions", HTTP_METHOD_POST, .doc = OPENAPI_CHAT, .kind = PREPARE_CHAT },
    { "/chat/completions", HTTP_METHOD_POST, .doc = OPENAPI_CHAT, .kind = PREPARE_CHAT },
    { "/v1/completions", HTTP_METHOD_POST, .doc = OPENAPI_COMPLETIONS, .kind = PREPARE_COMPLETIONS },
    { "/completions", HTTP_METHOD_POST, .doc = OPENAPI_COMPLETIONS, .kind = PREPARE_COMPLETIONS },
    { "/v1/responses", HTTP_METHOD_POST, .doc = OPENAPI_RESPONSES, .kind = PREPARE_RESPONSES },
    { "/responses", HTTP_METHOD_POST, .doc = OPENAPI_RESPONSES, .kind = PREPARE_RESPONSES },
    { "/v1/responses/input_tokens", HTTP_METHOD_POST, .doc = OPENAPI_INPUT_TOKENS, .kind = PREPARE_INPUT_TOKENS },
    { "/v1/responses/", HTTP_METHOD_GET, .doc = OPENAPI_RESPONSE_GET, .later = call_response_ask, .is_prefix = true },
    { "/v1/responses/", HTTP_METHOD_POST, .doc = OPENAPI_RESPONSE_POST, .later = call_response_ask, .is_prefix = true },
    { "/v1/responses/", HTTP_METHOD_DELETE, .doc = OPENAPI_RESPONSE_DELETE, .later = call_response_ask, .is_prefix = true },
    { "/infill", HTTP_METHOD_POST, .doc = OPENAPI_INFILL, .kind = PREPARE_INFILL },
    { "/v1/embeddings", HTTP_METHOD_POST, .doc = OPENAPI_EMBEDDINGS, .kind = PREPARE_EMBEDDINGS },
    { "/embeddings", HTTP_METHOD_POST, .doc = OPENAPI_EMBEDDINGS, .kind = PREPARE_EMBEDDINGS },
    { "/v1/rerank", HTTP_METHOD_POST, .doc = OPENAPI_RERANK, .kind = PREPARE_RERANK },
    { "/rerank", HTTP_METHOD_POST, .doc = OPENAPI_RERANK, .kind = PREPARE_RERANK },
    { "/v1/score", HTTP_METHOD_POST, .doc = OPENAPI_SCORE, .kind = PREPARE_SCORE },
    { "/score", HTTP_METHOD_POST, .doc = OPENAPI_SCORE, .kind = PREPARE_SCORE },
    { "/v1/messages", HTTP_METHOD_POST, .doc = OPENAPI_MESSAGES, .kind = PREPARE_MESSAGES },
    { "/v1/messages/count_tokens", HTTP_METHOD_POST, .doc = OPENAPI_COUNT_TOKENS, .kind = PREPARE_COUNT_TOKENS },
    { "/signal", HTTP_METHOD_POST, .doc = OPENAPI_SIGNAL, .kind = PREPARE_SIGNAL },
    { "/v1/requests/", HTTP_METHOD_GET, .doc = OPENAPI_REQUEST_STREAM, .later = call_resume_ask, .is_prefix = true },
    { "/v1/requests/", HTTP_METHOD_DELETE, .doc = OPENAPI_CANCEL, .now = route_cancel, .is_prefix = true },
    { "/admin/sessions", HTTP_METHOD_GET, .doc = OPENAPI_SESSION_LIST, .later = call_session_list },
    { "/admin/sessions/", HTTP_METHOD_GET, .doc = OPENAPI_SESSION_GET, .later = call_session_ask, .is_prefix = true },
    { "/admin/sessions/", HTTP_METHOD_POST, .doc = OPENAPI_SESSION_POST, .later = call_session_ask, .is_prefix = true },
    { "/admin/sessions/", HTTP_METHOD_DELETE, .doc = OPENAPI_SESSION_DELETE, .later = call_session_ask, .is_prefix = true },
    { "/admin/cache/flush", HTTP_METHOD_POST, .doc = OPENAPI_FLUSH, .later = call_cache_flush },
    { "/tokenize", HTTP_METHOD_POST, .doc = OPENAPI_TOKENIZE, .kind = PREPARE_TOKENIZE },
    { "/detokenize", HTTP_METHOD_POST, .doc = OPENAPI_DETOKENIZE, .kind = PREPARE_DETOKENIZE },
    { "/apply-template", HTTP_METHOD_POST, .doc = OPENAPI_APPLY_TEMPLATE, .kind = PREPARE_APPLY_TEMPLATE },
};
/* clang-format on */

/* name, version, model and endpoints: what a client that knows nothing asks. */
static void route_index(struct server *s, const char *rest, struct buf *out, struct api_error *e)
{
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_str(&w, "name", "plumb");
    json_field_str(&w, "version", PLUMB_VERSION);
    json_key(&w, "model");
    if (s->model_id)
        json_str(&w, s->model_id);
    else
        json_null(&w);
    json_field_array(&w, "endpoints");
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        char path[64];
        snprintf(path, sizeof(path), "%s%s", routes[i].path, routes[i].is_prefix ? "{id}" : "");
        json_str(&w, path);
    }
    json_end_array(&w);
    json_end_object(&w);
}

/* Does it ask for no key? */
static bool route_is_open(const struct server *s, const struct route *r)
{
    return r->is_open || (r->now == route_metrics && s->config.is_metrics_public);
}

/* The description of all that. What depends on the model is in it once the model is loaded. */
static void route_describe(const struct server *s, struct buf *out)
{
    static const char *const methods[] = {
        [HTTP_METHOD_GET] = "get", [HTTP_METHOD_POST] = "post", [HTTP_METHOD_DELETE] = "delete"
    };
    struct openapi_route described[ARRAY_LEN(routes)];
    const struct openapi_about about = {
        .has_keys = s->config.n_api_keys > 0,
        .n_vocab = s->model_id ? s->model.engine->info.n_vocab : 0,
    };
    for (size_t i = 0; i < ARRAY_LEN(routes); i++)
        described[i] = (struct openapi_route){ .path = routes[i].path,
                                               .method = methods[routes[i].method],
                                               .is_prefix = routes[i].is_prefix,
                                               .is_open = route_is_open(s, &routes[i]),
                                               .operation = routes[i].doc };
    openapi_write(out, described, ARRAY_LEN(described), &about);
}

/* Made once: it takes 3 ms of the thread that serves all streams. */
static void route_openapi(struct server *s, const char *rest, struct buf *out, struct api_error *e)
{
    if (s->model_id && s->openapi.len == 0)
        route_describe(s, &s->openapi);
    if (s->model_id)
        buf_add(out, s->openapi.data, s->openapi.len);
    else
        route_describe(s, out);
}

/* Does the path lead there? *rest: what follows a prefix. */
static bool route_leads(const struct route *r, const char *path, const char **rest)
{
    size_t n = strlen(r->path);
    *rest = path + (r->is_prefix ? n : strlen(path));
    return r->is_prefix ? strncmp(r->path, path, n) == 0 && path[n] : strcmp(r->path, path) == 0;
}

static const struct route *route_find(const char *path, enum http_method method, const char **rest,
                                      struct api_error *e)
{
    /* by GET 1, POST 2, DELETE 4 */
    static const char *const allow[] = { NULL,
                                         "GET, HEAD, OPTIONS",
                                         "POST, OPTIONS",
                                         "GET, HEAD, POST, OPTIONS",
                                         "DELETE, OPTIONS",
                                         "GET, HEAD, DELETE, OPTIONS",
                                         "POST, DELETE, OPTIONS",
                                         "GET, HEAD, POST, DELETE, OPTIONS" };
    int known = 0;
    if (method == HTTP_METHOD_HEAD)
        method = HTTP_METHOD_GET;
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        if (!route_leads(&routes[i], path, rest))
            continue;
        if (routes[i].method == method)
            return &routes[i];
        known |= routes[i].method == HTTP_METHOD_GET    ? 1
                 : routes[i].method == HTTP_METHOD_POST ? 2
                                                        : 4;
    }
    e->allow = allow[known];
    if (known)
        api_error_set(e, 405, "method_not_allowed", NULL, "this path does not know that method");
    else
        api_error_set(e, 404, "not_found", NULL, "no such path: see GET /v1");
    return NULL;
}

/* Host and Origin. False: e. */
static bool route_guard(struct server *s, const struct http_head *head, struct api_error *e)
{
    const char *host = http_header(head, "Host"), *origin = http_header(head, "Origin");
    if (host && !guard_host(s, host))
        return api_error_set(
            e, 403, "host_not_allowed", NULL,
            "Host is neither a loopback name nor the --host of this server: add it "
            "to --allow-host if it should be served");
    if (origin && !guard_origin(s, origin, host))
        return api_error_set(
            e, 403, "origin_not_allowed", NULL,
            "web pages of this Origin may not use this server: add it to --cors-origin "
            "if they should");
    return true;
}

/* The key, unless the path asks for none. Paths that do not exist ask too: without a key nothing can be learnt of them. */
static bool route_key(const struct server *s, const struct http_head *head, const struct route *r,
                      struct api_error *e)
{
    if ((r && route_is_open(s, r)) || guard_key(s, head))
        return true;
    return api_error_set(e, 401, "invalid_api_key", NULL,
                         "this server asks for an API key, as 'Authorization: Bearer KEY' or "
                         "'x-api-key: KEY', and has been given none that it knows");
}

/* A browser asks before it sends a page's request. Which headers it means to send is its own affair: the origin may call. */
static void route_preflight(struct http_conn *c, const struct http_head *head,
                            const struct reply_to *to)
{
    static const char fine[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_, ";
    const char *asked = http_header(head, "Access-Control-Request-Headers");
    char headers[2048], extra[1024];
    if (!asked || !*asked || strlen(asked) > 700 || strspn(asked, fine) != strlen(asked))
        asked = "authorization, content-type, x-api-key, x-request-id, x-trace-id";
    snprintf(extra, sizeof(extra),
             "Access-Control-Allow-Methods: GET, POST, DELETE, OPTIONS\r\n"
             "Access-Control-Allow-Headers: %s\r\n"
             "Access-Control-Max-Age: 600\r\n",
             asked);
    reply_headers(to, extra, headers, sizeof(headers));
    http_reply(c, 204, NULL, headers, "", 0);
}

bool route_is_anthropic(const char *path)
{
    static const char prefix[] = "/v1/messages";
    size_t n = sizeof(prefix) - 1;
    return strncmp(path, prefix, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

int64_t route_head(void *arg, struct http_conn *c, const struct http_head *head)
{
    struct server *s = arg;
    struct api_error e = { 0 };
    struct reply_to to;
    const char *rest;
    reply_to_init(&to, head);
    if (!route_guard(s, head, &e)) {
        to.origin[0] = '\0'; /* gets no CORS headers */
        reply_error(c, &to, &e);
        return -1;
    }
    if (head->method == HTTP_METHOD_OPTIONS) {
        route_preflight(c, head, &to);
        return -1;
    }
    const struct route *r = route_find(head->path, head->method, &rest, &e);
    if (!route_key(s, head, r, &e)) {
        reply_error(c, &to, &e);
        return -1;
    }
    if (r && !r->now && s->state == SERVER_STATE_LOADING)
        api_error_set(&e, 503, "loading", NULL, "the model is loading; try again soon");
    if (r && !r->now && s->state == SERVER_STATE_DRAINING)
        api_error_set(&e, 503, "draining", NULL, "the server is stopping");
    if (e.status != 0) {
        reply_error(c, &to, &e);
        return -1;
    }
    if (r->now || r->later)
        return 1 << 16; /* not read by anyone */
    return s->config.max_body;
}

void route_request(void *arg, struct http_conn *c, const struct http_head *head)
{
    struct server *s = arg;
    struct api_error e = { 0 };
    struct reply_to to;
    const char *rest;
    const struct route *r = route_find(head->path, head->method, &rest, &e);
    BUG_ON(!r); /* route_head has seen to it */
    if (r->later) {
        r->later(s, c, head, rest);
        return;
    }
    if (!r->now) {
        call_begin(s, c, head, r->kind);
        return;
    }
    reply_to_init(&to, head);
    buf_reset(&s->out);
    r->now(s, rest, &s->out, &e);
    if (e.status != 0)
        reply_error(c, &to, &e);
    else
        reply_body(c, &to, r->content_type, "", &s->out);
}

void route_refuse(void *arg, struct http_conn *c, const struct http_head *head, int status,
                  const char *text)
{
    struct api_error e = { 0 };
    struct reply_to to;
    reply_to_init(&to, head);
    api_error_set(&e, status, NULL, NULL, "%s", text);
    reply_error(c, &to, &e);
}
