// C = A @ B^T in FP16 with FP32 sums, for Hopper: TMA fills a ring of three tiles of K, one warpgroup
// produces and three consume 64 rows of a 192 x 192 tile each, persistent CTAs.
// Modelled on kernel 6 of the published fast.cu series: sizes and order of tiles are that
// kernel's, the code is not. A and B are [size, depth], C is [size, size] by columns.
#include "hopper.cuh"

constexpr int TILE = 192, DEPTH = 64, STAGES = 3, CONSUMERS = 3;
constexpr int OPERAND_BYTES = TILE * DEPTH * 2;
constexpr int SUPER_M = 16, SUPER_N = 8;  // tiles that run at the same time

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
gemm(const __grid_constant__ TensorMap a_map, const __grid_constant__ TensorMap b_map,
     __half* __restrict__ c, int size, int depth) {
    extern __shared__ __align__(1024) unsigned char smem[];
    __shared__ unsigned long long full[STAGES], empty[STAGES];
    unsigned char* a_smem = smem;
    unsigned char* b_smem = smem + STAGES * OPERAND_BYTES;
    const int group = threadIdx.x / 128, t = threadIdx.x % 128;
    const int across = size / TILE, tiles = across * across, steps = depth / DEPTH;
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], CONSUMERS);
        }
    __syncthreads();
    int stage = 0, parity = 0;
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        // Blocks of 16 x 8 tiles, in order along N.
        const int block = number / (SUPER_M * SUPER_N), inside = number % (SUPER_M * SUPER_N);
        const int m = (block / (across / SUPER_N) * SUPER_M + inside / SUPER_N) * TILE;
        const int n = (block % (across / SUPER_N) * SUPER_N + inside % SUPER_N) * TILE;
        if (group == 0) {
            fewer_registers<32>();
            if (t == 0)
                for (int i = 0; i < steps; i++) {
                    barrier_wait(&empty[stage], parity ^ 1);
                    barrier_expect(&full[stage], 2 * OPERAND_BYTES);
                    tma_load(a_smem + stage * OPERAND_BYTES, &a_map, &full[stage], i * DEPTH, m);
                    tma_load(b_smem + stage * OPERAND_BYTES, &b_map, &full[stage], i * DEPTH, n);
                    if (++stage == STAGES) stage = 0, parity ^= 1;
                }
            continue;
        }
        more_registers<160>();
        float d[96] = {};
        for (int i = 0; i < steps; i++) {
            barrier_wait(&full[stage], parity);
            const unsigned char* rows = a_smem + stage * OPERAND_BYTES + (group - 1) * 64 * DEPTH * 2;
            unsigned long long a = tile_descriptor(rows);
            unsigned long long b = tile_descriptor(b_smem + stage * OPERAND_BYTES);
            products_begin();
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++) product_n192(d, a + 2 * k, b + 2 * k);
            products_commit();
            products_wait<0>();
            if (t == 0) barrier_arrive(&empty[stage]);
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        const int row = m + (group - 1) * 64 + t / 32 * 16 + t % 32 / 4;
#pragma unroll
        for (int i = 0; i < 96; i++)  // four registers cover two columns of two rows
            c[size_t(n + i / 4 * 8 + t % 4 * 2 + i % 2) * size + row + i % 4 / 2 * 8] =
                __float2half(d[i]);
    }
}
