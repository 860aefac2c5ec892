// v03 Vectorized: 16-byte loads, padded shared memory, and a register tile of S and O per thread.
// Idea: a value once loaded serves several FMAs, and neighbouring rows start in different banks.
// Changed: against v02, rewritten for register tiles: 16 threads share rows; 8 elements a load.
// Limiter: FMA issue, shared with the conversions of 16-bit operands to float.
// Constraints: D in {32, 64, 96, 128}; H <= 65535; B <= 65535; any KV.
// Passes: 1, attention_forward; grid (ceil(S / 64), num_heads, batch), 1024 / rows_per_thread each.
// Source: the register-tiled SGEMM of CUTLASS and SGEMM_CUDA, applied to both products.
// Weakness: 64-row tiles leave most SMs idle at small B * H; P crosses shared memory as float.
/* attune
idea = "16-byte loads, padded shared memory, register tiles: each load is used by several FMAs."
head_dims = [32, 64, 96, 128]
min_compute_capability = 7.5
takes = ["lse"]
let.block_m = 64

[tunables]
block_n = {values = [32, 64], default = 64, meaning = "K/V rows per tile"}
rows_per_thread.values = [2, 4, 8]
rows_per_thread.default = 8
rows_per_thread.meaning = "query rows in a thread's register tile"

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = "block_m // rows_per_thread * 16"
# Q, K and V in rows padded by 8 elements, and S in rows padded by 4 floats.
smem_bytes = """(block_m + 2 * block_n) * (head_dim + 8) * element_bytes
                + block_m * (block_n + 4) * 4"""
args = ["q", "k", "v", "out", "num_heads", "seqlen", "seqlen_kv", "softmax_scale", "lse"]

[work]
math_unit = "fma"
query_rows = "block_m"
kv_rows = "round_up(seqlen_kv, block_n)"
conflict_ways = 1
*/
#include "element.cuh"
#include "exp2.cuh"
#include "lse.cuh"

constexpr int BLOCK_M = 64;      // query rows per CTA
constexpr int ROW_THREADS = 16;  // threads that share a row: half a warp
constexpr int ROW_GROUPS = BLOCK_M / ROWS_PER_THREAD;
constexpr int NUM_THREADS = ROW_GROUPS * ROW_THREADS;
constexpr int KEYS_PER_THREAD = BLOCK_N / ROW_THREADS;
constexpr int PAIRS_PER_THREAD = HEAD_DIM / (2 * ROW_THREADS);  // pairs of columns of O
constexpr int VECTOR = 8;                                       // elements per 16-byte access
// 16 bytes of padding shift each row by 4 banks more than its length: the 8 rows that one phase of
// a 16-byte load touches then lie in 8 different groups of 4 banks.
constexpr int ROW_STRIDE = HEAD_DIM + VECTOR;  // elements
constexpr int S_STRIDE = BLOCK_N + 4;          // floats
constexpr unsigned FULL_WARP = 0xffffffffu;

static_assert(BLOCK_N == 32 || BLOCK_N == 64,
              "block_n must be 32 or 64: a wider tile leaves room for one CTA in 100 KB");
static_assert(ROWS_PER_THREAD == 2 || ROWS_PER_THREAD == 4 || ROWS_PER_THREAD == 8,
              "rows_per_thread must be 2, 4 or 8: 1 needs 1,024 threads, 16 leaves two warps");
static_assert(HEAD_DIM % (2 * ROW_THREADS) == 0,
              "head_dim must be a multiple of 32: 16 threads own pairs of columns");

// Copies rows [first_row, first_row + ROWS) of one head into shared memory, 16 bytes per load.
template <int ROWS>
__device__ __forceinline__ void load_tile(element* tile_smem,   // [ROWS, ROW_STRIDE]
                                          const element* head,  // [length, HEAD_DIM]
                                          int first_row, int length) {
    constexpr int VECTORS_PER_ROW = HEAD_DIM / VECTOR;
    for (int i = threadIdx.x; i < ROWS * VECTORS_PER_ROW; i += NUM_THREADS) {
        const int row = i / VECTORS_PER_ROW;
        const int d = i % VECTORS_PER_ROW * VECTOR;
        // Rows past the end are zero-filled: stale data could be NaN, and NaN * 0 is NaN.
        element8 vector = {};
        if (first_row + row < length) {
            const element* source = head + (size_t)(first_row + row) * HEAD_DIM + d;
            vector = *reinterpret_cast<const element8*>(source);
        }
        *reinterpret_cast<element8*>(tile_smem + row * ROW_STRIDE + d) = vector;
    }
}

// Maximum and sum over the 16 lanes of one row; all of them get it.
__device__ __forceinline__ float row_max(float x) {
#pragma unroll
    for (int lane_bit = 1; lane_bit < ROW_THREADS; lane_bit *= 2) {
        x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, lane_bit));
    }
    return x;
}

__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
    for (int lane_bit = 1; lane_bit < ROW_THREADS; lane_bit *= 2) {
        x += __shfl_xor_sync(FULL_WARP, x, lane_bit);
    }
    return x;
}

// The 1: one resident CTA is enough, so ptxas may use as many registers as it needs, see v02.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads, seqlen_kv, HEAD_DIM]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM]
                  int num_heads, int seqlen, int seqlen_kv, float softmax_scale LSE_PARAMETER) {
    extern __shared__ __align__(16) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);  // [BLOCK_M, ROW_STRIDE]
    element* k_smem = q_smem + BLOCK_M * ROW_STRIDE;     // [BLOCK_N, ROW_STRIDE]
    element* v_smem = k_smem + BLOCK_N * ROW_STRIDE;     // [BLOCK_N, ROW_STRIDE]
    float* s_smem = reinterpret_cast<float*>(v_smem + BLOCK_N * ROW_STRIDE);  // [BLOCK_M, S_STRIDE]

    // This thread's rows are group + i * ROW_GROUPS, its keys part + j * ROW_THREADS, its columns
    // the pairs at 2 * (part + j * ROW_THREADS): neighbouring threads read neighbouring columns.
    const int group = threadIdx.x / ROW_THREADS;
    const int part = threadIdx.x % ROW_THREADS;
    // The query tile is the fastest axis: concurrent CTAs share their head's K/V in L2. Causal: the
    // longest tiles start first, which keeps the last wave short.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * BLOCK_M;  // first query row of this CTA
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t head_index = (size_t)blockIdx.z * num_heads + blockIdx.y;
    const size_t q_head = head_index * seqlen * HEAD_DIM;      // where this head's Q and O begin
    const size_t kv_head = head_index * seqlen_kv * HEAD_DIM;  // and its K and V

    load_tile<BLOCK_M>(q_smem, q + q_head, m0, seqlen);

    float2 acc_rmem[ROWS_PER_THREAD][PAIRS_PER_THREAD];  // O, not yet divided by l
    float m_rmem[ROWS_PER_THREAD];  // running maximum of each row, unscaled, in all its threads
    float l_rmem[ROWS_PER_THREAD];  // running sum over this thread's keys only
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; i++) {
        m_rmem[i] = -INFINITY;
        l_rmem[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < PAIRS_PER_THREAD; j++) acc_rmem[i][j] = make_float2(0.0f, 0.0f);
    }

    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv;
    for (int n0 = 0; n0 < kv_end; n0 += BLOCK_N) {
        load_tile<BLOCK_N>(k_smem, k + kv_head, n0, seqlen_kv);
        load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);
        // Every thread reads rows that other threads loaded (Q too, the first time).
        __syncthreads();

        // S = Q @ K^T [BLOCK_M, BLOCK_N], a tile [ROWS_PER_THREAD, KEYS_PER_THREAD] per thread:
        // a loaded vector of Q serves KEYS_PER_THREAD keys, one of K ROWS_PER_THREAD rows.
        float s_rmem[ROWS_PER_THREAD][KEYS_PER_THREAD] = {};
#pragma unroll 2  // more would fill the instruction cache
        for (int d = 0; d < HEAD_DIM; d += VECTOR) {
            float k_rmem[KEYS_PER_THREAD][VECTOR];
#pragma unroll
            for (int j = 0; j < KEYS_PER_THREAD; j++) {
                const element8 k8 = *reinterpret_cast<const element8*>(
                    k_smem + (part + j * ROW_THREADS) * ROW_STRIDE + d);
#pragma unroll
                for (int e = 0; e < VECTOR; e++) k_rmem[j][e] = to_float(k8.at[e]);
            }
#pragma unroll
            for (int i = 0; i < ROWS_PER_THREAD; i++) {
                const element8 q8 = *reinterpret_cast<const element8*>(
                    q_smem + (group + i * ROW_GROUPS) * ROW_STRIDE + d);
#pragma unroll
                for (int e = 0; e < VECTOR; e++) {
                    const float q_value = to_float(q8.at[e]);
#pragma unroll
                    for (int j = 0; j < KEYS_PER_THREAD; j++) {
                        s_rmem[i][j] += q_value * k_rmem[j][e];
                    }
                }
            }
        }

#pragma unroll
        for (int i = 0; i < ROWS_PER_THREAD; i++) {
            const int row = group + i * ROW_GROUPS;
            float m_new = m_rmem[i];
#pragma unroll
            for (int j = 0; j < KEYS_PER_THREAD; j++) {
                const int key = n0 + part + j * ROW_THREADS;
                const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= m0 + row);
                if (!visible) s_rmem[i][j] = -INFINITY;
                m_new = fmaxf(m_new, s_rmem[i][j]);
            }

            // Online softmax: what was summed so far is rescaled from the old maximum to the new
            // one. Key 0 is visible to every row, so the row's maximum is finite from the first
            // tile on.
            m_new = row_max(m_new);
            const float m_scaled = m_new * scale_log2;
            const float correction = fast_exp2(m_rmem[i] * scale_log2 - m_scaled);
            m_rmem[i] = m_new;
            l_rmem[i] *= correction;
#pragma unroll
            for (int j = 0; j < PAIRS_PER_THREAD; j++) {
                acc_rmem[i][j].x *= correction;
                acc_rmem[i][j].y *= correction;
            }

            // P = exp(scale (S - m)): one FFMA and one EX2 per score. To shared memory: this
            // thread's columns of O need all keys.
#pragma unroll
            for (int j = 0; j < KEYS_PER_THREAD; j++) {
                const float p = fast_exp2(s_rmem[i][j] * scale_log2 - m_scaled);
                l_rmem[i] += p;
                s_smem[row * S_STRIDE + part + j * ROW_THREADS] = p;
            }
        }
        // The row's other lanes (same warp) wrote the P that each thread reads now.
        __syncwarp();

        // O += P @ V [BLOCK_M, HEAD_DIM], a tile [ROWS_PER_THREAD, 2 * PAIRS_PER_THREAD] per
        // thread. Four keys at a time: one 16-byte load brings a row's P for all four.
#pragma unroll 2
        for (int n = 0; n < BLOCK_N; n += 4) {
            float4 p_rmem[ROWS_PER_THREAD];
#pragma unroll
            for (int i = 0; i < ROWS_PER_THREAD; i++) {
                p_rmem[i] = *reinterpret_cast<const float4*>(
                    s_smem + (group + i * ROW_GROUPS) * S_STRIDE + n);
            }
#pragma unroll
            for (int step = 0; step < 4; step++) {
#pragma unroll
                for (int j = 0; j < PAIRS_PER_THREAD; j++) {
                    const float2 v_rmem = to_float2(*reinterpret_cast<const element2*>(
                        v_smem + (n + step) * ROW_STRIDE + 2 * (part + j * ROW_THREADS)));
#pragma unroll
                    for (int i = 0; i < ROWS_PER_THREAD; i++) {
                        const float p = step == 0   ? p_rmem[i].x
                                        : step == 1 ? p_rmem[i].y
                                        : step == 2 ? p_rmem[i].z
                                                    : p_rmem[i].w;
                        acc_rmem[i][j].x += p * v_rmem.x;
                        acc_rmem[i][j].y += p * v_rmem.y;
                    }
                }
            }
        }
        // The next tile overwrites K, V and P, which slower threads are still reading.
        __syncthreads();
    }

    // O = O / l, two columns a store; half a warp stores 64 contiguous bytes.
#pragma unroll
    for (int i = 0; i < ROWS_PER_THREAD; i++) {
        const int query = m0 + group + i * ROW_GROUPS;
        const float inv_l = 1.0f / row_sum(l_rmem[i]);  // needs all lanes: before the row check
        if (query >= seqlen) continue;
        STORE_LSE(part == 0, q_head / HEAD_DIM + query, m_rmem[i] * scale_log2, inv_l);
#pragma unroll
        for (int j = 0; j < PAIRS_PER_THREAD; j++) {
            element* pair = out + q_head + (size_t)query * HEAD_DIM + 2 * (part + j * ROW_THREADS);
            *reinterpret_cast<element2*>(pair) =
                to_element2(acc_rmem[i][j].x * inv_l, acc_rmem[i][j].y * inv_l);
        }
    }
}
