// Loads, stores, copies, shuffles: addresses, known values, and the cost of each. Included by emulator.cpp.

struct Access32 {  // the active lanes of one access
    uint64_t address[32];
    int lane[32];
    int n = 0;
};

// A lane's marks, packed into one byte of shared memory's marks.
inline uint8_t packed(const Marks& marks, int lane) {
    uint8_t bits = 0;
    for (int k = 0; k < 4; k++) bits |= static_cast<uint8_t>((marks[k] >> lane & 1) << k);
    return bits;
}

// Marks of values loaded from shared memory; equal for all lanes of most accesses.
struct MarksOfLanes {
    uint8_t of[32] = {}, some = 0, every = 0xff;
    uint32_t lanes = 0;

    void add(int lane, uint8_t bits) {
        of[lane] |= bits, lanes |= 1u << lane;
        some |= bits, every &= bits;
    }
    Marks unpacked() const {
        Marks marks = NO_MARKS;
        for (int k = 0; k < 4; k++) {
            if (some == every) marks[k] = some >> k & 1 ? lanes : 0;
            else
                for (int l = 0; l < 32; l++) marks[k] |= static_cast<uint32_t>(of[l] >> k & 1) << l;
        }
        return marks;
    }
};

// Whether these lanes' marks are equal; `bits` is set to them.
inline bool all_alike(const Marks& marks, uint32_t lanes, uint8_t& bits) {
    bits = 0;
    for (int k = 0; k < 4; k++) {
        const uint32_t marked = marks[k] & lanes;
        if (marked && marked != lanes) return false;
        bits |= static_cast<uint8_t>((marked != 0) << k);
    }
    return true;
}

inline int busiest_bank(const uint64_t* address, int n, int width) {
    // Passes of lanes that are served together: distinct words per bank; equal words are broadcast.
    const int words = std::max(1, width / 4);
    uint32_t begun = 0;  // banks at which lanes' accesses begin
    for (int k = 0; k < n; k++) begun |= 1u << (address[k] / 4 & 31);
    bool apart = __builtin_popcount(begun) == n;
    for (int k = 0; k < n && apart; k++) apart = address[k] % static_cast<uint64_t>(width) == 0;
    if (apart) return 1;
    uint64_t seen[32][32];
    int count[32] = {}, most = 0;
    for (int k = 0; k < n; k++) {
        if (k && address[k] == address[k - 1]) continue;
        for (int w = 0; w < words; w++) {
            const uint64_t word = address[k] / 4 + static_cast<uint64_t>(w);
            const int bank = static_cast<int>(word & 31);
            bool old = false;
            for (int j = 0; j < count[bank] && !old; j++) old = seen[bank][j] == word;
            if (old) continue;
            seen[bank][count[bank]++] = word;
            most = std::max(most, count[bank]);
        }
    }
    return most;
}

inline bool in_pairs(const Access32& a) {
    // All lanes n and n^1 read the same address, or all n and n^2: twice as many lanes are served together
    // (documented for compute capability 7.x, assumed for later ones).
    uint64_t by_lane[32];
    uint32_t present = 0;
    for (int k = 0; k < a.n; k++) by_lane[a.lane[k]] = a.address[k], present |= 1u << a.lane[k];
    for (int distance = 1; distance <= 2; distance++) {
        bool all = true;
        for (int l = 0; l < 32 && all; l++)
            if (present >> l & 1 && present >> (l ^ distance) & 1) all = by_lane[l] == by_lane[l ^ distance];
        if (all) return true;
    }
    return false;
}

// 32, 16 or 8 lanes are served together (4, 8 or 16 bytes per lane); each group takes as long as its busiest
// bank.
inline void count_wavefronts(const Access32& a, int width, bool load, Row& row) {
    int together = width <= 4 ? 32 : width == 8 ? 16 : 8;
    if (load && width > 4 && in_pairs(a)) together *= 2;
    for (int from = 0; from < a.n; from += together) {
        row.wavefronts = static_cast<uint16_t>(row.wavefronts + busiest_bank(a.address + from, std::min(together, a.n - from), width));
        row.ideal_wavefronts++;
    }
}

inline void count_sectors(Cta& cta, const Access32& a, int width, Row& row, bool interleaved) {
    const size_t begin = cta.line.size();
    auto touch = [&](uint64_t byte) {
        const uint64_t line = byte & ~uint64_t{127};
        const uint8_t sector = static_cast<uint8_t>(1u << (byte >> 5 & 3));
        for (size_t k = cta.line.size(); k-- > begin;)
            if (cta.line[k] == line) {
                cta.line_sectors[k] |= sector;
                return;
            }
        cta.line.push_back(line);
        cta.line_sectors.push_back(sector);
    };
    uint64_t sorted[32];
    for (int k = 0; k < a.n; k++) {
        for (int byte = 0; byte < std::max(width, 1); byte += interleaved ? 4 : 16) {
            // Local memory is interleaved so that the same word of all lanes is contiguous.
            if (interleaved) touch((a.address[k] + static_cast<uint64_t>(byte)) / 4 * 128 + static_cast<uint64_t>(a.lane[k]) * 4);
            else touch(a.address[k] + static_cast<uint64_t>(byte));
        }
        sorted[k] = a.address[k];
    }
    int distinct = a.n;
    if (!interleaved) {
        std::sort(sorted, sorted + a.n);
        distinct = static_cast<int>(std::unique(sorted, sorted + a.n) - sorted);
    }
    int sectors = 0;
    for (size_t k = begin; k < cta.line.size(); k++) sectors += __builtin_popcount(cta.line_sectors[k]);
    row.sectors = static_cast<uint16_t>(sectors);
    row.ideal_sectors = static_cast<uint16_t>((distinct * width + 31) / 32);
}

// Counts a box: its bytes in the tensor, and the memory sectors that they access.
inline void count_box(Cta& cta, const TensorMap& map, const uint32_t* coordinates, Row& row) {
    const uint64_t row_bytes = static_cast<uint64_t>(map.box[0]) * map.element_bytes;
    uint64_t rows = 1, sectors = 0;
    for (uint32_t d = 1; d < map.rank; d++) rows *= map.box[d];
    row.size_bytes = static_cast<uint32_t>(rows * row_bytes);
    const int64_t column = static_cast<int32_t>(coordinates[0]);
    const int64_t from = std::max<int64_t>(column, 0);
    const int64_t until = std::min<int64_t>(column + map.box[0], map.dims[0]);
    for (uint64_t r = 0; r < rows && from < until; r++) {
        uint64_t rest = r, start = map.base;
        bool inside = true;
        for (uint32_t d = 1; d < map.rank; d++) {
            const int64_t index = static_cast<int32_t>(coordinates[d]) + static_cast<int64_t>(rest % map.box[d]);
            rest /= map.box[d];
            inside = inside && index >= 0 && index < static_cast<int64_t>(map.dims[d]);
            start += static_cast<uint64_t>(index) * map.stride_bytes[d - 1];
        }
        if (!inside) continue;
        const uint64_t first = (start + static_cast<uint64_t>(from) * map.element_bytes) / 32;
        const uint64_t last = (start + static_cast<uint64_t>(until) * map.element_bytes - 1) / 32;
        for (uint64_t sector = first; sector <= last; sector++, sectors++) {
            if (cta.line.size() == static_cast<size_t>(cta.line_start.back()) || cta.line.back() != sector / 4 * 128) {
                cta.line.push_back(sector / 4 * 128);
                cta.line_sectors.push_back(0);
            }
            cta.line_sectors.back() |= static_cast<uint8_t>(1u << (sector & 3));
        }
    }
    row.sectors = static_cast<uint16_t>(std::min<uint64_t>(65535, sectors));
    row.ideal_sectors = row.sectors;
}

inline const Operand& address_of(const Instruction& i, size_t which = 0) {
    for (const Operand& o : i.s)
        if (o.kind == Kind::ADDR && which-- == 0) return o;
    fail(i, "has no address operand");
}

// Reports an address beyond shared memory; the CTA's number in the upper bits is dropped.
[[noreturn]] __attribute__((noinline, cold)) void beyond_shared(const Cta& cta, const Instruction& i, uint64_t offset) {
    const uint64_t reserved = cta.request.arch >= 90 ? 1024 : 0;
    fail(i, "reaches byte " + std::to_string(offset - reserved) + " of shared memory, of which a CTA has " +
                std::to_string(cta.smem.size() - reserved) + " bytes: the launch needs more dynamic shared memory");
}

// SYNCS.ARRIVE of an mbarrier: not if it only expects bytes (A0TR) or completes them (A0TX).
inline bool arrives(const Instruction& i) { return !i.has(MOD_A0T1) && !i.has(MOD_A0TR) && !i.has(MOD_A0TX); }

// LDGSTS.ZFILL: the low bits of its global address give the number of trailing bytes that are zeroed.
inline uint64_t zeros_of(const Instruction& i, uint64_t address) {
    return i.has(MOD_ZFILL) ? address & static_cast<uint64_t>(i.width - 1) : 0;
}

inline uint64_t shared_at(const Cta& cta, const Instruction& i, uint64_t address, int width) {
    const uint64_t offset = address & (SHARED_WINDOW - 1);
    if (offset + static_cast<uint64_t>(width) > cta.smem.size()) beyond_shared(cta, i, offset);
    return offset;
}

// A load of an mbarrier's upper word, whose highest bit is the phase's parity. On sm_80 a wait is a loop
// around this load: a load that would read the same phase again waits for the next phase.
int Warp::poll(uint64_t mbarrier, const Instruction& i) {
    const MBarrier& bar = cta.mbarriers[mbarrier];
    const auto [seen, fresh] = polled.try_emplace(mbarrier, bar.phase);
    if (!fresh && seen->second == bar.phase) {
        at_mbar |= on, blocked |= on;
        return -2;
    }
    seen->second = bar.phase;
    const uint32_t word = static_cast<uint32_t>(bar.phase & 1) << 31;
    marks = NO_MARKS;
    write(at(i.s, 0, i), each([&](int) { return word; }));
    Row row;
    row.kind = MBARRIER_WAIT, row.address = mbarrier, row.amount = bar.phase - 1;
    return cta.add(row);
}

int Warp::memory(const Instruction& i) {
    Row row;
    Wide where;
    Lanes t;
    Access32 a;
    const size_t here = static_cast<size_t>(index);
    auto collect = [&](const Wide& w, uint32_t lanes) {
        a.n = 0;
        for (int l = 0; l < 32; l++)
            if (lanes >> l & 1) a.address[a.n] = w[l], a.lane[a.n++] = l;
        row.size_bytes = static_cast<uint32_t>(a.n * i.width);
    };
    auto locate = [&](const Operand& o, bool global) {
        const Marks before = marks;
        marks = NO_MARKS;
        addresses(o, global, where);
        if (marks[0] & on) cta.data_address[here] = 1;
        if (!global) steered();  // bank conflicts may differ between CTAs
        marks |= before;
        collect(where, on);
    };
    const int words = std::max(1, i.width / 4);
    Opcode op = i.op;
    if (op == OP_SHFL) {
        const Lanes &x = read(at(i.s, 1, i), t);
        Lanes tb, tc;
        const Lanes &lane = read(at(i.s, 2, i), tb), &c = read(at(i.s, 3, i), tc);
        uint32_t valid = 0;
        marks = spread(marks, on);
        const Lanes v = each([&](int l) {
            const uint32_t b = lane[l] & 31, clamp = c[l] & 31, segment = c[l] >> 8 & 31, self = static_cast<uint32_t>(l);
            const uint32_t last = (self & segment) | (clamp & ~segment);
            uint32_t from;
            bool fits;
            if (i.has(MOD_UP)) from = self - b, fits = static_cast<int32_t>(from) >= static_cast<int32_t>(last);
            else if (i.has(MOD_DOWN)) from = self + b, fits = from <= last;
            else if (i.has(MOD_BFLY)) from = self ^ b, fits = from <= last;
            else from = (self & segment) | (b & ~segment), fits = from <= last;
            valid |= static_cast<uint32_t>(fits) << l;
            return x[static_cast<int>(fits ? from & 31 : self)];
        });
        if (!i.pd.empty()) write_predicate(i.pd[0], valid);
        write(i.s[0], v);
        row.kind = SHUFFLE, row.wavefronts = row.ideal_wavefronts = 1, row.size_bytes = static_cast<uint32_t>(4 * __builtin_popcount(on));
        return cta.add(row);
    }
#if EXECUTES
    return execute(i), -1;
#endif
    if (op == OP_MOVM) {
        read(at(i.s, 1, i), t);
        depends_on_data();
        write(i.s[0], each([&](int) { return HALF_ONES; }));
        row.kind = SHUFFLE, row.wavefronts = row.ideal_wavefronts = 1;
        return cta.add(row);
    }
    if (op == OP_LDSM || op == OP_STSM) {
        // Lanes 8 j to 8 j + 7 address the eight rows of matrix j, 16 bytes each.
        locate(address_of(i), false);
        const int matrices = std::max(1, std::min(4, i.count));
        const bool transposed = i.name.find(".MT") != std::string::npos || i.name.find(".T.") != std::string::npos;
        const Marks of_address = marks;
        row.size_bytes = static_cast<uint32_t>(matrices * 128);
        for (int m = 0; m < matrices; m++) {
            uint64_t rows[8];
            for (int r = 0; r < 8; r++) {
                rows[r] = shared_at(cta, i, where[8 * m + r], 16);
                cta.hazards.shared(rows[r], 16, number, op == OP_STSM);
            }
            row.wavefronts = static_cast<uint16_t>(row.wavefronts + busiest_bank(rows, 8, 16));
            row.ideal_wavefronts++;
            if (op == OP_STSM) {
                const Lanes& v = read(i.s.back(), t, m);
                for (int l = 0; l < 32; l++)
                    for (int half = 0; half < 2; half++) {
                        const uint64_t to = transposed ? rows[2 * (l % 4) + half] + 2 * static_cast<uint64_t>(l / 4) : rows[l / 4] + 4 * static_cast<uint64_t>(l % 4) + 2 * static_cast<uint64_t>(half);
                        const uint16_t part = static_cast<uint16_t>(v[l] >> 16 * half);
                        std::memcpy(&cta.smem[to], &part, 2);
                        cta.smem_marks[to / 4] = packed(marks, l);
                    }
                continue;
            }
            Lanes v;
            MarksOfLanes loaded;
            for (int l = 0; l < 32; l++) {
                uint32_t value = 0;
                for (int half = 0; half < 2; half++) {
                    const uint64_t from = transposed ? rows[2 * (l % 4) + half] + 2 * static_cast<uint64_t>(l / 4) : rows[l / 4] + 4 * static_cast<uint64_t>(l % 4) + 2 * static_cast<uint64_t>(half);
                    uint16_t part;
                    std::memcpy(&part, &cta.smem[from], 2);
                    value |= static_cast<uint32_t>(part) << 16 * half;
                    loaded.add(l, cta.smem_marks[from / 4]);
                }
                v[l] = value;
            }
            marks = of_address | loaded.unpacked();
            write(i.s[0], v, m);
        }
        row.kind = op == OP_LDSM ? SHARED_LOAD : SHARED_STORE;
        return cta.add(row);
    }
    const bool generic = op == OP_LD || op == OP_ST || starts(i.name, "ATOM.");
    if (generic) {  // shared memory's window begins at 0, as no instruction has set it
        addresses(address_of(i), true, where);
        const bool shared = where[__builtin_ctz(on)] < SHARED_WINDOW;
        if (op == OP_LD) op = shared ? OP_LDS : OP_LDG;
        else if (op == OP_ST) op = shared ? OP_STS : OP_STG;
        else if (shared) op = OP_ATOMS;
    }
    switch (op) {
    case OP_LDS: {
        locate(address_of(i), generic);
        if (a.n && cta.request.arch < 90 && cta.mbarriers.count(a.address[0] - 4)) return poll(a.address[0] - 4, i);
        count_wavefronts(a, i.width, true, row);
        const Marks of_address = marks;
        uint64_t from[32];
        for (int k = 0; k < a.n; k++) {
            from[k] = shared_at(cta, i, a.address[k], i.width);
            cta.hazards.shared(from[k], i.width, number, false);
        }
        const uint8_t *const bytes = cta.smem.data(), *const kept = cta.smem_marks.data();
        const int width = i.width;
        for (int w = 0; w < words; w++) {
            Lanes v;
            MarksOfLanes loaded;
            for (int k = 0; k < a.n; k++) {
                const uint64_t place = from[k] + 4 * static_cast<uint64_t>(w);
                uint32_t value = 0;
                if (width >= 4) std::memcpy(&value, bytes + place, 4);
                else std::memcpy(&value, bytes + place, static_cast<size_t>(width));
                v[a.lane[k]] = value;
                loaded.add(a.lane[k], kept[place / 4]);
            }
            marks = of_address | loaded.unpacked();
            write(at(i.s, 0, i), extended(i, v), w);
        }
        row.kind = SHARED_LOAD;
        return cta.add(row);
    }
    case OP_STS: {
        locate(address_of(i), generic);
        count_wavefronts(a, i.width, false, row);
        const Marks of_address = marks;
        uint64_t to[32];
        for (int k = 0; k < a.n; k++) {
            to[k] = shared_at(cta, i, a.address[k], i.width);
            cta.hazards.shared(to[k], i.width, number, true);
        }
        for (int w = 0; w < words; w++) {
            marks = of_address;
            const Lanes& v = read(i.s.back(), t, w);
            uint8_t bits;
            const bool alike = all_alike(marks, on, bits);
            for (int k = 0; k < a.n; k++) {
                const uint64_t at = to[k] + 4 * static_cast<uint64_t>(w);
                if (i.width >= 4) std::memcpy(&cta.smem[at], &v.v[a.lane[k]], 4);
                else std::memcpy(&cta.smem[at], &v.v[a.lane[k]], static_cast<size_t>(i.width));
                cta.smem_marks[at / 4] = alike ? bits : packed(marks, a.lane[k]);
            }
        }
        row.kind = SHARED_STORE;
        if (a.n == 1 && i.width == 8 && cta.request.arch < 90) {  // mbarrier.init of sm_80?
            uint32_t low, high;
            std::memcpy(&low, &cta.smem[to[0]], 4);
            std::memcpy(&high, &cta.smem[to[0] + 4], 4);
            const uint32_t needed = 0x80000000u - high;
            if (needed - 1 < 0xfffff && low == 0x40000000u - needed) {
                cta.hazards.unclear = true;
                MBarrier& bar = cta.mbarriers[to[0]] = MBarrier();
                bar.needed = bar.pending = static_cast<int>(needed);
                row.kind = MBARRIER_INIT, row.address = to[0], row.amount = bar.needed;
            }
        }
        return cta.add(row);
    }
    case OP_ATOMS: {
        if (i.has(MOD_ARRIVE)) {  // mbarrier of sm_80
            cta.hazards.unclear = true;
            locate(address_of(i), false);
            const uint64_t address = shared_at(cta, i, a.address[0], 8);
            MBarrier& bar = cta.mbarriers[address];
            row.kind = MBARRIER_ARRIVE, row.address = address, row.amount = a.n, row.size_bytes = 0;
            const uint32_t token = static_cast<uint32_t>(bar.phase & 1) << 31;
            write(at(i.s, 0, i), each([&](int) { return 0u; }));
            write(i.s[0], each([&](int) { return token; }), 1);
            polled[address] = bar.phase;
            cta.arrive(bar, a.n);
            return cta.add(row);
        }
        locate(address_of(i), generic);
        const Lanes& v = read(i.s.back(), t);
        Lanes old{};
        for (int k = 0; k < a.n; k++) {  // one lane after the other
            const int l = a.lane[k];
            const uint64_t to = shared_at(cta, i, a.address[k], 4);
            cta.hazards.shared(to, 4, number, true);
            uint32_t value;
            std::memcpy(&value, &cta.smem[to], 4);
            old[l] = value;
            MarksOfLanes loaded;
            loaded.add(l, cta.smem_marks[to / 4]);
            marks |= loaded.unpacked();
            cta.smem_marks[to / 4] = packed(marks, l);
            const bool s32 = i.has(MOD_S32);
            const bool less = s32 ? static_cast<int32_t>(v[l]) < static_cast<int32_t>(value) : v[l] < value;
            if (i.has(MOD_ADD) || starts(i.name, "ATOMS.POPC.INC")) value += i.has(MOD_ADD) ? v[l] : 1;
            else if (i.has(MOD_MIN)) value = less ? v[l] : value;
            else if (i.has(MOD_MAX)) value = less ? value : v[l];
            else if (i.has(MOD_AND)) value &= v[l];
            else if (i.has(MOD_OR)) value |= v[l];
            else if (i.has(MOD_XOR)) value ^= v[l];
            else if (i.has(MOD_CAS)) { Lanes u; const Lanes& compare_to = read(at(i.s, i.s.size() - 2, i), u); value = value == compare_to[l] ? v[l] : value; }
            else value = v[l];
            std::memcpy(&cta.smem[to], &value, 4);
        }
        if (i.s[0].kind == Kind::REG) write(i.s[0], old);
        // Atomics of lanes on the same word are serialised, in addition to bank conflicts.
        std::array<uint64_t, 32> sorted;
        std::copy(a.address, a.address + a.n, sorted.begin());
        std::sort(sorted.begin(), sorted.begin() + a.n);
        int same = 1, most = 1;
        for (int k = 1; k < a.n; k++) most = std::max(most, same = sorted[static_cast<size_t>(k)] == sorted[static_cast<size_t>(k) - 1] ? same + 1 : 1);
        row.kind = SHARED_ATOMIC, row.ideal_wavefronts = 1;
        row.wavefronts = static_cast<uint16_t>(std::max(most, busiest_bank(a.address, a.n, 4)));
        return cta.add(row);
    }
    case OP_LDG: case OP_ATOMG: {
        locate(address_of(i), true);
        row.kind = op == OP_LDG ? GLOBAL_LOAD : GLOBAL_ATOMIC;
        if (op == OP_ATOMG || i.name.find(".CONSTANT") == std::string::npos) cta.hazards.global(number, op == OP_ATOMG);
        count_sectors(cta, a, i.width, row, false);
        // 1 in the type that the width suggests; an atomic counter's first value is 0.
        const uint32_t value = op == OP_ATOMG ? 0 : i.width == 2 ? HALF_ONES & 0xffff : i.width == 1 ? 1 : ONE;
        const Request& r = cta.request;
        for (int w = 0; w < words; w++) {
            uint32_t known = 0;  // lanes that read a table with known contents
            const Lanes loaded = each([&](int l) {
                uint32_t word = value;
                for (int n = 0; n < 2 && i.width >= 4; n++) {
                    const uint64_t offset = where[l] + 4 * static_cast<uint64_t>(w) - r.known_at[n];
                    if (offset + 4 <= r.known_bytes[n] && offset < r.known_bytes[n]) std::memcpy(&word, r.known[n] + offset, 4), known |= 1u << l;
                }
                return word;
            });
            marks = Marks{FULL & ~known, 0, 0, 0};
            write(i.s[0], loaded, w);
        }
        marks = Marks{FULL, 0, 0, 0};
        for (const Operand& p : i.pd) write_predicate(p, 0);
        return cta.push(row);
    }
    case OP_STG: case OP_RED:
        locate(address_of(i), true);
        row.kind = op == OP_STG ? GLOBAL_STORE : GLOBAL_ATOMIC;
        cta.hazards.global(number, true);
        count_sectors(cta, a, i.width, row, false);
        return cta.push(row);
    case OP_LDL: case OP_STL: {
        locate(address_of(i), false);
        const uint64_t mask = cta.request.local_bytes - 1;
        row.kind = op == OP_LDL ? LOCAL_LOAD : LOCAL_STORE;
        Access32 placed = a;
        for (int k = 0; k < a.n; k++)
            placed.address[k] = (uint64_t{1} << 40) + static_cast<uint64_t>(number) * cta.request.local_bytes + (a.address[k] & mask);
        count_sectors(cta, placed, i.width, row, true);
        const Marks of_address = marks;
        for (int w = 0; w < words; w++) {
            marks = of_address;
            Lanes v{};
            if (op == OP_STL) v = read(i.s.back(), t, w);
            for (int k = 0; k < a.n; k++) {
                const int l = a.lane[k];
                uint8_t* byte = &local[static_cast<size_t>(l) * cta.request.local_bytes + ((a.address[k] + 4 * static_cast<uint64_t>(w)) & mask)];
                const size_t size = static_cast<size_t>(std::min(4, i.width));
                const size_t word = static_cast<size_t>(((a.address[k] + 4 * static_cast<uint64_t>(w)) & mask) / 4);
                if (op == OP_STL) {
                    std::memcpy(byte, &v.v[l], size);
                    local_data[word] = (local_data[word] & ~(1u << l)) | (marks[0] & 1u << l);
                } else {
                    uint32_t value = 0;
                    std::memcpy(&value, byte, size);
                    v[l] = value;
                    marks[0] |= local_data[word] & 1u << l;
                }
            }
            if (op == OP_LDL) write(i.s[0], v, w);
        }
        return cta.push(row);
    }
    case OP_LDGSTS: {
        // A lane whose source predicate is off writes zeros to shared memory.
        Wide target;
        addresses(address_of(i, 0), false, target);
        collect(target, on);
        const Access32 into = a;
        count_wavefronts(into, i.width, false, row);
        const uint32_t loads = i.ps.empty() ? on : on & predicate(i.ps[0]);
        addresses(address_of(i, 1), true, where);
        if (marks[0] & on) cta.data_address[here] = 1;
        for (uint64_t& from : where.v) from -= zeros_of(i, from);
        collect(where, loads);
        if (a.n) count_sectors(cta, a, i.width, row, false);
        for (int k = 0; k < into.n; k++) {
            const uint64_t to = shared_at(cta, i, into.address[k], std::max(4, i.width));
            const bool loaded = loads >> into.lane[k] & 1;
            cta.hazards.shared(to, i.width, number, true);
            if (cta.hazards.wanted) copies.emplace_back(to, i.width);
            for (int w = 0; w < words; w++) {
                const uint32_t value = loaded ? ONE : 0;
                std::memcpy(&cta.smem[to + 4 * static_cast<uint64_t>(w)], &value, 4);
                cta.smem_marks[to / 4 + static_cast<uint64_t>(w)] = loaded;
            }
        }
        row.kind = ASYNC_COPY;
        return cta.push(row);
    }
    default:
        fail(i, "is not supported here");
    }
}
