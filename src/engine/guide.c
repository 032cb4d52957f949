#include "engine/guide.h"

#include <string.h>

static enum err_code guide_check(const struct engine_guide *r, int32_t n_vocab, struct err *err)
{
    if (r->n_open < 0 || r->n_open > ENGINE_MARK_BYTES || r->n_close < 0 ||
        r->n_close > ENGINE_MARK_BYTES || r->n_hidden < 0 || r->n_hidden > ENGINE_HIDDEN_MAX)
        return err_set(err, ERR_INVALID, "guide: markers of %d and %d bytes, at most %d", r->n_open,
                       r->n_close, ENGINE_MARK_BYTES);
    if (r->n_forced < 0 || r->n_forced > ENGINE_FORCED_MAX || r->n_close_ids < 0 ||
        r->n_close_ids > ENGINE_CLOSE_MAX)
        return err_set(err, ERR_INVALID, "guide: %d forced ids, %d that close, at most %d and %d",
                       r->n_forced, r->n_close_ids, ENGINE_FORCED_MAX, ENGINE_CLOSE_MAX);
    for (int32_t i = 0; i < r->n_forced + r->n_close_ids; i++) {
        int32_t id = i < r->n_forced ? r->forced[i] : r->close_ids[i - r->n_forced];
        if (id < 0 || id >= n_vocab)
            return err_set(err, ERR_INVALID, "guide: token id %d is not in [0, %d)", id, n_vocab);
    }
    return ERR_OK;
}

static void guide_queue(struct guide *g, const int32_t *ids, int32_t n)
{
    g->queue = ids;
    g->n_queue = n;
    g->at = 0;
}

/* The span is over its budget: its end comes now. */
static void guide_close_if_due(struct guide *g)
{
    const struct engine_guide *r = &g->rules;
    if (g->phase == GUIDE_OPEN && r->has_budget && g->n_reasoning >= r->budget &&
        g->at == g->n_queue && g->n_close == 0)
        guide_queue(g, r->close_ids, r->n_close_ids);
}

static void guide_force_if_due(struct guide *g)
{
    if (g->phase == GUIDE_OPEN || !g->is_forced_due || g->at < g->n_queue)
        return;
    g->is_forced_due = false;
    guide_queue(g, g->rules.forced, g->rules.n_forced);
}

enum err_code guide_init(struct guide *g, const struct engine_request *req, int32_t n_vocab,
                         struct err *err)
{
    *g = (struct guide){ .rules = req->guide };
    const struct engine_guide *r = &g->rules;
    enum err_code code = guide_check(r, n_vocab, err);
    if (!code)
        code = match_init(&g->match, req->stops, req->n_stops, err);
    if (code)
        return code;
    for (int32_t i = 1, k = 0; i < r->n_close; i++) {
        while (k > 0 && r->close[i] != r->close[k])
            k = g->back[k - 1];
        k += r->close[i] == r->close[k];
        g->back[i] = (int16_t)k;
    }
    g->phase = r->n_close == 0 ? GUIDE_ANSWER
               : r->is_open    ? GUIDE_OPEN
               : r->n_open > 0 ? GUIDE_BEFORE
                               : GUIDE_ANSWER;
    g->has_span = g->phase == GUIDE_OPEN;
    g->is_forced_due = r->n_forced > 0;
    guide_close_if_due(g);
    guide_force_if_due(g);
    return ERR_OK;
}

void guide_release(struct guide *g)
{
    match_release(&g->match);
    *g = (struct guide){ 0 };
}

size_t guide_bytes_max(void)
{
    return match_bytes_max();
}

const int32_t *guide_next(const struct guide *g)
{
    return g->at < g->n_queue ? &g->queue[g->at] : NULL;
}

int32_t guide_ahead(const struct guide *g, int32_t *ids, int32_t n_max)
{
    int32_t n = g->n_queue - g->at < n_max ? g->n_queue - g->at : n_max;
    memcpy(ids, g->queue ? g->queue + g->at : ids, (size_t)n * sizeof(*ids));
    return n;
}

bool guide_goes_on(const struct guide *g)
{
    return g->is_forced_due || g->at < g->n_queue;
}

bool guide_is_free(const struct guide *g)
{
    return g->rules.n_forced == 0 && !g->rules.has_budget;
}

/* --- bytes --- */

/* The answer proper begins: with what was held. */
static int32_t guide_begin_answer(struct guide *g)
{
    g->phase = GUIDE_ANSWER;
    int32_t stop = match_feed(&g->match, g->held, (size_t)g->n_held);
    g->n_held = 0;
    return stop;
}

/* One byte before the span: true if it may yet come. */
static bool guide_before(struct guide *g, char c, bool is_visible)
{
    const struct engine_guide *r = &g->rules;
    bool is_blank = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (g->n_open == 0 && is_blank && c != r->open[0]) {
        if (++g->n_blanks > GUIDE_HELD_BYTES - ENGINE_MARK_BYTES)
            return false;
    } else if (c == r->open[g->n_open]) {
        g->n_open++;
    } else {
        return false;
    }
    if (is_visible)
        g->held[g->n_held++] = c;
    if (g->n_open == r->n_open) {
        g->phase = GUIDE_OPEN;
        g->has_span = true;
        g->n_span += g->n_held;
        g->n_held = 0;
    }
    return true;
}

static void guide_inside(struct guide *g, char c, bool is_visible)
{
    const struct engine_guide *r = &g->rules;
    g->n_span += is_visible;
    while (g->n_close > 0 && r->close[g->n_close] != c)
        g->n_close = g->back[g->n_close - 1];
    g->n_close += r->close[g->n_close] == c;
    if (g->n_close == r->n_close)
        g->phase = GUIDE_ANSWER;
}

/* The bytes of a control token that only markers are made of; NULL: its bytes are what is visible. */
static const struct engine_hidden *guide_hidden(const struct guide *g, int32_t id)
{
    for (int32_t i = 0; i < g->rules.n_hidden; i++)
        if (g->rules.hidden[i].id == id)
            return &g->rules.hidden[i];
    return NULL;
}

int32_t guide_feed(struct guide *g, int32_t id, const char *data, size_t len)
{
    const struct engine_hidden *hidden = guide_hidden(g, id);
    const char *bytes = hidden ? hidden->text : data;
    size_t n = hidden ? (size_t)hidden->n : len, i = 0;
    int32_t stop = -1;
    g->n_reasoning += g->phase == GUIDE_OPEN;
    if (g->at < g->n_queue)
        g->at++;
    while (i < n && stop < 0 && g->phase != GUIDE_ANSWER) {
        if (g->phase == GUIDE_OPEN) {
            guide_inside(g, bytes[i++], !hidden);
        } else if (guide_before(g, bytes[i], !hidden)) {
            i++;
        } else {
            stop = guide_begin_answer(g);
        }
    }
    g->n_answer = g->phase == GUIDE_ANSWER && !hidden ? (int32_t)(n - i) : 0;
    if (stop < 0 && g->phase == GUIDE_ANSWER && !hidden && i < n)
        stop = match_feed(&g->match, bytes + i, n - i);
    else if (stop >= 0 && !hidden)
        g->match.n_bytes += (int64_t)(n - i);
    g->text_safe = g->n_span + g->match.text_safe;
    guide_close_if_due(g);
    guide_force_if_due(g);
    return stop;
}

/* --- what bytes would mean --- */

bool guide_opens(const struct guide *g, int32_t id, const char *data, size_t len)
{
    const struct engine_hidden *hidden = guide_hidden(g, id);
    const char *bytes = hidden ? hidden->text : data;
    size_t n = hidden ? (size_t)hidden->n : len;
    const struct engine_guide *r = &g->rules;
    return g->phase == GUIDE_BEFORE && n > 0 && n <= (size_t)(r->n_open - g->n_open) &&
           memcmp(bytes, r->open + g->n_open, n) == 0;
}

int32_t guide_close_matched(const struct guide *g)
{
    return g->n_close;
}

int32_t guide_rest(const struct guide *g, const char *data, size_t len)
{
    const struct engine_guide *r = &g->rules;
    int32_t k = g->n_close;
    if (g->phase != GUIDE_OPEN || len + (size_t)k < (size_t)r->n_close)
        return -1;
    for (size_t i = 0; i < len; i++) {
        while (k > 0 && r->close[k] != data[i])
            k = g->back[k - 1];
        k += r->close[k] == data[i];
        if (k == r->n_close)
            return (int32_t)(len - i - 1);
    }
    return -1;
}

void guide_finish(struct guide *g)
{
    if (g->n_held > 0)
        g->match.n_bytes += g->n_held;
    g->n_held = 0;
    match_finish(&g->match);
    g->text_safe = g->n_span + g->match.text_safe;
}
