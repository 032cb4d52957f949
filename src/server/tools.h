/* tools.h - the tools that a request offers: their names, and what their schemas say of arguments.
 *
 * Owns: a copy of the request's `tools`. Immutable once read. */
#ifndef PLUMB_SERVER_TOOLS_H
#define PLUMB_SERVER_TOOLS_H

#include "server/api_error.h"
#include "json/json.h"

#define TOOLS_NAME_BYTES 128 /* of a tool's name */

enum tools_type { /* of an argument */
                  TOOLS_TYPE_UNKNOWN,
                  TOOLS_TYPE_STRING,
                  TOOLS_TYPE_OTHER, /* the schema says: no string */
};

struct tool {
    const char *name;
    const struct json *schema; /* of its arguments; NULL = none given */
    const char *grammar;       /* that its one argument is a text of; NULL = none */
    bool is_strict,
        is_lark; /* is_lark: the grammar is in Lark's notation; else a regular expression */
};

#define TOOLS_CUSTOM_KEY "input" /* the one argument of a custom tool */

struct tools {
    struct json_doc doc, formats;
    struct tool *tools; /* [n] */
    size_t n;
};

/* Read body's `tools` (chat's form, or flat ones with `name`); tools of other types are left out. *out: NULL where none are there.
 * False: e names the tool (400). Free with tools_free. */
bool tools_read(const struct json *body, struct tools **out, struct api_error *e) MUST_CHECK;
/* What the Responses API's custom tools among `custom` say of their text: their grammars. False: e names the tool (400). */
bool tools_add_formats(struct tools *t, const struct json *custom, struct api_error *e) MUST_CHECK;
void tools_free(struct tools *t);

const struct tool *tools_find(const struct tools *t, const char *name, size_t n); /* or NULL */

/* What the schema says of the argument of that name. */
enum tools_type tools_type_of(const struct tool *tool, const char *key, size_t n);

/* Are these arguments (an object) ones that the schema allows: required ones there, no unknown ones, plain types right? Deeper it
 * does not look. */
bool tools_allows(const struct tool *tool, const struct json *arguments);

/* A raw value as JSON: by the schema's type, repaired if need be; a string where it is nothing else. */
void tools_write_value(enum tools_type type, const char *text, size_t n, struct buf *out);

#endif
