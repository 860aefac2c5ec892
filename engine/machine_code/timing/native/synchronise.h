// What warps wait for: barriers, mbarriers, groups of copies and products, registers.
#pragma once

#include "sm.h"

namespace attune_timing {
namespace {

inline void Sm::release(Warp& w, double at, int32_t reason) {
    if (at <= w.released) return;
    w.released = at;
    w.released_by = reason;
}

// The cycle from which at most `allowed` groups are pending.
inline double Sm::all_but(const std::vector<double>& groups, int32_t allowed) {
    double last = 0;
    for (size_t i = 0; i + allowed < groups.size(); ++i) last = later(last, groups[i]);
    return last;
}

inline void Sm::synchronise(Warp& w, int32_t id, const Trace& trace, int32_t row, uint8_t kind,
                            double now) {
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
inline void Sm::set_registers(Warp& w, int32_t id, int32_t wanted, double now) {
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

inline void Sm::open_if_complete(Cta& cta, NamedBarrier& barrier, double now) {
    // Exited warps count as arrived; arrivals before the exit are already counted.
    const bool is_complete = barrier.arrived >= barrier.expected ||
                             static_cast<int32_t>(barrier.waiting.size()) >= cta.running;
    if (!is_complete || barrier.arrived == 0) return;
    barrier.arrived = 0;
    wake(barrier.waiting, now + m.barrier_cycles, BARRIER_STALL);
}

inline void Sm::wake(std::vector<int32_t>& waiting, double at, int32_t reason) {
    std::vector<int32_t> woken;
    woken.swap(waiting);
    for (const int32_t id : woken) {
        Warp& w = warps[id];
        w.waits = false;
        release(w, at, reason);
        if (w.position < w.end) prepare(w);
    }
}

inline void Sm::mbarrier_landed(Warp& w, uint64_t address, int64_t bytes, double at) {
    Mbarrier& barrier = ctas[w.cta].mbarriers[address];
    barrier.bytes -= bytes;
    barrier.last = later(barrier.last, at);
    end_phase(barrier);
}

inline void Sm::end_phase(Mbarrier& barrier) {
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

}  // namespace
}  // namespace attune_timing
