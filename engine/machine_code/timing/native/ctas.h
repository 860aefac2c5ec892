// CTAs start in free slots and end; in between, the partition with the earliest issue is next.
#pragma once

#include "sm.h"

namespace attune_timing {
namespace {

// Starts CTA `number` of the queue in a free slot.
inline void Sm::start_cta(int32_t number, double begin) {
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
inline bool Sm::run_to_free_slot() {
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

inline void Sm::finish_cta(int32_t n, double now) {
    out.finished[ctas[n].number] = now;
    end = later(end, now);
    --running_ctas;
    ++free_slots;
    slot_freed = now;
}

inline void Sm::retire(Partition& p, int32_t id, double now) {
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

}  // namespace
}  // namespace attune_timing
