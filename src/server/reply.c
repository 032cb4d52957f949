/* reply.c - replies that are not generated: errors, JSON, and the headers of all. */
#include "base/trace.h"
#include "server/server_int.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

/* A client's id if it is harmless in headers, logs and JSON, else "". */
static void reply_take_id(const struct http_head *head, const char *name, char *out)
{
    const char *v = head ? http_header(head, name) : NULL;
    size_t n = v ? strlen(v) : 0;
    bool is_fine = n > 0 && n <= LIMIT_REQUEST_ID_BYTES;
    for (size_t i = 0; i < n && is_fine; i++)
        is_fine = (v[i] >= '0' && v[i] <= '9') || (v[i] >= 'a' && v[i] <= 'z') ||
                  (v[i] >= 'A' && v[i] <= 'Z') || strchr("-_.:/", v[i]);
    out[0] = '\0';
    if (is_fine)
        memcpy(out, v, n + 1);
}

void reply_to_init(struct reply_to *to, const struct http_head *head)
{
    const char *origin = head ? http_header(head, "Origin") : NULL;
    *to = (struct reply_to){ 0 };
    snprintf(to->origin, sizeof(to->origin), "%s", origin ? origin : "");
    to->is_anthropic = head && route_is_anthropic(head->path);
    reply_take_id(head, "X-Request-Id", to->request_id);
    if (!to->request_id[0])
        reply_take_id(head, "Idempotency-Key", to->request_id);
    to->has_own_id = to->request_id[0] != '\0';
    if (!to->request_id[0])
        snprintf(to->request_id, sizeof(to->request_id), "req-%016llx",
                 (unsigned long long)server_random());
    if (!trace_is_on())
        return;
    reply_take_id(head, "X-Trace-Id", to->trace_id);
    if (!to->trace_id[0])
        snprintf(to->trace_id, sizeof(to->trace_id), "trace-%016llx",
                 (unsigned long long)server_random());
}

void reply_headers(const struct reply_to *to, const char *extra, char *out, size_t n)
{
    char cors[480] = "", trace[LIMIT_REQUEST_ID_BYTES + 32] = "";
    char again[LIMIT_REQUEST_ID_BYTES + 32] = "";
    if (to->origin[0])
        snprintf(
            cors, sizeof(cors),
            "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n"
            "Access-Control-Expose-Headers: x-request-id, request-id, x-trace-id, x-plumb-ignored, "
            "x-plumb-seed, x-plumb-resumable, x-should-retry, retry-after\r\n",
            to->origin);
    if (to->trace_id[0])
        snprintf(trace, sizeof(trace), "X-Trace-Id: %s\r\n", to->trace_id);
    if (to->is_anthropic)
        snprintf(again, sizeof(again), "Request-Id: %s\r\n", to->request_id);
    snprintf(out, n, "X-Request-Id: %s\r\n%s%sCache-Control: no-store\r\n%s%s", to->request_id,
             again, trace, cors, extra);
}

void reply_body(struct http_conn *c, const struct reply_to *to, const char *content_type,
                const char *extra, const struct buf *body)
{
    char headers[2048];
    reply_headers(to, extra, headers, sizeof(headers));
    http_reply(c, 200, content_type ? content_type : "application/json", headers, body->data,
               body->len);
}

void reply_error(struct http_conn *c, const struct reply_to *to, const struct api_error *e)
{
    char headers[2048], extra[96] = "";
    struct buf body;
    if (e->status == 429 || e->status == 503)
        snprintf(extra, sizeof(extra), "Retry-After: %d\r\n", LIMIT_RETRY_SECONDS);
    if (e->status == 401)
        snprintf(extra, sizeof(extra), "WWW-Authenticate: Bearer\r\n");
    if (e->status == 405 && e->allow)
        snprintf(extra, sizeof(extra), "Allow: %s\r\n", e->allow);
    if (e->status == 499 || e->status == 504) /* as wished: official clients are not to repeat it */
        snprintf(extra, sizeof(extra), "X-Should-Retry: false\r\n");
    reply_headers(to, extra, headers, sizeof(headers));
    buf_init(&body, MEM_CAT_SERVER, 1 << 16);
    if (to->is_anthropic)
        api_error_write_anthropic(&body, e, to->request_id);
    else
        api_error_write(&body, e);
    http_reply(c, e->status, "application/json", headers, body.data, body.len);
    buf_release(&body);
}
