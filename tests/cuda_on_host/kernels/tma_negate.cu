// Loads and stores a 64 x COLUMNS tile by TMA, negated in shared memory; `second_chunk` is the second
// 16 bytes of row ROW, read at their swizzled address. Grid (tiles), 128 threads.
#include "hopper.cuh"

constexpr int ELEMENTS = 64 * COLUMNS, TILE_BYTES = 2 * ELEMENTS;

extern "C" __global__ void tma_negate(const __grid_constant__ TensorMap in_map,
                                      const __grid_constant__ TensorMap out_map,
                                      element *second_chunk) {  // [tiles, 8], of row ROW
    extern __shared__ __align__(1024) unsigned char smem[];
    element *tile = reinterpret_cast<element *>(smem);  // swizzled, which does not matter for negation
    uint64_t *full = reinterpret_cast<uint64_t *>(smem + TILE_BYTES);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_fence_init();
        mbarrier_expect(full, TILE_BYTES);
        tma_load(tile, &in_map, full, 0, blockIdx.x * 64);
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    if (threadIdx.x < 8) {
        // Bits 4.. of the byte offset are XORed with bits 7..: 1, 2 or 3 of them by the swizzle.
        const int offset = ROW * COLUMNS * 2 + 16;
        const int swizzled = offset ^ ((offset >> 7 & SWIZZLE_MASK) << 4);
        second_chunk[blockIdx.x * 8 + threadIdx.x] = tile[swizzled / 2 + threadIdx.x];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ELEMENTS; i += blockDim.x) tile[i] = -tile[i];
    proxy_fence();    // PROXY: the stores above reach the TMA store below
    __syncthreads();  // STORED
    if (threadIdx.x == 0) {
        tma_store(&out_map, tile, 0, blockIdx.x * 64);
        bulk_commit();
        bulk_wait();  // BULKWAIT
    }
}
