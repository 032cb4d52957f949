/* call_cache.c - what clients ask of the kept histories themselves: that they be made durable. */
#include "base/clock.h"
#include "server/server_int.h"
#include "json/json.h"

static void call_cache_write(struct call *call, bool is_durable)
{
    struct server *s = call->server;
    struct sched_stats st;
    struct json_writer w;
    sched_read_stats(s->sched, &st);
    buf_reset(&s->out);
    json_writer_init(&w, &s->out);
    json_begin_object(&w);
    json_key(&w, "durable");
    json_bool(&w, is_durable);
    const struct {
        const char *name;
        int64_t value;
    } fields[] = {
        { "files", st.disk.files },     { "bytes", st.disk.bytes },
        { "pending", st.disk.pending }, { "dropped", st.disk.dropped },
        { "failed", st.disk.failed },   { "elapsed_ms", (clock_us() - call->arrived_us) / 1000 }
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++)
        json_field_int(&w, fields[i].name, fields[i].value);
    json_end_object(&w);
}

void call_cache_flushed(struct server *s, const struct sched_event *ev)
{
    struct call *call = s->calls;
    struct api_error e = { 0 };
    while (call && !(call->is_flush && call->id == ev->id))
        call = call->next;
    BUG_ON(!call); /* it waits for this */
    struct http_conn *c = call->conn;
    call->n_store--;
    if (call->session_like.name[0]) {
        call_session_flushed(call, ev->is_durable);
        call_free_if_over(call);
        return;
    }
    if (c && ev->is_durable) {
        call->conn = NULL;
        call->outcome = CALL_OUTCOME_SUCCESS;
        call_cache_write(call, true);
        reply_body(c, &call->to, NULL, "", &s->out);
    } else if (c) {
        api_error_set(
            &e, 503, "not_durable", NULL,
            "not all that is kept is on disk: --ssd-cache is not given, full, or its disk "
            "failed; /stats tells which");
        call_fail(call, &e);
    }
    call_free_if_over(call);
}

void call_cache_flush(struct server *s, struct http_conn *c, const struct http_head *head,
                      const char *rest)
{
    struct call *call = call_new(s, c, head);
    struct api_error e = { 0 };
    struct sched_stats st;
    call->id = s->next_id++;
    call->is_flush = true;
    sched_read_stats(s->sched, &st);
    if (!st.disk.is_there)
        api_error_set(&e, 400, "no_disk_cache", NULL,
                      "nothing is kept on disk: the server was started without --ssd-cache");
    else if (sched_flush(s->sched, call->id) != ERR_OK)
        api_error_set(&e, 503, "busy", NULL, "the engine is behind: try again");
    if (e.status == 0)
        call->n_store++;
    else
        call_fail(call, &e);
    call_free_if_over(call);
}
