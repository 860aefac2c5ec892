// v02 All threads: every thread computes; the threads of one query row combine by shuffles.
// Idea: a row's threads share its keys for S and its columns for O; lanes reduce max and sum.
// Changed: against v01, no thread only loads, shuffles for max and sum, l summed once at the end.
// Limiter: shared-memory bandwidth: two-byte loads, and rows that all start in the same bank.
// Constraints: D in {32, 64, 96, 128}; S <= 65535 * 64; batch <= 65535; any KV.
// Passes: 1, attention_forward; grid (num_heads, batch, ceil(S / 64)), 64 threads_per_row threads.
// Source: the warp-shuffle reduction of CUDA's programming guide, on FlashAttention's algorithm 1.
// Weakness: as few CTAs as v01 at small B * H; each FMA still costs one or two shared loads.
/* attune
idea = "Several threads share each query row and combine by shuffles, so none is idle."
head_dims = [32, 64, 96, 128]
min_compute_capability = 7.5
let.block_m = 64

[tunables]
block_n = {values = [32, 64], default = 64, meaning = "K/V rows per tile"}
threads_per_row = {values = [2, 4, 8], default = 4, meaning = "threads that share one query row"}

[[passes]]
entry = "attention_forward"
grid = ["num_heads", "batch", "ceil_div(seqlen, block_m)"]
threads = "block_m * threads_per_row"
# Q, K and V, and the scores S as floats.
smem_bytes = "(block_m + 2 * block_n) * head_dim * element_bytes + block_m * block_n * 4"
args = ["q", "k", "v", "out", "num_heads", "seqlen", "seqlen_kv", "softmax_scale"]

[work]
math_unit = "fma"
query_rows = "block_m"
kv_rows = "round_up(seqlen_kv, block_n)"
*/
#include "element.cuh"

constexpr int BLOCK_M = 64;  // query rows per CTA
constexpr int NUM_THREADS = BLOCK_M * THREADS_PER_ROW;
constexpr int DIMS_PER_THREAD = HEAD_DIM / THREADS_PER_ROW;  // columns of O per thread
constexpr unsigned FULL_WARP = 0xffffffffu;

static_assert(BLOCK_N == 32 || BLOCK_N == 64,
              "block_n must be 32 or 64: at D = 128 a wider tile exceeds the 64 KB of sm_75");
static_assert(THREADS_PER_ROW == 2 || THREADS_PER_ROW == 4 || THREADS_PER_ROW == 8,
              "threads_per_row must be 2, 4 or 8: 64 rows of more exceed 1,024 threads");
static_assert(HEAD_DIM % THREADS_PER_ROW == 0,
              "threads_per_row must divide head_dim: a row's threads own equal shares of it");
static_assert(HEAD_DIM <= 128, "head_dim must be at most 128: the tiles would exceed 64 KB");

// Copies rows [first_row, first_row + ROWS) of one head into shared memory, two bytes a load.
template <int ROWS>
__device__ __forceinline__ void load_tile(element* tile_smem,   // [ROWS, HEAD_DIM]
                                          const element* head,  // [length, HEAD_DIM]
                                          int first_row, int length) {
    for (int i = threadIdx.x; i < ROWS * HEAD_DIM; i += NUM_THREADS) {
        const int row = first_row + i / HEAD_DIM;
        // Rows past the end are zeros: whatever lay there could be NaN, and NaN * 0 is NaN.
        tile_smem[i] = row < length ? head[(size_t)row * HEAD_DIM + i % HEAD_DIM]
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

// The 1 lets ptxas use the registers it wants: without it sm_90 spills some to make room for more
// CTAs per SM than shared memory holds.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads, seqlen_kv, HEAD_DIM]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM]
                  int num_heads, int seqlen, int seqlen_kv, float softmax_scale) {
    extern __shared__ __align__(16) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);  // [BLOCK_M, HEAD_DIM]
    element* k_smem = q_smem + BLOCK_M * HEAD_DIM;       // [BLOCK_N, HEAD_DIM]
    element* v_smem = k_smem + BLOCK_N * HEAD_DIM;       // [BLOCK_N, HEAD_DIM]
    float* s_smem = reinterpret_cast<float*>(v_smem + BLOCK_N * HEAD_DIM);  // [BLOCK_M, BLOCK_N]

    const int row = threadIdx.x / THREADS_PER_ROW;   // query row within the tile
    const int part = threadIdx.x % THREADS_PER_ROW;  // which share of the row is this thread's
    const int m0 = blockIdx.z * BLOCK_M;             // first query row of this CTA
    const int query = m0 + row;
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t head_index = (size_t)blockIdx.y * num_heads + blockIdx.x;
    const size_t q_head = head_index * seqlen * HEAD_DIM;      // where this head's Q and O begin
    const size_t kv_head = head_index * seqlen_kv * HEAD_DIM;  // and its K and V

    load_tile<BLOCK_M>(q_smem, q + q_head, m0, seqlen);

    float acc_rmem[DIMS_PER_THREAD];  // O of this row's columns part * DIMS_PER_THREAD + d
#pragma unroll
    for (int d = 0; d < DIMS_PER_THREAD; d++) acc_rmem[d] = 0.0f;
    float m = -INFINITY;  // running maximum of the row, the same in all its threads
    float l = 0.0f;       // running sum over this thread's keys only

    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv;
    for (int n0 = 0; n0 < kv_end; n0 += BLOCK_N) {
        load_tile<BLOCK_N>(k_smem, k + kv_head, n0, seqlen_kv);
        load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);
        // Every thread reads rows that other threads loaded (Q too, the first time).
        __syncthreads();

        // S = Q @ K^T [BLOCK_M, BLOCK_N]: a row's threads take its keys in turn.
        const element* q_row = q_smem + row * HEAD_DIM;
        float* s_row = s_smem + row * BLOCK_N;
        float m_new = m;
        for (int n = part; n < BLOCK_N; n += THREADS_PER_ROW) {
            float score = 0.0f;
#pragma unroll
            for (int d = 0; d < HEAD_DIM; d++) {
                score += to_float(q_row[d]) * to_float(k_smem[n * HEAD_DIM + d]);
            }
            const int key = n0 + n;
            const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= query);
            score = visible ? score * softmax_scale : -INFINITY;
            s_row[n] = score;
            m_new = fmaxf(m_new, score);
        }

        // Online softmax: what was summed under the old maximum shrinks to the new one. Key 0 is
        // visible to every row, so the row's maximum is finite from the first tile on.
        m_new = row_max(m_new);
        const float correction = __expf(m - m_new);
        m = m_new;
        l *= correction;
#pragma unroll
        for (int d = 0; d < DIMS_PER_THREAD; d++) acc_rmem[d] *= correction;

        // P = exp(S - m), in place. l stays split over the row's threads: all share one correction.
        for (int n = part; n < BLOCK_N; n += THREADS_PER_ROW) {
            const float p = __expf(s_row[n] - m_new);
            s_row[n] = p;
            l += p;
        }
        // Each thread needs P of all keys, which its row's other threads (same warp) just wrote.
        __syncwarp();

        // O += P @ V [BLOCK_M, HEAD_DIM]: this thread adds up its own columns over all keys.
        for (int n = 0; n < BLOCK_N; n++) {
            const float p = s_row[n];
#pragma unroll
            for (int d = 0; d < DIMS_PER_THREAD; d++) {
                acc_rmem[d] += p * to_float(v_smem[n * HEAD_DIM + part * DIMS_PER_THREAD + d]);
            }
        }
        // The next tile overwrites K, V and S, which slower threads are still reading.
        __syncthreads();
    }

    // O = O / l. The sum needs all lanes, so it comes before rows past the end drop out.
    const float inv_l = 1.0f / row_sum(l);
    if (query < seqlen) {
        element* out_row = out + q_head + (size_t)query * HEAD_DIM + part * DIMS_PER_THREAD;
#pragma unroll
        for (int d = 0; d < DIMS_PER_THREAD; d++) out_row[d] = to_element(acc_rmem[d] * inv_l);
    }
}
