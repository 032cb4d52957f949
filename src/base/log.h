/* log.h - the only writer to stderr besides cli/.
 *
 * Thread: any. One line per call, written at once. Components are switched by name at run time (log_enable("sched")).
 * Never logs prompt or answer text: callers keep to ids, counts and times. */
#ifndef PLUMB_BASE_LOG_H
#define PLUMB_BASE_LOG_H

#include "base/err.h"

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Least important level that is printed; LOG_LEVEL_INFO until set. Call before threads start. */
void log_set_level(enum log_level level);

/* Also print debug lines of these components: "sched,http" or "all". Call before threads start. */
void log_enable(const char *components);

void log_error(const char *component, const char *fmt, ...) PRINTF_LIKE(2, 3);
void log_warn(const char *component, const char *fmt, ...) PRINTF_LIKE(2, 3);
void log_info(const char *component, const char *fmt, ...) PRINTF_LIKE(2, 3);
void log_debug(const char *component, const char *fmt, ...) PRINTF_LIKE(2, 3);

#endif
