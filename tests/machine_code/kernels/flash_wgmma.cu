// Attention forward for Hopper, head dimension 64: one warpgroup copies tiles of K and V by TMA, one
// or two others compute 64 query rows each with wgmma, P in registers. Not causal.
// Q, K, V: [batch * num_heads * seqlen, 64] as tensor maps with boxes of 64 x 64; O likewise.
#include "hopper.cuh"

#ifndef CONSUMERS
#define CONSUMERS 2
#endif
constexpr int ROWS = 64, KEYS = 64, STAGES = 2, TILE_BYTES = 64 * 64 * 2;

__device__ __forceinline__ float exp2_ftz(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float over_four(float x, bool largest) {
    for (int step = 1; step <= 2; step *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, step);
        x = largest ? fmaxf(x, other) : x + other;
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(128 * (CONSUMERS + 1), 1)
flash(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
      const __grid_constant__ TensorMap v_map, __half* __restrict__ o, int seqlen, float scale_log2) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char *q_smem = smem, *k_smem = q_smem + CONSUMERS * TILE_BYTES;
    unsigned char* v_smem = k_smem + STAGES * TILE_BYTES;
    __shared__ unsigned long long q_full, full[STAGES], empty[STAGES];
    const int group = threadIdx.x / 128, t = threadIdx.x % 128, tiles = seqlen / KEYS;
    const int head_row = blockIdx.x * seqlen, first = blockIdx.y * CONSUMERS * ROWS;
    if (threadIdx.x == 0) {
        barrier_init(&q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&full[i], 1);
            barrier_init(&empty[i], CONSUMERS);
        }
    }
    __syncthreads();
    if (group == 0) {
        fewer_registers<24>();
        if (t != 0) return;
        barrier_expect(&q_full, CONSUMERS * TILE_BYTES);
        for (int i = 0; i < CONSUMERS; i++)
            tma_load(q_smem + i * TILE_BYTES, &q_map, &q_full, 0, head_row + first + i * ROWS);
        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES;
            barrier_wait(&empty[stage], tile / STAGES % 2 ^ 1);
            barrier_expect(&full[stage], 2 * TILE_BYTES);
            tma_load(k_smem + stage * TILE_BYTES, &k_map, &full[stage], 0, head_row + tile * KEYS);
            tma_load(v_smem + stage * TILE_BYTES, &v_map, &full[stage], 0, head_row + tile * KEYS);
        }
        return;
    }
    more_registers<160>();
    float out[32] = {}, row_max[2] = {-1e30f, -1e30f}, row_sum[2] = {};
    barrier_wait(&q_full, 0);
    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % STAGES;
        barrier_wait(&full[stage], tile / STAGES % 2);
        const unsigned long long q = tile_descriptor(q_smem + (group - 1) * TILE_BYTES);
        const unsigned long long k = tile_descriptor(k_smem + stage * TILE_BYTES);
        const unsigned long long v = tile_descriptor(v_smem + stage * TILE_BYTES);
        float s[32] = {};
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) product_n64(s, q + 2 * i, k + 2 * i);
        products_commit();
        products_wait<0>();
        float old[2] = {row_max[0], row_max[1]};
#pragma unroll
        for (int i = 0; i < 32; i++) row_max[i / 2 % 2] = fmaxf(row_max[i / 2 % 2], s[i]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            row_max[r] = over_four(row_max[r], true);
            const float shrink = exp2_ftz((old[r] - row_max[r]) * scale_log2);
            row_sum[r] *= shrink;
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (i / 2 % 2 == r) out[i] *= shrink;
        }
        unsigned p[4][4];
#pragma unroll
        for (int i = 0; i < 32; i += 2) {
            const float offset = row_max[i / 2 % 2] * scale_log2;
            const float x = exp2_ftz(s[i] * scale_log2 - offset);
            const float y = exp2_ftz(s[i + 1] * scale_log2 - offset);
            row_sum[i / 2 % 2] += x + y;
            const __half2 pair = __floats2half2_rn(x, y);
            p[i / 8][i / 2 % 4] = *reinterpret_cast<const unsigned*>(&pair);
        }
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) product_n64_from_registers(out, p[i], v + 128 * i);
        products_commit();
        products_wait<0>();
        if (t == 0) barrier_arrive(&empty[stage]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float share = 1.0f / over_four(row_sum[r], false);
        const int row = head_row + first + (group - 1) * ROWS + t / 32 * 16 + t % 32 / 4 + 8 * r;
#pragma unroll
        for (int i = 0; i < 8; i++)
            *reinterpret_cast<__half2*>(o + size_t(row) * 64 + 8 * i + t % 4 * 2) =
                __floats2half2_rn(out[4 * i + 2 * r] * share, out[4 * i + 2 * r + 1] * share);
    }
}
