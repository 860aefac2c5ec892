// __nv_bfloat16, __nv_bfloat162 and their functions, as in cuda_fp16.h.
#pragma once

#include "cuda_fp16.h"

#define COH_H __nv_bfloat16
#define COH_H2 __nv_bfloat162
#define COH_RAW __nv_bfloat16_raw
#define COH_RAW2 __nv_bfloat162_raw
#define COH_OTHER __half
#define COH_FORMAT coh::ptx::BF16
#define COH_TO(KIND, MODE) __bfloat162##KIND##_##MODE
#define COH_FROM(KIND, MODE) __##KIND##2bfloat16_##MODE
#include "half_functions.h"

// Conversions between the two formats.
__attribute__((always_inline)) inline __half::__half(const __nv_bfloat16 &other)
    : __half((float)other) {}
__attribute__((always_inline)) inline __nv_bfloat16::__nv_bfloat16(const __half &other)
    : __nv_bfloat16((float)other) {}

typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;

COH_INLINE float __bfloat162float(__nv_bfloat16 h) { return coh::bfloat16_to_float(h.__x); }
COH_INLINE __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
COH_INLINE __nv_bfloat16 __double2bfloat16(double d) { return __nv_bfloat16(d); }
COH_INLINE __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
COH_INLINE __nv_bfloat162 __float2bfloat162_rn(float f) { return __nv_bfloat162(f, f); }
COH_INLINE __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
    return __nv_bfloat162(low, high);
}
COH_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 f) { return __nv_bfloat162(f.x, f.y); }
COH_INLINE float2 __bfloat1622float2(__nv_bfloat162 h) { return coh::to_float2(h); }
COH_INLINE short __bfloat16_as_short(__nv_bfloat16 h) { return (short)h.__x; }
COH_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 h) { return h.__x; }
COH_INLINE __nv_bfloat16 __short_as_bfloat16(short i) {
    return __nv_bfloat16_raw{(unsigned short)i};
}
COH_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short i) { return __nv_bfloat16_raw{i}; }
COH_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return __nv_bfloat162(a, a); }
COH_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) {
    return __nv_bfloat162(low, high);
}
COH_INLINE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 a) { return a.x; }
COH_INLINE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 a) { return a.y; }
COH_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) {
    return __nv_bfloat162(low, high);
}
COH_INLINE __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) {
    return __nv_bfloat162(a.x, b.x);
}
COH_INLINE __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) {
    return __nv_bfloat162(a.y, b.y);
}
COH_INLINE __nv_bfloat162 __low2bfloat162(__nv_bfloat162 a) { return __nv_bfloat162(a.x, a.x); }
COH_INLINE __nv_bfloat162 __high2bfloat162(__nv_bfloat162 a) { return __nv_bfloat162(a.y, a.y); }

#define CUDART_INF_BF16 __ushort_as_bfloat16((unsigned short)0x7F80U)
#define CUDART_NAN_BF16 __ushort_as_bfloat16((unsigned short)0x7FFFU)
#define CUDART_MIN_DENORM_BF16 __ushort_as_bfloat16((unsigned short)0x0001U)
#define CUDART_MAX_NORMAL_BF16 __ushort_as_bfloat16((unsigned short)0x7F7FU)
#define CUDART_NEG_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x8000U)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16((unsigned short)0x0000U)
#define CUDART_ONE_BF16 __ushort_as_bfloat16((unsigned short)0x3F80U)
