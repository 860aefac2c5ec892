// v09 Swizzle: 16-byte chunks are permuted by their row, so that rows need no padding.
// Idea: ldmatrix reads one chunk of 8 rows at a time; an XOR puts the 8 in 8 groups of 4 banks.
// Changed: against v08, chunk ^ row in place of 8 elements of padding; V's and K's address by XOR.
// Limiter: as v08: loads, tensor cores and exp follow one another with nothing to overlap them.
// Constraints: from sm_75, BF16 from sm_80; D in {32, 64, 96, 128}; H <= 65535; B <= 65535.
// Passes: 1, attention_forward; grid (ceil(S / (16 num_warps)), num_heads, batch), 32 num_warps.
// Source: CUTLASS's Swizzle<3, 3, 3> by its definition; FlashAttention-2 uses it for the same end.
// Weakness: it saves only the padding, and no bank conflicts, as v08's padding leaves none.
/* attune
idea = "As v08 with an XOR swizzle instead of padded rows: less shared memory, no conflicts."
head_dims = [32, 64, 96, 128]
min_compute_capability = 7.5
gqa = true
takes = ["lse"]
let.block_m = "16 * num_warps"

[tunables]
block_n = {values = [32, 64], default = 64, meaning = "K/V rows per tile"}
num_warps = {values = [1, 2, 4, 8], default = 4, meaning = "warps per CTA, 16 query rows each"}

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = "32 * num_warps"
# K and V in rows without padding; Q lives in registers.
smem_bytes = "2 * block_n * head_dim * element_bytes"
args = ["q", "k", "v", "out", "num_heads", "num_heads_kv", "seqlen", "seqlen_kv",
        "softmax_scale", "lse"]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "round_up(seqlen_kv, block_n)"
conflict_ways = 1
*/
#include "exp2.cuh"
#include "lse.cuh"
#include "mma.cuh"
#include "rows.cuh"

constexpr int WARP_ROWS = 16;                   // query rows per warp: one mma tile
constexpr int BLOCK_M = WARP_ROWS * NUM_WARPS;  // query rows per CTA
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int DIM_STEPS = HEAD_DIM / 16;  // an mma takes 16 columns of Q and K
constexpr int KEY_STEPS = BLOCK_N / 16;   // and 16 rows of V
constexpr int VECTOR = 8;                 // elements per 16-byte access

static_assert(NUM_WARPS == 1 || NUM_WARPS == 2 || NUM_WARPS == 4 || NUM_WARPS == 8,
              "num_warps must be 1, 2, 4 or 8: 16 leave 128 registers, and D = 128 takes more");
static_assert(BLOCK_N == 32 || BLOCK_N == 64,
              "block_n must be 32 or 64: S, O and Q of 16 rows share the registers of one warp");
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 128,
              "head_dim must be a multiple of 16 up to 128: Q and O of 16 rows stay in registers");

// Position of a chunk of 8 elements in its row. 128 bytes are all 32 banks: rows of 64 and 128
// elements begin at the same bank, so 8 rows need 8 values of the XOR; rows of 32 and 96 begin at
// two places 16 banks apart, so they need 4, and chunk ^ 3 stays inside a row of 4 or 12 chunks.
__device__ __forceinline__ int swizzled(int row, int d) {
    const int spread = HEAD_DIM % 64 == 0 ? row % 8 : row / 2 % 4;
    return row * HEAD_DIM + (d ^ spread * VECTOR);
}

// Copies rows [first_row, first_row + ROWS) of one head into shared memory, 16 bytes per load.
template <int ROWS>
__device__ __forceinline__ void load_tile(element* tile_smem,   // [ROWS, HEAD_DIM], swizzled
                                          const element* head,  // [length, HEAD_DIM]
                                          int first_row, int length) {
    constexpr int VECTORS_PER_ROW = HEAD_DIM / VECTOR;
    constexpr int VECTORS = ROWS * VECTORS_PER_ROW;
#pragma unroll 4
    for (int first = 0; first < VECTORS; first += NUM_THREADS) {  // compile-time trip count
        const int i = first + threadIdx.x;
        if (VECTORS % NUM_THREADS != 0 && i >= VECTORS) break;
        const int row = i / VECTORS_PER_ROW;
        const int d = i % VECTORS_PER_ROW * VECTOR;
        // Rows past the end are zero-filled: stale data could be NaN, and NaN * 0 is NaN.
        uint4 vector = make_uint4(0, 0, 0, 0);  // a struct of halves would be packed by PRMTs
        if (first_row + row < length) {
            const element* source = head + (size_t)(first_row + row) * HEAD_DIM + d;
            vector = *reinterpret_cast<const uint4*>(source);
        }
        *reinterpret_cast<uint4*>(tile_smem + swizzled(row, d)) = vector;
    }
}

// A lane's part of S and O: of each accumulator tile two columns of row lane / 4, and then of row
// lane / 4 + 8.
using Scores = float[BLOCK_N / 8][4];
using Output = float[HEAD_DIM / 8][4];
using Fragments = unsigned[DIM_STEPS][4];  // of Q
using Rows = float[2];

// S = Q @ K^T [WARP_ROWS, BLOCK_N]. K's rows are the columns of the right operand, so they load
// untransposed: matrices 0, 1 are keys 0-7 by 16 columns of K, 2, 3 are keys 8-15.
__device__ __forceinline__ void multiply_scores(Scores& s_rmem, const Fragments& q_rmem,
                                                const element* k_smem, int lane) {
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) {
#pragma unroll
        for (int key_step = 0; key_step < KEY_STEPS; key_step++) {
            const int row = key_step * 16 + lane / 16 * 8 + lane % 8;
            const int d = step * 16 + lane / 8 % 2 * 8;
            unsigned k_rmem[4];
            ldmatrix_x4(k_rmem, k_smem + swizzled(row, d));
            mma_m16n8k16(s_rmem[2 * key_step], q_rmem[step], k_rmem[0], k_rmem[1]);
            mma_m16n8k16(s_rmem[2 * key_step + 1], q_rmem[step], k_rmem[2], k_rmem[3]);
        }
    }
}

// Masks keys past the end or the diagonal with -infinity.
__device__ __forceinline__ void mask_scores(Scores& s_rmem, int n0, int query0, int pair,
                                            int seqlen_kv) {
#pragma unroll
    for (int tile = 0; tile < BLOCK_N / 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {  // bit 0: second column, bit 1: second row
            const int key = n0 + tile * 8 + pair + i % 2;
            const int query = query0 + i / 2 * 8;
            const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= query);
            if (!visible) s_rmem[tile][i] = -INFINITY;
        }
    }
}

// The new running maxima, and the factors that rescale the sums under the old ones: l here, O
// later. Key 0 is visible to every row, so maxima are finite from the first tile on. `m_new`
// begins as `m_rmem`.
__device__ __forceinline__ void update_maxima(const Scores& s_rmem, Rows& m_new, Rows& m_rmem,
                                              Rows& m_scaled, Rows& l_rmem, Rows& correction,
                                              float scale_log2) {
#pragma unroll
    for (int tile = 0; tile < BLOCK_N / 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) m_new[i / 2] = fmaxf(m_new[i / 2], s_rmem[tile][i]);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        m_new[r] = row_max(m_new[r]);
        m_scaled[r] = m_new[r] * scale_log2;
        correction[r] = fast_exp2(m_rmem[r] * scale_log2 - m_scaled[r]);
        m_rmem[r] = m_new[r];
        l_rmem[r] *= correction[r];
    }
}

// Rescales O to the new maximum.
__device__ __forceinline__ void rescale(Output& acc_rmem, const Rows& correction) {
#pragma unroll
    for (int tile = 0; tile < HEAD_DIM / 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) acc_rmem[tile][i] *= correction[i / 2];
    }
}

// P = exp(scale (S - m)): one FFMA and one EX2 per score; l sums it before P is rounded.
__device__ __forceinline__ void exponentiate(Scores& s_rmem, Rows& l_rmem, const Rows& m_scaled,
                                             float scale_log2) {
#pragma unroll
    for (int tile = 0; tile < BLOCK_N / 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s_rmem[tile][i] = fast_exp2(s_rmem[tile][i] * scale_log2 - m_scaled[i / 2]);
            l_rmem[i / 2] += s_rmem[tile][i];
        }
    }
}

// O += P @ V [WARP_ROWS, HEAD_DIM]. Two accumulator tiles of S side by side are one left operand.
// V's rows are the rows of the right operand, so its matrices load transposed.
__device__ __forceinline__ void multiply_values(Output& acc_rmem, const Scores& s_rmem,
                                                const element* v_smem, int lane) {
#pragma unroll
    for (int key_step = 0; key_step < KEY_STEPS; key_step++) {
        const float(&left)[4] = s_rmem[2 * key_step];
        const float(&right)[4] = s_rmem[2 * key_step + 1];
        const unsigned p_rmem[4] = {pack(left[0], left[1]), pack(left[2], left[3]),
                                    pack(right[0], right[1]), pack(right[2], right[3])};
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            const int row = key_step * 16 + lane % 16;
            const int d = step * 16 + lane / 16 * 8;
            unsigned v_rmem[4];
            ldmatrix_x4_transposed(v_rmem, v_smem + swizzled(row, d));
            mma_m16n8k16(acc_rmem[2 * step], p_rmem, v_rmem[0], v_rmem[1]);
            mma_m16n8k16(acc_rmem[2 * step + 1], p_rmem, v_rmem[2], v_rmem[3]);
        }
    }
}

// The 1: one resident CTA is enough, so ptxas may use as many registers as it needs, see v02.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM]
                  int num_heads, int num_heads_kv, int seqlen, int seqlen_kv,
                  float softmax_scale LSE_PARAMETER) {
    extern __shared__ __align__(16) unsigned char smem[];
    element* k_smem = reinterpret_cast<element*>(smem);  // [BLOCK_N, HEAD_DIM]
    element* v_smem = k_smem + BLOCK_N * HEAD_DIM;       // [BLOCK_N, HEAD_DIM]

    // An mma fragment spreads a matrix over the warp: a lane holds rows lane / 4 and lane / 4 + 8
    // of A and of the accumulator, and in each the columns 2 * (lane % 4) and the next one.
    const int lane = threadIdx.x % 32;
    // The query tile is the fastest axis: concurrent CTAs share their head's K/V in L2. Causal: the
    // longest tiles start first, which keeps the last wave short.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * BLOCK_M;  // first query row of this CTA
    const int query0 = m0 + threadIdx.x / 32 * WARP_ROWS + lane / 4;  // this lane's first row
    const int pair = 2 * (lane % 4);                                  // first of its two columns
    // GQA: number of neighbouring query heads that read one K/V head; 1 without GQA.
    const int group = num_heads / num_heads_kv;
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t q_index = (size_t)blockIdx.z * num_heads + blockIdx.y;
    const size_t kv_index = (size_t)blockIdx.z * num_heads_kv + blockIdx.y / group;
    const size_t q_head = q_index * seqlen * HEAD_DIM;       // where this head's Q and O begin
    const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;  // and its K and V

    // Q as the left operand, once for all tiles. Four lanes read 16 bytes of a row and its other
    // half comes with the next 8 columns, so no sector is read twice and Q needs no shared memory.
    Fragments q_rmem;
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {  // bit 0: the lower 8 rows, bit 1: the right 8 columns
            const int query = query0 + i % 2 * 8;
            const int d = step * 16 + i / 2 * 8 + pair;
            const element* source = q + q_head + (size_t)query * HEAD_DIM + d;
            ElementPair elements;
            elements.bits = 0;  // rows past the end: any finite value would do
            if (query < seqlen) elements.elements = *reinterpret_cast<const element2*>(source);
            q_rmem[step][i] = elements.bits;
        }
    }

    float acc_rmem[HEAD_DIM / 8][4] = {};      // O, not yet divided by l: 8 columns a tile
    float m_rmem[2] = {-INFINITY, -INFINITY};  // running maximum of the lane's two rows, unscaled
    float l_rmem[2] = {0.0f, 0.0f};            // running sums over this lane's keys only

    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv;
    for (int n0 = 0; n0 < kv_end; n0 += BLOCK_N) {
        load_tile<BLOCK_N>(k_smem, k + kv_head, n0, seqlen_kv);
        load_tile<BLOCK_N>(v_smem, v + kv_head, n0, seqlen_kv);
        // Every warp reads rows that other warps loaded.
        __syncthreads();

        Scores s_rmem = {};
        multiply_scores(s_rmem, q_rmem, k_smem, lane);
        // Only tiles across the end of the keys or across the diagonal have anything to mask.
        if (n0 + BLOCK_N > (IS_CAUSAL ? min(seqlen_kv, m0 + 1) : seqlen_kv)) {
            mask_scores(s_rmem, n0, query0, pair, seqlen_kv);
        }
        // Online softmax: what was summed so far is rescaled from the old maximum to the new one.
        Rows m_new = {m_rmem[0], m_rmem[1]}, correction, m_scaled;
        update_maxima(s_rmem, m_new, m_rmem, m_scaled, l_rmem, correction, scale_log2);
        rescale(acc_rmem, correction);
        exponentiate(s_rmem, l_rmem, m_scaled, scale_log2);
        multiply_values(acc_rmem, s_rmem, v_smem, lane);
        // The next tile overwrites K and V, which slower warps are still reading.
        __syncthreads();
    }

    // O = O / l, two columns a store.
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int query = query0 + r * 8;
        const float inv_l = 1.0f / row_sum(l_rmem[r]);  // needs all lanes: before the row check
        if (query >= seqlen) continue;
        STORE_LSE(pair == 0, q_head / HEAD_DIM + query, m_rmem[r] * scale_log2, inv_l);
        element* out_row = out + q_head + (size_t)query * HEAD_DIM;
#pragma unroll
        for (int tile = 0; tile < HEAD_DIM / 8; tile++) {
            *reinterpret_cast<element2*>(out_row + tile * 8 + pair) =
                to_element2(acc_rmem[tile][2 * r] * inv_l, acc_rmem[tile][2 * r + 1] * inv_l);
        }
    }
}
