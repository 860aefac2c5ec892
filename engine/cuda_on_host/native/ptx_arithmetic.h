// PTX arithmetic that C++ has no operator for.
#pragma once

namespace coh {
namespace ptx {

// ---- operations on every type: pairs element by element, 16-bit types in float, rounded once ----
template <class F, class T, class... More>
COH_INLINE std::enable_if_t<std::is_arithmetic<T>::value, T> each(F f, T a, More... more) {
    return (T)f(a, more...);
}
template <class F, class T, class... More>
COH_INLINE std::enable_if_t<is_16_bit<T>, T> each(F f, T a, More... more) {
    return narrow<T>(f(widen(a), widen(more)...));
}
template <class F, class E, class... More>
COH_INLINE Pair<E> each(F f, Pair<E> a, More... more) {
    return {each(f, a.low, more.low...), each(f, a.high, more.high...)};
}

// The same with a 16-bit type in double: for functions where rounding to float changes the result.
template <class F, class T>
COH_INLINE T each_in_double(F f, T a) {
    if constexpr (is_16_bit<T>) return narrow<T>(to_odd(f(widen(a))));
    else return {each_in_double(f, a.low), each_in_double(f, a.high)};
}

// An explicit .rn prevents contraction of a product and a sum.
template <Rounding R, class T>
COH_INLINE T exact(T v) {
    if constexpr (R == Rounding::rn && std::is_floating_point<T>::value) {
        auto bits = coh_bit_cast<typename BitsOf<sizeof(T)>::type>(v);
        __asm__("" : "+r"(bits));
        return coh_bit_cast<T>(bits);
    }
    return v;
}
template <Rounding R>
constexpr bool is_nearest = R == Rounding::none || R == Rounding::rn;

template <Rounding R = Rounding::none, class T>
COH_INLINE T add(T a, T b) {
    if constexpr (std::is_integral<T>::value) {
        using U = std::make_unsigned_t<T>;
        return (T)((U)a + (U)b);
    } else if constexpr (!is_nearest<R>) {
        static_assert(std::is_same<T, float>::value, ".rz, .rm and .rp are known for .f32 alone");
        return round_to_float<R>(sum_to_odd(a, b));
    } else {
        return exact<R>(each([](auto x, auto y) { return x + y; }, a, b));
    }
}
template <Rounding R = Rounding::none, class T>
COH_INLINE T subtract(T a, T b) {
    if constexpr (std::is_integral<T>::value) {
        using U = std::make_unsigned_t<T>;
        return (T)((U)a - (U)b);
    } else if constexpr (!is_nearest<R>) {
        return add<R>(a, -b);
    } else {
        return exact<R>(each([](auto x, auto y) { return x - y; }, a, b));
    }
}
template <Rounding R = Rounding::none, class T>
COH_INLINE T multiply(T a, T b) {
    if constexpr (std::is_integral<T>::value) return (T)((uint64_t)a * (uint64_t)b);
    else if constexpr (!is_nearest<R>) return round_to_float<R>((double)a * (double)b);
    else return exact<R>(each([](auto x, auto y) { return x * y; }, a, b));
}
template <Rounding R = Rounding::none, class T>
COH_INLINE T divide(T a, T b) {
    if constexpr (is_nearest<R>) return a / b;
    else return round_to_float<R>((double)a / (double)b);
}
template <Rounding R = Rounding::none, class T>
COH_INLINE T square_root(T a) {
    if constexpr (std::is_same<T, double>::value) return ::sqrt(a);
    else if constexpr (is_nearest<R>) return sqrtf(a);
    else return round_to_float<R>(::sqrt((double)a));
}
template <Rounding R = Rounding::none, class T>
COH_INLINE T multiply_add(T a, T b, T c) {
    if constexpr (std::is_same<T, double>::value) return ::fma(a, b, c);
    else if constexpr (std::is_same<T, float>::value) {
        if constexpr (is_nearest<R>) return fmaf(a, b, c);
        else return round_to_float<R>(sum_to_odd((double)a * (double)b, c));
    } else if constexpr (is_16_bit<T>) {
        return narrow<T>(to_odd(sum_to_odd((double)widen(a) * widen(b), widen(c))));
    } else {
        return {multiply_add(a.low, b.low, c.low), multiply_add(a.high, b.high, c.high)};
    }
}

// Ignores NaN unless `NAN_WINS`; -0 is less than +0.
template <bool NAN_WINS, class T>
COH_INLINE T minimum(T a, T b) {
    if constexpr (std::is_integral<T>::value) return b < a ? b : a;
    else return each([](auto x, auto y) {
        if (x != x) return NAN_WINS ? x : y;
        if (y != y) return NAN_WINS ? y : x;
        return y < x || (y == x && signbit(y)) ? y : x;
    }, a, b);
}
template <bool NAN_WINS, class T>
COH_INLINE T maximum(T a, T b) {
    if constexpr (std::is_integral<T>::value) return a < b ? b : a;
    else return each([](auto x, auto y) {
        if (x != x) return NAN_WINS ? x : y;
        if (y != y) return NAN_WINS ? y : x;
        return x < y || (y == x && signbit(x)) ? y : x;
    }, a, b);
}
template <class T>
COH_INLINE T absolute(T a) {
    if constexpr (std::is_integral<T>::value) return a < 0 ? subtract(T(0), a) : a;
    else return each([](auto x) { return x < 0 || signbit(x) ? -x : x; }, a);
}
template <class T>
COH_INLINE T negate(T a) {
    if constexpr (std::is_integral<T>::value) return subtract(T(0), a);
    else return each([](auto x) { return -x; }, a);
}
template <class T>
COH_INLINE T divide_integers(T a, T b) {  // division by 0 gives all ones, as on the device
    if (b == 0) return (T)~T(0);
    return std::is_signed<T>::value && b == (T)-1 ? subtract(T(0), a) : (T)(a / b);
}
template <class T>
COH_INLINE T remainder_of(T a, T b) {
    if (b == 0) return a;
    return std::is_signed<T>::value && b == (T)-1 ? T(0) : (T)(a % b);
}

// ---- products of integers ----
template <class T>
using Wide = std::conditional_t<std::is_signed<T>::value, __int128, unsigned __int128>;
template <class T>
COH_INLINE T multiply_high(T a, T b) {
    return (T)((Wide<T>)a * (Wide<T>)b >> 8 * sizeof(T));
}
template <class T>
COH_INLINE T product_lo(T a, T b) {
    return multiply(a, b);
}
template <class T>
COH_INLINE T product_hi(T a, T b) {
    return multiply_high(a, b);
}
template <class To, class T>
COH_INLINE To multiply_wide(T a, T b) {
    return (To)((Wide<T>)a * (Wide<T>)b);
}
template <class T>
COH_INLINE T saturated_sum(Wide<T> v) {  // .sat of .s32
    return v < std::numeric_limits<T>::min()   ? std::numeric_limits<T>::min()
           : v > std::numeric_limits<T>::max() ? std::numeric_limits<T>::max()
                                               : (T)v;
}
// a + b + carry; `carry` becomes the carry out.
template <class T>
COH_INLINE T add_with_carry(T a, T b, bool use, bool &carry) {
    const unsigned __int128 sum =
        (unsigned __int128)(std::make_unsigned_t<T>)a + (std::make_unsigned_t<T>)b + (use && carry);
    carry = sum >> 8 * sizeof(T) & 1;
    return (T)sum;
}
template <class T>
COH_INLINE T subtract_with_borrow(T a, T b, bool use, bool &borrow) {
    const __int128 difference = (__int128)(std::make_unsigned_t<T>)a -
                                (__int128)(std::make_unsigned_t<T>)b - (use && borrow);
    borrow = difference < 0;
    return (T)difference;
}
// Four products of bytes.
template <class A, class B>
COH_INLINE uint32_t dot_4(uint32_t a, uint32_t b, uint32_t c) {
    for (int i = 0; i < 32; i += 8) c += (uint32_t)((int)(A)(a >> i) * (int)(B)(b >> i));
    return c;
}

// ---- bits ----
template <class T>
COH_INLINE T shift_left(T v, uint32_t n) {
    return n < 8 * sizeof(T) ? (T)(v << n) : T(0);
}
template <class T>
COH_INLINE T shift_right(T v, uint32_t n) {
    return n < 8 * sizeof(T) ? (T)(v >> n) : std::is_signed<T>::value && v < 0 ? (T)-1 : T(0);
}
COH_INLINE uint32_t funnel_shift(bool left, bool clamp, uint32_t a, uint32_t b, uint32_t n) {
    n = clamp ? (n < 32 ? n : 32) : n & 31;
    const uint64_t both = (uint64_t)b << 32 | a;
    return (uint32_t)(left ? both << n >> 32 : both >> n);
}
template <class T>
COH_INLINE uint32_t leading_zeros(T v) {
    if (sizeof(T) == 8) return v ? (uint32_t)__builtin_clzll((uint64_t)v) : 64;
    return v ? (uint32_t)__builtin_clz((uint32_t)v) : 32;
}
template <class T>
COH_INLINE T reversed(T v) {
    T to = 0;
    for (size_t i = 0; i < 8 * sizeof(T); i++) to |= (v >> i & 1) << (8 * sizeof(T) - 1 - i);
    return to;
}
template <class T>
COH_INLINE uint32_t highest_bit(T v, bool shift_amount) {  // bfind
    if (std::is_signed<T>::value && v < 0) v = (T)~v;
    const uint32_t zeros = leading_zeros(v);
    if (zeros == 8 * sizeof(T)) return 0xffffffffu;
    return shift_amount ? zeros : (uint32_t)(8 * sizeof(T)) - 1 - zeros;
}
template <class T>
COH_INLINE T bit_field(T v, uint32_t from, uint32_t length) {  // bfe
    constexpr uint32_t width = 8 * sizeof(T);
    from &= 255, length &= 255;
    T to = 0;
    const uint32_t last = from + length - 1 < width - 1 ? from + length - 1 : width - 1;
    const bool sign = std::is_signed<T>::value && length && (v >> last & 1);
    for (uint32_t i = 0; i < width; i++) {
        const bool inside = i < length && from + i < width;
        to |= (T)(T)(inside ? v >> (from + i) & 1 : sign) << i;
    }
    return to;
}
template <class T>
COH_INLINE T insert_bit_field(T field, T into, uint32_t from, uint32_t length) {  // bfi
    for (uint32_t i = from & 255, n = length & 255; n && i < 8 * sizeof(T); i++, n--, field >>= 1) {
        into = (into & ~((T)1 << i)) | (field & 1) << i;
    }
    return into;
}
enum class Bytes { none, f4e, b4e, rc8, ecl, ecr, rc16 };
template <Bytes MODE>
COH_INLINE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t to = 0;
    const uint32_t s = selector & 3;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t from = selector >> 4 * i & 15;
        switch (MODE) {
            case Bytes::f4e: from = s + i; break;
            case Bytes::b4e: from = (s - i) & 7; break;
            case Bytes::rc8: from = s; break;
            case Bytes::ecl: from = i > s ? i : s; break;
            case Bytes::ecr: from = i < s ? i : s; break;
            case Bytes::rc16: from = (s & 1) * 2 + (i & 1); break;
            default: break;
        }
        uint32_t byte = (uint32_t)(bytes >> 8 * (from & 7)) & 255;
        if (MODE == Bytes::none && (from & 8)) byte = byte & 128 ? 255 : 0;
        to |= byte << 8 * i;
    }
    return to;
}
COH_INLINE uint32_t logic_3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t to = 0;
    for (int i = 0; i < 8; i++) {
        if (table >> i & 1) to |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return to;
}
// mov between a register and its parts, lowest first.
template <class To, class Part, size_t N>
COH_INLINE To pack(const Part (&parts)[N]) {
    To to = 0;
    for (size_t i = 0; i < N; i++) to |= (To)parts[i] << 8 * sizeof(Part) * i;
    return to;
}
template <class Part, size_t N, class From>
COH_INLINE void unpack(Part (&parts)[N], From from) {
    for (size_t i = 0; i < N; i++) parts[i] = (Part)(from >> 8 * sizeof(Part) * i);
}

// ---- comparisons ----
enum class Compare { eq, ne, lt, le, gt, ge, lo, ls, hi, hs, equ, neu, ltu, leu, gtu, geu, num, nan };
template <Compare C, class T>
COH_INLINE bool compare(T left, T right) {
    if constexpr (std::is_integral<T>::value) {
        switch (C) {
            case Compare::eq: return left == right;
            case Compare::ne: return left != right;
            case Compare::lt: case Compare::lo: return left < right;
            case Compare::le: case Compare::ls: return left <= right;
            case Compare::gt: case Compare::hi: return left > right;
            default: return left >= right;
        }
    } else {
        const auto a = widen(left), b = widen(right);
        const bool unordered = a != a || b != b;
        switch (C) {
            case Compare::eq: return a == b;
            case Compare::ne: return a < b || a > b;  // false for NaN, unlike C++
            case Compare::lt: return a < b;
            case Compare::le: return a <= b;
            case Compare::gt: return a > b;
            case Compare::ge: return a >= b;
            case Compare::equ: return unordered || a == b;
            case Compare::neu: return unordered || a != b;
            case Compare::ltu: return unordered || a < b;
            case Compare::leu: return unordered || a <= b;
            case Compare::gtu: return unordered || a > b;
            case Compare::geu: return unordered || a >= b;
            case Compare::num: return !unordered;
            default: return unordered;
        }
    }
}
enum class Join { none, op_and, op_or, op_xor };
template <Join J>
COH_INLINE bool join(bool result, bool c) {
    return J == Join::op_and ? result && c : J == Join::op_or ? result || c
         : J == Join::op_xor ? result != c : result;
}
// set: true is 1.0 for a floating-point type and all ones for an integer.
template <class To>
COH_INLINE To truth(bool v) {
    if constexpr (is_16_bit<To>) return narrow<To>(v ? 1.0f : 0.0f);
    else if constexpr (std::is_floating_point<To>::value) return v ? To(1) : To(0);
    else return v ? (To)~To(0) : To(0);
}
template <Compare C, class To, class T>
COH_INLINE To set(T a, T b) {
    if constexpr (std::is_same<T, F16x2>::value || std::is_same<T, BF16x2>::value) {
        if constexpr (std::is_integral<To>::value) {
            return (To)(truth<uint16_t>(compare<C>(a.low, b.low)) |
                        (uint32_t)truth<uint16_t>(compare<C>(a.high, b.high)) << 16);
        } else {
            return {set<C, decltype(To::low)>(a.low, b.low), set<C, decltype(To::low)>(a.high, b.high)};
        }
    } else {
        return truth<To>(compare<C>(a, b));
    }
}

}  // namespace ptx
}  // namespace coh
