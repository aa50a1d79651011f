// The CUDA runtime: devices, contexts, memory, copies, kernels, streams and events.
//
// The rules that it keeps, and reports where they are broken: a context belongs to a process and a device, and is made by
// the first call that needs one; a forked child can use none of its parent's; an event is recorded on its own device.
// PLAYED_DEVICES, PLAYED_KERNEL_NS and PLAYED_MEMORY_MB (of each device) set the stage.  PLAYED_CONTEXT_LOCK=1: whoever
// synchronises keeps others out of the context meanwhile, as a busy driver may.
#include "played.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#undef cudaGetDeviceProperties
#undef cudaStreamGetCaptureInfo

namespace played {

const Setting devices{"PLAYED_DEVICES", 2}, kernel_ns{"PLAYED_KERNEL_NS", 20000};
static const Setting memory{"PLAYED_MEMORY_MB", 80L << 10, 20}, context_lock{"PLAYED_CONTEXT_LOCK", 0};
thread_local int current = 0;
static thread_local bool chosen = false;
static thread_local cudaError_t last = cudaSuccess;
static bool contexts[64];
static pid_t made_in = 0;
static std::timed_mutex driver;
static Stream legacy[64];
static std::vector<Stream *> made;  // never freed
static size_t used[64];
static std::map<void *, std::pair<size_t, int>> allocated;

cudaError_t failed(cudaError_t error) {
    if (error) last = error;
    return error;
}

bool has_context(int device) { return contexts[device] && made_in == getpid(); }

static bool forked() { return made_in && made_in != getpid(); }

cudaError_t enter(const char *call) {
    count(call);
    if (forked()) {
        report("fork", call, "in a forked child");
        return failed(cudaErrorInitializationError);
    }
    if (!contexts[current]) {
        contexts[current] = true;
        made_in = getpid();
        report("context", call, "on device " + std::to_string(current) + (chosen ? "" : ", which this thread has not set"));
    }
    if (context_lock) std::lock_guard<std::timed_mutex> lock(driver);
    return cudaSuccess;
}

Stream *stream(cudaStream_t handle) {
    if (handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread) return (Stream *)handle;
    legacy[current].device = current;
    return &legacy[current];
}

cudaError_t launch(const char *call, cudaStream_t handle, ns duration, const Seen &seen, std::function<void()> action) {
    ToldCall told(call);
    if (cudaError_t error = enter(call)) return error;
    std::lock_guard<std::recursive_mutex> lock(all);
    Stream &on = *stream(handle);
    if (!captured(on, duration, seen, nullptr, action)) see(seen, on, issue(on, duration, {}, nullptr, action));
    return cudaSuccess;
}

static bool on_a_device(const void *memory) {
    auto after = allocated.upper_bound((void *)memory);
    return after != allocated.begin() && (char *)memory < (char *)std::prev(after)->first + std::prev(after)->second.first;
}

// In the order of the stream.  What comes from the host is read at once, for it may be pageable and change; what goes
// there waits for its end, as with pageable memory.
static cudaError_t copy(const char *call, void *to, const void *from, size_t size, cudaStream_t handle) {
    ToldCall told(call);
    std::unique_lock<std::recursive_mutex> lock(all);
    bool comes = !on_a_device(from), goes = !on_a_device(to), captures = bool(stream(handle)->capture);
    std::function<void()> action = [=] { memmove(to, from, size); };
    if (comes && !captures && !stream(handle)->unknown.empty()) {
        auto read = std::make_shared<std::string>((const char *)from, size);
        action = [=] { memcpy(to, read->data(), size); };
    }
    cudaError_t error = launch(call, handle, kernel_ns / 4, {Seen::COPY, "", 1, 1, 0, size, !comes, !goes}, action);
    When end = tail(*stream(handle));
    lock.unlock();
    if (goes && !captures && !error) wait_for(end);
    return error;
}

static cudaError_t synchronize(const char *call, const std::vector<Stream *> &streams) {
    ToldCall told(call);
    if (cudaError_t error = unsafe(call)) return error;
    std::unique_lock<std::timed_mutex> keeping(driver, std::defer_lock);
    if (context_lock) keeping.lock();
    std::vector<When> ends;
    {
        std::lock_guard<std::recursive_mutex> lock(all);
        for (Stream *each : streams) ends.push_back(tail(*each));
    }
    for (When &each : ends) wait_for(each);
    return cudaSuccess;
}

static std::vector<Stream *> streams_of(int device) {
    std::lock_guard<std::recursive_mutex> lock(all);
    std::vector<Stream *> found = {&legacy[device]};
    std::copy_if(made.begin(), made.end(), std::back_inserter(found), [=](Stream *each) { return each->device == device; });
    return found;
}

static cudaError_t allocate(const char *call, void **out, size_t size) {
    if (cudaError_t error = enter(call)) return error;
    if (cudaError_t error = unsafe(call)) return error;
    std::lock_guard<std::recursive_mutex> lock(all);
    if (used[current] + size > (size_t)memory) return failed(cudaErrorMemoryAllocation);
    *out = mmap(nullptr, std::max<size_t>(size, 1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*out == MAP_FAILED) return failed(cudaErrorMemoryAllocation);
    allocated[*out] = {size, current};
    used[current] += size;
    return cudaSuccess;
}

static cudaError_t give_back(const char *call, void *memory) {
    if (cudaError_t error = enter(call)) return error;
    if (!memory) return cudaSuccess;
    if (cudaError_t error = unsafe(call)) return error;
    for (int device = 0; device < devices; ++device)  // it waits for the device
        if (contexts[device]) synchronize(call, {&legacy[device]});
    std::lock_guard<std::recursive_mutex> lock(all);
    auto found = allocated.find(memory);
    if (found == allocated.end()) return failed(cudaErrorInvalidValue);
    munmap(memory, std::max<size_t>(found->second.first, 1));
    used[found->second.second] -= found->second.first;
    allocated.erase(found);
    return cudaSuccess;
}

static cudaError_t properties(cudaDeviceProp *out, int device) {
    memset(out, 0, sizeof *out);
    strcpy(out->name, "Played H100");
    memset(out->uuid.bytes, 0x10 + device, 16);
    out->totalGlobalMem = memory;
    out->sharedMemPerBlock = 49152;
    out->sharedMemPerMultiprocessor = 233472;
    out->sharedMemPerBlockOptin = 232448;
    out->regsPerBlock = out->regsPerMultiprocessor = out->totalConstMem = 65536;
    out->warpSize = 32;
    out->maxThreadsPerBlock = out->maxThreadsDim[0] = out->maxThreadsDim[1] = 1024;
    out->maxThreadsDim[2] = 64;
    out->maxGridSize[0] = INT32_MAX;
    out->maxGridSize[1] = out->maxGridSize[2] = 65535;
    out->major = 9;
    out->multiProcessorCount = 132;
    out->maxThreadsPerMultiProcessor = 2048;
    out->maxBlocksPerMultiProcessor = 32;
    out->l2CacheSize = 50 << 20;
    out->concurrentKernels = out->unifiedAddressing = 1;
    out->asyncEngineCount = 3;
    out->pciBusID = device + 1;
    out->textureAlignment = 512;
    out->memPitch = INT32_MAX;
    return cudaSuccess;
}

static int attribute(int which) {
    switch (which) {
        case cudaDevAttrMaxThreadsPerBlock: return 1024;
        case cudaDevAttrMaxSharedMemoryPerBlock: return 49152;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 232448;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
        case cudaDevAttrWarpSize: return 32;
        case cudaDevAttrMaxRegistersPerBlock:
        case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
        case cudaDevAttrMultiProcessorCount: return 132;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
        case cudaDevAttrComputeCapabilityMajor: return 9;
        case cudaDevAttrComputeCapabilityMinor: return 0;
        case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
        default: return 1;
    }
}

}  // namespace played

using namespace played;
#define CUDA EXPORTED cudaError_t
#define LOCKED std::lock_guard<std::recursive_mutex> lock(all)
#define ENTER(call) if (cudaError_t error = enter(call)) return error
#define NOTHING(call, ...) CUDA call(__VA_ARGS__) { return cudaSuccess; }

// devices

CUDA cudaGetDeviceCount(int *out) { *out = devices; return cudaSuccess; }
CUDA cudaGetDevice(int *out) {
    if (forked()) return failed(cudaErrorInitializationError);
    *out = current;
    return cudaSuccess;
}
CUDA cudaSetDevice(int device) {
    if (device < 0 || device >= devices) return failed(cudaErrorInvalidDevice);
    current = device;
    chosen = true;
    return enter("cudaSetDevice");  // since CUDA 12 it makes the context
}
CUDA cudaGetLastError() { cudaError_t found = last; last = cudaSuccess; return found; }
CUDA cudaPeekAtLastError() { return last; }
EXPORTED const char *cudaGetErrorName(cudaError_t) { return "cudaErrorPlayed"; }
EXPORTED const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInitializationError: return "initialization error";
        case cudaErrorNotReady: return "device not ready";
        default: return "played error";
    }
}
CUDA cudaDriverGetVersion(int *out) { *out = 13000; return cudaSuccess; }
CUDA cudaRuntimeGetVersion(int *out) { *out = 13000; return cudaSuccess; }
CUDA cudaGetDeviceProperties(cudaDeviceProp *out, int device) { return properties(out, device); }
CUDA cudaGetDeviceProperties_v2(cudaDeviceProp *out, int device) { return properties(out, device); }
CUDA cudaDeviceGetAttribute(int *out, cudaDeviceAttr which, int) { *out = attribute(which); return cudaSuccess; }
CUDA cudaDeviceGetPCIBusId(char *out, int room, int device) { snprintf(out, room, "0000:%02x:00.0", device + 1); return cudaSuccess; }
CUDA cudaDeviceCanAccessPeer(int *out, int, int) { *out = 0; return cudaSuccess; }
CUDA cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { ENTER("cudaDeviceGetStreamPriorityRange"); *least = 0; *greatest = -5; return cudaSuccess; }
CUDA cudaDeviceSynchronize() { ENTER("cudaDeviceSynchronize"); return synchronize("cudaDeviceSynchronize", streams_of(current)); }
NOTHING(cudaProfilerStart) NOTHING(cudaProfilerStop)

// memory

CUDA cudaMemGetInfo(size_t *left, size_t *total) { ENTER("cudaMemGetInfo"); LOCKED; *total = memory; *left = memory - used[current]; return cudaSuccess; }
CUDA cudaMalloc(void **out, size_t size) { return allocate("cudaMalloc", out, size); }
CUDA cudaFree(void *memory) { return give_back("cudaFree", memory); }
static cudaError_t on_host(const char *call, void **out, size_t size) { ENTER(call); *out = aligned_alloc(4096, (size / 4096 + 1) * 4096); return cudaSuccess; }
CUDA cudaMallocHost(void **out, size_t size) { return on_host("cudaMallocHost", out, size); }
CUDA cudaHostAlloc(void **out, size_t size, unsigned) { return on_host("cudaHostAlloc", out, size); }
CUDA cudaFreeHost(void *memory) { free(memory); return cudaSuccess; }
NOTHING(cudaHostRegister, void *, size_t, unsigned) NOTHING(cudaHostUnregister, void *)
CUDA cudaPointerGetAttributes(cudaPointerAttributes *out, const void *) { memset(out, 0, sizeof *out); out->type = cudaMemoryTypeUnregistered; return cudaSuccess; }
CUDA cudaGetSymbolAddress(void **out, const void *) { static char place[4096]; *out = place; return cudaSuccess; }
NOTHING(cudaMemcpyToSymbol, const void *, const void *, size_t, size_t, cudaMemcpyKind)
CUDA cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind, cudaStream_t on) { return copy("cudaMemcpyAsync", to, from, size, on); }
CUDA cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind) {
    ToldCall told("cudaMemcpy");
    cudaError_t error = copy("cudaMemcpy", to, from, size, nullptr);
    return error ? error : synchronize("cudaMemcpy", {stream(nullptr)});
}
CUDA cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t size, cudaStream_t on) { return copy("cudaMemcpyPeerAsync", to, from, size, on); }
CUDA cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t on) { return launch("cudaMemsetAsync", on, kernel_ns / 4, {Seen::SET, "", 1, 1, 0, size}, [=] { memset(to, value, size); }); }
CUDA cudaMemset(void *to, int value, size_t size) { return cudaMemsetAsync(to, value, size, nullptr); }

// kernels

static thread_local struct { dim3 grid, block; size_t shared; void *stream; } pushed;
EXPORTED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *on) { pushed = {grid, block, shared, on}; return 0; }
CUDA __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *on) { *grid = pushed.grid; *block = pushed.block; *shared = pushed.shared; *(void **)on = pushed.stream; return cudaSuccess; }
static std::unordered_map<const void *, const char *> &names() { static std::unordered_map<const void *, const char *> kept; return kept; }  // of kernels
static cudaError_t run(const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t on) {
    auto found = names().find(kernel);
    return launch("cudaLaunchKernel", on, kernel_ns, {Seen::KERNEL, found == names().end() ? "kernel" : found->second, grid, block, shared});
}
CUDA cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **, size_t shared, cudaStream_t on) { return run(kernel, grid, block, shared, on); }
CUDA __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **, size_t shared, cudaStream_t on) { return run(kernel, grid, block, shared, on); }
CUDA cudaLaunchCooperativeKernel(const void *kernel, dim3 grid, dim3 block, void **, size_t shared, cudaStream_t on) { return run(kernel, grid, block, shared, on); }
CUDA cudaLaunchKernelExC(const cudaLaunchConfig_t *how, const void *kernel, void **) { return run(kernel, how->gridDim, how->blockDim, how->dynamicSmemBytes, how->stream); }
CUDA __cudaGetKernel(void **out, const void *function) { *out = (void *)function; return cudaSuccess; }
CUDA cudaFuncGetAttributes(cudaFuncAttributes *out, const void *) { memset(out, 0, sizeof *out); out->maxThreadsPerBlock = 1024; out->numRegs = 32; out->binaryVersion = out->ptxVersion = 90; return cudaSuccess; }
NOTHING(cudaFuncSetAttribute, const void *, cudaFuncAttribute, int)
CUDA cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *, int, size_t) { *out = 2; return cudaSuccess; }
CUDA cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, const void *, int, size_t, unsigned) { *out = 2; return cudaSuccess; }
EXPORTED void **__cudaRegisterFatBinary(void *) { static void *handle; return &handle; }
EXPORTED void __cudaRegisterFatBinaryEnd(void **) {}
EXPORTED void __cudaUnregisterFatBinary(void **) {}
EXPORTED void __cudaRegisterFunction(void **, const char *kernel, char *, const char *name, int, void *, void *, void *, void *, int *) { names()[kernel] = name; }
EXPORTED void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
EXPORTED char __cudaInitModule(void **) { return 1; }
static cudaError_t no_entry(void **out, cudaDriverEntryPointQueryResult *found) { *out = nullptr; if (found) *found = cudaDriverEntryPointSymbolNotFound; return cudaSuccess; }
CUDA cudaGetDriverEntryPoint(const char *, void **out, unsigned long long, cudaDriverEntryPointQueryResult *found) { return no_entry(out, found); }
CUDA cudaGetDriverEntryPointByVersion(const char *, void **out, unsigned, unsigned long long, cudaDriverEntryPointQueryResult *found) { return no_entry(out, found); }

// streams

CUDA cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int) {
    ENTER("cudaStreamCreate");
    LOCKED;
    made.push_back(new Stream);
    made.back()->device = current;
    made.back()->flags = flags;
    made.back()->number = 12 + made.size();
    *out = (cudaStream_t)made.back();
    return cudaSuccess;
}
CUDA cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) { return cudaStreamCreateWithPriority(out, flags, 0); }
CUDA cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithPriority(out, 0, 0); }
CUDA cudaStreamDestroy(cudaStream_t) { return enter("cudaStreamDestroy"); }
CUDA cudaStreamGetPriority(cudaStream_t, int *out) { *out = 0; return cudaSuccess; }
CUDA cudaStreamSynchronize(cudaStream_t on) { ENTER("cudaStreamSynchronize"); return synchronize("cudaStreamSynchronize", {stream(on)}); }
CUDA cudaStreamQuery(cudaStream_t on) {
    ENTER("cudaStreamQuery");
    if (cudaError_t error = unsafe("cudaStreamQuery")) return error;
    LOCKED;
    return over(tail(*stream(on))) ? cudaSuccess : failed(cudaErrorNotReady);
}
CUDA cudaLaunchHostFunc(cudaStream_t on, cudaHostFn_t function, void *data) { return launch("cudaLaunchHostFunc", on, 0, {}, [=] { function(data); }); }
CUDA cudaStreamAddCallback(cudaStream_t on, cudaStreamCallback_t function, void *data, unsigned) { return launch("cudaStreamAddCallback", on, 0, {}, [=] { function(on, cudaSuccess, data); }); }

// What a test plants from within the job, by ctypes: a kernel on the current device that never ends, or takes so long.
EXPORTED void played_kernel(long ns) {
    ToldCall told("cudaLaunchKernel");
    LOCKED;
    see({Seen::KERNEL, "played"}, *stream(nullptr), issue(*stream(nullptr), ns < 0 ? NEVER : ns));
}
