#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define LOG_LINE_MAX 1024

static enum log_level log_level = LOG_LEVEL_INFO;
static char log_components[128];

void log_set_level(enum log_level level)
{
    log_level = level;
}

void log_enable(const char *components)
{
    snprintf(log_components, sizeof(log_components), ",%s,", components);
}

static bool log_is_enabled(const char *component)
{
    char want[64];
    if (log_components[0] == '\0')
        return false;
    if (strstr(log_components, ",all,"))
        return true;
    snprintf(want, sizeof(want), ",%s,", component);
    return strstr(log_components, want) != NULL;
}

static void log_line(enum log_level level, const char *component, const char *fmt, va_list ap)
{
    static const char *const tags[] = { "error: ", "warning: ", "", "debug: " };
    char line[LOG_LINE_MAX];
    if (level > log_level && !(level == LOG_LEVEL_DEBUG && log_is_enabled(component)))
        return;
    int n = snprintf(line, sizeof(line), "%s: %s", component, tags[level]);
    vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, ap);
    size_t len = strlen(line);
    line[len] = '\n';
    fwrite(line, 1, len + 1, stderr);
}

#define LOG_DEFINE(name, level)                            \
    void name(const char *component, const char *fmt, ...) \
    {                                                      \
        va_list ap;                                        \
        va_start(ap, fmt);                                 \
        log_line(level, component, fmt, ap);               \
        va_end(ap);                                        \
    }

LOG_DEFINE(log_error, LOG_LEVEL_ERROR)
LOG_DEFINE(log_warn, LOG_LEVEL_WARN)
LOG_DEFINE(log_info, LOG_LEVEL_INFO)
LOG_DEFINE(log_debug, LOG_LEVEL_DEBUG)
