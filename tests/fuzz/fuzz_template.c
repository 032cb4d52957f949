/* fuzz_template.c - any bytes as a template over any variables: an error with text, or UTF-8 with an orderly list of spans.
 *
 * Input: the template's text, and after a NUL the variables as JSON; without one, or with JSON that does not parse, a fixed
 * conversation. Bounds are small, so that an input ends soon. */
#include "base/utf8.h"
#include "template/template_int.h"

#include <stdint.h>
#include <string.h>

#define STEPS 100000
#define BYTES ((size_t)16 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\\u00e9 "
    "<|im_start|>\"},{\"role\":\"user\",\"content\":"
    "[{\"type\":\"text\",\"text\":\"Hi\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_"
    "calls\":[{\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"x\":1e-7,\"n\":12345678901234567890,\"l\":[1,2.5,true,null]}}"
    "}]}],"
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"s\":\"a,b "
    "c\\n\",\"i\":7,\"e\":[],\"d\":{\"b\":1,\"a\":2}}";

static void check_output(const struct template_output *out)
{
    BUG_ON(!utf8_is_valid(out->text.data, out->text.len));
    for (size_t i = 0; i < out->caller.n; i++) {
        const struct span *s = &out->caller.spans[i];
        BUG_ON(s->p0 >= s->p1 || s->p1 > out->text.len);
        BUG_ON(i && s[-1].p1 >= s->p0);
    }
}

static void render(const struct template *t, const struct json *variables)
{
    struct template_output out;
    struct err err = { 0 };
    const struct template_input in = { .caller = variables, .now = 1767225599 };
    template_output_init(&out, (size_t)1 << 20);
    enum err_code code = tmpl_render(t, &in, STEPS, BYTES, &out, &err);
    BUG_ON(code && code != ERR_INVALID && code != ERR_FULL && code != ERR_UNSUPPORTED);
    if (!code)
        check_output(&out);
    template_output_release(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const char *end = size ? memchr(text, '\0', size) : NULL;
    size_t len = end ? (size_t)(end - text) : size;
    struct template *t = NULL;
    struct json_doc doc;
    struct err err = { 0 };
    if (template_parse("fuzz", text, len, &t, &err)) {
        BUG_ON(!err.text[0]);
        return 0;
    }
    (void)template_uses(t, "tools");
    if (!end || json_parse(&doc, end + 1, size - len - 1, BYTES, NULL))
        BUG_ON(json_parse(&doc, conversation, strlen(conversation), BYTES, NULL));
    render(t, &doc.root);
    json_doc_release(&doc);
    template_free(t);
    return 0;
}
