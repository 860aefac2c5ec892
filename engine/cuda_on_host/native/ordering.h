// Happens-before order of the check build across CTAs and by fences and atomics.
//
// A fence records the writes that its thread is ordered after, within the fence's scope. An atomic
// write releases this record at its address; for a thread that reads it there by an atomic, the
// writes are *observed*, and after a fence *acquired*: they happened before the thread's next
// accesses. Barriers pass all of this on to the threads that take part. PTX manual, "Memory
// Consistency Model"; fences of threads that then meet at a barrier also count for the thread that
// executes the atomic, as in the threadFenceReduction sample.
#pragma once

namespace coh {

// Clocks of one CTA's threads that are ordered before: `floor` for all, higher ones in `later`.
struct CtaClocks {
    struct Later {
        uint32_t thread, clock;
    };
    uint32_t floor = 0;
    std::vector<Later> later;  // by thread

    bool covers(unsigned thread, uint32_t clock) const;
};
// Immutable and shared, as thousands of threads have the same. Null: no CTA.
using KnownCtas = std::shared_ptr<const std::vector<std::pair<uint32_t, std::shared_ptr<const CtaClocks>>>>;

// State of one thread, or of all threads of a barrier.
struct MemoryOrder {
    KnownCtas acquired;         // happened before
    KnownCtas observed;         // released by an atomic that it read; acquired by the next fence
    KnownCtas observed_in_cta;  // the same, for which a fence of CTA scope is enough
    KnownCtas fenced;           // recorded by its fences of GPU scope, to be released
    KnownCtas fenced_in_cta;    // recorded by its fences of any scope
    KnownCtas heard;            // what preceded the atomics that it read, with or without fences

    void join(const MemoryOrder &other);
};
// State released by atomics at one address.
struct SyncLocation {
    uint64_t changes = 0;  // number of atomics that wrote here
    KnownCtas released;
    KnownCtas before;  // what preceded the atomics, with or without fences
    std::unordered_map<uint32_t, KnownCtas> released_in_cta;  // CTA -> released to its threads only
};

// State that threads pass on at a barrier, an mbarrier or a __syncwarp().
struct Handover {
    std::vector<uint32_t> clock;
    MemoryOrder order;
};

}  // namespace coh
