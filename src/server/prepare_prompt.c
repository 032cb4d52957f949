/* prepare_prompt.c - prompts as text, ids or messages, and the requests that are made of them. */
#include "server/prepare_int.h"

/* Room for the scores of one more prompt, or NULL and e. */
static struct engine_token *prepare_score_room(struct prepare_generation *g, int32_t n_ids,
                                               struct api_error *e)
{
    int64_t bytes = (int64_t)sizeof(struct engine_token) * n_ids;
    if (g->p->score_bytes + bytes > LIMIT_SCORES_BYTES) {
        api_error_set(
            e, 400, NULL, "prompt",
            "log-probabilities of prompts: %lld tokens, the limit is %d: make the prompts "
            "shorter or send fewer at once",
            (long long)((g->p->score_bytes + bytes) / (int64_t)sizeof(struct engine_token)),
            (int)(LIMIT_SCORES_BYTES / sizeof(struct engine_token)));
        return NULL;
    }
    struct engine_token *scores =
        mem_try_array(MEM_CAT_REQUEST, (size_t)n_ids, sizeof(struct engine_token));
    if (!scores)
        api_error_set(e, 503, "out_of_memory", NULL, "no memory for the prompt's %d scores", n_ids);
    else
        g->p->score_bytes += bytes;
    return scores;
}

/* The n requests of a prompt. Only the first is asked for scores: those of the others would be the same. */
static bool prepare_add_requests(struct prepare_generation *g, struct prepared_prompt *prompt,
                                 int32_t n, struct api_error *e)
{
    struct prepared *p = g->p;
    for (int32_t i = 0; i < n; i++) {
        bool is_first = i == 0 && p->n_prompts == 1;
        g->engine.miss = is_first && p->diagnosis ? &p->diagnosis->miss : NULL;
        g->engine.sample.choice = (uint32_t)i;
        g->engine.prompt_scores = i == 0 ? prompt->scores : NULL;
        if (p->embeddings.hidden)
            g->engine.hidden = p->embeddings.hidden + (int64_t)p->n_choices * p->embeddings.n_embd;
        g->engine.n_score_top = prompt->scores && i == 0 ? g->n_score_top : 0;
        struct sched_request *r = sched_request_new(0, &g->engine);
        if (!r)
            return api_error_set(e, 503, "out_of_memory", NULL, "no memory for the request");
        r->priority = p->priority;
        r->is_background = p->is_background;
        p->requests[p->n_choices++] = r;
        prompt->n_choices++;
    }
    return true;
}

bool prepare_add_prompt(struct prepare_generation *g, const int32_t *ids, int32_t n_ids,
                        const struct buf *echo, bool echo_special, struct api_error *e)
{
    struct prepared *p = g->p;
    int32_t n_ctx = g->ctx->model->engine->info.n_ctx;
    int32_t n = g->fields.n == FIELDS_UNSET ? 1 : (int32_t)g->fields.n;
    int32_t room = n_ctx - (g->engine.max_tokens != 0);
    bool has_messages = p->kind != PREPARE_COMPLETIONS && json_get_set(g->body, "messages");
    const char *param = has_messages ? "messages" : "prompt";
    if (n_ids == 0)
        return api_error_set(e, 400, NULL, param, "the prompt has no tokens");
    if (n_ids > room)
        return api_error_set(e, 400, "context_length_exceeded", param,
                             "this model's maximum context length is %d tokens, and the prompt has "
                             "%d%s; make the prompt shorter",
                             n_ctx, n_ids, room < n_ctx ? ": no room for an answer" : "");
    if (p->n_choices + n > p->max_choices)
        return api_error_set(e, 400, NULL, "n", "prompts x n: more than %d answers",
                             p->max_choices);
    struct prepared_prompt *prompt = &p->prompts[p->n_prompts];
    *prompt = (struct prepared_prompt){ .first = p->n_choices,
                                        .n_tokens = n_ids,
                                        .echo_special = echo_special };
    if (g->n_score_top >= 0) {
        prompt->scores = prepare_score_room(g, n_ids, e);
        if (!prompt->scores)
            return false;
    }
    if (echo)
        prompt->echo = mem_strndup(MEM_CAT_REQUEST, echo->data, echo->len);
    if (p->diagnosis && !p->diagnosis->ids)
        diagnosis_set_ids(p->diagnosis, ids, n_ids);
    p->n_prompts++;
    g->engine.prompt = ids;
    g->engine.n_prompt = n_ids;
    p->prompt_tokens += n_ids;
    return prepare_add_requests(g, prompt, n, e);
}

int32_t prepare_max_tokens(const struct prepare_context *ctx)
{
    int64_t max = (int64_t)ctx->model->engine->info.n_ctx * 64;
    return max < 1 << 20 ? 1 << 20 : max > 1 << 26 ? 1 << 26 : (int32_t)max;
}

int32_t *prepare_ids(const struct prepare_context *ctx, const struct json *v, const char *name,
                     struct api_error *e)
{
    int32_t n_vocab = ctx->model->engine->info.n_vocab;
    struct err err;
    int32_t *ids = mem_try_array(MEM_CAT_REQUEST, v->n, sizeof(*ids));
    if (!ids) {
        api_error_set(e, 503, "out_of_memory", NULL, "no memory for %zu token ids", v->n);
        return NULL;
    }
    for (size_t i = 0; i < v->n; i++) {
        int64_t id;
        if (json_to_int(&v->items[i], name, 0, n_vocab - 1, &id, &err) != ERR_OK) {
            api_error_set(e, 400, NULL, name, "%s", err.text);
            mem_free(MEM_CAT_REQUEST, ids);
            return NULL;
        }
        ids[i] = (int32_t)id;
    }
    return ids;
}

/* A prompt given as ids. */
static bool prepare_ids_prompt(struct prepare_generation *g, const struct json *v,
                               struct api_error *e)
{
    struct buf echo;
    struct err err;
    bool is_fine = false;
    int32_t *ids = prepare_ids(g->ctx, v, "prompt", e);
    if (!ids)
        return false;
    int32_t n = v->n > INT32_MAX - 1 ? INT32_MAX - 1 : (int32_t)v->n;
    buf_init(&echo, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (g->fields.echo &&
        tokenizer_decode(g->ctx->model->tokenizer, ids, n, false, &echo, &err) != ERR_OK)
        api_error_set(e, 400, NULL, "prompt", "%s", err.text);
    else
        is_fine = prepare_add_prompt(g, ids, n, g->fields.echo ? &echo : NULL, false, e);
    buf_release(&echo);
    mem_free(MEM_CAT_REQUEST, ids);
    return is_fine;
}

/* A prompt given as text, in which control tokens are parsed: here the caller writes all of it. */
static bool prepare_text_prompt(struct prepare_generation *g, const struct json *v,
                                struct api_error *e)
{
    struct token_list ids;
    struct buf echo;
    struct err err;
    bool is_fine = false;
    token_list_init(&ids, prepare_max_tokens(g->ctx));
    buf_init(&echo, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    buf_add(&echo, v->text, v->len);
    if (tokenizer_encode(g->ctx->model->tokenizer, v->text, v->len, NULL,
                         TOKENIZER_FLAG_SPECIAL | TOKENIZER_FLAG_BOS, &ids, &err) != ERR_OK)
        api_error_set(e, 400, "context_length_exceeded", "prompt", "%s", err.text);
    else
        is_fine = prepare_add_prompt(g, ids.ids, ids.n, g->fields.echo ? &echo : NULL, true, e);
    token_list_release(&ids);
    buf_release(&echo);
    return is_fine;
}

static bool prepare_one_prompt(struct prepare_generation *g, const struct json *v,
                               struct api_error *e)
{
    if (json_is(v, JSON_TYPE_STRING))
        return prepare_text_prompt(g, v, e);
    if (json_is(v, JSON_TYPE_ARRAY))
        return prepare_ids_prompt(g, v, e);
    return api_error_set(e, 400, NULL, "prompt",
                         "prompt: must be a string, token ids, or an array of those");
}

static bool prepare_list(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v = json_get_set(g->body, "prompt");
    bool is_list =
        json_is(v, JSON_TYPE_ARRAY) && v->n > 0 && !json_is(&v->items[0], JSON_TYPE_NUMBER);
    if (!is_list)
        return prepare_one_prompt(g, v, e);
    for (size_t i = 0; i < v->n; i++) {
        if (g->in->is_cancelled && atomic_load(g->in->is_cancelled))
            return api_error_set(e, 499, "cancelled", NULL, "cancelled");
        if (!prepare_one_prompt(g, &v->items[i], e))
            return false;
    }
    return true;
}

static bool prepare_chat(struct prepare_generation *g, struct api_error *e)
{
    const struct split_style *style = &g->ctx->model->style;
    struct token_list ids;
    struct template_output text = { 0 };
    token_list_init(&ids, prepare_max_tokens(g->ctx));
    if (g->in && (g->in->kind == PREPARE_MESSAGES || g->in->kind == PREPARE_RESPONSES))
        g->p->print = print_new(g->body);
    bool is_fine =
        prepare_answer(g, e) &&
        prepare_chat_prompt(g->ctx, g->body, g->thinks, g->fields.add_generation_prompt, &ids,
                            &text, g->p->diagnosis, e) &&
        (g->p->kind != PREPARE_CHAT ||
         (prepare_guide(g, split_style_starts_open(style, text.text.data, text.text.len), e) &&
          prepare_constrain(g, e)));
    if (is_fine)
        prepare_cuts(g, &text, &ids);
    is_fine = is_fine && prepare_add_prompt(g, ids.ids, ids.n, NULL, false, e);
    template_output_release(&text);
    token_list_release(&ids);
    return is_fine;
}

bool prepare_prompts(struct prepare_generation *g, struct api_error *e)
{
    bool has_prompt = json_get_set(g->body, "prompt") != NULL;
    bool has_messages = json_get_set(g->body, "messages") != NULL;
    if (g->p->kind == PREPARE_CHAT)
        return prepare_chat(g, e);
    const struct json *suffix = json_get_set(g->body, "suffix");
    if ((g->p->kind == PREPARE_COMPLETIONS || g->p->kind == PREPARE_INFILL) &&
        !prepare_constrain(g, e))
        return false;
    if (g->p->kind == PREPARE_COMPLETIONS && suffix &&
        !(json_is(suffix, JSON_TYPE_STRING) && suffix->len == 0))
        return prepare_suffix(g, suffix, e);
    if (g->p->kind == PREPARE_COMPLETIONS)
        return prepare_list(g, e);
    if (g->p->kind == PREPARE_INFILL)
        return prepare_infill(g, e);
    if (g->p->kind == PREPARE_EMBEDDINGS)
        return prepare_inputs(g, e);
    if (g->p->kind == PREPARE_RERANK || g->p->kind == PREPARE_SCORE)
        return prepare_pairs(g, e);
    if (has_prompt == has_messages)
        return api_error_set(e, 400, NULL, "prompt", "give either a prompt or messages");
    return has_messages ? prepare_chat(g, e)
                        : prepare_one_prompt(g, json_get(g->body, "prompt"), e);
}
