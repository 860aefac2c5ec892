// What the check build knows about the order of writes across CTAs and by fences and atomics.
//
// A fence notes which writes its thread is ordered after, as far as its scope reaches. An atomic
// write leaves what is noted at its address; an atomic read there makes it *observed*, and a fence
// after it *acquired*: then those writes happened before what the thread does next. Barriers hand
// all of this on to the threads that meet. PTX manual, "Memory Consistency Model"; fences of
// threads that then meet at a barrier count for the one that goes on to the atomic, as in the
// threadFenceReduction sample.
#pragma once

namespace coh {

// How far the threads of one CTA are known: all of them up to `floor`, some further.
struct CtaClocks {
    struct Later {
        uint32_t thread, clock;
    };
    uint32_t floor = 0;
    std::vector<Later> later;  // by thread

    bool covers(unsigned thread, uint32_t clock) const;
};
// Immutable and shared, because thousands of threads know the same. Null: nothing is known.
using KnownCtas = std::shared_ptr<const std::vector<std::pair<uint32_t, std::shared_ptr<const CtaClocks>>>>;

// Of one thread, or of all that met at a barrier.
struct MemoryOrder {
    KnownCtas acquired;         // happened before
    KnownCtas observed;         // left by an atomic that it read; acquired with the next fence
    KnownCtas observed_in_cta;  // the same, where a fence of CTA scope will do
    KnownCtas fenced;           // what its fences of GPU scope have made ready to be released
    KnownCtas fenced_in_cta;    // its fences of any scope
    KnownCtas heard;            // what was before the atomics that it read, fences or none

    void join(const MemoryOrder &other);
};
// What atomics left at one address.
struct SyncLocation {
    uint64_t changes = 0;  // atomics that wrote here
    KnownCtas released;
    KnownCtas before;  // what happened before the atomics, whether fences release it or not
    std::unordered_map<uint32_t, KnownCtas> released_in_cta;  // CTA -> for its threads alone
};

// What threads hand over at a barrier, an mbarrier or a __syncwarp().
struct Handover {
    std::vector<uint32_t> clock;
    MemoryOrder order;
};

}  // namespace coh
