/* replay.c - main of a fuzz target outside V=fuzz: runs stored inputs once.
 *
 * usage: fuzz_X FILE|DIR...   Directories are read one level deep, in name order. A finding ends the process by a signal or a
 * sanitizer; an input that takes over INPUT_SECONDS ends it by SIGALRM. The last line counts the inputs. */
#include <dirent.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUT_SECONDS 30

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static char current[4096];

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    if (!f || fstat(fileno(f), &st) != 0) {
        fprintf(stderr, "replay: cannot read %s\n", path);
        if (f)
            fclose(f);
        return 1;
    }
    size_t n = (size_t)st.st_size;
    uint8_t *data = malloc(n + 1); /* exactly n bytes are passed; + 1 only keeps malloc(0) away */
    uint8_t *exact = n ? realloc(data, n) : data;
    size_t got = fread(exact, 1, n, f);
    fclose(f);
    snprintf(current, sizeof(current), "replay: finding in %s\n", path);
    alarm(INPUT_SECONDS);
    if (got == n)
        LLVMFuzzerTestOneInput(exact, n);
    alarm(0);
    current[0] = '\0';
    free(exact);
    return got != n;
}

/* Runs while the process dies: only write(2). */
static void say_where(void)
{
    if (write(STDERR_FILENO, current, strlen(current)) < 0)
        _exit(1);
}

static void on_signal(int sig)
{
    say_where();
    signal(sig, SIG_DFL);
    raise(sig);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    if (LLVMFuzzerInitialize)
        LLVMFuzzerInitialize(&argc, &argv);
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(say_where);
    signal(SIGALRM, on_signal);
    signal(SIGABRT, on_signal);
    for (int i = 1; i < argc; i++) {
        struct dirent **list;
        int n = scandir(argv[i], &list, NULL, by_name);
        if (n < 0) {
            replay_file(argv[i]) ? failed++ : passed++;
            continue;
        }
        for (int k = 0; k < n; k++) {
            char path[4096];
            snprintf(path, sizeof(path), "%s/%s", argv[i], list[k]->d_name);
            if (list[k]->d_name[0] != '.')
                replay_file(path) ? failed++ : passed++;
            free(list[k]);
        }
        free(list);
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed != 0 || passed == 0;
}
