/* convert.h - plumb convert: what its files share. cmd_convert.c reads flags and runs, convert_types.c says which type a tensor gets,
 * convert_gguf.c, convert_dir.c, convert_tokenizer.c and convert_modules.c write. One tensor is in memory at a time, and only a piece of it. */
#ifndef PLUMB_CLI_CONVERT_H
#define PLUMB_CLI_CONVERT_H

#include "cli/cli.h"
#include "model/export.h"

#include <signal.h>

enum convert_kind { CONVERT_GGUF, CONVERT_HF, CONVERT_MLX };

struct convert_options {
    const char *src, *dst, *to, *type, *embedding_type, *head_type, *plain_type, *pre, *name;
    int64_t group_size, threads, shard_bytes;
    bool force, is_quiet;
};

/* What --type and its like say. */
struct convert_type {
    const char *name; /* "q4_k_m"; NULL: none was given */
    enum dtype type;  /* DTYPE_COUNT: each tensor keeps its own */
    bool is_mix;      /* some tensors get more bits */
};

struct convert {
    const struct convert_options *o;
    struct weights *w;
    enum convert_kind kind;
    struct convert_type type, embedding, head;
    enum dtype plain; /* of what is not quantised, and of MLX's scales; GGUF's vectors are F32 */
    struct export x;  /* the plan */
    bool has_head;    /* the embedding is not the head too */
    bool is_source_quantised; /* some matrix has blocks or codes */
    int64_t n_layers;
    uint64_t bytes; /* of all tensors written */
    int64_t started_us;
    const volatile sig_atomic_t *stop;
};

/* --- convert_types.c --- */
/* Read the names of the flags. Errors: ERR_INVALID - lists what there is. */
enum err_code convert_types_init(struct convert *c, struct err *err) MUST_CHECK;
/* Give every tensor of the plan its type. Errors: those of recode_check. */
enum err_code convert_types_set(struct convert *c, struct err *err) MUST_CHECK;
/* GGUF's general.file_type. */
uint32_t convert_file_type(const struct convert *c);

/* --- convert_gguf.c, convert_dir.c --- */
enum err_code convert_write_gguf(struct convert *c, struct err *err) MUST_CHECK;
enum err_code convert_write_dir(struct convert *c, struct err *err) MUST_CHECK;
/* tokenizer.* keys of a directory (convert_tokenizer.c). n_rows: of the embedding. */
struct gguf_writer;
enum err_code convert_write_vocab(const struct convert *c, struct gguf_writer *g, int64_t n_rows,
                                  struct err *err) MUST_CHECK;
/* tokenizer.json, tokenizer_config.json, generation_config.json and the template of a GGUF file, into the directory dir. */
enum err_code convert_write_texts(const struct convert *c, const char *dir,
                                  struct err *err) MUST_CHECK;
/* What a sentence-transformers directory has beside the model (convert_modules.c): modules.json and a folder for each module, of a
 * GGUF file's pooling_type, or copied. A tensor of a module is named FOLDER.NAME: convert_folder gives the length of FOLDER, 0 for
 * others. */
enum err_code convert_write_modules(const struct convert *c, const char *dir,
                                    struct err *err) MUST_CHECK;
size_t convert_folder(const char *tensor);
/* dir/folder is there. */
enum err_code convert_make_folder(const char *dir, const char *folder, struct err *err) MUST_CHECK;
/* A file of the directory, whole. */
enum err_code convert_write_text(const char *dir, const char *name, const char *text, size_t n,
                                 struct err *err) MUST_CHECK;

/* A line on stderr for tensor i, on terminals in the place of the one before. */
void convert_progress(const struct convert *c, int32_t i);
/* Into a sink: struct recode_out's write. */
enum err_code convert_sink(void *sink, const void *data, size_t n, struct err *err) MUST_CHECK;

#endif
