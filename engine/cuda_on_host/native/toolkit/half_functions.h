// A 16-bit type, its pair and the functions that FP16 and BF16 share. Included once by cuda_fp16.h
// and once by cuda_bf16.h, which define the names used here; hence no `#pragma once`.
//
// Every operation is computed exactly or in float64 and rounded once, as the device's add, mul and
// fma are. The device's h2exp and similar functions may differ from that in the last bit.

struct COH_RAW {
    unsigned short x;
};
struct COH_RAW2 {
    unsigned short x, y;
};
struct COH_OTHER;

struct alignas(2) COH_H {
    unsigned short __x;

    COH_H() = default;
    constexpr COH_H(const COH_RAW &raw) : __x(raw.x) {}
    explicit COH_H(const COH_OTHER &other);  // in cuda_bf16.h
    COH_METHOD COH_H(float f)
        : __x(std::is_same<COH_FORMAT, coh::ptx::F16>::value ? coh::float_to_half(f)
                                                            : coh::float_to_bfloat16(f)) {}
    COH_METHOD COH_H(double d) : __x(coh::ptx::narrow<COH_FORMAT>(coh::ptx::to_odd(d)).bits) {}
#define COH_INTEGER(TYPE)                                                                \
    template <int = 0>                                                                   \
    COH_METHOD COH_H(TYPE i)                                                             \
        : __x(coh::ptx::integer_to_float<COH_FORMAT, coh::ptx::Rounding::rn>(i).bits) {} \
    template <int = 0>                                                                   \
    COH_METHOD operator TYPE() const {                                                   \
        return coh::ptx::float_to_integer<TYPE, coh::ptx::ToInteger::rzi>(format());     \
    }
    COH_INTEGER(short)
    COH_INTEGER(unsigned short)
    COH_INTEGER(int)
    COH_INTEGER(unsigned)
    COH_INTEGER(long)
    COH_INTEGER(unsigned long)
    COH_INTEGER(long long)
    COH_INTEGER(unsigned long long)
#undef COH_INTEGER
#define COH_CHARACTER(TYPE)                                                              \
    template <int = 0>                                                                   \
    COH_METHOD operator TYPE() const {                                                   \
        return coh::ptx::float_to_integer<TYPE, coh::ptx::ToInteger::rzi>(format());     \
    }
    COH_CHARACTER(char)
    COH_CHARACTER(signed char)
    COH_CHARACTER(unsigned char)
#undef COH_CHARACTER
    COH_METHOD operator float() const { return coh::ptx::widen(format()); }
    COH_METHOD operator bool() const { return (__x & 0x7fff) != 0; }
    COH_METHOD operator COH_RAW() const { return COH_RAW{__x}; }

private:
    COH_METHOD COH_FORMAT format() const { return COH_FORMAT{__x}; }
};
struct alignas(4) COH_H2 {
    COH_H x, y;

    COH_H2() = default;
    constexpr COH_H2(const COH_H &low, const COH_H &high) : x(low), y(high) {}
    constexpr COH_H2(const COH_RAW2 &raw) : x(COH_RAW{raw.x}), y(COH_RAW{raw.y}) {}
    COH_METHOD operator COH_RAW2() const { return COH_RAW2{x.__x, y.__x}; }
};

namespace coh {
COH_INLINE COH_FORMAT format_of(const COH_H &h) { return COH_FORMAT{h.__x}; }
COH_INLINE ptx::Pair<COH_FORMAT> format_of(const COH_H2 &h) { return {{h.x.__x}, {h.y.__x}}; }
COH_INLINE COH_H of_format(COH_FORMAT f) { return COH_RAW{f.bits}; }
COH_INLINE COH_H2 of_format(ptx::Pair<COH_FORMAT> f) { return COH_RAW2{f.low.bits, f.high.bits}; }
COH_INLINE float2 to_float2(const COH_H2 &h) { return make_float2((float)h.x, (float)h.y); }
}  // namespace coh

// ---- conversions: round to nearest even, towards zero, down, up ----
COH_LAZY COH_H COH_FROM(float, rz)(float f) {
    return coh::of_format(coh::ptx::narrow<COH_FORMAT, coh::ptx::Rounding::rz>(f));
}
COH_LAZY COH_H COH_FROM(float, rd)(float f) {
    return coh::of_format(coh::ptx::narrow<COH_FORMAT, coh::ptx::Rounding::rm>(f));
}
COH_LAZY COH_H COH_FROM(float, ru)(float f) {
    return coh::of_format(coh::ptx::narrow<COH_FORMAT, coh::ptx::Rounding::rp>(f));
}
#define COH_CONVERT(KIND, TYPE, MODE, PTX_MODE)                                          \
    COH_LAZY TYPE COH_TO(KIND, MODE)(COH_H h) {                                        \
        return coh::ptx::float_to_integer<TYPE, coh::ptx::ToInteger::PTX_MODE##i>(       \
            coh::format_of(h));                                                          \
    }                                                                                    \
    COH_LAZY COH_H COH_FROM(KIND, MODE)(TYPE i) {                                      \
        return coh::of_format(                                                           \
            coh::ptx::integer_to_float<COH_FORMAT, coh::ptx::Rounding::PTX_MODE>(i));    \
    }
#define COH_CONVERT_ALL(KIND, TYPE)                                                      \
    COH_CONVERT(KIND, TYPE, rn, rn)                                                      \
    COH_CONVERT(KIND, TYPE, rz, rz)                                                      \
    COH_CONVERT(KIND, TYPE, rd, rm)                                                      \
    COH_CONVERT(KIND, TYPE, ru, rp)
COH_CONVERT_ALL(short, short)
COH_CONVERT_ALL(ushort, unsigned short)
COH_CONVERT_ALL(int, int)
COH_CONVERT_ALL(uint, unsigned)
COH_CONVERT_ALL(ll, long long)
COH_CONVERT_ALL(ull, unsigned long long)
#undef COH_CONVERT_ALL
#undef COH_CONVERT
COH_LAZY signed char COH_TO(char, rz)(COH_H h) { return (signed char)h; }
COH_LAZY unsigned char COH_TO(uchar, rz)(COH_H h) { return (unsigned char)h; }
COH_LAZY float __low2float(COH_H2 a) { return (float)a.x; }
COH_LAZY float __high2float(COH_H2 a) { return (float)a.y; }
COH_LAZY COH_H2 __lowhigh2highlow(COH_H2 a) { return COH_H2(a.y, a.x); }

// ---- arithmetic: the PTX instruction for the type and for its pair ----
#define COH_UNARY(NAME, NAME2, ...)                                                      \
    COH_LAZY COH_H NAME(COH_H h) {                                                     \
        const auto a = coh::format_of(h);                                                \
        return coh::of_format(__VA_ARGS__);                                              \
    }                                                                                    \
    COH_LAZY COH_H2 NAME2(COH_H2 h) {                                                  \
        const auto a = coh::format_of(h);                                                \
        return coh::of_format(__VA_ARGS__);                                              \
    }
#define COH_BINARY(NAME, NAME2, ...)                                                     \
    COH_LAZY COH_H NAME(COH_H left, COH_H right) {                                     \
        const auto a = coh::format_of(left), b = coh::format_of(right);                  \
        return coh::of_format(__VA_ARGS__);                                              \
    }                                                                                    \
    COH_LAZY COH_H2 NAME2(COH_H2 left, COH_H2 right) {                                 \
        const auto a = coh::format_of(left), b = coh::format_of(right);                  \
        return coh::of_format(__VA_ARGS__);                                              \
    }
#define COH_TERNARY(NAME, NAME2, ...)                                                    \
    COH_LAZY COH_H NAME(COH_H left, COH_H right, COH_H more) {                         \
        const auto a = coh::format_of(left), b = coh::format_of(right);                  \
        const auto c = coh::format_of(more);                                             \
        return coh::of_format(__VA_ARGS__);                                              \
    }                                                                                    \
    COH_LAZY COH_H2 NAME2(COH_H2 left, COH_H2 right, COH_H2 more) {                    \
        const auto a = coh::format_of(left), b = coh::format_of(right);                  \
        const auto c = coh::format_of(more);                                             \
        return coh::of_format(__VA_ARGS__);                                              \
    }
COH_BINARY(__hadd, __hadd2, coh::ptx::add(a, b))
COH_BINARY(__hsub, __hsub2, coh::ptx::subtract(a, b))
COH_BINARY(__hmul, __hmul2, coh::ptx::multiply(a, b))
COH_BINARY(__hadd_rn, __hadd2_rn, coh::ptx::add(a, b))
COH_BINARY(__hsub_rn, __hsub2_rn, coh::ptx::subtract(a, b))
COH_BINARY(__hmul_rn, __hmul2_rn, coh::ptx::multiply(a, b))
COH_BINARY(__hadd_sat, __hadd2_sat, coh::ptx::saturate<true>(coh::ptx::add(a, b)))
COH_BINARY(__hsub_sat, __hsub2_sat, coh::ptx::saturate<true>(coh::ptx::subtract(a, b)))
COH_BINARY(__hmul_sat, __hmul2_sat, coh::ptx::saturate<true>(coh::ptx::multiply(a, b)))
COH_BINARY(__hdiv, __h2div, coh::ptx::each([](float x, float y) { return x / y; }, a, b))
COH_TERNARY(__hfma, __hfma2, coh::ptx::multiply_add(a, b, c))
COH_TERNARY(__hfma_sat, __hfma2_sat, coh::ptx::saturate<true>(coh::ptx::multiply_add(a, b, c)))
COH_TERNARY(__hfma_relu, __hfma2_relu, coh::ptx::relu<true>(coh::ptx::multiply_add(a, b, c)))
COH_UNARY(__hneg, __hneg2, coh::ptx::negate(a))
COH_UNARY(__habs, __habs2, coh::ptx::absolute(a))
COH_BINARY(__hmax, __hmax2, coh::ptx::maximum<false>(a, b))
COH_BINARY(__hmin, __hmin2, coh::ptx::minimum<false>(a, b))
COH_BINARY(__hmax_nan, __hmax2_nan, coh::ptx::maximum<true>(a, b))
COH_BINARY(__hmin_nan, __hmin2_nan, coh::ptx::minimum<true>(a, b))
COH_LAZY COH_H2 __hcmadd(COH_H2 a, COH_H2 b, COH_H2 c) {  // complex: x + iy
    return COH_H2(__hfma(__hneg(a.y), b.y, __hfma(a.x, b.x, c.x)),
                  __hfma(a.y, b.x, __hfma(a.x, b.y, c.y)));
}

#define COH_FUNCTION(NAME, EXPRESSION)                                                   \
    COH_UNARY(h##NAME, h2##NAME, coh::ptx::each_in_double(                               \
                                     [](double x) -> double { return EXPRESSION; }, a))
COH_FUNCTION(trunc, ::trunc(x))
COH_FUNCTION(ceil, ::ceil(x))
COH_FUNCTION(floor, ::floor(x))
COH_FUNCTION(rint, ::rint(x))
COH_FUNCTION(sqrt, ::sqrt(x))
COH_FUNCTION(rsqrt, 1.0 / ::sqrt(x))
COH_FUNCTION(rcp, 1.0 / x)
COH_FUNCTION(log, ::log(x))
COH_FUNCTION(log2, ::log2(x))
COH_FUNCTION(log10, ::log10(x))
COH_FUNCTION(exp, ::exp(x))
COH_FUNCTION(exp2, ::exp2(x))
COH_FUNCTION(exp10, ::pow(10.0, x))
COH_FUNCTION(cos, ::cos(x))
COH_FUNCTION(sin, ::sin(x))
COH_FUNCTION(tanh, ::tanh(x))
COH_FUNCTION(tanh_approx, ::tanh(x))
#undef COH_FUNCTION
#undef COH_TERNARY
#undef COH_BINARY
#undef COH_UNARY

// ---- comparisons: those with a u are true for NaN ----
#define COH_COMPARISON(OP)                                                               \
    COH_LAZY bool __h##OP(COH_H a, COH_H b) {                                          \
        return coh::ptx::compare<coh::ptx::Compare::OP>(coh::format_of(a),               \
                                                        coh::format_of(b));              \
    }                                                                                    \
    COH_LAZY COH_H2 __h##OP##2(COH_H2 a, COH_H2 b) {                                   \
        return COH_H2((float)__h##OP(a.x, b.x), (float)__h##OP(a.y, b.y));               \
    }                                                                                    \
    COH_LAZY unsigned __h##OP##2_mask(COH_H2 a, COH_H2 b) {                            \
        return (__h##OP(a.x, b.x) ? 0xffffu : 0) | (__h##OP(a.y, b.y) ? 0xffff0000u : 0); \
    }                                                                                    \
    COH_LAZY bool __hb##OP##2(COH_H2 a, COH_H2 b) {                                    \
        return __h##OP(a.x, b.x) && __h##OP(a.y, b.y);                                   \
    }
COH_COMPARISON(eq)
COH_COMPARISON(ne)
COH_COMPARISON(lt)
COH_COMPARISON(le)
COH_COMPARISON(gt)
COH_COMPARISON(ge)
COH_COMPARISON(equ)
COH_COMPARISON(neu)
COH_COMPARISON(ltu)
COH_COMPARISON(leu)
COH_COMPARISON(gtu)
COH_COMPARISON(geu)
#undef COH_COMPARISON
COH_LAZY bool __hisnan(COH_H a) { return isnan((float)a); }
COH_LAZY COH_H2 __hisnan2(COH_H2 a) {
    return COH_H2((float)__hisnan(a.x), (float)__hisnan(a.y));
}
COH_LAZY int __hisinf(COH_H a) { return isinf((float)a) ? ((float)a < 0 ? -1 : 1) : 0; }

// ---- operators ----
#define COH_OPERATOR(OP, NAME)                                                           \
    COH_INLINE COH_H operator OP(const COH_H &a, const COH_H &b) { return __h##NAME(a, b); } \
    COH_INLINE COH_H &operator OP##=(COH_H &a, const COH_H &b) { return a = a OP b; }
#define COH_OPERATOR2(OP, FUNCTION)                                                      \
    COH_INLINE COH_H2 operator OP(const COH_H2 &a, const COH_H2 &b) { return FUNCTION(a, b); } \
    COH_INLINE COH_H2 &operator OP##=(COH_H2 &a, const COH_H2 &b) { return a = a OP b; }
COH_OPERATOR(+, add)
COH_OPERATOR(-, sub)
COH_OPERATOR(*, mul)
COH_OPERATOR(/, div)
COH_OPERATOR2(+, __hadd2)
COH_OPERATOR2(-, __hsub2)
COH_OPERATOR2(*, __hmul2)
COH_OPERATOR2(/, __h2div)
#undef COH_OPERATOR2
#undef COH_OPERATOR
#define COH_OPERATOR(OP, NAME)                                                           \
    COH_INLINE bool operator OP(const COH_H &a, const COH_H &b) { return __h##NAME(a, b); } \
    COH_INLINE bool operator OP(const COH_H2 &a, const COH_H2 &b) { return __hb##NAME##2(a, b); }
COH_OPERATOR(==, eq)
COH_OPERATOR(!=, neu)
COH_OPERATOR(<, lt)
COH_OPERATOR(<=, le)
COH_OPERATOR(>, gt)
COH_OPERATOR(>=, ge)
#undef COH_OPERATOR
#define COH_OPERATOR(TYPE, ONE, NEGATE)                                                  \
    COH_INLINE TYPE operator+(const TYPE &a) { return a; }                               \
    COH_INLINE TYPE operator-(const TYPE &a) { return NEGATE(a); }                       \
    COH_INLINE TYPE &operator++(TYPE &a) { return a = a + ONE; }                         \
    COH_INLINE TYPE &operator--(TYPE &a) { return a = a - ONE; }                         \
    COH_INLINE TYPE operator++(TYPE &a, int) {                                           \
        const TYPE before = a;                                                           \
        ++a;                                                                             \
        return before;                                                                   \
    }                                                                                    \
    COH_INLINE TYPE operator--(TYPE &a, int) {                                           \
        const TYPE before = a;                                                           \
        --a;                                                                             \
        return before;                                                                   \
    }
COH_OPERATOR(COH_H, COH_H(1.0f), __hneg)
COH_OPERATOR(COH_H2, COH_H2(1.0f, 1.0f), __hneg2)
#undef COH_OPERATOR

// ---- atomics ----
COH_INLINE COH_H atomicAdd(COH_H *p, COH_H v, coh::Site site = coh::Site::here()) {
    return coh::atomic(p, v, coh::AtomicAdd(), site);
}
COH_INLINE COH_H2 atomicAdd(COH_H2 *p, COH_H2 v, coh::Site site = coh::Site::here()) {
    return coh::atomic(p, v, coh::AtomicAdd(), site);
}

#undef COH_H
#undef COH_H2
#undef COH_RAW
#undef COH_RAW2
#undef COH_OTHER
#undef COH_FORMAT
#undef COH_TO
#undef COH_FROM
