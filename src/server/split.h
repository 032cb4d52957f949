/* split.h - the text of an answer, split into what it means: reasoning, content, tool calls.
 *
 * A splitter is fed the text that an answer shows, in whatever pieces, and emits parts as soon as they are certain. What it emits is
 * the same however the text was cut (the texts of neighbouring parts of one kind joined). Text that is no valid call of a known tool
 * is content; nothing is lost but markers and the blanks around them. While it is not clear what a piece of text is, nothing is
 * emitted. Control tokens that are markers are fed as their spelling between SPLIT_MARK and SPLIT_MARK_END (bytes of no text);
 * where they mark nothing they are hidden, as such tokens are.
 * Owns: its buffers, the calls' ids. Borrows: the configuration. Not thread-safe. */
#ifndef PLUMB_SERVER_SPLIT_H
#define PLUMB_SERVER_SPLIT_H

#include "server/tools.h"
#include "tokenizer/tokenizer.h"

#define SPLIT_MARK     '\xFF'
#define SPLIT_MARK_END '\xFE'

/* --- what a model writes --- */

#define SPLIT_MARKS_MAX 24

struct split_format; /* a way to write calls: a row of split_format.c's table */

struct split_thought { /* markers of a think span */
    const char *open, *close;
};

/* How a model writes reasoning and calls: inferred once, from its chat template and vocabulary. */
struct split_style {
    const struct split_format *format;   /* never NULL after split_style_init */
    const struct split_thought *thought; /* NULL: the model does not think aloud */
    int32_t marks[SPLIT_MARKS_MAX]; /* [n_marks] ids of control tokens that are parts of markers */
    int32_t n_marks;
    bool has_quote; /* Gemma's quote is one of them: its characters by themselves are text */
};

/* template_text may be NULL. */
void split_style_init(struct split_style *s, const char *template_text, const struct tokenizer *t);
const char *split_style_name(const struct split_style *s); /* of the format */
bool split_style_is_mark(const struct split_style *s, int32_t id);
/* The prompt's end opens a think span that it does not close? */
bool split_style_starts_open(const struct split_style *s, const char *prompt, size_t n);
bool split_style_has_channels(const struct split_style *s); /* Harmony */
bool split_style_is_framed(const struct split_style *s); /* content, too, stands between markers */
/* The text with which a call of that tool begins, up to its arguments; name NULL: up to the name. */
void split_style_opening(const struct split_style *s, const char *name, struct buf *out);

/* In texts of calls that a grammar gets, what is left open: U+FDD2 to U+FDD5 (grammar/tags.c). */
#define SPLIT_PART_NUMBER "\xEF\xB7\x92"
#define SPLIT_PART_NINE   "\xEF\xB7\x93"
#define SPLIT_PART_ID     "\xEF\xB7\x94"
#define SPLIT_PART_LINE   "\xEF\xB7\x95"
#define SPLIT_PART_LEAD   "\xEF\xB7" /* they all begin so */

struct
    split_element { /* how an argument is written: open NAME, raw STRING or json VALUE, close; stop ends a value */
    const char *open, *stop;
    const char *over
        [2]; /* end a value and its call where stop is missing: one behind the other; NULL = none */
    char raw[64], json[96], close[96];
    bool trims; /* a line end at either side of a value is dropped */
};

/* Calls whose arguments a grammar constrains: as elements (false: they are values); how values are written, NULL: as JSON ("gemma" with a
 * quote of its own, "python"); does content stand between markers that are known; must names be words? */
bool split_style_elements(const struct split_style *s, struct split_element *out);
const char *split_style_values(const struct split_style *s);
const char *split_style_quote(const struct split_style *s); /* or NULL */
bool split_style_has_frames(const struct split_style *s);
bool split_style_has_words(const struct split_style *s);
/* A call up to its arguments (name NULL: up to the name); what follows them; and what stands in place of that and of the opening between
 * two calls (NULL: there is but one in an answer). */
void split_style_call(const struct split_style *s, const char *name, struct buf *before);
const char *split_style_call_end(const struct split_style *s);
const char *split_style_between(const struct split_style *s);

struct split_framing {           /* how messages say whom they are for */
    const char *recipient, *all; /* stands before a name; content. Or, with recipient NULL: */
    const char *word;            /* stands before a tool's name, behind "to=" */
    const char *text;            /* ends a header */
    const char *const *starts, *const *ends; /* [n_starts], [n_ends] of a header; of a text */
    size_t n_starts, n_ends;
};

bool split_style_framing(const struct split_style *s, struct split_framing *out); /* false: none */

#define SPLIT_TOOL_PREFIXES 3
extern const char *const split_tool_prefixes[SPLIT_TOOL_PREFIXES]; /* may stand before a name */
/* The i-th way to write a call as JSON by itself, up to its arguments; *end: what follows them. False: there are no more. */
bool split_style_spelling(const struct split_style *s, int i, const char *name, struct buf *before,
                          const char **end);
/* Does the style's own way begin otherwise? */
bool split_style_is_marked(const struct split_style *s);
/* So many bytes of the opening, without the blanks before it, tell that a call has begun. */
size_t split_style_trigger(const struct split_style *s);
const char *split_style_frame(const struct split_style *s, int i); /* NULL: there are no more */
/* The text with its control tokens that are parts of markers between `open` and `close`. */
void split_style_spell(const struct split_style *s, const struct tokenizer *t, const char *text,
                       const char *open, const char *close, struct buf *out);

/* --- the parts of an answer --- */

enum part_kind {
    PART_REASONING,      /* text of a think span, markers not included */
    PART_CONTENT,        /* text for the user */
    PART_CALL_BEGIN,     /* a tool call: its name is complete, id and index are assigned */
    PART_CALL_ARGUMENTS, /* a piece of its arguments: joined they are the text of one JSON object; only where the answer was cut
                            by its length they may be the beginning of one */
    PART_CALL_END,
};

#define SPLIT_ID_BYTES 24 /* of a call's id, its NUL included */

struct part {
    enum part_kind kind;
    int32_t call;       /* PART_CALL_*: 0, 1, 2 ... in one answer */
    const char *id;     /* PART_CALL_*: "call_" and 16 hex digits, from the first delta on */
    const char *name;   /* PART_CALL_*: of the tool */
    const char *text;   /* REASONING, CONTENT, CALL_ARGUMENTS: whole code points */
    size_t n;           /* bytes of text */
    int64_t start, end; /* CONTENT: bytes of the fed text that it stands for */
};

enum split_exact { /* which calls a grammar governs; others are text */
                   SPLIT_EXACT_OFF,
                   SPLIT_EXACT_MARKED,  /* those that begin as the style's own do */
                   SPLIT_EXACT_SPELLED, /* and JSON in one of split_style_spelling's ways */
};

struct split_config {
    const struct split_style *style;
    const struct tools *tools; /* NULL: no calls are looked for */
    bool finds_thought;        /* think spans are looked for */
    bool starts_in_thought;    /* the prompt opened one */
    bool is_forced;            /* the answer is a call: bare JSON is taken for one at once */
    bool is_single;            /* no call after the first */
    enum split_exact exact;
    uint64_t id_seed; /* of the calls' ids: the same seed gives the same ids */
};

struct splitter;

/* config is copied, what it points to is borrowed. emit's part is valid during the call. Free with splitter_free. */
struct splitter *splitter_new(const struct split_config *config,
                              void (*emit)(void *arg, const struct part *p), void *arg);
void splitter_free(struct splitter *s); /* NULL is fine */
void splitter_feed(struct splitter *s, const char *text, size_t n);
/* The answer ends. was_cut: by its length, so that a call in the middle stays as it is. */
void splitter_finish(struct splitter *s, bool was_cut);
/* Nothing more is wanted: the one call (is_single) is complete. */
bool splitter_is_done(const struct splitter *s);

#endif
