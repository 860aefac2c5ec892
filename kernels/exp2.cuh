// 2^x as one instruction of the special function unit. `__expf` multiplies by log2(e) first, and
// without ftz guards small results with three instructions more: kernels fold log2(e) into the
// softmax scale instead, so that a score costs one FFMA and this.
#pragma once

constexpr float LOG2_E = 1.4426950408889634f;

__device__ __forceinline__ float fast_exp2(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// 1 / x as one instruction; 0 for infinity.
__device__ __forceinline__ float fast_reciprocal(float x) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
    return reciprocal;
}
