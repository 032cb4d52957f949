/* again.h - the program once more, in the place of this process: for what only a new process has (a GPU after an error that its driver keeps
 * to the process that made it).
 *
 * Thread: the last one that does anything; the others end with what they are at. */
#ifndef PLUMB_CLI_AGAIN_H
#define PLUMB_CLI_AGAIN_H

#include "base/err.h"

/* Start /proc/self/exe with these arguments, the same environment and standard streams; all other files are closed, no signal is blocked.
 * Returns where that fails: ERR_IO. */
enum err_code again_run(char *const *argv, struct err *err);

#endif
