// libcuda.so.1: the public driver API on the host, with kernels executed from their machine code.
#include "driver.h"

#include <dlfcn.h>
#include <strings.h>

#include "api_device.h"
#include "api_launch.h"
#include "api_memory.h"
#include "api_module.h"
#include "api_stream.h"

extern "C" {

// Not part of CUDA: see virtual_clock.h.
int softwareGpuSet(const char* text) { return virtual_clock::set(text ? text : ""); }

// Called by all functions of cuda.h that are not implemented (engine/software_gpu/process_environment.py).
CUresult softwareGpuMissing(const char* name) { return driver::missing(name); }

// NVIDIA's libraries request private tables with it, which do not exist here. NVRTC works without them. The CUDA
// runtime, which other libraries link statically, does not and gives no reason: so the reason is printed here.
CUresult cuGetExportTable(const void** table, const CUuuid*) {
    if (table) *table = nullptr;
    Dl_info caller;
    if (!dladdr(__builtin_return_address(0), &caller) || std::strstr(caller.dli_fname, "nvrtc")) return CUDA_ERROR_NOT_SUPPORTED;
    static std::set<std::string> said;
    std::lock_guard<std::mutex> hold(driver::lock);
    if (!said.insert(caller.dli_fname).second) return CUDA_ERROR_NOT_SUPPORTED;
    return driver::refuse(CUDA_ERROR_NOT_SUPPORTED, "%s contains NVIDIA's CUDA runtime, which does not work here: CUB, Thrust, NVIDIA's libraries and PyTorch cannot be "
                                                    "used.", caller.dli_fname);
}

// The functions that are not implemented, ending with null; undefined if this file is linked alone.
extern const void* const softwareGpuMissingOnes[] __attribute__((weak));

// The newest implemented version of a function, else one that reports that it is missing.
CUresult cuGetProcAddress(const char* name, void** out, int, cuuint64_t, CUdriverProcAddressQueryResult* status) {
    REQUIRE(name && out)
    static void* const self = [] {
        Dl_info info;
        return dladdr(reinterpret_cast<void*>(&cuInit), &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    }();
    static const std::set<const void*>& missing = *new std::set<const void*>([] {
        std::set<const void*> found;
        for (const void* const* each = softwareGpuMissingOnes; each && *each; each++) found.insert(*each);
        return found;
    }());
    *out = nullptr;
    for (const char* version : {"_v4", "_v3", "_v2", ""}) {
        void* const known = self ? dlsym(self, (std::string(name) + version).c_str()) : nullptr;
        if (known && (!*out || missing.count(*out))) *out = known;
    }
    if (status) *status = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
