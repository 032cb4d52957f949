#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum err_code file_error(struct err *err, const char *path)
{
    enum err_code code = errno == ENOENT ? ERR_NOT_FOUND : ERR_IO;
    return err_set(err, code, "%s: %s", path, strerror(errno));
}

enum err_code file_read(const char *path, struct buf *out, struct err *err)
{
    char chunk[16384];
    enum err_code code = ERR_OK;
    int fd = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return file_error(err, path);
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof(chunk));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            code = file_error(err, path);
        if (n <= 0)
            break;
        buf_add(out, chunk, (size_t)n);
        if ((code = buf_check(out, path, err)))
            break;
    }
    if (fd != STDIN_FILENO)
        close(fd);
    return code;
}

enum err_code file_map_open(struct file_map *m, const char *path, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would wait for its writer */
    if (fd < 0)
        return file_error(err, path);
    enum err_code code = ERR_OK;
    if (fstat(fd, &st) < 0) {
        code = file_error(err, path);
    } else if (!S_ISREG(st.st_mode)) {
        code = err_set(err, ERR_INVALID, "%s: not a regular file", path);
    } else if (st.st_size == 0) {
        code = err_set(err, ERR_INVALID, "%s: the file is empty", path);
    } else {
        void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            code = file_error(err, path);
        else
            *m = (struct file_map){ .data = p, .size = (size_t)st.st_size };
    }
    close(fd);
    return code;
}

void file_map_close(struct file_map *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, m->size);
    *m = (struct file_map){ 0 };
}

void file_map_drop(const struct file_map *m, size_t offset, size_t n)
{
    size_t page = 4096;
    size_t a = (offset + page - 1) / page * page;
    size_t b = (offset + n) / page * page;
    if (b > a && b <= (m->size + page - 1) / page * page)
        madvise((void *)(uintptr_t)(m->data + a), b - a, MADV_DONTNEED);
}

static enum err_code file_user_dir(const char *xdg, const char *home, const char *in_home,
                                   const char *what, struct buf *out, struct err *err)
{
    if (xdg && xdg[0] == '/')
        buf_printf(out, "%s/plumb", xdg);
    else if (home && home[0])
        buf_printf(out, "%s/%s/plumb", home, in_home);
    else
        return err_set(err, ERR_NOT_FOUND, "no %s directory: set HOME or XDG_%s_HOME", what,
                       what[0] == 'c' ? "CACHE" : "STATE");
    return buf_check(out, what, err);
}

enum err_code file_cache_dir(const char *xdg, const char *home, struct buf *out, struct err *err)
{
    return file_user_dir(xdg, home, ".cache", "cache", out, err);
}

enum err_code file_state_dir(const char *xdg, const char *home, struct buf *out, struct err *err)
{
    return file_user_dir(xdg, home, ".local/state", "state", out, err);
}
