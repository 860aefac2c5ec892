// The part of the CUDA runtime's public API that CuPy's runtime module calls, implemented with the driver's
// public API only. For other functions that CuPy links, engine/software_gpu/process_environment.py adds
// definitions that print their name and return cudaErrorNotSupported.
#include <cuda.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <map>

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int chosen_device = 0;

// Error codes are the driver's. cudaErrorNotReady is not kept as the last error.
cudaError_t keep(int code) {
    const auto error = static_cast<cudaError_t>(code);
    if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
    return error;
}

// A runtime works with drivers of its own major version or newer (CUDA Compatibility, minor version
// compatibility).
CUresult start() {
    int version = 0;
    if (const CUresult failed = cuDriverGetVersion(&version)) return failed;
    if (version / 1000 < CUPY_CUDA_BUILD_VERSION / 1000) return static_cast<CUresult>(cudaErrorInsufficientDriver);
    return cuInit(0);
}

// Makes the primary context of this thread's device current; retains it once.
CUresult make_current() {
    if (const CUresult failed = start()) return failed;
    CUcontext context = nullptr;
    if (const CUresult failed = cuCtxGetCurrent(&context)) return failed;
    if (context) return CUDA_SUCCESS;
    if (const CUresult failed = cuDevicePrimaryCtxRetain(&context, chosen_device)) return failed;
    return cuCtxSetCurrent(context);
}

template <typename Call>
cudaError_t on_device(Call call) {
    const CUresult failed = make_current();
    return keep(failed ? failed : call());
}

CUdeviceptr at(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

}  // namespace

extern "C" {

int software_gpu_missing(const char* name) {
    std::fprintf(stderr, "software GPU: %s is not implemented: the call returns cudaErrorNotSupported.\n", name);
    return keep(cudaErrorNotSupported);
}

// ---- errors ----

cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
#define NAMED(name) {name, #name}
    static const std::map<int, const char*> names = {
        NAMED(cudaSuccess), NAMED(cudaErrorInvalidValue), NAMED(cudaErrorMemoryAllocation), NAMED(cudaErrorInitializationError),
        NAMED(cudaErrorInvalidConfiguration), NAMED(cudaErrorInsufficientDriver), NAMED(cudaErrorDevicesUnavailable), NAMED(cudaErrorNoDevice), NAMED(cudaErrorInvalidDevice),
        NAMED(cudaErrorInvalidKernelImage), NAMED(cudaErrorDeviceUninitialized), NAMED(cudaErrorNoKernelImageForDevice), NAMED(cudaErrorInvalidPtx),
        NAMED(cudaErrorFileNotFound), NAMED(cudaErrorInvalidResourceHandle), NAMED(cudaErrorIllegalState), NAMED(cudaErrorSymbolNotFound),
        NAMED(cudaErrorNotReady), NAMED(cudaErrorIllegalAddress), NAMED(cudaErrorLaunchOutOfResources), NAMED(cudaErrorLaunchTimeout),
        NAMED(cudaErrorContextIsDestroyed), NAMED(cudaErrorAssert), NAMED(cudaErrorHostMemoryAlreadyRegistered), NAMED(cudaErrorHostMemoryNotRegistered),
        NAMED(cudaErrorIllegalInstruction), NAMED(cudaErrorMisalignedAddress), NAMED(cudaErrorInvalidAddressSpace), NAMED(cudaErrorInvalidPc),
        NAMED(cudaErrorLaunchFailure), NAMED(cudaErrorCooperativeLaunchTooLarge), NAMED(cudaErrorNotSupported), NAMED(cudaErrorStreamCaptureUnsupported),
        NAMED(cudaErrorStreamCaptureInvalidated), NAMED(cudaErrorStreamCaptureUnmatched), NAMED(cudaErrorStreamCaptureUnjoined),
        NAMED(cudaErrorStreamCaptureIsolation), NAMED(cudaErrorStreamCaptureImplicit), NAMED(cudaErrorCapturedEvent), NAMED(cudaErrorInvalidClusterSize),
    };
#undef NAMED
    const auto found = names.find(error);
    return found == names.end() ? "cudaErrorUnknown" : found->second;
}

const char* cudaGetErrorString(cudaError_t error) {
    const char* text = nullptr;
    return cuGetErrorString(static_cast<CUresult>(error), &text) == CUDA_SUCCESS ? text : "unknown error";
}

// ---- versions and devices ----

cudaError_t cudaDriverGetVersion(int* version) { return keep(cuDriverGetVersion(version)); }
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUPY_CUDA_BUILD_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
    const CUresult failed = start();
    return keep(failed ? failed : cuDeviceGetCount(count));
}
cudaError_t cudaGetDevice(int* device) {
    return on_device([=] { return cuCtxGetDevice(device); });
}
cudaError_t cudaSetDevice(int device) {
    int count = 0;
    if (const cudaError_t failed = cudaGetDeviceCount(&count)) return failed;
    if (device < 0 || device >= count) return keep(cudaErrorInvalidDevice);
    CUcontext context = nullptr;
    chosen_device = device;
    if (const CUresult failed = cuDevicePrimaryCtxRetain(&context, device)) return keep(failed);
    return keep(cuCtxSetCurrent(context));
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
    return on_device([=] { return cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(which), device); });
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
    return on_device([=] { return cuDeviceGetPCIBusId(text, size, device); });
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* text) {
    return on_device([=] { return cuDeviceGetByPCIBusId(device, text); });
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    return on_device([=] { return cuDeviceCanAccessPeer(can, device, peer); });
}
cudaError_t cudaDeviceSynchronize() { return on_device(cuCtxSynchronize); }
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
    return on_device([=] { return cuCtxGetLimit(value, static_cast<CUlimit>(limit)); });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* out, int device) {
    if (const CUresult failed = make_current()) return keep(failed);
    std::memset(out, 0, sizeof *out);
    if (const CUresult failed = cuDeviceGetName(out->name, sizeof out->name, device)) return keep(failed);
    cuDeviceGetUuid(&out->uuid, device);
    cuDeviceTotalMem(&out->totalGlobalMem, device);
    auto fill = [&](auto& field, CUdevice_attribute which) {
        int value = 0;
        cuDeviceGetAttribute(&value, which, device);
        field = static_cast<std::remove_reference_t<decltype(field)>>(value);
    };
#define FILL(field, attribute) fill(out->field, CU_DEVICE_ATTRIBUTE_##attribute);
    FILL(major, COMPUTE_CAPABILITY_MAJOR)
    FILL(minor, COMPUTE_CAPABILITY_MINOR)
    FILL(multiProcessorCount, MULTIPROCESSOR_COUNT)
    FILL(warpSize, WARP_SIZE)
    FILL(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK)
    FILL(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR)
    FILL(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR)
    FILL(maxThreadsDim[0], MAX_BLOCK_DIM_X)
    FILL(maxThreadsDim[1], MAX_BLOCK_DIM_Y)
    FILL(maxThreadsDim[2], MAX_BLOCK_DIM_Z)
    FILL(maxGridSize[0], MAX_GRID_DIM_X)
    FILL(maxGridSize[1], MAX_GRID_DIM_Y)
    FILL(maxGridSize[2], MAX_GRID_DIM_Z)
    FILL(regsPerBlock, MAX_REGISTERS_PER_BLOCK)
    FILL(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR)
    FILL(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK)
    FILL(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)
    FILL(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)
    FILL(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK)
    FILL(totalConstMem, TOTAL_CONSTANT_MEMORY)
    FILL(memPitch, MAX_PITCH)
    FILL(l2CacheSize, L2_CACHE_SIZE)
    FILL(textureAlignment, TEXTURE_ALIGNMENT)
    FILL(texturePitchAlignment, TEXTURE_PITCH_ALIGNMENT)
    FILL(canMapHostMemory, CAN_MAP_HOST_MEMORY)
    FILL(concurrentKernels, CONCURRENT_KERNELS)
    FILL(unifiedAddressing, UNIFIED_ADDRESSING)
    FILL(managedMemory, MANAGED_MEMORY)
    FILL(asyncEngineCount, ASYNC_ENGINE_COUNT)
    FILL(cooperativeLaunch, COOPERATIVE_LAUNCH)
    FILL(clusterLaunch, CLUSTER_LAUNCH)
    FILL(pciBusID, PCI_BUS_ID)
    FILL(pciDeviceID, PCI_DEVICE_ID)
    FILL(pciDomainID, PCI_DOMAIN_ID)
#undef FILL
    return cudaSuccess;
}

// ---- memory ----

cudaError_t cudaMalloc(void** out, size_t size) {
    *out = nullptr;
    return on_device([=] { return size ? cuMemAlloc(reinterpret_cast<CUdeviceptr*>(out), size) : CUDA_SUCCESS; });
}
cudaError_t cudaMallocManaged(void** out, size_t size, unsigned flags) {
    return on_device([=] { return cuMemAllocManaged(reinterpret_cast<CUdeviceptr*>(out), size, flags); });
}
cudaError_t cudaMallocAsync(void** out, size_t size, cudaStream_t stream) {
    return on_device([=] { return cuMemAllocAsync(reinterpret_cast<CUdeviceptr*>(out), size, stream); });
}
cudaError_t cudaMallocFromPoolAsync(void** out, size_t size, cudaMemPool_t pool, cudaStream_t stream) {
    return on_device([=] { return cuMemAllocFromPoolAsync(reinterpret_cast<CUdeviceptr*>(out), size, pool, stream); });
}
cudaError_t cudaFree(void* p) {
    return on_device([=] { return cuMemFree(at(p)); });
}
cudaError_t cudaFreeAsync(void* p, cudaStream_t stream) {
    return on_device([=] { return cuMemFreeAsync(at(p), stream); });
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    return on_device([=] { return cuDeviceGetDefaultMemPool(pool, device); });
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) { return cudaDeviceGetDefaultMemPool(pool, device); }
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    return on_device([=] { return cuDeviceSetMemPool(device, pool); });
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
    return on_device([=] { return cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(which), value); });
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t size) {
    return on_device([=] { return cuMemPoolTrimTo(pool, size); });
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr which, void* value) {
    return on_device([=] { return cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(which), value); });
}
cudaError_t cudaHostAlloc(void** out, size_t size, unsigned flags) {
    return on_device([=] { return cuMemHostAlloc(out, size, flags); });
}
cudaError_t cudaFreeHost(void* p) {
    return on_device([=] { return cuMemFreeHost(p); });
}
cudaError_t cudaHostRegister(void* p, size_t size, unsigned flags) {
    return on_device([=] { return cuMemHostRegister(p, size, flags); });
}
cudaError_t cudaHostUnregister(void* p) {
    return on_device([=] { return cuMemHostUnregister(p); });
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
    return on_device([=] { return cuMemGetInfo(available, total); });
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
    return on_device([=] { return cuMemcpy(at(to), at(from), size); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
    return on_device([=] { return cuMemcpyAsync(at(to), at(from), size, stream); });
}
cudaError_t cudaMemset(void* to, int value, size_t size) {
    return on_device([=] { return cuMemsetD8(at(to), static_cast<unsigned char>(value), size); });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
    return on_device([=] { return cuMemsetD8Async(at(to), static_cast<unsigned char>(value), size, stream); });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
    std::memset(out, 0, sizeof *out);
    if (const CUresult failed = make_current()) return keep(failed);
    unsigned kind = 0, managed = 0;
    if (cuPointerGetAttribute(&kind, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at(p))) {
        out->type = cudaMemoryTypeUnregistered;  // plain host memory: no error since CUDA 11
        return cudaSuccess;
    }
    cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at(p));
    cuPointerGetAttribute(&out->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at(p));
    out->type = managed ? cudaMemoryTypeManaged : kind == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    out->devicePointer = const_cast<void*>(p);
    if (out->type != cudaMemoryTypeDevice) out->hostPointer = const_cast<void*>(p);
    return cudaSuccess;
}

// ---- streams and events ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
    return on_device([=] { return cuStreamCreateWithPriority(out, flags, priority); });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) { return cudaStreamCreateWithPriority(out, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* out) { return cudaStreamCreateWithPriority(out, 0, 0); }
// A function that takes a stream or an event, and its other parameters.
#define FORWARD(name, driver_name, parameters, ...) \
    cudaError_t name parameters { \
        return on_device([=] { return driver_name(__VA_ARGS__); }); \
    }
FORWARD(cudaStreamGetFlags, cuStreamGetFlags, (cudaStream_t s, unsigned* flags), s, flags)
FORWARD(cudaStreamGetPriority, cuStreamGetPriority, (cudaStream_t s, int* priority), s, priority)
FORWARD(cudaStreamDestroy, cuStreamDestroy, (cudaStream_t s), s)
FORWARD(cudaStreamSynchronize, cuStreamSynchronize, (cudaStream_t s), s)
FORWARD(cudaStreamQuery, cuStreamQuery, (cudaStream_t s), s)
FORWARD(cudaStreamWaitEvent, cuStreamWaitEvent, (cudaStream_t s, cudaEvent_t e, unsigned flags), s, e, flags)
FORWARD(cudaStreamAddCallback, cuStreamAddCallback, (cudaStream_t s, cudaStreamCallback_t f, void* data, unsigned flags), s, reinterpret_cast<CUstreamCallback>(f), data, flags)
FORWARD(cudaLaunchHostFunc, cuLaunchHostFunc, (cudaStream_t s, cudaHostFn_t f, void* data), s, f, data)
FORWARD(cudaStreamBeginCapture, cuStreamBeginCapture, (cudaStream_t s, cudaStreamCaptureMode mode), s, static_cast<CUstreamCaptureMode>(mode))
FORWARD(cudaStreamEndCapture, cuStreamEndCapture, (cudaStream_t s, cudaGraph_t* graph), s, graph)
FORWARD(cudaStreamIsCapturing, cuStreamIsCapturing, (cudaStream_t s, cudaStreamCaptureStatus* status), s, reinterpret_cast<CUstreamCaptureStatus*>(status))
FORWARD(cudaEventCreateWithFlags, cuEventCreate, (cudaEvent_t* e, unsigned flags), e, flags)
FORWARD(cudaEventCreate, cuEventCreate, (cudaEvent_t* e), e, 0u)
FORWARD(cudaEventDestroy, cuEventDestroy, (cudaEvent_t e), e)
FORWARD(cudaEventQuery, cuEventQuery, (cudaEvent_t e), e)
FORWARD(cudaEventRecord, cuEventRecord, (cudaEvent_t e, cudaStream_t s), e, s)
FORWARD(cudaEventSynchronize, cuEventSynchronize, (cudaEvent_t e), e)
FORWARD(cudaEventElapsedTime, cuEventElapsedTime, (float* ms, cudaEvent_t begin, cudaEvent_t end), ms, begin, end)
FORWARD(cudaGraphDestroy, cuGraphDestroy, (cudaGraph_t g), g)
FORWARD(cudaGraphExecDestroy, cuGraphExecDestroy, (cudaGraphExec_t g), g)
FORWARD(cudaGraphInstantiate, cuGraphInstantiateWithFlags, (cudaGraphExec_t* out, cudaGraph_t g, unsigned long long flags), out, g, flags)
FORWARD(cudaGraphLaunch, cuGraphLaunch, (cudaGraphExec_t g, cudaStream_t s), g, s)
FORWARD(cudaGraphUpload, cuGraphUpload, (cudaGraphExec_t g, cudaStream_t s), g, s)
#undef FORWARD

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
