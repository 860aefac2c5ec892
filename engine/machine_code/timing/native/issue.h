// When a warp may issue, which one does, and why the others stall.
#pragma once

#include "sm.h"

namespace attune_timing {
namespace {

// Computes when a warp is ready, regardless of pipes and other warps.
inline void Sm::prepare(Warp& w) {
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
inline double Sm::fetch(const Op& op, double now) {
    if (m.fetch_cycles == 0) return 0;
    double& there = code[op.code_line];
    if (there < 0) {
        fetch_free = later(fetch_free, now) + m.fetch_cycles;
        there = fetch_free;
    }
    return there;
}

inline int32_t Sm::slot_of(const Op& op) {
    return op.is_warpgroup                        ? QUEUE_SLOT
           : op.pipe == FMA && op.first_unit_only ? FIRST_UNIT_SLOT
                                                  : op.pipe;
}

// The FMA unit that is free first; in a tie, the one with the higher index.
inline int Sm::first_free(const Partition& p) const {
    int unit = 0;
    for (int u = 1; u < m.fma_units; ++u)
        if (p.unit_free[u] <= p.unit_free[unit]) unit = u;
    return unit;
}

inline void Sm::update_free(Partition& p, int32_t pipe) const {
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

inline double Sm::able(const Partition& p, size_t i) const {
    return later(p.ready[i], p.free_at[p.slot[i]]);
}

// Finds the warp that issues next, and when; NEVER if all wait for others.
OUT_OF_LINE void Sm::look_ahead(Partition& p) const {
    p.next = std::ceil(p.clock);
    if (choose(p)) return;
    double first = NEVER;
    for (size_t i = 0; i < p.warps.size(); ++i) first = earlier(first, able(p, i));
    p.next = std::ceil(first);
    choose(p);
}

// Chooses among warps that can issue at p.next: the one that issued last, else the youngest. False if none.
inline bool Sm::choose(Partition& p) const {
    p.chosen = p.last;
    if (p.last >= 0 && able(p, warps[p.last].place) <= p.next) return true;
    for (size_t i = p.warps.size(); i-- > 0;) {
        if (able(p, i) > p.next) continue;
        p.chosen = p.warps[i];
        return true;
    }
    return false;
}

inline void Sm::issue(Partition& p, int32_t id, double now) {
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
inline void Sm::take(double& free, double now, double cycles) {
    free = (free > now - 1 ? earlier(free, now) : now) + cycles;
}

OUT_OF_LINE void Sm::follow(int32_t kind, const Warp& w, int32_t op, double begin, double at,
                            int32_t reason) {
    if (!out.events || out.num_events >= out.max_events) return;
    out.events[out.num_events++] = {begin,    at, kind,   ctas[w.cta].number,
                                    w.number, op, reason, w.partition};
}

inline void Sm::attribute(const Partition& p, const Warp& w, const Op& op, int32_t op_index,
                          double now) {
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

inline void Sm::set(Warp& w, int32_t barrier, double clear, bool is_long) {
    if (barrier < 0 || clear <= w.clear[barrier]) return;
    w.clear[barrier] = clear;
    w.holds[barrier] = is_long ? LONG_SCOREBOARD : SHORT_SCOREBOARD;
}

// Reserves read ports of the register banks; returns how long a busy bank prevents the partition from
// issuing. A register in the operand cache needs no port.
inline double Sm::read_registers(Partition& p, int32_t id, const Op& op, double now) {
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

}  // namespace
}  // namespace attune_timing
