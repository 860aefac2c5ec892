// K and V in FP8: bytes of E4M3 become operands of an mma in FP16 or BF16, exactly.
//
// Moved to the exponent and mantissa of FP16, the bits of an E4M3 number are its value over 2^8,
// subnormal ones included: no conversion instruction, on any arch. FP8_UNIT is the factor that
// makes up for it, once for all products. In BF16 it would be 2^120, and sums of uncorrected
// products too small for FP32, so there each pair is multiplied by it.
#pragma once
#include "element.cuh"

#if HAS_KV_FP8
#if IS_BF16
#define FP8_UNIT 1.0f
#else
#define FP8_UNIT 256.0f
#endif

// Converts two bytes, each the upper half of 16 bits, to two elements.
__device__ __forceinline__ unsigned widened(unsigned upper) {
    const unsigned sign = upper & 0x80008000u;
#if IS_BF16
    union {
        __nv_bfloat162 elements;
        unsigned bits;
    } pair;
    pair.bits = sign | (upper & 0x7f007f00u) >> 4;
    pair.elements = __hmul2(pair.elements, __float2bfloat162_rn(0x1p120f));
    return pair.bits;
#else
    return sign | (upper & 0x7f007f00u) >> 1;
#endif
}

// Converts two of four bytes: the first two, the last two, the even ones, the odd ones.
__device__ __forceinline__ unsigned widened_low(unsigned bytes) {
    return widened(__byte_perm(bytes, 0, 0x1404));
}
__device__ __forceinline__ unsigned widened_high(unsigned bytes) {
    return widened(__byte_perm(bytes, 0, 0x3424));
}
__device__ __forceinline__ unsigned widened_even(unsigned bytes) {
    return widened(__byte_perm(bytes, 0, 0x2404));
}
__device__ __forceinline__ unsigned widened_odd(unsigned bytes) {
    return widened(__byte_perm(bytes, 0, 0x3414));
}

// Swizzle of a row of HEAD_DIM bytes, see v09; rows 8 apart have the same.
#define SPREAD_OF(row) \
    (HEAD_DIM % 128 == 0 ? row % 8 : HEAD_DIM % 64 == 0 ? row / 2 % 4 : row / 4 % 2)
// Columns of a fragment of Q: four neighbouring ones to a lane.
#define Q_COLUMN(pair) (2 * (pair))
#define HALF_OF_Q(half) ((half) * 2)
#else
#define SPREAD_OF(row) (HEAD_DIM % 64 == 0 ? row % 8 : row / 2 % 4)
#define Q_COLUMN(pair) (pair)
#define HALF_OF_Q(half) ((half) * 8)
#endif
