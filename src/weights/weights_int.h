/* weights_int.h - inside of an opened model file; for gguf.c, weights.c and tests. */
#ifndef PLUMB_WEIGHTS_WEIGHTS_INT_H
#define PLUMB_WEIGHTS_WEIGHTS_INT_H

#include "base/file.h"
#include "base/map.h"
#include "weights/weights.h"

/* A file's bytes in memory. */
struct weights_image {
    const char *name;    /* for messages */
    const uint8_t *data; /* 16-byte aligned */
    size_t size;
};

/* As weights_open on images of one file or of a whole split set, in order; they are borrowed until weights_close. */
enum err_code weights_open_images(const struct weights_image *images, int n, struct weights **out,
                                  struct err *err) MUST_CHECK;

struct meta_entry {
    const char *key; /* terminated, in the arena */
    const char *str; /* a string value's terminated copy, in the arena; else NULL */
    struct meta_value value;
};

struct meta_table {
    struct meta_entry *entries; /* [n], in file order */
    int32_t n;
    int32_t cap;     /* weights_edit.h: entries that fit; 0 = exactly n */
    struct map keys; /* key -> index */
};

struct weights_file {
    struct weights_image image; /* name: the path, owned; data: the map's, or borrowed */
    struct file_map map;        /* zeroed for an image in memory */
    char prefix
        [64]; /* of its tensors' names, beside what the file says; a directory's modules have one */
    struct meta_table meta;
    int version;
    size_t alignment;
};

/* The texts beside the tensors of a directory. */
enum weights_text {
    WEIGHTS_TEXT_CONFIG, /* config.json */
    WEIGHTS_TEXT_INDEX,
    WEIGHTS_TEXT_GENERATION,
    WEIGHTS_TEXT_TOKENIZER,
    WEIGHTS_TEXT_TOKENIZER_CONFIG,
    WEIGHTS_TEXT_TOKENIZER_MODEL, /* SentencePiece's; no text at all */
    WEIGHTS_TEXT_ADDED_TOKENS,
    WEIGHTS_TEXT_SPECIAL_TOKENS,
    WEIGHTS_TEXT_TEMPLATE,
    WEIGHTS_TEXT_TEMPLATE_JSON,
    WEIGHTS_TEXTS
};
struct weights_text_file {
    struct meta_str text; /* the map's, or borrowed; data is NULL where there is none */
    struct file_map map;
};

struct weights {
    bool is_dir; /* Hugging Face's layout: texts, config.json in the first file's metadata */
    struct weights_text_file texts[WEIGHTS_TEXTS];
    struct weights_file *files; /* [n_files] */
    int n_files;
    struct weights_tensor *tensors; /* [n_tensors], in file order */
    int32_t n_tensors;
    struct map names;   /* tensor name -> index */
    struct arena arena; /* names, keys, string and nested arrays */
};

struct weights *weights_new(int n_files); /* NULL: no memory */
/* Map, or borrow, file i and read its header. Errors leave w fit for weights_close only. */
enum err_code weights_read_path(struct weights *w, int i, const char *path,
                                struct err *err) MUST_CHECK;
enum err_code weights_read(struct weights *w, int i, const struct weights_image *image,
                           struct err *err) MUST_CHECK;

/* --- dir.c --- */
/* Whether path means a directory of safetensors: it is a directory, or a file that ends in .safetensors or
 * .safetensors.index.json. */
bool dir_is_model(const char *path);
enum err_code dir_open(const char *path, struct weights **out, struct err *err) MUST_CHECK;
/* As dir_open on images of the tensor files and on the texts given (data NULL = none); all borrowed until weights_close. */
enum err_code dir_open_images(const struct weights_image *images, int n,
                              const struct meta_str texts[WEIGHTS_TEXTS], struct weights **out,
                              struct err *err) MUST_CHECK;

/* --- dir_modules.c: sentence-transformers' modules.json --- */
#define DIR_MODULES_MAX 16
struct dir_modules {
    int n_dense;
    char dense[DIR_MODULES_MAX]
              [56]; /* [n_dense] folders whose model.safetensors is part of the model */
};
/* What modules.json of dir says, if there is one. Errors: ERR_INVALID - no such list. */
enum err_code dir_modules_read(const char *dir, struct dir_modules *out,
                               struct err *err) MUST_CHECK;
/* Metadata: modules.list.N.type, .path; modules.pooling.KEY of the pooling's config.json; modules.dense.N.KEY. */
enum err_code dir_modules_add(struct weights *w, const char *dir, struct err *err) MUST_CHECK;

/* --- dir_config.c --- */
/* Every value of a JSON object as metadata: PREFIX.key, PREFIX.key.key, arrays of scalars as arrays, other arrays by index;
 * nothing for null and for what is empty. */
enum err_code dir_add_json(struct weights *w, const char *prefix, const struct meta_str *text,
                           struct err *err) MUST_CHECK;
/* Join matrices with the tensors that hold their scales (dir_scales.c), by what config.json says. */
enum err_code dir_join_scales(struct weights *w, struct err *err) MUST_CHECK;
/* tokenizer.chat_template from chat_template.jinja, chat_template.json or tokenizer_config.json, the first that has one;
 * tokenizer.bos_token and tokenizer.eos_token as the last spells them. */
enum err_code dir_add_templates(struct weights *w, struct err *err) MUST_CHECK;

/* Read file i's header into its metadata table and add its tensors. Errors leave w fit for weights_close only. */
enum err_code gguf_read(struct weights *w, int file_i, struct err *err) MUST_CHECK;

/* GGUF's number of a type; -1: it has none. */
int gguf_type_number(enum dtype type);

/* The same of a safetensors file. */
enum err_code safetensors_read(struct weights *w, int file_i, struct err *err) MUST_CHECK;

/* Room for n more tensors in w->tensors; w->n_tensors counts those that are read. */
enum err_code weights_reserve(struct weights *w, uint64_t n, struct err *err) MUST_CHECK;
/* For qsort of pointers to tensors of one file. */
int weights_by_offset(const void *a, const void *b);

/* Decode one packed little-endian scalar. Need: type is neither string nor array. */
void meta_scalar(enum meta_type type, const uint8_t *p, struct meta_value *out);
size_t meta_scalar_bytes(enum meta_type type); /* 0 for string and array */

/* UTF-8 without control characters: fit for a key or a tensor's name. */
bool meta_name_is_clean(const char *s, size_t n);

bool meta_is_int(enum meta_type type); /* bool is none */
bool meta_is_signed(enum meta_type type);
bool meta_is_float(enum meta_type type);

/* s[0..n) between quotes for an error text: control and ill-formed bytes as \xNN, cut with "..." after about 60 bytes. */
#define META_QUOTE_MAX 80
const char *meta_quote(char out[META_QUOTE_MAX], const char *s, size_t n);

#endif
