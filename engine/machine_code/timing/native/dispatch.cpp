// Assigns CTAs of nearly equal time to SMs, one after another.
//
// SMs with only equal CTAs stay in lockstep: their numbers of CTAs differ by at most one. A CTA that takes a
// little less time than the others, because of a partial query tile, shifts its SM in time: if several of its
// slots become free before the first one of another SM, it takes several of the last CTAs. The shift is taken
// from simulated samples; each run starts with another sample.
#include "numbers.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace {

struct Launch {
    const uint8_t* is_cut;
    const double* ends;
    const double* offsets;
    const double* shifts;
    int64_t num_ctas;
    int32_t most, samples, resident, num_sms;
};

double run(const Launch& in, Numbers& numbers) {
    const int32_t resident = in.resident;
    const double* offsets = in.offsets + numbers.below(in.samples) * resident;
    // By SM and slot: shift in cycles, and number of CTAs taken.
    std::vector<double> late(in.num_sms * resident, 0.0);
    std::vector<int32_t> had(in.num_sms * resident, 0), taken(in.num_sms, 0);
    int64_t next = 0;
    const auto take = [&](int32_t sm, int32_t slot) {
        const int32_t at = sm * resident + slot;
        ++had[at], ++taken[sm];
        if (!in.is_cut[next++]) return;
        const double* shift = in.shifts + slot * resident;
        for (int32_t i = 0; i < resident; ++i) late[sm * resident + i] += shift[i];
    };
    for (int32_t slot = 0; slot < resident; ++slot)
        for (int32_t sm = 0; sm < in.num_sms && next < in.num_ctas; ++sm) take(sm, slot);
    using Event = std::pair<double, int32_t>;  // when a slot becomes free, and its index
    std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events;
    const auto follow = [&](int32_t at, double now) {
        const int32_t rounds = had[at] * resident, slot = at % resident;
        if (had[at] > 0 && rounds <= in.most)
            events.emplace(std::max(now, in.ends[rounds] + offsets[slot] + late[at]), at);
    };
    for (int32_t sm = 0; sm < in.num_sms; ++sm)
        for (int32_t slot = 0; slot < resident; ++slot) follow(sm * resident + slot, 0.0);
    while (!events.empty() && next < in.num_ctas) {
        const auto [now, at] = events.top();
        events.pop();
        take(at / resident, at % resident);
        follow(at, now);
    }
    double end = 0;
    for (int32_t sm = 0; sm < in.num_sms; ++sm) {
        double shift = 0;
        for (int32_t slot = 0; slot < resident; ++slot) shift += late[sm * resident + slot];
        end = std::max(end, in.ends[std::min(taken[sm], in.most)] + shift / resident);
    }
    return end;
}

}  // namespace

// Cycles until the last CTA ends, for each run, in `cycles`.
//
//   is_cut   [num_ctas] whether a CTA has a partial tile, in launch order
//   ends     [most + 1] cycles of 0, 1, … equal CTAs on one SM
//   offsets  [samples, resident] when the slots of equal CTAs become free, relative to the last of them
//   shifts   [resident, resident] how much later they become free with a partial CTA in each slot
extern "C" __attribute__((visibility("default"))) void attune_dispatch(
    const uint8_t* is_cut, int64_t num_ctas, const double* ends, int32_t most,
    const double* offsets, int32_t samples, const double* shifts, int32_t resident,
    int32_t num_sms, double* cycles, int32_t runs) {
    const Launch launch{is_cut, ends, offsets, shifts, num_ctas, most, samples, resident, num_sms};
    Numbers numbers;
    for (int32_t i = 0; i < runs; ++i) cycles[i] = run(launch, numbers);
}
