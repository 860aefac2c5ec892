// Members of a CTA with real memory. Included in `struct Cta` by cta.h.

struct Cluster* cluster = nullptr;
uint32_t rank = 0;                     // number in its cluster
const Buffer* last_buffer = nullptr;   // the last one that was used
// When shared memory may have changed, so that data derived from it can be reused until then.
struct Changes {
    static constexpr int LOG_PAGE = 12, PAGES = 64;
    uint64_t now = 0, everywhere = 0, of_page[PAGES] = {};
    static uint64_t page(uint64_t address) { return std::min<uint64_t>(address >> LOG_PAGE, PAGES - 1); }
    void all() { everywhere = ++now; }
    void pages(uint64_t which) {
        now++;
        for (; which; which &= which - 1) of_page[__builtin_ctzll(which)] = now;
    }
    void range(uint64_t first, uint64_t last) {
        now++;
        for (uint64_t n = page(first); n <= page(last); n++) of_page[n] = now;
    }
    uint64_t latest(uint64_t first, uint64_t last) const {
        uint64_t latest = everywhere;
        for (uint64_t n = page(first); n <= page(last); n++) latest = std::max(latest, of_page[n]);
        return latest;
    }
} changes;
int polls = 0;                         // loads in this turn that may wait for another CTA
int cluster_phase = 0;                 // number of completed phases
Shadow shadow;
std::map<uint64_t, Clock> atomics;     // by word of shared memory: the clock that its atomics pass on
struct Visit {  // last access of another CTA's warp to this shared memory
    uint32_t epoch;
    int32_t at;
    uint64_t address;
};
std::map<size_t, Visit> visits;  // by warp of the cluster
Clock left;                      // joined clocks of exited warps
uint32_t copies_landed = 0;            // epoch of completed TMA copies

void passed(Warp& w, const Barrier& bar);

// A TMA load in flight: it completes when its mbarrier is tested, so that a missing wait has an effect.
struct Tile {
    TensorMap map;
    uint32_t coordinates[5];
    uint64_t to, mbarrier;  // in shared memory
    int32_t at;             // index of the instruction
    Clock known;            // clock of the warp that issued it
};
std::vector<Tile> tiles;

void land_tiles(uint64_t mbarrier);
void settle(MBarrier& bar) {  // a phase ends when all arrivals and bytes are complete
    if (bar.pending > 0 || bar.bytes != 0) return;
    bar.pending = bar.needed;
    bar.phase++;
    join(bar.done_clock, bar.pending_clock);
    bar.pending_clock.clear();
    wake();
}
void wake() {
    for (Warp* w : warps) w->blocked &= ~w->at_mbar, w->at_mbar = 0;
}

// Runs until the CTA ends (true), waits for another CTA or has used its turn (false).
bool advance(int64_t turn, bool& moved) {
    constexpr int64_t TURN_OF_A_WARP = 1 << 14;
    constexpr int POLLS = 1 << 10;
    const int64_t ends = steps + turn;
    polls = 0;
    static std::atomic<uint64_t> turns{0};
    changes.now = ++turns << 32;  // unique: no other turn has it
    changes.all();
    for (;;) {
        bool progress = false, left = false;
        const int64_t before = steps;
        for (size_t n = 0; n < warps.size(); n++) {
            Warp* w = warps[request.reversed ? warps.size() - 1 - n : n];
            w->turn_ends = std::min(steps + TURN_OF_A_WARP, ends);
            w->run();
            left |= w->alive != 0;
        }
        progress = steps != before;
        moved |= progress;
        if (!left) return true;
        if (!progress) {
            release_bars();
            bool free = false;
            for (const Warp* w : warps) free |= (w->alive & ~w->blocked) != 0;
            if (!free || steps >= ends) return false;
        }
        if (steps >= ends || polls > POLLS) return false;
    }
}
