#include "cli/model_path.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The names that tools/fetch-models knows. */
static const char known_models[] =
    "smollm2, gemma3-270m, qwen2.5-coder-0.5b, qwen2.5-coder-1.5b, all-minilm-l6-v2";

static bool is_known_model(const char *name)
{
    size_t n = strlen(name);
    const char *at = n ? strstr(known_models, name) : NULL;
    return at && (at[n] == ',' || at[n] == '\0') && (at == known_models || at[-1] == ' ');
}

static enum err_code model_path_missing(const char *model, struct err *err)
{
    if (is_known_model(model))
        return err_set(err, ERR_NOT_FOUND,
                       "model '%s' is not fetched yet: run tools/fetch-models %s (known names: %s)",
                       model, model, known_models);
    return err_set(err, ERR_NOT_FOUND,
                   "model '%.100s' is neither a file nor a fetched model: give a path, or run "
                   "tools/fetch-models NAME with one of %s",
                   model, known_models);
}

/* Append the path of the fetched model, if it is there. */
static bool model_path_fetched(const char *xdg, const char *home, const char *name, struct buf *out)
{
    struct buf path;
    bool is_found = false;
    if (name[0] == '\0' || name[0] == '.')
        return false;
    buf_init(&path, MEM_CAT_BASE, out->max);
    if (file_cache_dir(xdg, home, &path, NULL) == ERR_OK) {
        buf_printf(&path, "/models/%s.gguf", name);
        is_found = !path.failed && access(path.data, F_OK) == 0;
        if (!is_found && !path.failed) {
            struct stat st;
            buf_cut(&path, path.len - strlen(".gguf"));
            is_found = stat(path.data, &st) == 0 && S_ISDIR(st.st_mode);
        }
    }
    if (is_found)
        buf_add(out, path.data, path.len);
    buf_release(&path);
    return is_found;
}

enum err_code model_path_in(const char *xdg, const char *home, const char *model, struct buf *out,
                            struct err *err)
{
    if (!model)
        model = MODEL_PATH_DEFAULT;
    if (strchr(model, '/') == NULL) {
        if (model_path_fetched(xdg, home, model, out))
            return buf_check(out, "model path", err);
        if (access(model, F_OK) != 0)
            return model_path_missing(model, err);
    }
    buf_add_str(out, model);
    return buf_check(out, "model path", err);
}

enum err_code model_path(const char *model, struct buf *out, struct err *err)
{
    return model_path_in(getenv("XDG_CACHE_HOME"), getenv("HOME"), model, out, err);
}

/* Length of s without "-00001-of-00003" at its end, where that is there. */
static size_t model_path_unsplit(const char *s, size_t n)
{
    static const char form[] = "-00000-of-00000";
    size_t len = sizeof(form) - 1;
    if (n <= len)
        return n;
    for (size_t i = 0; i < len; i++) {
        char c = s[n - len + i];
        if (form[i] == '0' ? c < '0' || c > '9' : c != form[i])
            return n;
    }
    return n - len;
}

void model_path_id(const char *path, struct buf *out)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--; /* of a directory */
    const char *slash = memrchr(path, '/', end);
    const char *name = slash && slash + 1 < path + end ? slash + 1 : path;
    size_t n = (size_t)(path + end - name);
    if (n > 5 && memcmp(name + n - 5, ".gguf", 5) == 0)
        n = model_path_unsplit(name, n - 5);
    buf_add(out, name, n);
}
