// __nv_bfloat16 and __nv_bfloat162: the upper half of a float.
#pragma once

namespace coh {

COH_INLINE float bfloat16_to_float(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &word, 4);
    return f;
}
COH_INLINE uint16_t float_to_bfloat16(float f) {
    uint32_t word;
    memcpy(&word, &f, 4);
    if ((word & 0x7fffffffu) > 0x7f800000u) return 0x7fff;  // the device's canonical NaN
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

}  // namespace coh

struct __nv_bfloat16_raw {
    uint16_t x;
};

struct alignas(2) __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    __attribute__((always_inline)) __nv_bfloat16(float f) : bits(coh::float_to_bfloat16(f)) {}
    __attribute__((always_inline)) __nv_bfloat16(double f)
        : bits(coh::float_to_bfloat16((float)f)) {}
    __attribute__((always_inline)) __nv_bfloat16(int i)
        : bits(coh::float_to_bfloat16((float)i)) {}
    __attribute__((always_inline)) __nv_bfloat16(const __nv_bfloat16_raw &raw) : bits(raw.x) {}
    __attribute__((always_inline)) operator float() const {
        return coh::bfloat16_to_float(bits);
    }
};
typedef __nv_bfloat16 nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
    __nv_bfloat162() = default;
    __attribute__((always_inline)) __nv_bfloat162(__nv_bfloat16 low, __nv_bfloat16 high)
        : x(low), y(high) {}
};
typedef __nv_bfloat162 nv_bfloat162;

COH_16BIT_OPERATORS(__nv_bfloat16)
COH_INLINE __nv_bfloat16 operator-(__nv_bfloat16 a) {
    a.bits ^= 0x8000;
    return a;
}

COH_INLINE float __bfloat162float(__nv_bfloat16 h) { return (float)h; }
COH_INLINE __nv_bfloat16 __float2bfloat16(float f) { return __nv_bfloat16(f); }
COH_INLINE __nv_bfloat16 __float2bfloat16_rn(float f) { return __nv_bfloat16(f); }
COH_INLINE __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) {
    __nv_bfloat16 h;
    h.bits = bits;
    return h;
}
COH_INLINE uint16_t __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
COH_INLINE __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return __nv_bfloat162(__nv_bfloat16(a), __nv_bfloat16(b));
}
COH_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 a) {
    return __floats2bfloat162_rn(a.x, a.y);
}
COH_INLINE __nv_bfloat162 __float2bfloat162_rn(float a) { return __floats2bfloat162_rn(a, a); }
COH_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 a, __nv_bfloat16 b) {
    return __nv_bfloat162(a, b);
}
COH_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 a) { return __nv_bfloat162(a, a); }
COH_INLINE float2 __bfloat1622float2(__nv_bfloat162 h) {
    return make_float2((float)h.x, (float)h.y);
}
COH_INLINE float __low2float(__nv_bfloat162 h) { return (float)h.x; }
COH_INLINE float __high2float(__nv_bfloat162 h) { return (float)h.y; }
COH_INLINE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h) { return h.x; }
COH_INLINE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 h) { return h.y; }
COH_INLINE __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b) { return a + b; }
COH_INLINE __nv_bfloat16 __hsub(__nv_bfloat16 a, __nv_bfloat16 b) { return a - b; }
COH_INLINE __nv_bfloat16 __hmul(__nv_bfloat16 a, __nv_bfloat16 b) { return a * b; }
COH_INLINE __nv_bfloat16 __hdiv(__nv_bfloat16 a, __nv_bfloat16 b) { return a / b; }
COH_INLINE __nv_bfloat16 __hmax(__nv_bfloat16 a, __nv_bfloat16 b) {
    return __nv_bfloat16(fmaxf((float)a, (float)b));
}
COH_INLINE __nv_bfloat16 __hmin(__nv_bfloat16 a, __nv_bfloat16 b) {
    return __nv_bfloat16(fminf((float)a, (float)b));
}
COH_INLINE __nv_bfloat162 __hadd2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return __nv_bfloat162(a.x + b.x, a.y + b.y);
}
COH_INLINE __nv_bfloat162 __hmul2(__nv_bfloat162 a, __nv_bfloat162 b) {
    return __nv_bfloat162(a.x * b.x, a.y * b.y);
}
COH_INLINE bool __hisnan(__nv_bfloat16 a) { return isnan((float)a); }
