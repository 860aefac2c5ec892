// wgmma: products of a warpgroup. Included by emulator.cpp.

// Rows (A) or columns (B) and K of an operand in shared memory: PTX manual, asynchronous warpgroup-level
// matrix shared memory layout.
struct SharedMatrix {
    uint32_t start, leading, stride, row_bytes, log_columns;
    bool transposed;
    SharedMatrix(const Instruction& i, uint64_t descriptor, bool across) : transposed(across) {
        start = static_cast<uint32_t>(descriptor & 0x3fff) << 4, leading = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
        stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
        const uint32_t layout = static_cast<uint32_t>(descriptor >> 62);
        if (layout == 0) fail(i, "has operands without a swizzle, which is not supported here");
        row_bytes = 256u >> layout, log_columns = 7 - layout;
    }
    // Address of 16 bytes with 8 numbers that begin at (mn, k): along K, or along M or N if transposed.
    uint32_t address(uint32_t mn, uint32_t k) const { return swizzled(place(mn, k)); }
    uint32_t place(uint32_t mn, uint32_t k) const {
        const uint32_t column = mn & ((1u << log_columns) - 1);
        return transposed ? start + (mn >> log_columns) * leading + k / 8 * stride + k % 8 * row_bytes + column * 2
                          : start + mn / 8 * stride + mn % 8 * row_bytes + k * 2;
    }
    // The last byte that an operand of `count` rows or columns can access, for any `start` within a row.
    uint32_t last(uint32_t count) const {
        return start + 9 * row_bytes - 1 + (transposed ? ((count - 1) >> log_columns) * leading + stride : (count - 1) / 8 * stride);
    }
    uint32_t swizzled(uint32_t place) const { return place ^ (place >> 7 & (row_bytes / 16 - 1)) << 4; }
};

#ifdef QUICK_MULTIPLY
// Calls f(index, bytes) for 8 rows of A or columns of B with 8 numbers along K each. `mn` and `k` are
// multiples of 8, so that the distance of the eight is that of the swizzle's rows.
template <typename F>
__attribute__((always_inline)) inline void for_rows(Warp& warp, const Instruction& i, const SharedMatrix& from, uint32_t mn, uint32_t k, F f) {
    const Cta& cta = warp.cta;
    const uint32_t first = from.place(mn, k), last = first + 7 * from.row_bytes;
    if ((last | 127) >= cta.smem.size())
        for (uint32_t n = 0; n < 8; n++) shared_at(cta, i, from.swizzled(first + n * from.row_bytes), 16);
    const uint8_t* const smem = cta.smem.data();
#pragma GCC unroll 8
    for (uint32_t n = 0; n < 8; n++) f(n, _mm_loadu_si128(reinterpret_cast<const __m128i*>(smem + from.swizzled(first + n * from.row_bytes))));
    if (warp.looked_for())
        for (uint32_t n = 0; n < 8; n++) warp.note_reading(from.swizzled(first + n * from.row_bytes), warp.multiplied);
}

inline void load_rows(Warp& warp, const Instruction& i, const SharedMatrix& from, uint32_t mn, uint32_t k, __m128i rows[8]) {
    for_rows(warp, i, from, mn, k, [&](uint32_t n, __m128i row) { rows[n] = row; });
}

// Reads this warp's 16 rows of A from shared memory: calls f(part, its 8 rows of 16 bytes each).
template <typename F>
__attribute__((always_inline)) inline void for_parts(Warp& warp, const Instruction& i, const Warp::GroupOperands& given, F f) {
    const SharedMatrix from(i, given.a, given.a_transposed);
    for (uint32_t part = 0; part < 4; part++) {
        __m128i rows[8];
        load_rows(warp, i, from, static_cast<uint32_t>(16 * (warp.number % 4)) + 8 * (part & 1), 8 * (part >> 1), rows);
        if (from.transposed) transpose(rows);
        f(static_cast<int>(part), rows);
    }
}

// The first of the four registers that contain A.
inline const Lanes* registers_of(const Warp& warp, const Operand& a) {
    static const Lanes zeros[4] = {};
    const int last = warp.register_of(a, 3);
    return last == RZ ? zeros : &warp.R[last - 3];
}

// Multiplies; accumulators start at 0 if none are given.
inline void multiply_columns(Warp& warp, const Instruction& i, const GroupFactors& factors, const Columns* columns, const Operand* sums) {
    const int registers = i.count / 2, last = warp.register_of(i.raw[0], registers - 1);
    const Lanes* before = sums ? &warp.R[warp.register_of(*sums, registers - 1) - (registers - 1)] : nullptr;
    Lanes* const after = last == RZ ? nullptr : &warp.R[last - (registers - 1)];
    if (!sums || before == after) return multiply_group_sums(factors, columns, i.count / 8, before, after);
    alignas(64) static thread_local Lanes apart[128];  // a copy, as ranges may overlap
    std::copy(before, before + registers, apart);
    multiply_group_sums(factors, columns, i.count / 8, apart, apart);
    if (after) std::copy(apart, apart + registers, after);
}

// Cache of the converted B. The other warps of a warpgroup multiply by the same B, but other warps may run in
// between: entries are found by descriptor, and reused if the values have not changed.
struct KeptColumns {
    alignas(64) Columns columns[32];
    __m128i rows[32][2][8];
    uint64_t descriptor, seen;  // seen: when the values were last read
    int count = 0;              // number of columns; 0: empty
    bool bfloat, transposed;
};

template <bool BFLOAT>
const Columns* columns_of_group(Warp& warp, const Instruction& i, const SharedMatrix& from, uint64_t descriptor) {
    constexpr size_t MAX_KEPT = 64;
    static thread_local struct {
        const std::unique_ptr<KeptColumns[]> all{new KeptColumns[MAX_KEPT]};
        uint64_t descriptors[MAX_KEPT] = {};
        size_t oldest = 0, latest = 0;
    } group;
    // Entries are used in the same order as before.
    size_t which = (group.latest + 1) % MAX_KEPT;
    for (size_t n = 1; n < MAX_KEPT && group.descriptors[which] != descriptor; n++) which = (which + 1) % MAX_KEPT;
    if (group.descriptors[which] != descriptor) which = group.oldest, group.oldest = (group.oldest + 1) % MAX_KEPT;
    group.descriptors[which] = descriptor, group.latest = which;
    KeptColumns& kept = group.all[which];
    const bool alike = kept.count == i.count && kept.descriptor == descriptor && kept.bfloat == BFLOAT && kept.transposed == from.transposed;
    if (alike && !warp.looked_for() && warp.cta.changes.latest(from.start - from.start % from.row_bytes, from.last(static_cast<uint32_t>(i.count))) <= kept.seen) return kept.columns;
    kept.seen = warp.cta.changes.now;
    bool same = alike;
    const int blocks = i.count / 8;
    int block = 0;
    for (; same && block < blocks; block++) {
        __m128i others = _mm_setzero_si128();
        for (uint32_t part = 0; part < 2; part++) {
            const __m128i* const before = kept.rows[block][part];
            for_rows(warp, i, from, static_cast<uint32_t>(8 * block), 8 * part, [&](uint32_t n, __m128i row) { others = _mm_or_si128(others, _mm_xor_si128(row, before[n])); });
        }
        same = _mm_testz_si128(others, others);
    }
    if (same) return kept.columns;
    kept.count = 0;  // until all columns are converted
    for (block = std::max(0, block - 1); block < blocks; block++) {
        __m128i rows[2][8];
        for (uint32_t part = 0; part < 2; part++) load_rows(warp, i, from, static_cast<uint32_t>(8 * block), 8 * part, rows[part]);
        std::memcpy(kept.rows[block], rows, sizeof rows);
        columns_of_rows<BFLOAT>(rows, from.transposed, kept.columns[block]);
    }
    kept.descriptor = descriptor, kept.count = i.count, kept.bfloat = BFLOAT, kept.transposed = from.transposed;
    return kept.columns;
}

template <bool BFLOAT>
void multiply_group_quickly(Warp& warp, const Instruction& i, const Warp::GroupOperands& given) {
    GroupFactors factors;
    if (given.in_registers) widen_factors<BFLOAT>(registers_of(warp, *given.in_registers), factors);
    else for_parts(warp, i, given, [&](int part, const __m128i* rows) { widen_part<BFLOAT>(rows, part, factors); });
    const SharedMatrix from(i, given.b, given.b_transposed);
    multiply_columns(warp, i, factors, columns_of_group<BFLOAT>(warp, i, from, given.b), given.sums);
}

// Products of FP8, converted to FP16: first those of the first two of each four k, then those of the last
// two, which is the order of registers.
inline void multiply_group_of_bytes(Warp& warp, const Instruction& i, const Warp::GroupOperands& given, const Fp8Formats& fp8) {
    Lanes bytes[4], a[4];
    if (given.in_registers) std::copy_n(registers_of(warp, *given.in_registers), 4, bytes);
    else for_parts(warp, i, given, [&](int part, const __m128i* rows) { std::memcpy(bytes[part].v, rows, sizeof bytes[part]); });
    const SharedMatrix from(i, given.b, false);
    alignas(64) static thread_local Columns columns[2][32];
    for (int block = 0; block < i.count / 8; block++) {
        Lanes four[2];
        for (uint32_t part = 0; part < 2; part++) {
            __m128i rows[8];
            load_rows(warp, i, from, static_cast<uint32_t>(8 * block), 8 * part, rows);
            std::memcpy(four[part].v, rows, sizeof rows);
        }
        for (int which = 0; which < 2; which++) {
            const Lanes lower = fp8_pairs(four[0], which, fp8.b), upper = fp8_pairs(four[1], which, fp8.b);
            columns_of<false>(lower.v, upper.v, columns[which][block]);
        }
    }
    for (int which = 0; which < 2; which++) {
        for (int part = 0; part < 4; part++) a[part] = fp8_pairs(bytes[part], which, fp8.a);
        GroupFactors factors;
        widen_factors<false>(a, factors);
        multiply_columns(warp, i, factors, columns[which], which ? &i.raw[0] : given.sums);
    }
}
#endif

GroupForm::GroupForm(const Instruction& i) {
    const Fp8Formats fp8(i);
    in_bytes = starts(i.name, "QGMMA") && fp8.is_known;
    const bool half_sums = i.has(MOD_F16) && !i.has(MOD_F32);
    const std::string shape = ".64x" + std::to_string(i.count) + (in_bytes ? "x32." : "x16.");
    is_known = (in_bytes || starts(i.name, "HGMMA")) && (i.has(MOD_F32) || half_sums) && i.count >= 8 && i.count <= 256 && i.count % 8 == 0 && i.name.find(shape) != std::string::npos;
    const Operand* descriptor = nullptr;
    for (const Operand& o : i.raw)
        if (o.text.find("gdesc") != std::string::npos) descriptor = &o;
    for (const Operand& o : i.raw) closes += o.text == "gsb0";
    if (!descriptor || descriptor->ureg < 0) return;
    descriptors = descriptor->ureg;
    const auto says = [&](const char* word) { return descriptor->text.find(word) != std::string::npos; };
    a_in_registers = i.raw.size() > 1 && i.raw[1].kind == Kind::REG;
    a_transposed = says(".tnspA"), b_transposed = says(".tnspB");
    negated = (a_in_registers ? i.raw[1].neg : says(".negA")) != says(".negB");
    plainly = half_sums || (a_in_registers ? i.raw[1].neg : says(".negA")) || says(".negB");
    // The accumulator is the register operand after the descriptor; a false predicate means that there is none.
    for (const Operand& o : i.raw)
        if (&o > descriptor && o.kind == Kind::REG) sums = &o;
}

void Warp::multiply_group(const Instruction& i) {  // for this warp's 16 of the warpgroup's 64 rows
    const Code& code = *cta.request.code;
    const GroupForm& form = code.groups[static_cast<size_t>(code.quick[static_cast<size_t>(index)].offset)];
    if (!form.is_known) fail(i, "is a warpgroup operation that is not supported here");
    if (on != FULL) fail(i, "runs with inactive lanes, for which its result is undefined");
    if (i.raw.empty() || i.raw[0].kind != Kind::REG) fail(i, "has no registers for its sums");
    if (form.descriptors < 0) fail(i, "has no descriptor operand");
    auto pair = [&](int n) { return U[n] | static_cast<uint64_t>(U[n + 1]) << 32; };
    uint32_t adds = form.sums && form.sums->reg != RZ ? FULL : 0;
    for (const Operand& p : i.ps) adds &= predicate(p);
    const GroupOperands given = {form.a_in_registers ? &i.raw[1] : nullptr, pair(form.descriptors), pair(form.descriptors + 2), form.a_transposed, form.b_transposed, adds ? form.sums : nullptr};
    if (form.in_bytes && (given.a_transposed || given.b_transposed)) fail(i, "has transposed 8-bit operands, which no GPU supports");
#ifdef QUICK_MULTIPLY
    if (form.plainly) multiply_group_plainly(i, given, form.negated);
    else if (form.in_bytes) multiply_group_of_bytes(*this, i, given, Fp8Formats(i));
    else if (i.has(MOD_BF16)) multiply_group_quickly<true>(*this, i, given);
    else multiply_group_quickly<false>(*this, i, given);
#else
    multiply_group_plainly(i, given, form.negated);
#endif
    for (int n = 0; n < form.closes; n++) multiplied.groups.push_back(multiplied.addresses.size());  // closes its group
}

// General form: also with accumulators in FP16, and with subtracted products.
void Warp::multiply_group_plainly(const Instruction& i, const GroupOperands& given, bool negated) {
    const int columns = i.count;
    const Fp8Formats fp8(i);
    const bool half_sums = i.has(MOD_F16) && !i.has(MOD_F32);
    const int depth = fp8.is_known ? 32 : 16;
    Lanes t;
    // Of 32 k of FP8, the first two of each four come before the last two.
    const auto place_of = [&](int k) { return fp8.is_known ? 16 * (k >> 1 & 1) + k / 4 * 2 + (k & 1) : k; };
    float a[16][32];
    static thread_local float b[32][256];
    auto load = [&](const SharedMatrix& from, bool e5m2, int first, int count, float* out, int mn_step, int k_step) {
        const int numbers = fp8.is_known ? 16 : 8;  // numbers in 16 bytes
        for (int m = 0; m < count; m += from.transposed ? 8 : 1)
            for (int k = 0; k < depth; k += from.transposed ? 1 : numbers) {
                const uint32_t address = from.address(static_cast<uint32_t>(first + m), static_cast<uint32_t>(k * 8 / numbers));
                uint8_t bytes[16];
                std::memcpy(bytes, &cta.smem[shared_at(cta, i, address, 16)], 16);
                note_reading(address, multiplied);
                for (int n = 0; n < numbers; n++) {
                    const int at_mn = from.transposed ? m + n : m, at_k = from.transposed ? k : k + n;
                    const uint32_t bits = fp8.is_known ? FP8_HALVES.of[e5m2][bytes[n]] : bytes[2 * n] | static_cast<uint32_t>(bytes[2 * n + 1]) << 8;
                    out[at_mn * mn_step + place_of(at_k) * k_step] = i.has(MOD_BF16) ? bfloat_to_float(bits) : half_to_float(bits);
                }
            }
    };
    if (given.in_registers) {
        for (int part = 0; part < 4; part++)
            for (int which = 0; which < depth / 16; which++) {
                Operand registers = *given.in_registers;
                registers.neg = false;
                float values[64];
                const Lanes& held = read(registers, t, part);
                to_floats(fp8.is_known ? fp8_pairs(held, which, fp8.a) : held, i.has(MOD_BF16), values);
                for (int n = 0; n < 64; n++) a[n / 8 + 8 * (part & 1)][n % 8 + 8 * (part >> 1) + 16 * which] = values[n];
            }
    } else {
        load(SharedMatrix(i, given.a, given.a_transposed), fp8.a, 16 * (number % 4), 16, &a[0][0], 32, 1);
    }
    load(SharedMatrix(i, given.b, given.b_transposed), fp8.b, 0, columns, &b[0][0], 1, 256);
    static thread_local float c[16][256];
    // Lane l has rows l / 4 and l / 4 + 8, and two of each 8 columns: words in FP32, halves of a word in FP16.
    const auto row_of = [](int l, int word) { return l / 4 + 8 * (word >> 1); };
    const auto column_of = [](int block, int l, int word) { return 8 * block + 2 * (l % 4) + (word & 1); };
    for (int block = 0; block < columns / 8; block++)
        for (int word = 0; word < 4; word++) {
            const Lanes* v = !given.sums ? nullptr : &read(*given.sums, t, half_sums ? 2 * block + word / 2 : 4 * block + word);
            for (int l = 0; l < 32; l++)
                c[row_of(l, word)][column_of(block, l, word)] = !v ? 0.0f : half_sums ? half_to_float((*v)[l] >> 16 * (word & 1) & 0xffff) : float_of((*v)[l]);
        }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < depth; k++) {
            const float factor = negated ? -a[row][k] : a[row][k];
            for (int n = 0; n < columns; n++) c[row][n] = __builtin_fmaf(factor, b[k][n], c[row][n]);
        }
    for (int block = 0; block < columns / 8; block++)
        for (int word = 0; word < (half_sums ? 2 : 4); word++) {
            if (half_sums)
                write(i.raw[0], each([&](int l) {
                    return float_to_half(c[row_of(l, 2 * word)][column_of(block, l, 0)]) | float_to_half(c[row_of(l, 2 * word)][column_of(block, l, 1)]) << 16;
                }), 2 * block + word);
            else
                write(i.raw[0], each([&](int l) { return bits_of(c[row_of(l, word)][column_of(block, l, word)]); }), 4 * block + word);
        }
}
