/* prepare_rerank.c - /v1/rerank and /v1/score: how well documents fit queries, by a model that was trained to say yes or no.
 *
 * Three kinds. A decoder is asked with the prompt of Qwen3-Reranker (Zhang et al. 2025); the score is what yes has of yes and no
 * together. Both ids are lifted over all others by the same bias, so that the two likeliest ids are they, and the difference of their
 * log-probabilities is that of their logits. A decoder with a classifier in the place of its vocabulary's head is asked with the same
 * prompt, an encoder with one (a cross-encoder) gets the pair as its tokenizer frames pairs: there the labels' logits are told. */
#include "server/prepare_int.h"

#include <stdio.h>
#include <string.h>

#define RERANK_LIFT 100

static const char rerank_system[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    "the Instruct provided. Note "
    "that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
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

/* The score is the likelihood of yes, of the two. */
static bool ranking_of_words(struct prepare_generation *g, struct api_error *e)
{
    struct prepared_ranking *r = &g->p->ranking;
    if (!rerank_id(g, "yes", &r->yes, e) || !rerank_id(g, "no", &r->no, e))
        return false;
    if (r->yes == r->no)
        return api_error_set(e, 400, NULL, "model",
                             "this model has no tokens that tell yes from no");
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
    g->p->n_logprobs = 2;
    return true;
}

bool prepare_ranking(struct prepare_generation *g, struct api_error *e)
{
    const struct engine_info *info = &g->ctx->model->engine->info;
    struct prepared_ranking *r = &g->p->ranking;
    const struct json *task = json_get_set(g->body, "instruction");
    if (task && (!json_is(task, JSON_TYPE_STRING) || task->len > 1 << 20))
        return api_error_set(e, 400, NULL, "instruction",
                             "instruction: must be a string, at most 1 MiB");
    if (g->fields.truncate == 0)
        return api_error_set(e, 400, NULL, "truncate_prompt_tokens",
                             "truncate_prompt_tokens: must be -1 or at least 1");
    r->top_n = g->fields.top_n == FIELDS_UNSET || g->fields.top_n > LIMIT_INPUTS
                   ? LIMIT_INPUTS
                   : (int32_t)g->fields.top_n;
    r->n_labels = info->n_labels;
    g->n_score_top = g->p->n_prompt_logprobs = g->p->n_logprobs = -1;
    if (r->n_labels == 0)
        return ranking_of_words(g, e);
    g->p->embeddings.n_embd = g->p->embeddings.n_dims = info->n_labels;
    g->engine.max_tokens = 0;
    g->engine.sample.n_logprobs = -1;
    return true;
}

/* How many ids a pair may have, all told; 0: it is not cut. */
static int32_t pair_max(const struct prepare_generation *g)
{
    int32_t n_ctx = g->ctx->model->engine->info.n_ctx - (g->engine.max_tokens != 0);
    if (g->fields.truncate == FIELDS_UNSET)
        return 0;
    return g->fields.truncate < 0 || g->fields.truncate > n_ctx ? n_ctx
                                                                : (int32_t)g->fields.truncate;
}

static bool pair_encode(struct prepare_generation *g, const char *text, size_t n,
                        const struct span_list *caller, unsigned flags, const char *where,
                        struct token_list *out, struct api_error *e)
{
    struct err err;
    return tokenizer_encode(g->ctx->model->tokenizer, text, n, caller, flags, out, &err) ==
               ERR_OK ||
           api_error_set(e, 400, "context_length_exceeded", where, "%s: %s", where, err.text);
}

static bool pair_add_id(struct token_list *out, int32_t id, const char *where, struct api_error *e)
{
    struct err err;
    return id < 0 || token_list_add(out, &id, 1, &err) == ERR_OK ||
           api_error_set(e, 400, "context_length_exceeded", where, "%s: %s", where, err.text);
}

/* No room for anything of the caller's. */
static bool pair_no_room(int32_t max, int32_t n_frame, struct api_error *e)
{
    return api_error_set(e, 400, NULL, "truncate_prompt_tokens",
                         "truncate_prompt_tokens: %d; what stands around a pair has %d tokens", max,
                         n_frame);
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

/* The prompt of a decoder. What is cut of it is the end of the piece that has instruction, query and document, as the model's card does. */
static bool pair_prompt(struct prepare_generation *g, const struct json *query,
                        const struct json *document, const char *where, struct token_list *ids,
                        struct api_error *e)
{
    struct span spans[3];
    struct span_list caller = { spans, ARRAY_LEN(spans) };
    struct buf text;
    struct err err;
    int32_t max = pair_max(g);
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_add_str(&text, "<Instruct>: ");
    pair_add(&text, &spans[0], json_get_set(g->body, "instruction"), rerank_task);
    buf_add_str(&text, "\n<Query>: ");
    pair_add(&text, &spans[1], query, NULL);
    buf_add_str(&text, "\n<Document>: ");
    pair_add(&text, &spans[2], document, NULL);
    bool is_fine =
        buf_check(&text, where, &err) == ERR_OK ||
        api_error_set(e, 400, "context_length_exceeded", where, "%s: %s", where, err.text);
    struct token_list end;
    token_list_init(&end, 256);
    is_fine = is_fine &&
              pair_encode(g, rerank_end, strlen(rerank_end), NULL, TOKENIZER_FLAG_SPECIAL, where,
                          &end, e) &&
              pair_encode(g, rerank_system, strlen(rerank_system), NULL, TOKENIZER_FLAG_SPECIAL,
                          where, ids, e);
    int32_t n_frame = end.n + ids->n;
    is_fine = is_fine && (max == 0 || max > n_frame || pair_no_room(max, n_frame, e)) &&
              pair_encode(g, text.data, text.len, &caller, 0, where, ids, e);
    if (is_fine && max > 0 && ids->n > max - end.n)
        ids->n = max - end.n;
    for (int32_t i = 0; i < end.n && is_fine; i++)
        is_fine = pair_add_id(ids, end.ids[i], where, e);
    buf_release(&text);
    token_list_release(&end);
    return is_fine;
}

/* What stays of two texts that have room for `room` ids together: the longer one is cut first, and an odd id is the second's. */
static void pair_fit(int32_t *n_a, int32_t *n_b, int32_t room)
{
    int32_t less = *n_a < *n_b ? *n_a : *n_b;
    if (*n_a + *n_b <= room)
        return;
    if (less > room / 2) {
        *n_a = room / 2;
        *n_b = room - room / 2;
    } else if (*n_a > *n_b) {
        *n_a = room - less;
    } else {
        *n_b = room - less;
    }
}

/* The pair as a cross-encoder takes it. */
static bool pair_frame(struct prepare_generation *g, const struct json *query,
                       const struct json *document, const char *where, struct token_list *out,
                       struct api_error *e)
{
    struct tokenizer_frame frame = tokenizer_frame(g->ctx->model->tokenizer);
    struct token_list a, b;
    int32_t max = pair_max(g);
    int32_t n_frame = (frame.head >= 0) + (frame.tail >= 0 ? frame.n_between + 1 : 0);
    token_list_init(&a, prepare_max_tokens(g->ctx));
    token_list_init(&b, prepare_max_tokens(g->ctx));
    bool is_fine = pair_encode(g, query->text, query->len, NULL, 0, where, &a, e) &&
                   pair_encode(g, document->text, document->len, NULL, 0, where, &b, e) &&
                   (max == 0 || max > n_frame || pair_no_room(max, n_frame, e));
    if (is_fine && max > 0)
        pair_fit(&a.n, &b.n, max - n_frame);
    is_fine = is_fine && pair_add_id(out, frame.head, where, e);
    for (int32_t i = 0; i < a.n && is_fine; i++)
        is_fine = pair_add_id(out, a.ids[i], where, e);
    for (int32_t i = 0; i < frame.n_between && is_fine; i++)
        is_fine = pair_add_id(out, frame.tail, where, e);
    for (int32_t i = 0; i < b.n && is_fine; i++)
        is_fine = pair_add_id(out, b.ids[i], where, e);
    is_fine = is_fine && pair_add_id(out, frame.tail, where, e);
    token_list_release(&a);
    token_list_release(&b);
    return is_fine;
}

static bool pair_ask(struct prepare_generation *g, const struct json *query,
                     const struct json *document, const char *where, struct api_error *e)
{
    struct token_list ids;
    token_list_init(&ids, prepare_max_tokens(g->ctx));
    bool is_fine = (g->ctx->model->engine->info.is_embedder ? pair_frame : pair_prompt)(
        g, query, document, where, &ids, e);
    is_fine = is_fine && prepare_add_prompt(g, ids.ids, ids.n, NULL, false, e);
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
    if (r->n_labels > 0)
        g->p->embeddings.hidden =
            mem_alloc(MEM_CAT_REQUEST, n * (size_t)r->n_labels * sizeof(float));
    if (g->fields.return_documents)
        r->texts = mem_alloc(MEM_CAT_REQUEST, n * sizeof(*r->texts));
    for (size_t i = 0; i < n; i++) {
        const struct json *query = pair_text(a, n_a == 1 ? 0 : i), *document = pair_text(b, i);
        snprintf(where, sizeof(where), "%s[%zu]", names[1], i);
        if (g->in->is_cancelled && atomic_load(g->in->is_cancelled))
            return api_error_set(e, 499, "cancelled", NULL, "cancelled");
        if (!pair_is_text(query, names[0], e) || !pair_is_text(document, where, e) ||
            !pair_ask(g, query, document, where, e))
            return false;
        if (r->texts)
            r->texts[r->n_texts++] = mem_strndup(MEM_CAT_REQUEST, document->text, document->len);
    }
    return true;
}
