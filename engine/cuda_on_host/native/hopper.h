// State of Hopper's asynchronous instructions in one CTA.
#pragma once

namespace coh {

// Contents of the 128 bytes of a CUtensorMap as engine/base/launch_arguments.py encodes them,
// innermost dimension first.
struct TensorMapOnHost {
    uint64_t magic;
    uint64_t base;
    uint32_t rank, element_bytes;
    uint32_t swizzle;  // 0 none, 1: 32 bytes, 2: 64, 3: 128
    uint32_t box[5], dims[5];
    uint32_t padding;
    uint64_t stride_bytes[4];  // of dims[1:]
};
static_assert(sizeof(TensorMapOnHost) <= 128, "a tensor map has 128 bytes");
constexpr uint64_t TENSOR_MAP_MAGIC = 0x434f48544d41ull;

struct PendingTile {
    TensorMapOnHost map;
    void *shared;
    int coordinates[5];
    uint16_t thread;  // the issuing thread, as thread_of_cluster(), and its clock then
    uint32_t clock;
    KnownCtas known;  // the same clock, for a CTA of the cluster that waits for the tile
    Site site;
};

struct MbarrierWaiter {
    Fiber *fiber;
    int parity;
    bool *completed;  // result of its try_wait
    Site site;
};
// The last arrival, or the last expected copy; the report of a deadlock names both.
struct MbarrierUse {
    const Fiber *fiber;
    Site site;
};
struct Mbarrier {
    Worker *owner;    // worker of its CTA
    uint32_t offset;  // in that worker's window
    int arrivals, arrivals_missing;
    long long bytes_missing;
    int phase;           // parity of the phase in progress
    uint64_t completed;  // number of completed phases
    Site site;
    Site completed_by;  // the arrival that completed the last phase, if one did
    unsigned thread;  // the thread that initialised it, and its clock then
    uint32_t clock;
    MbarrierUse last_arrival, last_copy;
    std::vector<MbarrierWaiter> waiting;
    std::vector<PendingTile> tiles;      // TMA loads that will complete here
    Handover handover;        // of the arrivals (check build)
    Handover phase_handover;  // of the last completed phase
};

constexpr int WARPGROUP = 128;
// The accumulators of a chain of wgmmas, kept apart from the threads' registers until it is waited
// for.
struct Accumulator {
    float *registers[WARPGROUP];
    int n;
    int pending;  // operations in flight
    std::vector<float> matrix;  // [64, n]
    // Each thread's registers when it was last allowed to read them: [128, n / 2].
    std::vector<float> seen;
};
struct WgmmaOperation {
    size_t accumulator;  // index
    bool a_in_registers;
    uint32_t a_registers[WARPGROUP][4];
    uintptr_t a_places[WARPGROUP];  // addresses of A in the threads' memory, 0 if unknown
    Place a_written[WARPGROUP];     // where they were first written after the issue (check build)
    WgmmaOperands operands;
    Site site;
};
struct Warpgroup {
    std::vector<Accumulator> accumulators;
    std::vector<WgmmaOperation> operations;  // oldest first
    std::vector<size_t> group_sizes;         // of committed groups
    bool fenced_ever[WARPGROUP];
    bool fenced_since_wait[WARPGROUP];
};

// Registers that setmaxnreg moves between the warpgroups of a CTA.
struct RegisterPool {
    struct Waiting {
        size_t group;
        int count;  // per thread
        Site site;
        std::vector<Fiber *> fibers;
    };
    std::vector<int> held;  // per thread, of each warpgroup; empty until the first setmaxnreg
    std::vector<bool> has_asked;
    long long free = 0;
    std::vector<Waiting> waiting;
};

// The last phase of an mbarrier that a thread has waited for. The phase before the first is
// number -1.
struct LastWait {
    uint32_t offset;  // of the mbarrier
    long long phase;
    Site site;
};
// The destination of a completed copy, and the phase of the mbarrier that counted it.
struct LandedTile {
    const char *begin;
    size_t bytes;
    uint32_t offset;
    long long phase;
};

struct HopperState {
    std::vector<Mbarrier> mbarriers;
    std::vector<std::vector<PendingTile>> stores;         // of each thread, oldest first
    std::vector<std::vector<size_t>> store_group_sizes;   // of each thread
    std::vector<Warpgroup> warpgroups;
    RegisterPool registers;
    // Check build, of each thread: see mbarrier_waits.cpp.
    std::vector<LastWait> last_waits;
    std::vector<LandedTile> landed;
};

inline HopperState &hopper_of(Worker *w) {
    if (!w->hopper) w->hopper = new HopperState;
    return *w->hopper;
}
inline HopperState &hopper() { return hopper_of(worker); }

// tma.cpp
void land_tiles(Mbarrier &mbarrier);
// mbarrier_waits.cpp
void note_wait(const Mbarrier &mbarrier, const Fiber *fiber, Site site);
void note_landed(const Mbarrier &mbarrier, const PendingTile &tile, long long bytes);
bool describe_missed_wait(const void *pointer, char *text, size_t size);
void describe_last_wait(char *text, size_t size);
// wgmma.cpp
void check_product_registers(uintptr_t address, size_t bytes, AccessKind kind, Place place);
// mbarrier.cpp
void complete_phase_if_due(Mbarrier &mbarrier);
void check_mbarrier_fence(const Mbarrier &mbarrier, Site site);
// shared_checks.cpp, clocks.cpp
void record_async_write(const void *pointer, size_t bytes, uint16_t thread, uint32_t clock,
                        Site site);
void check_proxy_fence(const void *pointer, size_t bytes, Site site);
uint32_t current_clock();

}  // namespace coh
