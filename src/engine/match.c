#include "engine/match.h"

#include <string.h>

struct match_stop {
    int32_t len;
    int32_t state; /* bytes matched so far: the longest prefix that ends the text */
    char bytes[ENGINE_STOP_BYTES];
    int16_t back[ENGINE_STOP_BYTES]; /* back[i]: longest border of bytes[0..i] */
};

static void match_compile(struct match_stop *s)
{
    for (int32_t i = 1, k = 0; i < s->len; i++) {
        while (k > 0 && s->bytes[i] != s->bytes[k])
            k = s->back[k - 1];
        k += s->bytes[i] == s->bytes[k];
        s->back[i] = (int16_t)k;
    }
}

enum err_code match_init(struct match *m, const struct engine_bytes *stops, int32_t n_stops,
                         struct err *err)
{
    *m = (struct match){ 0 };
    if (n_stops < 0 || n_stops > ENGINE_STOPS_MAX)
        return err_set(err, ERR_INVALID, "stop: %d strings, at most %d are allowed", n_stops,
                       ENGINE_STOPS_MAX);
    for (int32_t i = 0; i < n_stops; i++)
        if (stops[i].len == 0 || stops[i].len > ENGINE_STOP_BYTES)
            return err_set(err, ERR_INVALID, "stop: string %d has %zu bytes, 1 to %d are allowed",
                           i, stops[i].len, ENGINE_STOP_BYTES);
    if (n_stops == 0)
        return ERR_OK;
    m->stops = mem_try_array(MEM_CAT_REQUEST, (size_t)n_stops, sizeof(*m->stops));
    if (!m->stops)
        return err_set(err, ERR_NOMEM, "stop: no memory for %d strings", n_stops);
    m->n_stops = n_stops;
    for (int32_t i = 0; i < n_stops; i++) {
        m->stops[i].len = (int32_t)stops[i].len;
        memcpy(m->stops[i].bytes, stops[i].data, stops[i].len);
        match_compile(&m->stops[i]);
    }
    return ERR_OK;
}

void match_release(struct match *m)
{
    mem_free(MEM_CAT_REQUEST, m->stops);
    *m = (struct match){ 0 };
}

size_t match_bytes_max(void)
{
    return ENGINE_STOPS_MAX * sizeof(struct match_stop);
}

static void match_stop_step(struct match_stop *s, char c)
{
    while (s->state > 0 && s->bytes[s->state] != c)
        s->state = s->back[s->state - 1];
    s->state += s->bytes[s->state] == c;
}

int32_t match_feed(struct match *m, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        int32_t hit = -1, held = 0;
        for (int32_t k = 0; k < m->n_stops; k++) {
            struct match_stop *s = &m->stops[k];
            match_stop_step(s, data[i]);
            if (s->state > held)
                held = s->state;
            if (s->state == s->len && (hit < 0 || s->len > m->stops[hit].len))
                hit = k;
        }
        m->n_bytes++;
        if (hit >= 0) {
            m->text_safe = m->n_bytes - m->stops[hit].len;
            m->n_bytes += (int64_t)(len - i - 1);
            return hit;
        }
        m->text_safe = m->n_bytes - held;
    }
    return -1;
}

void match_finish(struct match *m)
{
    m->text_safe = m->n_bytes;
}
