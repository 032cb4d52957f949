/* fio.h - the file calls of what must survive a crash, each through one hook, so that tests can fail or kill at every one of them.
 *
 * Without a hook these are the system's calls, retried where a signal cut them short; a write that comes back short goes on until it
 * fails. With one it is asked before each call; a write is made in two halves then, so that a file can be torn.
 * O_DIRECT is a wish: where the file's system or a call's place and length do not allow it, the system's cache is used.
 * Thread: any; the hook is set before threads start. */
#ifndef PLUMB_BASE_FIO_H
#define PLUMB_BASE_FIO_H

#include "base/err.h"

#include <stdint.h>
#include <sys/types.h>

enum fio_op { FIO_OPEN, FIO_READ, FIO_WRITE, FIO_SYNC, FIO_RENAME, FIO_UNLINK, FIO_MKDIR };

/* NULL = none. Returns 0 to go on, else the errno that the call fails with; it may also end the process. */
typedef int (*fio_hook)(void *arg, enum fio_op op, const char *path);
void fio_set_hook(fio_hook hook, void *arg);

/* All: errno is set where they fail (-1, false). path: names the file to the hook and in nothing else where there is a descriptor. */
int fio_open(const char *path, int flags, mode_t mode); /* close-on-exec */
/* Bytes read: less than n only at the file's end. */
ssize_t fio_read(int fd, const char *path, void *to, size_t n, off_t offset);
bool fio_write(int fd, const char *path, const void *from, size_t n, off_t offset);
bool fio_sync(int fd, const char *path);
bool fio_rename(const char *from, const char *to);
bool fio_unlink(const char *path);
bool fio_mkdir(const char *path, mode_t mode); /* true where it is there already */
bool fio_sync_dir(const char *path);           /* names in it that changed are durable then */

/* mkdir -p, for the owner alone; path is as before when it returns. Errors: as fio_error. */
enum err_code fio_make_dirs(char *path, struct err *err) MUST_CHECK;

/* ERR_NOT_FOUND, ERR_FULL (no room: ENOSPC, EDQUOT, EFBIG) or ERR_IO by errno; the text names the path. */
enum err_code fio_error(struct err *err, const char *path);

#endif
