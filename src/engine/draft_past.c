#include "engine/draft_past.h"
#include "base/mem.h"

#include <string.h>

#define PAST_WALK 64 /* candidates that are looked at */

enum err_code past_init(struct past *p, struct err *err)
{
    *p = (struct past){ .end = 1 }; /* position 0 means none */
    p->ids = mem_try_array(MEM_CAT_BASE, PAST_IDS, sizeof(*p->ids));
    p->prev = mem_try_array(MEM_CAT_BASE, PAST_IDS, sizeof(*p->prev));
    p->heads = mem_try_array(MEM_CAT_BASE, PAST_IDS, sizeof(*p->heads));
    if (p->ids && p->prev && p->heads)
        return ERR_OK;
    past_release(p);
    return err_set(err, ERR_NOMEM, "recent answers: no memory for an index of %d ids", PAST_IDS);
}

void past_release(struct past *p)
{
    mem_free(MEM_CAT_BASE, p->ids);
    mem_free(MEM_CAT_BASE, p->prev);
    mem_free(MEM_CAT_BASE, p->heads);
    *p = (struct past){ 0 };
}

static uint32_t past_hash(const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *gram)
{
    uint64_t h;
    memcpy(&h, salt, sizeof(h));
    for (int32_t i = 0; i < PAST_GRAM; i++)
        h = (h ^ (uint64_t)gram[i]) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 33) % PAST_IDS;
}

static int32_t past_id(const struct past *p, uint32_t at)
{
    return p->ids[at % PAST_IDS];
}

/* The text in which a position lies that is still there, or NULL where its text has been overwritten. */
static const struct past_text *past_text_at(const struct past *p, uint32_t at)
{
    uint32_t low = p->n_texts > PAST_TEXTS ? p->n_texts - PAST_TEXTS : 0, high = p->n_texts;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (p->texts[mid % PAST_TEXTS].start <= at)
            low = mid;
        else
            high = mid;
    }
    if (high == low)
        return NULL;
    const struct past_text *t = &p->texts[low % PAST_TEXTS];
    return at >= t->start && at < t->end && p->end - t->start <= PAST_IDS ? t : NULL;
}

static void past_push(struct past *p, const struct past_text *t, int32_t id)
{
    int32_t gram[PAST_GRAM];
    p->ids[p->end % PAST_IDS] = id;
    p->prev[p->end % PAST_IDS] = 0;
    if (p->end - t->start >= PAST_GRAM - 1) {
        for (uint32_t i = 0; i < PAST_GRAM; i++)
            gram[i] = past_id(p, p->end - (PAST_GRAM - 1 - i));
        uint32_t *head = &p->heads[past_hash(t->salt, gram)];
        p->prev[p->end % PAST_IDS] = *head;
        *head = p->end;
    }
    p->end++;
}

void past_add(struct past *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *lead,
              int32_t n_lead, const int32_t *ids, int32_t n)
{
    int32_t first = n > PAST_TEXT_IDS ? n - PAST_TEXT_IDS : 0;
    if (n <= 0)
        return;
    if (p->end > UINT32_MAX / 2) { /* begin anew */
        memset(p->heads, 0, PAST_IDS * sizeof(*p->heads));
        p->n_texts = 0;
        p->end = 1;
    }
    struct past_text *t = &p->texts[p->n_texts++ % PAST_TEXTS];
    t->start = p->end;
    memcpy(t->salt, salt, sizeof(t->salt));
    for (int32_t i = 0; i < n_lead && first == 0; i++)
        past_push(p, t, lead[i]);
    for (int32_t i = first; i < n; i++)
        past_push(p, t, ids[i]);
    t->end = p->end;
}

/* Ids that agree, going back from the text's position and from the end of ids. */
static int32_t past_match(const struct past *p, const struct past_text *t, uint32_t at,
                          const int32_t *ids, int32_t n_ids)
{
    int32_t n = 0, left = (int32_t)(at - t->start) + 1;
    int32_t most = left < n_ids ? left : n_ids;
    most = most < PAST_MATCH ? most : PAST_MATCH;
    while (n < most && past_id(p, at - (uint32_t)n) == ids[n_ids - 1 - n])
        n++;
    return n;
}

int32_t past_find(const struct past *p, const uint8_t salt[ENGINE_SALT_BYTES], const int32_t *ids,
                  int32_t n, int32_t *out, int32_t n_max, int32_t *n_matched)
{
    const struct past_text *best = NULL;
    uint32_t best_at = 0;
    *n_matched = 0;
    if (n < PAST_GRAM)
        return 0;
    uint32_t at = p->heads[past_hash(salt, ids + n - PAST_GRAM)];
    for (int32_t i = 0; at > 0 && i < PAST_WALK; i++) {
        const struct past_text *t = past_text_at(p, at);
        if (!t)
            break; /* older ones are gone, too */
        int32_t length = memcmp(t->salt, salt, sizeof(t->salt)) == 0 && at + 1 < t->end
                             ? past_match(p, t, at, ids, n)
                             : 0;
        if (length >= PAST_GRAM && length > *n_matched) {
            best = t;
            best_at = at;
            *n_matched = length;
        }
        at = p->prev[at % PAST_IDS];
    }
    int32_t n_out = 0;
    for (at = best_at + 1; best && at < best->end && n_out < n_max; at++)
        out[n_out++] = past_id(p, at);
    return n_out;
}
