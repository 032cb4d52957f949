/* fuzz_json.c - any bytes as JSON: an error that tells line and column, or a value that is written and read back the same. */
#include "base/utf8.h"
#include "json/json.h"

#include <stdint.h>
#include <string.h>

#define VALUES_MAX ((size_t)64 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use_value(const struct json *v, int depth)
{
    int64_t i;
    double d;
    BUG_ON(depth > JSON_DEPTH_MAX);
    if (v->type == JSON_TYPE_STRING)
        BUG_ON(!utf8_is_valid(v->text, v->len) || v->text[v->len] != '\0');
    if (json_to_int(v, "x", -1000, 1000, &i, NULL) == ERR_OK)
        BUG_ON(i < -1000 || i > 1000);
    if (json_to_double(v, "x", -1e9, 1e9, &d, NULL) == ERR_OK)
        BUG_ON(!(d >= -1e9 && d <= 1e9));
    for (size_t k = 0; k < v->n; k++) {
        if (v->type == JSON_TYPE_ARRAY) {
            use_value(&v->items[k], depth + 1);
            continue;
        }
        BUG_ON(!utf8_is_valid(v->members[k].key, v->members[k].key_len));
        use_value(&v->members[k].value, depth + 1);
    }
}

static void write_value(const struct json *v, struct buf *out)
{
    struct json_writer w;
    buf_init(out, MEM_CAT_BASE, VALUES_MAX);
    json_writer_init(&w, out);
    json_value(&w, v);
    BUG_ON(out->failed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct json_doc doc, again;
    struct err err = { 0 };
    struct buf first, second;
    enum err_code code = json_parse(&doc, (const char *)data, size, VALUES_MAX, &err);
    if (code) {
        BUG_ON(code == ERR_INVALID && strncmp(err.text, "JSON line ", 10) != 0);
        return 0;
    }
    use_value(&doc.root, 0);
    write_value(&doc.root, &first);
    BUG_ON(json_parse(&again, first.data, first.len, VALUES_MAX, &err) != ERR_OK);
    write_value(&again.root, &second);
    BUG_ON(first.len != second.len || memcmp(first.data, second.data, first.len) != 0);
    buf_release(&first);
    buf_release(&second);
    json_doc_release(&doc);
    json_doc_release(&again);
    return 0;
}
