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
    struct map keys; /* key -> index */
};

struct weights_file {
    struct weights_image image; /* name: the path, owned; data: the map's, or borrowed */
    struct file_map map;        /* zeroed for an image in memory */
    struct meta_table meta;
    int version;
    size_t alignment;
};

struct weights {
    struct weights_file *files; /* [n_files] */
    int n_files;
    struct weights_tensor *tensors; /* [n_tensors], in file order */
    int32_t n_tensors;
    struct map names;   /* tensor name -> index */
    struct arena arena; /* names, keys, string and nested arrays */
};

/* Read file i's header into its metadata table and add its tensors. Errors leave w fit for weights_close only. */
enum err_code gguf_read(struct weights *w, int file_i, struct err *err) MUST_CHECK;

/* Decode one packed little-endian scalar. Need: type is neither string nor array. */
void meta_scalar(enum meta_type type, const uint8_t *p, struct meta_value *out);
size_t meta_scalar_bytes(enum meta_type type); /* 0 for string and array */

bool meta_is_int(enum meta_type type); /* bool is none */
bool meta_is_signed(enum meta_type type);
bool meta_is_float(enum meta_type type);

/* s[0..n) between quotes for an error text: control and ill-formed bytes as \xNN, cut with "..." after about 60 bytes. */
#define META_QUOTE_MAX 80
const char *meta_quote(char out[META_QUOTE_MAX], const char *s, size_t n);

#endif
