/* cuda_backend.h - the NVIDIA backend: packed weights, paged caches and the step's activations in device memory.
 *
 * Ops are recorded and run when somebody waits for what they make (failed, wait, download, route); a list of commands that comes again
 * is a CUDA graph from then on. Arithmetic: docs/numerics.md, section CUDA; the same bits for any batch on one architecture.
 * A build without CUDA=1 has no such backend: cuda_backend_open says so. */
#ifndef PLUMB_KERNELS_CUDA_CUDA_BACKEND_H
#define PLUMB_KERNELS_CUDA_CUDA_BACKEND_H

#include "tensor/backend.h"

struct cuda_options {
    int device;    /* its number as the driver counts */
    bool is_plain; /* the oracle: plain kernels for products and attention, no graphs */
    struct backend
        *host; /* borrowed, outlives it: sampling on host memory and threads; NULL: none */
};

/* What there is. */
struct cuda_device {
    char name[128];
    int major, minor;          /* compute capability */
    int64_t free_bytes, bytes; /* of memory */
};

/* Whether this build holds the backend. */
bool cuda_is_built(void);

/* Errors: ERR_UNSUPPORTED - a build without CUDA, no kernels for this device; ERR_NOT_FOUND - no driver, or no such device. */
enum err_code cuda_device_find(int device, struct cuda_device *out, struct err *err) MUST_CHECK;

/* Out:    *out, closed by its ops->close.
 * Errors: those of cuda_device_find; ERR_NOMEM; ERR_IO - the device does not compute. */
enum err_code cuda_backend_open(const struct cuda_options *o, struct backend **out,
                                struct err *err) MUST_CHECK;

#endif
