/* safetensors_write.h - the header of a safetensors file, for tensors whose data follow in the order in which they were added. */
#ifndef PLUMB_WEIGHTS_SAFETENSORS_WRITE_H
#define PLUMB_WEIGHTS_SAFETENSORS_WRITE_H

#include "base/sink.h"
#include "weights/weights.h"
#include "json/json.h"

struct safetensors_writer {
    struct buf head;
    struct json_writer json;
    uint64_t data_bytes; /* of all tensors so far */
};

void safetensors_writer_init(struct safetensors_writer *s);
void safetensors_writer_release(struct safetensors_writer *s);

/* The format's name of a type: "BF16"; NULL: it has none. */
const char *safetensors_type_name(enum dtype type);

/* A tensor of shape [n_dims], the contiguous dimension first. Need: safetensors_type_name(type). */
void safetensors_write_tensor(struct safetensors_writer *s, const char *name, enum dtype type,
                              int n_dims, const int64_t *shape, size_t bytes);

/* The header, which starts the file. Errors: ERR_FULL - over the 100 MB that readers take; ERR_IO. */
enum err_code safetensors_write_head(struct safetensors_writer *s, struct sink *to,
                                     struct err *err) MUST_CHECK;

#endif
