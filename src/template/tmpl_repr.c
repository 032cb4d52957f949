/* tmpl_repr.c - str(), repr() and JSON of values, as Python writes them. */
#include "template/template_ast.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- repr --- */

static void repr_char(struct sb *b, const struct str *s, size_t at, size_t len, uint32_t cp,
                      char quote, bool is_caller)
{
    char text[16];
    if (cp == (uint32_t)quote || cp == '\\')
        snprintf(text, sizeof(text), "\\%c", (char)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        snprintf(text, sizeof(text), "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (uni_is_printable(cp)) {
        sb_add_part(b, s, at, at + len);
        return;
    } else if (cp < 0x100)
        snprintf(text, sizeof(text), "\\x%02x", cp);
    else if (cp < 0x10000)
        snprintf(text, sizeof(text), "\\u%04x", cp);
    else
        snprintf(text, sizeof(text), "\\U%08x", cp);
    sb_add_cstr(b, text, is_caller);
}

static void repr_str(struct sb *b, const struct str *s)
{
    bool has_single = memchr(s->s, '\'', s->n) != NULL,
         has_double = memchr(s->s, '"', s->n) != NULL;
    char quote = has_single && !has_double ? '"' : '\'';
    size_t run = 0;
    sb_add(b, &quote, 1, s->is_caller);
    for (size_t at = 0; at < s->n;) {
        uint32_t cp;
        size_t len = utf8_decode(s->s + at, s->n - at, &cp);
        if (len == 1 && cp >= 0x20 && cp < 0x7F && cp != (uint32_t)quote && cp != '\\') {
            at++; /* plain: goes out with its run */
            continue;
        }
        sb_add_part(b, s, run, at);
        len = len ? len : 1;
        repr_char(b, s, at, len, cp, quote, str_is_caller_at(s, at));
        at += len;
        run = at;
    }
    sb_add_part(b, s, run, s->n);
    sb_add(b, &quote, 1, s->is_caller);
}

static void repr_items(struct sb *b, const struct value *v, int depth)
{
    bool is_list = v->type == V_LIST;
    sb_add_cstr(b, is_list ? "[" : "(", v->is_caller);
    for (size_t i = 0; i < v->seq->n; i++) {
        if (i)
            sb_add_cstr(b, ", ", v->is_caller);
        tmpl_add_repr(b, &v->seq->items[i], depth + 1);
    }
    if (!is_list && v->seq->n == 1)
        sb_add_cstr(b, ",", v->is_caller);
    sb_add_cstr(b, is_list ? "]" : ")", v->is_caller);
}

static void repr_dict(struct sb *b, const struct dict *d, bool is_caller, int depth)
{
    sb_add_cstr(b, "{", is_caller);
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            sb_add_cstr(b, ", ", is_caller);
        tmpl_add_repr(b, &d->entries[i].key, depth + 1);
        sb_add_cstr(b, ": ", is_caller);
        tmpl_add_repr(b, &d->entries[i].value, depth + 1);
    }
    sb_add_cstr(b, "}", is_caller);
}

static void repr_view(struct sb *b, const struct view *v, int depth)
{
    static const char *const names[] = { "dict_keys([", "dict_values([", "dict_items([" };
    sb_add_cstr(b, names[v->kind], v->is_caller);
    for (size_t i = 0; i < v->dict->n; i++) {
        const struct dict_entry *entry = &v->dict->entries[i];
        if (i)
            sb_add_cstr(b, ", ", v->is_caller);
        if (v->kind == VIEW_ITEMS)
            sb_add_cstr(b, "(", v->is_caller);
        if (v->kind != VIEW_VALUES)
            tmpl_add_repr(b, &entry->key, depth + 1);
        if (v->kind == VIEW_ITEMS)
            sb_add_cstr(b, ", ", v->is_caller);
        if (v->kind != VIEW_KEYS)
            tmpl_add_repr(b, &entry->value, depth + 1);
        if (v->kind == VIEW_ITEMS)
            sb_add_cstr(b, ")", v->is_caller);
    }
    sb_add_cstr(b, "])", v->is_caller);
}

/* What has no text of its own in Python but an address: its type and name. */
static void repr_object(struct sb *b, const struct value *v)
{
    const struct str *name = v->type == V_MACRO ? v->macro->def->name : NULL;
    if (v->type == V_MACRO) {
        sb_add_cstr(b, "<Macro ", false);
        if (name) {
            sb_add_cstr(b, "'", false);
            sb_add_str(b, name);
            sb_add_cstr(b, "'", false);
        } else {
            sb_add_cstr(b, "anonymous", false);
        }
        sb_add_cstr(b, ">", false);
        return;
    }
    sb_add_cstr(b, "<", false);
    sb_add_cstr(b, tmpl_type_name(v), false);
    if (v->type == V_METHOD)
        sb_add_cstr(b, v->bound->method->name, false);
    sb_add_cstr(b, ">", false);
}

static void repr_number(struct sb *b, const struct value *v)
{
    char text[32];
    if (v->type == V_BIG)
        sb_add(b, v->s->s, v->s->n, v->is_caller);
    else if (v->type == V_FLOAT)
        sb_add(b, text, json_format_double(v->f, text), v->is_caller);
    else
        sb_add(b, text, (size_t)snprintf(text, sizeof(text), "%lld", (long long)v->i),
               v->is_caller);
}

static void repr_range(struct sb *b, const struct range *r)
{
    char text[96];
    int n =
        snprintf(text, sizeof(text), "range(%lld, %lld", (long long)r->start, (long long)r->stop);
    if (r->step != 1)
        n += snprintf(text + n, sizeof(text) - (size_t)n, ", %lld", (long long)r->step);
    sb_add(b, text, (size_t)n, false);
    sb_add_cstr(b, ")", false);
}

void tmpl_add_repr(struct sb *b, const struct value *v, int depth)
{
    if (depth > TMPL_DEPTH_MAX || b->e->steps <= 0) {
        b->e->is_full = true;
        return;
    }
    b->e->steps -= 4;
    switch (v->type) {
    case V_MISSING:
    case V_UNDEF:
        sb_add_cstr(b, "Undefined", false);
        break;
    case V_NONE:
        sb_add_cstr(b, "None", v->is_caller);
        break;
    case V_BOOL:
        sb_add_cstr(b, v->b ? "True" : "False", v->is_caller);
        break;
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        repr_number(b, v);
        break;
    case V_STR:
        if (v->s->is_markup)
            sb_add_cstr(b, "Markup(", false);
        repr_str(b, v->s);
        if (v->s->is_markup)
            sb_add_cstr(b, ")", false);
        break;
    case V_LIST:
    case V_TUPLE:
        repr_items(b, v, depth);
        break;
    case V_DICT:
        repr_dict(b, v->dict, v->is_caller, depth);
        break;
    case V_NAMESPACE:
        sb_add_cstr(b, "<Namespace ", false);
        repr_dict(b, v->dict, false, depth);
        sb_add_cstr(b, ">", false);
        break;
    case V_VIEW:
        repr_view(b, v->view, depth);
        break;
    case V_RANGE:
        repr_range(b, v->range);
        break;
    default:
        repr_object(b, v);
        break;
    }
}

void tmpl_add_text(struct sb *b, const struct value *v)
{
    if (v->type == V_STR)
        sb_add_str(b, v->s);
    else if (v->type != V_UNDEF)
        tmpl_add_repr(b, v, 0);
}

enum err_code tmpl_to_text(struct env *e, const struct value *v, struct value *out)
{
    struct sb b;
    if (v->type == V_STR) {
        *out = *v;
        return ERR_OK;
    }
    sb_init(&b, e);
    tmpl_add_text(&b, v);
    return sb_finish(&b, out);
}

/* --- JSON --- */

struct dump {
    struct env *e;
    struct sb b;
    bool is_ascii, is_sorted, has_indent;
    const struct str *indent;
    const struct str *item_sep, *key_sep;
};

static enum err_code dump_value(struct dump *d, const struct value *v, int depth);

/* Escaped text for a character that does not stand for itself; "" if it does. */
static void dump_escape(uint32_t cp, bool is_ascii, char out[16])
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *known = cp && cp < 0x80 ? strchr(from, (int)cp) : NULL;
    out[0] = '\0';
    if (known)
        snprintf(out, 16, "\\%c", to[known - from]);
    else if (cp < 0x20 || (is_ascii && cp > 0x7E && cp < 0x10000))
        snprintf(out, 16, "\\u%04x", cp);
    else if (is_ascii && cp >= 0x10000)
        snprintf(out, 16, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                 0xDC00 + ((cp - 0x10000) & 0x3FF));
}

static void dump_str(struct dump *d, const struct str *s)
{
    size_t run = 0;
    sb_add_cstr(&d->b, "\"", s->is_caller);
    for (size_t at = 0; at < s->n;) {
        uint32_t cp;
        char text[16];
        size_t len = utf8_decode(s->s + at, s->n - at, &cp);
        len = len ? len : utf8_bad_length(s->s + at, s->n - at);
        dump_escape(cp, d->is_ascii, text);
        if (text[0]) {
            sb_add_part(&d->b, s, run, at);
            sb_add_cstr(&d->b, text, str_is_caller_at(s, at));
            run = at + len;
        }
        at += len;
    }
    sb_add_part(&d->b, s, run, s->n);
    sb_add_cstr(&d->b, "\"", s->is_caller);
}

static void dump_number(struct dump *d, const struct value *v)
{
    if (v->type == V_FLOAT && isnan(v->f))
        sb_add_cstr(&d->b, "NaN", v->is_caller);
    else if (v->type == V_FLOAT && isinf(v->f))
        sb_add_cstr(&d->b, v->f < 0 ? "-Infinity" : "Infinity", v->is_caller);
    else
        repr_number(&d->b, v);
}

static void dump_newline(struct dump *d, int depth, bool is_caller)
{
    if (!d->has_indent)
        return;
    sb_add_cstr(&d->b, "\n", is_caller);
    for (int i = 0; i < depth; i++)
        sb_add(&d->b, d->indent->s, d->indent->n, is_caller || d->indent->is_caller);
}

static void dump_sep(struct dump *d, const struct str *sep, bool is_caller)
{
    sb_add(&d->b, sep->s, sep->n, is_caller || str_is_touched(sep));
}

static enum err_code dump_list(struct dump *d, const struct value *v, int depth)
{
    sb_add_cstr(&d->b, "[", v->is_caller);
    for (size_t i = 0; i < v->seq->n; i++) {
        if (i)
            dump_sep(d, d->item_sep, v->is_caller);
        dump_newline(d, depth + 1, v->is_caller);
        TRY(dump_value(d, &v->seq->items[i], depth + 1));
    }
    if (v->seq->n)
        dump_newline(d, depth, v->is_caller);
    sb_add_cstr(&d->b, "]", v->is_caller);
    return ERR_OK;
}

static enum err_code dump_key(struct dump *d, const struct value *key)
{
    if (key->type == V_STR) {
        dump_str(d, key->s);
        return ERR_OK;
    }
    if (!tmpl_is_number(key) && key->type != V_NONE)
        return tmpl_fail(d->e, "TypeError: keys must be str, int, float, bool or None, not %s",
                         tmpl_type_name(key));
    sb_add_cstr(&d->b, "\"", key->is_caller);
    TRY(dump_value(d, key, 0));
    sb_add_cstr(&d->b, "\"", key->is_caller);
    return ERR_OK;
}

/* The entries' order: as they are, or by key. */
static enum err_code dump_order(struct dump *d, const struct dict *dict, struct value *order)
{
    struct value keys;
    TRY(tmpl_list_new(d->e, V_LIST, dict->n, order));
    TRY(tmpl_list_new(d->e, V_LIST, dict->n, &keys));
    for (size_t i = 0; i < dict->n; i++) {
        TRY(tmpl_push(d->e, order, tmpl_int((int64_t)i, false)));
        TRY(tmpl_push(d->e, &keys, dict->entries[i].key));
    }
    if (!d->is_sorted)
        return ERR_OK;
    return tmpl_sort(d->e, order->seq->items, keys.seq->items, dict->n, false);
}

static enum err_code dump_dict(struct dump *d, const struct value *v, int depth)
{
    struct value order;
    TRY(dump_order(d, v->dict, &order));
    sb_add_cstr(&d->b, "{", v->is_caller);
    for (size_t i = 0; i < v->dict->n; i++) {
        const struct dict_entry *entry = &v->dict->entries[order.seq->items[i].i];
        if (i)
            dump_sep(d, d->item_sep, v->is_caller);
        dump_newline(d, depth + 1, v->is_caller);
        TRY(dump_key(d, &entry->key));
        dump_sep(d, d->key_sep, v->is_caller);
        TRY(dump_value(d, &entry->value, depth + 1));
    }
    if (v->dict->n)
        dump_newline(d, depth, v->is_caller);
    sb_add_cstr(&d->b, "}", v->is_caller);
    return ERR_OK;
}

static enum err_code dump_value(struct dump *d, const struct value *v, int depth)
{
    TRY(tmpl_step(d->e, 1));
    if (depth > TMPL_DEPTH_MAX / 4)
        return tmpl_full(d->e, "tojson: values are nested too deep");
    switch (v->type) {
    case V_NONE:
        sb_add_cstr(&d->b, "null", v->is_caller);
        return ERR_OK;
    case V_BOOL:
        sb_add_cstr(&d->b, v->b ? "true" : "false", v->is_caller);
        return ERR_OK;
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        dump_number(d, v);
        return ERR_OK;
    case V_STR:
        dump_str(d, v->s);
        return ERR_OK;
    case V_LIST:
    case V_TUPLE:
        return dump_list(d, v, depth);
    case V_DICT:
        return dump_dict(d, v, depth);
    default:
        return tmpl_fail(d->e, "TypeError: Object of type %s is not JSON serializable",
                         tmpl_type_name(v));
    }
}

static enum err_code dump_separators(struct dump *d, const struct value *v)
{
    struct value list;
    TRY(tmpl_to_list(d->e, v, &list));
    if (list.seq->n != 2)
        return tmpl_fail(d->e, "ValueError: tojson: separators must be two strings");
    TRY(tmpl_arg_str(d->e, &list.seq->items[0], &d->item_sep));
    return tmpl_arg_str(d->e, &list.seq->items[1], &d->key_sep);
}

static enum err_code dump_indent(struct dump *d, const struct value *v)
{
    struct value text;
    struct sb b;
    int64_t n;
    d->has_indent = true;
    if (v->type == V_STR) {
        d->indent = v->s;
        return ERR_OK;
    }
    TRY(tmpl_arg_int(d->e, v, &n));
    if (n > 0 && (uint64_t)n > TMPL_BYTES_MAX)
        return tmpl_full(d->e, "template takes too much memory");
    sb_init(&b, d->e);
    sb_fill(&b, ' ', n > 0 ? (size_t)n : 0, false);
    TRY(sb_finish(&b, &text));
    d->indent = text.s;
    return ERR_OK;
}

enum err_code tmpl_tojson(struct env *e, const struct value *v, const struct args *a,
                          struct value *out)
{
    static struct str comma = { .s = ", ", .n = 2, .n_chars = 2 },
                      bare = { .s = ",", .n = 1, .n_chars = 1 },
                      colon = { .s = ": ", .n = 2, .n_chars = 2 };
    struct dump d = { .e = e };
    struct value arg[4];
    TRY(tmpl_bind(e, "tojson", "ensure_ascii indent separators sort_keys", 0, a, arg));
    sb_init(&d.b, e);
    tmpl_arg_bool(&arg[0], &d.is_ascii);
    tmpl_arg_bool(&arg[3], &d.is_sorted);
    if (arg[1].type != V_MISSING && arg[1].type != V_NONE)
        TRY(dump_indent(&d, &arg[1]));
    d.item_sep = d.has_indent ? &bare : &comma;
    d.key_sep = &colon;
    if (arg[2].type != V_MISSING && arg[2].type != V_NONE)
        TRY(dump_separators(&d, &arg[2]));
    TRY(dump_value(&d, v, 0));
    return sb_finish(&d.b, out);
}
