// 16-bit floating formats in software: the emulator must give the same bits on every host.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

inline uint32_t bits_of(float value) { uint32_t bits; std::memcpy(&bits, &value, 4); return bits; }
inline float float_of(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }

// Both without branches, so that loops over lanes vectorise.

inline float half_to_float(uint32_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, magnitude = (half & 0x7fffu) << 13;
    const uint32_t denormal = bits_of(static_cast<float>(static_cast<int32_t>(half & 1023)) * 0x1p-24f);
    const uint32_t normal = magnitude + (magnitude >= 0x0f800000u ? 0x70000000u : 0x38000000u);
    return float_of(sign | (magnitude < 0x00800000u ? denormal : normal));
}

inline uint32_t float_to_half(float value) {  // to nearest even
    const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    // Adding 0.5 rounds to the last place of a denormal half.
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

// FP8: E4M3, whose largest number is 448 and which has no infinity, or E5M2, the upper half of FP16.

inline uint32_t fp8_to_half(uint32_t byte, bool e5m2) {  // exact: FP16 contains all numbers of both
    const uint32_t sign = (byte & 0x80u) << 8, magnitude = byte & 0x7fu;
    if (e5m2) return magnitude > 0x7cu ? 0x7fffu : byte << 8 & 0xffffu;
    if (magnitude == 0x7fu) return 0x7fffu;
    if (magnitude < 8) return sign | float_to_half(static_cast<float>(magnitude) * 0x1p-9f);
    return sign | ((magnitude << 7) + (8u << 10));
}

struct Fp8Halves {
    uint16_t of[2][256];  // [E4M3, E5M2][byte]
    Fp8Halves() {
        for (uint32_t byte = 0; byte < 512; byte++) of[byte >> 8][byte & 255] = static_cast<uint16_t>(fp8_to_half(byte & 255, byte >> 8));
    }
    uint32_t pair(uint32_t bytes, bool e5m2) const { return of[e5m2][bytes & 255] | static_cast<uint32_t>(of[e5m2][bytes >> 8 & 255]) << 16; }
};
inline const Fp8Halves FP8_HALVES;

// To nearest even; larger values and infinities become the largest number (satfinite).
inline uint32_t float_to_fp8(float value, bool e5m2) {
    if (value != value) return 0x7fu;
    const uint32_t sign = bits_of(value) >> 24 & 0x80u;
    const int dropped = e5m2 ? 21 : 20;  // bits dropped of a float's 23 fraction bits
    const float least = e5m2 ? 0x1p-14f : 0x1p-6f, largest = e5m2 ? 57344.0f : 448.0f;
    const float magnitude = std::fmin(std::fabs(value), largest);
    if (magnitude < least) return sign | static_cast<uint32_t>(std::nearbyint(magnitude * (e5m2 ? 0x1p16f : 0x1p9f)));
    const uint32_t bits = bits_of(magnitude);
    return sign | (((bits + ((1u << (dropped - 1)) - 1) + (bits >> dropped & 1)) >> dropped) - ((e5m2 ? 112u << 2 : 120u << 3)));
}
