// Simulates one SM cycle by cycle: which warp issues, and why the others stall.
//
// Four partitions issue at most one warp instruction per cycle each. A warp may issue when its stall count
// has expired and the scoreboards of its wait mask are clear. The warp that issued last continues while it
// can, else the youngest ready warp issues (Huerta et al., arXiv 2503.20481, section 5.1). CTAs come from a
// queue: a free slot is filled at once, not in rounds.
//
// Time advances to the next cycle in which something can happen. Why a warp stalled between two issues is
// determined at the second issue, so that attribution costs nothing per cycle.
#include "ctas.h"
#include "issue.h"
#include "memory_pipes.h"
#include "products.h"
#include "synchronise.h"

#include <functional>
#include <queue>

namespace attune_timing {
namespace {

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
