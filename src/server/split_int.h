/* split_int.h - what the files of the splitter share: the table of formats, and the buffer that states take their text from. */
#ifndef PLUMB_SERVER_SPLIT_INT_H
#define PLUMB_SERVER_SPLIT_INT_H

#include "server/relaxed.h"
#include "server/split.h"

/* Answers that are messages, each with a header. */
struct split_messages {
    const char *starts[8]; /* a header begins with one of these; anything else is text by itself */
    const char *text;      /* ends the header */
    const char *ends[5];   /* of a message */
    const char *reasoning; /* a header with it: the message is reasoning */
};

/* Calls written as elements. */
struct split_elements {
    const char *call_open,
        *call_name_end; /* around the name; call_open "": the name follows the section's opening */
    const char *call_close;
    const char *key_open, *key_end; /* around an argument's name */
    const char *value_open;         /* after blanks; NULL: the value follows the name's end */
    const char *value_close;
    bool drops_newline; /* one line end at either side of a value is framing ... */
    bool is_tight;      /* ... but the template writes none; or none between elements */
    bool has_type;      /* behind a key stands string="true" or "false" */
};

/* One way to write calls. Strings are as the model writes them; NULL = there is none. */
struct split_format {
    const char *name;
    const char *needles[3]; /* the template has them all */
    const char *open;       /* what is withheld begins here */
    const char *alt_open;   /* ... or here (models that were trained on two ways) */
    const char *close, *alt_close;
    const char *item_open, *item_close; /* around each call inside */
    const char *name_end;               /* NAME name_end ARGUMENTS; not JSON with the name inside */
    const struct split_elements *elements;
    const struct split_messages *messages;
    bool is_bare;   /* a JSON object by itself is the way to call */
    bool is_python; /* NAME(KEY=VALUE, ...), also in a list */
    bool is_keyed;  /* { NAME: ARGUMENTS } */
    bool
        names_recipient; /* ">>>NAME" before arguments, ">>>all" before content; the prompt ends with ">>>" */
    /* The opening of a call: before_name NAME after_name; '\1' in the latter is the name once more. What a model may write in other ways is
     * one of SPLIT_PART_*, here and in what follows. */
    const char *before_name, *after_name;
    const char *after_call;     /* what stands behind the arguments, to the call's end */
    const char *between;        /* ... in place of both between two calls; NULL: there is but one */
    const char *values;         /* how arguments are written; NULL: as JSON */
    const char *quote;          /* ... and their strings quoted; NULL: as there */
    const char *before_text[2]; /* where content stands between markers: what it may begin with */
};

enum split_verdict {
    SPLIT_MORE, /* not to be told yet */
    SPLIT_NO,   /* no call */
    SPLIT_YES,
};

enum split_state {
    SPLIT_TEXT,
    SPLIT_THOUGHT,
    SPLIT_OPENED,    /* behind an opening: a call or not? */
    SPLIT_ARGUMENTS, /* JSON, as it comes */
    SPLIT_ENVELOPE,  /* behind them, in the object that holds name and arguments */
    SPLIT_ELEMENT,   /* in a call of elements, between two of them */
    SPLIT_KEY,
    SPLIT_VALUE,
    SPLIT_BETWEEN, /* behind a call */
    SPLIT_HEADER,  /* before a message's text */
    SPLIT_MESSAGE,
    SPLIT_CODE, /* raw code is the argument */
    SPLIT_DONE,
};

enum split_opening { SPLIT_OPENING_MARKER, SPLIT_OPENING_BARE, SPLIT_OPENING_ELEMENT };

struct splitter {
    struct split_config config;
    const struct split_format *format;
    void (*emit)(void *arg, const struct part *p);
    void *arg;
    enum split_state state;
    bool is_end, was_cut;
    struct buf raw; /* fed, but half a code point or half a mark */
    /* text: in[pos, len) is not dealt with; in[0] is byte `base` of all that was fed */
    struct buf in;
    size_t pos, scan; /* no opening begins in [pos, scan) */
    int64_t base;
    struct buf text; /* scratch of an emitted part */
    bool has_content, drops_blanks, is_line_start;
    bool has_thought; /* some of the think span was emitted */
    /* a call that is not certain yet */
    enum split_opening opening;
    size_t open_end; /* in[pos, open_end) is its opening */
    size_t seen;     /* in[open_end, seen) has been scanned for the end of the object */
    int depth;
    bool in_string, in_escape;
    char string_quote;
    /* calls */
    bool is_call, is_list, is_fenced;
    bool is_python;  /* the call is written as Python's are */
    uint64_t parens; /* open ones in its arguments: bit 0 = the innermost is a tuple's */
    int32_t n_parens;
    int32_t n_calls;
    char id[SPLIT_ID_BYTES];
    const struct tool *tool;
    struct relaxed json;
    struct buf args; /* to be emitted */
    int envelope;    /* depth of the objects around the arguments */
    /* elements */
    int32_t n_keys;
    bool is_raw_string, is_value_started, is_cdata;
    enum tools_type type;
    struct buf value;
    /* messages */
    enum part_kind message;
};

/* --- split.c --- */

/* Does in[at] begin marker m? The number of bytes that it takes there; 0 = no; -1 = that depends on what follows. Marks around
 * control tokens do not matter. */
long split_match(const struct splitter *s, size_t at, const char *m);
/* Does a call that a grammar governs begin at in[at], which is a bracket? As split_match. */
long split_match_spelled(const struct splitter *s, size_t at);
/* The last byte of the control token at in[at], or `at` where none is: nothing begins inside one. */
size_t split_skip_mark(const struct splitter *s, size_t at);
/* Nothing of the answer stands before in[at] but blanks and hidden tokens? */
bool split_is_first(const struct splitter *s, size_t at);
size_t split_skip_blanks(const struct splitter *s, size_t at);
/* Emit in[pos, to) as content or reasoning; pos is to then. */
void split_emit_text(struct splitter *s, enum part_kind kind, size_t to);
void split_begin_call(struct splitter *s, const struct tool *tool);
void split_end_call(struct splitter *s);
/* in[at, at + n) opens what may be a call. */
void split_open(struct splitter *s, size_t at, size_t n, enum split_opening kind);
void split_to_text(struct splitter *s); /* the state for what is no call */

/* --- split_json.c --- */
enum split_verdict split_try_json(struct splitter *s, size_t at);  /* { "name": ... } */
enum split_verdict split_try_named(struct splitter *s, size_t at); /* NAME ... { } */
/* The tool of that name, which may have a namespace in front and a number behind; or NULL. */
const struct tool *split_find_tool(const struct splitter *s, const char *name, size_t n);
void split_reset_scan(struct splitter *s, size_t at);
bool split_arguments(struct splitter *s); /* states: false = more text is needed */
bool split_envelope(struct splitter *s);
/* Could a call begin at this bare bracket? */
bool split_is_bare_open(const struct splitter *s, size_t at);
/* From here on JSON arguments of that tool are read; at: their bracket. */
enum split_verdict split_start_arguments(struct splitter *s, const struct tool *tool, size_t at,
                                         int envelope);

/* --- split_elements.c --- */
enum split_verdict split_try_elements(struct splitter *s, size_t at);
bool split_element(struct splitter *s);
bool split_key(struct splitter *s);
bool split_value(struct splitter *s);

/* --- split_python.c --- */
bool split_is_word(char c); /* of a name */
enum split_verdict split_try_python(struct splitter *s, size_t at);
void split_push_python(struct splitter *s, char c);
/* Raw text where a call is expected: code for the tool that runs it, if there is one. */
enum split_verdict split_try_code(struct splitter *s, size_t at);
enum split_verdict split_start_code(struct splitter *s, const struct tool *tool, size_t at);
bool split_code(struct splitter *s);

/* --- split_messages.c --- */
bool split_header(struct splitter *s);
bool split_message(struct splitter *s);

/* --- split_recipient.c --- */
enum split_verdict split_recipient_at(const struct splitter *s, size_t at, const struct tool **tool,
                                      size_t *end);
bool split_recipient(struct splitter *s);
bool split_recipient_message(struct splitter *s);

#endif
