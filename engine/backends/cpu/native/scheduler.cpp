// Which fiber of the CTA runs next.
namespace coh {

// Spinning threads are given up on after both: a fast machine spins often, a loaded one slowly.
static constexpr uint64_t LIVELOCK_SPINS = 200000;
static constexpr std::chrono::seconds LIVELOCK_TIME{5};

uint64_t random_bits(Worker *w) {  // xorshift64
    uint64_t x = w->random_state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return w->random_state = x;
}

inline void make_ready(Worker *w, Fiber *fiber) {
    const unsigned mask = (unsigned)w->ready.size() - 1;
    w->ready[(w->ready_head + w->num_ready++) & mask] = (uint16_t)fiber->linear;
    fiber->is_ready = true;
}

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

// Says who waits where; the place is that of the first one found waiting.
[[noreturn]] static void deadlock(Worker *w) {
    char text[500] = "";
    size_t used = 0;
    Site first{};
    auto note = [&](const char *format, auto... values) {
        if (used >= sizeof text) return;
        used += snprintf(text + used, sizeof text - used, format, values...);
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
        note(" %d of %d threads wait in a warpgroup operation (%s:%d);", op.arrived, op.expected,
             op.site.file, op.site.line);
    }
    if (used < sizeof text) used += describe_mbarriers(w, text + used, sizeof text - used);
    if (used && used < sizeof text) text[used - 1] = 0;  // the last semicolon
    fail_at("deadlock", first, "no thread of the CTA can run:%s", text);
}

Fiber *next_or_deadlock(Worker *w) {
    Fiber *fiber = next_ready(w);
    if (!fiber && land_waited_copies(w)) fiber = next_ready(w);
    if (!fiber && end_try_waits(w)) fiber = next_ready(w);
    if (!fiber) deadlock(w);
    return fiber;
}

inline void run_others(Worker *w, Fiber *me) {
    if (__builtin_expect(launch.aborted.load(std::memory_order_relaxed), 0)) leave_cta();
    Fiber *fiber = next_or_deadlock(w);
    if (fiber == me) return;
    self = fiber;
    coh_switch(&me->stack_pointer, fiber->stack_pointer);
}

void yield() {
    Worker *w = worker;
    if (w->spins++ == 0) w->spinning_since = std::chrono::steady_clock::now();
    if (w->spins % 1024 == 0 && w->spins > LIVELOCK_SPINS &&
        std::chrono::steady_clock::now() - w->spinning_since > LIVELOCK_TIME) {
        fail_at("livelock", Place(), "the CTA's threads spin and none makes progress; CTAs that "
                "wait for later CTAs cannot run here");
    }
    if (w->num_ready == 0) std::this_thread::yield();
    if (w->settings->schedule == reverse_order) {  // at the far end, or it would be next again
        w->num_ready++;
        w->ready[--w->ready_head & (w->ready.size() - 1)] = (uint16_t)self->linear;
        current_fiber()->is_ready = true;
    } else {
        make_ready(w, current_fiber());
    }
    run_others(w, current_fiber());
}

}  // namespace coh
