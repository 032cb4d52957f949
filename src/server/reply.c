/* reply.c - replies that are not generated: errors, JSON, and the headers of all. */
#include "server/server_int.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

void reply_headers(const char *request_id, const char *origin, const char *extra, char *out,
                   size_t n)
{
    char cors[400] = "";
    if (origin && *origin)
        snprintf(cors, sizeof(cors),
                 "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n"
                 "Access-Control-Expose-Headers: x-request-id, x-plumb-ignored, x-plumb-seed\r\n",
                 origin);
    snprintf(out, n, "X-Request-Id: %s\r\nCache-Control: no-store\r\n%s%s", request_id, cors,
             extra);
}

void reply_json(struct server *s, struct http_conn *c, const char *request_id, const char *origin,
                const char *extra, const struct buf *body)
{
    char headers[2048];
    reply_headers(request_id, origin, extra, headers, sizeof(headers));
    http_reply(c, 200, "application/json", headers, body->data, body->len);
}

void reply_error(struct server *s, struct http_conn *c, const char *request_id, const char *origin,
                 const struct api_error *e)
{
    char headers[2048], extra[64] = "";
    struct buf body;
    if (e->status == 429 || e->status == 503)
        snprintf(extra, sizeof(extra), "Retry-After: %d\r\n", LIMIT_RETRY_SECONDS);
    if (e->status == 405)
        snprintf(extra, sizeof(extra), "Allow: GET, HEAD, POST, OPTIONS\r\n");
    reply_headers(request_id, origin, extra, headers, sizeof(headers));
    buf_init(&body, MEM_CAT_SERVER, 1 << 16);
    api_error_write(&body, e);
    http_reply(c, e->status, "application/json", headers, body.data, body.len);
    buf_release(&body);
}

void reply_request_id(struct server *s, const struct http_head *head, char *out)
{
    const char *v = head ? http_header(head, "X-Request-Id") : NULL;
    size_t n = v ? strlen(v) : 0;
    bool is_fine = n > 0 && n <= LIMIT_REQUEST_ID_BYTES;
    for (size_t i = 0; i < n && is_fine; i++)
        is_fine = (v[i] >= '0' && v[i] <= '9') || (v[i] >= 'a' && v[i] <= 'z') ||
                  (v[i] >= 'A' && v[i] <= 'Z') || strchr("-_.:/", v[i]);
    if (is_fine)
        memcpy(out, v, n + 1);
    else
        snprintf(out, LIMIT_REQUEST_ID_BYTES, "req-%016llx", (unsigned long long)server_random());
}
