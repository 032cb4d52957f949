#include "base/trace.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRACE_BUFFER   (64 << 10)
#define TRACE_LINE_MAX 2048
#define TRACE_ARGS_MAX 1024
#define TRACE_FLUSH_US 1000000 /* a kill loses no more than this, as long as anything is recorded */

_Atomic bool trace_is_open;

static struct { /* the lock guards all of it */
    pthread_mutex_t lock;
    int fd;
    int64_t origin_us, flushed_us, n_written;
    size_t len;
    char buffer[TRACE_BUFFER];
} trace = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1 };

/* Locked: no more. why NULL: as asked. */
static void trace_end(const char *why)
{
    atomic_store(&trace_is_open, false);
    if (why)
        log_warn("trace", "ends here: %s", why);
    if (close(trace.fd) != 0 && !why)
        log_warn("trace", "the file may not be whole: %s", strerror(errno));
    trace.fd = -1;
    trace.len = 0;
}

/* Locked. False: the trace has ended. */
static bool trace_flush(void)
{
    size_t at = 0;
    trace.flushed_us = clock_us();
    while (at < trace.len) {
        ssize_t n = write(trace.fd, trace.buffer + at, trace.len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            trace_end(n < 0 ? strerror(errno) : "nothing could be written");
            return false;
        }
        at += (size_t)n;
    }
    trace.n_written += (int64_t)trace.len;
    trace.len = 0;
    return true;
}

/* One event. Whole lines only ever reach the file. */
static void trace_add(const char *line, size_t n)
{
    pthread_mutex_lock(&trace.lock);
    if (trace.fd >= 0) {
        bool is_due = trace.len + n > TRACE_BUFFER;
        if (trace.n_written + (int64_t)(trace.len + n) > TRACE_BYTES_MAX)
            trace_end("the file has reached its limit of 1 GiB");
        else if (!is_due || trace_flush()) {
            memcpy(trace.buffer + trace.len, line, n);
            trace.len += n;
            if (clock_us() - trace.flushed_us > TRACE_FLUSH_US)
                (void)trace_flush();
        }
    }
    pthread_mutex_unlock(&trace.lock);
}

enum err_code trace_open(const char *path, struct err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_set(err, ERR_IO, "--trace %s: %s", path, strerror(errno));
    pthread_mutex_lock(&trace.lock);
    trace.fd = fd;
    trace.origin_us = trace.flushed_us = clock_us();
    trace.n_written = 0;
    /* The first event has no comma before it: it names the process. */
    trace.len = (size_t)snprintf(trace.buffer, TRACE_BUFFER,
                                 "[\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"process_name\","
                                 "\"args\":{\"name\":\"plumb\"}}",
                                 TRACE_ENGINE);
    atomic_store(&trace_is_open, true);
    pthread_mutex_unlock(&trace.lock);
    trace_name(TRACE_ENGINE, "engine");
    return ERR_OK;
}

void trace_close(void)
{
    pthread_mutex_lock(&trace.lock);
    if (trace.fd >= 0 && trace_flush()) {
        memcpy(trace.buffer, "\n]\n", 3);
        trace.len = 3;
        if (trace_flush())
            trace_end(NULL);
    }
    pthread_mutex_unlock(&trace.lock);
}

/* head: the event up to its arguments. */
static void trace_event(const char *head, const char *fmt, va_list ap)
{
    char line[TRACE_LINE_MAX], args[TRACE_ARGS_MAX];
    int n = vsnprintf(args, sizeof(args), fmt, ap);
    if (n < 0 || n >= TRACE_ARGS_MAX)
        snprintf(args, sizeof(args), "{}");
    n = snprintf(line, sizeof(line), ",\n%s,\"args\":%s}", head, args);
    BUG_ON(n < 0 || n >= TRACE_LINE_MAX);
    trace_add(line, (size_t)n);
}

void trace_span(const char *phase, uint64_t track, int64_t start_us, int64_t end_us,
                const char *fmt, ...)
{
    char head[256];
    va_list ap;
    if (!trace_is_on())
        return;
    snprintf(head, sizeof(head),
             "{\"ph\":\"X\",\"cat\":\"plumb\",\"pid\":1,\"tid\":%llu,\"name\":\"%.64s\","
             "\"ts\":%lld,\"dur\":%lld",
             (unsigned long long)track, phase, (long long)(start_us - trace.origin_us),
             (long long)(end_us > start_us ? end_us - start_us : 0));
    va_start(ap, fmt);
    trace_event(head, fmt, ap);
    va_end(ap);
}

void trace_instant(const char *phase, uint64_t track, int64_t at_us, const char *fmt, ...)
{
    char head[256];
    va_list ap;
    if (!trace_is_on())
        return;
    snprintf(
        head, sizeof(head),
        "{\"ph\":\"i\",\"s\":\"t\",\"cat\":\"plumb\",\"pid\":1,\"tid\":%llu,\"name\":\"%.64s\","
        "\"ts\":%lld",
        (unsigned long long)track, phase, (long long)(at_us - trace.origin_us));
    va_start(ap, fmt);
    trace_event(head, fmt, ap);
    va_end(ap);
}

void trace_name(uint64_t track, const char *name)
{
    char line[512];
    if (!trace_is_on())
        return;
    int n = snprintf(line, sizeof(line),
                     ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%llu,\"name\":\"thread_name\","
                     "\"args\":{\"name\":\"%.300s\"}}",
                     (unsigned long long)track, name);
    trace_add(line, (size_t)n);
}
