#include "server/http_parse.h"

#include <string.h>
#include <strings.h>

static bool http_is_token_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

static int http_hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static int http_refuse(struct err *err, int status, const char *text)
{
    err_set(err, ERR_INVALID, "%s", text);
    return status;
}

static enum http_method http_method_of(const char *s)
{
    static const char *const names[] = { "GET", "HEAD", "POST", "DELETE", "OPTIONS" };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(s, names[i]) == 0)
            return (enum http_method)i;
    return HTTP_METHOD_OTHER;
}

/* Percent-decode in place; false at a bad escape or a NUL. */
static bool http_decode_path(char *path)
{
    char *w = path;
    for (const char *r = path; *r; r++) {
        if (*r != '%') {
            *w++ = *r;
            continue;
        }
        int hi = http_hex(r[1]), lo = hi < 0 ? -1 : http_hex(r[2]);
        if (lo < 0 || (hi == 0 && lo == 0))
            return false;
        *w++ = (char)(hi << 4 | lo);
        r += 2;
    }
    *w = '\0';
    return true;
}

/* The absolute form ("http://host/path") loses its host: the Host header decides. */
static int http_parse_target(char *target, struct http_head *head, struct err *err)
{
    if (strncasecmp(target, "http://", 7) == 0) {
        target = strchr(target + 7, '/');
        if (!target) {
            head->path = "/";
            head->query = "";
            return 0;
        }
    }
    if (*target != '/' && strcmp(target, "*") != 0)
        return http_refuse(err, 400, "the request target does not start with '/'");
    char *q = strchr(target, '?');
    if (q)
        *q = '\0';
    head->query = q ? q + 1 : "";
    head->path = target;
    if (!http_decode_path(target))
        return http_refuse(err, 400, "a bad percent escape in the request target");
    return 0;
}

static int http_parse_request_line(char *line, struct http_head *head, struct err *err)
{
    char *sp = strchr(line, ' ');
    char *sp2 = sp ? strchr(sp + 1, ' ') : NULL;
    if (!sp || !sp2 || sp == line || sp2 == sp + 1)
        return http_refuse(err, 400, "the request line is not 'METHOD TARGET HTTP/1.1'");
    *sp = *sp2 = '\0';
    for (const char *p = line; *p; p++)
        if (!http_is_token_char(*p))
            return http_refuse(err, 400, "the method holds a forbidden character");
    for (const char *p = sp + 1; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f)
            return http_refuse(err, 400, "the request target holds a control character");
    const char *version = sp2 + 1;
    if (strncmp(version, "HTTP/", 5) != 0)
        return http_refuse(err, 400, "the request line does not end in HTTP/1.1");
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return http_refuse(err, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    head->minor = version[7] - '0';
    head->method = http_method_of(line);
    return http_parse_target(sp + 1, head, err);
}

static int http_parse_header(char *line, struct http_head *head, struct err *err)
{
    char *colon = strchr(line, ':');
    if (!colon || colon == line)
        return http_refuse(err, 400, "a header without a name or a colon");
    for (const char *p = line; p < colon; p++)
        if (!http_is_token_char(*p)) /* a blank at the start would be a folded header */
            return http_refuse(err, 400, "a header name holds a forbidden character");
    *colon = '\0';
    char *value = colon + 1;
    while (*value == ' ' || *value == '\t')
        value++;
    char *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = '\0';
    for (const char *p = value; *p; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
            return http_refuse(err, 400, "a header value holds a control character");
    if (head->n_headers == LIMIT_HEADERS)
        return http_refuse(err, 431, "too many headers");
    head->headers[head->n_headers++] = (struct http_header){ line, value };
    return 0;
}

static bool http_parse_length(const char *s, int64_t *out)
{
    int64_t v = 0;
    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || v > (INT64_MAX - 9) / 10)
            return false;
        v = v * 10 + (*s - '0');
    }
    *out = v;
    return true;
}

/* What frames the body, and what becomes of the connection. */
static int http_parse_framing(struct http_head *head, struct err *err)
{
    head->content_length = -1;
    head->keeps_alive = head->minor >= 1;
    int n_hosts = 0;
    for (int i = 0; i < head->n_headers; i++) {
        const struct http_header *h = &head->headers[i];
        if (strcasecmp(h->name, "Content-Length") == 0) {
            int64_t n;
            if (!http_parse_length(h->value, &n))
                return http_refuse(err, 400, "Content-Length is not a number");
            if (head->content_length >= 0 && head->content_length != n)
                return http_refuse(err, 400, "two different Content-Length headers");
            head->content_length = n;
        } else if (strcasecmp(h->name, "Transfer-Encoding") == 0) {
            if (strcasecmp(h->value, "chunked") != 0 || head->is_chunked)
                return http_refuse(err, 501, "the only Transfer-Encoding known here is 'chunked'");
            head->is_chunked = true;
        } else if (strcasecmp(h->name, "Connection") == 0) {
            if (http_list_has(h->value, "close"))
                head->keeps_alive = false;
            else if (http_list_has(h->value, "keep-alive"))
                head->keeps_alive = true;
        } else if (strcasecmp(h->name, "Expect") == 0) {
            if (strcasecmp(h->value, "100-continue") != 0)
                return http_refuse(err, 417, "the only Expect known here is '100-continue'");
            head->expects_continue = head->minor >= 1;
        } else if (strcasecmp(h->name, "Host") == 0) {
            n_hosts++;
        }
    }
    if (head->is_chunked && head->content_length >= 0)
        return http_refuse(err, 400, "both Content-Length and Transfer-Encoding");
    if (n_hosts > 1 || (n_hosts == 0 && head->minor >= 1))
        return http_refuse(err, 400, "a request needs exactly one Host header");
    return 0;
}

int http_parse_head(char *text, size_t len, struct http_head *head, struct err *err)
{
    *head = (struct http_head){ .path = "/", .query = "" };
    char *p = text, *end = text + len;
    bool is_first = true;
    if (memchr(text, '\0', len))
        return http_refuse(err, 400, "a NUL byte in the request's head");
    while (p < end) {
        char *eol = memchr(p, '\r', (size_t)(end - p));
        if (!eol || eol + 1 >= end || eol[1] != '\n')
            return http_refuse(err, 400, "a line does not end in CRLF");
        if (memchr(p, '\n', (size_t)(eol - p)))
            return http_refuse(err, 400, "a line feed without a carriage return");
        *eol = '\0';
        if (eol == p && !is_first)
            return http_parse_framing(head, err);
        int status =
            is_first ? http_parse_request_line(p, head, err) : http_parse_header(p, head, err);
        if (status != 0)
            return status;
        is_first = false;
        p = eol + 2;
    }
    return http_refuse(err, 400, "the head does not end in an empty line");
}

const char *http_header(const struct http_head *head, const char *name)
{
    for (int i = 0; i < head->n_headers; i++)
        if (strcasecmp(head->headers[i].name, name) == 0)
            return head->headers[i].value;
    return NULL;
}

bool http_list_has(const char *list, const char *token)
{
    size_t n = strlen(token);
    for (const char *p = list; *p;) {
        p += strspn(p, " \t,");
        size_t len = strcspn(p, ",");
        size_t word = len;
        while (word > 0 && (p[word - 1] == ' ' || p[word - 1] == '\t'))
            word--;
        if (word == n && strncasecmp(p, token, n) == 0)
            return true;
        p += len;
    }
    return false;
}

/* --- chunked bodies --- */

enum http_chunk_state {                   /* what the next byte belongs to */
                        CHUNK_STATE_SIZE, /* first digit of a size */
                        CHUNK_STATE_DIGITS,
                        CHUNK_STATE_EXTENSION,
                        CHUNK_STATE_SIZE_LF,
                        CHUNK_STATE_DATA,
                        CHUNK_STATE_DATA_CR,
                        CHUNK_STATE_DATA_LF,
                        CHUNK_STATE_TRAILER, /* start of a trailer line */
                        CHUNK_STATE_TRAILER_TEXT,
                        CHUNK_STATE_TRAILER_LF,
                        CHUNK_STATE_END_LF,
                        CHUNK_STATE_DONE,
};

/* One byte outside the data. False: it may not stand here. */
static bool http_chunk_byte(struct http_chunked *c, char b)
{
    switch ((enum http_chunk_state)c->state) {
    case CHUNK_STATE_SIZE:
    case CHUNK_STATE_DIGITS: {
        int v = http_hex(b);
        if (v >= 0) {
            c->left = c->left * 16 + (unsigned)v;
            c->state = CHUNK_STATE_DIGITS;
            return c->left <= UINT32_MAX;
        }
        if (c->state == CHUNK_STATE_SIZE || (b != '\r' && b != ';'))
            return false;
        c->state = b == '\r' ? CHUNK_STATE_SIZE_LF : CHUNK_STATE_EXTENSION;
        return true;
    }
    case CHUNK_STATE_EXTENSION:
        if (b == '\r')
            c->state = CHUNK_STATE_SIZE_LF;
        return b != '\n';
    case CHUNK_STATE_SIZE_LF:
        c->state = c->left > 0 ? CHUNK_STATE_DATA : CHUNK_STATE_TRAILER;
        return b == '\n';
    case CHUNK_STATE_DATA_CR:
        c->state = CHUNK_STATE_DATA_LF;
        return b == '\r';
    case CHUNK_STATE_DATA_LF:
        c->state = CHUNK_STATE_SIZE;
        return b == '\n';
    case CHUNK_STATE_TRAILER:
        c->state = b == '\r' ? CHUNK_STATE_END_LF : CHUNK_STATE_TRAILER_TEXT;
        return b != '\n';
    case CHUNK_STATE_TRAILER_TEXT:
        if (b == '\r')
            c->state = CHUNK_STATE_TRAILER_LF;
        return b != '\n';
    case CHUNK_STATE_TRAILER_LF:
        c->state = CHUNK_STATE_TRAILER;
        return b == '\n';
    case CHUNK_STATE_END_LF:
        c->state = CHUNK_STATE_DONE;
        return b == '\n';
    case CHUNK_STATE_DATA:
    case CHUNK_STATE_DONE:
        break;
    }
    return false;
}

enum err_code http_chunked_feed(struct http_chunked *c, const char *data, size_t n, size_t *used,
                                struct buf *out, bool *is_done, struct err *err)
{
    size_t i = 0;
    while (i < n && c->state != CHUNK_STATE_DONE) {
        if (c->state == CHUNK_STATE_DATA) {
            size_t take = n - i < c->left ? n - i : (size_t)c->left;
            buf_add(out, data + i, take);
            if (out->failed)
                return err_set(err, ERR_FULL, "the body is over its limit of %zu bytes", out->max);
            i += take;
            c->left -= take;
            if (c->left == 0)
                c->state = CHUNK_STATE_DATA_CR;
            continue;
        }

        if (c->state == CHUNK_STATE_EXTENSION || c->state >= CHUNK_STATE_TRAILER)
            c->line_bytes++;
        if (!http_chunk_byte(c, data[i++]) || c->line_bytes > LIMIT_HEAD_BYTES)
            return err_set(err, ERR_INVALID, "the chunked body is malformed");
    }
    *used = i;
    *is_done = c->state == CHUNK_STATE_DONE;
    return ERR_OK;
}
