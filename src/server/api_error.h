/* api_error.h - what a client is told when a request fails: status and OpenAI's error object. */
#ifndef PLUMB_SERVER_API_ERROR_H
#define PLUMB_SERVER_API_ERROR_H

#include "base/buf.h"

struct api_error {
    int status;        /* 0 = no error */
    const char *code;  /* constant; NULL = none */
    const char *allow; /* of 405: the methods that the path knows */
    char param[64];    /* the field at fault; "" = none */
    char text[ERR_TEXT_MAX];
};

/* Fill e; returns false, so that callers write: return api_error_set(e, 400, ...). The status decides the error's type. */
bool api_error_set(struct api_error *e, int status, const char *code, const char *param,
                   const char *fmt, ...) PRINTF_LIKE(5, 6);

/* Status and code for an error of scheduler, engine, template or tokenizer. */
void api_error_from(struct api_error *e, const struct err *err);

/* The field has another name in the API that was asked. */
void api_error_rename(struct api_error *e, const char *from, const char *to);

/* {"error":{"message","type","param","code"}} */
void api_error_write(struct buf *out, const struct api_error *e);

/* {"type":"error","error":{"type","message"},"request_id"}: what clients of Anthropic's API expect. request_id may be NULL. */
void api_error_write_anthropic(struct buf *out, const struct api_error *e, const char *request_id);

#endif
