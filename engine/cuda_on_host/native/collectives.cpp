// Collective operations of a warp or warpgroup: each lane stores a pointer to its operand, and the
// last lane to arrive executes the operation.
namespace coh {

// Waits for lanes that may still arrive: those that are running and are not here yet.
// __activemask() is a snapshot by definition, so the wait for a lane that polls is limited.
uint32_t active_lanes(Site site) {
    constexpr int MAX_TURNS = 64;
    Worker *w = worker;
    Fiber *me = current_fiber();
    Fiber *lanes = w->fibers + me->warp * WARP;
    const unsigned count = std::min(WARP, w->num_threads - me->warp * WARP);
    me->asks_for_active = site;
    me->active = 0;
    auto others_may_come = [&] {
        return std::any_of(lanes, lanes + count, [&](const Fiber &lane) {
            return &lane != me && lane.is_ready && lane.asks_for_active != site;
        });
    };
    for (int turn = 0; turn < MAX_TURNS && !me->active && others_may_come(); turn++) yield();
    if (!me->active) {  // the first lane that sees all of them sets the mask for all
        uint32_t mask = 0;
        for (unsigned i = 0; i < count; i++) {
            if (lanes[i].asks_for_active == site) mask |= 1u << i;
        }
        for (unsigned i = 0; i < count; i++) {
            if (!(mask >> i & 1)) continue;
            lanes[i].active = mask;
            lanes[i].asks_for_active = Site{};
        }
    }
    return me->active;
}

void warp_collective(uint32_t mask, Collective operation, void *operand, Site site,
                     Alignment alignment) {
    Worker *w = worker;
    Fiber *me = current_fiber();
    const uint32_t bit = 1u << me->lane;
    if ((me->warp + 1) * WARP > w->num_threads) {  // the last, partial warp of a CTA
        mask &= (1u << (w->num_threads % WARP)) - 1;
    }
    if (!(mask & bit)) {
        fail_at("bad warp mask", site, "lane %u executes a warp operation whose mask %08x does not "
                "name it", me->lane, mask);
    }
    WarpOperation *slots = &w->warp_operations[me->warp * WARP_OPERATIONS];
    uint32_t &in_use = w->warp_operations_in_use[me->warp];
    WarpOperation *op = nullptr;
    for (uint32_t rest = in_use; rest && !op; rest &= rest - 1) {
        WarpOperation &other = slots[__builtin_ctz(rest)];
        // The operation to join: it waits for this lane, and this lane needs one that waits there.
        // Others are independent, as tiles of a warp are.
        if ((other.mask & bit) && (other.arrived & mask)) op = &other;
    }
    if (!op) {
        op = &slots[__builtin_ctz(~in_use)];  // one is free: each used one has a waiting lane
        in_use |= 1u << (op - slots);
        op->in_use = true;
        op->mask = mask;
        op->arrived = 0;
        op->operation = operation;
        op->site = site;
    } else if (op->operation != operation || op->mask != mask ||
               (alignment == Alignment::same_line && op->site != site)) {
        fail_at_two("warp divergence", site, op->site,
                    "lane %u is here (mask %08x) while other lanes of its warp wait in {other} "
                    "(mask %08x)",
                    me->lane, mask, op->mask);
    }
    op->operand[me->lane] = operand;
    op->fiber[me->lane] = me;
    op->arrived |= bit;
    if (op->arrived != op->mask) {
        run_others(w, me);
        return;
    }
    operation(op->operand, mask);
    op->in_use = false;
    in_use &= ~(1u << (op - slots));
    note_progress(w);
    const bool everyone = w->settings->schedule == random_order;
    for (unsigned lane = 0; lane < WARP; lane++) {
        if ((mask >> lane & 1) && (op->fiber[lane] != me || everyone)) {
            make_ready(w, op->fiber[lane]);
        }
    }
    if (everyone) run_others(w, me);
}

void group_collective(int first_warp, int warps, Collective operation, void *operand, Site site) {
    Worker *w = worker;
    Fiber *me = current_fiber();
    const int threads = warps * (int)WARP;
    if (first_warp * (int)WARP + threads > (int)w->num_threads) {
        fail_at("bad warpgroup", site, "the CTA's %u threads are no full warpgroup here",
                w->num_threads);
    }
    GroupOperation &op = w->group_operations[first_warp];
    if (!op.in_use) {
        op.in_use = true;
        op.expected = threads;
        op.arrived = 0;
        op.operation = operation;
        op.site = site;
        op.operand.assign(threads, nullptr);
        op.waiting.clear();
    } else if (op.operation != operation || op.site != site) {
        fail_at_two("warpgroup divergence", site, op.site,
                    "this thread is here while %d other thread(s) of its warpgroup wait in {other}",
                    op.arrived);
    }
    op.operand[me->linear - first_warp * WARP] = operand;
    if (++op.arrived < threads) {
        op.waiting.push_back(me);
        run_others(w, me);
        return;
    }
    operation(op.operand.data(), 0);
    op.in_use = false;
    note_progress(w);
    for (Fiber *fiber : op.waiting) make_ready(w, fiber);
}

struct ShuffleOperand {
    uint64_t value;
    int source;
};
template <Shuffle MODE>  // one function per mode, so that lanes of different modes do not match
static void shuffle_lanes(void **operands, uint32_t mask) {
    constexpr uint64_t NAN_BITS = 0x7fc0dead7fc0deadull;
    uint64_t value[WARP];
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (mask >> lane & 1) value[lane] = ((ShuffleOperand *)operands[lane])->value;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1)) continue;
        ShuffleOperand *operand = (ShuffleOperand *)operands[lane];
        const int source = operand->source & 31;
        operand->value = (mask >> source & 1) ? value[source] : NAN_BITS;
    }
}
uint64_t shuffle(Shuffle mode, uint32_t mask, uint64_t v, int source, Site site) {
    constexpr Collective OPERATIONS[] = {shuffle_lanes<Shuffle::up>, shuffle_lanes<Shuffle::down>,
                                         shuffle_lanes<Shuffle::bfly>, shuffle_lanes<Shuffle::idx>};
    ShuffleOperand operand{v, source};
    warp_collective(mask, OPERATIONS[(int)mode], &operand, site);
    return operand.value;
}

struct GatherOperand {
    uint64_t value, *values;
    uint32_t present;
};
static void gather_lanes(void **operands, uint32_t mask) {
    for (unsigned to = 0; to < WARP; to++) {
        if (!(mask >> to & 1)) continue;
        GatherOperand &operand = *(GatherOperand *)operands[to];
        operand.present = mask;
        for (unsigned from = 0; from < WARP; from++) {
            if (mask >> from & 1) operand.values[from] = ((GatherOperand *)operands[from])->value;
        }
    }
}
uint32_t gather(uint32_t mask, uint64_t v, uint64_t *values, Site site) {
    GatherOperand operand{v, values, 0};
    warp_collective(mask, gather_lanes, &operand, site);
    return operand.present;
}

static void ballot_lanes(void **operands, uint32_t mask) {
    uint32_t votes = 0;
    for (unsigned lane = 0; lane < WARP; lane++) {
        if ((mask >> lane & 1) && *(uint32_t *)operands[lane]) votes |= 1u << lane;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (mask >> lane & 1) *(uint32_t *)operands[lane] = votes;
    }
}
uint32_t ballot(uint32_t mask, int predicate, Site site) {
    uint32_t vote = predicate != 0;
    warp_collective(mask, ballot_lanes, &vote, site);
    return vote;
}

// __syncwarp orders memory among its lanes; shuffles and votes do not.
static void sync_lanes(void **, uint32_t mask) {
    Worker *w = worker;
    if (!w->settings->check) return;
    const unsigned first = self->warp * WARP;
    Handover handover;
    reset(w, handover);
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (mask >> lane & 1) hand_over(w, handover, first + lane);
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        if (!(mask >> lane & 1)) continue;
        take_over(w, handover, first + lane);
        advance_clock(w, first + lane);
    }
}
void warp_sync(uint32_t mask, Site site) { warp_collective(mask, sync_lanes, nullptr, site); }

}  // namespace coh
