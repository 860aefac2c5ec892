// Checks of accesses to global memory: bounds, initialisation, races.
//
// Of buffers and __device__ variables every granule keeps its last write in this run
// and two reads after it. That finds reads of unwritten data, and conflicts between threads, of the
// same or different CTAs, that are ordered neither by a barrier nor by fences and atomics
// (ordering.h).
namespace coh {

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
                    !is_same_line ? "" : ": both write it on the same source line: its index leaves "
                                         "out what distinguishes the two threads (a row, a column, "
                                         "a lane or a warp)");
    }
    const MemoryOrder &mine = w->orders[self->linear];
    const char *missing =
        "no fences (__threadfence()) with an atomic between them order the two";
    if (earlier.atomic && now.atomic) {
        missing = "atomics of CTA scope do not reach another CTA";
    } else if (knows(mine.observed, earlier)) {
        missing = "the reader needs a __threadfence() between the atomic that observed the write "
                  "and this access";
    } else if (find_cta(mine.heard, earlier.cta) && !knows(mine.heard, earlier)) {
        missing = "nothing orders that access before the atomic by which another thread of its CTA "
                  "signalled it: a __syncthreads() is missing before the arrival";
    } else if (find_cta(mine.observed, earlier.cta) || find_cta(mine.acquired, earlier.cta)) {
        missing = "that thread executed no __threadfence() between its access and the atomic that "
                  "signalled it";
    }
    const uint32_t *grid = w->settings->grid;
    if (is_same_line) {
        missing = "both write it on the same source line: its index leaves out what distinguishes "
                  "the two CTAs (a head, a batch, a tile or a split), or runs past the end into the "
                  "other CTA's part";
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
                "CTA that writes it has arrived (check the number of arrivals that it waits for), "
                "the two compute different indices, or the element belongs to an empty part",
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

}  // namespace coh
