// Number formats of PTX and their conversions.
//
// The small formats are stored as bits, without the kernel's __half or __nv_bfloat16, whose
// functions may themselves be inline PTX.
#pragma once

namespace coh {
namespace ptx {

struct F16 {
    uint16_t bits;
};
struct BF16 {
    uint16_t bits;
};
struct E4M3 {  // 4 bits of exponent, 3 of mantissa; no infinity
    uint8_t bits;
};
struct E5M2 {
    uint8_t bits;
};
template <class E>
struct alignas(2 * sizeof(E)) Pair {
    E low, high;
};
using F16x2 = Pair<F16>;
using BF16x2 = Pair<BF16>;
using E4M3x2 = Pair<E4M3>;
using E5M2x2 = Pair<E5M2>;

enum class Rounding { none, rn, rz, rm, rp };       // none: to nearest, and contraction is allowed
enum class ToInteger { none, rni, rzi, rmi, rpi };  // the same, to an integer

constexpr Rounding rounding(const char *modifier) {  // also of .approx and .full
    if (modifier[0] != 'r') return Rounding::none;
    return modifier[1] == 'n'   ? Rounding::rn
           : modifier[1] == 'z' ? Rounding::rz
           : modifier[1] == 'm' ? Rounding::rm
                                : Rounding::rp;
}

template <class E>
constexpr bool is_16_bit = std::is_same<E, F16>::value || std::is_same<E, BF16>::value;

// ---- to float, always exact ----
COH_INLINE float widen(F16 v) { return half_to_float(v.bits); }
COH_INLINE float widen(BF16 v) { return bfloat16_to_float(v.bits); }
COH_INLINE float widen(E5M2 v) { return half_to_float((uint16_t)(v.bits << 8)); }
COH_INLINE float widen(E4M3 v) {
    const int exponent = v.bits >> 3 & 15, mantissa = v.bits & 7;
    if ((v.bits & 0x7f) == 0x7f) return NAN;
    const float magnitude = exponent ? ldexpf((float)(8 + mantissa), exponent - 10)
                                     : ldexpf((float)mantissa, -9);
    return v.bits & 0x80 ? -magnitude : magnitude;
}
COH_INLINE float widen(float v) { return v; }
COH_INLINE double widen(double v) { return v; }

// ---- rounding ----
// Rounds to float, to odd: the last bit is set if inexact, so that a second rounding is correct.
template <class Wide>
COH_INLINE float to_odd(Wide v) {
    const float nearest = (float)v;
    if ((Wide)nearest == v || v != v) return nearest;
    const uint32_t bits = coh_bit_cast<uint32_t>(nearest);
    const bool too_large = fabs((Wide)nearest) > fabs(v);
    return coh_bit_cast<float>((bits - (too_large ? 1 : 0)) | 1);
}
// a + c, rounded to odd: the last bit is set if inexact.
COH_INLINE double sum_to_odd(double a, double c) {
    const double sum = a + c;
    if (!(fabs(sum) <= DBL_MAX)) return sum;
    const double part = sum - a, error = (a - (sum - part)) + (c - part);
    uint64_t bits = coh_bit_cast<uint64_t>(sum);
    if (error == 0 || (bits & 1)) return sum;
    return coh_bit_cast<double>((error > 0) == (sum > 0) ? bits + 1 : bits - 1);
}
template <Rounding R, class Wide>
COH_INLINE float round_to_float(Wide v) {
    const float nearest = (float)v;
    const Wide back = (Wide)nearest;
    if (R == Rounding::rz && fabs(back) > fabs(v)) return nextafterf(nearest, 0.0f);
    if (R == Rounding::rm && back > v) return nextafterf(nearest, -INFINITY);
    if (R == Rounding::rp && back < v) return nextafterf(nearest, INFINITY);
    return nearest;
}
template <class E, Rounding R = Rounding::rn>
COH_INLINE E narrow(float v) {
    if constexpr (std::is_same<E, float>::value) {
        return v;
    } else {
        static_assert(is_16_bit<E>, "a 16-bit type");
        if (v != v) return E{0x7fff};  // the device's canonical NaN
        E to;
        if constexpr (std::is_same<E, F16>::value) to = E{float_to_half(v)};
        else to = E{float_to_bfloat16(v)};
        const float back = widen(to);
        const uint16_t away = (uint16_t)(to.bits + 1), nearer = (uint16_t)(to.bits - 1);
        const bool negative = to.bits >> 15;
        if (R == Rounding::rz && fabsf(back) > fabsf(v)) to.bits = nearer;
        if (R == Rounding::rm && back > v) to.bits = negative ? away : nearer;
        if (R == Rounding::rp && back < v) to.bits = negative ? nearer : away;
        return to;
    }
}
template <class E>
COH_INLINE E finite(E v) {  // .satfinite: infinity becomes the largest number
    const uint16_t largest = std::is_same<E, F16>::value ? 0x7bff : 0x7f7f;
    return (v.bits & 0x7fff) == largest + 1 ? E{(uint16_t)((v.bits & 0x8000) | largest)} : v;
}
template <class E>
COH_INLINE E narrow_to_8_bits(float v) {  // .rn.satfinite
    constexpr bool is_e4m3 = std::is_same<E, E4M3>::value;
    constexpr int mantissa_bits = is_e4m3 ? 3 : 2, bias = is_e4m3 ? 7 : 15;
    constexpr int largest = is_e4m3 ? 0x7e : 0x7b;
    if (v != v) return E{0x7f};
    const int sign = signbit(v) ? 0x80 : 0;
    const float magnitude = fminf(fabsf(v), 65536.0f);
    int exponent = magnitude > 0 ? ilogbf(magnitude) : 1 - bias;
    if (exponent < 1 - bias) exponent = 1 - bias;
    const int steps = (int)rintf(ldexpf(magnitude, mantissa_bits - exponent));
    const int bits = (exponent + bias - 1 << mantissa_bits) + steps;  // a carry reaches the exponent
    return E{(uint8_t)(sign | (bits < largest ? bits : largest))};
}
COH_INLINE float to_tf32(float v, Rounding rounding) {
    const uint32_t bits = coh_bit_cast<uint32_t>(v);
    if (v - v != 0) return v;
    uint32_t more = 0;
    if (rounding == Rounding::none) more = 0x1000;  // .rna: ties away from zero
    if (rounding == Rounding::rn) more = 0xfff + (bits >> 13 & 1);
    return coh_bit_cast<float>((bits + more) & ~0x1fffu);
}

// ---- flags of many instructions ----
template <bool ON, class T>
COH_INLINE T flush(T v) {  // .ftz
    if constexpr (!ON) return v;
    else if constexpr (std::is_same<T, float>::value) {
        return fabsf(v) < FLT_MIN ? copysignf(0.0f, v) : v;
    } else if constexpr (std::is_same<T, F16>::value) {
        return (v.bits & 0x7c00) ? v : F16{(uint16_t)(v.bits & 0x8000)};
    } else if constexpr (std::is_same<T, BF16>::value) {
        return (v.bits & 0x7f80) ? v : BF16{(uint16_t)(v.bits & 0x8000)};
    } else if constexpr (std::is_same<T, F16x2>::value || std::is_same<T, BF16x2>::value) {
        return T{flush<ON>(v.low), flush<ON>(v.high)};
    } else {
        return v;
    }
}
template <bool ON, class T>
COH_INLINE T saturate(T v) {  // .sat of floating point: into [0, 1], and NaN to 0
    if constexpr (!ON) return v;
    else if constexpr (std::is_floating_point<T>::value) {
        return v > T(0) ? (v < T(1) ? v : T(1)) : T(0);
    } else if constexpr (is_16_bit<T>) {
        return narrow<T>(saturate<ON>(widen(v)));
    } else {
        return T{saturate<ON>(v.low), saturate<ON>(v.high)};
    }
}
template <bool ON, class T>
COH_INLINE T relu(T v) {  // .relu: negative numbers to 0; NaN stays
    if constexpr (!ON) return v;
    else if constexpr (std::is_floating_point<T>::value) return v < T(0) ? T(0) : v + T(0);
    else if constexpr (is_16_bit<T>) return narrow<T>(relu<ON>(widen(v)));
    else return T{relu<ON>(v.low), relu<ON>(v.high)};
}

// ---- cvt ----
template <ToInteger R, class T>
COH_INLINE T round_to_integer(T v) {  // in floating point
    switch (R) {
        case ToInteger::rni: return (T)rint(v);
        case ToInteger::rzi: return (T)trunc(v);
        case ToInteger::rmi: return (T)floor(v);
        case ToInteger::rpi: return (T)ceil(v);
        default: return v;
    }
}
template <class To, ToInteger R, class From>
COH_INLINE To float_to_integer(From v) {  // out of range: the nearest integer of the type; NaN: 0
    const auto number = round_to_integer<R>(widen(v));
    using Number = std::remove_cv_t<decltype(number)>;
    constexpr bool is_signed = std::is_signed<To>::value;
    const Number low = is_signed ? -ldexp(Number(1), 8 * sizeof(To) - 1) : Number(0);
    const Number high = ldexp(Number(1), 8 * sizeof(To) - is_signed);
    if (number != number) return 0;
    if (number <= low) return std::numeric_limits<To>::min();
    return number >= high ? std::numeric_limits<To>::max() : (To)number;
}
template <class To, Rounding R, class From>
COH_INLINE To integer_to_float(From v) {
    if constexpr (std::is_same<To, double>::value) {
        return (double)v;
    } else {
        using Wide = std::conditional_t<sizeof(From) == 8, long double, double>;
        if constexpr (is_16_bit<To>) return narrow<To, R>(to_odd((Wide)v));
        else return round_to_float<R>((Wide)v);
    }
}
template <class To, Rounding R, class From>
COH_INLINE To float_to_float(From v) {
    if constexpr (std::is_same<To, From>::value) return v;
    else if constexpr (std::is_same<To, double>::value) return (double)widen(v);
    else if constexpr (std::is_same<To, float>::value) return round_to_float<R>(widen(v));
    else if constexpr (std::is_same<From, double>::value) return narrow<To, R>(to_odd(v));
    else return narrow<To, R>(widen(v));
}
template <bool SATURATE, class To, class From>
COH_INLINE To integer_to_integer(From v) {
    if constexpr (SATURATE) {
        const __int128 wide = v, low = std::numeric_limits<To>::min();
        const __int128 high = std::numeric_limits<To>::max();
        return (To)(wide < low ? low : wide > high ? high : wide);
    }
    return (To)v;
}

}  // namespace ptx
}  // namespace coh
