// Which fiber of the CTA runs next.
namespace coh {

// Spinning threads are a livelock after so many spins and so much time: a fast machine spins often,
// a loaded one slowly.
static constexpr uint64_t LIVELOCK_SPINS = 200000;
static constexpr std::chrono::seconds LIVELOCK_TIME{5};

uint64_t random_bits(Worker *w) {  // xorshift64
    uint64_t x = w->random_state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return w->random_state = x;
}

void make_ready(Worker *w, Fiber *fiber) {
    const unsigned mask = (unsigned)w->ready.size() - 1;
    w->ready[(w->ready_head + w->num_ready++) & mask] = (uint16_t)fiber->linear;
    fiber->is_ready = true;
}

inline void switch_to(Fiber *next, void **save) {
    self = next;
    worker = next->owner;
    coh_switch(save, next->stack_pointer);
}

void note_progress(Worker *w) { w->leader->spins = w->leader->turns_without_progress = 0; }

inline Fiber *take_ready(Worker *w, unsigned slot) {
    Fiber *fiber = &w->fibers[w->ready[slot & (w->ready.size() - 1)]];
    fiber->is_ready = false;
    return fiber;
}

inline Fiber *next_ready(Worker *w) {
    if (!w->num_ready) return nullptr;
    const unsigned mask = (unsigned)w->ready.size() - 1;
    const int schedule = w->settings->schedule;
    if (schedule == reverse_order) {
        w->num_ready--;
        return take_ready(w, w->ready_head + w->num_ready);
    }
    if (schedule == random_order) {
        const unsigned chosen = (unsigned)(random_bits(w) % w->num_ready);
        std::swap(w->ready[(w->ready_head + chosen) & mask], w->ready[w->ready_head & mask]);
    }
    w->num_ready--;
    return take_ready(w, w->ready_head++);
}

// Describes which threads of a CTA wait where; `first` is set to the place of the first one.
static size_t describe_waiting(Worker *w, char *text, size_t size, Site &first) {
    size_t used = 0;
    auto note = [&](const char *format, auto... values) {
        if (used >= size) return;
        used += snprintf(text + used, size - used, format, values...);
    };
    for (int id = 0; id < NUM_BARRIERS; id++) {
        const Barrier &barrier = w->barriers[id];
        if (barrier.waiting.empty()) continue;
        if (!first.file) first = barrier.site;
        note(" %zu of %d threads wait at barrier %d (%s:%d);", barrier.waiting.size(),
             barrier.expected ? barrier.expected : (int)w->alive, id, barrier.site.file,
             barrier.site.line);
    }
    for (const WarpOperation &op : w->warp_operations) {
        if (!op.in_use) continue;
        if (!first.file) first = op.site;
        note(" lanes %08x of %08x wait in a warp operation (%s:%d);", op.arrived, op.mask,
             op.site.file, op.site.line);
    }
    for (const GroupOperation &op : w->group_operations) {
        if (!op.in_use) continue;
        if (!first.file) first = op.site;
        const bool is_setmaxnreg = op.operation == change_registers_of_group;
        note(" %d of %d threads wait %s (%s:%d);", op.arrived, op.expected,
             is_setmaxnreg ? "at setmaxnreg, which all warps of a warpgroup execute together"
                           : "in a warpgroup operation", op.site.file, op.site.line);
    }
    if (used < size) used += describe_register_waits(w, text + used, size - used, first);
    if (used < size) used += describe_mbarriers(w, text + used, size - used, first);
    return std::min(used, size);
}

[[noreturn]] static void deadlock(Worker *w) {
    char text[1400] = "";
    size_t used = 0;
    Site first{};
    each_of_cluster(w, [&](Worker *of) {
        char waiting[1400] = "";
        if (!describe_waiting(of, waiting, sizeof waiting, first) || used >= sizeof text) return;
        if (w->cluster) used += snprintf(text + used, sizeof text - used, " CTA of rank %u:", of->rank);
        if (used < sizeof text) used += snprintf(text + used, sizeof text - used, "%s", waiting);
    });
    if (used < sizeof text) used += describe_cluster_barrier(w, text + used, sizeof text - used);
    if (!first.file && w->cluster) first = w->cluster->site;
    if (used && used < sizeof text) text[used - 1] = 0;  // the last semicolon
    const bool for_registers = w->hopper && !w->hopper->registers.waiting.empty();
    fail_at(for_registers ? "setmaxnreg waits for ever" : "deadlock", first, "no thread of the %s can run:%s", w->cluster ? "cluster" : "CTA", text);
}

// In a cluster, a fiber of the next CTA that can run if this one cannot; in random order, of any
// CTA.
static Fiber *next_of_cluster(Worker *w) {
    const auto &workers = w->cluster->workers;
    const size_t count = workers.size();
    size_t first = w->rank, step = 1;
    if (w->settings->schedule == random_order) first = random_bits(w) % count;
    if (w->settings->schedule == reverse_order) step = count - 1;
    for (size_t i = 0; i < count; i++) {
        if (Fiber *fiber = next_ready(workers[(first + i * step) % count])) return fiber;
    }
    return nullptr;
}

Fiber *next_or_deadlock(Worker *w) {
    auto next = [w] { return w->cluster ? next_of_cluster(w) : next_ready(w); };
    Fiber *fiber = next();
    if (!fiber && land_waited_copies(w)) fiber = next();
    if (!fiber && end_try_waits(w)) fiber = next();
    if (!fiber) deadlock(w);
    return fiber;
}

void run_others(Worker *w, Fiber *me) {
    if (__builtin_expect(launch.aborted.load(std::memory_order_relaxed), 0)) {
        if (w->race.is_open) settle_race(w, false);
        leave_cta();
    }
    Fiber *fiber = next_or_deadlock(w);
    if (fiber != me) switch_to(fiber, &me->stack_pointer);
}

void yield() {
    Worker *w = worker, *leader = w->leader;
    if (leader->spins++ == 0) leader->spinning_since = std::chrono::steady_clock::now();
    if (leader->spins % 1024 == 0 && leader->spins > LIVELOCK_SPINS &&
        std::chrono::steady_clock::now() - leader->spinning_since > LIVELOCK_TIME) {
        fail_at("livelock", Place(), "the CTA's threads spin and none makes progress; CTAs that "
                "wait for later CTAs cannot run here");
    }
    if (w->num_ready == 0) std::this_thread::yield();
    if (w->settings->schedule == reverse_order) {  // at the other end: else it would be next
        w->num_ready++;
        w->ready[--w->ready_head & (w->ready.size() - 1)] = (uint16_t)self->linear;
        current_fiber()->is_ready = true;
    } else {
        make_ready(w, current_fiber());
    }
    if (w->cluster) w = w->cluster->workers[(w->rank + 1) % w->cluster->workers.size()];
    run_others(w, current_fiber());  // it may wait for another CTA
}

}  // namespace coh
