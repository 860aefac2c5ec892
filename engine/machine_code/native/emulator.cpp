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

struct alignas(64) Lanes {
    uint32_t v[32];
    uint32_t& operator[](int lane) { return v[lane]; }
    uint32_t operator[](int lane) const { return v[lane]; }
};

struct alignas(64) Wide {
    uint64_t v[32];
    uint64_t& operator[](int lane) { return v[lane]; }
    uint64_t operator[](int lane) const { return v[lane]; }
};

// What a value depends on: one mask of lanes each for loaded data, blockIdx.x, .y and .z.
#if EXECUTES
#include "no_marks.h"
#else
typedef uint32_t Marks __attribute__((vector_size(16)));
constexpr Marks NO_MARKS = {0, 0, 0, 0};

inline Marks spread(Marks marks, uint32_t lanes) {  // marks of any of these lanes to all of them
    for (int k = 0; k < 4; k++) marks[k] = marks[k] & lanes ? FULL : 0;
    return marks;
}
#endif

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

struct Warp {
    Cta& cta;
    int number;
    Lanes R[256];
    // Eight zeros follow the uniform registers, for vectors that begin at the last ones.
    Marks rmarks[256] = {}, umarks[256 + 8] = {}, pmarks[8] = {}, upmarks[8] = {};
    uint32_t U[256 + 8] = {};
    uint32_t P[8], UP[8];
    int pc[32];
    uint32_t alive = 0, blocked = 0;
    uint32_t exclusive = 0;  // lanes that run alone until their collective is complete; 0: all lanes run
    Lanes rpc[2] = {};
    uint32_t B[16] = {};        // lanes for which a convergence barrier waits
    uint32_t at_sync[16] = {};  // and the lanes that have arrived
    uint32_t at_bar[16] = {};   // lanes waiting at a CTA barrier
    uint32_t at_mbar = 0;
    std::map<uint64_t, int> polled;  // by mbarrier: the phase in which this warp arrived, or that it read
    int bar_result = 0;
    int64_t turn_ends = 0;      // number of the CTA's steps at which other CTAs run
    std::vector<uint8_t> local;
    std::vector<uint32_t> local_data;  // [word] mask of lanes whose word depends on loaded data
    Trace trace;
    // cp.async: (address, bytes) of each copy, and the ends of the committed groups.
    std::vector<std::pair<uint64_t, int>> copies;
    std::vector<size_t> copy_groups;
    // Of the current instruction:
    Marks marks = {};           // marks of its sources so far
    uint32_t on = 0;            // lanes that execute it
    int index = 0;

    Warp(Cta& cta, int number);

    [[noreturn]] void refuse(const char* what) const;  // fails at the current instruction

    // ---- reading and writing operands ----

    uint32_t constant(const Operand& o, int word);

    int register_of(const Operand& o, int word) const {  // a vector may end after the last one
        if (o.reg == RZ) return RZ;
        if (o.reg + word >= RZ) refuse("uses a register past the last one");
        return o.reg + word;
    }

    const Lanes& read(const Operand& o, Lanes& t, int word = 0) {
        switch (o.kind) {
        case Kind::REG: {
            const int r = register_of(o, word);
            marks |= rmarks[r];
            return R[r];
        }
        case Kind::UREG: {
            const int r = register_of(o, word);
            marks |= umarks[r];
            for (auto& x : t.v) x = U[r];
            return t;
        }
        case Kind::CONST: {
            if (o.reg != RZ) {  // a table: each lane has its own index
                const uint32_t executing = on;
                for (int l = 0; l < 32; l++)
                    if (executing >> l & 1) on = 1u << l, t[l] = constant(o, word);
                on = executing;
                return t;
            }
            const uint32_t value = constant(o, word);
            for (auto& x : t.v) x = value;
            return t;
        }
        case Kind::IMM: {
            const uint32_t value = word ? static_cast<uint32_t>(o.imm >> 32) : static_cast<uint32_t>(o.imm);
            for (auto& x : t.v) x = value;
            return t;
        }
        default:
            if (REAL && o.kind == Kind::TEXT) fail(cta_code(), "has the operand " + o.text + ", which is not supported here");
            for (auto& x : t.v) x = 0;
            return t;
        }
    }

    const Instruction& cta_code() const;  // the current instruction

    // An integer operand with its negation (two's complement), complement or absolute value.
    const Lanes& integer(const Operand& o, Lanes& t) {
        const Lanes& v = read(o, t);
        if (!o.neg && !o.inv && !o.abs) return v;
        for (int l = 0; l < 32; l++) {
            uint32_t x = v[l];
            if (o.abs) x = static_cast<int32_t>(x) < 0 ? 0u - x : x;
            if (o.inv) x = ~x;
            t[l] = o.neg ? 0u - x : x;
        }
        return t;
    }

    const Lanes& floating(const Operand& o, Lanes& t) {
        const Lanes& v = read(o, t);
        if (!o.neg && !o.abs) return v;
        for (int l = 0; l < 32; l++) {
            uint32_t x = v[l];
            if (o.abs) x &= 0x7fffffffu;
            t[l] = o.neg ? x ^ 0x80000000u : x;
        }
        return t;
    }

    void read_wide(const Operand& o, Wide& out) {
        Lanes t;
        const Lanes& low = read(o, t);
        for (int l = 0; l < 32; l++) out[l] = low[l];
        const Lanes& high = read(o, t, 1);
        for (int l = 0; l < 32; l++) out[l] |= static_cast<uint64_t>(high[l]) << 32;
        if (o.neg)
            for (auto& x : out.v) x = 0 - x;
    }

    uint32_t predicate(const Operand& o) {
        const bool u = o.kind == Kind::UPRED;
        if (!u && o.kind != Kind::PRED) refuse("has an operand form that is not supported here");
        const uint32_t value = u ? UP[o.reg] : P[o.reg];
        marks |= u ? upmarks[o.reg] : pmarks[o.reg];
        return o.inv ? ~value : value;
    }

    void write(const Operand& o, const Lanes& v, int word = 0) {
        if (o.reg == RZ || !on) return;
        if (o.kind != Kind::REG && o.kind != Kind::UREG) return;
        const int r = register_of(o, word);
        if (o.kind == Kind::UREG) {
            const int first = __builtin_ctz(on);
            U[r] = v[first], umarks[r] = spread(marks, 1u << first);
            return;
        }
        if (on == FULL) {
            R[r] = v, rmarks[r] = marks;
            return;
        }
        for (int l = 0; l < 32; l++) R[r][l] = on >> l & 1 ? v[l] : R[r][l];
        rmarks[r] = (rmarks[r] & ~on) | (marks & on);
    }

    void depends_on_data() { marks[0] = FULL; }

    void steered();  // records that a predicate or target depends on the marks

    void write_wide(const Operand& o, const Wide& v) {
        Lanes t;
        for (int l = 0; l < 32; l++) t[l] = static_cast<uint32_t>(v[l]);
        write(o, t);
        for (int l = 0; l < 32; l++) t[l] = static_cast<uint32_t>(v[l] >> 32);
        write(o, t, 1);
    }

    void write_predicate(const Operand& o, uint32_t value) {
        if (o.reg == PT || !on || (o.kind != Kind::PRED && o.kind != Kind::UPRED)) return;
        if (o.kind == Kind::UPRED) {
            const int first = __builtin_ctz(on);
            UP[o.reg] = value >> first & 1 ? FULL : 0;
            upmarks[o.reg] = spread(marks, 1u << first);
            return;
        }
        P[o.reg] = (P[o.reg] & ~on) | (value & on);
        pmarks[o.reg] = (pmarks[o.reg] & ~on) | (marks & on);
    }

    void addresses(const Operand& o, bool global, Wide& out);
    void touch_box(const Instruction& i, Row& row, const uint32_t* coordinates);

    // ---- running ----

    bool run();  // until all lanes wait or have exited, or the turn ends; returns whether anything was executed
    void step(const Instruction& i, uint32_t active, int here);
    void arithmetic(const Instruction& i);
    void floats(const Instruction& i);
    void fp8(const Instruction& i);
    void halves(const Instruction& i);
    void compare_halves(const Instruction& i);
    void doubles(const Instruction& i);
    int memory(const Instruction& i);  // returns its row, -1: none, -2: it waits
    int poll(uint64_t mbarrier, const Instruction& i);
#if EXECUTES
#include "execute_warp.h"
#endif
    int barriers(const Instruction& i, bool& moves);
    void copies_land(int32_t open_groups) {  // cp.async completes: its writes happen now
        const size_t open = static_cast<size_t>(std::max(0, open_groups));
        if (copy_groups.size() <= open) return;
        const size_t done = copy_groups[copy_groups.size() - open - 1];
        land(done);
        copy_groups.erase(copy_groups.begin(), copy_groups.end() - static_cast<std::ptrdiff_t>(open));
        for (size_t& end : copy_groups) end -= done;
    }
    void land(size_t count);
    void sync(int b) {  // releases the lanes of a complete convergence barrier
        if (at_sync[b] && (B[b] & alive & ~at_sync[b]) == 0) {
            for (int l = 0; l < 32; l++)
                if (at_sync[b] >> l & 1) pc[l]++;
            blocked &= ~at_sync[b];
            at_sync[b] = 0;
        }
    }
};

struct Cta {
    const Request& request;
    const std::vector<Instruction>& code;
    std::vector<uint8_t> smem, smem_marks;
    std::vector<Warp*> warps;
    Barrier bars[16];
    std::map<uint64_t, MBarrier> mbarriers;
    std::vector<Row> rows;
    std::vector<int64_t> line_start{0};
    std::vector<uint64_t> line;
    std::vector<uint8_t> line_sectors;
    std::map<decltype(Row().key()), int> known;
    std::vector<int64_t> totals;  // [n, 8]: executed, lanes, then the row's columns summed
    std::vector<uint8_t> data_branch, data_address, stand_in;
    uint8_t control_axes = 0;     // axes of blockIdx that control flow or predicates depend on
    int64_t steps = 0;
    int32_t probes_done = 0;
    Hazards hazards;
    std::string error;
    struct Expectation {
        uint32_t bytes;
        int row;  // row of the arrival
    };
    std::map<uint64_t, std::vector<Expectation>> expected_bytes;  // by mbarrier, in order
    std::map<uint64_t, bool> copies_first;  // by mbarrier: whether its copies start before they are expected
    struct BulkLoad {
        int row;
        std::pair<uint64_t, size_t> expectation;  // mbarrier, and index of its expectation
    };
    std::vector<BulkLoad> bulk_loads;

#if EXECUTES
#include "execute_cta.h"
#endif
    explicit Cta(const Request& r) : request(r), code(r.code->instructions) {}
    ~Cta() { for (Warp* w : warps) delete w; }

    int add(const Row& row) {
        if (REAL) return -1;
        auto [it, fresh] = known.try_emplace(row.key(), static_cast<int>(rows.size()));
        if (fresh) push(row);
        return it->second;
    }
    int push(const Row& row) {
        if (REAL) return -1;
        rows.push_back(row);
        line_start.push_back(static_cast<int64_t>(line.size()));
        return static_cast<int>(rows.size()) - 1;
    }
    // Records the lowest sector of a probed instruction's first access; true once all have one.
    bool probed(int here, int row) {
        const int32_t site = request.probe_site[here];
        if (site < 0 || request.probe_out[site]) return false;
        const size_t r = static_cast<size_t>(row);
        uint64_t lowest = 0;
        for (int64_t k = line_start[r]; k < line_start[r + 1]; k++) {
            const size_t n = static_cast<size_t>(k);
            const uint64_t sector = line[n] / 32 + static_cast<uint64_t>(__builtin_ctz(line_sectors[n] | 8));
            if (!lowest || sector < lowest) lowest = sector;
        }
        if (!lowest) return false;
        request.probe_out[site] = lowest;
        return ++probes_done == request.probe_sites;
    }
    void forget_rows() {  // rows are needed only for a trace
        rows.clear(), line.clear(), line_sectors.clear(), known.clear(), bulk_loads.clear();
        line_start.assign(1, 0);
        for (auto& [address, expected] : expected_bytes)
            for (Expectation& each : expected) each.row = -1;
    }
    int living() const {
        int n = 0;
        for (const Warp* w : warps) n += __builtin_popcount(w->alive);
        return n;
    }
    void release_bars() {
        for (int b = 0; b < 16; b++) {
            Barrier& bar = bars[b];
            if (bar.arrived == 0 || bar.arrived < (bar.expected ? bar.expected : living())) continue;
            const bool whole = bar.arrived == living();
            int site = -1;
            for (Warp* w : warps) {
                const uint32_t lanes = w->at_bar[b];
                if (!lanes) continue;
                site = w->pc[__builtin_ctz(lanes)];
                w->bar_result = bar.any << 1 | bar.every << 2 | bar.count << 3;
                for (int l = 0; l < 32; l++)
                    if (lanes >> l & 1) w->pc[l]++;
                w->blocked &= ~lanes;
                w->at_bar[b] = 0;
#if EXECUTES
                passed(*w, bar);
#endif
            }
            if (!hazards.wanted) {
            } else if (whole && site >= 0 && !bar.votes) {
                if (!request.left_out[site]) hazards.separate(site);
            } else {
                hazards.unclear = true;
            }
            bar = Barrier();
        }
    }
    void arrive(MBarrier& bar, int arrivals) {
        bar.pending -= arrivals;
        if (bar.pending > 0) return;
        bar.pending = bar.needed;
        bar.phase++;
        for (Warp* w : warps) {  // they retry
            w->blocked &= ~w->at_mbar;
            w->at_mbar = 0;
        }
    }
    void begin_bulk_load(uint64_t mbarrier) {
        const size_t so_far = expected_bytes[mbarrier].size();
        const bool ahead = copies_first.try_emplace(mbarrier, so_far == 0).first->second;
        bulk_loads.push_back({static_cast<int>(rows.size()), {mbarrier, ahead ? so_far : so_far - 1}});
    }
    // The contents of a driver's tensor map are not known, so a copy's size is taken from the bytes that the
    // mbarrier expects. If the CTAs of a cluster load different amounts, bytes that other CTAs send during the
    // wait are not expected here.
    void share_bulk_bytes() {
        std::map<std::pair<uint64_t, size_t>, std::vector<Row*>> copies;
        for (const BulkLoad& load : bulk_loads)
            copies[load.expectation].push_back(&rows[static_cast<size_t>(load.row)]);
        for (auto& [expectation, loads] : copies) {
            const auto& expected = expected_bytes[expectation.first];
            const bool is_known = expectation.second < expected.size();
            uint32_t arrivals = 0;
            for (const Row* r : loads) arrivals += static_cast<uint32_t>(r->amount);
            uint64_t once = 0, exchanged = 0;
            for (Row* r : loads) {
                if (!r->size_bytes && is_known)
                    r->size_bytes = expected[expectation.second].bytes / std::max(1u, arrivals);
                if (!r->sectors) r->sectors = r->ideal_sectors = static_cast<uint16_t>(std::min(65535u, r->size_bytes / 32));
                once += r->size_bytes;
                exchanged += static_cast<uint64_t>(r->size_bytes) * static_cast<uint64_t>(r->amount);
            }
            if (is_known && once < exchanged && exchanged > expected[expectation.second].bytes)
                for (Row* r : loads) r->amount = 1;
        }
        for (const auto& [address, expected] : expected_bytes)
            for (size_t n = 0; n < expected.size(); n++) {
                const auto it = copies.find({address, n});
                uint64_t brought = 0;
                if (it != copies.end())
                    for (const Row* r : it->second) brought += static_cast<uint64_t>(r->size_bytes) * static_cast<uint64_t>(r->amount);
                if (expected[n].row < 0) continue;
                Row& r = rows[static_cast<size_t>(expected[n].row)];
                r.size_bytes = static_cast<uint32_t>(std::min<uint64_t>(r.size_bytes, brought));
            }
    }
    void begin();  // all warps at the first instruction
    void run();
    [[noreturn]] void deadlock() const {
        for (const Warp* w : warps)
            if (w->alive) fail(code[static_cast<size_t>(w->pc[__builtin_ctz(w->alive)])], "waits for threads that never arrive: the CTA is in a deadlock");
        throw std::runtime_error("the CTA is in a deadlock");
    }
};

Warp::Warp(Cta& c, int n) : cta(c), number(n) {
#if EXECUTES
    leave_unwritten(reinterpret_cast<uint8_t*>(R), static_cast<size_t>(c.request.code->registers) * sizeof R[0]);
    R[RZ] = {};
    std::fill(U, U + RZ, UNWRITTEN);
#else
    std::memset(static_cast<void*>(R), 0, sizeof R);
#endif
    std::fill(P, P + 8, 0u);
    std::fill(UP, UP + 8, 0u);
    P[PT] = UP[PT] = FULL;
    std::fill(pc, pc + 32, 0);
    const auto& b = c.request.block;
    const int64_t threads = static_cast<int64_t>(b[0]) * b[1] * b[2];
    for (int l = 0; l < 32; l++)
        if (n * 32 + l < threads) alive |= 1u << l;
    local.assign(static_cast<size_t>(c.request.local_bytes) * 32 + 4, 0);  // a word may begin at the last byte
#if EXECUTES
    leave_unwritten(local.data(), local.size());
#endif
    local_data.assign(c.request.local_bytes / 4, 0);
}

void Warp::refuse(const char* what) const { fail(cta.code[static_cast<size_t>(index)], what); }
const Instruction& Warp::cta_code() const { return cta.code[static_cast<size_t>(index)]; }

void Warp::land(size_t count) {
    for (size_t k = 0; k < count; k++) cta.hazards.shared(copies[k].first, copies[k].second, number, true);
    copies.erase(copies.begin(), copies.begin() + static_cast<std::ptrdiff_t>(count));
}

void Warp::steered() {
    for (int k = 1; k < 4; k++) cta.control_axes |= static_cast<uint8_t>((marks[k] != 0) << (k - 1));
}

uint32_t Warp::constant(const Operand& o, int word) {
    uint64_t offset = static_cast<uint64_t>(o.imm) + 4 * static_cast<uint64_t>(word);
    const int lane = on ? __builtin_ctz(on) : 0;
    if (o.reg != RZ) offset += R[o.reg][lane], marks |= spread(rmarks[o.reg], on);
    if (o.ureg >= 0) offset += U[o.ureg], marks |= umarks[o.ureg];
    if (o.bank >= 8 || !cta.request.constants[o.bank]) return 0;
    const int64_t last = cta.request.constant_bytes[o.bank] - 4;
    if (last < 0 || offset > static_cast<uint64_t>(last)) return 0;
    uint32_t value;
    std::memcpy(&value, cta.request.constants[o.bank] + offset, 4);
    return value;
}

void Warp::addresses(const Operand& o, bool global, Wide& out) {
    // Global addresses are 64 bits: a register pair unless its suffix says U32.
    for (auto& x : out.v) x = static_cast<uint64_t>(o.imm);
    if (o.reg != RZ) {
        const bool pair = global && (o.wide || o.half == 0) && !(o.half == 1);
        marks |= rmarks[o.reg];
        for (int l = 0; l < 32; l++) out[l] += static_cast<uint64_t>(R[o.reg][l]) * o.scale;
        if (pair) {
            marks |= rmarks[o.reg + 1];
            for (int l = 0; l < 32; l++) out[l] += static_cast<uint64_t>(R[o.reg + 1][l]) << 32;
        }
    }
    if (o.ureg >= 0) {
        const bool pair = global && (o.uwide || o.wide || o.reg == RZ || o.half == 1);
        const uint64_t base = U[o.ureg] | (pair ? static_cast<uint64_t>(U[o.ureg + 1]) << 32 : 0);
        marks |= umarks[o.ureg];
        for (auto& x : out.v) x += base;
    }
    if (!global)
        for (auto& x : out.v) x &= 0xffffffffu;
}

#include "arithmetic.h"
#include "floats.h"
#include "memory.h"
#include "control.h"
#if EXECUTES
#include "execute_tensor.h"
#include "execute_memory.h"
#include "execute_hopper.h"
#include "execute_quick.h"
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
