/* weights.h - an opened model file: metadata and tensors, memory-mapped and read-only.
 *
 * Owns: the maps and the index. Pointers handed out live until weights_close. Hostile files give an error that names the key or
 * tensor, never a crash or an allocation larger than the file justifies. Thread: open and close on one; reading on any. */
#ifndef PLUMB_WEIGHTS_WEIGHTS_H
#define PLUMB_WEIGHTS_WEIGHTS_H

#include "base/buf.h"
#include "tensor/dtype.h"

struct weights;

#define WEIGHTS_DIMS_MAX     4
#define WEIGHTS_TENSORS_MAX  (1 << 20) /* over all files */
#define WEIGHTS_META_MAX     (1 << 16) /* keys of one file */
#define WEIGHTS_FILES_MAX    1024      /* of a split set */
#define WEIGHTS_NAME_MAX     255       /* bytes of a tensor's name */
#define WEIGHTS_META_NESTING 8         /* arrays in arrays */

/* How the matrices of a directory's tensor stand in its file where that is not what shape says. weights_take puts them right. */
struct weights_layout {
    int64_t n_rows;      /* of a matrix in the file */
    const int32_t *rows; /* [shape[1]] row r is the file's row rows[r]; NULL: r */
    int64_t run;         /* columns move in runs of so many ... */
    const int32_t *runs; /* [shape[0] / run] ... and run i is the file's run runs[i]; NULL: i */
    bool is_turned;      /* the file has [shape[0]][n_rows]: F32, F16, BF16 */
    /* MXFP4 in two tensors: data has the codes, 16 bytes a block with neighbours in a byte, scales the exponents (U8) */
    bool is_apart;
};

struct weights_tensor {
    const char *name; /* 1..WEIGHTS_NAME_MAX bytes of UTF-8 without control characters; unique */
    enum dtype type;
    int n_dims; /* 1..WEIGHTS_DIMS_MAX */
    /* Each >= 1. shape[0] is the contiguous one (GGUF order) and a multiple of the type's block; unused ones are 1. */
    int64_t shape[WEIGHTS_DIMS_MAX];
    bool is_merged; /* the file has more dimensions: shape[0] is the product of the innermost */
    const uint8_t
        *data; /* inside its file, overlaps no other tensor; of GGUF 8-byte aligned, else any */
    size_t bytes;
    struct scales scales; /* of types with has_scales: inside the files too. Else zeroed */
    /* NULL: data is what shape and type say. Else data, bytes and scales are as in the file. Only after model_adapt */
    const struct weights_layout *layout;
    int file_i;      /* which of the split files */
    uint64_t offset; /* of data in that file */
};

enum meta_type { /* numbers as in the GGUF document */
                 META_TYPE_U8 = 0,
                 META_TYPE_I8,
                 META_TYPE_U16,
                 META_TYPE_I16,
                 META_TYPE_U32,
                 META_TYPE_I32,
                 META_TYPE_F32,
                 META_TYPE_BOOL,
                 META_TYPE_STRING,
                 META_TYPE_ARRAY,
                 META_TYPE_U64,
                 META_TYPE_I64,
                 META_TYPE_F64,
};

struct meta_str { /* borrowed from the map, not terminated */
    const char *data;
    size_t len;
};

struct meta_value {
    enum meta_type type;
    union {
        uint64_t u; /* U8..U64, BOOL */
        int64_t i;  /* I8..I64 */
        double f;   /* F32, F64 */
        struct meta_str s;
        struct {
            enum meta_type type; /* element type */
            uint64_t n;
            const uint8_t *data;         /* packed little-endian elements (scalars), unaligned */
            const struct meta_str *strs; /* [n], strings */
            const struct meta_value *values; /* [n], nested arrays */
        } array;
    };
};

/* "u32", "string", ... */
const char *meta_type_name(enum meta_type type);

/* Element i of an array as a value of its own. Need: v is an array and i < n. */
void meta_array_at(const struct meta_value *v, uint64_t i, struct meta_value *out);

/* Open a GGUF file (v2, v3; the first of a split set opens them all, their metadata is the first file's), or a directory as Hugging
 * Face lays it out: config.json and *.safetensors, with model.safetensors.index.json where there are several (a path to one of
 * these files means its directory; one to a single tensor file that one). Metadata of a directory: the values of config.json as
 * "config.KEY" ("config.rope_scaling.factor"; null is absent), of generation_config.json as "generation_config.KEY", and
 * "tokenizer.chat_template", "tokenizer.bos_token", "tokenizer.eos_token" from the texts that have them. Tensors keep their names; model.h gives them GGUF's.
 * The file must not shrink while it is open: pages that are gone raise SIGBUS.
 * Errors: ERR_NOT_FOUND, ERR_IO, ERR_INVALID (names key or tensor, value and limit), ERR_UNSUPPORTED (type or version),
 * ERR_NOMEM. On error *out is untouched. */
enum err_code weights_open(const char *path, struct weights **out, struct err *err) MUST_CHECK;
void weights_close(struct weights *w); /* w may be NULL */

bool weights_is_dir(const struct weights *w);
/* A text beside a directory's tensors: "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
 * "chat_template.jinja", "chat_template.json", "config.json", "generation_config.json". Borrowed; data is NULL where absent. */
struct meta_str weights_text(const struct weights *w, const char *name);

int weights_gguf_version(const struct weights *w); /* of the first file; 0 = a directory */
size_t weights_alignment(
    const struct weights *w); /* of the first file's tensor data, bytes; 1 = a directory */
int weights_n_files(const struct weights *w);
const char *weights_file_path(const struct weights *w, int i);
size_t weights_file_bytes(const struct weights *w, int i);

int32_t weights_n_tensors(const struct weights *w);
const struct weights_tensor *weights_tensor_at(const struct weights *w, int32_t i);
const struct weights_tensor *weights_find(const struct weights *w,
                                          const char *name); /* NULL if absent */
/* Matrix i of a stack, [shape[1]][shape[0]]: a view. Need: 0 <= i < shape[2] * shape[3]. */
struct weights_tensor weights_matrix(const struct weights_tensor *t, int64_t i);
/* A matrix without its layout: *out has shape and type of t, and what it needs of memory of its own is *mem (NULL: nothing), which the
 * caller frees (MEM_CAT_WEIGHTS) when done with *out. Need: t is one matrix.
 * Errors: ERR_UNSUPPORTED - scales that go over rows or columns that part; ERR_NOMEM. */
enum err_code weights_take(const struct weights_tensor *t, struct weights_tensor *out, void **mem,
                           struct err *err) MUST_CHECK;
/* The tensor's pages are not needed again (after packing). */
void weights_drop(const struct weights *w, const uint8_t *data, size_t n);

int32_t weights_n_meta(const struct weights *w);
const struct meta_value *weights_meta_at(const struct weights *w, int32_t i, const char **key);
const struct meta_value *weights_meta(const struct weights *w,
                                      const char *key); /* NULL if absent */

/* Typed reads. Any integer type converts if the value is in [min, max]; a float key takes f32, f64 and integers, and must be finite.
 * Errors: ERR_NOT_FOUND - absent; ERR_INVALID - another type or out of range. Texts name file, key, value and range.
 * The _or forms give the default when the key is absent. */
enum err_code weights_int(const struct weights *w, const char *key, int64_t min, int64_t max,
                          int64_t *out, struct err *err) MUST_CHECK;
enum err_code weights_int_or(const struct weights *w, const char *key, int64_t min, int64_t max,
                             int64_t fallback, int64_t *out, struct err *err) MUST_CHECK;
enum err_code weights_float_or(const struct weights *w, const char *key, double fallback,
                               double *out, struct err *err) MUST_CHECK;
enum err_code weights_bool_or(const struct weights *w, const char *key, bool fallback, bool *out,
                              struct err *err) MUST_CHECK;
/* A string with no NUL inside; out is a copy that lives as long as w. */
enum err_code weights_str(const struct weights *w, const char *key, const char **out,
                          struct err *err) MUST_CHECK;
/* Element i of an integer or bool array. A scalar stands for every element (per-layer keys may be given once).
 * Errors: as above; ERR_INVALID - i is not under the array's length. */
enum err_code weights_array_int(const struct weights *w, const char *key, uint64_t i, int64_t *out,
                                struct err *err) MUST_CHECK;

/* SHA-256 over header and tensor bytes is costly; this digest covers metadata, names, types, shapes, and a sample of each tensor
 * (first, middle and last 4 KiB): it identifies weights for caches and fingerprints. 64 hex digits + NUL.
 * Where tensors stand does not count: a split set has the digest of the whole file. */
void weights_digest(const struct weights *w, char out[65]);

/* Decode n elements (a multiple of the block) to f32, as the format document says: each product and sum rounded to f32, in the
 * order written in blocks.h. The oracle for packing. data may have any alignment.
 * Errors: ERR_UNSUPPORTED - a type with can_decode false. */
enum err_code weights_dequantize(enum dtype type, const uint8_t *data, int64_t n, float *out,
                                 struct err *err) MUST_CHECK;

/* Rows [row0, row0 + n) of shape[0] elements each (higher dimensions run on as rows), scales applied: every product and sum rounded
 * to f32. Need: 0 <= row0, row0 + n within the tensor, which has no layout.
 * Errors: ERR_UNSUPPORTED - a type that nothing decodes. */
enum err_code weights_decode_rows(const struct weights_tensor *t, int64_t row0, int64_t n,
                                  float *out, struct err *err) MUST_CHECK;

#endif
