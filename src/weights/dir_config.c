/* dir_config.c - a directory's JSON texts as metadata. */
#include "weights/weights_edit.h"
#include "weights/weights_int.h"
#include "json/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX ((size_t)16 << 20) /* of a text */
#define CONFIG_FACTOR    160 /* as in safetensors.c: bytes here for one of the text */
#define CONFIG_NESTING   8

/* "PREFIX.name" in one buffer, so that a level costs no memory. */
struct config_path {
    char text[256];
    size_t n;
};

static enum err_code config_enter(struct config_path *p, const char *name, size_t n,
                                  struct err *err)
{
    if (p->n + 1 + n >= sizeof(p->text))
        return err_set(err, ERR_INVALID, "%s: a key of %zu bytes below it, paths are at most %zu",
                       p->text, n, sizeof(p->text) - 1);
    p->text[p->n] = '.';
    memcpy(p->text + p->n + 1, name, n);
    p->n += 1 + n;
    p->text[p->n] = '\0';
    return strlen(p->text) == p->n
               ? ERR_OK
               : err_set(err, ERR_INVALID, "%s: a key with a NUL below it", p->text);
}

static void config_leave(struct config_path *p, size_t n)
{
    p->n = n;
    p->text[n] = '\0';
}

/* An integer where it is spelled as one and fits 64 bits, else f64. */
static void config_number(const struct json *v, struct meta_value *out)
{
    int64_t i;
    if (!strpbrk(v->text, ".eE") && !json_to_int(v, "", INT64_MIN, INT64_MAX, &i, NULL))
        *out = (struct meta_value){ .type = META_TYPE_I64, .i = i };
    else
        *out = (struct meta_value){ .type = META_TYPE_F64, .f = strtod(v->text, NULL) };
}

static enum meta_type config_type(const struct json *v)
{
    struct meta_value number;
    switch (v->type) {
    case JSON_TYPE_BOOL:
        return META_TYPE_BOOL;
    case JSON_TYPE_STRING:
        return META_TYPE_STRING;
    case JSON_TYPE_NUMBER:
        config_number(v, &number);
        return number.type;
    default:
        return META_TYPE_ARRAY; /* none */
    }
}

/* The type that holds every element, META_TYPE_ARRAY if none does. */
static enum meta_type config_array_type(const struct json *v)
{
    enum meta_type type = config_type(&v->items[0]);
    for (size_t i = 1; i < v->n; i++) {
        enum meta_type t = config_type(&v->items[i]);
        if (meta_scalar_bytes(t) == 8 && meta_scalar_bytes(type) == 8)
            type = meta_is_float(t) ? t : type; /* integers among floats are floats */
        else if (t != type)
            return META_TYPE_ARRAY;
    }
    return type;
}

static enum err_code config_array(struct weights *w, const struct config_path *p,
                                  const struct json *v, enum meta_type type, struct err *err)
{
    struct meta_value value = { .type = META_TYPE_ARRAY };
    size_t each = type == META_TYPE_STRING ? sizeof(struct meta_str) : meta_scalar_bytes(type);
    uint8_t *data = weights_alloc(w, v->n * each);
    for (size_t i = 0; i < v->n && data; i++) {
        const struct json *item = &v->items[i];
        struct meta_value number = { .u = item->boolean };
        if (type == META_TYPE_STRING) {
            struct meta_str s = { weights_strndup(w, item->text, item->len), item->len };
            memcpy(data + i * each, &s, each);
            data = s.data ? data : NULL;
            continue;
        }
        if (type != META_TYPE_BOOL)
            config_number(item, &number);
        if (type == META_TYPE_F64 && number.type == META_TYPE_I64)
            number.f = (double)number.i;
        memcpy(data + i * each, &number.u, each);
    }
    if (!data)
        return err_set(err, ERR_NOMEM, "%s: no memory for %zu elements", p->text, v->n);
    value.array.type = type;
    value.array.n = v->n;
    if (type == META_TYPE_STRING)
        value.array.strs = (const struct meta_str *)(const void *)data;
    else
        value.array.data = data;
    return weights_set_meta(w, p->text, &value, err);
}

static enum err_code config_value(struct weights *w, struct config_path *p, int depth,
                                  const struct json *v, struct err *err);

static enum err_code config_items(struct weights *w, struct config_path *p, int depth,
                                  const struct json *v, struct err *err)
{
    size_t n = p->n;
    enum err_code code = ERR_OK;
    if (depth == CONFIG_NESTING)
        return err_set(err, ERR_INVALID, "%s: nested over %d deep", p->text, CONFIG_NESTING);
    for (size_t i = 0; i < v->n && !code; i++) {
        char name[24];
        if (v->type == JSON_TYPE_OBJECT)
            code = config_enter(p, v->members[i].key, v->members[i].key_len, err);
        else
            code = config_enter(p, name, (size_t)snprintf(name, sizeof(name), "%zu", i), err);
        if (!code)
            code = config_value(w, p, depth + 1,
                                v->type == JSON_TYPE_OBJECT ? &v->members[i].value : &v->items[i],
                                err);
        config_leave(p, n);
    }
    return code;
}

static enum err_code config_value(struct weights *w, struct config_path *p, int depth,
                                  const struct json *v, struct err *err)
{
    struct meta_value value;
    enum meta_type type;
    switch (v->type) {
    case JSON_TYPE_NULL:
        return ERR_OK;
    case JSON_TYPE_BOOL:
        return weights_set_bool(w, p->text, v->boolean, err);
    case JSON_TYPE_STRING:
        value = (struct meta_value){ .type = META_TYPE_STRING, .s = { v->text, v->len } };
        return weights_set_meta(w, p->text, &value, err);
    case JSON_TYPE_NUMBER:
        config_number(v, &value);
        return weights_set_meta(w, p->text, &value, err);
    case JSON_TYPE_ARRAY:
        type = v->n ? config_array_type(v) : META_TYPE_ARRAY;
        if (type != META_TYPE_ARRAY)
            return config_array(w, p, v, type, err);
        return config_items(w, p, depth, v, err);
    default:
        return config_items(w, p, depth, v, err);
    }
}

/* Python writes Infinity, which JSON has not: a number of the same length that reads as such. */
static void config_spell_infinity(char *s, size_t n)
{
    static const char from[] = "Infinity", to[] = "1e999999";
    size_t len = sizeof(from) - 1;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '"')
            in_string = !in_string;
        else if (s[i] == '\\')
            i++;
        else if (!in_string && n - i >= len && memcmp(s + i, from, len) == 0)
            memcpy(s + i, to, len);
    }
}

enum err_code dir_add_json(struct weights *w, const char *prefix, const struct meta_str *text,
                           struct err *err)
{
    struct json_doc doc = { 0 };
    struct config_path path = { .n = strlen(prefix) };
    if (text->len > CONFIG_BYTES_MAX)
        return err_set(err, ERR_FULL, "%s.json: %zu bytes, at most %zu", prefix, text->len,
                       CONFIG_BYTES_MAX);
    memcpy(path.text, prefix, path.n + 1);
    char *copy = mem_try(MEM_CAT_WEIGHTS, text->len + 1);
    if (!copy)
        return err_set(err, ERR_NOMEM, "%s.json: no memory for %zu bytes", prefix, text->len);
    memcpy(copy, text->data, text->len);
    config_spell_infinity(copy, text->len);
    enum err_code code =
        json_parse(&doc, copy, text->len, text->len * CONFIG_FACTOR + ((size_t)64 << 10), err);
    if (!code && doc.root.type != JSON_TYPE_OBJECT)
        code = err_set(err, ERR_INVALID, "want an object");
    if (!code)
        code = config_items(w, &path, 0, &doc.root, err);
    json_doc_release(&doc);
    mem_free(MEM_CAT_WEIGHTS, copy);
    return code ? err_prefix(err, code, "%s.json", prefix) : ERR_OK;
}

/* --- what of the tokenizer's texts templates need --- */

/* The template of tokenizer_config.json: a text, or a list of texts with names of which "default" is meant. */
static const struct json *config_template(const struct json *root)
{
    const struct json *v = json_get(root, "chat_template");
    for (size_t i = 0; json_is(v, JSON_TYPE_ARRAY) && i < v->n; i++)
        if (json_str_eq(json_get(&v->items[i], "name"), "default"))
            return json_get(&v->items[i], "template");
    return v;
}

static enum err_code config_set_text(struct weights *w, const char *key, const struct json *v,
                                     struct err *err)
{
    if (json_is(v, JSON_TYPE_OBJECT))
        v = json_get(v, "content"); /* an added token */
    if (!json_is(v, JSON_TYPE_STRING) || weights_meta(w, key))
        return ERR_OK;
    struct meta_value value = { .type = META_TYPE_STRING, .s = { v->text, v->len } };
    return weights_set_meta(w, key, &value, err);
}

static enum err_code config_add_template(struct weights *w, const struct meta_str *text,
                                         const char *name, struct err *err)
{
    struct json_doc doc;
    if (!text->data)
        return ERR_OK;
    if (text->len > CONFIG_BYTES_MAX)
        return err_set(err, ERR_FULL, "%s: %zu bytes, at most %zu", name, text->len,
                       CONFIG_BYTES_MAX);
    enum err_code code = json_parse(&doc, text->data, text->len,
                                    text->len * CONFIG_FACTOR + ((size_t)64 << 10), err);
    if (code)
        return err_prefix(err, code, "%s", name);
    code = config_set_text(w, "tokenizer.chat_template", config_template(&doc.root), err);
    if (!code)
        code = config_set_text(w, "tokenizer.bos_token", json_get(&doc.root, "bos_token"), err);
    if (!code)
        code = config_set_text(w, "tokenizer.eos_token", json_get(&doc.root, "eos_token"), err);
    json_doc_release(&doc);
    return code;
}

enum err_code dir_add_templates(struct weights *w, struct err *err)
{
    const struct meta_str *jinja = &w->texts[WEIGHTS_TEXT_TEMPLATE].text;
    struct meta_value value = { .type = META_TYPE_STRING, .s = *jinja };
    enum err_code code = ERR_OK;
    if (jinja->data && jinja->len <= CONFIG_BYTES_MAX)
        code = weights_set_meta(w, "tokenizer.chat_template", &value, err);
    if (!code)
        code = config_add_template(w, &w->texts[WEIGHTS_TEXT_TEMPLATE_JSON].text,
                                   "chat_template.json", err);
    if (!code)
        code = config_add_template(w, &w->texts[WEIGHTS_TEXT_TOKENIZER_CONFIG].text,
                                   "tokenizer_config.json", err);
    return code;
}
