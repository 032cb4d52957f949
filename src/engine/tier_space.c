#include "engine/tier_space.h"

#define XXH_INLINE_ALL
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

/* XXH3 of a stream of values. */
struct hash {
    XXH3_state_t state;
};

static void hash_begin(struct hash *h)
{
    BUG_ON(XXH3_128bits_reset(&h->state) != XXH_OK);
}

static void hash_add(struct hash *h, const void *data, size_t n)
{
    BUG_ON(XXH3_128bits_update(&h->state, data, n) != XXH_OK);
}

static void hash_add_int(struct hash *h, int64_t v)
{
    hash_add(h, &v, sizeof(v));
}

static void hash_end(struct hash *h, uint8_t out[16])
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits_digest(&h->state));
    memcpy(out, c.digest, 16);
}

/* Scales that stand beside a tensor's codes. */
static void hash_add_scales(struct hash *h, const struct weights_tensor *t)
{
    const struct scales *s = &t->scales;
    int64_t out = 1;
    if (!s->scales || s->rows < 1 || s->cols < 1)
        return;
    for (int i = 1; i < WEIGHTS_DIMS_MAX; i++)
        out *= t->shape[i];
    int64_t across = (t->shape[0] + s->cols - 1) / s->cols;
    size_t n = (size_t)((out + s->rows - 1) / s->rows) * dtype_row_bytes(s->type, across);
    hash_add(h, s->scales, n);
    if (s->biases)
        hash_add(h, s->biases, n);
}

void tier_space_content(const struct weights *w, uint8_t out[16])
{
    struct hash h;
    hash_begin(&h);
    for (int32_t i = 0; i < weights_n_tensors(w); i++) {
        const struct weights_tensor *t = weights_tensor_at(w, i);
        hash_add(&h, t->name, strlen(t->name) + 1);
        hash_add_int(&h, (int64_t)t->type);
        hash_add(&h, t->shape, sizeof(t->shape));
        hash_add_int(&h, (int64_t)t->bytes);
        hash_add(&h, t->data, t->bytes);
        hash_add_scales(&h, t);
    }
    hash_end(&h, out);
}

static void space_rope(const struct model *m, uint8_t out[16])
{
    struct hash h;
    hash_begin(&h);
    for (int i = 0; i < MODEL_ROPES_MAX; i++) {
        const struct rope *r = &m->ropes[i];
        hash_add_int(&h, (int64_t)r->kind);
        hash_add_int(&h, r->n_dims);
        hash_add(&h, &r->scale, sizeof(r->scale));
        if (r->inv_freq)
            hash_add(&h, r->inv_freq, (size_t)(r->n_dims / 2) * sizeof(*r->inv_freq));
    }
    for (int64_t i = 0; i < m->n_layers; i++)
        hash_add_int(&h, m->layers[i].rope_i);
    hash_end(&h, out);
}

static void space_geometry(const struct model *m, uint8_t out[16])
{
    const struct model_state *s = &m->state;
    struct hash h;
    hash_begin(&h);
    hash_add(&h, m->arch, strlen(m->arch) + 1);
    for (int64_t i = 0; i < m->n_layers; i++) {
        const struct model_layer *l = &m->layers[i];
        const int64_t sizes[] = { l->group, l->n_heads, l->n_kv_heads, l->head_dim, l->kv_from };
        hash_add(&h, sizes, sizeof(sizes));
    }
    const int64_t state[] = { s->taps,    s->conv_cols, s->n_heads, s->n_key_heads,
                              s->key_dim, s->value_dim, s->is_tiled };
    hash_add(&h, state, sizeof(state));
    hash_end(&h, out);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : 0;
}

void tier_space_init(struct tier_space *s, const struct tier_space_options *o)
{
    const struct model *m = o->model;
    size_t n = strlen(o->weights_digest);
    memset(s, 0, sizeof(*s));
    if (n == 2 * sizeof(s->weights))
        for (size_t i = 0; i < sizeof(s->weights); i++)
            s->weights[i] = (uint8_t)(hex_digit(o->weights_digest[2 * i]) << 4 |
                                      hex_digit(o->weights_digest[2 * i + 1]));
    else
        memcpy(s->weights, o->weights_digest, n < sizeof(s->weights) ? n : sizeof(s->weights));
    memcpy(s->content, o->content, sizeof(s->content));
    space_rope(m, s->rope);
    space_geometry(m, s->geometry);
    snprintf(s->numerics, sizeof(s->numerics), "%s", o->numerics);
    s->cache_type = (uint32_t)o->cache_type;
    s->page_tokens = KV_PAGE_TOKENS;
    s->n_layers = (uint32_t)m->n_layers;
    s->window = (uint32_t)m->window;
    for (int g = 0; g < TIER_GROUPS; g++)
        s->page_bytes[g] = o->page_bytes[g];
}
