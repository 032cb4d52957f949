/* gguf_write.h - writes a GGUF file (v3): its head is gathered, then tensors follow in the order in which they were added. */
#ifndef PLUMB_WEIGHTS_GGUF_WRITE_H
#define PLUMB_WEIGHTS_GGUF_WRITE_H

#include "base/sink.h"
#include "weights/weights.h"

#define GGUF_WRITE_ALIGNMENT 32 /* of tensor data, the format's default */

struct gguf_writer {
    struct buf meta, tensors;
    uint64_t n_meta, n_tensors;
    uint64_t data_bytes; /* padded, of all tensors so far */
};

void gguf_writer_init(struct gguf_writer *g);
void gguf_writer_release(struct gguf_writer *g);

/* A key. The first should be general.architecture. */
void gguf_write_meta(struct gguf_writer *g, const char *key, const struct meta_value *v);
void gguf_write_u32(struct gguf_writer *g, const char *key, uint32_t v);
void gguf_write_f32(struct gguf_writer *g, const char *key, float v);
void gguf_write_bool(struct gguf_writer *g, const char *key, bool v);
void gguf_write_str(struct gguf_writer *g, const char *key, const char *s, size_t n);

/* A tensor of so many bytes. Errors: ERR_UNSUPPORTED - GGUF has no number for the type. */
enum err_code gguf_write_tensor(struct gguf_writer *g, const char *name, enum dtype type,
                                int n_dims, const int64_t *shape, size_t bytes,
                                struct err *err) MUST_CHECK;

/* The head, padded. Each tensor's bytes follow by sink_write, then sink_pad to GGUF_WRITE_ALIGNMENT.
 * Errors: ERR_FULL - a head over 1 GiB; ERR_IO. */
enum err_code gguf_write_head(const struct gguf_writer *g, struct sink *s,
                              struct err *err) MUST_CHECK;

#endif
