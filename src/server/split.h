/* split.h - the text of an answer, split into what it means: reasoning, content, tool calls.
 *
 * A splitter is fed the text that an answer shows, in whatever pieces, and emits parts as soon as they are certain. What it emits is
 * the same however the text was cut (the texts of neighbouring parts of one kind joined). Text that is no valid call of a known tool
 * is content; nothing is lost but markers. While it is not clear what a piece of text is, nothing is emitted.
 * Owns: its buffers, the calls' ids. Borrows: the configuration. Not thread-safe. */
#ifndef PLUMB_SERVER_SPLIT_H
#define PLUMB_SERVER_SPLIT_H

#include "base/buf.h"

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

struct split_config {
    uint64_t id_seed; /* of the calls' ids: the same seed gives the same ids */
};

struct splitter;

/* config is borrowed. emit's part is valid during the call. Free with splitter_free. */
struct splitter *splitter_new(const struct split_config *config,
                              void (*emit)(void *arg, const struct part *p), void *arg);
void splitter_free(struct splitter *s);
void splitter_feed(struct splitter *s, const char *text, size_t n);
/* The answer ends. was_cut: by its length, so that a call in the middle stays as it is. */
void splitter_finish(struct splitter *s, bool was_cut);

#endif
