// Memory instructions: the port to shared memory and L1, L1's tags, L2, bulk copies.
#pragma once

#include "sm.h"

namespace attune_timing {
namespace {

// Reserves passes through the port; returns when they begin. Pending writes of bulk copies are interleaved
// pass by pass, or use the port while it is idle.
inline double Sm::take_port(double from, double passes) {
    if (from > port_free) bulk_writes = later(0.0, bulk_writes - (from - port_free));
    const double between = earlier(bulk_writes, passes);
    bulk_writes -= between;
    const double begin = later(from, port_free) + between;
    port_free = begin + passes;
    out.busy[NUM_PIPES + SHARED_PORT] += passes;
    return begin;
}

inline double Sm::take_l2(double from, double sectors) {
    const double cycles = sectors * m.cycles_per_sector;
    l2_free = later(from, l2_free) + cycles;
    out.busy[NUM_PIPES + L2_PORT] += cycles;
    return l2_free;
}

// A memory instruction: from the partition's queue to the units that the four partitions share.
OUT_OF_LINE void Sm::memory(Partition& p, Warp& w, const Op& op, const Trace& trace, int32_t row,
                            double now, double& result, double& read) {
    const uint8_t kind = trace.kind[row];
    if (kind == ASYNC_COMMIT) {
        result = later(w.copies, now);
        w.copy_groups.push_back(result);
        return;
    }
    if (kind == BULK_LOAD || kind == BULK_STORE) {
        const double landed = take_l2(now, trace.size_bytes[row] / SECTOR_BYTES) +
                              m.bulk_copy_cycles + m.l2_cycles;
        // In a multicast each CTA of the cluster loads a part, which is read once and arrives in all CTAs.
        const int64_t arriving = trace.size_bytes[row] *
                                 (kind == BULK_LOAD ? std::max(1, trace.amount[row]) : 1);
        const double writes = arriving / m.shared_bytes_per_cycle;
        bulk_writes += writes;
        out.busy[NUM_PIPES + SHARED_PORT] += writes;
        follow(COPY, w, w.trace->instruction[w.position], now, landed);
        if (kind == BULK_LOAD)
            mbarrier_landed(w, trace.address[row], arriving, landed);
        else
            w.bulk_stores = w.stores = later(w.stores, landed);
        return;
    }
    const double leaves = later(now, p.dispatch_free);
    p.dispatch_free = leaves + m.dispatch_cycles;
    const double passes = later(op.passes, m.shared_pass_cycles * trace.wavefronts[row]);
    const double begin = take_port(leaves, passes);
    p.queue[p.queue_at] = begin;
    p.queue_at = (p.queue_at + 1) % m.queue_depth;
    read = begin + op.read_cycles;
    result = begin + passes + op.result_cycles;
    const int64_t first = trace.line_start[row], last = trace.line_start[row + 1];
    // A fence waits for all passes, a barrier for none.
    if (kind == SHARED_STORE) w.stores = later(w.stores, begin + passes);
    if (first == last) return;
    result = through_l1(w, op, trace, first, last, begin);
    if (kind == GLOBAL_STORE || kind == LOCAL_STORE) w.stores = later(w.stores, result);
    if (kind == ASYNC_COPY) {
        w.copies = later(w.copies, result);
        follow(COPY, w, w.trace->instruction[w.position], now, result);
    }
}

// Number of lookups: neighbouring lines of one instruction need only one.
inline int Sm::lookups(const uint64_t* line, const uint64_t* end) const {
    uint64_t seen[WARP_SIZE];
    int count = 0;
    for (; line < end; ++line) {
        const uint64_t block = *line / m.lookup_bytes;
        if (std::find(seen, seen + count, block) == seen + count && count < WARP_SIZE)
            seen[count++] = block;
    }
    return count;
}

// One lookup per cycle; L1 misses go to L2 or DRAM. Returns when all data has arrived.
inline double Sm::through_l1(const Warp& w, const Op& op, const Trace& trace, int64_t first,
                             int64_t last, double begin) {
    const int looked_up = lookups(trace.line + first, trace.line + last);
    tags_free = later(begin, tags_free) + looked_up;
    out.busy[NUM_PIPES + L1_TAGS] += looked_up;
    double done = tags_free + m.l1_cycles;
    int missing = 0;
    const bool cached = op.uses_l1 && m.l1_lines > 0;
    for (int64_t i = first; i < last; ++i) {
        uint8_t lacks = trace.line_sectors[i];
        if (cached) {
            const auto found = l1.find(key(w, trace.line[i]));
            if (found != l1.end()) {
                lacks &= static_cast<uint8_t>(~found->second.sectors);
                done = later(done, found->second.there);  // the line may still be in flight
            }
        }
        missing += __builtin_popcount(lacks);
    }
    if (missing == 0) return done;
    done = later(done, take_l2(tags_free, missing) + m.l2_cycles);
    if (cached)
        for (int64_t i = first; i < last; ++i)
            keep_in_l1(key(w, trace.line[i]), trace.line_sectors[i], done);
    return done;
}

// The key of a line in L1. CTAs of the queue may share a trace: a line that one of them loaded is not a hit
// for another.
inline uint64_t Sm::key(const Warp& w, uint64_t line) const {
    return line ^ static_cast<uint64_t>(ctas[w.cta].number + 1) << 48;
}

inline void Sm::keep_in_l1(uint64_t line, uint8_t sectors, double there) {
    const auto [at, fresh] = l1.emplace(line, Line{});
    at->second.sectors |= sectors;
    at->second.there = there;
    if (!fresh) return;
    if (l1_order.size() < static_cast<size_t>(m.l1_lines)) {
        l1_order.push_back(line);
        return;
    }
    l1.erase(l1_order[l1_oldest]);
    l1_order[l1_oldest] = line;
    l1_oldest = (l1_oldest + 1) % l1_order.size();
}

}  // namespace
}  // namespace attune_timing
