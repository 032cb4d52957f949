/* runner_int.h - what the files of the runner share. runner.c: sizes, sequences, steps. runner_round.c: ways back. runner_state.c: slots of
 * recurrent layers. runner_keep.c: histories that outlive their sequences. runner_pins.c: sessions. runner_tier.c: histories on disk.
 * runner_out.c: what a step gives. */
#ifndef PLUMB_ENGINE_RUNNER_INT_H
#define PLUMB_ENGINE_RUNNER_INT_H

#include "engine/runner.h"

static inline bool runner_has_state(const struct runner *r)
{
    return r->has_group[MODEL_GROUP_STATE];
}

static inline int32_t runner_unpromised(const struct runner *r, int group)
{
    return r->pools[group].n_free - r->pools[group].n_reserved;
}

/* Tokens that a group's table counts: a slot holds all of a sequence. */
static inline int32_t runner_span(int group, int32_t n_tokens)
{
    return group == MODEL_GROUP_STATE && n_tokens > 1 ? 1 : n_tokens;
}

/* The slot of a sequence that has one. */
static inline int32_t runner_slot(const struct runner_seq *s)
{
    return s->tables[MODEL_GROUP_STATE].pages[0];
}

/* Begin the group's table with the first n_tokens of another one: runner_share without the states' bytes. */
void runner_share_group(struct runner *r, int group, struct kv_table *to,
                        const struct kv_table *from, int32_t n_tokens);

/* The backend that has layer i, and which of a slab's blocks that is. */
static inline int runner_part(const struct runner *r, int64_t i)
{
    return i < r->model->n_host_layers;
}
static inline struct backend *runner_be(const struct runner *r, int64_t i)
{
    return model_layer_be(r->model, i);
}
/* Zeroed memory of bytes[part], where that is not 0. */
bool runner_slab_alloc(struct runner *r, struct runner_slab *s, const size_t bytes[2]) MUST_CHECK;
void runner_slab_free(struct runner *r, struct runner_slab *s);

/* --- rounds --- */

/* May the item be stepped? Errors: ERR_STATE - a round is open or poisoned; ERR_INVALID - more tentative rows than were planned for. */
enum err_code runner_round_check_step(const struct runner *r, const struct runner_item *it,
                                      struct err *err) MUST_CHECK;
/* The item's rows are in the cache, behind the s->len tokens before. */
void runner_round_begin(struct runner_seq *s, const struct runner_item *it);
/* Invariants of every sequence's round. Errors: ERR_STATE. */
enum err_code runner_round_check(const struct runner *r, struct err *err) MUST_CHECK;

/* --- kept histories --- */

/* Errors: ERR_NOMEM. */
enum err_code runner_keep_alloc(struct runner *r, int64_t keep_bytes, struct err *err) MUST_CHECK;
void runner_keep_free(struct runner *r);
/* n pages of the group that are free and not promised, for a row: kept histories and snapshots give theirs up for it, if that is enough;
 * pinned ones last. */
bool runner_make_room(struct runner *r, int group, int32_t n);
/* Give up what is over the budget. */
void runner_trim(struct runner *r);
/* The pin that was unused for longest is taken back. False: there is none. */
bool runner_give_up_pin(struct runner *r);
/* The tree's node goes: what is pinned there is pinned at heir (prefix.removed). */
void runner_pins_moved(struct runner *r, int32_t node, int32_t heir);
/* Is the end a pin's? Sets is_pinned. */
void runner_mark_end(const struct runner *r, struct runner_end *e);
/* After runner_keep_alloc. Errors: ERR_NOMEM. */
enum err_code runner_pins_alloc(struct runner *r, struct err *err) MUST_CHECK;
/* Errors: ERR_STATE, naming the first violation. */
enum err_code runner_pins_check(const struct runner *r, struct err *err) MUST_CHECK;

/* Pages of the group that only kept histories hold. */
int32_t runner_kept_pages(const struct runner *r, int group);
/* And those that sessions hold, whether or not a row has them, too. */
int32_t runner_pinned_pages(const struct runner *r, int group);

/* Bytes of a page in layer i; 0: it keeps no positions, or reads another one's. */
size_t runner_layer_page(const struct runner *r, int64_t i);

/* A page of the full group for something that goes into the tree, in r->spare: reset that afterwards. -1: there is none. */
int32_t runner_spare_page(struct runner *r);
/* Tokens of the longest end that ids begin with; 0 = none. */
int32_t runner_end_tokens(struct runner *r, const struct prefix_hit *hit, const int32_t *ids);
/* The end that was unused for longest is given up if no other is free. NULL: all are in use or pinned. Its tables are empty. */
struct runner_end *runner_end_take(struct runner *r);

/* --- kept histories on disk --- */

/* Nodes of the tree that ids [n] lie in were kept: those that no file holds are to be written. */
void runner_tier_kept(struct runner *r, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                      int32_t n);
/* The node goes: it is not to be written any more. heir: one that begins with its ids, or -1. */
void runner_tier_removed(struct runner *r, int32_t node, int32_t heir);
/* The sequence does not wait for the disk any more. */
void runner_fetch_end(struct runner *r, int32_t seq);
/* Ids that the sequence's last fetch brought. */
int32_t runner_fetched(const struct runner *r, int32_t seq);
void runner_tier_close(struct runner *r);

/* --- recurrent layers --- */

/* Memory for slots, kept rows and snapshots. Errors: ERR_NOMEM. */
enum err_code runner_state_alloc(struct runner *r, struct err *err) MUST_CHECK;
void runner_state_free(struct runner *r);

/* The sequence's snapshots are dropped: all, or those that stand beyond n_tokens. */
void runner_drop_snapshots(struct runner *r, int32_t seq, int32_t n_tokens);
/* Free n slots that are not promised by dropping snapshots, the oldest first, but for `but` (or NULL). False: there are too few. */
bool runner_free_slots(struct runner *r, int32_t n, const struct runner_snapshot *but);
/* Try to have a slot free for a copy of the sequence's state behind n_tokens. */
void runner_spare_slot(struct runner *r, int32_t seq, int32_t n_tokens);
/* Tentative rows that nobody took back stay: their recurrent layers are stepped. */
void runner_settle(struct runner *r, int32_t seq, int32_t n_tokens);
/* The slot that holds the sequence's state behind exactly n_tokens, or -1. */
int32_t runner_slot_at(const struct runner *r, int32_t seq, int32_t n_tokens);
/* The most tokens <= n_tokens that a state of the sequence stands behind; 0 = none. */
int32_t runner_state_below(const struct runner *r, int32_t seq, int32_t n_tokens);
/* Invariants: a sequence with tokens has a slot, one without tentative rows beyond its length; a snapshot stands at tokens that its open
 * sequence has. Errors: ERR_STATE. */
enum err_code runner_state_check(const struct runner *r, struct err *err) MUST_CHECK;
/* Page dst of layer l becomes a copy of page src, its index too. */
void runner_copy_page(struct runner *r, int64_t l, int32_t dst, int32_t src);
size_t runner_index_page(const struct runner *r, int64_t i); /* bytes; 0: it has no index */
/* The sequence's ids from position `at` on, where the model wants them (n-grams). */
void runner_note_ids(struct runner *r, int32_t seq, int32_t at, const int32_t *ids, int32_t n);
void runner_copy_slot(struct runner *r, int32_t dst, int32_t src);

/* --- runner_out.c --- */

/* Host memory that the backend downloads to; NULL: none is left. */
void *runner_host_take(const struct runner *r, size_t bytes);
void runner_host_give(const struct runner *r, void *p, size_t bytes);
/* Memory for short lists, where there will be any. False: there is none. */
bool runner_lists_alloc(struct runner *r) MUST_CHECK;
void runner_lists_free(struct runner *r);
/* Memory for what is tapped, and for inputs where the model takes some (another model's states). Errors: ERR_NOMEM; ERR_UNSUPPORTED - the model's states are none that a drafter knows. */
enum err_code runner_taps_alloc(struct runner *r, struct err *err) MUST_CHECK;
void runner_taps_free(struct runner *r);
/* What is tapped of the item's rows, the first of which is the step's row0. */
void runner_add_taps(struct runner *r, struct model_step *st, struct runner_item *it, int row0);
/* The item's inputs, where the model takes such. */
void runner_add_inputs(struct runner *r, struct model_step *st, const struct runner_item *it,
                       int row0);
/* Run the step's forward pass; the items get what they want of it. Errors: those of the backend's wait. */
enum err_code runner_forward(struct runner *r, struct model_step *st, struct runner_item *items,
                             int32_t n, struct err *err) MUST_CHECK;

#endif
