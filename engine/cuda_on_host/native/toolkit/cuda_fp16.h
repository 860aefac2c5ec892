// __half, __half2 and their functions.
#pragma once

#define COH_H __half
#define COH_H2 __half2
#define COH_RAW __half_raw
#define COH_RAW2 __half2_raw
#define COH_OTHER __nv_bfloat16
#define COH_FORMAT coh::ptx::F16
#define COH_TO(KIND, MODE) __half2##KIND##_##MODE
#define COH_FROM(KIND, MODE) __##KIND##2half_##MODE
#include "half_functions.h"

typedef __half half;
typedef __half2 half2;
typedef __half nv_half;
typedef __half2 nv_half2;

// Functions that do not fit COH_FROM's pattern, or are named differently from BF16's.
COH_INLINE float __half2float(__half h) { return coh::half_to_float(h.__x); }
COH_INLINE __half __float2half(float f) { return __half(f); }
COH_INLINE __half __double2half(double d) { return __half(d); }
COH_INLINE __half __float2half_rn(float f) { return __half(f); }
COH_INLINE __half2 __float2half2_rn(float f) { return __half2(f, f); }
COH_INLINE __half2 __floats2half2_rn(float low, float high) { return __half2(low, high); }
COH_INLINE __half2 __float22half2_rn(float2 f) { return __half2(f.x, f.y); }
COH_INLINE float2 __half22float2(__half2 h) { return coh::to_float2(h); }
COH_INLINE short __half_as_short(__half h) { return (short)h.__x; }
COH_INLINE unsigned short __half_as_ushort(__half h) { return h.__x; }
COH_INLINE __half __short_as_half(short i) { return __half_raw{(unsigned short)i}; }
COH_INLINE __half __ushort_as_half(unsigned short i) { return __half_raw{i}; }
COH_INLINE __half2 __half2half2(__half a) { return __half2(a, a); }
COH_INLINE __half2 make_half2(__half low, __half high) { return __half2(low, high); }
COH_INLINE __half __low2half(__half2 a) { return a.x; }
COH_INLINE __half __high2half(__half2 a) { return a.y; }
COH_INLINE __half2 __halves2half2(__half low, __half high) { return __half2(low, high); }
COH_INLINE __half2 __lows2half2(__half2 a, __half2 b) { return __half2(a.x, b.x); }
COH_INLINE __half2 __highs2half2(__half2 a, __half2 b) { return __half2(a.y, b.y); }
COH_INLINE __half2 __low2half2(__half2 a) { return __half2(a.x, a.x); }
COH_INLINE __half2 __high2half2(__half2 a) { return __half2(a.y, a.y); }

#define CUDART_INF_FP16 __ushort_as_half((unsigned short)0x7C00U)
#define CUDART_NAN_FP16 __ushort_as_half((unsigned short)0x7FFFU)
#define CUDART_MIN_DENORM_FP16 __ushort_as_half((unsigned short)0x0001U)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half((unsigned short)0x7BFFU)
#define CUDART_NEG_ZERO_FP16 __ushort_as_half((unsigned short)0x8000U)
#define CUDART_ZERO_FP16 __ushort_as_half((unsigned short)0x0000U)
#define CUDART_ONE_FP16 __ushort_as_half((unsigned short)0x3C00U)
