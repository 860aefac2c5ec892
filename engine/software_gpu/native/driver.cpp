// libcuda.so.1: the public driver API on the host, with kernels executed from their machine code.
#include "driver.h"

#include <dlfcn.h>
#include <strings.h>

#include <array>
#include <utility>

#include "api_device.h"
#include "api_launch.h"
#include "api_memory.h"
#include "api_module.h"
#include "api_stream.h"

namespace driver {

// A function for each name that is asked for and not there, which says so when it is called.
constexpr size_t MOST_MISSING = 1024;
inline std::array<std::string, MOST_MISSING> missing_names;

template <size_t N>
CUresult missing_function() { return missing(missing_names[N].c_str()); }

template <size_t... N>
constexpr std::array<CUresult (*)(), MOST_MISSING> missing_functions(std::index_sequence<N...>) { return {missing_function<N>...}; }

inline void* missing_named(const std::string& name) {
    static constexpr auto functions = missing_functions(std::make_index_sequence<MOST_MISSING>());
    std::lock_guard<std::mutex> hold(lock);
    for (size_t n = 0; n < MOST_MISSING; n++) {
        if (missing_names[n].empty()) missing_names[n] = name;
        if (missing_names[n] == name) return reinterpret_cast<void*>(functions[n]);
    }
    return nullptr;
}

}  // namespace driver

extern "C" {

// Not CUDA's: see virtual_clock.h.
int softwareGpuSet(const char* text) { return virtual_clock::set(text ? text : ""); }

// NVIDIA's own libraries ask for private tables by it (NVRTC does, and goes on without). None is
// answered, whatever is asked for.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
    if (table) *table = nullptr;
    return CUDA_ERROR_NOT_SUPPORTED;
}

// The newest version of a function, as CUDA's header chooses it.
CUresult cuGetProcAddress(const char* name, void** out, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
    REQUIRE(name && out)
    static void* const self = [] {
        Dl_info info;
        return dladdr(reinterpret_cast<void*>(&cuInit), &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    }();
    *out = nullptr;
    for (const char* version : {"_v4", "_v3", "_v2", ""})
        if (self && !*out) *out = dlsym(self, (std::string(name) + version).c_str());
    if (!*out && !std::strncmp(name, "cu", 2)) *out = driver::missing_named(name);
    if (status) *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
