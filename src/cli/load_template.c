#include "cli/load_template.h"
#include <stdlib.h>
#include <time.h>

enum err_code load_template(const struct weights *w, struct template **out, struct err *err)
{
    const struct meta_value *v = weights_meta(w, "tokenizer.chat_template");
    if (!v)
        return err_set(
            err, ERR_NOT_FOUND,
            "the model has no chat template (no tokenizer.chat_template in its file): it is a base "
            "model; use plain completions, or give a template with --template");
    if (v->type != META_TYPE_STRING)
        return err_set(err, ERR_INVALID, "tokenizer.chat_template is not a string");
    return template_parse("chat_template", v->s.data, v->s.len, out, err);
}

/* "name": the spelling of the token whose id is at key, if there is one. */
static enum err_code load_token(const struct weights *w, const char *key, const char *name,
                                struct json_writer *out, struct err *err)
{
    const struct meta_value *tokens = weights_meta(w, "tokenizer.ggml.tokens");
    int64_t id = -1;
    if (!tokens || tokens->type != META_TYPE_ARRAY || tokens->array.type != META_TYPE_STRING)
        return ERR_OK;
    enum err_code code = weights_int_or(w, key, 0, INT32_MAX, -1, &id, err);
    if (code || id < 0 || (uint64_t)id >= tokens->array.n)
        return code;
    json_field_strn(out, name, tokens->array.strs[id].data, tokens->array.strs[id].len);
    return ERR_OK;
}

/* The same of a directory, which spells them. */
static void load_spelled(const struct weights *w, const char *key, const char *name,
                         struct json_writer *out)
{
    const struct meta_value *v = weights_meta(w, key);
    if (!v || v->type != META_TYPE_STRING)
        return;
    json_key(out, name);
    json_strn(out, v->s.data, v->s.len);
}

enum err_code load_template_own(const struct weights *w, struct json_doc *out, struct err *err)
{
    struct buf text;
    struct json_writer writer;
    *out = (struct json_doc){ 0 };
    buf_init(&text, MEM_CAT_TEMPLATE, (size_t)1 << 20);
    json_writer_init(&writer, &text);
    json_begin_object(&writer);
    enum err_code code = load_token(w, "tokenizer.ggml.bos_token_id", "bos_token", &writer, err);
    if (!code)
        code = load_token(w, "tokenizer.ggml.eos_token_id", "eos_token", &writer, err);
    load_spelled(w, "tokenizer.bos_token", "bos_token", &writer);
    load_spelled(w, "tokenizer.eos_token", "eos_token", &writer);
    json_end_object(&writer);
    if (!code)
        code = buf_check(&text, "bos_token and eos_token", err);
    if (!code)
        code = json_parse(out, text.data, text.len, (size_t)1 << 20, err);
    buf_release(&text);
    return code;
}

enum err_code load_template_now(int64_t *now, struct err *err)
{
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    char *end;
    if (epoch && *epoch) {
        *now = strtoll(epoch, &end, 10);
        if (*end)
            return err_set(err, ERR_INVALID, "SOURCE_DATE_EPOCH: '%s' is not a number of seconds",
                           epoch);
        return ERR_OK;
    }
    struct tm tm;
    time_t t = time(NULL);
    localtime_r(&t, &tm);
    *now = (int64_t)t + tm.tm_gmtoff;
    return ERR_OK;
}
