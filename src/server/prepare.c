/* prepare.c - the way in, and the fields of a generation. */
#include "base/clock.h"
#include "base/trace.h"
#include "server/prepare_int.h"
#include "server/session_record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- fields that are not plain --- */

static bool prepare_model_name(const struct prepare_context *ctx, const struct json *body,
                               struct api_error *e)
{
    const struct json *v = json_get_set(body, "model");
    if (v && !json_is(v, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, "model", "model: must be a string");
    if (!ctx->config->is_model_strict || !v || json_str_eq(v, ctx->model_id) ||
        json_str_eq(v, ctx->model->engine->info.model_id))
        return true;
    return api_error_set(e, 404, "model_not_found", "model",
                         "the model '%.80s' does not exist: this server has '%.80s'", v->text,
                         ctx->model_id);
}

static bool prepare_bias_entry(struct prepare_generation *g, const char *key,
                               const struct json *value, struct api_error *e)
{
    const struct engine_info *info = &g->ctx->model->engine->info;
    char *end;
    long id = strtol(key, &end, 10);
    double bias = -100;
    struct err err;
    if (*key == '\0' || *end || id < 0 || id >= info->n_vocab)
        return api_error_set(e, 400, NULL, "logit_bias",
                             "logit_bias: '%.40s' is not a token id from 0 to %d", key,
                             info->n_vocab - 1);
    bool is_never = json_is(value, JSON_TYPE_BOOL) && !value->boolean; /* a form of llama.cpp's */
    if (!is_never && json_to_double(value, "logit_bias", -100, 100, &bias, &err) != ERR_OK)
        return api_error_set(e, 400, NULL, "logit_bias", "%s", err.text);
    g->bias[g->engine.sample.n_bias++] = (struct logit_bias){ (int32_t)id, (float)bias };
    return true;
}

static bool prepare_bias(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v = json_get_set(g->body, "logit_bias");
    if (!v)
        return true;
    bool is_pairs = json_is(v, JSON_TYPE_ARRAY);
    if (!is_pairs && !json_is(v, JSON_TYPE_OBJECT))
        return api_error_set(e, 400, NULL, "logit_bias",
                             "logit_bias: must be an object of token ids");
    if (v->n > LIMIT_LOGIT_BIAS)
        return api_error_set(e, 400, NULL, "logit_bias", "logit_bias: %zu entries, the limit is %d",
                             v->n, LIMIT_LOGIT_BIAS);
    g->bias = mem_alloc(MEM_CAT_REQUEST, sizeof(*g->bias) * (v->n + 1));
    g->engine.sample.bias = g->bias;
    for (size_t i = 0; i < v->n; i++) {
        const struct json *pair = is_pairs ? &v->items[i] : NULL;
        if (pair && (!json_is(pair, JSON_TYPE_ARRAY) || pair->n != 2 || !pair->items[0].text))
            return api_error_set(e, 400, NULL, "logit_bias", "logit_bias[%zu]: must be [id, bias]",
                                 i);
        if (!prepare_bias_entry(g, pair ? pair->items[0].text : v->members[i].key,
                                pair ? &pair->items[1] : &v->members[i].value, e))
            return false;
    }
    return true;
}

static bool prepare_one_stop(struct prepare_generation *g, const struct json *v,
                             struct api_error *e)
{
    if (!json_is(v, JSON_TYPE_STRING))
        return api_error_set(e, 400, NULL, "stop", "stop: must be a string or strings");
    if (v->len == 0) /* would match everywhere */
        return true;
    if (v->len > ENGINE_STOP_BYTES)
        return api_error_set(e, 400, NULL, "stop", "stop: a string of %zu bytes, the limit is %d",
                             v->len, ENGINE_STOP_BYTES);
    if (g->engine.n_stops == ENGINE_STOPS_MAX)
        return api_error_set(e, 400, NULL, "stop", "stop: more than %d strings", ENGINE_STOPS_MAX);
    g->stops[g->engine.n_stops++] = (struct engine_bytes){ v->text, v->len };
    g->p->stops[g->p->n_stops++] = mem_strndup(MEM_CAT_REQUEST, v->text, v->len);
    return true;
}

static bool prepare_stops(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v = json_get_set(g->body, "stop");
    g->engine.stops = g->stops;
    if (!v)
        return true;
    if (!json_is(v, JSON_TYPE_ARRAY))
        return prepare_one_stop(g, v, e);
    for (size_t i = 0; i < v->n; i++)
        if (!prepare_one_stop(g, &v->items[i], e))
            return false;
    return true;
}

static bool prepare_stream_options(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v = json_get_set(g->body, "stream_options");
    const struct json *usage = json_get_set(v, "include_usage");
    if ((v && !json_is(v, JSON_TYPE_OBJECT)) || (usage && !json_is(usage, JSON_TYPE_BOOL)))
        return api_error_set(e, 400, NULL, "stream_options",
                             "stream_options: must be an object; include_usage true or false");
    g->p->includes_usage = usage && usage->boolean;
    return true;
}

/* --- sampling --- */

static float prepare_pick(double request, double flag, double model, double otherwise)
{
    return (float)(!isnan(request) ? request
                   : !isnan(flag)  ? flag
                   : !isnan(model) ? model
                                   : otherwise);
}

static int32_t prepare_clamp(int64_t v)
{
    return v > INT32_MAX ? INT32_MAX : (int32_t)v;
}

/* Request, else flag, else the model's advice, else temperature 0.7 and all else off. */
static void prepare_sampling(struct prepare_generation *g, uint64_t seed)
{
    const struct fields *f = &g->fields;
    const struct server_sampling *flag = &g->ctx->config->sampling;
    const struct server_sampling *model = &g->ctx->model->sampling;
    struct sample_params *s = &g->engine.sample;
    s->temperature = prepare_pick(f->temperature, flag->temperature, model->temperature, 0.7);
    s->top_p = prepare_pick(f->top_p, flag->top_p, model->top_p, 1);
    s->min_p = prepare_pick(f->min_p, flag->min_p, model->min_p, 0);
    s->typical_p = prepare_pick(f->typical_p, flag->typical_p, model->typical_p, 1);
    s->repetition_penalty =
        prepare_pick(f->repetition_penalty, flag->repetition_penalty, model->repetition_penalty, 1);
    s->presence_penalty = prepare_pick(f->presence_penalty, NAN, NAN, 0);
    s->frequency_penalty = prepare_pick(f->frequency_penalty, NAN, NAN, 0);
    s->xtc_probability = prepare_pick(f->xtc_probability, NAN, NAN, 0);
    s->xtc_threshold = prepare_pick(f->xtc_threshold, NAN, NAN, 0.1);
    int64_t top_k = f->top_k != FIELDS_UNSET ? f->top_k
                    : flag->top_k >= 0       ? flag->top_k
                    : model->top_k >= 0      ? model->top_k
                                             : 0;
    s->top_k = top_k < 0 ? 0 : prepare_clamp(top_k);
    s->penalty_last_n = f->penalty_last_n > 0 ? prepare_clamp(f->penalty_last_n) : 0;
    g->p->seed = f->seed == FIELDS_UNSET || f->seed == -1 ? seed : (uint64_t)f->seed;
    s->seed = g->p->seed;
}

static bool prepare_logprobs(struct prepare_generation *g, struct api_error *e)
{
    const struct fields *f = &g->fields;
    int64_t n = f->n_logprobs;
    if (g->p->kind == PREPARE_CHAT) {
        if (n != FIELDS_UNSET && n > 0 && !f->logprobs)
            return api_error_set(e, 400, NULL, "top_logprobs",
                                 "top_logprobs: needs logprobs: true");
        n = !f->logprobs ? -1 : n == FIELDS_UNSET ? 0 : n;
    }
    g->p->n_logprobs = n == FIELDS_UNSET ? -1 : (int32_t)n;
    g->engine.sample.n_logprobs = g->p->n_logprobs;
    return true;
}

/* Scores of the prompt: asked for, or what a request without an answer is for. */
static bool prepare_scores(struct prepare_generation *g, bool is_empty, struct api_error *e)
{
    const struct fields *f = &g->fields;
    struct prepared *p = g->p;
    g->n_score_top = -1;
    p->n_prompt_logprobs = f->n_prompt_logprobs < 0 ? -1 : (int32_t)f->n_prompt_logprobs;
    p->echoes_logprobs = f->echo && p->n_logprobs >= 0;
    if (p->n_prompt_logprobs >= 0)
        g->n_score_top = p->n_prompt_logprobs;
    if (p->echoes_logprobs && p->n_logprobs > g->n_score_top)
        g->n_score_top = p->n_logprobs;
    if (!is_empty)
        return true;
    if (!f->echo && p->n_prompt_logprobs < 0)
        return api_error_set(e, 400, NULL, "max_tokens",
                             "max_tokens: 0 asks for no answer; only with echo or prompt_logprobs "
                             "of completions there is something else to tell");
    if (f->n != FIELDS_UNSET && f->n > 1)
        return api_error_set(e, 400, NULL, "n", "n: with max_tokens 0 all would be the same");
    if (g->n_score_top < 0) /* the engine takes no empty request without a purpose */
        g->n_score_top = 0;
    return true;
}

static bool prepare_limits(struct prepare_generation *g, struct api_error *e)
{
    const struct fields *f = &g->fields;
    int64_t max =
        f->max_completion_tokens != FIELDS_UNSET ? f->max_completion_tokens : f->max_tokens;
    g->engine.max_tokens = max < 0 ? -1 : prepare_clamp(max);
    g->engine.ignore_end = f->ignore_eos;
    g->engine.no_drafts = !f->speculation;
    if (f->best_of != FIELDS_UNSET && f->best_of != (f->n == FIELDS_UNSET ? 1 : f->n))
        return api_error_set(e, 400, "unsupported_value", "best_of",
                             "best_of: only the value of n is supported");
    return prepare_scores(g, max == 0, e);
}

/* Whose turn it is, and until when. */
static void prepare_turn(struct prepare_generation *g)
{
    const struct fields *f = &g->fields;
    g->p->priority = f->priority == FIELDS_UNSET ? 0 : (int32_t)f->priority;
    g->p->deadline_ms = f->deadline_ms == FIELDS_UNSET ? 0 : f->deadline_ms;
    g->p->is_background = f->background;
}

/* Any text is a salt; the engine has room for its digest. */
static bool prepare_salt(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v = json_get_set(g->body, "cache_salt");
    if (!v)
        return true;
    if (!json_is(v, JSON_TYPE_STRING) || v->len > LIMIT_SALT_BYTES)
        return api_error_set(e, 400, NULL, "cache_salt",
                             "cache_salt: must be a string of at most %d bytes", LIMIT_SALT_BYTES);
    session_salt_of(v->text, v->len, g->engine.cache_salt);
    return true;
}

/* /signal: the distribution after the prompt, no answer. */
static bool prepare_signal(struct prepare_generation *g, struct api_error *e)
{
    const struct fields *f = &g->fields;
    struct engine_signal *s = &g->p->signal;
    s->minimum = isnan(f->minimum) ? -20.0f : (float)f->minimum;
    s->n_bins = f->count == FIELDS_UNSET ? 80 : (int32_t)f->count;
    if (!(s->minimum < 0)) /* also what is too small for a float */
        return api_error_set(e, 400, NULL, "minimum", "minimum: must be below 0");
    s->bins = mem_alloc(MEM_CAT_REQUEST, sizeof(*s->bins) * (size_t)s->n_bins);
    g->engine.signal = *s;
    g->engine.max_tokens = 0;
    g->n_score_top = -1;
    g->p->n_logprobs = g->p->n_prompt_logprobs = g->engine.sample.n_logprobs = -1;
    return true;
}

/* /v1/embeddings: the hidden state after each text, no answer. */
static bool prepare_embeddings(struct prepare_generation *g, struct api_error *e)
{
    const struct json *format = json_get_set(g->body, "encoding_format");
    struct prepared_embeddings *x = &g->p->embeddings;
    x->n_embd = x->n_dims = g->ctx->model->engine->info.n_embd;
    x->is_base64 = json_str_eq(format, "base64");
    if (format && !x->is_base64 && !json_str_eq(format, "float"))
        return api_error_set(e, 400, NULL, "encoding_format",
                             "encoding_format: must be 'float' or 'base64'");
    if (g->fields.dimensions > x->n_embd)
        return api_error_set(e, 400, NULL, "dimensions",
                             "dimensions: %lld, this model's embeddings have %d",
                             (long long)g->fields.dimensions, x->n_embd);
    if (g->fields.dimensions != FIELDS_UNSET)
        x->n_dims = (int32_t)g->fields.dimensions;
    g->engine.max_tokens = 0;
    g->n_score_top = -1;
    g->p->n_logprobs = g->p->n_prompt_logprobs = g->engine.sample.n_logprobs = -1;
    return true;
}

/* All of the body but its prompt. */
static bool prepare_fields(struct prepare_generation *g, uint64_t seed, struct api_error *e)
{
    static const enum fields_route routes[] = {
        [PREPARE_CHAT] = FIELDS_ROUTE_CHAT,     [PREPARE_COMPLETIONS] = FIELDS_ROUTE_COMPLETIONS,
        [PREPARE_SIGNAL] = FIELDS_ROUTE_SIGNAL, [PREPARE_EMBEDDINGS] = FIELDS_ROUTE_EMBEDDINGS,
        [PREPARE_INFILL] = FIELDS_ROUTE_INFILL, [PREPARE_RERANK] = FIELDS_ROUTE_RERANK,
        [PREPARE_SCORE] = FIELDS_ROUTE_SCORE,
    };
    enum fields_route route = routes[g->p->kind];
    if (!fields_read(g->body, route, &g->fields, g->p->ignored, e) ||
        !prepare_model_name(g->ctx, g->body, e))
        return false;
    if (!prepare_salt(g, e))
        return false;
    prepare_turn(g);
    prepare_sampling(g, seed);
    if (route == FIELDS_ROUTE_SIGNAL)
        return prepare_signal(g, e);
    if (route == FIELDS_ROUTE_EMBEDDINGS)
        return prepare_embeddings(g, e);
    if (route == FIELDS_ROUTE_RERANK || route == FIELDS_ROUTE_SCORE)
        return prepare_ranking(g, e);
    if (!prepare_grammar_read(g, e) || !prepare_stream_options(g, e) || !prepare_bias(g, e) ||
        !prepare_stops(g, e) || !prepare_logprobs(g, e) || !prepare_limits(g, e) ||
        (route == FIELDS_ROUTE_CHAT && !prepare_prediction(g, e)))
        return false;
    g->p->is_stream = g->fields.stream;
    g->p->returns_ids = g->p->keeps_ids = g->fields.return_token_ids;
    return true;
}

/* --- the way in --- */

bool prepare_compare(struct prepared *p, const struct json *body, const char *field,
                     const char *name)
{
    const struct json *v = json_get_set(body, field), *id = json_get_set(v, name);
    if (v && !json_is(v, JSON_TYPE_OBJECT))
        return api_error_set(&p->error, 400, NULL, field, "%s: must be an object", field);
    if (id && !json_is(id, JSON_TYPE_STRING))
        return api_error_set(&p->error, 400, NULL, field, "%s.%s: must be a string", field, name);
    p->compares = json_get(v, name) != NULL;
    if (id) /* a longer one is none of ours */
        snprintf(p->compare_with, sizeof(p->compare_with), "%s",
                 id->len < PRINTS_ID_BYTES ? id->text : "(unknown)");
    return true;
}

/* The kept side of a difference is told to whom it can only be his own: under a salt, or where one user is all there is. */
static void prepare_diagnosis(struct prepare_generation *g)
{
    static const enum diagnosis_form forms[] = { [PREPARE_CHAT] = DIAGNOSIS_FORM_CHAT,
                                                 [PREPARE_MESSAGES] = DIAGNOSIS_FORM_MESSAGES,
                                                 [PREPARE_RESPONSES] = DIAGNOSIS_FORM_RESPONSES,
                                                 [PREPARE_COMPLETIONS] = DIAGNOSIS_FORM_PROMPT };
    const struct server_config *config = g->ctx->config;
    bool is_alone = config->n_api_keys <= 1 && !config->is_insecure_listen;
    if (g->fields.cache_diagnostics)
        g->p->diagnosis = diagnosis_new(forms[g->in->kind],
                                        is_alone || json_get_set(g->body, "cache_salt") != NULL);
}

void prepare_generation(const struct prepare_context *ctx, const struct prepare_input *in,
                        const struct json *body, struct prepared *p)
{
    struct prepare_generation g = { .ctx = ctx, .in = in, .body = body, .p = p };
    token_list_init(&g.prediction, prepare_max_tokens(ctx));
    bool has_texts =
        p->kind == PREPARE_EMBEDDINGS || p->kind == PREPARE_RERANK || p->kind == PREPARE_SCORE;
    if (!has_texts) /* there their number decides */
        prepare_room(p, LIMIT_CHOICES);
    if (prepare_fields(&g, in->seed, &p->error)) {
        prepare_diagnosis(&g);
        (void)prepare_prompts(&g, &p->error);
    }
    prepare_grammar_release(&g);
    token_list_release(&g.prediction);
    mem_free(MEM_CAT_REQUEST, g.bias);
}

static bool prepare_parse(const struct prepare_input *in, struct json_doc *doc, struct api_error *e)
{
    struct err err;
    int64_t start_us = clock_us();
    if (in->n == 0)
        return api_error_set(e, 400, NULL, NULL, "the body is empty: send a JSON object");
    enum err_code code = json_parse(doc, in->body, in->n, LIMIT_JSON_VALUES, &err);
    if (in->trace)
        trace_span("request.body_parse", in->trace, start_us, clock_us(), "{\"bytes\":%zu}", in->n);
    if (code != ERR_OK)
        return api_error_set(e, 400, NULL, NULL, "the body is not JSON: %s", err.text);
    if (!json_is(&doc->root,
                 in->kind == PREPARE_RESPONSE_ITEMS ? JSON_TYPE_ARRAY : JSON_TYPE_OBJECT))
        return api_error_set(e, 400, NULL, NULL, "the body must be a JSON object");
    if (in->is_cancelled && atomic_load(in->is_cancelled))
        return api_error_set(e, 499, "cancelled", NULL, "cancelled");
    return true;
}

struct prepared *prepare_new(enum prepare_kind kind)
{
    struct prepared *p = mem_alloc(MEM_CAT_REQUEST, sizeof(*p));
    p->kind = kind;
    buf_init(&p->reply, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    return p;
}

void prepare_room(struct prepared *p, int32_t n)
{
    p->requests = mem_alloc(MEM_CAT_REQUEST, sizeof(*p->requests) * (size_t)n);
    p->prompts = mem_alloc(MEM_CAT_REQUEST, sizeof(*p->prompts) * (size_t)n);
    p->max_choices = n;
}

/* Whether the model does what is asked: one that makes embeddings or judges pairs does nothing else. */
static bool prepare_fits_model(const struct prepare_context *ctx, enum prepare_kind kind,
                               struct api_error *e)
{
    const struct engine_info *info = &ctx->model->engine->info;
    if ((!info->is_embedder && info->n_labels == 0) || kind == PREPARE_TOKENIZE ||
        kind == PREPARE_DETOKENIZE)
        return true;
    if (info->n_labels > 0 ? kind == PREPARE_RERANK || kind == PREPARE_SCORE
                           : kind == PREPARE_EMBEDDINGS)
        return true;
    return api_error_set(e, 400, "unsupported_model", "model", "%s",
                         info->n_labels > 0 ? ENGINE_CLASSIFIER_TEXT : ENGINE_EMBEDDER_TEXT);
}

/* A response that is made, or (INPUT_TOKENS) counted. Takes p's place. */
static struct prepared *prepare_responses_of(const struct prepare_context *ctx,
                                             const struct prepare_input *in,
                                             const struct json *body, struct prepared *p)
{
    struct prepared *full = prepare_responses(ctx, in, body);
    bool is_counted = in->kind == PREPARE_INPUT_TOKENS && full->error.status == 0 &&
                      !full->response->needs_history;
    if (is_counted)
        buf_printf(&p->reply, "{\"object\":\"response.input_tokens\",\"input_tokens\":%lld}",
                   (long long)full->prompt_tokens);
    prepare_free(is_counted ? full : p);
    return is_counted ? p : full;
}

/* What becomes of the answer when its client goes. */
static bool prepare_disconnect(const struct prepare_context *ctx, const struct json *body,
                               struct prepared *p)
{
    static const char *const names[] = { "cancel", "finish", "resumable" };
    const struct json *v = json_get_set(body, "disconnect");
    bool has_journal = ctx->config && ctx->config->checkpoint > 0;
    size_t i = 0;
    while (v && i < ARRAY_LEN(names) && !json_str_eq(v, names[i]))
        i++;
    if (i == ARRAY_LEN(names))
        return api_error_set(&p->error, 400, NULL, "disconnect",
                             "disconnect: must be 'cancel', 'finish' or 'resumable'");
    p->disconnect = (enum prepare_disconnect)i;
    if (p->disconnect != PREPARE_DISCONNECT_RESUMABLE || (has_journal && p->n_choices > 0))
        return true;
    p->disconnect = PREPARE_DISCONNECT_CANCEL;
    fields_ignore(p->ignored, "disconnect.resumable", strlen("disconnect.resumable"));
    return true;
}

/* The conversation that the request is a turn of. */
static bool prepare_session(const struct prepare_input *in, const struct json *body,
                            struct prepared *p)
{
    const struct json *id = json_get_set(body, "session_id"),
                      *key = json_get_set(body, "prompt_cache_key");
    if (id && (!json_is(id, JSON_TYPE_STRING) || !session_name_is_fine(id->text, id->len)))
        return api_error_set(&p->error, 400, NULL, "session_id",
                             "session_id: must be a string of 1 to %d letters, digits and -_.:",
                             LIMIT_SESSION_BYTES);
    if (key && !json_is(key, JSON_TYPE_STRING))
        return api_error_set(&p->error, 400, NULL, "prompt_cache_key",
                             "prompt_cache_key: must be a string");
    if (!id && key && key->len > 0)
        id = key;
    if (id)
        session_name_of(id->text, id->len, p->session);
    else if (in->session)
        snprintf(p->session, sizeof(p->session), "%s", in->session);
    return true;
}

struct prepared *prepare_request(const struct prepare_context *ctx, const struct prepare_input *in)
{
    struct prepared *p = prepare_new(in->kind);
    struct json_doc doc = { 0 };
    bool is_fine =
        prepare_parse(in, &doc, &p->error) && prepare_fits_model(ctx, in->kind, &p->error);
    int64_t start_us = clock_us();
    if (!is_fine)
        ; /* p->error says why */
    else if (in->kind == PREPARE_RESPONSES || in->kind == PREPARE_INPUT_TOKENS)
        p = prepare_responses_of(ctx, in, &doc.root, p);
    else if (in->kind == PREPARE_RESPONSE_ITEMS)
        prepare_response_items(in, &doc.root, p);
    else if (in->kind == PREPARE_MESSAGES)
        prepare_messages(ctx, in, &doc.root, p);
    else if (in->kind == PREPARE_COUNT_TOKENS)
        prepare_count_tokens(ctx, &doc.root, p);
    else if (in->kind <= PREPARE_SIGNAL || in->kind == PREPARE_EMBEDDINGS ||
             in->kind == PREPARE_INFILL || in->kind == PREPARE_RERANK || in->kind == PREPARE_SCORE)
        prepare_generation(ctx, in, &doc.root, p);
    else if (in->kind == PREPARE_TOKENIZE)
        prepare_tokenize(ctx, &doc.root, p);
    else if (in->kind == PREPARE_DETOKENIZE)
        prepare_detokenize(ctx, &doc.root, p);
    else
        prepare_apply_template(ctx, &doc.root, p);
    if (is_fine && p->error.status == 0 &&
        (in->kind <= PREPARE_COMPLETIONS || in->kind == PREPARE_MESSAGES ||
         in->kind == PREPARE_INFILL))
        (void)prepare_disconnect(ctx, &doc.root, p);
    if (is_fine && p->error.status == 0 && p->n_choices > 0 &&
        (in->kind <= PREPARE_COMPLETIONS || in->kind == PREPARE_MESSAGES ||
         in->kind == PREPARE_RESPONSES))
        (void)prepare_session(in, &doc.root, p);
    if (is_fine && in->trace)
        trace_span("request.prompt_prepare", in->trace, start_us, clock_us(),
                   "{\"prompts\":%d,\"tokens\":%lld,\"error\":%d}", p->n_prompts,
                   (long long)p->prompt_tokens, p->error.status);
    json_doc_release(&doc);
    if (p->error.status == 0 && p->reply.failed)
        api_error_set(&p->error, 400, NULL, NULL, "the reply is over its limit of %d bytes",
                      LIMIT_REPLY_BYTES);
    return p;
}

void prepare_free(struct prepared *p)
{
    if (!p)
        return;
    for (int32_t i = 0; i < p->n_choices; i++)
        sched_request_free(p->requests[i]);
    mem_free(MEM_CAT_REQUEST, p->requests);
    for (int32_t i = 0; i < p->n_prompts; i++) {
        mem_free(MEM_CAT_REQUEST, p->prompts[i].echo);
        mem_free(MEM_CAT_REQUEST, p->prompts[i].scores);
    }
    for (int32_t i = 0; i < p->n_stops; i++)
        mem_free(MEM_CAT_REQUEST, p->stops[i]);
    tools_free(p->tools);
    mem_free(MEM_CAT_REQUEST, p->prompts);
    mem_free(MEM_CAT_REQUEST, p->embeddings.hidden);
    mem_free(MEM_CAT_REQUEST, p->signal.bins);
    for (int32_t i = 0; i < p->ranking.n_texts; i++)
        mem_free(MEM_CAT_REQUEST, p->ranking.texts[i]);
    mem_free(MEM_CAT_REQUEST, p->ranking.texts);
    prepare_responses_free(p->response);
    diagnosis_free(p->diagnosis);
    print_free(p->print);
    buf_release(&p->reply);
    mem_free(MEM_CAT_REQUEST, p);
}
