// Parts that the whole driver shares: contexts, errors, and queueing.
//
// Every refusal is documented by CUDA: at the function, or at the error if any call may return it
// (https://docs.nvidia.com/cuda/cuda-driver-api, the same text as in cuda.h:
// tests/software_gpu/test_refusals.py compares). Limits that are documented elsewhere, and rules for calls
// during a capture, cite their source where they are checked.
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
inline pid_t process = 0;  // CUDA is not available in processes forked from this one
// The valid handles of one kind. Other values, such as freed handles, are refused without being
// dereferenced.
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

// Never destroyed: work may continue while the process exits.
inline auto& contexts = *new Handles<CUctx_st>;
inline auto& functions = *new Handles<CUfunc_st>;
inline auto& events = *new Handles<CUevent_st>;
inline auto& graphs = *new Handles<CUgraph_st>;
inline auto& executables = *new Handles<CUgraphExec_st>;
inline std::vector<CUctx_st*>& primaries = *new std::vector<CUctx_st*>;
inline thread_local std::vector<CUcontext> stack;  // the last one is current
inline std::mutex lock;

// Prints a sentence for the user, who would see only an error code otherwise.
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
    return refuse(CUDA_ERROR_NOT_SUPPORTED, "%s is not implemented: the call returns CUDA_ERROR_NOT_SUPPORTED.", name);
}

inline const Device& device_of(int ordinal) { return all_devices()[static_cast<size_t>(visible_devices()[static_cast<size_t>(ordinal)])]; }
inline int device_count() { return static_cast<int>(visible_devices().size()); }
inline bool is_device(int ordinal) { return ordinal >= 0 && ordinal < device_count(); }

// A host function on a stream must not call CUDA (cuLaunchHostFunc).
inline CUresult check_started() {
    if (queue::in_callback) return CUDA_ERROR_NOT_PERMITTED;
    return initialised && getpid() == process ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

inline CUresult check_planted(const char* function);
inline CUcontext current() { return stack.empty() ? nullptr : stack.back(); }

#define STARTED \
    if (const CUresult why_not = driver::check_started()) return why_not; \
    if (const CUresult why_not = driver::check_planted(__func__)) return why_not;
// Defines `context`, the current one; returns an error if there is none or a kernel has failed in it.
#define CONTEXT \
    STARTED \
    const CUcontext context = driver::current(); \
    if (!context) return CUDA_ERROR_INVALID_CONTEXT; \
    if (context->error != CUDA_SUCCESS) return context->error;
#define REQUIRE(what) \
    if (!(what)) return CUDA_ERROR_INVALID_VALUE;
#define HANDLE(kind, given) \
    if (!driver::kind.has(given)) return CUDA_ERROR_INVALID_HANDLE;

// Defines `s`, the internal handle of a stream of the current context.
#define STREAM(s) \
    CONTEXT \
    s = driver::stream_of(s); \
    if (!driver::is_stream(context, s)) return CUDA_ERROR_INVALID_HANDLE;

// The handles of the legacy stream, and the per-thread default stream, here the same as the legacy one.
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

// Refuses calls that are not allowed during a capture, by the modes of the capture and of this thread, as the
// graph would not contain them (CUDA driver API, cuThreadExchangeStreamCaptureMode).
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

// Refuses the use of the legacy stream during the capture of a blocking stream.
inline CUresult refuse_implicit(CUcontext context) {
    std::lock_guard<std::mutex> hold(queue::lock);
    for (const CUstream each : context->streams)
        if (each->capture && !(each->flags & CU_STREAM_NON_BLOCKING)) {
            invalidate(each->capture);
            return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return CUDA_SUCCESS;
}

// Queues work on the stream, or adds it to the graph that the stream captures.
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
