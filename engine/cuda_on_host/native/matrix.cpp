// ldmatrix, stmatrix and mma.sync: the fragment layouts of the PTX manual, sections "Matrix
// fragments for mma.m16n8k16" (and the other shapes), "ldmatrix" and "stmatrix".
#include "ptx_types.h"

namespace coh {

struct LdmatrixOperand {
    uint32_t *fragment;
    const uint16_t *row;
};
template <int MATRICES, bool TRANSPOSED>
static void ldmatrix_lanes(void **operands, uint32_t) {
    const uint16_t *row[MATRICES * 8];
    for (int i = 0; i < MATRICES * 8; i++) row[i] = ((LdmatrixOperand *)operands[i])->row;
    for (int lane = 0; lane < 32; lane++) {
        uint32_t *fragment = ((LdmatrixOperand *)operands[lane])->fragment;
        const int first = 2 * (lane % 4), second = lane / 4;
        for (int m = 0; m < MATRICES; m++) {
            if (TRANSPOSED) {
                const uint32_t low = row[m * 8 + first][second];
                const uint32_t high = row[m * 8 + first + 1][second];
                fragment[m] = low | high << 16;
            } else {
                memcpy(&fragment[m], row[m * 8 + second] + first, 4);
            }
        }
    }
}

// Only the first `matrices` * 8 lanes provide rows.
static void check_row(const char *what, const void *row, int matrices, AccessKind kind, Site site) {
    if ((int)self->lane >= matrices * 8) return;
    const uint32_t address = shared_address(row, site);
    if ((uintptr_t)row % 16) {
        fail_at("misaligned address", site, "%s row at shared address %u is not 16-byte aligned",
                what, address);
    }
    check_access(row, 16, kind, site);
}

void ldmatrix(uint32_t *fragment, int matrices, bool transposed, const void *row, Site site) {
    check_row("ldmatrix", row, matrices, AccessKind::read, site);
    LdmatrixOperand operand{fragment, (const uint16_t *)row};
    Collective lanes;
    switch (matrices) {
        case 1: lanes = transposed ? ldmatrix_lanes<1, true> : ldmatrix_lanes<1, false>; break;
        case 2: lanes = transposed ? ldmatrix_lanes<2, true> : ldmatrix_lanes<2, false>; break;
        default: lanes = transposed ? ldmatrix_lanes<4, true> : ldmatrix_lanes<4, false>; break;
    }
    warp_collective(0xffffffffu, lanes, &operand, site, Alignment::same_line);
}

struct StmatrixOperand {
    uint16_t *row;
    const uint32_t *fragment;
};
template <int MATRICES, bool TRANSPOSED>
static void stmatrix_lanes(void **operands, uint32_t) {
    for (int lane = 0; lane < 32; lane++) {
        const uint32_t *fragment = ((StmatrixOperand *)operands[lane])->fragment;
        const int first = 2 * (lane % 4), second = lane / 4;
        for (int m = 0; m < MATRICES; m++) {
            for (int i = 0; i < 2; i++) {
                const int row = TRANSPOSED ? first + i : second;
                const int column = TRANSPOSED ? second : first + i;
                ((StmatrixOperand *)operands[m * 8 + row])->row[column] =
                    (uint16_t)(fragment[m] >> 16 * i);
            }
        }
    }
}
void stmatrix(void *row, int matrices, bool transposed, const uint32_t *fragment, Site site) {
    check_row("stmatrix", row, matrices, AccessKind::write, site);
    StmatrixOperand operand{(uint16_t *)row, fragment};
    Collective lanes;
    switch (matrices) {
        case 1: lanes = transposed ? stmatrix_lanes<1, true> : stmatrix_lanes<1, false>; break;
        case 2: lanes = transposed ? stmatrix_lanes<2, true> : stmatrix_lanes<2, false>; break;
        default: lanes = transposed ? stmatrix_lanes<4, true> : stmatrix_lanes<4, false>; break;
    }
    warp_collective(0xffffffffu, lanes, &operand, site, Alignment::same_line);
}

// ---- mma.sync ----
struct MmaOperand {
    uint32_t *d;
    const uint32_t *a, *b, *c;
};
// Elements in a 32-bit register, and the accumulator type, for each element type.
template <Element E>
struct ElementType;
template <>
struct ElementType<Element::f16> {
    using Bits = uint16_t;
    // half_to_float() in a form that compilers vectorise: a multiplication adjusts the exponent's
    // bias, which also normalises subnormal numbers.
    static float value(Bits bits) {
        const uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
        const float scaled = coh_bit_cast<float>(magnitude) * 0x1p112f;
        const uint32_t special = magnitude >= 0x0f800000u ? 0x7f800000u : 0;  // infinity or NaN
        const uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
        return coh_bit_cast<float>(coh_bit_cast<uint32_t>(scaled) | special | sign);
    }
};
template <>
struct ElementType<Element::bf16> {
    using Bits = uint16_t;
    static float value(Bits bits) { return bfloat16_to_float(bits); }
};
template <>
struct ElementType<Element::tf32> {
    using Bits = uint32_t;
    static float value(Bits bits) { return coh_bit_cast<float>(bits & ~0x1fffu); }
};
template <>
struct ElementType<Element::e4m3> {
    using Bits = uint8_t;
    static float value(Bits bits) { return widen(ptx::E4M3{bits}); }
};
template <>
struct ElementType<Element::e5m2> {
    using Bits = uint8_t;
    static float value(Bits bits) { return widen(ptx::E5M2{bits}); }
};
template <>
struct ElementType<Element::s8> {
    using Bits = uint8_t;
    static int value(Bits bits) { return (int8_t)bits; }
};
template <>
struct ElementType<Element::u8> {
    using Bits = uint8_t;
    static int value(Bits bits) { return bits; }
};
template <Element ACCUMULATOR>
struct AccumulatorType {  // f32 or s32
    using Sum = std::conditional_t<ACCUMULATOR == Element::s32, int, float>;
    static void read(const uint32_t *words, Sum *out) { memcpy(out, words, 16); }
    static void write(const Sum *in, uint32_t *words) { memcpy(words, in, 16); }
};
template <>
struct AccumulatorType<Element::f16> {
    using Sum = float;
    static void read(const uint32_t *words, Sum *out) {
        uint16_t bits[4];
        memcpy(bits, words, 8);
        for (int i = 0; i < 4; i++) out[i] = half_to_float(bits[i]);
    }
    static void write(const Sum *in, uint32_t *words) {
        uint16_t bits[4];
        for (int i = 0; i < 4; i++) bits[i] = ptx::narrow<ptx::F16>(in[i]).bits;
        memcpy(words, bits, 8);
    }
};

// A lane holds rows lane / 4 and lane / 4 + 8 of A and the accumulator, column lane / 4 of B. Along
// K (and the accumulator's columns) each register holds neighbours, and four lanes make a block.
template <int K, Element A, Element B, Element ACCUMULATOR>
static void mma_lanes(void **operands, uint32_t) {
    using Type = AccumulatorType<ACCUMULATOR>;
    using Sum = typename Type::Sum;
    using Bits = typename ElementType<A>::Bits;
    constexpr int in_register = 4 / sizeof(Bits), in_block = 4 * in_register;
    alignas(64) Bits a_bits[16 * K], b_bits[K * 8];  // rows of A, and B [K, 8]
    alignas(64) Sum a[16 * K], b[K * 8], c[16][8];
    // A row of B and of the accumulator.
    typedef Sum Row __attribute__((vector_size(8 * sizeof(Sum)), may_alias));
    for (int lane = 0; lane < 32; lane++) {
        const MmaOperand &op = *(MmaOperand *)operands[lane];
        const int group = lane / 4, column = in_register * (lane % 4);
        for (int block = 0; block < K / in_block; block++) {
            const int k = block * in_block + column;
            memcpy(&a_bits[group * K + k], &op.a[2 * block], 4);
            memcpy(&a_bits[(group + 8) * K + k], &op.a[2 * block + 1], 4);
            Bits of_b[in_register];
            memcpy(of_b, &op.b[block], 4);
            for (int i = 0; i < in_register; i++) b_bits[(k + i) * 8 + group] = of_b[i];
        }
        Sum own[4];
        Type::read(op.c, own);
        memcpy(&c[group][2 * (lane % 4)], own, sizeof own / 2);
        memcpy(&c[group + 8][2 * (lane % 4)], own + 2, sizeof own / 2);
    }
    for (int i = 0; i < 16 * K; i++) a[i] = ElementType<A>::value(a_bits[i]);
    for (int i = 0; i < K * 8; i++) b[i] = ElementType<B>::value(b_bits[i]);
    for (int row = 0; row < 16; row++) {
        Row sum = *(const Row *)c[row];
        for (int k = 0; k < K; k++) sum += a[row * K + k] * *(const Row *)&b[k * 8];
        *(Row *)c[row] = sum;
    }
    for (int lane = 0; lane < 32; lane++) {
        const MmaOperand &op = *(MmaOperand *)operands[lane];
        Sum own[4];
        memcpy(own, &c[lane / 4][2 * (lane % 4)], sizeof own / 2);
        memcpy(own + 2, &c[lane / 4 + 8][2 * (lane % 4)], sizeof own / 2);
        Type::write(own, op.d);
    }
}

template <Element A, Element B, Element ACCUMULATOR, int SMALL, int LARGE>
static Collective mma_of_k(int k) {
    if (k == SMALL) return mma_lanes<SMALL, A, B, ACCUMULATOR>;
    return k == LARGE ? mma_lanes<LARGE, A, B, ACCUMULATOR> : nullptr;
}
static Collective find_mma(MmaShape shape) {
    using E = Element;
    auto is = [&](E a, E b, E accumulator) {
        return shape.a == a && shape.b == b && shape.accumulator == accumulator;
    };
    const int k = shape.k;
    if (is(E::f16, E::f16, E::f32)) return mma_of_k<E::f16, E::f16, E::f32, 8, 16>(k);
    if (is(E::f16, E::f16, E::f16)) return mma_of_k<E::f16, E::f16, E::f16, 8, 16>(k);
    if (is(E::bf16, E::bf16, E::f32)) return mma_of_k<E::bf16, E::bf16, E::f32, 8, 16>(k);
    if (is(E::tf32, E::tf32, E::f32)) return mma_of_k<E::tf32, E::tf32, E::f32, 4, 8>(k);
    if (is(E::s8, E::s8, E::s32)) return mma_of_k<E::s8, E::s8, E::s32, 16, 32>(k);
    if (is(E::s8, E::u8, E::s32)) return mma_of_k<E::s8, E::u8, E::s32, 16, 32>(k);
    if (is(E::u8, E::s8, E::s32)) return mma_of_k<E::u8, E::s8, E::s32, 16, 32>(k);
    if (is(E::u8, E::u8, E::s32)) return mma_of_k<E::u8, E::u8, E::s32, 16, 32>(k);
    if (is(E::e4m3, E::e4m3, E::f32)) return mma_of_k<E::e4m3, E::e4m3, E::f32, 16, 32>(k);
    if (is(E::e4m3, E::e5m2, E::f32)) return mma_of_k<E::e4m3, E::e5m2, E::f32, 16, 32>(k);
    if (is(E::e5m2, E::e4m3, E::f32)) return mma_of_k<E::e5m2, E::e4m3, E::f32, 16, 32>(k);
    if (is(E::e5m2, E::e5m2, E::f32)) return mma_of_k<E::e5m2, E::e5m2, E::f32, 16, 32>(k);
    return nullptr;
}

void mma_sync(MmaShape shape, uint32_t *d, const uint32_t *a, const uint32_t *b, const uint32_t *c,
              Site site) {
    const Collective lanes = find_mma(shape);
    if (!lanes) fail_at("bad mma", site, "there is no mma.sync of this shape and these types");
    MmaOperand operand{d, a, b, c};
    warp_collective(0xffffffffu, lanes, &operand, site, Alignment::same_line);
}

}  // namespace coh
