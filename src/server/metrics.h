/* metrics.h - what /metrics and /stats tell: one table, from which both, docs/observing.md and a schema of /openapi.json are made. */
#ifndef PLUMB_SERVER_METRICS_H
#define PLUMB_SERVER_METRICS_H

#include "base/buf.h"
#include "json/json.h"

/* The table as Markdown, for docs/observing.md. */
void metrics_print(struct buf *out);

/* The JSON Schema of /stats. */
void metrics_write_schema(struct json_writer *w);

#endif
