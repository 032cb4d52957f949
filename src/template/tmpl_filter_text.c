/* tmpl_filter_text.c - filters of text. */
#include "template/template_ast.h"

#include <string.h>

#define FILTER(name)                                                                               \
    static enum err_code filter_##name(struct env *e, const struct value *v, const struct args *a, \
                                       struct value *out)

/* The text of v, once the filter's arguments are known to be none. */
static enum err_code plain_text(struct env *e, const char *name, const struct value *v,
                                const struct args *a, struct value *text)
{
    TRY(tmpl_bind(e, name, "", 0, a, NULL));
    return tmpl_to_text(e, v, text);
}

FILTER(upper)
{
    struct value text;
    TRY(plain_text(e, "upper", v, a, &text));
    return tmpl_map_case(e, text.s, UNI_UPPER, out);
}

FILTER(lower)
{
    struct value text;
    TRY(plain_text(e, "lower", v, a, &text));
    return tmpl_map_case(e, text.s, UNI_LOWER, out);
}

FILTER(capitalize)
{
    struct value text;
    TRY(plain_text(e, "capitalize", v, a, &text));
    return tmpl_capitalize(e, text.s, out);
}

FILTER(string)
{
    return plain_text(e, "string", v, a, out);
}

static bool title_is_break(uint32_t cp)
{
    return uni_is_space(cp) || (cp && cp < 0x80 && strchr("-({[<", (int)cp));
}

FILTER(title)
{
    struct value text, part;
    struct sb b;
    TRY(plain_text(e, "title", v, a, &text));
    const struct str *s = text.s;
    sb_init(&b, e);
    for (size_t at = 0; at < s->n;) {
        uint32_t cp;
        utf8_decode(s->s + at, s->n - at, &cp);
        size_t first = at + str_step(s, at), end = first;
        bool is_break = title_is_break(cp);
        for (; end < s->n; end += str_step(s, end)) {
            utf8_decode(s->s + end, s->n - end, &cp);
            if (title_is_break(cp) != is_break)
                break;
        }
        TRY(tmpl_part(e, s, at, first, &part));
        TRY(tmpl_map_case(e, part.s, UNI_UPPER, &part));
        sb_add_str(&b, part.s);
        TRY(tmpl_part(e, s, first, end, &part));
        TRY(tmpl_map_case(e, part.s, UNI_LOWER, &part));
        sb_add_str(&b, part.s);
        at = end;
    }
    return sb_finish(&b, out);
}

FILTER(trim)
{
    struct value text, arg;
    const struct str *chars = NULL;
    TRY(tmpl_bind(e, "trim", "chars", 0, a, &arg));
    TRY(tmpl_to_text(e, v, &text));
    if (arg.type != V_NONE)
        TRY(tmpl_arg_str(e, &arg, &chars));
    return tmpl_strip(e, text.s, chars, true, true, out);
}

FILTER(replace)
{
    struct value arg[3], text, old, new;
    int64_t count = -1;
    TRY(tmpl_bind(e, "replace", "old new count", 2, a, arg));
    if (arg[2].type != V_NONE)
        TRY(tmpl_arg_int(e, &arg[2], &count));
    TRY(tmpl_to_text(e, v, &text));
    TRY(tmpl_to_text(e, &arg[0], &old));
    TRY(tmpl_to_text(e, &arg[1], &new));
    TRY(tmpl_replace(e, text.s, old.s, new.s, count, out));
    out->s->is_markup = false;
    return ERR_OK;
}

FILTER(center)
{
    struct value arg, text;
    int64_t width = 80;
    TRY(tmpl_bind(e, "center", "width", 0, a, &arg));
    TRY(tmpl_arg_int(e, &arg, &width));
    TRY(tmpl_to_text(e, v, &text));
    return tmpl_center(e, text.s, width, NULL, out);
}

FILTER(format)
{
    struct value text, list;
    TRY(tmpl_to_text(e, v, &text));
    if (a->n && a->n_kw)
        return tmpl_fail(
            e,
            "FilterArgumentError: can't handle positional and keyword arguments at the same time");
    if (a->n_kw) {
        TRY(tmpl_dict_new(e, &list));
        for (size_t i = 0; i < a->n_kw; i++)
            TRY(tmpl_dict_set(e, list.dict,
                              (struct value){ .type = V_STR, .s = (struct str *)a->kw[i].name },
                              a->kw[i].value));
    } else {
        TRY(tmpl_list_new(e, V_TUPLE, a->n, &list));
        for (size_t i = 0; i < a->n; i++)
            TRY(tmpl_push(e, &list, a->pos[i]));
    }
    return tmpl_percent(e, text.s, &list, out);
}

/* --- HTML --- */

enum err_code tmpl_filter_escape(struct env *e, const struct value *v, const struct args *a,
                                 struct value *out)
{
    static const char from[] = "&<>'\"";
    static const char *const to[] = { "&amp;", "&lt;", "&gt;", "&#39;", "&#34;" };
    struct value text;
    struct sb b;
    TRY(plain_text(e, "escape", v, a, &text));
    *out = text;
    if (text.s->is_markup)
        return ERR_OK;
    const struct str *s = text.s;
    size_t run = 0;
    sb_init(&b, e);
    for (size_t at = 0; at < s->n; at++) {
        const char *hit = s->s[at] ? strchr(from, s->s[at]) : NULL;
        if (!hit)
            continue;
        sb_add_part(&b, s, run, at);
        sb_add_cstr(&b, to[hit - from], str_is_caller_at(s, at));
        run = at + 1;
    }
    sb_add_part(&b, s, run, s->n);
    TRY(sb_finish(&b, out));
    out->s->is_markup = true;
    return ERR_OK;
}

FILTER(forceescape)
{
    struct value text;
    const struct args none = { 0 };
    TRY(plain_text(e, "forceescape", v, a, &text));
    TRY(tmpl_part(e, text.s, 0, text.s->n, &text));
    text.s->is_markup = false;
    return tmpl_filter_escape(e, &text, &none, out);
}

FILTER(safe)
{
    struct value text;
    TRY(plain_text(e, "safe", v, a, &text));
    TRY(tmpl_part(e, text.s, 0, text.s->n, out));
    out->s->is_markup = true;
    return ERR_OK;
}

/* s without what stands between `from` and `to`, again and again. */
static enum err_code cut_between(struct env *e, const char *from, const char *to,
                                 struct value *text)
{
    struct str open = { .s = from, .n = strlen(from) }, close = { .s = to, .n = strlen(to) };
    const struct str *s = text->s;
    struct sb b;
    size_t at = 0;
    sb_init(&b, e);
    for (;;) {
        size_t p0 = str_find(s, &open, at, s->n);
        size_t p1 = p0 == SIZE_MAX ? p0 : str_find(s, &close, p0, s->n);
        if (p1 == SIZE_MAX)
            break;
        sb_add_part(&b, s, at, p0);
        at = p1 + close.n;
    }
    sb_add_part(&b, s, at, s->n);
    return sb_finish(&b, text);
}

/* The entity at s[at], or 0. */
static size_t entity_at(const struct str *s, size_t at, uint32_t *cp)
{
    static const struct {
        const char *name;
        uint32_t cp;
    } known[] = { { "&amp;", '&' },  { "&lt;", '<' },    { "&gt;", '>' },
                  { "&quot;", '"' }, { "&apos;", '\'' }, { "&nbsp;", 0xA0 } };
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        size_t n = strlen(known[i].name);
        if (s->n - at >= n && memcmp(s->s + at, known[i].name, n) == 0) {
            *cp = known[i].cp;
            return n;
        }
    }
    size_t i = at + 2;
    if (i >= s->n || s->s[at + 1] != '#')
        return 0;
    int base = (s->s[i] | 32) == 'x' ? 16 : 10;
    i += base == 16;
    size_t from = i;
    for (*cp = 0; i < s->n && i - from < 8; i++) {
        char c = s->s[i];
        int d = c >= '0' && c <= '9'                 ? c - '0'
                : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                     : 99;
        if (d >= base)
            break;
        *cp = *cp * (uint32_t)base + (uint32_t)d;
    }
    if (i == from || i >= s->n || s->s[i] != ';' || *cp == 0)
        return 0;
    return i + 1 - at;
}

FILTER(striptags)
{
    struct value text, words;
    static const struct str blank = { .s = " ", .n = 1, .n_chars = 1 };
    const struct args none = { 0 };
    struct sb b;
    TRY(plain_text(e, "striptags", v, a, &text));
    TRY(cut_between(e, "<!--", "-->", &text));
    TRY(cut_between(e, "<", ">", &text));
    TRY(tmpl_method_find(&text, "split", 5)->call(e, &text, &none, &words));
    TRY(tmpl_join(e, &blank, &words, true, &text));
    const struct str *s = text.s;
    sb_init(&b, e);
    for (size_t at = 0; at < s->n;) {
        uint32_t cp;
        char out_bytes[4];
        size_t n = s->s[at] == '&' ? entity_at(s, at, &cp) : 0;
        if (n)
            sb_add(&b, out_bytes, utf8_encode(cp, out_bytes), str_is_caller_at(s, at));
        else
            sb_add_part(&b, s, at, at + (n = 1));
        at += n;
    }
    return sb_finish(&b, out);
}

FILTER(xmlattr)
{
    struct value arg, text;
    bool autospace = true;
    struct sb b;
    const struct args none = { 0 };
    TRY(tmpl_bind(e, "xmlattr", "autospace", 0, a, &arg));
    tmpl_arg_bool(&arg, &autospace);
    if (v->type == V_UNDEF)
        return tmpl_use_undef(e, v);
    if (v->type != V_DICT)
        return tmpl_fail(e, "TypeError: xmlattr needs a mapping, not %s", tmpl_type_name(v));
    sb_init(&b, e);
    for (size_t i = 0; i < v->dict->n; i++) {
        const struct dict_entry *entry = &v->dict->entries[i];
        if (entry->value.type == V_NONE || entry->value.type == V_UNDEF)
            continue;
        if (entry->key.type != V_STR)
            return tmpl_fail(e, "TypeError: expected string or bytes-like object, got '%s'",
                             tmpl_type_name(&entry->key));
        for (size_t at = 0; at < entry->key.s->n; at++)
            if (strchr(" \t\n\r\f\v/>=", entry->key.s->s[at]) && entry->key.s->s[at])
                return tmpl_fail(e, "ValueError: Invalid character in attribute name");
        if (b.len || autospace)
            sb_add_cstr(&b, " ", false);
        TRY(tmpl_filter_escape(e, &entry->key, &none, &text));
        sb_add_str(&b, text.s);
        sb_add_cstr(&b, "=\"", false);
        TRY(tmpl_filter_escape(e, &entry->value, &none, &text));
        sb_add_str(&b, text.s);
        sb_add_cstr(&b, "\"", false);
    }
    return sb_finish(&b, out);
}

/* --- URLs --- */

static enum err_code url_quote(struct env *e, struct sb *b, const struct value *v, bool is_query)
{
    static const char hex[] = "0123456789ABCDEF";
    struct value text;
    TRY(tmpl_to_text(e, v, &text));
    const struct str *s = text.s;
    for (size_t at = 0; at < s->n; at++) {
        unsigned char c = (unsigned char)s->s[at];
        bool is_caller = str_is_caller_at(s, at);
        bool is_plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') ||
                        (c && strchr("_.-~", c)) || (c == '/' && !is_query);
        char out[3] = { '%', hex[c >> 4], hex[c & 15] };
        if (is_plain)
            sb_add(b, s->s + at, 1, is_caller);
        else if (c == ' ' && is_query)
            sb_add(b, "+", 1, is_caller);
        else
            sb_add(b, out, 3, is_caller);
    }
    return tmpl_step(e, s->n / 16);
}

FILTER(urlencode)
{
    struct value pairs, pair;
    struct sb b;
    TRY(tmpl_bind(e, "urlencode", "", 0, a, NULL));
    sb_init(&b, e);
    if (v->type == V_STR || !tmpl_is_iterable(v)) {
        TRY(url_quote(e, &b, v, false));
        return sb_finish(&b, out);
    }
    if (v->type == V_DICT) {
        const struct args none = { 0 };
        TRY(tmpl_method_find(v, "items", 5)->call(e, v, &none, &pairs));
        TRY(tmpl_to_list(e, &pairs, &pairs));
    } else {
        TRY(tmpl_to_list(e, v, &pairs));
    }
    for (size_t i = 0; i < pairs.seq->n; i++) {
        TRY(tmpl_to_list(e, &pairs.seq->items[i], &pair));
        if (pair.seq->n != 2)
            return tmpl_fail(e, "ValueError: urlencode needs pairs");
        if (i)
            sb_add_cstr(&b, "&", false);
        TRY(url_quote(e, &b, &pair.seq->items[0], true));
        sb_add_cstr(&b, "=", false);
        TRY(url_quote(e, &b, &pair.seq->items[1], true));
    }
    return sb_finish(&b, out);
}

FILTER(wordcount)
{
    struct value text;
    int64_t n = 0;
    bool is_inside = false;
    TRY(plain_text(e, "wordcount", v, a, &text));
    for (size_t at = 0; at < text.s->n; at += str_step(text.s, at)) {
        uint32_t cp;
        utf8_decode(text.s->s + at, text.s->n - at, &cp);
        bool is_word = uni_is_word(cp);
        n += is_word && !is_inside;
        is_inside = is_word;
    }
    *out = tmpl_int(n, false);
    return tmpl_step(e, text.s->n / 16);
}

const struct filter tmpl_text_filters[] = {
    { "upper", filter_upper },
    { "lower", filter_lower },
    { "capitalize", filter_capitalize },
    { "string", filter_string },
    { "title", filter_title },
    { "trim", filter_trim },
    { "replace", filter_replace },
    { "center", filter_center },
    { "format", filter_format },
    { "e", tmpl_filter_escape },
    { "escape", tmpl_filter_escape },
    { "forceescape", filter_forceescape },
    { "safe", filter_safe },
    { "striptags", filter_striptags },
    { "xmlattr", filter_xmlattr },
    { "urlencode", filter_urlencode },
    { "wordcount", filter_wordcount },
    { "tojson", tmpl_tojson },
    { NULL, NULL },
};
