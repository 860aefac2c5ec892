// Specialised functions, continued: memory, asynchronous instructions, tensor cores. Included by emulator.cpp.

// Offsets of all lanes' addresses from `base`; returns whether all are within `size` bytes and aligned.
template <int WIDTH>
inline bool all_inside(const uint32_t* offset, uint64_t size) {
    if (size < WIDTH) return false;
    const uint32_t last = static_cast<uint32_t>(std::min<uint64_t>(size - WIDTH, FULL));
    uint32_t beyond = 0;
    for (int l = 0; l < 32; l++) beyond |= (offset[l] > last ? 1u : 0u) | (offset[l] & (WIDTH - 1));
    return !beyond;
}

// Transposes 4 words of each of 4 lanes, to or from 4 registers of these lanes.
inline void exchange(uint32_t m[4][4]) {
#ifdef WIDE_MULTIPLY
    __m128i r[4];
    std::memcpy(r, m, sizeof r);
    const __m128i a = _mm_unpacklo_epi32(r[0], r[1]), b = _mm_unpackhi_epi32(r[0], r[1]), c = _mm_unpacklo_epi32(r[2], r[3]), d = _mm_unpackhi_epi32(r[2], r[3]);
    r[0] = _mm_unpacklo_epi64(a, c), r[1] = _mm_unpackhi_epi64(a, c), r[2] = _mm_unpacklo_epi64(b, d), r[3] = _mm_unpackhi_epi64(b, d);
    std::memcpy(m, r, sizeof r);
#else
    for (int x = 0; x < 4; x++)
        for (int y = 0; y < x; y++) std::swap(m[x][y], m[y][x]);
#endif
}

template <int WIDTH, bool LOADS>
inline void transfer(Warp& w, const Quick& q, uint8_t* piece, const uint32_t* offset) {
    if (WIDTH == 16) {
        Lanes* const r = &w.R[q.to];
        for (int l = 0; l < 32; l += 4) {
            alignas(16) uint32_t m[4][4];
            if (LOADS) {
                for (int k = 0; k < 4; k++) std::memcpy(m[k], piece + offset[l + k], 16);
                exchange(m);
                for (int k = 0; k < 4; k++) std::memcpy(r[k].v + l, m[k], 16);
            } else {
                for (int k = 0; k < 4; k++) std::memcpy(m[k], r[k].v + l, 16);
                exchange(m);
                for (int k = 0; k < 4; k++) std::memcpy(piece + offset[l + k], m[k], 16);
            }
        }
    } else if (WIDTH == 8) {
        uint32_t *low = w.R[q.to].v, *high = q.to == RZ ? low : w.R[q.to + 1].v;
        for (int l = 0; l < 32; l++) {
            if (LOADS) std::memcpy(low + l, piece + offset[l], 4), std::memcpy(high + l, piece + offset[l] + 4, 4);
            else std::memcpy(piece + offset[l], low + l, 4), std::memcpy(piece + offset[l] + 4, high + l, 4);
        }
    } else {
        uint32_t* d = w.R[q.to].v;
        for (int l = 0; l < 32; l++) {
            if (LOADS && WIDTH == 2) {
                uint16_t word;
                std::memcpy(&word, piece + offset[l], 2);
                d[l] = word;
            } else if (LOADS) {
                std::memcpy(d + l, piece + offset[l], 4);
            } else {
                std::memcpy(piece + offset[l], d + l, WIDTH);
            }
        }
    }
}

// Offsets of all lanes' addresses in the CTA's shared memory, not checked.
inline void shared_offsets(Warp& w, const Quick& q, uint32_t* offset) {
    const uint32_t* base = w.R[q.a.reg].v;
    uint32_t first = static_cast<uint32_t>(q.offset);
    if (q.b.kind == Kind::UREG) first += w.U[q.b.reg];
    first -= static_cast<uint32_t>(w.cta.rank * SHARED_WINDOW);
    const uint32_t scale = q.how;
    for (int l = 0; l < 32; l++) offset[l] = base[l] * scale + first;
}

template <int WIDTH, bool LOADS>
void quick_shared(Warp& w, const Quick& q) {
    alignas(64) uint32_t offset[32];
    shared_offsets(w, q, offset);
    if (!all_inside<WIDTH>(offset, w.cta.smem.size())) { w.memory(*q.full); return; }
    if (!LOADS) {
        uint64_t pages = 0;
        for (int l = 0; l < 32; l++) pages |= uint64_t{1} << Cta::Changes::page(offset[l]);
        w.cta.changes.pages(pages);
    }
    transfer<WIDTH, LOADS>(w, q, w.cta.smem.data(), offset);
}

// The buffer that contains all lanes' aligned addresses, and their offsets in it; null if there is none. An
// address is the sum of a register or pair (`how` & 1), a uniform register (`uniform`, -1: none) or pair
// (`how` & 2), and a constant.
template <int WIDTH>
inline const Buffer* global_offsets(Warp& w, int reg, int uniform, int how, int32_t number, uint32_t* offset) {
    const uint32_t *low = w.R[reg].v, *high = how & 1 ? w.R[reg + 1].v : w.R[RZ].v;
    uint64_t added = static_cast<uint64_t>(static_cast<int64_t>(number));
    if (uniform >= 0) added += w.U[uniform] | (how & 2 ? static_cast<uint64_t>(w.U[uniform + 1]) << 32 : 0);
    const Buffer* b = buffer_at(w.cta, (low[0] | static_cast<uint64_t>(high[0]) << 32) + added);
    if (!b) return nullptr;
    const uint64_t first = added - b->base;
    uint64_t beyond = 0;
    for (int l = 0; l < 32; l++) {
        const uint64_t place = (low[l] | static_cast<uint64_t>(high[l]) << 32) + first;
        offset[l] = static_cast<uint32_t>(place), beyond |= place >> 32;
    }
    return !beyond && !(b->base & (WIDTH - 1)) && all_inside<WIDTH>(offset, b->size) ? b : nullptr;
}

template <int WIDTH, bool LOADS>
void quick_global(Warp& w, const Quick& q) {
    alignas(64) uint32_t offset[32];
    const Buffer* b = global_offsets<WIDTH>(w, q.a.reg, q.b.kind == Kind::UREG ? q.b.reg : -1, q.how, q.offset, offset);
    if (b && (LOADS || !b->read_only)) return transfer<WIDTH, LOADS>(w, q, b->host, offset);
    w.memory(*q.full);
}

// RED of floats: one lane after the other, as in Warp::atomic.
template <bool FLUSHES>
void quick_reduce(Warp& w, const Quick& q) {
    alignas(64) uint32_t offset[32];
    const Buffer* b = global_offsets<4>(w, q.a.reg, q.b.kind == Kind::UREG ? q.b.reg : -1, q.how, q.offset, offset);
    const auto [first, last] = std::minmax_element(offset, offset + 32);
    if (!b || b->read_only || *last - *first > ReductionLock::MAX_BYTES) { w.memory(*q.full); return; }
    uint8_t* const host = b->host;
    const uint32_t* added = w.R[q.to].v;
    const ReductionLock hold(host + *first, host + *last);
    for (int l = 0; l < 32; l++) {
        float sum;
        std::memcpy(&sum, host + offset[l], 4);
        sum += float_of(added[l]);
        if (FLUSHES) sum = std::fabs(sum) < 0x1p-126f ? std::copysign(0.0f, sum) : sum;
        std::memcpy(host + offset[l], &sum, 4);
    }
    w.cta.polls += q.full->polls;
}

// LDGSTS of 16 bytes without zero fill: `c` is the global address, its form is in `to`.
void quick_copy(Warp& w, const Quick& q) {
    alignas(64) uint32_t to[32], from[32];
    shared_offsets(w, q, to);
    const bool loads = q.full->ps.empty() || w.predicate(q.full->ps[0]) == FULL;
    const Buffer* b = loads && all_inside<16>(to, w.cta.smem.size()) ? global_offsets<16>(w, q.c.reg, q.predicate, q.to, static_cast<int32_t>(q.c.value), from) : nullptr;
    if (!b) { w.memory(*q.full); return; }
    const size_t before = w.in_flight.size();
    w.in_flight.resize(before + 32);
    Warp::AsyncCopy* const copies = &w.in_flight[before];
    for (int l = 0; l < 32; l++) {
        std::memcpy(copies[l].data, b->host + from[l], 16);
        copies[l].to = &w.cta.smem[to[l]], copies[l].size = 16;
    }
}

template <int MATRICES, bool TRANSPOSED>
void quick_matrices(Warp& w, const Quick& q) {  // LDSM
    alignas(64) uint32_t offset[32];
    shared_offsets(w, q, offset);
    uint32_t beyond = 0;
    const uint64_t size = w.cta.smem.size();
    const uint32_t last = size < 16 ? 0 : static_cast<uint32_t>(size - 16);
    for (int l = 0; l < 8 * MATRICES; l++) beyond |= (offset[l] > last ? 1u : 0u) | (offset[l] & 15);
    if (beyond || size < 16) { w.memory(*q.full); return; }
    const uint8_t* const smem = w.cta.smem.data();
    for (int m = 0; m < MATRICES; m++) {
        uint8_t* const d = reinterpret_cast<uint8_t*>(w.R[q.to + m].v);
#ifdef WIDE_MULTIPLY
        __m128i rows[8];
        for (int r = 0; r < 8; r++) rows[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(smem + offset[8 * m + r]));
        if (TRANSPOSED) transpose(rows);
        for (int r = 0; r < 8; r++) _mm_store_si128(reinterpret_cast<__m128i*>(d + 16 * r), rows[r]);
#else
        uint16_t matrix[8][8], turned[8][8];
        for (int r = 0; r < 8; r++) std::memcpy(matrix[r], smem + offset[8 * m + r], 16);
        for (int r = 0; r < 8; r++)
            for (int c = 0; c < 8; c++) turned[c][r] = matrix[r][c];
        std::memcpy(d, TRANSPOSED ? turned : matrix, sizeof matrix);
#endif
    }
}

void quick_butterfly(Warp& w, const Quick& q) {
    const Lanes x = w.R[q.a.reg];
    uint32_t* d = w.R[q.to].v;
    const int by = q.offset;
    for (int l = 0; l < 32; l++) d[l] = x[l ^ by];
}

void quick_index(Warp& w, const Quick& q) {  // SHFL.IDX among all lanes
    Lanes t;
    const Lanes x = w.R[q.a.reg];
    const uint32_t* from = lanes_of(w, q.b, t);
    uint32_t* d = w.R[q.to].v;
    alignas(64) uint32_t out[32];
    for (int l = 0; l < 32; l++) out[l] = x[static_cast<int>(from[l] & 31)];
    std::copy(out, out + 32, d);
}

// ---- asynchronous instructions that do not wait ----

void quick_asynchronous(Warp& w, const Quick& q) {
    bool moves = true;
    w.asynchronous(*q.full, moves);
}

// ---- tensor cores ----

#ifdef QUICK_MULTIPLY
template <bool BFLOAT>
void quick_multiply(Warp& w, const Quick& q) {
    const Factors& factors = factors_of<BFLOAT>(&w.R[q.a.reg]);
    alignas(64) Columns columns;
    const bool none = q.b.reg == RZ;
    columns_of<BFLOAT>(w.R[q.b.reg].v, w.R[none ? RZ : q.b.reg + 1].v, columns);
    const Lanes& zero = w.R[RZ];
    const Lanes* sums[4];
    for (int n = 0; n < 4; n++) sums[n] = q.c.reg == RZ ? &zero : &w.R[q.c.reg + n];
    multiply_sums(factors, columns, sums, &w.R[q.to]);
}
#endif
