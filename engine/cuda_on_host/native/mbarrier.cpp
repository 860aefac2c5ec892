// mbarrier: a phase completes when all expected arrivals and bytes have arrived.
namespace coh {

void reset_hopper(Worker *w) {
    if (!w->hopper) return;
    HopperState &state = *w->hopper;
    state.mbarriers.clear();
    state.stores.clear();
    state.store_group_sizes.clear();
    state.warpgroups.clear();
    state.registers = RegisterPool();
    state.last_waits.clear();
    state.landed.clear();
}

static void check_mbarrier_address(const void *pointer, Site site) {
    const uint32_t address = shared_address(pointer, site);
    if (address % 8) {
        fail_at("misaligned address", site, "mbarrier at shared address %u needs 8-byte alignment",
                address);
    }
}

// The mbarrier's offset in its CTA's window.
static uint32_t offset_of(const void *mbarrier) {
    return (uint32_t)((const char *)mbarrier - owner_of(mbarrier)->window);
}

static Mbarrier *find_mbarrier(const void *pointer) {
    const uint32_t offset = offset_of(pointer);
    for (Mbarrier &m : hopper_of(owner_of(pointer)).mbarriers) {
        if (m.offset == offset) return &m;
    }
    return nullptr;
}

// Every use counts as a read of the word for the race detector, which orders it after the
// initialisation.
static Mbarrier &use_mbarrier(void *pointer, Site site) {
    check_mbarrier_address(pointer, site);
    Mbarrier *mbarrier = find_mbarrier(pointer);
    if (!mbarrier) {
        char where[160];
        describe_shared(pointer, where, sizeof where);
        fail_at("mbarrier not initialised", site, "no mbarrier was initialised at %s", where);
    }
    check_access(pointer, 8, AccessKind::read, site);
    return *mbarrier;
}

void mbarrier_init(void *pointer, int arrivals, Site site) {
    Worker *w = worker;
    check_mbarrier_address(pointer, site);
    check_access(pointer, 8, AccessKind::write, site);
    if (const Mbarrier *earlier = find_mbarrier(pointer)) {
        fail_at_two("mbarrier initialised twice", site, earlier->site,
                    "this mbarrier was initialised in {other}");
    }
    if (arrivals < 1) fail_at("bad mbarrier", site, "it expects %d arrivals", arrivals);
    memset(pointer, 0, 8);
    Mbarrier mbarrier{};
    mbarrier.offset = offset_of(pointer);
    mbarrier.owner = w;
    mbarrier.arrivals = mbarrier.arrivals_missing = arrivals;
    mbarrier.site = site;
    mbarrier.thread = self->linear;
    if (w->settings->check) {
        mbarrier.clock = current_clock();
        reset(w, mbarrier.handover);
        reset(w, mbarrier.phase_handover);
    }
    hopper().mbarriers.push_back(mbarrier);
}

void mbarrier_init_fence() {
    thread_fence(Scope::gpu, Order::release);
    if (!checking()) return;
    current_fiber()->mbarrier_fence_clock = current_clock();
    advance_clock(worker, self->linear);
}

// Copies complete through the async proxy, which sees the initialisation only after a fence of the
// initialising thread, or (after a barrier) after a proxy fence of the issuing thread.
void check_mbarrier_fence(const Mbarrier &mbarrier, Site site) {
    const Fiber &by = mbarrier.owner->fibers[mbarrier.thread];
    if (mbarrier.clock <= by.mbarrier_fence_clock || mbarrier.clock <= by.proxy_fence_clock ||
        mbarrier.clock <= current_fiber()->proxy_fence_floor) {
        return;
    }
    fail_at_two("mbarrier fence missing", site, mbarrier.site, "the copy completes on the mbarrier "
                "initialised at {other}, and that thread executed no fence.mbarrier_init (or "
                "fence.proxy.async) since");
}

void complete_phase_if_due(Mbarrier &mbarrier) {
    if (mbarrier.arrivals_missing > 0 || mbarrier.bytes_missing != 0) return;
    Worker *w = mbarrier.owner;
    mbarrier.phase ^= 1;
    mbarrier.completed++;
    mbarrier.arrivals_missing = mbarrier.arrivals;
    note_progress(w);
    if (w->settings->check) mbarrier.phase_handover = mbarrier.handover;
    auto still_waits = [&](const MbarrierWaiter &waiter) {
        if (waiter.parity == mbarrier.phase) return true;
        if (w->settings->check) {
            take_over(w, mbarrier.phase_handover, waiter.fiber->linear);
            note_wait(mbarrier, waiter.fiber, waiter.site);
        }
        *waiter.completed = true;
        make_ready(w, waiter.fiber);
        return false;
    };
    auto &waiting = mbarrier.waiting;
    waiting.erase(std::stable_partition(waiting.begin(), waiting.end(), still_waits),
                  waiting.end());
}

// Hands the running thread's order to the threads of the mbarrier's CTA, which wait for it.
static void hand_over_to(Mbarrier &mbarrier) {
    Worker *w = worker;
    if (mbarrier.owner == w) return hand_over(w, mbarrier.handover, self->linear);
    note_for_release(w, Scope::gpu);
    mbarrier.owner->uses_fences = true;
    KnownCtas &known = mbarrier.handover.order.acquired;
    known = joined(known, w->orders[self->linear].fenced);
}

// Requires that the last phase's completion happened before this arrival. Otherwise, in another run
// the arrival may count in that phase, instead of a missing thread's. A thread that arrives once
// per phase satisfies this: it waited for the previous phase, or for a thread that did.
static void require_known_phase(Worker *w, const Mbarrier &mbarrier, Site site) {
    if (w->cluster || !mbarrier.completed_by.file) return;
    const std::vector<uint32_t> &arrived = mbarrier.phase_handover.clock;
    auto is_known_to = [&](unsigned thread) {
        const uint32_t *known = clocks_of(w, thread);
        for (unsigned t = 0; t < w->num_threads; t++) {
            if (arrived[t] > std::max(known[t], w->floor_clock)) return false;
        }
        return true;
    };
    if (is_known_to(self->linear)) return;
    // Lanes may have informed each other by a shuffle or a vote, which orders no memory.
    const unsigned first = self->linear / WARP * WARP;
    for (unsigned t = first; t < std::min(first + WARP, w->num_threads); t++) {
        if (is_known_to(t)) return;
    }
    fail_at_two("too many mbarrier arrivals", site, mbarrier.completed_by,
                "nothing orders this arrival after the last phase, which {other} completed: it may "
                "come before and complete that phase in the place of another thread. The mbarrier "
                "of line %d was initialised for %d arrivals a phase",
                mbarrier.site.line, mbarrier.arrivals);
}

uint64_t mbarrier_arrive(void *pointer, int count, int transaction_bytes, Site site) {
    Worker *w = worker;
    Mbarrier &mbarrier = use_mbarrier(pointer, site);
    if (mbarrier.arrivals_missing < count) {
        fail_at_two("too many mbarrier arrivals", site, mbarrier.site,
                    "%d arrivals and %d of the phase's %d are missing; it was initialised in "
                    "{other}", count, mbarrier.arrivals_missing, mbarrier.arrivals);
    }
    if (w->settings->check) require_known_phase(w, mbarrier, site);
    const uint64_t state = (uint64_t)mbarrier.phase;
    mbarrier.last_arrival = MbarrierUse{current_fiber(), site};
    mbarrier.arrivals_missing -= count;
    mbarrier.bytes_missing += transaction_bytes;
    if (w->settings->check) {
        hand_over_to(mbarrier);
        advance_clock(w, self->linear);
    }
    complete_phase_if_due(mbarrier);
    if (state != (uint64_t)mbarrier.phase) mbarrier.completed_by = site;
    return state;
}

void mbarrier_expect(void *pointer, int transaction_bytes, Site site) {
    Mbarrier &mbarrier = use_mbarrier(pointer, site);
    mbarrier.bytes_missing += transaction_bytes;
    complete_phase_if_due(mbarrier);
}

void mbarrier_invalidate(void *pointer, Site site) {
    const uint32_t offset = use_mbarrier(pointer, site).offset;
    auto &all = hopper().mbarriers;
    all.erase(std::find_if(all.begin(), all.end(),
                           [&](const Mbarrier &m) { return m.offset == offset; }));
}

void mbarrier_arrive_after_copies(void *pointer, bool counts, Site site) {
    Fiber *me = current_fiber();
    me->copies_in_group.clear();
    land_copies(me, me->copies.size());  // a copy may complete at any time
    if (counts) {
        mbarrier_arrive(pointer, 1, 0, site);
    } else {
        use_mbarrier(pointer, site);  // expects one more arrival, which arrives at once
    }
}

static bool is_complete(Mbarrier &mbarrier, int parity) {
    if (mbarrier.phase == parity && mbarrier.arrivals_missing == 0) land_tiles(mbarrier);
    return mbarrier.phase != parity;
}

bool mbarrier_try_wait(void *pointer, int parity, Site site) {
    Worker *w = worker;
    Fiber *me = current_fiber();
    Mbarrier &mbarrier = use_mbarrier(pointer, site);
    parity &= 1;
    if (is_complete(mbarrier, parity)) {
        if (w->settings->check) {
            take_over(w, mbarrier.phase_handover, me->linear);
            note_wait(mbarrier, me, site);
        }
        return true;
    }
    bool completed = false;
    mbarrier.waiting.push_back(MbarrierWaiter{me, parity, &completed, site});
    run_others(w, me);
    return completed;
}

// Visits the mbarriers of all CTAs of the cluster.
template <class Visit>
static void each_mbarrier(Worker *w, Visit visit) {
    each_of_cluster(w, [&](Worker *of) {
        if (!of->hopper) return;
        for (Mbarrier &mbarrier : of->hopper->mbarriers) visit(mbarrier);
    });
}

// No thread can run: resumes threads in try_wait, as the hardware does after its time limit. They
// may do other work and wait again; if nothing changes repeatedly, it is a deadlock.
bool end_try_waits(Worker *w) {
    constexpr uint64_t MAX_TURNS = 1000;
    if (++w->leader->turns_without_progress > MAX_TURNS) return false;
    bool any = false;
    each_mbarrier(w, [&](Mbarrier &mbarrier) {
        for (const MbarrierWaiter &waiter : mbarrier.waiting) {
            make_ready(mbarrier.owner, waiter.fiber);
        }
        any = any || !mbarrier.waiting.empty();
        mbarrier.waiting.clear();
    });
    return any;
}

// Completes copies as late as possible: when a thread waits for them and no other thread can run.
bool land_waited_copies(Worker *w) {
    bool any = false;
    each_mbarrier(w, [&](Mbarrier &mbarrier) {
        if (!mbarrier.waiting.empty() && !mbarrier.arrivals_missing) land_tiles(mbarrier);
        any = any || mbarrier.owner->num_ready > 0;
    });
    return any;
}

// Warns, when a CTA has ended, of phases that have arrivals but did not complete: fewer threads
// arrived than the mbarrier was initialised for.
void warn_of_open_phases(Worker *w) {
    if (!w->hopper) return;
    for (const Mbarrier &m : w->hopper->mbarriers) {
        if (m.arrivals_missing == m.arrivals || m.arrivals_missing <= 0) continue;
        const int missing = m.arrivals_missing;
        warn("mbarrier phase never complete", m.last_arrival.site, "at the end of CTA %u phase %llu "
             "of the mbarrier of %s:%d is open, %d of its %d arrivals %s missing, and this was the "
             "last one: it is initialised for more arrivals than there are, or a thread does not "
             "arrive",
             w->cta, (unsigned long long)m.completed, m.site.file, m.site.line, missing,
             m.arrivals, missing == 1 ? "is" : "are");
    }
}

// The line where a thread waits; an empty one if it can run or has returned.
static Site waiting_place(const Fiber *fiber) {
    const Worker *w = fiber->owner;
    auto is_in = [&](const std::vector<Fiber *> &waiting) {
        return std::find(waiting.begin(), waiting.end(), fiber) != waiting.end();
    };
    for (const Mbarrier &m : w->hopper->mbarriers) {
        for (const MbarrierWaiter &waiter : m.waiting) {
            if (waiter.fiber == fiber) return waiter.site;
        }
    }
    for (const Barrier &barrier : w->barriers) {
        if (is_in(barrier.waiting)) return barrier.site;
    }
    for (const GroupOperation &operation : w->group_operations) {
        if (operation.in_use && is_in(operation.waiting)) return operation.site;
    }
    for (const WarpOperation &operation : w->warp_operations) {
        if (operation.in_use && operation.arrived >> fiber->lane & 1 &&
            operation.fiber[fiber->lane] == fiber) return operation.site;
    }
    if (w->cluster && is_in(w->cluster->waiting)) return fiber->cluster_site;
    return Site{};
}

// Describes why no thread will complete the current phase.
static void describe_missing(const Mbarrier &m, char *text, size_t size) {
    size_t used = 0;
    auto note = [&](const char *format, auto... values) {
        if (used < size) used += snprintf(text + used, size - used, format, values...);
    };
    if (m.arrivals_missing > 0) {
        note("%d of its %d arrivals %s missing", m.arrivals_missing, m.arrivals,
             m.arrivals_missing == 1 ? "is" : "are");
    } else {
        const long long bytes = m.bytes_missing;
        note("%lld bytes %s", std::abs(bytes),
             bytes > 0 ? "that it expects never come" : "more came than it expects");
    }
    // A pending copy whose bytes were not expected is the better explanation than a missing
    // arrival.
    const bool copies_wait = m.arrivals_missing > 0 && !m.tiles.empty();
    const MbarrierUse &last = copies_wait ? m.last_copy : m.last_arrival;
    if (!last.fiber) return note(", and no thread has ever arrived");
    const uint3 &thread = last.fiber->thread_idx;
    note("; thread (%u,%u,%u), which %s at %s:%d", thread.x, thread.y, thread.z,
         copies_wait ? "asked for a copy to it" : "arrived last", last.site.file, last.site.line);
    const Site waits = waiting_place(last.fiber);
    if (waits.file) note(", waits at %s:%d", waits.file, waits.line);
    else if (last.fiber->finished) note(", has returned");
}

size_t describe_mbarriers(Worker *w, char *text, size_t size, Site &first) {
    size_t used = 0;
    if (!w->hopper) return used;
    const auto &all = w->hopper->mbarriers;
    for (const Mbarrier &m : all) {
        if (m.waiting.empty() || used >= size) continue;
        const Site at = m.waiting.front().site;
        if (!first.file) first = at;
        // Several mbarriers may be initialised on one line, such as those of a ring: number them
        // from 1.
        auto same_line = [&](const Mbarrier &other) { return other.site == m.site; };
        const auto count = std::count_if(all.begin(), all.end(), same_line);
        const auto number = std::count_if(all.data(), &m + 1, same_line);
        char of_them[48] = "", missing[320] = "";
        if (count > 1) snprintf(of_them, sizeof of_them, " (number %td of %td)", number, count);
        describe_missing(m, missing, sizeof missing);
        const size_t threads = m.waiting.size();
        used += snprintf(text + used, size - used,
                         " %zu thread%s at %s:%d for phase %llu of the mbarrier of %s:%d%s, which "
                         "no thread will complete: %s;", threads, threads == 1 ? " waits" : "s wait",
                         at.file, at.line, (unsigned long long)m.completed, m.site.file,
                         m.site.line, of_them, missing);
    }
    return std::min(used, size);
}

}  // namespace coh
