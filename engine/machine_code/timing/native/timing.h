// The flat arrays that Python passes to the timing model, and its results.
//
// Plain data only; engine/machine_code/timing/native.py declares the same structures. Cycles are those of the
// SM. The arrays of a trace are described in engine.machine_code.emulation.CtaTrace.
#pragma once

#include <cstdint>

namespace attune_timing {

// In the order of engine.machine_code.disassembly.Pipe.
enum Pipe : int32_t {
    FMA, ALU, XU, FP64, TENSOR, SHARED, GLOBAL, UNIFORM, SYNC, BRANCH, OTHER,
    NUM_PIPES
};

// Ports that the four partitions share, after the pipes.
enum Port : int32_t { SHARED_PORT, L1_TAGS, L2_PORT, NUM_PORTS };

// In the order of engine.machine_code.emulation.AccessKind.
enum Kind : uint8_t {
    GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC, LOCAL_LOAD, LOCAL_STORE,
    SHARED_LOAD, SHARED_STORE, SHARED_ATOMIC, SHUFFLE,
    ASYNC_COPY, ASYNC_COMMIT, ASYNC_WAIT,
    BULK_LOAD, BULK_STORE, BULK_WAIT,
    MBARRIER_INIT, MBARRIER_ARRIVE, MBARRIER_WAIT,
    BARRIER, BARRIER_ARRIVE,
    TENSOR_PRODUCT, TENSOR_WAIT, TENSOR_COMMIT, SET_REGISTERS,
    NO_ACCESS
};

// Why a warp did not issue, in the order of engine.machine_code.timing.constants.StallReason.
enum Reason : int32_t {
    SELECTED, WAIT, LONG_SCOREBOARD, SHORT_SCOREBOARD, BARRIER_STALL, MEMBAR, MATH_PIPE_THROTTLE,
    MIO_THROTTLE, LG_THROTTLE, NOT_SELECTED, NO_INSTRUCTION, GMMA,
    NUM_REASONS
};

// One machine instruction.
struct Op {
    int32_t pipe;
    int32_t stall, write_barrier, read_barrier, wait_mask;  // scoreboards; -1: none
    int32_t first_unit_only;   // uses only the first of the FMA pipe's units
    int32_t result_cycles;     // latency of the result: from issue, or from the end of the pass through the port
    int32_t read_cycles;       // until its registers have been read, likewise
    int32_t code_line;         // index of its line of 128 bytes
    int32_t uses_l1;           // a load that may hit in L1 and allocates there
    int32_t is_fence;          // waits for this warp's stores
    int32_t is_warpgroup;      // wgmma: asynchronous
    int32_t closes_group;      // ends a group of wgmmas
    int32_t reads[3];          // register by operand slot, -1: none; + 256 if it is kept for reuse
    float pipe_cycles;         // cycles that occupy the partition's pipe
    float passes;              // minimum number of passes through the shared-memory port
};

struct Machine {
    int32_t fma_units;
    int32_t operand_window;    // cycles in which an FMA or ALU instruction can read its registers
    int32_t queue_depth;       // memory instructions that a partition can queue, at most 16
    int32_t dispatch_cycles;   // between two memory instructions that leave the partition
    int32_t barrier_cycles;
    int32_t l1_cycles, l2_cycles;
    int32_t l1_lines;          // capacity; 0: no L1 hits
    int32_t fetch_cycles;      // per 128 bytes of code that the SM has not fetched before
    int32_t cta_start_cycles;  // from a slot becoming free to the next CTA's first instruction
    int32_t stagger_cycles;    // between the starts of an SM's first CTAs
    int32_t bulk_copy_cycles;  // beyond l2_cycles, from the instruction to the first byte
    int32_t shared_pass_cycles;  // of 128 bytes through the port to shared memory and L1
    int32_t arrive_cycles;     // for each lane that arrives at an mbarrier, one after the other
    int32_t lookup_bytes;      // bytes of neighbouring lines that L1's tags look up in one cycle
    int32_t registers;         // per thread, before any setmaxnreg
    int32_t product_queue;     // wgmmas that can be queued for a partition's tensor core
    int32_t warpgroup_cycles;  // latency of a wgmma after its last pass
    float cycles_per_sector;   // this SM's share of the L2 bandwidth
    float shared_bytes_per_cycle;
};

struct Trace {                 // of one CTA
    const int64_t* warp_start;
    const int32_t* instruction;
    const int32_t* access;
    const uint8_t* kind;
    const uint16_t* wavefronts;
    const uint16_t* sectors;
    const uint32_t* size_bytes;
    const uint64_t* address;
    const int32_t* amount;
    const int64_t* line_start;
    const uint64_t* line;
    const uint8_t* line_sectors;
    int32_t num_warps;
};

struct Launch {
    const Machine* machine;
    const Op* ops;
    const Trace* traces;
    const int32_t* queue;      // [num_ctas]: index of each CTA's trace, in launch order
    int32_t num_code_lines, num_ctas, resident, num_sms;
};

// A recorded event.
enum EventKind : int32_t { ISSUED, PRODUCT, COPY };

struct Event {
    double begin, end;         // of the stall before an issue, of a product, of a copy in flight
    int32_t kind, cta, warp, op;
    int32_t reason;            // most frequent reason of the stall
    int32_t partition;
};

struct Result {
    double* started;           // [num_ctas]
    double* finished;          // [num_ctas]
    double* stalls;            // [ops, NUM_REASONS], warp cycles; null: not wanted
    double* busy;              // [NUM_PIPES + NUM_PORTS]
    double cycles;
    int64_t issued;
    Event* events;             // [max_events]; null: not wanted
    int64_t max_events, num_events;
};

}  // namespace attune_timing
