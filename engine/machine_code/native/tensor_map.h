// Tensor maps of TMA, and their validity. Included by emulator.cpp.
#pragma once

// A tensor map as engine/base/launch_arguments.py encodes it; a driver's format is not public.
struct TensorMap {
    uint64_t magic, base;
    uint32_t rank, element_bytes, swizzle, box[5], dims[5], padding;
    uint64_t stride_bytes[4];
};
constexpr uint64_t TENSOR_MAP_MAGIC = 0x434f48544d41ull;

// Checks CUDA's limits of a map, and that a box fits in shared memory: the bytes may be arbitrary.
inline bool is_possible(const TensorMap& map) {
    const bool is_element = map.element_bytes >= 1 && map.element_bytes <= 16 && !(map.element_bytes & (map.element_bytes - 1));
    if (map.rank < 1 || map.rank > 5 || !is_element || map.swizzle > 3) return false;
    uint64_t bytes = map.element_bytes;
    for (uint32_t d = 0; d < map.rank; d++) {
        if (map.box[d] < 1 || map.box[d] > 256) return false;
        bytes *= map.box[d];
    }
    return bytes <= 1u << 18;
}
