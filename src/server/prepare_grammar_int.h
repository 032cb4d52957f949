/* prepare_grammar_int.h - what the files share that make a grammar of a request's tools. */
#ifndef PLUMB_SERVER_PREPARE_GRAMMAR_INT_H
#define PLUMB_SERVER_PREPARE_GRAMMAR_INT_H

#include "server/prepare_int.h"

#include <stdio.h>

/* Can the tools' calls be constrained? Before any of the others. */
bool prepare_calls_check(const struct prepare_generation *g, struct api_error *e);
/* GRAMMAR_KIND_CALLS: calls alone, one or several. is_forced: behind the forced ids. */
void prepare_calls_write(const struct prepare_generation *g, bool is_forced, struct json_writer *w);
/* The arguments of one tool alone, to see what is wrong with them. is_free: any. */
void prepare_calls_write_one(const struct prepare_generation *g, const struct tool *tool,
                             bool is_free, struct json_writer *w);
/* GRAMMAR_KIND_TAGS: calls in free text; also, if they are spelled, as JSON by itself. is_guess: what the arguments are by their schema, of
 * tools that are not strict too. */
void prepare_calls_write_tags(const struct prepare_generation *g, bool is_guess,
                              struct json_writer *w);
bool prepare_calls_are_spelled(const struct prepare_generation *g);
/* GRAMMAR_KIND_MESSAGES, for framed styles. */
void prepare_calls_write_messages(const struct prepare_generation *g, bool is_guess,
                                  struct json_writer *w);

#endif
