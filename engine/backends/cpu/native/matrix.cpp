// ldmatrix and mma.sync: the fragment layouts of the PTX manual, section "Matrix fragments for
// mma.m16n8k16" and "ldmatrix".
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

void ldmatrix(uint32_t *fragment, int matrices, bool transposed, const void *row, Site site) {
    if ((int)self->lane < matrices * 8) {  // the other lanes' rows are not read
        if ((uintptr_t)row % 16) {
            fail_at("misaligned address", site, "ldmatrix row at shared address %u is not 16-byte "
                    "aligned", shared_address(row));
        }
        shared_address(row);  // fails when it is not in shared memory
        check_access(row, 16, AccessKind::read, site);
    }
    LdmatrixOperand operand{fragment, (const uint16_t *)row};
    Collective lanes;
    switch (matrices) {
        case 1: lanes = transposed ? ldmatrix_lanes<1, true> : ldmatrix_lanes<1, false>; break;
        case 2: lanes = transposed ? ldmatrix_lanes<2, true> : ldmatrix_lanes<2, false>; break;
        default: lanes = transposed ? ldmatrix_lanes<4, true> : ldmatrix_lanes<4, false>; break;
    }
    warp_collective(0xffffffffu, lanes, &operand, site);
}

struct MmaOperand {
    float *d;
    const uint32_t *a, *b;
    const float *c;
};
template <Element ELEMENT>
static inline float element_to_float(uint16_t bits) {
    return ELEMENT == Element::bf16 ? bfloat16_to_float(bits) : half_to_float(bits);
}

template <Element ELEMENT>
static void mma_lanes(void **operands, uint32_t) {
    alignas(64) float a[16][16], b[16][8], c[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const MmaOperand &op = *(MmaOperand *)operands[lane];
        const int group = lane / 4, column = 2 * (lane % 4);
        uint16_t a_bits[8], b_bits[4];
        memcpy(a_bits, op.a, sizeof a_bits);
        memcpy(b_bits, op.b, sizeof b_bits);
        for (int i = 0; i < 8; i++) {  // bit 1 of i: lower half of the rows, bit 2: of the columns
            const int row = group + 8 * (i >> 1 & 1), k = column + (i & 1) + 8 * (i >> 2);
            a[row][k] = element_to_float<ELEMENT>(a_bits[i]);
        }
        for (int i = 0; i < 4; i++) {
            b[column + (i & 1) + 8 * (i >> 1)][group] = element_to_float<ELEMENT>(b_bits[i]);
        }
        for (int i = 0; i < 4; i++) c[group + 8 * (i >> 1)][column + (i & 1)] = op.c[i];
    }
    for (int row = 0; row < 16; row++) {
        float sum[8];
        for (int n = 0; n < 8; n++) sum[n] = c[row][n];
        for (int k = 0; k < 16; k++) {
            for (int n = 0; n < 8; n++) sum[n] += a[row][k] * b[k][n];
        }
        for (int n = 0; n < 8; n++) c[row][n] = sum[n];
    }
    for (int lane = 0; lane < 32; lane++) {
        const MmaOperand &op = *(MmaOperand *)operands[lane];
        const int group = lane / 4, column = 2 * (lane % 4);
        for (int i = 0; i < 4; i++) op.d[i] = c[group + 8 * (i >> 1)][column + (i & 1)];
    }
}

void mma_m16n8k16(float *d, const uint32_t *a, const uint32_t *b, const float *c, Element element,
                  Site site) {
    MmaOperand operand{d, a, b, c};
    const Collective lanes =
        element == Element::bf16 ? mma_lanes<Element::bf16> : mma_lanes<Element::f16>;
    warp_collective(0xffffffffu, lanes, &operand, site);
}

}  // namespace coh
