/* template.h - Jinja as published chat templates use it (jinja2 with trim_blocks and lstrip_blocks, as transformers sets it up).
 *
 * A template is parsed once, checked at load, and rendered many times; rendering is bounded in steps, depth and bytes.
 * Every string carries which of its bytes are the caller's; all operations keep it, and the rendered text comes with the list.
 * Immutable after template_parse: any thread may render.
 * The oracle is jinja2's ImmutableSandboxedEnvironment with transformers' own filters and globals. Known differences: a variable
 * given from outside stays visible in inner scopes before the same scope sets it (jinja2 has it undefined there); objects print
 * without an address; a slice of a constant that cannot be sliced is an error; autoescape, include, import, extends, and the
 * filters random, urlize and pprint are refused at load. */
#ifndef PLUMB_TEMPLATE_TEMPLATE_H
#define PLUMB_TEMPLATE_TEMPLATE_H

#include "base/buf.h"
#include "base/span.h"
#include "json/json.h"

struct template;

/* Errors: ERR_INVALID - syntax; ERR_UNSUPPORTED - a construct that this interpreter does not know. Both name line and construct.
 * Free with template_free. `name` is for messages. */
enum err_code template_parse(const char *name, const char *text, size_t len, struct template **out,
                             struct err *err) MUST_CHECK;
void template_free(struct template *t);

struct template_input {
    const struct json
        *caller; /* object: variables whose string bytes are the caller's (messages, tools, ...) */
    const struct json *
        own; /* object or NULL: variables that are the program's (bos_token, add_generation_prompt, ...);
                                  on a clash `own` wins */
    int64_t now; /* seconds for strftime_now, read as UTC: add the zone's offset for local time */
};

struct template_output {
    struct buf text;         /* rendered bytes */
    struct span_list caller; /* which of them are the caller's */
};
void template_output_init(struct template_output *o, size_t max_bytes);
void template_output_release(struct template_output *o);

/* Errors: ERR_INVALID - raise_exception (text is the template's own), or a type error, naming the line; ERR_FULL - a bound on
 * steps, depth or bytes. */
enum err_code template_render(const struct template *t, const struct template_input *in,
                              struct template_output *out, struct err *err) MUST_CHECK;

/* Does the template's text look at this variable ("tools", "enable_thinking")? */
bool template_uses(const struct template *t, const char *variable);

#endif
