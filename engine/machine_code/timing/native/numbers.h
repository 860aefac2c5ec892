// Pseudo-random numbers, the same in every call.
#pragma once

#include <cstdint>

class Numbers {
public:
    // Uniformly distributed from 0 to n - 1.
    int32_t below(int32_t n) {
        return static_cast<int32_t>((next() >> 33) % static_cast<uint64_t>(n));
    }

    // Uniformly distributed from -1 to 1.
    double even() { return static_cast<double>(next() >> 11) / 4503599627370496.0 - 1.0; }

private:
    uint64_t state = 1;

    uint64_t next() { return state = state * 6364136223846793005u + 1442695040888963407u; }
};
