// Asynchronous groups, mbarriers and clusters. Included by emulator.cpp.

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
