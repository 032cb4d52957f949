/* draft_past.h - what recent answers said: a bounded index of their ids, for guesses of rows that say it again.
 *
 * A ring of PAST_IDS ids; the oldest go first. Texts of different salts never meet. Allocation: in init only. Thread: engine thread. */
#ifndef PLUMB_ENGINE_DRAFT_PAST_H
#define PLUMB_ENGINE_DRAFT_PAST_H

#include "engine/engine.h"

/* Ids that must agree to be a candidate, in a row's own text too: two agree by chance in code, where blanks and brackets abound. */
#define PAST_GRAM     3
#define PAST_IDS      (1 << 17) /* of all texts together; 12 bytes each */
#define PAST_TEXTS    256
#define PAST_TEXT_IDS (1 << 15) /* of one: the last ones are kept */
#define PAST_MATCH    64        /* a longer common ending makes no surer */

struct past_text {
    uint32_t start, end; /* positions, which count on */
    uint8_t salt[ENGINE_SALT_BYTES];
};

struct past {
    /* private to draft_past.c */
    int32_t *ids;                       /* [PAST_IDS] of position p at p % PAST_IDS */
    uint32_t *prev;                     /* [PAST_IDS] the position before of the same hash, or 0 */
    uint32_t *heads;                    /* [PAST_IDS] by hash */
    struct past_text texts[PAST_TEXTS]; /* [n_texts % PAST_TEXTS] is the next to be overwritten */
    uint32_t n_texts, end;              /* end: position of the next id */
};

/* Errors: ERR_NOMEM. Release with past_release (fine on a zeroed struct). */
enum err_code past_init(struct past *p, struct err *err) MUST_CHECK;
void past_release(struct past *p);

/* A text: what stands before it, by which its start is found, and its ids. */
void past_add(struct past *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *lead,
              int32_t n_lead, const int32_t *ids, int32_t n);

/* Up to n_max ids that followed the longest common ending with ids [n], of equal ones the latest, into out. *n_matched: its length, 0 =
 * none. Returns their number. */
int32_t past_find(const struct past *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                  int32_t n, int32_t *out, int32_t n_max, int32_t *n_matched);

#endif
