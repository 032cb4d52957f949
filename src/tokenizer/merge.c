/* merge.c - the loop that BPE and SentencePiece share: join the best pair of neighbours until none is left.
 *
 * Short stretches (words: nearly all) are scanned for the best pair; long ones use queues and a heap of (rank, position). An entry
 * is stale when its symbol is gone or the pair that starts there has another rank by now; stale entries are skipped when they
 * come up, so that nothing is ever searched for. Each join adds at most two entries: O(n log n). */
#include "tokenizer/tokenizer_int.h"

#include <limits.h>

/* Nearly all words are shorter; beyond it the scan's square shows. */
#define MERGE_SCAN_MAX 32

enum err_code merge_table_init(struct merge_table *m, int32_t n, struct err *err)
{
    m->cap = 64;
    while (m->cap < (size_t)n * 2)
        m->cap *= 2;
    m->slots = mem_try_big(MEM_CAT_TOKENIZER, m->cap * sizeof(*m->slots));
    if (!m->slots)
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for %d merges", n);
    return ERR_OK;
}

void merge_table_release(struct merge_table *m)
{
    mem_free_big(MEM_CAT_TOKENIZER, m->slots, m->cap * sizeof(*m->slots));
    *m = (struct merge_table){ 0 };
}

static size_t merge_slot_of(const struct merge_table *m, uint64_t key)
{
    key *= 0x9E3779B97F4A7C15u;
    return (key ^ key >> 32) & (m->cap - 1);
}

bool merge_table_add(struct merge_table *m, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    uint64_t key = ((uint64_t)left << 32 | (uint32_t)right) + 1;
    size_t i = merge_slot_of(m, key);
    while (m->slots[i].key != 0) {
        if (m->slots[i].key == key)
            return false;
        i = (i + 1) & (m->cap - 1);
    }
    m->slots[i] = (struct merge_slot){ .key = key, .rank = rank, .id = id };
    return true;
}

const struct merge_slot *merge_table_find(const struct merge_table *m, int32_t left, int32_t right)
{
    uint64_t key = ((uint64_t)left << 32 | (uint32_t)right) + 1;
    for (size_t i = merge_slot_of(m, key);; i = (i + 1) & (m->cap - 1)) {
        if (m->slots[i].key == key)
            return &m->slots[i];
        if (m->slots[i].key == 0)
            return NULL;
    }
}

enum err_code encoder_grow(void **p, size_t *cap, size_t n, size_t size, struct err *err)
{
    if (n <= *cap)
        return ERR_OK;
    size_t want = n > *cap * 2 ? n : *cap * 2;
    void *grown = mem_try_array(MEM_CAT_TOKENIZER, want, size);
    if (!grown)
        return err_set(err, ERR_NOMEM, "tokenizer: no memory for a text of this length");
    if (*cap > 0)
        memcpy(grown, *p, *cap * size);
    mem_free(MEM_CAT_TOKENIZER, *p);
    *p = grown;
    *cap = want;
    return ERR_OK;
}

enum err_code encoder_need_syms(struct encoder *e, size_t n)
{
    void *p = e->syms;
    enum err_code code = ERR_OK;
    if (n > e->sym_cap)
        code = encoder_grow(&p, &e->sym_cap, n < 64 ? 64 : n, sizeof(*e->syms), e->err);
    e->syms = p;
    return code;
}

static void merge_link(struct merge_sym *syms, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        syms[i].prev = i - 1;
        syms[i].next = i + 1 < n ? i + 1 : -1;
    }
}

/* Set rank and merged of symbol i and its right neighbour. */
static void merge_look_up(const struct encoder *e, const char *text, int32_t i)
{
    const struct tokenizer *t = e->t;
    struct merge_sym *a = &e->syms[i];
    a->rank = INT32_MAX;
    if (a->next < 0)
        return;
    const struct merge_sym *b = &e->syms[a->next];
    if (t->joins_by_text) {
        if (a->len + b->len > t->max_len)
            return;
        const struct map *tokens = t->kind == TOKENIZER_KIND_SPM ? &t->pieces : &t->whole;
        int32_t id = map_get(tokens, text + a->pos, a->len + b->len);
        if (id >= 0) {
            a->rank = t->ranks[id];
            a->merged = id;
        }
        return;
    }
    if (a->id < 0 || b->id < 0)
        return;
    const struct merge_slot *m = merge_table_find(&t->merges, a->id, b->id);
    if (m) {
        a->rank = m->rank;
        a->merged = m->id;
    }
}

/* Join symbol i with its right neighbour and look up the two pairs that changed. */
static void merge_join(struct encoder *e, const char *text, int32_t i)
{
    struct merge_sym *a = &e->syms[i];
    struct merge_sym *b = &e->syms[a->next];
    a->id = a->merged;
    a->len += b->len;
    b->rank = INT32_MAX; /* gone: its entries in the heap are stale */
    a->next = b->next;
    if (a->next >= 0)
        e->syms[a->next].prev = i;
    merge_look_up(e, text, i);
    if (a->prev >= 0)
        merge_look_up(e, text, a->prev);
}

static void merge_by_scan(struct encoder *e, const char *text)
{
    for (;;) {
        int32_t best = -1;
        int32_t best_rank = INT32_MAX;
        for (int32_t i = 0; i >= 0; i = e->syms[i].next) {
            if (e->syms[i].rank < best_rank) {
                best_rank = e->syms[i].rank;
                best = i;
            }
        }
        if (best < 0)
            return;
        merge_join(e, text, best);
    }
}

static enum err_code heap_push(struct encoder *e, uint64_t key)
{
    void *p = e->heap;
    enum err_code code = encoder_grow(&p, &e->heap_cap, e->heap_n + 1, sizeof(*e->heap), e->err);
    e->heap = p;
    if (code)
        return code;
    size_t at = e->heap_n++;
    for (; at > 0 && e->heap[(at - 1) / 4] > key; at = (at - 1) / 4)
        e->heap[at] = e->heap[(at - 1) / 4];
    e->heap[at] = key;
    return ERR_OK;
}

/* Keys mostly come in ascending order, position by position at the same few ranks (a run of one character is the extreme). A
 * queue takes a key that is not less than its last one: adding and taking are one step each. Only what fits no queue goes to the
 * heap. 1 MiB of one letter: 0.36 s with the heap alone, 0.09 s so. */
static enum err_code merge_push(struct encoder *e, int32_t i)
{
    if (e->syms[i].rank == INT32_MAX)
        return ERR_OK;
    uint64_t key = (uint64_t)e->syms[i].rank << 32 | (uint32_t)i;
    struct merge_queue *fit = NULL;
    for (struct merge_queue *q = e->queues; q < e->queues + MERGE_QUEUES; q++) {
        if (q->head == q->n) { /* empty: the best fit only if no other fits */
            q->head = q->n = 0;
            fit = fit ? fit : q;
        } else if (q->keys[q->n - 1] <= key &&
                   (!fit || fit->n == 0 || fit->keys[fit->n - 1] < q->keys[q->n - 1])) {
            fit = q;
        }
    }
    if (!fit)
        return heap_push(e, key);
    void *p = fit->keys;
    enum err_code code = encoder_grow(&p, &fit->cap, fit->n + 1, sizeof(*fit->keys), e->err);
    fit->keys = p;
    if (!code)
        fit->keys[fit->n++] = key;
    return code;
}

/* A heap of four children a node: half the levels of two, and the children share a cache line. */
static uint64_t heap_pop(struct encoder *e)
{
    uint64_t *h = e->heap;
    uint64_t top = h[0];
    uint64_t last = h[--e->heap_n];
    size_t n = e->heap_n;
    size_t at = 0;
    for (;;) {
        size_t child = at * 4 + 1;
        if (child >= n)
            break;
        size_t least = child;
        size_t end = child + 4 < n ? child + 4 : n;
        for (size_t c = child + 1; c < end; c++)
            if (h[c] < h[least])
                least = c;
        if (h[least] >= last)
            break;
        h[at] = h[least];
        at = least;
    }
    h[at] = last;
    return top;
}

/* The least key of queues and heap; false if there is none. */
static bool merge_pop(struct encoder *e, uint64_t *key)
{
    struct merge_queue *least = NULL;
    for (struct merge_queue *q = e->queues; q < e->queues + MERGE_QUEUES; q++)
        if (q->head < q->n && (!least || q->keys[q->head] < least->keys[least->head]))
            least = q;
    if (e->heap_n > 0 && (!least || e->heap[0] < least->keys[least->head])) {
        *key = heap_pop(e);
        return true;
    }
    if (least)
        *key = least->keys[least->head++];
    return least != NULL;
}

static enum err_code merge_by_order(struct encoder *e, const char *text, int32_t n)
{
    enum err_code code = ERR_OK;
    uint64_t key;
    for (int32_t i = 0; i < n && !code; i++)
        code = merge_push(e, i);
    while (!code && merge_pop(e, &key)) {
        int32_t i = (int32_t)(uint32_t)key;
        if (e->syms[i].rank != (int32_t)(key >> 32))
            continue;
        merge_join(e, text, i);
        code = merge_push(e, i);
        if (!code && e->syms[i].prev >= 0)
            code = merge_push(e, e->syms[i].prev);
    }
    return code;
}

enum err_code merge_run(struct encoder *e, const char *text, int32_t n)
{
    merge_link(e->syms, n);
    for (int32_t i = 0; i < n; i++)
        merge_look_up(e, text, i);
    if (n > MERGE_SCAN_MAX)
        return merge_by_order(e, text, n);
    merge_by_scan(e, text);
    return ERR_OK;
}
