#include "base/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SINK_HELD ((size_t)1 << 20)

static enum err_code sink_error(struct err *err, const char *path, const char *what)
{
    return err_set(err, ERR_IO, "%s: %s: %s", path, what, strerror(errno));
}

enum err_code sink_open(struct sink *s, const char *path, struct err *err)
{
    char pid[32];
    int n = snprintf(pid, sizeof(pid), ".part-%d", (int)getpid());
    size_t len = strlen(path);
    *s = (struct sink){ .fd = -1, .path = mem_strdup(MEM_CAT_BASE, path) };
    s->part = mem_alloc(MEM_CAT_BASE, len + (size_t)n + 1);
    memcpy(s->part, path, len);
    memcpy(s->part + len, pid, (size_t)n);
    s->held = mem_alloc(MEM_CAT_BASE, SINK_HELD);
    s->fd = open(s->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (s->fd >= 0)
        return ERR_OK;
    enum err_code code = sink_error(err, s->part, "cannot be made");
    sink_abort(s);
    return code;
}

static void sink_release(struct sink *s)
{
    if (s->fd >= 0)
        close(s->fd);
    mem_free(MEM_CAT_BASE, s->path);
    mem_free(MEM_CAT_BASE, s->part);
    mem_free(MEM_CAT_BASE, s->held);
    *s = (struct sink){ .fd = -1 };
}

static enum err_code sink_put(struct sink *s, const char *data, size_t n, struct err *err)
{
    while (n) {
        ssize_t k = write(s->fd, data, n);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return sink_error(err, s->path, "cannot be written");
        data += k;
        n -= (size_t)k;
    }
    return ERR_OK;
}

static enum err_code sink_flush(struct sink *s, struct err *err)
{
    size_t n = s->n_held;
    s->n_held = 0;
    return sink_put(s, s->held, n, err);
}

enum err_code sink_write(struct sink *s, const void *data, size_t n, struct err *err)
{
    enum err_code code = ERR_OK;
    s->n += n;
    if (n > SINK_HELD - s->n_held)
        code = sink_flush(s, err);
    if (code || n > SINK_HELD)
        return code ? code : sink_put(s, data, n, err);
    if (n)
        memcpy(s->held + s->n_held, data, n);
    s->n_held += n;
    return ERR_OK;
}

enum err_code sink_pad(struct sink *s, size_t align, struct err *err)
{
    static const char zeros[64];
    enum err_code code = ERR_OK;
    for (size_t n = (size_t)(-s->n & (align - 1)); n && !code;) {
        size_t k = n < sizeof(zeros) ? n : sizeof(zeros);
        code = sink_write(s, zeros, k, err);
        n -= k;
    }
    return code;
}

enum err_code sink_sync_dir(const char *dir, struct err *err)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return sink_error(err, dir, "cannot be opened");
    enum err_code code = fsync(fd) == 0 ? ERR_OK : sink_error(err, dir, "cannot be synced");
    close(fd);
    return code;
}

static enum err_code sink_sync_parent(const char *path, struct err *err)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? mem_strndup(MEM_CAT_BASE, path, slash == path ? 1 : (size_t)(slash - path))
                      : mem_strdup(MEM_CAT_BASE, ".");
    enum err_code code = sink_sync_dir(dir, err);
    mem_free(MEM_CAT_BASE, dir);
    return code;
}

enum err_code sink_sync(struct sink *s, struct err *err)
{
    enum err_code code = sink_flush(s, err);
    if (!code && fsync(s->fd) != 0)
        code = sink_error(err, s->path, "cannot be written");
    return code;
}

enum err_code sink_commit(struct sink *s, struct err *err)
{
    enum err_code code = sink_sync(s, err);
    if (!code && rename(s->part, s->path) != 0)
        code = sink_error(err, s->path, "cannot get its name");
    if (code) {
        sink_abort(s);
        return code;
    }
    code = sink_sync_parent(s->path, err);
    sink_release(s);
    return code;
}

void sink_abort(struct sink *s)
{
    if (s->part && s->fd >= 0)
        unlink(s->part);
    sink_release(s);
}
