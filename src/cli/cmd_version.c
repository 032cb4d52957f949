#include "cli/cli.h"

#include <stdio.h>

static int version_run(void *options)
{
    printf("plumb %s\n", PLUMB_VERSION);
    return 0;
}

const struct cli_verb cmd_version = {
    .name = "version",
    .summary = "print the program's version",
    .usage = "",
    .flags = (const struct cli_flag[]){ { 0 } },
    .run = version_run,
};
