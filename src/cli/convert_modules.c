/* convert_modules.c - sentence-transformers' modules.json and what it names: how one direction is made of a text's states. */
#include "base/file.h"
#include "cli/convert.h"
#include "json/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODULES_TEXT_MAX ((size_t)1 << 20)
#define MODULES_PATH_MAX 4096
#define MODULES_MAX      16 /* as weights/dir_modules.c has it */

enum { MODULES_POOLING_MEAN = 1, MODULES_POOLING_CLS, MODULES_POOLING_LAST }; /* GGUF's numbers */

size_t convert_folder(const char *tensor)
{
    static const char tail[] = "_Dense.";
    size_t n = strspn(tensor, "0123456789");
    return n > 0 && strncmp(tensor + n, tail, strlen(tail)) == 0 ? n + strlen(tail) - 1 : 0;
}

enum err_code convert_make_folder(const char *dir, const char *folder, struct err *err)
{
    char path[MODULES_PATH_MAX];
    snprintf(path, sizeof(path), "%.4000s/%.64s", dir, folder);
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        return err_set(err, ERR_IO, "%s: cannot be made: %s", path, strerror(errno));
    return ERR_OK;
}

/* --- of a GGUF file --- */

struct modules_out {
    struct buf text;
    struct json_writer j;
};

static void modules_begin(struct modules_out *o)
{
    buf_init(&o->text, MEM_CAT_BASE, MODULES_TEXT_MAX);
    json_writer_init(&o->j, &o->text);
}

static enum err_code modules_end(struct modules_out *o, const char *dir, const char *name,
                                 struct err *err)
{
    buf_add_char(&o->text, '\n');
    enum err_code code = buf_check(&o->text, name, err);
    if (!code)
        code = convert_write_text(dir, name, o->text.data, o->text.len, err);
    buf_release(&o->text);
    return code;
}

static void modules_one(struct json_writer *j, int i, const char *path, const char *kind)
{
    char name[16], type[64];
    snprintf(name, sizeof(name), "%d", i);
    snprintf(type, sizeof(type), "sentence_transformers.models.%s", kind);
    json_begin_object(j);
    json_field_int(j, "idx", i);
    json_field_str(j, "name", name);
    json_field_str(j, "path", path);
    json_field_str(j, "type", type);
    json_end_object(j);
}

static enum err_code modules_put_pooling(const char *dir, int64_t type, int64_t width,
                                         struct err *err)
{
    struct modules_out o;
    enum err_code code = convert_make_folder(dir, "1_Pooling", err);
    if (code)
        return code;
    modules_begin(&o);
    json_begin_object(&o.j);
    json_field_int(&o.j, "word_embedding_dimension", width);
    json_field_bool(&o.j, "pooling_mode_cls_token", type == MODULES_POOLING_CLS);
    json_field_bool(&o.j, "pooling_mode_mean_tokens", type == MODULES_POOLING_MEAN);
    json_field_bool(&o.j, "pooling_mode_max_tokens", false);
    json_field_bool(&o.j, "pooling_mode_mean_sqrt_len_tokens", false);
    json_field_bool(&o.j, "pooling_mode_weightedmean_tokens", false);
    json_field_bool(&o.j, "pooling_mode_lasttoken", type == MODULES_POOLING_LAST);
    json_end_object(&o.j);
    return modules_end(&o, dir, "1_Pooling/config.json", err);
}

static enum err_code modules_put_dense(const struct recode *r, const char *dir, struct err *err)
{
    char folder[80], name[96];
    struct modules_out o;
    snprintf(folder, sizeof(folder), "%.*s", (int)convert_folder(r->name), r->name);
    enum err_code code = convert_make_folder(dir, folder, err);
    if (code)
        return code;
    modules_begin(&o);
    json_begin_object(&o.j);
    json_field_int(&o.j, "in_features", r->shape[0]);
    json_field_int(&o.j, "out_features", r->shape[1]);
    json_field_bool(&o.j, "bias", false);
    json_field_str(&o.j, "activation_function", "torch.nn.modules.linear.Identity");
    json_end_object(&o.j);
    snprintf(name, sizeof(name), "%s/config.json", folder);
    return modules_end(&o, dir, name, err);
}

static enum err_code modules_make(const struct convert *c, const char *dir, int64_t type,
                                  struct err *err)
{
    struct modules_out o;
    const struct weights_tensor *embed = weights_find(c->w, "token_embd.weight");
    int n = 2;
    enum err_code code = modules_put_pooling(dir, type, embed ? embed->shape[0] : 0, err);
    modules_begin(&o);
    json_begin_array(&o.j);
    modules_one(&o.j, 0, "", "Transformer");
    modules_one(&o.j, 1, "1_Pooling", "Pooling");
    for (int32_t i = 0; i < c->x.n_tensors && !code; i++) {
        const struct recode *r = &c->x.tensors[i];
        char folder[80];
        if (!convert_folder(r->name))
            continue;
        snprintf(folder, sizeof(folder), "%.*s", (int)convert_folder(r->name), r->name);
        modules_one(&o.j, n++, folder, "Dense");
        code = modules_put_dense(r, dir, err);
    }
    char folder[32];
    snprintf(folder, sizeof(folder), "%d_Normalize", n);
    modules_one(&o.j, n, folder, "Normalize");
    json_end_array(&o.j);
    enum err_code last = modules_end(&o, dir, "modules.json", code ? NULL : err);
    return code ? code : last;
}

/* --- of a directory --- */

/* SOURCE/name as DIR/name; nothing where there is none. */
static enum err_code modules_copy(const struct convert *c, const char *dir, const char *name,
                                  struct err *err)
{
    char path[MODULES_PATH_MAX];
    struct buf text;
    const char *first = weights_file_path(c->w, 0), *slash = strrchr(first, '/');
    snprintf(path, sizeof(path), "%.*s/%.100s", slash ? (int)(slash - first) : 1,
             slash ? first : ".", name);
    if (access(path, F_OK) != 0)
        return ERR_OK;
    buf_init(&text, MEM_CAT_BASE, MODULES_TEXT_MAX);
    enum err_code code = file_read(path, &text, err);
    if (!code)
        code = convert_write_text(dir, name, text.data, text.len, err);
    buf_release(&text);
    return code;
}

static enum err_code modules_copy_all(const struct convert *c, const char *dir, struct err *err)
{
    static const char *const names[] = { "modules.json", "config_sentence_transformers.json",
                                         "sentence_bert_config.json" };
    char key[64], name[96];
    const char *path;
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(names) && !code; i++)
        code = modules_copy(c, dir, names[i], err);
    for (int i = 0; i < MODULES_MAX && !code; i++) {
        snprintf(key, sizeof(key), "modules.list.%d.path", i);
        if (weights_str(c->w, key, &path, NULL) || !*path || strchr(path, '/') || *path == '.')
            continue;
        code = convert_make_folder(dir, path, err);
        snprintf(name, sizeof(name), "%.64s/config.json", path);
        if (!code)
            code = modules_copy(c, dir, name, err);
    }
    return code;
}

enum err_code convert_write_modules(const struct convert *c, const char *dir, struct err *err)
{
    const char *arch;
    char key[128];
    int64_t type;
    if (weights_is_dir(c->w))
        return modules_copy_all(c, dir, err);
    enum err_code code = weights_str(c->w, "general.architecture", &arch, err);
    snprintf(key, sizeof(key), "%.100s.pooling_type", code ? "" : arch);
    if (code || weights_int(c->w, key, MODULES_POOLING_MEAN, MODULES_POOLING_LAST, &type, NULL))
        return code;
    return modules_make(c, dir, type, err);
}
