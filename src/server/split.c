#include "server/split.h"

struct splitter {
    struct split_config config;
    void (*emit)(void *arg, const struct part *p);
    void *arg;
    int64_t fed;
};

struct splitter *splitter_new(const struct split_config *config,
                              void (*emit)(void *arg, const struct part *p), void *arg)
{
    struct splitter *s = mem_alloc(MEM_CAT_REQUEST, sizeof(*s));
    *s = (struct splitter){ .config = *config, .emit = emit, .arg = arg };
    return s;
}

void splitter_free(struct splitter *s)
{
    mem_free(MEM_CAT_REQUEST, s);
}

void splitter_feed(struct splitter *s, const char *text, size_t n)
{
    struct part p = { .kind = PART_CONTENT, .text = text, .n = n, .start = s->fed };
    s->fed += (int64_t)n;
    p.end = s->fed;
    if (n > 0)
        s->emit(s->arg, &p);
}

void splitter_finish(struct splitter *s, bool was_cut)
{
}
