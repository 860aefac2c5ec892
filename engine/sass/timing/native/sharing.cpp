// CTAs of several lengths on all SMs: who runs where, and when the last one is done.
//
// CTAs beside each other share their SM evenly: one of kind k advances by 1 / costs[k][n] a cycle
// while n are there. The first ones of each SM, which start at once, have more to do. Who comes last
// may hang on a few cycles, so that several runs are averaged in which CTAs take a little more or
// less.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <utility>
#include <vector>

namespace {

struct Cta {
    int32_t kind;
    double left;  // share of its work
};

struct Sm {
    std::vector<Cta> ctas;
    double since = 0;
};

struct Launch {
    const int32_t* order;
    const double* costs;
    const double* equal;
    const double* start;
    int64_t num_ctas;
    int32_t resident, num_sms;
    double spread;
};

// Evenly distributed from -1 to 1; the same numbers in every call.
class Numbers {
public:
    double next() {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return static_cast<double>(state >> 11) / 4503599627370496.0 - 1.0;
    }

private:
    uint64_t state = 1;
};

double run(const Launch& in, Numbers& numbers) {
    const auto work = [&] { return 1.0 + std::sqrt(3.0) * in.spread * numbers.next(); };
    std::vector<Sm> sms(in.num_sms);
    int64_t next = 0;
    for (int32_t slot = 0; slot < in.resident; ++slot)
        for (Sm& sm : sms)
            if (next < in.num_ctas) sm.ctas.push_back({in.order[next++], work()});
    const auto row = [&](const Sm& sm, const Cta& cta) {
        return cta.kind * (in.resident + 1) + static_cast<int32_t>(sm.ctas.size());
    };
    using Event = std::pair<double, int32_t>;  // when an SM's next CTA is done
    std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events;
    const auto follow = [&](int32_t i) {
        const Sm& sm = sms[i];
        if (sm.ctas.empty()) return;
        double first = std::numeric_limits<double>::infinity();
        for (const Cta& cta : sm.ctas) first = std::min(first, cta.left * in.costs[row(sm, cta)]);
        events.emplace(sm.since + first, i);
    };
    for (int32_t i = 0; i < in.num_sms; ++i) {
        Sm& sm = sms[i];
        const bool are_equal =
            std::all_of(sm.ctas.begin(), sm.ctas.end(),
                        [&](const Cta& cta) { return cta.kind == sm.ctas[0].kind; });
        for (Cta& cta : sm.ctas) {
            const double cost = in.costs[row(sm, cta)];
            cta.left += (are_equal ? in.equal[row(sm, cta)] - cost : in.start[sm.ctas.size()]) / cost;
        }
        follow(i);
    }
    double end = 0;
    while (!events.empty()) {
        const auto [now, i] = events.top();
        events.pop();
        Sm& sm = sms[i];
        for (Cta& cta : sm.ctas) cta.left -= (now - sm.since) / in.costs[row(sm, cta)];
        sm.since = end = now;
        const auto done = [](const Cta& cta) { return cta.left <= 1e-9; };
        sm.ctas.erase(std::remove_if(sm.ctas.begin(), sm.ctas.end(), done), sm.ctas.end());
        while (static_cast<int32_t>(sm.ctas.size()) < in.resident && next < in.num_ctas)
            sm.ctas.push_back({in.order[next++], work()});
        follow(i);
    }
    return end;
}

}  // namespace

// Cycles until the last CTA is done, on average of `runs`.
//
//   order    [num_ctas] kind of each CTA, in order of starting
//   costs    [kinds, resident + 1] cycles of one of n CTAs beside each other
//   equal    [kinds, resident + 1] the same of n equal ones that start at once
//   start    [resident + 1] what n different ones that start at once take more
//   spread   standard deviation of a CTA's work, as a share of it
extern "C" __attribute__((visibility("default"))) double attune_share_sms(
    const int32_t* order, int64_t num_ctas, const double* costs, const double* equal,
    const double* start, int32_t resident, int32_t num_sms, double spread, int32_t runs) {
    const Launch launch{order, costs, equal, start, num_ctas, resident, num_sms, spread};
    Numbers numbers;
    double sum = 0;
    for (int32_t i = 0; i < runs; ++i) sum += run(launch, numbers);
    return sum / runs;
}
