/* answer.h - one answer on its way to a client: tokens in, whole code points out.
 *
 * Bytes are shown as soon as they can no longer become part of a stop string (text_safe of engine.h) and end no code point in
 * the middle. Bytes that can never become text are shown as U+FFFD, one for each ill-formed part; a code point that the end of
 * the answer cut is dropped. What is shown in pieces equals what is shown at once. */
#ifndef PLUMB_SERVER_ANSWER_H
#define PLUMB_SERVER_ANSWER_H

#include "engine/engine.h"
#include "server/split.h"
#include "tokenizer/tokenizer.h"

struct answer_token { /* kept where logprobs are asked for */
    struct engine_token token;
    int64_t start, end;  /* bytes of the answer */
    int64_t text_offset; /* code points of the text before it */
    int64_t text_end;    /* bytes of the shown text up to its end; -1 = not shown yet */
    int32_t mark;        /* it is a mark, the so manieth of the answer; 0 = it is none */
};

struct answer_mark { /* a control token that a splitter is to see */
    int64_t at;      /* bytes of the answer before it */
    int32_t id;
};

struct answer {
    const struct tokenizer *tokenizer;
    const struct split_style
        *style; /* whose marks are shown, as split.h says; NULL: control tokens are hidden */
    bool keeps_tokens;
    int64_t shown;     /* bytes of the answer behind us */
    int64_t n_text;    /* ... and of the text that they became */
    int64_t safe;      /* bytes of it that may be shown */
    struct buf bytes;  /* what follows them */
    int64_t n_chars;   /* code points begun so far, with what was put before the answer */
    struct buf tokens; /* struct answer_token, not yet handed out */
    struct buf marks;  /* struct answer_mark, not yet shown */
    int32_t n_marks, n_marks_shown;
};

/* n_chars: code points of the text that is shown before the answer (echo). The style is set afterwards where it is wanted. */
void answer_init(struct answer *a, const struct tokenizer *t, bool keeps_tokens, int64_t n_chars);
void answer_release(struct answer *a);

void answer_add(struct answer *a, const struct engine_token *token);

/* Append to out what may be shown now; at the end, all that is left of it. */
void answer_show(struct answer *a, int64_t text_safe, bool is_end, struct buf *out);

/* Tokens whose text is shown (at the end: begun before the answer's end). Borrowed until answer_drop_tokens(n). */
const struct answer_token *answer_peek_tokens(const struct answer *a, bool is_end, size_t *n);
void answer_drop_tokens(struct answer *a, size_t n);

#endif
