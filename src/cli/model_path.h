/* model_path.h - what --model means: a path, or the name of a fetched model in the user's cache directory. */
#ifndef PLUMB_CLI_MODEL_PATH_H
#define PLUMB_CLI_MODEL_PATH_H

#include "base/buf.h"

#define MODEL_PATH_DEFAULT "smollm2"

/* Append the path of `model` to out. NULL is MODEL_PATH_DEFAULT. A text with a slash is a path; any other is looked for as
 * NAME.gguf or a directory NAME in $XDG_CACHE_HOME/plumb/models (~/.cache/plumb/models), then as a file in the working directory. Names have no
 * slash and no leading dot, so they do not leave the directory.
 * Errors: ERR_NOT_FOUND - the text lists the names that tools/fetch-models knows. */
enum err_code model_path(const char *model, struct buf *out, struct err *err) MUST_CHECK;

/* As model_path with the values of XDG_CACHE_HOME and HOME given (either may be NULL). */
enum err_code model_path_in(const char *xdg, const char *home, const char *model, struct buf *out,
                            struct err *err) MUST_CHECK;

/* Append the id that the API shows for the model at path: its file's name without ".gguf" and "-00001-of-0000N". */
void model_path_id(const char *path, struct buf *out);

#endif
