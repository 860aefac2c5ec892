// Intrinsics with a rounding mode (to nearest even, towards zero, down, up), and those that are a
// PTX instruction by another name.
#pragma once

namespace coh {

// Rounds nearest + error in the given direction: `nearest` or one of its neighbours.
template <ptx::Rounding R>
COH_INLINE double round_by_error(double nearest, double error) {
    const bool down = R == ptx::Rounding::rm || (R == ptx::Rounding::rz && nearest > 0);
    const bool up = R == ptx::Rounding::rp || (R == ptx::Rounding::rz && nearest < 0);
    if (down && error < 0) return nextafter(nearest, -INFINITY);
    if (up && error > 0) return nextafter(nearest, INFINITY);
    return nearest;
}
template <ptx::Rounding R>
COH_INLINE double add_rounded(double a, double b) {
    const double sum = ptx::exact<ptx::Rounding::rn>(a + b), part = sum - a;
    return round_by_error<R>(sum, (a - (sum - part)) + (b - part));
}
template <ptx::Rounding R>
COH_INLINE double multiply_rounded(double a, double b) {
    const double product = ptx::exact<ptx::Rounding::rn>(a * b);
    return round_by_error<R>(product, fma(a, b, -product));
}
template <ptx::Rounding R>
COH_INLINE double divide_rounded(double a, double b) {
    const double quotient = a / b, remainder = fma(-quotient, b, a);
    return round_by_error<R>(quotient, b < 0 ? -remainder : remainder);
}
template <ptx::Rounding R>
COH_INLINE double square_root_rounded(double a) {
    const double root = sqrt(a);
    return round_by_error<R>(root, fma(-root, root, a));
}

}  // namespace coh

#define COH_ROUNDED(MODE, PTX_MODE)                                                      \
    COH_LAZY float __fadd_##MODE(float a, float b) {                                   \
        return coh::ptx::add<coh::ptx::Rounding::PTX_MODE>(a, b);                        \
    }                                                                                    \
    COH_LAZY float __fsub_##MODE(float a, float b) {                                   \
        return coh::ptx::subtract<coh::ptx::Rounding::PTX_MODE>(a, b);                   \
    }                                                                                    \
    COH_LAZY float __fmul_##MODE(float a, float b) {                                   \
        return coh::ptx::multiply<coh::ptx::Rounding::PTX_MODE>(a, b);                   \
    }                                                                                    \
    COH_LAZY float __fmaf_##MODE(float a, float b, float c) {                          \
        return coh::ptx::multiply_add<coh::ptx::Rounding::PTX_MODE>(a, b, c);            \
    }                                                                                    \
    COH_LAZY float __fdiv_##MODE(float a, float b) {                                   \
        return coh::ptx::divide<coh::ptx::Rounding::PTX_MODE>(a, b);                     \
    }                                                                                    \
    COH_LAZY float __frcp_##MODE(float a) { return __fdiv_##MODE(1.0f, a); }           \
    COH_LAZY float __fsqrt_##MODE(float a) {                                           \
        return coh::ptx::square_root<coh::ptx::Rounding::PTX_MODE>(a);                   \
    }                                                                                    \
    COH_LAZY double __dadd_##MODE(double a, double b) {                                \
        return coh::add_rounded<coh::ptx::Rounding::PTX_MODE>(a, b);                     \
    }                                                                                    \
    COH_LAZY double __dsub_##MODE(double a, double b) { return __dadd_##MODE(a, -b); } \
    COH_LAZY double __dmul_##MODE(double a, double b) {                                \
        return coh::multiply_rounded<coh::ptx::Rounding::PTX_MODE>(a, b);                \
    }                                                                                    \
    COH_LAZY double __ddiv_##MODE(double a, double b) {                                \
        return coh::divide_rounded<coh::ptx::Rounding::PTX_MODE>(a, b);                  \
    }                                                                                    \
    COH_LAZY double __drcp_##MODE(double a) { return __ddiv_##MODE(1.0, a); }          \
    COH_LAZY double __dsqrt_##MODE(double a) {                                         \
        return coh::square_root_rounded<coh::ptx::Rounding::PTX_MODE>(a);                \
    }                                                                                    \
    COH_LAZY float __double2float_##MODE(double a) {                                   \
        return coh::ptx::round_to_float<coh::ptx::Rounding::PTX_MODE>(a);                \
    }                                                                                    \
    COH_TO_INTEGER(int, int, MODE, PTX_MODE)                                             \
    COH_TO_INTEGER(uint, unsigned, MODE, PTX_MODE)                                       \
    COH_TO_INTEGER(ll, long long, MODE, PTX_MODE)                                        \
    COH_TO_INTEGER(ull, unsigned long long, MODE, PTX_MODE)
#define COH_TO_INTEGER(KIND, TYPE, MODE, PTX_MODE)                                       \
    COH_LAZY TYPE __float2##KIND##_##MODE(float a) {                                   \
        return coh::ptx::float_to_integer<TYPE, coh::ptx::ToInteger::PTX_MODE##i>(a);    \
    }                                                                                    \
    COH_LAZY TYPE __double2##KIND##_##MODE(double a) {                                 \
        return coh::ptx::float_to_integer<TYPE, coh::ptx::ToInteger::PTX_MODE##i>(a);    \
    }                                                                                    \
    COH_LAZY float __##KIND##2float_##MODE(TYPE a) {                                   \
        return coh::ptx::integer_to_float<float, coh::ptx::Rounding::PTX_MODE>(a);       \
    }
COH_ROUNDED(rn, rn)
COH_ROUNDED(rz, rz)
COH_ROUNDED(rd, rm)
COH_ROUNDED(ru, rp)
#undef COH_ROUNDED
#undef COH_TO_INTEGER
COH_LAZY double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
COH_LAZY double __int2double_rn(int a) { return (double)a; }
COH_LAZY double __uint2double_rn(unsigned a) { return (double)a; }
COH_LAZY double __ll2double_rn(long long a) { return (double)a; }
COH_LAZY double __ull2double_rn(unsigned long long a) { return (double)a; }

// ---- bits ----
COH_LAZY unsigned __brev(unsigned x) { return coh::ptx::reversed(x); }
COH_LAZY unsigned long long __brevll(unsigned long long x) { return coh::ptx::reversed(x); }
COH_LAZY unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    return coh::ptx::byte_permute<coh::ptx::Bytes::none>(a, b, selector & 0x7777);
}
COH_LAZY unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return coh::ptx::funnel_shift(true, false, low, high, n);
}
COH_LAZY unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned n) {
    return coh::ptx::funnel_shift(true, true, low, high, n);
}
COH_LAZY unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return coh::ptx::funnel_shift(false, false, low, high, n);
}
COH_LAZY unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned n) {
    return coh::ptx::funnel_shift(false, true, low, high, n);
}
COH_LAZY int __dp4a(int a, int b, int c) {
    return (int)coh::ptx::dot_4<int8_t, int8_t>((unsigned)a, (unsigned)b, (unsigned)c);
}
COH_LAZY unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    return coh::ptx::dot_4<uint8_t, uint8_t>(a, b, c);
}
