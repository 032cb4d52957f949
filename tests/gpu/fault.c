/* fault.c - a fault of a real GPU, on demand: a library that the driver loads into a program (CUDA_INJECTION64_PATH). When the file that
 * GPU_FAULT names appears it is removed, and a kernel that stores to address 16 is launched in the program's own context, as a
 * faulty kernel or a broken card would. tests/api/test_gpu_fault.py builds and uses it; no toolkit is needed.
 * Source: CUDA driver API; PTX ISA. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char kernel[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry fault()\n{\n.reg .b64 %at;\n.reg .b32 %one;\n"
    "mov.u64 %at, 16;\nmov.u32 %one, 1;\nst.global.u32 [%at], %one;\nret;\n}\n";

int InitializeInjection(void);

/* Functions come as pointers to data: ISO C has no cast between the two. */
static void find(void *driver, const char *name, void *function)
{
    *(void **)function = dlsym(driver, name);
}

static void fault(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL, *module = NULL, *entry = NULL;
    int (*retain)(void **context, int device), (*set)(void *context);
    int (*load)(void **module, const void *image);
    int (*get)(void **function, void *module, const char *name);
    int (*launch)(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned x, unsigned y,
                  unsigned z, unsigned shared, void *stream, void **params, void **extra);
    find(driver, "cuDevicePrimaryCtxRetain", &retain);
    find(driver, "cuCtxSetCurrent", &set);
    find(driver, "cuModuleLoadData", &load);
    find(driver, "cuModuleGetFunction", &get);
    find(driver, "cuLaunchKernel", &launch);
    int code = retain(&context, 0);
    code = code ? code : set(context);
    code = code ? code : load(&module, kernel);
    code = code ? code : get(&entry, module, "fault");
    code = code ? code : launch(entry, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    fprintf(stderr, "gpu_fault: launched, %d\n", code);
}

static void *wait_for_file(void *path)
{
    while (unlink(path) != 0)
        usleep(5000);
    fault();
    return NULL;
}

int InitializeInjection(void)
{
    pthread_t thread;
    char *path = getenv("GPU_FAULT");
    return path && pthread_create(&thread, NULL, wait_for_file, path) == 0;
}
