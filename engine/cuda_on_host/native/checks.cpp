// The check build: bounds, initialisation and races of every access.
//
// Races in shared memory are found with vector clocks. Thread t's own clock advances at every
// synchronisation in which it takes part; clocks_of(t)[u] is the last time of u that t is ordered
// after. Everything up to `floor_clock` is ordered before all threads: a barrier of the whole CTA
// (or a new CTA) raises it above every clock in use, and no clocks have to be joined or cleared.
//
// Global memory (buffers and __device__ variables): every granule keeps its last write in this run
// and two reads after it. That finds reads of unwritten data, and conflicts between threads, of the
// same or different CTAs, that are ordered neither by a barrier nor by fences and atomics
// (ordering.h).
namespace coh {

void join_clock(uint32_t *into, const uint32_t *from, unsigned n) {
    for (unsigned i = 0; i < n; i++) into[i] = std::max(into[i], from[i]);
}

static inline uint32_t clock_of(Worker *w, unsigned thread) {
    return std::max(clocks_of(w, thread)[thread], w->floor_clock + 1);
}

const uint32_t *released_clocks(Worker *w, unsigned thread) {
    uint32_t *clocks = clocks_of(w, thread);
    clocks[thread] = clock_of(w, thread);
    return clocks;
}

void advance_clock(Worker *w, unsigned thread) {
    const uint32_t next = clock_of(w, thread) + 1;
    clocks_of(w, thread)[thread] = next;
    w->top_clock = std::max(w->top_clock, next);
}

void order_whole_cta(Worker *w) {
    w->floor_clock = ++w->top_clock;
    w->top_clock = w->floor_clock + 1;
}

// Accesses of another CTA of the cluster happened before if they precede the cluster's start, or if
// this thread acquired them.
static bool happened_before_remotely(Worker *w, const Access &access, unsigned thread) {
    const Cluster &cluster = *w->cluster;
    return access.clock() <= cluster.start_clock ||
           covers(w->orders[thread].acquired, cluster.workers[access.rank()]->cta, access.thread(),
                  access.clock());
}

inline bool happened_before(Worker *w, const Access &access, unsigned thread) {
    if (__builtin_expect(w->cluster && access.rank() != w->rank, 0)) {
        return happened_before_remotely(w, access, thread);
    }
    return access.clock() <= w->floor_clock || access.thread() == thread ||
           clocks_of(w, thread)[access.thread()] >= access.clock();
}

// Before a launch. Records of earlier launches are kept; all are older than `floor_clock`.
static void prepare_records(Worker *w, bool start_over) {
    if (!w->shadow) {
        void *shadow = mmap(nullptr, WINDOW_BYTES / GRANULE_BYTES * sizeof(SharedShadow),
                            PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            -1, 0);
        if (shadow == MAP_FAILED) abort();
        w->shadow = (SharedShadow *)shadow;
    }
    if (start_over) {
        memset((void *)w->shadow, 0, WINDOW_BYTES / GRANULE_BYTES * sizeof(SharedShadow));
        w->top_clock = w->cta_serial = 0;
    }
    w->clocks.assign((size_t)w->num_threads * w->num_threads, 0);
    w->orders.assign(w->num_threads, MemoryOrder());
}
void prepare_checks(Worker *leader) {
    bool start_over = false;
    each_of_cluster(leader, [&](Worker *w) {
        start_over |= w->top_clock > UINT32_MAX / 2 || w->cta_serial > UINT32_MAX / 2;
    });
    each_of_cluster(leader, [&](Worker *w) { prepare_records(w, start_over); });
}

void start_cta_checks(Worker *w) {
    order_whole_cta(w);
    w->cta_serial++;
    w->shared_locations.clear();
    w->own_atomics.clear();
    for (Barrier &barrier : w->barriers) reset(w, barrier.handover);
    if (w->uses_fences) w->orders.assign(w->num_threads, MemoryOrder());
    w->uses_fences = false;
    w->is_copying = false;
    w->running_products = 0;
    w->reads_by_descriptor = false;
    w->race = OpenRace{};
}

static bool is_atomic(AccessKind kind) {
    return kind != AccessKind::read && kind != AccessKind::write;
}
static bool needs_a_value(AccessKind kind) {
    return kind != AccessKind::write && kind != AccessKind::atomic_write;
}

void settle_race(Worker *w, bool passed_by) {
    OpenRace &race = w->race;
    race.is_open = false;
    std::lock_guard<std::mutex> lock(launch.report_mutex);
    char *text = launch.report.message + race.reason_begin;
    const size_t size = sizeof launch.report.message - race.reason_begin;
    if (passed_by && race.waited.file) {
        snprintf(text, size, "%zu threads wait at the __syncthreads() of %s:%d, which this one has "
                 "passed by: the barrier diverges, in a branch or a loop that not all threads take",
                 race.num_waiting, race.waited.file, race.waited.line);
    } else if (race.both_write && race.address &&
               !memcmp(race.before, race.address, race.bytes)) {
        const size_t end = strlen(text);
        snprintf(text + end, size - end, "; both write the same value, so that one of them alone "
                 "may write it");
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
                    "(%u,%u,%u) at {other}: that thread has to arrive on an mbarrier behind its "
                    "last %s, and the one that asks for the copy to wait for that phase; %s",
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
                      "for its own part alone, so that a barrier of the warpgroup behind "
                      "wgmma.wait_group is missing, or one of the two uses memory of another group"
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
                    "%s is read before anybody waited for the copy into it at {other}: the wait or "
                    "a barrier after it is missing before this read", where);
    }
    fail_at("uninitialised shared memory", place,
            "%s is read, which no thread of this CTA has written yet: a barrier is missing before "
            "this read (a __syncwarp() where lanes of this warp write it, else a __syncthreads()), "
            "nothing ever writes it, or its address is worked out with another stride or index "
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

template <class Visit>
static inline void each_granule(size_t offset, size_t bytes, Visit visit) {
    static_assert(GRANULE_BYTES == 2, "the masks below are of two bytes");
    const size_t end = offset + bytes;
    for (size_t g = offset / 2; 2 * g < end; g++) {
        const uint8_t mask = (2 * g >= offset ? 1 : 0) | (2 * g + 1 < end ? 2 : 0);
        visit(g, std::max(offset, 2 * g), mask);
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

// ---- global memory ----
// CTAs on several host threads read a granule's records concurrently.
class GranuleLock {
public:
    explicit GranuleLock(size_t granule) : flag_(flags_[(granule >> 4) % NUM_FLAGS]) {
        while (flag_.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
    }
    ~GranuleLock() { flag_.clear(std::memory_order_release); }

private:
    static constexpr size_t NUM_FLAGS = 1024;
    static std::atomic_flag flags_[NUM_FLAGS];
    std::atomic_flag &flag_;
};
std::atomic_flag GranuleLock::flags_[NUM_FLAGS];

// Whether the access is among those of its CTA that this thread is ordered after.
static bool knows(const KnownCtas &known, const GlobalAccess &access) {
    return covers(known, access.cta, access.thread, access.clock);
}

static bool happened_before(Worker *w, const GlobalAccess &access) {
    const unsigned me = self->linear;
    if (access.cta != w->cta) return knows(w->orders[me].acquired, access);
    return access.thread == me || access.clock <= w->floor_clock ||
           clocks_of(w, me)[access.thread] >= access.clock;
}

static bool conflict(Worker *w, const GlobalAccess &earlier, const GlobalAccess &now) {
    if (earlier.launch != now.launch || !(earlier.bytes & now.bytes)) return false;
    const bool reach_each_other =
        earlier.cta == now.cta || !(earlier.of_cta_scope || now.of_cta_scope);
    if (earlier.atomic && now.atomic && reach_each_other) return false;
    return !happened_before(w, earlier);
}

[[noreturn]] static void global_race(Worker *w, const Buffer &b, size_t byte,
                                     const GlobalAccess &earlier, const char *earlier_verb,
                                     const GlobalAccess &now, AccessKind kind, Place place) {
    const dim3 &block = self->block_dim;
    const uint3 thread{earlier.thread % block.x, earlier.thread / block.x % block.y,
                       earlier.thread / (block.x * block.y)};
    const bool is_same_line =
        !earlier.atomic && !now.atomic && kind == AccessKind::write && earlier.place == now.place;
    if (earlier.cta == w->cta) {
        fail_at_two("global memory race", place, expand(earlier.place),
                    "%s of %s at byte %zu, which thread (%u,%u,%u) of the same CTA %s at {other} "
                    "with no barrier since%s",
                    verb(kind), b.name, byte, thread.x, thread.y, thread.z, earlier_verb,
                    !is_same_line ? "" : ": both write it from one line, so that its index leaves "
                                         "out what tells the two threads apart (a row, a column, "
                                         "a lane or a warp)");
    }
    const MemoryOrder &mine = w->orders[self->linear];
    const char *missing =
        "no fences (__threadfence()) with an atomic between them order the two";
    if (earlier.atomic && now.atomic) {
        missing = "atomics of CTA scope do not reach another CTA";
    } else if (knows(mine.observed, earlier)) {
        missing = "the reader needs a __threadfence() between the atomic that told it and this "
                  "access";
    } else if (find_cta(mine.heard, earlier.cta) && !knows(mine.heard, earlier)) {
        missing = "nothing orders that access before the atomic by which another thread of its CTA "
                  "told of it: a __syncthreads() is missing before the arrival";
    } else if (find_cta(mine.observed, earlier.cta) || find_cta(mine.acquired, earlier.cta)) {
        missing = "that thread executed no __threadfence() between its access and the atomic "
                  "that told of it";
    }
    const uint32_t *grid = w->settings->grid;
    if (is_same_line) {
        missing = "both write it from one line, so that its index leaves out what tells the two "
                  "CTAs apart (a head, a batch, a tile or a split), or is not kept from running past "
                  "the end into what is the other's";
    }
    fail_at_two("global memory race", place, expand(earlier.place),
                "%s of %s at byte %zu, which thread (%u,%u,%u) of CTA (%u,%u,%u) %s at {other} in "
                "this launch: %s",
                verb(kind), b.name, byte, thread.x, thread.y, thread.z, earlier.cta % grid[0],
                earlier.cta / grid[0] % grid[1], earlier.cta / (grid[0] * grid[1]), earlier_verb,
                missing);
}

static void keep_read(GlobalReads &reads, const GlobalAccess &now) {
    auto is_same_thread = [&](const GlobalAccess &read) {
        return read.launch == now.launch && read.cta == now.cta && read.thread == now.thread;
    };
    const bool replaces_first = reads.last[0].launch != now.launch || is_same_thread(reads.last[0]);
    reads.last[replaces_first ? 0 : 1] = now;
}

static void check_global_granule(Worker *w, Buffer &b, size_t g, size_t byte, GlobalAccess now,
                                 AccessKind kind, Place place) {
    const bool is_write = kind != AccessKind::read && kind != AccessKind::atomic_read;
    GlobalAccess earlier{};
    const char *earlier_verb = nullptr;  // of a conflict; it is reported after the lock is released
    bool initialised;
    {
        GranuleLock lock(g);
        GlobalAccess &write = b.writes[g];
        initialised = write.launch != 0;
        if (conflict(w, write, now)) {
            earlier = write;
            earlier_verb = write.atomic ? "changed atomically" : "wrote";
        }
        if (is_write && b.is_read) {
            for (GlobalAccess &read : b.reads[g].last) {
                if (!read.launch) continue;
                if (conflict(w, read, now)) earlier = read, earlier_verb = "read";
                read = GlobalAccess{};
            }
        }
        if (is_write) {
            write = now;
        } else {
            b.is_read = true;
            keep_read(b.reads[g], now);
        }
    }
    if (needs_a_value(kind) && b.uninitialised && !initialised) {
        fail_at("uninitialised global memory", place,
                "%s is read at byte %zu, which no thread has written: its reader came before the "
                "CTA that writes it has arrived (look at the count of arrivals that lets it in), "
                "one of the two works out another index, or it belongs to a part that is empty",
                b.name, byte);
    }
    if (!earlier_verb) return;
    if (earlier.atomic && last_change_is_own(w, (uintptr_t)b.base + byte)) return;
    global_race(w, b, byte, earlier, earlier_verb, now, kind, place);
}

static void check_global(Worker *w, Buffer &b, uintptr_t address, size_t bytes, AccessKind kind,
                         Place place, Scope scope) {
    const long long offset = (long long)(address - (uintptr_t)b.base);
    if (offset < 0 || offset + (long long)bytes > (long long)b.size) {
        fail_at("global memory out of bounds", place, "%zu-byte %s at byte %lld of %s (%zu bytes)",
                bytes, verb(kind), offset, b.name, b.size);
    }
    const bool reads = kind == AccessKind::read || kind == AccessKind::atomic_read;
    if (!reads && b.read_only) {
        fail_at("write to an input", place, "%s of input %s at byte %lld", verb(kind), b.name,
                offset);
    }
    if (b.read_only) return;  // no kernel writes it
    GlobalAccess now{};
    now.cta = w->cta;
    now.clock = clock_of(w, self->linear);
    now.place = compress(place);
    now.launch = launch.serial;
    now.thread = self->linear;
    now.atomic = is_atomic(kind);
    now.of_cta_scope = scope == Scope::cta;
    each_granule((size_t)offset, bytes, [&](size_t g, size_t byte, uint8_t mask) {
        now.bytes = mask;
        check_global_granule(w, b, g, byte, now, kind, place);
    });
}

static bool is_in_window(const Worker *w, uintptr_t address) {
    return address - (uintptr_t)w->window_mapping < WINDOW_BYTES + 2 * WINDOW_GUARD_BYTES;
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

void check_access(const volatile void *pointer, size_t bytes, AccessKind kind, Place place,
                  Scope scope) {
    Worker *w = worker;
    if (!w || !w->leader->in_cta || !w->settings->check || !bytes) return;
    const uintptr_t address = (uintptr_t)pointer;
    // The kernel reads threadIdx, blockIdx and so on.
    if (address == (uintptr_t)&self) return;
    if (address - (uintptr_t)launch.module < sizeof *launch.module) return;  // statement marks
    if (address - (uintptr_t)w->fibers < sizeof(Fiber) * w->num_fibers) return;

    if (is_in_window(w, address)) return check_shared(w, w, address, bytes, kind, place);
    const uintptr_t stack = (uintptr_t)w->stacks + self->linear * FIBER_STACK_BYTES;
    if (address - stack < FIBER_STACK_BYTES) {
        if (w->running_products >> self->linear / 128 & 1) check_product_registers(address, bytes, kind, place);
        return;
    }
    // Most accesses are to the same buffer as the previous one.
    if (w->last_buffer < buffers.size()) {
        Buffer &b = buffers[w->last_buffer];
        if (address - (uintptr_t)b.mapping < b.mapping_size) {
            return check_global(w, b, address, bytes, kind, place, scope);
        }
    }
    if (Buffer *b = buffer_around(address)) {
        w->last_buffer = b - buffers.data();
        return check_global(w, *b, address, bytes, kind, place, scope);
    }
    if (w->cluster) {
        for (Worker *owner : w->cluster->workers) {
            if (!is_in_window(owner, address)) continue;
            note_remote_access(owner, kind, pointer, place);
            return check_shared(w, owner, address, bytes, kind, place);
        }
    }
    if (address - (uintptr_t)w->stacks < FIBER_STACK_BYTES * w->num_fibers) {
        fail_at("illegal address", place, "%s of another thread's local memory", verb(kind));
    }
    Buffer &variables = device_variables;
    if (address - (uintptr_t)variables.base < variables.size) {
        return check_global(w, variables, address, bytes, kind, place, scope);
    }
    const bool constant = address >= launch.image_begin && address < launch.image_end;
    const bool argument = address - (uintptr_t)argument_values < sizeof argument_values ||
                          address - (uintptr_t)argument_pointers < sizeof argument_pointers;
    if (constant || argument || is_on_heap(address, bytes)) return;
    fail_at("illegal address", place, "%zu-byte %s at 0x%llx, which is in no buffer", bytes,
            verb(kind), (unsigned long long)address);
}

}  // namespace coh
