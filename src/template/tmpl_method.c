/* tmpl_method.c - str methods that search, cut, join and pad. Every byte of a result keeps its origin. */
#include "template/template_ast.h"

#include <string.h>

#define METHOD(name)                                                            \
    static enum err_code method_##name(struct env *e, const struct value *self, \
                                       const struct args *a, struct value *out)

/* --- helpers that filters use too --- */

static bool strip_has(const struct str *chars, uint32_t cp)
{
    if (!chars)
        return uni_is_space(cp);
    for (size_t i = 0; i < chars->n;) {
        uint32_t c;
        size_t len = utf8_decode(chars->s + i, chars->n - i, &c);
        if (c == cp)
            return true;
        i += len ? len : 1;
    }
    return false;
}

enum err_code tmpl_strip(struct env *e, const struct str *s, const struct str *chars, bool left,
                         bool right, struct value *out)
{
    size_t p0 = 0, p1 = s->n;
    uint32_t cp;
    while (left && p0 < p1) {
        utf8_decode(s->s + p0, p1 - p0, &cp);
        if (!strip_has(chars, cp))
            break;
        p0 += str_step(s, p0);
    }
    while (right && p1 > p0) {
        size_t back = str_step_back(s, p1);
        utf8_decode(s->s + p1 - back, back, &cp);
        if (!strip_has(chars, cp))
            break;
        p1 -= back;
    }
    TRY(tmpl_step(e, (p0 + s->n - p1) * (chars ? chars->n + 1 : 1) / 64));
    return tmpl_part(e, s, p0, p1, out);
}

enum err_code tmpl_replace(struct env *e, const struct str *s, const struct str *old,
                           const struct str *new, int64_t count, struct value *out)
{
    struct sb b;
    size_t at = 0;
    sb_init(&b, e);
    while (count != 0 && at <= s->n && !e->is_full) {
        size_t hit = str_find(s, old, at, s->n);
        if (hit == SIZE_MAX)
            break;
        TRY(tmpl_step(e, 1 + new->n / 64));
        sb_add_part(&b, s, at, hit);
        sb_add_str(&b, new);
        count -= count > 0;
        at = hit + old->n;
        if (old->n)
            continue;
        if (at == s->n) { /* an empty text stands between all characters, and at both ends */
            at = s->n + 1;
            break;
        }
        size_t len = str_step(s, at);
        sb_add_part(&b, s, at, at + len);
        at += len;
    }
    if (at < s->n)
        sb_add_part(&b, s, at, s->n);
    TRY(tmpl_step(e, s->n / 64));
    TRY(sb_finish(&b, out));
    out->s->is_markup = s->is_markup;
    return ERR_OK;
}

enum err_code tmpl_center(struct env *e, const struct str *s, int64_t width, const struct str *fill,
                          struct value *out)
{
    static const struct str blank = { .s = " ", .n = 1, .n_chars = 1 };
    struct sb b;
    int64_t pad = width - (int64_t)str_chars(s);
    if (!fill)
        fill = &blank;
    if (pad <= 0)
        return tmpl_part(e, s, 0, s->n, out);
    if (pad > (int64_t)TMPL_BYTES_MAX)
        return tmpl_full(e, "template takes too much memory");
    int64_t left = pad / 2 + (pad & width & 1);
    sb_init(&b, e);
    TRY(tmpl_step(e, (size_t)pad / 8));
    for (int64_t i = 0; i < left && !e->is_full; i++)
        sb_add_str(&b, fill);
    sb_add_str(&b, s);
    for (int64_t i = left; i < pad && !e->is_full; i++)
        sb_add_str(&b, fill);
    return sb_finish(&b, out);
}

enum err_code tmpl_split_lines(struct env *e, const struct str *s, bool keep_ends,
                               struct value *out)
{
    struct value line;
    TRY(tmpl_list_new(e, V_LIST, 0, out));
    for (size_t from = 0; from < s->n;) {
        size_t at = from, len = 0;
        uint32_t cp = 0;
        for (; at < s->n; at += len) {
            len = utf8_decode(s->s + at, s->n - at, &cp);
            len = len ? len : 1;
            if (uni_is_line_end(cp))
                break;
        }
        size_t next = at < s->n ? at + len : at;
        if (at < s->n && cp == '\r' && next < s->n && s->s[next] == '\n')
            next++;
        TRY(tmpl_part(e, s, from, keep_ends ? next : at, &line));
        TRY(tmpl_push(e, out, line));
        TRY(tmpl_step(e, (next - from) / 64));
        from = next;
    }
    return ERR_OK;
}

enum err_code tmpl_join(struct env *e, const struct str *sep, const struct value *items,
                        bool is_strict, struct value *out)
{
    struct iter *it;
    struct sb b;
    size_t i = 0;
    if (!tmpl_is_iterable(items))
        return tmpl_fail(e,
                         is_strict ? "TypeError: can only join an iterable, not '%s'"
                                   : "TypeError: '%s' object is not iterable",
                         tmpl_type_name(items));
    TRY(tmpl_iter(e, items, &it));
    sb_init(&b, e);
    for (bool has;; i++) {
        struct value v;
        TRY(tmpl_next(e, it, &v, &has));
        if (!has)
            break;
        if (is_strict && v.type != V_STR)
            return tmpl_fail(e, "TypeError: sequence item %zu: expected str instance, %s found", i,
                             tmpl_type_name(&v));
        size_t before = b.len;
        if (i)
            sb_add_str(&b, sep);
        tmpl_add_text(&b, &v);
        TRY(tmpl_step(e, (b.len - before) / 64));
    }
    TRY(sb_finish(&b, out));
    out->s->is_markup = sep->is_markup;
    return ERR_OK;
}

/* --- search --- */

/* start and end arguments as byte bounds; false if the range is empty by being upside down. */
static enum err_code str_bounds(struct env *e, const struct str *s, const struct value *start,
                                const struct value *end, size_t *p0, size_t *p1)
{
    int64_t n = (int64_t)str_chars(s), i = 0, j = n;
    if (start->type != V_NONE)
        TRY(tmpl_arg_int(e, start, &i));
    if (end->type != V_NONE)
        TRY(tmpl_arg_int(e, end, &j));
    i = i < 0 ? (i + n < 0 ? 0 : i + n) : i;
    j = j < 0 ? (j + n < 0 ? 0 : j + n) : j > n ? n : j;
    *p0 = i > n ? s->n + 1 : str_offset(s, (size_t)i);
    *p1 = str_offset(s, (size_t)j);
    return tmpl_step(e, s->n / 64);
}

static enum err_code find_any(struct env *e, const struct value *self, const struct args *a,
                              bool is_reverse, bool must, struct value *out)
{
    struct value v[3];
    const struct str *sub = NULL;
    size_t p0, p1;
    TRY(tmpl_bind(e, is_reverse ? "rfind()" : "find()", "sub start end", 1, a, v));
    TRY(tmpl_arg_str(e, &v[0], &sub));
    TRY(str_bounds(e, self->s, &v[1], &v[2], &p0, &p1));
    TRY(tmpl_step(e, self->s->n / 8));
    size_t at = is_reverse ? str_rfind(self->s, sub, p0, p1) : str_find(self->s, sub, p0, p1);
    if (at == SIZE_MAX && must)
        return tmpl_fail(e, "ValueError: substring not found");
    *out = tmpl_int(at == SIZE_MAX ? -1 : (int64_t)utf8_count(self->s->s, at), false);
    return ERR_OK;
}

METHOD(find)
{
    return find_any(e, self, a, false, false, out);
}

METHOD(rfind)
{
    return find_any(e, self, a, true, false, out);
}

METHOD(index)
{
    return find_any(e, self, a, false, true, out);
}

METHOD(rindex)
{
    return find_any(e, self, a, true, true, out);
}

METHOD(count)
{
    struct value v[3];
    const struct str *sub = NULL;
    size_t p0, p1;
    int64_t n = 0;
    TRY(tmpl_bind(e, "count()", "sub start end", 1, a, v));
    TRY(tmpl_arg_str(e, &v[0], &sub));
    TRY(str_bounds(e, self->s, &v[1], &v[2], &p0, &p1));
    if (sub->n == 0) {
        *out = tmpl_int(p0 > p1 ? 0 : (int64_t)utf8_count(self->s->s + p0, p1 - p0) + 1, false);
        return ERR_OK;
    }
    for (size_t at; (at = str_find(self->s, sub, p0, p1)) != SIZE_MAX; n++)
        p0 = at + sub->n;
    TRY(tmpl_step(e, self->s->n / 32 + (size_t)n / 4));
    *out = tmpl_int(n, false);
    return ERR_OK;
}

static bool affix_is(const struct str *s, const struct str *affix, size_t p0, size_t p1,
                     bool is_end)
{
    if (p0 > p1 || affix->n > p1 - p0)
        return false;
    return memcmp(s->s + (is_end ? p1 - affix->n : p0), affix->s, affix->n) == 0;
}

static enum err_code affix_any(struct env *e, const struct value *self, const struct args *a,
                               bool is_end, struct value *out)
{
    struct value v[3];
    size_t p0, p1;
    bool is_match = false;
    const char *name = is_end ? "endswith" : "startswith";
    TRY(tmpl_bind(e, name, "affix start end", 1, a, v));
    TRY(str_bounds(e, self->s, &v[1], &v[2], &p0, &p1));
    if (v[0].type == V_STR) {
        is_match = affix_is(self->s, v[0].s, p0, p1, is_end);
    } else if (v[0].type == V_TUPLE) {
        for (size_t i = 0; i < v[0].seq->n && !is_match; i++) {
            if (v[0].seq->items[i].type != V_STR)
                return tmpl_fail(e, "TypeError: tuple for %s must only contain str, not %s", name,
                                 tmpl_type_name(&v[0].seq->items[i]));
            is_match = affix_is(self->s, v[0].seq->items[i].s, p0, p1, is_end);
        }
    } else {
        return tmpl_fail(e, "TypeError: %s first arg must be str or a tuple of str, not %s", name,
                         tmpl_type_name(&v[0]));
    }
    *out = tmpl_bool(is_match);
    return ERR_OK;
}

METHOD(startswith)
{
    return affix_any(e, self, a, false, out);
}

METHOD(endswith)
{
    return affix_any(e, self, a, true, out);
}

/* --- cutting --- */

static enum err_code strip_any(struct env *e, const struct value *self, const struct args *a,
                               bool left, bool right, struct value *out)
{
    struct value v;
    const struct str *chars = NULL;
    TRY(tmpl_bind(e, "strip()", "chars", 0, a, &v));
    if (v.type != V_NONE)
        TRY(tmpl_arg_str(e, &v, &chars));
    return tmpl_strip(e, self->s, chars, left, right, out);
}

METHOD(strip)
{
    return strip_any(e, self, a, true, true, out);
}

METHOD(lstrip)
{
    return strip_any(e, self, a, true, false, out);
}

METHOD(rstrip)
{
    return strip_any(e, self, a, false, true, out);
}

static enum err_code push_part(struct env *e, const struct str *s, size_t p0, size_t p1,
                               struct value *list)
{
    struct value part;
    TRY(tmpl_part(e, s, p0, p1, &part));
    return tmpl_push(e, list, part);
}

static size_t skip_space(const struct str *s, size_t at, bool want_space)
{
    uint32_t cp;
    while (at < s->n) {
        utf8_decode(s->s + at, s->n - at, &cp);
        if (uni_is_space(cp) != want_space)
            break;
        at += str_step(s, at);
    }
    return at;
}

static size_t skip_space_back(const struct str *s, size_t at, bool want_space)
{
    uint32_t cp;
    while (at > 0) {
        size_t back = str_step_back(s, at);
        utf8_decode(s->s + at - back, back, &cp);
        if (uni_is_space(cp) != want_space)
            break;
        at -= back;
    }
    return at;
}

static enum err_code split_space(struct env *e, const struct str *s, int64_t max, struct value *out)
{
    for (size_t at = skip_space(s, 0, true); at < s->n;) {
        if (max-- == 0) /* the rest as it is */
            return push_part(e, s, at, s->n, out);
        size_t end = skip_space(s, at, false);
        TRY(push_part(e, s, at, end, out));
        at = skip_space(s, end, true);
    }
    return ERR_OK;
}

static void list_reverse(struct seq *seq)
{
    for (size_t i = 0; i < seq->n / 2; i++) {
        struct value t = seq->items[i];
        seq->items[i] = seq->items[seq->n - 1 - i];
        seq->items[seq->n - 1 - i] = t;
    }
}

static enum err_code rsplit_space(struct env *e, const struct str *s, int64_t max,
                                  struct value *out)
{
    for (size_t at = skip_space_back(s, s->n, true); at > 0;) {
        if (max-- == 0) {
            TRY(push_part(e, s, 0, at, out));
            break;
        }
        size_t from = skip_space_back(s, at, false);
        TRY(push_part(e, s, from, at, out));
        at = skip_space_back(s, from, true);
    }
    list_reverse(out->seq);
    return ERR_OK;
}

static enum err_code split_at(struct env *e, const struct str *s, const struct str *sep,
                              int64_t max, bool is_reverse, struct value *out)
{
    size_t p0 = 0, p1 = s->n;
    while (max-- != 0) {
        size_t at = is_reverse ? str_rfind(s, sep, 0, p1) : str_find(s, sep, p0, s->n);
        if (at == SIZE_MAX)
            break;
        TRY(push_part(e, s, is_reverse ? at + sep->n : p0, is_reverse ? p1 : at, out));
        if (is_reverse)
            p1 = at;
        else
            p0 = at + sep->n;
    }
    TRY(push_part(e, s, p0, p1, out));
    if (is_reverse)
        list_reverse(out->seq);
    return ERR_OK;
}

static enum err_code split_any(struct env *e, const struct value *self, const struct args *a,
                               bool is_reverse, struct value *out)
{
    struct value v[2];
    const struct str *sep = NULL;
    int64_t max = -1;
    TRY(tmpl_bind(e, "split()", "sep maxsplit", 0, a, v));
    if (v[0].type != V_NONE)
        TRY(tmpl_arg_str(e, &v[0], &sep));
    TRY(tmpl_arg_int(e, &v[1], &max));
    TRY(tmpl_step(e, self->s->n / 64));
    TRY(tmpl_list_new(e, V_LIST, 0, out));
    if (!sep)
        return is_reverse ? rsplit_space(e, self->s, max, out) : split_space(e, self->s, max, out);
    if (sep->n == 0)
        return tmpl_fail(e, "ValueError: empty separator");
    return split_at(e, self->s, sep, max, is_reverse, out);
}

METHOD(split)
{
    return split_any(e, self, a, false, out);
}

METHOD(rsplit)
{
    return split_any(e, self, a, true, out);
}

METHOD(splitlines)
{
    struct value v;
    bool keep = false;
    TRY(tmpl_bind(e, "splitlines()", "keepends", 0, a, &v));
    tmpl_arg_bool(&v, &keep);
    return tmpl_split_lines(e, self->s, keep, out);
}

static enum err_code partition_any(struct env *e, const struct value *self, const struct args *a,
                                   bool is_reverse, struct value *out)
{
    struct value v;
    const struct str *sep = NULL, *s = self->s;
    TRY(tmpl_bind(e, "partition()", "sep", 1, a, &v));
    TRY(tmpl_arg_str(e, &v, &sep));
    if (sep->n == 0)
        return tmpl_fail(e, "ValueError: empty separator");
    size_t at = is_reverse ? str_rfind(s, sep, 0, s->n) : str_find(s, sep, 0, s->n);
    bool is_found = at != SIZE_MAX;
    size_t cut = is_found ? at : is_reverse ? 0 : s->n;
    TRY(tmpl_list_new(e, V_TUPLE, 3, out));
    TRY(push_part(e, s, 0, cut, out));
    TRY(push_part(e, s, cut, is_found ? cut + sep->n : cut, out));
    return push_part(e, s, is_found ? cut + sep->n : cut, s->n, out);
}

METHOD(partition)
{
    return partition_any(e, self, a, false, out);
}

METHOD(rpartition)
{
    return partition_any(e, self, a, true, out);
}

static enum err_code remove_affix(struct env *e, const struct value *self, const struct args *a,
                                  bool is_end, struct value *out)
{
    struct value v;
    const struct str *affix = NULL, *s = self->s;
    TRY(tmpl_bind(e, "removeprefix()", "affix", 1, a, &v));
    TRY(tmpl_arg_str(e, &v, &affix));
    bool has = affix_is(s, affix, 0, s->n, is_end);
    return tmpl_part(e, s, has && !is_end ? affix->n : 0, has && is_end ? s->n - affix->n : s->n,
                     out);
}

METHOD(removeprefix)
{
    return remove_affix(e, self, a, false, out);
}

METHOD(removesuffix)
{
    return remove_affix(e, self, a, true, out);
}

/* --- joining and padding --- */

METHOD(replace)
{
    struct value v[3];
    const struct str *old = NULL, *new = NULL;
    int64_t count = -1;
    TRY(tmpl_bind(e, "replace()", "old new count", 2, a, v));
    TRY(tmpl_arg_str(e, &v[0], &old));
    TRY(tmpl_arg_str(e, &v[1], &new));
    TRY(tmpl_arg_int(e, &v[2], &count));
    return tmpl_replace(e, self->s, old, new, count, out);
}

METHOD(join)
{
    struct value v;
    TRY(tmpl_bind(e, "join()", "iterable", 1, a, &v));
    return tmpl_join(e, self->s, &v, true, out);
}

METHOD(format)
{
    return tmpl_format(e, self->s, a, NULL, out);
}

METHOD(format_map)
{
    struct value v;
    const struct args none = { 0 };
    TRY(tmpl_bind(e, "format_map()", "mapping", 1, a, &v));
    if (v.type != V_DICT)
        return tmpl_fail(e, "TypeError: format_map() argument must be a mapping, not %s",
                         tmpl_type_name(&v));
    return tmpl_format(e, self->s, &none, &v, out);
}

/* Fill of one character on the left or right up to a width. */
static enum err_code justify(struct env *e, const struct value *self, const struct args *a,
                             bool is_left, struct value *out)
{
    struct value v[2];
    const struct str *fill = NULL;
    struct sb b;
    int64_t width = 0;
    TRY(tmpl_bind(e, "ljust()", "width fillchar", 1, a, v));
    TRY(tmpl_arg_int(e, &v[0], &width));
    TRY(tmpl_arg_str(e, &v[1], &fill));
    if (fill && str_chars(fill) != 1)
        return tmpl_fail(e, "TypeError: The fill character must be exactly one character long");
    int64_t pad = width - (int64_t)str_chars(self->s);
    if (pad <= 0)
        return tmpl_part(e, self->s, 0, self->s->n, out);
    if (pad > (int64_t)TMPL_BYTES_MAX)
        return tmpl_full(e, "template takes too much memory");
    TRY(tmpl_step(e, (size_t)pad / 8));
    sb_init(&b, e);
    if (is_left)
        sb_add_str(&b, self->s);
    for (int64_t i = 0; i < pad && fill && !e->is_full; i++)
        sb_add_str(&b, fill);
    if (!fill)
        sb_fill(&b, ' ', (size_t)pad, false);
    if (!is_left)
        sb_add_str(&b, self->s);
    return sb_finish(&b, out);
}

METHOD(ljust)
{
    return justify(e, self, a, true, out);
}

METHOD(rjust)
{
    return justify(e, self, a, false, out);
}

METHOD(center)
{
    struct value v[2];
    const struct str *fill = NULL;
    int64_t width = 0;
    TRY(tmpl_bind(e, "center()", "width fillchar", 1, a, v));
    TRY(tmpl_arg_int(e, &v[0], &width));
    TRY(tmpl_arg_str(e, &v[1], &fill));
    if (fill && str_chars(fill) != 1)
        return tmpl_fail(e, "TypeError: The fill character must be exactly one character long");
    return tmpl_center(e, self->s, width, fill, out);
}

METHOD(zfill)
{
    struct value v;
    struct sb b;
    int64_t width = 0;
    TRY(tmpl_bind(e, "zfill()", "width", 1, a, &v));
    TRY(tmpl_arg_int(e, &v, &width));
    int64_t pad = width - (int64_t)str_chars(self->s);
    if (pad > (int64_t)TMPL_BYTES_MAX)
        return tmpl_full(e, "template takes too much memory");
    size_t sign = self->s->n && (self->s->s[0] == '-' || self->s->s[0] == '+');
    sb_init(&b, e);
    sb_add_part(&b, self->s, 0, sign);
    sb_fill(&b, '0', pad > 0 ? (size_t)pad : 0, false);
    sb_add_part(&b, self->s, sign, self->s->n);
    return sb_finish(&b, out);
}

METHOD(expandtabs)
{
    struct value v;
    struct sb b;
    int64_t tab = 8, column = 0;
    TRY(tmpl_bind(e, "expandtabs()", "tabsize", 0, a, &v));
    TRY(tmpl_arg_int(e, &v, &tab));
    if (tab > 1 << 20)
        return tmpl_full(e, "a tab is too wide");
    sb_init(&b, e);
    for (size_t at = 0; at < self->s->n && !e->is_full;) {
        size_t len = str_step(self->s, at);
        char c = self->s->s[at];
        if (c == '\t') {
            int64_t fill = tab > 0 ? tab - column % tab : 0;
            sb_fill(&b, ' ', (size_t)fill, self->s->is_caller);
            column += fill;
        } else {
            sb_add_part(&b, self->s, at, at + len);
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
        at += len;
    }
    return sb_finish(&b, out);
}

const struct method tmpl_str_methods[] = {
    { "find", method_find },
    { "rfind", method_rfind },
    { "index", method_index },
    { "rindex", method_rindex },
    { "count", method_count },
    { "startswith", method_startswith },
    { "endswith", method_endswith },
    { "strip", method_strip },
    { "lstrip", method_lstrip },
    { "rstrip", method_rstrip },
    { "split", method_split },
    { "rsplit", method_rsplit },
    { "splitlines", method_splitlines },
    { "partition", method_partition },
    { "rpartition", method_rpartition },
    { "removeprefix", method_removeprefix },
    { "removesuffix", method_removesuffix },
    { "replace", method_replace },
    { "join", method_join },
    { "format", method_format },
    { "format_map", method_format_map },
    { "ljust", method_ljust },
    { "rjust", method_rjust },
    { "center", method_center },
    { "zfill", method_zfill },
    { "expandtabs", method_expandtabs },
    { NULL, NULL },
};
