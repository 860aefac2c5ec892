// The emulator that executes kernels: a separate library, which engine.machine_code.execution loads, too.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace emulator {

struct Code;
#include "../../machine_code/native/request.h"

struct Library {
    Code* (*decode)(const char* text, const int32_t* target, int32_t count);
    void (*free_code)(Code*);
    int32_t (*execute)(const Request*, int32_t threads, double timeout_s, char* error, int32_t error_bytes, uint32_t* cta, int64_t* steps);
};

// Null if it cannot be loaded.
inline const Library* library() {
    static const Library* const loaded = []() -> const Library* {
        const char* path = std::getenv("ATTUNE_SOFTWARE_GPU_EMULATOR");
        void* handle = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
        if (!handle) {
            std::fprintf(stderr, "software GPU: the emulator cannot be loaded (%s): start the command by `attune softgpu`.\n", path ? dlerror() : "no path");
            return nullptr;
        }
        static Library made;
        made.decode = reinterpret_cast<decltype(made.decode)>(dlsym(handle, "sass_decode"));
        made.free_code = reinterpret_cast<decltype(made.free_code)>(dlsym(handle, "sass_free_code"));
        made.execute = reinterpret_cast<decltype(made.execute)>(dlsym(handle, "sass_execute"));
        return &made;
    }();
    return loaded;
}

}  // namespace emulator
