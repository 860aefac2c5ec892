// Calls the software GPU's driver with live, freed and invalid handles and with sizes and flags at
// their limits, in an order drawn by a seed: `driver_fuzz CUBIN CALLS SEED`. The driver is compiled
// into this program, so that a sanitizer sees its memory. Calls that CUDA leaves undefined (invalid
// host pointers) are left out. It prints how many calls succeeded and how many were refused.
#include "../../engine/software_gpu/native/driver.cpp"

#include <fstream>
#include <iterator>

namespace {

std::mt19937_64 chance;

size_t draw(size_t count) { return chance() % count; }

// Handles of one kind: live and freed ones, and values that never were handles.
template <typename T>
struct Kind {
    std::vector<T> made;
    T any() {
        if (made.empty() || !draw(8)) return draw(2) ? T{} : reinterpret_cast<T>(0x1230 + 16 * draw(4));
        return made[draw(2) ? made.size() - 1 : draw(made.size())];
    }
};

template <>
CUdeviceptr Kind<CUdeviceptr>::any() {
    static const CUdeviceptr NOBODYS[] = {0, 1, 0x7fffffffffff, memory::FIRST_ADDRESS - 1, ~0ull, ~0ull - 3};
    if (made.empty() || !draw(8)) return NOBODYS[draw(6)];
    static const CUdeviceptr BESIDE[] = {0, 0, 0, 1, 4, 64, 4095};
    return made[draw(2) ? made.size() - 1 : draw(made.size())] + BESIDE[draw(7)];
}

Kind<CUcontext> contexts;
Kind<CUmodule> modules;
Kind<CUfunction> kernels;
Kind<CUstream> streams;
Kind<CUevent> events;
Kind<CUgraph> graphs;
Kind<CUgraphExec> executables;
Kind<CUgraphNode> nodes;
Kind<CUmemoryPool> pools;
Kind<CUdeviceptr> places;

alignas(64) char host[1 << 16];

// Sizes of memory that the host has, and sizes too large for any host.
size_t size() {
    static const size_t SIZES[] = {0, 1, 3, 4, 127, 128, 4096, 1 << 16, size_t{1} << 40, size_t{1} << 62, ~size_t{0}, ~size_t{0} - 4095};
    return SIZES[draw(12)];
}
size_t size_on_host() { return std::min<size_t>(size(), sizeof host / 2); }
unsigned flags() { return draw(2) ? 0 : draw(2) ? unsigned(1) << draw(32) : unsigned(draw(8)); }
void* somewhere() { return draw(8) ? host + draw(sizeof host / 2) : nullptr; }
template <typename T>
T* out(T& to) { return draw(16) ? &to : nullptr; }
template <typename T>
T one_of(unsigned count) { return static_cast<T>(draw(32) ? draw(count) : chance()); }

template <typename T>
CUresult made(Kind<T>& kind, CUresult code, const T& value) {
    if (code == CUDA_SUCCESS) kind.made.push_back(value);
    return code;
}

CUresult launch() {
    CUdeviceptr place = places.any();
    int number = 5;
    void* arguments[] = {&place, draw(32) ? &number : nullptr};
    size_t packed = draw(2) ? 16 : size();
    char block[16] = {};
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, block, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed, CU_LAUNCH_PARAM_END};
    if (packed > sizeof block) packed = 0;
    auto few = [] { return draw(16) ? unsigned(1 + draw(2)) : unsigned(chance()) * unsigned(draw(2)); };
    const unsigned x = few(), y = few(), threads = draw(16) ? 32 : unsigned(chance());
    // Grids are small, so that launches are short.
    const unsigned grid_y = uint64_t{x} * y > 64 && threads <= 1024 && y <= 65535 ? 0 : y;
    if (draw(2)) return cuLaunchKernel(kernels.any(), x, grid_y, 1, threads, 1, 1, unsigned(size()), streams.any(), draw(8) ? arguments : nullptr, draw(4) ? nullptr : extra);
    CUlaunchAttribute attributes[2] = {};
    for (CUlaunchAttribute& each : attributes) {
        each.id = one_of<CUlaunchAttributeID>(12);
        each.value.clusterDim.x = few(), each.value.clusterDim.y = few(), each.value.clusterDim.z = few();
    }
    const CUlaunchConfig config{x, grid_y, 1, threads, 1, 1, 0, streams.any(), draw(8) ? attributes : nullptr, unsigned(draw(3))};
    return cuLaunchKernelEx(draw(32) ? &config : nullptr, kernels.any(), arguments, nullptr);
}

CUresult encode() {
    static const uint64_t NUMBERS[] = {0, 1, 8, 16, 64, 128, 256, 257, 1 << 20, uint64_t{1} << 31, uint64_t{1} << 40, ~0ull};
    cuuint64_t dims[5], strides[5];
    cuuint32_t box[5], steps[5];
    for (int n = 0; n < 5; n++) dims[n] = NUMBERS[draw(12)], strides[n] = NUMBERS[draw(12)], box[n] = unsigned(NUMBERS[draw(9)]), steps[n] = unsigned(draw(4));
    return cuTensorMapEncodeTiled(reinterpret_cast<CUtensorMap*>(host + 16 * draw(8)), one_of<CUtensorMapDataType>(17), unsigned(draw(7)), reinterpret_cast<void*>(places.any()), out(*dims), out(*strides), out(*box), out(*steps),
                                  one_of<CUtensorMapInterleave>(3), one_of<CUtensorMapSwizzle>(8), one_of<CUtensorMapL2promotion>(5), one_of<CUtensorMapFloatOOBfill>(3));
}

// From the start of a capture to launches of its graph; the kernel may have been unloaded by then.
CUresult capture() {
    const CUstream stream = streams.any();
    cuStreamBeginCapture(stream, one_of<CUstreamCaptureMode>(3));
    void* arguments[] = {nullptr, nullptr};
    CUdeviceptr place = places.any();
    int number = 5;
    arguments[0] = &place, arguments[1] = &number;
    cuLaunchKernel(kernels.any(), 1, 1, 1, 32, 1, 1, 0, stream, arguments, nullptr);
    CUgraph graph{};
    if (const CUresult code = made(graphs, cuStreamEndCapture(stream, &graph), graph)) return code;
    CUgraphExec executable{};
    made(executables, cuGraphInstantiateWithFlags(&executable, graph, 0), executable);
    return cuGraphLaunch(executable, stream);
}

void nothing(void*) { cuCtxSynchronize(); }
void nothing_of_a_stream(CUstream, CUresult, void*) { cuCtxSynchronize(); }

CUresult one_call(const std::vector<char>& cubin) {
    CUcontext context{};
    CUmodule module{};
    CUfunction kernel{};
    CUstream stream{};
    CUevent event{};
    CUgraph graph{};
    CUgraphExec executable{};
    CUmemoryPool pool{};
    CUdeviceptr place{};
    int number{};
    unsigned word{};
    size_t count = draw(4), bytes{};
    unsigned long long id{};
    float ms{};
    const char* text{};
    CUstreamCaptureStatus status{};
    CUstreamCaptureMode mode = one_of<CUstreamCaptureMode>(3);
    CUgraphNode found[4]{};
    CUgraphNodeType type{};
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters{draw(2) ? draw(16) : chance(), streams.any(), nullptr, {}};
    switch (draw(70)) {
#if CUDA_VERSION >= 13000
    case 0: return contexts.made.size() < 24 && !draw(6) ? made(contexts, cuCtxCreate(out(context), nullptr, flags(), int(draw(3))), context) : CUDA_SUCCESS;
#else
    case 0: return contexts.made.size() < 24 && !draw(6) ? made(contexts, cuCtxCreate(out(context), flags(), int(draw(3))), context) : CUDA_SUCCESS;
#endif
    case 1: return draw(16) ? CUDA_SUCCESS : cuCtxDestroy(contexts.any());
    case 2: case 3: return draw(4) ? CUDA_SUCCESS : cuCtxSetCurrent(contexts.any());
    case 4: return draw(4) ? CUDA_SUCCESS : cuCtxPushCurrent(contexts.any());
    case 5: return draw(4) ? CUDA_SUCCESS : cuCtxPopCurrent(out(context));
    case 6: return made(contexts, cuDevicePrimaryCtxRetain(out(context), int(draw(3)) - 1), context);
    case 7: return draw(16) ? CUDA_SUCCESS : cuDevicePrimaryCtxRelease(int(draw(3)) - 1);
    case 8: return cuCtxGetId(contexts.any(), out(id));
    case 9: return cuCtxGetApiVersion(contexts.any(), out(word));
    case 10: return modules.made.size() < 40 ? made(modules, cuModuleLoadDataEx(out(module), draw(16) ? cubin.data() : nullptr, unsigned(draw(2)), nullptr, nullptr), module) : CUDA_SUCCESS;
    case 11: return cuModuleUnload(modules.any());
    case 12: case 13: return made(kernels, cuModuleGetFunction(out(kernel), modules.any(), draw(8) ? "add" : "none"), kernel);
    case 14: return made(places, cuModuleGetGlobal(out(place), out(bytes), modules.any(), "total"), place);
    case 15: return cuFuncGetAttribute(out(number), one_of<CUfunction_attribute>(17), kernels.any());
    case 16: return cuFuncSetAttribute(kernels.any(), one_of<CUfunction_attribute>(17), int(size()));
    case 17: return cuFuncGetName(out(text), kernels.any());
    case 18: return cuFuncGetModule(out(module), kernels.any());
    case 19: return cuFuncSetCacheConfig(kernels.any(), one_of<CUfunc_cache>(4));
    case 20: return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(out(number), kernels.any(), int(draw(3000)) - 1, size(), flags());
    case 21: return cuOccupancyAvailableDynamicSMemPerBlock(out(bytes), kernels.any(), int(draw(40)) - 1, int(draw(3000)) - 1);
    case 22: return cuOccupancyMaxPotentialBlockSize(out(number), reinterpret_cast<int*>(out(word)), kernels.any(), nullptr, size(), int(draw(3000)) - 1);
    case 23: case 24: return made(places, cuMemAlloc(out(place), size()), place);
    case 25: return cuMemFree(places.any());
    case 26: return made(pools, cuDeviceGetDefaultMemPool(out(pool), int(draw(3)) - 1), pool);
    case 27: return made(places, cuMemAllocFromPoolAsync(out(place), size(), pools.any(), streams.any()), place);
    case 28: return made(places, cuMemAllocAsync(out(place), size(), streams.any()), place);
    case 29: return cuMemFreeAsync(places.any(), streams.any());
    case 30: return cuMemPoolGetAttribute(pools.any(), one_of<CUmemPool_attribute>(12), draw(16) ? static_cast<void*>(&id) : nullptr);
    case 31: return cuMemPoolTrimTo(pools.any(), size());
    case 32: return made(places, cuMemHostAlloc(reinterpret_cast<void**>(out(place)), size(), flags()), place);
    case 33: return made(places, cuMemAllocManaged(out(place), size(), flags()), place);
    case 34: return cuMemFreeHost(reinterpret_cast<void*>(places.any()));
    case 35: return cuMemHostRegister(somewhere(), size_on_host(), flags());
    case 36: return cuMemHostUnregister(somewhere());
    case 37: return cuMemHostGetDevicePointer(out(place), reinterpret_cast<void*>(places.any()), flags());
    case 38: return cuMemGetAddressRange(out(place), out(bytes), places.any());
    case 39: {
        uint64_t answer[2];
        return cuPointerGetAttribute(draw(16) ? answer : nullptr, one_of<CUpointer_attribute>(22), places.any());
    }
    case 40: return cuMemcpyHtoDAsync(places.any(), somewhere(), size_on_host(), streams.any());
    case 41: return cuMemcpyDtoHAsync(somewhere(), places.any(), size_on_host(), streams.any());
    case 42: return cuMemcpyDtoDAsync(places.any(), places.any(), size(), streams.any());
    case 43: return cuMemcpyHtoD(places.any(), somewhere(), size_on_host());
    case 44: return cuMemsetD32Async(places.any(), 7, size(), streams.any());
    case 45: return cuMemsetD8(places.any(), 7, size());
    case 46: return cuMemsetD16(places.any(), 7, size());
    case 47: return made(streams, cuStreamCreateWithPriority(out(stream), flags(), int(draw(20)) - 10), stream);
    case 48: return draw(4) ? CUDA_SUCCESS : cuStreamDestroy(streams.any());
    case 49: return draw(2) ? cuStreamSynchronize(streams.any()) : cuStreamQuery(streams.any());
    case 50: return draw(2) ? cuLaunchHostFunc(streams.any(), nothing, nullptr) : cuStreamAddCallback(streams.any(), nothing_of_a_stream, nullptr, flags());
    case 51: return made(events, cuEventCreate(out(event), flags()), event);
    case 52: return draw(4) ? CUDA_SUCCESS : cuEventDestroy(events.any());
    case 53: case 54: return cuEventRecordWithFlags(events.any(), streams.any(), flags());
    case 55: return draw(2) ? cuEventQuery(events.any()) : cuEventSynchronize(events.any());
    case 56: return cuEventElapsedTime(out(ms), events.any(), events.any());
    case 57: return cuStreamWaitEvent(streams.any(), events.any(), flags());
    case 58: return cuStreamBeginCapture(streams.any(), mode);
    case 59: return draw(2) ? cuStreamIsCapturing(streams.any(), out(status)) : cuThreadExchangeStreamCaptureMode(out(mode));
    case 60: return made(graphs, cuStreamEndCapture(streams.any(), out(graph)), graph);
    case 61: {
        const CUresult code = cuGraphGetNodes(graphs.any(), draw(4) ? found : nullptr, out(count));
        if (code == CUDA_SUCCESS) nodes.made.push_back(found[0]);
        return draw(2) ? code : cuGraphNodeGetType(nodes.any(), out(type));
    }
    case 62: return made(executables, cuGraphInstantiateWithParams(out(executable), graphs.any(), out(parameters)), executable);
    case 63: return draw(4) ? cuGraphLaunch(executables.any(), streams.any()) : draw(2) ? cuGraphExecDestroy(executables.any()) : cuGraphDestroy(graphs.any());
    case 64: return encode();
    case 65: case 66: return capture();
    default: return launch();
    }
}

}  // namespace

int main(int, char** given) {
    std::ifstream file(given[1], std::ios::binary);
    const std::vector<char> cubin{std::istreambuf_iterator<char>(file), {}};
    chance.seed(std::strtoull(given[3], nullptr, 10));
    if (cuInit(0) || cubin.size() < 64) return 2;
    size_t succeeded = 0, refused = 0;
    CUcontext context;
    for (long call = 0, calls = std::atol(given[2]); call < calls; call++) {
        // A faulting kernel makes its context unusable: now and then a new context is created.
        if (call % 50 == 0 && cuCtxGetCurrent(&context) == CUDA_SUCCESS && (!context || context->error)) {
#if CUDA_VERSION >= 13000
            if (cuCtxCreate(&context, nullptr, 0, 0)) return 3;
#else
            if (cuCtxCreate(&context, 0, 0)) return 3;
#endif
            contexts.made.push_back(context);
        }
        const CUresult code = one_call(cubin);
        const char* name = nullptr;
        if (cuGetErrorName(code, &name) || !name) return 4;  // not a code of CUDA
        (code == CUDA_SUCCESS ? succeeded : refused)++;
    }
    std::printf("{\"succeeded\": %zu, \"refused\": %zu, \"kernels\": %zu, \"graphs\": %zu}\n", succeeded, refused, kernels.made.size(), executables.made.size());
    std::fflush(stdout);
    _Exit(0);
}
