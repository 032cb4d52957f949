/* dialect_signal.c - the reply of /signal: how likely the tokens are that could come next, as a histogram. */
#include "server/dialect.h"
#include "json/json.h"

#include <stdio.h>

static void signal_whole(struct buf *out, const struct dialect_head *h,
                         const struct dialect_choice *c, int32_t n, const struct dialect_usage *u)
{
    const struct engine_signal *s = c[0].signal;
    struct json_writer w;
    char minimum[32]; /* as a float, not as the double that it widens to */
    int n_minimum = snprintf(minimum, sizeof(minimum), "%.7g", (double)s->minimum);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_field_array(&w, "bins");
    for (int32_t i = 0; i < s->n_bins; i++)
        json_int(&w, s->bins[i]);
    json_end_array(&w);
    json_field_int(&w, "count", s->n_bins);
    json_field_raw(&w, "minimum", minimum, (size_t)n_minimum);
    json_field_int(&w, "vocab", h->n_vocab);
    json_field_int(&w, "prompt_tokens", u->prompt_tokens);
    json_end_object(&w);
}

const struct dialect dialect_signal = { .id_prefix = "signal-", .whole = signal_whole };
