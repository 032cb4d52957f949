#include "cli/cli.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_fail(const char *verb, const struct err *err)
{
    fprintf(stderr, "plumb %s: %s\n", verb, err->text);
    return 1;
}

int cli_usage(const char *verb, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "plumb %s: ", verb);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\nplumb %s --help lists its flags\n", verb);
    return 2;
}

static void cli_print_help(const struct cli_verb *verb)
{
    printf("usage: plumb %s %s\n\n%s\n", verb->name, verb->usage, verb->summary);
    if (verb->flags[0].name)
        printf("\n");
    for (const struct cli_flag *f = verb->flags; f->name; f++) {
        char left[64];
        snprintf(left, sizeof(left), "--%s%s%s", f->name, f->value ? " " : "",
                 f->value ? f->value : "");
        printf("  %-26s %s\n", left, f->help);
    }
}

static bool cli_in_range(const struct cli_flag *f, double v)
{
    return (f->min == 0 && f->max == 0) || (v >= f->min && v <= f->max);
}

static int cli_bad_value(const struct cli_verb *verb, const struct cli_flag *f, const char *text)
{
    if (f->min == 0 && f->max == 0)
        return cli_usage(verb->name, "--%s: '%s' is not a %s", f->name, text,
                         f->kind == CLI_FLAG_SIZE ? "size such as 512M" : "number");
    return cli_usage(verb->name, "--%s: '%s' is not a number from %.15g to %.15g", f->name, text,
                     f->min, f->max);
}

static int cli_set_number(const struct cli_verb *verb, const struct cli_flag *f, const char *text,
                          void *out)
{
    char *end;
    errno = 0;
    if (f->kind == CLI_FLAG_FLOAT) {
        double v = strtod(text, &end);
        if (end == text || *end || !isfinite(v) || !cli_in_range(f, v))
            return cli_bad_value(verb, f, text);
        *(double *)out = v;
        return 0;
    }
    long long v = strtoll(text, &end, 10);
    if (end != text && f->kind == CLI_FLAG_SIZE && *end && !end[1]) {
        static const char units[] = "KMG";
        const char *u = strchr(units, *end >= 'a' ? *end - 32 : *end);
        for (long n = u ? u - units + 1 : 0; n > 0; n--)
            if (__builtin_mul_overflow(v, 1024, &v))
                errno = ERANGE;
        end += u ? 1 : 0;
    }
    if (end == text || *end || errno || !cli_in_range(f, (double)v))
        return cli_bad_value(verb, f, text);
    *(int64_t *)out = v;
    return 0;
}

/* Handle argv[*i] (a flag); advances *i over its value. */
static int cli_take_flag(const struct cli_verb *verb, int argc, char **argv, int *i, char *options)
{
    const char *name = argv[*i] + 2;
    const char *eq = strchr(name, '=');
    size_t n = eq ? (size_t)(eq - name) : strlen(name);
    const struct cli_flag *f = verb->flags;
    while (f->name && !(strlen(f->name) == n && memcmp(f->name, name, n) == 0))
        f++;
    if (!f->name)
        return cli_usage(verb->name, "unknown flag '%s'", argv[*i]);
    void *out = options + f->offset;
    if (f->kind == CLI_FLAG_BOOL) {
        if (eq)
            return cli_usage(verb->name, "--%s takes no value", f->name);
        *(bool *)out = true;
        return 0;
    }
    const char *text = eq ? eq + 1 : *i + 1 < argc ? argv[++*i] : NULL;
    if (!text)
        return cli_usage(verb->name, "--%s needs a value: %s", f->name, f->value);
    if (f->kind == CLI_FLAG_STRING) {
        *(const char **)out = text;
        return 0;
    }
    return cli_set_number(verb, f, text, out);
}

int cli_run_verb(const struct cli_verb *verb, int argc, char **argv)
{
    char *options = mem_alloc(MEM_CAT_BASE, verb->options_bytes);
    int n_positional = 0;
    int status = 0;
    if (verb->defaults)
        verb->defaults(options);
    for (int i = 0; i < argc && status == 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            cli_print_help(verb);
            goto out;
        }
        if (strncmp(argv[i], "--", 2) == 0 && argv[i][2]) {
            status = cli_take_flag(verb, argc, argv, &i, options);
        } else if (n_positional == 0 ? verb->positional : n_positional == 1 ? verb->second : NULL) {
            size_t at = n_positional++ ? verb->second_offset : verb->positional_offset;
            *(const char **)(void *)(options + at) = argv[i];
        } else {
            status = cli_usage(verb->name, "unexpected argument '%s'", argv[i]);
        }
    }
    if (status == 0)
        status = verb->run(options);
out:
    mem_free(MEM_CAT_BASE, options);
    return status;
}
