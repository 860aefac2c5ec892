// v05 KV split: CTAs share a query tile, each takes a chunk of K/V; a second pass fuses them.
// Idea: softmax over chunks merges exactly by log-sum-exp, so K/V can be a grid dimension too.
// Changed: against v02, grid y also counts splits; CTAs store raw (O, m, l); a fusion pass.
// Limiter: as v02 in the partial pass; DRAM or L2 in the fusion; two launches where S is short.
// Constraints: D in {32, 64, 96, 128}; H num_splits <= 65535; B <= 65535; any KV and num_splits.
// Passes: 2, attention_partial (ceil(S / 64), num_heads * num_splits, batch), attention_fuse.
// Source: Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023), applied to full query tiles.
// Weakness: num_splits * (4 D + 8) bytes a row; unequal causal chunks; 1 query costs as much as 64.
/* attune
idea = "CTAs split the keys of a query tile; a second pass fuses (O, m, l) by log-sum-exp."
head_dims = [32, 64, 96, 128]
min_compute_capability = 7.5
takes = ["lse"]
let.block_m = 64

[tunables]
block_n = {values = [32, 64], default = 64, meaning = "K/V rows per tile"}
threads_per_row = {values = [2, 4, 8], default = 4, meaning = "threads that share one query row"}
num_splits = {values = [1, 2, 4, 8, 16, 32], default = 4, meaning = "K/V chunks per query tile"}

[scratch]
o_partial = {shape = ["num_splits", "batch", "num_heads", "seqlen", "head_dim"]}
m_partial = {shape = ["num_splits", "batch", "num_heads", "seqlen"]}
l_partial = {shape = ["num_splits", "batch", "num_heads", "seqlen"]}

[[passes]]
entry = "attention_partial"
grid = ["ceil_div(seqlen, block_m)", "num_heads * num_splits", "batch"]
threads = "block_m * threads_per_row"
# Q, K and V in rows padded by 2 elements, and S in rows padded by threads_per_row floats.
smem_bytes = """(block_m + 2 * block_n) * (head_dim + 2) * element_bytes
                + block_m * (block_n + threads_per_row) * 4"""
args = ["q", "k", "v", "o_partial", "m_partial", "l_partial",
        "num_heads", "seqlen", "seqlen_kv", "softmax_scale"]

[[passes]]
entry = "attention_fuse"
grid = ["ceil_div(seqlen, 4)", "num_heads", "batch"]  # a warp fuses a row
threads = "32 * 4"
args = ["o_partial", "m_partial", "l_partial", "out", "seqlen", "softmax_scale", "lse"]

[work]
math_unit = "fma"
query_rows = "block_m"
# Whole tiles, so that seams fall on multiples of block_n.
kv_rows = "ceil_div(ceil_div(seqlen_kv, block_n), num_splits) * block_n"
conflict_ways = 1
*/
#include "element.cuh"
#include "exp2.cuh"
#include "lse.cuh"

constexpr int BLOCK_M = 64;  // query rows per CTA
constexpr int NUM_THREADS = BLOCK_M * THREADS_PER_ROW;
constexpr int PAIRS_PER_THREAD = HEAD_DIM / (2 * THREADS_PER_ROW);  // pairs of columns of O
// Padded so that rows begin in different banks: the 32 lanes of a warp read pairs of 32 /
// THREADS_PER_ROW rows of Q, of THREADS_PER_ROW rows of K, and as many rows of S as of Q.
constexpr int ROW_STRIDE = HEAD_DIM + 2;               // elements
constexpr int S_STRIDE = BLOCK_N + THREADS_PER_ROW;  // floats
constexpr unsigned FULL_WARP = 0xffffffffu;
constexpr int FUSE_ROWS = 4;  // rows per CTA of the fusion, one warp each
constexpr int FUSE_THREADS = 32 * FUSE_ROWS;

static_assert(BLOCK_N == 32 || BLOCK_N == 64,
              "block_n must be 32 or 64: a wider tile leaves room for one CTA in 100 KB");
static_assert(THREADS_PER_ROW == 2 || THREADS_PER_ROW == 4 || THREADS_PER_ROW == 8,
              "threads_per_row must be 2, 4 or 8: 64 rows of more exceed 1,024 threads");
static_assert(HEAD_DIM % (2 * THREADS_PER_ROW) == 0,
              "head_dim must be a multiple of 2 threads_per_row: a row's threads own equal shares");
static_assert(NUM_SPLITS >= 1, "num_splits must be at least 1: one split visits all keys");
static_assert(HEAD_DIM % 32 == 0, "head_dim must be a multiple of 32: a warp fuses a row");
static_assert(HEAD_DIM <= 128, "head_dim must be at most 128: the tiles would exceed 64 KB");

// Copies rows [first_row, first_row + ROWS) of one head into shared memory, a pair per load.
template <int ROWS>
__device__ __forceinline__ void load_tile(element* tile_smem,   // [ROWS, ROW_STRIDE]
                                          const element* head,  // [length, HEAD_DIM]
                                          int first_row, int length) {
    constexpr int PAIRS_PER_ROW = HEAD_DIM / 2;
    for (int i = threadIdx.x; i < ROWS * PAIRS_PER_ROW; i += NUM_THREADS) {
        const int row = i / PAIRS_PER_ROW;
        const int d = i % PAIRS_PER_ROW * 2;
        // Rows past the end are zero-filled: stale data could be NaN, and NaN * 0 is NaN.
        element2 pair = to_element2(0.0f, 0.0f);
        if (first_row + row < length) {
            const element* source = head + (size_t)(first_row + row) * HEAD_DIM + d;
            pair = *reinterpret_cast<const element2*>(source);
        }
        *reinterpret_cast<element2*>(tile_smem + row * ROW_STRIDE + d) = pair;
    }
}

// Two neighbouring elements of a tile as floats.
__device__ __forceinline__ float2 pair_at(const element* row, int d) {
    return to_float2(*reinterpret_cast<const element2*>(row + d));
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

// One CTA per query tile, (head, split) and batch; num_rows = batch * num_heads * seqlen. The 1 in
// the bounds as in v02: without it ptxas spills registers for CTAs that shared memory cannot hold.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_partial(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads, seqlen_kv, HEAD_DIM]
                  float* __restrict__ o_partial,  // [NUM_SPLITS, num_rows, HEAD_DIM]
                  float* __restrict__ m_partial,  // [NUM_SPLITS, num_rows]
                  float* __restrict__ l_partial,  // [NUM_SPLITS, num_rows]
                  int num_heads, int seqlen, int seqlen_kv, float softmax_scale) {
    extern __shared__ __align__(16) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);  // [BLOCK_M, ROW_STRIDE]
    element* k_smem = q_smem + BLOCK_M * ROW_STRIDE;     // [BLOCK_N, ROW_STRIDE]
    element* v_smem = k_smem + BLOCK_N * ROW_STRIDE;     // [BLOCK_N, ROW_STRIDE]
    float* s_smem = reinterpret_cast<float*>(v_smem + BLOCK_N * ROW_STRIDE);  // [BLOCK_M, S_STRIDE]

    const int row = threadIdx.x / THREADS_PER_ROW;   // query row within the tile
    const int part = threadIdx.x % THREADS_PER_ROW;  // index of this thread among its row's
    const int split = blockIdx.y % NUM_SPLITS;
    // The query tile is the fastest axis: concurrent CTAs share their K/V in L2. Causal: the
    // longest tiles start first, which keeps the last wave short.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * BLOCK_M;  // first query row of this CTA
    const int query = m0 + row;
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t head_index = (size_t)blockIdx.z * num_heads + blockIdx.y / NUM_SPLITS;
    const size_t q_head = head_index * seqlen * HEAD_DIM;      // where this head's Q and O begin
    const size_t kv_head = head_index * seqlen_kv * HEAD_DIM;  // and its K and V

    load_tile<BLOCK_M>(q_smem, q + q_head, m0, seqlen);

    // O of the column pairs at 2 * (part + j * THREADS_PER_ROW): neighbours in part are neighbours
    // in memory.
    float2 acc_rmem[PAIRS_PER_THREAD];
#pragma unroll
    for (int j = 0; j < PAIRS_PER_THREAD; j++) acc_rmem[j] = make_float2(0.0f, 0.0f);
    float m = -INFINITY;  // maximum of the row over this chunk, unscaled, the same in its threads
    float l = 0.0f;       // sum over this thread's keys only
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    // A chunk is a number of whole tiles, the same for every query tile: split s begins at key
    // s * chunk_rows. With more splits than tiles the last chunks start past the end: no keys.
    const int num_tiles = (seqlen_kv + BLOCK_N - 1) / BLOCK_N;
    const int chunk_rows = (num_tiles + NUM_SPLITS - 1) / NUM_SPLITS * BLOCK_N;
    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv;
    const int chunk_end = min(kv_end, (split + 1) * chunk_rows);
    for (int n0 = split * chunk_rows; n0 < chunk_end; n0 += BLOCK_N) {
        load_tile<BLOCK_N>(k_smem, k + kv_head, n0, seqlen_kv);
        load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);
        // Every thread reads rows that other threads loaded (Q too, the first time).
        __syncthreads();

        // S = Q @ K^T [BLOCK_M, BLOCK_N]: a row's threads take its keys in turn.
        const element* q_row = q_smem + row * ROW_STRIDE;
        float* s_row = s_smem + row * S_STRIDE;
        float m_new = m;
        for (int n = part; n < BLOCK_N; n += THREADS_PER_ROW) {
            float score = 0.0f;
#pragma unroll
            for (int d = 0; d < HEAD_DIM; d += 2) {
                const float2 q_pair = pair_at(q_row, d);
                const float2 k_pair = pair_at(k_smem + n * ROW_STRIDE, d);
                score += q_pair.x * k_pair.x;
                score += q_pair.y * k_pair.y;
            }
            const int key = n0 + n;
            const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= query);
            if (!visible) score = -INFINITY;
            s_row[n] = score;
            m_new = fmaxf(m_new, score);
        }

        // Online softmax: what was summed so far is rescaled from the old maximum to the new one. A
        // causal row may see no key of this chunk: its maximum is -inf, and -inf - -inf would be
        // NaN.
        m_new = row_max(m_new);
        const float m_finite = m_new == -INFINITY ? 0.0f : m_new;
        const float m_scaled = m_finite * scale_log2;
        const float correction = fast_exp2(m * scale_log2 - m_scaled);
        m = m_new;
        l *= correction;
#pragma unroll
        for (int j = 0; j < PAIRS_PER_THREAD; j++) {
            acc_rmem[j].x *= correction;
            acc_rmem[j].y *= correction;
        }

        // P = exp(scale (S - m)), in place: one FFMA and one EX2 per score. l stays split over the
        // row's threads: all share one correction.
        for (int n = part; n < BLOCK_N; n += THREADS_PER_ROW) {
            const float p = fast_exp2(s_row[n] * scale_log2 - m_scaled);
            s_row[n] = p;
            l += p;
        }
        // Each thread needs P of all keys, which its row's other threads (same warp) just wrote.
        __syncwarp();

        // O += P @ V [BLOCK_M, HEAD_DIM]: this thread sums its own columns over all keys.
        for (int n = 0; n < BLOCK_N; n++) {
            const float p = s_row[n];
#pragma unroll
            for (int j = 0; j < PAIRS_PER_THREAD; j++) {
                const float2 v_pair =
                    pair_at(v_smem + n * ROW_STRIDE, 2 * (part + j * THREADS_PER_ROW));
                acc_rmem[j].x += p * v_pair.x;
                acc_rmem[j].y += p * v_pair.y;
            }
        }
        // The next tile overwrites K, V and S, which slower threads are still reading.
        __syncthreads();
    }

    // Store O (not divided by l), m and l. The sum needs all lanes, so it comes before the row
    // check. A row that saw no key leaves O unwritten: m = -inf tells the fusion.
    l = row_sum(l);
    if (query < seqlen) {
        const size_t num_rows = (size_t)gridDim.z * num_heads * seqlen;
        const size_t partial_row = split * num_rows + head_index * seqlen + query;
        if (part == 0) {
            m_partial[partial_row] = m;
            l_partial[partial_row] = l;
        }
        if (m > -INFINITY) {
            float* o_row = o_partial + partial_row * HEAD_DIM;
#pragma unroll
            for (int j = 0; j < PAIRS_PER_THREAD; j++) {
                *reinterpret_cast<float2*>(o_row + 2 * (part + j * THREADS_PER_ROW)) = acc_rmem[j];
            }
        }
    }
}

// One warp per row, its lanes share the columns; grid (ceil(seqlen / FUSE_ROWS), num_heads, batch).
extern "C" __global__ void __launch_bounds__(FUSE_THREADS)
attention_fuse(const float* __restrict__ o_partial,  // [NUM_SPLITS, num_rows, HEAD_DIM]
               const float* __restrict__ m_partial,  // [NUM_SPLITS, num_rows]
               const float* __restrict__ l_partial,  // [NUM_SPLITS, num_rows]
               element* __restrict__ out,            // [batch, num_heads, seqlen, HEAD_DIM]
               int seqlen, float softmax_scale LSE_PARAMETER) {
    const int lane = threadIdx.x % 32;
    const int query = blockIdx.x * FUSE_ROWS + threadIdx.x / 32;
    if (query >= seqlen) return;
    const size_t num_rows = (size_t)gridDim.z * gridDim.y * seqlen;
    const size_t row = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * seqlen + query;

    // m = max over splits. Key 0 lies in split 0 and every row sees it, so m is finite.
    float m = -INFINITY;
    for (int split = 0; split < NUM_SPLITS; split++) {
        m = fmaxf(m, m_partial[split * num_rows + row]);
    }

    // O = sum_s exp(scale (m_s - m)) O_s, l = sum_s exp(scale (m_s - m)) l_s
    float acc_rmem[HEAD_DIM / 32];  // O of columns 32 * i + lane: neighbouring lanes, one segment
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; i++) acc_rmem[i] = 0.0f;
    float l = 0.0f;
    const float scale_log2 = softmax_scale * LOG2_E;
    for (int split = 0; split < NUM_SPLITS; split++) {
        const size_t partial_row = split * num_rows + row;
        const float m_split = m_partial[partial_row];
        if (m_split == -INFINITY) continue;  // empty for this row: its O was never written
        const float weight = fast_exp2((m_split - m) * scale_log2);
        l += weight * l_partial[partial_row];
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; i++) {
            acc_rmem[i] += weight * o_partial[partial_row * HEAD_DIM + 32 * i + lane];
        }
    }

    STORE_LSE(lane == 0, row, m * scale_log2, 1.0f / l);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 32; i++) {
        out[row * HEAD_DIM + 32 * i + lane] = to_element(acc_rmem[i] / l);
    }
}
