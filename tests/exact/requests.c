/* requests.c - requests of every kind, and the answer that some are made of. */
#include "exact.h"

#include <string.h>

#define ANSWER_MAX 4096
static char answer[ANSWER_MAX]; /* bytes of the base's greedy answer */
static size_t answer_len, answer_border;

static const struct sample_params greedy = {
    .top_p = 1, .typical_p = 1, .xtc_threshold = 1, .repetition_penalty = 1, .n_logprobs = -1
};

static const struct logit_bias biases[] = { { 5, 2.5f }, { 17, -100 }, { 30, -3 } };

void request_init(struct exact_request *r, const char *name, const struct exact_model *m,
                  int32_t n_vocab, int32_t shift)
{
    memset(r, 0, sizeof(*r));
    r->name = name;
    for (int32_t i = 0; i < m->n_prompt; i++)
        r->prompt[i] = (int32_t)(((int64_t)i * 7919 + (int64_t)i * i * 31 + shift * 104729) %
                                 (n_vocab * 9 / 10));
    r->engine = (struct engine_request){ .prompt = r->prompt,
                                         .n_prompt = m->n_prompt - shift * 7,
                                         .max_tokens = m->n_new,
                                         .ignore_end = true,
                                         .sample = greedy };
}

/* A think span over its budget, then forced ids, then the model's own. */
static void request_guide(struct exact_request *r)
{
    r->engine.n_prompt /= 2;
    r->engine.max_tokens = 12;
    r->engine.ignore_end = false;
    r->engine.sample.temperature = 0.8f;
    r->engine.sample.n_logprobs = 3;
    r->engine.guide = (struct engine_guide){ .close = "END",
                                             .n_close = 3,
                                             .hidden = { { 11, 3, "END" } },
                                             .n_hidden = 1,
                                             .is_open = true,
                                             .has_budget = true,
                                             .budget = 3,
                                             .close_ids = { 12, 11 },
                                             .n_close_ids = 2,
                                             .forced = { 7, 7, 9 },
                                             .n_forced = 3 };
}

/* Texts of a model that makes embeddings alone: of one token, and on both sides of a page's border. */
int requests_embed(struct exact_request *r, const struct exact_model *m, int32_t n_vocab)
{
    static const int32_t lengths[] = { 1, 9, 63, 64, 65, 90 };
    for (int i = 0; i < (int)ARRAY_LEN(lengths); i++) {
        request_init(&r[i], "text", m, n_vocab, i);
        r[i].engine.n_prompt = lengths[i];
        r[i].engine.max_tokens = 0;
        r[i].engine.hidden = r[i].hidden;
    }
    return (int)ARRAY_LEN(lengths);
}

/* An answer that must be of a grammar: by itself, and behind a span and forced ids. */
static void request_constrain(struct exact_request *r, struct grammar *g, bool is_guided)
{
    if (is_guided)
        request_guide(r);
    r->engine.grammar = g;
    r->engine.max_tokens = is_guided ? 24 : 40;
    r->engine.ignore_end = false;
    r->engine.sample.temperature = 1.1f;
    r->engine.sample.n_logprobs = 4;
    r->engine.sample.repetition_penalty = is_guided ? 1.2f : 1;
    r->engine.sample.seed = 11;
}

int requests_init(struct exact_request *r, const struct exact_model *m, const struct lab *lab)
{
    int32_t n_vocab = lab->n_vocab;
    int n = 0;
    request_init(&r[n++], "short", m, n_vocab, 4);
    r[0].engine.n_prompt = 9;
    r[0].engine.max_tokens = 3;
    r[0].engine.sample.n_logprobs = 5;
    request_init(&r[n++], "greedy", m, n_vocab, 0);
    request_init(&r[n], "logprobs", m, n_vocab, 1);
    r[n].engine.ignore_end = false;
    r[n++].engine.sample.n_logprobs = 20;
    request_init(&r[n], "sampled", m, n_vocab, 2);
    r[n].engine.sample.temperature = 0.8f;
    r[n].engine.sample.top_p = 0.95f;
    r[n].engine.sample.min_p = 0.02f;
    r[n].engine.sample.n_logprobs = 2;
    r[n++].engine.sample.seed = 42;
    request_init(&r[n], "penalties", m, n_vocab, 3);
    r[n].engine.sample.temperature = 1.2f;
    r[n].engine.sample.top_k = 40;
    r[n].engine.sample.typical_p = 0.9f;
    r[n].engine.sample.xtc_probability = 0.5f;
    r[n].engine.sample.xtc_threshold = 0.1f;
    r[n].engine.sample.repetition_penalty = 1.3f;
    r[n].engine.sample.presence_penalty = 0.2f;
    r[n].engine.sample.frequency_penalty = 0.1f;
    r[n].engine.sample.penalty_last_n = 64;
    r[n].engine.sample.choice = 1; /* the second of n */
    r[n].engine.sample.bias = biases;
    r[n++].engine.sample.n_bias = (int32_t)ARRAY_LEN(biases);
    request_init(&r[n], "stop", m, n_vocab, 0);
    r[n].engine.stops = r[n].stops;
    r[n].stops[0] = (struct engine_bytes){ "never in a text", 15 };
    r[n].stops[1] = (struct engine_bytes){ answer + answer_border - 1, 2 };
    r[n++].engine.n_stops = answer_border > 0 ? 2 : 1;
    request_init(&r[n], "scores", m, n_vocab, 1);
    r[n].engine.n_prompt /= 2;
    r[n].engine.max_tokens = 2;
    r[n].engine.prompt_scores = r[n].scores;
    r[n++].engine.n_score_top = 3;
    request_init(&r[n], "signal", m, n_vocab, 2);
    r[n].engine.n_prompt /= 2;
    r[n].engine.max_tokens = 0;
    r[n].engine.signal = (struct engine_signal){ EXACT_BINS, -20, r[n].bins };
    n++;
    request_init(&r[n], "embedding", m, n_vocab, 3);
    r[n].engine.n_prompt /= 2;
    r[n].engine.max_tokens = 0;
    r[n].engine.hidden = r[n].hidden;
    n++;
    request_init(&r[n], "guided", m, n_vocab, 1);
    request_guide(&r[n++]);
    request_init(&r[n], "grammar", m, n_vocab, 2);
    request_constrain(&r[n++], lab->grammar, false);
    request_init(&r[n], "grammar, guided", m, n_vocab, 1);
    request_constrain(&r[n++], lab->grammar, true);
    request_init(&r[n], "drawn", m, n_vocab, 5);
    r[n].engine.sample.temperature = 1;
    r[n++].engine.sample.seed = 7;
    request_init(&r[n], "drawn of few", m, n_vocab, 0);
    r[n].engine.sample.temperature = 0.9f;
    r[n].engine.sample.top_k = 40;
    r[n].engine.sample.top_p = 0.9f;
    r[n].engine.sample.min_p = 0.01f;
    r[n].engine.sample.xtc_probability = 0.3f;
    r[n].engine.sample.xtc_threshold = 0.05f;
    r[n++].engine.sample.seed = 8;
    for (int i = 0; i < n; i++)
        r[i].engine.expected = lab->expected;
    return n;
}

/* The greedy answer's bytes, and a border between two of its tokens past the middle. */
enum err_code answer_compute(struct lab *lab, const struct exact_request *req, struct err *err)
{
    row_id row;
    struct engine_result res = { 0 };
    struct engine_work work = { .n_tokens = EXACT_STEP_ROWS };
    enum err_code code = lab->engine->ops->open(lab->engine, &req->engine, &row, err);
    if (code)
        return code;
    work.row = row;
    code = lab->engine->ops->grow(lab->engine, row, INT32_MAX, err);
    answer_len = 0;
    answer_border = 0;
    int32_t n = 0;
    while (!code && res.finish == FINISH_NONE) {
        code = lab->engine->ops->step(lab->engine, &work, 1, &res, err);
        if (code || res.n_tokens == 0)
            continue;
        BUG_ON(res.n_tokens != 1); /* nobody guesses */
        if (answer_border == 0 && ++n > req->engine.max_tokens / 2)
            answer_border = answer_len;
        const struct engine_bytes *b = &lab->token_bytes[res.tokens->id];
        size_t len = b->len < ANSWER_MAX - answer_len ? b->len : ANSWER_MAX - answer_len;
        memcpy(answer + answer_len, b->data, len);
        answer_len += len;
    }
    lab->engine->ops->close(lab->engine, row);
    return code;
}

/* That answer as a form: its bytes, then anything. */
enum err_code answer_expect(struct lab *lab, struct err *err)
{
    static const char rest[] = "root ::= [^\\x00]*";
    answer[answer_len < ANSWER_MAX ? answer_len : ANSWER_MAX - 1] = '\0';
    struct grammar_source s = { .kind = GRAMMAR_KIND_GBNF,
                                .text = rest,
                                .n = sizeof(rest) - 1,
                                .has_no_masks = true,
                                .before = answer };
    return grammar_compile(&s, lab->vocab, &lab->expected, NULL, err);
}
