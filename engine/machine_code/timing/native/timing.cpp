// Simulates one SM cycle by cycle: which warp issues, and why the others stall.
//
// Four partitions issue at most one warp instruction per cycle each. A warp may issue when its stall count
// has expired and the scoreboards of its wait mask are clear. The warp that issued last continues while it
// can, else the youngest ready warp issues (Huerta et al., arXiv 2503.20481, section 5.1). CTAs come from a
// queue: a free slot is filled at once, not in rounds.
//
// Time advances to the next cycle in which something can happen. Why a warp stalled between two issues is
// determined at the second issue, so that attribution costs nothing per cycle.
#include "timing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
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
    void start_cta(int32_t number, double begin) {
        const int32_t n = static_cast<int32_t>(ctas.size());
        ctas.emplace_back();
        Cta& cta = ctas.back();
        cta.number = number;
        const Trace& trace = in.traces[in.queue[number]];
        out.started[number] = begin;
        ++running_ctas;
        if (trace.num_warps % PARTITIONS == 0) next_partition = 0;
        for (int w = 0; w < trace.num_warps; ++w) {
            if (trace.warp_start[w] == trace.warp_start[w + 1]) continue;
            int32_t id;
            if (free_warps.empty()) {
                id = static_cast<int32_t>(warps.size());
                warps.emplace_back();
            } else {
                id = free_warps.back();
                free_warps.pop_back();
                warps[id] = Warp();
            }
            Warp& warp = warps[id];
            warp.cta = n;
            warp.number = w;
            warp.trace = &trace;
            warp.partition = next_partition;
            warp.registers = m.registers;
            warp.position = trace.warp_start[w];
            warp.end = trace.warp_start[w + 1];
            warp.issued = begin - 1;
            warp.stalled = begin;
            ++cta.running;
            Partition& p = partitions[next_partition];
            warp.place = static_cast<int32_t>(p.warps.size());
            p.warps.push_back(id);
            p.ready.push_back(NEVER);
            p.slot.push_back(0);
            next_partition = (next_partition + 1) % PARTITIONS;
            prepare(warp);
        }
        if (cta.running == 0) finish_cta(n, begin);
    }

    // Advances to the cycle in which a slot becomes free. Returns false if the remaining warps deadlock.
    bool run_to_free_slot() {
        while (running_ctas > 0 && free_slots == 0) {
            int best = -1;
            double now = NEVER;
            for (int p = 0; p < PARTITIONS; ++p) {
                Partition& each = partitions[p];
                if (each.changed) look_ahead(each), each.changed = false;
                best = each.next < now ? p : best;
                now = earlier(now, each.next);
            }
            if (begin_products(now)) continue;
            if (best < 0) return false;
            issue(partitions[best], partitions[best].chosen, now);
            look_ahead(partitions[best]), partitions[best].changed = false;
        }
        --free_slots;
        return true;
    }

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

    // ---- CTAs start and end ----

    void finish_cta(int32_t n, double now) {
        out.finished[ctas[n].number] = now;
        end = later(end, now);
        --running_ctas;
        ++free_slots;
        slot_freed = now;
    }

    void retire(Partition& p, int32_t id, double now) {
        const int32_t n = warps[id].cta;
        Cta& cta = ctas[n];
        const int32_t place = warps[id].place;
        p.warps.erase(p.warps.begin() + place);
        p.ready.erase(p.ready.begin() + place);
        p.slot.erase(p.slot.begin() + place);
        for (size_t i = place; i < p.warps.size(); ++i) warps[p.warps[i]].place = i;
        p.changed = true;
        end = later(end, warps[id].stores);
        if (p.last == id) p.last = -1;
        free_warps.push_back(id);
        if (--cta.running == 0) {
            finish_cta(n, now + 1);
            return;
        }
        // Hardware counts an exited warp as arrived.
        for (NamedBarrier& barrier : cta.barriers)
            if (!barrier.waiting.empty()) open_if_complete(cta, barrier, now);
    }

    // ---- when a warp may issue ----

    // Computes when a warp is ready, regardless of pipes and other warps.
    void prepare(Warp& w) {
        const Op& op = in.ops[w.trace->instruction[w.position]];
        w.fetched = fetch(op, w.issued);
        double ready = later(later(w.stalled, w.released), w.fetched);
        for (int b = 0; b < SCOREBOARDS; ++b)
            ready = later(ready, op.wait_mask >> b & 1 ? w.clear[b] : 0.0);
        Partition& p = partitions[w.partition];
        p.ready[w.place] = ready;
        p.slot[w.place] = slot_of(op);
        p.changed = true;
    }

    // Fetches lines of code that the SM has not executed yet, one after another.
    double fetch(const Op& op, double now) {
        if (m.fetch_cycles == 0) return 0;
        double& there = code[op.code_line];
        if (there < 0) {
            fetch_free = later(fetch_free, now) + m.fetch_cycles;
            there = fetch_free;
        }
        return there;
    }

    static int32_t slot_of(const Op& op) {
        return op.is_warpgroup                        ? QUEUE_SLOT
               : op.pipe == FMA && op.first_unit_only ? FIRST_UNIT_SLOT
                                                      : op.pipe;
    }

    // The FMA unit that is free first; in a tie, the one with the higher index.
    int first_free(const Partition& p) const {
        int unit = 0;
        for (int u = 1; u < m.fma_units; ++u)
            if (p.unit_free[u] <= p.unit_free[unit]) unit = u;
        return unit;
    }

    void update_free(Partition& p, int32_t pipe) const {
        if (pipe == FMA) {
            p.free_at[FMA] = p.unit_free[first_free(p)];
            p.free_at[FIRST_UNIT_SLOT] = p.unit_free[0];
        } else if (pipe == SHARED || pipe == GLOBAL) {
            p.free_at[SHARED] = p.free_at[GLOBAL] = p.queue[p.queue_at];
        } else {
            p.free_at[pipe] = p.pipe_free[pipe];
            const bool full = static_cast<int32_t>(p.products.size()) >= m.product_queue;
            p.free_at[QUEUE_SLOT] = full ? p.pipe_free[TENSOR] : 0;
        }
    }

    double able(const Partition& p, size_t i) const {
        return later(p.ready[i], p.free_at[p.slot[i]]);
    }

    // Finds the warp that issues next, and when; NEVER if all wait for others.
    OUT_OF_LINE void look_ahead(Partition& p) const {
        p.next = std::ceil(p.clock);
        if (choose(p)) return;
        double first = NEVER;
        for (size_t i = 0; i < p.warps.size(); ++i) first = earlier(first, able(p, i));
        p.next = std::ceil(first);
        choose(p);
    }

    // Chooses among warps that can issue at p.next: the one that issued last, else the youngest. False if none.
    bool choose(Partition& p) const {
        p.chosen = p.last;
        if (p.last >= 0 && able(p, warps[p.last].place) <= p.next) return true;
        for (size_t i = p.warps.size(); i-- > 0;) {
            if (able(p, i) > p.next) continue;
            p.chosen = p.warps[i];
            return true;
        }
        return false;
    }

    // ---- issue ----

    void issue(Partition& p, int32_t id, double now) {
        Warp& w = warps[id];
        const Trace& trace = *w.trace;
        const int32_t op_index = trace.instruction[w.position];
        const int32_t row = trace.access[w.position];
        const Op& op = in.ops[op_index];
        const uint8_t kind = row < 0 ? static_cast<uint8_t>(NO_ACCESS) : trace.kind[row];
        if (out.stalls) attribute(p, w, op, op_index, now);
        p.changed = true;

        double result = now + op.result_cycles, read = now + op.read_cycles;
        bool is_long = false;
        out.busy[op.pipe] += op.pipe == FMA ? op.pipe_cycles / m.fma_units : op.pipe_cycles;
        if (op.pipe == FMA) {
            take(p.unit_free[op.first_unit_only ? 0 : first_free(p)], now, op.pipe_cycles);
        } else if (op.pipe == SHARED || op.pipe == GLOBAL) {
            if (row >= 0) memory(p, w, op, trace, row, now, result, read);
            is_long = op.pipe == GLOBAL;
        } else if (op.is_warpgroup) {
            product(p, w, id, op_index, row < 0 ? 0 : trace.size_bytes[row], now);
        } else if (op.pipe_cycles > 0) {
            take(p.pipe_free[op.pipe], now, op.pipe_cycles);
        }
        update_free(p, op.pipe);
        set(w, op.write_barrier, result, is_long);
        set(w, op.read_barrier, read, is_long);
        w.issued = now;
        w.stalled = now + std::max(1, op.stall);
        ++w.position;
        ++out.issued;
        p.last = id;
        p.clock = now + 1 + read_registers(p, id, op, now);
        end = later(end, now);
        if (op.is_fence) release(w, w.stores, MEMBAR);
        if (row >= 0) synchronise(w, id, trace, row, kind, now);
        if (w.position == w.end && w.products.size() < w.products_issued)
            w.products_awaited = w.products_issued, w.waits = true;
        if (w.position == w.end && !w.waits)
            retire(p, id, now);
        else if (w.waits)
            p.ready[w.place] = NEVER;
        else
            prepare(w);
    }

    // With a pipe of, say, 6.45 cycles, an instruction that waited starts in the middle of a cycle.
    static void take(double& free, double now, double cycles) {
        free = (free > now - 1 ? earlier(free, now) : now) + cycles;
    }

    OUT_OF_LINE void follow(int32_t kind, const Warp& w, int32_t op, double begin, double at,
                            int32_t reason = SELECTED) {
        if (!out.events || out.num_events >= out.max_events) return;
        out.events[out.num_events++] = {begin,    at, kind,   ctas[w.cta].number,
                                        w.number, op, reason, w.partition};
    }

    void attribute(const Partition& p, const Warp& w, const Op& op, int32_t op_index, double now) {
        double* stalls = out.stalls + static_cast<int64_t>(op_index) * NUM_REASONS;
        stalls[SELECTED] += 1;
        double at = w.issued + 1, longest = 0;
        int32_t mostly = SELECTED;
        const auto until = [&](double t, int32_t reason) {
            t = earlier(t, now);
            if (t <= at) return;
            stalls[reason] += t - at;
            if (t - at > longest) longest = t - at, mostly = reason;
            at = t;
        };
        double clear = 0;
        int32_t holds = SHORT_SCOREBOARD;
        for (int b = 0; b < SCOREBOARDS; ++b)
            if (op.wait_mask >> b & 1 && w.clear[b] > clear) clear = w.clear[b], holds = w.holds[b];
        until(w.stalled, WAIT);
        until(w.released, w.released_by);
        until(clear, holds);
        until(w.fetched, NO_INSTRUCTION);
        const double pipe = p.free_at[slot_of(op)];
        until(pipe, op.pipe == SHARED   ? MIO_THROTTLE
                    : op.pipe == GLOBAL ? LG_THROTTLE
                                        : MATH_PIPE_THROTTLE);
        until(now, NOT_SELECTED);
        follow(ISSUED, w, op_index, w.issued + 1, now, mostly);
    }

    static void set(Warp& w, int32_t barrier, double clear, bool is_long) {
        if (barrier < 0 || clear <= w.clear[barrier]) return;
        w.clear[barrier] = clear;
        w.holds[barrier] = is_long ? LONG_SCOREBOARD : SHORT_SCOREBOARD;
    }

    // Reserves read ports of the register banks; returns how long a busy bank prevents the partition from
    // issuing. A register in the operand cache needs no port.
    double read_registers(Partition& p, int32_t id, const Op& op, double now) {
        double bubbles = 0;
        for (int slot = 0; slot < OPERAND_SLOTS; ++slot) {
            if (op.reads[slot] < 0) continue;
            const int32_t name = op.reads[slot] % KEPT, bank = name % BANKS;
            int32_t& warp = p.kept_warp[bank][slot];
            int32_t& kept = p.kept_register[bank][slot];
            if (warp != id || kept != name) {
                p.bank_free[bank] = later(p.bank_free[bank], now) + 1;
                bubbles = later(bubbles, p.bank_free[bank] - now - m.operand_window);
            }
            const bool keep = op.reads[slot] >= KEPT;
            warp = keep ? id : -1;
            kept = keep ? name : -1;
        }
        return bubbles;
    }

    // ---- memory ----

    // Reserves passes through the port; returns when they begin. Pending writes of bulk copies are interleaved
    // pass by pass, or use the port while it is idle.
    double take_port(double from, double passes) {
        if (from > port_free) bulk_writes = later(0.0, bulk_writes - (from - port_free));
        const double between = earlier(bulk_writes, passes);
        bulk_writes -= between;
        const double begin = later(from, port_free) + between;
        port_free = begin + passes;
        out.busy[NUM_PIPES + SHARED_PORT] += passes;
        return begin;
    }

    double take_l2(double from, double sectors) {
        const double cycles = sectors * m.cycles_per_sector;
        l2_free = later(from, l2_free) + cycles;
        out.busy[NUM_PIPES + L2_PORT] += cycles;
        return l2_free;
    }

    // A memory instruction: from the partition's queue to the units that the four partitions share.
    OUT_OF_LINE void memory(Partition& p, Warp& w, const Op& op, const Trace& trace, int32_t row,
                            double now, double& result, double& read) {
        const uint8_t kind = trace.kind[row];
        if (kind == ASYNC_COMMIT) {
            result = later(w.copies, now);
            w.copy_groups.push_back(result);
            return;
        }
        if (kind == BULK_LOAD || kind == BULK_STORE) {
            const double landed = take_l2(now, trace.size_bytes[row] / SECTOR_BYTES) +
                                  m.bulk_copy_cycles + m.l2_cycles;
            // In a multicast each CTA of the cluster loads a part, which is read once and arrives in all CTAs.
            const int64_t arriving = trace.size_bytes[row] *
                                     (kind == BULK_LOAD ? std::max(1, trace.amount[row]) : 1);
            const double writes = arriving / m.shared_bytes_per_cycle;
            bulk_writes += writes;
            out.busy[NUM_PIPES + SHARED_PORT] += writes;
            follow(COPY, w, w.trace->instruction[w.position], now, landed);
            if (kind == BULK_LOAD)
                mbarrier_landed(w, trace.address[row], arriving, landed);
            else
                w.bulk_stores = w.stores = later(w.stores, landed);
            return;
        }
        const double leaves = later(now, p.dispatch_free);
        p.dispatch_free = leaves + m.dispatch_cycles;
        const double passes = later(op.passes, m.shared_pass_cycles * trace.wavefronts[row]);
        const double begin = take_port(leaves, passes);
        p.queue[p.queue_at] = begin;
        p.queue_at = (p.queue_at + 1) % m.queue_depth;
        read = begin + op.read_cycles;
        result = begin + passes + op.result_cycles;
        const int64_t first = trace.line_start[row], last = trace.line_start[row + 1];
        // A fence waits for all passes, a barrier for none.
        if (kind == SHARED_STORE) w.stores = later(w.stores, begin + passes);
        if (first == last) return;
        result = through_l1(w, op, trace, first, last, begin);
        if (kind == GLOBAL_STORE || kind == LOCAL_STORE) w.stores = later(w.stores, result);
        if (kind == ASYNC_COPY) {
            w.copies = later(w.copies, result);
            follow(COPY, w, w.trace->instruction[w.position], now, result);
        }
    }

    // Number of lookups: neighbouring lines of one instruction need only one.
    int lookups(const uint64_t* line, const uint64_t* end) const {
        uint64_t seen[WARP_SIZE];
        int count = 0;
        for (; line < end; ++line) {
            const uint64_t block = *line / m.lookup_bytes;
            if (std::find(seen, seen + count, block) == seen + count && count < WARP_SIZE)
                seen[count++] = block;
        }
        return count;
    }

    // One lookup per cycle; L1 misses go to L2 or DRAM. Returns when all data has arrived.
    double through_l1(const Warp& w, const Op& op, const Trace& trace, int64_t first, int64_t last,
                      double begin) {
        const int looked_up = lookups(trace.line + first, trace.line + last);
        tags_free = later(begin, tags_free) + looked_up;
        out.busy[NUM_PIPES + L1_TAGS] += looked_up;
        double done = tags_free + m.l1_cycles;
        int missing = 0;
        const bool cached = op.uses_l1 && m.l1_lines > 0;
        for (int64_t i = first; i < last; ++i) {
            uint8_t lacks = trace.line_sectors[i];
            if (cached) {
                const auto found = l1.find(key(w, trace.line[i]));
                if (found != l1.end()) {
                    lacks &= static_cast<uint8_t>(~found->second.sectors);
                    done = later(done, found->second.there);  // the line may still be in flight
                }
            }
            missing += __builtin_popcount(lacks);
        }
        if (missing == 0) return done;
        done = later(done, take_l2(tags_free, missing) + m.l2_cycles);
        if (cached)
            for (int64_t i = first; i < last; ++i)
                keep_in_l1(key(w, trace.line[i]), trace.line_sectors[i], done);
        return done;
    }

    // The key of a line in L1. CTAs of the queue may share a trace: a line that one of them loaded is not a hit
    // for another.
    uint64_t key(const Warp& w, uint64_t line) const {
        return line ^ static_cast<uint64_t>(ctas[w.cta].number + 1) << 48;
    }

    void keep_in_l1(uint64_t line, uint8_t sectors, double there) {
        const auto [at, fresh] = l1.emplace(line, Line{});
        at->second.sectors |= sectors;
        at->second.there = there;
        if (!fresh) return;
        if (l1_order.size() < static_cast<size_t>(m.l1_lines)) {
            l1_order.push_back(line);
            return;
        }
        l1.erase(l1_order[l1_oldest]);
        l1_order[l1_oldest] = line;
        l1_oldest = (l1_oldest + 1) % l1_order.size();
    }

    // wgmma is asynchronous: the warp continues while the product is queued for the tensor core, in order of
    // issue over all warps.
    OUT_OF_LINE void product(Partition& p, Warp& w, int32_t id, int32_t op_index,
                             uint32_t shared_bytes, double now) {
        const double operands = shared_bytes / m.shared_bytes_per_cycle / PARTITIONS;
        p.products.push_back({id, op_index, now, operands});
        ++w.products_issued;
        if (in.ops[op_index].closes_group) w.product_groups.push_back(w.products_issued);
    }

    // Starts the earliest product that begins by `now`; false if there is none. Products start this late because
    // only then all earlier uses of the shared-memory port are known.
    bool begin_products(double now) {
        Partition* first = nullptr;
        double begin = NEVER;
        for (Partition& p : partitions) {
            if (p.products.empty()) continue;
            const double then = later(p.products.front().issued, p.pipe_free[TENSOR]);
            if (then < begin) begin = then, first = &p;
        }
        if (first == nullptr || begin > now) return false;
        Partition& p = *first;
        const Product product = p.products.front();
        p.products.pop_front();
        const double fed = take_port(begin, product.operands) + product.operands;
        p.pipe_free[TENSOR] = later(begin + in.ops[product.op].pipe_cycles, fed);
        update_free(p, TENSOR);
        p.changed = true;
        Warp& w = warps[product.warp];
        w.products.push_back(p.pipe_free[TENSOR] + m.warpgroup_cycles);
        follow(PRODUCT, w, product.op, begin, p.pipe_free[TENSOR]);
        if (w.products_awaited == w.products.size()) {
            w.products_awaited = 0;
            w.waits = false;
            release(w, w.products.back(), GMMA);
            if (w.position == w.end)
                retire(p, product.warp, w.released);
            else
                prepare(w);
        }
        return true;
    }

    // Waits until at most `allowed` groups of products are pending.
    static void await_products(Warp& w, size_t allowed) {
        if (w.product_groups.size() <= allowed) return;
        const size_t needed = w.product_groups[w.product_groups.size() - 1 - allowed];
        if (needed > w.products.size()) {
            w.products_awaited = needed;
            w.waits = true;
        } else if (needed > 0) {
            release(w, w.products[needed - 1], GMMA);
        }
    }

    // ---- synchronisation of warps ----

    static void release(Warp& w, double at, int32_t reason) {
        if (at <= w.released) return;
        w.released = at;
        w.released_by = reason;
    }

    // The cycle from which at most `allowed` groups are pending.
    static double all_but(const std::vector<double>& groups, int32_t allowed) {
        double last = 0;
        for (size_t i = 0; i + allowed < groups.size(); ++i) last = later(last, groups[i]);
        return last;
    }

    void synchronise(Warp& w, int32_t id, const Trace& trace, int32_t row, uint8_t kind, double now) {
        switch (kind) {
            case SET_REGISTERS:
                set_registers(w, id, trace.amount[row], now);
                break;
            case ASYNC_WAIT:
                release(w, all_but(w.copy_groups, trace.amount[row]), LONG_SCOREBOARD);
                break;
            case TENSOR_COMMIT:
                w.product_groups.push_back(w.products_issued);
                break;
            case TENSOR_WAIT:
                await_products(w, trace.amount[row]);
                break;
            case BULK_WAIT:
                release(w, w.bulk_stores, LONG_SCOREBOARD);
                break;
            case BARRIER:
            case BARRIER_ARRIVE: {
                Cta& cta = ctas[w.cta];
                NamedBarrier& barrier = cta.barriers[trace.address[row] % NAMED_BARRIERS];
                ++barrier.arrived;
                barrier.expected = (trace.amount[row] + WARP_SIZE - 1) / WARP_SIZE;
                if (kind == BARRIER) {
                    barrier.waiting.push_back(id);
                    w.waits = true;
                }
                open_if_complete(cta, barrier, now);
                break;
            }
            case MBARRIER_INIT: {
                Mbarrier& barrier = ctas[w.cta].mbarriers[trace.address[row]];
                barrier = Mbarrier();
                barrier.needed = trace.amount[row];
                break;
            }
            case MBARRIER_ARRIVE: {
                Mbarrier& barrier = ctas[w.cta].mbarriers[trace.address[row]];
                if (trace.amount[row] > 0)
                    arrivals_free = later(now, arrivals_free) + m.arrive_cycles * trace.amount[row];
                barrier.arrived += trace.amount[row];
                barrier.bytes += trace.size_bytes[row];
                barrier.last = later(barrier.last, trace.amount[row] > 0 ? arrivals_free : now);
                end_phase(barrier);
                break;
            }
            case MBARRIER_WAIT: {
                Mbarrier& barrier = ctas[w.cta].mbarriers[trace.address[row]];
                const int32_t phase = trace.amount[row];
                if (phase < 0) break;  // the phase before the first is complete from the start
                if (phase < static_cast<int32_t>(barrier.phases.size())) {
                    release(w, barrier.phases[phase], LONG_SCOREBOARD);
                } else {
                    barrier.waiting.emplace_back(id, phase);
                    w.waits = true;
                }
                break;
            }
            default:
                break;
        }
    }

    // A warp that requests more registers waits until others of its CTA have released enough.
    void set_registers(Warp& w, int32_t id, int32_t wanted, double now) {
        Cta& cta = ctas[w.cta];
        if (wanted > w.registers) {
            cta.short_of_registers.emplace_back(id, wanted);
            w.waits = true;
        } else {
            cta.free_registers += w.registers - wanted;
            w.registers = wanted;
        }
        std::vector<int32_t> served;
        std::vector<std::pair<int32_t, int32_t>> still;
        for (const auto& [asking, more] : cta.short_of_registers) {
            Warp& other = warps[asking];
            if (more - other.registers > cta.free_registers) {
                still.emplace_back(asking, more);
                continue;
            }
            cta.free_registers -= more - other.registers;
            other.registers = more;
            served.push_back(asking);
        }
        cta.short_of_registers.swap(still);
        wake(served, now + m.barrier_cycles, BARRIER_STALL);
    }

    void open_if_complete(Cta& cta, NamedBarrier& barrier, double now) {
        // Exited warps count as arrived; arrivals before the exit are already counted.
        const bool is_complete = barrier.arrived >= barrier.expected ||
                                 static_cast<int32_t>(barrier.waiting.size()) >= cta.running;
        if (!is_complete || barrier.arrived == 0) return;
        barrier.arrived = 0;
        wake(barrier.waiting, now + m.barrier_cycles, BARRIER_STALL);
    }

    void wake(std::vector<int32_t>& waiting, double at, int32_t reason) {
        std::vector<int32_t> woken;
        woken.swap(waiting);
        for (const int32_t id : woken) {
            Warp& w = warps[id];
            w.waits = false;
            release(w, at, reason);
            if (w.position < w.end) prepare(w);
        }
    }

    void mbarrier_landed(Warp& w, uint64_t address, int64_t bytes, double at) {
        Mbarrier& barrier = ctas[w.cta].mbarriers[address];
        barrier.bytes -= bytes;
        barrier.last = later(barrier.last, at);
        end_phase(barrier);
    }

    void end_phase(Mbarrier& barrier) {
        if (barrier.arrived < barrier.needed || barrier.bytes != 0) return;
        const int32_t phase = static_cast<int32_t>(barrier.phases.size());
        barrier.phases.push_back(barrier.last);
        barrier.arrived = 0;
        std::vector<int32_t> woken;
        std::vector<std::pair<int32_t, int32_t>> still;
        for (const auto& [id, awaited] : barrier.waiting) {
            if (awaited <= phase) woken.push_back(id);
            else still.emplace_back(id, awaited);
        }
        barrier.waiting.swap(still);
        const double at = barrier.last;
        barrier.last = 0;
        wake(woken, at, LONG_SCOREBOARD);
    }
};

// All SMs take CTAs from one queue: at first in turn, then the SM whose slot becomes free first.
bool run(const Launch& in, Result& out) {
    std::vector<Sm> sms;
    sms.reserve(in.num_sms);
    for (int i = 0; i < in.num_sms; ++i) sms.emplace_back(in, out);
    int32_t next = 0;
    for (int slot = 0; slot < in.resident; ++slot)
        for (Sm& sm : sms)
            if (next < in.num_ctas) sm.start_cta(next++, slot * in.machine->stagger_cycles);
    using Event = std::pair<double, int>;  // when a slot becomes free, and on which SM
    std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events;
    const auto follow = [&](int i) {
        if (sms[i].is_idle()) return true;
        if (!sms[i].run_to_free_slot()) return false;
        events.emplace(sms[i].freed(), i);
        return true;
    };
    for (int i = 0; i < in.num_sms; ++i)
        if (!follow(i)) return false;
    while (!events.empty()) {
        const auto [now, i] = events.top();
        events.pop();
        if (next < in.num_ctas) sms[i].start_cta(next++, now + in.machine->cta_start_cycles);
        if (!follow(i)) return false;
    }
    out.cycles = 0;
    for (const Sm& sm : sms) out.cycles = later(out.cycles, sm.ended());
    return true;
}

// One SM and queues of equal CTAs: `ends[i]` is the end of a queue of counts[i] CTAs (ascending), `freed[i]`
// the cycle at which the slot of CTA `resident` + i became free. The common start of all queues is simulated
// once: where a queue ends, a copy of the SM continues without further CTAs.
bool run_counts(const Launch& in, Result& out, const int32_t* counts, int32_t num_counts,
                double* ends, double* freed) {
    const auto drained = [](Sm& sm) {
        while (!sm.is_idle())
            if (!sm.run_to_free_slot()) return false;
        return true;
    };
    int32_t at = 0;
    for (; at < num_counts && counts[at] < in.resident; ++at) {
        Sm sm(in, out);
        for (int32_t n = 0; n < counts[at]; ++n) sm.start_cta(n, 0.0);
        if (!drained(sm)) return false;
        ends[at] = sm.ended();
    }
    Sm sm(in, out);
    int32_t next = 0;
    while (next < std::min(in.resident, in.num_ctas)) sm.start_cta(next++, 0.0);
    while (at < num_counts || next < in.num_ctas) {
        if (at < num_counts && next == counts[at]) {
            Sm last = sm;
            if (!drained(last)) return false;
            ends[at++] = last.ended();
        }
        if (next == in.num_ctas) break;
        if (!sm.run_to_free_slot()) return false;
        if (freed) freed[next - in.resident] = sm.freed();
        sm.start_cta(next++, sm.freed() + in.machine->cta_start_cycles);
    }
    return true;
}

}  // namespace
}  // namespace attune_timing

// Returns 0, or 1 if the remaining warps deadlock.
extern "C" __attribute__((visibility("default"))) int attune_time_sm(
    const attune_timing::Launch* launch, attune_timing::Result* result) {
    return attune_timing::run(*launch, *result) ? 0 : 1;
}

extern "C" __attribute__((visibility("default"))) int attune_time_counts(
    const attune_timing::Launch* launch, attune_timing::Result* result, const int32_t* counts,
    int32_t num_counts, double* ends, double* freed) {
    return attune_timing::run_counts(*launch, *result, counts, num_counts, ends, freed) ? 0 : 1;
}
