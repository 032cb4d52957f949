/* dialect_responses.c - an answer on its way into the log of a response (response.h), which tells streams and replies. */
#include "base/clock.h"
#include "server/diagnosis.h"
#include "server/dialect.h"
#include "server/prints.h"
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

/* In what the request differs from the one that it names. */
static void responses_compared(struct json_writer *w, const struct dialect_head *h,
                               const struct dialect_usage *u)
{
    static const char *const names[] = { [PRINT_TOOLS] = "tools_changed",
                                         [PRINT_SYSTEM] = "input_changed",
                                         [PRINT_EFFORT] = "reasoning_effort_changed",
                                         [PRINT_MESSAGES] = "input_changed" };
    const struct print_result *c = h->compared;
    const char *reason = c->change < ARRAY_LEN(names) ? names[c->change] : NULL;
    int64_t most = c->before_tokens < u->prompt_tokens ? c->before_tokens : u->prompt_tokens;
    json_begin_object(w);
    if (c->change == PRINT_NOT_FOUND) {
        json_field_str(w, "type", "comparison_response_not_found");
    } else if (reason) {
        json_field_str(w, "type", "cache_miss");
        json_field_str(w, "reason", reason);
        json_field_int(w, "cache_missed_tokens", c->missed_tokens);
        json_field_int(w, "comparison_reusable_tokens", c->before_tokens);
    } else { /* the same so far: most of it was there, or it was lost otherwise */
        json_field_str(w, "type", 2 * u->cached_tokens >= most ? "cache_hit" : "unavailable");
    }
    json_end_object(w);
}

static void responses_log_cache(const struct dialect_head *h, const struct dialect_usage *u)
{
    struct json_writer w;
    struct buf diagnosis, compared;
    buf_init(&diagnosis, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&compared, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    json_writer_init(&w, &diagnosis);
    if (h->diagnosis)
        diagnosis_write(&w, h->diagnosis, h->tokenizer);
    json_writer_init(&w, &compared);
    if (h->compared && h->has_earlier)
        responses_compared(&w, h, u);
    response_add_cache(h->response, &diagnosis, &compared);
    buf_release(&diagnosis);
    buf_release(&compared);
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
    response_add_ids(h->response, c->ids, c->n_ids);
    responses_log_cache(h, u);
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
