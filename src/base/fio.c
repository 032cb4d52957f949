#include "base/fio.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIO_BLOCK 4096 /* multiples of it suit every device */

static fio_hook hook;
static void *hook_arg;

void fio_set_hook(fio_hook fn, void *arg)
{
    hook = fn;
    hook_arg = arg;
}

static bool fio_may(enum fio_op op, const char *path)
{
    int why = hook ? hook(hook_arg, op, path) : 0;
    if (why)
        errno = why;
    return why == 0;
}

int fio_open(const char *path, int flags, mode_t mode)
{
    int fd;
    if (!fio_may(FIO_OPEN, path))
        return -1;
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 && errno == EINVAL && flags & O_DIRECT)
        return fio_open(path, flags & ~O_DIRECT, mode);
    return fd;
}

/* A call has failed as it does where it cannot be made directly: go on through the system's cache. */
static bool fio_leave_direct(int fd)
{
    int flags = errno == EINVAL ? fcntl(fd, F_GETFL) : 0;
    return flags > 0 && flags & O_DIRECT && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

ssize_t fio_read(int fd, const char *path, void *to, size_t n, off_t offset)
{
    size_t done = 0;
    if (!fio_may(FIO_READ, path))
        return -1;
    while (done < n) {
        ssize_t k = pread(fd, (char *)to + done, n - done, offset + (off_t)done);
        if (k < 0 && (errno == EINTR || fio_leave_direct(fd)))
            continue;
        if (k < 0)
            return -1;
        if (k == 0)
            break;
        done += (size_t)k;
    }
    return (ssize_t)done;
}

static bool fio_write_all(int fd, const char *from, size_t n, off_t offset)
{
    while (n > 0) {
        ssize_t k = pwrite(fd, from, n, offset);
        if (k < 0 && (errno == EINTR || fio_leave_direct(fd)))
            continue;
        if (k < 0)
            return false;
        if (k == 0) {
            errno = EIO;
            return false;
        }
        from += k;
        offset += k;
        n -= (size_t)k;
    }
    return true;
}

bool fio_write(int fd, const char *path, const void *from, size_t n, off_t offset)
{
    size_t half = hook ? n / 2 : n;
    if (hook && half >= FIO_BLOCK)
        half -= half % FIO_BLOCK;
    if (!fio_may(FIO_WRITE, path) || !fio_write_all(fd, from, half, offset))
        return false;
    return half == n || (fio_may(FIO_WRITE, path) && fio_write_all(fd, (const char *)from + half,
                                                                   n - half, offset + (off_t)half));
}

bool fio_sync(int fd, const char *path)
{
    return fio_may(FIO_SYNC, path) && fsync(fd) == 0;
}

bool fio_rename(const char *from, const char *to)
{
    return fio_may(FIO_RENAME, to) && rename(from, to) == 0;
}

bool fio_unlink(const char *path)
{
    return fio_may(FIO_UNLINK, path) && unlink(path) == 0;
}

bool fio_mkdir(const char *path, mode_t mode)
{
    struct stat st;
    if (!fio_may(FIO_MKDIR, path))
        return false;
    if (mkdir(path, mode) == 0)
        return true;
    if (errno != EEXIST || stat(path, &st) != 0)
        return false;
    errno = ENOTDIR;
    return S_ISDIR(st.st_mode);
}

enum err_code fio_make_dirs(char *path, struct err *err)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p)
            continue;
        char was = *p;
        *p = '\0';
        enum err_code code = fio_mkdir(path, 0700) ? ERR_OK : fio_error(err, path);
        *p = was;
        if (code || !was)
            return code;
    }
}

bool fio_sync_dir(const char *path)
{
    int fd = fio_open(path, O_RDONLY | O_DIRECTORY, 0);
    if (fd < 0)
        return false;
    bool is_ok = fio_sync(fd, path);
    int why = errno;
    close(fd);
    errno = why;
    return is_ok;
}

enum err_code fio_error(struct err *err, const char *path)
{
    int why = errno;
    enum err_code code = why == ENOENT                                    ? ERR_NOT_FOUND
                         : why == ENOSPC || why == EDQUOT || why == EFBIG ? ERR_FULL
                                                                          : ERR_IO;
    return err_set(err, code, "%s: %s", path, strerror(why));
}
