// Fences and atomics in the check build: see ordering.h.
namespace coh {

bool CtaClocks::covers(unsigned thread, uint32_t clock) const {
    if (clock <= floor) return true;
    auto known = std::lower_bound(later.begin(), later.end(), thread,
                                  [](const Later &l, unsigned t) { return l.thread < t; });
    return known != later.end() && known->thread == thread && known->clock >= clock;
}

using CtaClocksPointer = std::shared_ptr<const CtaClocks>;
static CtaClocksPointer joined(const CtaClocksPointer &a, const CtaClocksPointer &b) {
    if (a == b) return a;
    auto both = std::make_shared<CtaClocks>();
    both->floor = std::max(a->floor, b->floor);
    auto keep = [&](CtaClocks::Later later) {
        if (later.clock > both->floor) both->later.push_back(later);
    };
    auto i = a->later.begin(), j = b->later.begin();
    while (i != a->later.end() || j != b->later.end()) {
        if (j == b->later.end() || (i != a->later.end() && i->thread < j->thread)) {
            keep(*i++);
        } else if (i == a->later.end() || j->thread < i->thread) {
            keep(*j++);
        } else {
            keep({i->thread, std::max(i->clock, j->clock)});
            i++, j++;
        }
    }
    return both;
}

KnownCtas joined(const KnownCtas &a, const KnownCtas &b) {
    if (!b || a == b) return a;
    if (!a) return b;
    auto both = std::make_shared<std::vector<std::pair<uint32_t, CtaClocksPointer>>>();
    both->reserve(a->size() + b->size());
    auto i = a->begin(), j = b->begin();
    while (i != a->end() || j != b->end()) {
        if (j == b->end() || (i != a->end() && i->first < j->first)) {
            both->push_back(*i++);
        } else if (i == a->end() || j->first < i->first) {
            both->push_back(*j++);
        } else {
            both->push_back({i->first, joined(i->second, j->second)});
            i++, j++;
        }
    }
    return both;
}

static const CtaClocks *find_cta(const KnownCtas &known, uint32_t cta) {
    if (!known) return nullptr;
    auto found = std::lower_bound(known->begin(), known->end(), cta,
                                  [](const auto &entry, uint32_t c) { return entry.first < c; });
    return found != known->end() && found->first == cta ? found->second.get() : nullptr;
}
static bool covers(const KnownCtas &known, uint32_t cta, unsigned thread, uint32_t clock) {
    const CtaClocks *clocks = find_cta(known, cta);
    return clocks && clocks->covers(thread, clock);
}

void MemoryOrder::join(const MemoryOrder &other) {
    acquired = joined(acquired, other.acquired);
    observed = joined(observed, other.observed);
    observed_in_cta = joined(observed_in_cta, other.observed_in_cta);
    fenced = joined(fenced, other.fenced);
    fenced_in_cta = joined(fenced_in_cta, other.fenced_in_cta);
    heard = joined(heard, other.heard);
}

// ---- barriers ----
void reset(Worker *w, Handover &handover) {
    handover.clock.assign(w->num_threads, 0);
    if (w->uses_fences) handover.order = MemoryOrder();
}
void hand_over(Worker *w, Handover &handover, unsigned thread) {
    join_clock(handover.clock.data(), released_clocks(w, thread), w->num_threads);
    hand_over_order(w, handover, thread);
}
void hand_over_order(Worker *w, Handover &handover, unsigned thread) {
    if (w->uses_fences) handover.order.join(w->orders[thread]);
}
void take_over(Worker *w, const Handover &handover, unsigned thread) {
    join_clock(clocks_of(w, thread), handover.clock.data(), w->num_threads);
    take_over_order(w, handover, thread);
}
void take_over_order(Worker *w, const Handover &handover, unsigned thread) {
    if (w->uses_fences) w->orders[thread].join(handover.order);
}

// ---- fences ----
static void acquire(Worker *w, const KnownCtas &known) {
    if (!known) return;
    MemoryOrder &mine = w->orders[self->linear];
    mine.acquired = joined(mine.acquired, known);
    const CtaClocks *own = find_cta(known, w->cta);
    if (!own) return;
    uint32_t *clocks = clocks_of(w, self->linear);
    for (const CtaClocks::Later &later : own->later) {
        clocks[later.thread] = std::max(clocks[later.thread], later.clock);
    }
}

static void acquire_observed(Worker *w, Scope scope) {
    MemoryOrder &mine = w->orders[self->linear];
    acquire(w, mine.observed_in_cta);
    mine.observed_in_cta = nullptr;
    if (scope == Scope::cta) return;
    acquire(w, mine.observed);
    mine.observed = nullptr;
}

// What a thread of another CTA acquires from the running thread: its clocks and all that it
// acquired.
static KnownCtas known_clock(Worker *w) {
    auto own = std::make_shared<CtaClocks>();
    own->later.push_back({self->linear, released_clocks(w, self->linear)[self->linear]});
    auto only = std::make_shared<std::vector<std::pair<uint32_t, CtaClocksPointer>>>();
    only->push_back({w->cta, own});
    return only;
}

// The running thread's clocks of its own CTA.
static KnownCtas known_of_own_cta(Worker *w) {
    auto own = std::make_shared<CtaClocks>();
    own->floor = w->floor_clock;
    const uint32_t *clocks = released_clocks(w, self->linear);
    for (unsigned t = 0; t < w->num_threads; t++) {
        if (clocks[t] > own->floor) own->later.push_back({t, clocks[t]});
    }
    auto only = std::make_shared<std::vector<std::pair<uint32_t, CtaClocksPointer>>>();
    only->push_back({w->cta, own});
    return only;
}

static void note_for_release(Worker *w, Scope scope) {
    MemoryOrder &mine = w->orders[self->linear];
    const KnownCtas now = joined(mine.acquired, known_of_own_cta(w));
    mine.fenced_in_cta = joined(mine.fenced_in_cta, now);
    if (scope != Scope::cta) mine.fenced = joined(mine.fenced, now);
    advance_clock(w, self->linear);
    w->uses_fences = true;
}

static bool acquires(Order order) { return order == Order::acquire || order == Order::acq_rel; }
static bool releases(Order order) { return order == Order::release || order == Order::acq_rel; }

void thread_fence(Scope scope, Order order) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    Worker *w = worker;
    if (!w->settings->check) return;
    if (acquires(order)) acquire_observed(w, scope);
    if (releases(order)) note_for_release(w, scope);
}

// ---- atomics ----
static std::mutex locations_mutex;
static std::unordered_map<uintptr_t, SyncLocation> global_locations;  // of this launch, by address

void forget_locations() {
    std::lock_guard<std::mutex> lock(locations_mutex);
    global_locations.clear();
}

static void order_at(Worker *w, SyncLocation &here, AccessKind kind, Order order, Scope scope) {
    MemoryOrder &mine = w->orders[self->linear];
    const bool wide = scope != Scope::cta;
    if (kind != AccessKind::atomic_write) {
        if (wide) mine.observed = joined(mine.observed, here.released);
        mine.heard = joined(mine.heard, here.before);
        auto in_cta = here.released_in_cta.find(w->cta);
        if (in_cta != here.released_in_cta.end()) {
            mine.observed_in_cta = joined(mine.observed_in_cta, in_cta->second);
        }
    }
    if (acquires(order)) acquire_observed(w, scope);
    if (releases(order)) note_for_release(w, scope);
    if (kind == AccessKind::atomic_read) return;
    here.changes++;
    if (kind == AccessKind::atomic_write) {  // a store replaces what earlier atomics released
        here.released = here.before = nullptr;
        here.released_in_cta.clear();
    }
    if (!w->uses_fences) return;
    if (wide) here.released = joined(here.released, mine.fenced);
    here.before = joined(here.before, known_of_own_cta(w));
    KnownCtas &in_cta = here.released_in_cta[w->cta];
    in_cta = joined(in_cta, mine.fenced_in_cta);
}

// Also checks the access itself. The caller holds the returned lock until the atomic is executed:
// otherwise two host threads could record their atomics in one order and execute them in the other,
// which would sometimes be reported as a race.
std::unique_lock<std::mutex> order_by_atomic(const void *address, size_t bytes, AccessKind kind,
                                             Order order, Scope scope, Site site) {
    Worker *w = worker;
    if ((uintptr_t)address % bytes) {
        fail_at("misaligned address", site, "atomic on %zu bytes at %p", bytes, address);
    }
    if (!w->settings->check) return {};
    check_access(address, bytes, kind, site, scope);
    const uintptr_t key = (uintptr_t)address;
    if (Worker *owner = owner_of(address)) {
        order_at(w, owner->shared_locations[key], kind, order, scope);
        return {};
    }
    {
        const Touching touching(site);
        (void)*(const volatile char *)address;  // a fault occurs here, before the lock is taken
    }
    std::unique_lock<std::mutex> lock(locations_mutex);
    SyncLocation &here = global_locations[key];
    order_at(w, here, kind, order, scope);
    for (size_t byte = 0; byte < bytes; byte += GRANULE_BYTES) {
        w->own_atomics[key + byte] = OwnAtomic{key, here.changes};
    }
    return lock;
}

// Whether the last atomic that changed the word was this CTA's: plain accesses to it are then
// ordered.
bool last_change_is_own(Worker *w, uintptr_t address) {
    auto own = w->own_atomics.find(address);
    if (own == w->own_atomics.end()) return false;
    std::lock_guard<std::mutex> lock(locations_mutex);
    return global_locations[own->second.location].changes == own->second.changes;
}

}  // namespace coh
