/* philox.h - Philox4x32-10 (Salmon et al., SC 2011): random bits as a pure function of (key, counter); no state to save. */
#ifndef PLUMB_BASE_PHILOX_H
#define PLUMB_BASE_PHILOX_H

#include <stdint.h>

/* out = Philox4x32-10(counter, key). */
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* The draw of one sampling decision: key = seed, counter = (position, choice, kind). Uniform in [0, 1), 24 bits. */
float philox_uniform(uint64_t seed, uint64_t position, uint32_t choice, uint32_t kind);

#endif
