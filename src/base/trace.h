/* trace.h - what each request went through, as a file that Perfetto and chrome://tracing open (Chrome's trace event format: a JSON
 * array with one event a line).
 *
 * One line of the picture is a *track*: a request's number, or TRACE_ENGINE. Spans of a track nest by time, so that those of
 * one track either follow or contain one another. Times are clock_us(); the file has them from trace_open on.
 * The file is whole after trace_close, and lacks but its last bracket (which readers accept) after a kill. It is bounded
 * (TRACE_BYTES_MAX); a full disk ends the trace with one warning and does nothing else.
 * Thread: any, but open and close (nobody else records then). Nothing is allocated: may be used in a step. */
#ifndef PLUMB_BASE_TRACE_H
#define PLUMB_BASE_TRACE_H

#include "base/err.h"

#include <stdatomic.h>
#include <stdint.h>

#define TRACE_ENGINE    0 /* the track of what the engine does for several requests at once */
#define TRACE_BYTES_MAX (1ll << 30)

extern _Atomic bool trace_is_open; /* private to trace.c and the line below */

/* Off, all that tracing costs is this load: look before making arguments. */
#define trace_is_on() atomic_load_explicit(&trace_is_open, memory_order_relaxed)

/* Start a new file. Errors: ERR_IO. */
enum err_code trace_open(const char *path, struct err *err) MUST_CHECK;
void trace_close(void); /* fine when off */

/* phase [start_us, end_us) of a track. fmt gives a small JSON object, "{}" if there is nothing to say; what does not fit 1 KiB is
 * left out. */
void trace_span(const char *phase, uint64_t track, int64_t start_us, int64_t end_us,
                const char *fmt, ...) PRINTF_LIKE(5, 6);
void trace_instant(const char *phase, uint64_t track, int64_t at_us, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* What a viewer calls the track. Only characters that need no escape in JSON. */
void trace_name(uint64_t track, const char *name);

#endif
