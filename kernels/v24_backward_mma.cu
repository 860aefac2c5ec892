// v24 Backward, mma: FlashAttention-2's loop on tensor cores, dQ added up by atomics in FP32.
// Idea: a warp owns keys, so that P^T and dS^T stay in its registers on their way into dV and dK.
// Changed: against v23, rewritten for mma.sync and cp.async: one pass for all three outputs.
// Limiter: shared memory: K and V are read again as left operands for each tile of queries.
// Constraints: from sm_80; D in {32, 64, 96, 128}; H <= 65535; B <= 65535; S <= KV where causal.
// Passes: 3, backward_delta by 8 rows, backward_loop by key tiles, backward_convert, of each head.
// Source: FlashAttention-2 (Dao, 2023, arXiv 2307.08691), algorithm 2; the D pass clears dQ's sums.
// Weakness: dQ's order of sums varies; one atomic per element, key tile and query head.
/* attune
idea = "FlashAttention-2's backward loop over key tiles by mma.sync; dQ by atomics in FP32."
head_dims = [32, 64, 96, 128]
min_compute_capability = 8.0
gqa = true
takes = ["backward", "kv_offset"]
repeatable = false
let.block_n = "16 * num_warps"

[tunables]
block_m = {values = [32, 64], default = 64, meaning = "query rows per tile"}
num_warps = {values = [4, 8], default = 4, meaning = "warps per CTA, 16 keys each"}
stages = {values = [1, 2], default = 1, meaning = "tiles of Q and dO in shared memory"}

[[constraints]]
condition = "num_warps * 8 <= block_m"
sentence = "8 warps share dQ of 64 query rows by halves: choose block_m=64 or num_warps=4."

[[constraints]]
condition = "stages == 1 or num_warps == 4 or head_dim <= 96"
sentence = "8 warps have no registers left for 2 stages of 128 columns: stages=1 or num_warps=4."

[scratch]
delta = {shape = ["batch", "num_heads", "seqlen"]}
dq_sum = {shape = ["batch", "num_heads", "seqlen", "head_dim"]}

[[passes]]
entry = "backward_delta"
grid = ["ceil_div(seqlen, 8)", "num_heads", "batch"]  # a warp for each row
threads = 256
args = ["out", "dout", "delta", "dq_sum", "seqlen"]

[[passes]]
entry = "backward_loop"
grid = ["ceil_div(seqlen_kv, block_n)", "num_heads_kv", "batch"]
threads = "32 * num_warps"
# K, V and the ring of Q and dO in rows padded by 8 elements, dS^T in rows padded by 8; LSE and D.
smem_bytes = """(2 * block_n + 2 * stages * block_m) * (head_dim + 8) * element_bytes
                + block_n * (block_m + 8) * element_bytes + 2 * block_m * 4"""
args = ["q", "k", "v", "dout", "lse", "delta", "dq_sum", "dk", "dv",
        "num_heads", "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale"]

[[passes]]
entry = "backward_convert"
grid = ["ceil_div(seqlen, 8)", "num_heads", "batch"]
threads = 256
args = ["dq_sum", "dq", "seqlen", "softmax_scale"]

[work]
math_unit = "tensor"
math_threads = "32 * num_warps"
query_rows = "block_m"
kv_rows = "block_n"
conflict_ways = 1
*/
#include "backward.cuh"

constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int BLOCK_N = 16 * NUM_WARPS;    // keys per CTA, 16 to a warp
constexpr int DS_STRIDE = BLOCK_M + VECTOR;  // elements
// Warps share dQ [BLOCK_M, HEAD_DIM]: 16 rows each, and halves of the columns where there are more.
constexpr int DQ_ROW_WARPS = BLOCK_M / 16 < NUM_WARPS ? BLOCK_M / 16 : NUM_WARPS;
constexpr int DQ_COLUMNS = HEAD_DIM * DQ_ROW_WARPS / NUM_WARPS;

static_assert(BLOCK_M == 32 || BLOCK_M == 64, "block_m must be 32 or 64: 16 rows of dQ to a warp");
static_assert(NUM_WARPS == 4 || NUM_WARPS == 8, "num_warps must be 4 or 8: as warps share dQ");
static_assert(DQ_COLUMNS % 16 == 0, "warps must share dQ by 16 columns at least");
static_assert(STAGES == 1 || STAGES == 2, "stages must be 1 or 2: tiles of Q and dO");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128,
              "head_dim must be a multiple of 32 up to 128: dK and dV stay in registers");

// D of each row, and zeros where the loop will accumulate dQ.
extern "C" __global__ void __launch_bounds__(32 * DELTA_ROWS)
backward_delta(const element* __restrict__ out,   // [batch, num_heads, seqlen, HEAD_DIM]
               const element* __restrict__ dout,  // [batch, num_heads, seqlen, HEAD_DIM]
               float* __restrict__ delta,         // [batch, num_heads, seqlen]
               float* __restrict__ dq_sum,        // [batch, num_heads, seqlen, HEAD_DIM]
               int seqlen) {
    const int lane = threadIdx.x % 32;
    const int query = blockIdx.x * DELTA_ROWS + threadIdx.x / 32;
    if (query >= seqlen) return;
    const size_t row = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * seqlen + query;
    const float sum = row_delta(out + row * HEAD_DIM, dout + row * HEAD_DIM, lane);
    if (lane == 0) delta[row] = sum;
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 32) dq_sum[row * HEAD_DIM + d + lane] = 0.0f;
}

// dK and dV of BLOCK_N keys, and the contribution of these keys to dQ of all queries. The 1
// is explained in v02.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
backward_loop(const element* __restrict__ q,     // [batch, num_heads, seqlen, HEAD_DIM]
              const element* __restrict__ k,     // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
              const element* __restrict__ v,     // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
              const element* __restrict__ dout,  // [batch, num_heads, seqlen, HEAD_DIM]
              const float* __restrict__ lse,     // [batch, num_heads, seqlen], natural
              const float* __restrict__ delta,   // [batch, num_heads, seqlen]
              float* __restrict__ dq_sum,        // [batch, num_heads, seqlen, HEAD_DIM]
              element* __restrict__ dk,          // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
              element* __restrict__ dv,          // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
              int num_heads, int num_heads_kv, int seqlen, int seqlen_kv, float softmax_scale) {
    extern __shared__ __align__(16) unsigned char smem[];
    constexpr int Q_TILE = BLOCK_M * ROW_STRIDE;
    element* k_smem = reinterpret_cast<element*>(smem);  // [BLOCK_N, ROW_STRIDE]
    element* v_smem = k_smem + BLOCK_N * ROW_STRIDE;     // [BLOCK_N, ROW_STRIDE]
    element* ring = v_smem + BLOCK_N * ROW_STRIDE;       // [STAGES, Q and dO, BLOCK_M, ROW_STRIDE]
    element* ds_smem = ring + 2 * STAGES * Q_TILE;       // [BLOCK_N, DS_STRIDE], dS^T
    float2* rows_smem = reinterpret_cast<float2*>(ds_smem + BLOCK_N * DS_STRIDE);  // [BLOCK_M]

    // An mma fragment spreads a matrix over the warp: a lane holds rows lane / 4 and lane / 4 + 8
    // of the accumulator, and in each the columns 2 * (lane % 4) and the next one.
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int pair = 2 * (lane % 4);
    const int n0 = blockIdx.x * BLOCK_N;            // first key of this CTA
    const int key0 = n0 + warp * 16 + lane / 4;     // this lane's first key
    const int group = num_heads / num_heads_kv;     // query heads that read these keys
    const int offset = seqlen_kv - seqlen;          // query i stands at i + offset
    // 64-bit: batch * num_heads_kv * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t kv_index = (size_t)blockIdx.z * num_heads_kv + blockIdx.y;
    const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;
    const size_t first_head = (size_t)blockIdx.z * num_heads + blockIdx.y * group;
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    load_tile<BLOCK_N, NUM_THREADS>(k_smem, k + kv_head, n0, seqlen_kv);
    load_tile<BLOCK_N, NUM_THREADS>(v_smem, v + kv_head, n0, seqlen_kv);

    float dk_rmem[HEAD_DIM / 8][4] = {};
    float dv_rmem[HEAD_DIM / 8][4] = {};

    // Causal: queries before the tile's first key see none of its keys.
    const int m_begin = IS_CAUSAL ? max(0, n0 - offset) / BLOCK_M * BLOCK_M : 0;
    const int tiles = (seqlen - m_begin + BLOCK_M - 1) / BLOCK_M;  // of each head, at least 1
    const int visits = tiles * group;

    // Starts the copies of one iteration's Q and dO into a stage. Always commits a group, even if
    // empty.
    const auto start_copies = [&](int visit) {
        if (visit < visits) {
            const size_t head = (first_head + visit / tiles) * seqlen * HEAD_DIM;
            const int m = m_begin + visit % tiles * BLOCK_M;
            element* stage = ring + visit % STAGES * 2 * Q_TILE;
            load_tile<BLOCK_M, NUM_THREADS>(stage, q + head, m, seqlen);
            load_tile<BLOCK_M, NUM_THREADS>(stage + Q_TILE, dout + head, m, seqlen);
        }
        cp_async_commit();
    };
    start_copies(0);

    // LSE, in base 2, and D of a query of the next iteration, loaded while dQ is computed.
    float2 next_rows = make_float2(0.0f, 0.0f);
    const auto load_rows = [&](int visit) {
        const int query = m_begin + visit % tiles * BLOCK_M + threadIdx.x;
        if (threadIdx.x < BLOCK_M && visit < visits && query < seqlen) {
            const size_t row = (first_head + visit / tiles) * seqlen + query;
            next_rows = make_float2(lse[row] * LOG2_E, delta[row]);
        }
    };
    load_rows(0);

    for (int visit = 0; visit < visits; visit++) {
        if (STAGES == 2) start_copies(visit + 1);
        const size_t q_index = first_head + visit / tiles;
        const int m0 = m_begin + visit % tiles * BLOCK_M;
        const element* q_smem = ring + visit % STAGES * 2 * Q_TILE;
        const element* dout_smem = q_smem + Q_TILE;
        if (threadIdx.x < BLOCK_M) rows_smem[threadIdx.x] = next_rows;
        cp_async_wait<STAGES - 1>();
        // Every warp reads rows that other warps copied; and dS of the previous tile is no longer
        // read.
        __syncthreads();

        // S^T = K @ Q^T and dP^T = V @ dO^T [16, BLOCK_M]: this warp's keys, all queries.
        float p_rmem[BLOCK_M / 8][4] = {};
        float ds_rmem[BLOCK_M / 8][4] = {};
        multiply_rows<BLOCK_M>(p_rmem, k_smem + warp * 16 * ROW_STRIDE, q_smem, lane);
        multiply_rows<BLOCK_M>(ds_rmem, v_smem + warp * 16 * ROW_STRIDE, dout_smem, lane);

        // P = exp(scale S - LSE) and dS = P (dP - D); 0 for keys and queries past the end.
        const bool has_mask = m0 + BLOCK_M > seqlen || n0 + BLOCK_N > seqlen_kv ||
                              (IS_CAUSAL && n0 + BLOCK_N > m0 + offset + 1);
#pragma unroll
        for (int tile = 0; tile < BLOCK_M / 8; tile++) {
#pragma unroll
            for (int column = 0; column < 2; column++) {
                const int query = m0 + tile * 8 + pair + column;
                const bool exists = query < seqlen;
                const float2 row = rows_smem[tile * 8 + pair + column];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = 2 * r + column;
                    const int key = key0 + r * 8;
                    float p = fast_exp2(p_rmem[tile][i] * scale_log2 - row.x);
                    const bool visible =
                        exists && key < seqlen_kv && (!IS_CAUSAL || key <= query + offset);
                    if (has_mask && !visible) p = 0.0f;
                    p_rmem[tile][i] = p;
                    ds_rmem[tile][i] = p * (ds_rmem[tile][i] - row.y);
                }
            }
        }

        // dS^T for the other warps' dQ.
#pragma unroll
        for (int tile = 0; tile < BLOCK_M / 8; tile++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int key = warp * 16 + lane / 4 + r * 8;
                element* to = ds_smem + key * DS_STRIDE + tile * 8 + pair;
                *reinterpret_cast<element2*>(to) =
                    to_element2(ds_rmem[tile][2 * r], ds_rmem[tile][2 * r + 1]);
            }
        }

        // dV += P^T @ dO and dK += dS^T @ Q, of this warp's keys.
        add_weighted<BLOCK_M>(dv_rmem, p_rmem, dout_smem, lane);
        add_weighted<BLOCK_M>(dk_rmem, ds_rmem, q_smem, lane);
        // dQ needs dS of all warps' keys.
        __syncthreads();

        // Loaded here: the products above leave no register free, and dQ's atomics come later.
        load_rows(visit + 1);
        // With one stage the next Q and dO overwrite these, which are no longer read.
        if (STAGES == 1) start_copies(visit + 1);

        // dQ += dS @ K: this warp's rows and columns over all keys. dS^T's rows are keys, so that
        // it loads transposed as the left operand.
        float dq_rmem[DQ_COLUMNS / 8][4] = {};
        const int dq_row = warp % DQ_ROW_WARPS * 16;
        const int dq_column = warp / DQ_ROW_WARPS * DQ_COLUMNS;
#pragma unroll
        for (int part = 0; part < BLOCK_N / 16; part++) {
            const int key = part * 16 + lane / 16 * 8 + lane % 8;
            unsigned a_rmem[4];
            ldmatrix_x4_transposed(a_rmem,
                                   ds_smem + key * DS_STRIDE + dq_row + lane / 8 % 2 * 8);
#pragma unroll
            for (int step = 0; step < DQ_COLUMNS / 16; step++) {
                unsigned b_rmem[4];
                ldmatrix_x4_transposed(b_rmem, k_smem + (part * 16 + lane % 16) * ROW_STRIDE +
                                                   dq_column + step * 16 + lane / 16 * 8);
                mma_m16n8k16(dq_rmem[2 * step], a_rmem, b_rmem[0], b_rmem[1]);
                mma_m16n8k16(dq_rmem[2 * step + 1], a_rmem, b_rmem[2], b_rmem[3]);
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int query = m0 + dq_row + lane / 4 + r * 8;
            if (query >= seqlen) continue;
            float* to = dq_sum + (q_index * seqlen + query) * HEAD_DIM + dq_column + pair;
#pragma unroll
            for (int tile = 0; tile < DQ_COLUMNS / 8; tile++) {
                atomicAdd(to + tile * 8, dq_rmem[tile][2 * r]);
                atomicAdd(to + tile * 8 + 1, dq_rmem[tile][2 * r + 1]);
            }
        }
    }

    store_rows(dv + kv_head, dv_rmem, 1.0f, n0 + warp * 16, seqlen_kv, lane);
    store_rows(dk + kv_head, dk_rmem, softmax_scale, n0 + warp * 16, seqlen_kv, lane);
}

// dQ = scale * its sum, in the tensors' dtype.
extern "C" __global__ void __launch_bounds__(32 * DELTA_ROWS)
backward_convert(const float* __restrict__ dq_sum,  // [batch, num_heads, seqlen, HEAD_DIM]
                 element* __restrict__ dq,          // [batch, num_heads, seqlen, HEAD_DIM]
                 int seqlen, float softmax_scale) {
    const int lane = threadIdx.x % 32;
    const int query = blockIdx.x * DELTA_ROWS + threadIdx.x / 32;
    if (query >= seqlen) return;
    const size_t row = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * seqlen + query;
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 32) {
        const size_t at = row * HEAD_DIM + d + lane;
        dq[at] = to_element(dq_sum[at] * softmax_scale);
    }
}
