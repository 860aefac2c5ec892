// Launches, and tensor maps, which are arguments of launches. Included by driver.cpp.

namespace driver {

// Memory that a device can access: its own, and pinned host memory. Called on the queue's thread.
inline const std::vector<emulator::Buffer>& buffers_of(int device) {
    static std::vector<emulator::Buffer> found;
    static uint64_t as_of = 0;
    static int of = -1;
    std::lock_guard<std::mutex> hold(memory::lock);
    if (as_of == memory::changes && of == device) return found;
    found.clear();
    for (const auto& [address, a] : memory::by_address)
        if (a.device == device || !memory::is_device_address(address)) found.push_back({address, a.size, a.host});
    as_of = memory::changes, of = device;
    return found;
}

// CUDA's error code for a message of the emulator.
inline CUresult code_of(const std::string& what) {
    auto says = [&](const char* part) { return what.find(part) != std::string::npos; };
    if (says("is not a multiple of its")) return CUDA_ERROR_MISALIGNED_ADDRESS;
    if (says("a trap")) return CUDA_ERROR_LAUNCH_FAILED;
    if (says("deadlock")) return CUDA_ERROR_LAUNCH_TIMEOUT;
    if (says(" reaches ")) return CUDA_ERROR_ILLEGAL_ADDRESS;
    return CUDA_ERROR_ILLEGAL_INSTRUCTION;
}

inline std::string in_words(const CUfunc_st& f, std::string what, const std::vector<emulator::Buffer>& buffers, const uint32_t cta[3]) {
    std::string line;
    if (const size_t at = what.find(" at 0x"); at != std::string::npos) {
        const int64_t address = std::strtoll(what.c_str() + at + 4, nullptr, 16);
        for (const auto& [each, text] : f.lines)
            if (each == address) line = " (" + text + ")";
    }
    if (const size_t at = what.find("BUFFER "); at != std::string::npos) {
        char* end = nullptr;
        const size_t number = std::strtoul(what.c_str() + at + 7, &end, 10);
        char name[64];
        std::snprintf(name, sizeof name, "the allocation at 0x%llx", static_cast<unsigned long long>(number < buffers.size() ? buffers[number].base : 0));
        what = what.substr(0, at) + name + end;
    }
    char place[64];
    std::snprintf(place, sizeof place, " (CTA %u, %u, %u)", cta[0], cta[1], cta[2]);
    return f.name + line + ": " + what + place;
}

// Time limit of a launch, like a display's watchdog on a GPU.
inline double most_seconds() {
    static const double given = [] {
        constexpr double FOR_EVER_S = 1e9;
        const char* text = std::getenv("ATTUNE_SOFTWARE_GPU_LAUNCH_S");
        const double value = text ? std::atof(text) : 600;
        return value > 0 ? std::min(value, FOR_EVER_S) : FOR_EVER_S;
    }();
    return given;
}

inline std::string stopped(double limit_s, int64_t steps, const char* place) {
    char text[512];
    std::snprintf(text, sizeof text, "stopped at %s: it did not end within %g s and %.3g million warp instructions. It waits forever, or is too much work for a CPU: "
                  "`attune softgpu --launch-seconds N` (ATTUNE_SOFTWARE_GPU_LAUNCH_S) sets another limit, 0 none", *place ? place : "its end", limit_s, static_cast<double>(steps) / 1e6);
    return text;
}

struct Launch {
    CUfunction f;
    std::shared_ptr<CUmod_st> module;  // module of `f`: a graph may launch it after the program has unloaded it
    unsigned grid[3], block[3], cluster[3], smem;
    std::string bank;  // constant bank 0
    int device;

    CUresult operator()(double& ns) const {
        const emulator::Library* library = emulator::library();
        if (!library) return CUDA_ERROR_NOT_SUPPORTED;
        if (!f->code) f->code = library->decode(f->listing.c_str(), reinterpret_cast<const int32_t*>(f->targets.data()), static_cast<int32_t>(f->targets.size() / 4));
        const std::vector<emulator::Buffer>& buffers = buffers_of(device);
        emulator::Request request{};
        request.code = f->code;
        request.arch = static_cast<int32_t>(f->arch);
        std::copy(grid, grid + 3, request.grid), std::copy(block, block + 3, request.block), std::copy(cluster, cluster + 3, request.cluster);
        for (const auto& [number, content] : f->constants) set(request, number, content.data(), content.size());
        for (const auto& [number, area] : f->constant_areas) {
            memory::Allocation a;
            if (memory::find(area, a)) set(request, number, a.host, a.size);
        }
        set(request, 0, bank.data(), bank.size());
        request.smem_bytes = static_cast<uint32_t>(f->reserved_smem + (f->static_smem + smem + 127) / 128 * 128);
        request.local_bytes = static_cast<uint32_t>(f->local_bytes);
        request.max_steps = int64_t{1} << 62;
        static uint64_t clock = 0;  // of the SMs; continues over launches
        request.clock = clock += 997;
        request.buffers = buffers.data(), request.buffer_count = static_cast<int32_t>(buffers.size());
        const double limit_s = most_seconds();
        static const int threads = [] {
            const char* given = std::getenv("ATTUNE_SOFTWARE_GPU_THREADS");
            return std::max(1, given ? std::atoi(given) : 1);
        }();
        char error[1024] = "";
        uint32_t cta[3] = {};
        int64_t steps = 0;
        const int64_t tasks = static_cast<int64_t>(grid[0]) * grid[1] * grid[2] / (cluster[0] * cluster[1] * cluster[2]);
        const int32_t status = library->execute(&request, static_cast<int32_t>(std::min<int64_t>(threads, tasks)), limit_s, error, sizeof error, cta, &steps);
        clock += static_cast<uint64_t>(steps);
        // As if each SM issued one warp instruction per nanosecond: an amount of work, not a time.
        const double work_ns = 1000 + static_cast<double>(steps) / static_cast<double>(device_of(device).sms);
        double now_ns;
        {
            std::lock_guard<std::mutex> hold(queue::lock);
            now_ns = queue::clock_ns;
        }
        ns += virtual_clock::taken_ns(work_ns, int64_t{grid[0]} * grid[1] * grid[2], now_ns, memory_of());
        if (!status) return CUDA_SUCCESS;
        const std::string words = in_words(*f, status == 2 ? stopped(limit_s, steps, error) : error, buffers, cta);
        {
            std::lock_guard<std::mutex> hold(queue::lock);
            queue::last_fault = words;
        }
        return refuse(status == 2 ? CUDA_ERROR_LAUNCH_TIMEOUT : code_of(error), "%s", words.c_str());
    }

    // A hash of the launch's pointers, so that another placement in memory gives another number.
    uint64_t memory_of() const {
        uint64_t mixed = 0;
        for (const Parameter& p : f->parameters) {
            uint64_t value = 0;
            if (p.size != 8) continue;
            std::memcpy(&value, bank.data() + f->parameter_offset + p.offset, 8);
            mixed = (mixed ^ value) * 0x9e3779b97f4a7c15ull;
        }
        return mixed;
    }

    static void set(emulator::Request& request, int number, const void* content, size_t size) {
        if (number < 0 || number >= 8) return;
        request.constants[number] = static_cast<const uint8_t*>(content);
        request.constant_bytes[number] = static_cast<int32_t>(size);
    }
};

CUresult launch(CUcontext context, CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned dynamic_smem, CUstream stream, const unsigned cluster[3], bool cooperative, void** parameters, void** extra) {
    HANDLE(functions, f)
    const Device& d = device_of(context->device);
    if (f->module->context != context) return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(!parameters || !extra)
    // CUDA C++ Programming Guide, technical specifications per compute capability.
    const unsigned most_ctas[3] = {2147483647u, 65535u, 65535u}, most_threads[3] = {1024u, 1024u, 64u};
    uint64_t threads = 1;
    for (int n = 0; n < 3; n++) {
        if (!grid[n] || grid[n] > most_ctas[n] || !block[n] || block[n] > most_threads[n])
            return refuse(CUDA_ERROR_INVALID_VALUE, "%s: along %c a grid has 1 to %u CTAs and a CTA 1 to %u threads; given are %u and %u.", f->name.c_str(), "xyz"[n], most_ctas[n], most_threads[n], grid[n], block[n]);
        threads *= block[n];
    }
    if (threads > static_cast<uint64_t>(d.threads_per_cta))
        return refuse(CUDA_ERROR_INVALID_VALUE, "%s: a CTA has %d threads at most; given are %d.", f->name.c_str(), static_cast<int>(d.threads_per_cta), static_cast<int>(threads));
    if (threads > static_cast<uint64_t>(f->max_threads))
        return refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "%s: its registers and __launch_bounds__ allow %d threads in a CTA; given are %d.", f->name.c_str(), static_cast<int>(f->max_threads), static_cast<int>(threads));
    if (static_cast<int64_t>(dynamic_smem) > f->max_dynamic_smem)
        return refuse(CUDA_ERROR_INVALID_VALUE, "%s: its dynamic shared memory is %d bytes at most, as cuFuncSetAttribute left it; given are %u.", f->name.c_str(), static_cast<int>(f->max_dynamic_smem), dynamic_smem);
    Launch launch{f, f->module->shared_from_this(), {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, {}, dynamic_smem, {}, context->device};
    unsigned size = 1;
    for (int n = 0; n < 3; n++) {
        const auto own = static_cast<unsigned>(f->cluster[n]);
        launch.cluster[n] = cluster ? cluster[n] : own;
        REQUIRE(launch.cluster[n])
        const bool has_own = f->cluster[0] * f->cluster[1] * f->cluster[2] > 1;
        if (grid[n] % launch.cluster[n] || (has_own && launch.cluster[n] != own)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        size *= launch.cluster[n];
    }
    // CUDA C++ Programming Guide, "Thread Block Clusters": from 9.0 on, eight CTAs, or more if the
    // function allows it.
    if (size > 1 && d.major < 9) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (size > (f->large_clusters ? 16u : 8u)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (cooperative) {
        const int64_t resident = static_cast<int64_t>(ctas_per_sm(d, *f, static_cast<int64_t>(threads), dynamic_smem)) * d.sms;
        if (static_cast<int64_t>(grid[0]) * grid[1] * grid[2] > resident) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    launch.bank = f->bank[size > 1];
    auto put = [&](int64_t at, const unsigned v[3]) { std::memcpy(launch.bank.data() + at, v, 12); };
    put(f->block_at, block), put(f->grid_at, grid);
    if (f->clusters_at >= 0) {
        const unsigned clusters[3] = {grid[0] / launch.cluster[0], grid[1] / launch.cluster[1], grid[2] / launch.cluster[2]};
        put(f->cluster_at, launch.cluster), put(f->clusters_at, clusters);
        float reciprocals[3];  // rounded up, as the launch's constants are (engine/machine_code/launch.py)
        for (int n = 0; n < 3; n++) reciprocals[n] = std::nextafter(1.0f / static_cast<float>(launch.cluster[n]), 2.0f);
        std::memcpy(launch.bank.data() + f->reciprocals_at, reciprocals, sizeof reciprocals);
        std::memcpy(launch.bank.data() + f->cluster_ctas_at, &size, sizeof size);
    }
    // Arguments are given one by one, or as one block of bytes.
    const uint8_t* packed = nullptr;
    size_t packed_size = 0;
    for (void** e = extra; e && *e != CU_LAUNCH_PARAM_END; e += 2) {
        if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER) packed = static_cast<const uint8_t*>(e[1]);
        else if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE && e[1]) packed_size = *static_cast<size_t*>(e[1]);
        else return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t n = 0; n < f->parameters.size(); n++) {
        const Parameter& p = f->parameters[n];
        REQUIRE(packed ? static_cast<size_t>(p.offset + p.size) <= packed_size : parameters && parameters[n])
        std::memcpy(launch.bank.data() + f->parameter_offset + p.offset, packed ? packed + p.offset : static_cast<const uint8_t*>(parameters[n]), static_cast<size_t>(p.size));
    }
    return enqueue(context, stream, CU_GRAPH_NODE_TYPE_KERNEL, std::move(launch));
}

}  // namespace driver

extern "C" {

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned smem, CUstream stream, void** parameters, void** extra) {
    CONTEXT
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return driver::launch(context, f, grid, block, smem, stream, nullptr, false, parameters, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned smem, CUstream stream, void** parameters) {
    CONTEXT
    const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return driver::launch(context, f, grid, block, smem, stream, nullptr, true, parameters, nullptr);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** parameters, void** extra) {
    CONTEXT REQUIRE(config && (config->attrs || !config->numAttrs))
    const unsigned grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ}, block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    unsigned cluster[3];
    bool has_cluster = false, cooperative = false;
    for (unsigned n = 0; n < config->numAttrs; n++) {
        const CUlaunchAttribute& attribute = config->attrs[n];
        switch (attribute.id) {
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
            cluster[0] = attribute.value.clusterDim.x, cluster[1] = attribute.value.clusterDim.y, cluster[2] = attribute.value.clusterDim.z;
            has_cluster = true;
            break;
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: cooperative = attribute.value.cooperative != 0; break;
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            REQUIRE(attribute.value.sharedMemCarveout >= -1 && attribute.value.sharedMemCarveout <= 100)
            break;
        // Hints, which do not change results.
        case CU_LAUNCH_ATTRIBUTE_IGNORE: case CU_LAUNCH_ATTRIBUTE_PRIORITY: case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: break;
        default: return driver::refuse(CUDA_ERROR_NOT_SUPPORTED, "cuLaunchKernelEx does not know launch attribute %d.", static_cast<int>(attribute.id));
        }
    }
    return driver::launch(context, f, grid, block, config->sharedMemBytes, config->hStream, has_cluster ? cluster : nullptr, cooperative, parameters, extra);
}

// Each check is documented (CUDA driver API, tensor map object management). The map is written in
// the emulator's own format, as NVIDIA's is not public.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address, const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* element_strides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    CONTEXT
    if (driver::device_of(context->device).major < 9) return CUDA_ERROR_NOT_SUPPORTED;
    // Indexed by CUtensorMapDataType.
    static const uint32_t BYTES[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    REQUIRE(map && reinterpret_cast<uint64_t>(map) % 64 == 0)
#if CUDA_VERSION >= 13000
    constexpr unsigned NEWEST_TYPE = CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B, NEWEST_SWIZZLE = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B;
    constexpr uint64_t MAX_ELEMENTS = uint64_t{1} << 31;
#else
    constexpr unsigned NEWEST_TYPE = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ, NEWEST_SWIZZLE = CU_TENSOR_MAP_SWIZZLE_128B;
    constexpr uint64_t MAX_ELEMENTS = uint64_t{1} << 32;
#endif
    REQUIRE(static_cast<unsigned>(type) <= NEWEST_TYPE && static_cast<unsigned>(swizzle) <= NEWEST_SWIZZLE)
    if (static_cast<unsigned>(type) >= sizeof BYTES / sizeof *BYTES) return driver::missing("cuTensorMapEncodeTiled of packed 4 and 6 bits");
    const bool rows_of_32 = interleave == CU_TENSOR_MAP_INTERLEAVE_32B;
    REQUIRE(static_cast<unsigned>(interleave) <= CU_TENSOR_MAP_INTERLEAVE_32B && rank >= (interleave ? 3 : 1) && rank <= 5)
    REQUIRE(!rows_of_32 || (swizzle == CU_TENSOR_MAP_SWIZZLE_32B && reinterpret_cast<uint64_t>(address) % 32 == 0))
    REQUIRE(address && reinterpret_cast<uint64_t>(address) % 16 == 0 && dims && box && element_strides && (strides || rank == 1))
    REQUIRE(static_cast<unsigned>(promotion) <= CU_TENSOR_MAP_L2_PROMOTION_L2_256B && static_cast<unsigned>(fill) <= 1)
    REQUIRE(fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16)
    for (uint32_t n = 0; n < rank; n++) {
        REQUIRE(dims[n] >= 1 && dims[n] <= MAX_ELEMENTS && box[n] >= 1 && box[n] <= 256 && element_strides[n] >= 1 && element_strides[n] <= 8)
        if (n + 1 < rank) REQUIRE(strides[n] % (rows_of_32 ? 32 : 16) == 0 && strides[n] < uint64_t{1} << 40)
    }
    const uint32_t row_bytes = box[0] * BYTES[type];
    static const uint32_t SPANS[] = {256 * 8, 32, 64, 128, 128, 128, 128};  // of each swizzle, bytes
    REQUIRE(interleave || (row_bytes % 16 == 0 && row_bytes <= SPANS[swizzle]))
    if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || static_cast<unsigned>(swizzle) > 3 || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
        return driver::missing("cuTensorMapEncodeTiled with interleaving, 128-byte atoms or a NaN fill");
    for (uint32_t n = 0; n < rank; n++)  // the innermost dimension has no stride: a given one is ignored
        if ((n && element_strides[n] != 1) || dims[n] >> 32) return driver::missing("cuTensorMapEncodeTiled with element strides, or 2^32 elements along a dimension");
    struct {
        uint64_t magic, base;
        uint32_t rank, element_bytes, swizzle, box[5], dims[5], padding;
        uint64_t stride_bytes[4];
    } made{};  // TensorMap of engine/machine_code/native/memory.h
    static_assert(sizeof made <= sizeof *map);
    made.magic = 0x434f48544d41ull, made.base = reinterpret_cast<uint64_t>(address);
    made.rank = rank, made.element_bytes = BYTES[type], made.swizzle = static_cast<uint32_t>(swizzle);
    for (uint32_t n = 0; n < rank; n++) {
        made.box[n] = box[n], made.dims[n] = static_cast<uint32_t>(dims[n]);
        if (n + 1 < rank) made.stride_bytes[n] = strides[n];
    }
    std::memset(map, 0, sizeof *map);
    std::memcpy(map, &made, sizeof made);
    return CUDA_SUCCESS;
}

}  // extern "C"
