// v25 Backward, ordered: dQ in a separate pass, so that the order of every sum is fixed: same bits.
// Idea: a CTA owns what it sums: keys for dK and dV, queries for dQ; S and dP are computed twice.
// Changed: against v24, rewritten without atomics or dS in shared memory: 7 products, not 5.
// Limiter: tensor cores and shared memory, as v24; two fifths more products for reproducible bits.
// Constraints: from sm_80; D in {32, 64, 96, 128}; H <= 65535; B <= 65535; S <= KV where causal.
// Passes: 3, backward_delta by 8 rows, backward_kv by key tiles, backward_q by query tiles.
// Source: FlashAttention-2 (Dao, 2023, arXiv 2307.08691), section 3.1, with the loops apart.
// Weakness: Q, dO, K and V are read twice; 16 rows to a warp, so each fragment serves two products.
/* attune
idea = "Backward without atomics: dQ in its own pass, S and dP computed twice, bitwise repeatable."
head_dims = [32, 64, 96, 128]
min_compute_capability = 8.0
gqa = true
takes = ["backward", "kv_offset"]
let.rows = "16 * num_warps"

[tunables]
block = {values = [32, 64], default = 64, meaning = "rows per tile of the inner loop"}
num_warps = {values = [4, 8], default = 4, meaning = "warps per CTA, 16 rows each"}

[scratch]
delta = {shape = ["batch", "num_heads", "seqlen"]}

[[passes]]
entry = "backward_delta"
grid = ["ceil_div(seqlen, 8)", "num_heads", "batch"]  # a warp for each row
threads = 256
args = ["out", "dout", "delta", "seqlen"]

[[passes]]
entry = "backward_kv"
grid = ["ceil_div(seqlen_kv, rows)", "num_heads_kv", "batch"]
threads = "32 * num_warps"
# Two tiles of the CTA's own rows and two of the loop's, in rows padded by 8 elements.
smem_bytes = "2 * (rows + block) * (head_dim + 8) * element_bytes"
args = ["q", "k", "v", "dout", "lse", "delta", "dk", "dv",
        "num_heads", "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale"]

[[passes]]
entry = "backward_q"
grid = ["ceil_div(seqlen, rows)", "num_heads", "batch"]
threads = "32 * num_warps"
smem_bytes = "2 * (rows + block) * (head_dim + 8) * element_bytes"
args = ["q", "k", "v", "dout", "lse", "delta", "dq",
        "num_heads", "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale"]

[work]
math_unit = "tensor"
math_threads = "32 * num_warps"
query_rows = "block"
kv_rows = "rows"
conflict_ways = 1
*/
#include "backward.cuh"

constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int OWN_ROWS = 16 * NUM_WARPS;  // keys or queries per CTA, 16 to a warp

static_assert(BLOCK == 32 || BLOCK == 64, "block must be 32 or 64: scores stay in registers");
static_assert(NUM_WARPS == 4 || NUM_WARPS == 8, "num_warps must be 4 or 8: 64 or 128 rows");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128,
              "head_dim must be a multiple of 32 up to 128: dK and dV stay in registers");

extern "C" __global__ void __launch_bounds__(32 * DELTA_ROWS)
backward_delta(const element* __restrict__ out,   // [batch, num_heads, seqlen, HEAD_DIM]
               const element* __restrict__ dout,  // [batch, num_heads, seqlen, HEAD_DIM]
               float* __restrict__ delta,         // [batch, num_heads, seqlen]
               int seqlen) {
    const int lane = threadIdx.x % 32;
    const int query = blockIdx.x * DELTA_ROWS + threadIdx.x / 32;
    if (query >= seqlen) return;
    const size_t row = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * seqlen + query;
    const float sum = row_delta(out + row * HEAD_DIM, dout + row * HEAD_DIM, lane);
    if (lane == 0) delta[row] = sum;
}

// dK and dV of OWN_ROWS keys: a loop over all queries of the heads that read them. The 1 is
// explained in v02.
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
    element* k_smem = reinterpret_cast<element*>(smem);  // [OWN_ROWS, ROW_STRIDE]
    element* v_smem = k_smem + OWN_ROWS * ROW_STRIDE;    // [OWN_ROWS, ROW_STRIDE]
    element* q_smem = v_smem + OWN_ROWS * ROW_STRIDE;    // [BLOCK, ROW_STRIDE]
    element* dout_smem = q_smem + BLOCK * ROW_STRIDE;    // [BLOCK, ROW_STRIDE]

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int pair = 2 * (lane % 4);
    const int n0 = blockIdx.x * OWN_ROWS;
    const int key0 = n0 + warp * 16 + lane / 4;  // this lane's first key
    const int group = num_heads / num_heads_kv;  // query heads that read these keys
    const int offset = seqlen_kv - seqlen;       // query i stands at i + offset
    // 64-bit: batch * num_heads_kv * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t kv_index = (size_t)blockIdx.z * num_heads_kv + blockIdx.y;
    const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    load_tile<OWN_ROWS, NUM_THREADS>(k_smem, k + kv_head, n0, seqlen_kv);
    load_tile<OWN_ROWS, NUM_THREADS>(v_smem, v + kv_head, n0, seqlen_kv);

    float dk_rmem[HEAD_DIM / 8][4] = {};
    float dv_rmem[HEAD_DIM / 8][4] = {};

    // Causal: queries before the tile's first key see none of its keys.
    const int m_begin = IS_CAUSAL ? max(0, n0 - offset) / BLOCK * BLOCK : 0;
    for (int head = 0; head < group; head++) {
        const size_t q_index = (size_t)blockIdx.z * num_heads + blockIdx.y * group + head;
        const size_t q_head = q_index * seqlen * HEAD_DIM;
        for (int m0 = m_begin; m0 < seqlen; m0 += BLOCK) {
            load_tile<BLOCK, NUM_THREADS>(q_smem, q + q_head, m0, seqlen);
            load_tile<BLOCK, NUM_THREADS>(dout_smem, dout + q_head, m0, seqlen);
            cp_async_wait_all();
            // Every warp reads rows that other warps copied.
            __syncthreads();

            // S^T = K @ Q^T and dP^T = V @ dO^T [16, BLOCK]: this warp's keys, all queries.
            float p_rmem[BLOCK / 8][4] = {};
            float ds_rmem[BLOCK / 8][4] = {};
            multiply_rows<BLOCK>(p_rmem, k_smem + warp * 16 * ROW_STRIDE, q_smem, lane);
            multiply_rows<BLOCK>(ds_rmem, v_smem + warp * 16 * ROW_STRIDE, dout_smem, lane);

            // P = exp(scale S - LSE) and dS = P (dP - D); 0 past the end and where masked.
            const bool has_mask = m0 + BLOCK > seqlen || n0 + OWN_ROWS > seqlen_kv ||
                                  (IS_CAUSAL && n0 + OWN_ROWS > m0 + offset + 1);
#pragma unroll
            for (int tile = 0; tile < BLOCK / 8; tile++) {
#pragma unroll
                for (int column = 0; column < 2; column++) {
                    const int query = m0 + tile * 8 + pair + column;
                    const bool exists = query < seqlen;
                    const size_t row = q_index * seqlen + query;
                    const float row_lse = exists ? lse[row] * LOG2_E : 0.0f;
                    const float row_d = exists ? delta[row] : 0.0f;
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int i = 2 * r + column;
                        const int key = key0 + r * 8;
                        float p = fast_exp2(p_rmem[tile][i] * scale_log2 - row_lse);
                        const bool visible =
                            exists && key < seqlen_kv && (!IS_CAUSAL || key <= query + offset);
                        if (has_mask && !visible) p = 0.0f;
                        p_rmem[tile][i] = p;
                        ds_rmem[tile][i] = p * (ds_rmem[tile][i] - row_d);
                    }
                }
            }

            // dV += P^T @ dO and dK += dS^T @ Q, of this warp's keys.
            add_weighted<BLOCK>(dv_rmem, p_rmem, dout_smem, lane);
            add_weighted<BLOCK>(dk_rmem, ds_rmem, q_smem, lane);
            // The next tile overwrites Q and dO, which slower warps are still reading.
            __syncthreads();
        }
    }

    store_rows(dv + kv_head, dv_rmem, 1.0f, n0 + warp * 16, seqlen_kv, lane);
    store_rows(dk + kv_head, dk_rmem, softmax_scale, n0 + warp * 16, seqlen_kv, lane);
}

// dQ of OWN_ROWS queries: a loop over all keys that they see.
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
    element* q_smem = reinterpret_cast<element*>(smem);  // [OWN_ROWS, ROW_STRIDE]
    element* dout_smem = q_smem + OWN_ROWS * ROW_STRIDE;  // [OWN_ROWS, ROW_STRIDE]
    element* k_smem = dout_smem + OWN_ROWS * ROW_STRIDE;  // [BLOCK, ROW_STRIDE]
    element* v_smem = k_smem + BLOCK * ROW_STRIDE;        // [BLOCK, ROW_STRIDE]

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int pair = 2 * (lane % 4);
    // Causal: the longest tiles start first, which keeps the last wave short.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * OWN_ROWS;
    const int query0 = m0 + warp * 16 + lane / 4;  // this lane's first query
    const int group = num_heads / num_heads_kv;
    const int offset = seqlen_kv - seqlen;
    const size_t q_index = (size_t)blockIdx.z * num_heads + blockIdx.y;
    const size_t kv_index = (size_t)blockIdx.z * num_heads_kv + blockIdx.y / group;
    const size_t q_head = q_index * seqlen * HEAD_DIM;
    const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;
    const float scale_log2 = softmax_scale * LOG2_E;

    load_tile<OWN_ROWS, NUM_THREADS>(q_smem, q + q_head, m0, seqlen);
    load_tile<OWN_ROWS, NUM_THREADS>(dout_smem, dout + q_head, m0, seqlen);

    float row_lse[2], row_d[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool exists = query0 + r * 8 < seqlen;
        const size_t row = q_index * seqlen + query0 + r * 8;
        row_lse[r] = exists ? lse[row] * LOG2_E : 0.0f;
        row_d[r] = exists ? delta[row] : 0.0f;
    }

    float dq_rmem[HEAD_DIM / 8][4] = {};
    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + OWN_ROWS + offset) : seqlen_kv;
    for (int n0 = 0; n0 < kv_end; n0 += BLOCK) {
        load_tile<BLOCK, NUM_THREADS>(k_smem, k + kv_head, n0, seqlen_kv);
        load_tile<BLOCK, NUM_THREADS>(v_smem, v + kv_head, n0, seqlen_kv);
        cp_async_wait_all();
        // Every warp reads rows that other warps copied.
        __syncthreads();

        // S = Q @ K^T and dP = dO @ V^T [16, BLOCK]: this warp's queries.
        float s_rmem[BLOCK / 8][4] = {};
        float ds_rmem[BLOCK / 8][4] = {};
        multiply_rows<BLOCK>(s_rmem, q_smem + warp * 16 * ROW_STRIDE, k_smem, lane);
        multiply_rows<BLOCK>(ds_rmem, dout_smem + warp * 16 * ROW_STRIDE, v_smem, lane);

        const bool has_mask =
            n0 + BLOCK > seqlen_kv || (IS_CAUSAL && n0 + BLOCK > m0 + offset + 1);
#pragma unroll
        for (int tile = 0; tile < BLOCK / 8; tile++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {  // bit 0: the second column, bit 1: the second row
                const int key = n0 + tile * 8 + pair + i % 2;
                const int query = query0 + i / 2 * 8;
                float p = fast_exp2(s_rmem[tile][i] * scale_log2 - row_lse[i / 2]);
                const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= query + offset);
                if (has_mask && !visible) p = 0.0f;
                ds_rmem[tile][i] = p * (ds_rmem[tile][i] - row_d[i / 2]);
            }
        }

        // dQ += dS @ K, of this warp's queries.
        add_weighted<BLOCK>(dq_rmem, ds_rmem, k_smem, lane);
        // The next tile overwrites K and V, which slower warps are still reading.
        __syncthreads();
    }

    store_rows(dq + q_head, dq_rmem, softmax_scale, m0 + warp * 16, seqlen, lane);
}
