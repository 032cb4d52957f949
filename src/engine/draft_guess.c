#include "engine/draft_guess.h"
#include "tensor/fmath.h"

#include <string.h>

void guess_rules_init(struct guess_rules *r, int32_t n_vocab, const int32_t *end_ids, int32_t n_end)
{
    *r = (struct guess_rules){ .n_vocab = n_vocab, .n_end = n_end };
    r->end_ids = mem_alloc(MEM_CAT_BASE, (size_t)n_end * sizeof(*r->end_ids));
    for (int32_t i = 0; i < n_end; i++)
        r->end_ids[i] = end_ids[i];
}

void guess_rules_release(struct guess_rules *r)
{
    mem_free(MEM_CAT_BASE, r->end_ids);
    *r = (struct guess_rules){ 0 };
}

static enum err_code guess_copy(struct guess *g, const struct sample_params *p, int32_t n_vocab)
{
    int32_t n = 0;
    g->sample = *p;
    g->bias = mem_try_array(MEM_CAT_REQUEST, (size_t)p->n_bias, sizeof(*g->bias));
    if (!g->bias)
        return ERR_NOMEM;
    for (int32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id < n_vocab)
            g->bias[n++] = p->bias[i];
    g->sample.bias = g->bias;
    g->sample.n_bias = n;
    g->sample.n_logprobs = 0; /* that of the choice: how sure it is */
    return ERR_OK;
}

enum err_code guess_open(struct guess *g, struct runner *rn, const struct engine_request *req,
                         int32_t ids_max, int32_t n_vocab, struct err *err)
{
    *g = (struct guess){ .reach = 1 };
    memcpy(g->salt, req->cache_salt, sizeof(g->salt));
    g->ids = mem_try_array(MEM_CAT_REQUEST, (size_t)ids_max + DRAFT_MAX, sizeof(*g->ids));
    enum err_code code = guess_copy(g, &req->sample, n_vocab);
    if (code || !g->ids)
        code = err_set(err, ERR_NOMEM, "drafter: no memory for %d ids and %d biases", ids_max,
                       req->sample.n_bias);
    if (!code)
        code = runner_open(rn, &g->seq, err);
    if (code)
        guess_release(g);
    return code;
}

void guess_close(struct guess *g, struct runner *rn)
{
    runner_close(rn, g->seq);
    guess_release(g);
}

void guess_release(struct guess *g)
{
    mem_free(MEM_CAT_REQUEST, g->ids);
    mem_free(MEM_CAT_REQUEST, g->bias);
    *g = (struct guess){ 0 };
}

int32_t draft_model_sure(float logprob)
{
    /* log of 0.3, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99 */
    static const float bounds[] = { -1.204f,   -0.6931f,  -0.4308f, -0.2231f,
                                    -0.10536f, -0.04082f, -0.01005f };
    int32_t sure = DRAFT_MODEL_SURE;
    for (size_t i = 0; i < ARRAY_LEN(bounds); i++)
        sure += logprob > bounds[i];
    return sure;
}

static bool guess_is_end(const struct guess_rules *rules, int32_t id)
{
    for (int32_t i = 0; i < rules->n_end; i++)
        if (rules->end_ids[i] == id)
            return true;
    return false;
}

bool guess_take(struct guess *g, struct sampler *s, const struct guess_rules *rules,
                const struct guess_source *from, struct draft_ask *a)
{
    struct sample_context ctx = { .history = from->ids, .n_history = from->n };
    struct engine_token token;
    if (sample_token(s, from->logits, &g->sample, &ctx, &token, NULL) ||
        token.id >= rules->n_vocab || guess_is_end(rules, token.id))
        return false;
    float chance = from->confidence >= 0 ? from->confidence : fmath_exp(token.logprob);
    g->reach *= (double)chance;
    if (a->n > 0 && g->reach < a->least)
        return false;
    a->sure[a->n] = (int8_t)(chance > 0 ? draft_model_sure(fmath_log(chance)) : DRAFT_MODEL_SURE);
    a->ids_out[a->n++] = token.id;
    return a->n < a->n_max && g->reach >= a->least;
}
