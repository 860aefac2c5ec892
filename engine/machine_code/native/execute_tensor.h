// Tensor cores of one warp. Included by emulator.cpp.
//
// A register of all lanes, lane after lane, is an 8x8 matrix of 16-bit numbers by rows, or one of
// 4 pairs of columns in 32 bits: PTX manual, matrix fragments for mma.m16n8k16.

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define WIDE_MULTIPLY 1

// 8 numbers of 16 bits as floats.
inline __m256 widened(__m128i bits, bool bfloat) {
    return bfloat ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)) : _mm256_cvtph_ps(bits);
}

inline void transpose(__m128i m[8]) {  // 8x8 numbers of 16 bits
    __m128i p[8], q[8];
    for (int n = 0; n < 4; n++) p[2 * n] = _mm_unpacklo_epi16(m[n], m[n + 4]), p[2 * n + 1] = _mm_unpackhi_epi16(m[n], m[n + 4]);
    for (int n = 0; n < 4; n++) q[2 * n] = _mm_unpacklo_epi16(p[n], p[n + 4]), q[2 * n + 1] = _mm_unpackhi_epi16(p[n], p[n + 4]);
    for (int n = 0; n < 4; n++) m[2 * n] = _mm_unpacklo_epi16(q[n], q[n + 4]), m[2 * n + 1] = _mm_unpackhi_epi16(q[n], q[n + 4]);
}

// c += a · b as below, 8 columns at a time. The products are exact, so that the sums are the same.
inline void multiply_wide(const Lanes* const* a, const Lanes* const* b, int depth, bool bfloat, float c[2][64]) {
    __m256 columns[16];
    for (int part = 0; part < depth / 8; part++) {
        __m128i m[8];
        std::memcpy(m, b[part]->v, sizeof m);
        transpose(m);
        for (int k = 0; k < 8; k++) columns[8 * part + k] = widened(m[k], bfloat);
    }
    for (int half = 0; half < 2; half++) {
        __m256 sums[8];
        for (int row = 0; row < 8; row++) sums[row] = _mm256_loadu_ps(&c[half][8 * row]);
        for (int part = 0; part < depth / 8; part++) {
            alignas(32) float factors[64];
            __m128i m[8];
            std::memcpy(m, a[half + 2 * part]->v, sizeof m);
            for (int row = 0; row < 8; row++) _mm256_store_ps(&factors[8 * row], widened(m[row], bfloat));
            const float* from = factors;
            asm volatile("" : "+r"(from) : : "memory");  // one address in a register, not one of each factor
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++)
#pragma GCC unroll 8
                for (int row = 0; row < 8; row++)
                    sums[row] = _mm256_fmadd_ps(_mm256_broadcast_ss(from + 8 * row + k), columns[8 * part + k], sums[row]);
        }
        for (int row = 0; row < 8; row++) _mm256_storeu_ps(&c[half][8 * row], sums[row]);
    }
}
#endif

inline void to_floats(const Lanes& v, bool bfloat, float* out) {
    uint16_t bits[64];
    std::memcpy(bits, v.v, sizeof bits);
    if (bfloat)
        for (int n = 0; n < 64; n++) out[n] = bfloat_to_float(bits[n]);
    else
        for (int n = 0; n < 64; n++) out[n] = half_to_float(bits[n]);
}

void Warp::multiply(const Instruction& i) {  // HMMA m16n8k8, m16n8k16
    const int depth = i.count == 16816 ? 16 : i.count == 1688 ? 8 : 0;
    if (!depth || !starts(i.name, "HMMA") || i.has(MOD_TF32)) fail(i, "is a tensor-core operation that is not executed here");
    const bool bfloat = i.has(MOD_BF16), half_sums = i.has(MOD_F16) && !i.has(MOD_F32);
    if (on != FULL) fail(i, "runs with lanes switched off, where its result is undefined");
    Lanes t;
    float c[2][64];  // [rows 0 to 7, 8 to 15][row · 8 + column]
    for (int half = 0; half < 2; half++) {
        if (half_sums) {
            to_floats(read(at(i.s, 3, i), t, half), false, c[half]);
            continue;
        }
        Lanes u;
        const Lanes &even = read(at(i.s, 3, i), t, 2 * half), &odd = read(i.s[3], u, 2 * half + 1);
        for (int l = 0; l < 32; l++) c[half][2 * l] = float_of(even[l]), c[half][2 * l + 1] = float_of(odd[l]);
    }
#ifdef WIDE_MULTIPLY
    Lanes held[6];
    const Lanes *left[4] = {}, *right[2] = {};
    for (int part = 0; part < depth / 4; part++) left[part] = &read(at(i.s, 1, i), held[part], part);
    for (int part = 0; part < depth / 8; part++) right[part] = &read(at(i.s, 2, i), held[4 + part], part);
    multiply_wide(left, right, depth, bfloat, c);
#else
    float a[4][64], b[16][8];  // a[part][row · 8 + k]
    for (int part = 0; part < depth / 4; part++) to_floats(read(at(i.s, 1, i), t, part), bfloat, a[part]);
    for (int part = 0; part < depth / 8; part++) {
        float columns[64];
        to_floats(read(at(i.s, 2, i), t, part), bfloat, columns);
        for (int k = 0; k < 8; k++)
            for (int n = 0; n < 8; n++) b[8 * part + k][n] = columns[8 * n + k];
    }
    for (int half = 0; half < 2; half++)
        for (int row = 0; row < 8; row++) {
            float sums[8];
            std::memcpy(sums, &c[half][8 * row], sizeof sums);
            for (int k = 0; k < depth; k++) {
                const float factor = a[half + 2 * (k / 8)][8 * row + k % 8];
                for (int n = 0; n < 8; n++) sums[n] = __builtin_fmaf(factor, b[k][n], sums[n]);
            }
            std::memcpy(&c[half][8 * row], sums, sizeof sums);
        }
#endif
    for (int half = 0; half < 2; half++) {
        if (half_sums) {
            write(i.s[0], each([&](int l) { return float_to_half(c[half][2 * l]) | float_to_half(c[half][2 * l + 1]) << 16; }), half);
            continue;
        }
        write(i.s[0], each([&](int l) { return bits_of(c[half][2 * l]); }), 2 * half);
        write(i.s[0], each([&](int l) { return bits_of(c[half][2 * l + 1]); }), 2 * half + 1);
    }
}
