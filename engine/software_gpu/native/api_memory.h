// Memory: allocations, copies, fills, pointers. Included by driver.cpp.

namespace driver {

// The device memory that this process can allocate.
inline uint64_t capacity_of(int device) {
    const auto total = static_cast<uint64_t>(device_of(device).memory_bytes);
    return total - std::min(total, virtual_clock::foreign_bytes());
}

inline bool is_pinned(uint64_t address) {
    memory::Allocation a;
    return memory::find(address, a);
}

// Kind of a copy's argument: a CUdeviceptr, a host pointer, or either.
enum class Side { DEVICE, HOST, EITHER };

// A region must be entirely in CUDA's memory or entirely outside of it (CUDA driver API, "API synchronization
// behavior", Memcpy).
inline bool fits(uint64_t address, size_t size, Side side) {
    const memory::Part part = memory::part_of(address, size);
    if (part == memory::Part::SOME) return false;
    if (part == memory::Part::NONE) return side != Side::DEVICE && !memory::is_device_address(address);
    return side != Side::HOST || !memory::is_device_address(address);
}

// Copies read memory when they are executed. Pageable host memory is read at once, and written before the
// call returns, as CUDA does with a staging buffer.
inline CUresult copy(uint64_t to, Side to_side, uint64_t from, Side from_side, size_t size, CUstream stream, bool asynchronous) {
    STREAM(stream)
    if (!asynchronous) NOT_IN_CAPTURE
    if (!size) return CUDA_SUCCESS;
    REQUIRE(fits(to, size, to_side) && fits(from, size, from_side))
    uint8_t* target = memory::on_host(to, size);
    const uint8_t* source = memory::on_host(from, size);
    REQUIRE(target && source)
    const bool pageable_target = !is_pinned(to), pageable_source = !is_pinned(from);
    if (captures_now(stream) && (pageable_target || pageable_source)) {
        invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    std::shared_ptr<std::vector<uint8_t>> staged;
    if (pageable_source && !pageable_target) staged = std::make_shared<std::vector<uint8_t>>(source, source + size);
    auto work = [=](double& ns) {
        // The memory may have been freed since.
        uint8_t* const t = memory::on_host(to, size);
        const uint8_t* const s = staged ? staged->data() : memory::on_host(from, size);
        if (!t || !s) return CUDA_ERROR_ILLEGAL_ADDRESS;
        std::memmove(t, s, size);
        ns += 500 + static_cast<double>(size) / 300;
        return CUDA_SUCCESS;
    };
    if (const CUresult why_not = enqueue(context, stream, CU_GRAPH_NODE_TYPE_MEMCPY, work)) return why_not;
    return (!asynchronous || pageable_target) && !captures_now(stream) ? queue::wait(context, stream_of(stream)) : CUDA_SUCCESS;
}

template <typename T>
CUresult fill(uint64_t to, T value, size_t count, CUstream stream, bool asynchronous) {
    STREAM(stream)
    if (!asynchronous) NOT_IN_CAPTURE
    if (!count) return CUDA_SUCCESS;
    REQUIRE(to % sizeof(T) == 0 && count <= SIZE_MAX / sizeof(T) && memory::part_of(to, count * sizeof(T)) == memory::Part::WHOLE)
    auto work = [=](double& ns) {
        uint8_t* const at = memory::on_host(to, count * sizeof(T));
        if (!at) return CUDA_ERROR_ILLEGAL_ADDRESS;
        std::fill_n(reinterpret_cast<T*>(at), count, value);
        ns += 500 + static_cast<double>(count * sizeof(T)) / 300;
        return CUDA_SUCCESS;
    };
    if (const CUresult why_not = enqueue(context, stream, CU_GRAPH_NODE_TYPE_MEMSET, work)) return why_not;
    return asynchronous ? CUDA_SUCCESS : queue::wait(context, stream_of(stream));
}

inline CUresult allocate(CUdeviceptr* out, size_t size, memory::Kind kind) {
    CONTEXT
    REQUIRE(out && size)
    const uint64_t address = memory::allocate(size, kind, context->device, context, capacity_of(context->device));
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = address;
    return CUDA_SUCCESS;
}

inline cuuint64_t release_threshold[64] = {};  // per device's pool, bytes

// Number of the device that a pool belongs to, or -1.
inline int device_of_pool(CUmemoryPool pool) {
    for (size_t n = 0; n < primaries.size(); n++)
        if (reinterpret_cast<CUmemoryPool>(primaries[n]) == pool) return static_cast<int>(n);
    return -1;
}

}  // namespace driver

extern "C" {

CUresult cuMemGetInfo(size_t* available, size_t* total) {
    CONTEXT REQUIRE(available && total)
    *total = static_cast<size_t>(driver::device_of(context->device).memory_bytes);
    const uint64_t capacity = driver::capacity_of(context->device);
    std::lock_guard<std::mutex> hold(memory::lock);
    *available = capacity - std::min(capacity, memory::used[context->device]);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* out, size_t size) {
    CONTEXT NOT_IN_CAPTURE
    return driver::allocate(out, size, memory::Kind::DEVICE);
}

CUresult cuMemFree(CUdeviceptr address) {
    CONTEXT NOT_IN_CAPTURE
    if (!address) return CUDA_SUCCESS;
    queue::wait_all(context);
    return memory::release(address, {memory::Kind::DEVICE, memory::Kind::MANAGED}) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t size, CUmemoryPool pool, CUstream stream) {
    STREAM(stream)
    const int device = driver::device_of_pool(pool);
    REQUIRE(out && size && device >= 0)
    if (driver::captures_now(stream)) return driver::missing("cuMemAllocAsync in a capture");
    const uint64_t address = memory::allocate(size, memory::Kind::DEVICE, device, nullptr, driver::capacity_of(device));
    if (!address) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = address;
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr* out, size_t size, CUstream stream) {
    CONTEXT
    return cuMemAllocFromPoolAsync(out, size, reinterpret_cast<CUmemoryPool>(driver::primaries[static_cast<size_t>(context->device)]), stream);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    STREAM(stream)
    if (driver::captures_now(stream)) return driver::missing("cuMemFreeAsync in a capture");
    REQUIRE(memory::begin_release(address))
    return driver::enqueue(context, stream, CU_GRAPH_NODE_TYPE_MEM_FREE, [=](double&) {
        return memory::release(address, {memory::Kind::DEVICE}) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

// One pool per device; freed memory is returned at once.
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    DEVICE(device) REQUIRE(pool)
    (void)d;
    *pool = reinterpret_cast<CUmemoryPool>(driver::primaries[static_cast<size_t>(device)]);
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) { return cuDeviceGetDefaultMemPool(pool, device); }
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    STARTED REQUIRE(driver::is_device(device) && driver::device_of_pool(pool) == device)
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t) {
    STARTED REQUIRE(driver::device_of_pool(pool) >= 0)
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
    STARTED
    const int device = driver::device_of_pool(pool);
    REQUIRE(device >= 0 && value)
    std::lock_guard<std::mutex> hold(memory::lock);
    switch (which) {
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *static_cast<cuuint64_t*>(value) = memory::used[device]; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *static_cast<cuuint64_t*>(value) = driver::release_threshold[device]; break;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *static_cast<int*>(value) = 1; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

// Reuse policies have no effect, as freed memory is returned at once.
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
    STARTED
    const int device = driver::device_of_pool(pool);
    REQUIRE(device >= 0 && value)
    std::lock_guard<std::mutex> hold(memory::lock);
    switch (which) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: driver::release_threshold[device] = *static_cast<cuuint64_t*>(value); break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        REQUIRE(*static_cast<cuuint64_t*>(value) == 0)  // can only be reset to 0
        break;
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

// Host memory that kernels access at its host address.
CUresult cuMemHostAlloc(void** out, size_t size, unsigned flags) {
    CONTEXT NOT_IN_CAPTURE REQUIRE(!(flags & ~static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED)))
    return driver::allocate(reinterpret_cast<CUdeviceptr*>(out), size, memory::Kind::PINNED);
}
CUresult cuMemAllocHost(void** out, size_t size) { return cuMemHostAlloc(out, size, 0); }

CUresult cuMemAllocManaged(CUdeviceptr* out, size_t size, unsigned flags) {
    CONTEXT NOT_IN_CAPTURE REQUIRE(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST)
    return driver::allocate(out, size, memory::Kind::MANAGED);
}

CUresult cuMemFreeHost(void* p) {
    CONTEXT NOT_IN_CAPTURE
    queue::wait_all(context);
    return memory::release(reinterpret_cast<uint64_t>(p), {memory::Kind::PINNED}) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemHostRegister(void* p, size_t size, unsigned flags) {
    const auto address = reinterpret_cast<uint64_t>(p);
    CONTEXT REQUIRE(p && size && size < memory::FIRST_ADDRESS && !memory::is_device_address(address + size))
    if (flags & ~static_cast<unsigned>(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP))
        return driver::missing("cuMemHostRegister of I/O memory, or of what a device only reads,");
    if (memory::part_of(address, size) != memory::Part::NONE) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    REQUIRE(memory::is_mapped(static_cast<const uint8_t*>(p), size))
    std::lock_guard<std::mutex> hold(memory::lock);
    memory::add({address, size, static_cast<uint8_t*>(p), 0, memory::Kind::REGISTERED, context->device, context});
    return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void* p) {
    CONTEXT
    queue::wait_all(context);
    return memory::release(reinterpret_cast<uint64_t>(p), {memory::Kind::REGISTERED}) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* out, void* p, unsigned flags) {
    memory::Allocation a;
    CONTEXT REQUIRE(out && !flags && memory::find(reinterpret_cast<uint64_t>(p), a) && (a.kind == memory::Kind::PINNED || a.kind == memory::Kind::REGISTERED))
    *out = reinterpret_cast<CUdeviceptr>(p);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* size, CUdeviceptr address) {
    CONTEXT
    memory::Allocation a;
    if (!memory::find(address, a)) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = a.address;
    if (size) *size = a.size;
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute which, CUdeviceptr address) {
    CONTEXT REQUIRE(out)
    memory::Allocation a;
    REQUIRE(memory::find(address, a))
    const bool on_device = a.kind == memory::Kind::DEVICE || a.kind == memory::Kind::MODULE;
    switch (which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(out) = driver::primaries[static_cast<size_t>(a.device)]; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *static_cast<unsigned*>(out) = on_device || a.kind == memory::Kind::MANAGED ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(out) = address; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        REQUIRE(!on_device)
        *static_cast<void**>(out) = reinterpret_cast<void*>(address);
        break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(out) = a.kind == memory::Kind::MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(out) = a.device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(out) = a.address; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(out) = a.size; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *static_cast<unsigned*>(out) = 1; break;
    default: return driver::missing("that attribute of cuPointerGetAttribute");
    }
    return CUDA_SUCCESS;
}

// `D`: a CUdeviceptr, `H`: a host pointer, `E`: either.
#define D(p) p, driver::Side::DEVICE
#define H(p) reinterpret_cast<uint64_t>(p), driver::Side::HOST
#define E(p) p, driver::Side::EITHER
CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t n) { return driver::copy(E(to), E(from), n, nullptr, false); }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t n) { return driver::copy(D(to), H(from), n, nullptr, false); }
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t n) { return driver::copy(H(to), D(from), n, nullptr, false); }
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n) { return driver::copy(D(to), D(from), n, nullptr, false); }
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return driver::copy(E(to), E(from), n, s, true); }
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t n, CUstream s) { return driver::copy(D(to), H(from), n, s, true); }
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t n, CUstream s) { return driver::copy(H(to), D(from), n, s, true); }
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s) { return driver::copy(D(to), D(from), n, s, true); }
#undef D
#undef H
#undef E
CUresult cuMemsetD8(CUdeviceptr to, unsigned char v, size_t n) { return driver::fill(to, v, n, nullptr, false); }
CUresult cuMemsetD16(CUdeviceptr to, unsigned short v, size_t n) { return driver::fill(to, v, n, nullptr, false); }
CUresult cuMemsetD32(CUdeviceptr to, unsigned v, size_t n) { return driver::fill(to, v, n, nullptr, false); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char v, size_t n, CUstream s) { return driver::fill(to, v, n, s, true); }
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short v, size_t n, CUstream s) { return driver::fill(to, v, n, s, true); }
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned v, size_t n, CUstream s) { return driver::fill(to, v, n, s, true); }

}  // extern "C"
