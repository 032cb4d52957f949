/* digests.h - the file of digests: what a model gives in a numeric version. */
#ifndef PLUMB_TESTS_EXACT_DIGESTS_H
#define PLUMB_TESTS_EXACT_DIGESTS_H

#include <stdbool.h>

#define DIGESTS_PATH "tests/exact/digests"

void digests_read(void);
bool digests_write(void);
/* Is it what the list says? is_new: the list says so from now on. */
bool digest_is(const char *model, const char *numerics, const char sum[65], bool is_new);

#endif
