// FP8: E4M3, E5M2, and the scale factors E8M0. Conversions round to nearest even, once.
#pragma once

#include "cuda_fp16.h"
#include "cuda_bf16.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };

namespace coh {

COH_INLINE __nv_fp8_storage_t to_fp8(float v, __nv_saturation_t saturation,
                                     __nv_fp8_interpretation_t kind) {
    const bool is_e4m3 = kind == __NV_E4M3;
    if (saturation == __NV_NOSAT) {
        // More than half a step above the largest number. NaN is handled by the conversion.
        const bool too_large = is_e4m3 ? fabsf(v) > 464.0f : fabsf(v) >= 61440.0f;
        if (too_large) return (is_e4m3 ? 0x7f : 0x7c) | (signbit(v) ? 0x80 : 0);
    }
    return is_e4m3 ? ptx::narrow_to_8_bits<ptx::E4M3>(v).bits
                   : ptx::narrow_to_8_bits<ptx::E5M2>(v).bits;
}
COH_INLINE float from_fp8(__nv_fp8_storage_t bits, __nv_fp8_interpretation_t kind) {
    return kind == __NV_E4M3 ? ptx::widen(ptx::E4M3{bits}) : ptx::widen(ptx::E5M2{bits});
}
// Converts to a power of two. Out of range: the largest one with saturation, otherwise NaN.
COH_INLINE __nv_fp8_storage_t to_e8m0(double v, __nv_saturation_t saturation, cudaRoundMode mode) {
    if (v != v) return 0xff;
    v = fabs(v);
    const bool is_infinite = v - v != 0;
    int exponent = 0;
    const double fraction = is_infinite ? 0.5 : frexp(v, &exponent);  // 2^(exponent - 1) <= v
    int bits = exponent - 1 + 127;
    const bool up = mode == cudaRoundPosInf ? fraction > 0.5
                    : mode == cudaRoundNearest ? fraction >= 0.75
                                               : false;
    if (up) bits++;
    if (v == 0 || bits < 0) return 0;
    if (is_infinite || bits > 254) return saturation == __NV_SATFINITE ? 254 : 0xff;
    return (__nv_fp8_storage_t)bits;
}
COH_INLINE float from_e8m0(__nv_fp8_storage_t bits) {
    return bits == 0xff ? NAN : ldexpf(1.0f, (int)bits - 127);
}

}  // namespace coh

COH_LAZY __nv_fp8_storage_t __nv_cvt_float_to_fp8(float v, __nv_saturation_t saturation,
                                                  __nv_fp8_interpretation_t kind) {
    return coh::to_fp8(v, saturation, kind);
}
COH_LAZY __nv_fp8_storage_t __nv_cvt_double_to_fp8(double v, __nv_saturation_t saturation,
                                                   __nv_fp8_interpretation_t kind) {
    return coh::to_fp8(coh::ptx::to_odd(v), saturation, kind);
}
COH_LAZY __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half_raw v, __nv_saturation_t saturation,
                                                    __nv_fp8_interpretation_t kind) {
    return coh::to_fp8((float)__half(v), saturation, kind);
}
COH_LAZY __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16_raw v,
                                                        __nv_saturation_t saturation,
                                                        __nv_fp8_interpretation_t kind) {
    return coh::to_fp8((float)__nv_bfloat16(v), saturation, kind);
}
#define COH_CONVERT_PAIR(NAME, PAIR, ONE, RAW)                                           \
    COH_LAZY __nv_fp8x2_storage_t NAME(PAIR v, __nv_saturation_t saturation,             \
                                       __nv_fp8_interpretation_t kind) {                 \
        return (__nv_fp8x2_storage_t)(ONE(RAW{v.x}, saturation, kind) |                  \
                                      ONE(RAW{v.y}, saturation, kind) << 8);             \
    }
COH_CONVERT_PAIR(__nv_cvt_float2_to_fp8x2, float2, __nv_cvt_float_to_fp8, float)
COH_CONVERT_PAIR(__nv_cvt_double2_to_fp8x2, double2, __nv_cvt_double_to_fp8, double)
COH_CONVERT_PAIR(__nv_cvt_halfraw2_to_fp8x2, __half2_raw, __nv_cvt_halfraw_to_fp8, __half_raw)
COH_CONVERT_PAIR(__nv_cvt_bfloat16raw2_to_fp8x2, __nv_bfloat162_raw, __nv_cvt_bfloat16raw_to_fp8,
                 __nv_bfloat16_raw)
#undef COH_CONVERT_PAIR
COH_LAZY __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t v, __nv_fp8_interpretation_t kind) {
    return __half(coh::from_fp8(v, kind));
}
COH_LAZY __half2_raw __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t v,
                                                __nv_fp8_interpretation_t kind) {
    return {__nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)v, kind).x,
            __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(v >> 8), kind).x};
}
COH_LAZY __nv_fp8_storage_t __nv_cvt_float_to_e8m0(float v, __nv_saturation_t saturation,
                                                   cudaRoundMode mode) {
    return coh::to_e8m0(v, saturation, mode);
}
COH_LAZY __nv_fp8_storage_t __nv_cvt_double_to_e8m0(double v, __nv_saturation_t saturation,
                                                    cudaRoundMode mode) {
    return coh::to_e8m0(v, saturation, mode);
}
COH_LAZY __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_e8m0(__nv_bfloat16_raw v,
                                                         __nv_saturation_t saturation,
                                                         cudaRoundMode mode) {
    return coh::to_e8m0((float)__nv_bfloat16(v), saturation, mode);
}
COH_LAZY __nv_fp8x2_storage_t __nv_cvt_float2_to_e8m0x2(float2 v, __nv_saturation_t saturation,
                                                        cudaRoundMode mode) {
    return (__nv_fp8x2_storage_t)(coh::to_e8m0(v.x, saturation, mode) |
                                  coh::to_e8m0(v.y, saturation, mode) << 8);
}
COH_LAZY __nv_fp8x2_storage_t __nv_cvt_double2_to_e8m0x2(double2 v, __nv_saturation_t saturation,
                                                         cudaRoundMode mode) {
    return (__nv_fp8x2_storage_t)(coh::to_e8m0(v.x, saturation, mode) |
                                  coh::to_e8m0(v.y, saturation, mode) << 8);
}
COH_LAZY __nv_fp8x2_storage_t __nv_cvt_bfloat162raw_to_e8m0x2(__nv_bfloat162_raw v,
                                                              __nv_saturation_t saturation,
                                                              cudaRoundMode mode) {
    return __nv_cvt_float2_to_e8m0x2(coh::to_float2(__nv_bfloat162(v)), saturation, mode);
}
COH_LAZY __nv_bfloat16_raw __nv_cvt_fp8_to_bf16raw(__nv_fp8_storage_t v,
                                                   __nv_fp8_interpretation_t kind) {
    return __nv_bfloat16(coh::from_fp8(v, kind));
}
COH_LAZY __nv_bfloat162_raw __nv_cvt_fp8x2_to_bf162raw(__nv_fp8x2_storage_t v,
                                                       __nv_fp8_interpretation_t kind) {
    return {__nv_cvt_fp8_to_bf16raw((__nv_fp8_storage_t)v, kind).x,
            __nv_cvt_fp8_to_bf16raw((__nv_fp8_storage_t)(v >> 8), kind).x};
}
COH_LAZY __nv_bfloat16_raw __nv_cvt_e8m0_to_bf16raw(__nv_fp8_storage_t v) {
    return __nv_bfloat16(coh::from_e8m0(v));
}
COH_LAZY __nv_bfloat162_raw __nv_cvt_e8m0x2_to_bf162raw(__nv_fp8x2_storage_t v) {
    return {__nv_cvt_e8m0_to_bf16raw((__nv_fp8_storage_t)v).x,
            __nv_cvt_e8m0_to_bf16raw((__nv_fp8_storage_t)(v >> 8)).x};
}

// Conversions of numbers saturate; scale factors round up.
#define COH_FP8(NAME, NUMBER_TO, FROM)                                                   \
    struct __nv_fp8_##NAME {                                                             \
        __nv_fp8_storage_t __x;                                                          \
        __nv_fp8_##NAME() = default;                                                     \
        template <class Value, class = std::enable_if_t<!std::is_class<Value>::value>>   \
        COH_METHOD explicit __nv_fp8_##NAME(Value v) : __x(NUMBER_TO((double)v)) {}      \
        COH_METHOD explicit __nv_fp8_##NAME(__half v) : __x(NUMBER_TO((float)v)) {}      \
        COH_METHOD explicit __nv_fp8_##NAME(__nv_bfloat16 v) : __x(NUMBER_TO((float)v)) {} \
        COH_METHOD explicit operator float() const { return FROM(__x); }                 \
        COH_METHOD explicit operator double() const { return FROM(__x); }                \
        COH_METHOD explicit operator __half() const { return __half(FROM(__x)); }        \
        COH_METHOD explicit operator __nv_bfloat16() const {                             \
            return __nv_bfloat16(FROM(__x));                                             \
        }                                                                                \
        COH_METHOD explicit operator bool() const { return FROM(__x) != 0; }             \
        template <class Integer,                                                         \
                  class = std::enable_if_t<std::is_integral<Integer>::value>>            \
        COH_METHOD explicit operator Integer() const {                                   \
            return coh::ptx::float_to_integer<Integer, coh::ptx::ToInteger::rzi>(FROM(__x)); \
        }                                                                                \
    };                                                                                   \
    struct alignas(2) __nv_fp8x2_##NAME {                                                \
        __nv_fp8x2_storage_t __x;                                                        \
        __nv_fp8x2_##NAME() = default;                                                   \
        COH_METHOD explicit __nv_fp8x2_##NAME(float2 v)                                  \
            : __x((__nv_fp8x2_storage_t)(NUMBER_TO(v.x) | NUMBER_TO(v.y) << 8)) {}       \
        COH_METHOD explicit __nv_fp8x2_##NAME(double2 v)                                 \
            : __x((__nv_fp8x2_storage_t)(NUMBER_TO(v.x) | NUMBER_TO(v.y) << 8)) {}       \
        COH_METHOD explicit __nv_fp8x2_##NAME(__half2 v)                                 \
            : __nv_fp8x2_##NAME(coh::to_float2(v)) {}                                    \
        COH_METHOD explicit __nv_fp8x2_##NAME(__nv_bfloat162 v)                          \
            : __nv_fp8x2_##NAME(coh::to_float2(v)) {}                                    \
        COH_METHOD explicit operator float2() const {                                    \
            return {FROM((__nv_fp8_storage_t)__x), FROM((__nv_fp8_storage_t)(__x >> 8))}; \
        }                                                                                \
        COH_METHOD explicit operator __half2() const {                                   \
            return __float22half2_rn((float2)*this);                                     \
        }                                                                                \
        COH_METHOD explicit operator __nv_bfloat162() const {                            \
            return __float22bfloat162_rn((float2)*this);                                 \
        }                                                                                \
    };                                                                                   \
    struct alignas(4) __nv_fp8x4_##NAME {                                                \
        __nv_fp8x4_storage_t __x;                                                        \
        __nv_fp8x4_##NAME() = default;                                                   \
        COH_METHOD explicit __nv_fp8x4_##NAME(float4 v)                                  \
            : __nv_fp8x4_##NAME(make_float2(v.x, v.y), make_float2(v.z, v.w)) {}         \
        COH_METHOD explicit __nv_fp8x4_##NAME(__half2 low, __half2 high)                 \
            : __nv_fp8x4_##NAME(coh::to_float2(low), coh::to_float2(high)) {}            \
        COH_METHOD explicit __nv_fp8x4_##NAME(__nv_bfloat162 low, __nv_bfloat162 high)   \
            : __nv_fp8x4_##NAME(coh::to_float2(low), coh::to_float2(high)) {}            \
        COH_METHOD explicit operator float4() const {                                    \
            return {FROM((__nv_fp8_storage_t)__x), FROM((__nv_fp8_storage_t)(__x >> 8)), \
                    FROM((__nv_fp8_storage_t)(__x >> 16)),                               \
                    FROM((__nv_fp8_storage_t)(__x >> 24))};                              \
        }                                                                                \
                                                                                         \
    private:                                                                             \
        COH_METHOD __nv_fp8x4_##NAME(float2 low, float2 high)                            \
            : __x(__nv_fp8x2_##NAME(low).__x |                                           \
                  (unsigned)__nv_fp8x2_##NAME(high).__x << 16) {}                        \
    };
#define COH_TO_E4M3(V) coh::to_fp8(coh::ptx::to_odd((double)(V)), __NV_SATFINITE, __NV_E4M3)
#define COH_TO_E5M2(V) coh::to_fp8(coh::ptx::to_odd((double)(V)), __NV_SATFINITE, __NV_E5M2)
#define COH_TO_E8M0(V) coh::to_e8m0(V, __NV_SATFINITE, cudaRoundPosInf)
#define COH_FROM_E4M3(BITS) coh::from_fp8(BITS, __NV_E4M3)
#define COH_FROM_E5M2(BITS) coh::from_fp8(BITS, __NV_E5M2)
COH_FP8(e4m3, COH_TO_E4M3, COH_FROM_E4M3)
COH_FP8(e5m2, COH_TO_E5M2, COH_FROM_E5M2)
COH_FP8(e8m0, COH_TO_E8M0, coh::from_e8m0)
#undef COH_FP8
#undef COH_TO_E4M3
#undef COH_TO_E5M2
#undef COH_TO_E8M0
#undef COH_FROM_E4M3
#undef COH_FROM_E5M2
