#include "template/messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define BYTES_MAX ((size_t)1 << 20)

static void check(const char *text, unsigned flags, const char *want)
{
    struct json_doc in, out;
    struct err err = { 0 };
    struct buf got;
    struct json_writer w;
    assert_int_equal(json_parse(&in, text, strlen(text), BYTES_MAX, NULL), ERR_OK);
    if (messages_normalise(&in.root, flags, BYTES_MAX, &out, &err))
        fail_msg("%s: %s", text, err.text);
    buf_init(&got, MEM_CAT_BASE, BYTES_MAX);
    json_writer_init(&w, &got);
    json_value(&w, &out.root);
    assert_string_equal(got.data, want);
    buf_release(&got);
    json_doc_release(&out);
    json_doc_release(&in);
}

static void nulls_go_and_content_is_text(void **state)
{
    check("[{\"role\":\"user\",\"content\":null,\"name\":null}]", 0,
          "[{\"role\":\"user\",\"content\":\"\"}]");
    check("[{\"role\":\"user\"}]", 0, "[{\"role\":\"user\",\"content\":\"\"}]");
    check("[{\"content\":\"x\",\"role\":\"user\"}]", 0, "[{\"content\":\"x\",\"role\":\"user\"}]");
    check("[]", 0, "[]");
}

/* Case B12. */
static void arguments_become_objects(void **state)
{
    static const struct {
        const char *in, *want;
    } cases[] = {
        { "\"{\\\"city\\\": \\\"Oslo\\\", \\\"n\\\": 3, \\\"x\\\": 1e-7}\"",
          "{\"city\":\"Oslo\",\"n\":3,\"x\":1e-7}" },
        { "\"\"", "{}" },
        { "null", "{}" },
        { "\"{\"", "\"{\"" },
        { "\"[1]\"", "\"[1]\"" },
        { "{\"city\":\"Oslo\"}", "{\"city\":\"Oslo\"}" },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf in, want;
        buf_init(&in, MEM_CAT_BASE, BYTES_MAX);
        buf_init(&want, MEM_CAT_BASE, BYTES_MAX);
        buf_printf(&in,
                   "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c1\","
                   "\"function\":{\"name\":\"f\",\"arguments\":%s}}]}]",
                   cases[i].in);
        buf_printf(&want,
                   "[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c1\",\"function\":{\"name\":"
                   "\"f\",\"arguments\":%s}}],\"content\":\"\"}]",
                   cases[i].want);
        check(in.data, 0, want.data);
        buf_release(&in);
        buf_release(&want);
    }
    check("[{\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}},{\"x\":1},3]}]", 0,
          "[{\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}},{"
          "\"x\":1},3]}]");
}

static void reasoning_is_found_under_its_names(void **state)
{
    check(
        "[{\"content\":\"a\",\"reasoning\":\"r\"}]", 0,
        "[{\"content\":\"a\",\"reasoning\":\"r\",\"thinking\":\"r\",\"reasoning_content\":\"r\"}]");
    check("[{\"content\":\"a\",\"thinking\":\"t\"}]", 0,
          "[{\"content\":\"a\",\"thinking\":\"t\",\"reasoning_content\":\"t\"}]");
    check("[{\"content\":\"a\",\"reasoning_content\":null,\"thinking\":\"t\"}]", 0,
          "[{\"content\":\"a\",\"thinking\":\"t\",\"reasoning_content\":\"t\"}]");
}

static void text_parts_are_joined_where_asked(void **state)
{
    static const char parts[] =
        "[{\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]";
    static const char image[] =
        "[{\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\"}]}]";
    check(parts, MESSAGES_FLAG_JOIN_TEXT, "[{\"content\":\"a\\nb\"}]");
    check(parts, 0, parts);
    check(image, MESSAGES_FLAG_JOIN_TEXT, image);
    check("[{\"content\":[]}]", MESSAGES_FLAG_JOIN_TEXT, "[{\"content\":\"\"}]");
}

static void what_is_no_message_is_refused(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "{}", "messages: must be an array" },
        { "[{},3]", "messages[1]: must be an object" },
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct json_doc in, out;
        struct err err = { 0 };
        assert_int_equal(json_parse(&in, cases[i].text, strlen(cases[i].text), BYTES_MAX, NULL),
                         ERR_OK);
        assert_int_equal(messages_normalise(&in.root, 0, BYTES_MAX, &out, &err), ERR_INVALID);
        assert_string_equal(err.text, cases[i].want);
        json_doc_release(&in);
    }
}

static bool takes_parts(const char *text)
{
    struct template *t = NULL;
    assert_int_equal(template_parse("t", text, strlen(text), &t, NULL), ERR_OK);
    bool takes = messages_takes_parts(t);
    template_free(t);
    return takes;
}

static void templates_tell_whether_they_take_parts(void **state)
{
    assert_false(takes_parts("{% for m in messages %}{{ m.content }}{% endfor %}"));
    assert_false(takes_parts("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}"));
    assert_false(takes_parts("{% for m in messages %}{{ m.content|tojson }}{% endfor %}"));
    assert_true(
        takes_parts("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
                    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nulls_go_and_content_is_text),
        cmocka_unit_test(arguments_become_objects),
        cmocka_unit_test(reasoning_is_found_under_its_names),
        cmocka_unit_test(text_parts_are_joined_where_asked),
        cmocka_unit_test(what_is_no_message_is_refused),
        cmocka_unit_test(templates_tell_whether_they_take_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
