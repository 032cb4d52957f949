/* pipeline.h - what a tokenizer.json says of the way from a text to pieces; a part of struct tokenizer_spec. */
#ifndef PLUMB_TOKENIZER_PIPELINE_H
#define PLUMB_TOKENIZER_PIPELINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A step of normalising. */
enum norm_kind {
    NORM_KIND_NFC,
    NORM_KIND_NFD,
    NORM_KIND_NFKC,
    NORM_KIND_NFKD,
    NORM_KIND_LOWERCASE,
    NORM_KIND_STRIP_ACCENTS, /* marks that take no room (Mn) go */
    NORM_KIND_REPLACE,       /* matches of pattern become content */
    NORM_KIND_PREPEND,       /* content goes in front of a text that is not empty */
    NORM_KIND_STRIP,         /* white space at the ends goes */
    NORM_KIND_BERT_CLEAN,    /* what shows nothing goes, white space is ' ' */
    NORM_KIND_BERT_HAN,      /* Han stands between spaces */
    NORM_KIND_CHARSMAP,      /* SentencePiece's map (tokenizer_spec.charsmap) */
};
struct norm_step {
    enum norm_kind kind;
    const char *pattern; /* a regular expression */
    const char *content; /* terminated, UTF-8 without NUL */
    bool left, right;    /* STRIP */
};

/* A step of cutting a text into pieces. */
enum split_kind {
    SPLIT_KIND_PATTERN,   /* at the matches of pattern */
    SPLIT_KIND_PREFIX,    /* a space goes in front of a piece that begins with none */
    SPLIT_KIND_METASPACE, /* spaces become U+2581, one goes in front as `prepend` says */
};
enum split_behavior { /* of the matches */
                      SPLIT_ISOLATED,
                      SPLIT_REMOVED,
                      SPLIT_MERGED_WITH_PREVIOUS,
                      SPLIT_MERGED_WITH_NEXT,
                      SPLIT_CONTIGUOUS, /* neighbours are one piece */
};
enum split_prepend { SPLIT_PREPEND_NEVER, SPLIT_PREPEND_FIRST, SPLIT_PREPEND_ALWAYS };
struct split_step {
    enum split_kind kind;
    const char *pattern;
    enum split_behavior behavior;
    bool is_inverted; /* what lies between the matches takes their place */
    enum split_prepend prepend;
};

#define PIPELINE_STEPS_MAX 16
struct pipeline_spec {
    struct norm_step norms[PIPELINE_STEPS_MAX];
    int n_norms;
    struct split_step splits[PIPELINE_STEPS_MAX];
    int n_splits;
    int32_t head, tail;  /* ids in front of and behind every text; -1 = none */
    int32_t n_between;   /* tails between the texts of a pair */
    bool ignores_merges; /* BPE: a piece that is a token as a whole is that token */
    bool fuses_unk;      /* BPE over characters: a run of unknown ones is one unk */
    bool
        has_bytes; /* BPE over characters: unknown ones are spelled in bytes, where all have tokens */
};

#endif
