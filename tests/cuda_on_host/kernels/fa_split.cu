// KV split: pass 1 writes a normalised partial output and its log-sum-exp per split, pass 2 fuses.
// Four threads share a row; they exchange sums by shuffles and P through shared memory. D = 64.
// Grids (ceil(seqlen / 64), batch * num_heads, num_splits) and (ceil(rows / 8)).
#include "ptx.cuh"

constexpr int BLOCK_M = 64, BLOCK_N = 64, HEAD_DIM = 64, NUM_THREADS = 256;
constexpr int ROW_THREADS = 4, KEYS = BLOCK_N / ROW_THREADS, DIMS = HEAD_DIM / ROW_THREADS;
constexpr unsigned FULL_WARP = 0xffffffffu;

__device__ __forceinline__ void load_row_chunk(element (&tile)[64][HEAD_DIM + 8],
                                               const element *head, int first, int i, int seqlen) {
    const int row = i / 8, column = i % 8 * 8;
    uint4 chunk = make_uint4(0, 0, 0, 0);
    if (first + row < seqlen) {
        chunk = *reinterpret_cast<const uint4 *>(head + (size_t)(first + row) * HEAD_DIM + column);
    }
    *reinterpret_cast<uint4 *>(&tile[row][column]) = chunk;
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
fa_split_partial(const element *__restrict__ q, const element *__restrict__ k,
                 const element *__restrict__ v,
                 float *__restrict__ o_partial,    // [num_splits, heads, seqlen, HEAD_DIM]
                 float *__restrict__ lse_partial,  // [num_splits, heads, seqlen]
                 int heads, int seqlen, int num_splits, float scale, int causal) {
    __shared__ __align__(16) element q_smem[BLOCK_M][HEAD_DIM + 8];
    __shared__ __align__(16) element k_smem[BLOCK_N][HEAD_DIM + 8];
    __shared__ __align__(16) element v_smem[BLOCK_N][HEAD_DIM + 8];
    __shared__ float p_smem[BLOCK_M][BLOCK_N + 4];
    const int tid = threadIdx.x, row = tid / ROW_THREADS, part = tid % ROW_THREADS;
    const int m0 = blockIdx.x * BLOCK_M, split = blockIdx.z;
    const int tiles = (seqlen + BLOCK_N - 1) / BLOCK_N;
    const int tiles_per_split = (tiles + num_splits - 1) / num_splits;
    const int last_tile = min(tiles, (split + 1) * tiles_per_split);
    const size_t head = (size_t)blockIdx.y * seqlen * HEAD_DIM;
    for (int i = tid; i < BLOCK_M * 8; i += NUM_THREADS) {
        load_row_chunk(q_smem, q + head, m0, i, seqlen);
    }
    float acc[DIMS], m = -INFINITY, l = 0.f;
    for (int d = 0; d < DIMS; d++) acc[d] = 0.f;
    for (int tile = split * tiles_per_split; tile < last_tile; tile++) {
        const int n0 = tile * BLOCK_N;
        if (causal && n0 > m0 + BLOCK_M - 1) break;
        for (int i = tid; i < BLOCK_N * 8; i += NUM_THREADS) {
            load_row_chunk(k_smem, k + head, n0, i, seqlen);
            load_row_chunk(v_smem, v + head, n0, i, seqlen);
        }
        __syncthreads();  // SYNC1: tiles loaded
        float s[KEYS], m_new = m, sum = 0.f;
        for (int j = 0; j < KEYS; j++) {
            const int key = j * ROW_THREADS + part;
            float score = 0.f;
            for (int d = 0; d < HEAD_DIM; d++) {
                score = fmaf((float)q_smem[row][d], (float)k_smem[key][d], score);
            }
            const bool visible = n0 + key < seqlen && (!causal || n0 + key <= m0 + row);
            s[j] = visible ? score * scale : -INFINITY;
            m_new = fmaxf(m_new, s[j]);
        }
        m_new = fmaxf(m_new, __shfl_xor_sync(FULL_WARP, m_new, 1));
        m_new = fmaxf(m_new, __shfl_xor_sync(FULL_WARP, m_new, 2));
        const float m_finite = m_new == -INFINITY ? 0.f : m_new;  // no key of this split is visible
        const float correction = __expf(m - m_finite);
        for (int j = 0; j < KEYS; j++) {
            const float p = __expf(s[j] - m_finite);
            sum += p;
            p_smem[row][j * ROW_THREADS + part] = p;
        }
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        l = l * correction + sum;
        m = m_new;
        __syncwarp();  // SYNCW: the row's four lanes exchange P
        for (int d = 0; d < DIMS; d++) acc[d] *= correction;
        for (int key = 0; key < BLOCK_N; key++) {
            const float p = p_smem[row][key];
            for (int d = 0; d < DIMS; d++) {
                acc[d] = fmaf(p, (float)v_smem[key][part * DIMS + d], acc[d]);
            }
        }
        __syncthreads();  // SYNC2: tiles free again
    }
    if (m0 + row < seqlen) {
        const size_t partial_row = ((size_t)split * heads + blockIdx.y) * seqlen + m0 + row;
        const float inverse = l > 0.f ? 1.f / l : 0.f;
        for (int d = 0; d < DIMS; d++) {
            o_partial[partial_row * HEAD_DIM + part * DIMS + d] = acc[d] * inverse;
        }
        if (part == 0) lse_partial[partial_row] = l > 0.f ? m + logf(l) : -INFINITY;
    }
}

__device__ __forceinline__ float warp_max(float x) {
    for (int bit = 16; bit; bit /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, bit));
    return x;
}
__device__ __forceinline__ float warp_sum(float x) {
    for (int bit = 16; bit; bit /= 2) x += __shfl_xor_sync(FULL_WARP, x, bit);
    return x;
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
fa_split_merge(const float *__restrict__ o_partial, const float *__restrict__ lse_partial,
               element *__restrict__ out, float *__restrict__ lse, int heads, int seqlen,
               int num_splits) {
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    if (row >= heads * seqlen) return;
    const size_t rows = (size_t)heads * seqlen;
    float largest = -INFINITY, total = 0.f, low = 0.f, high = 0.f;
    for (int s = lane; s < num_splits; s += 32) {
        largest = fmaxf(largest, lse_partial[s * rows + row]);
    }
    largest = warp_max(largest);
    for (int s = lane; s < num_splits; s += 32) {
        total += __expf(lse_partial[s * rows + row] - largest);
    }
    total = warp_sum(total);
    for (int s = 0; s < num_splits; s++) {
        const float weight = __expf(lse_partial[s * rows + row] - largest) / total;
        const float2 o = *reinterpret_cast<const float2 *>(
            o_partial + (s * rows + row) * HEAD_DIM + lane * 2);
        low += weight * o.x;
        high += weight * o.y;
    }
    *reinterpret_cast<uint32_t *>(out + (size_t)row * HEAD_DIM + lane * 2) = pack2(low, high);
    if (lane == 0) lse[row] = largest + logf(total);
}
