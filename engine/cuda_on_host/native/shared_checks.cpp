// Checks of accesses to shared memory: bounds, initialisation, races, proxy fences.
namespace coh {

void settle_race(Worker *w, bool passed_by) {
    OpenRace &race = w->race;
    race.is_open = false;
    std::lock_guard<std::mutex> lock(launch.report_mutex);
    char *text = launch.report.message + race.reason_begin;
    const size_t size = sizeof launch.report.message - race.reason_begin;
    if (passed_by && race.waited.file) {
        snprintf(text, size, "%zu threads wait at the __syncthreads() of %s:%d, which this thread "
                 "has passed: the barrier diverges, in a branch or a loop that not all threads take",
                 race.num_waiting, race.waited.file, race.waited.line);
    } else if (race.both_write && race.address &&
               !memcmp(race.before, race.address, race.bytes)) {
        const size_t end = strlen(text);
        snprintf(text + end, size - end, "; both write the same value, so only one of them needs to "
                 "write it");
    }
}

// Reports a race between threads of one CTA without mbarriers. The thread continues to its next
// wait (see OpenRace).
static void open_race(Worker *w, const Access &earlier, AccessKind kind, const char *where,
                      const char *earlier_verb, Place place) {
    const uint3 &other = w->fibers[earlier.thread()].thread_idx;
    OpenRace race;
    race.both_write = kind == AccessKind::write && !earlier.is(Access::read) &&
                      !earlier.is(Access::atomic);
    for (const Barrier &barrier : w->barriers) {
        if (barrier.expected || barrier.waiting.empty()) continue;
        race.waited = barrier.site;
        race.num_waiting = barrier.waiting.size();
    }
    char text[400];
    race.reason_begin = (size_t)snprintf(
        text, sizeof text, "%s of %s is not ordered with the earlier %s by thread (%u,%u,%u) at "
        "{other}: ", verb(kind), where, earlier_verb, other.x, other.y, other.z);
    race.is_open = record_error_at_two(
        "shared memory race", place, earlier.place,
        "%sno barrier stands between the two: a __syncthreads() or __syncwarp() is missing", text);
    if (!race.is_open) leave_cta();
    w->race = race;
}

static void shared_race(Worker *w, const Access &earlier, AccessKind kind, const void *pointer,
                        Place place) {
    if (w->race.is_open) return;
    char where[160];
    describe_shared(pointer, where, sizeof where);
    const char *earlier_verb =
        earlier.is(Access::atomic) ? "atomic" : earlier.is(Access::read) ? "read" : "write";
    if (earlier.rank() != w->rank) {
        const Worker *other = w->cluster->workers[earlier.rank()];
        const uint3 &thread = other->fibers[earlier.thread()].thread_idx;
        fail_at_two("shared memory race", place, earlier.place,
                    "%s of %s is not ordered with the earlier %s by thread (%u,%u,%u) of CTA rank "
                    "%u at {other}: a cluster.sync() or an mbarrier between the two is missing",
                    verb(kind), where, earlier_verb, thread.x, thread.y, thread.z, other->rank);
    }
    const uint3 &other = w->fibers[earlier.thread()].thread_idx;
    char waits[900];
    if (earlier.is(Access::async) && describe_missed_wait(pointer, waits, sizeof waits)) {
        fail_at_two("shared memory race", place, earlier.place,
                    "%s of %s is not ordered with the copy into it at {other}: %s", verb(kind),
                    where, waits);
    }
    if (w->is_copying) {
        describe_last_wait(waits, sizeof waits);
        fail_at_two("shared memory race", place, earlier.place,
                    "the copy overwrites %s and is not ordered with the earlier %s by thread "
                    "(%u,%u,%u) at {other}: that thread must arrive on an mbarrier after its last "
                    "%s, and the thread that issues the copy must wait for that phase; %s",
                    where, earlier_verb, other.x, other.y, other.z, earlier_verb, waits);
    }
    char passed_by[320] = "";
    describe_shared_barriers(w, passed_by, sizeof passed_by);
    const bool has_mbarriers = w->hopper && !w->hopper->mbarriers.empty();
    if (!passed_by[0] && !has_mbarriers && !earlier.is(Access::by_wgmma) &&
        !w->reads_by_descriptor) {
        return open_race(w, earlier, kind, where, earlier_verb, place);
    }
    const bool is_one_warp = has_mbarriers && earlier.thread() / WARP == self->linear / WARP;
    fail_at_two("shared memory race", place, earlier.place,
                "%s of %s is not ordered with the earlier %s by %sthread (%u,%u,%u) at {other}: %s",
                verb(kind), where, earlier_verb,
                earlier.is(Access::by_wgmma) ? "the wgmma of " : "", other.x, other.y, other.z,
                passed_by[0]    ? passed_by
                : earlier.is(Access::by_wgmma)
                    ? "a wgmma still reads its operand there; every warp of its warpgroup waits "
                      "only for its own part, so a barrier of the warpgroup after wgmma.wait_group "
                      "is missing, or one of the two uses memory of another group"
                : is_one_warp   ? "a __syncwarp() between the two is missing, as both are lanes of "
                                  "one warp, or one of them uses memory of the other"
                : has_mbarriers ? "a barrier between the two (a named one, an mbarrier or a "
                                  "__syncthreads()) is missing, or one of them uses memory that is "
                                  "another group's"
                                : "a __syncthreads() or __syncwarp() is missing");
}

[[noreturn]] static void not_initialised(const SharedShadow &shadow, const void *pointer,
                                         Place place) {
    char where[160];
    describe_shared(pointer, where, sizeof where);
    char waits[900];
    if (shadow.initialised_by == COPY_PENDING &&
        describe_missed_wait(pointer, waits, sizeof waits)) {
        fail_at_two("asynchronous copy not complete", place, shadow.write.place,
                    "%s is read before the copy into it at {other} is complete: %s", where, waits);
    }
    if (shadow.initialised_by == COPY_PENDING) {
        fail_at_two("asynchronous copy not complete", place, shadow.write.place,
                    "%s is read before any thread waited for the copy into it at {other}: the wait "
                    "or a barrier after it is missing before this read", where);
    }
    fail_at("uninitialised shared memory", place,
            "%s is read, which no thread of this CTA has written yet: a barrier is missing before "
            "this read (a __syncwarp() where lanes of this warp write it, else a __syncthreads()), "
            "nothing ever writes it, or its address is computed with a different stride or index "
            "than the writer's",
            where);
}

static inline bool in_shared_memory(const Worker *w, const char *pointer) {
    // Offsets below the window wrap around to large values, which are outside the dynamic memory.
    const size_t offset = pointer - w->window;
    if (offset < STATIC_WINDOW_BYTES) return launch.module->valid && launch.module->valid[offset];
    return (size_t)(pointer - w->dynamic_smem) < w->settings->dynamic_smem_bytes;
}

static inline void check_shared_bounds(Worker *w, const char *pointer, size_t bytes,
                                       AccessKind kind, Place place) {
    const bool small = bytes <= SHARED_ARRAY_GAP_BYTES;  // both ends are then in the same array
    if (small && in_shared_memory(w, pointer) && in_shared_memory(w, pointer + bytes - 1)) return;
    for (size_t i = 0; i < bytes; i++) {
        if (in_shared_memory(w, pointer + i)) continue;
        char where[160];
        describe_shared(pointer + i, where, sizeof where);
        fail_at("shared memory out of bounds", place, "%zu-byte %s reaches %s", bytes, verb(kind),
                where);
    }
}

// Records a read (or an atomic that another one follows) to compare with later writes: in a free
// slot or one from before the last barrier, else in a random one.
static inline void remember(Worker *w, SharedShadow &shadow, const Access &access) {
    uint32_t slot = 0;
    auto is_old = [w](const Access &kept) {
        const bool is_remote = w->cluster && kept.rank() != w->rank;
        return kept.clock() <= (is_remote ? w->cluster->start_clock : w->floor_clock);
    };
    while (slot < shadow.num_others && !is_old(shadow.others[slot])) slot++;
    if (slot == KEPT_ACCESSES) slot = (uint32_t)(random_bits(w) >> 20) % KEPT_ACCESSES;
    if (slot == shadow.num_others) shadow.num_others++;
    shadow.others[slot] = access;
    shadow.last_slot = (uint8_t)slot;
}

static inline Access make_access(Worker *w, AccessKind kind, Place place) {
    uint64_t flags = 0;
    if (kind == AccessKind::read) flags = Access::read;
    if (w->reads_by_descriptor) flags |= Access::by_wgmma;
    if (is_atomic(kind)) flags = Access::atomic;
    return Access(thread_of_cluster(), clock_of(w, self->linear), flags, place);
}

static inline bool unordered(Worker *w, const Access &earlier, const Access &now) {
    return (earlier.bytes() & now.bytes()) && !happened_before(w, earlier, now.thread());
}

static inline void read_granule(Worker *w, SharedShadow &shadow, const Access &read,
                                const void *pointer) {
    if (unordered(w, shadow.write, read)) {
        shared_race(w, shadow.write, AccessKind::read, pointer, read.place);
    }
    if (shadow.has_atomics) {
        for (uint32_t i = 0; i < shadow.num_others; i++) {
            const Access &earlier = shadow.others[i];
            if (earlier.is(Access::atomic) && unordered(w, earlier, read)) {
                shared_race(w, earlier, AccessKind::read, pointer, read.place);
            }
        }
    }
    if (!shadow.others[shadow.last_slot].same(read)) remember(w, shadow, read);
}

static inline void write_granule(Worker *w, uint32_t cta_serial, SharedShadow &shadow,
                                 const Access &write, AccessKind kind, const void *pointer) {
    auto conflicts = [&](const Access &earlier) {
        return !(earlier.is(Access::atomic) && write.is(Access::atomic)) &&
               unordered(w, earlier, write);
    };
    if (conflicts(shadow.write)) shared_race(w, shadow.write, kind, pointer, write.place);
    for (uint32_t i = 0; i < shadow.num_others; i++) {
        if (conflicts(shadow.others[i])) {
            shared_race(w, shadow.others[i], kind, pointer, write.place);
        }
    }
    if (kind == AccessKind::write) {
        shadow.num_others = 0;
        shadow.has_atomics = false;
    } else if (unordered(w, shadow.write, write)) {  // an atomic, or it would have been a race
        remember(w, shadow, shadow.write);
        shadow.has_atomics = true;
    }
    shadow.write = write;
    if (shadow.initialised_by != cta_serial) shadow.initialised_bytes = 0;
    shadow.initialised_by = cta_serial;
    shadow.initialised_bytes |= write.bytes();
}

// `cta_serial`: of the CTA that owns the memory.
static inline void check_granule(Worker *w, uint32_t cta_serial, SharedShadow &shadow,
                                 const Access &access, AccessKind kind, const void *pointer) {
    const bool initialised = shadow.initialised_by == cta_serial &&
                             (shadow.initialised_bytes & access.bytes()) == access.bytes();
    if (needs_a_value(kind) && !initialised) {
        not_initialised(shadow, pointer, access.place);
    }
    if (kind == AccessKind::read) {
        read_granule(w, shadow, access, pointer);
    } else {
        write_granule(w, cta_serial, shadow, access, kind, pointer);
    }
}

void mark_copy_pending(const void *destination, size_t bytes) {
    Worker *owner = owner_of(destination);
    each_granule((const char *)destination - owner->window, bytes, [&](size_t g, size_t, uint8_t) {
        owner->shadow[g].initialised_by = COPY_PENDING;
    });
}

// ---- TMA and wgmma ----
uint32_t current_clock() { return clock_of(worker, self->linear); }

void record_async_write(const void *pointer, size_t bytes, uint16_t thread, uint32_t clock,
                        Site site) {
    Worker *owner = owner_of(pointer);
    each_granule((const char *)pointer - owner->window, bytes, [&](size_t g, size_t, uint8_t mask) {
        SharedShadow &shadow = owner->shadow[g];
        shadow.write = Access(thread, clock, Access::async, site);
        shadow.write.set_bytes(mask);
        shadow.num_others = 0;
        shadow.has_atomics = false;
        shadow.initialised_by = owner->cta_serial;
        shadow.initialised_bytes = mask;
    });
}

void proxy_fence() {
    Worker *w = worker;
    if (!w->settings->check) return;
    Fiber *me = current_fiber();
    me->proxy_fence_clock = current_clock();
    me->proxy_fence_floor = w->floor_clock;
    advance_clock(w, me->linear);
}

// Ordinary stores are visible to TMA and wgmma only after a fence.proxy.async, by the storing
// thread or (after a barrier) by the issuing one.
void check_proxy_fence(const void *pointer, size_t bytes, Site site) {
    Worker *w = worker;
    each_granule((const char *)pointer - w->window, bytes, [&](size_t g, size_t byte, uint8_t) {
        const Access &write = w->shadow[g].write;
        const Worker *by = w->cluster ? w->cluster->workers[write.rank()] : w;
        const uint32_t writers_fence = by->fibers[write.thread()].proxy_fence_clock;
        const uint32_t own_fence = current_fiber()->proxy_fence_floor;
        if (write.is(Access::async) || write.clock() <= std::max(writers_fence, own_fence)) return;
        char where[160];
        describe_shared(w->window + byte, where, sizeof where);
        fail_at_two("proxy fence missing", site, write.place,
                    "%s was stored at {other} and no fence.proxy.async followed", where);
    });
}

// `owner`: the CTA that owns the memory, `w` or another one of the cluster.
static inline void check_shared(Worker *w, Worker *owner, uintptr_t address, size_t bytes,
                                AccessKind kind, Place place) {
    check_shared_bounds(owner, (const char *)address, bytes, kind, place);
    Access access = make_access(w, kind, place);
    each_granule(address - (uintptr_t)owner->window, bytes, [&](size_t g, size_t byte, uint8_t mask) {
        access.set_bytes(mask);
        check_granule(w, owner->cta_serial, owner->shadow[g], access, kind, owner->window + byte);
    });
    // The racing access has not been executed yet: keep what it overwrites.
    if (__builtin_expect(w->race.is_open && !w->race.address, 0)) {
        w->race.address = (const char *)address;
        w->race.bytes = std::min(bytes, sizeof w->race.before);
        memcpy(w->race.before, w->race.address, w->race.bytes);
    }
}

}  // namespace coh
