// 16-bit floating formats in software: the emulator must give the same bits on every host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

inline uint32_t bits_of(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
inline float float_of(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }

inline float half_to_float(uint32_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) {
        const float value = static_cast<float>(fraction) * 0x1p-24f;
        return sign ? -value : value;
    }
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

inline uint32_t float_to_half(float value) {  // to nearest even
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7fffu;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
    if (magnitude < 0x38800000u) {
        const float scaled = float_of(magnitude) * 0x1p24f;
        return sign | static_cast<uint32_t>(std::nearbyint(scaled));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1);
    return sign | (rounded - 0x38000000u) >> 13;
}

inline float bfloat_to_float(uint32_t value) { return float_of(value << 16); }

inline uint32_t float_to_bfloat(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
