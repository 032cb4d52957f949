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
    json_key(&w, "bins");
    json_begin_array(&w);
    for (int32_t i = 0; i < s->n_bins; i++)
        json_int(&w, s->bins[i]);
    json_end_array(&w);
    json_key(&w, "count");
    json_int(&w, s->n_bins);
    json_key(&w, "minimum");
    json_raw(&w, minimum, (size_t)n_minimum);
    json_key(&w, "vocab");
    json_int(&w, h->n_vocab);
    json_key(&w, "prompt_tokens");
    json_int(&w, u->prompt_tokens);
    json_end_object(&w);
}

const struct dialect dialect_signal = { .id_prefix = "signal-", .whole = signal_whole };
