// v02 all threads: every thread computes; the threads of one query row combine by shuffles.
// Idea: a row's threads share its keys for S and its columns for O, and swap P through registers.
// Changed: against v01, no idle threads, S and P stay in registers (no s_smem), one final row sum.
// Limiter: shared-memory bandwidth: two-byte loads, and rows that start in the same bank.
// Constraints: D in {32, 64, 96, 128}; S <= 65535 * 64; batch <= 65535 (grid z and y).
// Passes: 1, attention_forward; grid (num_heads, batch, ceil(S / 64)), 64 threads_per_row threads.
// Source: the warp-shuffle reduction of CUDA's programming guide, on FlashAttention's algorithm 1.
// Weakness: as few CTAs as v01 at small B * H; each FMA of S costs two loads from shared memory.
#include "element.cuh"

constexpr int BLOCK_M = 64;  // query rows per CTA
constexpr int NUM_THREADS = BLOCK_M * THREADS_PER_ROW;
constexpr int KEYS_PER_THREAD = BLOCK_N / THREADS_PER_ROW;   // this thread's scores of a tile
constexpr int DIMS_PER_THREAD = HEAD_DIM / THREADS_PER_ROW;  // this thread's columns of O
constexpr unsigned FULL_WARP = 0xffffffffu;

static_assert(BLOCK_N == 32 || BLOCK_N == 64,
              "block_n must be 32 or 64: wider tiles exceed 48 KB at D = 128");
static_assert(THREADS_PER_ROW == 2 || THREADS_PER_ROW == 4 || THREADS_PER_ROW == 8,
              "threads_per_row must be 2, 4 or 8: 64 rows of more exceed 1,024 threads");
static_assert(HEAD_DIM % THREADS_PER_ROW == 0,
              "threads_per_row must divide head_dim: a row's threads own equal shares of it");
static_assert(HEAD_DIM <= 128, "head_dim must be at most 128: the tiles would exceed 48 KB");

// Copies rows [first_row, first_row + ROWS) of one head into shared memory, two bytes a load.
template <int ROWS>
__device__ __forceinline__ void load_tile(element* tile_smem,   // [ROWS, HEAD_DIM]
                                          const element* head,  // [seqlen, HEAD_DIM]
                                          int first_row, int seqlen) {
    for (int i = threadIdx.x; i < ROWS * HEAD_DIM; i += NUM_THREADS) {
        const int row = first_row + i / HEAD_DIM;
        // Rows past the end are zeros: whatever lay there could be NaN, and NaN * 0 is NaN.
        tile_smem[i] = row < seqlen ? head[(size_t)row * HEAD_DIM + i % HEAD_DIM]
                                    : to_element(0.0f);
    }
}

// Maximum and sum over the THREADS_PER_ROW neighbouring lanes of one row; all of them get it.
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int lane_bit = 1; lane_bit < THREADS_PER_ROW; lane_bit *= 2) {
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, lane_bit));
    }
    return x;
}

__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int lane_bit = 1; lane_bit < THREADS_PER_ROW; lane_bit *= 2) {
        x += __shfl_xor_sync(FULL_WARP, x, lane_bit);
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads, seqlen, HEAD_DIM]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM]
                  int num_heads, int seqlen, float softmax_scale) {
    extern __shared__ __align__(16) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);  // [BLOCK_M, HEAD_DIM]
    element* k_smem = q_smem + BLOCK_M * HEAD_DIM;       // [BLOCK_N, HEAD_DIM]
    element* v_smem = k_smem + BLOCK_N * HEAD_DIM;       // [BLOCK_N, HEAD_DIM]

    const int row = threadIdx.x / THREADS_PER_ROW;   // query row within the tile
    const int part = threadIdx.x % THREADS_PER_ROW;  // which share of the row is this thread's
    const int m0 = blockIdx.z * BLOCK_M;             // first query row of this CTA
    const int query = m0 + row;
    // 64-bit: batch * num_heads * seqlen * HEAD_DIM may pass 2^31.
    const size_t head = ((size_t)blockIdx.y * num_heads + blockIdx.x) * seqlen * HEAD_DIM;

    load_tile<BLOCK_M>(q_smem, q + head, m0, seqlen);

    float acc_rmem[DIMS_PER_THREAD];  // O of this row's columns part * DIMS_PER_THREAD + d
#pragma unroll
    for (int d = 0; d < DIMS_PER_THREAD; d++) acc_rmem[d] = 0.0f;
    float m = -INFINITY;  // running maximum of the row, the same in all its threads
    float l = 0.0f;       // running sum over this thread's keys only

    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = IS_CAUSAL ? min(seqlen, m0 + BLOCK_M) : seqlen;
    for (int n0 = 0; n0 < kv_end; n0 += BLOCK_N) {
        load_tile<BLOCK_N>(k_smem, k + head, n0, seqlen);
        load_tile<BLOCK_N>(v_smem, v + head, n0, seqlen);
        // Every thread reads rows that other threads loaded (Q too, the first time).
        __syncthreads();

        // S = Q @ K^T [BLOCK_M, BLOCK_N]: this thread takes the keys j * THREADS_PER_ROW + part.
        float p_rmem[KEYS_PER_THREAD];  // scores first, then their exponentials
        float m_new = m;
#pragma unroll
        for (int j = 0; j < KEYS_PER_THREAD; j++) {
            const element* q_row = q_smem + row * HEAD_DIM;
            const element* k_row = k_smem + (j * THREADS_PER_ROW + part) * HEAD_DIM;
            float score = 0.0f;
#pragma unroll 8  // all of it would unroll KEYS_PER_THREAD * HEAD_DIM steps and fill the I-cache
            for (int d = 0; d < HEAD_DIM; d++) score += to_float(q_row[d]) * to_float(k_row[d]);
            const int key = n0 + j * THREADS_PER_ROW + part;
            const bool visible = key < seqlen && (!IS_CAUSAL || key <= query);
            p_rmem[j] = visible ? score * softmax_scale : -INFINITY;
            m_new = fmaxf(m_new, p_rmem[j]);
        }

        // Online softmax: what was summed under the old maximum shrinks to the new one. Key 0 is
        // visible to every row, so the row's maximum is finite from the first tile on.
        m_new = row_max(m_new);
        const float correction = __expf(m - m_new);
        m = m_new;
        l *= correction;
#pragma unroll
        for (int d = 0; d < DIMS_PER_THREAD; d++) acc_rmem[d] *= correction;

        // P = exp(S - m). The row's sum stays split over its threads: all share one correction.
#pragma unroll
        for (int j = 0; j < KEYS_PER_THREAD; j++) {
            p_rmem[j] = __expf(p_rmem[j] - m_new);
            l += p_rmem[j];
        }

        // O += P @ V [BLOCK_M, HEAD_DIM]: each thread needs P of all keys for its own columns.
#pragma unroll
        for (int j = 0; j < KEYS_PER_THREAD; j++) {
#pragma unroll
            for (int t = 0; t < THREADS_PER_ROW; t++) {
                const float p = __shfl_sync(FULL_WARP, p_rmem[j], t, THREADS_PER_ROW);
                const element* v_row = v_smem + (j * THREADS_PER_ROW + t) * HEAD_DIM;
#pragma unroll
                for (int d = 0; d < DIMS_PER_THREAD; d++) {
                    acc_rmem[d] += p * to_float(v_row[part * DIMS_PER_THREAD + d]);
                }
            }
        }
        // The next tile overwrites K and V, which slower warps are still reading.
        __syncthreads();
    }

    // O = O / l. The sum needs all lanes, so it comes before rows past the end drop out.
    const float inv_l = 1.0f / row_sum(l);
    if (query < seqlen) {
        element* out_row = out + head + (size_t)query * HEAD_DIM + part * DIMS_PER_THREAD;
#pragma unroll
        for (int d = 0; d < DIMS_PER_THREAD; d++) out_row[d] = to_element(acc_rmem[d] * inv_l);
    }
}
