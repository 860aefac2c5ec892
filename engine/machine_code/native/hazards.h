// Finds the barriers of the CTA that order accesses. Included by emulator.cpp.
//
// Barriers of the whole CTA separate intervals. A barrier is needed if a word of shared memory is accessed
// by one warp in the interval before it and by another in the interval after it, and one of them writes.
// Removing one barrier merges two neighbouring intervals, so looking back one interval is enough. Global
// memory counts as one word.

struct Hazards {
    struct Word {
        int32_t interval = -1;
        uint32_t readers = 0, writers = 0;                // masks of warps, in `interval`
        uint32_t earlier_readers = 0, earlier_writers = 0;  // in the one before it
    };

    bool wanted = false;
    bool unclear = false;          // accesses are ordered by something that is not tracked here
    int32_t interval = 0;
    int32_t site = -1;             // instruction of the barrier that began this interval
    std::vector<Word> words;       // of shared memory; the last one represents global memory
    std::vector<uint8_t> barrier;  // [instructions] 1: ended an interval, 2: was needed there

    void begin(size_t smem_bytes, size_t instructions) {
        words.assign(smem_bytes / 4 + 2, Word());
        barrier.assign(instructions, 0);
    }

    void separate(int at) {
        interval++, site = at;
        uint8_t& known = barrier[static_cast<size_t>(at)];
        known = std::max<uint8_t>(known, 1);
    }

    void touch(size_t word, int warp, bool writes) {
        Word& w = words[word];
        if (w.interval != interval) {
            const bool next = w.interval == interval - 1;
            w.earlier_readers = next ? w.readers : 0, w.earlier_writers = next ? w.writers : 0;
            w.readers = w.writers = 0, w.interval = interval;
        }
        const uint32_t self = 1u << (warp & 31);
        (writes ? w.writers : w.readers) |= self;
        const uint32_t others = (w.earlier_writers | (writes ? w.earlier_readers : 0)) & ~self;
        if (others && site >= 0) barrier[static_cast<size_t>(site)] = 2;
    }

    void shared(uint64_t address, int bytes, int warp, bool writes) {
        if (!wanted || address + static_cast<uint64_t>(bytes) > 4 * (words.size() - 2)) return;
        for (uint64_t at = address / 4; at <= (address + static_cast<uint64_t>(bytes) - 1) / 4; at++) touch(at, warp, writes);
    }

    void global(int warp, bool writes) {
        if (wanted) touch(words.size() - 1, warp, writes);
    }
};
