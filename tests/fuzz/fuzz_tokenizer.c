/* fuzz_tokenizer.c - any text, any spans of the caller, any vocabulary: ids that exist, decoding that agrees with the stream, and
 * no control token where a byte is the caller's.
 *
 * Input: kind, pre-tokenizer, encode flags, spec flags, number of spans (each a byte apart and a byte long), then
 * - spec flags without 0x80: the text, for a small known vocabulary;
 * - with 0x80: number of pieces; each piece type, length, bytes; then the same for merges; length of a charsmap and its bytes; the
 *   rest is the text. */
#include "support/small_vocab.h"
#include "tokenizer/tokenizer_int.h"

#include "base/log.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N_KINDS 5
#define N_SPANS 8

static const char *const pres[] = {
    "default",   "gpt-2",      "smollm",       "llama-bpe",      "qwen2",       "qwen35",
    "gpt-4o",    "tekken",     "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon",
    "chameleon", "bloom",      "viking",       "superbpe",       "tiny_aya",    "afmoe",
    "kimi-k2",   "exaone-moe", "jais-2",       "bailingmoe",     "youtu",       "minicpm5",
    "gemma4",    "seed-coder", "laguna",       "hunyuan-dense",  "spark2_5",    "no-such"
};

struct input {
    const uint8_t *p, *end;
};

static unsigned take(struct input *in)
{
    return in->p < in->end ? *in->p++ : 0;
}

static struct tokenizer_str take_str(struct input *in, size_t n)
{
    size_t left = (size_t)(in->end - in->p);
    struct tokenizer_str s = { (const char *)in->p, n < left ? n : left };
    in->p += s.len;
    return s;
}

static void set_flags(struct tokenizer_spec *s, unsigned flags)
{
    s->add_bos = flags & 1;
    s->add_eos = flags & 2;
    s->add_space_prefix = flags & 4;
    s->remove_extra_spaces = flags & 8;
    s->strip_after_special = flags & 16;
    s->lowercase = flags & 32;
    s->strip_accents = flags & 64;
}

/* A vocabulary out of the input. */
static void take_vocab(struct small_vocab *v, struct input *in)
{
    struct tokenizer_spec *s = &v->spec;
    s->n_tokens = (int32_t)take(in);
    for (int32_t i = 0; i < s->n_tokens; i++) {
        unsigned type = take(in);
        v->types[i] = (uint8_t)(type % 6 + 1);
        v->scores[i] = (float)(int8_t)(type * 37);
        v->pieces[i] = take_str(in, take(in) % 24);
    }
    s->n_merges = (int32_t)take(in);
    for (int32_t i = 0; i < s->n_merges; i++)
        v->merges[i] = take_str(in, take(in) % 24);
    struct tokenizer_str map = take_str(in, take(in) * 4);
    s->charsmap = (const uint8_t *)map.data;
    s->charsmap_bytes = map.len;
    s->unk = (int32_t)take(in) - 1;
    s->eos = s->bos = s->unk;
}

static bool is_in(const struct span_list *l, size_t p0, size_t p1)
{
    for (size_t i = 0; i < l->n; i++)
        if (l->spans[i].p0 < p1 && l->spans[i].p1 > p0 && l->spans[i].p0 < l->spans[i].p1)
            return true;
    return false;
}

/* With the whole text the caller's, no control token may come out; with none of it, ids must agree with no spans at all. */
static void check_provenance(const struct tokenizer *t, const char *text, size_t len,
                             const struct token_list *plain)
{
    struct span all = { 0, len };
    struct span_list caller = { &all, 1 };
    struct token_list ids;
    token_list_init(&ids, 1 << 24);
    if (tokenizer_encode(t, text, len, &caller, TOKENIZER_FLAG_SPECIAL, &ids, NULL) == ERR_OK) {
        BUG_ON(ids.n != plain->n);
        BUG_ON(ids.n > 0 && memcmp(ids.ids, plain->ids, (size_t)ids.n * sizeof(*ids.ids)) != 0);
    }
    token_list_release(&ids);
}

static void check_decode(const struct tokenizer *t, const struct token_list *ids)
{
    struct buf whole;
    struct buf streamed;
    struct detok_stream s;
    buf_init(&whole, MEM_CAT_BASE, SIZE_MAX);
    buf_init(&streamed, MEM_CAT_BASE, SIZE_MAX);
    BUG_ON(tokenizer_decode(t, ids->ids, ids->n, true, &whole, NULL) != ERR_OK);
    detok_stream_init(&s, t, true, true);
    for (int32_t i = 0; i < ids->n; i++) {
        detok_stream_push(&s, ids->ids[i], &streamed);
        BUG_ON(!utf8_is_valid(streamed.data, streamed.len)); /* at every step */
    }
    size_t dropped = detok_stream_finish(&s);
    BUG_ON(dropped > 3);
    if (utf8_is_valid(whole.data, whole.len)) {
        BUG_ON(dropped != 0 || streamed.len != whole.len);
        BUG_ON(memcmp(streamed.data, whole.data, whole.len) != 0);
    }
    buf_release(&whole);
    buf_release(&streamed);
}

/* Special tokens by definition: leftmost, longest, outside the caller's bytes. */
static void check_specials(const struct tokenizer *t, const char *text, size_t len,
                           const struct span_list *caller)
{
    size_t from = 0;
    for (int i = 0; i < 64 && from < len; i++) {
        struct special_match m = special_find(&t->specials, text, len, from, caller, true);
        BUG_ON(m.p0 < from || m.p1 > len);
        if (m.id < 0)
            return;
        BUG_ON(m.p1 <= m.p0);
        BUG_ON(t->types[m.id] != TOKEN_TYPE_USER && is_in(caller, m.p0, m.p1));
        from = m.p1;
    }
}

static void check_text(const struct tokenizer *t, const char *text, size_t len,
                       const struct span_list *caller, unsigned flags)
{
    struct token_list ids;
    struct token_list plain;
    token_list_init(&ids, 1 << 24);
    token_list_init(&plain, 1 << 24);
    if (tokenizer_encode(t, text, len, caller, flags & 7, &ids, NULL) == ERR_OK) {
        for (int32_t i = 0; i < ids.n; i++)
            BUG_ON(ids.ids[i] < 0 || ids.ids[i] >= t->n_tokens);
        check_decode(t, &ids);
    }
    if (tokenizer_encode(t, text, len, NULL, 0, &plain, NULL) == ERR_OK)
        check_provenance(t, text, len, &plain);
    if (len > 0)
        check_specials(t, text, len, caller);
    token_list_release(&ids);
    token_list_release(&plain);
}

/* Known vocabularies are built once: compiling a pattern takes longer than a run. */
static struct tokenizer *known(unsigned kind, unsigned pre, unsigned flags)
{
    static struct tokenizer *made[N_KINDS][ARRAY_LEN(pres)][128];
    struct tokenizer **t = &made[kind][pre][flags];
    if (!*t) {
        static struct small_vocab v;
        small_vocab_init(&v, (enum tokenizer_kind)kind, pres[pre]);
        set_flags(&v.spec, flags);
        BUG_ON(tokenizer_new(&v.spec, t, NULL) != ERR_OK);
    }
    return *t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, data + size };
    struct span spans[N_SPANS];
    struct span_list caller = { .spans = spans };
    log_set_level(LOG_LEVEL_ERROR);
    unsigned kind = take(&in) % N_KINDS;
    unsigned pre = kind == TOKENIZER_KIND_BPE ? take(&in) % ARRAY_LEN(pres) : (take(&in), 0u);
    unsigned flags = take(&in);
    unsigned spec_flags = take(&in);
    size_t at = 0;
    for (unsigned n = take(&in) % (N_SPANS + 1); caller.n < n; caller.n++) {
        spans[caller.n].p0 = at + take(&in) + (caller.n > 0);
        at = spans[caller.n].p1 = spans[caller.n].p0 + take(&in);
    }
    struct tokenizer *t = NULL;
    bool is_known = !(spec_flags & 0x80);
    if (is_known) {
        t = known(kind, pre, spec_flags);
    } else {
        static struct small_vocab v;
        small_vocab_init(&v, (enum tokenizer_kind)kind, pres[pre]);
        set_flags(&v.spec, spec_flags);
        take_vocab(&v, &in);
        if (tokenizer_new(&v.spec, &t, NULL) != ERR_OK)
            return 0;
    }
    check_text(t, (const char *)in.p, (size_t)(in.end - in.p), &caller, flags);
    if (!is_known)
        tokenizer_free(t);
    return 0;
}
