// The parts of <cuda.h> that kernels use, for NVRTC, which does not accept declarations of host
// functions.
#pragma once
#include "attune/standard.h"

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef unsigned long long CUdeviceptr;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct alignas(64) CUtensorMap_st {
    cuuint64_t opaque[16];
} CUtensorMap;
