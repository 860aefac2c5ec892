// The 16-bit element type of Q, K, V and O, chosen by -D IS_BF16, and its conversions.
// Both formats convert to float exactly; only the way back rounds (to nearest even). sm_75 has no
// BF16 instructions: cuda_bf16.h converts there with shifts, so the same source serves it.
#pragma once

#if IS_BF16
#include <cuda_bf16.h>
using element = __nv_bfloat16;

__device__ __forceinline__ float to_float(element x) { return __bfloat162float(x); }
__device__ __forceinline__ element to_element(float x) { return __float2bfloat16_rn(x); }
#else
#include <cuda_fp16.h>
using element = __half;

__device__ __forceinline__ float to_float(element x) { return __half2float(x); }
__device__ __forceinline__ element to_element(float x) { return __float2half_rn(x); }
#endif

// COUNT neighbouring elements that move as one load or store: 8 make the widest, 16 bytes.
template <int COUNT>
struct alignas(COUNT * sizeof(element)) Elements {
    element at[COUNT];
};

#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif
