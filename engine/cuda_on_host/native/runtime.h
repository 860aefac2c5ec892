// The runtime's own types: fibers, workers, barriers, buffers, the race detector's records.
//
// One worker is one host thread and runs one CTA at a time; the CTA's threads are fibers that take
// turns on it, so nothing inside a CTA needs a lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <bitset>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "cuda_on_host.h"
#include "ordering.h"
// The runtime is ordinary C++: undefine the keyword macros.
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#undef __align__
#undef malloc
#undef free

// ---- structures shared with the client (declared again in engine/cuda_on_host/runtime_process.py) ----
struct ReportedPlace {
    char file[128];  // empty if only the program counter is known
    uint32_t line;
    uint64_t program_counter;  // relative to the kernel library's load address; 0: unknown
};
struct Report {
    int32_t failed;  // 0: `message` is a warning, or empty
    int32_t has_thread;  // cta and thread are known
    uint32_t cta[3], thread[3];
    ReportedPlace place, other_place;  // `{other}` in the message stands for other_place
    char kind[64];
    char message[1600];
};
enum Schedule : int32_t { in_order, random_order, reverse_order };
struct LaunchSettings {
    uint32_t grid[3], block[3];
    uint32_t dynamic_smem_bytes;
    int32_t workers;
    int32_t schedule;  // a Schedule
    int32_t check;     // the library is a check build
    uint32_t finite_locals;  // numbers of local variables below: host_checks.h
    uint32_t cluster[3];     // CTAs of a cluster; 1, 1, 1 without clusters
    uint64_t seed;
    // Partial launch: linear indices of the CTAs that run. Null: all CTAs.
    const uint64_t *ctas;
    uint64_t num_ctas;
    // Probe: the first access of each CTA to a closed part of a sparse buffer, which ends the CTA.
    struct Touched *touched;
};
struct Touched {
    int32_t buffer;  // in order of allocation; -1: the CTA made no such access
    int64_t offset;
};

namespace coh {

// A source line or, for an access reported by the compiler's instrumentation, a program counter.
struct Place {
    const char *file = nullptr;  // null: `number` is a program counter
    uint64_t number = 0;

    Place() = default;
    Place(Site site) : file(site.file), number((uint64_t)site.line) {}
    static Place at_program_counter(uint64_t pc) {
        Place place;
        place.number = pc;
        return place;
    }
};

// ---- the shared window: static arrays first, then dynamic memory up to the window's end ----
constexpr size_t STATIC_WINDOW_BYTES = 256 << 10;
constexpr size_t DYNAMIC_WINDOW_BYTES = 256 << 10;
constexpr size_t WINDOW_BYTES = STATIC_WINDOW_BYTES + DYNAMIC_WINDOW_BYTES;
static_assert(WINDOW_BYTES == SHARED_WINDOW_BYTES, "what kernels are told");
constexpr size_t WINDOW_GUARD_BYTES = 64 << 10;     // inaccessible, on both sides
constexpr size_t SHARED_ARRAY_GAP_BYTES = 256;      // between static arrays
constexpr size_t DYNAMIC_SMEM_ALIGNMENT = 1024;     // required by a swizzled TMA tile
constexpr size_t MAX_DYNAMIC_SMEM_BYTES = 227 << 10;  // the largest of any GPU
constexpr size_t FIBER_STACK_BYTES = 256 << 10;
constexpr size_t PAGE_BYTES = 4096;
constexpr int MAX_THREADS_PER_CTA = 1024;
constexpr unsigned MAX_CLUSTER_SIZE = 16;  // non-portable, on an H100; the portable size is 8
constexpr int NUM_BARRIERS = 16;
constexpr unsigned WARP = 32;

// ---- race detector records (check build) ----
// Shared memory is tracked in granules of two bytes, which separates neighbouring 16-bit elements;
// a byte mask separates neighbouring 8-bit elements.
constexpr size_t GRANULE_BYTES = 2;
class Access {
public:
    enum Flag : uint64_t {
        atomic = 1ull << 56,  // atomics do not race with each other
        read = 1ull << 57,
        async = 1ull << 58,  // written by TMA: TMA and wgmma may read it without a proxy fence
        by_wgmma = 1ull << 59,  // read by wgmma through an operand's descriptor
    };
    Access() = default;
    // `thread`: number in the CTA combined with the CTA's rank in its cluster, see
    // thread_of_cluster().
    Access(unsigned thread, uint32_t clock, uint64_t flags, Place place)
        : place(place), packed_(clock | (uint64_t)thread << 32 | flags) {}
    void set_bytes(uint8_t mask) { packed_ = (packed_ & ~(0xffull << 48)) | (uint64_t)mask << 48; }
    uint32_t clock() const { return (uint32_t)packed_; }  // the thread's clock; 0: no access
    unsigned thread() const { return packed_ >> 32 & (MAX_THREADS_PER_CTA - 1); }
    unsigned rank() const { return (uint16_t)(packed_ >> 32) / MAX_THREADS_PER_CTA; }
    uint8_t bytes() const { return (uint8_t)(packed_ >> 48); }  // mask of the granule's bytes
    bool is(Flag flag) const { return packed_ & flag; }
    bool same(const Access &other) const { return packed_ == other.packed_; }  // not the place

    Place place;

private:
    uint64_t packed_ = 0;  // one word, as it is compared and copied for every access
};
constexpr uint32_t KEPT_ACCESSES = 4;
constexpr uint32_t COPY_PENDING = 0xffffffffu;
// Record of an access to global memory, stored per granule.
struct GlobalAccess {
    uint32_t cta, clock;
    uint32_t place;   // see places.cpp
    uint16_t launch;  // 0: no access
    uint16_t thread : 10, bytes : 2, atomic : 1, of_cta_scope : 1;
};
static_assert(sizeof(GlobalAccess) == 16, "bytes_needed in job_memory.py counts on it");
constexpr int KEPT_READS = 2;
struct GlobalReads {
    GlobalAccess last[KEPT_READS];  // of different threads
};
struct SharedShadow {
    Access write;
    Access others[KEPT_ACCESSES];  // reads, and atomics except the last one
    uint32_t num_others;
    uint32_t initialised_by;  // serial of the CTA that wrote it, or COPY_PENDING
    uint8_t initialised_bytes;
    bool has_atomics;   // among `others`
    uint8_t last_slot;  // of `others`
};

// Calls visit(granule, first byte, mask of bytes) for every granule of `bytes` bytes at `offset`.
template <class Visit>
inline void each_granule(size_t offset, size_t bytes, Visit visit) {
    static_assert(GRANULE_BYTES == 2, "the masks below are of two bytes");
    const size_t end = offset + bytes;
    for (size_t g = offset / 2; 2 * g < end; g++) {
        const uint8_t mask = (2 * g >= offset ? 1 : 0) | (2 * g + 1 < end ? 2 : 0);
        visit(g, std::max(offset, 2 * g), mask);
    }
}

struct Buffer {
    char name[64];  // "buffer 'out'"
    char *base;  // aligned to 256 bytes, as cudaMalloc does
    size_t size;
    char *mapping;  // guard | slack, data, slack | guard
    size_t mapping_size, guard_size;
    bool read_only;    // an input: the check build reports writes
    bool uninitialised;  // the check build reports reads of unwritten bytes
    bool sparse;         // most of it is closed: coh_allocate_sparse
    uint8_t *opened;  // whether each self-opening chunk is open; null: none opens itself
    // Check build: the last write of every granule, and reads after it.
    GlobalAccess *writes;
    GlobalReads *reads;
    bool is_read;
};

// ---- fibers ----
struct PendingCopy {
    void *destination;
    const void *source;
    unsigned bytes, source_bytes;
    Site site;
};
struct Worker;
struct Fiber : Thread {
    void *stack_pointer;
    Worker *owner;  // worker of its CTA
    bool finished;
    bool is_ready;              // in the ready queue
    Site asks_for_active{};     // where it waits for the result of __activemask()
    uint32_t active;            // that result, once it is known
    std::vector<PendingCopy> copies;      // cp.async, oldest first
    std::vector<uint32_t> copies_in_group;  // of each committed group
    uint32_t proxy_fence_clock;  // its shared stores up to this clock are visible to TMA and wgmma
    uint32_t proxy_fence_floor;  // and those of all threads up to this floor
    uint32_t mbarrier_fence_clock;  // and its mbarrier initialisations up to this clock
    uint64_t cluster_arrivals, cluster_waits;  // at barrier.cluster
    Site cluster_site;                         // of the last arrival
};
struct Barrier {
    int expected = 0;  // 0: every thread that has not returned
    int arrived = 0;
    Site site{};
    std::vector<Fiber *> waiting;
    Handover handover;  // of the arrivals (check build)
    // Of a named barrier: threads that used it since the last barrier of the whole CTA (check
    // build).
    std::bitset<MAX_THREADS_PER_CTA> users;
    int num_users = 0, counted = 0;
    int reduced = 0;
    bool reducing = false;
};
struct WarpOperation {
    bool in_use = false;
    uint32_t mask = 0, arrived = 0;
    Collective operation = nullptr;
    Site site{};
    void *operand[WARP];
    Fiber *fiber[WARP];
};
constexpr int WARP_OPERATIONS = WARP;  // collectives that a warp may have in progress at once
struct GroupOperation {
    bool in_use = false;
    int expected = 0, arrived = 0;
    Collective operation = nullptr;
    Site site{};
    std::vector<void *> operand;
    std::vector<Fiber *> waiting;
};
struct OwnAtomic {
    uintptr_t location;
    uint64_t changes;  // of the location, including this one
};
// A reported race whose thread continues to its next wait, to find out whether it reaches the
// barrier at which others wait, and which value it writes.
struct OpenRace {
    bool is_open = false, both_write = false;
    size_t reason_begin = 0;  // offset in the report's message
    Site waited{};            // the barrier of the whole CTA at which others wait
    size_t num_waiting = 0;
    const char *address = nullptr;  // of the racing access, once it is recorded
    size_t bytes = 0;
    char before[16];
};

struct HopperState;  // mbarriers, TMA and wgmma in flight: hopper.h
struct Cluster;      // CTAs of a cluster: cluster.h

struct Worker {
    const LaunchSettings *settings = nullptr;
    // Each CTA of a cluster has a worker; all of them take turns on one host thread, that of the
    // leader, which has rank 0.
    Worker *leader = this;
    Cluster *cluster = nullptr;      // null without clusters
    Cluster *own_cluster = nullptr;  // owned by the leader
    unsigned rank = 0;
    Fiber *fibers = nullptr;
    char *stacks = nullptr;
    unsigned num_fibers = 0;  // allocated
    char *window_mapping = nullptr, *window = nullptr;
    char *dynamic_smem = nullptr;
    char *signal_stack = nullptr;
    void *scheduler_stack_pointer = nullptr;
    sigjmp_buf fault_exit;
    volatile bool in_cta = false;  // of the leader: a CTA of its cluster is running
    Touched touched{};  // of the CTA that is probed
    pthread_t host_thread{};

    unsigned num_threads = 0;  // of this launch's CTAs
    unsigned alive = 0;
    std::vector<uint16_t> ready;  // ring buffer of fiber numbers
    unsigned ready_head = 0, num_ready = 0;
    uint64_t random_state = 1;
    uint64_t spins = 0;  // yields since the last progress
    uint64_t turns_without_progress = 0;  // the same for calls of end_try_waits
    std::chrono::steady_clock::time_point spinning_since;
    uint32_t cta = 0;  // linear index
    Site touching{};  // the kernel's line for which the runtime accesses memory

    Barrier barriers[NUM_BARRIERS];
    int barrier_result = 0;
    std::vector<WarpOperation> warp_operations;
    std::vector<uint32_t> warp_operations_in_use;  // per warp, one bit per operation
    std::vector<GroupOperation> group_operations;
    HopperState *hopper = nullptr;

    // check build: see clocks.cpp
    SharedShadow *shadow = nullptr;
    std::vector<uint32_t> clocks;  // [num_threads, num_threads]
    uint32_t floor_clock = 0;      // accesses up to this clock happened before all later ones
    uint32_t top_clock = 0;        // no thread's clock is larger
    uint32_t cta_serial = 0;
    bool is_copying = false;        // the access being checked is made by a copy
    uint32_t running_products = 0;  // one bit per warpgroup with a pending wgmma
    OpenRace race;
    bool reads_by_descriptor = false;  // an operand of a wgmma is being read
    size_t last_buffer = 0;
    bool uses_fences = false;  // this CTA has used fences, so `orders` is in use
    std::vector<MemoryOrder> orders;  // of each thread
    std::unordered_map<uintptr_t, SyncLocation> shared_locations;  // atomics in shared memory
    std::unordered_map<uintptr_t, OwnAtomic> own_atomics;          // of this CTA in global memory
    bool passed_cluster_barrier = false;  // all CTAs of the cluster have started
    std::map<unsigned, Access> remote_accesses;  // to its shared memory: each thread's last
    KnownCtas known_at_exit;                     // to the threads that have returned
};

extern __thread Worker *worker __attribute__((tls_model("initial-exec")));
inline Fiber *current_fiber() { return static_cast<Fiber *>(self); }
// The running thread as stored in an `Access`.
inline unsigned thread_of_cluster() { return worker->rank * MAX_THREADS_PER_CTA + self->linear; }
// While it lives, a fault in the runtime is reported at the given line of the kernel.
class Touching {
public:
    explicit Touching(Site site) { worker->touching = site; }
    ~Touching() { worker->touching = Site{}; }
};
inline bool checking() { return worker->settings->check != 0; }

// ---- the launch in flight ----
struct Launch {
    std::mutex report_mutex;
    Report report;
    std::atomic<bool> aborted{false};
    Module *module = nullptr;
    void (*entry)(void **) = nullptr;
    void **arguments = nullptr;
    uintptr_t image_begin = 0, image_end = 0;  // the kernel library in memory
    uintptr_t data_begin = 0, data_end = 0;    // the writable part of it
    uint16_t serial = 0;                       // from 1: GlobalAccess.launch
    uint64_t num_ctas = 0;
    // Workers run one cluster at a time, or one CTA without clusters.
    uint64_t num_clusters = 0, cluster_stride = 1, first_cluster = 0;
    unsigned cluster_size = 1;
    uint64_t num_together = 1;  // CTAs that can run concurrently
    std::atomic<uint64_t> next_cluster{0};
    std::mutex workers_mutex;
    std::vector<Worker *> running;
};
extern Launch launch;
extern std::vector<Buffer> buffers;
extern Buffer device_variables;  // the kernel library's writable memory
// Argument values, readable by instrumented code.
constexpr size_t MAX_ARGUMENTS = 64;
constexpr size_t ARGUMENT_SLOT_BYTES = 4096;
extern char argument_values[MAX_ARGUMENTS][ARGUMENT_SLOT_BYTES];
extern void *argument_pointers[MAX_ARGUMENTS];

// ---- errors.cpp ----
// Records the launch's first error and leaves the CTA. Does not return.
[[noreturn]] void fail_at(const char *kind, Place place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
[[noreturn]] void fail_at_two(const char *kind, Place place, Place other, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void warn(const char *kind, Place place, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Returns whether it is the launch's first error.
bool record_error(const char *kind, Place place, Place other, const char *format,
                  va_list arguments);
bool record_error_at_two(const char *kind, Place place, Place other, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
[[noreturn]] void leave_cta();

// ---- scheduler.cpp ----
void make_ready(Worker *w, Fiber *fiber);
void switch_to(Fiber *next, void **save);  // saves the running fiber's stack pointer
void note_progress(Worker *w);
Fiber *next_ready(Worker *w);
Fiber *next_or_deadlock(Worker *w);
void run_others(Worker *w, Fiber *me);  // returns when `me` is picked again
uint64_t random_bits(Worker *w);

// ---- memory.cpp ----
Buffer *buffer_around(uintptr_t address);  // including its guards; null if none
bool is_on_heap(uintptr_t address, size_t bytes);  // allocated by malloc() in kernels

// ---- barriers.cpp ----
void release_barrier(Worker *w, Barrier &barrier, Fiber *releaser);
void release_barriers_of_the_living(Worker *w);
void warn_of_open_barriers(Worker *w);
void describe_shared_barriers(const Worker *w, char *text, size_t size);

// ---- checks.cpp, clocks.cpp, shared_checks.cpp, global_checks.cpp ----
enum class AccessKind { read, write, atomic, atomic_read, atomic_write };
inline bool is_atomic(AccessKind kind) {
    return kind != AccessKind::read && kind != AccessKind::write;
}
inline bool needs_a_value(AccessKind kind) {
    return kind != AccessKind::write && kind != AccessKind::atomic_write;
}
inline const char *verb(AccessKind kind) {
    if (kind == AccessKind::read) return "read";
    return kind == AccessKind::write ? "write" : "atomic";
}
// Checks and records one access (check build only; returns at once otherwise). `scope` is that of an
// atomic.
void check_access(const volatile void *pointer, size_t bytes, AccessKind kind, Place place,
                  Scope scope = Scope::gpu);
// Completes the report of a race by what its thread did next. `passed_by`: it passed the barrier at
// which others wait.
void settle_race(Worker *w, bool passed_by);
// Marks shared bytes as the destination of a copy in flight.
void mark_copy_pending(const void *destination, size_t bytes);
void describe_shared(const void *pointer, char *text, size_t size);
Worker *owner_of(const void *pointer);  // the CTA whose shared window contains it, or null
inline uint32_t *clocks_of(Worker *w, unsigned thread) {
    return &w->clocks[(size_t)thread * w->num_threads];
}
void join_clock(uint32_t *into, const uint32_t *from, unsigned n);
const uint32_t *released_clocks(Worker *w, unsigned thread);  // for joining; the own one is current
void advance_clock(Worker *w, unsigned thread);
void order_whole_cta(Worker *w);  // after a barrier of all threads
bool happened_before(Worker *w, const Access &access, unsigned thread);
void start_cta_checks(Worker *w);
void prepare_checks(Worker *w);

// ---- places.cpp ----
uint32_t compress(Place place);
Place expand(uint32_t compressed);

// ---- ordering.cpp ----
KnownCtas joined(const KnownCtas &a, const KnownCtas &b);
void reset(Worker *w, Handover &handover);
void hand_over(Worker *w, Handover &handover, unsigned thread);
void hand_over_order(Worker *w, Handover &handover, unsigned thread);  // all except the clocks
void take_over(Worker *w, const Handover &handover, unsigned thread);
void take_over_order(Worker *w, const Handover &handover, unsigned thread);
[[nodiscard]] std::unique_lock<std::mutex> order_by_atomic(const void *address, size_t bytes,
                                                           AccessKind kind, Order order,
                                                           Scope scope, Site site);
bool last_change_is_own(Worker *w, uintptr_t address);
void forget_locations();  // at the start of a launch

// ---- async_copy.cpp ----
void land_copies(Fiber *fiber, size_t count);

// ---- hopper: mbarrier.cpp, tma.cpp, wgmma.cpp ----
void reset_hopper(Worker *w);
bool land_waited_copies(Worker *w);  // true if a copy completed and a thread became ready
bool end_try_waits(Worker *w);       // true if threads in try_wait were resumed
size_t describe_mbarriers(Worker *w, char *text, size_t size, Site &first);
void warn_of_open_phases(Worker *w);
void finish_hopper(Fiber *fiber);  // when a thread returns
void change_registers_of_group(void **threads, uint32_t);  // a Collective: warp_registers.cpp
size_t describe_register_waits(Worker *w, char *text, size_t size, Site &first);

}  // namespace coh
