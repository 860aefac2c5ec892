// What is queued on streams. One thread does it, in the order of queueing and on all streams: one of
// the orders that CUDA allows. The device has a clock of its own, whose times mean nothing.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "table.h"

struct CUctx_st {
    int device = 0;  // of the visible ones
    bool primary = false;
    int retained = 0;
    std::set<struct CUstream_st*> streams;
    CUresult error = CUDA_SUCCESS;  // sticky: all that comes later answers it
    uint64_t pending = 0, pending_of_null = 0;
};

namespace queue {

// Done on the queue's thread; returns its error and adds the time it took to `ns`.
using Work = std::function<CUresult(double& ns)>;

struct Operation {
    Work work;
    CUgraphNodeType type;
};

}  // namespace queue

struct CUgraph_st {
    std::vector<queue::Operation> operations;
};

struct CUgraphExec_st {
    std::shared_ptr<const std::vector<queue::Operation>> operations;
};

// A capture that has begun on `origin`; streams that wait for its events join it.
struct Capture {
    CUgraph graph;
    CUstream origin;
    CUstreamCaptureMode mode;
    bool invalid = false;
    std::set<CUstream> joined, unjoined;  // `unjoined`: with work that the origin has not waited for
    unsigned long long id;
};

struct CUstream_st {
    CUcontext context;
    unsigned flags = 0;
    int priority = 0;
    uint64_t pending = 0;
    Capture* capture = nullptr;
};

struct CUevent_st {
    CUcontext context;
    unsigned flags = 0;
    uint64_t recorded = 0, reached = 0;  // how often it was queued and come to
    double time_ns = 0;
    Capture* capture = nullptr;  // it was recorded in
    CUstream captured_on = nullptr;
};

namespace queue {

struct Entry {
    CUcontext context;
    CUstream stream;
    Work work;
};

// Never destroyed: the queue's thread waits for them while the process ends.
inline std::mutex& lock = *new std::mutex;
inline std::condition_variable &came = *new std::condition_variable, &went = *new std::condition_variable;
inline std::deque<Entry>& waiting = *new std::deque<Entry>;
inline double clock_ns = 1e6;
inline std::string& last_fault = *new std::string;  // what a kernel did wrong, in words

inline void work_off() {
    std::unique_lock<std::mutex> hold(lock);
    for (;;) {
        came.wait(hold, [] { return !waiting.empty(); });
        Entry entry = std::move(waiting.front());
        waiting.pop_front();
        if (entry.context->error == CUDA_SUCCESS) {
            hold.unlock();
            double ns = 0;
            const CUresult found = entry.work(ns);
            entry.work = nullptr;
            hold.lock();
            clock_ns += ns;
            if (found != CUDA_SUCCESS && entry.context->error == CUDA_SUCCESS) entry.context->error = found;
        }
        entry.context->pending--;
        if (entry.stream) entry.stream->pending--;
        else entry.context->pending_of_null--;
        went.notify_all();
    }
}

inline void push(CUcontext context, CUstream stream, Work work) {
    static const bool started = [] {
        std::thread(work_off).detach();  // ends with the process, whatever it executes
        return true;
    }();
    (void)started;
    std::lock_guard<std::mutex> hold(lock);
    context->pending++;
    if (stream) stream->pending++;
    else context->pending_of_null++;
    waiting.push_back({context, stream, std::move(work)});
    came.notify_one();
}

// The legacy default stream comes behind all blocking streams, and they behind it.
inline bool is_idle(CUcontext context, CUstream stream) {
    if (stream) return stream->pending == 0;
    if (context->pending_of_null) return false;
    for (const CUstream each : context->streams)
        if (!(each->flags & CU_STREAM_NON_BLOCKING) && each->pending) return false;
    return true;
}

inline CUresult wait(CUcontext context, CUstream stream) {
    std::unique_lock<std::mutex> hold(lock);
    went.wait(hold, [&] { return is_idle(context, stream); });
    return context->error;
}

inline CUresult wait_all(CUcontext context) {
    std::unique_lock<std::mutex> hold(lock);
    went.wait(hold, [&] { return context->pending == 0; });
    return context->error;
}

}  // namespace queue
