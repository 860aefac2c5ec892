// Asynchronous copies, mbarriers, TMA, wgmma and clusters. Included by emulator.cpp.

bool Warp::is_asynchronous(const Instruction& i) const {
    switch (i.op) {
    case OP_LDGDEPBAR: case OP_DEPBAR: case OP_SYNCS: case OP_ARRIVES: case OP_UTMALDG: case OP_UTMASTG:
    case OP_UBLKCP: case OP_UTMACMDFLUSH: case OP_WARPGROUP: case OP_HGMMA:
        return true;
    default:
        return false;
    }
}

void Warp::asynchronous(const Instruction& i, bool& moves) {
    switch (i.op) {
    case OP_LDGDEPBAR:
        groups.push_back(in_flight.size());
        return;
    case OP_DEPBAR:  // waits for cp.async groups or TMA stores: the code does not distinguish them
        if (!i.s.empty()) {
            const size_t open = i.s.back().kind == Kind::IMM ? static_cast<size_t>(std::max<int64_t>(0, i.s.back().imm)) : 0;
            land_copies(open), finish_storing(open);
        }
        return;
    case OP_UTMACMDFLUSH:
        stored_from.groups.push_back(stored_from.addresses.size());
        stored_to.groups.push_back(stored_to.addresses.size());
        return;
    case OP_SYNCS: case OP_ARRIVES:
        return synchronise(i, moves);
    case OP_UTMALDG:
        return load_tile(i);
    case OP_UTMASTG:
        return store_tile(i);
    case OP_HGMMA:
        return multiply_group(i);
    case OP_UBLKCP:
        fail(i, "is a bulk copy, which is not supported here");
    case OP_WARPGROUP:
        if (i.has(MOD_DEPBAR)) finish_reading(multiplied, i.s.empty() || i.s.back().kind != Kind::IMM ? 0 : static_cast<size_t>(std::max<int64_t>(0, i.s.back().imm)));
        return;
    default:
        return;
    }
}

uint32_t Warp::special(const Instruction& i, int which) {
    const uint64_t now = cta.request.clock + static_cast<uint64_t>(cta.steps);  // instructions issued so far
    const std::string& name = i.s[1].text;
    if (which == SR_CLOCKLO) return static_cast<uint32_t>(now);
    if (which == SR_CLOCKHI) return static_cast<uint32_t>(now >> 32);
    if (which == SR_CGA) return cta.rank;
    if (name == "SR_SWINHI") return SHARED_HIGH;
    if (name == "SR_LWINHI") return LOCAL_HIGH;
    // Blackwell's code subtracts 160 bytes times this from the cluster's address in the constant bank.
    if (name == "SR_CgaSize") return 0;
    if (starts(name, "SR_GLOBALTIMER")) return static_cast<uint32_t>(name.back() == 'I' ? now >> 32 : now);
    if (name == "SR_VIRTUALSMID" || name == "SR_VIRTID") return 0;
    fail(i, "reads " + name + ", which is not supported here");
}

void Warp::nothing(const Instruction& i, bool& moves) {
    if (i.op == OP_TRAP) {
        if (i.has(MOD_TRAP)) fail(i, "stops the kernel: a trap");
        return;
    }
    if (i.name == "YIELD" || starts(i.name, "NANOSLEEP")) {
        turn_ends = std::min(turn_ends, cta.steps + 1);
        if (starts(i.name, "NANOSLEEP")) cta.polls += 64;
        return;
    }
    if (i.name == "WARPSYNC.COLLECTIVE" || i.name == "WARPSYNC") {
        Lanes t;
        const Lanes& masks = read(at(i.s, 0, i), t);
        for (int l = 0; l < 32; l++) {
            if (!(on >> l & 1)) continue;
            if (!(masks[l] >> l & 1)) fail(i, "is executed by lanes outside its mask, for which the result is undefined");
            meets[l] = masks[l];
        }
        met |= on, blocked |= on, moves = false;
        return meet();
    }
    if (!cta.cluster) return;
    if (Races* races = looked_for()) {
        const bool of_gpu = i.name.find(".GPU") != std::string::npos || i.name.find(".SYS") != std::string::npos;
        if (starts(i.name, "MEMBAR") && of_gpu) races->fence_gpu(self());
        else if (starts(i.name, "CCTL.IVALL")) races->acquire_observed(self());
        else if (starts(i.name, "FENCE.VIEW.ASYNC")) races->fence_proxy(self());
    }
    if (i.name == "UCGABAR_ARV") {
        if (Races* races = looked_for()) races->release(self(), races->cluster_pending);
        at_cluster |= on;
        release_cluster();
    } else if (i.name == "UCGABAR_WAIT") {
        if (cluster_waits == cta.cluster_phase) {
            at_mbar |= on, blocked |= on, moves = false;
            return;
        }
        cluster_waits++;
        if (Races* races = looked_for()) races->acquire(self(), races->cluster_done);
    }
}

// Completes the cluster's barrier if all of its threads that have not exited have arrived.
void Warp::release_cluster() {
    Cluster& cluster = *cta.cluster;
    uint32_t any = 0;
    for (const Cta* c : cluster.ctas)
        for (const Warp* w : c->warps) {
            if (w->alive & ~w->at_cluster) return;
            any |= w->at_cluster;
        }
    if (!any) return;
    join(cluster.races.cluster_done, cluster.races.cluster_pending);
    cluster.races.cluster_pending.clear();
    for (Cta* c : cluster.ctas) {
        for (Warp* w : c->warps) w->at_cluster = 0;
        c->cluster_phase++;
        c->wake();
    }
}

// Lanes that diverged reconverge before a shuffle, vote or match.
void Warp::meet() {
    const uint32_t free = mask_of([&](int l) { return met >> l & 1 && !(meets[l] & alive & ~met); });
    for (int l = 0; l < 32; l++)
        if (free >> l & 1) pc[l]++;
    blocked &= ~free, met &= ~free;
}

void Warp::leave() {
    meet();
    if (cta.cluster) release_cluster();
    Races* races = looked_for();
    if (!races || alive) return;
    if (!stored_from.addresses.empty()) {
        const uint64_t address = stored_from.addresses.front();
        const Shadow::Reader& reader = cta.shadow.readers[address / 2 * cta.shadow.who + self()];
        races->report(EXIT_BEFORE_END, reader.at, index, self(), self(), true, address, cta.request.cta);
    }
    join(cta.left, races->clock[self()]);
    if (cta.living()) return;
    for (const Cta::Tile& tile : cta.tiles) races->report(EXIT_BEFORE_PEER, tile.at, index, races->copies_of(cta.rank), self(), true, tile.to, cta.request.cta);
    for (const auto& [warp, visit] : cta.visits)
        if (visit.epoch > cta.left[warp]) races->report(EXIT_BEFORE_PEER, visit.at, index, warp, self(), false, visit.address, cta.request.cta);
}

void Warp::synchronise(const Instruction& i, bool& moves) {
    if (i.has(MOD_CCTL)) return;
    Wide where;
    addresses(address_of(i), false, where);
    // Lanes may arrive at several mbarriers, of several CTAs of a cluster.
    for (uint32_t left = on; left;) {
        const uint64_t address = where[__builtin_ctz(left)];
        const uint32_t group = mask_of([&](int l) { return left >> l & 1 && where[l] == address; });
        if (group != on && !i.has(MOD_ARRIVE) && i.op != OP_ARRIVES) fail(i, "has other mbarriers in other lanes, which is not supported here");
        left &= ~group;
        synchronise(i, moves, address, group);
    }
}

void Warp::synchronise(const Instruction& i, bool& moves, uint64_t address, uint32_t group) {
    Lanes t;
    const int first = __builtin_ctz(group);
    shared_byte(i, address, 8);
    Cta* owner = cta.cluster && address / SHARED_WINDOW < cta.cluster->ctas.size() ? cta.cluster->ctas[address / SHARED_WINDOW] : &cta;
    const uint64_t place = address & (SHARED_WINDOW - 1);
    if (i.has(MOD_EXCH)) {  // mbarrier.init writes 2^20 minus the count, shifted left by 1
        Wide bits;
        read_wide(i.s.back(), bits);
        MBarrier& bar = owner->mbarriers[place];
        bar = MBarrier();
        bar.needed = bar.pending = std::max(1, static_cast<int>((0x100000 - (bits[first] >> 1 & 0xfffff)) & 0xfffff));
        return;
    }
    if (looked_for()) visits(*owner, place);
    const auto known = owner->mbarriers.find(place);
    if (known == owner->mbarriers.end()) fail(i, "uses an mbarrier that was not initialised");
    MBarrier& bar = known->second;
    if (i.has(MOD_PHASECHK)) {
        const uint32_t parity = read(i.s.back(), t)[first] >> 31;
        const auto is_done = [&] { return static_cast<uint32_t>(bar.phase & 1) != parity; };
        if (!is_done()) owner->land_tiles(place);  // copies that the phase did not wait for stay in flight
        const bool done = is_done();
        if (!done && i.name.find("TRYWAIT") != std::string::npos) {
            at_mbar |= on, blocked |= on, moves = false;
            return;
        }
        if (Races* races = done ? looked_for() : nullptr) races->acquire(self(), bar.done_clock);
        for (const Operand& p : i.pd) write_predicate(p, done ? FULL : 0);
        return;
    }
    // Each lane arrives; with a transaction count it also expects so many bytes.
    if (i.op == OP_ARRIVES) land_copies(0);
    const Operand& last = i.s.back();
    const bool expects = i.op == OP_SYNCS && last.kind != Kind::ADDR && !(last.kind == Kind::REG && last.reg == RZ);
    if (expects && !i.has(MOD_A1T0)) {
        const Lanes& bytes = read(last, t);
        for (int l = 0; l < 32; l++)
            if (group >> l & 1) bar.bytes += i.has(MOD_A0TX) ? -static_cast<int64_t>(bytes[l] & 0xfffff) : bytes[l] & 0xfffff;
    }
    if (arrives(i)) {
        bar.pending -= __builtin_popcount(group);
        if (Races* races = looked_for()) races->release(self(), bar.pending_clock);
    }
    if (bar.pending < 0) fail(i, "arrives at an mbarrier more often than it expects");
    owner->settle(bar);
    if (i.s.size() > 1 && i.s[0].kind == Kind::REG) write(i.s[0], Lanes{});
}

// ---- TMA ----

inline uint64_t swizzled(const TensorMap& map, uint64_t address) {
    return address ^ (address >> 7 & ((1u << map.swizzle) - 1)) << 4;
}

// Calls f(offset in shared memory, address in the tensor or 0 outside of it, bytes) for all of a box, in
// units of 16 bytes, which every swizzle keeps together, and for single elements if the tensor ends within
// a unit or `singly` is set. A row of whole units is first passed to `row`, with the offset before the
// swizzle; if it returns true the row is done.
template <typename R, typename F>
void for_box(const TensorMap& map, const uint32_t* coordinates, uint64_t shared, bool singly, R row, F f) {
    const uint32_t e = map.element_bytes, unit = 16 / e;
    uint64_t rows = 1;
    for (uint32_t d = 1; d < map.rank; d++) rows *= map.box[d];
    uint32_t at[5] = {};
    for (uint64_t r = 0; r < rows; r++) {
        uint64_t start = map.base;
        bool inside = true, next = r > 0;
        for (uint32_t d = 1; d < map.rank; d++) {
            if (next) at[d]++;
            next = next && at[d] == map.box[d];
            if (next) at[d] = 0;
            const int64_t index = static_cast<int32_t>(coordinates[d]) + static_cast<int64_t>(at[d]);
            inside = inside && index >= 0 && index < static_cast<int64_t>(map.dims[d]);
            start += static_cast<uint64_t>(index) * map.stride_bytes[d - 1];
        }
        const int64_t first = static_cast<int32_t>(coordinates[0]), end = static_cast<int64_t>(map.dims[0]), width = map.box[0];
        const uint64_t place = shared + r * map.box[0] * e, address = start + static_cast<uint64_t>(first) * e;
        const bool outside = !inside || first + width <= 0 || first >= end, within = inside && first >= 0 && first + width <= end;
        if (!singly && (outside || (within && address % 16 == 0)) && place % 16 == 0 && width % unit == 0) {
            if (row(place, outside ? 0 : address, map.box[0] * e)) continue;
            for (uint64_t b = 0; b < map.box[0] * e; b += 16) f(swizzled(map, place + b), outside ? 0 : address + b, 16);
            continue;
        }
        for (int64_t c = 0; c < width;) {
            const int64_t column = first + c;
            const uint64_t to = place + static_cast<uint64_t>(c) * e, from = address + static_cast<uint64_t>(c) * e;
            if (!singly && c + unit <= width && to % 16 == 0 && inside && column >= 0 && column + unit <= end && from % 16 == 0) {
                f(swizzled(map, to), from, 16);
                c += unit;
                continue;
            }
            f(swizzled(map, to), inside && column >= 0 && column < end ? from : 0, static_cast<int>(e));
            c++;
        }
    }
}

// Returns a copy: global memory may be written concurrently, and the map that was checked must be used.
inline TensorMap map_at(Warp& warp, const Instruction& i, uint64_t at) {
    const Request& request = warp.cta.request;
    const uint64_t constant_bytes = static_cast<uint64_t>(request.constant_bytes[0]);
    if (at % 64) misaligned(i, at, 64);
    TensorMap map;
    static_assert(sizeof map > 64 && sizeof map <= 128, "lies in two pieces of 64 bytes");
    if (constant_bytes >= 128 && at <= constant_bytes - 128) {
        std::memcpy(&map, request.constants[0] + at, sizeof map);
    } else {
        std::memcpy(&map, warp.global_byte(i, at, 64), 64);
        std::memcpy(reinterpret_cast<uint8_t*>(&map) + 64, warp.global_byte(i, at + 64, 64), sizeof map - 64);
    }
    if (map.magic != TENSOR_MAP_MAGIC) fail(i, "gets an address without a tensor map");
    if (!is_possible(map)) fail(i, "gets a tensor map that no GPU accepts");
    return map;
}

void Warp::load_tile(const Instruction& i) {
    const Operand &target = address_of(i, 0), &source = address_of(i, 1);
    if (target.ureg < 0 || source.ureg < 0) fail(i, "has no address operand");
    const uint32_t* const from = U + target.ureg;
    Cta::Tile tile{};
    tile.map = map_at(*this, i, U[source.ureg] | static_cast<uint64_t>(U[source.ureg + 1]) << 32);
    tile.to = from[0] & (SHARED_WINDOW - 1), tile.mbarrier = from[1] & (SHARED_WINDOW - 1);
    std::copy(from + 2, from + 2 + tile.map.rank, tile.coordinates);
    tile.at = index;
    if (const Races* races = looked_for()) tile.known = races->clock[self()];
    uint64_t bytes = tile.map.element_bytes;
    for (uint32_t d = 0; d < tile.map.rank; d++) bytes *= tile.map.box[d];
    if (tile.to % 128) misaligned(i, tile.to, 128);
    if (tile.to + bytes > cta.smem.size()) fail(i, "reaches beyond the CTA's shared memory: the launch needs more dynamic shared memory");
    Lanes t;
    uint32_t receivers = 1u << cta.rank;
    if (i.has(MOD_MULTICAST) && i.s.size() > 2) receivers = read(i.s[2], t)[__builtin_ctz(on)] >> 16;
    for (uint32_t rank = 0; rank < 16; rank++) {
        if (!(receivers >> rank & 1)) continue;
        if (rank != cta.rank && (!cta.cluster || rank >= cta.cluster->ctas.size())) fail(i, "is sent to a CTA that its cluster does not have");
        Cta& owner = rank == cta.rank ? cta : *cta.cluster->ctas[rank];
        // Check the tensor's bounds now, so that an error names this instruction.
        owner.tiles.push_back(tile);
        owner.wake();
    }
    const auto is_inside = [&](uint64_t, uint64_t address, uint32_t size) { return !address || bytes_at(cta, address, size); };
    for_box(tile.map, tile.coordinates, 0, looked_for() != nullptr, is_inside, [&](uint64_t, uint64_t address, int size) {
        if (!address) return;
        global_byte(i, address, size);
        if (looked_for() && address % 4 == 0) touch_copied(address, 4, false);
    });
}

void Cta::land_tiles(uint64_t mbarrier) {
    const auto known = mbarriers.find(mbarrier);
    size_t kept = 0;
    for (Tile& tile : tiles) {
        if (tile.mbarrier != mbarrier || known == mbarriers.end()) {
            tiles[kept++] = tile;
            continue;
        }
        int64_t bytes = 0;
        static const Instruction nobody;
        const bool looked_for = !tile.known.empty();
        const uint32_t epoch = ++copies_landed;
        const size_t copies = looked_for ? cluster->races.copies_of(rank) : 0;
        const uint64_t ahead = 4 * tile.map.stride_bytes[0];
        const auto copy_row = [&](uint64_t to, uint64_t from, uint32_t size) {
            const uint8_t* const row = from ? bytes_at(*this, from, size) : nullptr;
            if (from && !row) return false;
            bytes += size;
            if (!row || size != 128) {
                for (uint32_t b = 0; b < size; b += 16) {
                    uint8_t* const unit = &smem[swizzled(tile.map, to + b)];
                    if (row) std::memcpy(unit, row + b, 16);
                    else std::memset(unit, 0, 16);
                }
                return true;
            }
            // Rows are far apart: prefetch the next ones during the copy of this one.
            __builtin_prefetch(reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(row) + ahead));
            __builtin_prefetch(reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(row) + ahead + 64));
            uint64_t units[8][2];
            std::memcpy(units, row, sizeof units);
            for (uint32_t n = 0; n < 8; n++) std::memcpy(&smem[swizzled(tile.map, to + 16 * n)], units[n], 16);
            return true;
        };
        for_box(tile.map, tile.coordinates, tile.to, looked_for, copy_row, [&](uint64_t to, uint64_t from, int size) {
            if (looked_for) shadow.write(cluster->races, to, size, copies, tile.at, epoch, tile.known, request.cta);
            if (from) std::memcpy(&smem[to], warps[0]->global_byte(nobody, from, size), static_cast<size_t>(size));
            else std::memset(&smem[to], 0, static_cast<size_t>(size));
            bytes += size;
        });
        known->second.bytes -= bytes;
        changes.range(tile.to, tile.to + static_cast<uint64_t>(bytes));
        if (looked_for) {
            tile.known[copies] = epoch;
            join(known->second.pending_clock, tile.known);
        }
    }
    tiles.resize(kept);
    if (known != mbarriers.end()) settle(known->second);
}

void Warp::store_tile(const Instruction& i) {
    const Operand &source = address_of(i, 0), &target = address_of(i, 1);
    if (target.ureg < 0 || source.ureg < 0) fail(i, "has no address operand");
    const uint32_t* const from = U + source.ureg;
    const TensorMap map = map_at(*this, i, U[target.ureg] | static_cast<uint64_t>(U[target.ureg + 1]) << 32);
    const uint64_t shared = from[0] & (SHARED_WINDOW - 1);
    if (shared % 128) misaligned(i, shared, 128);
    const auto copy_row = [&](uint64_t place, uint64_t address, uint32_t size) {
        uint8_t* const row = address ? bytes_at(cta, address, size) : nullptr;
        if (!row || place + size > cta.smem.size() / 128 * 128) return false;
        writes_to(i, cta.last_buffer);
        for (uint32_t b = 0; b < size; b += 16) std::memcpy(row + b, &cta.smem[swizzled(map, place + b)], 16);
        return true;
    };
    for_box(map, from + 1, shared, looked_for() || cta.request.last_write, copy_row, [&](uint64_t place, uint64_t address, int size) {
        const uint8_t* bytes = &cta.smem[shared_at(cta, i, place, size)];
        const uint64_t at = place & (SHARED_WINDOW - 1);
        if (address && at % 16 == 0 && at + 16 <= cta.smem.size()) note_reading(at, stored_from);
        if (address % 4 == 0 && address && looked_for()) {
            touch_copied(address, 4, true);
            stored_to.addresses.push_back(address);
        }
        if (address && cta.request.last_write) note_write(address, size);
        if (!address) return;
        uint8_t* const to = global_byte(i, address, size);
        writes_to(i, cta.last_buffer);
        std::memcpy(to, bytes, static_cast<size_t>(size));
    });
}

// ---- wgmma ----

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
    constexpr size_t MOST = 64;
    static thread_local struct {
        const std::unique_ptr<KeptColumns[]> all{new KeptColumns[MOST]};
        uint64_t descriptors[MOST] = {};
        size_t oldest = 0, latest = 0;
    } group;
    // Entries are used in the same order as before.
    size_t which = (group.latest + 1) % MOST;
    for (size_t n = 1; n < MOST && group.descriptors[which] != descriptor; n++) which = (which + 1) % MOST;
    if (group.descriptors[which] != descriptor) which = group.oldest, group.oldest = (group.oldest + 1) % MOST;
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
