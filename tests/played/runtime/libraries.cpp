// The driver, cuBLAS and cuBLASLt: handles, and time on the stream that was set.
#include "played.h"

#include <string.h>

#include <algorithm>
#include <set>

using namespace played;
#define DRIVER EXPORTED CUresult
#define LOCKED std::lock_guard<std::recursive_mutex> lock(all)

// the driver, which triton and torch ask by name

DRIVER cuInit(unsigned) { return CUDA_SUCCESS; }
DRIVER cuDriverGetVersion(int *out) { *out = 13000; return CUDA_SUCCESS; }
DRIVER cuDeviceGet(CUdevice *out, int device) { *out = device; return CUDA_SUCCESS; }
DRIVER cuDeviceGetCount(int *out) { *out = devices; return CUDA_SUCCESS; }
DRIVER cuDeviceGetAttribute(int *out, CUdevice_attribute which, CUdevice device) { return (CUresult)cudaDeviceGetAttribute(out, (cudaDeviceAttr)which, device); }
DRIVER cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) { *flags = 0; *active = has_context(device); return CUDA_SUCCESS; }
DRIVER cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    int before = current;
    current = device;
    cudaError_t error = enter("cuDevicePrimaryCtxRetain");
    current = before;
    *out = (CUcontext)(intptr_t)(0x100 + device);
    return (CUresult)error;
}
DRIVER cuCtxGetCurrent(CUcontext *out) { *out = has_context(current) ? (CUcontext)(intptr_t)(0x100 + current) : nullptr; return CUDA_SUCCESS; }
DRIVER cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }
DRIVER cuCtxGetLimit(size_t *out, CUlimit) { *out = 1 << 10; return CUDA_SUCCESS; }
DRIVER cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }
DRIVER cuCtxGetDevice(CUdevice *out) { *out = current; return CUDA_SUCCESS; }
DRIVER cuGetErrorString(CUresult, const char **out) { *out = "played error"; return CUDA_SUCCESS; }
DRIVER cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) { return (CUresult)cudaThreadExchangeStreamCaptureMode((cudaStreamCaptureMode *)mode); }
DRIVER cuGetProcAddress_v2(const char *, void **out, int, cuuint64_t, CUdriverProcAddressQueryResult *found) {
    *out = nullptr;
    if (found) *found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}
DRIVER cuModuleLoad(CUmodule *out, const char *) { *out = (CUmodule)0x50; return CUDA_SUCCESS; }
DRIVER cuModuleLoadData(CUmodule *out, const void *) { *out = (CUmodule)0x50; return CUDA_SUCCESS; }
DRIVER cuModuleGetFunction(CUfunction *out, CUmodule, const char *name) {
    static std::set<std::string> names;  // a function is its name
    LOCKED;
    *out = (CUfunction)names.insert(name).first->c_str();
    return CUDA_SUCCESS;
}
DRIVER cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
DRIVER cuFuncGetAttribute(int *out, CUfunction_attribute, CUfunction) { *out = 0; return CUDA_SUCCESS; }
DRIVER cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
DRIVER cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }
DRIVER cuOccupancyMaxActiveClusters(int *out, CUfunction, const CUlaunchConfig *) { *out = 1; return CUDA_SUCCESS; }
DRIVER cuPointerGetAttribute(void *out, CUpointer_attribute which, CUdeviceptr pointer) { if (which == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) *(CUdeviceptr *)out = pointer; return CUDA_SUCCESS; }
static CUresult run(CUfunction kernel, dim3 grid, dim3 block, size_t shared, CUstream on) {
    return (CUresult)launch("cuLaunchKernel", (cudaStream_t)on, kernel_ns, {Seen::KERNEL, (const char *)kernel, grid, block, shared});
}
DRIVER cuLaunchKernel(CUfunction kernel, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared, CUstream on, void **, void **) { return run(kernel, {x, y, z}, {bx, by, bz}, shared, on); }
DRIVER cuLaunchKernelEx(const CUlaunchConfig *how, CUfunction kernel, void **, void **) {
    return run(kernel, {how->gridDimX, how->gridDimY, how->gridDimZ}, {how->blockDimX, how->blockDimY, how->blockDimZ}, how->sharedMemBytes, how->hStream);
}

// cuBLAS

static thread_local cudaStream_t set_stream;
static int handle() { return enter("cublasCreate") ? 1 : 0; }
static int multiply(cudaStream_t on) { return launch("gemm", on, 5 * kernel_ns, {Seen::KERNEL, "played_gemm"}) ? 13 : 0; }
#define HANDLE(name) EXPORTED int name(void **out) { *out = (void *)0x30; return handle(); }
#define GEMM(name) EXPORTED int name(...) { return multiply(set_stream); }
#define NOTHING(name) EXPORTED int name(...) { return 0; }
#define OBJECT(name) EXPORTED int name(void **out, ...) { *out = calloc(1, 256); return 0; }
HANDLE(cublasCreate_v2) HANDLE(cublasLtCreate)
EXPORTED int cublasSetStream_v2(void *, cudaStream_t on) { set_stream = on; return 0; }
EXPORTED int cublasGetStream_v2(void *, cudaStream_t *out) { *out = set_stream; return 0; }
GEMM(cublasSgemm_v2) GEMM(cublasDgemm_v2) GEMM(cublasGemmEx) GEMM(cublasSgemmEx) GEMM(cublasGemmStridedBatchedEx)
GEMM(cublasSgemmStridedBatched) GEMM(cublasSgemv_v2) GEMM(cublasSdot_v2) GEMM(cublasDotEx)
NOTHING(cublasSetWorkspace_v2) NOTHING(cublasSetMathMode) NOTHING(cublasGetMathMode) NOTHING(cublasSetPointerMode_v2)
NOTHING(cublasGetPointerMode_v2) NOTHING(cublasDestroy_v2) NOTHING(cublasSetSmCountTarget)

OBJECT(cublasLtMatmulDescCreate) OBJECT(cublasLtMatrixLayoutCreate) OBJECT(cublasLtMatmulPreferenceCreate)
NOTHING(cublasLtMatmulDescInit_internal) NOTHING(cublasLtMatmulDescSetAttribute) NOTHING(cublasLtMatrixLayoutInit_internal)
NOTHING(cublasLtMatrixLayoutSetAttribute) NOTHING(cublasLtMatmulPreferenceInit_internal)
NOTHING(cublasLtMatmulPreferenceSetAttribute) NOTHING(cublasLtMatmulDescDestroy) NOTHING(cublasLtMatrixLayoutDestroy)
NOTHING(cublasLtMatmulPreferenceDestroy)
EXPORTED int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, void *result, int *found) { memset(result, 0, 64); *found = 1; return 0; }
EXPORTED int cublasLtMatmul(void *, void *, const void *, const void *, void *, const void *, void *, const void *, const void *, void *, void *, void *, const void *, void *, size_t, cudaStream_t on) { return multiply(on); }
