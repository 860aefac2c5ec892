// Hazards of shared memory: two warps touch the same bytes, one of them writes, and nothing orders
// the two. Included by emulator.cpp where memory is real.
//
// Every warp of a cluster has a vector clock. Barriers of the CTA and the cluster, mbarriers and
// atomics pass clocks on; an access is ordered behind another one if its warp knows of the epoch in
// which that one was made. So a hazard is found whatever order the warps happened to run in. What is
// still under way (cp.async, wgmma's operands) has an epoch that nobody knows until it is waited for.
// Lanes of one warp count as ordered, as do fences of other kinds: they are not followed.
#pragma once

using Clock = std::vector<uint32_t>;  // an epoch for each warp of the cluster, then each CTA's copies

inline void join(Clock& to, const Clock& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t n = 0; n < from.size(); n++) to[n] = std::max(to[n], from[n]);
}

enum HazardKind : int32_t { READ_OF_WRITE, WRITE_OF_READ, WRITE_OF_WRITE };
constexpr uint32_t UNDER_WAY = 0xffffffffu;

struct Races {
    bool wanted = false;
    int warps_per_cta = 0, ctas = 0;
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

    void report(HazardKind kind, int32_t before, int32_t now, size_t warp_before, size_t warp_now, bool waits, uint64_t address, const uint32_t* cta) {
        Hazard& h = found[{kind, before, now}];
        if (h.count++) return;
        h.kind = kind, h.before = before, h.now = now, h.under_way = waits;
        h.warp_before = place(warp_before), h.warp_now = place(warp_now);
        h.address = static_cast<uint32_t>(address);
        std::copy(cta, cta + 3, h.cta);
    }
    int32_t place(size_t warp) const {  // in its CTA; -1: a copy of the CTA's
        return warp < clock.size() ? static_cast<int32_t>(warp % static_cast<size_t>(warps_per_cta)) : -1;
    }
};

// Who touched which bytes of a CTA's shared memory last, two bytes each.
struct Shadow {
    struct Unit {
        uint32_t epoch = 0;
        int32_t at = -1;
        uint16_t writer = 0;
        uint8_t bytes = 0;  // of the two
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

    // `epoch` of the access; `known` is what its warp knew when it asked for it.
    void read(Races& races, uint64_t address, int width, size_t warp, int32_t at, uint32_t epoch, const Clock& known, const uint32_t* cta) {
        units(address, width, [&](uint64_t unit, uint8_t bytes) {
            const Unit& w = written[unit];
            if (w.bytes & bytes && w.epoch > known[w.writer]) races.report(READ_OF_WRITE, w.at, at, w.writer, warp, w.epoch == UNDER_WAY, unit * 2, cta);
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

    // What was under way has ended: the writes of `warp` that are marked so are of `epoch` from now on.
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
