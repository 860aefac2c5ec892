// Hopper: warpgroup 0 loads 64 x 64 tiles by TMA, warpgroup 1 computes with wgmma. Two K/V stages,
// D = 64. Grid (num_heads, batch, ceil(seqlen / 64)), 256 threads.
#include "hopper.cuh"

constexpr int BLOCK_M = 64, BLOCK_N = 64, HEAD_DIM = 64, STAGES = 2, TILE_BYTES = 64 * 64 * 2;
constexpr unsigned FULL_WARP = 0xffffffffu;

extern "C" __global__ void __launch_bounds__(256)
fa_wgmma(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
         const __grid_constant__ TensorMap v_map, element *__restrict__ out,
         float *__restrict__ lse, int num_heads, int seqlen, float scale, int causal) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char *q_smem = smem, *k_smem = q_smem + TILE_BYTES;
    unsigned char *v_smem = k_smem + STAGES * TILE_BYTES;
    uint64_t *q_full = reinterpret_cast<uint64_t *>(v_smem + STAGES * TILE_BYTES);
    uint64_t *full = q_full + 1, *empty = full + STAGES;
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32 % 4;
    const int m0 = blockIdx.z * BLOCK_M, head = blockIdx.y * num_heads + blockIdx.x;
    const int kv_end = causal ? min(seqlen, m0 + BLOCK_M) : seqlen;
    const int tiles = (kv_end + BLOCK_N - 1) / BLOCK_N;
    if (tid == 0) {
        mbarrier_init(q_full, 1);
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(full + i, 1);
            mbarrier_init(empty + i, 128);  // READERS
        }
        mbarrier_fence_init();
    }
    __syncthreads();  // SYNC: the barriers exist
    if (tid < 128) {
        registers_down<40>();
        if (tid != 0) return;
        mbarrier_expect(q_full, TILE_BYTES);
        tma_load(q_smem, &q_map, q_full, 0, head * seqlen + m0);
        for (int tile = 0; tile < tiles; tile++) {
            const int stage = tile % STAGES, row = head * seqlen + tile * BLOCK_N;
            mbarrier_wait(empty + stage, tile / STAGES % 2 ^ 1);  // EMPTY
            mbarrier_expect(full + stage, 2 * TILE_BYTES);
            tma_load(k_smem + stage * TILE_BYTES, &k_map, full + stage, 0, row);
            tma_load(v_smem + stage * TILE_BYTES, &v_map, full + stage, 0, row);
        }
        return;
    }

    registers_up<232>();
    const int group = lane / 4, pair = lane % 4;
    float o[32] = {}, m[2] = {-INFINITY, -INFINITY}, l[2] = {};
    const float scale_log2 = scale * 1.4426950408889634f;
    mbarrier_wait(q_full, 0);  // QFULL
    for (int tile = 0; tile < tiles; tile++) {
        const int stage = tile % STAGES, n0 = tile * BLOCK_N;
        mbarrier_wait(full + stage, tile / STAGES % 2);  // FULL
        float s[32] = {};
        const uint64_t q_desc = wgmma_descriptor(q_smem);
        const uint64_t k_desc = wgmma_descriptor(k_smem + stage * TILE_BYTES);
        const uint64_t v_desc = wgmma_descriptor(v_smem + stage * TILE_BYTES);
        wgmma_fence();  // FENCE1: s was written
        for (int kk = 0; kk < HEAD_DIM / 16; kk++) wgmma_ss(s, q_desc + kk * 2, k_desc + kk * 2);
        wgmma_commit();
        wgmma_wait<0>();  // WAIT1
        float m_new[2] = {m[0], m[1]}, m_finite[2], correction[2], sum[2] = {};
        for (int i = 0; i < 32; i++) {
            const int r = i / 2 % 2, key = n0 + i / 4 * 8 + pair * 2 + i % 2;
            const int query = m0 + warp * 16 + group + 8 * r;
            if (key >= seqlen || (causal && key > query)) s[i] = -INFINITY;
            m_new[r] = fmaxf(m_new[r], s[i]);
        }
        for (int r = 0; r < 2; r++) {
            m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(FULL_WARP, m_new[r], 1));
            m_new[r] = fmaxf(m_new[r], __shfl_xor_sync(FULL_WARP, m_new[r], 2));
            m_finite[r] = m_new[r] == -INFINITY ? 0.f : m_new[r];
            correction[r] = exp2f((m[r] - m_finite[r]) * scale_log2);
            m[r] = m_new[r];
        }
        uint32_t p[4][4];
        for (int i = 0; i < 32; i += 2) {
            const int r = i / 2 % 2;
            const float low = exp2f((s[i] - m_finite[r]) * scale_log2);
            const float high = exp2f((s[i + 1] - m_finite[r]) * scale_log2);
            sum[r] += low + high;
            p[i / 8][i / 2 % 4] = pack2(low, high);
        }
        for (int r = 0; r < 2; r++) {
            sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], 1);
            sum[r] += __shfl_xor_sync(FULL_WARP, sum[r], 2);
            l[r] = l[r] * correction[r] + sum[r];
        }
        for (int i = 0; i < 32; i++) o[i] *= correction[i / 2 % 2];
        wgmma_fence();  // FENCE2: o and p were written
        for (int kk = 0; kk < BLOCK_N / 16; kk++) {
            wgmma_rs_transposed(o, p[kk], v_desc + kk * (16 * 128 >> 4));
        }
        wgmma_commit();
        wgmma_wait<0>();  // WAIT2
        mbarrier_arrive(empty + stage);  // RELEASE
    }
    for (int r = 0; r < 2; r++) {
        const int row = m0 + warp * 16 + group + 8 * r;
        if (row >= seqlen) continue;
        const float inverse = 1.f / l[r];
        element *out_row = out + ((size_t)head * seqlen + row) * HEAD_DIM;
        for (int j = 0; j < 8; j++) {
            *reinterpret_cast<uint32_t *>(out_row + j * 8 + pair * 2) =
                pack2(o[j * 4 + 2 * r] * inverse, o[j * 4 + 2 * r + 1] * inverse);
        }
        if (pair == 0) lse[(size_t)head * seqlen + row] = m[r] * scale + logf(l[r]);
    }
}
