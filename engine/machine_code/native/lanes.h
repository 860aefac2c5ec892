// Values of a warp's 32 lanes, and marks of what they depend on. Included by emulator.cpp.

struct alignas(64) Lanes {
    uint32_t v[32];
    uint32_t& operator[](int lane) { return v[lane]; }
    uint32_t operator[](int lane) const { return v[lane]; }
};

struct alignas(64) Wide {
    uint64_t v[32];
    uint64_t& operator[](int lane) { return v[lane]; }
    uint64_t operator[](int lane) const { return v[lane]; }
};

// What a value depends on: one mask of lanes each for loaded data, blockIdx.x, .y and .z.
#if EXECUTES
#include "no_marks.h"
#else
typedef uint32_t Marks __attribute__((vector_size(16)));
constexpr Marks NO_MARKS = {0, 0, 0, 0};

inline Marks spread(Marks marks, uint32_t lanes) {  // marks of any of these lanes to all of them
    for (int k = 0; k < 4; k++) marks[k] = marks[k] & lanes ? FULL : 0;
    return marks;
}
#endif
