/* tmpl_test.c - the tests of `is`. */
#include "template/template_ast.h"

#include <string.h>

#define TEST(name)                                                                               \
    static enum err_code test_##name(struct env *e, const struct value *v, const struct args *a, \
                                     struct value *out)

static enum err_code test_give(struct env *e, const struct args *a, bool is_true, struct value *out)
{
    TRY(tmpl_bind(e, "test", "", 0, a, NULL));
    *out = tmpl_bool(is_true);
    return ERR_OK;
}

static enum err_code test_remainder(struct env *e, const struct value *v, const struct value *by,
                                    int64_t want, struct value *out)
{
    struct value rest, number = tmpl_int(want, false);
    bool is_same;
    TRY(tmpl_binary(e, OP_MOD, v, by, &rest));
    TRY(tmpl_equal(e, &rest, &number, &is_same));
    *out = tmpl_bool(is_same);
    return ERR_OK;
}

TEST(odd)
{
    struct value two = tmpl_int(2, false);
    TRY(tmpl_bind(e, "test odd", "", 0, a, NULL));
    return test_remainder(e, v, &two, 1, out);
}

TEST(even)
{
    struct value two = tmpl_int(2, false);
    TRY(tmpl_bind(e, "test even", "", 0, a, NULL));
    return test_remainder(e, v, &two, 0, out);
}

TEST(divisibleby)
{
    struct value by;
    TRY(tmpl_bind(e, "test divisibleby", "num", 1, a, &by));
    return test_remainder(e, v, &by, 0, out);
}

TEST(defined)
{
    return test_give(e, a, v->type != V_UNDEF, out);
}

TEST(undefined)
{
    return test_give(e, a, v->type == V_UNDEF, out);
}

TEST(none)
{
    return test_give(e, a, v->type == V_NONE, out);
}

TEST(boolean)
{
    return test_give(e, a, v->type == V_BOOL, out);
}

TEST(true)
{
    return test_give(e, a, v->type == V_BOOL && v->b, out);
}

TEST(false)
{
    return test_give(e, a, v->type == V_BOOL && !v->b, out);
}

TEST(integer)
{
    return test_give(e, a, tmpl_is_integer(v), out);
}

TEST(float)
{
    return test_give(e, a, v->type == V_FLOAT, out);
}

TEST(number)
{
    return test_give(e, a, tmpl_is_number(v), out);
}

TEST(string)
{
    return test_give(e, a, v->type == V_STR, out);
}

TEST(mapping)
{
    return test_give(e, a, v->type == V_DICT, out);
}

TEST(sequence)
{
    size_t n;
    return test_give(e, a, v->type != V_VIEW && tmpl_len(v, &n), out);
}

TEST(iterable)
{
    return test_give(e, a, v->type == V_LOOP || tmpl_is_iterable(v), out);
}

TEST(callable)
{
    return test_give(e, a, tmpl_is_callable(v), out);
}

TEST(escaped)
{
    return test_give(e, a, v->type == V_STR && v->s->is_markup, out);
}

/* str(v).islower() or isupper() */
static enum err_code test_case(struct env *e, const struct value *v, const struct args *a,
                               const char *method, struct value *out)
{
    struct value text;
    TRY(tmpl_to_text(e, v, &text));
    return tmpl_method_find(&text, method, 7)->call(e, &text, a, out);
}

TEST(lower)
{
    return test_case(e, v, a, "islower", out);
}

TEST(upper)
{
    return test_case(e, v, a, "isupper", out);
}

/* A name that is looked up must be hashable. */
static enum err_code test_name(struct env *e, const struct value *v)
{
    const struct dict none = { 0 };
    struct value *found;
    return tmpl_dict_get(e, &none, v, &found);
}

TEST(filter)
{
    TRY(tmpl_bind(e, "test filter", "", 0, a, NULL));
    TRY(test_name(e, v));
    *out = tmpl_bool(v->type == V_STR && tmpl_filter_find(v->s->s, v->s->n));
    return ERR_OK;
}

TEST(test)
{
    TRY(tmpl_bind(e, "test test", "", 0, a, NULL));
    TRY(test_name(e, v));
    *out = tmpl_bool(v->type == V_STR && tmpl_test_find(v->s->s, v->s->n));
    return ERR_OK;
}

/* Identity: for what has none here (numbers, texts), the same type and value. */
TEST(sameas)
{
    struct value other;
    bool is_same = false;
    TRY(tmpl_bind(e, "test sameas", "other", 1, a, &other));
    if (v->type == other.type && (v->type == V_LIST || v->type == V_TUPLE || v->type == V_DICT))
        is_same = v->dict == other.dict;
    else if (v->type == other.type && v->type != V_UNDEF)
        TRY(tmpl_equal(e, v, &other, &is_same));
    *out = tmpl_bool(is_same);
    return ERR_OK;
}

TEST(in)
{
    struct value seq;
    bool is_in;
    TRY(tmpl_bind(e, "test in", "seq", 1, a, &seq));
    TRY(tmpl_contains(e, &seq, v, &is_in));
    *out = tmpl_bool(is_in);
    return ERR_OK;
}

static enum err_code test_equal(struct env *e, const struct value *v, const struct args *a,
                                bool want, struct value *out)
{
    struct value other;
    bool is_same;
    TRY(tmpl_bind(e, "test eq", "other", 1, a, &other));
    TRY(tmpl_equal(e, v, &other, &is_same));
    *out = tmpl_bool(is_same == want);
    return ERR_OK;
}

TEST(eq)
{
    return test_equal(e, v, a, true, out);
}

TEST(ne)
{
    return test_equal(e, v, a, false, out);
}

static enum err_code test_order(struct env *e, const char *op, const struct value *v,
                                const struct args *a, struct value *out)
{
    struct value other;
    bool is_true;
    TRY(tmpl_bind(e, "test", "other", 1, a, &other));
    TRY(tmpl_ordered(e, op, v, &other, &is_true));
    *out = tmpl_bool(is_true);
    return ERR_OK;
}

TEST(lt)
{
    return test_order(e, "<", v, a, out);
}

TEST(le)
{
    return test_order(e, "<=", v, a, out);
}

TEST(gt)
{
    return test_order(e, ">", v, a, out);
}

TEST(ge)
{
    return test_order(e, ">=", v, a, out);
}

static const struct filter tests[] = {
    { "odd", test_odd },
    { "even", test_even },
    { "divisibleby", test_divisibleby },
    { "defined", test_defined },
    { "undefined", test_undefined },
    { "filter", test_filter },
    { "test", test_test },
    { "none", test_none },
    { "boolean", test_boolean },
    { "false", test_false },
    { "true", test_true },
    { "integer", test_integer },
    { "float", test_float },
    { "lower", test_lower },
    { "upper", test_upper },
    { "string", test_string },
    { "mapping", test_mapping },
    { "number", test_number },
    { "sequence", test_sequence },
    { "iterable", test_iterable },
    { "callable", test_callable },
    { "sameas", test_sameas },
    { "escaped", test_escaped },
    { "in", test_in },
    { "==", test_eq },
    { "eq", test_eq },
    { "equalto", test_eq },
    { "!=", test_ne },
    { "ne", test_ne },
    { ">", test_gt },
    { "gt", test_gt },
    { "greaterthan", test_gt },
    { "ge", test_ge },
    { ">=", test_ge },
    { "<", test_lt },
    { "lt", test_lt },
    { "lessthan", test_lt },
    { "<=", test_le },
    { "le", test_le },
};

const struct filter *tmpl_test_find(const char *name, size_t n)
{
    for (size_t i = 0; i < ARRAY_LEN(tests); i++)
        if (strlen(tests[i].name) == n && memcmp(tests[i].name, name, n) == 0)
            return &tests[i];
    return NULL;
}
