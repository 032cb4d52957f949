/* cmd_detokenize.c - token ids on stdin to the bytes that they stand for. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/load_tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define DETOKENIZE_INPUT_MAX ((size_t)256 << 20)

struct detokenize_options {
    const char *model;
    bool special;
};

/* Ids in decimal, white space between them. */
static enum err_code detokenize_parse(const struct tokenizer *t, const struct buf *text,
                                      int32_t *ids, int32_t *n, struct err *err)
{
    const char *s = text->data;
    const char *end = s + text->len;
    while (s < end) {
        if (*s == ' ' || (*s >= '\t' && *s <= '\r')) {
            s++;
            continue;
        }
        const char *word = s;
        int64_t id = 0;
        while (s < end && *s >= '0' && *s <= '9' && id < INT32_MAX)
            id = id * 10 + (*s++ - '0');
        bool is_number = s > word && (s == end || *s == ' ' || (*s >= '\t' && *s <= '\r'));
        if (!is_number || id >= tokenizer_n_tokens(t))
            return err_set(
                err, ERR_INVALID, "stdin: '%.*s' at byte %zu is not a token id from 0 to %d",
                (int)strcspn(word, " \t\n\v\f\r") < 20 ? (int)strcspn(word, " \t\n\v\f\r") : 20,
                word, (size_t)(word - text->data), tokenizer_n_tokens(t) - 1);
        ids[(*n)++] = (int32_t)id;
    }
    return ERR_OK;
}

static int detokenize_run(void *options)
{
    const struct detokenize_options *o = options;
    struct tokenizer *t = NULL;
    int32_t *ids = NULL;
    int32_t n = 0;
    struct buf text;
    struct buf out;
    struct err err;
    buf_init(&text, MEM_CAT_BASE, DETOKENIZE_INPUT_MAX);
    buf_init(&out, MEM_CAT_BASE, SIZE_MAX);
    enum err_code code = load_tokenizer_of(o->model, &t, &err);
    if (!code)
        code = file_read("-", &text, &err);
    if (!code) {
        ids = mem_try_array(MEM_CAT_BASE, text.len / 2 + 1, sizeof(*ids));
        code = ids ? detokenize_parse(t, &text, ids, &n, &err)
                   : err_set(&err, ERR_NOMEM, "no memory for the ids of %zu bytes", text.len);
    }
    if (!code)
        code = tokenizer_decode(t, ids, n, o->special, &out, &err);
    if (!code && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout) != 0))
        code = err_set(&err, ERR_IO, "stdout cannot be written");
    mem_free(MEM_CAT_BASE, ids);
    buf_release(&out);
    buf_release(&text);
    tokenizer_free(t);
    return code ? cli_fail("detokenize", &err) : 0;
}

const struct cli_verb cmd_detokenize = {
    .name = "detokenize",
    .summary = "print the bytes that the token ids on stdin stand for",
    .usage = "--model M [--special] < ids",
    .flags =
        (const struct cli_flag[]){
            { "model", "M", "path or name of a model; default smollm2", CLI_FLAG_STRING,
              offsetof(struct detokenize_options, model), 0, 0 },
            { "special", NULL, "show control tokens too; default: they are left out", CLI_FLAG_BOOL,
              offsetof(struct detokenize_options, special), 0, 0 },
            { 0 },
        },
    .options_bytes = sizeof(struct detokenize_options),
    .run = detokenize_run,
};
