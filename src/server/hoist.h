/* hoist.h - volatile lines at the head of a system prompt, moved behind the conversation, so that what follows them can be kept.
 *
 * Some clients begin their system prompt with a line that differs from request to request: a date, a billing header, a request's id.
 * Nothing behind such a line is ever found again. The rule (off unless --hoist-volatile) moves these lines, unchanged, to the end of the last
 * message that is a user's or a tool's, behind an empty line. It changes the prompt: it is a pure function of the request and the flag.
 *
 * A volatile line is one of at most HOIST_LINES_MAX at the very beginning, at most HOIST_LINE_BYTES long, that is
 *   a date or time: nothing but words for it ("Today's date is", "Current time:", names of days and months, UTC ...) and numbers;
 *   x-anthropic-billing-header: ...
 *   an id: request, session, conversation, trace or message id (also with - or _), then one word of 6 or more with a digit in it. */
#ifndef PLUMB_SERVER_HOIST_H
#define PLUMB_SERVER_HOIST_H

#include "server/api_error.h"
#include "json/json.h"

#define HOIST_LINES_MAX  8
#define HOIST_LINE_BYTES 512

/* Length of the volatile lines at the beginning of text[0..n), with the line feeds and blanks behind them; 0 = there are none, or nothing else
 * is there. *n_lines: how many. */
size_t hoist_find(const char *text, size_t n, int32_t *n_lines);

/* The chat request body as it is after the rule, into doc (zeroed before; released by the caller in any case). *n_lines: how many lines were
 * moved; where it is 0 doc is not set and body stands. False: e. */
bool hoist_apply(const struct json *body, struct json_doc *doc, int32_t *n_lines,
                 struct api_error *e) MUST_CHECK;

#endif
