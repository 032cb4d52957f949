/* prepare_answer.c - what a chat request says of its answer beside sampling: tools and whether one must be called, reasoning and how
 * much of it; and what the engine and the splitter make of that. */
#include "server/prepare_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- tools --- */

/* The tool that tool_choice names: {"type":"function","function":{"name":...}}, or flat. */
static bool answer_named(struct prepare_generation *g, const struct json *v, struct api_error *e)
{
    const struct json *f = json_get_set(v, "function"), *type = json_get_set(v, "type");
    const struct json *name = json_get_set(json_is(f, JSON_TYPE_OBJECT) ? f : v, "name");
    if ((type && !json_str_eq(type, "function")) || !json_is(name, JSON_TYPE_STRING))
        return api_error_set(
            e, 400, NULL, "tool_choice",
            "tool_choice: an object must name a function: {\"type\": \"function\", "
            "\"function\": {\"name\": ...}}");
    g->named = tools_find(g->p->tools, name->text, name->len);
    if (!g->named)
        return api_error_set(e, 400, NULL, "tool_choice",
                             "tool_choice: '%.80s' is none of the tools", name->text);
    g->must_call = g->takes_one_call = true;
    return true;
}

static bool answer_choice(struct prepare_generation *g, const struct json *v, struct api_error *e)
{
    if (!v || json_str_eq(v, "auto") || json_str_eq(v, "none"))
        return true;
    if (json_is(v, JSON_TYPE_OBJECT))
        return answer_named(g, v, e);
    if (!json_str_eq(v, "required"))
        return api_error_set(e, 400, NULL, "tool_choice",
                             "tool_choice: must be 'auto', 'none', 'required' or a named function");
    if (!g->p->tools || g->p->tools->n == 0)
        return api_error_set(e, 400, NULL, "tool_choice", "tool_choice: 'required' needs tools");
    g->must_call = true;
    g->named = g->p->tools->n == 1 ? &g->p->tools->tools[0] : NULL;
    return true;
}

static bool answer_tools(struct prepare_generation *g, struct api_error *e)
{
    const struct json *choice = json_get_set(g->body, "tool_choice");
    struct prepared *p = g->p;
    if (!tools_read(g->body, &p->tools, e) ||
        (p->tools && g->in && g->in->custom && !tools_add_formats(p->tools, g->in->custom, e)) ||
        !answer_choice(g, choice, e))
        return false;
    p->split.tools = json_str_eq(choice, "none") ? NULL : p->tools;
    p->split.is_forced = g->must_call;
    p->split.is_single = !g->fields.parallel_tool_calls;
    g->takes_one_call = g->takes_one_call || p->split.is_single;
    return true;
}

/* --- reasoning --- */

static bool answer_effort(struct prepare_generation *g, struct api_error *e)
{
    static const char *const names[] = { "none", "minimal", "low", "medium", "high", "xhigh" };
    const struct json *v = json_get_set(g->body, "reasoning_effort");
    if (!v)
        return true;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (!json_str_eq(v, names[i]))
            continue;
        g->thinks = i > 0 ? PREPARE_ON : PREPARE_OFF;
        return true;
    }
    return api_error_set(e, 400, NULL, "reasoning_effort",
                         "reasoning_effort: must be none, minimal, low, medium, high or xhigh");
}

/* Anthropic's form. */
static bool answer_thinking(struct prepare_generation *g, struct api_error *e)
{
    const struct json *v = json_get_set(g->body, "thinking"), *type = json_get_set(v, "type");
    const struct json *budget = json_get_set(v, "budget_tokens");
    struct err err;
    if (!v)
        return true;
    if (!json_str_eq(type, "enabled") && !json_str_eq(type, "adaptive") &&
        !json_str_eq(type, "disabled"))
        return api_error_set(e, 400, NULL, "thinking",
                             "thinking: must be an object of type enabled, adaptive or disabled");
    if (budget && json_to_int(budget, "thinking.budget_tokens", 0, INT32_MAX,
                              &g->fields.thinking_budget, &err) != ERR_OK)
        return api_error_set(e, 400, NULL, "thinking", "%s", err.text);
    if (g->thinks == PREPARE_UNSET)
        g->thinks = json_str_eq(type, "disabled") ? PREPARE_OFF : PREPARE_ON;
    return true;
}

/* Explicit template variables before reasoning_effort before thinking. */
static bool answer_reasoning(struct prepare_generation *g, struct api_error *e)
{
    const struct json *kwargs = json_get_set(g->body, "chat_template_kwargs");
    static const char *const names[] = { "enable_thinking", "thinking" };
    struct err err;
    if (!answer_effort(g, e) || !answer_thinking(g, e))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const struct json *v = json_get_set(kwargs, names[i]);
        if (json_is(v, JSON_TYPE_BOOL)) {
            g->thinks = v->boolean ? PREPARE_ON : PREPARE_OFF;
            break;
        }
    }
    const struct json *budget = json_get_set(kwargs, "thinking_budget");
    if (g->fields.thinking_budget == FIELDS_UNSET && json_is(budget, JSON_TYPE_NUMBER) &&
        json_to_int(budget, "thinking_budget", -1, INT32_MAX, &g->fields.thinking_budget, &err) !=
            ERR_OK)
        return api_error_set(e, 400, NULL, "chat_template_kwargs", "%s", err.text);
    return true;
}

bool prepare_answer(struct prepare_generation *g, struct api_error *e)
{
    if (!answer_tools(g, e) || !answer_reasoning(g, e))
        return false;
    /* Advice for a model that thinks is too warm for one that does not. */
    if (g->thinks == PREPARE_OFF && isnan(g->fields.temperature) &&
        g->engine.sample.temperature > 0.7f)
        g->engine.sample.temperature = 0.7f;
    return true;
}

/* --- what the engine is told --- */

static bool guide_encode(const struct prepare_generation *g, const char *text, size_t n,
                         int32_t *ids, int32_t *n_ids, int32_t max)
{
    struct token_list list;
    struct err err;
    token_list_init(&list, max);
    bool is_fine = tokenizer_encode(g->ctx->model->tokenizer, text, n, NULL, TOKENIZER_FLAG_SPECIAL,
                                    &list, &err) == ERR_OK;
    *n_ids = is_fine ? list.n : 0;
    for (int32_t i = 0; i < *n_ids; i++)
        ids[i] = list.ids[i];
    token_list_release(&list);
    return is_fine;
}

static void guide_mark(char *to, int32_t *n, const char *text)
{
    size_t len = strlen(text);
    BUG_ON(len > ENGINE_MARK_BYTES);
    memcpy(to, text, len);
    *n = (int32_t)len;
}

static void guide_thought(struct prepare_generation *g, bool opens_thought)
{
    const struct split_style *style = &g->ctx->model->style;
    const struct split_thought *x = style->thought;
    struct engine_guide *guide = &g->engine.guide;
    guide_mark(guide->open, &guide->n_open, x->open);
    guide_mark(guide->close, &guide->n_close, x->close);
    guide->is_open = opens_thought;
    for (int32_t i = 0; i < style->n_marks && guide->n_hidden < ENGINE_HIDDEN_MAX; i++) {
        struct tokenizer_str s = tokenizer_piece(g->ctx->model->tokenizer, style->marks[i]);
        if (s.len > ENGINE_MARK_BYTES || (!memmem(x->open, strlen(x->open), s.data, s.len) &&
                                          !memmem(x->close, strlen(x->close), s.data, s.len)))
            continue;
        struct engine_hidden *h = &guide->hidden[guide->n_hidden++];
        h->id = style->marks[i];
        h->n = (int32_t)s.len;
        memcpy(h->text, s.data, s.len);
    }
    int64_t budget = g->thinks == PREPARE_OFF ? 0 : g->fields.thinking_budget;
    if (budget < 0)
        return;
    char text[ENGINE_MARK_BYTES + 8];
    bool is_tag =
        strcmp(x->close, "</think>") == 0; /* stands on a line of its own where it was learnt */
    int n =
        snprintf(text, sizeof(text), "%s%s%s", is_tag ? "\n" : "", x->close, is_tag ? "\n\n" : "");
    guide->has_budget =
        guide_encode(g, text, (size_t)n, guide->close_ids, &guide->n_close_ids, ENGINE_CLOSE_MAX);
    guide->budget = budget > INT32_MAX ? INT32_MAX : (int32_t)budget;
}

size_t prepare_forced_bytes(const struct prepare_generation *g, const struct buf *call)
{
    const char *open = memmem(call->data, call->len, SPLIT_PART_LEAD, strlen(SPLIT_PART_LEAD));
    size_t n = call->len;
    if (g->named) {
        n = open ? (size_t)(open - call->data) : n;
        while (n > 0 && call->data[n - 1] == ' ')
            n--;
        return n;
    }
    struct buf opening;
    buf_init(&opening, MEM_CAT_REQUEST, 1 << 12);
    split_style_call(&g->ctx->model->style, NULL, &opening);
    n = opening.len;
    buf_release(&opening);
    return open && (size_t)(open - call->data) < n ? (size_t)(open - call->data) : n;
}

static bool guide_forced(struct prepare_generation *g, struct api_error *e)
{
    static const char fine[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/";
    struct engine_guide *guide = &g->engine.guide;
    const char *name = g->named ? g->named->name : NULL;
    struct buf text;
    if (name && strspn(name, fine) != strlen(name))
        return api_error_set(
            e, 400, NULL, "tool_choice",
            "tool_choice: '%.80s' has characters that a call cannot be forced with", name);
    buf_init(&text, MEM_CAT_REQUEST, 1 << 12);
    if (guide->is_open)
        buf_add_str(&text, "\n\n");
    struct buf call; /* a grammar goes on behind it */
    buf_init(&call, MEM_CAT_REQUEST, 1 << 12);
    split_style_call(&g->ctx->model->style, name, &call);
    buf_add(&text, call.data, prepare_forced_bytes(g, &call));
    buf_release(&call);
    bool is_fine =
        guide_encode(g, text.data, text.len, guide->forced, &guide->n_forced, ENGINE_FORCED_MAX);
    buf_release(&text);
    return is_fine || api_error_set(e, 400, NULL, "tool_choice",
                                    "tool_choice: the name is over %d tokens", ENGINE_FORCED_MAX);
}

bool prepare_guide(struct prepare_generation *g, bool opens_thought, struct api_error *e)
{
    const struct split_style *style = &g->ctx->model->style;
    struct split_config *split = &g->p->split;
    split->style = style;
    split->finds_thought = style->thought != NULL;
    split->starts_in_thought = opens_thought;
    g->p->is_split = split->finds_thought || split->tools || split_style_is_framed(style);
    if (style->thought)
        guide_thought(g, opens_thought);
    return !g->must_call || guide_forced(g, e);
}
