// v10 cp.async: the next K/V tiles are copied while this one is computed.
// Idea: a ring of tiles in shared memory; cp.async fills it during the maths, without registers.
// Changed: against v09, cp.async groups, pipeline stages instead of one tile, one barrier per tile.
// Limiter: instructions issued per HMMA; on sm_80 the reads of K and V from shared memory too.
// Constraints: sm_75, BF16 sm_80; D in {32, 64, 96, 128}, 192 with V's 128; H, B <= 65535; no FP8.
// Passes: 1, attention_forward; grid (ceil(S / (16 num_warps)), num_heads, batch), 32 num_warps.
// Source: CUTLASS's multistage main loop; NVIDIA's CUDA programming guide on cp.async groups.
// Weakness: 16 rows a warp read all of K and V from shared memory; 4-byte output stores.
/* attune
idea = "A ring of K/V tiles: cp.async copies the next tiles while one is computed."
head_dims = [32, 64, 96, 128]
dim_pairs = [[192, 128]]
min_compute_capability = 7.5
gqa = true
takes = ["kv_offset", "window", "softcap", "alibi", "sinks", "varlen", "lse"]
let.block_m = "16 * num_warps"

[tunables]
block_n = {values = [32, 64], default = 64, meaning = "K/V rows per tile"}
stages = {values = [2, 3], default = 2, meaning = "K/V tiles in the ring"}
num_warps = {values = [1, 2, 4, 8], default = 4, meaning = "warps per CTA, 16 query rows each"}

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = "32 * num_warps"
# The ring of K and V; Q lives in registers.
smem_bytes = "stages * block_n * (head_dim + head_dim_v) * element_bytes"
args = ["q", "k", "v", "out", "num_heads", "num_heads_kv", "seqlen", "seqlen_kv",
        "softmax_scale", "alibi_slopes", "sinks", "cu_seqlens_q",
        "cu_seqlens_k", "lse"]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "round_up(seqlen_kv, block_n)"
conflict_ways = 1
*/
#define TAKES_PACKED 1
#include "async_copy.cuh"
#include "exp2.cuh"
#include "features.cuh"
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
static_assert(STAGES == 2 || STAGES == 3,
              "stages must be 2 or 3: one tile is computed while the others arrive");
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 192 && HEAD_DIM_V <= 128,
              "head_dim must be a multiple of 16 up to 128, or 192: Q and O stay in registers");
static_assert(HEAD_DIM_V == HEAD_DIM || (HEAD_DIM % 64 == 0 && HEAD_DIM_V % 64 == 0),
              "K and V of other widths must both be multiples of 64");

// Position of a chunk of 8 elements in its row. 128 bytes are all 32 banks: rows of 64 and 128
// elements begin at the same bank, so 8 rows need 8 values of the XOR; rows of 32 and 96 begin at
// two places 16 banks apart, so they need 4, and chunk ^ 3 stays inside a row of 4 or 12 chunks.
template <int COLUMNS>
__device__ __forceinline__ int swizzled(int row, int d) {
    const int spread = COLUMNS % 64 == 0 ? row % 8 : row / 2 % 4;
    return row * COLUMNS + (d ^ spread * VECTOR);
}

// Starts the copies of rows [first_row, first_row + ROWS) of one head into shared memory.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void load_tile(element* tile_smem,   // [ROWS, COLUMNS], swizzled
                                          const element* head,  // [length, COLUMNS]
                                          int first_row, int length ROW_PARAMETER) {
    constexpr int VECTORS_PER_ROW = COLUMNS / VECTOR;
    constexpr int VECTORS = ROWS * VECTORS_PER_ROW;
#pragma unroll 4
    for (int first = 0; first < VECTORS; first += NUM_THREADS) {  // compile-time trip count
        const int i = first + threadIdx.x;
        if (VECTORS % NUM_THREADS != 0 && i >= VECTORS) break;
        const int row = i / VECTORS_PER_ROW;
        const int d = i % VECTORS_PER_ROW * VECTOR;
        // Rows past the end are zero-filled: stale data could be NaN, and NaN * 0 is NaN.
        cp_async_16(tile_smem + swizzled<COLUMNS>(row, d),
                    head + (size_t)(first_row + row) * ROW_ELEMENTS + d,
                    first_row + row < length);
    }
}

// A lane's part of S and O: of each accumulator tile two columns of row lane / 4, and then of row
// lane / 4 + 8.
using Scores = float[BLOCK_N / 8][4];
using Output = float[HEAD_DIM_V / 8][4];
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
            ldmatrix_x4(k_rmem, k_smem + swizzled<HEAD_DIM>(row, d));
            mma_m16n8k16(s_rmem[2 * key_step], q_rmem[step], k_rmem[0], k_rmem[1]);
            mma_m16n8k16(s_rmem[2 * key_step + 1], q_rmem[step], k_rmem[2], k_rmem[3]);
        }
    }
}

// Softcap and ALiBi; n0 is the tile's first key.
__device__ __forceinline__ void modify_scores(Scores& s_rmem, int n0, int query0, int pair,
                                              LENGTHS_PARAMETER, const ScoreMod& score_mod) {
#pragma unroll
    for (int tile = 0; tile < BLOCK_N / 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = n0 + tile * 8 + pair + i % 2;
            const int position = POSITION_OF(query0 + i / 2 * 8);
            s_rmem[tile][i] = score_mod(s_rmem[tile][i], position - key);
        }
    }
}

// Masks keys past the end or the diagonal, or outside the window, with -infinity.
__device__ __forceinline__ void mask_scores(Scores& s_rmem, int n0, int query0, int pair,
                                            LENGTHS_PARAMETER) {
#pragma unroll
    for (int tile = 0; tile < BLOCK_N / 8; tile++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {  // bit 0: second column, bit 1: second row
            const int key = n0 + tile * 8 + pair + i % 2;
            const int query = query0 + i / 2 * 8;
            const bool visible = IS_VISIBLE(key, POSITION_OF(query));
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
        m_scaled[r] = SCALED_MAXIMUM(m_new[r], scale_log2);
        correction[r] = fast_exp2(m_rmem[r] * scale_log2 - m_scaled[r]);
        m_rmem[r] = m_new[r];
        l_rmem[r] *= correction[r];
    }
}

// Rescales O to the new maximum.
__device__ __forceinline__ void rescale(Output& acc_rmem, const Rows& correction) {
#pragma unroll
    for (int tile = 0; tile < HEAD_DIM_V / 8; tile++) {
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

// O += P @ V [WARP_ROWS, HEAD_DIM_V]. Two accumulator tiles of S side by side are one left operand.
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
        for (int step = 0; step < HEAD_DIM_V / 16; step++) {
            const int row = key_step * 16 + lane % 16;
            const int d = step * 16 + lane / 16 * 8;
            unsigned v_rmem[4];
            ldmatrix_x4_transposed(v_rmem, v_smem + swizzled<HEAD_DIM_V>(row, d));
            mma_m16n8k16(acc_rmem[2 * step], p_rmem, v_rmem[0], v_rmem[1]);
            mma_m16n8k16(acc_rmem[2 * step + 1], p_rmem, v_rmem[2], v_rmem[3]);
        }
    }
}

// The 1: one resident CTA is enough, so ptxas may use as many registers as it needs, see v02.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM_V]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM_V]
                  int num_heads, int num_heads_kv, int seqlen, int seqlen_kv,
                  float softmax_scale FEATURE_PARAMETERS) {
    extern __shared__ __align__(16) unsigned char smem[];
    element* ring = reinterpret_cast<element*>(smem);  // [STAGES, K and V, BLOCK_N, columns]
    constexpr int K_TILE = BLOCK_N * HEAD_DIM;
    constexpr int STAGE = K_TILE + BLOCK_N * HEAD_DIM_V;  // K and V of a tile

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
    const size_t q_head = Q_BEGIN(q_index, blockIdx.y);           // where this head's Q and O begin
    const size_t kv_head = KV_BEGIN(kv_index, blockIdx.y / group);  // and its K and V
#define V_HEAD (HEAD_DIM_V == HEAD_DIM ? kv_head : V_BEGIN(kv_index, blockIdx.y / group))
#define O_HEAD (HEAD_DIM_V == HEAD_DIM ? q_head : O_BEGIN(q_index, blockIdx.y))
    const Features given = FEATURES_GIVEN;
    OWN_LENGTHS(given, blockIdx.z);
    if (HAS_VARLEN && m0 >= NUM_QUERIES) return;  // the sequence ends before this tile
    const ScoreMod score_mod = score_mod_of(given, blockIdx.y, softmax_scale);

    // Q as the left operand, once for all tiles. Four lanes read 16 bytes of a row and its other
    // half comes with the next 8 columns, so no sector is read twice and Q needs no shared memory.
    Fragments q_rmem;
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {  // bit 0: the lower 8 rows, bit 1: the right 8 columns
            const int query = query0 + i % 2 * 8;
            const int d = step * 16 + i / 2 * 8 + pair;
            const element* source = q + q_head + (size_t)query * Q_ROW + d;
            ElementPair elements;
            elements.bits = 0;  // rows past the end: any finite value would do
            if (query < NUM_QUERIES) elements.elements = *reinterpret_cast<const element2*>(source);
            q_rmem[step][i] = elements.bits;
        }
    }

    float acc_rmem[HEAD_DIM_V / 8][4] = {};      // O, not yet divided by l: 8 columns a tile
    float m_rmem[2] = {-INFINITY, -INFINITY};  // running maximum of the lane's two rows, unscaled
    float l_rmem[2] = {0.0f, 0.0f};            // running sums over this lane's keys only

    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int begin = POSITION_OF(m0), end = POSITION_OF(m0 + BLOCK_M);
    const int kv_end = END_OF_KEYS(end);
    const int kv_begin = FIRST_KEY(begin) / BLOCK_N * BLOCK_N;

    // Copies the K/V tile whose first key is n, if there is one, into a stage. Commits a group in
    // any case, so that groups in flight can be counted.
    const auto start_copies = [&](int stage, int n) {
        if (n < kv_end) {
            load_tile<BLOCK_N, HEAD_DIM>(ring + stage * STAGE, k + kv_head, n,
                                         NUM_KEYS ROW_GIVEN(KV_ROW));
            load_tile<BLOCK_N, HEAD_DIM_V>(ring + stage * STAGE + K_TILE, v + V_HEAD, n,
                                           NUM_KEYS ROW_GIVEN(V_ROW));
        }
        cp_async_commit();
    };
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; stage++) {
        start_copies(stage, kv_begin + stage * BLOCK_N);
    }

    int stage = 0;  // of this tile
    for (int n0 = kv_begin; n0 < kv_end; n0 += BLOCK_N) {
        cp_async_wait<STAGES - 2>();
        // All threads' copies of this tile have arrived, and the previous tile is no longer read:
        // its stage takes the next copies.
        __syncthreads();
        start_copies(stage == 0 ? STAGES - 1 : stage - 1, n0 + (STAGES - 1) * BLOCK_N);
        const element* k_smem = ring + stage * STAGE;  // [BLOCK_N, HEAD_DIM]
        const element* v_smem = k_smem + K_TILE;       // [BLOCK_N, HEAD_DIM_V]
        stage = stage == STAGES - 1 ? 0 : stage + 1;

        Scores s_rmem = {};
        multiply_scores(s_rmem, q_rmem, k_smem, lane);
        if constexpr (HAS_SCORE_MOD) modify_scores(s_rmem, n0, query0, pair, LENGTHS, score_mod);
        // Only tiles across the end of the keys, across the diagonal or across the edge of a window
        // have anything to mask.
        if (n0 + BLOCK_N > END_SEEN_BY_ALL(begin) || IS_BEFORE_A_WINDOW(n0, end)) {
            mask_scores(s_rmem, n0, query0, pair, LENGTHS);
        }
        // Online softmax: what was summed so far is rescaled from the old maximum to the new one.
        Rows m_new = {m_rmem[0], m_rmem[1]}, correction, m_scaled;
        update_maxima(s_rmem, m_new, m_rmem, m_scaled, l_rmem, correction, scale_log2);
        rescale(acc_rmem, correction);
        exponentiate(s_rmem, l_rmem, m_scaled, scale_log2);
        multiply_values(acc_rmem, s_rmem, v_smem, lane);
    }

    // O = O / l, two columns a store.
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int query = query0 + r * 8;
        // Needs all lanes: before the row check.
        const float l = with_sink(row_sum(l_rmem[r]), given, blockIdx.y, m_rmem[r] * scale_log2);
        const float inv_l = 1.0f / l;
        if (query >= NUM_QUERIES) continue;
        STORE_LSE(pair == 0, ((size_t)blockIdx.z * num_heads + blockIdx.y) * seqlen + query,
                  m_rmem[r] * scale_log2, inv_l);
        element* out_row = out + O_HEAD + (size_t)query * O_ROW;
#pragma unroll
        for (int tile = 0; tile < HEAD_DIM_V / 8; tile++) {
            *reinterpret_cast<element2*>(out_row + tile * 8 + pair) =
                to_element2(acc_rmem[tile][2 * r] * inv_l, acc_rmem[tile][2 * r + 1] * inv_l);
        }
    }
}
