/* tokenizer.h - text to token ids and back, equal to the model's published tokenizer token for token.
 *
 * Owns: copies of the vocabulary, merge ranks, the compiled pre-tokenizer. Immutable after tokenizer_new: any thread may encode.
 * Does not know: model files (the caller fills struct tokenizer_spec from whichever it has), chat, JSON. */
#ifndef PLUMB_TOKENIZER_TOKENIZER_H
#define PLUMB_TOKENIZER_TOKENIZER_H

#include "base/buf.h"
#include "base/span.h"
#include "tokenizer/pipeline.h"

enum tokenizer_kind {
    TOKENIZER_KIND_BPE,     /* byte-level BPE: GGUF "gpt2" */
    TOKENIZER_KIND_BPE_SPM, /* BPE over characters, a space is U+2581, byte fallback: GGUF "gemma4" */
    TOKENIZER_KIND_SPM,     /* SentencePiece BPE with scores and byte fallback: GGUF "llama" */
    TOKENIZER_KIND_WPM,     /* WordPiece: GGUF "bert" */
    TOKENIZER_KIND_UGM,     /* SentencePiece unigram: GGUF "t5" */
};

enum token_type { /* numbers as in GGUF tokenizer.ggml.token_type */
                  TOKEN_TYPE_NORMAL = 1,
                  TOKEN_TYPE_UNKNOWN = 2,
                  TOKEN_TYPE_CONTROL = 3,
                  TOKEN_TYPE_USER = 4, /* added, but plain text: matched in user text too */
                  TOKEN_TYPE_UNUSED = 5,
                  TOKEN_TYPE_BYTE = 6,
};

/* How an added token stands in a text; bits. */
enum token_flags {
    TOKEN_FLAG_LSTRIP = 1 << 0, /* white space before it belongs to it */
    TOKEN_FLAG_RSTRIP = 1 << 1, /* white space after it belongs to it */
    TOKEN_FLAG_WORD = 1 << 2,   /* not inside a word */
    TOKEN_FLAG_NORMAL = 1 << 3, /* it is looked for in the normalised text */
};

struct tokenizer_str { /* borrowed, not terminated */
    const char *data;
    size_t len;
};

/* Everything is borrowed during tokenizer_new. Ids are -1 where the model has none. */
struct tokenizer_spec {
    enum tokenizer_kind kind;
    int32_t n_tokens;
    const struct tokenizer_str *pieces; /* [n_tokens] as spelled in the model file */
    const float *scores;                /* [n_tokens] or NULL */
    const uint8_t *types;               /* [n_tokens] enum token_type, or NULL = all normal */
    const struct tokenizer_str *merges; /* [n_merges] "left right", BPE; may be NULL */
    const struct tokenizer_str
        *rights; /* [n_merges] or NULL: then merges has the left parts alone */
    int32_t n_merges;
    const char *pre; /* pre-tokenizer id ("llama-bpe", "qwen2", "smollm", ...); NULL = none given */
    int32_t bos, eos, eot, eom, unk, sep, pad, cls, mask;
    bool add_bos, add_eos; /* what the model expects around a prompt */
    bool add_sep;          /* ... and a second eos between the texts of a pair (RoBERTa) */
    bool
        add_space_prefix; /* SPM, UGM: a space in front of the text and of what follows a special token */
    bool
        space_at_start; /* SPM: that space stands in front of the text alone, not behind special tokens */
    bool remove_extra_spaces;      /* UGM, SPM: runs of spaces count as one, none at the ends */
    bool strip_after_special;      /* white space after a special token is not text (Phi-3) */
    bool lowercase, strip_accents; /* WPM */
    /* From here on: of tokenizer.json alone, zeroed otherwise. With a pipeline `pre` and the flags of the line-up above are not
     * looked at, but for add_space_prefix: a decoded text then has a space in front that is not the text's. */
    const struct pipeline_spec *pipeline;
    const double *exact_scores; /* UGM: [n_tokens] in the place of scores; sums are f64 then */
    const int32_t *ends;        /* [n_ends] more ids that end a generation */
    int32_t n_ends;             /* at most 32 */
    const uint8_t *flags;       /* [n_tokens] enum token_flags, of added tokens */
    const uint8_t *charsmap;    /* UGM: SentencePiece's precompiled normaliser; may be NULL */
    size_t charsmap_bytes;
};

struct tokenizer;

/* Errors: ERR_INVALID - damaged vocabulary (text names the token or merge); ERR_UNSUPPORTED - kind; ERR_NOMEM. An unknown or
 * missing pre-tokenizer id is a logged warning that names it and the one used instead. Free with tokenizer_free. */
enum err_code tokenizer_new(const struct tokenizer_spec *spec, struct tokenizer **out,
                            struct err *err) MUST_CHECK;
void tokenizer_free(struct tokenizer *t);

/* Whether models with this pre-tokenizer id expect a bos where their file does not say ("llama-bpe" does). pre may be NULL. */
bool tokenizer_pre_adds_bos(const char *pre);

struct token_list { /* growable ids with a cap */
    int32_t *ids;
    int32_t n;
    int32_t max; /* cap */
    int32_t cap; /* private */
};
void token_list_init(struct token_list *l, int32_t max);
void token_list_release(struct token_list *l);
/* Append ids [n]. Errors: ERR_FULL - more than l->max; ERR_NOMEM. l stays as it was. */
enum err_code token_list_add(struct token_list *l, const int32_t *ids, int32_t n,
                             struct err *err) MUST_CHECK;

enum tokenizer_flags {
    TOKENIZER_FLAG_SPECIAL = 1 << 0, /* control tokens in the text match (outside `caller`) */
    TOKENIZER_FLAG_BOS =
        1 << 1, /* put bos first if the model wants one and it is not there already */
    TOKENIZER_FLAG_EOS = 1 << 2, /* put eos last if the model wants one */
};

/* Append the ids of text[0..len) to out. `caller` (may be NULL = no byte is the caller's) lists bytes in which control tokens
 * never match. Ill-formed UTF-8 becomes U+FFFD, as in Hugging Face. Time is O(n log n) in len.
 * Errors: ERR_FULL - more than out->max tokens; ERR_NOMEM. out keeps its first n of before. */
enum err_code tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                               const struct span_list *caller, unsigned flags,
                               struct token_list *out, struct err *err) MUST_CHECK;

/* The bytes that a token stands for in a decoded text (its own bytes, not the file's spelling); "" for control tokens unless
 * with_special. Borrowed. Ids out of range: "". */
struct tokenizer_str tokenizer_bytes(const struct tokenizer *t, int32_t id, bool with_special);

/* Decode a whole list, as Hugging Face decode() with clean-up off (SPM: the prefix space is removed at the start). */
enum err_code tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int32_t n,
                               bool with_special, struct buf *out, struct err *err) MUST_CHECK;

/* A decoder for one stream of ids. What it gives out ends at a code point's border at every call; bytes that no later byte can
 * complete become U+FFFD, once each maximal part (as Python's errors="replace"). All outputs joined are the same however the
 * ids were grouped. No allocation but out's. */
struct detok_stream {
    const struct tokenizer *t;
    bool with_special;
    bool strip_space; /* the next space that starts the text is dropped */
    uint8_t n_held;   /* private: the start of a code point that waits for more bytes */
    char held[4];
};
/* at_start: the ids begin a text, so that the prefix space of SPM, UGM and WPM is not shown (false: they continue one). */
void detok_stream_init(struct detok_stream *s, const struct tokenizer *t, bool at_start,
                       bool with_special);
/* Append to out what can be shown after one more id. */
void detok_stream_push(struct detok_stream *s, int32_t id, struct buf *out);
/* The same for bytes that did not come from one token (an engine's forced text). */
void detok_stream_push_bytes(struct detok_stream *s, const char *bytes, size_t n, struct buf *out);
/* The stream ends: a cut code point is dropped. Returns the number of bytes dropped (0..3). */
size_t detok_stream_finish(struct detok_stream *s);

enum tokenizer_kind tokenizer_kind(const struct tokenizer *t);
int32_t tokenizer_n_tokens(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t);
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);
/* What stands around texts: head A tail; and of a pair head A tail (n_between times) B tail. -1: nothing. */
struct tokenizer_frame {
    int32_t head, tail, n_between;
};
struct tokenizer_frame tokenizer_frame(const struct tokenizer *t);
struct tokenizer_str tokenizer_piece(const struct tokenizer *t,
                                     int32_t id); /* as spelled in the file */
int32_t tokenizer_find(const struct tokenizer *t, const char *piece,
                       size_t len); /* by file spelling; -1 */

/* Ids that end a generation: eos, eot, and the known end markers of the vocabulary. Ascending. */
const int32_t *tokenizer_end_ids(const struct tokenizer *t, int32_t *n);

#endif
