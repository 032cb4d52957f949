/* dialect_rerank.c - the replies of /v1/rerank (as Cohere, Jina and vLLM have it) and /v1/score (vLLM's). */
#include "base/dmath.h"
#include "server/dialect.h"
#include "server/prepare.h"
#include "json/json.h"

#include <stdlib.h>

struct ranked {
    double score;
    int32_t index;
};

/* Of a classifier: the one label's logit between 0 and 1; of two what the first has of both. */
static double labels_score(const float *logits, int32_t n)
{
    double x = n == 1 ? (double)logits[0] : (double)logits[0] - (double)logits[1];
    return 1 / (1 + dmath_exp(-x));
}

/* What yes has of yes and no. An id that is not among the likeliest two has nothing. */
static double ranked_score(const struct prepared_ranking *r, const struct dialect_choice *c)
{
    const struct engine_token *t = c->n_tokens > 0 ? &c->tokens[0].token : NULL;
    bool has_yes = false, has_no = false;
    double yes = 0, no = 0;
    if (r->n_labels > 0)
        return labels_score(c->hidden, r->n_labels);
    for (int32_t i = 0; t && i < t->n_top; i++) {
        if (t->top[i].id == r->yes)
            yes = (double)t->top[i].logprob, has_yes = true;
        if (t->top[i].id == r->no)
            no = (double)t->top[i].logprob, has_no = true;
    }
    if (!has_yes || !has_no)
        return has_yes ? 1 : 0;
    return 1 / (1 + dmath_exp(no - yes));
}

/* Best first; of equal ones the earlier. */
static int ranked_compare(const void *pa, const void *pb)
{
    const struct ranked *a = pa, *b = pb;
    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

static void ranked_usage(struct json_writer *w, const struct dialect_usage *u)
{
    json_key(w, "usage");
    json_begin_object(w);
    json_key(w, "prompt_tokens");
    json_int(w, u->prompt_tokens);
    json_key(w, "total_tokens");
    json_int(w, u->prompt_tokens);
    json_end_object(w);
}

static void rerank_whole(struct buf *out, const struct dialect_head *h,
                         const struct dialect_choice *c, int32_t n, const struct dialect_usage *u)
{
    const struct prepared_ranking *r = h->ranking;
    struct ranked *ranked = mem_alloc(MEM_CAT_REQUEST, sizeof(*ranked) * (size_t)n);
    struct json_writer w;
    for (int32_t i = 0; i < n; i++)
        ranked[i] = (struct ranked){ ranked_score(r, &c[i]), c[i].index };
    qsort(ranked, (size_t)n, sizeof(*ranked), ranked_compare);
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, "id");
    json_str(&w, h->id);
    json_key(&w, "model");
    json_str(&w, h->model);
    json_key(&w, "results");
    json_begin_array(&w);
    for (int32_t i = 0; i < n && i < r->top_n; i++) {
        json_begin_object(&w);
        json_key(&w, "index");
        json_int(&w, ranked[i].index);
        json_key(&w, "relevance_score");
        json_double(&w, ranked[i].score);
        if (r->texts) {
            json_key(&w, "document");
            json_begin_object(&w);
            json_key(&w, "text");
            json_str(&w, r->texts[ranked[i].index]);
            json_end_object(&w);
        }
        json_end_object(&w);
    }
    json_end_array(&w);
    ranked_usage(&w, u);
    json_end_object(&w);
    mem_free(MEM_CAT_REQUEST, ranked);
}

static void score_whole(struct buf *out, const struct dialect_head *h,
                        const struct dialect_choice *c, int32_t n, const struct dialect_usage *u)
{
    struct json_writer w;
    json_writer_init(&w, out);
    json_begin_object(&w);
    json_key(&w, "id");
    json_str(&w, h->id);
    json_key(&w, "object");
    json_str(&w, "list");
    json_key(&w, "created");
    json_int(&w, h->created);
    json_key(&w, "model");
    json_str(&w, h->model);
    json_key(&w, "data");
    json_begin_array(&w);
    for (int32_t i = 0; i < n; i++) {
        json_begin_object(&w);
        json_key(&w, "index");
        json_int(&w, c[i].index);
        json_key(&w, "object");
        json_str(&w, "score");
        json_key(&w, "score");
        json_double(&w, ranked_score(h->ranking, &c[i]));
        json_end_object(&w);
    }
    json_end_array(&w);
    ranked_usage(&w, u);
    json_end_object(&w);
}

const struct dialect dialect_rerank = { .id_prefix = "rerank-", .whole = rerank_whole };
const struct dialect dialect_score = { .id_prefix = "score-", .whole = score_whole };
