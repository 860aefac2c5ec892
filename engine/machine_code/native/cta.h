// A CTA: shared memory, barriers, rows and totals of its trace, TMA copies. Included by emulator.cpp.

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
