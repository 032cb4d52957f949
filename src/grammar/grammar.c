#include "grammar/grammar.h"
#include "base/clock.h"
#include "grammar/grammar_int.h"
#include "json/json.h"

#include <string.h>

#define GUESS_US \
    200000 /* for what nobody asked for: about what it takes to prepare a long prompt; 20 tools take 25000 */
#define STATE_FRAMES 2048 /* of a state's stacks, power of two */

/* --- compiling --- */

static const struct expr *compile_json(struct build *b, const struct grammar_source *s,
                                       struct json_doc *doc)
{
    struct err err;
    enum err_code code = json_parse(doc, s->text, s->n, GRAMMAR_SOURCE_BYTES * (size_t)16, &err);
    if (code)
        return build_fail(b, code, "not a JSON text: %s", err.text);
    if (s->kind == GRAMMAR_KIND_SCHEMA)
        return json_schema_read(b, &doc->root);
    return s->kind == GRAMMAR_KIND_TAGS       ? tags_read(b, &doc->root)
           : s->kind == GRAMMAR_KIND_CALLS    ? calls_read(b, &doc->root)
           : s->kind == GRAMMAR_KIND_MESSAGES ? calls_read_messages(b, &doc->root)
                                              : tags_read_choice(b, &doc->root);
}

static const struct expr *compile_source(struct build *b, const struct grammar_source *s,
                                         struct json_doc *doc)
{
    if (s->n > GRAMMAR_SOURCE_BYTES)
        return build_fail(b, ERR_FULL, "the grammar has %zu bytes, the limit is %d", s->n,
                          GRAMMAR_SOURCE_BYTES);
    b->is_compact = s->is_compact;
    b->is_any_order = s->is_any_order;
    json_text_use(b, s->kind == GRAMMAR_KIND_LARK ? TEXT_NONE : TEXT_JSON,
                  (struct grammar_bytes){ "", 0 });
    const struct expr *e = s->kind == GRAMMAR_KIND_OBJECT ? json_text_object(b)
                           : s->kind == GRAMMAR_KIND_REGEX
                               ? regex_whole(b, s->text, s->n, false, "regex")
                           : s->kind == GRAMMAR_KIND_GBNF ? gbnf_read(b, s->text, s->n)
                           : s->kind == GRAMMAR_KIND_LARK ? lark_read(b, s->text, s->n)
                                                          : compile_json(b, s, doc);
    return expr_seq3(b, expr_text(b, s->before ? s->before : ""), e,
                     expr_text(b, s->after ? s->after : ""));
}

static uint64_t compile_hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) /* FNV-1a */
        h = (h ^ p[i]) * 1099511628211u;
    return (h ^ n) * 1099511628211u;
}

static uint64_t compile_id(const struct grammar_source *sources, int32_t n)
{
    uint64_t h = 14695981039346656037u;
    for (int32_t i = 0; i < n; i++) {
        const struct grammar_source *s = &sources[i];
        h = compile_hash(h, &s->kind, sizeof(s->kind));
        h = compile_hash(h, &s->is_compact, sizeof(s->is_compact));
        h = compile_hash(h, &s->is_any_order, sizeof(s->is_any_order));
        h = compile_hash(h, &s->has_no_masks, sizeof(s->has_no_masks));
        h = compile_hash(h, s->text, s->n);
        h = compile_hash(h, s->before, s->before ? strlen(s->before) : 0);
        h = compile_hash(h, s->after, s->after ? strlen(s->after) : 0);
    }
    return h;
}

enum err_code grammar_compile_any(const struct grammar_source *sources, int32_t n,
                                  struct grammar_vocab *v, struct grammar **out, struct buf *notes,
                                  struct err *err)
{
    struct build b;
    struct expr_list all = { 0 };
    struct json_doc *docs = mem_alloc(MEM_CAT_GRAMMAR, (size_t)n * sizeof(*docs));
    struct grammar *g = mem_alloc(MEM_CAT_GRAMMAR, sizeof(*g));
    atomic_init(&g->refs, 1);
    pthread_mutex_init(&g->lock, NULL);
    build_init(&b, notes, err);
    if (sources[0].has_no_masks)
        b.deadline_us = clock_thread_us() + GUESS_US;
    for (int32_t i = 0; i < n && !b.code; i++)
        expr_list_add(&b, &all, compile_source(&b, &sources[i], &docs[i]));
    enum err_code code = b.code;
    if (!code)
        code = link_grammar(&b, expr_alt(&b, all.items, all.n), g);
    build_release(&b);
    for (int32_t i = 0; i < n; i++)
        json_doc_release(&docs[i]);
    mem_free(MEM_CAT_GRAMMAR, docs);
    g->vocab = v;
    g->id = compile_id(sources, n);
    bool has_masks = v && !sources[0].has_no_masks;
    if (!code && has_masks)
        code = mask_cache_new(g, err);
    if (code) {
        grammar_unref(g);
        return code;
    }
    struct grammar_state *start = NULL;
    if (has_masks && grammar_state_new(g, &start, NULL) == ERR_OK)
        mask_warm(g, start);
    grammar_state_free(start);
    *out = g;
    return ERR_OK;
}

enum err_code grammar_compile(const struct grammar_source *source, struct grammar_vocab *v,
                              struct grammar **out, struct buf *notes, struct err *err)
{
    return grammar_compile_any(source, 1, v, out, notes, err);
}

struct grammar *grammar_ref(struct grammar *g)
{
    if (g)
        atomic_fetch_add(&g->refs, 1);
    return g;
}

void grammar_unref(struct grammar *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) > 1)
        return;
    mask_cache_free(g);
    mem_free(MEM_CAT_GRAMMAR, g->next);
    mem_free(MEM_CAT_GRAMMAR, g->flags);
    mem_free(MEM_CAT_GRAMMAR, g->calls_at);
    mem_free(MEM_CAT_GRAMMAR, g->calls);
    mem_free(MEM_CAT_GRAMMAR, g->loops);
    mem_free(MEM_CAT_GRAMMAR, g->sets);
    pthread_mutex_destroy(&g->lock);
    mem_free(MEM_CAT_GRAMMAR, g);
}

struct grammar_vocab *grammar_vocab_of(const struct grammar *g)
{
    return g->vocab;
}

size_t grammar_size(const struct grammar *g)
{
    return g->bytes + (g->cache ? mask_cache_bytes(g) : 0);
}

uint64_t grammar_id(const struct grammar *g)
{
    return g->id;
}

int32_t grammar_n_states(const struct grammar *g)
{
    return g->n_states;
}

/* --- walking --- */

size_t grammar_state_bytes(void)
{
    return sizeof(struct grammar_state) +
           STATE_FRAMES * (sizeof(struct stack_frame) + 2 * sizeof(int32_t));
}

enum err_code grammar_state_new(struct grammar *g, struct grammar_state **out, struct err *err)
{
    struct grammar_state *s = mem_try(MEM_CAT_GRAMMAR, grammar_state_bytes());
    if (!s)
        return err_set(err, ERR_NOMEM, "no memory for the state of a grammar: %zu bytes",
                       grammar_state_bytes());
    s->g = grammar_ref(g);
    s->pool.cap = STATE_FRAMES;
    s->pool.frames = (struct stack_frame *)(void *)(s + 1);
    s->pool.slots = (int32_t *)(void *)(s->pool.frames + STATE_FRAMES);
    grammar_state_reset(s);
    *out = s;
    return ERR_OK;
}

void grammar_state_free(struct grammar_state *s)
{
    if (!s)
        return;
    grammar_unref(s->g);
    mem_free(MEM_CAT_GRAMMAR, s);
}

void grammar_state_reset(struct grammar_state *s)
{
    stack_pool_reset(&s->pool);
    s->n_past = s->past_at = 0;
    s->heads.n = 0;
    s->heads.is_bottom = s->heads.is_over = false;
    stack_add(s->g, &s->pool, &s->heads, s->g->start, 0);
}

void grammar_state_copy(struct grammar_state *to, const struct grammar_state *from)
{
    BUG_ON(to->g != from->g);
    memcpy(to->pool.frames, from->pool.frames, (size_t)from->pool.n * sizeof(*from->pool.frames));
    memcpy(to->pool.slots, from->pool.slots,
           (size_t)from->pool.cap * 2 * sizeof(*from->pool.slots));
    to->pool.n = from->pool.n;
    to->heads = from->heads;
    to->n_past = from->n_past;
    to->past_at = from->past_at;
    memcpy(to->past, from->past, sizeof(to->past));
}

/* --- the frames that nothing uses any more --- */

static void state_mark(const struct grammar_state *s, const struct stack_heads *h, int32_t *map)
{
    for (int32_t i = 0; i < h->n; i++)
        for (int32_t f = h->at[i].frame; f > 0 && !map[f]; f = s->pool.frames[f].parent)
            map[f] = 1;
}

static void state_rename(struct stack_heads *h, const int32_t *map)
{
    for (int32_t i = 0; i < h->n; i++)
        h->at[i].frame = map[h->at[i].frame];
}

/* Parents have lower numbers than what stands on them, so one pass renames them all. The table is what `map` is kept in. */
static void state_compact(struct grammar_state *s)
{
    struct stack_pool *p = &s->pool;
    int32_t n = p->n, *map = p->slots, k = 1;
    memset(map, 0, (size_t)p->cap * 2 * sizeof(*map));
    state_mark(s, &s->heads, map);
    for (int32_t i = 0; i < s->n_past; i++)
        state_mark(s, &s->past[(s->past_at + GRAMMAR_BACK - 1 - i) % GRAMMAR_BACK], map);
    for (int32_t f = 1; f < n; f++) {
        if (!map[f])
            continue;
        struct stack_frame x = p->frames[f];
        x.parent = map[x.parent];
        p->frames[k] = x;
        map[f] = k++;
    }
    state_rename(&s->heads, map);
    for (int32_t i = 0; i < s->n_past; i++)
        state_rename(&s->past[(s->past_at + GRAMMAR_BACK - 1 - i) % GRAMMAR_BACK], map);
    p->n = k;
    stack_pool_index(p);
}

bool grammar_step(struct grammar_state *s, const char *bytes, size_t n)
{
    struct stack_heads two[2];
    const struct stack_heads *at = &s->heads;
    if (s->pool.n > STATE_FRAMES / 2)
        state_compact(s);
    if (s->pool.n > STATE_FRAMES / 2) /* what can be taken back holds them */
        s->n_past = 0, state_compact(s);
    for (size_t i = 0; i < n; i++) {
        struct stack_heads *to = &two[i & 1];
        stack_step(s->g, &s->pool, at, (uint8_t)bytes[i], to);
        if (to->n == 0 && !to->is_bottom)
            return false;
        at = to;
    }
    s->past[s->past_at] = s->heads;
    s->past_at = (s->past_at + 1) % GRAMMAR_BACK;
    s->n_past += s->n_past < GRAMMAR_BACK;
    if (n > 0)
        s->heads = *at;
    return true;
}

bool grammar_back(struct grammar_state *s, int32_t n)
{
    if (n < 0 || n > s->n_past)
        return false;
    for (int32_t i = 0; i < n; i++) {
        s->past_at = (s->past_at + GRAMMAR_BACK - 1) % GRAMMAR_BACK;
        s->heads = s->past[s->past_at];
        s->n_past--;
    }
    return true;
}

bool grammar_is_complete(const struct grammar_state *s)
{
    return s->heads.is_bottom;
}

bool grammar_is_over(const struct grammar_state *s)
{
    return s->heads.is_bottom && s->heads.n == 0;
}

static void state_next_bytes(const struct grammar *g, const struct stack_heads *h,
                             uint32_t allowed[8])
{
    memset(allowed, 0, 8 * sizeof(*allowed));
    for (int32_t i = 0; i < h->n; i++) {
        const int32_t *next = g->next + (int64_t)h->at[i].state * g->n_classes;
        for (int c = 0; c < 256; c++)
            if (next[g->class_of[c]] >= 0)
                allowed[c / 32] |= 1u << c % 32;
    }
}

void grammar_next_bytes(const struct grammar_state *s, uint32_t allowed[8])
{
    state_next_bytes(s->g, &s->heads, allowed);
}

size_t grammar_forced(const struct grammar_state *s, char *out, size_t max)
{
    struct stack_heads two[2];
    const struct stack_heads *at = &s->heads;
    struct stack_pool *pool = (struct stack_pool *)(uintptr_t)&s->pool; /* frames are only added */
    size_t n = 0;
    while (n < max && !at->is_bottom && s->pool.n < STATE_FRAMES - GRAMMAR_HEADS) {
        uint32_t allowed[8];
        int count = 0, byte = 0;
        state_next_bytes(s->g, at, allowed);
        for (int i = 0; i < 8; i++)
            count += __builtin_popcount(allowed[i]);
        if (count != 1)
            break;
        while (!(allowed[byte / 32] >> byte % 32 & 1))
            byte++;
        stack_step(s->g, pool, at, (uint8_t)byte, &two[n & 1]);
        at = &two[n & 1];
        out[n++] = (char)byte;
    }
    return n;
}
