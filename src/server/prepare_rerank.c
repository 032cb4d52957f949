/* prepare_rerank.c - /v1/rerank and /v1/score: how well documents fit queries, by a model that was trained to say yes or no.
 *
 * The prompt is the one of Qwen3-Reranker (Zhang et al. 2025). The score is what yes has of yes and no together. Both ids are lifted
 * over all others by the same bias, so that the two likeliest ids are they, and the difference of their log-probabilities is that of
 * their logits. */
#include "server/prepare_int.h"

#include <stdio.h>
#include <string.h>

#define RERANK_LIFT 100

static const char rerank_system[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note "
    "that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: ";
static const char rerank_end[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char rerank_task[] =
    "Given a web search query, retrieve relevant passages that answer the query";

/* The first id of a word. */
static bool rerank_id(const struct prepare_generation *g, const char *word, int32_t *out,
                      struct api_error *e)
{
    struct token_list ids;
    struct err err;
    token_list_init(&ids, 16);
    bool is_fine = tokenizer_encode(g->ctx->model->tokenizer, word, strlen(word), NULL, 0, &ids,
                                    &err) == ERR_OK &&
                   ids.n > 0;
    if (is_fine)
        *out = ids.ids[0];
    else
        api_error_set(e, 400, NULL, "model", "this model has no token for '%s'", word);
    token_list_release(&ids);
    return is_fine;
}

bool prepare_ranking(struct prepare_generation *g, struct api_error *e)
{
    struct prepared_ranking *r = &g->p->ranking;
    const struct json *task = json_get_set(g->body, "instruction");
    if (task && (!json_is(task, JSON_TYPE_STRING) || task->len > 1 << 20))
        return api_error_set(e, 400, NULL, "instruction",
                             "instruction: must be a string, at most 1 MiB");
    if (!rerank_id(g, "yes", &r->yes, e) || !rerank_id(g, "no", &r->no, e))
        return false;
    if (r->yes == r->no)
        return api_error_set(e, 400, NULL, "model",
                             "this model has no tokens that tell yes from no");
    r->top_n = g->fields.top_n == FIELDS_UNSET || g->fields.top_n > LIMIT_INPUTS
                   ? LIMIT_INPUTS
                   : (int32_t)g->fields.top_n;
    g->bias = mem_alloc(MEM_CAT_REQUEST, 2 * sizeof(*g->bias));
    g->bias[0] = (struct logit_bias){ r->yes, RERANK_LIFT };
    g->bias[1] = (struct logit_bias){ r->no, RERANK_LIFT };
    g->engine.sample = (struct sample_params){ .top_p = 1,
                                               .typical_p = 1,
                                               .xtc_threshold = 1,
                                               .repetition_penalty = 1,
                                               .n_logprobs = 2,
                                               .bias = g->bias,
                                               .n_bias = 2 };
    g->engine.max_tokens = 1;
    g->engine.ignore_end = true;
    g->n_score_top = g->p->n_prompt_logprobs = -1;
    g->p->n_logprobs = 2;
    return true;
}

/* A piece of the prompt that is the caller's: what looks like a control token in it is text. */
static void pair_add(struct buf *text, struct span *span, const struct json *v, const char *plain)
{
    span->p0 = text->len;
    if (v)
        buf_add(text, v->text, v->len);
    else
        buf_add_str(text, plain);
    span->p1 = text->len;
}

static bool pair_prompt(struct prepare_generation *g, const struct json *query,
                        const struct json *document, const char *where, struct api_error *e)
{
    struct span spans[3];
    struct token_list ids;
    struct buf text;
    struct err err;
    bool is_fine = false;
    token_list_init(&ids, prepare_max_tokens(g->ctx));
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_add_str(&text, rerank_system);
    pair_add(&text, &spans[0], json_get_set(g->body, "instruction"), rerank_task);
    buf_add_str(&text, "\n<Query>: ");
    pair_add(&text, &spans[1], query, NULL);
    buf_add_str(&text, "\n<Document>: ");
    pair_add(&text, &spans[2], document, NULL);
    buf_add_str(&text, rerank_end);
    if (buf_check(&text, where, &err) != ERR_OK ||
        tokenizer_encode(g->ctx->model->tokenizer, text.data, text.len,
                         &(struct span_list){ spans, ARRAY_LEN(spans) }, TOKENIZER_FLAG_SPECIAL,
                         &ids, &err) != ERR_OK)
        api_error_set(e, 400, "context_length_exceeded", where, "%s: %s", where, err.text);
    else
        is_fine = prepare_add_prompt(g, ids.ids, ids.n, NULL, false, e);
    buf_release(&text);
    token_list_release(&ids);
    return is_fine;
}

static bool pair_is_text(const struct json *v, const char *where, struct api_error *e)
{
    if (!json_is(v, JSON_TYPE_STRING) || v->len == 0)
        return api_error_set(e, 400, NULL, where, "%s: must be a string that is not empty", where);
    return true;
}

/* Text i of a list, or the one text. */
static const struct json *pair_text(const struct json *v, size_t i)
{
    if (!json_is(v, JSON_TYPE_ARRAY))
        return v;
    const struct json *one = &v->items[i < v->n ? i : 0];
    return json_is(one, JSON_TYPE_OBJECT) ? json_get(one, "text") : one;
}

static size_t pair_count(const struct json *v)
{
    return json_is(v, JSON_TYPE_ARRAY) ? v->n : 1;
}

bool prepare_pairs(struct prepare_generation *g, struct api_error *e)
{
    bool is_rerank = g->p->kind == PREPARE_RERANK;
    const char *names[] = { is_rerank ? "query" : "text_1", is_rerank ? "documents" : "text_2" };
    const struct json *a = json_get_set(g->body, names[0]), *b = json_get_set(g->body, names[1]);
    struct prepared_ranking *r = &g->p->ranking;
    char where[32];
    if (!a || !b)
        return api_error_set(e, 400, NULL, a ? names[1] : names[0], "%s: is missing",
                             a ? names[1] : names[0]);
    if (is_rerank && (json_is(a, JSON_TYPE_ARRAY) || !json_is(b, JSON_TYPE_ARRAY)))
        return api_error_set(e, 400, NULL, json_is(a, JSON_TYPE_ARRAY) ? names[0] : names[1],
                             "query must be a string, documents an array");
    size_t n_a = pair_count(a), n = pair_count(b);
    if (n == 0 || n > LIMIT_INPUTS || (n_a != n && n_a != 1))
        return api_error_set(e, 400, NULL, names[1],
                             "%s: %zu texts for %zu: 1 to %d are possible, and one %s or as many",
                             names[1], n, n_a, LIMIT_INPUTS, names[0]);
    prepare_room(g->p, (int32_t)n);
    if (g->fields.return_documents)
        r->texts = mem_alloc(MEM_CAT_REQUEST, n * sizeof(*r->texts));
    for (size_t i = 0; i < n; i++) {
        const struct json *query = pair_text(a, n_a == 1 ? 0 : i), *document = pair_text(b, i);
        snprintf(where, sizeof(where), "%s[%zu]", names[1], i);
        if (g->in->is_cancelled && atomic_load(g->in->is_cancelled))
            return api_error_set(e, 499, "cancelled", NULL, "cancelled");
        if (!pair_is_text(query, names[0], e) || !pair_is_text(document, where, e) ||
            !pair_prompt(g, query, document, where, e))
            return false;
        if (r->texts)
            r->texts[r->n_texts++] = mem_strndup(MEM_CAT_REQUEST, document->text, document->len);
    }
    return true;
}
