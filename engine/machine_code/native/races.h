// Hazards: unordered accesses of two warps to the same bytes, at least one of them a write. Included by
// emulator.cpp where memory is real.
//
// Every warp of a cluster has a vector clock. Barriers of the CTA and the cluster, mbarriers and atomics pass
// clocks on; an access is ordered after another one if its warp's clock includes the epoch of that one. So a
// hazard is found whatever the order in which the warps ran. Accesses in flight (cp.async, wgmma operands, TMA
// stores) have an epoch that no clock includes until they are waited for. Lanes of one warp count as ordered.
//
// Between clusters, order comes through global memory (PTX manual, memory consistency model): accesses before
// a fence of GPU scope that is followed by a strong write are known to a warp that reads that write by a
// strong read followed by a fence. Barriers pass on both halves. The async proxy (wgmma, TMA) sees a warp's
// writes only after a fence.proxy.async.
#pragma once

using Epochs = std::vector<uint32_t>;    // one per warp of a cluster, then one per CTA for its copies
using Known = std::map<int64_t, Epochs>;  // by cluster number

inline void join(Epochs& to, const Epochs& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t n = 0; n < from.size(); n++) to[n] = std::max(to[n], from[n]);
}

inline void join(Known& to, const Known& from) {
    for (const auto& [cluster, epochs] : from) join(to[cluster], epochs);
}

struct Clock {
    Epochs own;      // of this cluster
    Epochs proxied;  // of this cluster, visible to the async proxy
    Known others;    // of other clusters
    Known fenced;    // known before a fence of GPU scope; passed on by a strong write
    Known observed;  // received by strong reads; known after a fence
    explicit Clock(size_t size = 0) : own(size), proxied(size) {}
    uint32_t& operator[](size_t n) { return own[n]; }
    uint32_t operator[](size_t n) const { return own[n]; }
    bool empty() const { return own.empty(); }
    void clear() { *this = Clock(); }
};

inline void join(Clock& to, const Clock& from) {
    join(to.own, from.own), join(to.proxied, from.proxied), join(to.others, from.others);
    join(to.fenced, from.fenced), join(to.observed, from.observed);
}

enum HazardKind : int32_t { READ_OF_WRITE, WRITE_OF_READ, WRITE_OF_WRITE, NO_PROXY_FENCE, EXIT_BEFORE_END, EXIT_BEFORE_PEER };
constexpr uint32_t UNDER_WAY = 0xffffffffu;

struct GlobalRaces;

struct Races {
    bool wanted = false;
    int warps_per_cta = 0, ctas = 0;
    int64_t cluster = 0;             // its number in the grid
    GlobalRaces* global = nullptr;
    std::vector<Clock> clock;        // of each warp
    Clock cluster_pending, cluster_done;
    std::map<std::array<int32_t, 3>, Hazard> found;  // by kind and both instructions

    void begin(int cta_count, int warp_count) {
        wanted = true, ctas = cta_count, warps_per_cta = warp_count;
        clock.assign(static_cast<size_t>(ctas * warps_per_cta), Clock(size()));
        for (size_t n = 0; n < clock.size(); n++) clock[n][n] = 1;
    }
    size_t size() const { return static_cast<size_t>(ctas * (warps_per_cta + 1)); }
    size_t copies_of(uint32_t rank) const { return static_cast<size_t>(ctas * warps_per_cta) + rank; }

    void release(size_t warp, Clock& to) {
        join(to, clock[warp]);
        clock[warp][warp]++;
    }
    void acquire(size_t warp, const Clock& from) { join(clock[warp], from); }

    // Separates accesses before a fence from those after it.
    void fence_gpu(size_t warp) {
        Clock& now = clock[warp];
        join(now.fenced, now.others), join(now.fenced[cluster], now.own);
        now[warp]++;
    }
    void acquire_observed(size_t warp) {
        Clock& now = clock[warp];
        for (const auto& [number, epochs] : now.observed) join(number == cluster ? now.own : now.others[number], epochs);
    }
    void fence_proxy(size_t warp) {
        Clock& now = clock[warp];
        join(now.proxied, now.own);
        now[warp]++;
    }

    void report(HazardKind kind, int32_t before, int32_t now, size_t warp_before, size_t warp_now, bool waits, uint64_t address, const uint32_t* cta) {
        Hazard& h = found[{kind, before, now}];
        if (h.count++) return;
        h.other_cluster = -1;
        h.kind = kind, h.before = before, h.now = now, h.under_way = waits;
        h.warp_before = place(warp_before), h.warp_now = place(warp_now);
        h.address = address;
        std::copy(cta, cta + 3, h.cta);
    }
    int32_t place(size_t warp) const {  // number in its CTA; -1: a copy
        return warp < clock.size() ? static_cast<int32_t>(warp % static_cast<size_t>(warps_per_cta)) : -1;
    }
};

// Last accesses to a CTA's shared memory, in units of two bytes.
struct Shadow {
    struct Unit {
        uint32_t epoch = 0;
        int32_t at = -1;
        uint16_t writer = 0;
        uint8_t bytes = 0;  // mask of the two bytes
        bool atomic = false;
    };
    struct Reader {
        uint32_t epoch = 0;
        int32_t at = -1;
    };
    std::vector<Unit> written;
    std::vector<Reader> readers;  // [unit, who]
    size_t who = 0;

    void begin(size_t bytes, size_t count) {
        who = count;
        written.assign(bytes / 2 + 1, Unit());
        readers.assign(written.size() * who, Reader());
    }

    template <typename F>
    static void units(uint64_t address, int width, F f) {
        for (uint64_t unit = address / 2, end = address + static_cast<uint64_t>(width); unit * 2 < end; unit++) {
            const uint8_t low = unit * 2 >= address, high = unit * 2 + 1 < end;
            f(unit, static_cast<uint8_t>(low | high << 1));
        }
    }

    // `epoch`: of the access. `known`: clock of its warp at the issue. `proxied`: made by the async proxy.
    void read(Races& races, uint64_t address, int width, size_t warp, int32_t at, uint32_t epoch, const Clock& known, const uint32_t* cta, bool proxied = false) {
        units(address, width, [&](uint64_t unit, uint8_t bytes) {
            const Unit& w = written[unit];
            if (w.bytes & bytes) {
                if (w.epoch > known[w.writer]) races.report(READ_OF_WRITE, w.at, at, w.writer, warp, w.epoch == UNDER_WAY, unit * 2, cta);
                else if (proxied && w.writer < races.clock.size() && w.epoch > known.proxied[w.writer]) races.report(NO_PROXY_FENCE, w.at, at, w.writer, warp, false, unit * 2, cta);
            }
            readers[unit * who + warp] = {epoch, at};
        });
    }

    void write(Races& races, uint64_t address, int width, size_t warp, int32_t at, uint32_t epoch, const Clock& known, const uint32_t* cta, bool atomic = false, bool same = false) {
        units(address, width, [&](uint64_t unit, uint8_t bytes) {
            Unit& w = written[unit];
            const bool unordered = w.bytes & bytes && w.epoch > known[w.writer];
            if (unordered && !same && !(atomic && w.atomic)) races.report(WRITE_OF_WRITE, w.at, at, w.writer, warp, w.epoch == UNDER_WAY, unit * 2, cta);
            for (size_t r = 0; r < who; r++) {
                Reader& reader = readers[unit * who + r];
                if (reader.epoch > known[r]) races.report(WRITE_OF_READ, reader.at, at, r, warp, reader.epoch == UNDER_WAY, unit * 2, cta);
            }
            w = {epoch, at, static_cast<uint16_t>(warp), bytes, atomic};
        });
    }

    // Accesses in flight have completed: writes of `warp` in flight get `epoch`.
    void landed(uint64_t address, int width, size_t warp, uint32_t epoch) {
        units(address, width, [&](uint64_t unit, uint8_t) {
            Unit& w = written[unit];
            if (w.writer == warp && w.epoch == UNDER_WAY) w.epoch = epoch;
        });
    }
    void was_read(uint64_t address, int width, size_t warp, uint32_t epoch) {
        units(address, width, [&](uint64_t unit, uint8_t) { readers[unit * who + warp].epoch = epoch; });
    }
};

// Last accesses to global memory by all clusters of a launch, in words of 4 bytes.
struct GlobalRaces {
    struct Access {
        int64_t cluster = -1;
        uint32_t epoch = 0;
        int32_t at = -1;
        uint16_t warp = 0;
        uint8_t bytes = 0;  // mask of the four bytes
        uint8_t strong = 0;  // 1: CTA scope, 2: GPU scope
    };
    struct Word {
        Access writer, readers[2];
    };
    static constexpr uint64_t PAGE = 1024;       // words
    static constexpr size_t MAX_PAGES = 1 << 14;  // accesses beyond 64 MiB are not tracked
    std::mutex lock;
    std::unordered_map<uint64_t, std::vector<Word>> pages;
    std::unordered_map<uint64_t, Known> released;  // by address: what its strong writes pass on

    static bool both_strong(const Access& a, const Access& b) { return std::min(a.strong, b.strong) >= (a.cluster == b.cluster ? 1 : 2); }
    static bool ordered(const Races& races, const Clock& known, const Access& a) {
        if (a.cluster < 0) return true;
        if (a.cluster == races.cluster) return a.epoch <= known[a.warp];
        const auto other = known.others.find(a.cluster);
        return other != known.others.end() && a.warp < other->second.size() && a.epoch <= other->second[a.warp];
    }
    static void report(Races& races, HazardKind kind, const Access& before, const Access& now, uint64_t address, const uint32_t* cta) {
        Hazard& h = races.found[{kind, before.at, now.at}];
        if (h.count++) return;
        h.kind = kind, h.before = before.at, h.now = now.at, h.under_way = before.epoch == UNDER_WAY;
        h.warp_before = before.warp, h.warp_now = races.place(now.warp);
        h.global = 1, h.other_cluster = before.cluster, h.warps_per_cta = races.warps_per_cta;
        h.address = address;
        std::copy(cta, cta + 3, h.cta);
    }

    template <typename F>
    void words(uint64_t address, int width, F f) {
        for (uint64_t word = address / 4, end = address + static_cast<uint64_t>(width); word * 4 < end; word++) {
            auto page = pages.find(word / PAGE);
            if (page == pages.end()) {
                if (pages.size() == MAX_PAGES) return;
                page = pages.emplace(word / PAGE, PAGE).first;
            }
            uint8_t bytes = 0;
            for (uint64_t b = 0; b < 4; b++) bytes |= static_cast<uint8_t>((word * 4 + b >= address && word * 4 + b < end) << b);
            f(page->second[word % PAGE], bytes);
        }
    }

    // Call with `lock` held. `now` is the access without its bytes.
    void read(Races& races, uint64_t address, int width, Access now, const Clock& known, const uint32_t* cta) {
        words(address, width, [&](Word& word, uint8_t bytes) {
            now.bytes = bytes;
            const Access& w = word.writer;
            if (w.bytes & bytes && !both_strong(w, now) && !ordered(races, known, w)) report(races, READ_OF_WRITE, w, now, address, cta);
            Access& first = word.readers[0];
            if (first.cluster != now.cluster || first.warp != now.warp) {
                if (!ordered(races, known, first)) word.readers[1] = first;
            }
            first = now;
        });
    }
    void write(Races& races, uint64_t address, int width, Access now, const Clock& known, const uint32_t* cta, bool same) {
        words(address, width, [&](Word& word, uint8_t bytes) {
            now.bytes = bytes;
            const Access& w = word.writer;
            if (w.bytes & bytes && !same && !both_strong(w, now) && !ordered(races, known, w)) report(races, WRITE_OF_WRITE, w, now, address, cta);
            for (const Access& reader : word.readers)
                if (reader.bytes & bytes && !both_strong(reader, now) && !ordered(races, known, reader)) report(races, WRITE_OF_READ, reader, now, address, cta);
            word.writer = now;
        });
    }
    void landed(uint64_t address, int width, int64_t cluster, size_t warp, uint32_t epoch) {
        words(address, width, [&](Word& word, uint8_t) {
            Access& w = word.writer;
            if (w.cluster == cluster && w.warp == warp && w.epoch == UNDER_WAY) w.epoch = epoch;
        });
    }
};
