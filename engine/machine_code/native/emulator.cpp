// Runs the warps of one CTA: integers, predicates, addresses and branches exactly, floating point by
// IEEE 754. Data from global memory and results of tensor cores are a stand-in (1.0), and every value that
// depends on one is marked, so that branches on it can be reported.
//
// execute.cpp compiles the same code with EXECUTES: with real memory, without marks and counts.
#include "decode.h"
#include "modifiers.h"

#ifndef EXECUTES
#define EXECUTES 0
#endif
constexpr bool REAL = EXECUTES;

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <stdexcept>

namespace {

constexpr uint32_t ONE = 0x3f800000u, HALF_ONES = 0x3c003c00u, FULL = 0xffffffffu;
constexpr uint64_t SHARED_WINDOW = 1u << 24;  // generic addresses below it are shared memory

// Upper words of generic addresses of shared and local memory. The lower word of a shared address is the
// CTA's number in the cluster and 24 bits of offset.
constexpr uint64_t SHARED_HIGH = 0x100, LOCAL_HIGH = 0x200;

enum Access : uint8_t {  // engine/machine_code/emulation.py: AccessKind
    GLOBAL_LOAD, GLOBAL_STORE, GLOBAL_ATOMIC, LOCAL_LOAD, LOCAL_STORE, SHARED_LOAD, SHARED_STORE,
    SHARED_ATOMIC, SHUFFLE, ASYNC_COPY, ASYNC_COMMIT, ASYNC_WAIT, BULK_LOAD, BULK_STORE, BULK_WAIT,
    MBARRIER_INIT, MBARRIER_ARRIVE, MBARRIER_WAIT, BARRIER, BARRIER_ARRIVE, TENSOR, TENSOR_WAIT,
    TENSOR_COMMIT, SET_REGISTERS
};

#include "lanes.h"

struct Row {
    uint8_t kind = 0;
    uint16_t wavefronts = 0, ideal_wavefronts = 0, sectors = 0, ideal_sectors = 0;
    uint32_t size_bytes = 0;
    uint64_t address = 0;
    int32_t amount = 0;
    auto key() const { return std::make_tuple(kind, wavefronts, ideal_wavefronts, sectors, ideal_sectors, size_bytes, address, amount); }
};

struct Trace {
    std::vector<int32_t> instruction, access;
    std::vector<uint8_t> lanes;
};

struct Code;
#include "request.h"
#if EXECUTES
#include "races.h"

constexpr uint32_t UNWRITTEN = 0x7fa57fa5u;  // unwritten memory: NaN in every floating format

inline void leave_unwritten(uint8_t* bytes, size_t size) {
    size_t b = 0;
    for (; b + 4 <= size; b += 4) std::memcpy(bytes + b, &UNWRITTEN, 4);
    for (; b < size; b++) bytes[b] = static_cast<uint8_t>(UNWRITTEN >> 8 * (b % 4));
}
#endif

struct Barrier {
    int arrived = 0, expected = 0;  // threads; expected 0: all of the CTA that have not exited
    int any = 0, every = 1, count = 0;
    bool votes = false;  // it reduces a value
#if EXECUTES
    Clock released;
#endif
};

struct MBarrier {
    int needed = 1, pending = 1, phase = 0;
    int64_t bytes = 0;  // expected minus arrived; counted with real memory
#if EXECUTES
    Clock pending_clock, done_clock;  // of the incomplete phase, and of the completed ones
#endif
};

#if EXECUTES
#include "quick.h"
#endif

struct Code {
    std::vector<Instruction> instructions;
    std::unordered_map<int64_t, int> index_of;  // by address
    std::string error;
#if EXECUTES
    int registers = RZ;  // number of registers that the code can name
    std::vector<Quick> quick;  // of each instruction
    std::deque<Lanes> constants;  // pointed to by `quick`
    std::vector<GroupForm> groups;  // indexed by `offset` of a wgmma
#endif
};

std::string place_of(const Instruction& i) {
    char where[32];
    std::snprintf(where, sizeof where, " at 0x%llx", static_cast<unsigned long long>(i.address));
    return i.name + where;
}

[[noreturn]] void fail(const Instruction& i, const std::string& what) { throw std::runtime_error(place_of(i) + " " + what); }

#include "tensor_map.h"
#include "hazards.h"

struct Cta;

#include "warp.h"
#include "cta.h"
#include "operands.h"
#include "arithmetic.h"
#include "floats.h"
#include "memory.h"
#include "control.h"
#if EXECUTES
#include "execute_tensor.h"
#include "execute_memory.h"
#include "execute_hopper.h"
#include "execute_tma.h"
#include "execute_wgmma.h"
#include "execute_quick.h"
#include "execute_quick_memory.h"
#include "execute_bind.h"
#include "execute_straight.h"
#endif

void decode_all(Code& code, const char* p, const int32_t* target, int count) {
    code.instructions.reserve(static_cast<size_t>(count));
    std::vector<std::string> parts;
    for (int n = 0; n < count; n++) {
        const char* end = std::strchr(p, '\n');
        if (!end) throw std::runtime_error("its listing is truncated");
        parts.clear();
        for (const char* from = p;; from = p + 1) {
            p = std::find(from, end, '\t');
            parts.emplace_back(from, p);
            if (p == end) break;
        }
        p = end + 1;
        if (parts.size() < 3) throw std::runtime_error("its listing has a line that is not an instruction");
        Instruction i = decode(parts[1], parts[2], {parts.begin() + 3, parts.end()});
        i.address = std::strtoll(parts[0].c_str(), nullptr, 10);
        i.target = target[n];
        if (REAL) i.unknown = unknown_modifier(i);
        code.index_of[i.address] = n;
        code.instructions.push_back(std::move(i));
    }
#if EXECUTES
    code.registers = registers_of(code.instructions);
    code.quick = bound(code.instructions, code.constants, code.groups);
#endif
}

void Cta::begin() {
    if (!request.code->error.empty()) throw std::runtime_error(request.code->error);
    smem.assign(request.smem_bytes, 0);
#if EXECUTES
    leave_unwritten(smem.data(), smem.size());
#endif
    const auto& b = request.block;
    const int threads = static_cast<int>(b[0] * b[1] * b[2]);
    for (int w = 0; w < (threads + 31) / 32; w++) warps.push_back(new Warp(*this, w));
}

#if !EXECUTES
void Cta::run() {
    begin();
    totals.assign(code.size() * 8, 0);
    data_branch.assign(code.size(), 0);
    data_address.assign(code.size(), 0);
    stand_in.assign(code.size(), 0);
    smem_marks.assign(request.smem_bytes / 4 + 1, 0);
    hazards.wanted = request.find_hazards;
    if (hazards.wanted) hazards.begin(request.smem_bytes, code.size());
    for (;;) {
        bool progress = false, left = false;
        for (Warp* w : warps) {
            progress |= w->run();
            left |= w->alive != 0;
        }
        if (!left) return share_bulk_bytes();
        if (!progress) {
            release_bars();
            bool free = false;
            for (const Warp* w : warps) free |= (w->alive & ~w->blocked) != 0;
            if (free) continue;
            deadlock();
        }
    }
}
#endif

#if EXECUTES
#include "execute_launch.h"
#endif

}  // namespace

extern "C" {

// text: one line per instruction, address \t guard \t mnemonic \t operand \t …; target: [count] index of
// the instruction to which it branches, -1 for none.
Code* sass_decode(const char* text, const int32_t* target, int32_t count) {
    Code* code = new Code;
    try {
        decode_all(*code, text, target, count);
    } catch (const std::exception& error) {
        code->error = error.what();
    }
    return code;
}

void sass_free_code(Code* code) { delete code; }

#if !EXECUTES
Cta* sass_emulate(const Request* request) {
    Cta* cta = new Cta(*request);
    try {
        cta->run();
    } catch (const std::bad_alloc&) {
        cta->error = "it takes more memory than there is";
    } catch (const std::exception& error) {
        cta->error = error.what();
    }
    return cta;
}

const char* sass_error(const Cta* cta) { return cta->error.empty() ? nullptr : cta->error.c_str(); }

// out: warps, executed instructions, rows, lines, control axes
void sass_sizes(const Cta* cta, int64_t* out) {
    out[0] = static_cast<int64_t>(cta->warps.size());
    out[1] = 0;
    for (const Warp* w : cta->warps) out[1] += static_cast<int64_t>(w->trace.instruction.size());
    out[2] = static_cast<int64_t>(cta->rows.size());
    out[3] = static_cast<int64_t>(cta->line.size());
    out[4] = cta->control_axes;
    out[5] = cta->steps;
}

void sass_totals(const Cta* cta, int64_t* totals, uint8_t* data_branch, uint8_t* data_address, uint8_t* stand_in) {
    std::copy(cta->totals.begin(), cta->totals.end(), totals);
    std::copy(cta->data_branch.begin(), cta->data_branch.end(), data_branch);
    std::copy(cta->data_address.begin(), cta->data_address.end(), data_address);
    std::copy(cta->stand_in.begin(), cta->stand_in.end(), stand_in);
}

void sass_trace(const Cta* cta, int64_t* warp_start, int32_t* instruction, uint8_t* lanes, int32_t* access) {
    int64_t at = 0;
    *warp_start++ = 0;
    for (const Warp* w : cta->warps) {
        std::copy(w->trace.instruction.begin(), w->trace.instruction.end(), instruction + at);
        std::copy(w->trace.lanes.begin(), w->trace.lanes.end(), lanes + at);
        std::copy(w->trace.access.begin(), w->trace.access.end(), access + at);
        at += static_cast<int64_t>(w->trace.instruction.size());
        *warp_start++ = at;
    }
}

void sass_rows(const Cta* cta, uint8_t* kind, uint16_t* wavefronts, uint16_t* ideal_wavefronts, uint16_t* sectors,
               uint16_t* ideal_sectors, uint32_t* size_bytes, uint64_t* address, int32_t* amount, int64_t* line_start,
               uint64_t* line, uint8_t* line_sectors) {
    for (const Row& row : cta->rows) {
        *kind++ = row.kind, *wavefronts++ = row.wavefronts, *ideal_wavefronts++ = row.ideal_wavefronts;
        *sectors++ = row.sectors, *ideal_sectors++ = row.ideal_sectors, *size_bytes++ = row.size_bytes;
        *address++ = row.address, *amount++ = row.amount;
    }
    std::copy(cta->line_start.begin(), cta->line_start.end(), line_start);
    std::copy(cta->line.begin(), cta->line.end(), line);
    std::copy(cta->line_sectors.begin(), cta->line_sectors.end(), line_sectors);
}

// out: [n] 0 if a barrier never ran, 1 if it orders nothing, 2 if it does. Returns false if not known.
bool sass_barriers(const Cta* cta, uint8_t* out) {
    std::copy(cta->hazards.barrier.begin(), cta->hazards.barrier.end(), out);
    return !cta->hazards.unclear;
}

void sass_free(Cta* cta) { delete cta; }
#else
// Runs the whole launch. 0: complete; 1: an error, described by `error` and `cta`; 2: out of time, with the
// place that it reached in `error` and `cta`.
int32_t sass_execute(const Request* request, int32_t threads, double timeout_s, char* error, int32_t error_bytes, uint32_t* cta, int64_t* steps) {
    Execution execution(*request);
    execution.deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(static_cast<int64_t>(timeout_s * 1e6));
    std::vector<std::thread> others;
    for (int32_t n = 1; n < threads; n++) others.emplace_back([&] { execution.work(); });
    execution.work();
    for (std::thread& each : others) each.join();
    const bool is_late = execution.error.empty() && execution.late;
    if (is_late) execution.stop();
    *steps = execution.steps;
    std::copy(execution.cta, execution.cta + 3, cta);
    if (request->hazards) {
        *request->hazard_count = static_cast<int32_t>(execution.hazards.size());
        int32_t n = 0;
        for (const auto& [key, hazard] : execution.hazards)
            if (n < request->hazard_capacity) request->hazards[n++] = hazard;
    }
    std::snprintf(error, static_cast<size_t>(error_bytes), "%s", execution.error.c_str());
    return is_late ? 2 : execution.error.empty() ? 0 : 1;
}
#endif
}
