#include "base/clock.h"
#include "server/fields.h"
#include "server/messages.h"
#include "server/prepare_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- chat template --- */

/* The program's own variables. */
static bool prepare_own(const struct prepare_context *ctx, bool adds_generation_prompt,
                        struct json_doc *own, struct api_error *e)
{
    const struct tokenizer *t = ctx->model->tokenizer;
    const struct {
        const char *name;
        int32_t id;
    } tokens[] = { { "bos_token", tokenizer_bos(t) }, { "eos_token", tokenizer_eos(t) } };
    struct json_writer w;
    struct buf text;
    struct err err;
    buf_init(&text, MEM_CAT_REQUEST, 1 << 16);
    json_writer_init(&w, &text);
    json_begin_object(&w);
    for (size_t i = 0; i < ARRAY_LEN(tokens); i++) {
        if (tokens[i].id < 0) /* undefined, as in Hugging Face */
            continue;
        struct tokenizer_str s = tokenizer_piece(t, tokens[i].id);
        json_key(&w, tokens[i].name);
        json_strn(&w, s.data, s.len);
    }
    json_key(&w, "add_generation_prompt");
    json_bool(&w, adds_generation_prompt);
    json_end_object(&w);
    enum err_code code = json_parse(own, text.data, text.len, 1 << 20, &err);
    buf_release(&text);
    if (code != ERR_OK)
        api_error_set(e, 500, NULL, NULL, "%s", err.text);
    return code == ERR_OK;
}

/* One attempt. *has_null: the messages hold a null content, which some templates cannot add to a string. */
static bool prepare_render_once(const struct prepare_context *ctx, const struct json *body,
                                unsigned flags, const struct json *own, bool *has_null,
                                struct template_output *out, struct api_error *e)
{
    struct buf text;
    struct json_doc doc = { 0 };
    struct err err;
    bool is_fine = false;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_PROMPT_BYTES);
    if (!messages_write(body, flags, &text, has_null, e))
        goto out;
    if (buf_check(&text, "messages", &err) != ERR_OK ||
        json_parse(&doc, text.data, text.len, LIMIT_JSON_VALUES, &err) != ERR_OK) {
        api_error_set(e, 400, NULL, "messages", "%s", err.text);
        goto out;
    }
    const struct server_config *config = ctx->config;
    struct template_input in = { .caller = &doc.root, .own = own };
    in.now = config->now ? config->now(config->now_arg) : clock_wall_s();
    enum err_code code = template_render(ctx->model->chat_template, &in, out, &err);
    is_fine = code == ERR_OK;
    if (!is_fine)
        api_error_set(e, 400, "template_error", "messages", "chat template: %s", err.text);
out:
    json_doc_release(&doc);
    buf_release(&text);
    return is_fine;
}

bool prepare_render(const struct prepare_context *ctx, const struct json *body,
                    bool adds_generation_prompt, struct template_output *out, struct api_error *e)
{
    struct json_doc own = { 0 };
    unsigned flags = ctx->model->knows_developer ? MESSAGES_FLAG_DEVELOPER : 0;
    bool has_null = false, is_fine = false;
    template_output_init(out, LIMIT_PROMPT_BYTES);
    if (!ctx->model->chat_template)
        return api_error_set(e, 400, "no_chat_template", NULL,
                             "this model has no chat template: use /v1/completions");
    if (!prepare_own(ctx, adds_generation_prompt, &own, e))
        return false;
    is_fine = prepare_render_once(ctx, body, flags, &own.root, &has_null, out, e);
    if (!is_fine && has_null) {
        template_output_release(out);
        template_output_init(out, LIMIT_PROMPT_BYTES);
        e->status = 0;
        is_fine = prepare_render_once(ctx, body, flags | MESSAGES_FLAG_NO_NULL, &own.root,
                                      &has_null, out, e);
    }
    json_doc_release(&own);
    return is_fine;
}

bool prepare_chat_prompt(const struct prepare_context *ctx, const struct json *body,
                         bool adds_generation_prompt, struct token_list *out, struct api_error *e)
{
    struct template_output text;
    struct err err;
    bool is_fine = prepare_render(ctx, body, adds_generation_prompt, &text, e);
    /* As Hugging Face does: the template says whether there is a bos. */
    if (is_fine && tokenizer_encode(ctx->model->tokenizer, text.text.data, text.text.len,
                                    &text.caller, TOKENIZER_FLAG_SPECIAL, out, &err) != ERR_OK) {
        api_error_set(e, 400, "context_length_exceeded", "messages", "%s", err.text);
        is_fine = false;
    }
    template_output_release(&text);
    return is_fine;
}

/* --- fields that are not plain --- */

struct prepare_generation { /* what is gathered before the requests are made */
    const struct prepare_context *ctx;
    const struct json *body;
    struct fields fields;
    struct engine_request engine;
    struct logit_bias *bias; /* [LIMIT_LOGIT_BIAS] or NULL */
    struct engine_bytes stops[ENGINE_STOPS_MAX];
    struct prepared *p;
};

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

static bool prepare_response_format(const struct json *body, struct api_error *e)
{
    const struct json *v = json_get_set(body, "response_format"), *type = json_get(v, "type");
    if (!v || json_str_eq(type, "text"))
        return true;
    if (json_str_eq(type, "json_object") || json_str_eq(type, "json_schema"))
        return api_error_set(e, 400, "unsupported_value", "response_format",
                             "response_format: '%s' is not supported yet", type->text);
    return api_error_set(e, 400, NULL, "response_format",
                         "response_format: must be an object of type text, json_object or "
                         "json_schema");
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

static bool prepare_limits(struct prepare_generation *g, struct api_error *e)
{
    const struct fields *f = &g->fields;
    int64_t max =
        f->max_completion_tokens != FIELDS_UNSET ? f->max_completion_tokens : f->max_tokens;
    if (max == 0)
        return api_error_set(e, 400, NULL, "max_tokens", "max_tokens: 0 asks for no answer");
    g->engine.max_tokens = max < 0 ? -1 : prepare_clamp(max);
    g->engine.ignore_end = f->ignore_eos;
    if (f->best_of != FIELDS_UNSET && f->best_of != (f->n == FIELDS_UNSET ? 1 : f->n))
        return api_error_set(e, 400, "unsupported_value", "best_of",
                             "best_of: only the value of n is supported");
    return true;
}

/* All of the body but its prompt. */
static bool prepare_fields(struct prepare_generation *g, uint64_t seed, struct api_error *e)
{
    enum fields_route route =
        g->p->kind == PREPARE_CHAT ? FIELDS_ROUTE_CHAT : FIELDS_ROUTE_COMPLETIONS;
    const struct json *suffix = json_get_set(g->body, "suffix");
    if (!fields_read(g->body, route, &g->fields, g->p->ignored, e) ||
        !prepare_model_name(g->ctx, g->body, e) || !prepare_response_format(g->body, e) ||
        !prepare_stream_options(g, e) || !prepare_bias(g, e) || !prepare_stops(g, e) ||
        !prepare_logprobs(g, e) || !prepare_limits(g, e))
        return false;
    if (route == FIELDS_ROUTE_COMPLETIONS && suffix &&
        !(json_is(suffix, JSON_TYPE_STRING) && suffix->len == 0))
        return api_error_set(e, 400, "unsupported_value", "suffix", "suffix: is not supported");
    if (g->fields.echo && g->p->n_logprobs >= 0)
        return api_error_set(e, 400, "unsupported_value", "echo",
                             "echo: is not supported together with logprobs");
    g->p->is_stream = g->fields.stream;
    prepare_sampling(g, seed);
    return true;
}

/* --- prompts --- */

/* Make the n requests of one prompt. echo: text put before each answer, or NULL. */
static bool prepare_add_prompt(struct prepare_generation *g, const int32_t *ids, int32_t n_ids,
                               const struct buf *echo, struct api_error *e)
{
    const struct engine_info *info = &g->ctx->model->engine->info;
    int64_t n = g->fields.n == FIELDS_UNSET ? 1 : g->fields.n;
    const char *param = g->p->kind == PREPARE_CHAT ? "messages" : "prompt";
    if (n_ids == 0)
        return api_error_set(e, 400, NULL, param, "the prompt has no tokens");
    if (n_ids >= info->n_ctx)
        return api_error_set(e, 400, "context_length_exceeded", param,
                             "this model's maximum context length is %d tokens, and the prompt has "
                             "%d: no room for an answer; make the prompt shorter",
                             info->n_ctx, n_ids);
    if (g->p->n_choices + n > LIMIT_CHOICES)
        return api_error_set(e, 400, NULL, "n", "prompts x n: more than %d answers", LIMIT_CHOICES);
    g->engine.prompt = ids;
    g->engine.n_prompt = n_ids;
    g->p->prompt_tokens += n_ids;
    for (int64_t i = 0; i < n; i++) {
        g->engine.sample.choice = (uint32_t)i;
        struct sched_request *r = sched_request_new(0, &g->engine);
        if (!r)
            return api_error_set(e, 503, "out_of_memory", NULL, "no memory for the request");
        if (echo)
            g->p->echo[g->p->n_choices] = mem_strndup(MEM_CAT_REQUEST, echo->data, echo->len);
        g->p->requests[g->p->n_choices++] = r;
    }
    return true;
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
        is_fine = prepare_add_prompt(g, ids, n, g->fields.echo ? &echo : NULL, e);
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
        is_fine = prepare_add_prompt(g, ids.ids, ids.n, g->fields.echo ? &echo : NULL, e);
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

static bool prepare_prompts(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v = json_get_set(g->body, "prompt");
    bool is_list =
        json_is(v, JSON_TYPE_ARRAY) && v->n > 0 && !json_is(&v->items[0], JSON_TYPE_NUMBER);
    if (!is_list)
        return prepare_one_prompt(g, v, e);
    for (size_t i = 0; i < v->n; i++)
        if (!prepare_one_prompt(g, &v->items[i], e))
            return false;
    return true;
}

static bool prepare_chat(struct prepare_generation *g, struct api_error *e)
{
    struct token_list ids;
    token_list_init(&ids, prepare_max_tokens(g->ctx));
    bool is_fine = prepare_chat_prompt(g->ctx, g->body, g->fields.add_generation_prompt, &ids, e) &&
                   prepare_add_prompt(g, ids.ids, ids.n, NULL, e);
    token_list_release(&ids);
    return is_fine;
}

static void prepare_generation(const struct prepare_context *ctx, const struct json *body,
                               uint64_t seed, struct prepared *p)
{
    struct prepare_generation g = { .ctx = ctx, .body = body, .p = p };
    if (prepare_fields(&g, seed, &p->error)) {
        if (p->kind == PREPARE_CHAT)
            (void)prepare_chat(&g, &p->error);
        else
            (void)prepare_prompts(&g, &p->error);
    }
    mem_free(MEM_CAT_REQUEST, g.bias);
}

/* --- the way in --- */

struct prepared *prepare_request(const struct prepare_context *ctx, enum prepare_kind kind,
                                 const char *body, size_t n, uint64_t seed)
{
    struct prepared *p = mem_alloc(MEM_CAT_REQUEST, sizeof(*p));
    struct json_doc doc = { 0 };
    struct err err;
    p->kind = kind;
    buf_init(&p->reply, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    if (n == 0) {
        api_error_set(&p->error, 400, NULL, NULL, "the body is empty: send a JSON object");
        return p;
    }
    if (json_parse(&doc, body, n, LIMIT_JSON_VALUES, &err) != ERR_OK) {
        api_error_set(&p->error, 400, NULL, NULL, "the body is not JSON: %s", err.text);
        return p;
    }
    if (!json_is(&doc.root, JSON_TYPE_OBJECT)) {
        api_error_set(&p->error, 400, NULL, NULL, "the body must be a JSON object");
    } else if (kind == PREPARE_CHAT || kind == PREPARE_COMPLETIONS) {
        prepare_generation(ctx, &doc.root, seed, p);
    } else if (kind == PREPARE_TOKENIZE) {
        prepare_tokenize(ctx, &doc.root, p);
    } else if (kind == PREPARE_DETOKENIZE) {
        prepare_detokenize(ctx, &doc.root, p);
    } else {
        prepare_apply_template(ctx, &doc.root, p);
    }
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
    for (int32_t i = 0; i < LIMIT_CHOICES; i++) {
        sched_request_free(p->requests[i]);
        mem_free(MEM_CAT_REQUEST, p->echo[i]);
    }
    buf_release(&p->reply);
    mem_free(MEM_CAT_REQUEST, p);
}
