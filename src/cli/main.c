/* main.c - the list of verbs. */
#include "cli/again.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static const struct cli_verb *const verbs[] = {
    &cmd_serve,   &cmd_run,     &cmd_chat,       &cmd_tokenize, &cmd_detokenize, &cmd_template,
    &cmd_inspect, &cmd_convert, &cmd_perplexity, &cmd_verify,   &cmd_bench,      &cmd_version,
};

static void print_help(FILE *out)
{
    fprintf(out, "plumb: a local LLM server\n\nusage: plumb VERB [flags]\n\n");
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        fprintf(out, "  %-12s %s\n", verbs[i]->name, verbs[i]->summary);
    fprintf(out, "\nplumb VERB --help lists a verb's flags.\n");
}

static int run(const struct cli_verb *verb, int argc, char **argv)
{
    struct err err;
    int status = cli_run_verb(verb, argc - 2, argv + 2);
    if (status != CLI_AGAIN)
        return status;
    (void)again_run(argv, &err);
    return cli_fail(verb->name, &err);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    const char *name = strcmp(argv[1], "--version") == 0 ? "version" : argv[1];
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
        if (strcmp(verbs[i]->name, name) == 0)
            return run(verbs[i], argc, argv);
    fprintf(stderr, "plumb: unknown verb '%s'\n", argv[1]);
    print_help(stderr);
    return 2;
}
