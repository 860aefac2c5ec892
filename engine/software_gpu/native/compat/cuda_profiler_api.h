// Two functions that CuPy names and NVIDIA's wheel of headers leaves out (CUDA runtime API, profiler
// control).
#pragma once
#include <cuda_runtime_api.h>
extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();
