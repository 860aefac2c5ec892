// Specialised functions for common forms of common instructions, bound when code is first run. Each processes
// all 32 lanes without lookups or branches on the form. `Warp::step` and its callees define the semantics;
// functions here must give the same bits. Included by emulator.cpp.

// ---- operands ----

inline const uint32_t* spread_word(uint32_t value, Lanes& t) {
    for (auto& x : t.v) x = value;
    return t.v;
}

inline uint32_t scalar(Warp& w, const Source& s, int word = 0) {
    switch (s.kind) {
    case Kind::UREG: return s.reg == RZ ? 0 : w.U[s.reg + word];
    case Kind::IMM: return word ? 0 : s.value;
    case Kind::CONST: return w.constant(*s.operand, word);
    default: return w.R[s.reg][__builtin_ctz(w.on)];
    }
}

inline const uint32_t* lanes_of(Warp& w, const Source& s, Lanes& t, int word = 0) {
    if (s.kind == Kind::REG) return w.R[s.reg == RZ ? RZ : s.reg + word].v;
    if (s.spread && !word) return s.spread;
    return spread_word(scalar(w, s, word), t);
}

__attribute__((noinline)) const uint32_t* changed_integers(Warp& w, const Source& s, Lanes& t) {
    const uint32_t* v = lanes_of(w, s, t);
    if (s.plain()) return v;
    const uint32_t flip = s.inv || s.neg ? FULL : 0, one = s.neg;  // at most one of them, and never `abs`
    for (int l = 0; l < 32; l++) t[l] = (v[l] ^ flip) + one;
    return t.v;
}

__attribute__((noinline)) const uint32_t* changed_floats(Warp& w, const Source& s, Lanes& t) {
    const uint32_t* v = lanes_of(w, s, t);
    if (s.plain()) return v;
    const uint32_t kept = s.abs ? 0x7fffffffu : FULL, flip = s.neg ? 0x80000000u : 0;
    for (int l = 0; l < 32; l++) t[l] = (v[l] & kept) ^ flip;
    return t.v;
}

// Most operands are a register or a broadcast constant, and need no conversion.
__attribute__((always_inline)) inline const uint32_t* integers(Warp& w, const Source& s, Lanes& t) {
    return s.as_it_is ? w.R[s.reg].v : s.spread ? s.spread : changed_integers(w, s, t);
}
__attribute__((always_inline)) inline const uint32_t* floatings(Warp& w, const Source& s, Lanes& t) {
    return s.as_it_is ? w.R[s.reg].v : s.spread ? s.spread : changed_floats(w, s, t);
}

// The lanes' highest bits.
inline uint32_t signs_of(const uint32_t* v) {
#if defined(WIDE_MULTIPLY) && defined(__AVX512DQ__)
    return static_cast<uint32_t>(_mm512_movepi32_mask(_mm512_loadu_si512(v))) | static_cast<uint32_t>(_mm512_movepi32_mask(_mm512_loadu_si512(v + 16))) << 16;
#elif defined(WIDE_MULTIPLY)
    uint32_t mask = 0;
    for (int n = 0; n < 4; n++) mask |= static_cast<uint32_t>(_mm256_movemask_ps(_mm256_loadu_ps(reinterpret_cast<const float*>(v + 8 * n)))) << 8 * n;
    return mask;
#else
    uint32_t mask = 0;
    for (int l = 0; l < 32; l++) mask |= v[l] >> 31 << l;
    return mask;
#endif
}

template <typename F>
inline uint32_t lanes_where(F f) {  // f without branches
    alignas(64) uint32_t v[32];
    for (int l = 0; l < 32; l++) v[l] = f(l) ? FULL : 0;
    return signs_of(v);
}

// Sources may be the destination: each lane is read before it is written.
#define QUICK_LOOP _Pragma("GCC ivdep") for (int l = 0; l < 32; l++)

// ---- floats ----

template <Opcode OP, bool FLUSHES>
void quick_float(Warp& w, const Quick& q) {
    Lanes ta, tb, tc;
    const uint32_t *x = floatings(w, q.a, ta), *y = floatings(w, q.b, tb);
    const uint32_t* z = OP == OP_FFMA ? floatings(w, q.c, tc) : y;
    uint32_t* d = w.R[q.to].v;
    const auto f = [](uint32_t bits) {
        const float value = float_of(bits);
        return FLUSHES && std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
    };
    QUICK_LOOP {
        const float a = f(x[l]), b = f(y[l]);
        const float value = OP == OP_FADD ? a + b : OP == OP_FMUL ? a * b : __builtin_fmaf(a, b, f(z[l]));
        d[l] = FLUSHES ? bits_of(f(bits_of(value))) : bits_of(value);
    }
}

template <bool LEAST>
void quick_minmax(Warp& w, const Quick& q) {
    Lanes ta, tb;
    const uint32_t *x = floatings(w, q.a, ta), *y = floatings(w, q.b, tb);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP {
        const float a = float_of(x[l]), b = float_of(y[l]);
        uint32_t value = LEAST ? (b < a ? y[l] : x[l]) : (a < b ? y[l] : x[l]);
        value = b != b ? x[l] : value;
        d[l] = a != a ? y[l] : value;
    }
}

void quick_power(Warp& w, const Quick& q) {
    Lanes ta;
    const uint32_t* x = floatings(w, q.a, ta);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP d[l] = bits_of(power_of_two(float_of(x[l])));
}

void quick_reciprocal(Warp& w, const Quick& q) {
    Lanes ta;
    const uint32_t* x = floatings(w, q.a, ta);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP d[l] = bits_of(1 / float_of(x[l]));
}

template <bool BFLOAT>
void quick_pack(Warp& w, const Quick& q) {
    Lanes ta, tb;
    const uint32_t *x = floatings(w, q.a, ta), *y = floatings(w, q.b, tb);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP {
        if (BFLOAT) d[l] = float_to_bfloat(float_of(x[l])) << 16 | float_to_bfloat(float_of(y[l]));
        else d[l] = float_to_half(float_of(x[l])) << 16 | float_to_half(float_of(y[l]));
    }
}

void quick_widen(Warp& w, const Quick& q) {  // HADD2.F32 of -0 and one half
    const uint32_t* x = w.R[q.b.reg].v;
    uint32_t* d = w.R[q.to].v;
    const int shift = q.how;
#if defined(WIDE_MULTIPLY) && defined(__AVX512F__)
    for (int n = 0; n < 2; n++) {
        const __m512i bits = _mm512_srl_epi32(_mm512_load_si512(x + 16 * n), _mm_cvtsi32_si128(shift));
        _mm512_store_ps(d + 16 * n, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits)));
    }
#else
    QUICK_LOOP d[l] = bits_of(-0.0f + half_to_float(x[l] >> shift & 0xffff));
#endif
}

// ---- integers ----

void quick_move(Warp& w, const Quick& q) {
    Lanes ta;
    const uint32_t* x = integers(w, q.a, ta);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP d[l] = x[l];
}

void quick_absolute(Warp& w, const Quick& q) {
    Lanes ta;
    const uint32_t* x = integers(w, q.a, ta);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP d[l] = static_cast<int32_t>(x[l]) < 0 ? 0u - x[l] : x[l];
}

// S2R of threadIdx.x in a one-dimensional block, of the lane number, or of blockIdx.
void quick_special(Warp& w, const Quick& q) {
    const Request& r = w.cta.request;
    uint32_t* d = w.R[q.to].v;
    if (q.how == SR_CTAX || q.how == SR_CTAY || q.how == SR_CTAZ) {
        spread_word(r.cta[q.how - SR_CTAX], w.R[q.to]);
    } else if (q.how == SR_LANE) {
        for (uint32_t l = 0; l < 32; l++) d[l] = l;
    } else if (static_cast<uint64_t>(r.block[1]) * r.block[2] == 1) {
        const uint32_t first = 32 * static_cast<uint32_t>(w.number);
        for (uint32_t l = 0; l < 32; l++) d[l] = first + l;
    } else {
        w.arithmetic(*q.full);
    }
}
void quick_uniform_special(Warp& w, const Quick& q) { w.U[q.to] = w.cta.request.cta[q.how - SR_CTAX]; }

void quick_zeros(Warp& w, const Quick& q) {
    std::memset(w.R[q.to].v, 0, sizeof w.R[q.to].v);
    if (q.how) std::memset(w.R[q.to + 1].v, 0, sizeof w.R[q.to].v);
}

void quick_add(Warp& w, const Quick& q) {
    Lanes ta, tb, tc;
    const uint32_t *x = integers(w, q.a, ta), *y = integers(w, q.b, tb), *z = integers(w, q.c, tc);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP d[l] = x[l] + y[l] + z[l];
}

// Adds with an incoming or outgoing carry: P[q.offset] with how & 1, complemented with how & 2.
template <bool CARRY_IN>
void quick_add_carry(Warp& w, const Quick& q) {
    Lanes ta, tb, tc;
    const uint32_t *x = lanes_of(w, q.a, ta), *y = lanes_of(w, q.b, tb), *z = lanes_of(w, q.c, tc);
    const bool flips[3] = {q.a.neg || q.a.inv, q.b.neg || q.b.inv, q.c.neg || q.c.inv};
    const uint32_t fx = flips[0] ? FULL : 0, fy = flips[1] ? FULL : 0, fz = flips[2] ? FULL : 0;
    // A negated operand is its complement plus one, or only the complement with an incoming carry.
    const uint32_t ones = CARRY_IN ? 0 : static_cast<uint32_t>(q.a.neg) + static_cast<uint32_t>(q.b.neg) + static_cast<uint32_t>(q.c.neg);
    const uint32_t carry = CARRY_IN ? (q.how & 2 ? ~w.P[q.offset] : w.P[q.offset]) : 0;
    uint32_t* d = w.R[q.to].v;
    alignas(64) uint32_t out[32];
    QUICK_LOOP {
        const uint64_t total = static_cast<uint64_t>(x[l] ^ fx) + (y[l] ^ fy) + (z[l] ^ fz) + ones + (CARRY_IN ? carry >> l & 1 : 0);
        d[l] = static_cast<uint32_t>(total);
        out[l] = total >> 32 ? FULL : 0;
    }
    if (q.predicate != PT) w.P[q.predicate] = signs_of(out);
}

void quick_multiply_add(Warp& w, const Quick& q) {
    Lanes ta, tb, tc;
    const uint32_t *x = integers(w, q.a, ta), *y = integers(w, q.b, tb), *z = integers(w, q.c, tc);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP d[l] = x[l] * y[l] + z[l];
}

void quick_multiply_add_carry(Warp& w, const Quick& q) {  // P[q.offset], or its complement
    Lanes ta, tb, tc;
    const uint32_t *x = integers(w, q.a, ta), *y = integers(w, q.b, tb), *z = integers(w, q.c, tc);
    const uint32_t carry = q.how ? ~w.P[q.offset] : w.P[q.offset];
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP d[l] = x[l] * y[l] + z[l] + (carry >> l & 1);
}

template <bool UNSIGNED, bool HIGH>
void quick_multiply_wide(Warp& w, const Quick& q) {
    Lanes ta, tb, tc, te, low, high;
    const uint32_t *x = integers(w, q.a, ta), *y = integers(w, q.b, tb);
    const uint32_t *z = lanes_of(w, q.c, tc), *upper = lanes_of(w, q.c, te, 1);
    for (int l = 0; l < 32; l++) {
        const uint64_t product = UNSIGNED ? static_cast<uint64_t>(x[l]) * y[l] : static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(x[l])) * static_cast<int32_t>(y[l]));
        const uint64_t total = product + (z[l] | static_cast<uint64_t>(upper[l]) << 32);
        low[l] = static_cast<uint32_t>(total), high[l] = static_cast<uint32_t>(total >> 32);
    }
    if (HIGH) w.R[q.to] = high;
    else w.R[q.to] = low, w.R[q.to + 1] = high;
}

// The minimum or maximum of two (`c` has Kind::NONE) or three.
template <typename T, bool LEAST>
void quick_extreme(Warp& w, const Quick& q) {
    Lanes ta, tb, tc;
    const uint32_t *x = integers(w, q.a, ta), *y = integers(w, q.b, tb), *z = q.c.kind == Kind::NONE ? y : integers(w, q.c, tc);
    uint32_t* d = w.R[q.to].v;
    const auto chosen = [](uint32_t a, uint32_t b) { return (static_cast<T>(a) < static_cast<T>(b)) == LEAST ? a : b; };
    QUICK_LOOP d[l] = chosen(chosen(x[l], y[l]), z[l]);
}

enum { LEA_LOW, LEA_WIDE, LEA_SIGN };
template <int FORM>  // HI: the upper word of a register pair or a sign-extended register
inline uint32_t scaled(uint32_t x, uint32_t upper, int shift) {
    if (FORM == LEA_LOW) return x << shift;
    if (FORM == LEA_WIDE) return static_cast<uint32_t>((x | static_cast<uint64_t>(upper) << 32) << shift >> 32);
    return static_cast<uint32_t>(static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(x))) << shift >> 32);
}

template <int FORM>
void quick_scaled_add(Warp& w, const Quick& q) {
    Lanes ta, tb, tc;
    const uint32_t *x = lanes_of(w, q.a, ta), *y = lanes_of(w, q.b, tb), *z = FORM == LEA_WIDE ? lanes_of(w, q.c, tc) : x;
    const int shift = q.offset & 31;
    const uint32_t carry = q.how & 1 ? (q.how & 2 ? ~w.P[q.how >> 2] : w.P[q.how >> 2]) : 0;
    alignas(64) uint32_t out[32];
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP {
        const uint64_t total = static_cast<uint64_t>(scaled<FORM>(x[l], z[l], shift)) + y[l] + (carry >> l & 1);
        d[l] = static_cast<uint32_t>(total);
        out[l] = total >> 32 ? FULL : 0;
    }
    if (q.predicate != PT) w.P[q.predicate] = signs_of(out);
}

enum { SHIFT_LEFT, SHIFT_UPPER, SHIFT_SIGNED, SHIFT_RIGHT };
template <int FORM>
void quick_shift(Warp& w, const Quick& q) {  // SHF: one word, `a` by b
    Lanes ta, tb;
    const uint32_t *x = lanes_of(w, q.a, ta), *by = lanes_of(w, q.b, tb);
    const uint32_t wrap = q.how ? 31 : FULL;
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP {
        const uint32_t n = by[l] & wrap;
        if (FORM == SHIFT_LEFT) d[l] = n > 31 ? 0 : x[l] << (n & 31);
        else if (FORM == SHIFT_SIGNED) d[l] = static_cast<uint32_t>(static_cast<int32_t>(x[l]) >> (n > 31 ? 31 : n));
        else d[l] = n > 31 ? 0 : x[l] >> (n & 31);
    }
}

template <int FORM>  // SHF of the pair (a, c) by at most q.offset: the upper word (left) or the lower one
void quick_funnel(Warp& w, const Quick& q) {
    Lanes ta, tb, tc;
    const uint32_t *low = lanes_of(w, q.a, ta), *by = lanes_of(w, q.b, tb), *high = lanes_of(w, q.c, tc);
    const uint32_t most = static_cast<uint32_t>(q.offset), wrap = !q.how ? FULL : most == 63 ? 63 : 31;
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP {
        const uint32_t n = std::min(by[l] & wrap, most);
        const uint64_t both = low[l] | static_cast<uint64_t>(high[l]) << 32;
        if (FORM == SHIFT_LEFT) d[l] = static_cast<uint32_t>(both << n >> 32);
        else if (FORM == SHIFT_SIGNED) d[l] = static_cast<uint32_t>(static_cast<int64_t>(both) >> n);
        else d[l] = static_cast<uint32_t>(both >> n);
    }
}

template <typename F>
void quick_logic_by(Warp& w, const Quick& q, F f) {
    Lanes ta, tb, tc;
    const uint32_t *x = integers(w, q.a, ta), *y = integers(w, q.b, tb), *z = integers(w, q.c, tc);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP d[l] = f(x[l], y[l], z[l]);
    if (q.predicate != PT) {
        const Instruction& i = *q.full;
        const uint32_t nonzero = lanes_where([&](int l) { return d[l] != 0; }), other = i.ps.empty() ? 0 : w.predicate(i.ps[0]);
        w.P[q.predicate] = i.has(MOD_PAND) ? nonzero & other : nonzero | other;
    }
}

void quick_logic(Warp& w, const Quick& q) {
    const uint32_t table = q.how;
    switch (table) {
    case 0xc0: return quick_logic_by(w, q, [](uint32_t x, uint32_t y, uint32_t) { return x & y; });
    case 0xfc: return quick_logic_by(w, q, [](uint32_t x, uint32_t y, uint32_t) { return x | y; });
    case 0x3c: return quick_logic_by(w, q, [](uint32_t x, uint32_t y, uint32_t) { return x ^ y; });
    case 0xf8: return quick_logic_by(w, q, [](uint32_t x, uint32_t y, uint32_t z) { return x | (y & z); });
    case 0xec: return quick_logic_by(w, q, [](uint32_t x, uint32_t y, uint32_t z) { return y | (x & z); });
    case 0xea: return quick_logic_by(w, q, [](uint32_t x, uint32_t y, uint32_t z) { return z | (x & y); });
    case 0x78: return quick_logic_by(w, q, [](uint32_t x, uint32_t y, uint32_t z) { return x ^ (y & z); });
    case 0x96: return quick_logic_by(w, q, [](uint32_t x, uint32_t y, uint32_t z) { return x ^ y ^ z; });
    case 0xfe: return quick_logic_by(w, q, [](uint32_t x, uint32_t y, uint32_t z) { return x | y | z; });
    default: return quick_logic_by(w, q, [table](uint32_t x, uint32_t y, uint32_t z) { return lut3(x, y, z, table); });
    }
}

void quick_permute(Warp& w, const Quick& q) {  // PRMT with a selector in the code
    Lanes ta, tc;
    const uint32_t *x = lanes_of(w, q.a, ta), *y = lanes_of(w, q.c, tc);
    const uint32_t selector = q.b.value;
    Lanes value;
    for (int l = 0; l < 32; l++) value[l] = 0;
    for (int position = 0; position < 4; position++) {
        const uint32_t choice = selector >> 4 * position & 15, shift = (choice & 3) * 8;
        const uint32_t* from = choice & 4 ? y : x;
        if (choice & 8)
            for (int l = 0; l < 32; l++) value[l] |= (static_cast<uint32_t>(static_cast<int32_t>(from[l] << (24 - shift)) >> 31) & 255) << 8 * position;
        else
            for (int l = 0; l < 32; l++) value[l] |= (from[l] >> shift & 255) << 8 * position;
    }
    w.R[q.to] = value;
}

void quick_select(Warp& w, const Quick& q) {
    Lanes ta, tb;
    const bool is_float = q.how;
    const uint32_t *x = is_float ? floatings(w, q.a, ta) : integers(w, q.a, ta), *y = is_float ? floatings(w, q.b, tb) : integers(w, q.b, tb);
    const uint32_t which = w.predicate(q.full->ps[0]);
    uint32_t* d = w.R[q.to].v;
    QUICK_LOOP d[l] = which >> l & 1 ? x[l] : y[l];
}

// ---- comparisons ----

template <typename T, typename F>
inline void quick_compare_by(Warp& w, const Quick& q, const uint32_t* x, const uint32_t* y, F f) {
    const uint32_t result = lanes_where([&](int l) {
        T a, b;
        std::memcpy(&a, x + l, 4), std::memcpy(&b, y + l, 4);
        return f(a, b);
    });
    const Instruction& i = *q.full;
    const uint32_t other = i.ps.empty() ? FULL : w.predicate(i.ps[0]);
    if (!i.pd.empty()) w.write_predicate(i.pd[0], join(i, result, other));
    if (i.pd.size() > 1) w.write_predicate(i.pd[1], join(i, ~result, other));
}

enum { LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, EQUAL, UNEQUAL, NOT_LESS, NOT_LESS_EQUAL, NOT_GREATER, NOT_GREATER_EQUAL, NOT_EQUAL, NOT_UNEQUAL };
template <typename T>
void quick_compare(Warp& w, const Quick& q) {
    Lanes ta, tb;
    const bool is_float = std::is_same<T, float>::value;
    const uint32_t *x = is_float ? floatings(w, q.a, ta) : integers(w, q.a, ta), *y = is_float ? floatings(w, q.b, tb) : integers(w, q.b, tb);
    switch (q.how) {
    case LESS: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return a < b; });
    case LESS_EQUAL: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return a <= b; });
    case GREATER: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return a > b; });
    case GREATER_EQUAL: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return a >= b; });
    case EQUAL: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return a == b; });
    // With NaN these are true: GEU, GTU, LEU, LTU, NEU and EQU.
    case NOT_LESS: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return !(a < b); });
    case NOT_LESS_EQUAL: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return !(a <= b); });
    case NOT_GREATER: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return !(a > b); });
    case NOT_GREATER_EQUAL: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return !(a >= b); });
    case NOT_EQUAL: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return !(a == b); });
    case NOT_UNEQUAL: return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return !((a < b) | (a > b)); });
    default:  // ordered: false with NaN
        return quick_compare_by<T>(w, q, x, y, [](T a, T b) { return (a < b) | (a > b); });
    }
}

void quick_predicates(Warp& w, const Quick& q) {  // PLOP3
    const std::vector<Operand>& o = q.full->raw;
    const uint32_t x = w.predicate(o[2]), y = w.predicate(o[3]), z = w.predicate(o[4]);
    for (int n = 0; n < q.how; n++) w.write_predicate(o[static_cast<size_t>(n)], lut3(x, y, z, static_cast<uint32_t>(o[static_cast<size_t>(5 + n)].imm)));
}

// ---- the uniform datapath ----

void quick_uniform_move(Warp& w, const Quick& q) { w.U[q.to] = scalar(w, q.a); }
inline uint32_t changed_scalar(Warp& w, const Source& s) {
    const uint32_t v = scalar(w, s);
    return s.neg ? 0u - v : s.inv ? ~v : v;
}
inline uint64_t scalar_pair(Warp& w, const Source& s) {
    uint64_t v = 0;
    if (s.kind == Kind::UREG && s.reg != RZ) v = w.U[s.reg] | static_cast<uint64_t>(w.U[s.reg + 1]) << 32;
    else if (s.kind == Kind::IMM) v = static_cast<uint64_t>(s.operand->imm);
    else if (s.kind == Kind::CONST) v = w.constant(*s.operand, 0) | static_cast<uint64_t>(w.constant(*s.operand, 1)) << 32;
    return s.neg ? 0 - v : v;
}
inline void set_pair(Warp& w, const Quick& q, uint64_t v) { w.U[q.to] = static_cast<uint32_t>(v), w.U[q.to + 1] = static_cast<uint32_t>(v >> 32); }
void quick_uniform_add(Warp& w, const Quick& q) { w.U[q.to] = changed_scalar(w, q.a) + changed_scalar(w, q.b) + changed_scalar(w, q.c); }
void quick_uniform_add_wide(Warp& w, const Quick& q) { set_pair(w, q, scalar_pair(w, q.a) + scalar_pair(w, q.b) + scalar_pair(w, q.c)); }
// UIADD3 with an incoming carry, or whose outgoing carry is used.
void quick_uniform_add_carry(Warp& w, const Quick& q) {
    const Instruction& i = *q.full;
    const bool comes_in = i.has(MOD_X);
    const int first = __builtin_ctz(w.on);
    uint64_t total = 0;
    for (const Source* s : {&q.a, &q.b, &q.c}) {
        const uint32_t v = scalar(w, *s);
        total += s->inv || (s->neg && comes_in) ? static_cast<uint64_t>(~v) : s->neg ? (uint64_t{1} << 32) - v : v;
    }
    if (comes_in)
        for (const Operand& p : i.ps) total += w.predicate(p) >> first & 1;
    for (size_t n = 0; n < i.pd.size(); n++) w.write_predicate(i.pd[n], total >> 32 > n ? FULL : 0);
    w.U[q.to] = static_cast<uint32_t>(total);
}
void quick_uniform_select(Warp& w, const Quick& q) {
    const uint32_t which = w.predicate(q.full->ps[0]);
    w.U[q.to] = changed_scalar(w, which >> __builtin_ctz(w.on) & 1 ? q.a : q.b);
}
void quick_uniform_multiply_add(Warp& w, const Quick& q) { w.U[q.to] = changed_scalar(w, q.a) * changed_scalar(w, q.b) + changed_scalar(w, q.c); }
template <bool UNSIGNED>
void quick_uniform_multiply_wide(Warp& w, const Quick& q) {
    const uint32_t x = changed_scalar(w, q.a), y = changed_scalar(w, q.b);
    const uint64_t product = UNSIGNED ? static_cast<uint64_t>(x) * y : static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(x)) * static_cast<int32_t>(y));
    set_pair(w, q, product + scalar_pair(w, q.c));
}
template <int FORM>
void quick_uniform_scaled_add(Warp& w, const Quick& q) { w.U[q.to] = scaled<FORM>(scalar(w, q.a), FORM == LEA_WIDE ? scalar(w, q.c) : 0, q.offset) + scalar(w, q.b); }
// LDC and ULDC from one address.
void quick_uniform_constants(Warp& w, const Quick& q) {
    uint32_t v[4];
    for (int n = 0; n < q.how; n++) v[n] = w.constant(*q.a.operand, n);
    std::copy(v, v + q.how, w.U + q.to);
}
void quick_constants(Warp& w, const Quick& q) {
    for (int n = 0; n < q.how; n++) spread_word(w.constant(*q.a.operand, n), w.R[q.to + n]);
}
void quick_uniform_logic(Warp& w, const Quick& q) {
    w.U[q.to] = lut3(changed_scalar(w, q.a), changed_scalar(w, q.b), changed_scalar(w, q.c), q.how);
}
template <int FORM>
void quick_uniform_shift(Warp& w, const Quick& q) {
    const uint32_t x = scalar(w, q.a), by = scalar(w, q.b), n = q.how ? by & 31 : by;
    if (FORM == SHIFT_LEFT) w.U[q.to] = n > 31 ? 0 : x << n;
    else if (FORM == SHIFT_SIGNED) w.U[q.to] = static_cast<uint32_t>(static_cast<int32_t>(x) >> (n > 31 ? 31 : n));
    else w.U[q.to] = n > 31 ? 0 : x >> n;
}
