/* metrics.h - what /metrics and /stats tell: one table, from which both and docs/observing.md are made. */
#ifndef PLUMB_SERVER_METRICS_H
#define PLUMB_SERVER_METRICS_H

#include "base/buf.h"

/* The table as Markdown, for docs/observing.md. */
void metrics_print(struct buf *out);

#endif
