/* call_resume_place.c - places in the streams of generations: what is written with each event, and read from a client that comes back. */
#include "server/server_int.h"

#include <stdlib.h>
#include <string.h>

/* "K" or "K.J", K being "-" before anything; *p moves on. False: it is none. */
static bool resume_read_place(const char **p, struct leg_place *out)
{
    char *end;
    *out = (struct leg_place){ -1, 0 };
    if (**p == '-') {
        ++*p;
    } else {
        long tokens = **p >= '0' && **p <= '9' ? strtol(*p, &end, 10) : -1;
        if (tokens < 0 || tokens > INT32_MAX)
            return false;
        out->tokens = (int32_t)tokens;
        *p = end;
    }
    if (**p != '.')
        return true;
    long events = (*p)[1] >= '0' && (*p)[1] <= '9' ? strtol(*p + 1, &end, 10) : -1;
    if (events < 0 || events > INT32_MAX)
        return false;
    out->events = (int32_t)events;
    *p = end;
    return true;
}

bool call_resume_read_places(const char *from, struct leg_place *out, int32_t n)
{
    const char *p = from;
    for (int32_t i = 0; i < n; i++) {
        if (!resume_read_place(&p, &out[i]))
            return false;
        if (i == 0 && !*p) {
            for (int32_t k = 1; k < n; k++)
                out[k] = out[0];
            return true;
        }
        if (*p != (i + 1 < n ? ',' : '\0'))
            return false;
        p += *p == ',';
    }
    return true;
}

static void resume_write_id(struct buf *out, const struct call *call)
{
    buf_add_str(out, "id: ");
    for (int32_t i = 0; i < call->n_legs; i++) {
        const struct leg_place *at = &call->legs[i].place;
        if (i > 0)
            buf_add_char(out, ',');
        if (at->tokens < 0)
            buf_add_char(out, '-');
        else
            buf_printf(out, "%d", at->tokens);
        if (at->events > 0)
            buf_printf(out, ".%d", at->events);
    }
    buf_add_char(out, '\n');
}

static bool resume_is_behind(const struct leg_place *a, const struct leg_place *b)
{
    return a->tokens > b->tokens || (a->tokens == b->tokens && a->events > b->events);
}

/* An event's bytes, its blank line included. */
static size_t resume_event_bytes(const char *data, size_t n)
{
    const char *end = memmem(data, n, "\n\n", 2); /* JSON has no line feed of its own */
    return end ? (size_t)(end - data) + 2 : n;
}

void call_resume_label(struct leg *leg, size_t at, bool is_end)
{
    struct call *call = leg->call;
    struct buf *out = &call->server->out, *labelled = &call->server->labelled;
    if (!call->generation || !call->is_streaming || out->failed)
        return;
    int32_t tokens = leg->place.tokens;
    size_t start = at;
    buf_reset(labelled);
    while (at < out->len) {
        size_t n = resume_event_bytes(out->data + at, out->len - at), next = at + n;
        bool is_last = next == out->len && !is_end;
        leg->place.tokens = tokens + is_last;
        leg->place.events = is_last ? 0 : leg->place.events + 1;
        if (resume_is_behind(&leg->place, &leg->have)) {
            resume_write_id(labelled, call);
            buf_add(labelled, out->data + at, n);
        }
        at = next;
    }
    if (!is_end)
        leg->place = (struct leg_place){ tokens + 1, 0 };
    buf_cut(out, start);
    buf_add(out, labelled->data, labelled->len);
    out->failed = out->failed || labelled->failed;
}
