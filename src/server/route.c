/* route.c - which path does what, and what a head alone decides: Host, Origin, method, size. */
#include "base/clock.h"
#include "server/server_int.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

struct route {
    const char *path;
    enum http_method method; /* HEAD goes where GET goes */
    /* Answer at once, on the I/O thread; or NULL, then the body is prepared as `kind`. */
    void (*now)(struct server *s, struct http_conn *c, const char *path, struct buf *out,
                struct api_error *e);
    enum prepare_kind kind;
};

static void route_write_state(struct server *s, struct buf *out)
{
    static const char *const names[] = { "loading", "ok", "draining" };
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, "status");
    json_str(&w, names[s->state]);
    json_end_object(&w);
}

static void route_health(struct server *s, struct http_conn *c, const char *path, struct buf *out,
                         struct api_error *e)
{
    if (s->state == SERVER_STATE_READY)
        route_write_state(s, out);
    else if (s->state == SERVER_STATE_LOADING)
        api_error_set(e, 503, "loading", NULL, "the model is loading");
    else
        api_error_set(e, 503, "draining", NULL, "the server is stopping");
}

static void route_live(struct server *s, struct http_conn *c, const char *path, struct buf *out,
                       struct api_error *e)
{
    route_write_state(s, out);
}

static void route_write_model(struct server *s, struct json_writer *w)
{
    const struct engine_info *info = &s->model.engine->info;
    json_begin_object(w);
    json_key(w, "id");
    json_str(w, s->model_id);
    json_key(w, "object");
    json_str(w, "model");
    json_key(w, "created");
    json_int(w, info->created);
    json_key(w, "owned_by");
    json_str(w, "plumb");
    json_key(w, "context_window");
    json_int(w, info->n_ctx);
    json_key(w, "max_model_len"); /* the same, as clients of vLLM read it */
    json_int(w, info->n_ctx);
    json_key(w, "capabilities");
    json_begin_object(w);
    json_key(w, "chat_completions");
    json_bool(w, s->model.chat_template != NULL);
    json_key(w, "text_completions");
    json_bool(w, true);
    json_key(w, "streaming");
    json_bool(w, true);
    json_key(w, "logprobs");
    json_bool(w, true);
    json_key(w, "tools");
    json_bool(w, false);
    json_key(w, "structured_output");
    json_bool(w, false);
    json_key(w, "vision");
    json_bool(w, false);
    json_end_object(w);
    json_end_object(w);
}

static void route_models(struct server *s, struct http_conn *c, const char *path, struct buf *out,
                         struct api_error *e)
{
    struct json_writer w;
    const char *id = strlen(path) > strlen("/v1/models/") ? path + strlen("/v1/models/") : NULL;
    if (!s->model_id) {
        api_error_set(e, 503, "loading", NULL, "the model is loading");
        return;
    }
    if (id && strcmp(id, s->model_id) != 0 && strcmp(id, s->model.engine->info.model_id) != 0) {
        api_error_set(e, 404, "model_not_found", "model", "the model '%.80s' does not exist", id);
        return;
    }
    json_writer_init(&w, out);
    if (id) {
        route_write_model(s, &w);
        return;
    }
    json_begin_object(&w);
    json_key(&w, "object");
    json_str(&w, "list");
    json_key(&w, "data");
    json_begin_array(&w);
    route_write_model(s, &w);
    json_end_array(&w);
    json_end_object(&w);
}

static void route_stats(struct server *s, struct http_conn *c, const char *path, struct buf *out,
                        struct api_error *e)
{
    struct sched_stats st;
    struct json_writer w;
    sched_read_stats(s->sched, &st);
    const struct {
        const char *name;
        int64_t v;
    } rows[] = {
        { "connections", http_server_connections(s->http) },
        { "calls", s->n_calls },
        { "waiting", st.waiting },
        { "running", st.running },
        { "accepted", st.accepted },
        { "finished", st.finished },
        { "cancelled", st.cancelled },
        { "failed", st.failed },
        { "steps", st.steps },
        { "prompt_tokens", st.prompt_tokens },
        { "tokens", st.tokens },
        { "last_step_us", st.last_step_us },
        { "step_us_now", st.step_started_us ? clock_us() - st.step_started_us : 0 },
        { "uptime_ms", (clock_us() - s->started_us) / 1000 },
    };
    json_writer_init(&w, out);
    json_begin_object(&w);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        json_key(&w, rows[i].name);
        json_int(&w, rows[i].v);
    }
    json_key(&w, "memory");
    json_begin_object(&w);
    for (int i = 0; i < MEM_CAT_COUNT; i++) {
        json_key(&w, mem_cat_name((enum mem_cat)i));
        json_int(&w, mem_bytes((enum mem_cat)i));
    }
    json_end_object(&w);
    json_end_object(&w);
}

static void route_index(struct server *s, struct http_conn *c, const char *path, struct buf *out,
                        struct api_error *e);

static const struct route routes[] = {
    { "/health", HTTP_METHOD_GET, route_health, 0 },
    { "/health/live", HTTP_METHOD_GET, route_live, 0 },
    { "/health/ready", HTTP_METHOD_GET, route_health, 0 },
    { "/v1/health", HTTP_METHOD_GET, route_health, 0 },
    { "/stats", HTTP_METHOD_GET, route_stats, 0 },
    { "/v1", HTTP_METHOD_GET, route_index, 0 },
    { "/v1/models", HTTP_METHOD_GET, route_models, 0 },
    { "/models", HTTP_METHOD_GET, route_models, 0 },
    { "/v1/chat/completions", HTTP_METHOD_POST, NULL, PREPARE_CHAT },
    { "/chat/completions", HTTP_METHOD_POST, NULL, PREPARE_CHAT },
    { "/v1/completions", HTTP_METHOD_POST, NULL, PREPARE_COMPLETIONS },
    { "/completions", HTTP_METHOD_POST, NULL, PREPARE_COMPLETIONS },
    { "/tokenize", HTTP_METHOD_POST, NULL, PREPARE_TOKENIZE },
    { "/detokenize", HTTP_METHOD_POST, NULL, PREPARE_DETOKENIZE },
    { "/apply-template", HTTP_METHOD_POST, NULL, PREPARE_APPLY_TEMPLATE },
};

/* name, version, model and endpoints: what a client that knows nothing asks. */
static void route_index(struct server *s, struct http_conn *c, const char *path, struct buf *out,
                        struct api_error *e)
{
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, "name");
    json_str(&w, "plumb");
    json_key(&w, "version");
    json_str(&w, PLUMB_VERSION);
    json_key(&w, "model");
    if (s->model_id)
        json_str(&w, s->model_id);
    else
        json_null(&w);
    json_key(&w, "endpoints");
    json_begin_array(&w);
    for (size_t i = 0; i < ARRAY_LEN(routes); i++)
        json_str(&w, routes[i].path);
    json_end_array(&w);
    json_end_object(&w);
}

static const struct route *route_find(const char *path, enum http_method method,
                                      struct api_error *e)
{
    bool is_known = false;
    if (method == HTTP_METHOD_HEAD)
        method = HTTP_METHOD_GET;
    if (strncmp(path, "/v1/models/", 11) == 0 && path[11])
        path = "/v1/models";
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        if (strcmp(routes[i].path, path) != 0)
            continue;
        if (routes[i].method == method)
            return &routes[i];
        is_known = true;
    }
    if (is_known)
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
            "web pages of this Origin may not use this server: add it to --origins "
            "if they should");
    return true;
}

/* A browser asks before it sends a page's request. */
static void route_preflight(struct http_conn *c, const char *request_id, const char *origin)
{
    char headers[1024];
    reply_headers(request_id, origin,
                  "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
                  "Access-Control-Allow-Headers: authorization, content-type, x-request-id\r\n"
                  "Access-Control-Max-Age: 600\r\n",
                  headers, sizeof(headers));
    http_reply(c, 204, NULL, headers, "", 0);
}

int64_t route_head(void *arg, struct http_conn *c, const struct http_head *head)
{
    struct server *s = arg;
    struct api_error e = { 0 };
    char request_id[LIMIT_REQUEST_ID_BYTES + 1];
    const char *origin = http_header(head, "Origin");
    reply_request_id(s, head, request_id);
    if (!route_guard(s, head, &e)) {
        reply_error(s, c, request_id, NULL, &e);
        return -1;
    }
    if (head->method == HTTP_METHOD_OPTIONS) {
        route_preflight(c, request_id, origin);
        return -1;
    }
    const struct route *r = route_find(head->path, head->method, &e);
    if (r && !r->now && s->state == SERVER_STATE_LOADING)
        api_error_set(&e, 503, "loading", NULL, "the model is loading; try again soon");
    if (r && !r->now && s->state == SERVER_STATE_DRAINING)
        api_error_set(&e, 503, "draining", NULL, "the server is stopping");
    if (e.status != 0) {
        reply_error(s, c, request_id, origin, &e);
        return -1;
    }
    if (r->now)
        return 1 << 16; /* not read by anyone */
    return s->config.max_body;
}

void route_request(void *arg, struct http_conn *c, const struct http_head *head)
{
    struct server *s = arg;
    struct api_error e = { 0 };
    char request_id[LIMIT_REQUEST_ID_BYTES + 1];
    const char *origin = http_header(head, "Origin");
    const struct route *r = route_find(head->path, head->method, &e);
    BUG_ON(!r); /* route_head has seen to it */
    if (!r->now) {
        call_begin(s, c, head, r->kind);
        return;
    }
    reply_request_id(s, head, request_id);
    buf_reset(&s->out);
    r->now(s, c, head->path, &s->out, &e);
    if (e.status != 0)
        reply_error(s, c, request_id, origin, &e);
    else
        reply_json(s, c, request_id, origin, "", &s->out);
}

void route_refuse(void *arg, struct http_conn *c, const struct http_head *head, int status,
                  const char *text)
{
    struct server *s = arg;
    struct api_error e = { 0 };
    char request_id[LIMIT_REQUEST_ID_BYTES + 1];
    reply_request_id(s, head, request_id);
    api_error_set(&e, status, NULL, NULL, "%s", text);
    reply_error(s, c, request_id, head ? http_header(head, "Origin") : NULL, &e);
}
