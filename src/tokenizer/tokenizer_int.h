/* tokenizer_int.h - what the tokenizer's files share with each other and with its tests.
 *
 * One encode runs: text.c (well-formed UTF-8, spaces as the vocabulary spells them, spans moved along) -> special.c (where added
 * tokens stand) -> per stretch between them the kind's own encoder (bpe.c with pretok.c, spm.c, wpm.c, ugm.c), which merges
 * symbols with merge.c. Everything that an encode changes is in struct encoder; struct tokenizer is read-only. */
#ifndef PLUMB_TOKENIZER_TOKENIZER_INT_H
#define PLUMB_TOKENIZER_TOKENIZER_INT_H

#include "base/map.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer.h"

#include <string.h>

#define SPACE_MARK     "\xE2\x96\x81" /* U+2581, how SentencePiece spells a space */
#define SPACE_MARK_LEN 3

struct token_text { /* offsets into struct tokenizer's blob */
    uint32_t piece, piece_len;
    uint32_t bytes, bytes_len; /* what decoding gives */
};

/* --- special.c: added tokens, sorted by spelling; a match narrows a range of them byte by byte --- */
struct special {
    const char *text;
    uint32_t len;
    int32_t id;
    bool takes_left;  /* white space before it belongs to it */
    bool is_word;     /* does not match inside a word */
    bool is_control;  /* matches only with TOKENIZER_FLAG_SPECIAL and outside the caller's bytes */
    bool takes_space; /* white space after it belongs to it */
};
struct special_set {
    struct special *items; /* [n], ascending by bytes */
    int32_t n;
    int32_t first[257]; /* items that start with byte b: [first[b], first[b + 1]) */
};
struct special_match {
    size_t p0, p1;
    int32_t id; /* -1: none up to the end of the text */
    bool takes_space, takes_left;
};
/* Tokens that are looked for in the text as it comes; strip: spec.strip_after_special. flags as in the spec. */
enum err_code special_set_init(struct special_set *s, const struct tokenizer *t,
                               const uint8_t *flags, bool strip, struct err *err) MUST_CHECK;
/* Those of TOKEN_FLAG_NORMAL, spelled as t's pipeline normalises them. */
enum err_code special_set_init_normal(struct special_set *s, const struct tokenizer *t,
                                      const uint8_t *flags, struct err *err) MUST_CHECK;
void special_set_release(struct special_set *s);
/* The leftmost, then longest match in text[from..len). */
struct special_match special_find(const struct special_set *s, const char *text, size_t len,
                                  size_t from, const struct span_list *caller, bool has_control);

/* --- text.c: the text that is matched and merged --- */
struct norm_text {
    const char *text;
    size_t len;
    struct span_list caller;
    struct buf own;     /* used where something had to change */
    struct span *spans; /* idem */
};
/* Ill-formed UTF-8 becomes U+FFFD, and ' ' becomes U+2581 if escape. Borrows text where nothing changes. */
enum err_code norm_text_init(struct norm_text *n, const char *text, size_t len,
                             const struct span_list *caller, bool escape,
                             struct err *err) MUST_CHECK;
void norm_text_release(struct norm_text *n);
bool text_is_space(uint32_t c); /* Unicode's White_Space */
/* Bytes of white space at the start of text; has_marks: U+2581 was a space. */
size_t text_skip_spaces(const char *text, size_t len, bool has_marks);
/* The end of text[from..to) without white space at its end. */
size_t text_trim_spaces(const char *text, size_t from, size_t to);

/* --- merge.c: join neighbours, best rank first, leftmost among equals --- */
struct merge_slot {
    uint64_t key; /* (left id << 32 | right id) + 1; 0 = free */
    int32_t rank, id;
};
struct merge_table {
    struct merge_slot *slots;
    size_t cap; /* power of two */
};
struct merge_sym {
    int32_t id; /* -1: no token has this text */
    int32_t prev, next;
    int32_t rank;   /* of joining this with next; INT32_MAX = never */
    int32_t merged; /* id of that join */
    uint32_t pos, len;
};
enum err_code merge_table_init(struct merge_table *m, int32_t n, struct err *err) MUST_CHECK;
void merge_table_release(struct merge_table *m);
/* false if the pair is there already (its first rank stands). Need: at most the n of init calls. */
bool merge_table_add(struct merge_table *m, int32_t left, int32_t right, int32_t rank, int32_t id);
const struct merge_slot *merge_table_find(const struct merge_table *m, int32_t left,
                                          int32_t right); /* NULL if absent */

#define MERGE_QUEUES 8
struct merge_queue { /* ascending keys, [head, n) */
    uint64_t *keys;
    size_t head, n, cap;
};

struct encoder {
    const struct tokenizer *t;
    struct token_list *out;
    struct err *err;
    struct merge_sym *syms; /* [sym_cap] */
    size_t sym_cap;
    struct merge_queue queues[MERGE_QUEUES];
    uint64_t *heap; /* [heap_n] keys: rank << 32 | symbol */
    size_t heap_n, heap_cap;
    struct buf work; /* a stretch after normalising */
    void *pretok;    /* pretok.c's match data, made on first use */
    bool is_start;   /* nothing of the text stands before the stretch */
    bool after_unk;  /* the last id was an unknown character's */
};
enum err_code encoder_need_syms(struct encoder *e, size_t n) MUST_CHECK;
enum err_code encoder_push(struct encoder *e, int32_t id) MUST_CHECK;
/* Grow *p (elements of size bytes) to at least n, keeping what is there. */
enum err_code encoder_grow(void **p, size_t *cap, size_t n, size_t size,
                           struct err *err) MUST_CHECK;
/* Link e->syms[0..n) and merge them; afterwards walk from 0 by next. text is what pos and len point into. */
enum err_code merge_run(struct encoder *e, const char *text, int32_t n) MUST_CHECK;

/* --- pretok.c --- */
struct pretok; /* compiled patterns of one pre-tokenizer id */
struct pretok_info {
    bool ignores_merges; /* a stretch that is a token as a whole is that token */
    bool is_spm;         /* characters with U+2581, not bytes: TOKENIZER_KIND_BPE_SPM */
    bool adds_bos;
};
/* pre = NULL or unknown: warns and uses "default". */
enum err_code pretok_new(const char *pre, struct pretok **out, struct err *err) MUST_CHECK;
/* The steps of a tokenizer.json. */
enum err_code pretok_new_steps(const struct split_step *steps, int n, struct pretok **out,
                               struct err *err) MUST_CHECK;
void pretok_free(struct pretok *p);
const struct pretok_info *pretok_info(const char *pre); /* NULL if unknown */
typedef enum err_code (*pretok_piece_fn)(struct encoder *e, const char *text, size_t len);
enum err_code pretok_run(const struct pretok *p, struct encoder *e, const char *text, size_t len,
                         pretok_piece_fn piece) MUST_CHECK;
void pretok_scratch_free(void *scratch);

/* --- pipeline.c: stretches of a tokenizer that came as tokenizer.json --- */
struct pipeline;
/* Needs t's kind, pieces and (charsmap) ugm. */
enum err_code pipeline_new(struct tokenizer *t, const struct tokenizer_spec *spec,
                           struct err *err) MUST_CHECK;
void pipeline_free(struct pipeline *p);
enum err_code pipeline_encode(struct encoder *e, const char *text, size_t len) MUST_CHECK;
/* The normalised form of text. */
enum err_code pipeline_normalise(const struct pipeline *p, const struct tokenizer *t,
                                 const char *text, size_t len, struct buf *out,
                                 struct err *err) MUST_CHECK;

/* --- the kinds: init what they need of the spec; encode one stretch (well-formed UTF-8, no added token inside) --- */
enum err_code bpe_init(struct tokenizer *t, const struct tokenizer_spec *spec,
                       struct err *err) MUST_CHECK;
enum err_code bpe_encode(struct encoder *e, const char *text, size_t len) MUST_CHECK;
/* The same for a piece that a token may be as a whole, with spaces inside. */
enum err_code bpe_spm_encode_whole(struct encoder *e, const char *text, size_t len) MUST_CHECK;
enum err_code bpe_spm_encode(struct encoder *e, const char *text, size_t len) MUST_CHECK;
enum err_code spm_init(struct tokenizer *t, const struct tokenizer_spec *spec,
                       struct err *err) MUST_CHECK;
enum err_code spm_encode(struct encoder *e, const char *text, size_t len) MUST_CHECK;
enum err_code wpm_encode(struct encoder *e, const char *text, size_t len) MUST_CHECK;
/* One word, already normalised. */
enum err_code wpm_word(struct encoder *e, const char *word, size_t len) MUST_CHECK;
/* Steps of BERT's normalising, for one code point each. */
bool wpm_is_han(uint32_t c);
bool wpm_is_dropped(uint32_t c);
void wpm_add_lower(uint32_t c, struct buf *out);
/* One piece of a byte-level BPE's pre-tokenizer. */
enum err_code bpe_encode_piece(struct encoder *e, const char *text, size_t len) MUST_CHECK;
struct ugm;
enum err_code ugm_init(struct tokenizer *t, const struct tokenizer_spec *spec,
                       struct err *err) MUST_CHECK;
void ugm_free(struct ugm *u);
enum err_code ugm_encode(struct encoder *e, const char *text, size_t len) MUST_CHECK;
/* One piece, already normalised. */
/* The sum that the search makes greatest, for ids of a text without special tokens. */
double ugm_score(const struct tokenizer *t, const int32_t *ids, int32_t n);
enum err_code ugm_encode_piece(struct encoder *e, const char *text, size_t len) MUST_CHECK;
/* Replacement of the prefix of text by the published map, else the code point itself; the bytes that it stands for. */
size_t ugm_next(const struct ugm *u, const char *text, size_t len, const char **out,
                size_t *out_len);

/* --- detok.c --- */
/* Append what a token of this kind and type decodes to. */
void detok_token_bytes(enum tokenizer_kind kind, enum token_type type, const char *piece,
                       size_t len, struct buf *out);
/* The byte that a GPT-2 alphabet character stands for, or -1. */
int detok_byte_of_char(uint32_t cp);

struct tokenizer {
    enum tokenizer_kind kind;
    int32_t n_tokens;
    struct token_text *texts; /* [n_tokens] */
    uint8_t *types;           /* [n_tokens] enum token_type */
    char *blob;
    struct map pieces; /* spelling -> id, first of equals */
    struct special_set specials;
    struct pipeline *pipeline; /* NULL: the kind's own way */
    bool has_pipeline;         /* it will come, or is there */
    bool fuses_unk, has_bytes; /* of the pipeline */
    int32_t bos, eos, unk;
    int32_t head, tail; /* ids around a text where the model wants them */
    int32_t n_between;  /* tails between two texts */
    bool add_bos, add_eos, add_space_prefix, remove_extra_spaces;
    bool space_at_start;
    bool lowercase, strip_accents;
    int32_t *end_ids;
    int32_t n_end_ids;
    int32_t byte_ids[256]; /* token that stands for one byte, -1 = none */
    /* BPE */
    struct pretok *pretok;
    bool ignores_merges;
    struct map
        whole; /* decoded bytes -> id of normal tokens; only if ignores_merges or joins_by_text */
    struct merge_table merges;
    /* SPM, and BPE from a rank file without merges: two neighbours join if their text together is a token */
    bool joins_by_text;
    int32_t *ranks;   /* [n_tokens] 0 = joined first; INT32_MAX = never a result of merging */
    uint32_t max_len; /* bytes of the longest token that merging can make */
    /* SPM, BPE_SPM: after a character that ends in byte b, a U+2581 starts a new stretch: no token crosses there */
    bool is_cut[256];
    /* UGM */
    struct ugm *ugm;
};

/* Find where stretches may be cut (is_cut) from all tokens that merging can make. */
void spm_init_cuts(struct tokenizer *t);
/* The length of the first stretch of text[0..len). */
size_t spm_stretch(const struct tokenizer *t, const char *text, size_t len);

#endif
