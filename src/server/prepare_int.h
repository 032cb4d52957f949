/* prepare_int.h - what the files of preparation share. */
#ifndef PLUMB_SERVER_PREPARE_INT_H
#define PLUMB_SERVER_PREPARE_INT_H

#include "server/fields.h"
#include "server/prepare.h"
#include "json/json.h"

enum prepare_switch { PREPARE_UNSET, PREPARE_OFF, PREPARE_ON };

struct prepare_grammar { /* what the answer's text must be */
    const char *field;   /* that asks for it; NULL: nothing does */
    enum grammar_kind kind;
    bool is_compact, is_any_order;
    struct buf text;
};

struct prepare_generation { /* what is gathered before the requests are made */
    const struct prepare_context *ctx;
    const struct prepare_input *in;
    const struct json *body;
    struct fields fields;
    struct engine_request engine;
    struct logit_bias *bias; /* [LIMIT_LOGIT_BIAS] or NULL */
    struct engine_bytes stops[ENGINE_STOPS_MAX];
    int32_t n_score_top; /* of the prompts' scores; -1 = none are wanted */
    /* chat: prepare_answer.c */
    bool must_call;           /* the answer begins with a tool call ... */
    const struct tool *named; /* ... of this tool; NULL: of any */
    bool takes_one_call;      /* no second one is wanted */
    enum prepare_switch thinks;
    struct prepare_grammar grammar;
    struct token_list prediction; /* what engine.predicted points to */
    struct prepared *p;
};

/* Empty, with a reply buffer. Free with prepare_free. */
struct prepared *prepare_new(enum prepare_kind kind);

/* The id of an earlier answer in v[name], with which the request is to be compared: sets p->compares. False: p->error. */
bool prepare_compare(struct prepared *p, const struct json *body, const char *field,
                     const char *name);

/* A generation, from fields to requests: fills p, or p->error. */
void prepare_generation(const struct prepare_context *ctx, const struct prepare_input *in,
                        const struct json *body, struct prepared *p);

/* A request of the Responses API. Never NULL. */
struct prepared *prepare_responses(const struct prepare_context *ctx,
                                   const struct prepare_input *in, const struct json *body);
void prepare_responses_free(struct prepared_response *r); /* may be NULL */
/* A part of a kept input: fills p->reply. */
void prepare_response_items(const struct prepare_input *in, const struct json *items,
                            struct prepared *p);

/* Tools, tool_choice and reasoning of a chat request. */
bool prepare_answer(struct prepare_generation *g, struct api_error *e);
/* What engine and splitter are told of it, once the prompt is rendered. */
bool prepare_guide(struct prepare_generation *g, bool opens_thought, struct api_error *e);
/* The bytes of a call (split_style_call) that the forced ids are: those of its opening up to what is left open, but blanks at its end that
 * the arguments may be tokenised with. */
size_t prepare_forced_bytes(const struct prepare_generation *g, const struct buf *call);

/* What the answer must be: what the fields say of it, checked but for its syntax; and, after prepare_guide, the grammar: sets
 * g->engine.grammar. Then prepare_grammar_release. */
bool prepare_grammar_read(struct prepare_generation *g, struct api_error *e);
bool prepare_constrain(struct prepare_generation *g, struct api_error *e);
void prepare_grammar_release(struct prepare_generation *g);
/* What the client expects the answer to say: sets g->engine.predicted, of which g->prediction holds the ids. */
bool prepare_prediction(struct prepare_generation *g, struct api_error *e);
/* A request of Anthropic's Messages API: fills p, or p->error. And the count of its tokens, as p->reply. */
void prepare_messages(const struct prepare_context *ctx, const struct prepare_input *in,
                      const struct json *body, struct prepared *p);
void prepare_count_tokens(const struct prepare_context *ctx, const struct json *body,
                          struct prepared *p);

/* Room for that many answers. */
void prepare_room(struct prepared *p, int32_t n);
/* One more prompt and its n requests. echo: text put before each answer, or NULL. */
bool prepare_add_prompt(struct prepare_generation *g, const int32_t *ids, int32_t n_ids,
                        const struct buf *echo, bool echo_special, struct api_error *e);
/* The texts of a request for embeddings. */
bool prepare_inputs(struct prepare_generation *g, struct api_error *e);

/* The pairs of /v1/rerank and /v1/score, and how they are asked (prepare_rerank.c). */
bool prepare_ranking(struct prepare_generation *g, struct api_error *e);
bool prepare_pairs(struct prepare_generation *g, struct api_error *e);

/* /infill; completions with a suffix that is not empty. */
bool prepare_infill(struct prepare_generation *g, struct api_error *e);
bool prepare_suffix(struct prepare_generation *g, const struct json *suffix, struct api_error *e);

/* Read the prompts (or messages) and make their requests. */
bool prepare_prompts(struct prepare_generation *g, struct api_error *e);

/* The chat request that the prompt is made of: body, or, by --hoist-volatile, what it becomes, in doc (zeroed before, released by the caller
 * in any case). *n_lines (may be NULL): lines moved. NULL: e. */
const struct json *prepare_hoist(const struct prepare_context *ctx, const struct json *body,
                                 struct json_doc *doc, int32_t *n_lines, struct api_error *e);

/* Render the chat template for body; out is initialised here and released by the caller in any case. */
bool prepare_render(const struct prepare_context *ctx, const struct json *body,
                    enum prepare_switch thinks, bool adds_generation_prompt,
                    struct template_output *out, struct api_error *e);

/* prepare_hoist and prepare_render. *n_hoisted may be NULL. */
bool prepare_chat_text(const struct prepare_context *ctx, const struct json *body,
                       enum prepare_switch thinks, bool adds_generation_prompt,
                       struct template_output *out, int32_t *n_hoisted, struct api_error *e);

/* Render and tokenize: control tokens match only in the template's own bytes. text (may be NULL; not initialised) is the rendered prompt,
 * released by the caller in any case. d (may be NULL) is told where what stands. */
bool prepare_chat_prompt(const struct prepare_context *ctx, const struct json *body,
                         enum prepare_switch thinks, bool adds_generation_prompt,
                         struct token_list *out, struct template_output *text, struct diagnosis *d,
                         struct api_error *e);

/* The ids of a rendered prompt; where messages bring the ids that they were sampled with, with these (prepare_history.c). d may be NULL. */
bool prepare_encode(const struct prepare_context *ctx, const struct json *body,
                    const struct template_output *text, struct token_list *out, struct diagnosis *d,
                    struct api_error *e);
/* The ids of text[from, to) of a rendered prompt, as a text of its own. False: e. */
bool prepare_encode_part(const struct prepare_context *ctx, const struct template_output *text,
                         size_t from, size_t to, struct token_list *out, struct api_error *e);
/* Where in the prompt of a chat request ends are to be kept: sets g->engine.cuts. text: what it was rendered to. */
void prepare_cuts(struct prepare_generation *g, const struct template_output *text,
                  const struct token_list *prompt);

/* /tokenize, /detokenize, /apply-template: fill p->reply or p->error. */
void prepare_tokenize(const struct prepare_context *ctx, const struct json *body,
                      struct prepared *p);
void prepare_detokenize(const struct prepare_context *ctx, const struct json *body,
                        struct prepared *p);
void prepare_apply_template(const struct prepare_context *ctx, const struct json *body,
                            struct prepared *p);

/* The ids in v (an array), each checked against the vocabulary: [v->n], freed by the caller (MEM_CAT_REQUEST). NULL: e. */
int32_t *prepare_ids(const struct prepare_context *ctx, const struct json *v, const char *name,
                     struct api_error *e);

/* The most tokens that one text is cut into: far over the context, so that an error can name the true length. */
int32_t prepare_max_tokens(const struct prepare_context *ctx);

#endif
