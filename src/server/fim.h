/* fim.h - fill-in-the-middle: the prompts of models that were trained to write what stands between two texts (Bavarian et al. 2022).
 * Pure. */
#ifndef PLUMB_SERVER_FIM_H
#define PLUMB_SERVER_FIM_H

#include "base/buf.h"
#include "tokenizer/tokenizer.h"

struct fim_tokens { /* spelled as the vocabulary spells them */
    const char *prefix, *suffix, *middle;
    const char *file; /* before a further file's name; NULL: the model knows none */
};

/* Those that the vocabulary has; NULL: the model was not made for it. */
const struct fim_tokens *fim_find(const struct tokenizer *t);

/* Ids of the control tokens that end what stands in a gap: those of gaps, of files and of texts. [max]; their number. */
int32_t fim_ends(const struct tokenizer *t, int32_t *ids, int32_t max);

/* A prompt that is gathered: the control tokens are ours, the rest is the caller's. All zero but for text (fim_init). */
struct fim_prompt {
    struct buf text, spans; /* struct span: the caller's bytes */
};
void fim_init(struct fim_prompt *p, size_t max_bytes);
void fim_release(struct fim_prompt *p);
void fim_add_token(struct fim_prompt *p, const char *spelling);
void fim_add_text(struct fim_prompt *p, const char *text, size_t n);
/* Errors: those of tokenizer_encode; ERR_FULL - over max_bytes. */
enum err_code fim_encode(const struct fim_prompt *p, const struct tokenizer *t,
                         struct token_list *out, struct err *err) MUST_CHECK;

#endif
