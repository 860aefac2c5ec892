// v07 wmma: both products on tensor cores through the fragments of mma.h, whose layout is hidden.
// Idea: let the compiler arrange the operands, at the price of passing S, P and O through memory.
// Changed: against v04, rewritten for warps: wmma fragments; the softmax in shared memory.
// Limiter: shared memory: S, P and O pass through it once per tile, as fragments hide their layout.
// Constraints: from sm_75, BF16 from sm_80; D in {32, 64, 96, 128}; H <= 65535; B <= 65535.
// Passes: 1, attention_forward; grid (ceil(S / (16 num_warps)), num_heads, batch), 32 num_warps.
// Source: CUDA programming guide, warp matrix functions.
// Weakness: an accumulator hides its layout, so O is rescaled in shared memory; element-wise reads.
/* attune
idea = "Tensor cores through mma.h: easy to write, and S, P and O pass through shared memory."
head_dims = [32, 64, 96, 128]
min_compute_capability = 7.5
gqa = true
takes = ["lse"]
let.block_m = "16 * num_warps"

[tunables]
block_n = {values = [32, 64], default = 32, meaning = "K/V rows per tile"}
num_warps = {values = [1, 2, 4], default = 4, meaning = "warps per CTA, 16 query rows each"}

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = "32 * num_warps"
# Q, K and V in padded rows; for each warp S and O as floats and P as elements, padded too.
smem_bytes = """(block_m + 2 * block_n) * (head_dim + 8) * element_bytes
                + block_m * ((block_n + 8) * (4 + element_bytes) + (head_dim + 8) * 4)"""
args = ["q", "k", "v", "out", "num_heads", "num_heads_kv", "seqlen", "seqlen_kv",
        "softmax_scale", "lse"]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "round_up(seqlen_kv, block_n)"
*/
#include <mma.h>

#include "element.cuh"
#include "exp2.cuh"
#include "lse.cuh"

using namespace nvcuda;

constexpr int WARP_ROWS = 16;                   // query rows per warp: one wmma tile
constexpr int BLOCK_M = WARP_ROWS * NUM_WARPS;  // query rows per CTA
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int VECTOR = 8;                      // elements per 16-byte access
constexpr int ROW_STRIDE = HEAD_DIM + VECTOR;  // elements of a row of Q, K or V
constexpr int S_STRIDE = BLOCK_N + 8;          // floats of a row of S, elements of one of P
constexpr int O_STRIDE = HEAD_DIM + 8;         // floats
constexpr int LANES_PER_ROW = 2;               // two lanes share a row of S and of O
constexpr unsigned FULL_WARP = 0xffffffffu;

static_assert(NUM_WARPS == 1 || NUM_WARPS == 2 || NUM_WARPS == 4,
              "num_warps must be 1, 2 or 4: S, P and O of every warp lie in shared memory");
static_assert(BLOCK_N == 32 || BLOCK_N == 64,
              "block_n must be 32 or 64: a wider S would not fit beside K and V");
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 128,
              "head_dim must be a multiple of 16 up to 128: a fragment has 16 columns");

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
        uint4 vector = make_uint4(0, 0, 0, 0);
        if (first_row + row < length) {
            const element* source = head + (size_t)(first_row + row) * HEAD_DIM + d;
            vector = *reinterpret_cast<const uint4*>(source);
        }
        *reinterpret_cast<uint4*>(tile_smem + row * ROW_STRIDE + d) = vector;
    }
}

using LeftFragment = wmma::fragment<wmma::matrix_a, 16, 16, 16, element, wmma::row_major>;
using KeyFragment = wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::col_major>;
using ValueFragment = wmma::fragment<wmma::matrix_b, 16, 16, 16, element, wmma::row_major>;
using SumFragment = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;

// The 1: one resident CTA is enough, so ptxas may use as many registers as it needs, see v02.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM]
                  int num_heads, int num_heads_kv, int seqlen, int seqlen_kv,
                  float softmax_scale LSE_PARAMETER) {
    extern __shared__ __align__(128) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);  // [BLOCK_M, ROW_STRIDE]
    element* k_smem = q_smem + BLOCK_M * ROW_STRIDE;     // [BLOCK_N, ROW_STRIDE]
    element* v_smem = k_smem + BLOCK_N * ROW_STRIDE;     // [BLOCK_N, ROW_STRIDE]
    float* o_all = reinterpret_cast<float*>(v_smem + BLOCK_N * ROW_STRIDE);
    float* s_all = o_all + BLOCK_M * O_STRIDE;
    element* p_all = reinterpret_cast<element*>(s_all + BLOCK_M * S_STRIDE);

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    float* o_smem = o_all + warp * WARP_ROWS * O_STRIDE;    // [WARP_ROWS, O_STRIDE], this warp's
    float* s_smem = s_all + warp * WARP_ROWS * S_STRIDE;    // [WARP_ROWS, S_STRIDE]
    element* p_smem = p_all + warp * WARP_ROWS * S_STRIDE;  // [WARP_ROWS, S_STRIDE]

    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * BLOCK_M;     // first query row of this CTA
    const int row = lane / LANES_PER_ROW;    // this lane's row of S and O
    const int part = lane % LANES_PER_ROW;   // and which half of its columns
    const int query = m0 + warp * WARP_ROWS + row;
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t q_index = (size_t)blockIdx.z * num_heads + blockIdx.y;
    const size_t kv_index =
        (size_t)blockIdx.z * num_heads_kv + blockIdx.y / (num_heads / num_heads_kv);
    const size_t q_head = q_index * seqlen * HEAD_DIM;       // where this head's Q and O begin
    const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;  // and its K and V
    const float scale_log2 = softmax_scale * LOG2_E;

    load_tile<BLOCK_M>(q_smem, q + q_head, m0, seqlen);
    for (int d = part; d < HEAD_DIM; d += LANES_PER_ROW) o_smem[row * O_STRIDE + d] = 0.0f;
    float m = -INFINITY;  // running maximum of the lane's row, unscaled
    float l = 0.0f;       // running sum of this lane's half of the keys

    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv;
    for (int n0 = 0; n0 < kv_end; n0 += BLOCK_N) {
        load_tile<BLOCK_N>(k_smem, k + kv_head, n0, seqlen_kv);
        load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);
        // Every warp reads rows that other warps loaded, of Q too.
        __syncthreads();

        // S = Q @ K^T [WARP_ROWS, BLOCK_N]: K's rows are the columns of the right operand.
        for (int n = 0; n < BLOCK_N; n += 16) {
            SumFragment sum;
            wmma::fill_fragment(sum, 0.0f);
#pragma unroll
            for (int d = 0; d < HEAD_DIM; d += 16) {
                LeftFragment left;
                KeyFragment keys;
                wmma::load_matrix_sync(left, q_smem + warp * WARP_ROWS * ROW_STRIDE + d,
                                       ROW_STRIDE);
                wmma::load_matrix_sync(keys, k_smem + n * ROW_STRIDE + d, ROW_STRIDE);
                wmma::mma_sync(sum, left, keys, sum);
            }
            wmma::store_matrix_sync(s_smem + n, sum, S_STRIDE, wmma::mem_row_major);
        }
        // Lanes read S by rows, which other lanes of the warp stored.
        __syncwarp();

        // Online softmax over the row's two halves. Key 0 is visible to every row, so the maximum
        // is finite from the first tile on.
        float m_new = m;
        for (int n = part; n < BLOCK_N; n += LANES_PER_ROW) {
            const int key = n0 + n;
            const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= query);
            if (!visible) s_smem[row * S_STRIDE + n] = -INFINITY;
            m_new = fmaxf(m_new, s_smem[row * S_STRIDE + n]);
        }
        m_new = fmaxf(m_new, __shfl_xor_sync(FULL_WARP, m_new, 1));
        const float m_scaled = m_new * scale_log2;
        const float correction = fast_exp2(m * scale_log2 - m_scaled);
        m = m_new;
        l *= correction;
        for (int d = part; d < HEAD_DIM; d += LANES_PER_ROW) {
            o_smem[row * O_STRIDE + d] *= correction;
        }
        for (int n = part; n < BLOCK_N; n += LANES_PER_ROW) {
            const float p = fast_exp2(s_smem[row * S_STRIDE + n] * scale_log2 - m_scaled);
            l += p;
            p_smem[row * S_STRIDE + n] = to_element(p);
        }
        // P and O were written by rows and are loaded as fragments by all lanes.
        __syncwarp();

        // O += P @ V [WARP_ROWS, HEAD_DIM], 16 columns at a time from and to shared memory.
        for (int d = 0; d < HEAD_DIM; d += 16) {
            SumFragment sum;
            wmma::load_matrix_sync(sum, o_smem + d, O_STRIDE, wmma::mem_row_major);
#pragma unroll
            for (int n = 0; n < BLOCK_N; n += 16) {
                LeftFragment left;
                ValueFragment values;
                wmma::load_matrix_sync(left, p_smem + n, S_STRIDE);
                wmma::load_matrix_sync(values, v_smem + n * ROW_STRIDE + d, ROW_STRIDE);
                wmma::mma_sync(sum, left, values, sum);
            }
            wmma::store_matrix_sync(o_smem + d, sum, O_STRIDE, wmma::mem_row_major);
        }
        // The next tile overwrites K and V, which slower warps are still reading.
        __syncthreads();
    }

    // O = O / l; the barrier above made O's fragments visible.
    l += __shfl_xor_sync(FULL_WARP, l, 1);
    if (query >= seqlen) return;
    const float inv_l = 1.0f / l;
    STORE_LSE(part == 0, q_head / HEAD_DIM + query, m * scale_log2, inv_l);
    element* out_row = out + q_head + (size_t)query * HEAD_DIM;
    for (int d = part; d < HEAD_DIM; d += LANES_PER_ROW) {
        out_row[d] = to_element(o_smem[row * O_STRIDE + d] * inv_l);
    }
}
