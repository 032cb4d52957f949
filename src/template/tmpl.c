/* tmpl.c - loading, rendering, and the bounds of a render. */
#include "template/template_ast.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A template file is some 4 to 20 KB; the tree of one takes about 40 times its size. */
#define TMPL_TEXT_MAX ((size_t)1 << 20)
#define TMPL_TREE_MAX ((size_t)64 << 20)

/* --- errors and bounds --- */

enum err_code tmpl_fail(struct env *e, const char *fmt, ...)
{
    char text[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return err_set(e->err, ERR_INVALID, "%s line %d: %s", e->t->name, e->line, text);
}

enum err_code tmpl_full(struct env *e, const char *what)
{
    return err_set(e->err, ERR_FULL, "%s line %d: %s", e->t->name, e->line, what);
}

enum err_code tmpl_step(struct env *e, size_t n)
{
    if ((uint64_t)n > (uint64_t)e->steps) {
        e->steps = 0;
        return tmpl_full(e, "template takes too many steps");
    }
    e->steps -= (int64_t)n;
    return ERR_OK;
}

void *tmpl_alloc(struct env *e, size_t n)
{
    void *p = arena_alloc(&e->arena, n);
    if (!p)
        e->is_full = true;
    return p;
}

void *tmpl_alloc_array(struct env *e, size_t n, size_t size)
{
    if (n > TMPL_BYTES_MAX / size) {
        e->is_full = true;
        return NULL;
    }
    return tmpl_alloc(e, n * size);
}

enum err_code tmpl_check(struct env *e)
{
    if (!e->is_full)
        return ERR_OK;
    return tmpl_full(e, "template takes too much memory");
}

/* --- loading --- */

enum err_code template_parse(const char *name, const char *text, size_t len, struct template **out,
                             struct err *err)
{
    struct template *t = mem_alloc(MEM_CAT_TEMPLATE, sizeof(*t));
    struct parser p = { .t = t, .err = err };
    enum err_code code = ERR_OK;
    t->name = mem_strdup(MEM_CAT_TEMPLATE, name);
    arena_init(&t->arena, MEM_CAT_TEMPLATE, TMPL_TREE_MAX);
    map_init(&t->names, MEM_CAT_TEMPLATE);
    map_init(&p.blocks, MEM_CAT_TEMPLATE);
    if (len > TMPL_TEXT_MAX)
        code = err_set(err, ERR_FULL, "%s: template has %zu bytes, more than %zu", name, len,
                       TMPL_TEXT_MAX);
    else if (!utf8_is_valid(text, len))
        code = err_set(err, ERR_INVALID, "%s: template is not UTF-8", name);
    if (!code)
        code = tmpl_lex(name, text, len, &t->arena, &p.tokens, err);
    if (!code)
        code = parse_template(&p);
    map_release(&p.blocks);
    if (code) {
        template_free(t);
        return code;
    }
    *out = t;
    return ERR_OK;
}

void template_free(struct template *t)
{
    if (!t)
        return;
    map_release(&t->names);
    arena_release(&t->arena);
    mem_free(MEM_CAT_TEMPLATE, t->name);
    mem_free(MEM_CAT_TEMPLATE, t);
}

bool template_uses(const struct template *t, const char *variable)
{
    int32_t id = map_get(&t->names, variable, strlen(variable));
    return id >= 0 && t->is_loaded[id];
}

/* --- rendering --- */

void template_output_init(struct template_output *o, size_t max_bytes)
{
    *o = (struct template_output){ 0 };
    buf_init(&o->text, MEM_CAT_REQUEST, max_bytes);
}

void template_output_release(struct template_output *o)
{
    buf_release(&o->text);
    mem_free(MEM_CAT_REQUEST, o->caller.spans);
    o->caller = (struct span_list){ 0 };
}

/* Variables of obj that the template names. */
static enum err_code tmpl_bind_input(struct env *e, const struct json *obj, bool is_caller)
{
    if (!json_is(obj, JSON_TYPE_OBJECT))
        return ERR_OK;
    for (size_t i = 0; i < obj->n; i++) {
        const struct json_member *m = &obj->members[i];
        int32_t id = map_get(&e->t->names, m->key, m->key_len);
        if (id >= 0)
            TRY(tmpl_from_json(e, &m->value, is_caller, &e->root[id]));
    }
    return ERR_OK;
}

static enum err_code tmpl_bind_globals(struct env *e)
{
    e->root = tmpl_alloc_array(e, (size_t)e->t->n_names + 1, sizeof(*e->root));
    if (!e->root)
        return tmpl_check(e);
    for (size_t i = 0; i < tmpl_n_globals; i++) {
        const struct func *f = tmpl_globals[i];
        int32_t id = map_get(&e->t->names, f->name, strlen(f->name));
        if (id >= 0)
            e->root[id] = (struct value){ .type = V_FUNC, .func = f };
    }
    return ERR_OK;
}

static enum err_code tmpl_copy_out(struct env *e, const struct sb *b, struct template_output *out)
{
    buf_reset(&out->text);
    mem_free(MEM_CAT_REQUEST, out->caller.spans);
    out->caller = (struct span_list){ 0 };
    buf_add(&out->text, b->data, b->len);
    TRY(buf_check(&out->text, "rendered template", e->err));
    if (b->n_spans == 0)
        return ERR_OK;
    out->caller.spans = mem_try_array(MEM_CAT_REQUEST, b->n_spans, sizeof(struct span));
    if (!out->caller.spans)
        return err_set(e->err, ERR_NOMEM, "rendered template: no memory for its spans");
    memcpy(out->caller.spans, b->spans, b->n_spans * sizeof(struct span));
    out->caller.n = b->n_spans;
    return ERR_OK;
}

enum err_code template_render(const struct template *t, const struct template_input *in,
                              struct template_output *out, struct err *err)
{
    return tmpl_render(t, in, TMPL_STEPS_MAX, TMPL_BYTES_MAX, out, err);
}

enum err_code tmpl_render(const struct template *t, const struct template_input *in, int64_t steps,
                          size_t bytes, struct template_output *out, struct err *err)
{
    struct env e = { .t = t, .err = err, .line = 1, .steps = steps, .now = in->now };
    struct sb text;
    enum flow flow = FLOW_ON;
    arena_init(&e.arena, MEM_CAT_REQUEST, bytes);
    sb_init(&text, &e);
    e.out = e.main_out = &text;
    e.out_max = out->text.max;
    enum err_code code = tmpl_bind_globals(&e);
    if (!code)
        code = tmpl_bind_input(&e, in->caller, true);
    if (!code)
        code = tmpl_bind_input(&e, in->own, false);
    if (!code)
        code = tmpl_exec_list(&e, &t->body, &flow);
    if (!code)
        code = tmpl_check(&e);
    if (!code)
        code = tmpl_copy_out(&e, &text, out);
    arena_release(&e.arena);
    return code;
}
