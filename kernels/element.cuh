// The 16-bit element type of Q, K, V and O, chosen by -D IS_BF16, and its conversions.
// Both formats convert to float exactly; only the way back rounds (to nearest even). sm_75 has no
// BF16 instructions: cuda_bf16.h converts there with shifts, so the same source serves it.
#pragma once

#if IS_BF16
#include <cuda_bf16.h>
using element = __nv_bfloat16;
using element2 = __nv_bfloat162;

__device__ __forceinline__ float to_float(element x) { return __bfloat162float(x); }
__device__ __forceinline__ float2 to_float2(element2 x) { return __bfloat1622float2(x); }
__device__ __forceinline__ element to_element(float x) { return __float2bfloat16_rn(x); }
__device__ __forceinline__ element2 to_element2(float x, float y) {
    return __floats2bfloat162_rn(x, y);
}
#else
#include <cuda_fp16.h>
using element = __half;
using element2 = __half2;

__device__ __forceinline__ float to_float(element x) { return __half2float(x); }
__device__ __forceinline__ float2 to_float2(element2 x) { return __half22float2(x); }
__device__ __forceinline__ element to_element(float x) { return __float2half_rn(x); }
__device__ __forceinline__ element2 to_element2(float x, float y) {
    return __floats2half2_rn(x, y);
}
#endif

// Eight elements that move as one 16-byte load or store, the widest there is.
struct alignas(16) element8 {
    element at[8];
};

#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif
