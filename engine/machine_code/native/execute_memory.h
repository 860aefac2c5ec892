// Loads, stores, atomics and copies with real memory. Included by emulator.cpp.

struct Cluster {
    std::vector<Cta*> ctas;
    Races races;
};

inline bool is_atomic(const Instruction& i) { return i.op == OP_ATOMS || i.op == OP_ATOMG || i.op == OP_RED; }

// ---- hazards ----

Races* Warp::looked_for() { return cta.cluster && cta.cluster->races.wanted ? &cta.cluster->races : nullptr; }
size_t Warp::self() { return cta.rank * static_cast<size_t>(cta.cluster->races.warps_per_cta) + static_cast<size_t>(number); }

void Cta::passed(Warp& w, const Barrier& bar) {
    if (Races* races = w.looked_for()) races->acquire(w.self(), bar.released);
}

void Warp::reads_shared(Cta& owner, uint64_t address, int width) {
    Races& races = cta.cluster->races;
    const Clock& known = races.clock[self()];
    owner.shadow.read(races, address, width, self(), index, known[self()], known, owner.request.cta);
    visits(owner, address);
}

void Warp::writes_shared(Cta& owner, uint64_t address, int width, bool same) {
    Races& races = cta.cluster->races;
    const Clock& known = races.clock[self()];
    owner.shadow.write(races, address, width, self(), index, known[self()], known, owner.request.cta, false, same);
    visits(owner, address);
}

void Warp::visits(Cta& owner, uint64_t address) {
    if (&owner != &cta) owner.visits[self()] = {cta.cluster->races.clock[self()][self()], index, address};
}

// Called before loads, stores and atomics. A store of the value that memory already has is no hazard with
// another store.
void Warp::touch_shared(const Instruction& i, const Wide& where, int width) {
    Races& races = cta.cluster->races;
    const bool generic = i.op != OP_LDS && i.op != OP_STS && i.op != OP_ATOMS;
    const bool stores = i.op == OP_STS || i.op == OP_ST || i.op == OP_STG;
    const bool loads = i.op == OP_LDS || i.op == OP_LD || i.op == OP_LDG;
    Lanes t;
    for (int l = 0; l < 32; l++) {
        if (!(on >> l & 1) || (generic && where[l] >> 32 != SHARED_HIGH)) continue;
        const uint64_t address = where[l] & FULL, rank = address / SHARED_WINDOW;
        Cta& owner = rank == cta.rank ? cta : *cta.cluster->ctas[rank];
        const uint64_t at = address & (SHARED_WINDOW - 1);
        if (loads) {
            reads_shared(owner, at, width);
        } else if (stores) {
            bool same = true;
            for (int w = 0; w < std::max(1, width / 4); w++)
                same &= !std::memcmp(&owner.smem[at + 4 * static_cast<size_t>(w)], &read(i.s.back(), t, w).v[l], static_cast<size_t>(std::min(4, width)));
            writes_shared(owner, at, width, same);
        } else {
            Clock& passed = owner.atomics[at];
            races.acquire(self(), passed);
            const Clock& known = races.clock[self()];
            owner.shadow.write(races, at, width, self(), index, known[self()], known, owner.request.cta, true);
            visits(owner, at);
            races.release(self(), passed);
        }
    }
}

void Warp::note_write(uint64_t address, int width) {
    const Request& r = cta.request;
    if (r.watched - address >= static_cast<uint64_t>(width)) return;
    *r.last_write = {index, {r.cta[0], r.cta[1], r.cta[2]}, number};
}

void Warp::note_landed(const AsyncCopy& copy) {
    Races* races = looked_for();
    if (!races) return;
    const auto at = reinterpret_cast<uint64_t>(copy.to) - reinterpret_cast<uint64_t>(cta.smem.data());
    if (at < cta.smem.size()) cta.shadow.landed(at, copy.size, self(), races->clock[self()][self()]);
}

// Called before accesses to global memory, with the lock held until the access is complete: of two atomics,
// the later one must observe the other.
void Warp::touch_global(const Instruction& i, const Wide& where, int width, uint8_t* const* at) {
    Races& races = cta.cluster->races;
    GlobalRaces& global = *races.global;
    Clock& known = races.clock[self()];
    const bool loads = i.op == OP_LDG || i.op == OP_LD, atomically = is_atomic(i);
    const bool strong = i.name.find("STRONG.GPU") != std::string::npos || i.name.find("STRONG.SYS") != std::string::npos;
    const GlobalRaces::Access now{races.cluster, known[self()], index, static_cast<uint16_t>(self()), 0, static_cast<uint8_t>(strong ? 2 : atomically || i.polls)};
    Lanes t;
    for (int l = 0; l < 32; l++) {
        if (!(on >> l & 1) || where[l] >> 32 == SHARED_HIGH || where[l] >> 32 == LOCAL_HIGH) continue;
        if (strong && (loads || atomically))
            if (const auto by_write = global.released.find(where[l]); by_write != global.released.end()) join(known.observed, by_write->second);
        if (loads) {
            global.read(races, where[l], width, now, known, cta.request.cta);
            continue;
        }
        bool same = !atomically;
        for (int w = 0; same && w < std::max(1, width / 4); w++)
            same = !std::memcmp(at[l] + 4 * w, &read(i.s.back(), t, w).v[l], static_cast<size_t>(std::min(4, width)));
        global.write(races, where[l], width, now, known, cta.request.cta, same);
        if (!strong) continue;
        if (!atomically) global.released.erase(where[l]);
        if (!known.fenced.empty()) join(global.released[where[l]], known.fenced);
    }
}

void Warp::touch_copied(uint64_t address, int width, bool writes) {  // cp.async and TMA
    Races& races = cta.cluster->races;
    const Clock& known = races.clock[self()];
    const GlobalRaces::Access now{races.cluster, writes ? UNDER_WAY : known[self()], index, static_cast<uint16_t>(self()), 0, 0};
    std::lock_guard<std::mutex> hold(races.global->lock);
    if (writes) races.global->write(races, address, width, now, known, cta.request.cta, false);
    else races.global->read(races, address, width, now, known, cta.request.cta);
}

void Warp::note_reading(uint64_t address, UnderWay& reading) {
    Races* races = looked_for();
    if (!races) return;
    cta.shadow.read(*races, address, 16, self(), index, UNDER_WAY, races->clock[self()], cta.request.cta, true);
    reading.addresses.push_back(address);
}

void Warp::finish_reading(UnderWay& reading, size_t open_groups) {
    Races* races = looked_for();
    const size_t done = reading.close(open_groups);
    if (!races || !done) return;
    const uint32_t now = races->clock[self()][self()];
    for (size_t n = 0; n < done; n++) cta.shadow.was_read(reading.addresses[n], 16, self(), now);
    reading.addresses.erase(reading.addresses.begin(), reading.addresses.begin() + static_cast<std::ptrdiff_t>(done));
    for (const uint64_t address : reading.addresses) cta.shadow.was_read(address, 16, self(), UNDER_WAY);
}

void Warp::finish_storing(size_t open_groups) {
    finish_reading(stored_from, open_groups);
    Races* races = looked_for();
    const size_t done = stored_to.close(open_groups);
    if (!races || !done) return;
    std::lock_guard<std::mutex> hold(races->global->lock);
    for (size_t n = 0; n < done; n++) races->global->landed(stored_to.addresses[n], 4, races->cluster, self(), races->clock[self()][self()]);
    stored_to.addresses.erase(stored_to.addresses.begin(), stored_to.addresses.begin() + static_cast<std::ptrdiff_t>(done));
}

[[noreturn]] inline void misaligned(const Instruction& i, uint64_t address, int width) {
    char what[96];
    std::snprintf(what, sizeof what, "uses address 0x%llx, which is not a multiple of its %d bytes", static_cast<unsigned long long>(address), width);
    fail(i, what);
}

inline uint8_t* Warp::shared_byte(const Instruction& i, uint64_t address, int width) {
    if (address % static_cast<uint64_t>(width)) misaligned(i, address & (SHARED_WINDOW - 1), width);
    const uint64_t rank = address / SHARED_WINDOW;
    Cta* owner = &cta;
    if (rank != cta.rank && cta.cluster) {
        if (rank >= cta.cluster->ctas.size()) fail(i, "reaches the shared memory of CTA " + std::to_string(rank) + " of a cluster that has " + std::to_string(cta.cluster->ctas.size()));
        owner = cta.cluster->ctas[rank];
        if (!owner->living()) fail(i, "reaches the shared memory of CTA " + std::to_string(rank) + " of its cluster, which has exited");
    }
    return &owner->smem[shared_at(*owner, i, address, width)];
}

// The buffer that contains an address, or null.
inline const Buffer* buffer_at(Cta& cta, uint64_t address) {
    const Buffer* b = cta.last_buffer;
    if (b && address - b->base < b->size) return b;
    const Buffer* const end = cta.request.buffers + cta.request.buffer_count;
    b = std::upper_bound(cta.request.buffers, end, address, [](uint64_t a, const Buffer& x) { return a < x.base; });
    if (b == cta.request.buffers || address - (b - 1)->base >= (b - 1)->size) return nullptr;
    return cta.last_buffer = b - 1;
}

// Host memory of an address; null if its `size` bytes are not all in one buffer.
inline uint8_t* bytes_at(Cta& cta, uint64_t address, uint32_t size) {
    const Buffer* const b = buffer_at(cta, address);
    return b && size <= b->size - (address - b->base) ? b->host + (address - b->base) : nullptr;
}

inline uint8_t* Warp::global_byte(const Instruction& i, uint64_t address, int width) {
    if (address % static_cast<uint64_t>(width)) misaligned(i, address, width);
    const Buffer* const b = cta.last_buffer;
    if (b && address - b->base <= b->size - static_cast<uint64_t>(width) && b->size >= static_cast<uint64_t>(width)) return b->host + (address - b->base);
    return find_global_byte(i, address, width);
}

uint8_t* Warp::find_global_byte(const Instruction& i, uint64_t address, int width) {
    const Buffer* b;
    const Request& r = cta.request;
    const Buffer* const end = r.buffers + r.buffer_count;
    b = std::upper_bound(r.buffers, end, address, [](uint64_t a, const Buffer& x) { return a < x.base; });
    char what[160];
    if (b != r.buffers) {
        --b;
        if (b->size >= static_cast<uint64_t>(width) && address - b->base <= b->size - static_cast<uint64_t>(width)) {
            cta.last_buffer = b;
            return b->host + (address - b->base);
        }
        std::snprintf(what, sizeof what, "reaches %d bytes at 0x%llx, byte %lld of BUFFER %d, which has %llu", width, static_cast<unsigned long long>(address), static_cast<long long>(address - b->base), static_cast<int>(b - r.buffers), static_cast<unsigned long long>(b->size));
        if (address - b->base < (uint64_t{1} << 31)) fail(i, what);
    }
    if (b != end && b == r.buffers && b->base - address < (uint64_t{1} << 31))
        std::snprintf(what, sizeof what, "reaches %d bytes at 0x%llx, %llu bytes before BUFFER %d", width, static_cast<unsigned long long>(address), static_cast<unsigned long long>(b->base - address), static_cast<int>(b - r.buffers));
    else
        std::snprintf(what, sizeof what, "reaches %d bytes at 0x%llx, where there is no buffer", width, static_cast<unsigned long long>(address));
    fail(i, what);
}

void Warp::writes_to(const Instruction& i, const Buffer* buffer) {
    if (buffer->read_only) fail(i, "writes to BUFFER " + std::to_string(buffer - cta.request.buffers) + ", which is read-only");
}

uint8_t* Warp::local_byte(const Instruction& i, uint64_t address, int width, int lane) {
    if (address % static_cast<uint64_t>(width)) misaligned(i, address, width);
    const uint64_t offset = address & (cta.request.local_bytes - 1);
    if (offset + static_cast<uint64_t>(width) > cta.request.local_bytes) fail(i, "reaches beyond local memory");
    return &local[static_cast<size_t>(lane) * cta.request.local_bytes + offset];
}

uint8_t* Warp::generic_byte(const Instruction& i, uint64_t address, int width, int lane) {
    if (address >> 32 == SHARED_HIGH) {
        changes_shared();
        return shared_byte(i, address & FULL, width);
    }
    if (address >> 32 == LOCAL_HIGH) return local_byte(i, address & FULL, width, lane);
    return global_byte(i, address, width);
}

void Warp::changes_shared() {  // it may also be that of another CTA of the cluster
    for (Cta* each : cta.cluster->ctas) each->changes.all();
}

void Warp::load_matrices(const Instruction& i) {  // LDSM, STSM
    // Lanes 8 j to 8 j + 7 address the eight rows of matrix j, 16 bytes each.
    Wide where;
    Lanes t;
    addresses(address_of(i), false, where);
    const int matrices = std::max(1, std::min(4, i.count));
    const bool transposed = i.transposes, stores = i.op == OP_STSM;
    for (int m = 0; m < matrices; m++) {
        uint8_t* rows[8];
        uint64_t highest = 0, bits = 0;
        for (int r = 0; r < 8; r++) highest = std::max(highest, where[8 * m + r]), bits |= where[8 * m + r];
        if (!cta.rank && bits % 16 == 0 && cta.smem.size() >= 16 && highest <= cta.smem.size() - 16)
            for (int r = 0; r < 8; r++) rows[r] = &cta.smem[where[8 * m + r]];
        else
            for (int r = 0; r < 8; r++) rows[r] = shared_byte(i, where[8 * m + r], 16);
        uint64_t pages = 0;
        for (int r = 0; r < 8; r++) pages |= uint64_t{1} << Cta::Changes::page(where[8 * m + r] & (SHARED_WINDOW - 1));
        if (stores)
            for (Cta* each : cta.cluster->ctas) each->changes.pages(pages);
        if (looked_for())
            for (int r = 0; r < 8; r++) {
                const uint64_t place = where[8 * m + r];
                Cta& owner = place / SHARED_WINDOW == cta.rank ? cta : *cta.cluster->ctas[place / SHARED_WINDOW];
                if (stores) writes_shared(owner, place & (SHARED_WINDOW - 1), 16);
                else reads_shared(owner, place & (SHARED_WINDOW - 1), 16);
            }
        uint16_t matrix[8][8];
        if (stores) {
            const Lanes& v = read(i.s.back(), t, m);
            for (int l = 0; l < 32; l++)
                for (int half = 0; half < 2; half++) {
                    const int row = transposed ? 2 * (l % 4) + half : l / 4, column = transposed ? l / 4 : 2 * (l % 4) + half;
                    matrix[row][column] = static_cast<uint16_t>(v[l] >> 16 * half);
                }
            for (int r = 0; r < 8; r++) std::memcpy(rows[r], matrix[r], 16);
            continue;
        }
        // A register of all lanes is the matrix in row order.
        Lanes v;
        for (int r = 0; r < 8; r++) std::memcpy(matrix[r], rows[r], 16);
#ifdef WIDE_MULTIPLY
        if (transposed) {
            __m128i lines[8];
            std::memcpy(lines, matrix, sizeof lines);
            transpose(lines);
            std::memcpy(matrix, lines, sizeof lines);
        }
        std::memcpy(v.v, matrix, sizeof matrix);
#else
        if (transposed) {
            uint16_t turned[8][8];
            for (int r = 0; r < 8; r++)
                for (int c = 0; c < 8; c++) turned[c][r] = matrix[r][c];
            std::memcpy(v.v, turned, sizeof turned);
        } else {
            std::memcpy(v.v, matrix, sizeof matrix);
        }
#endif
        write(i.s[0], v, m);
    }
}

void Warp::local_memory(const Instruction& i) {  // LDL, STL
    Wide where;
    Lanes t;
    addresses(address_of(i), false, where);
    const size_t size = static_cast<size_t>(std::min(4, i.width));
    for (int w = 0; w < std::max(1, i.width / 4); w++) {
        Lanes v{};
        if (i.op == OP_STL) v = read(i.s.back(), t, w);
        for (int l = 0; l < 32; l++) {
            if (!(on >> l & 1)) continue;
            uint8_t* byte = local_byte(i, where[l], i.width, l) + 4 * w;
            if (i.op == OP_STL) std::memcpy(byte, &v.v[l], size);
            else std::memcpy(&v.v[l], byte, size);
        }
        if (i.op == OP_LDL) write(i.s[0], extended(i, v), w);
    }
}

void Warp::copy_asynchronously(const Instruction& i) {  // LDGSTS: a lane whose source predicate is off writes zeros
    Wide to, from;
    addresses(address_of(i, 0), false, to);
    addresses(address_of(i, 1), true, from);
    const uint32_t loads = i.ps.empty() ? on : on & predicate(i.ps[0]);
    Races* const races = looked_for();
    const auto copy_all = [&](auto bytes) {  // a compile-time constant, so that each copy is a move
        constexpr int width = decltype(bytes)::value;
        for (int l = 0; l < 32; l++) {
            if (!(on >> l & 1)) continue;
            uint8_t* const target = shared_byte(i, to[l], width);
            in_flight.emplace_back();
            AsyncCopy& copy = in_flight.back();
            copy.to = target, copy.size = width;
            if (races && to[l] / SHARED_WINDOW == cta.rank) {
                const Clock& known = races->clock[self()];
                cta.shadow.write(*races, to[l] & (SHARED_WINDOW - 1), width, self(), index, UNDER_WAY, known, cta.request.cta);
            }
            if (!(loads >> l & 1)) continue;
            if (const uint64_t zeros = zeros_of(i, from[l])) {
                for (uint64_t b = 0; b < width - zeros; b++) copy.data[b] = *global_byte(i, from[l] - zeros + b, 1);
                if (races) touch_copied(from[l] - zeros, static_cast<int>(width - zeros), false);
                continue;
            }
            std::memcpy(copy.data, global_byte(i, from[l], width), width);
            if (races) touch_copied(from[l], width, false);
        }
    };
    switch (i.width) {
    case 16: return copy_all(std::integral_constant<int, 16>());
    case 8: return copy_all(std::integral_constant<int, 8>());
    case 4: return copy_all(std::integral_constant<int, 4>());
    default: fail(i, "copies a width that is not supported here");
    }
}

template <typename T>
T combine(const Instruction& i, T old, T x, T compared) {
    if (i.has(MOD_CAS) || i.has(MOD_CAST)) return old == compared ? x : old;
    if (i.has(MOD_EXCH)) return x;
    if (i.has(MOD_ADD)) return static_cast<T>(old + x);
    if (i.has(MOD_MIN)) return std::min(old, x);
    if (i.has(MOD_MAX)) return std::max(old, x);
    if (i.has(MOD_AND)) return old & x;
    if (i.has(MOD_OR)) return old | x;
    if (i.has(MOD_XOR)) return old ^ x;
    if (i.has(MOD_INC)) return i.has(MOD_POPC) ? old + 1 : old >= x ? 0 : old + 1;
    if (i.has(MOD_DEC)) return old == 0 || old > x ? x : old - 1;
    fail(i, "is an atomic operation that is not supported here");
}

inline uint64_t combined(const Instruction& i, uint64_t old, uint64_t x, uint64_t compared) {
    const bool wide = i.width == 8;
    const uint32_t a = static_cast<uint32_t>(old), b = static_cast<uint32_t>(x);
    if (i.has(MOD_F64)) {
        double p, q;
        std::memcpy(&p, &old, 8), std::memcpy(&q, &x, 8);
        p += q;
        std::memcpy(&old, &p, 8);
        return old;
    }
    if (i.has(MOD_F16x2) || i.has(MOD_BF16x2) || i.has(MOD_BF16_V2)) {
        const bool bfloat = !i.has(MOD_F16x2);
        uint32_t sums = 0;
        for (int h = 0; h < 32; h += 16) {
            const uint32_t p = a >> h & 0xffff, q = b >> h & 0xffff;
            sums |= (bfloat ? float_to_bfloat(bfloat_to_float(p) + bfloat_to_float(q)) : float_to_half(half_to_float(p) + half_to_float(q))) << h;
        }
        return sums;
    }
    if (wide && i.has(MOD_S64)) return static_cast<uint64_t>(combine<int64_t>(i, static_cast<int64_t>(old), static_cast<int64_t>(x), static_cast<int64_t>(compared)));
    if (wide) return combine<uint64_t>(i, old, x, compared);
    if (i.has(MOD_S32)) return static_cast<uint32_t>(combine<int32_t>(i, static_cast<int32_t>(a), static_cast<int32_t>(b), static_cast<int32_t>(compared)));
    return combine<uint32_t>(i, a, b, static_cast<uint32_t>(compared));
}

// Held during atomics on global memory, because `quick_reduce` adds floats without host atomics. Stores do
// not hold it: a store that races with an atomic is a hazard anyway.
class ReductionLock {
    static constexpr size_t PIECE_BYTES = 1 << 14, LOCKS = 64;
    static inline std::mutex locks[LOCKS];
    std::unique_lock<std::mutex> lower, upper;

public:
    ReductionLock(const uint8_t* first, const uint8_t* last) {
        size_t from = reinterpret_cast<uintptr_t>(first) / PIECE_BYTES % LOCKS, to = reinterpret_cast<uintptr_t>(last) / PIECE_BYTES % LOCKS;
        if (from > to) std::swap(from, to);
        lower = std::unique_lock<std::mutex>(locks[from]);
        if (to != from) upper = std::unique_lock<std::mutex>(locks[to]);
    }
    static constexpr size_t MAX_BYTES = PIECE_BYTES;  // between first and last: they lie in at most two pieces
};

// One lane after the other, concurrently with other host threads.
void Warp::atomic(const Instruction& i, uint8_t* const* at) {
    const bool wide = i.width == 8;
    Wide x{}, compared{}, old{};
    Lanes t;
    auto values = [&](const Operand& o, Wide& out) {
        if (wide) return read_wide(o, out);
        const Lanes& v = read(o, t);
        for (int l = 0; l < 32; l++) out[l] = v[l];
    };
    if (!i.has(MOD_POPC)) values(i.s.back(), x);
    if ((i.has(MOD_CAS) || i.has(MOD_CAST)) && i.s.size() >= 2) values(i.s[i.s.size() - 2], compared);
    const bool of_floats = !wide && i.has(MOD_F32);
    for (int l = 0; l < 32; l++) {
        if (!at[l]) continue;
        const ReductionLock hold(at[l], at[l]);
        if (of_floats) {
            auto* place = reinterpret_cast<uint32_t*>(at[l]);
            const float added = float_of(static_cast<uint32_t>(x[l]));
            uint32_t seen = __atomic_load_n(place, __ATOMIC_RELAXED), sum = 0;
            do sum = bits_of(flushed(i, float_of(seen) + added));
            while (!__atomic_compare_exchange_n(place, &seen, sum, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
            old[l] = seen;
        } else if (wide) {
            auto* place = reinterpret_cast<uint64_t*>(at[l]);
            uint64_t seen = __atomic_load_n(place, __ATOMIC_RELAXED);
            while (!__atomic_compare_exchange_n(place, &seen, combined(i, seen, x[l], compared[l]), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
            old[l] = seen;
        } else {
            auto* place = reinterpret_cast<uint32_t*>(at[l]);
            uint32_t seen = __atomic_load_n(place, __ATOMIC_RELAXED);
            while (!__atomic_compare_exchange_n(place, &seen, static_cast<uint32_t>(combined(i, seen, x[l], compared[l])), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {}
            old[l] = seen;
        }
    }
    if (i.op == OP_RED) return;
    const bool compares = i.has(MOD_CAS) || i.has(MOD_CAST);
    const uint32_t done = !compares ? FULL : mask_of([&](int l) { return old[l] == compared[l]; });
    for (const Operand& p : i.pd) write_predicate(p, done);
    if (i.has(MOD_CAST)) {  // whether it was swapped
        write(i.s[0], each([&](int l) { return done >> l & 1; }));
        if (wide) write(i.s[0], Lanes{}, 1);
        return;
    }
    if (i.s[0].kind != Kind::REG) return;
    if (wide) return write_wide(i.s[0], old);
    write(i.s[0], each([&](int l) { return static_cast<uint32_t>(old[l]); }));
}

void Warp::execute(const Instruction& i) {
    switch (i.op) {
    case OP_LDSM: case OP_STSM:
        return load_matrices(i);
    case OP_LDL: case OP_STL:
        return local_memory(i);
    case OP_LDGSTS:
        return copy_asynchronously(i);
    case OP_MOVM: {  // an 8x8 matrix, transposed
        Lanes t;
        const Lanes& x = read(at(i.s, 1, i), t);
        uint16_t matrix[8][8], turned[8][8];
        std::memcpy(matrix, x.v, sizeof matrix);
        for (int r = 0; r < 8; r++)
            for (int c = 0; c < 8; c++) turned[c][r] = matrix[r][c];
        Lanes v;
        std::memcpy(v.v, turned, sizeof turned);
        return write(i.s[0], v);
    }
    default:
        break;
    }
    const bool shared = i.op == OP_LDS || i.op == OP_STS || i.op == OP_ATOMS;
    if (shared && i.has(MOD_ARRIVE)) fail(i, "is an mbarrier of sm_80, which is not supported here");
    const bool atomically = is_atomic(i);
    Wide where;
    Lanes t;
    addresses(address_of(i), !shared, where);
    const int width = atomically && i.width < 4 ? 4 : i.width;
    uint8_t* at[32];
    uint64_t lowest = ~uint64_t{0}, highest = 0, bits = 0;
    for (int l = 0; l < 32; l++) {
        const bool executes = on >> l & 1;
        const uint64_t place = executes ? where[l] : 0;
        lowest = std::min(lowest, executes ? place : ~uint64_t{0}), highest = std::max(highest, place), bits |= place;
    }
    // All lanes access one valid piece of memory: no lookup for each lane.
    const uint64_t size = static_cast<uint64_t>(width);  // sums could wrap, as addresses are arbitrary
    const bool loads = i.op == OP_LDS || i.op == OP_LDG || i.op == OP_LD;
    if (shared && !loads) changes_shared();
    uint8_t* piece = nullptr;
    uint64_t from = 0;  // address of its first byte
    if (bits % size) {
    } else if (shared) {
        from = cta.rank * SHARED_WINDOW;
        if (lowest >= from && cta.smem.size() >= size && highest - from <= cta.smem.size() - size) piece = cta.smem.data();
    } else if (const Buffer* b = cta.last_buffer) {
        from = b->base;
        if (lowest >= from && b->size >= size && highest - from <= b->size - size) piece = b->host;
        if (piece && highest >= from && !loads) writes_to(i, b);
    }
    if (piece && highest >= from)
        for (int l = 0; l < 32; l++) at[l] = on >> l & 1 ? piece + (where[l] - from) : nullptr;
    else for (int l = 0; l < 32; l++) {
        if (!(on >> l & 1)) at[l] = nullptr;
        else at[l] = shared ? shared_byte(i, where[l], width) : generic_byte(i, where[l], width, l);
        if (at[l] && !shared && !loads && where[l] >> 32 != SHARED_HIGH && where[l] >> 32 != LOCAL_HIGH) writes_to(i, cta.last_buffer);
    }
    std::unique_lock<std::mutex> hold;
    if (looked_for()) {
        touch_shared(i, where, width);
        if (!shared) {
            hold = std::unique_lock<std::mutex>(cta.cluster->races.global->lock);
            touch_global(i, where, width, at);
        }
    }
    if (cta.request.last_write && !loads && !shared)
        for (int l = 0; l < 32; l++)
            if (on >> l & 1) note_write(where[l], width);
    if (i.polls) cta.polls++;
    if (atomically) return atomic(i, at);
    const int words = std::max(1, width / 4);
    const size_t part = static_cast<size_t>(std::min(4, width));
    for (int w = 0; w < words; w++) {
        if (loads) {
            Lanes v;
            if (part == 4)
                for (int l = 0; l < 32; l++) { if (at[l]) std::memcpy(&v[l], at[l] + 4 * w, 4); }
            else {
                v = Lanes{};
                for (int l = 0; l < 32; l++) if (at[l]) std::memcpy(&v[l], at[l], part);
                v = extended(i, v);
            }
            write(i.s[0], v, w);
        } else {
            const Lanes& v = read(i.s.back(), t, w);
            if (part == 4)
                for (int l = 0; l < 32; l++) { if (at[l]) std::memcpy(at[l] + 4 * w, &v.v[l], 4); }
            else
                for (int l = 0; l < 32; l++) if (at[l]) std::memcpy(at[l], &v.v[l], part);
        }
    }
}
