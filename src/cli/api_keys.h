/* api_keys.h - the keys that a server asks for, from a file and from the environment. Never from the command line: everyone on the
 * machine can read that. */
#ifndef PLUMB_CLI_API_KEYS_H
#define PLUMB_CLI_API_KEYS_H

#include "base/err.h"

#include <stdint.h>

struct api_keys {
    char *text;         /* what the keys point into */
    const char **items; /* [n] */
    int32_t n;
};

/* path: one key a line, blanks around it ignored; empty lines and those that begin with # are none. NULL: no file. The value of
 * PLUMB_API_KEY, if it is set, is one more. Errors: of reading the file; ERR_INVALID - a file without keys. */
enum err_code api_keys_open(struct api_keys *k, const char *path, struct err *err) MUST_CHECK;
void api_keys_close(struct api_keys *k); /* and wipes them; a zeroed struct is fine */

#endif
