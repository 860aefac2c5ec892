#pragma once
#include <cstdint>

namespace attn {
constexpr std::uint32_t FULL = 0xffffffffu;
inline __device__ float shuffle_xor(float x, int mask) { return __shfl_xor_sync(FULL, x, mask); }
}  // namespace attn
