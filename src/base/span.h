/* span.h - half-open byte ranges [p0, p1) of a text; a sorted, non-overlapping list of them says which bytes are the caller's.
 *
 * The template interpreter makes such a list beside the text it renders; the tokenizer reads it: a control token matches only
 * where no byte is the caller's. */
#ifndef PLUMB_BASE_SPAN_H
#define PLUMB_BASE_SPAN_H

#include <stddef.h>

struct span {
    size_t p0, p1;
};

struct span_list {
    struct span *spans; /* ascending; touching spans are merged */
    size_t n;
};

/* The first of spans [n] that ends behind byte p; n where none does. */
static inline size_t span_at(const struct span *spans, size_t n, size_t p)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (spans[mid].p1 <= p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

#endif
