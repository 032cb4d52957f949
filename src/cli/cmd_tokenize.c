/* cmd_tokenize.c - text on stdin to token ids on one line. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/load_tokenizer.h"
#include "json/json.h"

#include <limits.h>
#include <stdio.h>

#define TOKENIZE_INPUT_MAX ((size_t)256 << 20)

struct tokenize_options {
    const char *model;
    bool special;
    bool pieces;
};

/* One line for each token: id, a tab, its bytes as a JSON string (ill-formed parts as U+FFFD). */
static void tokenize_add_piece(const struct tokenizer *t, int32_t id, struct buf *out)
{
    struct json_writer w;
    struct tokenizer_str s = tokenizer_bytes(t, id, true);
    buf_printf(out, "%d\t", id);
    json_writer_init(&w, out);
    json_strn(&w, s.data, s.len);
    buf_add_char(out, '\n');
}

static enum err_code tokenize_print(const struct tokenizer *t, const struct token_list *ids,
                                    bool pieces, struct err *err)
{
    struct buf out;
    buf_init(&out, MEM_CAT_BASE, SIZE_MAX);
    for (int32_t i = 0; i < ids->n; i++) {
        if (pieces)
            tokenize_add_piece(t, ids->ids[i], &out);
        else
            buf_printf(&out, i ? " %d" : "%d", ids->ids[i]);
    }
    if (!pieces)
        buf_add_char(&out, '\n');
    enum err_code code = buf_check(&out, "the list of ids", err);
    if (!code && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout) != 0))
        code = err_set(err, ERR_IO, "stdout cannot be written");
    buf_release(&out);
    return code;
}

static int tokenize_run(void *options)
{
    const struct tokenize_options *o = options;
    struct tokenizer *t = NULL;
    struct token_list ids;
    struct buf text;
    struct err err;
    buf_init(&text, MEM_CAT_BASE, TOKENIZE_INPUT_MAX);
    token_list_init(&ids, INT32_MAX);
    enum err_code code = load_tokenizer_of(o->model, &t, &err);
    if (!code)
        code = file_read("-", &text, &err);
    if (!code)
        code = tokenizer_encode(t, text.data, text.len, NULL,
                                o->special ? TOKENIZER_FLAG_SPECIAL : 0, &ids, &err);
    if (!code)
        code = tokenize_print(t, &ids, o->pieces, &err);
    token_list_release(&ids);
    buf_release(&text);
    tokenizer_free(t);
    return code ? cli_fail("tokenize", &err) : 0;
}

const struct cli_verb cmd_tokenize = {
    .name = "tokenize",
    .summary = "print the token ids of the text on stdin",
    .usage = "--model M [--special] [--pieces] < text",
    .flags =
        (const struct cli_flag[]){
            { "model", "M", "path or name of a model; default smollm2", CLI_FLAG_STRING,
              offsetof(struct tokenize_options, model), 0, 0 },
            { "special", NULL, "match control tokens in the text; default: they are plain text",
              CLI_FLAG_BOOL, offsetof(struct tokenize_options, special), 0, 0 },
            { "pieces", NULL, "one token a line: its id and its text as a JSON string",
              CLI_FLAG_BOOL, offsetof(struct tokenize_options, pieces), 0, 0 },
            { 0 },
        },
    .options_bytes = sizeof(struct tokenize_options),
    .run = tokenize_run,
};
