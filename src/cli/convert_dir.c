/* convert_dir.c - the plan as a directory: Hugging Face's, or MLX's, which is the same with matrices of codes.
 *
 * All files are written into DST.part-PID, which gets its name when they are whole and read back. */
#include "cli/convert.h"
#include "cli/convert_vocab.h"
#include "model/model.h"
#include "weights/safetensors_write.h"
#include "json/json.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONVERT_PATH_MAX   4096
#define CONVERT_CONFIG_MAX ((size_t)64 << 20)
#define CONVERT_JSON       160 /* bytes of values for one of text, as in weights/dir.c */

/* --- files --- */

static enum err_code convert_path(char out[CONVERT_PATH_MAX], const char *dir, const char *name,
                                  struct err *err)
{
    int n = snprintf(out, CONVERT_PATH_MAX, "%s/%s", dir, name);
    return n < CONVERT_PATH_MAX ? ERR_OK
                                : err_set(err, ERR_INVALID, "%.200s...: the path is too long", dir);
}

enum err_code convert_write_text(const char *dir, const char *name, const char *text, size_t n,
                                 struct err *err)
{
    char path[CONVERT_PATH_MAX];
    struct sink s = { .fd = -1 };
    enum err_code code = convert_path(path, dir, name, err);
    if (!code)
        code = sink_open(&s, path, err);
    if (!code)
        code = sink_write(&s, text, n, err);
    if (!code)
        code = sink_commit(&s, err);
    sink_abort(&s);
    return code;
}

/* A directory of ours with the files in it, and in its folders. Returns false where something else is in it too. */
static bool convert_remove_dir(const char *dir, int depth)
{
    char path[CONVERT_PATH_MAX];
    DIR *d = opendir(dir);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d)) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 ||
            convert_path(path, dir, e->d_name, NULL))
            continue;
        if (unlink(path) != 0 && errno == EISDIR && depth > 0)
            convert_remove_dir(path, depth - 1);
    }
    if (d)
        closedir(d);
    return rmdir(dir) == 0;
}

/* --- tensors --- */

#define CONVERT_MODULE (-1) /* a tensor with a file of its own, in a module's folder */

/* The files that tensors go to: each tensor whole in one. */
struct convert_shards {
    int32_t *of; /* [n_tensors] */
    int32_t n;
    uint64_t total;
};

static uint64_t convert_tensor_bytes(const struct recode *r)
{
    return recode_bytes(r) + 2 * recode_scale_bytes(r);
}

static void convert_shard(const struct convert *c, struct convert_shards *s)
{
    uint64_t most = (uint64_t)c->o->shard_bytes, held = 0;
    *s = (struct convert_shards){ .n = 1 };
    s->of = mem_alloc(MEM_CAT_WEIGHTS, (size_t)c->x.n_tensors * sizeof(*s->of) + 1);
    for (int32_t i = 0; i < c->x.n_tensors; i++) {
        uint64_t bytes = convert_tensor_bytes(&c->x.tensors[i]);
        s->of[i] = CONVERT_MODULE;
        if (convert_folder(c->x.tensors[i].name))
            continue;
        if (held && held + bytes > most) {
            s->n++;
            held = 0;
        }
        s->of[i] = s->n - 1;
        held += bytes;
        s->total += bytes;
    }
}

static void convert_shard_name(const struct convert_shards *s, int32_t i, char out[64])
{
    if (s->n == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", i + 1, s->n);
}

/* The name of one of the two arrays that go with a matrix of codes. */
static void convert_part_name(const struct recode *r, const char *part,
                              char out[WEIGHTS_NAME_MAX + 16])
{
    size_t n = strlen(r->name) - strlen("weight");
    snprintf(out, WEIGHTS_NAME_MAX + 16, "%.*s%s", (int)n, r->name, part);
}

static void convert_put_entry(struct safetensors_writer *s, const struct recode *r)
{
    static const char *const parts[] = { "scales", "biases" };
    char name[WEIGHTS_NAME_MAX + 16];
    int64_t shape[WEIGHTS_DIMS_MAX];
    int bits = dtype_mlx_bits(r->type);
    memcpy(shape, r->shape, sizeof(shape));
    if (!bits) {
        safetensors_write_tensor(s, r->name, r->type, r->n_dims, shape, recode_bytes(r));
        return;
    }
    shape[0] = r->shape[0] / 32 * bits;
    safetensors_write_tensor(s, r->name, DTYPE_U32, r->n_dims, shape, recode_bytes(r));
    shape[0] = r->shape[0] / r->mlx.group;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        convert_part_name(r, parts[i], name);
        safetensors_write_tensor(s, name, r->mlx.type, r->n_dims, shape, recode_scale_bytes(r));
    }
}

/* One tensor's data, behind it its scales and biases. */
static enum err_code convert_put_tensor(struct convert *c, const struct recode *r, struct sink *s,
                                        struct err *err)
{
    size_t n = recode_scale_bytes(r);
    struct recode_out out = {
        .write = convert_sink, .ctx = s, .threads = (int)c->o->threads, .stop = c->stop
    };
    enum err_code code = ERR_OK;
    if (n) {
        out.scales = mem_try(MEM_CAT_WEIGHTS, n);
        out.biases = mem_try(MEM_CAT_WEIGHTS, n);
        if (!out.scales || !out.biases)
            code = err_set(err, ERR_NOMEM, "tensor %s: no memory for its scales", r->name);
    }
    if (!code)
        code = recode_run(r, c->w, &out, err);
    if (!code && n)
        code = sink_write(s, out.scales, n, err);
    if (!code && n)
        code = sink_write(s, out.biases, n, err);
    mem_free(MEM_CAT_WEIGHTS, out.scales);
    mem_free(MEM_CAT_WEIGHTS, out.biases);
    return code;
}

static enum err_code convert_begin_file(struct safetensors_writer *head, const char *path,
                                        struct sink *s, struct err *err)
{
    enum err_code code = sink_open(s, path, err);
    return code ? code : safetensors_write_head(head, s, err);
}

/* The file is there if all went well, and head and sink are released. code: what became of it so far, which is returned. */
static enum err_code convert_end_file(struct convert *c, struct safetensors_writer *head,
                                      struct sink *s, enum err_code code, struct err *err)
{
    c->bytes += s->n;
    if (!code)
        code = sink_commit(s, err);
    sink_abort(s);
    safetensors_writer_release(head);
    return code;
}

/* A tensor of a module: FOLDER/model.safetensors holds it alone. */
static enum err_code convert_put_module(struct convert *c, int32_t i, const char *dir,
                                        struct err *err)
{
    char name[128], path[CONVERT_PATH_MAX];
    struct recode r = c->x.tensors[i];
    struct safetensors_writer head;
    struct sink s = { .fd = -1 };
    size_t n = convert_folder(r.name);
    snprintf(name, sizeof(name), "%.*s", (int)n, r.name);
    enum err_code code = convert_make_folder(dir, name, err);
    snprintf(name, sizeof(name), "%.*s/model.safetensors", (int)n, r.name);
    r.name += n + 1;
    safetensors_writer_init(&head);
    convert_put_entry(&head, &r);
    if (!code)
        code = convert_path(path, dir, name, err);
    if (!code)
        code = convert_begin_file(&head, path, &s, err);
    if (!code)
        code = convert_put_tensor(c, &r, &s, err);
    return convert_end_file(c, &head, &s, code, err);
}

static enum err_code convert_put_shard(struct convert *c, const struct convert_shards *shards,
                                       int32_t shard, const char *dir, struct err *err)
{
    char name[64], path[CONVERT_PATH_MAX];
    struct safetensors_writer head;
    struct sink s = { .fd = -1 };
    safetensors_writer_init(&head);
    convert_shard_name(shards, shard, name);
    enum err_code code = convert_path(path, dir, name, err);
    for (int32_t i = 0; i < c->x.n_tensors && !code; i++)
        if (shards->of[i] == shard)
            convert_put_entry(&head, &c->x.tensors[i]);
    if (!code)
        code = convert_begin_file(&head, path, &s, err);
    for (int32_t i = 0; i < c->x.n_tensors && !code; i++) {
        if (shards->of[i] != shard)
            continue;
        convert_progress(c, i);
        code = convert_put_tensor(c, &c->x.tensors[i], &s, err);
    }
    return convert_end_file(c, &head, &s, code, err);
}

static void convert_index_entry(struct json_writer *j, const struct recode *r, const char *file)
{
    char name[WEIGHTS_NAME_MAX + 16];
    json_field_str(j, r->name, file);
    if (!dtype_mlx_bits(r->type))
        return;
    convert_part_name(r, "scales", name);
    json_field_str(j, name, file);
    convert_part_name(r, "biases", name);
    json_field_str(j, name, file);
}

static enum err_code convert_put_index(const struct convert *c, const struct convert_shards *s,
                                       const char *dir, struct err *err)
{
    static const char name[] = "model.safetensors.index.json";
    char file[64];
    struct buf text;
    struct json_writer j;
    if (s->n == 1)
        return ERR_OK;
    buf_init(&text, MEM_CAT_WEIGHTS, (size_t)256 << 20);
    json_writer_init(&j, &text);
    json_begin_object(&j);
    json_field_object(&j, "metadata");
    json_field_uint(&j, "total_size", s->total);
    json_end_object(&j);
    json_field_object(&j, "weight_map");
    for (int32_t i = 0; i < c->x.n_tensors; i++) {
        if (s->of[i] == CONVERT_MODULE)
            continue;
        convert_shard_name(s, s->of[i], file);
        convert_index_entry(&j, &c->x.tensors[i], file);
    }
    json_end_object(&j);
    json_end_object(&j);
    buf_add_char(&text, '\n');
    enum err_code code = buf_check(&text, name, err);
    if (!code)
        code = convert_write_text(dir, name, text.data, text.len, err);
    buf_release(&text);
    return code;
}

/* --- config.json --- */

static void convert_put_meta(struct json_writer *j, const struct meta_value *v)
{
    struct meta_value item;
    switch (v->type) {
    case META_TYPE_STRING:
        json_strn(j, v->s.data, v->s.len);
        break;
    case META_TYPE_BOOL:
        json_bool(j, v->u != 0);
        break;
    case META_TYPE_F64:
        json_double(j, v->f);
        break;
    case META_TYPE_ARRAY:
        json_begin_array(j);
        for (uint64_t i = 0; i < v->array.n; i++) {
            meta_array_at(v, i, &item);
            convert_put_meta(j, &item);
        }
        json_end_array(j);
        break;
    default:
        json_int(j, v->i);
    }
}

/* How many bytes of the object's path a and b have in common, whole names. */
static size_t convert_common(const char *a, size_t n, const char *b, size_t k)
{
    size_t i = 0, whole = 0;
    for (; i < n && i < k && a[i] == b[i]; i++)
        whole = a[i] == '.' ? i : whole;
    bool a_ends = i == n || a[i] == '.', b_ends = i == k || b[i] == '.';
    return a_ends && b_ends ? i : whole;
}

static int convert_depth(const char *path, size_t from, size_t n)
{
    int depth = n > from;
    for (size_t i = from + 1; i < n; i++)
        depth += path[i] == '.';
    return depth;
}

/* Leave the object that the path's first n bytes name for that of the first k of another. */
static void convert_enter(struct json_writer *j, const char *path, size_t n, const char *next,
                          size_t k)
{
    char name[64];
    size_t same = convert_common(path, n, next, k);
    for (int i = convert_depth(path, same, n); i > 0; i--)
        json_end_object(j);
    for (size_t at = same ? same + 1 : 0; at < k;) {
        size_t len = 0;
        while (at + len < k && next[at + len] != '.')
            len++;
        snprintf(name, sizeof(name), "%.*s", (int)len, next + at);
        json_field_object(j, name);
        at += len + 1;
    }
}

/* The values of the plan; dots lead into objects. */
static void convert_put_values(const struct convert *c, struct json_writer *j)
{
    const char *object = "";
    size_t n = 0;
    for (int32_t i = 0; i < c->x.n_values; i++) {
        const struct export_value *v = &c->x.values[i];
        const char *dot = strrchr(v->path, '.');
        size_t k = dot ? (size_t)(dot - v->path) : 0;
        convert_enter(j, object, n, v->path, k);
        object = v->path;
        n = k;
        json_key(j, dot ? dot + 1 : v->path);
        if (v->is_null)
            json_null(j);
        else
            convert_put_meta(j, &v->v);
    }
    convert_enter(j, object, n, "", 0);
}

static const char *convert_torch_name(enum dtype type)
{
    return type == DTYPE_F16 ? "float16" : type == DTYPE_BF16 ? "bfloat16" : "float32";
}

static bool convert_has_codes(const struct convert *c)
{
    bool has = false;
    for (int32_t i = 0; i < c->x.n_tensors; i++)
        has |= dtype_mlx_bits(c->x.tensors[i].type) != 0;
    return has;
}

/* MLX's "quantization": what most matrices have, and each that differs by its module's name. */
static void convert_put_quantization(const struct convert *c, struct json_writer *j,
                                     const char *key)
{
    int most_bits = dtype_mlx_bits(c->type.type),
        group = c->o->group_size ? (int)c->o->group_size : 64;
    for (int32_t i = 0; i < c->x.n_tensors && !most_bits; i++)
        if (dtype_mlx_bits(
                c->x.tensors[i].type)) { /* each keeps its own: the first stands for most */
            most_bits = c->x.tensors[i].mlx.bits;
            group = c->x.tensors[i].mlx.group;
        }
    json_field_object(j, key);
    json_field_int(j, "group_size", group);
    json_field_int(j, "bits", most_bits);
    json_field_str(j, "mode", "affine");
    for (int32_t i = 0; i < c->x.n_tensors; i++) {
        const struct recode *r = &c->x.tensors[i];
        char name[WEIGHTS_NAME_MAX + 16];
        if (!dtype_mlx_bits(r->type) || (r->mlx.bits == most_bits && r->mlx.group == group))
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)(strlen(r->name) - strlen(".weight")), r->name);
        json_field_object(j, name);
        json_field_int(j, "group_size", r->mlx.group);
        json_field_int(j, "bits", r->mlx.bits);
        json_end_object(j);
    }
    json_end_object(j);
}

/* The source's config.json without what is said anew. */
static enum err_code convert_copy_config(const struct convert *c, struct json_writer *j,
                                         struct err *err)
{
    static const char *const anew[] = { "quantization", "quantization_config", "torch_dtype",
                                        "dtype" };
    struct json_doc doc = { 0 };
    struct meta_str text = weights_text(c->w, "config.json");
    enum err_code code =
        json_parse(&doc, text.data, text.len, text.len * CONVERT_JSON + ((size_t)64 << 10), err);
    for (size_t i = 0; !code && i < doc.root.n; i++) {
        const struct json_member *m = &doc.root.members[i];
        bool is_anew = false;
        for (size_t k = 0; k < ARRAY_LEN(anew); k++)
            is_anew |= strcmp(m->key, anew[k]) == 0;
        if (!is_anew)
            json_field_value(j, m->key, &m->value);
    }
    json_doc_release(&doc);
    return code;
}

static enum err_code convert_put_config(const struct convert *c, const char *dir, struct err *err)
{
    struct buf text;
    struct json_writer j;
    enum err_code code = ERR_OK;
    buf_init(&text, MEM_CAT_WEIGHTS, CONVERT_CONFIG_MAX);
    json_writer_init(&j, &text);
    json_begin_object(&j);
    if (c->x.n_values)
        convert_put_values(c, &j);
    else
        code = convert_copy_config(c, &j, err);
    json_field_str(&j, "torch_dtype", convert_torch_name(c->plain));
    if (c->kind == CONVERT_MLX &&
        convert_has_codes(c)) { /* mlx-lm reads the first, transformers the second */
        convert_put_quantization(c, &j, "quantization");
        convert_put_quantization(c, &j, "quantization_config");
    }
    json_end_object(&j);
    buf_add_char(&text, '\n');
    if (!code)
        code = buf_check(&text, "config.json", err);
    if (!code)
        code = convert_write_text(dir, "config.json", text.data, text.len, err);
    buf_release(&text);
    return code;
}

/* The texts of a directory, as they are. */
static enum err_code convert_copy_texts(const struct convert *c, const char *dir, struct err *err)
{
    static const char *const names[] = { "generation_config.json", "tokenizer.json",
                                         "tokenizer_config.json",  "special_tokens_map.json",
                                         "chat_template.jinja",    "chat_template.json",
                                         "tokenizer.model",        "added_tokens.json" };
    enum err_code code = ERR_OK;
    for (size_t i = 0; i < ARRAY_LEN(names) && !code; i++) {
        struct meta_str text = weights_text(c->w, names[i]);
        if (text.data)
            code = convert_write_text(dir, names[i], text.data, text.len, err);
    }
    return code;
}

/* --- the whole --- */

static enum err_code convert_put_dir(struct convert *c, const char *dir, struct err *err)
{
    struct convert_shards shards;
    convert_shard(c, &shards);
    enum err_code code = convert_put_config(c, dir, err);
    if (!code)
        code = weights_is_dir(c->w) ? convert_copy_texts(c, dir, err)
                                    : convert_write_texts(c, dir, err);
    if (!code)
        code = convert_write_modules(c, dir, err);
    for (int32_t i = 0; i < shards.n && !code; i++)
        code = convert_put_shard(c, &shards, i, dir, err);
    for (int32_t i = 0; i < c->x.n_tensors && !code; i++)
        if (shards.of[i] == CONVERT_MODULE)
            code = convert_put_module(c, i, dir, err);
    if (!code)
        code = convert_put_index(c, &shards, dir, err);
    mem_free(MEM_CAT_WEIGHTS, shards.of);
    return code;
}

/* The new directory opens, and says what the file said. */
static enum err_code convert_check_dir(const struct convert *c, const char *dir, struct err *err)
{
    struct weights *w = NULL;
    enum err_code code = weights_open(dir, &w, err);
    if (!code && c->x.n_values)
        code = model_adapt(w, err);
    if (!code && c->x.n_values)
        code = export_check(c->w, w, err);
    if (!code && !weights_is_dir(c->w))
        code = convert_vocab_same(c->w, w, err);
    weights_close(w);
    return code ? err_prefix(err, code, "what was written does not read back") : ERR_OK;
}

/* The directory that stands under the name goes aside, and away when the new one has the name. */
static enum err_code convert_name_dir(const char *part, const char *dst, struct err *err)
{
    char old[CONVERT_PATH_MAX];
    struct stat st;
    bool is_there = lstat(dst, &st) == 0;
    snprintf(old, sizeof(old), "%.4000s.old-%d", dst, (int)getpid());
    enum err_code code = sink_sync_dir(part, err);
    if (!code && is_there && rename(dst, old) != 0)
        code = err_set(err, ERR_IO, "%s: cannot be moved aside: %s", dst, strerror(errno));
    if (!code && rename(part, dst) != 0)
        code = err_set(err, ERR_IO, "%s: cannot get its name: %s", dst, strerror(errno));
    if (!code && is_there && !convert_remove_dir(old, 1))
        fprintf(stderr, "plumb convert: %s: holds more than a model and was left there\n", old);
    return code;
}

enum err_code convert_write_dir(struct convert *c, struct err *err)
{
    char part[CONVERT_PATH_MAX];
    char *dst = mem_strdup(MEM_CAT_BASE, c->o->dst);
    for (size_t n = strlen(dst); n > 1 && dst[n - 1] == '/'; n--)
        dst[n - 1] = '\0';
    snprintf(part, sizeof(part), "%.4000s.part-%d", dst, (int)getpid());
    enum err_code code = ERR_OK;
    if (mkdir(part, 0777) != 0) {
        code = err_set(err, ERR_IO, "%s: cannot be made: %s", part, strerror(errno));
    } else {
        code = convert_put_dir(c, part, err);
        if (!code)
            code = convert_check_dir(c, part, err);
        if (!code)
            code = convert_name_dir(part, dst, err);
        if (code)
            convert_remove_dir(part, 1);
    }
    mem_free(MEM_CAT_BASE, dst);
    return code;
}
