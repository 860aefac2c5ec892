// Initialisation, devices, contexts, errors. Included by driver.cpp.

extern "C" {

CUresult cuInit(unsigned flags) {
    REQUIRE(flags == 0)
    if (const CUresult why_not = driver::check_planted(__func__)) return why_not;
    if (driver::device_count() == 0) return CUDA_ERROR_NO_DEVICE;
    std::lock_guard<std::mutex> hold(driver::lock);
    if (driver::initialised) return driver::check_started();
    driver::initialised = true;
    driver::process = getpid();
    for (int n = 0; n < driver::device_count(); n++) {
        driver::primaries.push_back(driver::contexts.add(new CUctx_st));
        driver::primaries.back()->device = n;
        driver::primaries.back()->primary = true;
    }
    return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
    REQUIRE(version)
    *version = virtual_clock::driver_version(CUDA_VERSION);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
    STARTED REQUIRE(count)
    *count = driver::device_count();
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    STARTED REQUIRE(device)
    if (!driver::is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

#define DEVICE(ordinal) \
    STARTED \
    if (!driver::is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE; \
    const Device& d = driver::device_of(ordinal);

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
    DEVICE(device) REQUIRE(name && size > 0)
    std::snprintf(name, static_cast<size_t>(size), "%s", d.name.c_str());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    DEVICE(device) REQUIRE(uuid)
    (void)d;
    std::memcpy(uuid->bytes, uuid_bytes(visible_devices()[static_cast<size_t>(device)]).data(), 16);
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice device) {
    DEVICE(device) REQUIRE(bytes)
    *bytes = static_cast<size_t>(d.memory_bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    DEVICE(device) REQUIRE(major && minor)
    *major = static_cast<int>(d.major), *minor = static_cast<int>(d.minor);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* text, int size, CUdevice device) {
    DEVICE(device) REQUIRE(text && size > 0)
    (void)d;
    std::snprintf(text, static_cast<size_t>(size), "%s", pci_bus_id(visible_devices()[static_cast<size_t>(device)]).c_str());
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
    STARTED REQUIRE(device && text)
    for (int n = 0; n < driver::device_count(); n++)
        if (!strcasecmp(text, pci_bus_id(visible_devices()[static_cast<size_t>(n)]).c_str())) {
            *device = n;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    DEVICE(device) REQUIRE(can)
    (void)d;
    if (!driver::is_device(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = 0;
    return CUDA_SUCCESS;
}

// Values are the table's, or the same on every GPU since Turing; attributes that are not listed are 0.
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
    DEVICE(device) REQUIRE(value && which > 0 && which < CU_DEVICE_ATTRIBUTE_MAX)
    auto number = [](int64_t v) { return static_cast<int>(v); };
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = number(d.threads_per_cta); break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 2147483647; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = number(d.smem_per_cta); break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = number(d.smem_optin); break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = number(d.smem_per_sm); break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = number(d.smem_reserved); break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: *value = 2147483647; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = number(d.registers_per_cta); break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = number(d.registers_per_sm); break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = number(d.clock_khz); break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: *value = 512; break;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = number(d.sms); break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = number(d.l2_bytes); break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = number(32 * d.warps_per_sm); break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = number(d.ctas_per_sm); break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = number(d.major); break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = number(d.minor); break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: *value = d.major >= 9; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = visible_devices()[static_cast<size_t>(device)] + 1; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 2; break;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED: case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED: case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM: *value = 1; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

}  // extern "C"

// ---- contexts ----

namespace driver {

void unload(CUmodule module);  // api_module.h
std::vector<CUmodule> modules_of(CUcontext context);

// Frees everything that belongs to a context, except stream-ordered allocations.
inline void clean(CUcontext context) {
    queue::wait_all(context);
    for (const CUmodule module : modules_of(context)) unload(module);
    for (const CUevent event : events.all())
        if (event->context == context) events.remove(event);
    memory::release_all(context);
    std::lock_guard<std::mutex> hold(queue::lock);
    for (auto it = captures.begin(); it != captures.end();) it = (*it)->origin->context == context ? captures.erase(it) : std::next(it);
    context->streams.clear();
}

}  // namespace driver

extern "C" {

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice device) {
    DEVICE(device) REQUIRE(out)
    (void)d;
    *out = driver::primaries[static_cast<size_t>(device)];
    (*out)->retained++;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    DEVICE(device)
    (void)d;
    CUctx_st* context = driver::primaries[static_cast<size_t>(device)];
    if (!context->retained) return CUDA_ERROR_INVALID_CONTEXT;
    if (!--context->retained) driver::clean(context);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    DEVICE(device) REQUIRE(flags && active)
    (void)d;
    *flags = 0, *active = driver::primaries[static_cast<size_t>(device)]->retained > 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* out) {
    STARTED REQUIRE(out)
    *out = driver::current();
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
    STARTED
    if (context && !driver::contexts.has(context)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!driver::stack.empty()) driver::stack.pop_back();
    if (context) driver::stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
    STARTED
    if (!driver::contexts.has(context)) return CUDA_ERROR_INVALID_CONTEXT;
    driver::stack.push_back(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext* out) {
    STARTED
    if (driver::stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    if (out) *out = driver::stack.back();
    driver::stack.pop_back();
    return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 13000
CUresult cuCtxCreate(CUcontext* out, CUctxCreateParams* parameters, unsigned flags, CUdevice device) {
    if (parameters && (parameters->numExecAffinityParams || parameters->cigParams)) return driver::missing("cuCtxCreate with parameters");
#else
CUresult cuCtxCreate(CUcontext* out, unsigned flags, CUdevice device) {
#endif
    DEVICE(device) REQUIRE(out && !(flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)))
    (void)d;
    *out = driver::contexts.add(new CUctx_st);
    (*out)->device = device;
    driver::stack.push_back(*out);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context) {
    STARTED
    if (!driver::contexts.has(context) || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    driver::clean(context);
    driver::contexts.remove(context);  // the object is kept: it may be other threads' current context
    for (size_t n = driver::stack.size(); n-- > 0;)
        if (driver::stack[n] == context) driver::stack.erase(driver::stack.begin() + static_cast<std::ptrdiff_t>(n));
    context->error = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
    STARTED REQUIRE(device)
    if (!driver::current()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = driver::current()->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
    CONTEXT NOT_IN_CAPTURE
    return queue::wait_all(context);
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    CONTEXT
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t* value, CUlimit limit) {
    CONTEXT REQUIRE(value)
    switch (limit) {
    case CU_LIMIT_STACK_SIZE: *value = 1024; return CUDA_SUCCESS;
    case CU_LIMIT_PRINTF_FIFO_SIZE: *value = 7 << 20; return CUDA_SUCCESS;
    case CU_LIMIT_MALLOC_HEAP_SIZE: *value = 8 << 20; return CUDA_SUCCESS;
    default: return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
}

CUresult cuCtxSetLimit(CUlimit, size_t) {
    CONTEXT
    return driver::missing("cuCtxSetLimit");
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned* version) {
    STARTED REQUIRE(version)
    if (!driver::contexts.has(context ? context : driver::current())) return CUDA_ERROR_INVALID_CONTEXT;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long* id) {
    STARTED REQUIRE(id)
    if (!context) context = driver::current();
    if (!driver::contexts.has(context)) return CUDA_ERROR_INVALID_CONTEXT;
    *id = reinterpret_cast<unsigned long long>(context);
    return CUDA_SUCCESS;
}

// ---- errors ----

static const struct {
    CUresult code;
    const char *name, *text;
} ERRORS[] = {
#define E(name, text) {name, #name, text},
    E(CUDA_SUCCESS, "no error")
    E(CUDA_ERROR_INVALID_VALUE, "invalid argument")
    E(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")
    E(CUDA_ERROR_NOT_INITIALIZED, "initialization error")
    E(CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable")
    E(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected")
    E(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal")
    E(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid")
    E(CUDA_ERROR_INVALID_CONTEXT, "invalid device context")
    E(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution on the device")
    E(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed")
    E(CUDA_ERROR_INVALID_SOURCE, "device kernel image is invalid")
    E(CUDA_ERROR_FILE_NOT_FOUND, "file not found")
    E(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle")
    E(CUDA_ERROR_NOT_FOUND, "named symbol not found")
    E(CUDA_ERROR_NOT_READY, "device not ready")
    E(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")
    E(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")
    E(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out and was terminated")
    E(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed")
    E(CUDA_ERROR_ASSERT, "device-side assert triggered")
    E(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "part or all of the requested memory range is already mapped")
    E(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region")
    E(CUDA_ERROR_ILLEGAL_INSTRUCTION, "an illegal instruction was encountered")
    E(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address")
    E(CUDA_ERROR_INVALID_ADDRESS_SPACE, "operation not supported on global/shared address space")
    E(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure")
    E(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch")
    E(CUDA_ERROR_NOT_SUPPORTED, "operation not supported")
    E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing")
    E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture")
    E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began")
    E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work")
    E(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream")
    E(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "operation would make the legacy stream depend on a capturing blocking stream")
    E(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream")
    E(CUDA_ERROR_INVALID_CLUSTER_SIZE, "invalid cluster size")
    E(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture")
    E(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state")
    E(CUDA_ERROR_NOT_PERMITTED, "operation not permitted")
    E(CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences")
    E(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "attempt to terminate a thread-local capture sequence from another thread")
    // Returned only if a test injects them (virtual_clock.h).
    E(CUDA_ERROR_DEINITIALIZED, "driver shutting down")
    E(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library")
    E(CUDA_ERROR_DEVICE_NOT_LICENSED, "device doesn't have valid Grid license")
    E(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed")
    E(CUDA_ERROR_UNMAP_FAILED, "unmapping of buffer object failed")
    E(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered")
    E(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "exclusive-thread device already in use by a different thread")
    E(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected during the execution")
    E(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "the provided PTX was compiled with an unsupported toolchain.")
    E(CUDA_ERROR_CONTAINED, "memory error encountered that is contained to one context")
    E(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed or operation not supported on this OS")
    E(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error")
    E(CUDA_ERROR_INVALID_PC, "invalid program counter")
    E(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory not completely freed")
    E(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized")
    E(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "system has unsupported display driver / cuda driver combination")
    E(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "forward compatibility was attempted on non supported HW")
    E(CUDA_ERROR_MPS_CONNECTION_FAILED, "MPS client failed to connect to the MPS control daemon or the MPS server")
    E(CUDA_ERROR_MPS_CLIENT_TERMINATED, "MPS client has been terminated by the server")
    E(CUDA_ERROR_TIMEOUT, "wait operation timed out")
    E(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update")
    E(CUDA_ERROR_EXTERNAL_DEVICE, "an async error has occurred in external entity outside of CUDA")
    E(CUDA_ERROR_UNKNOWN, "unknown error")
#undef E
};

CUresult cuGetErrorName(CUresult error, const char** out) {
    REQUIRE(out)
    for (const auto& each : ERRORS)
        if (each.code == error) {
            *out = each.name;
            return CUDA_SUCCESS;
        }
    *out = nullptr;
    return CUDA_ERROR_INVALID_VALUE;
}

// For an error of a kernel: CUDA's text, then the instruction and its source line.
CUresult cuGetErrorString(CUresult error, const char** out) {
    REQUIRE(out)
    *out = nullptr;
    for (const auto& each : ERRORS)
        if (each.code == error) *out = each.text;
    if (!*out) return CUDA_ERROR_INVALID_VALUE;
    std::lock_guard<std::mutex> hold(queue::lock);
    if (const CUcontext context = driver::current(); context && context->error == error && error && !queue::last_fault.empty()) {
        static std::set<std::string> kept;  // strings must stay valid: callers keep the pointer
        *out = kept.insert(std::string(*out) + " (" + queue::last_fault + ")").first->c_str();
    }
    return CUDA_SUCCESS;
}

}  // extern "C"
