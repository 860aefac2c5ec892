// CTAs of several lengths on all SMs: where each one runs, and when the last one ends.
//
// Resident CTAs share their SM equally: a CTA of kind k completes 1 / costs[k][n] of its work per cycle while
// n are resident. The first CTAs of each SM start together and take longer, and end one after another. Which
// CTA ends last may depend on a few cycles, so the result is averaged over several runs in which CTAs take
// slightly more or less time.
#include "numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <vector>

namespace {

struct Cta {
    int32_t kind;
    double left;  // remaining share of its work
};

struct Sm {
    std::vector<Cta> ctas;
    int32_t taken = 0;  // CTAs taken so far
    double since = 0;
};

struct Launch {
    const int32_t* order;
    const double* costs;
    const double* equal;
    const double* start;
    const double* first_work;
    int64_t num_ctas;
    int32_t resident, num_sms;
    double spread;
};

double run(const Launch& in, Numbers& numbers) {
    const auto work = [&] { return 1.0 + std::sqrt(3.0) * in.spread * numbers.even(); };
    std::vector<Sm> sms(in.num_sms);
    int64_t next = 0;
    const auto take = [&](Sm& sm) {
        if (next == in.num_ctas) return;
        sm.ctas.push_back({in.order[next++], work()});
        ++sm.taken;
    };
    for (int32_t slot = 0; slot < in.resident; ++slot)
        for (Sm& sm : sms) take(sm);
    const auto row = [&](const Sm& sm, const Cta& cta) {
        return cta.kind * (in.resident + 1) + static_cast<int32_t>(sm.ctas.size());
    };
    // When an SM's next CTA ends; in a tie, the SM that has taken the fewest CTAs comes first.
    using Event = std::tuple<double, int32_t, int32_t>;
    std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events;
    const auto follow = [&](int32_t i) {
        const Sm& sm = sms[i];
        if (sm.ctas.empty()) return;
        double first = std::numeric_limits<double>::infinity();
        for (const Cta& cta : sm.ctas) first = std::min(first, cta.left * in.costs[row(sm, cta)]);
        events.emplace(sm.since + std::max(0.0, first), sm.taken, i);
    };
    for (int32_t i = 0; i < in.num_sms; ++i) {
        Sm& sm = sms[i];
        const bool are_equal =
            std::all_of(sm.ctas.begin(), sm.ctas.end(),
                        [&](const Cta& cta) { return cta.kind == sm.ctas[0].kind; });
        const bool is_full = static_cast<int32_t>(sm.ctas.size()) == in.resident;
        for (size_t slot = 0; slot < sm.ctas.size(); ++slot) {
            Cta& cta = sm.ctas[slot];
            const double cost = in.costs[row(sm, cta)];
            cta.left += (are_equal ? in.equal[row(sm, cta)] - cost : in.start[sm.ctas.size()]) / cost;
            if (is_full) cta.left *= in.first_work[slot];
        }
        follow(i);
    }
    double end = 0;
    while (!events.empty()) {
        const auto [now, taken, i] = events.top();
        events.pop();
        Sm& sm = sms[i];
        const auto left = [&](const Cta& cta) { return cta.left * in.costs[row(sm, cta)]; };
        const auto less = [&](const Cta& a, const Cta& b) { return left(a) < left(b); };
        const auto done = std::min_element(sm.ctas.begin(), sm.ctas.end(), less);
        for (Cta& cta : sm.ctas) cta.left -= (now - sm.since) / in.costs[row(sm, cta)];
        sm.since = end = now;
        sm.ctas.erase(done);
        take(sm);
        follow(i);
    }
    return end;
}

}  // namespace

// Cycles until the last CTA ends, averaged over `runs`.
//
//   order    [num_ctas] kind of each CTA, in launch order
//   costs    [kinds, resident + 1] cycles of a CTA while n are resident
//   equal    [kinds, resident + 1] cycles of each of n equal CTAs that start together
//   start    [resident + 1] additional cycles of each of n different CTAs that start together
//   first_work  [resident] factor on the work of the CTA in each slot if all slots start together
//   spread   standard deviation of a CTA's work, as a share of it
extern "C" __attribute__((visibility("default"))) double attune_share_sms(
    const int32_t* order, int64_t num_ctas, const double* costs, const double* equal,
    const double* start, const double* first_work, int32_t resident, int32_t num_sms, double spread,
    int32_t runs) {
    const Launch launch{order,    costs,    equal,   start, first_work,
                        num_ctas, resident, num_sms, spread};
    Numbers numbers;
    double sum = 0;
    for (int32_t i = 0; i < runs; ++i) sum += run(launch, numbers);
    return sum / runs;
}
