#include "digests.h"

#include <stdio.h>
#include <string.h>

#define DIGESTS_MAX 64

static struct digest_line {
    char model[64], numerics[64], sum[65];
} digests[DIGESTS_MAX];
static int n_digests;

void digests_read(void)
{
    FILE *f = fopen(DIGESTS_PATH, "r");
    char line[256];
    while (f && fgets(line, sizeof(line), f) && n_digests < DIGESTS_MAX) {
        struct digest_line *d = &digests[n_digests];
        if (line[0] != '#' && sscanf(line, "%63s %63s %64s", d->model, d->numerics, d->sum) == 3)
            n_digests++;
    }
    if (f)
        fclose(f);
}

bool digests_write(void)
{
    FILE *f = fopen(DIGESTS_PATH, "w");
    if (!f)
        return false;
    fprintf(f,
            "# SHA-256 of ids and logits (tests/exact/lab.c, lab_digest): model, numeric version, "
            "digest.\n# A changed line is a new numeric version: say so in the commit.\n"
            "# Written by: build/release/tests/exact/exact --write-digests\n");
    for (int i = 0; i < n_digests; i++)
        fprintf(f, "%s %s %s\n", digests[i].model, digests[i].numerics, digests[i].sum);
    return fclose(f) == 0;
}

bool digest_is(const char *model, const char *numerics, const char sum[65], bool is_new)
{
    int i = 0;
    while (i < n_digests &&
           (strcmp(digests[i].model, model) != 0 || strcmp(digests[i].numerics, numerics) != 0))
        i++;
    if (is_new && i < DIGESTS_MAX) {
        struct digest_line *d = &digests[i];
        snprintf(d->model, sizeof(d->model), "%s", model);
        snprintf(d->numerics, sizeof(d->numerics), "%s", numerics);
        memcpy(d->sum, sum, sizeof(d->sum));
        n_digests += i == n_digests;
    }
    return i < n_digests && strcmp(digests[i].sum, sum) == 0;
}
