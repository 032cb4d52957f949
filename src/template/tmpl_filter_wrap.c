/* tmpl_filter_wrap.c - filters that lay out text: indent, truncate, wordwrap (Python's textwrap), join. */
#include "template/template_ast.h"

#include <string.h>

/* v must be a str here, as in Python; an undefined value tells its name. */
static enum err_code need_str(struct env *e, const char *what, const struct value *v)
{
    if (v->type == V_STR)
        return ERR_OK;
    if (v->type == V_UNDEF)
        return tmpl_use_undef(e, v);
    return tmpl_fail(e, "TypeError: %s needs a str, not %s", what, tmpl_type_name(v));
}

static enum err_code indent_text(struct env *e, const struct value *v, struct value *indent)
{
    int64_t width = 4;
    struct sb b;
    if (v->type == V_STR) {
        *indent = *v;
        return ERR_OK;
    }
    TRY(tmpl_arg_int(e, v, &width));
    if (width > (int64_t)TMPL_BYTES_MAX)
        return tmpl_full(e, "template takes too much memory");
    sb_init(&b, e);
    sb_fill(&b, ' ', width > 0 ? (size_t)width : 0, false);
    return sb_finish(&b, indent);
}

static enum err_code filter_indent(struct env *e, const struct value *v, const struct args *a,
                                   struct value *out)
{
    struct value arg[3], indent, lines;
    bool first = false, blank = false;
    struct sb b;
    TRY(tmpl_bind(e, "indent", "width first blank", 0, a, arg));
    TRY(need_str(e, "indent", v));
    TRY(indent_text(e, &arg[0], &indent));
    tmpl_arg_bool(&arg[1], &first);
    tmpl_arg_bool(&arg[2], &blank);
    TRY(tmpl_split_lines(e, v->s, false, &lines));
    /* Python adds a newline before it splits: a text that ends with one gets an empty last line. */
    if (v->s->n == 0 || v->s->s[v->s->n - 1] == '\n') {
        struct value empty;
        TRY(tmpl_cstr(e, "", &empty));
        TRY(tmpl_push(e, &lines, empty));
    }
    sb_init(&b, e);
    for (size_t i = 0; i < lines.seq->n; i++) {
        const struct str *line = lines.seq->items[i].s;
        if (i)
            sb_add_cstr(&b, "\n", v->s->is_caller);
        if (i ? blank || line->n : first)
            sb_add_str(&b, indent.s);
        sb_add_str(&b, line);
        TRY(tmpl_step(e, indent.s->n / 64));
    }
    TRY(sb_finish(&b, out));
    out->s->is_markup = v->s->is_markup;
    return ERR_OK;
}

static enum err_code filter_truncate(struct env *e, const struct value *v, const struct args *a,
                                     struct value *out)
{
    static const struct str dots = { .s = "...", .n = 3, .n_chars = 3 };
    struct value arg[4], part;
    int64_t length = 255, leeway = 5;
    bool kill_words = false;
    const struct str *end = &dots;
    TRY(tmpl_bind(e, "truncate", "length killwords end leeway", 0, a, arg));
    if (arg[0].type == V_BIG)
        length = arg[0].s->s[0] == '-' ? -1 : INT64_MAX;
    else
        TRY(tmpl_arg_int(e, &arg[0], &length));
    tmpl_arg_bool(&arg[1], &kill_words);
    TRY(tmpl_arg_str(e, &arg[2], &end));
    if (arg[3].type != V_NONE)
        TRY(tmpl_arg_int(e, &arg[3], &leeway));
    int64_t n_end = (int64_t)str_chars(end);
    if (length < n_end || leeway < 0)
        return tmpl_fail(e, "AssertionError: expected length >= %lld and leeway >= 0",
                         (long long)n_end);
    size_t n;
    if (!tmpl_len(v, &n))
        return tmpl_fail(e, "TypeError: object of type '%s' has no len()", tmpl_type_name(v));
    if (leeway > INT32_MAX || length > INT32_MAX || (int64_t)n <= length + leeway) {
        *out = *v;
        return ERR_OK;
    }
    TRY(need_str(e, "truncate", v));
    size_t cut = str_offset(v->s, (size_t)(length - n_end));
    if (!kill_words) {
        const struct str blank = { .s = " ", .n = 1, .n_chars = 1 };
        size_t at = str_rfind(v->s, &blank, 0, cut);
        cut = at == SIZE_MAX ? cut : at;
    }
    TRY(tmpl_step(e, v->s->n / 64));
    TRY(tmpl_part(e, v->s, 0, cut, &part));
    return tmpl_concat(e, part.s, end, out);
}

/* --- wordwrap --- */

struct wrap {
    struct env *e;
    const struct str *s; /* one line */
    uint32_t *cp;        /* [n] code points */
    size_t *at;          /* [n + 1] their byte offsets */
    size_t *dash;        /* [n + 1] where the run of hyphens that holds it ends */
    size_t chunk, end;   /* the chunk looked at last: a word that is cut keeps its end */
    size_t n;
    size_t width;
    bool break_long, break_hyphens;
};

static bool wrap_space(uint32_t cp)
{
    return cp == ' ' || (cp >= 0x09 && cp <= 0x0D);
}

static bool wrap_letter(const struct wrap *w, size_t i)
{
    return i < w->n && uni_is_word(w->cp[i]) && !uni_is_digit(w->cp[i]);
}

static bool wrap_punct(const struct wrap *w, size_t i)
{
    return i < w->n && (uni_is_word(w->cp[i]) ||
                        (w->cp[i] && w->cp[i] < 0x80 && strchr("!\"'&.,?", (int)w->cp[i])));
}

/* Two or more hyphens at i with a word character after them: where they end, or 0. */
static size_t wrap_dash(const struct wrap *w, size_t i)
{
    size_t j = w->dash[i];
    return j >= i + 2 && j < w->n && uni_is_word(w->cp[j]) ? j : 0;
}

/* May a word be cut after the hyphen at i? */
static bool wrap_hyphen(const struct wrap *w, size_t i)
{
    bool before = (i >= 2 && wrap_letter(w, i - 2) && wrap_letter(w, i - 1)) ||
                  (i >= 3 && wrap_letter(w, i - 3) && w->cp[i - 2] == '-' && wrap_punct(w, i - 1));
    bool after =
        wrap_letter(w, i + 1) &&
        (wrap_letter(w, i + 2) || (i + 2 < w->n && w->cp[i + 2] == '-' && wrap_letter(w, i + 3)));
    return before && after;
}

static size_t wrap_find_chunk(const struct wrap *w, size_t i)
{
    size_t j = i;
    if (wrap_space(w->cp[i])) {
        while (j < w->n && wrap_space(w->cp[j]))
            j++;
        return j;
    }
    if (w->break_hyphens && i > 0 && wrap_punct(w, i - 1) && wrap_dash(w, i))
        return wrap_dash(w, i);
    for (j = i + 1; j < w->n && !wrap_space(w->cp[j]); j++) {
        if (!w->break_hyphens)
            continue;
        if (w->cp[j] == '-' && wrap_hyphen(w, j))
            return j + 1;
        if (wrap_punct(w, j - 1) && wrap_dash(w, j))
            return j;
    }
    return j;
}

/* End of the chunk that i is in. */
static size_t wrap_chunk(struct wrap *w, size_t i)
{
    if (i < w->chunk || i >= w->end) {
        w->end = wrap_find_chunk(w, i);
        w->chunk = i;
    }
    return w->end;
}

/* Where a word [p0, p1) that is longer than a line is cut, with `left` columns to spare. */
static size_t wrap_cut(const struct wrap *w, size_t p0, size_t p1, size_t left)
{
    if (w->break_hyphens && p1 - p0 > left) {
        for (size_t i = p0 + left; i > p0 + 1; i--) {
            if (w->cp[i - 1] != '-')
                continue;
            for (size_t j = p0; j < i - 1; j++)
                if (w->cp[j] != '-')
                    return i;
            break;
        }
    }
    return p0 + left < p1 ? p0 + left : p1;
}

/* The columns [p0, p1) of the next line from *i on; false at the end. */
static bool wrap_line(struct wrap *w, size_t *i, bool is_first, size_t *p0, size_t *p1)
{
    size_t at = *i;
    if (at < w->n && !is_first && wrap_space(w->cp[at]))
        at = wrap_chunk(w, at);
    *p0 = at;
    size_t last = at;
    while (at < w->n) {
        size_t end = wrap_chunk(w, at);
        if (end - *p0 > w->width) {
            if (end - at > w->width && (w->break_long || at == *p0)) {
                last = at;
                at = w->break_long ? wrap_cut(w, at, end, w->width - (at - *p0)) : end;
            }
            break;
        }
        last = at;
        at = end;
    }
    *i = at;
    *p1 = at;
    if (*p1 > *p0 && wrap_space(w->cp[last]) && last >= *p0)
        *p1 = last;
    return *p1 > *p0 || at < w->n;
}

static enum err_code wrap_paragraph(struct wrap *w, struct sb *b, const struct str *sep)
{
    bool is_first = true;
    size_t i = 0, p0, p1;
    for (size_t n = 0; i < w->n && n <= w->n; n++) {
        bool more = wrap_line(w, &i, is_first, &p0, &p1);
        if (p1 > p0) {
            if (!is_first)
                sb_add_str(b, sep);
            sb_add_part(b, w->s, w->at[p0], w->at[p1]);
            is_first = false;
        }
        TRY(tmpl_step(w->e, (p1 - p0) / 4 + 1));
        if (!more)
            break;
    }
    return tmpl_check(w->e);
}

static enum err_code wrap_decode(struct wrap *w, const struct str *s)
{
    w->s = s;
    w->n = str_chars(s);
    w->cp = tmpl_alloc_array(w->e, w->n + 1, sizeof(*w->cp));
    w->at = tmpl_alloc_array(w->e, w->n + 1, sizeof(*w->at));
    w->dash = tmpl_alloc_array(w->e, w->n + 1, sizeof(*w->dash));
    TRY(tmpl_check(w->e));
    w->chunk = w->end = 0;
    size_t i = 0;
    for (size_t at = 0; at < s->n; at += str_step(s, at), i++) {
        utf8_decode(s->s + at, s->n - at, &w->cp[i]);
        w->at[i] = at;
    }
    w->at[i] = s->n;
    w->dash[i] = i;
    for (; i > 0; i--)
        w->dash[i - 1] = w->cp[i - 1] == '-' ? w->dash[i] : i - 1;
    return tmpl_step(w->e, s->n / 4);
}

static enum err_code filter_wordwrap(struct env *e, const struct value *v, const struct args *a,
                                     struct value *out)
{
    static const struct str newline = { .s = "\n", .n = 1, .n_chars = 1 };
    struct value arg[4], lines;
    int64_t width = 79;
    const struct str *sep = &newline;
    struct wrap w = { .e = e, .break_long = true, .break_hyphens = true };
    struct sb b;
    TRY(tmpl_bind(e, "wordwrap", "width break_long_words wrapstring break_on_hyphens", 0, a, arg));
    TRY(tmpl_arg_int(e, &arg[0], &width));
    tmpl_arg_bool(&arg[1], &w.break_long);
    if (arg[2].type != V_NONE)
        TRY(tmpl_arg_str(e, &arg[2], &sep));
    tmpl_arg_bool(&arg[3], &w.break_hyphens);
    TRY(need_str(e, "wordwrap", v));
    TRY(tmpl_split_lines(e, v->s, false, &lines));
    if (width <= 0 && lines.seq->n)
        return tmpl_fail(e, "ValueError: invalid width %lld (must be > 0)", (long long)width);
    w.width = (size_t)width;
    sb_init(&b, e);
    for (size_t i = 0; i < lines.seq->n; i++) {
        if (i)
            sb_add_str(&b, sep);
        TRY(wrap_decode(&w, lines.seq->items[i].s));
        TRY(wrap_paragraph(&w, &b, sep));
    }
    return sb_finish(&b, out);
}

const struct filter tmpl_wrap_filters[] = {
    { "indent", filter_indent },
    { "truncate", filter_truncate },
    { "wordwrap", filter_wordwrap },
    { NULL, NULL },
};
