/* leg.c - one answer: its tokens become text, its text parts, and these go to the stream at once or are collected for the end. */
#include "base/utf8.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>

struct leg_part { /* collected; its text is text[at, at + n) of the leg */
    enum part_kind kind;
    int32_t call;
    char id[SPLIT_ID_BYTES];
    const char *name;
    size_t at, n;
};

static void leg_emit(void *arg, const struct part *p);

static uint64_t leg_id_seed(const char *answer_id, int32_t index)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a, 64 bits */
    for (const char *p = answer_id; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    return (h ^ (uint64_t)(uint32_t)index) * 1099511628211u;
}

void leg_init(struct leg *leg)
{
    struct call *call = leg->call;
    const struct prepared *p = call->prepared;
    const char *echo = p->prompts[leg->prompt].echo;
    answer_init(&leg->answer, call->server->model.tokenizer, call->head.n_logprobs >= 0,
                echo ? (int64_t)utf8_count(echo, strlen(echo)) : 0);
    if (p->is_split) { /* ids of calls: this answer's own, the same for the same request */
        struct split_config split = p->split;
        split.id_seed = leg_id_seed(call->answer_id, leg->index);
        leg->splitter = splitter_new(&split, leg_emit, leg);
        leg->answer.style = split.style;
    }
    buf_init(&leg->text, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&leg->parts, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&leg->tokens, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES * 2u);
    buf_init(&leg->ids, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    buf_init(&leg->history, MEM_CAT_REQUEST, LIMIT_SESSION_RECORD);
}

void leg_release(struct leg *leg)
{
    splitter_free(leg->splitter);
    answer_release(&leg->answer);
    buf_release(&leg->text);
    buf_release(&leg->parts);
    buf_release(&leg->tokens);
    buf_release(&leg->ids);
    buf_release(&leg->history);
    mem_free(MEM_CAT_REQUEST, leg->told);
}

/* --- collecting --- */

static struct leg_part *leg_last(const struct leg *leg)
{
    size_t n = leg->parts.len / sizeof(struct leg_part);
    return n > 0 ? (struct leg_part *)(void *)leg->parts.data + (n - 1) : NULL;
}

static void leg_collect(struct leg *leg, const struct part *p)
{
    enum part_kind kind = p->kind == PART_CALL_BEGIN ? PART_CALL_ARGUMENTS : p->kind;
    struct leg_part *last = leg_last(leg);
    if (kind == PART_CALL_END || (kind == PART_CONTENT && p->n == 0))
        return;
    bool is_more =
        last && last->kind == kind && (kind != PART_CALL_ARGUMENTS || last->call == p->call);
    if (!is_more) {
        struct leg_part part = { .kind = kind, .call = p->call, .name = p->name };
        part.at = leg->text.len;
        snprintf(part.id, sizeof(part.id), "%s", p->id ? p->id : "");
        buf_add(&leg->parts, &part, sizeof(part));
        last = leg_last(leg);
    }
    if (p->kind != PART_CALL_BEGIN)
        buf_add(&leg->text, p->text, p->n);
    if (last && !leg->parts.failed)
        last->n = leg->text.len - last->at;
}

void leg_add_id(struct leg *leg, int32_t id)
{
    if (leg->call->prepared->keeps_ids)
        buf_add(&leg->ids, &id, sizeof(id));
}

/* How many of the answer's ids spell what was shown of it: not what a stop string cut, nor half a character. */
static size_t leg_whole_ids(const struct leg *leg)
{
    const int32_t *ids = (const int32_t *)(const void *)leg->ids.data;
    size_t n = leg->ids.len / sizeof(*ids), n_whole = 0;
    struct buf text;
    buf_init(&text, MEM_CAT_REQUEST, LIMIT_REPLY_BYTES);
    for (size_t i = 0; i < n; i++) {
        struct tokenizer_str s = tokenizer_bytes(leg->answer.tokenizer, ids[i], false);
        if ((int64_t)(text.len + s.len) > leg->text_safe)
            break;
        buf_add(&text, s.data, s.len);
        size_t tail =
            text.len < 4 ? text.len : 4; /* ends whole or not within a character's length */
        if (utf8_complete_prefix(text.data + text.len - tail, tail) == tail)
            n_whole = i + 1;
    }
    buf_release(&text);
    return n_whole;
}

bool leg_choice(struct leg *leg, struct dialect_choice *out)
{
    const struct call *call = leg->call;
    const struct prepared *p = call->prepared;
    const struct leg_part *part = (const struct leg_part *)(const void *)leg->parts.data;
    size_t n = leg->parts.len / sizeof(*part);
    mem_free(MEM_CAT_REQUEST, leg->told);
    leg->told = mem_alloc(MEM_CAT_REQUEST, sizeof(*leg->told) * (n + 1));
    for (size_t i = 0; i < n; i++)
        leg->told[i] = (struct part){ .kind = part[i].kind,
                                      .call = part[i].call,
                                      .id = part[i].id,
                                      .name = part[i].name,
                                      .text = leg->text.data + part[i].at,
                                      .n = part[i].n };
    *out = (struct dialect_choice){
        .index = leg->index,
        .signal = &p->signal,
        .hidden = p->embeddings.hidden
                      ? p->embeddings.hidden + (int64_t)leg->index * p->embeddings.n_embd
                      : NULL,
        .finish = leg->end.finish,
        .n_calls = leg->n_calls,
        .stop_string = leg->end.finish == FINISH_STOP_STRING ? p->stops[leg->end.stop_index] : NULL,
        .parts = leg->told,
        .n_parts = n,
        .ids = (const int32_t *)(const void *)leg->ids.data,
        .n_ids = leg_whole_ids(leg),
    };
    if (!call->is_streaming) {
        const struct prepared_prompt *prompt = &p->prompts[leg->prompt];
        out->tokens = (const struct answer_token *)(const void *)leg->tokens.data;
        out->n_tokens = leg->tokens.len / sizeof(struct answer_token);
        if (p->echoes_logprobs || p->n_prompt_logprobs >= 0) {
            out->prompt = prompt->scores;
            out->n_prompt = prompt->n_tokens;
            out->n_echo =
                prompt->echo ? (int64_t)utf8_count(prompt->echo, strlen(prompt->echo)) : 0;
            out->echo_special = prompt->echo_special;
        }
    }
    return !leg->text.failed && !leg->parts.failed && !leg->tokens.failed &&
           !leg->answer.bytes.failed && !leg->ids.failed;
}

/* --- parts --- */

static void leg_tell(struct leg *leg, const struct dialect_choice *c, const struct part *p)
{
    struct call *call = leg->call;
    leg->n_calls += p->kind == PART_CALL_BEGIN;
    if (!call->is_streaming || call->dialect->collects)
        leg_collect(leg, p);
    if (call->is_streaming)
        call->dialect->part(&call->server->out, &call->head, &call->states[leg->index], c, p);
    else
        buf_add(&leg->tokens, c->tokens, c->n_tokens * sizeof(*c->tokens));
}

void leg_show_prompt(struct leg *leg)
{
    const struct prepared *p = leg->call->prepared;
    const struct prepared_prompt *prompt = &p->prompts[leg->prompt];
    struct dialect_choice c = { .index = leg->index };
    struct part part = { .kind = PART_CONTENT, .text = "" };
    leg->is_shown = true;
    if (p->echoes_logprobs || p->n_prompt_logprobs >= 0) {
        c.prompt = prompt->scores;
        c.n_prompt = prompt->n_tokens;
        c.echo_special = prompt->echo_special;
    }
    if (prompt->echo) {
        part.text = prompt->echo;
        part.n = strlen(prompt->echo);
        c.n_echo = (int64_t)utf8_count(prompt->echo, part.n);
    }
    if (prompt->echo || c.prompt)
        leg_tell(leg, &c, &part);
}

/* A part of an answer that is split: its content's tokens go with it, those of other parts are dropped. */
static void leg_emit(void *arg, const struct part *p)
{
    struct leg *leg = arg;
    struct dialect_choice c = { .index = leg->index };
    size_t n, n_before = 0;
    if (p->kind == PART_CONTENT) {
        const struct answer_token *t = answer_peek_tokens(&leg->answer, !leg->is_live, &n);
        while (n_before < n && t[n_before].text_end <= p->start)
            n_before++;
        c.tokens = t + n_before;
        while (n_before + c.n_tokens < n && c.tokens[c.n_tokens].text_end <= p->end)
            c.n_tokens++;
    }
    leg_tell(leg, &c, p);
    answer_drop_tokens(&leg->answer, n_before + c.n_tokens);
}

void leg_show(struct leg *leg)
{
    struct buf *text = &leg->call->server->text;
    bool is_end = !leg->is_live;
    buf_reset(text);
    answer_show(&leg->answer, leg->text_safe, is_end, text);
    if (leg->splitter) {
        splitter_feed(leg->splitter, text->data, text->len);
        if (is_end)
            splitter_finish(leg->splitter, leg->end.finish == FINISH_LENGTH);
        leg->is_done = splitter_is_done(leg->splitter);
        return;
    }
    struct dialect_choice c = { .index = leg->index };
    struct part part = { .kind = PART_CONTENT, .text = text->data, .n = text->len };
    c.tokens = answer_peek_tokens(&leg->answer, is_end, &c.n_tokens);
    if (part.n > 0 || c.n_tokens > 0)
        leg_tell(leg, &c, &part);
    answer_drop_tokens(&leg->answer, c.n_tokens);
}
