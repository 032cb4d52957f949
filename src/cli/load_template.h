/* load_template.h - the chat template of a GGUF file, and the variables that are the program's. */
#ifndef PLUMB_CLI_LOAD_TEMPLATE_H
#define PLUMB_CLI_LOAD_TEMPLATE_H

#include "template/template.h"
#include "weights/weights.h"

/* Parse w's tokenizer.chat_template. The template keeps nothing of w.
 * Errors: ERR_NOT_FOUND - the file has none (a base model; text says what to do); else as template_parse. */
enum err_code load_template(const struct weights *w, struct template **out,
                            struct err *err) MUST_CHECK;

/* bos_token and eos_token, as the vocabulary spells them, as an object for template_input.own; a file without one of them leaves
 * it out. Release with json_doc_release. */
enum err_code load_template_own(const struct weights *w, struct json_doc *out,
                                struct err *err) MUST_CHECK;

/* The date that templates see: SOURCE_DATE_EPOCH where set (a render that can be repeated), else the wall clock in local time.
 * Errors: ERR_INVALID - SOURCE_DATE_EPOCH is not a number. */
enum err_code load_template_now(int64_t *now, struct err *err) MUST_CHECK;

#endif
