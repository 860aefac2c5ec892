// Work queued on streams. One thread executes it in the order of queueing or, if a test gives a seed
// (virtual_clock.h: `order`), in another order that CUDA allows: work of each stream in order and after the
// events that it waits for, and the legacy stream ordered with all blocking streams. The device's clock is
// virtual; its times mean nothing.
#pragma once

#include <cuda.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "table.h"
#include "virtual_clock.h"

struct CUctx_st {
    int device = 0;  // index among the visible ones
    bool primary = false;
    int retained = 0;
    std::set<struct CUstream_st*> streams;
    CUresult error = CUDA_SUCCESS;  // sticky: returned by all later calls
    uint64_t pending = 0, pending_of_null = 0;
};

namespace queue {

// Executed on the queue's thread; returns its error and adds its time to `ns`.
using Work = std::function<CUresult(double& ns)>;

struct Operation {
    Work work;
    CUgraphNodeType type;
    std::vector<size_t> after;  // operations of the same graph that it depends on
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
    std::thread::id thread;  // that began the capture
    bool invalid = false;
    std::set<CUstream> joined, unjoined;  // `unjoined`: with work that the origin has not waited for
    std::map<CUstream, std::vector<size_t>> last;  // by stream: operations that its next one depends on
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
    uint64_t recorded = 0, reached = 0;  // how often it was queued and executed
    double time_ns = 0;
    Capture* capture = nullptr;  // the capture in which it was recorded
    CUstream captured_on = nullptr;
    std::vector<size_t> captured_after;
};

namespace queue {

struct Entry {
    CUcontext context;
    CUstream stream;
    Work work;
    CUevent event = nullptr;  // waits until this event was reached so many times
    uint64_t times = 0;
};

// Never destroyed: the queue's thread waits on them while the process exits.
inline std::mutex& lock = *new std::mutex;
inline std::condition_variable &came = *new std::condition_variable, &went = *new std::condition_variable;
inline std::deque<Entry>& waiting = *new std::deque<Entry>;
inline double clock_ns = 1e6;
inline std::string& last_fault = *new std::string;  // the last error of a kernel, as a sentence

inline int awaited = 0;  // host calls that are waiting
inline thread_local bool in_callback = false;  // a host function of the program is running on the queue's thread

// Whether `later` must not begin before `entry` has ended.
inline bool comes_first(const Entry& entry, const Entry& later) {
    if (entry.context != later.context) return false;
    if (entry.stream == later.stream) return true;
    const CUstream other = entry.stream ? entry.stream : later.stream;  // the one that is not the legacy stream
    return (!entry.stream || !later.stream) && !(other->flags & CU_STREAM_NON_BLOCKING);
}

inline bool may_begin(size_t n) {
    const Entry& entry = waiting[n];
    const bool lost = entry.context->error != CUDA_SUCCESS;  // its work is not executed any more
    if (entry.event && entry.event->reached < entry.times && !lost) return false;
    for (size_t before = 0; before < n; before++)
        if (comes_first(waiting[before], entry)) return false;
    return true;
}

// Index of the entry to execute next. Other orders are possible only if several entries are queued, so this
// waits a little for more, unless the host is waiting.
inline size_t choose(std::unique_lock<std::mutex>& hold) {
    if (!virtual_clock::shuffles()) return 0;
    for (size_t seen = 0; seen != waiting.size() && !awaited;) {
        seen = waiting.size();
        came.wait_for(hold, std::chrono::milliseconds(2), [] { return awaited > 0; });
    }
    std::vector<size_t> possible;
    for (size_t n = 0; n < waiting.size(); n++)
        if (may_begin(n)) possible.push_back(n);
    // None possible: they wait for an event of a lost context.
    return possible.empty() ? 0 : possible[virtual_clock::draw(possible.size())];
}

inline void work_off() {
    std::unique_lock<std::mutex> hold(lock);
    for (;;) {
        came.wait(hold, [] { return !waiting.empty(); });
        const size_t next = choose(hold);
        Entry entry = std::move(waiting[next]);
        waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(next));
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

inline void push(CUcontext context, CUstream stream, Work work, CUevent event = nullptr, uint64_t times = 0) {
    static const bool started = [] {
        std::thread(work_off).detach();  // ends with the process, even while it executes
        return true;
    }();
    (void)started;
    std::lock_guard<std::mutex> hold(lock);
    context->pending++;
    if (stream) stream->pending++;
    else context->pending_of_null++;
    waiting.push_back({context, stream, std::move(work), event, times});
    came.notify_one();
}

// The legacy default stream and all blocking streams wait for each other.
inline bool is_idle(CUcontext context, CUstream stream) {
    if (stream) return stream->pending == 0;
    if (context->pending_of_null) return false;
    for (const CUstream each : context->streams)
        if (!(each->flags & CU_STREAM_NON_BLOCKING) && each->pending) return false;
    return true;
}

// Blocks the host until the condition is true.
template <typename F>
CUresult wait_until(CUcontext context, std::unique_lock<std::mutex>& hold, F is_so) {
    awaited++;
    came.notify_all();
    went.wait(hold, is_so);
    awaited--;
    return context->error;
}

inline CUresult wait(CUcontext context, CUstream stream) {
    std::unique_lock<std::mutex> hold(lock);
    return wait_until(context, hold, [&] { return is_idle(context, stream); });
}

inline CUresult wait_all(CUcontext context) {
    std::unique_lock<std::mutex> hold(lock);
    return wait_until(context, hold, [&] { return context->pending == 0; });
}

// A graph's operations, in an order that its dependencies allow.
inline std::vector<size_t> order_of(const std::vector<Operation>& operations) {
    std::vector<size_t> order, left(operations.size());
    for (size_t n = 0; n < left.size(); n++) left[n] = n;
    std::vector<bool> done(operations.size());
    while (!left.empty()) {
        size_t chosen = 0;
        if (virtual_clock::shuffles()) {
            std::vector<size_t> possible;
            for (size_t k = 0; k < left.size(); k++) {
                bool ready = true;
                for (const size_t first : operations[left[k]].after) ready = ready && done[first];
                if (ready) possible.push_back(k);
            }
            chosen = possible[virtual_clock::draw(possible.size())];
        }
        order.push_back(left[chosen]), done[left[chosen]] = true;
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    return order;
}

}  // namespace queue
