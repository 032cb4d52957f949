/* test_model.h - where the models that tests run on are. */
#ifndef PLUMB_TESTS_SUPPORT_TEST_MODEL_H
#define PLUMB_TESTS_SUPPORT_TEST_MODEL_H

#include <stdbool.h>
#include <stddef.h>

/* Path of tests/golden/tiny/NAME.gguf (from the repository's root), or of a fetched model. False: it is not fetched. */
bool test_model_path(const char *name, bool is_tiny, char *path, size_t cap);

#endif
