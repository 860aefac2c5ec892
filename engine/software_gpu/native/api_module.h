// Modules, kernels, occupancy. Included by driver.cpp.

namespace driver {

inline std::vector<std::shared_ptr<CUmod_st>>& loaded = *new std::vector<std::shared_ptr<CUmod_st>>;

constexpr uint64_t MAX_IMAGE_BYTES = uint64_t{1} << 30;

// Size of the cubin at `image`: the end of its last table or section by the ELF header. 0 if that is not a
// valid size.
inline uint64_t elf_size(const uint8_t* image) {
    auto at = [&](uint64_t offset, size_t width) {
        uint64_t value = 0;
        std::memcpy(&value, image + offset, width);
        return value;
    };
    if (!memory::is_mapped(image, 64)) return 0;
    const uint64_t tables = at(40, 8), each = at(58, 2), programs = at(32, 8);
    uint64_t end = tables + each * at(60, 2);
    if (tables > MAX_IMAGE_BYTES || programs > MAX_IMAGE_BYTES || each < 64 || !memory::is_mapped(image, end)) return 0;
    for (uint64_t section = tables, last = end; section < last; section += each) {
        const uint64_t offset = at(section + 24, 8), size = at(section + 32, 8);
        if (at(section + 4, 4) == 8) continue;  // SHT_NOBITS: no bytes in the file
        if (offset > MAX_IMAGE_BYTES || size > MAX_IMAGE_BYTES) return 0;
        end = std::max(end, offset + size);
    }
    end = std::max(end, programs + at(54, 2) * at(56, 2));
    return memory::is_mapped(image, end) ? end : 0;
}

inline CUresult load(CUmodule* out, const void* image) {
    CONTEXT
    const auto* bytes = static_cast<const uint8_t*>(image);
    REQUIRE(out && image && memory::is_mapped(bytes, 4))
    if (std::memcmp(bytes, "\x7f" "ELF", 4)) {
        if (!std::memcmp(bytes, "\x50\xed\x55\xba", 4) || !std::memcmp(bytes, "\xb1\x43\x62\x46", 4))
            return refuse(CUDA_ERROR_INVALID_IMAGE, "a fat binary cannot be loaded: give the cubin in it (cuobjdump -xelf all FILE).");
        return refuse(CUDA_ERROR_INVALID_PTX, "PTX cannot be loaded, because there is no PTX compiler here: compile to a cubin (NVRTC's --gpu-architecture=sm_%d).",
                      static_cast<int>(device_of(context->device).capability()));
    }
    const uint64_t size = elf_size(bytes);
    if (!size) return refuse(CUDA_ERROR_INVALID_IMAGE, "this cubin is damaged: its header describes more than the file contains.");
    constexpr uint64_t ROOM = uint64_t{1} << 36;  // address space of a module's variables, which are 4 GiB apart
    uint64_t base;
    {
        std::lock_guard<std::mutex> hold(memory::lock);
        base = memory::new_address(ROOM);
    }
    const reader::Answer answer = reader::read_cubin(image, size, base);
    if (answer.error) return refuse(static_cast<CUresult>(answer.error), "%s", answer.text.c_str());
    const Device& d = device_of(context->device);
    std::shared_ptr<CUmod_st> module = modules::describe(answer.text, d, context);
    if (!module) return CUDA_ERROR_OUT_OF_MEMORY;
    for (const auto& f : module->functions)
        if (f->arch / 10 != d.major || f->arch > d.capability())
            return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, "this cubin is for sm_%d, and the GPU has sm_%d.", static_cast<int>(f->arch), static_cast<int>(d.capability()));
    *out = module.get();
    for (const auto& f : module->functions) functions.add(f.get());
    std::lock_guard<std::mutex> hold(lock);
    loaded.push_back(std::move(module));
    return CUDA_SUCCESS;
}

// Frees the module's variables; its code is kept as long as a graph uses it.
void unload(CUmodule module) {
    for (const uint64_t area : module->areas) memory::release(area, {memory::Kind::MODULE});
    for (const auto& f : module->functions) functions.remove(f.get());
    std::lock_guard<std::mutex> hold(lock);
    loaded.erase(std::find_if(loaded.begin(), loaded.end(), [=](const auto& each) { return each.get() == module; }));
}

std::vector<CUmodule> modules_of(CUcontext context) {
    std::lock_guard<std::mutex> hold(lock);
    std::vector<CUmodule> found;
    for (const auto& each : loaded)
        if (each->context == context) found.push_back(each.get());
    return found;
}

inline bool is_loaded(CUmodule module) {
    std::lock_guard<std::mutex> hold(lock);
    for (const auto& each : loaded)
        if (each.get() == module) return true;
    return false;
}

// NVIDIA's rules (cuda_occupancy.h), as in engine/model/occupancy.py.
int ctas_per_sm(const Device& d, const CUfunc_st& f, int64_t threads, int64_t dynamic_smem) {
    auto up = [](int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; };
    if (threads < 1 || threads > d.threads_per_cta) return 0;
    const int64_t warps = (threads + 31) / 32;
    int64_t most = std::min(d.ctas_per_sm, d.warps_per_sm / warps);
    if (f.registers) {
        const int64_t per_warp = up(f.registers * 32, d.register_unit);
        if (per_warp * up(warps, d.warp_granularity) > d.registers_per_cta) return 0;
        most = std::min(most, d.registers_per_sm / d.sub_partitions / per_warp * d.sub_partitions / warps);
    }
    const int64_t smem = up(f.static_smem + dynamic_smem + d.smem_reserved, d.smem_unit);
    if (smem > d.smem_optin + d.smem_reserved) return 0;
    if (smem) most = std::min(most, d.smem_per_sm / smem);
    return static_cast<int>(most);
}

}  // namespace driver

extern "C" {

CUresult cuModuleLoadData(CUmodule* out, const void* image) { STARTED return driver::load(out, image); }
CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned count, CUjit_option* options, void** values) {
    STARTED REQUIRE(!count || (options && values))
    return driver::load(out, image);
}
CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) { return driver::load(out, image); }

CUresult cuModuleLoad(CUmodule* out, const char* path) {
    STARTED REQUIRE(path)
    std::FILE* file = std::fopen(path, "rb");
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::vector<char> content;
    for (int c; (c = std::fgetc(file)) != EOF;) content.push_back(static_cast<char>(c));
    std::fclose(file);
    content.push_back(0);
    return content.size() < 65 ? CUDA_ERROR_INVALID_IMAGE : driver::load(out, content.data());
}

CUresult cuModuleUnload(CUmodule module) {
    CONTEXT
    if (!driver::is_loaded(module)) return CUDA_ERROR_INVALID_HANDLE;
    queue::wait_all(context);
    driver::unload(module);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* out, CUmodule module, const char* name) {
    CONTEXT REQUIRE(out && name)
    if (!driver::is_loaded(module)) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& f : module->functions)
        if (f->name == name) {
            *out = f.get();
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetGlobal(CUdeviceptr* address, size_t* size, CUmodule module, const char* name) {
    CONTEXT REQUIRE(name)
    if (!driver::is_loaded(module)) return CUDA_ERROR_INVALID_HANDLE;
    const auto it = module->globals.find(name);
    if (it == module->globals.end()) return CUDA_ERROR_NOT_FOUND;
    if (address) *address = it->second.first;
    if (size) *size = it->second.second;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    STARTED REQUIRE(mode)
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule* out, CUfunction f) {
    STARTED REQUIRE(out) HANDLE(functions, f)
    *out = f->module;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char** out, CUfunction f) {
    STARTED REQUIRE(out) HANDLE(functions, f)
    *out = f->name.c_str();
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute which, CUfunction f) {
    CONTEXT REQUIRE(value) HANDLE(functions, f)
    int64_t v = 0;
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: v = f->max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: v = f->static_smem; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: v = f->constants.count(3) ? static_cast<int64_t>(f->constants.at(3).size()) : 0; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: v = f->frame; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: v = f->registers; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: v = f->arch; break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: v = 0; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: v = f->max_dynamic_smem; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: v = f->carveout; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET: v = f->cluster[0] * f->cluster[1] * f->cluster[2] > 1; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH: v = f->cluster[0]; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT: v = f->cluster[1]; break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH: v = f->cluster[2]; break;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: v = f->large_clusters; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: v = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    *value = static_cast<int>(v);
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute which, int value) {
    CONTEXT HANDLE(functions, f)
    const Device& d = driver::device_of(context->device);
    switch (which) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        REQUIRE(value >= 0 && value + f->static_smem <= d.smem_optin)
        f->max_dynamic_smem = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        REQUIRE(value >= -1 && value <= 100)
        f->carveout = value;
        return CUDA_SUCCESS;
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        f->large_clusters = value != 0;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache wanted) {
    CONTEXT HANDLE(functions, f) REQUIRE(static_cast<unsigned>(wanted) <= CU_FUNC_CACHE_PREFER_EQUAL)
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* out, CUfunction f, int threads, size_t dynamic_smem, unsigned flags) {
    CONTEXT REQUIRE(out && threads > 0 && flags <= CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) HANDLE(functions, f)
    *out = driver::ctas_per_sm(driver::device_of(context->device), *f, threads, static_cast<int64_t>(dynamic_smem));
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* out, CUfunction f, int threads, size_t dynamic_smem) {
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out, f, threads, dynamic_smem, 0);
}

CUresult cuOccupancyMaxPotentialBlockSize(int* least_grid, int* best, CUfunction f, CUoccupancyB2DSize smem_of, size_t dynamic_smem, int limit) {
    CONTEXT REQUIRE(least_grid && best) HANDLE(functions, f)
    const Device& d = driver::device_of(context->device);
    const int64_t most = limit > 0 ? std::min<int64_t>(limit, f->max_threads) : f->max_threads;
    int64_t occupied = 0;
    for (int64_t threads = most; threads > 0; threads = (threads - 1) / 32 * 32) {
        const auto smem = static_cast<int64_t>(smem_of ? smem_of(static_cast<int>(threads)) : dynamic_smem);
        const int64_t ctas = driver::ctas_per_sm(d, *f, threads, smem);
        if (ctas * threads > occupied) {
            occupied = ctas * threads;
            *best = static_cast<int>(threads), *least_grid = static_cast<int>(ctas * d.sms);
        }
    }
    return occupied ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* out, CUfunction f, int ctas, int threads) {
    CONTEXT REQUIRE(out && ctas > 0 && threads > 0) HANDLE(functions, f)
    const Device& d = driver::device_of(context->device);
    *out = 0;
    for (int64_t smem = d.smem_optin - f->static_smem; smem >= 0; smem -= 128)
        if (driver::ctas_per_sm(d, *f, threads, smem) >= ctas) {
            *out = static_cast<size_t>(smem);
            return CUDA_SUCCESS;
        }
    return CUDA_SUCCESS;
}

}  // extern "C"
