#include "server/api_error.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>

bool api_error_set(struct api_error *e, int status, const char *code, const char *param,
                   const char *fmt, ...)
{
    va_list ap;
    e->status = status;
    e->code = code;
    snprintf(e->param, sizeof(e->param), "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    return false;
}

void api_error_from(struct api_error *e, const struct err *err)
{
    switch (err->code) {
    case ERR_INVALID:
    case ERR_UNSUPPORTED:
    case ERR_NOT_FOUND:
        api_error_set(e, 400, NULL, NULL, "%s", err->text);
        break;
    case ERR_FULL:
        api_error_set(e, 400, "context_length_exceeded", NULL, "%s", err->text);
        break;
    case ERR_NOMEM:
        api_error_set(e, 503, "out_of_memory", NULL, "%s", err->text);
        break;
    case ERR_STATE:
    case ERR_CANCELLED:
        api_error_set(e, 503, "unavailable", NULL, "%s", err->text);
        break;
    case ERR_TIMEOUT:
        api_error_set(e, 504, "deadline_exceeded", NULL, "%s", err->text);
        break;
    default:
        api_error_set(e, 500, NULL, NULL, "%s", err->text);
        break;
    }
}

static const char *api_error_type(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 499:
        return "cancelled_error";
    case 504:
        return "timeout_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return "unavailable_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

void api_error_rename(struct api_error *e, const char *from, const char *to)
{
    char text[ERR_TEXT_MAX];
    size_t n = strlen(from);
    if (strcmp(e->param, from) != 0)
        return;
    snprintf(e->param, sizeof(e->param), "%s", to);
    if (strncmp(e->text, from, n) == 0 && e->text[n] == ':') {
        snprintf(text, sizeof(text), "%s%s", to, e->text + n);
        memcpy(e->text, text, sizeof(text));
    }
}

void api_error_write(struct buf *out, const struct api_error *e)
{
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_object(&w, "error");
    json_field_str(&w, "message", e->text);
    json_field_str(&w, "type", api_error_type(e->status));
    json_key(&w, "param");
    if (e->param[0])
        json_str(&w, e->param);
    else
        json_null(&w);
    json_key(&w, "code");
    if (e->code)
        json_str(&w, e->code);
    else
        json_null(&w);
    json_end_object(&w);
    json_end_object(&w);
}

static const char *api_error_type_anthropic(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    case 504:
        return "timeout_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

void api_error_write_anthropic(struct buf *out, const struct api_error *e, const char *request_id)
{
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_str(&w, "type", "error");
    json_field_object(&w, "error");
    json_field_str(&w, "type", api_error_type_anthropic(e->status));
    json_field_str(&w, "message", e->text);
    json_end_object(&w);
    if (request_id) {
        json_field_str(&w, "request_id", request_id);
    }
    json_end_object(&w);
}
