/* runner_pins.c - sessions: what a conversation left is not given up for other kept histories.
 *
 * A session holds the newest histories that its answers left, each as a *pin* of the node in which the last token lies and, where layers
 * have windows or states, of the two ends that its next turn can begin with: where the answer ended, and where its prompt's stable
 * boundary was. One that goes on where another one stood takes its place.
 * Pins hold against kept histories, never against rows: where a row finds no other memory the pin unused for longest goes. They hold
 * half of what may be kept at most, of the pages of each group and of salts alike; beyond that the one unused for longest goes, too. What goes stays
 * kept, like anything without a session, until it is given up.
 * Invariants: (1) each held pin is counted by its node; (2) an end is marked iff a pin names it. */
#include "engine/runner_int.h"

#include <string.h>

#define P KV_PAGE_TOKENS

static bool pin_is_held(const struct runner_pin *pin)
{
    return pin->session != 0;
}

/* --- marks of ends --- */

void runner_mark_end(const struct runner *r, struct runner_end *e)
{
    e->is_pinned = false;
    for (int32_t i = 0; i < r->n_pins && !e->is_pinned; i++) {
        const struct runner_pin *pin = &r->pins[i];
        e->is_pinned = pin_is_held(pin) && e->len > 0 &&
                       ((pin->node == e->node && pin->len == e->len) ||
                        (pin->cut_node == e->node && pin->cut_len == e->len));
    }
}

static void mark_ends(struct runner *r)
{
    for (int32_t i = 0; i < r->n_ends; i++)
        runner_mark_end(r, &r->ends[i]);
}

/* --- giving up --- */

static void pin_drop(struct runner *r, struct runner_pin *pin)
{
    prefix_unpin(&r->prefix, pin->node);
    *pin = (struct runner_pin){ .node = -1, .cut_node = -1 };
}

/* The pin that was unused for longest: of all sessions (0) or of one; but for `but`. */
static struct runner_pin *pin_oldest(struct runner *r, uint64_t session,
                                     const struct runner_pin *but)
{
    struct runner_pin *oldest = NULL;
    for (int32_t i = 0; i < r->n_pins; i++) {
        struct runner_pin *pin = &r->pins[i];
        if (pin_is_held(pin) && pin != but && (session == 0 || pin->session == session) &&
            (!oldest || pin->age < oldest->age))
            oldest = pin;
    }
    return oldest;
}

bool runner_give_up_pin(struct runner *r)
{
    struct runner_pin *pin = pin_oldest(r, 0, NULL);
    if (!pin)
        return false;
    pin_drop(r, pin);
    mark_ends(r);
    r->n_pins_lost++;
    return true;
}

void runner_unpin(struct runner *r, uint64_t session)
{
    for (int32_t i = 0; i < r->n_pins; i++)
        if (pin_is_held(&r->pins[i]) && r->pins[i].session == session)
            pin_drop(r, &r->pins[i]);
    mark_ends(r);
}

void runner_pins_moved(struct runner *r, int32_t node, int32_t heir)
{
    for (int32_t i = 0; i < r->n_pins; i++) {
        struct runner_pin *pin = &r->pins[i];
        if (pin_is_held(pin) && pin->node == node)
            pin->node = heir; /* its count has gone there, too */
        if (pin_is_held(pin) && pin->cut_node == node)
            pin->cut_node = heir;
    }
}

/* --- bounds --- */

static int32_t count_salts(const struct runner *r)
{
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_pins; i++) {
        bool is_new = pin_is_held(&r->pins[i]);
        for (int32_t k = 0; k < i && is_new; k++)
            is_new = !pin_is_held(&r->pins[k]) || r->pins[k].salt != r->pins[i].salt;
        n += is_new;
    }
    return n;
}

static bool are_too_many(const struct runner *r)
{
    for (int g = 0; g < MODEL_GROUP_COUNT; g++) {
        int32_t n = g == MODEL_GROUP_FULL ? r->prefix.max_idle : r->pools[g].n_pages;
        if (runner_pinned_pages(r, g) > n / 2)
            return true;
    }
    return count_salts(r) > PREFIX_ROOTS / 2;
}

/* After `pin` was taken: others let go, the one unused for longest first; then its cut, then itself. */
static void make_few(struct runner *r, struct runner_pin *pin)
{
    mark_ends(r);
    while (are_too_many(r)) {
        struct runner_pin *oldest = pin_oldest(r, 0, pin);
        if (!oldest && pin->cut_len > 0) {
            pin->cut_node = -1;
            pin->cut_len = 0;
        } else {
            pin_drop(r, oldest ? oldest : pin);
            r->n_pins_lost++;
        }
        mark_ends(r);
    }
}

/* --- pinning --- */

/* Does the history that stands at `node` go on where the pin stands? What differs within the last page does not count: a reply's end. */
static bool goes_on(const struct runner *r, int32_t node, const struct runner_pin *pin)
{
    struct prefix_view v;
    BUG_ON(!prefix_view(&r->prefix, pin->node, &v));
    if (v.n == P)
        return prefix_stands_on(&r->prefix, node, pin->node);
    return v.parent < 0 || prefix_stands_on(&r->prefix, node, v.parent);
}

/* A place for the session's new pin at `node`: the one whose history it goes on with, the oldest of its branches, a free one, or the oldest
 * of all. */
static struct runner_pin *pin_place(struct runner *r, uint64_t session, uint64_t salt, int32_t node)
{
    struct runner_pin *empty = NULL;
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_pins; i++) {
        struct runner_pin *pin = &r->pins[i];
        if (!pin_is_held(pin))
            empty = empty ? empty : pin;
        else if (pin->session == session && pin->salt == salt && goes_on(r, node, pin))
            return pin;
        n += pin->session == session;
    }
    if (n >= RUNNER_BRANCHES)
        return pin_oldest(r, session, NULL);
    return empty ? empty : pin_oldest(r, 0, NULL);
}

/* The node in which the n-th id of the hit lies. */
static int32_t node_at(const struct prefix_hit *hit, int32_t n)
{
    return hit->nodes[(n - 1) / P];
}

void runner_pin(struct runner *r, uint64_t session, const uint8_t salt[ENGINE_SALT_BYTES],
                const int32_t *ids, int32_t n, int32_t cut)
{
    struct prefix_hit hit = { .pages = r->hit_pages,
                              .nodes = r->hit_pages + kv_pages_for(r->n_ctx) };
    uint64_t short_salt;
    if (r->n_pins == 0 || n < 1)
        return;
    prefix_find(&r->prefix, salt, ids, n, &hit);
    if (hit.n_tokens < n)
        return; /* it was given up since, or there was no place for it */
    memcpy(&short_salt, salt, sizeof(short_salt));
    struct runner_pin *pin = pin_place(r, session, short_salt, node_at(&hit, n));
    bool is_cut = cut > 0 && cut <= n;
    if (pin_is_held(pin)) {
        r->n_pins_lost += pin->session != session;
        pin_drop(r, pin);
    }
    *pin = (struct runner_pin){ .session = session,
                                .salt = short_salt,
                                .node = node_at(&hit, n),
                                .len = n,
                                .cut_node = is_cut ? node_at(&hit, cut) : -1,
                                .cut_len = is_cut ? cut : 0,
                                .age = r->next_end++ };
    prefix_pin(&r->prefix, pin->node);
    make_few(r, pin);
}

/* --- memory --- */

enum err_code runner_pins_alloc(struct runner *r, struct err *err)
{
    int32_t n = r->prefix.max_idle < 2 ? 0 : RUNNER_PINS_MAX;
    if (r->n_ends > 0 && r->n_ends / 4 < n) /* each holds two of them */
        n = r->n_ends / 4;
    r->pins = mem_try_array(MEM_CAT_KV, (size_t)n, sizeof(*r->pins));
    if (!r->pins)
        return err_set(err, ERR_NOMEM, "prompt cache: no memory for %d sessions", n);
    r->n_pins = n;
    return ERR_OK;
}

enum err_code runner_pins_check(const struct runner *r, struct err *err)
{
    for (int32_t i = 0; i < r->n_pins; i++) {
        const struct runner_pin *pin = &r->pins[i];
        struct prefix_view v;
        if (!pin_is_held(pin))
            continue;
        if (!prefix_view(&r->prefix, pin->node, &v) || !prefix_is_pinned(&r->prefix, pin->node))
            return err_set(err, ERR_STATE, "pin %d: node %d is gone, or not pinned", i, pin->node);
        if (pin->len <= v.offset || pin->len > v.offset + v.n)
            return err_set(err, ERR_STATE, "pin %d: %d tokens, its node has %d to %d", i, pin->len,
                           v.offset + 1, v.offset + v.n);
    }
    for (int32_t i = 0; i < r->n_ends; i++) {
        struct runner_end e = r->ends[i];
        runner_mark_end(r, &e);
        if (e.is_pinned != r->ends[i].is_pinned)
            return err_set(err, ERR_STATE, "end %d: marked %d", i, r->ends[i].is_pinned);
    }
    return are_too_many(r) ? err_set(err, ERR_STATE, "%d pages are pinned, of %d that may be kept",
                                     r->prefix.n_pinned, r->prefix.max_idle)
                           : ERR_OK;
}
