#pragma once
#include "detail/warp.cuh"

// Sum over a warp; macros hold the execution space, as in many libraries.
#define ATTN_DEVICE __device__ __forceinline__
ATTN_DEVICE float warp_sum(float x) {
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) x += attn::shuffle_xor(x, lane_mask);
    return x;
}
