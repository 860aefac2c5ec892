// What all parts of the driver share: contexts, their errors, and queueing.
//
// What is refused has its source in CUDA's documentation: of the function itself, or of the error
// where any call may answer it (https://docs.nvidia.com/cuda/cuda-driver-api, whose text cuda.h
// has, too: tests/software_gpu/test_refusals.py compares). Limits that stand elsewhere, and when a
// call spoils a capture, name their place where they are checked.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "memory.h"
#include "module.h"
#include "queue.h"
#include "table.h"
#include "virtual_clock.h"

namespace driver {

inline bool initialised = false;
inline pid_t process = 0;  // CUDA is not there in a process that was forked from this one
// The objects of one kind that a program may name. Whatever else it gives, freed ones and numbers of
// its own, is refused without being looked at.
template <typename T>
class Handles {
public:
    T* add(T* made) {
        std::lock_guard<std::mutex> hold(lock_);
        return all_.insert(made), made;
    }
    bool has(const T* given) {
        std::lock_guard<std::mutex> hold(lock_);
        return all_.count(const_cast<T*>(given)) > 0;
    }
    bool remove(T* given) {
        std::lock_guard<std::mutex> hold(lock_);
        return all_.erase(given) > 0;
    }
    std::set<T*> all() {
        std::lock_guard<std::mutex> hold(lock_);
        return all_;
    }

private:
    std::mutex lock_;
    std::set<T*> all_;
};

// Never destroyed: work may go on while the process ends.
inline auto& contexts = *new Handles<CUctx_st>;
inline auto& functions = *new Handles<CUfunc_st>;
inline auto& events = *new Handles<CUevent_st>;
inline auto& graphs = *new Handles<CUgraph_st>;
inline auto& executables = *new Handles<CUgraphExec_st>;
inline std::vector<CUctx_st*>& primaries = *new std::vector<CUctx_st*>;
inline thread_local std::vector<CUcontext> stack;  // the last one is current
inline std::mutex lock;

// A sentence for the person, who sees only a code otherwise.
template <typename... A>
CUresult refuse(CUresult code, const char* format, A... arguments) {
    static const bool quiet = std::getenv("ATTUNE_SOFTWARE_GPU_QUIET") != nullptr;
    if (!quiet) {
        std::fputs("software GPU: ", stderr);
        std::fprintf(stderr, format, arguments...);
        std::fputc('\n', stderr);
    }
    return code;
}

inline CUresult missing(const char* name) {
    return refuse(CUDA_ERROR_NOT_SUPPORTED, "%s is not there: the call answers CUDA_ERROR_NOT_SUPPORTED.", name);
}

inline const Device& device_of(int ordinal) { return all_devices()[static_cast<size_t>(visible_devices()[static_cast<size_t>(ordinal)])]; }
inline int device_count() { return static_cast<int>(visible_devices().size()); }
inline bool is_device(int ordinal) { return ordinal >= 0 && ordinal < device_count(); }

// A function that a stream calls may call nothing of CUDA's (cuLaunchHostFunc).
inline CUresult check_started() {
    if (queue::in_callback) return CUDA_ERROR_NOT_PERMITTED;
    return initialised && getpid() == process ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

inline CUresult check_planted(const char* function);
inline CUcontext current() { return stack.empty() ? nullptr : stack.back(); }

#define STARTED \
    if (const CUresult why_not = driver::check_started()) return why_not; \
    if (const CUresult why_not = driver::check_planted(__func__)) return why_not;
// `context` is the current one, and no kernel has broken it.
#define CONTEXT \
    STARTED \
    const CUcontext context = driver::current(); \
    if (!context) return CUDA_ERROR_INVALID_CONTEXT; \
    if (context->error != CUDA_SUCCESS) return context->error;
#define REQUIRE(what) \
    if (!(what)) return CUDA_ERROR_INVALID_VALUE;
#define HANDLE(kind, given) \
    if (!driver::kind.has(given)) return CUDA_ERROR_INVALID_HANDLE;

// `s` is a stream of the current context, by the name that it has here.
#define STREAM(s) \
    CONTEXT \
    s = driver::stream_of(s); \
    if (!driver::is_stream(context, s)) return CUDA_ERROR_INVALID_HANDLE;

// The two names of the legacy stream, and the one of each thread, which is the legacy one here.
inline CUstream stream_of(CUstream stream) {
    return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ? nullptr : stream;
}

inline bool is_stream(CUcontext context, CUstream stream) {
    std::lock_guard<std::mutex> hold(queue::lock);
    return !stream || context->streams.count(stream);
}

inline std::set<Capture*>& captures = *new std::set<Capture*>;  // under queue::lock

inline void invalidate(Capture* capture) { capture->invalid = true; }

inline thread_local CUstreamCaptureMode interaction = CU_STREAM_CAPTURE_MODE_GLOBAL;

// What may not happen while a stream captures, by the modes of the capture and of this thread: it
// would be left out of the graph (CUDA driver API, cuThreadExchangeStreamCaptureMode).
inline CUresult refuse_in_capture() {
    if (interaction == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    std::lock_guard<std::mutex> hold(queue::lock);
    for (Capture* capture : captures) {
        const bool of_all = interaction == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (capture->thread == std::this_thread::get_id() ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED : of_all) {
            invalidate(capture);
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return CUDA_SUCCESS;
}
inline CUresult check_planted(const char* function) {
    CUresult sticky = CUDA_SUCCESS;
    const CUresult found = virtual_clock::planted(function, sticky);
    if (CUcontext context = current(); context && sticky && context->error == CUDA_SUCCESS) context->error = sticky;
    return found;
}
#define NOT_IN_CAPTURE if (const CUresult why_not = driver::refuse_in_capture()) return why_not;

// The legacy stream may not be used while a blocking stream captures.
inline CUresult refuse_implicit(CUcontext context) {
    std::lock_guard<std::mutex> hold(queue::lock);
    for (const CUstream each : context->streams)
        if (each->capture && !(each->flags & CU_STREAM_NON_BLOCKING)) {
            invalidate(each->capture);
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return CUDA_SUCCESS;
}

// On the stream, or into the graph that it captures.
inline CUresult enqueue(CUcontext context, CUstream stream, CUgraphNodeType type, queue::Work work) {
    stream = stream_of(stream);
    if (!is_stream(context, stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!stream)
        if (const CUresult why_not = refuse_implicit(context)) return why_not;
    if (stream && stream->capture) {
        std::lock_guard<std::mutex> hold(queue::lock);
        Capture* capture = stream->capture;
        if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        std::vector<size_t>& last = capture->last[stream];
        capture->graph->operations.push_back({std::move(work), type, std::move(last)});
        last = {capture->graph->operations.size() - 1};
        if (stream != capture->origin) capture->unjoined.insert(stream);
        return CUDA_SUCCESS;
    }
    queue::push(context, stream, std::move(work));
    return CUDA_SUCCESS;
}

inline bool captures_now(CUstream stream) {
    stream = stream_of(stream);
    return stream && stream->capture;
}

CUresult launch(CUcontext context, CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned dynamic_smem, CUstream stream, const unsigned cluster[3], bool cooperative, void** parameters, void** extra);
int ctas_per_sm(const Device& d, const CUfunc_st& f, int64_t threads, int64_t dynamic_smem);

}  // namespace driver
