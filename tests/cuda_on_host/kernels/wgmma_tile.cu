// D[64, N] = A @ B over K = 64, one CTA of four warps, by wgmma of width N. Host only: it calls the
// CPU backend directly, as the device side would need one wrapper per N.
// A is [64, 64] K-major, or MN-major when A_TRANSPOSED; B likewise [N, 64] or [64, N]. D is float.
#include "hopper.cuh"

constexpr coh::Element MMA_ELEMENT = IS_BF16 ? coh::Element::bf16 : coh::Element::f16;

constexpr int TILE_BYTES = 64 * 64 * 2;            // of one TMA box
constexpr int B_TILES = (N + 63) / 64;             // 64 rows (K-major) or columns (MN-major) each
constexpr uint64_t K_MAJOR_STEP = 16 * 2 >> 4;     // 16 k within a 128-byte row
constexpr uint64_t MN_MAJOR_STEP = 16 * 128 >> 4;  // 16 rows of k

extern "C" __global__ void wgmma_tile(const __grid_constant__ TensorMap a_map,
                                      const __grid_constant__ TensorMap b_map, float *d) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char *a_smem = smem, *b_smem = smem + TILE_BYTES;
    uint64_t *full = reinterpret_cast<uint64_t *>(b_smem + B_TILES * TILE_BYTES);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        mbarrier_fence_init();
        mbarrier_expect(full, (1 + B_TILES) * TILE_BYTES);
        tma_load(a_smem, &a_map, full, 0, 0);
        for (int i = 0; i < B_TILES; i++) {
            const int column = B_TRANSPOSED ? i * 64 : 0, row = B_TRANSPOSED ? 0 : i * 64;
            tma_load(b_smem + i * TILE_BYTES, &b_map, full, column, row);
        }
    }
    __syncthreads();
    mbarrier_wait(full, 0);
    float acc[N / 2];  // not initialised: the first step does not accumulate
    coh::WgmmaOperands operands{nullptr,      wgmma_descriptor(a_smem), wgmma_descriptor(b_smem),
                                A_TRANSPOSED, B_TRANSPOSED,             MMA_ELEMENT,
                                false};
    // The leading offset of an MN-major operand: from one block of 64 columns to the next.
    const uint64_t leading = (uint64_t)(TILE_BYTES >> 4) << 16, mask = (uint64_t)0x3fff << 16;
    if (B_TRANSPOSED) operands.b_descriptor = (operands.b_descriptor & ~mask) | leading;
    wgmma_fence();
    for (int k = 0; k < 4; k++) {
        coh::wgmma(acc, N, operands, coh::Site::here());
        operands.accumulate = true;
        operands.a_descriptor += A_TRANSPOSED ? MN_MAJOR_STEP : K_MAJOR_STEP;
        operands.b_descriptor += B_TRANSPOSED ? MN_MAJOR_STEP : K_MAJOR_STEP;
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
