#include "support/test_model.h"
#include "cli/model_path.h"

#include <stdio.h>

bool test_model_path(const char *name, bool is_tiny, char *path, size_t cap)
{
    struct buf b;
    if (is_tiny) {
        snprintf(path, cap, "tests/golden/tiny/%s.gguf", name);
        return true;
    }
    buf_init(&b, MEM_CAT_BASE, cap - 1);
    bool is_found = model_path(name, &b, NULL) == ERR_OK;
    snprintf(path, cap, "%s", b.data);
    buf_release(&b);
    return is_found;
}
