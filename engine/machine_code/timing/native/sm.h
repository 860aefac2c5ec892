// State of one simulated SM: resident CTAs and warps, the four partitions, shared units.
//
// The methods of `Sm` are defined in ctas.h, issue.h, memory_pipes.h, products.h and synchronise.h. All are
// included by timing.cpp: one translation unit, so that the compiler inlines them.
#pragma once

#include "timing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace attune_timing {
namespace {

constexpr int PARTITIONS = 4;
constexpr int SCOREBOARDS = 6;
constexpr int OPERAND_SLOTS = 3;
constexpr int BANKS = 2;
constexpr int KEPT = 256;
constexpr int NAMED_BARRIERS = 16;
constexpr int MAX_QUEUE = 16;
constexpr int WARP_SIZE = 32;
constexpr int SECTOR_BYTES = 32;
// Issue targets besides the pipes.
constexpr int FIRST_UNIT_SLOT = NUM_PIPES, QUEUE_SLOT = NUM_PIPES + 1;
// Rare code, kept out of the function that every instruction runs through, where it would cost registers.
#define OUT_OF_LINE __attribute__((noinline))

constexpr double NEVER = std::numeric_limits<double>::infinity();

// By value: with references, compilers do not use the single instruction.
inline double later(double a, double b) { return a > b ? a : b; }
inline double earlier(double a, double b) { return a < b ? a : b; }

struct Warp {
    int32_t cta = -1;          // index among the CTAs of its SM
    int32_t partition = 0;
    int32_t place = 0;         // index in the partition's arrays
    int32_t number = 0;        // number in its CTA
    const Trace* trace = nullptr;
    int64_t position = 0, end = 0;  // in the trace
    double issued = 0;         // cycle of the last issue, or of the start
    double stalled = 0;        // when its stall count expires
    double released = 0;       // when its barrier or wait ends
    double fetched = 0;        // when its code has been fetched
    int32_t released_by = BARRIER_STALL;
    bool waits = false;        // until another warp releases it
    int32_t registers = 0;     // per thread; changed by setmaxnreg
    double clear[SCOREBOARDS] = {};    // when each scoreboard is released
    int32_t holds[SCOREBOARDS] = {};   // what it waits for
    double copies = 0, bulk_stores = 0, stores = 0;  // when the last one issued completes
    std::vector<double> copy_groups;   // `copies` at the end of each group
    // wgmmas of its warpgroup: when each started one completes; number of wgmmas up to the end of each group.
    std::vector<double> products;
    std::vector<size_t> product_groups;
    size_t products_issued = 0, products_awaited = 0;
};

// A warp's quarter of a wgmma that is queued for its tensor core.
struct Product {
    int32_t warp, op;
    double issued, operands;           // issued: cycle; operands: passes through the shared-memory port
};

struct NamedBarrier {
    int32_t arrived = 0, expected = 0;  // warps
    std::vector<int32_t> waiting;
};

struct Mbarrier {
    int32_t needed = 1, arrived = 0;
    int64_t bytes = 0;                  // expected minus arrived
    double last = 0;                    // when the last one arrives
    std::vector<double> phases;         // when each completed phase ended
    std::vector<std::pair<int32_t, int32_t>> waiting;  // (warp, phase)
};

struct Cta {
    int32_t number = 0, running = 0;  // number: index in the launch's queue
    NamedBarrier barriers[NAMED_BARRIERS];
    int64_t free_registers = 0;         // released by setmaxnreg: registers per thread, summed over warps
    std::vector<std::pair<int32_t, int32_t>> short_of_registers;  // (warp, wanted)
    std::unordered_map<uint64_t, Mbarrier> mbarriers;
};

struct Partition {
    // Arrays of the resident warps, oldest first, kept together because the scheduler scans them.
    std::vector<int32_t> warps;
    std::vector<double> ready;         // as Warp::ready; NEVER while it waits for another warp
    std::vector<uint8_t> slot;         // index in `free_at` of its next issue target
    // When each issue target is free: pipes, the FMA pipe's first unit, the queue of products.
    double free_at[QUEUE_SLOT + 1] = {};
    double clock = 0;
    double next = 0;                   // cycle of its next issue, unless `changed`
    int32_t chosen = -1;               // the warp that issues then
    bool changed = true;
    int32_t last = -1;                 // the warp that issued last
    double unit_free[4] = {};          // units of the FMA pipe
    double pipe_free[NUM_PIPES] = {};
    std::deque<Product> products;      // not yet started, in order of issue
    double bank_free[BANKS] = {};
    int32_t kept_warp[BANKS][OPERAND_SLOTS], kept_register[BANKS][OPERAND_SLOTS];
    double queue[MAX_QUEUE] = {};      // ring: when its last entries leave
    int32_t queue_at = 0;
    double dispatch_free = 0;

    Partition() {
        std::memset(kept_warp, -1, sizeof kept_warp);
        std::memset(kept_register, -1, sizeof kept_register);
    }
};

struct Line {
    uint8_t sectors = 0;
    double there = 0;
};

class Sm {
public:
    Sm(const Launch& launch, Result& result)
        : in(launch), m(*launch.machine), out(result), code(launch.num_code_lines, -1.0) {}

    // Starts CTA `number` of the queue in a free slot.
    void start_cta(int32_t number, double begin);

    // Advances to the cycle in which a slot becomes free. Returns false if the remaining warps deadlock.
    bool run_to_free_slot();

    bool is_idle() const { return running_ctas == 0 && free_slots == 0; }
    double freed() const { return slot_freed; }
    double ended() const { return end; }

private:
    const Launch& in;
    const Machine& m;
    Result& out;
    std::vector<Cta> ctas;             // CTAs that started on this SM
    std::vector<Warp> warps;
    std::vector<int32_t> free_warps;
    Partition partitions[PARTITIONS];
    int32_t running_ctas = 0, next_partition = 0;
    int32_t free_slots = 0;            // slots that became free and are not reported yet
    double slot_freed = 0;             // when the last slot became free
    double bulk_writes = 0;            // remaining port passes of bulk copies
    double arrivals_free = 0;          // when mbarriers have processed all arrivals so far
    double port_free = 0, tags_free = 0, l2_free = 0, fetch_free = 0, end = 0;
    std::vector<double> code;          // cycle at which each line is available, -1: never requested
    std::unordered_map<uint64_t, Line> l1;
    std::vector<uint64_t> l1_order;
    size_t l1_oldest = 0;

    // ---- CTAs start and end: ctas.h ----

    void finish_cta(int32_t n, double now);
    void retire(Partition& p, int32_t id, double now);

    // ---- when a warp may issue, and issue: issue.h ----

    void prepare(Warp& w);
    double fetch(const Op& op, double now);
    static int32_t slot_of(const Op& op);
    int first_free(const Partition& p) const;
    void update_free(Partition& p, int32_t pipe) const;
    double able(const Partition& p, size_t i) const;
    void look_ahead(Partition& p) const;
    bool choose(Partition& p) const;
    void issue(Partition& p, int32_t id, double now);
    static void take(double& free, double now, double cycles);
    void follow(int32_t kind, const Warp& w, int32_t op, double begin, double at,
                int32_t reason = SELECTED);
    void attribute(const Partition& p, const Warp& w, const Op& op, int32_t op_index, double now);
    static void set(Warp& w, int32_t barrier, double clear, bool is_long);
    double read_registers(Partition& p, int32_t id, const Op& op, double now);

    // ---- memory: memory_pipes.h ----

    double take_port(double from, double passes);
    double take_l2(double from, double sectors);
    void memory(Partition& p, Warp& w, const Op& op, const Trace& trace, int32_t row, double now,
                double& result, double& read);
    int lookups(const uint64_t* line, const uint64_t* end) const;
    double through_l1(const Warp& w, const Op& op, const Trace& trace, int64_t first, int64_t last,
                      double begin);
    uint64_t key(const Warp& w, uint64_t line) const;
    void keep_in_l1(uint64_t line, uint8_t sectors, double there);

    // ---- wgmma: products.h ----

    void product(Partition& p, Warp& w, int32_t id, int32_t op_index, uint32_t shared_bytes,
                 double now);
    bool begin_products(double now);
    static void await_products(Warp& w, size_t allowed);

    // ---- synchronisation of warps: synchronise.h ----

    static void release(Warp& w, double at, int32_t reason);
    static double all_but(const std::vector<double>& groups, int32_t allowed);
    void synchronise(Warp& w, int32_t id, const Trace& trace, int32_t row, uint8_t kind, double now);
    void set_registers(Warp& w, int32_t id, int32_t wanted, double now);
    void open_if_complete(Cta& cta, NamedBarrier& barrier, double now);
    void wake(std::vector<int32_t>& waiting, double at, int32_t reason);
    void mbarrier_landed(Warp& w, uint64_t address, int64_t bytes, double at);
    void end_phase(Mbarrier& barrier);
};

}  // namespace
}  // namespace attune_timing
