// __half and __half2: stored as bits, computed in float and rounded once, as the device does.
#pragma once

namespace coh {

#if defined(__FLT16_MAX__) && !defined(COH_SOFT_HALF)
COH_INLINE float half_to_float(uint16_t bits) {
    _Float16 h;
    memcpy(&h, &bits, 2);
    return (float)h;
}
COH_INLINE uint16_t float_to_half(float f) {
    const _Float16 h = (_Float16)f;
    uint16_t bits;
    memcpy(&bits, &h, 2);
    return bits;
}
#else  // GCC before 12 has no _Float16
COH_INLINE float half_to_float(uint16_t bits) {
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    uint32_t word;
    float f;
    if (exponent == 0) {
        f = ldexpf((float)mantissa, -24);
        return sign ? -f : f;
    }
    if (exponent == 31) {
        word = sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0);
    } else {
        word = sign | (exponent + 112) << 23 | mantissa << 13;
    }
    memcpy(&f, &word, 4);
    return f;
}
COH_INLINE uint16_t float_to_half(float f) {
    uint32_t word;
    memcpy(&word, &f, 4);
    const uint32_t sign = word >> 16 & 0x8000;
    word &= 0x7fffffffu;
    if (word > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (word >> 13 & 0x3ff));
    if (word >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);  // rounds to infinity
    if (word < 0x38800000u) {                                   // subnormal in half
        float magnitude;
        memcpy(&magnitude, &word, 4);
        return (uint16_t)(sign | (uint32_t)nearbyintf(ldexpf(magnitude, 24)));
    }
    const uint32_t rebased = word - 0x38000000u;
    return (uint16_t)(sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13);
}
#endif

}  // namespace coh

struct __half_raw {
    uint16_t x;
};

struct alignas(2) __half {
    uint16_t bits;
    __half() = default;
    __attribute__((always_inline)) __half(float f) : bits(coh::float_to_half(f)) {}
    __attribute__((always_inline)) __half(double f) : bits(coh::float_to_half((float)f)) {}
    __attribute__((always_inline)) __half(int i) : bits(coh::float_to_half((float)i)) {}
    __attribute__((always_inline)) __half(const __half_raw &raw) : bits(raw.x) {}
    __attribute__((always_inline)) operator float() const { return coh::half_to_float(bits); }
};
typedef __half half;

struct alignas(4) __half2 {
    __half x, y;
    __half2() = default;
    __attribute__((always_inline)) __half2(__half low, __half high) : x(low), y(high) {}
};
typedef __half2 half2;

// Arithmetic and comparison of a 16-bit type through float.
#define COH_16BIT_ARITHMETIC(TYPE, OP)                                                   \
    COH_INLINE TYPE operator OP(TYPE a, TYPE b) { return TYPE((float)a OP (float)b); }   \
    COH_INLINE TYPE &operator OP##=(TYPE &a, TYPE b) { return a = a OP b; }
#define COH_16BIT_COMPARISON(TYPE, OP)                                                   \
    COH_INLINE bool operator OP(TYPE a, TYPE b) { return (float)a OP (float)b; }
#define COH_16BIT_OPERATORS(TYPE)                                                        \
    COH_16BIT_ARITHMETIC(TYPE, +)                                                        \
    COH_16BIT_ARITHMETIC(TYPE, -)                                                        \
    COH_16BIT_ARITHMETIC(TYPE, *)                                                        \
    COH_16BIT_ARITHMETIC(TYPE, /)                                                        \
    COH_16BIT_COMPARISON(TYPE, <)                                                        \
    COH_16BIT_COMPARISON(TYPE, >)                                                        \
    COH_16BIT_COMPARISON(TYPE, <=)                                                       \
    COH_16BIT_COMPARISON(TYPE, >=)                                                       \
    COH_16BIT_COMPARISON(TYPE, ==)                                                       \
    COH_16BIT_COMPARISON(TYPE, !=)
COH_16BIT_OPERATORS(__half)
COH_INLINE __half operator-(__half a) {
    a.bits ^= 0x8000;
    return a;
}

COH_INLINE float __half2float(__half h) { return (float)h; }
COH_INLINE __half __float2half(float f) { return __half(f); }
COH_INLINE __half __float2half_rn(float f) { return __half(f); }
COH_INLINE __half __int2half_rn(int i) { return __half(i); }
COH_INLINE __half __ushort_as_half(uint16_t bits) {
    __half h;
    h.bits = bits;
    return h;
}
COH_INLINE uint16_t __half_as_ushort(__half h) { return h.bits; }
COH_INLINE __half2 __floats2half2_rn(float a, float b) { return __half2(__half(a), __half(b)); }
COH_INLINE __half2 __float22half2_rn(float2 a) { return __half2(__half(a.x), __half(a.y)); }
COH_INLINE __half2 __float2half2_rn(float a) { return __half2(__half(a), __half(a)); }
COH_INLINE __half2 __halves2half2(__half a, __half b) { return __half2(a, b); }
COH_INLINE __half2 __half2half2(__half a) { return __half2(a, a); }
COH_INLINE __half2 make_half2(__half a, __half b) { return __half2(a, b); }
COH_INLINE float2 __half22float2(__half2 h) { return make_float2((float)h.x, (float)h.y); }
COH_INLINE float __low2float(__half2 h) { return (float)h.x; }
COH_INLINE float __high2float(__half2 h) { return (float)h.y; }
COH_INLINE __half __low2half(__half2 h) { return h.x; }
COH_INLINE __half __high2half(__half2 h) { return h.y; }
COH_INLINE __half __hadd(__half a, __half b) { return a + b; }
COH_INLINE __half __hsub(__half a, __half b) { return a - b; }
COH_INLINE __half __hmul(__half a, __half b) { return a * b; }
COH_INLINE __half __hdiv(__half a, __half b) { return a / b; }
COH_INLINE __half __hneg(__half a) { return -a; }
COH_INLINE __half __hfma(__half a, __half b, __half c) {
    return __half(fmaf((float)a, (float)b, (float)c));
}
COH_INLINE __half __hmax(__half a, __half b) { return __half(fmaxf((float)a, (float)b)); }
COH_INLINE __half __hmin(__half a, __half b) { return __half(fminf((float)a, (float)b)); }
COH_INLINE __half2 __hadd2(__half2 a, __half2 b) { return __half2(a.x + b.x, a.y + b.y); }
COH_INLINE __half2 __hsub2(__half2 a, __half2 b) { return __half2(a.x - b.x, a.y - b.y); }
COH_INLINE __half2 __hmul2(__half2 a, __half2 b) { return __half2(a.x * b.x, a.y * b.y); }
COH_INLINE __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    return __half2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
COH_INLINE __half2 __hmax2(__half2 a, __half2 b) {
    return __half2(__hmax(a.x, b.x), __hmax(a.y, b.y));
}
COH_INLINE bool __hisnan(__half a) { return isnan((float)a); }
COH_INLINE __half hexp(__half a) { return __half(expf((float)a)); }
COH_INLINE __half hexp2(__half a) { return __half(exp2f((float)a)); }
COH_INLINE __half2 h2exp2(__half2 a) { return __half2(hexp2(a.x), hexp2(a.y)); }
