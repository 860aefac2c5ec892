// State of Hopper's asynchronous instructions in one CTA.
#pragma once

namespace coh {

// What engine/base/launch_arguments.py encodes into the 128 bytes of a CUtensorMap, innermost
// dimension first.
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
    uint16_t thread;  // that issued it, as thread_of_cluster(), and its clock then
    uint32_t clock;
    KnownCtas known;  // that clock, for another CTA of the cluster that will wait for the tile
    Site site;
};

struct MbarrierWaiter {
    Fiber *fiber;
    int parity;
    bool *completed;  // what its try_wait returns
    Site site;
};
// Who arrived last, or asked for the last copy: a deadlock names both sides.
struct MbarrierUse {
    const Fiber *fiber;
    Site site;
};
struct Mbarrier {
    Worker *owner;    // of its CTA
    uint32_t offset;  // in that one's window
    int arrivals, arrivals_missing;
    long long bytes_missing;
    int phase;           // parity of the phase in progress
    uint64_t completed;  // phases
    Site site;
    Site completed_by;  // the arrival that completed the last phase, if one did
    unsigned thread;  // that initialised it, and its clock then
    uint32_t clock;
    MbarrierUse last_arrival, last_copy;
    std::vector<MbarrierWaiter> waiting;
    std::vector<PendingTile> tiles;      // TMA loads that will complete here
    Handover handover;        // of the arrivals (check build)
    Handover phase_handover;  // of the last completed phase
};

constexpr int WARPGROUP = 128;
// The accumulators of one wgmma chain, away from the registers until it is waited for.
struct Accumulator {
    float *registers[WARPGROUP];
    int n;
    int pending;  // operations in flight
    std::vector<float> matrix;  // [64, n]
    // What each thread's registers held when it last had a right to look: [128, n / 2].
    std::vector<float> seen;
};
struct WgmmaOperation {
    size_t accumulator;  // index
    bool a_in_registers;
    uint32_t a_registers[WARPGROUP][4];
    uintptr_t a_places[WARPGROUP];  // of those in the threads' memory, 0 where unknown
    Place a_written[WARPGROUP];     // where they were written first since then (check build)
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

// What setmaxnreg hands round among the warpgroups of a CTA.
struct RegisterPool {
    struct Waiting {
        size_t group;
        int count;  // a thread
        Site site;
        std::vector<Fiber *> fibers;
    };
    std::vector<int> held;  // by each thread of a warpgroup; empty until one asks
    std::vector<bool> has_asked;
    long long free = 0;
    std::vector<Waiting> waiting;
};

// The last wait of a thread for an mbarrier: it knows that phase to be complete. The one before the
// first is number -1.
struct LastWait {
    uint32_t offset;  // of the mbarrier
    long long phase;
    Site site;
};
// Where a copy has come to lie, and the phase of the mbarrier that it counts in.
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
// checks.cpp
void record_async_write(const void *pointer, size_t bytes, uint16_t thread, uint32_t clock,
                        Site site);
void check_proxy_fence(const void *pointer, size_t bytes, Site site);
uint32_t current_clock();

}  // namespace coh
