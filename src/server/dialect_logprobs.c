/* dialect_logprobs.c - log-probabilities as OpenAI (chat and the older completions) and vLLM (prompt_logprobs) write them. */
#include "base/utf8.h"
#include "server/dialect.h"
#include "json/json.h"

#include <math.h>
#include <stdio.h>

#define LOGPROB_FLOOR -9999.0 /* stands for minus infinity, which JSON cannot say */

static void logprobs_number(struct json_writer *w, float v)
{
    double d = v;
    json_double(w, isfinite(d) && d > LOGPROB_FLOOR ? d : LOGPROB_FLOOR);
}

/* --- chat --- */

static void logprobs_chat_token(struct json_writer *w, const struct tokenizer *t, int32_t id,
                                float logprob)
{
    struct tokenizer_str s = tokenizer_bytes(t, id, true);
    json_field_strn(w, "token", s.data, s.len);
    json_key(w, "logprob");
    logprobs_number(w, logprob);
    json_field_array(w, "bytes");
    for (size_t i = 0; i < s.len; i++)
        json_int(w, (unsigned char)s.data[i]);
    json_end_array(w);
}

void dialect_chat_tokens(struct json_writer *w, const struct dialect_head *h,
                         const struct dialect_choice *c)
{
    for (size_t i = 0; i < c->n_tokens; i++) {
        const struct engine_token *t = &c->tokens[i].token;
        json_begin_object(w);
        logprobs_chat_token(w, h->tokenizer, t->id, t->logprob);
        json_field_array(w, "top_logprobs");
        for (int32_t k = 0; k < t->n_top; k++) {
            json_begin_object(w);
            logprobs_chat_token(w, h->tokenizer, t->top[k].id, t->top[k].logprob);
            json_end_object(w);
        }
        json_end_array(w);
        json_end_object(w);
    }
}

void dialect_chat_logprobs(struct json_writer *w, const struct dialect_head *h,
                           const struct dialect_choice *c)
{
    json_key(w, "logprobs");
    if (h->n_logprobs < 0) {
        json_null(w);
        return;
    }
    json_begin_object(w);
    json_field_array(w, "content");
    dialect_chat_tokens(w, h, c);
    json_end_array(w);
    json_field_null(w, "refusal");
    json_end_object(w);
}

/* --- completions --- */

/* The tokens of one part: those of the prompt, if it tells them, then the answer's. */
struct logprobs_list {
    const struct dialect_head *h;
    const struct dialect_choice *c;
    int32_t n_prompt; /* 0 where they are not told in these lists */
    size_t n;
};

static const struct engine_token *logprobs_at(const struct logprobs_list *l, size_t i)
{
    return i < (size_t)l->n_prompt ? &l->c->prompt[i]
                                   : &l->c->tokens[i - (size_t)l->n_prompt].token;
}

/* A token as a string that stays apart from others: bytes that are no text are spelled "bytes:\xe2\x80". */
static void logprobs_name(struct buf *out, const struct tokenizer *t, int32_t id)
{
    struct tokenizer_str s = tokenizer_bytes(t, id, true);
    buf_reset(out);
    if (utf8_is_valid(s.data, s.len)) {
        buf_add(out, s.data, s.len);
        return;
    }
    buf_add_str(out, "bytes:");
    for (size_t i = 0; i < s.len; i++)
        buf_printf(out, "\\x%02x", (unsigned char)s.data[i]);
}

static void logprobs_names(struct json_writer *w, const struct logprobs_list *l, struct buf *name)
{
    json_field_array(w, "tokens");
    for (size_t i = 0; i < l->n; i++) {
        logprobs_name(name, l->h->tokenizer, logprobs_at(l, i)->id);
        json_strn(w, name->data, name->len);
    }
    json_end_array(w);
}

/* Nothing comes before the prompt's first token, so it has no probability. */
static void logprobs_numbers(struct json_writer *w, const struct logprobs_list *l)
{
    json_field_array(w, "token_logprobs");
    for (size_t i = 0; i < l->n; i++)
        if (i == 0 && l->n_prompt > 0)
            json_null(w);
        else
            logprobs_number(w, logprobs_at(l, i)->logprob);
    json_end_array(w);
}

static void logprobs_top(struct json_writer *w, const struct logprobs_list *l, struct buf *name,
                         int32_t id, float logprob)
{
    logprobs_name(name, l->h->tokenizer, id);
    json_key(w, name->data);
    logprobs_number(w, logprob);
}

/* The likeliest tokens, and the one that stands there if it is none of them: up to one more than asked for, as OpenAI has it. */
static void logprobs_tops(struct json_writer *w, const struct logprobs_list *l, struct buf *name)
{
    json_field_array(w, "top_logprobs");
    for (size_t i = 0; i < l->n; i++) {
        const struct engine_token *t = logprobs_at(l, i);
        if (i == 0 && l->n_prompt > 0) {
            json_null(w);
            continue;
        }
        bool is_missing = t->n_top > 0 && l->h->n_logprobs > 0;
        json_begin_object(w);
        for (int32_t k = 0; k < t->n_top && k < l->h->n_logprobs; k++) {
            is_missing = is_missing && t->top[k].id != t->id;
            logprobs_top(w, l, name, t->top[k].id, t->top[k].logprob);
        }
        if (is_missing)
            logprobs_top(w, l, name, t->id, t->logprob);
        json_end_object(w);
    }
    json_end_array(w);
}

static bool logprobs_is_lead(char c)
{
    return ((unsigned char)c & 0xC0) != 0x80;
}

/* Where the prompt's tokens begin in its text, which may lack what the tokenizer put before it (a bos, a blank). */
static void logprobs_prompt_offsets(struct json_writer *w, const struct logprobs_list *l)
{
    int64_t all = 0, at = 0;
    for (int pass = 0; pass < 2; pass++) {
        int64_t before = all - l->c->n_echo;
        for (int32_t i = 0; i < l->n_prompt; i++) {
            struct tokenizer_str s =
                tokenizer_bytes(l->h->tokenizer, l->c->prompt[i].id, l->c->echo_special);
            int64_t *count = pass == 0 ? &all : &at;
            bool is_inside = s.len > 0 && !logprobs_is_lead(s.data[0]) && at > 0;
            int64_t start = at - is_inside - (before > 0 ? before : 0);
            if (pass == 1)
                json_int(w, start > 0 ? start : 0);
            for (size_t k = 0; k < s.len; k++)
                *count += logprobs_is_lead(s.data[k]);
        }
    }
}

void dialect_text_logprobs(struct json_writer *w, const struct dialect_head *h,
                           const struct dialect_choice *c)
{
    struct logprobs_list l = { .h = h, .c = c };
    struct buf name;
    json_key(w, "logprobs");
    if (h->n_logprobs < 0) {
        json_null(w);
        return;
    }
    l.n_prompt = c->prompt && h->echoes_logprobs ? c->n_prompt : 0;
    l.n = (size_t)l.n_prompt + c->n_tokens;
    buf_init(&name, MEM_CAT_REQUEST, 1 << 16);
    json_begin_object(w);
    logprobs_names(w, &l, &name);
    logprobs_numbers(w, &l);
    logprobs_tops(w, &l, &name);
    json_field_array(w, "text_offset");
    logprobs_prompt_offsets(w, &l);
    for (size_t i = 0; i < c->n_tokens; i++)
        json_int(w, c->tokens[i].text_offset);
    json_end_array(w);
    json_end_object(w);
    buf_release(&name);
}

/* --- the prompt by itself --- */

/* rank: 1 is the likeliest; 0 = not known. */
static void logprobs_entry(struct json_writer *w, const struct tokenizer *t, int32_t id,
                           float logprob, int32_t rank)
{
    char key[16];
    struct tokenizer_str s = tokenizer_bytes(t, id, true);
    snprintf(key, sizeof(key), "%d", id);
    json_field_object(w, key);
    json_key(w, "logprob");
    logprobs_number(w, logprob);
    json_key(w, "rank");
    if (rank > 0)
        json_int(w, rank);
    else
        json_null(w);
    json_field_strn(w, "decoded_token", s.data, s.len);
    json_end_object(w);
}

/* The token that stands there first, then the likeliest ones. */
static void logprobs_place(struct json_writer *w, const struct dialect_head *h,
                           const struct engine_token *t)
{
    int32_t rank = 0;
    for (int32_t k = 0; k < t->n_top; k++)
        if (t->top[k].id == t->id)
            rank = k + 1;
    json_begin_object(w);
    logprobs_entry(w, h->tokenizer, t->id, t->logprob, rank);
    for (int32_t k = 0; k < t->n_top && k < h->n_prompt_logprobs; k++)
        if (t->top[k].id != t->id)
            logprobs_entry(w, h->tokenizer, t->top[k].id, t->top[k].logprob, k + 1);
    json_end_object(w);
}

void dialect_prompt_logprobs(struct json_writer *w, const struct dialect_head *h,
                             const struct dialect_choice *c)
{
    if (h->n_prompt_logprobs < 0 || !c->prompt)
        return;
    json_field_array(w, "prompt_logprobs");
    json_null(w); /* nothing comes before the first */
    for (int32_t i = 1; i < c->n_prompt; i++)
        logprobs_place(w, h, &c->prompt[i]);
    json_end_array(w);
}
