// The check build: bounds, initialisation and races of every access.
//
// Races in shared memory are found with vector clocks. Thread t's own clock advances at every
// synchronisation it takes part in; clocks_of(t)[u] is the last time of u that t is ordered after.
// `floor_clock` stands for all threads at once: a barrier of the whole CTA (or a new CTA) lifts it
// above every clock handed out so far, and nothing has to be joined or cleared.
//
// Global memory: every granule remembers its last write in this run, which finds reads of what
// nobody wrote and conflicts between CTAs or threads that no barrier and no atomic orders.
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

inline bool happened_before(Worker *w, const Access &access, unsigned thread) {
    return access.clock() <= w->floor_clock || access.thread() == thread ||
           clocks_of(w, thread)[access.thread()] >= access.clock();
}

// Before a launch: the records of earlier launches stay, all of them below the floor.
void prepare_checks(Worker *w) {
    if (!w->shadow) {
        void *shadow = mmap(nullptr, WINDOW_BYTES / GRANULE_BYTES * sizeof(SharedShadow),
                            PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                            -1, 0);
        if (shadow == MAP_FAILED) abort();
        w->shadow = (SharedShadow *)shadow;
    }
    if (w->top_clock > UINT32_MAX / 2 || w->cta_serial > UINT32_MAX / 2) {  // start over
        memset((void *)w->shadow, 0, WINDOW_BYTES / GRANULE_BYTES * sizeof(SharedShadow));
        w->top_clock = w->cta_serial = 0;
    }
    w->clocks.assign((size_t)w->num_threads * w->num_threads, 0);
    for (Barrier &barrier : w->barriers) barrier.clock.assign(w->num_threads, 0);
}

void start_cta_checks(Worker *w) {
    order_whole_cta(w);
    w->cta_serial++;
    w->release_epoch = 0;
    w->fenced = false;
    w->acquired.clear();
    w->atomic_addresses.clear();
    for (Barrier &barrier : w->barriers) {
        std::fill(barrier.clock.begin(), barrier.clock.end(), 0);
    }
}

static bool is_atomic(AccessKind kind) {
    return kind != AccessKind::read && kind != AccessKind::write;
}
static bool needs_a_value(AccessKind kind) {
    return kind != AccessKind::write && kind != AccessKind::atomic_write;
}

static const char *verb(AccessKind kind) {
    if (kind == AccessKind::read) return "read";
    return kind == AccessKind::write ? "write" : "atomic";
}

[[noreturn]] static void shared_race(Worker *w, const Access &earlier, AccessKind kind,
                                     const void *pointer, Place place) {
    char where[160];
    describe_shared(pointer, where, sizeof where);
    const char *earlier_verb =
        earlier.is(Access::atomic) ? "atomic" : earlier.is(Access::read) ? "read" : "write";
    const uint3 &other = w->fibers[earlier.thread()].thread_idx;
    fail_at_two("shared memory race", place, earlier.place,
                "%s of %s is not ordered with the earlier %s by thread (%u,%u,%u) at {other}: a "
                "__syncthreads() or __syncwarp() is missing",
                verb(kind), where, earlier_verb, other.x, other.y, other.z);
}

[[noreturn]] static void not_initialised(const SharedShadow &shadow, const void *pointer,
                                         Place place) {
    char where[160];
    describe_shared(pointer, where, sizeof where);
    if (shadow.initialised_by == COPY_PENDING) {
        fail_at_two("asynchronous copy not complete", place, shadow.write.place,
                    "%s is read before anybody waited for the copy into it at {other}", where);
    }
    fail_at("uninitialised shared memory", place, "%s is read, which this CTA never wrote", where);
}

static inline bool in_shared_memory(Worker *w, const char *pointer) {
    // Offsets below the window wrap around to large ones, which are in no dynamic memory.
    const size_t offset = pointer - w->window;
    if (offset < STATIC_WINDOW_BYTES) return launch.module->valid && launch.module->valid[offset];
    return (size_t)(pointer - self->dynamic_smem) < self->dynamic_smem_bytes;
}

static inline void check_shared_bounds(Worker *w, const char *pointer, size_t bytes,
                                       AccessKind kind, Place place) {
    const bool small = bytes <= SHARED_ARRAY_GAP_BYTES;  // both ends are then in one array
    if (small && in_shared_memory(w, pointer) && in_shared_memory(w, pointer + bytes - 1)) return;
    for (size_t i = 0; i < bytes; i++) {
        if (in_shared_memory(w, pointer + i)) continue;
        char where[160];
        describe_shared(pointer + i, where, sizeof where);
        fail_at("shared memory out of bounds", place, "%zu-byte %s reaches %s", bytes, verb(kind),
                where);
    }
}

// Keeps a read (or an atomic that another one follows) for later writes: in a free slot or one from
// before the last barrier, else in a random one.
static inline void remember(Worker *w, SharedShadow &shadow, const Access &access) {
    uint32_t slot = 0;
    while (slot < shadow.num_others && shadow.others[slot].clock() > w->floor_clock) slot++;
    if (slot == KEPT_ACCESSES) slot = (uint32_t)(random_bits(w) >> 20) % KEPT_ACCESSES;
    if (slot == shadow.num_others) shadow.num_others++;
    shadow.others[slot] = access;
    shadow.last_slot = (uint8_t)slot;
}

static inline Access make_access(Worker *w, AccessKind kind, Place place) {
    uint64_t flags = 0;
    if (kind == AccessKind::read) flags = Access::read;
    if (is_atomic(kind)) flags = Access::atomic;
    return Access(self->linear, clock_of(w, self->linear), flags, place);
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

static inline void write_granule(Worker *w, SharedShadow &shadow, const Access &write,
                                 AccessKind kind, const void *pointer) {
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
    if (shadow.initialised_by != w->cta_serial) shadow.initialised_bytes = 0;
    shadow.initialised_by = w->cta_serial;
    shadow.initialised_bytes |= write.bytes();
}

static inline void check_granule(Worker *w, SharedShadow &shadow, const Access &access,
                                 AccessKind kind, const void *pointer) {
    const bool initialised = shadow.initialised_by == w->cta_serial &&
                             (shadow.initialised_bytes & access.bytes()) == access.bytes();
    if (needs_a_value(kind) && !initialised) {
        not_initialised(shadow, pointer, access.place);
    }
    if (kind == AccessKind::read) {
        read_granule(w, shadow, access, pointer);
    } else {
        write_granule(w, shadow, access, kind, pointer);
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
    Worker *w = worker;
    each_granule((const char *)destination - w->window, bytes, [&](size_t g, size_t, uint8_t) {
        w->shadow[g].initialised_by = COPY_PENDING;
    });
}

// ---- TMA and wgmma ----
uint32_t current_clock() { return clock_of(worker, self->linear); }

void record_async_write(const void *pointer, size_t bytes, uint16_t thread, uint32_t clock,
                        Site site) {
    Worker *w = worker;
    each_granule((const char *)pointer - w->window, bytes, [&](size_t g, size_t, uint8_t mask) {
        SharedShadow &shadow = w->shadow[g];
        shadow.write = Access(thread, clock, Access::async, site);
        shadow.write.set_bytes(mask);
        shadow.num_others = 0;
        shadow.has_atomics = false;
        shadow.initialised_by = w->cta_serial;
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

// Ordinary stores reach TMA and wgmma only through fence.proxy.async, by the thread that stored or
// (after a barrier) by the one that issues.
void check_proxy_fence(const void *pointer, size_t bytes, Site site) {
    Worker *w = worker;
    each_granule((const char *)pointer - w->window, bytes, [&](size_t g, size_t byte, uint8_t) {
        const Access &write = w->shadow[g].write;
        const uint32_t writers_fence = w->fibers[write.thread()].proxy_fence_clock;
        const uint32_t own_fence = current_fiber()->proxy_fence_floor;
        if (write.is(Access::async) || write.clock() <= std::max(writers_fence, own_fence)) return;
        char where[160];
        describe_shared(w->window + byte, where, sizeof where);
        fail_at_two("proxy fence missing", site, write.place,
                    "%s was stored at {other} and no fence.proxy.async followed", where);
    });
}

static void check_global_granule(Worker *w, Buffer &b, size_t g, size_t byte, AccessKind kind,
                                 Place place) {
    GlobalShadow &shadow = b.shadow[g];
    const GlobalShadow last = shadow;
    if (needs_a_value(kind) && b.uninitialised && !last.launch) {
        fail_at("uninitialised global memory", place,
                "buffer '%s' is read at byte %zu, which no thread has written", b.name, byte);
    }
    const bool both_atomic = is_atomic(kind) && (last.epoch_and_atomic & 1);
    if (last.launch == launch.serial && !both_atomic) {
        const char *earlier = (last.epoch_and_atomic & 1) ? "changed atomically" : "wrote";
        if (last.cta != w->cta) {
            const auto known = w->acquired.find(last.cta);
            const bool ordered = known != w->acquired.end() &&
                                 known->second >= last.epoch_and_atomic >> 1;
            const bool own_atomic = (last.epoch_and_atomic & 1) &&
                                    w->atomic_addresses.count((uintptr_t)b.base + byte);
            if (!ordered && !own_atomic) {
                const uint32_t *grid = w->settings->grid;
                fail_at("global memory race", place,
                        "%s of buffer '%s' at byte %zu, which CTA (%u,%u,%u) %s in this launch",
                        verb(kind), b.name, byte, last.cta % grid[0], last.cta / grid[0] % grid[1],
                        last.cta / (grid[0] * grid[1]), earlier);
            }
        } else if (last.thread != self->linear && last.clock > w->floor_clock &&
                   clocks_of(w, self->linear)[last.thread] < last.clock) {
            const uint3 &other = w->fibers[last.thread].thread_idx;
            fail_at("global memory race", place,
                    "%s of buffer '%s' at byte %zu, which thread (%u,%u,%u) of the same CTA %s "
                    "with no barrier since",
                    verb(kind), b.name, byte, other.x, other.y, other.z, earlier);
        }
    }
    if (kind == AccessKind::read || kind == AccessKind::atomic_read) return;
    GlobalShadow now{};
    now.cta = w->cta;
    now.thread = (uint16_t)self->linear;
    now.launch = launch.serial;
    now.clock = clock_of(w, self->linear);
    now.epoch_and_atomic = w->release_epoch << 1 | is_atomic(kind);
    shadow = now;
}

static void check_global(Worker *w, Buffer &b, uintptr_t address, size_t bytes, AccessKind kind,
                         Place place) {
    const long long offset = (long long)(address - (uintptr_t)b.base);
    if (offset < 0 || offset + (long long)bytes > (long long)b.size) {
        fail_at("global memory out of bounds", place,
                "%zu-byte %s at byte %lld of buffer '%s' (%zu bytes)", bytes, verb(kind), offset,
                b.name, b.size);
    }
    const bool reads = kind == AccessKind::read || kind == AccessKind::atomic_read;
    if (!reads && b.read_only) {
        fail_at("write to an input", place, "%s of input buffer '%s' at byte %lld", verb(kind),
                b.name, offset);
    }
    if (b.read_only) return;  // nobody writes it
    each_granule((size_t)offset, bytes, [&](size_t g, size_t byte, uint8_t) {
        check_global_granule(w, b, g, byte, kind, place);
    });
}

void check_access(const volatile void *pointer, size_t bytes, AccessKind kind, Place place) {
    Worker *w = worker;
    if (!w || !w->in_cta || !w->settings->check || !bytes) return;
    const uintptr_t address = (uintptr_t)pointer;
    // The kernel's look at threadIdx and its like.
    if (address == (uintptr_t)&self) return;
    if (address - (uintptr_t)w->fibers < sizeof(Fiber) * w->num_fibers) return;

    const size_t offset = address - (uintptr_t)w->window;
    if (address - (uintptr_t)w->window_mapping < WINDOW_BYTES + 2 * WINDOW_GUARD_BYTES) {
        check_shared_bounds(w, (const char *)address, bytes, kind, place);
        Access access = make_access(w, kind, place);
        each_granule(offset, bytes, [&](size_t g, size_t byte, uint8_t mask) {
            access.set_bytes(mask);
            check_granule(w, w->shadow[g], access, kind, w->window + byte);
        });
        return;
    }
    const uintptr_t stack = (uintptr_t)w->stacks + self->linear * FIBER_STACK_BYTES;
    if (address - stack < FIBER_STACK_BYTES) return;
    if (w->last_buffer < buffers.size()) {  // most accesses hit the buffer of the one before
        Buffer &b = buffers[w->last_buffer];
        if (address - (uintptr_t)b.mapping < b.mapping_size) {
            return check_global(w, b, address, bytes, kind, place);
        }
    }
    if (Buffer *b = buffer_around(address)) {
        w->last_buffer = b - buffers.data();
        return check_global(w, *b, address, bytes, kind, place);
    }
    if (address - (uintptr_t)w->stacks < FIBER_STACK_BYTES * w->num_fibers) {
        fail_at("illegal address", place, "%s of another thread's local memory", verb(kind));
    }
    const bool constant = address >= launch.image_begin && address < launch.image_end;
    const bool argument = address - (uintptr_t)argument_values < sizeof argument_values ||
                          address - (uintptr_t)argument_pointers < sizeof argument_pointers;
    if (constant || argument) return;
    fail_at("illegal address", place, "%zu-byte %s at 0x%llx, which is in no buffer", bytes,
            verb(kind), (unsigned long long)address);
}

}  // namespace coh
