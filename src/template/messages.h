/* messages.h - a request's chat messages in the form that templates are written for.
 *
 * Clients send what an API allows; templates expect what Hugging Face's transformers hands them, and many fail on the rest:
 * - content that is null or missing is "" (templates concatenate it);
 * - other null members are left out (transformers does so);
 * - arguments of a tool call that are a JSON object in a string are that object, "" and null are {}; a string that is no object
 *   stays as it is;
 * - reasoning is found under the first of reasoning_content, thinking, reasoning, and handed over as both reasoning_content
 *   and thinking;
 * - content in parts that are all text becomes one string, a newline between them, where asked for. */
#ifndef PLUMB_TEMPLATE_MESSAGES_H
#define PLUMB_TEMPLATE_MESSAGES_H

#include "template/template.h"

enum messages_flags {
    MESSAGES_FLAG_JOIN_TEXT = 1 << 0, /* for a template that does not take parts */
};

/* Make out->root the messages as above. Strings are borrowed from `messages`, which must outlive out; values that are made here live
 * in out, at most max_bytes of them. Release with json_doc_release (fine after failure).
 * Errors: ERR_INVALID - not an array of objects (text names the index); ERR_FULL. */
enum err_code messages_normalise(const struct json *messages, unsigned flags, size_t max_bytes,
                                 struct json_doc *out, struct err *err) MUST_CHECK;

/* Does the template read content given in parts? Found by rendering a message in parts: its text must come out, and not the
 * spelling of the parts. Cost: one short render. */
bool messages_takes_parts(const struct template *t);

#endif
