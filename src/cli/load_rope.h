/* load_rope.h - flags that stretch a model's positions: they stand in the place of the file's keys, so that they are part of the
 * weights' digest, and with it of namespaces and fingerprints. */
#ifndef PLUMB_CLI_LOAD_ROPE_H
#define PLUMB_CLI_LOAD_ROPE_H

#include "cli/cli.h"
#include "weights/weights.h"

/* NULL and 0 = not given. */
struct load_rope {
    const char *scaling; /* none, linear, yarn */
    double scale, base, ext_factor, attn_factor, beta_fast, beta_slow;
    int64_t orig_ctx;
};

#define LOAD_ROPE_FLAG(name, value, help, kind, type, field, min, max)      \
    {                                                                       \
        name, value, help, CLI_FLAG_##kind, offsetof(type, field), min, max \
    }
#define LOAD_ROPE_FLAGS(type, f)                                                                 \
    LOAD_ROPE_FLAG("rope-scaling", "KIND",                                                       \
                   "how positions are stretched: none, linear or yarn; default the model's",     \
                   STRING, type, f.scaling, 0, 0),                                               \
        LOAD_ROPE_FLAG("rope-scale", "X",                                                        \
                       "texts may be so many times longer; without a kind linear", FLOAT, type,  \
                       f.scale, 1e-3, 1048576),                                                  \
        LOAD_ROPE_FLAG("rope-base", "X", "base of the rotary frequencies; default the model's",  \
                       FLOAT, type, f.base, 1.0001, 1e11),                                       \
        LOAD_ROPE_FLAG("yarn-orig-ctx", "N",                                                     \
                       "yarn: context before it was stretched; default the model's", INT, type,  \
                       f.orig_ctx, 1, 1 << 28),                                                  \
        LOAD_ROPE_FLAG("yarn-ext-factor", "X", "yarn: share of the mix; default 1", FLOAT, type, \
                       f.ext_factor, 1e-6, 1),                                                   \
        LOAD_ROPE_FLAG("yarn-attn-factor", "X",                                                  \
                       "yarn: multiplies the published magnitude; default 1", FLOAT, type,       \
                       f.attn_factor, 1e-6, 1e6),                                                \
        LOAD_ROPE_FLAG("yarn-beta-fast", "X", "yarn: turns over which a pair stays; default 32", \
                       FLOAT, type, f.beta_fast, 1e-6, 1e6),                                     \
        LOAD_ROPE_FLAG("yarn-beta-slow", "X",                                                    \
                       "yarn: turns under which a pair is stretched whole; default 1", FLOAT,    \
                       type, f.beta_slow, 1e-6, 1e6)

/* Put what is given into the keys of w, which model_adapt has seen.
 * Errors: ERR_INVALID - an unknown kind, a yarn flag without yarn; ERR_UNSUPPORTED - longrope models; ERR_NOMEM. */
enum err_code load_rope(struct weights *w, const struct load_rope *o, struct err *err) MUST_CHECK;

/* Warn where a context is longer than the model was trained for and nothing stretches it, naming what helps. */
void load_rope_warn(const struct weights *w, const struct load_rope *o, int64_t n_ctx,
                    int64_t n_ctx_train);

#endif
