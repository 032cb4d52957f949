/* device.cc - the runtime's functions on a device that is this process: memory, streams, graphs.
 *
 * A stream does what it was told when somebody waits for it and no sooner, as a busy device would: what the host writes meanwhile into
 * pinned memory is what a copy finds. Device memory can be touched by kernels and copies alone (GUARDED_BYTES of it, and of the oldest
 * GUARDED allocations: more takes longer to guard than to use), and ends at a page that nobody can touch.
 *
 * PLUMB_CUDASIM_ARCH    80, 86, 89, 90, 100 or 120: the compute capability that is told (90). No kernel runs on 110.
 * PLUMB_CUDASIM_BYTES   of device memory (8 GiB)
 * PLUMB_CUDASIM_FAULT   what fails of this process (programs that it starts have none of it), and which one, counted from 1:
 *                       N          kernel N reads a bad address: all calls fail until cudaDeviceReset
 *                       copyN      so does copy N, which moves nothing
 *                       launchN    launch N is refused, for want of resources; nothing else comes of it
 *                       refuseN    copy N is refused likewise
 *                       mallocN    allocation N of device memory is refused
 *                       graphN     no memory for graph N
 *                       Behind it ",every": and each N-th after that; ",gone": no device is to be had after the first reset. */
#include "sim.h"

#include <deque>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <sys/mman.h>
#include <vector>

#define PAGE          ((size_t)4096)
#define ALIGN         ((size_t)256)
#define GUARDED       64
#define GUARDED_BYTES ((size_t)64 << 10)
#define SM_COUNT      3
#define SHARED_PLAIN  (48 * 1024) /* more has to be asked for */
#define ARCH_NONE     110         /* that kernels were not built for */

/* A kernel, or what else a stream does. */
struct work {
    std::function<void()> run; /* NULL: the kernel */
    cudasim::kernel kernel;
    cudasim::block *ahead; /* of the kernel, if it has begun */
};

struct cudasim_graph {
    std::vector<work> works;
};

struct cudasim_stream {
    std::deque<work> works;
    cudasim_graph *capture; /* NULL: none */
};

namespace
{

struct area {
    uint8_t *base;
    size_t bytes, mapped;
    bool is_guarded;
};

std::recursive_mutex lock;
std::map<void *, area> areas;             /* of the device */
std::map<const uint8_t *, size_t> pinned; /* of the host */
std::map<const void *, int> shared_of;    /* what kernels have asked for */
std::vector<cudasim_stream *> streams;
size_t used;
int n_guarded;
cudaError_t sticky, last;
bool is_gone;

enum kind { KERNEL, COPY, LAUNCH, REFUSE, MALLOC, GRAPH, KINDS };
const char *const kind_names[KINDS] = { "", "copy", "launch", "refuse", "malloc", "graph" };

struct {
    bool is_read, goes, comes_again;
    int kind;
    long at, n; /* at 0: none */
} fault;

long setting(const char *name, long otherwise)
{
    const char *s = getenv(name);
    return s && *s ? atol(s) : otherwise;
}

size_t all_bytes()
{
    return (size_t)setting("PLUMB_CUDASIM_BYTES", 8L << 30);
}

cudaError_t say(cudaError_t e)
{
    if (!e)
        e = sticky;
    if (!e && is_gone)
        e = cudaErrorDevicesUnavailable;
    if (e)
        last = e;
    return e;
}

void read_fault()
{
    const char *s = getenv("PLUMB_CUDASIM_FAULT");
    fault.is_read = true;
    if (!s)
        return;
    for (int i = KINDS - 1; i >= 0; i--)
        if (strncmp(s, kind_names[i], strlen(kind_names[i])) == 0) {
            fault.kind = i;
            fault.at = atol(s + strlen(kind_names[i]));
            break;
        }
    if (fault.at < 1)
        cudasim::fail("PLUMB_CUDASIM_FAULT: '%s' names nothing that could fail", s);
    fault.goes = strstr(s, ",gone");
    fault.comes_again = strstr(s, ",every");
    unsetenv("PLUMB_CUDASIM_FAULT");
}

/* Whether this one of its kind is the one that fails. */
bool is_fault(int kind)
{
    if (!fault.is_read)
        read_fault();
    if (fault.at == 0 || kind != fault.kind)
        return false;
    fault.n++;
    return fault.comes_again ? fault.n % fault.at == 0 : fault.n == fault.at;
}

void protect(int how)
{
    for (auto &a : areas)
        if (a.second.is_guarded && mprotect(a.second.base, a.second.mapped, how))
            cudasim::fail("mprotect of %zu bytes", a.second.mapped);
}

void do_work(work &w)
{
    bool is_kernel = !w.run;
    if (is_kernel && !sticky && is_fault(KERNEL))
        sticky = cudaErrorIllegalAddress;
    if (sticky && w.ahead)
        cudasim::drop_ahead(w.ahead);
    else if (!sticky && is_kernel)
        cudasim::run_grid(&w.kernel, w.ahead);
    else if (!sticky)
        w.run();
}

/* Kernels behind the one at the front begin: by turns none, one or two, with nothing but kernels between. */
void begin_next(std::deque<work> &works)
{
    static unsigned turns;
    size_t most = turns++ % 3;
    for (size_t i = 0; i <= most && i < works.size() && !works[i].run && !sticky; i++)
        if (i > 0 && !works[i].ahead)
            works[i].ahead = cudasim::begin_ahead(&works[i].kernel);
}

void drain(cudasim_stream *s)
{
    if (s->works.empty())
        return;
    protect(PROT_READ | PROT_WRITE);
    while (!s->works.empty()) {
        begin_next(s->works);
        work &w = s->works.front();
        do_work(w);
        s->works.pop_front();
    }
    protect(PROT_NONE);
}

void drain_all()
{
    for (auto *s : streams)
        drain(s);
}

void copy(void *dst, const void *src, size_t bytes)
{
    if (is_fault(COPY))
        sticky = cudaErrorIllegalAddress;
    else
        memcpy(dst, src, bytes);
}

bool is_pinned(const void *p)
{
    auto it = pinned.upper_bound((const uint8_t *)p);
    if (it == pinned.begin())
        return false;
    --it;
    return (const uint8_t *)p < it->first + it->second;
}

cudaError_t add(cudasim_stream *s, work w)
{
    if (!s)
        return say(cudaErrorInvalidResourceHandle);
    if (s->capture)
        s->capture->works.push_back(std::move(w));
    else
        s->works.push_back(std::move(w));
    return say(cudaSuccess);
}

} // namespace

#define LOCKED std::lock_guard<std::recursive_mutex> guard(lock)

/* --- the device --- */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *prop, int device)
{
    long arch = setting("PLUMB_CUDASIM_ARCH", 90);
    if (device != 0)
        return say(cudaErrorInvalidDevice);
    memset(prop, 0, sizeof(*prop));
    snprintf(prop->name, sizeof(prop->name), "simulated device");
    prop->major = (int)(arch / 10);
    prop->minor = (int)(arch % 10);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int)
{
    *value = SM_COUNT;
    return say(cudaSuccess);
}

cudaError_t cudaSetDevice(int)
{
    LOCKED;
    return say(cudaSuccess);
}

cudaError_t cudaDeviceReset(void)
{
    LOCKED;
    for (auto &a : areas)
        (void)munmap(a.second.base, a.second.mapped + PAGE);
    areas.clear();
    n_guarded = 0;
    for (auto *s : streams)
        s->works.clear(); /* none has begun: a fault has dropped them */
    used = 0;
    if (sticky && fault.goes)
        is_gone = true;
    sticky = last = cudaSuccess;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    LOCKED;
    cudaError_t e = sticky ? sticky : last;
    last = cudaSuccess;
    return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorDevicesUnavailable:
        return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorIllegalAddress:
        return "an illegal memory access was encountered";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice:
        return "no kernel image is available for execution on the device";
    case cudaErrorLaunchOutOfResources:
        return "too many resources requested for launch";
    default:
        return "invalid argument";
    }
}

/* --- memory --- */

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    LOCKED;
    if (say(cudaSuccess))
        return say(cudaSuccess);
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN, mapped = (room + PAGE - 1) / PAGE * PAGE;
    if (bytes > all_bytes() - used || is_fault(MALLOC))
        return say(cudaErrorMemoryAllocation);
    void *base =
        mmap(NULL, mapped + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return say(cudaErrorMemoryAllocation);
    bool is_guarded = mapped <= GUARDED_BYTES && n_guarded < GUARDED;
    if (!is_guarded)
        (void)mprotect(base, mapped, PROT_READ | PROT_WRITE);
    n_guarded += is_guarded;
    *p = (uint8_t *)base + mapped - room; /* its end is the page's that cannot be touched */
    areas[*p] = { (uint8_t *)base, room, mapped, is_guarded };
    used += room;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    LOCKED;
    if (!p)
        return say(cudaSuccess);
    drain_all();
    auto it = areas.find(p);
    if (it == areas.end())
        return say(cudaErrorInvalidValue);
    used -= it->second.bytes;
    n_guarded -= it->second.is_guarded;
    (void)munmap(it->second.base, it->second.mapped + PAGE);
    areas.erase(it);
    return say(cudaSuccess);
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    LOCKED;
    if (say(cudaSuccess))
        return say(cudaSuccess);
    *p = aligned_alloc(PAGE, (bytes + PAGE) / PAGE * PAGE);
    if (!*p)
        return say(cudaErrorMemoryAllocation);
    pinned[(const uint8_t *)*p] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
    LOCKED;
    drain_all();
    pinned.erase((const uint8_t *)p);
    free(p);
    return say(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *bytes)
{
    LOCKED;
    *bytes = all_bytes();
    *free_bytes = *bytes - used;
    return say(cudaSuccess);
}

/* From memory that is not pinned a copy is staged before the call returns; to such memory it has ended by then. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t s)
{
    LOCKED;
    if (is_fault(REFUSE))
        return say(cudaErrorInvalidValue);
    if (kind == cudaMemcpyHostToDevice && !is_pinned(src)) {
        std::string staged((const char *)src, bytes);
        return add(s, { [=] { copy(dst, staged.data(), bytes); }, {}, NULL });
    }
    cudaError_t e = add(s, { [=] { copy(dst, src, bytes); }, {}, NULL });
    if (!e && kind == cudaMemcpyDeviceToHost && !is_pinned(dst))
        return cudaStreamSynchronize(s);
    return e;
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dpitch, const void *src, size_t spitch,
                              size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t s)
{
    cudaError_t e = cudaSuccess;
    for (size_t i = 0; i < height && !e; i++)
        e = cudaMemcpyAsync((uint8_t *)dst + i * dpitch, (const uint8_t *)src + i * spitch, width,
                            kind, s);
    return e;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    LOCKED;
    return add(s, { [=] { memset(p, value, bytes); }, {}, NULL });
}

/* --- streams and graphs --- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
    LOCKED;
    if (say(cudaSuccess))
        return say(cudaSuccess);
    *s = new cudasim_stream();
    streams.push_back(*s);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    LOCKED;
    drain(s);
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i] == s)
            streams.erase(streams.begin() + (ptrdiff_t)i);
    delete s;
    return say(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    LOCKED;
    if (s->capture)
        return say(cudaErrorStreamCaptureUnsupported);
    drain(s);
    return say(cudaSuccess);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    LOCKED;
    if (!say(cudaSuccess))
        s->capture = new cudasim_graph();
    return say(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    LOCKED;
    *graph = s->capture;
    s->capture = NULL;
    return say(*graph ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    LOCKED;
    if (is_fault(GRAPH))
        return say(cudaErrorMemoryAllocation);
    *exec = new cudasim_graph(*graph);
    return say(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    LOCKED;
    for (auto &w : exec->works)
        (void)add(s, w);
    return say(cudaSuccess);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

/* --- kernels --- */

/* Shared memory that a block may have (CUDA programming guide, compute capabilities). */
static int shared_max()
{
    switch (setting("PLUMB_CUDASIM_ARCH", 90)) {
    case 80:
        return 163 * 1024;
    case 86:
    case 89:
    case 120:
        return 99 * 1024;
    default:
        return 227 * 1024;
    }
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attr, int value)
{
    LOCKED;
    if (attr == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value > shared_max())
            return say(cudaErrorInvalidValue);
        shared_of[kernel] = value;
    }
    return say(cudaSuccess);
}

cudaError_t cudasim_launch(const cudaLaunchConfig_t &cfg, const void *kernel,
                           std::function<void()> body)
{
    LOCKED;
    dim3 g = cfg.gridDim, b = cfg.blockDim;
    size_t shared = cfg.dynamicSmemBytes;
    auto asked = shared_of.find(kernel);
    size_t most = asked == shared_of.end() ? SHARED_PLAIN : (size_t)asked->second;
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.y > 65535 || g.z > 65535 || b.x * b.y * b.z == 0 ||
        b.x * b.y * b.z > 1024 || b.z > 64 || (shared > SHARED_PLAIN && shared > most))
        return say(cudaErrorInvalidValue);
    if (is_fault(LAUNCH))
        return say(cudaErrorLaunchOutOfResources);
    if (setting("PLUMB_CUDASIM_ARCH", 90) == ARCH_NONE)
        return say(cudaErrorNoKernelImageForDevice);
    return add(cfg.stream, { NULL, { kernel, g, b, shared, std::move(body) }, NULL });
}
