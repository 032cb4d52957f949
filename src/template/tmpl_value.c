/* tmpl_value.c - making values, truth, equality and order as Python has them. */
#include "template/template_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct value tmpl_none(void)
{
    return (struct value){ .type = V_NONE };
}

struct value tmpl_bool(bool b)
{
    return (struct value){ .type = V_BOOL, .b = b };
}

struct value tmpl_int(int64_t i, bool is_caller)
{
    return (struct value){ .type = V_INT, .is_caller = is_caller, .i = i };
}

struct value tmpl_float(double f, bool is_caller)
{
    return (struct value){ .type = V_FLOAT, .is_caller = is_caller, .f = f };
}

/* --- undefined --- */

enum err_code tmpl_undef(struct env *e, const char *type, struct value name, struct value *out)
{
    struct undef *u = tmpl_alloc(e, sizeof(*u));
    TRY(tmpl_check(e));
    *u = (struct undef){ .type = type, .name = name };
    *out = (struct value){ .type = V_UNDEF, .undef = u };
    return ERR_OK;
}

enum err_code tmpl_undef_hint(struct env *e, const char *hint, struct value *out)
{
    struct value text;
    TRY(tmpl_str(e, hint, strlen(hint), false, &text));
    TRY(tmpl_undef(e, NULL, text, out));
    out->undef->hint = text.s;
    return ERR_OK;
}

enum err_code tmpl_use_undef(struct env *e, const struct value *v)
{
    const struct undef *u = v->undef;
    struct sb b;
    struct value text;
    if (u->hint)
        return tmpl_fail(e, "UndefinedError: %.*s", (int)u->hint->n, u->hint->s);
    sb_init(&b, e);
    tmpl_add_repr(&b, &u->name, 0);
    TRY(sb_finish(&b, &text));
    int n = (int)(text.s->n < 200 ? text.s->n : 200);
    if (!u->type)
        return tmpl_fail(e, "UndefinedError: %.*s is undefined", n, text.s->s);
    if (u->name.type == V_STR)
        return tmpl_fail(e, "UndefinedError: '%s' has no attribute %.*s", u->type, n, text.s->s);
    return tmpl_fail(e, "UndefinedError: %s has no element %.*s", u->type, n, text.s->s);
}

const char *tmpl_type_name(const struct value *v)
{
    static const char *const views[] = { "dict_keys", "dict_values", "dict_items" };
    static const char *const names[] = {
        [V_MISSING] = "missing",  [V_UNDEF] = "Undefined",
        [V_NONE] = "NoneType",    [V_BOOL] = "bool",
        [V_INT] = "int",          [V_BIG] = "int",
        [V_FLOAT] = "float",      [V_STR] = "str",
        [V_LIST] = "list",        [V_TUPLE] = "tuple",
        [V_DICT] = "dict",        [V_NAMESPACE] = "Namespace",
        [V_RANGE] = "range",      [V_VIEW] = "view",
        [V_ITER] = "generator",   [V_MACRO] = "Macro",
        [V_FUNC] = "function",    [V_METHOD] = "builtin_function_or_method",
        [V_LOOP] = "LoopContext", [V_CYCLER] = "Cycler",
        [V_JOINER] = "Joiner",
    };
    if (v->type == V_VIEW)
        return views[v->view->kind];
    if (v->type == V_ITER && v->iter->kind)
        return v->iter->kind;
    if (v->type == V_STR && v->s->is_markup)
        return "Markup";
    return names[v->type];
}

bool tmpl_is_integer(const struct value *v)
{
    return v->type == V_INT || v->type == V_BIG;
}

bool tmpl_as_int(const struct value *v, int64_t *i)
{
    if (v->type != V_INT && v->type != V_BOOL)
        return false;
    *i = v->type == V_BOOL ? v->b : v->i;
    return true;
}

bool tmpl_truth(const struct value *v)
{
    size_t n;
    switch (v->type) {
    case V_MISSING:
    case V_UNDEF:
    case V_NONE:
        return false;
    case V_BOOL:
        return v->b;
    case V_INT:
        return v->i != 0;
    case V_FLOAT:
        return v->f != 0;
    case V_STR:
        return v->s->n > 0;
    default:
        return !tmpl_len(v, &n) || n > 0;
    }
}

/* --- equality --- */

static int digits_compare(const struct str *a, const struct str *b)
{
    bool a_neg = a->s[0] == '-', b_neg = b->s[0] == '-';
    if (a_neg != b_neg)
        return a_neg ? -1 : 1;
    int c = a->n != b->n ? (a->n < b->n ? -1 : 1) : memcmp(a->s, b->s, a->n);
    c = c < 0 ? -1 : c > 0;
    return a_neg ? -c : c;
}

/* Wide enough to hold an int64 and a double alike. */
static long double number_wide(const struct value *v)
{
    int64_t i;
    return tmpl_as_int(v, &i) ? (long double)i : tmpl_as_double(v);
}

/* Order of two numbers; *is_nan if they have none. */
static int number_compare(const struct value *a, const struct value *b, bool *is_nan)
{
    int64_t i, j;
    *is_nan = false;
    if (tmpl_as_int(a, &i) && tmpl_as_int(b, &j))
        return i < j ? -1 : i > j;
    if (a->type == V_BIG && b->type == V_BIG)
        return digits_compare(a->s, b->s);
    if (a->type == V_BIG && b->type != V_FLOAT)
        return a->s->s[0] == '-' ? -1 : 1;
    if (b->type == V_BIG && a->type != V_FLOAT)
        return b->s->s[0] == '-' ? 1 : -1;
    long double x = number_wide(a), y = number_wide(b);
    *is_nan = isnan(x) || isnan(y);
    return x < y ? -1 : x > y;
}

static enum err_code seq_equal(struct env *e, const struct seq *a, const struct seq *b, bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++)
        TRY(tmpl_equal(e, &a->items[i], &b->items[i], out));
    return ERR_OK;
}

static enum err_code dict_equal(struct env *e, const struct dict *a, const struct dict *b,
                                bool *out)
{
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        struct value *other;
        TRY(tmpl_dict_get(e, b, &a->entries[i].key, &other));
        *out = other != NULL;
        if (other)
            TRY(tmpl_equal(e, &a->entries[i].value, other, out));
    }
    return ERR_OK;
}

static enum err_code equal_deep(struct env *e, const struct value *a, const struct value *b,
                                bool *out)
{
    if (++e->depth > TMPL_DEPTH_MAX)
        return tmpl_full(e, "values are nested too deep");
    TRY(tmpl_step(e, 1));
    if (a->type == V_DICT)
        TRY(dict_equal(e, a->dict, b->dict, out));
    else
        TRY(seq_equal(e, a->seq, b->seq, out));
    e->depth--;
    return ERR_OK;
}

enum err_code tmpl_equal(struct env *e, const struct value *a, const struct value *b, bool *out)
{
    bool is_nan;
    if (tmpl_is_number(a) && tmpl_is_number(b)) {
        *out = number_compare(a, b, &is_nan) == 0 && !is_nan;
        return ERR_OK;
    }
    *out = false;
    if (a->type != b->type)
        return ERR_OK;
    switch (a->type) {
    case V_UNDEF:
    case V_NONE:
        *out = true;
        return ERR_OK;
    case V_STR:
        *out = str_equal(a->s, b->s);
        return e ? tmpl_step(e, *out ? a->s->n / 64 : 0) : ERR_OK;
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
        return equal_deep(e, a, b, out);
    case V_RANGE:
        *out = a->range->n == b->range->n &&
               (a->range->n == 0 || (a->range->start == b->range->start &&
                                     (a->range->n == 1 || a->range->step == b->range->step)));
        return ERR_OK;
    case V_METHOD:
        *out = a->bound->method == b->bound->method && a->bound->self.type == b->bound->self.type &&
               a->bound->self.s == b->bound->self.s;
        return ERR_OK;
    default:
        *out = a->dict == b->dict; /* the same object */
        return ERR_OK;
    }
}

/* --- order --- */

static enum err_code order_error(struct env *e, const char *op, const struct value *a,
                                 const struct value *b)
{
    if (a->type == V_UNDEF)
        return tmpl_use_undef(e, a);
    if (b->type == V_UNDEF)
        return tmpl_use_undef(e, b);
    return tmpl_fail(e, "TypeError: '%s' not supported between instances of '%s' and '%s'", op,
                     tmpl_type_name(a), tmpl_type_name(b));
}

/* Order of a and b; *is_nan if they have none though their types do. */
static enum err_code order(struct env *e, const char *op, const struct value *a,
                           const struct value *b, int *out, bool *is_nan)
{
    *is_nan = false;
    if (tmpl_is_number(a) && tmpl_is_number(b)) {
        *out = number_compare(a, b, is_nan);
        return ERR_OK;
    }
    if (a->type == V_STR && b->type == V_STR) {
        *out = str_compare(a->s, b->s);
        return tmpl_step(e, (a->s->n < b->s->n ? a->s->n : b->s->n) / 64);
    }
    if (a->type != b->type || (a->type != V_LIST && a->type != V_TUPLE))
        return order_error(e, op, a, b);
    if (++e->depth > TMPL_DEPTH_MAX)
        return tmpl_full(e, "values are nested too deep");
    for (size_t i = 0; i < a->seq->n && i < b->seq->n; i++) {
        bool is_same;
        TRY(tmpl_step(e, 1));
        TRY(tmpl_equal(e, &a->seq->items[i], &b->seq->items[i], &is_same));
        if (is_same)
            continue;
        e->depth--;
        return order(e, op, &a->seq->items[i], &b->seq->items[i], out, is_nan);
    }
    e->depth--;
    *out = a->seq->n < b->seq->n ? -1 : a->seq->n > b->seq->n;
    return ERR_OK;
}

enum err_code tmpl_compare(struct env *e, const char *op, const struct value *a,
                           const struct value *b, int *out)
{
    bool is_nan;
    TRY(order(e, op, a, b, out, &is_nan));
    if (is_nan)
        *out = 0;
    return ERR_OK;
}

enum err_code tmpl_ordered(struct env *e, const char *op, const struct value *a,
                           const struct value *b, bool *out)
{
    bool is_nan;
    int c;
    TRY(order(e, op, a, b, &c, &is_nan));
    *out = op[0] == '<' ? c < 0 : c > 0;
    if (op[1] == '=' && c == 0)
        *out = true;
    if (is_nan)
        *out = false;
    return ERR_OK;
}

enum err_code tmpl_contains(struct env *e, const struct value *seq, const struct value *item,
                            bool *out)
{
    struct value *found;
    *out = false;
    if (seq->type == V_STR) {
        if (item->type != V_STR)
            return tmpl_fail(e, "TypeError: 'in <string>' requires string as left operand, not %s",
                             tmpl_type_name(item));
        *out = str_find(seq->s, item->s, 0, seq->s->n) != SIZE_MAX;
        return tmpl_step(e, seq->s->n / 64);
    }
    if (seq->type == V_DICT || (seq->type == V_VIEW && seq->view->kind == VIEW_KEYS)) {
        TRY(tmpl_dict_get(e, seq->type == V_DICT ? seq->dict : seq->view->dict, item, &found));
        *out = found != NULL;
        return ERR_OK;
    }
    if (!tmpl_is_iterable(seq))
        return tmpl_fail(e, "TypeError: argument of type '%s' is not iterable",
                         tmpl_type_name(seq));
    struct iter *it;
    TRY(tmpl_iter(e, seq, &it));
    for (bool has; !*out;) {
        struct value v;
        TRY(tmpl_next(e, it, &v, &has));
        if (!has)
            break;
        TRY(tmpl_equal(e, &v, item, out));
    }
    return ERR_OK;
}

/* --- from JSON --- */

static enum err_code from_number(struct env *e, const struct json *j, bool is_caller,
                                 struct value *out)
{
    for (size_t i = 0; i < j->len; i++) {
        if (j->text[i] == '.' || (j->text[i] | 32) == 'e') {
            *out = tmpl_float(strtod(j->text, NULL), is_caller);
            return ERR_OK;
        }
    }
    return tmpl_int_from_digits(e, j->text, j->len, is_caller, out);
}

/* JSON's bytes are borrowed: they outlive the render. */
static enum err_code from_text(struct env *e, const char *s, size_t n, bool is_caller,
                               struct value *out)
{
    struct str *str = tmpl_alloc(e, sizeof(*str));
    TRY(tmpl_check(e));
    *str = (struct str){ .s = s, .n = n, .n_chars = STR_UNCOUNTED, .is_caller = is_caller };
    *out = (struct value){ .type = V_STR, .s = str };
    return ERR_OK;
}

enum err_code tmpl_from_json(struct env *e, const struct json *j, bool is_caller, struct value *out)
{
    struct value v, key;
    switch (j->type) {
    case JSON_TYPE_NULL:
        *out = tmpl_none();
        break;
    case JSON_TYPE_BOOL:
        *out = tmpl_bool(j->boolean);
        break;
    case JSON_TYPE_NUMBER:
        return from_number(e, j, is_caller, out);
    case JSON_TYPE_STRING:
        return from_text(e, j->text, j->len, is_caller, out);
    case JSON_TYPE_ARRAY:
        TRY(tmpl_list_new(e, V_LIST, j->n, out));
        for (size_t i = 0; i < j->n; i++) {
            TRY(tmpl_from_json(e, &j->items[i], is_caller, &v));
            TRY(tmpl_push(e, out, v));
        }
        break;
    case JSON_TYPE_OBJECT:
        TRY(tmpl_dict_new(e, out));
        for (size_t i = 0; i < j->n; i++) {
            TRY(from_text(e, j->members[i].key, j->members[i].key_len, is_caller, &key));
            TRY(tmpl_from_json(e, &j->members[i].value, is_caller, &v));
            TRY(tmpl_dict_set(e, out->dict, key, v));
        }
        break;
    }
    out->is_caller = is_caller;
    return ERR_OK;
}
