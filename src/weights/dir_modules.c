/* dir_modules.c - sentence-transformers' modules.json: a list of what a text goes through, each with a folder of its own. */
#include "weights/weights_int.h"
#include "json/json.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODULES_BYTES_MAX ((size_t)1 << 16)
#define MODULES_JSON_MAX  ((size_t)1 << 22)
#define MODULES_PATH_MAX  4096

static bool modules_ends(const struct json *v, const char *tail)
{
    size_t k = strlen(tail);
    return json_is(v, JSON_TYPE_STRING) && v->len >= k &&
           memcmp(v->text + v->len - k, tail, k) == 0;
}

/* A folder of the directory itself. */
static bool modules_path(const struct json *v, char out[56])
{
    if (!json_is(v, JSON_TYPE_STRING) || v->len == 0 || v->len >= 56 || v->text[0] == '.' ||
        strchr(v->text, '/') || !meta_name_is_clean(v->text, v->len))
        return false;
    memcpy(out, v->text, v->len + 1);
    return true;
}

/* DIR/rest into text; false where there is none. */
static bool modules_text(const char *dir, const char *rest, struct buf *text, enum err_code *code,
                         struct err *err)
{
    char path[MODULES_PATH_MAX];
    buf_reset(text);
    *code = ERR_OK;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, rest) >= sizeof(path) ||
        access(path, F_OK) != 0)
        return false;
    *code = file_read(path, text, err);
    return *code == ERR_OK;
}

/* modules.json's list; NULL where there is none. The caller releases doc. */
static enum err_code modules_list(const char *dir, struct buf *text, struct json_doc *doc,
                                  const struct json **out, struct err *err)
{
    enum err_code code;
    *out = NULL;
    if (!modules_text(dir, "modules.json", text, &code, err))
        return code;
    code = json_parse(doc, text->data, text->len, MODULES_JSON_MAX, err);
    if (!code && (doc->root.type != JSON_TYPE_ARRAY || doc->root.n > DIR_MODULES_MAX))
        code = err_set(err, ERR_INVALID, "want a list of at most %d modules", DIR_MODULES_MAX);
    if (code)
        return err_prefix(err, code, "modules.json");
    *out = &doc->root;
    return ERR_OK;
}

enum err_code dir_modules_read(const char *dir, struct dir_modules *out, struct err *err)
{
    struct buf text;
    struct json_doc doc = { 0 };
    const struct json *list;
    *out = (struct dir_modules){ 0 };
    buf_init(&text, MEM_CAT_WEIGHTS, MODULES_BYTES_MAX);
    enum err_code code = modules_list(dir, &text, &doc, &list, err);
    for (size_t i = 0; list && i < list->n && !code; i++) {
        if (!modules_ends(json_get(&list->items[i], "type"), "Dense"))
            continue;
        if (!modules_path(json_get(&list->items[i], "path"), out->dense[out->n_dense]))
            code = err_set(err, ERR_INVALID, "modules.json: module %zu: want a folder's name", i);
        else
            out->n_dense++;
    }
    json_doc_release(&doc);
    buf_release(&text);
    return code;
}

/* DIR/FOLDER/config.json as metadata under the prefix. */
static enum err_code modules_config(struct weights *w, const char *dir, const char *folder,
                                    const char *prefix, struct err *err)
{
    char rest[96];
    struct buf text;
    enum err_code code;
    buf_init(&text, MEM_CAT_WEIGHTS, MODULES_BYTES_MAX);
    snprintf(rest, sizeof(rest), "%s/config.json", folder);
    if (modules_text(dir, rest, &text, &code, err))
        code = dir_add_json(w, prefix, &(struct meta_str){ text.data, text.len }, err);
    buf_release(&text);
    return code;
}

enum err_code dir_modules_add(struct weights *w, const char *dir, struct err *err)
{
    struct buf text, whole;
    struct json_doc doc = { 0 };
    const struct json *list;
    int n_dense = 0;
    char folder[56], prefix[32];
    buf_init(&text, MEM_CAT_WEIGHTS, MODULES_BYTES_MAX);
    buf_init(&whole, MEM_CAT_WEIGHTS, MODULES_BYTES_MAX + 32);
    enum err_code code = modules_list(dir, &text, &doc, &list, err);
    if (!code && list) {
        buf_add_str(&whole, "{\"list\":");
        buf_add(&whole, text.data, text.len);
        buf_add_str(&whole, "}");
        code = dir_add_json(w, "modules", &(struct meta_str){ whole.data, whole.len }, err);
    }
    for (size_t i = 0; list && i < list->n && !code; i++) {
        const struct json *type = json_get(&list->items[i], "type");
        bool is_pooling = modules_ends(type, "Pooling"), is_dense = modules_ends(type, "Dense");
        if ((!is_pooling && !is_dense) || !modules_path(json_get(&list->items[i], "path"), folder))
            continue;
        snprintf(prefix, sizeof(prefix), "modules.dense.%d", n_dense);
        n_dense += is_dense;
        code = modules_config(w, dir, folder, is_dense ? prefix : "modules.pooling", err);
    }
    json_doc_release(&doc);
    buf_release(&whole);
    buf_release(&text);
    return code;
}
