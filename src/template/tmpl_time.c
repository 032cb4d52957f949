/* tmpl_time.c - strftime_now. The moment is an input of the render, in seconds that are read as UTC: a caller who wants local time
 * adds the zone's offset. */
#include "template/template_int.h"

#include <string.h>
#include <time.h>

enum err_code tmpl_strftime(struct env *e, const struct args *a, struct value *out)
{
    struct value fmt;
    const struct str *s = NULL;
    struct tm tm;
    struct sb b;
    time_t now = (time_t)e->now;
    TRY(tmpl_bind(e, "strftime_now()", "format", 1, a, &fmt));
    TRY(tmpl_arg_str(e, &fmt, &s));
    if (!gmtime_r(&now, &tm))
        return tmpl_fail(e, "ValueError: strftime_now: the time is out of range");
    sb_init(&b, e);
    for (size_t at = 0; at < s->n;) {
        size_t n = str_step(s, at);
        if (s->s[at] != '%' || at + 1 >= s->n) {
            sb_add_part(&b, s, at, at + n);
            at += n;
            continue;
        }
        /* One directive at a time; "%-d" and its kind have a flag first. */
        char one[4] = { '%' }, text[256];
        size_t len = 1 + (strchr("-_0^#EO", s->s[at + 1]) && at + 2 < s->n);
        memcpy(one + 1, s->s + at + 1, len);
        bool is_caller = str_is_caller_at(s, at);
        if (one[len] == 'f')
            sb_add_cstr(&b, "000000", is_caller);
        else if (one[len] != 'z' && one[len] != 'Z') {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
            sb_add(&b, text, strftime(text, sizeof(text), one, &tm), is_caller);
#pragma GCC diagnostic pop
        }
        at += 1 + len;
    }
    return sb_finish(&b, out);
}
