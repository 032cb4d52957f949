/* schema.h - types of JSON values in a short notation, and as JSON Schema (2020-12), for the description of the API.
 *
 *   string string(1,64) int int(0) number(0,1) bool null any object     with least and greatest; strings: characters
 *   word(1,64)            a string of letters, digits and "-_.:"
 *   'text'                this string alone
 *   {name: T, more?: T}   an object; "?": may be absent. Other members are allowed.
 *   map(T)  ids(T)        an object of any names; of token ids
 *   T[]  T[1]  T[1,16]    an array; with least and greatest number of items
 *   A | B                 one of them        (T)   grouping
 *   Name                  the schema of that name (upper case first), "#/components/schemas/Name"
 */
#ifndef PLUMB_SERVER_SCHEMA_H
#define PLUMB_SERVER_SCHEMA_H

#include "base/buf.h"

/* Append the schema of a type, one JSON object. doc: its description, or NULL. is_nullable: null is one of the values.
 * A type that is not well formed is a bug. */
void schema_write(struct buf *out, const char *type, bool is_nullable, const char *doc);

#endif
