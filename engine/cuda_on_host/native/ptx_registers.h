// Registers of inline PTX: unsigned integers of the register's width for all types (.pred: bool),
// because a PTX instruction may read a register as another type.
#pragma once

namespace coh {
namespace ptx {

template <size_t BYTES>
struct BitsOf;
template <>
struct BitsOf<1> {
    using type = uint8_t;
};
template <>
struct BitsOf<2> {
    using type = uint16_t;
};
template <>
struct BitsOf<4> {
    using type = uint32_t;
};
template <>
struct BitsOf<8> {
    using type = uint64_t;
};
template <>
struct BitsOf<16> {
    using type = unsigned __int128;
};

// A register read as a T: the low bytes where it is wider.
template <class T, class Register>
COH_INLINE T get(Register bits) {
    static_assert(sizeof(T) <= sizeof(Register), "the register is narrower than the type");
    if constexpr (std::is_same<T, bool>::value) return bits;
    else return coh_bit_cast<T>((typename BitsOf<sizeof(T)>::type)bits);
}
// Writes a T to a register; a wider register is sign- or zero-extended.
template <class Register, class T>
COH_INLINE void put(Register &to, T v) {
    static_assert(sizeof(T) <= sizeof(Register), "the register is narrower than the type");
    if constexpr (std::is_same<Register, bool>::value || std::is_integral<T>::value) {
        to = (Register)v;
    } else {
        to = (Register)coh_bit_cast<typename BitsOf<sizeof(T)>::type>(v);
    }
}

// ---- operands of the asm statement ----
// Size in bytes of a constraint's register, and whether nvcc accepts floating-point expressions for
// it.
template <char CONSTRAINT>
struct Constraint {
    static constexpr size_t bytes = CONSTRAINT == 'h'                        ? 2
                                    : CONSTRAINT == 'r' || CONSTRAINT == 'f' ? 4
                                    : CONSTRAINT == 'q'                      ? 16
                                                                             : 8;
    static constexpr bool floating = CONSTRAINT == 'f' || CONSTRAINT == 'd';
    using Register = typename BitsOf<bytes>::type;
};
// Whether nvcc accepts an expression of type T for the constraint.
template <char CONSTRAINT, class T>
constexpr bool fits() {
    using Plain = std::remove_cv_t<std::remove_reference_t<T>>;
    using Known = Constraint<CONSTRAINT>;
    constexpr bool is_128_bits = CONSTRAINT == 'q' && std::is_trivially_copyable<Plain>::value;
    return sizeof(Plain) == Known::bytes &&
           (is_128_bits || (std::is_scalar<Plain>::value &&
                            std::is_floating_point<Plain>::value == Known::floating));
}
template <char CONSTRAINT, class T>
COH_INLINE typename Constraint<CONSTRAINT>::Register read_operand(const T &v) {
    typename Constraint<CONSTRAINT>::Register bits = 0;
    memcpy(&bits, (const void *)&v, sizeof v < sizeof bits ? sizeof v : sizeof bits);
    return bits;
}
template <class T, class Register>
COH_INLINE void write_operand(T &v, Register bits) {
    memcpy((void *)&v, &bits, sizeof v < sizeof bits ? sizeof v : sizeof bits);
}

// wgmma adds to its accumulators later, in place, so they must be contiguous in memory.
template <int N, class First, class... More>
COH_INLINE float *in_place(Site site, First &first, More &...more) {
    static_assert(1 + sizeof...(More) == N, "the accumulators of the shape");
    char *const address[] = {(char *)&first, (char *)&more...};
    for (int i = 1; i < N; i++) {
        if (address[i] != address[0] + 4 * i) {
            fail("unsupported PTX", site, "on the CPU the accumulators of wgmma must be one array, "
                 "in order: operand %d does not follow the one before", i);
        }
    }
    return (float *)address[0];
}

// Address of an element of an Array, unless the array is a temporary.
template <class Array, class T>
COH_INLINE const void *place_of(T &element) {
    return std::is_array_v<Array> || std::is_reference_v<Array> || std::is_pointer_v<Array>
               ? (const void *)&element
               : nullptr;
}
template <class Array, class T>
COH_INLINE const void *place_of(const T &&) {
    return nullptr;
}
// Address of four registers if they are contiguous in memory, else null.
COH_INLINE const void *neighbours(const void *const (&place)[4]) {
    for (int i = 0; i < 4; i++) {
        if (!place[i] || (const char *)place[i] != (const char *)place[0] + 4 * i) return nullptr;
    }
    return place[0];
}

}  // namespace ptx
}  // namespace coh
