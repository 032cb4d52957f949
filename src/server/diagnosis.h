/* diagnosis.h - what a request's prompt found of kept histories, and why it was no more, in the terms of the request: the message or
 * tool in which the first difference lies, and the text around it.
 *
 * Made in preparation for a request that asks for it; the engine fills in what it found; written with the usage. Changes no answer.
 * What a kept history goes on with is told only where nobody else can have written it: see tells_kept. */
#ifndef PLUMB_SERVER_DIAGNOSIS_H
#define PLUMB_SERVER_DIAGNOSIS_H

#include "engine/engine.h"
#include "server/places.h"
#include "template/template.h"
#include "tokenizer/tokenizer.h"

#define DIAGNOSIS_BEFORE   12  /* tokens shown before a difference ... */
#define DIAGNOSIS_AFTER    16  /* ... and behind it, on either side */
#define DIAGNOSIS_TEXT_MAX 400 /* bytes of each of these texts */

enum diagnosis_form { /* in whose terms places are named */
                      DIAGNOSIS_FORM_PROMPT,
                      DIAGNOSIS_FORM_CHAT,
                      DIAGNOSIS_FORM_MESSAGES,
                      DIAGNOSIS_FORM_RESPONSES,
};

/* Where the messages of a chat request come from that was made of another API's: the index of a message or input item, or one of these. */
#define DIAGNOSIS_FROM_SYSTEM   (-1)
#define DIAGNOSIS_FROM_PREVIOUS (-2) /* the response that was named */

struct diagnosis {
    struct engine_miss miss; /* the engine's until the first answer has ended */
    enum diagnosis_form form;
    bool tells_kept;
    int32_t *ids; /* [n_ids] of the first prompt */
    int32_t n_ids;
    uint32_t *
        starts; /* [n_ids] first byte of each in the rendered text; NULL: the prompt is no rendered one */
    struct places places;
    int32_t *origins; /* [n_origins] of messages; NULL: they are the request's own */
    int32_t n_origins;
    int32_t n_replies_used, n_replies_ignored; /* token ids of replies: prepare_history.c */
    int32_t n_hoisted;                         /* lines moved: hoist.c */
};

struct diagnosis *diagnosis_new(enum diagnosis_form form, bool tells_kept);
void diagnosis_free(struct diagnosis *d); /* may be NULL */

/* The prompt's ids; text: what they were made of and body: the chat request that this was rendered of, or both NULL. */
void diagnosis_set_ids(struct diagnosis *d, const int32_t *ids, int32_t n);
void diagnosis_set_text(struct diagnosis *d, const struct tokenizer *t, const struct json *body,
                        const struct template_output *text);

struct json_writer;
/* The object "cache_diagnostics" of the usage. */
void diagnosis_write(struct json_writer *w, const struct diagnosis *d, const struct tokenizer *t);

#endif
