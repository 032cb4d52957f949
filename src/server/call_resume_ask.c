/* call_resume_ask.c - which requests look for a generation: those with an id of their own, and those that ask for one. */
#include "server/server_int.h"

#include <string.h>

#define RESUME_SUFFIX "/stream"

bool call_resume_look(struct call *call, const char *id, struct journal_job *job)
{
    job->owner = call;
    journal_name(call->who, id, job->name);
    if (journal_submit(call->server->journal, job) != ERR_OK)
        return false;
    call->n_store++;
    return true;
}

bool call_resume_begin(struct call *call, struct worker_job *job, const struct http_head *head)
{
    const struct server *s = call->server;
    const char *dialect = generation_dialect(job->kind), *last = http_header(head, "Last-Event-ID");
    if (!s->journal || !dialect)
        return false;
    job->is_recorded = true;
    if (!call->to.has_own_id)
        return false;
    if (last && *last)
        call->from = mem_strdup(MEM_CAT_REQUEST, last);
    struct journal_job *look = journal_job_new(JOURNAL_OP_FIND, "");
    look->dialect = dialect;
    buf_release(&look->body);
    look->body = job->body;
    buf_init(&job->body, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES);
    if (call_resume_look(call, call->to.request_id, look)) {
        call->again = job;
        return true;
    }
    job->body = look->body; /* the disk is behind: it runs without a record */
    buf_init(&look->body, MEM_CAT_SERVER, JOURNAL_RECORD_BYTES);
    journal_job_free(look);
    return false;
}

/* The id of "ID/stream" becomes the request's; false: no such path. */
static bool resume_read_path(struct call *call, const char *rest)
{
    size_t n = strlen(rest), tail = strlen(RESUME_SUFFIX);
    if (n <= tail || strcmp(rest + n - tail, RESUME_SUFFIX) != 0 ||
        n - tail > LIMIT_REQUEST_ID_BYTES)
        return false;
    memcpy(call->to.request_id, rest, n - tail);
    call->to.request_id[n - tail] = '\0';
    return true;
}

void call_resume_ask(struct server *s, struct http_conn *c, const struct http_head *head,
                     const char *rest)
{
    struct call *call = call_new(s, c, head);
    const char *last = http_header(head, "Last-Event-ID");
    struct api_error e = { 0 };
    char from[LIMIT_CHOICES * 16];
    guard_who(head, http_peer(c), call->who);
    call->wants_stream = true;
    if (!resume_read_path(call, rest)) {
        api_error_set(&e, 405, "method_not_allowed", NULL,
                      "a request is ended by DELETE; what is read is its " RESUME_SUFFIX);
        e.allow = "DELETE, OPTIONS";
    }
    if (e.status == 0 && !s->journal)
        api_error_set(&e, 404, "request_not_found", "id",
                      "no request can be resumed: start the server with --generation-checkpoint");
    if (last && *last)
        call->from = mem_strdup(MEM_CAT_REQUEST, last);
    else if (call_query(head->query, "from", from, sizeof(from)) && strcmp(from, "0") != 0)
        call->from = mem_strdup(MEM_CAT_REQUEST, from);
    if (e.status == 0) {
        struct journal_job *look = journal_job_new(JOURNAL_OP_FIND, "");
        if (!call_resume_look(call, call->to.request_id, look)) {
            journal_job_free(look);
            api_error_set(&e, 503, "journal_busy", NULL, "the disk is behind: try again");
        }
    }
    if (e.status != 0)
        call_fail(call, &e);
    call_free_if_over(call);
}
