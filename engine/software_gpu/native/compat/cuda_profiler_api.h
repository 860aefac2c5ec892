// Two functions that CuPy uses and that NVIDIA's wheel of headers lacks (CUDA runtime API, profiler
// control).
#pragma once
#include <cuda_runtime_api.h>
extern "C" cudaError_t cudaProfilerStart();
extern "C" cudaError_t cudaProfilerStop();
