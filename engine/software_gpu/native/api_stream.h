// Streams, events, captures and graphs. Included by driver.cpp.

namespace driver {

// Synchronising or querying a stream during its capture ends the capture with an error.
inline CUresult refuse_capturing(CUstream stream) {
    stream = stream_of(stream);
    if (!stream || !stream->capture) return CUDA_SUCCESS;
    invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

}  // namespace driver

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
    context->streams.erase(stream);  // the object is kept: queued work refers to it
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
        queue::in_callback = true;
        function(data);
        queue::in_callback = false;
        return CUDA_SUCCESS;
    });
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void* data, unsigned flags) {
    STREAM(stream) REQUIRE(function && !flags)
    if (const CUresult why_not = driver::refuse_capturing(stream)) return why_not;
    return driver::enqueue(context, stream, CU_GRAPH_NODE_TYPE_HOST, [=](double&) {
        queue::in_callback = true;
        function(stream, CUDA_SUCCESS, data);
        queue::in_callback = false;
        return CUDA_SUCCESS;
    });
}

// ---- events ----

CUresult cuEventCreate(CUevent* out, unsigned flags) {
    CONTEXT REQUIRE(out && flags < 8 && (!(flags & CU_EVENT_INTERPROCESS) || flags & CU_EVENT_DISABLE_TIMING))
    *out = driver::events.add(new CUevent_st{context, flags});
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
    STARTED
    // The object is kept: queued work refers to it.
    return driver::events.remove(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
    STREAM(stream) HANDLE(events, event)
    if (event->context != context) return CUDA_ERROR_INVALID_HANDLE;
    if (stream && stream->capture) {
        std::lock_guard<std::mutex> hold(queue::lock);
        if (stream->capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
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
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    CONTEXT REQUIRE(flags <= CU_EVENT_RECORD_EXTERNAL)
    if (!flags) return cuEventRecord(event, stream);
    REQUIRE(driver::is_stream(context, driver::stream_of(stream)) && driver::captures_now(stream))
    return driver::missing("cuEventRecordWithFlags of an external event");
}

CUresult cuEventQuery(CUevent event) {
    CONTEXT HANDLE(events, event)
    std::lock_guard<std::mutex> hold(queue::lock);
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    return event->reached == event->recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
    CONTEXT HANDLE(events, event)
    std::unique_lock<std::mutex> hold(queue::lock);
    if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
    return queue::wait_until(context, hold, [&] { return event->reached == event->recorded || event->context->error != CUDA_SUCCESS; });
}

CUresult cuEventElapsedTime(float* ms, CUevent begin, CUevent end) {
    CONTEXT REQUIRE(ms)
    std::lock_guard<std::mutex> hold(queue::lock);
    for (CUevent event : {begin, end}) {
        HANDLE(events, event)
        if (!event->recorded || event->flags & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
        if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
        if (event->reached != event->recorded) return CUDA_ERROR_NOT_READY;
    }
    *ms = static_cast<float>((end->time_ns - begin->time_ns) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    STREAM(stream) HANDLE(events, event) REQUIRE(flags <= CU_EVENT_WAIT_EXTERNAL && (!flags || driver::captures_now(stream)))
    if (flags) return driver::missing("cuStreamWaitEvent for an external event");
    std::unique_lock<std::mutex> hold(queue::lock);
    if (event->capture) {
        Capture* capture = event->capture;
        if (!driver::captures.count(capture)) return CUDA_ERROR_CAPTURED_EVENT;  // the capture has ended
        if (!stream) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        if (stream->capture && stream->capture != capture) {
            driver::invalidate(stream->capture), driver::invalidate(capture);
            return CUDA_ERROR_STREAM_CAPTURE_MERGE;
        }
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
    stream->capture = new Capture{new CUgraph_st, stream, mode, std::this_thread::get_id(), false, {}, {}, {}, ++number};
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
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != std::this_thread::get_id()) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    for (CUstream each : capture->joined) each->capture = nullptr;
    stream->capture = nullptr;
    driver::captures.erase(capture);  // the object is kept: events may refer to it
    if (capture->invalid || !capture->unjoined.empty()) {
        delete capture->graph;
        return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    }
    *out = driver::graphs.add(capture->graph);
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
    STARTED REQUIRE(mode && static_cast<unsigned>(*mode) <= CU_STREAM_CAPTURE_MODE_RELAXED)
    std::swap(driver::interaction, *mode);
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
    STARTED REQUIRE(out && !flags)
    *out = driver::graphs.add(new CUgraph_st);
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph) {
    STARTED REQUIRE(driver::graphs.remove(graph))
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    STARTED REQUIRE(driver::graphs.has(graph) && count)
    if (nodes)
        for (size_t n = 0; n < std::min(*count, graph->operations.size()); n++) nodes[n] = reinterpret_cast<CUgraphNode>(&graph->operations[n]);
    *count = graph->operations.size();
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
    STARTED REQUIRE(type)
    for (const CUgraph graph : driver::graphs.all())
        for (const queue::Operation& each : graph->operations)
            if (reinterpret_cast<CUgraphNode>(const_cast<queue::Operation*>(&each)) == node) {
                *type = each.type;
                return CUDA_SUCCESS;
            }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
    CONTEXT REQUIRE(out && driver::graphs.has(graph))
    if (flags & ~static_cast<unsigned long long>(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
        return driver::missing("cuGraphInstantiate with these flags");
    *out = driver::executables.add(new CUgraphExec_st{std::make_shared<const std::vector<queue::Operation>>(graph->operations)});
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    CONTEXT REQUIRE(parameters)
    parameters->hErrNode_out = nullptr;
    const bool uploads = parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    const bool streams = !uploads || driver::is_stream(context, driver::stream_of(parameters->hUploadStream));
    const CUresult made = streams ? cuGraphInstantiateWithFlags(out, graph, parameters->flags) : CUDA_ERROR_INVALID_VALUE;
    parameters->result_out = made ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return made;
}

CUresult cuGraphExecDestroy(CUgraphExec graph) {
    STARTED REQUIRE(driver::executables.remove(graph))
    delete graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec graph, CUstream stream) {
    STREAM(stream) REQUIRE(driver::executables.has(graph))
    return CUDA_SUCCESS;
}

CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    CONTEXT REQUIRE(driver::executables.has(graph))
    return driver::enqueue(context, stream, CU_GRAPH_NODE_TYPE_GRAPH, [operations = graph->operations](double& ns) {
        for (const size_t n : queue::order_of(*operations))
            if (const CUresult found = (*operations)[n].work(ns)) return found;
        return CUDA_SUCCESS;
    });
}

}  // extern "C"
