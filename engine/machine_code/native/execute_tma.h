// TMA: copies of boxes of a tensor. Included by emulator.cpp.

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
