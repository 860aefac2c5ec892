// FlashAttention-1 order with static shared arrays: 256 threads load, 64 compute a row each.
// Grid (num_heads, batch, ceil(seqlen / 64)), D = 64; lse is [batch, num_heads, seqlen].
#include "ptx.cuh"

constexpr int BLOCK_M = 64, BLOCK_N = 64, HEAD_DIM = 64, NUM_THREADS = 256;
constexpr int CHUNK = 8, CHUNKS_PER_ROW = HEAD_DIM / CHUNK;  // 16 bytes at once

__device__ __forceinline__ float4 load_chunk(const element *head, int row, int column, int seqlen) {
    if (row >= seqlen) return make_float4(0.f, 0.f, 0.f, 0.f);
    return *reinterpret_cast<const float4 *>(head + (size_t)row * HEAD_DIM + column);
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
fa1(const element *__restrict__ q, const element *__restrict__ k, const element *__restrict__ v,
    element *__restrict__ out, float *__restrict__ lse, int num_heads, int seqlen, float scale,
    int causal) {
    __shared__ __align__(16) element q_smem[BLOCK_M][HEAD_DIM], k_smem[BLOCK_N][HEAD_DIM];
    __align__(16) __shared__ element v_smem[BLOCK_N][HEAD_DIM];
    __shared__ float s_smem[BLOCK_M][BLOCK_N + 1];
    const int tid = threadIdx.x, m0 = blockIdx.z * BLOCK_M;
    const size_t head_index = (size_t)blockIdx.y * num_heads + blockIdx.x;
    const size_t head = head_index * seqlen * HEAD_DIM;
    for (int i = tid; i < BLOCK_M * CHUNKS_PER_ROW; i += NUM_THREADS) {
        const int row = i / CHUNKS_PER_ROW, column = i % CHUNKS_PER_ROW * CHUNK;
        *reinterpret_cast<float4 *>(&q_smem[row][column]) =
            load_chunk(q + head, m0 + row, column, seqlen);
    }
    float acc[HEAD_DIM], m = -INFINITY, l = 0.f;
    for (int d = 0; d < HEAD_DIM; d++) acc[d] = 0.f;
    const int kv_end = causal ? min(seqlen, m0 + BLOCK_M) : seqlen;
    for (int n0 = 0; n0 < kv_end; n0 += BLOCK_N) {
        for (int i = tid; i < BLOCK_N * CHUNKS_PER_ROW; i += NUM_THREADS) {
            const int row = i / CHUNKS_PER_ROW, column = i % CHUNKS_PER_ROW * CHUNK;
            *reinterpret_cast<float4 *>(&k_smem[row][column]) =
                load_chunk(k + head, n0 + row, column, seqlen);
            *reinterpret_cast<float4 *>(&v_smem[row][column]) =
                load_chunk(v + head, n0 + row, column, seqlen);
        }
        __syncthreads();  // SYNC1: tiles loaded
        for (int i = tid; i < BLOCK_M * BLOCK_N; i += NUM_THREADS) {
            const int row = i / BLOCK_N, key = i % BLOCK_N;
            float score = 0.f;
            for (int d = 0; d < HEAD_DIM; d++) {
                score += (float)q_smem[row][d] * (float)k_smem[key][d];
            }
            const bool visible = n0 + key < seqlen && (!causal || n0 + key <= m0 + row);
            s_smem[row][key] = visible ? score * scale : -INFINITY;
        }
        __syncthreads();  // SYNC2: scores complete
        if (tid < BLOCK_M) {
            float m_new = m;
            for (int key = 0; key < BLOCK_N; key++) m_new = fmaxf(m_new, s_smem[tid][key]);
            const float correction = __expf(m - m_new);
            l *= correction;
            for (int d = 0; d < HEAD_DIM; d++) acc[d] *= correction;
            for (int key = 0; key < BLOCK_N; key++) {
                const float p = __expf(s_smem[tid][key] - m_new);
                l += p;
                for (int d = 0; d < HEAD_DIM; d++) acc[d] += p * (float)v_smem[key][d];
            }
            m = m_new;
        }
        __syncthreads();  // SYNC3: tiles free again
    }
    if (tid < BLOCK_M && m0 + tid < seqlen) {
        element *out_row = out + head + (size_t)(m0 + tid) * HEAD_DIM;
        for (int d = 0; d < HEAD_DIM; d++) out_row[d] = element(acc[d] / l);
        lse[head_index * seqlen + m0 + tid] = m + logf(l);
    }
}
