// Sums over a row of an accumulator of mma or wgmma, which 4 neighbouring lanes of a warp share.
#pragma once

constexpr unsigned FULL_WARP = 0xffffffffu;

// Maximum and sum over the 4 neighbouring lanes that hold one row; all of them get it.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}
