/* tier_space.h - the namespace of a loaded model: what its kept histories are good for. */
#ifndef PLUMB_ENGINE_TIER_SPACE_H
#define PLUMB_ENGINE_TIER_SPACE_H

#include "engine/tier_file.h"
#include "model/model.h"

/* XXH3 over every byte of every tensor, with names and shapes: the digest of weights.h samples them, and a file that is there for years
 * must not be wrong. Reads the whole model file: 0.1 s for 0.5 GB that are in memory. */
void tier_space_content(const struct weights *w, uint8_t out[16]);

struct tier_space_options {
    const struct model *model;
    enum dtype cache_type;
    const char *weights_digest; /* 64 hex digits; shorter ones count as they are */
    const uint8_t *content;     /* [16] */
    const char *numerics;
    const size_t *page_bytes; /* [TIER_GROUPS] */
};
void tier_space_init(struct tier_space *s, const struct tier_space_options *o);

#endif
