#include "cli/api_keys.h"
#include "base/file.h"
#include "base/log.h"
#include "server/limits.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Others can read the file: said, not refused, because on a machine of one user it does not matter. */
static void api_keys_warn(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & (S_IRGRP | S_IROTH)))
        log_warn("serve", "--api-key-file %s: others may read it (mode %03o): chmod 600", path,
                 (unsigned)(st.st_mode & 0777));
}

/* Cut the text into lines and keep those that are keys. */
static void api_keys_split(struct api_keys *k)
{
    for (char *at = k->text, *line; *at;) {
        at += strspn(at, "\r\n \t");
        line = at;
        at += strcspn(at, "\r\n");
        if (*at)
            *at++ = '\0';
        size_t n = strlen(line);
        while (n > 0 && (line[n - 1] == ' ' || line[n - 1] == '\t'))
            n--;
        line[n] = '\0';
        if (n > 0 && line[0] != '#')
            k->items[k->n++] = line;
    }
}

enum err_code api_keys_open(struct api_keys *k, const char *path, struct err *err)
{
    const char *own = getenv("PLUMB_API_KEY");
    struct buf file;
    enum err_code code = ERR_OK;
    *k = (struct api_keys){ 0 };
    buf_init(&file, MEM_CAT_BASE, LIMIT_API_KEY_FILE);
    if (path)
        code = file_read(path, &file, err);
    if (code == ERR_OK) {
        size_t n_lines = 2;
        for (size_t i = 0; i < file.len; i++)
            n_lines += file.data[i] == '\n' || file.data[i] == '\r';
        k->text = mem_strndup(MEM_CAT_BASE, file.data, file.len);
        k->items = mem_alloc(MEM_CAT_BASE, sizeof(*k->items) * n_lines);
        api_keys_split(k);
    }
    memset(file.data, 0, file.len);
    buf_release(&file);
    if (code == ERR_OK && path && k->n == 0)
        code =
            err_set(err, ERR_INVALID, "--api-key-file %s: it has no keys: put one on a line", path);
    if (code != ERR_OK)
        return code;
    if (path)
        api_keys_warn(path);
    if (own && *own)
        k->items[k->n++] = own;
    return ERR_OK;
}

void api_keys_close(struct api_keys *k)
{
    for (int32_t i = 0; i < k->n; i++)
        if (k->items[i] != getenv("PLUMB_API_KEY"))
            explicit_bzero((char *)(uintptr_t)k->items[i], strlen(k->items[i]));
    mem_free(MEM_CAT_BASE, k->items);
    mem_free(MEM_CAT_BASE, k->text);
    *k = (struct api_keys){ 0 };
}
