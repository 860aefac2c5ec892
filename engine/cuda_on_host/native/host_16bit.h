// Conversions of FP16 and BF16 bit patterns to float and back, the latter rounding to nearest even.
#pragma once

namespace coh {

// ---- FP16 ----
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


// ---- BF16: the upper half of a float ----
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
