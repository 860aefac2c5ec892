// D[64, N] = A @ B over K = 64 by wgmma, of operands that the host has laid out with a swizzle of
// ROW_BYTES. Host only, as wgmma_tile.cu. Blocks of ROW_BYTES / 2 columns (of k, or of m and n where
// an operand is transposed) follow each other; so do groups of 8 rows within a block.
#include "hopper.cuh"

constexpr coh::Element MMA_ELEMENT = IS_BF16 ? coh::Element::bf16 : coh::Element::f16;
constexpr int COLUMNS = ROW_BYTES / 2;  // of a block
constexpr int A_BYTES = 64 * 64 * 2;
constexpr int B_BYTES = (B_TRANSPOSED ? (N + COLUMNS - 1) / COLUMNS * COLUMNS : N) * 64 * 2;

// Where 16 k of an operand begin; `block_bytes`: of a block of columns.
__device__ uint64_t descriptor(const unsigned char *tile, int k, bool transposed, int block_bytes) {
    const int columns = k * 16 * 2;  // in bytes
    const int offset = transposed ? 16 * k * ROW_BYTES
                                  : columns / ROW_BYTES * block_bytes + columns % ROW_BYTES;
    const uint64_t layout = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
    return (uint64_t)(smem_address(tile + offset) >> 4) | (uint64_t)(block_bytes >> 4) << 16 |
           (uint64_t)(8 * ROW_BYTES >> 4) << 32 | layout << 62;
}

extern "C" __global__ void wgmma_swizzle(const uint4 *a, const uint4 *b, float *d) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char *a_smem = smem, *b_smem = smem + A_BYTES;
    for (int i = threadIdx.x; i < (A_BYTES + B_BYTES) / 16; i += 128) {
        reinterpret_cast<uint4 *>(smem)[i] = i < A_BYTES / 16 ? a[i] : b[i - A_BYTES / 16];
    }
    proxy_fence();
    __syncthreads();
    float acc[N / 2];
    coh::WgmmaOperands operands{nullptr, 0, 0, A_TRANSPOSED, B_TRANSPOSED, MMA_ELEMENT, false};
    wgmma_fence();
    for (int k = 0; k < 4; k++) {
        operands.a_descriptor = descriptor(a_smem, k, A_TRANSPOSED, 64 * ROW_BYTES);
        operands.b_descriptor =
            descriptor(b_smem, k, B_TRANSPOSED, (B_TRANSPOSED ? 64 : N) * ROW_BYTES);
        coh::wgmma(acc, N, operands, coh::Site::here());
        operands.accumulate = true;
    }
    wgmma_commit();
    wgmma_wait<0>();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < N / 2; i++) {
        const int row = warp * 16 + lane / 4 + 8 * (i / 2 % 2);
        const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
        d[row * N + column] = acc[i];
    }
}
