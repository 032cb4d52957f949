/* cli.h - verbs of the program: each is one file cmd_<verb>.c with one const descriptor; main.c lists them.
 *
 * Flags are tables: parsing, --help and docs/cli.md come from the same rows. cli/ is the only place that wires concrete
 * backends, reads the environment, and calls exit. */
#ifndef PLUMB_CLI_CLI_H
#define PLUMB_CLI_CLI_H

#include "base/err.h"

#include <stdint.h>

enum cli_flag_kind {
    CLI_FLAG_BOOL,   /* --name: *(bool *)out = true */
    CLI_FLAG_STRING, /* --name VALUE: *(const char **)out, borrowed from argv */
    CLI_FLAG_INT,    /* --name N: *(int64_t *)out, in [min, max] */
    CLI_FLAG_FLOAT,  /* --name X: *(double *)out, in [min, max] */
    CLI_FLAG_SIZE,   /* --name 512M: *(int64_t *)out in bytes, suffix K M G (1024) */
};

struct cli_flag {
    const char *name;  /* without the dashes */
    const char *value; /* placeholder: "FILE", "N"; NULL for a bool */
    const char *help;  /* one sentence; says the default */
    enum cli_flag_kind kind;
    size_t offset;   /* of the field in the verb's options struct */
    double min, max; /* INT, FLOAT, SIZE; both 0 = any value */
};

struct cli_verb {
    const char *name;
    const char *summary;      /* one line for `plumb --help` */
    const char *usage;        /* after "plumb NAME": "--model M --prompt TEXT" */
    const char *positional;   /* name of the one positional argument ("MODEL"), or NULL */
    size_t positional_offset; /* const char * field */
    const char *second;       /* of another behind it, or NULL */
    size_t second_offset;
    const struct cli_flag *flags; /* ends with name NULL */
    size_t options_bytes;
    void (*defaults)(void *options); /* options arrive zeroed; may be NULL */
    int (*run)(void *options);       /* exit status: 0 ok, 1 failure (message printed), 2 usage */
};

/* Print "plumb VERB: text" to stderr and return 1. */
int cli_fail(const char *verb, const struct err *err);
/* Print a usage error, pointing at --help, and return 2. */
int cli_usage(const char *verb, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* What a verb's run returns to have the program started anew in this process' place (again.h); an exit status otherwise. */
#define CLI_AGAIN 256

/* Parse argv (without program and verb) into options and run the verb. */
int cli_run_verb(const struct cli_verb *verb, int argc, char **argv);

extern const struct cli_verb cmd_serve;
extern const struct cli_verb cmd_run;
extern const struct cli_verb cmd_chat;
extern const struct cli_verb cmd_tokenize;
extern const struct cli_verb cmd_detokenize;
extern const struct cli_verb cmd_template;
extern const struct cli_verb cmd_inspect;
extern const struct cli_verb cmd_convert;
extern const struct cli_verb cmd_perplexity;
extern const struct cli_verb cmd_verify;
extern const struct cli_verb cmd_bench;
extern const struct cli_verb cmd_version;

#endif
