#include "cli/again.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A device driver's files would keep the device's memory. They are closed by exec itself, so that whoever is told of a failure still has
 * them. */
static void close_at_exec(void)
{
    DIR *d = opendir("/proc/self/fd");
    for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char *end;
        long fd = strtol(e->d_name, &end, 10); /* "." and ".." are none */
        if (*end == '\0' && fd > STDERR_FILENO)
            (void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
    }
    if (d)
        closedir(d);
}

enum err_code again_run(char *const *argv, struct err *err)
{
    sigset_t none;
    close_at_exec();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv("/proc/self/exe", argv);
    return err_set(err, ERR_IO, "the program cannot be started anew: %s", strerror(errno));
}
