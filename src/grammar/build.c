/* build.c - what a compilation gathers: rules, loops, its bounds and its first failure. */
#include "base/clock.h"
#include "grammar/grammar_int.h"

#include <stdio.h>
#include <string.h>

void build_init(struct build *b, struct buf *notes, struct err *err)
{
    *b = (struct build){ .notes = notes,
                         .err = err,
                         .text = TEXT_JSON,
                         .deadline_us = clock_thread_us() + (int64_t)BUILD_SECONDS * 1000000 };
    arena_init(&b->arena, MEM_CAT_GRAMMAR, 2 * BUILD_ARENA);
}

void build_release(struct build *b)
{
    while (b->spare) {
        struct build_spare *next = b->spare->next;
        mem_free(MEM_CAT_GRAMMAR, b->spare);
        b->spare = next;
    }
    arena_release(&b->arena);
    mem_free(MEM_CAT_GRAMMAR, b->rules);
    mem_free(MEM_CAT_GRAMMAR, b->loops);
    *b = (struct build){ 0 };
}

const struct expr *build_fail(struct build *b, enum err_code code, const char *fmt, ...)
{
    if (b->code == ERR_OK) {
        char text[ERR_TEXT_MAX];
        bool is_path =
            b->where && b->where[0] == '#'; /* other rules' names say nothing to the caller */
        va_list args;
        va_start(args, fmt);
        vsnprintf(text, sizeof(text), fmt, args);
        va_end(args);
        b->code =
            err_set(b->err, code, "%.160s%s%s", is_path ? b->where : "", is_path ? ": " : "", text);
    }
    return expr_none();
}

/* Callers look at `code` now and then only, so what fails still gets memory: a little more, then blocks of its own. */
void *build_alloc(struct build *b, size_t n)
{
    void *p = arena_alloc(&b->arena, n);
    if (b->arena.used > BUILD_ARENA || !p)
        build_fail(b, ERR_FULL, "the grammar needs more than %d MiB to compile",
                   (int)(BUILD_ARENA >> 20));
    if (p)
        return p;
    struct build_spare *spare = mem_alloc(MEM_CAT_GRAMMAR, sizeof(*spare) + n);
    spare->next = b->spare;
    b->spare = spare;
    return spare + 1;
}

bool build_is_late(struct build *b)
{
    if (b->code)
        return true;
    bool asks = ++b->n_asked % 64 == 0; /* the clock is a system call */
    if (b->work > BUILD_WORK || (asks && clock_thread_us() > b->deadline_us))
        build_fail(b, ERR_FULL, "the grammar is too complex: it takes too long to compile");
    return b->code != ERR_OK;
}

void build_note(struct build *b, const char *keyword)
{
    size_t n = strlen(keyword);
    if (!b->notes)
        return;
    for (const char *p = b->notes->data; *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && memcmp(p, keyword, n) == 0)
            return;
        p += len + (p[len] == ',');
    }
    buf_printf(b->notes, "%s%s", b->notes->len > 0 ? "," : "", keyword);
}

int32_t build_new_rule(struct build *b, const char *name)
{
    if (b->n_rules == BUILD_RULES) {
        build_fail(b, ERR_FULL, "the grammar has more than %d rules", BUILD_RULES);
        return 0;
    }
    if (b->n_rules == b->cap_rules) {
        b->cap_rules = b->cap_rules ? 2 * b->cap_rules : 64;
        b->rules = mem_realloc(MEM_CAT_GRAMMAR, b->rules, (size_t)b->cap_rules * sizeof(*b->rules));
    }
    b->rules[b->n_rules] = (struct build_rule){
        .name = memcpy(build_alloc(b, strlen(name) + 1), name, strlen(name) + 1), .automaton = -1
    };
    return b->n_rules++;
}

void build_set_rule(struct build *b, int32_t rule, const struct expr *e)
{
    if (b->code == ERR_OK)
        b->rules[rule].e = e;
}
