/* dialect_responses.c - an answer on its way into the log of a response (response.h), which tells streams and replies. */
#include "base/clock.h"
#include "server/dialect.h"
#include "server/response.h"
#include "json/json.h"

#include <stdio.h>

static void responses_part(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                           const struct dialect_choice *c, const struct part *p)
{
    struct response *r = h->response;
    struct buf list;
    if (r->outcome.status == RESPONSE_STATUS_QUEUED) {
        r->outcome.status = RESPONSE_STATUS_IN_PROGRESS;
        response_add_started(r);
    }
    buf_init(&list, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    if (h->n_logprobs >= 0 && c->n_tokens > 0) {
        struct json_writer w;
        json_writer_init(&w, &list);
        json_begin_array(&w); /* for its commas */
        buf_reset(&list);
        dialect_chat_tokens(&w, h, c);
    }
    response_add_part(r, p, &list);
    buf_release(&list);
}

static void responses_end(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                          const struct dialect_choice *c)
{
    struct response_outcome *o = &h->response->outcome;
    o->status = c->finish == FINISH_LENGTH ? RESPONSE_STATUS_INCOMPLETE : RESPONSE_STATUS_COMPLETED;
}

static void responses_close(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                            const struct dialect_choice *c, int32_t n,
                            const struct dialect_usage *u)
{
    struct response_outcome *o = &h->response->outcome;
    if (o->status == RESPONSE_STATUS_COMPLETED)
        o->completed_s = clock_wall_s();
    o->has_usage = true;
    o->input_tokens = u->prompt_tokens;
    o->cached_tokens = u->cached_tokens;
    o->output_tokens = u->completion_tokens;
    o->reasoning_tokens = u->reasoning_tokens;
}

static void responses_error(struct buf *out, const struct dialect_head *h, struct dialect_state *st,
                            const struct api_error *e)
{
    struct response_outcome *o = &h->response->outcome;
    o->status = e->status == 499 ? RESPONSE_STATUS_CANCELLED : RESPONSE_STATUS_FAILED;
    snprintf(o->error_code, sizeof(o->error_code), "%s",
             e->status == 429   ? "rate_limit_exceeded"
             : e->code          ? e->code
             : e->status >= 500 ? "server_error"
                                : "invalid_prompt");
    snprintf(o->error_text, sizeof(o->error_text), "%s", e->text);
}

static void responses_keep_alive(struct buf *out, const struct dialect_head *h,
                                 struct dialect_state *st, int32_t n)
{
    response_add_keep_alive(h->response);
}

const struct dialect dialect_responses = {
    .id_prefix = "resp_",
    .part = responses_part,
    .end = responses_end,
    .close = responses_close,
    .error = responses_error,
    .keep_alive = responses_keep_alive,
};
