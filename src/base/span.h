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

#endif
