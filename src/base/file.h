/* file.h - whole-file reads with a cap, and read-only memory maps. */
#ifndef PLUMB_BASE_FILE_H
#define PLUMB_BASE_FILE_H

#include "base/buf.h"

/* Append the file's bytes to out (which has its own cap). path "-" reads stdin to its end.
 * Errors: ERR_NOT_FOUND, ERR_IO, ERR_FULL; out may hold a part of the file afterwards. */
enum err_code file_read(const char *path, struct buf *out, struct err *err) MUST_CHECK;

struct file_map {
    const uint8_t *data; /* [size], read-only */
    size_t size;
};

/* Map a regular file whole. An empty file is ERR_INVALID. Close with file_map_close. */
enum err_code file_map_open(struct file_map *m, const char *path, struct err *err) MUST_CHECK;
void file_map_close(struct file_map *m); /* closing a zeroed map is fine */

/* Tell the kernel that these bytes are not needed again (their pages leave the resident set). */
void file_map_drop(const struct file_map *m, size_t offset, size_t n);

/* Directory for fetched models: $XDG_CACHE_HOME/plumb, else $HOME/.cache/plumb, given by the caller's environment values. */
enum err_code file_cache_dir(const char *xdg, const char *home, struct buf *out,
                             struct err *err) MUST_CHECK;

/* Directory for what outlives a run: $XDG_STATE_HOME/plumb, else $HOME/.local/state/plumb; as above. */
enum err_code file_state_dir(const char *xdg, const char *home, struct buf *out,
                             struct err *err) MUST_CHECK;

#endif
