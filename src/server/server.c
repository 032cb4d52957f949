/* server.c - the I/O thread: what starts, what wakes it, how it ends. */
#include "base/clock.h"
#include "base/log.h"
#include "base/trace.h"
#include "server/server_int.h"
#include "server/tls.h"

#include <errno.h>
#include <event2/event.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define EVENTS_PER_WAKE 512   /* then sockets get their turn */
#define EVENT_ROOM      1024  /* events between engine thread and I/O thread */
#define RETRY_US        20000 /* commands that found the scheduler's mail full */
#define DRAIN_POLL_US   50000
#define FAILURE_US      300000  /* from the engine's end to the server's */
#define WATCH_US        1000000 /* between looks at the step that runs */
#define FREE_US         5000000 /* for the engine to come back from its last step */
#define DRAIN_FLUSH_US  1000000 /* for the last replies to leave */

void server_sampling_unset(struct server_sampling *s)
{
    *s = (struct server_sampling){ NAN, NAN, NAN, NAN, NAN, -1 };
}

uint64_t server_random(void)
{
    uint64_t v;
    BUG_ON(getrandom(&v, sizeof(v), 0) != (ssize_t)sizeof(v));
    return v >> 1; /* fits a signed number: clients read seeds as such */
}

/* --- the engine thread's side --- */

static enum err_code server_load(void *arg, struct engine **out, struct err *err)
{
    struct server *s = arg;
    enum err_code code = s->config.load(s->config.load_arg, &s->model, err);
    *out = s->model.engine;
    return code;
}

/* --- the workers' side --- */

static void server_prepare(void *arg, struct worker_job *job)
{
    const struct server *s = arg;
    const struct prepare_input in = {
        .kind = job->kind,
        .body = job->body.data,
        .n = job->body.len,
        .seed = job->seed,
        .trace = job->trace,
        .is_cancelled = &job->is_cancelled,
        .id = job->id,
        .session = job->session,
        .history = job->history,
        .list = &job->list,
    };
    struct prepare_context ctx = s->prepare;
    if (job->is_recorded && job->now_s == 0)
        job->now_s = s->config.now ? s->config.now(s->config.now_arg) : clock_wall_s();
    ctx.now_s = job->now_s;
    job->prepared = prepare_request(&ctx, &in);
    job->keeps_body =
        job->is_recorded || (job->prepared->response && job->prepared->response->needs_history);
}

static void server_wake(void *arg) /* thread: any */
{
    const struct server *s = arg;
    uint64_t one = 1;
    (void)!write(s->wake_fd, &one, sizeof(one)); /* full means that it is awake already */
}

/* --- what wakes the I/O thread --- */

static void server_add_timer(struct event *timer, int64_t us)
{
    struct timeval tv = { us / 1000000, us % 1000000 };
    evtimer_add(timer, &tv);
}

static void server_ready(struct server *s)
{
    s->model_id = s->config.alias ? s->config.alias : s->model.engine->info.model_id;
    s->prepare = (struct prepare_context){
        .model = &s->model, .config = &s->config, .model_id = s->model_id, .grammars = s->grammars
    };
    worker_pool_start(s->workers);
    if (s->state != SERVER_STATE_LOADING)
        return;
    s->state = SERVER_STATE_READY;
    if (s->config.ready)
        s->config.ready(s->config.arg, s->url);
}

static void server_handle_event(struct server *s, const struct sched_event *ev)
{
    switch (ev->kind) {
    case SCHED_EVENT_READY:
        server_ready(s);
        break;
    case SCHED_EVENT_FAILED:
        s->failure = ev->err;
        event_base_loopexit(
            s->base, &(struct timeval){ .tv_usec = FAILURE_US }); /* what was said gets out */
        break;
    case SCHED_EVENT_TOKEN:
    case SCHED_EVENT_FINISHED:
        call_event(s, ev);
        break;
    case SCHED_EVENT_FLUSHED:
        call_cache_flushed(s, ev);
        break;
    }
}

/* What workers and the disk thread have done. */
static void server_take_jobs(struct server *s)
{
    struct worker_job *job;
    struct store_job *kept;
    struct journal_job *found;
    struct session_job *saved;
    while (s->session_files && (saved = session_files_next(s->session_files)) != NULL)
        call_session_found(s, saved);
    while (s->journal && (found = journal_next(s->journal)) != NULL)
        call_resume_found(s, found);
    while ((job = worker_next(s->workers)) != NULL)
        call_prepared(s, job);
    while (s->store && (kept = store_next(s->store)) != NULL)
        call_stored(s, kept);
}

static void server_on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    uint64_t count;
    struct sched_event ev;
    (void)!read(s->wake_fd, &count, sizeof(count));
    server_take_jobs(s);
    int n = 0;
    while (n < EVENTS_PER_WAKE && sched_next_event(s->sched, &ev, 0) == ERR_OK) {
        server_handle_event(s, &ev);
        n++;
    }
    if (n == EVENTS_PER_WAKE)
        server_wake(s);
    if (s->has_due && !evtimer_pending(s->retry_timer, NULL))
        server_add_timer(s->retry_timer, RETRY_US);
}

static void server_on_retry(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    call_retry(s);
    if (s->has_due)
        server_add_timer(s->retry_timer, RETRY_US);
}

/* --- the watch over the engine --- */

int64_t server_step_us(const struct server *s)
{
    struct sched_stats st;
    if (!s->sched)
        return 0;
    sched_read_stats(s->sched, &st);
    return st.step_started_us ? clock_us() - st.step_started_us : 0;
}

bool server_is_wedged(const struct server *s)
{
    return server_step_us(s) > s->config.wedged_seconds * 1000000;
}

static void server_on_watch(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    bool is_wedged = server_is_wedged(s);
    if (is_wedged && !s->is_wedged)
        log_error("server", "a step of the engine has been running for %lld seconds",
                  (long long)(server_step_us(s) / 1000000));
    else if (!is_wedged && s->is_wedged)
        log_info("server", "the engine goes on");
    s->is_wedged = is_wedged;
    call_resume_tick(s);
    server_add_timer(s->watch_timer, WATCH_US);
}

/* Looks eight times in the interval, so that a silence is an eighth longer at most. */
static void server_on_alive(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    call_keep_alive(s);
    server_add_timer(s->alive_timer, s->config.keep_alive_ms * 1000 / 8 + 1);
}

/* --- the end --- */

static void server_on_drain(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    int64_t now = clock_us();
    int64_t late_us = now - s->drain_started_us - s->config.drain_seconds * 1000000;
    if (s->n_calls > 0 && late_us > 0)
        call_end_all(s, "the server stops and this answer took too long");
    bool is_flushed =
        http_server_connections(s->http) == 0 || now - s->last_call_us > DRAIN_FLUSH_US;
    if ((s->n_calls == 0 && is_flushed) || late_us > FREE_US)
        event_base_loopexit(s->base, NULL);
    else
        server_add_timer(s->drain_timer, DRAIN_POLL_US);
}

static void server_on_signal(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    s->is_hurried = s->state == SERVER_STATE_DRAINING; /* asked twice */
    if (s->state != SERVER_STATE_READY) {
        event_base_loopbreak(s->base);
        return;
    }
    log_info("server", "stopping: %d requests are finished first, for at most %lld seconds",
             s->n_calls, (long long)s->config.drain_seconds);
    s->state = SERVER_STATE_DRAINING;
    s->drain_started_us = s->last_call_us = clock_us();
    http_server_stop_listening(s->http);
    server_add_timer(s->drain_timer, 0);
}

/* --- start and stop --- */

static void server_set_url(struct server *s)
{
    const char *host = s->bind_host;
    if (strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0)
        host = "127.0.0.1";
    bool is_v6 = strchr(host, ':') != NULL;
    snprintf(s->url, sizeof(s->url), "%s://%s%s%s:%d", s->tls ? "https" : "http", is_v6 ? "[" : "",
             host, is_v6 ? "]" : "", http_server_port(s->http));
}

static void server_set_config(struct server *s, const struct server_config *config)
{
    s->config = *config;
    if (s->config.max_body == 0)
        s->config.max_body = LIMIT_BODY_BYTES;
    if (s->config.drain_seconds < 0)
        s->config.drain_seconds = LIMIT_DRAIN_SECONDS;
    if (s->config.max_waiting == 0)
        s->config.max_waiting = LIMIT_WAITING;
    if (s->config.wedged_seconds == 0)
        s->config.wedged_seconds = LIMIT_WEDGED_SECONDS;
    if (s->config.max_stall_ms == 0)
        s->config.max_stall_ms = 250;
    if (s->config.keep_alive_ms == 0)
        s->config.keep_alive_ms = LIMIT_KEEP_ALIVE_MS;
    if (s->config.grammar_bytes == 0)
        s->config.grammar_bytes = LIMIT_GRAMMAR_BYTES;
    if (s->config.store_bytes == 0)
        s->config.store_bytes = LIMIT_STORE_BYTES;
    if (s->config.journal_bytes == 0)
        s->config.journal_bytes = LIMIT_JOURNAL_BYTES;
    if (s->config.resume_ttl_s == 0)
        s->config.resume_ttl_s = LIMIT_RESUME_TTL_SECONDS;
    if (s->config.store_days == 0)
        s->config.store_days = LIMIT_STORE_DAYS;
    const char *host = config->host;
    size_t n = strlen(host);
    bool is_bracketed = n > 1 && host[0] == '[' && host[n - 1] == ']';
    snprintf(s->bind_host, sizeof(s->bind_host), "%.*s", (int)(is_bracketed ? n - 2 : n),
             host + is_bracketed);
}

/* Everything that workers and scheduler still hold of our calls comes back. False: the engine does not. */
static bool server_collect(struct server *s)
{
    struct sched_event ev;
    int64_t end_us = clock_us() + FREE_US;
    call_end_all(s, "the server stops");
    sched_drain(s->sched);
    while (s->n_calls > 0 && clock_us() < end_us) {
        if (s->has_due)
            call_retry(s);
        server_take_jobs(s);
        while (sched_next_event(s->sched, &ev, 10000) == ERR_OK)
            server_handle_event(s, &ev);
    }
    return server_step_us(s) == 0;
}

static void server_free(struct server *s)
{
    struct event *events[] = { s->wake_event, s->retry_timer, s->drain_timer, s->watch_timer,
                               s->alive_timer };
    worker_pool_free(s->workers); /* before the engine goes: they read what it is */
    if (s->sched)
        sched_stop(s->sched);
    grammars_free(s->grammars);
    store_free(s->store);
    journal_free(s->journal);
    session_files_free(s->session_files);
    sessions_release(&s->sessions);
    for (size_t i = 0; i < ARRAY_LEN(events); i++)
        if (events[i])
            event_free(events[i]);
    if (s->base)
        event_base_free(s->base);
    if (s->wake_fd >= 0)
        close(s->wake_fd);
    tls_close(s->tls);
    guard_release(s);
    prints_release(&s->prints);
    buf_release(&s->openapi);
    buf_release(&s->out);
    buf_release(&s->text);
    buf_release(&s->labelled);
    mem_free(MEM_CAT_SERVER, s);
}

static enum err_code server_listen(struct server *s, struct err *err)
{
    const struct server_config *config = &s->config;
    enum err_code code = guard_init(s, err);
    if (code == ERR_OK && (config->tls_cert || config->tls_key)) {
        if (!config->tls_cert || !config->tls_key)
            return err_set(err, ERR_INVALID, "--tls-cert and --tls-key go together: %s is missing",
                           config->tls_cert ? "--tls-key" : "--tls-cert");
        code = tls_open(config->tls_cert, config->tls_key, &s->tls, err);
    }
    if (code != ERR_OK)
        return code;
    const struct http_options o = {
        .base = s->base,
        .host = s->bind_host,
        .port = config->port,
        .ops = { route_head, route_request, route_refuse, call_closed, call_drained, s },
        .seconds = { config->head_seconds, config->body_seconds, config->idle_seconds,
                     config->stall_seconds },
        .tls = s->tls,
    };
    return http_server_open(&o, &s->http, err);
}

static enum err_code server_start(struct server *s, struct err *err)
{
    static const int signals[2] = { SIGTERM, SIGINT };
    s->base = event_base_new();
    s->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!s->base || s->wake_fd < 0)
        return err_set(err, ERR_IO, "event loop: %s", strerror(errno));
    s->wake_event = event_new(s->base, s->wake_fd, EV_READ | EV_PERSIST, server_on_wake, s);
    s->retry_timer = evtimer_new(s->base, server_on_retry, s);
    s->drain_timer = evtimer_new(s->base, server_on_drain, s);
    s->watch_timer = evtimer_new(s->base, server_on_watch, s);
    s->alive_timer = evtimer_new(s->base, server_on_alive, s);
    event_add(s->wake_event, NULL);
    for (int i = 0; i < 2; i++) {
        s->signals[i] = evsignal_new(s->base, signals[i], server_on_signal, s);
        event_add(s->signals[i], NULL);
    }
    signal(SIGPIPE, SIG_IGN); /* a client that is gone is an error of write(), not our end */
    signal(SIGXFSZ, SIG_IGN); /* nor is a file that may not grow */
    enum err_code code = server_listen(s, err);
    if (code != ERR_OK)
        return code;
    server_set_url(s);
    if (s->config.state_dir) {
        const struct store_config store = { s->config.state_dir, s->config.store_bytes,
                                            s->config.store_days * 86400, server_wake, s };
        s->store = store_new(&store);
    }
    if (s->config.checkpoint > 0) {
        const struct journal_config journal = { s->config.journal_dir, s->config.journal_bytes,
                                                s->config.resume_ttl_s, server_wake, s };
        s->journal = journal_new(&journal);
    }
    if (s->config.session_dir)
        s->session_files = session_files_new(s->config.session_dir, server_wake, s);
    const struct worker_config wc = {
        .slots = { [WORKER_CLASS_TEXT] = LIMIT_PREP_THREADS, LIMIT_PREP_THREADS, 1 },
        .max_queued =
            s->config.max_waiting > LIMIT_PREPARING ? s->config.max_waiting : LIMIT_PREPARING,
        .prepare = server_prepare,
        .prepare_arg = s,
        .wake = server_wake,
        .wake_arg = s,
    };
    s->grammars = grammars_new(&s->model, s->config.grammar_bytes);
    s->workers = worker_pool_new(&wc);
    const struct sched_config sc = {
        .max_waiting = s->config.max_waiting,
        .max_stall_us = s->config.max_stall_ms * 1000,
        .n_events = EVENT_ROOM,
        .load = server_load,
        .load_arg = s,
        .wake = server_wake,
        .wake_arg = s,
    };
    code = sched_start(&sc, &s->sched, err);
    if (code == ERR_OK)
        server_on_alive(-1, 0, s);
    if (code == ERR_OK)
        server_add_timer(s->watch_timer, WATCH_US);
    if (code == ERR_OK && s->config.listening)
        s->config.listening(s->config.arg, s->url);
    return code;
}

/* How the loop's end is told. After ERR_CANCELLED and ERR_TIMEOUT nothing may be freed. */
static enum err_code server_end(struct server *s, struct err *err)
{
    if (s->failure.code != ERR_OK)
        return err_set(err, s->failure.code, "%s", s->failure.text);
    if (s->state == SERVER_STATE_LOADING)
        return err_set(err, ERR_CANCELLED, "stopped while the model was loading");
    if (s->is_hurried)
        return err_set(err, ERR_TIMEOUT, "asked to stop twice: %d requests were cut off",
                       s->n_calls);
    return ERR_OK;
}

enum err_code server_run(const struct server_config *config, struct err *err)
{
    struct server *s = mem_alloc(MEM_CAT_SERVER, sizeof(*s));
    s->wake_fd = -1;
    s->started_us = clock_us();
    BUG_ON(getrandom(s->secret, sizeof(s->secret), 0) != (ssize_t)sizeof(s->secret));
    buf_init(&s->openapi, MEM_CAT_SERVER, LIMIT_REPLY_BYTES);
    buf_init(&s->out, MEM_CAT_SERVER, LIMIT_REPLY_BYTES);
    buf_init(&s->text, MEM_CAT_SERVER, LIMIT_REPLY_BYTES);
    buf_init(&s->labelled, MEM_CAT_SERVER, LIMIT_REPLY_BYTES);
    server_set_config(s, config);
    enum err_code code = server_start(s, err);
    if (code == ERR_OK) {
        event_base_dispatch(s->base);
        code = server_end(s, err);
        if (code == ERR_CANCELLED || code == ERR_TIMEOUT)
            return code;
    }
    for (int i = 0; i < 2; i++) { /* from here on a signal kills */
        if (s->signals[i])
            event_free(s->signals[i]);
        s->signals[i] = NULL;
    }
    http_server_close(s->http);
    if (s->sched && !server_collect(s))
        return err_set(err, ERR_TIMEOUT, "stopped, but a step of the engine does not end");
    server_free(s);
    return code;
}
