// Branches, convergence, barriers, asynchronous groups; one step of a warp. Included by
// emulator.cpp.

// Returns the row of a synchronising instruction, -1 for none. `moves` is false while its lanes must wait.
int Warp::barriers(const Instruction& i, bool& moves) {
    Row row;
    Wide where;
    Lanes t;
    auto number = [&](size_t n, uint32_t otherwise) {
        if (n >= i.s.size()) return otherwise;
        return read(i.s[n], t)[__builtin_ctz(on)];
    };
#if EXECUTES
    if (is_asynchronous(i)) return asynchronous(i, moves), moves ? -1 : -2;
#endif
    switch (i.op) {
    case OP_BAR: {
        const uint32_t b = number(0, 0) & 15, threads = number(1, 0);
        Barrier& bar = cta.bars[b];
        bar.expected = static_cast<int>(threads);
        bar.arrived += __builtin_popcount(on);
        if (i.has(MOD_RED) && !(i.pd.empty() && i.ps.empty())) {
            bar.votes = true;
            const uint32_t value = predicate(i.pd.empty() ? i.ps[0] : i.pd[0]) & on;
            bar.any |= value != 0, bar.every &= value == on, bar.count += __builtin_popcount(value);
        }
#if EXECUTES
        if (Races* races = looked_for()) races->release(self(), bar.released);
#endif
        row.kind = i.has(MOD_ARV) ? BARRIER_ARRIVE : BARRIER;
        row.address = b;
        row.amount = static_cast<int32_t>(threads ? threads : static_cast<uint32_t>(cta.living()));
        if (!i.has(MOD_ARV)) at_bar[b] |= on, blocked |= on, moves = false;
        return cta.add(row);
    }
    case OP_B2R:
        if (i.has(MOD_RESULT)) {
            for (const Operand& p : i.raw)
                if (p.kind == Kind::PRED) write_predicate(p, bar_result >> 1 & 1 ? FULL : 0);
            if (!i.s.empty()) write(i.s[0], each([&](int) { return static_cast<uint32_t>(bar_result >> 3); }));
        }
        return -1;
    case OP_LDGDEPBAR:
        copy_groups.push_back(copies.size());
        row.kind = ASYNC_COMMIT;
        return cta.add(row);
    case OP_DEPBAR:
        if (i.s.empty()) return -1;
        row.kind = ASYNC_WAIT, row.amount = static_cast<int32_t>(i.s.back().kind == Kind::IMM ? i.s.back().imm : 0);
        copies_land(row.amount);
        return cta.add(row);
    case OP_UTMACMDFLUSH:
        row.kind = ASYNC_COMMIT;
        return cta.add(row);
    case OP_WARPGROUP:
        if (!i.has(MOD_DEPBAR)) return -1;
        row.kind = TENSOR_WAIT, row.amount = static_cast<int32_t>(i.s.empty() || i.s.back().kind != Kind::IMM ? 0 : i.s.back().imm);
        return cta.add(row);
    case OP_SETMAXREG:
        for (const Operand& p : i.pd) write_predicate(p, FULL);  // the registers are available: no retry
        row.kind = SET_REGISTERS, row.amount = static_cast<int32_t>(number(i.s.size() - 1, 0));
        return cta.add(row);
    case OP_HGMMA: {
        cta.hazards.unclear = true;
        // m64nNkK: N / 2 accumulator registers in FP32, half of that in FP16; B, and A unless it
        // is in registers, come from shared memory.
        const int columns = std::min(256, std::max(8, i.count));
        const bool half = i.has(MOD_F16) && !i.has(MOD_F32);
        depends_on_data();
        for (int w = 0; w < columns / (half ? 4 : 2); w++) write(at(i.s, 0, i), each([&](int) { return half ? HALF_ONES : ONE; }), w);
        const bool a_in_registers = i.s.size() > 1 && i.s[1].kind == Kind::REG;
        row.kind = TENSOR, row.size_bytes = static_cast<uint32_t>((columns + (a_in_registers ? 0 : 64)) * 32);
        for (const Operand& o : i.raw) row.amount |= o.text == "gsb0";
        return cta.add(row);
    }
    case OP_ARRIVES:  // cp.async.mbarrier.arrive: copies complete at once here
    case OP_SYNCS: {
        cta.hazards.unclear = true;
        if (i.has(MOD_CCTL)) return -1;
        const Operand& o = address_of(i);
        addresses(o, false, where);
        const int first = __builtin_ctz(on);
        const uint64_t address = shared_at(cta, i, where[first], 8);
        row.address = address;
        MBarrier& bar = cta.mbarriers[address];
        if (i.has(MOD_EXCH)) {  // mbarrier.init writes 2^20 minus the count, shifted left by 1
            const Operand& value = i.s.back();
            Wide bits;
            read_wide(value, bits);
            const int needed = static_cast<int>((0x100000 - (bits[first] >> 1 & 0xfffff)) & 0xfffff);
            bar = MBarrier();
            bar.needed = bar.pending = std::max(1, needed);
            row.kind = MBARRIER_INIT, row.amount = bar.needed;
            return cta.add(row);
        }
        if (i.has(MOD_PHASECHK)) {
            const uint32_t parity = read(i.s.back(), t)[first] >> 31;
            if (static_cast<uint32_t>(bar.phase & 1) == parity && !i.has(MOD_CLEAR)) {
                at_mbar |= on, blocked |= on, moves = false;
                return -2;  // nothing is recorded: it is retried when a phase ends
            }
            if (!i.pd.empty()) write_predicate(i.pd[0], FULL);
            row.kind = MBARRIER_WAIT, row.amount = bar.phase - 1;
            return cta.add(row);
        }
        // Each lane arrives; with a transaction count it also expects so many bytes.
        const bool expects = i.op == OP_SYNCS && !i.s.empty() && i.s.back().kind != Kind::ADDR && !(i.s.back().reg == RZ && i.s.back().kind == Kind::REG);
        row.kind = MBARRIER_ARRIVE;
        row.amount = arrives(i) ? __builtin_popcount(on) : 0;
        if (expects && !i.has(MOD_A0TX)) row.size_bytes = read(i.s.back(), t)[first] & 0xfffff;
        // The token: the parity of the phase of this arrival, as PHASECHK reads it.
        const uint32_t token = static_cast<uint32_t>(bar.phase & 1) << 31;
        if (i.s.size() > 1 && i.s[0].kind == Kind::REG) {
            write(i.s[0], Lanes{});
            if (i.s[0].reg != RZ) write(i.s[0], each([&](int) { return token; }), 1);
        }
        if (row.amount) cta.arrive(bar, row.amount);
        if (!row.size_bytes) return cta.add(row);
        const int own_row = cta.push(row);
        cta.expected_bytes[address].push_back({row.size_bytes, own_row});
        return own_row;
    }
    case OP_UTMALDG: case OP_UBLKCP: {
        cta.hazards.unclear = true;
        const Operand& o = address_of(i);
        row.kind = BULK_LOAD;
        if (o.ureg >= 0) {
            row.address = U[o.ureg + 1] & (SHARED_WINDOW - 1);
            cta.begin_bulk_load(row.address);
        }
        // The size of a bulk copy is in units of 16 bytes; the upper half of a multicast's is the mask of
        // receiving CTAs. It is assumed that this CTA receives as much from others as it sends.
        const uint32_t last = i.s.size() > 2 ? number(2, 0) : 0;
        const bool multicast = i.has(MOD_MULTICAST);
        if (i.op == OP_UBLKCP) row.size_bytes = (last & (multicast ? 0xffff : 0xfffff)) * 16;
        if (multicast) row.amount = __builtin_popcount(last >> 16);
        row.amount = std::max(1, row.amount);
        if (i.op == OP_UTMALDG && o.ureg >= 0) touch_box(i, row, U + o.ureg + 2);
        return cta.push(row);
    }
    case OP_UTMASTG: {
        cta.hazards.unclear = true;
        row.kind = BULK_STORE;
        const Operand& o = address_of(i);
        if (o.ureg >= 0) touch_box(i, row, U + o.ureg + 1);
        return cta.push(row);
    }
    default:
        return -1;
    }
}

// Memory that a TMA copy accesses, if its tensor map is a parameter of the launch or in a table.
void Warp::touch_box(const Instruction& i, Row& row, const uint32_t* coordinates) {
    const Operand& o = address_of(i, 1);
    const Request& request = cta.request;
    if (o.ureg < 0) return;
    const uint64_t at = U[o.ureg] | static_cast<uint64_t>(U[o.ureg + 1]) << 32;
    TensorMap map{};
    const auto read_from = [&](const uint8_t* bytes, uint64_t count, uint64_t offset) {
        if (bytes && count >= sizeof map && offset <= count - sizeof map) std::memcpy(&map, bytes + offset, sizeof map);
    };
    read_from(request.constants[0], static_cast<uint64_t>(std::max(request.constant_bytes[0], 0)), at);
    for (int n = 0; n < 2; n++) read_from(request.known[n], request.known_bytes[n], at - request.known_at[n]);
    if (map.magic == TENSOR_MAP_MAGIC && is_possible(map)) count_box(cta, map, coordinates, row);
}

void Warp::step(const Instruction& i, uint32_t active, int here) {
    index = here;
    marks = NO_MARKS, on = active;
    Marks guarded = NO_MARKS;
    if (i.guard != PT || i.guard_not) {
        const uint32_t guard = i.guard_uniform ? UP[i.guard] : P[i.guard];
        const uint32_t mask = i.guard_not ? ~guard : guard;
        marks = (i.guard_uniform ? upmarks : pmarks)[i.guard] & active;
        guarded = marks;
        on = active & mask;
    }
    bool decides = marks[0];  // whether the predicate depends on loaded data
    const auto barrier_of = [&]() -> int {
        const Operand& o = at(i.raw, 0, i);
        if (o.kind != Kind::BREG) fail(i, "has an operand form that is not supported here");
        return o.reg;
    };
    int row = -1, to = here + 1;
    uint32_t jumps = 0;
    bool moves = true;
    auto indirect = [&](int64_t address) {
        const auto& index_of = cta.request.code->index_of;
        const auto it = index_of.find(address);
        if (it == index_of.end()) fail(i, "jumps to an address that is not an instruction of this code");
        return it->second;
    };
    if (REAL && on && !i.unknown.empty()) fail(i, "has the modifier " + i.unknown + ", which is not supported here");
    switch (i.op) {
    case OP_NOTHING: case OP_TRAP:
        // Lanes with the same mask execute the next collective together, those with another mask afterwards.
        if (i.has(MOD_EXCLUSIVE) && on) {
            Lanes t;
            const Lanes& mask = read(at(i.s, 0, i), t);
            const uint32_t of_first = mask[__builtin_ctz(on)];
            exclusive = mask_of([&](int l) { return on >> l & 1 && mask[l] == of_first; });
            active &= ~on | exclusive;
        }
#if EXECUTES
        if (on) nothing(i, moves);
#endif
        break;
    case OP_EXIT:
        alive &= ~on;
        break;
    case OP_BRA: case OP_CALL: {
        jumps = on;
        if (i.has(MOD_DIV)) {  // taken if not all lanes are active
            Lanes t;
            // Before sm_80 it has no mask.
            const bool masked = !i.s.empty() && i.s[0].kind != Kind::TEXT;
            const uint32_t whole = masked ? integer(i.s[0], t)[__builtin_ctz(active)] : FULL;
            jumps = active == whole ? 0 : on;
        } else if (!i.pd.empty()) {
            jumps &= predicate(i.pd[0]);
            marks &= active;
            decides |= marks[0] != 0;
            steered();
        }
        if (i.target < 0 && jumps) fail(i, "jumps to an address in a register, which is not supported here");
        to = i.target;
        break;
    }
    case OP_RET: case OP_BRX: {
        if (!on) break;
        Lanes t;
        const Operand& o = at(i.s, 0, i);
        // "R4 `(k)" returns to an address in the entry; "R4 -0x610" branches from the next one.
        const size_t space = o.text.find(' ');
        const Operand base = parse_operand(o.text.substr(0, space));
        const bool relative = i.op == OP_BRX;
        const size_t number = space == std::string::npos ? space : o.text.find_first_not_of(' ', space);
        const int64_t offset = number == std::string::npos ? 0 : parse_integer(o.text.substr(number));
        const uint64_t extra = relative ? static_cast<uint64_t>(i.address) + 16 + static_cast<uint64_t>(offset) : 0;
        const Lanes& address = read(base, t);
        marks &= active;
        decides |= marks[0] != 0;
        steered();
        for (int l = 0; l < 32; l++)
            if (active >> l & 1) pc[l] = on >> l & 1 ? indirect(static_cast<int64_t>(static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(address[l]))) + extra)) : here + 1;
        moves = false;
        break;
    }
    case OP_BSSY:
        B[barrier_of()] = active;
        break;
    case OP_BSYNC: {
        const int b = barrier_of();
        for (int l = 0; l < 32; l++)
            if (active >> l & 1 && !(on >> l & 1)) pc[l]++;
        at_sync[b] |= on, blocked |= on, moves = false;
        break;
    }
    case OP_BREAK:
        for (const Operand& o : i.raw)
            if (o.kind == Kind::BREG) B[o.reg] &= ~on;
        break;
    case OP_BMOV:
        if (i.raw.size() > 1 && i.raw[0].kind == Kind::BREG) {
            Lanes t;
            if (on) B[i.raw[0].reg] = read(i.raw[1], t)[__builtin_ctz(on)];
        } else if (i.raw.size() > 1 && i.raw[1].kind == Kind::BREG) {
            const uint32_t lanes = B[i.raw[1].reg];
            write(i.raw[0], each([&](int) { return lanes; }));
            if (i.has(MOD_CLEAR)) B[i.raw[1].reg] = 0;
        }
        break;
    case OP_LDS: case OP_STS: case OP_LDSM: case OP_STSM: case OP_ATOMS: case OP_LDG: case OP_STG: case OP_LD:
    case OP_ST: case OP_LDL: case OP_STL: case OP_ATOMG: case OP_RED: case OP_LDGSTS: case OP_SHFL: case OP_MOVM:
        if (on) row = memory(i);
        break;
    case OP_BAR: case OP_B2R: case OP_LDGDEPBAR: case OP_DEPBAR: case OP_UTMACMDFLUSH: case OP_WARPGROUP:
    case OP_SETMAXREG: case OP_HGMMA: case OP_ARRIVES: case OP_SYNCS: case OP_UTMALDG: case OP_UBLKCP: case OP_UTMASTG:
        if (on) row = barriers(i, moves);
        break;
    default:
        if (on) arithmetic(i);
    }
    if (row == -2) return;
    if (i.op == OP_REDUX || i.op == OP_MATCH || i.op == OP_VOTE || i.op == OP_SHFL || i.op == OP_RET) exclusive = 0;
    const bool steers = i.op >= OP_LDS && i.op <= OP_BMOV;  // all except arithmetic
    if (!REAL && decides && steers) cta.data_branch[static_cast<size_t>(here)] = 1;
    if (!REAL && steers) {
        marks = guarded;
        steered();
    }
    if (moves)
        for (int l = 0; l < 32; l++)
            if (active >> l & 1) pc[l] = jumps >> l & 1 ? to : here + 1;
#if !EXECUTES
    // Records the executed instruction, and adds the row's columns to the instruction's totals.
    const int lanes = __builtin_popcount(on);
    int64_t* total = &cta.totals[static_cast<size_t>(here) * 8];
    total[0]++, total[1] += lanes;
    if (row >= 0) {
        const Row& r = cta.rows[static_cast<size_t>(row)];
        total[2] += r.wavefronts, total[3] += r.ideal_wavefronts, total[4] += r.sectors, total[5] += r.ideal_sectors;
        total[6] += r.size_bytes;
        total[7]++;
        if (cta.request.probe_site && cta.probed(here, row)) throw std::runtime_error("PROBED");
    }
    if (cta.request.keep_trace) {
        trace.instruction.push_back(here);
        trace.lanes.push_back(static_cast<uint8_t>(lanes));
        trace.access.push_back(row);
    } else if (row >= 0 && static_cast<size_t>(row) + 1 == cta.rows.size() && cta.line.size() > (1u << 20)) {
        cta.forget_rows();
    }
#endif
    if (i.op == OP_BSYNC) sync(barrier_of());
    if (i.op == OP_BREAK)
        for (const Operand& o : i.raw)
            if (o.kind == Kind::BREG) sync(o.reg);
    if (i.op == OP_EXIT && on) {
        for (int b = 0; b < 16; b++) sync(b);
#if EXECUTES
        leave();
#endif
        cta.release_bars();
    }
    if (i.op == OP_BAR) cta.release_bars();
}

bool Warp::run() {
    bool any = false;
    for (;;) {
        uint32_t ready = alive & ~blocked;
        if (!ready) return any;
        if (exclusive &= ready) ready = exclusive;
        if (REAL && cta.steps >= turn_ends) return true;
        any = true;
        // The lanes with the lowest address run first, so that they reconverge with the others.
        int here = pc[__builtin_ctz(ready)];
        const auto lanes_here = [&] {
            uint32_t lanes = 0;
            for (int l = 0; l < 32; l++) lanes |= static_cast<uint32_t>(pc[l] == here) << l;
            return lanes & ready;
        };
        uint32_t active = lanes_here();
        if (active != ready) {
            for (int l = 0; l < 32; l++) here = ready >> l & 1 && pc[l] < here ? pc[l] : here;
            active = lanes_here();
        }
#if EXECUTES
        if (go_straight(here, active, ready)) continue;
#endif
        if (here >= static_cast<int>(cta.code.size())) throw std::runtime_error("the code runs past its last instruction");
        if (++cta.steps > cta.request.max_steps)
            throw std::runtime_error("LIMIT");
        step(cta.code[static_cast<size_t>(here)], active, here);
    }
}
