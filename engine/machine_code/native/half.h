// 16-bit floating formats in software: the emulator must give the same bits on every host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

inline uint32_t bits_of(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
inline float float_of(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }

// Both without branches: loops over the lanes become vector instructions.

inline float half_to_float(uint32_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << 13;
    const uint32_t denormal = bits_of(static_cast<float>(static_cast<int32_t>(half & 1023)) * 0x1p-24f);
    const uint32_t normal = magnitude + (magnitude >= 0x0f800000u ? 0x70000000u : 0x38000000u);
    return float_of(sign | (magnitude < 0x00800000u ? denormal : normal));
}

inline uint32_t float_to_half(float value) {  // to nearest even
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    // Beside 0.5 a denormal half's last place is the last place of a float.
    const uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1) - 0x38000000u) >> 13;
    uint32_t half = magnitude < 0x38800000u ? denormal : normal;
    half = magnitude >= 0x477ff000u ? 0x7c00u : half;
    return sign | (magnitude > 0x7f800000u ? 0x7fffu : half);
}

inline float bfloat_to_float(uint32_t value) { return float_of(value << 16); }

inline uint32_t float_to_bfloat(float value) {
    const uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
}
