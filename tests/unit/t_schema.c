#include "server/fields.h"
#include "server/openapi.h"
#include "server/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define STRING "{\"type\":\"string\"}"

static void test_each_form_of_a_type(void **state)
{
    static const struct {
        const char *type, *schema;
    } rows[] = {
        { "string", STRING },
        { "string(1,64)", "{\"type\":\"string\",\"minLength\":1,\"maxLength\":64}" },
        { "word(1,9)", "{\"type\":\"string\",\"pattern\":\"^[A-Za-z0-9_.:-]+$\",\"minLength\":1,"
                       "\"maxLength\":9}" },
        { "int(0)", "{\"type\":\"integer\",\"minimum\":0}" },
        { "number(-1e3,0.5)", "{\"type\":\"number\",\"minimum\":-1e3,\"maximum\":0.5}" },
        { "any", "{}" },
        { "'a'", "{\"const\":\"a\"}" },
        { "'a' | 'b c'", "{\"enum\":[\"a\",\"b c\"]}" },
        { "'a' | null", "{\"enum\":[\"a\",null]}" },
        { "string | null", "{\"type\":[\"string\",\"null\"]}" },
        { "int(0) | null",
          "{\"anyOf\":[{\"type\":\"integer\",\"minimum\":0},{\"type\":\"null\"}]}" },
        { "Name", "{\"$ref\":\"#/components/schemas/Name\"}" },
        { "string[]", "{\"type\":\"array\",\"items\":" STRING "}" },
        { "string[1,2][3]", "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":" STRING
                            ",\"minItems\":1,\"maxItems\":2},\"minItems\":3}" },
        { "(string | null)[]", "{\"type\":\"array\",\"items\":{\"type\":[\"string\",\"null\"]}}" },
        { "map(string)", "{\"type\":\"object\",\"additionalProperties\":" STRING "}" },
        { "ids(string)", "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[0-9]+$\"},"
                         "\"additionalProperties\":" STRING "}" },
        { "{}", "{\"type\":\"object\",\"properties\":{}}" },
        { "{a: string, b_2?: string}", "{\"type\":\"object\",\"properties\":{\"a\":" STRING
                                       ",\"b_2\":" STRING "},\"required\":[\"a\"]}" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf out;
        buf_init(&out, MEM_CAT_SERVER, 1 << 12);
        schema_write(&out, rows[i].type, false, NULL);
        assert_string_equal(out.data, rows[i].schema);
        buf_release(&out);
    }
}

static void test_null_and_a_description_are_added(void **state)
{
    static const struct {
        const char *type, *schema;
    } rows[] = {
        { "string", "{\"description\":\"\\\"d\\\"\",\"type\":[\"string\",\"null\"]}" },
        { "any", "{\"description\":\"\\\"d\\\"\"}" },
        { "null", "{\"description\":\"\\\"d\\\"\",\"type\":\"null\"}" },
        { "'a' | 'b'", "{\"description\":\"\\\"d\\\"\",\"enum\":[\"a\",\"b\",null]}" },
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct buf out;
        buf_init(&out, MEM_CAT_SERVER, 1 << 12);
        schema_write(&out, rows[i].type, true, "\"d\"");
        assert_string_equal(out.data, rows[i].schema);
        buf_release(&out);
    }
}

/* Writes every field of the routes, so that one without a type would be found. */
static void test_fields_of_a_route(void **state)
{
    static const unsigned routes[] = { FIELDS_ROUTE_CHAT,     FIELDS_ROUTE_COMPLETIONS,
                                       FIELDS_ROUTE_SIGNAL,   FIELDS_ROUTE_RESPONSES,
                                       FIELDS_ROUTE_MESSAGES, FIELDS_ROUTE_EMBEDDINGS,
                                       FIELDS_ROUTE_INFILL };
    struct json_doc doc;
    struct buf out;
    buf_init(&out, MEM_CAT_SERVER, 1 << 20);
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        buf_reset(&out);
        fields_write_schema(&out, (enum fields_route)routes[i], "model", "\"x\":1");
        assert_int_equal(json_parse(&doc, out.data, out.len, 1 << 24, NULL), ERR_OK);
        const struct json *model = json_get(json_get(&doc.root, "properties"), "model");
        assert_true(json_str_eq(json_get(model, "type"), "string")); /* required: no null */
        assert_int_equal(json_get(&doc.root, "required")->n, 1);
        assert_non_null(json_get(&doc.root, "x"));
        json_doc_release(&doc);
    }
    buf_release(&out);
}

static void test_a_description_before_a_model_is_there(void **state)
{
    static const struct openapi_route routes[] = {
        { "/a", "get", false, true, OPENAPI_LIVE },
        { "/r/", "get", true, false, OPENAPI_RESPONSE_GET },
        { "/r/", "delete", true, false, OPENAPI_RESPONSE_DELETE },
    };
    const struct openapi_about about = { .has_keys = true };
    struct json_doc doc;
    struct buf out;
    buf_init(&out, MEM_CAT_SERVER, 1 << 20);
    openapi_write(&out, routes, ARRAY_LEN(routes), &about);
    assert_int_equal(json_parse(&doc, out.data, out.len, 1 << 24, NULL), ERR_OK);
    const struct json *paths = json_get(&doc.root, "paths");
    assert_int_equal(paths->n, 3);
    assert_int_equal(json_get(paths, "/r/{id}")->n, 2);
    assert_int_equal(json_get(json_get(json_get(paths, "/a"), "get"), "security")->n, 0);
    assert_int_equal(json_get(&doc.root, "security")->n, 2);
    json_doc_release(&doc);
    buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_form_of_a_type),
        cmocka_unit_test(test_null_and_a_description_are_added),
        cmocka_unit_test(test_fields_of_a_route),
        cmocka_unit_test(test_a_description_before_a_model_is_there),
    };
    return cmocka_run_group_tests_name("schema", tests, NULL, NULL);
}
