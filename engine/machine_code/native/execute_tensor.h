// Tensor cores of one warp. Included by emulator.cpp.
//
// A register of all lanes, in lane order, is an 8x8 matrix of 16-bit numbers in row order, or half of an
// 8x8 matrix of 32-bit numbers: PTX manual, matrix fragments for mma.m16n8k16.

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define WIDE_MULTIPLY 1

// 8 numbers of 16 bits as floats.
inline __m256 widened(__m128i bits, bool bfloat) {
    return bfloat ? _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)) : _mm256_cvtph_ps(bits);
}

__attribute__((always_inline)) inline void transpose(__m128i m[8]) {  // 8x8 numbers of 16 bits
    __m128i p[8], q[8];
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) p[2 * n] = _mm_unpacklo_epi16(m[n], m[n + 4]), p[2 * n + 1] = _mm_unpackhi_epi16(m[n], m[n + 4]);
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) q[2 * n] = _mm_unpacklo_epi16(p[n], p[n + 4]), q[2 * n + 1] = _mm_unpackhi_epi16(p[n], p[n + 4]);
#pragma GCC unroll 4
    for (int n = 0; n < 4; n++) m[2 * n] = _mm_unpacklo_epi16(q[n], q[n + 4]), m[2 * n + 1] = _mm_unpackhi_epi16(q[n], q[n + 4]);
}

// c += a · b as below, 8 columns at a time. Products are exact, so the sums are the same.
inline void multiply_registers(const Lanes* const* a, const Lanes* const* b, int depth, bool bfloat, float c[2][64]) {
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

// m16n8k16 with FP32 accumulators. An accumulator register has four of the eight columns, the even or the
// odd ones, of eight rows: this layout is kept. Additions are in order of k, as below.

#ifdef WIDE_MULTIPLY
#define QUICK_MULTIPLY 1

// One vector is two rows of four even or four odd columns, as in an accumulator register. For each k, a
// row's number of A is repeated for each column, and B's four columns for each row.

struct alignas(32) Factors {
    float of[2][4][4][8];  // A: [eight rows][four k][two rows][row · 4 + k]
};

typedef float Columns[16][8];  // B: [k][even columns, odd columns]

template <bool BFLOAT>
inline Factors factors_of(const Lanes* a) {
    Factors factors;
    for (int part = 0; part < 4; part++) {
        const auto* rows = reinterpret_cast<const __m128i*>(a[part].v);
        float(*to)[4][8] = factors.of[part & 1] + (part & 2);
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++) {
            const __m128i first = _mm_load_si128(rows + 2 * pair), second = _mm_load_si128(rows + 2 * pair + 1);
            _mm256_store_ps(to[0][pair], widened(_mm_unpacklo_epi64(first, second), BFLOAT));
            _mm256_store_ps(to[1][pair], widened(_mm_unpackhi_epi64(first, second), BFLOAT));
        }
    }
    return factors;
}

// Converts B: columns with 8 k each (0 to 7 and 8 to 15) or, transposed, k with 8 columns each.
template <bool BFLOAT>
inline void columns_of_rows(__m128i (*rows)[8], bool transposed, Columns& columns) {
    for (int part = 0; part < 2; part++) {
        const __m128i* const m = rows[part];
        float(*to)[8] = columns + 8 * part;
        if (transposed) {
            const __m256i order = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
#pragma GCC unroll 8
            for (int k = 0; k < 8; k++) _mm256_store_ps(to[k], _mm256_permutevar8x32_ps(widened(m[k], BFLOAT), order));
            continue;
        }
        __m128i ordered[8];
#pragma GCC unroll 8
        for (int n = 0; n < 8; n++) ordered[n] = m[2 * (n % 4) + n / 4];
        transpose(ordered);
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) _mm256_store_ps(to[k], widened(ordered[k], BFLOAT));
    }
}

template <bool BFLOAT>
inline void columns_of(const void* lower, const void* upper, Columns& columns) {
    __m128i rows[2][8];
    std::memcpy(rows[0], lower, sizeof rows[0]), std::memcpy(rows[1], upper, sizeof rows[1]);
    columns_of_rows<BFLOAT>(rows, false, columns);
}

template <int K>
__attribute__((always_inline)) inline void add_products(const __m256* pairs, const float* columns, __m256* even, __m256* odd) {
    const __m256 four_even = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(columns)), four_odd = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(columns + 4));
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; pair++) {
        const __m256 factor = _mm256_permute_ps(pairs[pair], K * 0x55);
        even[pair] = _mm256_fmadd_ps(factor, four_even, even[pair]);
        odd[pair] = _mm256_fmadd_ps(factor, four_odd, odd[pair]);
    }
}

inline void multiply_sums(const Factors& factors, const Columns& columns, const Lanes* const* before, Lanes* after) {
    // Copies the last two accumulator registers if the first two results would overwrite them.
    Lanes upper[2];
    const Lanes* sums[4] = {before[0], before[1], before[2], before[3]};
    if (before[2] == after || before[2] == after + 1 || before[3] == after || before[3] == after + 1) {
        upper[0] = *before[2], upper[1] = *before[3];
        sums[2] = upper, sums[3] = upper + 1;
    }
    for (int half = 0; half < 2; half++) {
        const float* const from[2] = {reinterpret_cast<const float*>(sums[2 * half]->v), reinterpret_cast<const float*>(sums[2 * half + 1]->v)};
        __m256 even[4], odd[4];
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++) even[pair] = _mm256_load_ps(from[0] + 8 * pair), odd[pair] = _mm256_load_ps(from[1] + 8 * pair);
        for (int quad = 0; quad < 4; quad++) {
            __m256 pairs[4];
#pragma GCC unroll 4
            for (int pair = 0; pair < 4; pair++) pairs[pair] = _mm256_load_ps(factors.of[half][quad][pair]);
            const float* const four = columns[4 * quad];
            add_products<0>(pairs, four, even, odd), add_products<1>(pairs, four + 8, even, odd);
            add_products<2>(pairs, four + 16, even, odd), add_products<3>(pairs, four + 24, even, odd);
        }
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; pair++) {
            _mm256_store_ps(reinterpret_cast<float*>(after[2 * half].v) + 8 * pair, even[pair]);
            _mm256_store_ps(reinterpret_cast<float*>(after[2 * half + 1].v) + 8 * pair, odd[pair]);
        }
    }
}

// For products with many columns: A's 16 rows; a vector is four even and four odd columns of one row, which
// needs fewer loads for as many accumulators as fit in registers.
struct alignas(32) GroupFactors {
    float of[16][16];  // A: [row][k]
};

template <bool BFLOAT>
inline void widen_part(const __m128i* rows, int part, GroupFactors& factors) {  // 8 rows with 8 k each
    float(*to)[16] = factors.of + 8 * (part & 1);
#pragma GCC unroll 8
    for (int row = 0; row < 8; row++) _mm256_store_ps(to[row] + 8 * (part >> 1), widened(rows[row], BFLOAT));
}

template <bool BFLOAT>
inline void widen_factors(const Lanes* a, GroupFactors& factors) {
    for (int part = 0; part < 4; part++) widen_part<BFLOAT>(reinterpret_cast<const __m128i*>(a[part].v), part, factors);
}

// Rows `FIRST` to `FIRST` + `ROWS` of `BLOCKS` times eight columns, with accumulators in place.
template <int FIRST, int ROWS, int BLOCKS>
__attribute__((always_inline)) inline void add_rows(const float* factors, const float* columns, const Lanes* before, Lanes* after) {
    __m256 sums[ROWS][BLOCKS];
#pragma GCC unroll 8
    for (int n = 0; n < ROWS; n++)
#pragma GCC unroll 2
        for (int block = 0; block < BLOCKS; block++) {
            sums[n][block] = _mm256_setzero_ps();
            if (!before) continue;
            const Lanes* const from = before + 4 * block + (FIRST + n) / 8 * 2;
            const float *even = reinterpret_cast<const float*>(from[0].v) + (FIRST + n) % 8 * 4, *odd = reinterpret_cast<const float*>(from[1].v) + (FIRST + n) % 8 * 4;
            sums[n][block] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(even)), _mm_load_ps(odd), 1);
        }
#pragma GCC unroll 16
    for (int k = 0; k < 16; k++) {
        __m256 of_k[BLOCKS];
#pragma GCC unroll 2
        for (int block = 0; block < BLOCKS; block++) of_k[block] = _mm256_load_ps(columns + 128 * block + 8 * k);
#pragma GCC unroll 8
        for (int n = 0; n < ROWS; n++) {
            const __m256 factor = _mm256_broadcast_ss(factors + 16 * (FIRST + n) + k);
#pragma GCC unroll 2
            for (int block = 0; block < BLOCKS; block++) sums[n][block] = _mm256_fmadd_ps(factor, of_k[block], sums[n][block]);
        }
    }
#pragma GCC unroll 8
    for (int n = 0; n < ROWS; n++)
#pragma GCC unroll 2
        for (int block = 0; block < BLOCKS; block++) {
            Lanes* const to = after + 4 * block + (FIRST + n) / 8 * 2;
            float *even = reinterpret_cast<float*>(to[0].v) + (FIRST + n) % 8 * 4, *odd = reinterpret_cast<float*>(to[1].v) + (FIRST + n) % 8 * 4;
            _mm_store_ps(even, _mm256_castps256_ps128(sums[n][block]));
            _mm_store_ps(odd, _mm256_extractf128_ps(sums[n][block], 1));
        }
}

template <int BLOCKS>
__attribute__((always_inline)) inline void multiply_rows(const GroupFactors& factors, const Columns* columns, const Lanes* before, Lanes* after) {
    const float *a = factors.of[0], *b = columns[0][0];
    asm volatile("" : "+r"(a), "+r"(b) : : "memory");  // one address in a register, not one of each factor
    add_rows<0, 6, BLOCKS>(a, b, before, after), add_rows<6, 5, BLOCKS>(a, b, before, after);
    add_rows<11, 5, BLOCKS>(a, b, before, after);
}

// `before` null: start from zeros. `after` null: the result is not needed.
inline void multiply_group_sums(const GroupFactors& factors, const Columns* columns, int blocks, const Lanes* before, Lanes* after) {
    if (!after) return;
    for (int block = 0; block + 1 < blocks; block += 2) multiply_rows<2>(factors, columns + block, before ? before + 4 * block : nullptr, after + 4 * block);
    const int last = blocks - 1;
    if (blocks % 2) multiply_rows<1>(factors, columns + last, before ? before + 4 * last : nullptr, after + 4 * last);
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

// IMMA m16n8k16, m16n8k32. A register holds four bytes along k: A's of rows 0 to 7 or 8 to 15, B's of
// its eight columns.
void Warp::multiply_integers(const Instruction& i) {
    const int parts = i.count == 16832 ? 2 : i.count == 16816 ? 1 : 0;  // number of parts of 16 along k
    const size_t types = i.name.find(".", 5);
    const std::string of_a = types == std::string::npos ? "" : i.name.substr(types + 1, 2);
    const std::string of_b = types == std::string::npos ? "" : i.name.substr(types + 4, 2);
    const auto is_byte = [](const std::string& type) { return type == "S8" || type == "U8"; };
    if (!parts || !is_byte(of_a) || !is_byte(of_b)) fail(i, "is a tensor-core operation that is not supported here");
    if (on != FULL) fail(i, "runs with inactive lanes, for which its result is undefined");
    int32_t a[16][32], b[8][32];
    const auto take = [](const Lanes& v, bool is_signed, int32_t(*to)[32], int k) {
        for (int l = 0; l < 32; l++)
            for (int n = 0; n < 4; n++) {
                const uint32_t bits = v[l] >> 8 * n & 0xff;
                to[l / 4][k + 4 * (l % 4) + n] = is_signed ? static_cast<int8_t>(bits) : static_cast<int32_t>(bits);
            }
    };
    Lanes t;
    for (int part = 0; part < parts; part++) {
        for (int half = 0; half < 2; half++) take(read(at(i.s, 1, i), t, 2 * part + half), of_a == "S8", a + 8 * half, 16 * part);
        take(read(at(i.s, 2, i), t, part), of_b == "S8", b, 16 * part);
    }
    const bool saturates = i.name.find(".SAT") != std::string::npos;
    Lanes sums[4];
    for (int word = 0; word < 4; word++) {
        const Lanes& before = read(at(i.s, 3, i), t, word);
        for (int l = 0; l < 32; l++) {
            const int32_t *row = a[l / 4 + word / 2 * 8], *column = b[l % 4 * 2 + word % 2];
            int64_t sum = static_cast<int32_t>(before[l]);
            for (int k = 0; k < 16 * parts; k++) sum += static_cast<int64_t>(row[k]) * column[k];
            if (saturates) sum = std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX);
            sums[word][l] = static_cast<uint32_t>(sum);
        }
    }
    for (int word = 0; word < 4; word++) write(i.s[0], sums[word], word);
}

#ifndef WIDE_MULTIPLY
// c += a · b, of registers with 8 rows of A or 8 columns of B and 8 k each; c is [rows 0 to 7, 8 to
// 15][row · 8 + column].
inline void multiply_registers(const Lanes* const* a, const Lanes* const* b, int depth, bool bfloat, float c[2][64]) {
    float rows[4][64], columns[16][8];  // rows[part][row · 8 + k]
    for (int part = 0; part < depth / 4; part++) to_floats(*a[part], bfloat, rows[part]);
    for (int part = 0; part < depth / 8; part++) {
        float read[64];
        to_floats(*b[part], bfloat, read);
        for (int k = 0; k < 8; k++)
            for (int n = 0; n < 8; n++) columns[8 * part + k][n] = read[8 * n + k];
    }
    for (int half = 0; half < 2; half++)
        for (int row = 0; row < 8; row++) {
            float sums[8];
            std::memcpy(sums, &c[half][8 * row], sizeof sums);
            for (int k = 0; k < depth; k++) {
                const float factor = rows[half + 2 * (k / 8)][8 * row + k % 8];
                for (int n = 0; n < 8; n++) sums[n] = __builtin_fmaf(factor, columns[k][n], sums[n]);
            }
            std::memcpy(&c[half][8 * row], sums, sizeof sums);
        }
}
#endif

// Whether A and B of an FP8 product are E5M2 or E4M3; the mnemonic has both formats, A's first.
struct Fp8Formats {
    bool is_known, a, b;
    explicit Fp8Formats(const Instruction& i) {
        const size_t e4m3 = i.name.find(".E4M3"), e5m2 = i.name.find(".E5M2");
        is_known = i.has(MOD_E4M3) || i.has(MOD_E5M2);
        a = i.has(MOD_E5M2) && e5m2 < e4m3;
        b = i.has(MOD_E5M2) && (!i.has(MOD_E4M3) || e4m3 < e5m2);
    }
};

// Converts the first two (0) or last two (1) of four bytes along k to FP16.
inline Lanes fp8_pairs(const Lanes& bytes, int which, bool e5m2) {
    return each([&](int l) { return FP8_HALVES.pair(bytes[l] >> 16 * which, e5m2); });
}

void Warp::multiply(const Instruction& i) {  // HMMA m16n8k8, m16n8k16; QMMA m16n8k16, m16n8k32
    if (starts(i.name, "IMMA")) return multiply_integers(i);
    const Fp8Formats fp8(i);
    const bool in_bytes = starts(i.name, "QMMA") && fp8.is_known;
    const int depth = i.count == 16832 && in_bytes ? 16 : i.count == 16816 ? (in_bytes ? 8 : 16) : i.count == 1688 && !in_bytes ? 8 : 0;
    if (!depth || !(in_bytes || starts(i.name, "HMMA")) || i.has(MOD_TF32)) fail(i, "is a tensor-core operation that is not supported here");
    const bool bfloat = i.has(MOD_BF16), half_sums = i.has(MOD_F16) && !i.has(MOD_F32);
    if (on != FULL) fail(i, "runs with inactive lanes, for which its result is undefined");
    Lanes t;
    float c[2][64];
    for (int half = 0; half < 2; half++) {
        if (half_sums) {
            to_floats(read(at(i.s, 3, i), t, half), false, c[half]);
            continue;
        }
        Lanes u;
        const Lanes &even = read(at(i.s, 3, i), t, 2 * half), &odd = read(i.s[3], u, 2 * half + 1);
        for (int l = 0; l < 32; l++) c[half][2 * l] = float_of(even[l]), c[half][2 * l + 1] = float_of(odd[l]);
    }
    Lanes held[6], halves[6];
    const Lanes *left[4] = {}, *right[2] = {};
    for (int part = 0; part < depth / 4; part++) left[part] = &read(at(i.s, 1, i), held[part], part);
    for (int part = 0; part < depth / 8; part++) right[part] = &read(at(i.s, 2, i), held[4 + part], part);
    if (!in_bytes) {
        multiply_registers(left, right, depth, bfloat, c);
    } else {
        const Lanes *const a[4] = {halves, halves + 1, halves + 2, halves + 3}, *const b[2] = {halves + 4, halves + 5};
        for (int which = 0; which < 2; which++) {  // each with half of all k
            for (int part = 0; part < depth / 4; part++) halves[part] = fp8_pairs(*left[part], which, fp8.a);
            for (int part = 0; part < depth / 8; part++) halves[4 + part] = fp8_pairs(*right[part], which, fp8.b);
            multiply_registers(a, b, depth, false, c);
        }
    }
    for (int half = 0; half < 2; half++) {
        if (half_sums) {
            write(i.s[0], each([&](int l) { return float_to_half(c[half][2 * l]) | float_to_half(c[half][2 * l + 1]) << 16; }), half);
            continue;
        }
        write(i.s[0], each([&](int l) { return bits_of(c[half][2 * l]); }), 2 * half);
        write(i.s[0], each([&](int l) { return bits_of(c[half][2 * l + 1]); }), 2 * half + 1);
    }
}
