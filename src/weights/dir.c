/* dir.c - a model directory as Hugging Face lays it out: config.json, tensors in one or many safetensors files, texts. */
#include "weights/weights_int.h"
#include "json/json.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_PATH_MAX    4096
#define DIR_INDEX_MAX   ((size_t)256 << 20) /* bytes of an index; 2^20 tensors take 100 MB */
#define DIR_JSON_FACTOR 160                 /* as in safetensors.c */
#define DIR_TENSORS     ".safetensors"
#define DIR_INDEX       ".safetensors.index.json"
/* What the translated names and keys of a directory may take beside what its files justify. */
#define DIR_ARENA_LEAST ((size_t)32 << 20)

static const char *const dir_texts[WEIGHTS_TEXTS] = {
    [WEIGHTS_TEXT_CONFIG] = "config.json",
    [WEIGHTS_TEXT_INDEX] = "model.safetensors.index.json",
    [WEIGHTS_TEXT_GENERATION] = "generation_config.json",
    [WEIGHTS_TEXT_TOKENIZER] = "tokenizer.json",
    [WEIGHTS_TEXT_TOKENIZER_CONFIG] = "tokenizer_config.json",
    [WEIGHTS_TEXT_TOKENIZER_MODEL] = "tokenizer.model",
    [WEIGHTS_TEXT_ADDED_TOKENS] = "added_tokens.json",
    [WEIGHTS_TEXT_SPECIAL_TOKENS] = "special_tokens_map.json",
    [WEIGHTS_TEXT_TEMPLATE] = "chat_template.jinja",
    [WEIGHTS_TEXT_TEMPLATE_JSON] = "chat_template.json",
};

static bool dir_ends(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

bool dir_is_model(const char *path)
{
    struct stat st;
    return dir_ends(path, DIR_TENSORS) || dir_ends(path, DIR_INDEX) ||
           (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

/* "DIR/name" into path, which is reset. */
static enum err_code dir_join(struct buf *path, const char *dir, const char *name, struct err *err)
{
    buf_reset(path);
    buf_printf(path, "%s/%s", dir, name);
    return buf_check(path, "a path", err);
}

/* --- the names of the tensor files --- */

/* Names of files in a directory, sorted. */
struct dir_names {
    char **names; /* [n] */
    int n;
};

static void dir_names_release(struct dir_names *l)
{
    for (int i = 0; i < l->n; i++)
        mem_free(MEM_CAT_WEIGHTS, l->names[i]);
    mem_free(MEM_CAT_WEIGHTS, l->names);
}

/* Add a name that is not there yet. */
static enum err_code dir_names_add(struct dir_names *l, const char *name, struct err *err)
{
    int at = l->n;
    while (at > 0 && strcmp(l->names[at - 1], name) > 0)
        at--;
    if (at > 0 && strcmp(l->names[at - 1], name) == 0)
        return ERR_OK;
    if (l->n == WEIGHTS_FILES_MAX)
        return err_set(err, ERR_INVALID, "over %d tensor files", WEIGHTS_FILES_MAX);
    l->names = mem_realloc(MEM_CAT_WEIGHTS, l->names, (size_t)(l->n + 1) * sizeof(*l->names));
    memmove(l->names + at + 1, l->names + at, (size_t)(l->n - at) * sizeof(*l->names));
    l->names[at] = mem_strdup(MEM_CAT_WEIGHTS, name);
    l->n++;
    return ERR_OK;
}

/* A file of the index must be one of the directory itself. */
static enum err_code dir_index_name(const struct json_member *m, struct dir_names *l,
                                    struct err *err)
{
    char quoted[META_QUOTE_MAX];
    const struct json *v = &m->value;
    if (v->type != JSON_TYPE_STRING || !meta_name_is_clean(v->text, v->len) ||
        strchr(v->text, '/') || !dir_ends(v->text, DIR_TENSORS))
        return err_set(err, ERR_INVALID,
                       "weight_map: the file of tensor %s: want the name of a " DIR_TENSORS
                       " file of the directory",
                       meta_quote(quoted, m->key, m->key_len));
    return dir_names_add(l, v->text, err);
}

static enum err_code dir_read_index(const struct meta_str *text, struct json_doc *doc,
                                    struct dir_names *l, struct err *err)
{
    if (text->len > DIR_INDEX_MAX)
        return err_set(err, ERR_FULL, "%zu bytes, at most %zu", text->len, DIR_INDEX_MAX);
    enum err_code code = json_parse(doc, text->data, text->len,
                                    text->len * DIR_JSON_FACTOR + ((size_t)64 << 10), err);
    const struct json *map = json_get(&doc->root, "weight_map");
    if (!code && !json_is(map, JSON_TYPE_OBJECT))
        code = err_set(err, ERR_INVALID, "no object 'weight_map'");
    for (size_t i = 0; !code && i < map->n; i++)
        code = dir_index_name(&map->members[i], l, err);
    return code;
}

/* Every tensor of the index is there, in the file that it says. */
static enum err_code dir_check_index(const struct weights *w, const struct dir_names *l,
                                     const struct json *index, struct err *err)
{
    char quoted[META_QUOTE_MAX];
    const struct json *map = json_get(index, "weight_map");
    for (size_t i = 0; map && i < map->n; i++) {
        const struct json_member *m = &map->members[i];
        int32_t at = map_get(&w->names, m->key, m->key_len);
        if (at < 0 || strcmp(l->names[w->tensors[at].file_i], m->value.text) != 0)
            return err_set(err, ERR_INVALID,
                           DIR_INDEX ": tensor %s should be in %s and is not: are the files of "
                                     "one model?",
                           meta_quote(quoted, m->key, m->key_len), m->value.text);
    }
    return ERR_OK;
}

/* Every tensor file of the directory, where no index says which. */
static enum err_code dir_list(const char *dir, struct dir_names *l, struct err *err)
{
    enum err_code code = ERR_OK;
    bool has_pickle = false;
    DIR *d = opendir(dir);
    if (!d)
        return err_set(err, ERR_IO, "%s: cannot list it", dir);
    for (struct dirent *e = readdir(d); e && !code; e = readdir(d)) {
        has_pickle |= dir_ends(e->d_name, ".bin") || dir_ends(e->d_name, ".pth");
        if (dir_ends(e->d_name, DIR_TENSORS) && e->d_name[0] != '.')
            code = dir_names_add(l, e->d_name, err);
    }
    closedir(d);
    if (!code && l->n == 0 && has_pickle)
        code = err_set(err, ERR_UNSUPPORTED,
                       "%s: holds pickled tensors (.bin) and no " DIR_TENSORS
                       " file; save it with safe_serialization=True, or fetch a safetensors copy",
                       dir);
    else if (!code && l->n == 0)
        code = err_set(err, ERR_NOT_FOUND,
                       "%s: no " DIR_TENSORS " file in it (a GGUF file is opened by its own path)",
                       dir);
    return code;
}

/* --- texts --- */

static enum err_code dir_map_texts(struct weights *w, const char *dir, struct err *err)
{
    struct buf path;
    enum err_code code = ERR_OK;
    buf_init(&path, MEM_CAT_WEIGHTS, DIR_PATH_MAX);
    for (int i = 0; i < WEIGHTS_TEXTS && !code; i++) {
        struct weights_text_file *t = &w->texts[i];
        code = dir_join(&path, dir, dir_texts[i], err);
        if (code || access(path.data, F_OK) != 0)
            continue;
        code = file_map_open(&t->map, path.data, err);
        t->text = (struct meta_str){ (const char *)t->map.data, t->map.size };
    }
    buf_release(&path);
    return code;
}

struct meta_str weights_text(const struct weights *w, const char *name)
{
    for (int i = 0; i < WEIGHTS_TEXTS; i++)
        if (strcmp(dir_texts[i], name) == 0)
            return w->texts[i].text;
    return (struct meta_str){ NULL, 0 };
}

bool weights_is_dir(const struct weights *w)
{
    return w->is_dir;
}

/* --- open --- */

static enum err_code dir_add_metadata(struct weights *w, struct err *err)
{
    const struct meta_str *config = &w->texts[WEIGHTS_TEXT_CONFIG].text;
    const struct meta_str *generation = &w->texts[WEIGHTS_TEXT_GENERATION].text;
    w->arena.max += DIR_ARENA_LEAST + (size_t)w->n_tensors * 2 * WEIGHTS_NAME_MAX;
    enum err_code code = config->data ? dir_add_json(w, "config", config, err) : ERR_OK;
    if (!code && generation->data)
        code = dir_add_json(w, "generation_config", generation, err);
    if (!code)
        code = dir_add_templates(w, err);
    return code ? code : dir_join_scales(w, err);
}

/* The tensor files and the metadata; the names are those of the files in dir. */
static enum err_code dir_read(struct weights *w, const char *dir, const struct dir_names *l,
                              const struct json *index, struct err *err)
{
    struct buf path;
    enum err_code code = ERR_OK;
    buf_init(&path, MEM_CAT_WEIGHTS, DIR_PATH_MAX);
    for (int i = 0; i < l->n && !code; i++) {
        const char *slash = strchr(l->names[i], '/');
        code = dir_join(&path, dir, l->names[i], err);
        if (slash) /* of a module */
            snprintf(w->files[i].prefix, sizeof(w->files[i].prefix), "%.*s.",
                     (int)(slash - l->names[i]), l->names[i]);
        if (!code)
            code = weights_read_path(w, i, path.data, err);
    }
    buf_release(&path);
    if (!code)
        code = dir_check_index(w, l, index, err);
    if (!code)
        code = dir_add_metadata(w, err);
    if (!code)
        code = dir_modules_add(w, dir, err);
    return code ? err_prefix(err, code, "%s", dir) : ERR_OK;
}

/* What path means: its directory, and one file of it or "" for all. */
static enum err_code dir_split(const char *path, struct buf *dir, struct dir_names *only,
                               struct err *err)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    bool is_index = dir_ends(path, DIR_INDEX);
    if (!is_index && !dir_ends(path, DIR_TENSORS)) {
        buf_add_str(dir, path);
        while (dir->len > 1 && dir->data[dir->len - 1] == '/')
            buf_cut(dir, dir->len - 1);
        return buf_check(dir, "a path", err);
    }
    buf_add(dir, slash ? path : ".", slash ? (size_t)(slash - path) + (slash == path) : 1);
    enum err_code code = buf_check(dir, "a path", err);
    /* NAME-00001-of-00003.safetensors stands for its set */
    size_t n = strlen(name), tail = strlen("-00001-of-00003" DIR_TENSORS);
    bool is_part = n > tail && memcmp(name + n - tail + 6, "-of-", 4) == 0;
    return code || is_index || is_part ? code : dir_names_add(only, name, err);
}

static struct weights *dir_new(const char *dir, int n, struct err *err)
{
    struct weights *w = weights_new(n);
    if (!w)
        err_set(err, ERR_NOMEM, "%s: no memory to open it", dir);
    else
        w->is_dir = true;
    return w;
}

/* The tensor files of a directory's modules stand behind its own. */
static enum err_code dir_add_modules(const char *dir, struct dir_names *names, struct err *err)
{
    struct dir_modules modules;
    char name[128];
    enum err_code code = dir_modules_read(dir, &modules, err);
    for (int i = 0; i < modules.n_dense && !code; i++) {
        if (names->n == WEIGHTS_FILES_MAX)
            return err_set(err, ERR_INVALID, "%s: over %d tensor files", dir, WEIGHTS_FILES_MAX);
        snprintf(name, sizeof(name), "%s/model" DIR_TENSORS, modules.dense[i]);
        names->names = mem_realloc(MEM_CAT_WEIGHTS, names->names,
                                   (size_t)(names->n + 1) * sizeof(*names->names));
        names->names[names->n++] = mem_strdup(MEM_CAT_WEIGHTS, name);
    }
    return code;
}

/* The texts come first because the index says how many files there are: a struct of one file carries them over. */
static enum err_code dir_open_names(const char *dir, struct dir_names *names, struct weights **out,
                                    struct err *err)
{
    struct json_doc index = { 0 };
    struct weights *texts = dir_new(dir, 1, err), *w = NULL;
    if (!texts)
        return ERR_NOMEM;
    enum err_code code = dir_map_texts(texts, dir, err);
    const struct meta_str *text = &texts->texts[WEIGHTS_TEXT_INDEX].text;
    if (!code && !texts->texts[WEIGHTS_TEXT_CONFIG].text.data)
        code = err_set(err, ERR_NOT_FOUND,
                       "%s: no config.json: not a model directory (a GGUF file is opened by its "
                       "own path)",
                       dir);
    if (!code && names->n == 0 && text->data && (code = dir_read_index(text, &index, names, err)))
        err_prefix(err, code, "%s/%s", dir, dir_texts[WEIGHTS_TEXT_INDEX]);
    if (!code && names->n == 0)
        code = dir_list(dir, names, err);
    if (!code)
        code = dir_add_modules(dir, names, err);
    if (!code && !(w = dir_new(dir, names->n, err)))
        code = ERR_NOMEM;
    if (!code) {
        memcpy(w->texts, texts->texts, sizeof(w->texts));
        memset(texts->texts, 0, sizeof(texts->texts));
        code = dir_read(w, dir, names, &index.root, err);
    }
    json_doc_release(&index);
    weights_close(texts);
    if (code)
        weights_close(w);
    else
        *out = w;
    return code;
}

enum err_code dir_open(const char *path, struct weights **out, struct err *err)
{
    struct buf dir;
    struct dir_names names = { 0 };
    buf_init(&dir, MEM_CAT_WEIGHTS, DIR_PATH_MAX);
    enum err_code code = dir_split(path, &dir, &names, err);
    if (!code && access(dir.data, F_OK) != 0)
        code = err_set(err, ERR_NOT_FOUND, "%s: no such file or directory", path);
    if (!code)
        code = dir_open_names(dir.data, &names, out, err);
    buf_release(&dir);
    dir_names_release(&names);
    return code;
}

enum err_code dir_open_images(const struct weights_image *images, int n,
                              const struct meta_str texts[WEIGHTS_TEXTS], struct weights **out,
                              struct err *err)
{
    BUG_ON(n < 1 || n > WEIGHTS_FILES_MAX);
    struct weights *w = dir_new(images[0].name, n, err);
    enum err_code code = ERR_OK;
    if (!w)
        return ERR_NOMEM;
    for (int i = 0; i < WEIGHTS_TEXTS; i++)
        w->texts[i].text = texts[i];
    for (int i = 0; i < n && !code; i++)
        code = weights_read(w, i, &images[i], err);
    if (!code)
        code = dir_add_metadata(w, err);
    if (code)
        weights_close(w);
    else
        *out = w;
    return code;
}
