// Streams, events, captures and graphs. Included by driver.cpp.

namespace driver {

// Waiting for a stream or asking it while it captures ends the capture with an error.
inline CUresult refuse_capturing(CUstream stream) {
    stream = stream_of(stream);
    if (!stream || !stream->capture) return CUDA_SUCCESS;
    invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace driver

#define STREAM(s) \
    CONTEXT \
    s = driver::stream_of(s); \
    if (!driver::is_stream(context, s)) return CUDA_ERROR_INVALID_HANDLE;

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
    CONTEXT REQUIRE(out && !(flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)))
    *out = new CUstream_st{context, flags, std::clamp(priority, -5, 0)};
    std::lock_guard<std::mutex> hold(queue::lock);
    context->streams.insert(*out);
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* out, unsigned flags) { return cuStreamCreateWithPriority(out, flags, 0); }

CUresult cuStreamDestroy(CUstream stream) {
    STARTED
    const CUcontext context = driver::current();
    if (!context) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stream || !driver::is_stream(context, stream)) return CUDA_ERROR_INVALID_HANDLE;
    std::unique_lock<std::mutex> hold(queue::lock);
    context->streams.erase(stream);  // the object stays: work that is queued refers to it
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned* flags) {
    STREAM(stream) REQUIRE(flags)
    *flags = stream ? stream->flags : 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetPriority(CUstream stream, int* priority) {
    STREAM(stream) REQUIRE(priority)
    *priority = stream ? stream->priority : 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetCtx(CUstream stream, CUcontext* out) {
    STREAM(stream) REQUIRE(out)
    *out = context;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
    STREAM(stream) REQUIRE(id)
    *id = reinterpret_cast<unsigned long long>(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
    STREAM(stream)
    if (const CUresult why_not = driver::refuse_capturing(stream)) return why_not;
    return queue::wait(context, stream);
}

CUresult cuStreamQuery(CUstream stream) {
    STREAM(stream)
    if (const CUresult why_not = driver::refuse_capturing(stream)) return why_not;
    std::lock_guard<std::mutex> hold(queue::lock);
    if (context->error != CUDA_SUCCESS) return context->error;
    return queue::is_idle(context, stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
    CONTEXT REQUIRE(function)
    return driver::enqueue(context, stream, CU_GRAPH_NODE_TYPE_HOST, [=](double&) {
        function(data);
        return CUDA_SUCCESS;
    });
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void* data, unsigned flags) {
    CONTEXT REQUIRE(function && !flags)
    if (const CUresult why_not = driver::refuse_capturing(stream)) return why_not;
    return driver::enqueue(context, stream, CU_GRAPH_NODE_TYPE_HOST, [=](double&) {
        function(stream, CUDA_SUCCESS, data);
        return CUDA_SUCCESS;
    });
}

// ---- events ----

CUresult cuEventCreate(CUevent* out, unsigned flags) {
    CONTEXT REQUIRE(out && flags < 8 && (!(flags & CU_EVENT_INTERPROCESS) || flags & CU_EVENT_DISABLE_TIMING))
    *out = new CUevent_st{context, flags};
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    STARTED REQUIRE(event)
    event->context = nullptr;  // the object stays: work that is queued refers to it
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    STREAM(stream)
    if (!event || !event->context) return CUDA_ERROR_INVALID_HANDLE;
    if (event->context != context) return CUDA_ERROR_INVALID_CONTEXT;
    if (stream && stream->capture) {
        std::lock_guard<std::mutex> hold(queue::lock);
        event->capture = stream->capture, event->captured_on = stream;
        event->captured_after = stream->capture->last[stream];
        return CUDA_SUCCESS;
    }
    uint64_t number;
    {
        std::lock_guard<std::mutex> hold(queue::lock);
        event->capture = nullptr;
        number = ++event->recorded;
    }
    return driver::enqueue(context, stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [=](double&) {
        std::lock_guard<std::mutex> hold(queue::lock);
        event->reached = number, event->time_ns = queue::clock_ns;
        virtual_clock::begin_sample();
        return CUDA_SUCCESS;
    });
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) { return cuEventRecord(event, stream); }

CUresult cuEventQuery(CUevent event) {
    CONTEXT
    if (!event || !event->context) return CUDA_ERROR_INVALID_HANDLE;
    std::lock_guard<std::mutex> hold(queue::lock);
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    return event->reached == event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    CONTEXT
    if (!event || !event->context) return CUDA_ERROR_INVALID_HANDLE;
    std::unique_lock<std::mutex> hold(queue::lock);
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    return queue::wait_until(context, hold, [&] { return event->reached == event->recorded || context->error != CUDA_SUCCESS; });
}

CUresult cuEventElapsedTime(float* ms, CUevent begin, CUevent end) {
    CONTEXT REQUIRE(ms)
    std::lock_guard<std::mutex> hold(queue::lock);
    for (CUevent event : {begin, end}) {
        if (!event || !event->context || !event->recorded || event->flags & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
        if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
        if (event->reached != event->recorded) return CUDA_ERROR_NOT_READY;
    }
    *ms = static_cast<float>((end->time_ns - begin->time_ns) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    STREAM(stream) REQUIRE(flags <= CU_EVENT_WAIT_EXTERNAL)
    if (!event || !event->context) return CUDA_ERROR_INVALID_HANDLE;
    std::unique_lock<std::mutex> hold(queue::lock);
    if (event->capture) {
        Capture* capture = event->capture;
        if (!stream) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        if (stream->capture && stream->capture != capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        stream->capture = capture;
        if (stream != capture->origin) capture->joined.insert(stream), capture->unjoined.insert(stream);
        capture->unjoined.erase(event->captured_on);
        std::vector<size_t>& last = capture->last[stream];
        last.insert(last.end(), event->captured_after.begin(), event->captured_after.end());
    } else if (stream && stream->capture && event->recorded) {
        driver::invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    } else if (const uint64_t times = event->recorded) {
        hold.unlock();
        queue::push(context, stream, [](double&) { return CUDA_SUCCESS; }, event, times);
    }
    return CUDA_SUCCESS;
}

// ---- captures and graphs ----

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
    STREAM(stream)
    if (!stream) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    REQUIRE(mode <= CU_STREAM_CAPTURE_MODE_RELAXED)
    std::lock_guard<std::mutex> hold(queue::lock);
    if (stream->capture) {
        driver::invalidate(stream->capture);
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    static unsigned long long number = 0;
    stream->capture = new Capture{new CUgraph_st, stream, mode, false, {}, {}, {}, ++number};
    driver::captures.insert(stream->capture);
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* out) {
    STREAM(stream) REQUIRE(out)
    *out = nullptr;
    std::lock_guard<std::mutex> hold(queue::lock);
    Capture* capture = stream ? stream->capture : nullptr;
    if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (stream != capture->origin) {
        driver::invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    for (CUstream each : capture->joined) each->capture = nullptr;
    stream->capture = nullptr;
    driver::captures.erase(capture);  // the object stays: events may name it
    if (capture->invalid || !capture->unjoined.empty()) {
        delete capture->graph;
        return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    *out = capture->graph;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    STREAM(stream) REQUIRE(status)
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (stream && stream->capture)
        *status = stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    STARTED REQUIRE(mode)
    static thread_local CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::swap(now, *mode);
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
    STARTED REQUIRE(out && !flags)
    *out = new CUgraph_st;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    STARTED REQUIRE(graph)
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    STARTED REQUIRE(graph && count)
    if (nodes)
        for (size_t n = 0; n < std::min(*count, graph->operations.size()); n++) nodes[n] = reinterpret_cast<CUgraphNode>(&graph->operations[n]);
    *count = graph->operations.size();
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
    STARTED REQUIRE(node && type)
    *type = reinterpret_cast<queue::Operation*>(node)->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
    CONTEXT REQUIRE(out && graph)
    if (flags & ~static_cast<unsigned long long>(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
        return driver::missing("cuGraphInstantiate with these flags");
    *out = new CUgraphExec_st{std::make_shared<const std::vector<queue::Operation>>(graph->operations)};
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    REQUIRE(parameters)
    return cuGraphInstantiateWithFlags(out, graph, parameters->flags);
}

CUresult cuGraphExecDestroy(CUgraphExec graph) {
    STARTED REQUIRE(graph)
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) {
    STREAM(stream) REQUIRE(graph)
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    CONTEXT REQUIRE(graph)
    return driver::enqueue(context, stream, CU_GRAPH_NODE_TYPE_GRAPH, [operations = graph->operations](double& ns) {
        for (const size_t n : queue::order_of(*operations))
            if (const CUresult found = (*operations)[n].work(ns)) return found;
        return CUDA_SUCCESS;
    });
}

}  // extern "C"
