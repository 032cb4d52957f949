/* The CUDA backend of a build that has none. */
#include "kernels/cuda/cuda_backend.h"

bool cuda_is_built(void)
{
    return false;
}

enum err_code cuda_device_find(int device, struct cuda_device *out, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED,
                   "this build has no CUDA backend: build with make CUDA=1, or use --device cpu");
}

enum err_code cuda_backend_open(const struct cuda_options *o, struct backend **out, struct err *err)
{
    struct cuda_device dev;
    return cuda_device_find(o->device, &dev, err);
}
