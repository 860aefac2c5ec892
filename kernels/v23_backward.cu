// v23 Backward: dQ, dK and dV from Q, K, V, O, LSE and dO: each CTA sums its own rows alone.
// Idea: recompute P = exp(S - LSE), and dS = P (dP - D) with D = rowsum(dO O): no S x S matrix.
// Changed: against v03, rewritten for three outputs: D, then a CTA a key tile, then a query tile.
// Limiter: shared memory and FMA: five products of 32 x 32 scores, two of them computed twice.
// Constraints: D in {32, 64, 96, 128}; H <= 65535; B <= 65535; S <= KV where causal; GQA.
// Passes: 3, backward_delta by 8 rows, backward_kv by 32 keys, backward_q by 32 rows, of each head.
// Source: FlashAttention (Dao et al., 2022, arXiv 2205.14135), algorithm 4, appendix B.
// Weakness: S and dP are computed in both passes; no tensor cores; 32 rows to a tile, 4-byte loads.
/* attune
idea = "dQ, dK, dV on CUDA cores: P recomputed from LSE, dS = P (dP - D), no atomics, three passes."
head_dims = [32, 64, 96, 128]
min_compute_capability = 7.5
gqa = true
takes = ["backward", "kv_offset"]

[tunables]
threads_per_row = {values = [4, 8], default = 8, meaning = "threads that share one row of a tile"}

[scratch]
delta = {shape = ["batch", "num_heads", "seqlen"]}

[[passes]]
entry = "backward_delta"
grid = ["ceil_div(seqlen, 8)", "num_heads", "batch"]  # a warp for each row
threads = 256
args = ["out", "dout", "delta", "seqlen"]

[[passes]]
entry = "backward_kv"
grid = ["ceil_div(seqlen_kv, 32)", "num_heads_kv", "batch"]
threads = "32 * threads_per_row"
# K, V, Q and dO in rows padded by 2 elements, P and dS by a float.
smem_bytes = "4 * 32 * (head_dim + 2) * element_bytes + 2 * 32 * 33 * 4"
args = ["q", "k", "v", "dout", "lse", "delta", "dk", "dv",
        "num_heads", "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale"]

[[passes]]
entry = "backward_q"
grid = ["ceil_div(seqlen, 32)", "num_heads", "batch"]
threads = "32 * threads_per_row"
smem_bytes = "4 * 32 * (head_dim + 2) * element_bytes + 32 * 33 * 4"
args = ["q", "k", "v", "dout", "lse", "delta", "dq",
        "num_heads", "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale"]

[work]
math_unit = "fma"
math_threads = "32 * threads_per_row"
query_rows = 32
kv_rows = "round_up(seqlen_kv, 32)"
conflict_ways = 1
*/
#include "element.cuh"
#include "exp2.cuh"

constexpr int TILE_ROWS = 32;  // queries of a query tile, and keys of a key tile
constexpr int NUM_THREADS = TILE_ROWS * THREADS_PER_ROW;
constexpr int PAIRS_PER_THREAD = HEAD_DIM / (2 * THREADS_PER_ROW);  // pairs of columns
// Padded so that neighbouring rows begin in different banks.
constexpr int ROW_STRIDE = HEAD_DIM + 2;   // elements
constexpr int P_STRIDE = TILE_ROWS + 1;  // floats
constexpr unsigned FULL_WARP = 0xffffffffu;
constexpr int DELTA_ROWS = 8;  // rows per CTA of the first pass, one warp each

static_assert(THREADS_PER_ROW == 4 || THREADS_PER_ROW == 8,
              "threads_per_row must be 4 or 8: a row of 32 columns has 16 pairs to share");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128,
              "head_dim must be a multiple of 32 up to 128: a warp adds up a row");

// Copies rows [first_row, first_row + TILE_ROWS) of one head into shared memory, a pair per load.
__device__ __forceinline__ void load_tile(element* tile_smem,   // [TILE_ROWS, ROW_STRIDE]
                                          const element* head,  // [length, HEAD_DIM]
                                          int first_row, int length) {
    constexpr int PAIRS_PER_ROW = HEAD_DIM / 2;
    for (int i = threadIdx.x; i < TILE_ROWS * PAIRS_PER_ROW; i += NUM_THREADS) {
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

__device__ __forceinline__ float dot(const element* a, const element* b) {
    float sum = 0.0f;
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 2) {
        const float2 left = pair_at(a, d), right = pair_at(b, d);
        sum += left.x * right.x;
        sum += left.y * right.y;
    }
    return sum;
}

// acc += weight * row, of this thread's column pairs at 2 * (part + j * THREADS_PER_ROW).
__device__ __forceinline__ void add_row(float2 (&acc_rmem)[PAIRS_PER_THREAD], float weight,
                                        const element* row, int part) {
#pragma unroll
    for (int j = 0; j < PAIRS_PER_THREAD; j++) {
        const float2 pair = pair_at(row, 2 * (part + j * THREADS_PER_ROW));
        acc_rmem[j].x += weight * pair.x;
        acc_rmem[j].y += weight * pair.y;
    }
}

__device__ __forceinline__ void store_row(element* row, const float2 (&acc_rmem)[PAIRS_PER_THREAD],
                                          float factor, int part) {
#pragma unroll
    for (int j = 0; j < PAIRS_PER_THREAD; j++) {
        *reinterpret_cast<element2*>(row + 2 * (part + j * THREADS_PER_ROW)) =
            to_element2(acc_rmem[j].x * factor, acc_rmem[j].y * factor);
    }
}

// D = rowsum(dO * O), which the derivative of the softmax subtracts from each dP of a row.
extern "C" __global__ void __launch_bounds__(32 * DELTA_ROWS)
backward_delta(const element* __restrict__ out,   // [batch, num_heads, seqlen, HEAD_DIM]
               const element* __restrict__ dout,  // [batch, num_heads, seqlen, HEAD_DIM]
               float* __restrict__ delta,         // [batch, num_heads, seqlen]
               int seqlen) {
    const int lane = threadIdx.x % 32;
    const int query = blockIdx.x * DELTA_ROWS + threadIdx.x / 32;
    if (query >= seqlen) return;
    const size_t row = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * seqlen + query;
    float sum = 0.0f;
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 32) {
        sum += to_float(out[row * HEAD_DIM + d + lane]) * to_float(dout[row * HEAD_DIM + d + lane]);
    }
#pragma unroll
    for (int lane_bit = 16; lane_bit > 0; lane_bit /= 2) {
        sum += __shfl_xor_sync(FULL_WARP, sum, lane_bit);
    }
    if (lane == 0) delta[row] = sum;
}

// dK and dV of 32 keys: a loop over all queries of the heads that read them, tile by tile.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
backward_kv(const element* __restrict__ q,     // [batch, num_heads, seqlen, HEAD_DIM]
            const element* __restrict__ k,     // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
            const element* __restrict__ v,     // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
            const element* __restrict__ dout,  // [batch, num_heads, seqlen, HEAD_DIM]
            const float* __restrict__ lse,     // [batch, num_heads, seqlen], natural
            const float* __restrict__ delta,   // [batch, num_heads, seqlen]
            element* __restrict__ dk,          // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
            element* __restrict__ dv,          // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
            int num_heads, int num_heads_kv, int seqlen, int seqlen_kv, float softmax_scale) {
    extern __shared__ __align__(16) unsigned char smem[];
    element* k_smem = reinterpret_cast<element*>(smem);       // [TILE_ROWS, ROW_STRIDE]
    element* v_smem = k_smem + TILE_ROWS * ROW_STRIDE;        // [TILE_ROWS, ROW_STRIDE]
    element* q_smem = v_smem + TILE_ROWS * ROW_STRIDE;        // [TILE_ROWS, ROW_STRIDE]
    element* dout_smem = q_smem + TILE_ROWS * ROW_STRIDE;     // [TILE_ROWS, ROW_STRIDE]
    float* p_smem = reinterpret_cast<float*>(dout_smem + TILE_ROWS * ROW_STRIDE);
    float* ds_smem = p_smem + TILE_ROWS * P_STRIDE;  // both [queries, P_STRIDE]

    const int own = threadIdx.x / THREADS_PER_ROW;   // a query of S and dP, a key of dK and dV
    const int part = threadIdx.x % THREADS_PER_ROW;  // index of this thread among its row's
    const int n0 = blockIdx.x * TILE_ROWS;           // first key of this CTA
    const int group = num_heads / num_heads_kv;      // query heads that read these keys
    const int offset = seqlen_kv - seqlen;           // query i stands at i + offset
    // 64-bit: batch * num_heads_kv * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t kv_index = (size_t)blockIdx.z * num_heads_kv + blockIdx.y;
    const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    load_tile(k_smem, k + kv_head, n0, seqlen_kv);
    load_tile(v_smem, v + kv_head, n0, seqlen_kv);

    float2 dk_rmem[PAIRS_PER_THREAD], dv_rmem[PAIRS_PER_THREAD];
#pragma unroll
    for (int j = 0; j < PAIRS_PER_THREAD; j++) {
        dk_rmem[j] = make_float2(0.0f, 0.0f);
        dv_rmem[j] = make_float2(0.0f, 0.0f);
    }

    // Causal: queries before the tile's first key see none of its keys.
    const int m_begin = IS_CAUSAL ? max(0, n0 - offset) / TILE_ROWS * TILE_ROWS : 0;
    for (int head = 0; head < group; head++) {
        const size_t q_index = (size_t)blockIdx.z * num_heads + blockIdx.y * group + head;
        const size_t q_head = q_index * seqlen * HEAD_DIM;
        for (int m0 = m_begin; m0 < seqlen; m0 += TILE_ROWS) {
            load_tile(q_smem, q + q_head, m0, seqlen);
            load_tile(dout_smem, dout + q_head, m0, seqlen);
            const int query = m0 + own;
            const bool exists = query < seqlen;
            const float own_lse = exists ? lse[q_index * seqlen + query] * LOG2_E : 0.0f;
            const float own_delta = exists ? delta[q_index * seqlen + query] : 0.0f;
            // Every thread reads rows that other threads loaded (K and V too, the first time).
            __syncthreads();

            // P and dS [TILE_ROWS, TILE_ROWS]: a query's threads take its keys in turn.
            for (int n = part; n < TILE_ROWS; n += THREADS_PER_ROW) {
                const int key = n0 + n;
                const bool visible =
                    exists && key < seqlen_kv && (!IS_CAUSAL || key <= query + offset);
                float p = 0.0f, ds = 0.0f;
                if (visible) {
                    const float score = dot(q_smem + own * ROW_STRIDE, k_smem + n * ROW_STRIDE);
                    const float dp = dot(dout_smem + own * ROW_STRIDE, v_smem + n * ROW_STRIDE);
                    p = fast_exp2(score * scale_log2 - own_lse);
                    ds = p * (dp - own_delta);
                }
                p_smem[own * P_STRIDE + n] = p;
                ds_smem[own * P_STRIDE + n] = ds;
            }
            // Each thread needs all queries' P and dS of its key.
            __syncthreads();

            // dV += P^T @ dO and dK += dS^T @ Q, of this thread's key and columns.
            for (int m = 0; m < TILE_ROWS; m++) {
                const float p = p_smem[m * P_STRIDE + own];
                const float ds = ds_smem[m * P_STRIDE + own];
                add_row(dv_rmem, p, dout_smem + m * ROW_STRIDE, part);
                add_row(dk_rmem, ds, q_smem + m * ROW_STRIDE, part);
            }
            // The next tile overwrites Q, dO, P and dS, which slower threads are still reading.
            __syncthreads();
        }
    }

    const int key = n0 + own;
    if (key < seqlen_kv) {
        store_row(dv + kv_head + (size_t)key * HEAD_DIM, dv_rmem, 1.0f, part);
        store_row(dk + kv_head + (size_t)key * HEAD_DIM, dk_rmem, softmax_scale, part);
    }
}

// dQ of 32 queries: a loop over all keys that they see, tile by tile.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
backward_q(const element* __restrict__ q,     // [batch, num_heads, seqlen, HEAD_DIM]
           const element* __restrict__ k,     // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
           const element* __restrict__ v,     // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
           const element* __restrict__ dout,  // [batch, num_heads, seqlen, HEAD_DIM]
           const float* __restrict__ lse,     // [batch, num_heads, seqlen], natural
           const float* __restrict__ delta,   // [batch, num_heads, seqlen]
           element* __restrict__ dq,          // [batch, num_heads, seqlen, HEAD_DIM]
           int num_heads, int num_heads_kv, int seqlen, int seqlen_kv, float softmax_scale) {
    extern __shared__ __align__(16) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);    // [TILE_ROWS, ROW_STRIDE]
    element* dout_smem = q_smem + TILE_ROWS * ROW_STRIDE;  // [TILE_ROWS, ROW_STRIDE]
    element* k_smem = dout_smem + TILE_ROWS * ROW_STRIDE;  // [TILE_ROWS, ROW_STRIDE]
    element* v_smem = k_smem + TILE_ROWS * ROW_STRIDE;     // [TILE_ROWS, ROW_STRIDE]
    float* ds_smem = reinterpret_cast<float*>(v_smem + TILE_ROWS * ROW_STRIDE);

    const int own = threadIdx.x / THREADS_PER_ROW;   // this thread's query
    const int part = threadIdx.x % THREADS_PER_ROW;  // index of this thread among its row's
    // Causal: the longest tiles start first, which keeps the last wave short.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * TILE_ROWS;
    const int query = m0 + own;
    const int group = num_heads / num_heads_kv;
    const int offset = seqlen_kv - seqlen;
    const size_t q_index = (size_t)blockIdx.z * num_heads + blockIdx.y;
    const size_t kv_index = (size_t)blockIdx.z * num_heads_kv + blockIdx.y / group;
    const size_t q_head = q_index * seqlen * HEAD_DIM;
    const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;
    const float scale_log2 = softmax_scale * LOG2_E;
    const bool exists = query < seqlen;
    const float own_lse = exists ? lse[q_index * seqlen + query] * LOG2_E : 0.0f;
    const float own_delta = exists ? delta[q_index * seqlen + query] : 0.0f;

    load_tile(q_smem, q + q_head, m0, seqlen);
    load_tile(dout_smem, dout + q_head, m0, seqlen);

    float2 dq_rmem[PAIRS_PER_THREAD];
#pragma unroll
    for (int j = 0; j < PAIRS_PER_THREAD; j++) dq_rmem[j] = make_float2(0.0f, 0.0f);

    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + TILE_ROWS + offset) : seqlen_kv;
    float* ds_row = ds_smem + own * P_STRIDE;
    for (int n0 = 0; n0 < kv_end; n0 += TILE_ROWS) {
        load_tile(k_smem, k + kv_head, n0, seqlen_kv);
        load_tile(v_smem, v + kv_head, n0, seqlen_kv);
        // Every thread reads rows that other threads loaded (Q and dO too, the first time).
        __syncthreads();

        for (int n = part; n < TILE_ROWS; n += THREADS_PER_ROW) {
            const int key = n0 + n;
            const bool visible = exists && key < seqlen_kv && (!IS_CAUSAL || key <= query + offset);
            float ds = 0.0f;
            if (visible) {
                const float score = dot(q_smem + own * ROW_STRIDE, k_smem + n * ROW_STRIDE);
                const float dp = dot(dout_smem + own * ROW_STRIDE, v_smem + n * ROW_STRIDE);
                ds = fast_exp2(score * scale_log2 - own_lse) * (dp - own_delta);
            }
            ds_row[n] = ds;
        }
        // Each thread needs dS of all keys, which its row's other threads (same warp) just wrote.
        __syncwarp();

        // dQ += dS @ K, of this thread's query and columns.
        for (int n = 0; n < TILE_ROWS; n++) {
            add_row(dq_rmem, ds_row[n], k_smem + n * ROW_STRIDE, part);
        }
        // The next tile overwrites K, V and dS, which slower threads are still reading.
        __syncthreads();
    }

    if (exists) store_row(dq + q_head + (size_t)query * HEAD_DIM, dq_rmem, softmax_scale, part);
}
