// v11 Register tuned: two row tiles per warp share fragments of K, V; softmax overlaps products.
// Idea: a fragment read once serves two row tiles; S of the next tile overlaps with the softmax.
// Changed: against v10, rewritten, as three ideas share the registers: row_tiles, K ahead, S early.
// Limiter: tensor cores, if two warps per scheduler are resident to fill each other's stalls.
// Constraints: sm_75, BF16 sm_80; D in {32, 64, 96, 128, 256}, 192 with V's 128; H, B <= 65535.
// Passes: 1, attention_forward; grid (ceil(S / (16 row_tiles num_warps)), num_heads, batch).
// Source: FlashAttention-2's tile shapes (Dao, 2023, arXiv 2307.08691); CUTLASS's epilogue.
// Weakness: one CTA per tile: wave quantization leaves SMs idle, most with a causal mask.
/* attune
idea = "Two 16-row tiles per warp share each K/V fragment; Q in registers or shared memory."
head_dims = [32, 64, 96, 128, 256]
dim_pairs = [[192, 128]]
min_compute_capability = 7.5
gqa = true
takes = ["kv_offset", "window", "softcap", "alibi", "sinks", "varlen", "lse"]
let.block_m = "16 * row_tiles * num_warps"
# Where O and S leave too few registers for Q, it stays in shared memory.
let.q_rows = "block_m * min(1, (row_tiles * (head_dim + block_n) - 1) // 192)"

[tunables]
block_n = {values = [32, 64, 128], default = 32, meaning = "K/V rows per tile"}
stages = {values = [2, 3], default = 2, meaning = "K/V tiles in the ring"}
num_warps = {values = [2, 4, 8], default = 4, meaning = "warps per CTA"}
row_tiles = {values = [1, 2], default = 2, meaning = "16-row tiles per warp, which share K/V"}

[[constraints]]
# S counts twice: while P is made of it, S of the next tile begins.
condition = "row_tiles * (head_dim + 2 * block_n) <= 448"
sentence = """v11 holds O and S of {row_tiles} row tiles in registers, and block_n={block_n} with \
              D={head_dim} takes more: lower block_n or row_tiles."""

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = "32 * num_warps"
# The ring of K and V, and Q where it is not in registers. O takes their place at the end.
smem_bytes = """max(round_up(stages * block_n * (head_dim + head_dim_v), head_dim) \
                 + q_rows * head_dim, block_m * head_dim_v) * element_bytes"""
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
#include "arch.cuh"
#include "async_copy.cuh"
#include "exp2.cuh"
#include "features.cuh"
#include "mma.cuh"
#include "rows.cuh"

constexpr int WARP_ROWS = 16 * ROW_TILES;       // query rows per warp
constexpr int BLOCK_M = WARP_ROWS * NUM_WARPS;  // query rows per CTA
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int DIM_STEPS = HEAD_DIM / 16;  // an mma takes 16 columns of Q and K
constexpr int KEY_STEPS = BLOCK_N / 16;   // and 16 rows of V
constexpr int VECTOR = 8;                 // elements per 16-byte access
constexpr int K_TILE = BLOCK_N * HEAD_DIM;  // elements of K in a tile
#define STAGE (K_TILE + BLOCK_N * HEAD_DIM_V)  // and of K and V
#define SOURCE_TILE (BLOCK_N * KV_ROW)         // from tile to tile of K in global memory
constexpr bool Q_IN_SMEM = ROW_TILES * (HEAD_DIM + BLOCK_N) > 192;
// Whether unmasked tiles have a separate loop: not if two loops would spill, nor if a window masks
// tiles at both ends.
constexpr bool TWO_LOOPS =
    WINDOW == 0 &&
    !(IS_CAUSAL && Q_IN_SMEM &&
      (ROW_TILES * BLOCK_N >= 128 || (V11_CAUSAL_LOOP_SPILLS_AT_96 && HEAD_DIM == 96)));
// P of a tile's first EARLY steps of keys is computed during the previous tile's O, that of the
// other steps during the next tile's S. All are early if Q would otherwise be read from shared
// memory twice, and at D = 128 or more, for lack of registers.
constexpr int EARLY = Q_IN_SMEM || HEAD_DIM >= 128 ? KEY_STEPS : KEY_STEPS / 2;
// Steps of keys whose first fragment is preloaded when a tile begins: as many as registers allow.
constexpr int AHEAD = HEAD_DIM >= 128 ? 0 : Q_IN_SMEM ? 1 : 2;
// Whether copies start before V is read. At D = 128 there are so many that V's fragments wait for
// them; that costs less than starting them later only if one CTA fits on an SM.
constexpr bool COPIES_FIRST =
    HEAD_DIM < 128 || ROW_TILES == 1 || !HAS_LARGE_SMEM ||
    (IS_CAUSAL && V11_CAUSAL_LATE_COPIES_SPILL);
constexpr int RING_ROWS = (STAGES * STAGE + HEAD_DIM - 1) / HEAD_DIM;  // as wide as Q's

static_assert(NUM_WARPS == 2 || NUM_WARPS == 4 || NUM_WARPS == 8,
              "num_warps must be 2, 4 or 8: 16 leave 128 registers, and D = 128 takes more");
static_assert(BLOCK_N == 32 || BLOCK_N == 64 || BLOCK_N == 128,
              "block_n must be 32, 64 or 128: S of a tile stays in the registers of one warp");
static_assert(STAGES == 2 || STAGES == 3,
              "stages must be 2 or 3: one tile is computed while the others arrive");
static_assert(ROW_TILES == 1 || ROW_TILES == 2,
              "row_tiles must be 1 or 2: O of every tile stays in registers");
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256 && ROW_TILES * HEAD_DIM_V <= 256,
              "head_dim must be a multiple of 16 up to 256: O stays in registers");
static_assert(HEAD_DIM_V == HEAD_DIM || (HEAD_DIM % 64 == 0 && HEAD_DIM_V % 64 == 0),
              "K and V of other widths must both be multiples of 64");

// Position of a chunk of 8 elements in its row, as in v09. It depends on row % 8 alone, so that
// rows 8 apart differ by an immediate.
template <int COLUMNS>
__device__ __forceinline__ int spread_of(int row) {
    return (COLUMNS % 64 == 0 ? row % 8 : row / 2 % 4) * VECTOR;
}

template <int COLUMNS>
__device__ __forceinline__ int swizzled(int row, int d) {
    return row * COLUMNS + (d ^ spread_of<COLUMNS>(row));
}

// The address of a lane's row, 16 columns further for every step. Rows begin at multiples of 128
// bytes (D = 64, 128, 256) or 64, and the swizzle changes only lower bits, so that an XOR replaces
// an add: at D = 192, whose rows are 384 bytes, within 128 of them.
template <int COLUMNS>
__device__ __forceinline__ unsigned step_address(unsigned lane_address, int step) {
    if (COLUMNS == 192) return (lane_address ^ step % 4 * 32) + step / 4 * 128;
    if (COLUMNS % 64 == 0) return lane_address ^ step * 32;
    return (lane_address ^ step % 2 * 32) + step / 2 * 64;
}

// A thread's part of the copy of a tile: the same columns of every ROW_STEP-th row, so that all of
// its addresses are one register plus immediates.
constexpr int ROW_LANES = HEAD_DIM % 64 == 0 ? 8 : 4;  // neighbouring threads in a row
constexpr int ROW_STEP = NUM_THREADS / ROW_LANES;      // a multiple of 8

// Starts the copies of ROWS rows into shared memory. Both addresses are those of the thread's first
// row and its columns; `length` counts the rows that are there from that row on.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void load_tile(unsigned lane_smem,          // in [ROWS, COLUMNS]
                                          const element* lane_source,  // in [length, COLUMNS]
                                          int length ROW_PARAMETER) {
#pragma unroll
    for (int first = 0; first < ROWS; first += ROW_STEP) {
        if (ROWS % ROW_STEP != 0 && first + (int)threadIdx.x / ROW_LANES >= ROWS) break;
#pragma unroll
        for (int column = 0; column < COLUMNS; column += ROW_LANES * VECTOR) {
            // Rows past the end are zero-filled: stale data could be NaN, and NaN * 0 is NaN.
            cp_async_16(lane_smem + 2 * (first * COLUMNS + column),
                        lane_source + first * ROW_ELEMENTS + column, first < length);
        }
    }
}

// A lane's part of S and O of one row tile: of each accumulator tile two columns of row lane / 4,
// and then of row lane / 4 + 8.
using Scores = float[BLOCK_N / 8][4];
using Output = float[HEAD_DIM_V / 8][4];
using Fragments = unsigned[Q_IN_SMEM ? 1 : DIM_STEPS][4];  // of Q
using Weights = unsigned[KEY_STEPS][4];                    // P, packed in pairs
using Keys = unsigned[AHEAD > 0 ? AHEAD : 1][4];           // K's fragments ahead
using Rows = float[2];

// Chooses one of two versions of the loop's body when it is compiled.
struct Masked {
    static constexpr bool value = true;
};
struct Unmasked {
    static constexpr bool value = false;
};

// K's fragments of the first AHEAD steps of keys and the first 16 columns.
__device__ __forceinline__ void load_ahead(Keys& k_ahead, unsigned k_address) {
#pragma unroll
    for (int key_step = 0; key_step < AHEAD; key_step++) {
        ldmatrix_x4(k_ahead[key_step], k_address + key_step * 32 * HEAD_DIM);
    }
}

// S = Q @ K^T [WARP_ROWS, BLOCK_N], its steps of keys from FIRST to END. K's rows are the columns
// of the right operand, so they load untransposed: matrices 0, 1 are keys 0-7 by 16 columns of K,
// 2, 3 are keys 8-15.
template <int FIRST, int END>
__device__ __forceinline__ void multiply_scores(Scores (&s_rmem)[ROW_TILES],
                                                Fragments (&q_rmem)[ROW_TILES],
                                                const Keys& k_ahead, unsigned q_address,
                                                unsigned k_address) {
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) {
        if constexpr (Q_IN_SMEM) {
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                ldmatrix_x4(q_rmem[t][0],
                            step_address<HEAD_DIM>(q_address, step) + t * 32 * HEAD_DIM);
            }
        }
#pragma unroll
        for (int key_step = FIRST; key_step < END; key_step++) {
            unsigned k_rmem[4];
            if (step == 0 && key_step < AHEAD) {
#pragma unroll
                for (int i = 0; i < 4; i++) k_rmem[i] = k_ahead[key_step][i];
            } else {
                ldmatrix_x4(k_rmem,
                            step_address<HEAD_DIM>(k_address, step) + key_step * 32 * HEAD_DIM);
            }
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                const unsigned(&q_step)[4] = q_rmem[t][Q_IN_SMEM ? 0 : step];
                float(&left)[4] = s_rmem[t][2 * key_step];
                float(&right)[4] = s_rmem[t][2 * key_step + 1];
                if (step == 0) {
#pragma unroll
                    for (int j = 0; j < 4; j++) left[j] = right[j] = 0.0f;
                }
                mma_m16n8k16(left, q_step, k_rmem[0], k_rmem[1]);
                mma_m16n8k16(right, q_step, k_rmem[2], k_rmem[3]);
            }
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
// later. Key 0 is visible to every row, so maxima are finite from the first tile on.
__device__ __forceinline__ void update_maxima(const Scores& s_rmem, Rows& m_scaled, Rows& l_rmem,
                                              Rows& correction, float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m_tile = s_rmem[0][2 * r];
#pragma unroll
        for (int tile = 0; tile < BLOCK_N / 8; tile++) {
            const float(&scores)[4] = s_rmem[tile];
            m_tile = fmaxf(m_tile, fmaxf(scores[2 * r], scores[2 * r + 1]));
        }
        const float m_new = fmaxf(m_scaled[r], row_max(m_tile) * scale_log2);
        correction[r] = fast_exp2(m_scaled[r] - m_new);
        m_scaled[r] = m_new;
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

// P = exp(scale (S - m)) of the steps of keys from FIRST to END: one FFMA and one EX2 per score; l
// sums it before P is rounded. Two accumulator tiles of S side by side are one left operand.
template <int FIRST, int END>
__device__ __forceinline__ void exponentiate(const Scores& s_rmem, Weights& p_rmem, Rows& l_rmem,
                                             const Rows& m_scaled, float scale_log2) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = 0.0f;
#pragma unroll
        for (int tile = 2 * FIRST; tile < 2 * END; tile++) {
            const float(&scores)[4] = s_rmem[tile];
            const float left = fast_exp2(scores[2 * r] * scale_log2 - m_scaled[r]);
            const float right = fast_exp2(scores[2 * r + 1] * scale_log2 - m_scaled[r]);
            sum += left + right;
            p_rmem[tile / 2][tile % 2 * 2 + r] = pack(left, right);
        }
        l_rmem[r] += sum;
    }
}

// O += P @ V [WARP_ROWS, HEAD_DIM_V]. V's rows are the rows of the right operand, so its matrices
// load transposed.
__device__ __forceinline__ void multiply_values(Output (&acc_rmem)[ROW_TILES],
                                                const Weights (&p_rmem)[ROW_TILES],
                                                unsigned v_address) {
#pragma unroll
    for (int key_step = 0; key_step < KEY_STEPS; key_step++) {
#pragma unroll
        for (int step = 0; step < HEAD_DIM_V / 16; step++) {
            unsigned v_rmem[4];
            ldmatrix_x4_transposed(v_rmem, step_address<HEAD_DIM_V>(v_address, step) +
                                               key_step * 32 * HEAD_DIM_V);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                const unsigned(&p_step)[4] = p_rmem[t][key_step];
                mma_m16n8k16(acc_rmem[t][2 * step], p_step, v_rmem[0], v_rmem[1]);
                mma_m16n8k16(acc_rmem[t][2 * step + 1], p_step, v_rmem[2], v_rmem[3]);
            }
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
    extern __shared__ __align__(128) unsigned char smem[];
    element* ring = reinterpret_cast<element*>(smem);  // [STAGES, K and V, BLOCK_N, columns]
    // Behind it [BLOCK_M, HEAD_DIM] of Q, if Q_IN_SMEM.

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int pair = 2 * (lane % 4);  // first of a lane's two columns of a fragment
    // The query tile is the fastest axis: concurrent CTAs share their head's K/V in L2. Causal: the
    // longest tiles start first, which keeps the last wave short.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * BLOCK_M;                 // first query row of this CTA
    const int query0 = m0 + warp * WARP_ROWS + lane / 4;  // this lane's first row
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t q_index = (size_t)blockIdx.z * num_heads + blockIdx.y;
    const size_t kv_index =
        (size_t)blockIdx.z * num_heads_kv + blockIdx.y / (num_heads / num_heads_kv);
    const size_t q_head = Q_BEGIN(q_index, blockIdx.y);  // where this head's Q and O begin
    const size_t kv_head =  // and its K and V
        KV_BEGIN(kv_index, blockIdx.y / (num_heads / num_heads_kv));
#define O_HEAD (HEAD_DIM_V == HEAD_DIM ? q_head : O_BEGIN(q_index, blockIdx.y))
    const Features given = FEATURES_GIVEN;
    OWN_LENGTHS(given, blockIdx.z);
    if (HAS_VARLEN && m0 >= NUM_QUERIES) return;  // the sequence ends before this tile
    const ScoreMod score_mod = score_mod_of(given, blockIdx.y, softmax_scale);

    // Q as the left operand of two tiles of 8 rows and two of 8 columns: from global memory as in
    // v08, or step by step from shared memory.
    Fragments q_rmem[ROW_TILES];
    const int copy_row = threadIdx.x / ROW_LANES;
    const int copy_d = threadIdx.x % ROW_LANES * VECTOR;
    const int copy_offset = copy_row * KV_ROW + copy_d;
    const unsigned ring_address = shared_address(ring);
    const unsigned copy_address = shared_address(ring) + 2 * swizzled<HEAD_DIM>(copy_row, copy_d);
    if constexpr (Q_IN_SMEM) {
        load_tile<BLOCK_M, HEAD_DIM>(
            copy_address + 2 * RING_ROWS * HEAD_DIM,
            q + q_head + (size_t)m0 * Q_ROW + (copy_row * Q_ROW + copy_d),
                           NUM_QUERIES - m0 - copy_row ROW_GIVEN(Q_ROW));
    } else {
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
            for (int step = 0; step < DIM_STEPS; step++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {  // bit 0: lower 8 rows, bit 1: right 8 columns
                    const int query = query0 + t * 16 + i % 2 * 8;
                    const int d = step * 16 + i / 2 * 8 + pair;
                    const element* source = q + q_head + (size_t)query * Q_ROW + d;
                    ElementPair elements;
                    elements.bits = 0;  // rows past the end: any finite value would do
                    if (query < NUM_QUERIES) {
                        elements.elements = *reinterpret_cast<const element2*>(source);
                    }
                    q_rmem[t][step][i] = elements.bits;
                }
            }
        }
    }

    Output acc_rmem[ROW_TILES] = {};  // O, not yet divided by l: 8 columns a tile
    Rows m_scaled[ROW_TILES];         // running maxima of the lane's rows, times scale_log2
    Rows l_rmem[ROW_TILES] = {};      // running sums over this lane's keys only
    Rows correction[ROW_TILES];       // factors that rescale the sums so far to the new maxima
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) m_scaled[t][0] = m_scaled[t][1] = FIRST_SCALED_MAXIMUM;

    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int begin = POSITION_OF(m0), end = POSITION_OF(m0 + BLOCK_M);
    const int kv_end = END_OF_KEYS(end);
    const int kv_begin = FIRST_KEY(begin) / BLOCK_N * BLOCK_N;

    // Copies the tile whose first key is n; past the last one, zeros. Offsets in the ring are in
    // elements. V is addressed from K's pointer, to save registers.
    const int rows_left = kv_end - copy_row;
    const element* lane_source = k + kv_head + (size_t)kv_begin * KV_ROW + copy_offset;
    const auto start_k = [&](int place, const element* source, int n) {
        load_tile<BLOCK_N, HEAD_DIM>(copy_address + 2 * place, source,
                                     rows_left - n ROW_GIVEN(KV_ROW));
    };
    // `k_source`: where K of the same keys is.
    const auto start_v = [&](int place, const element* k_source, int n) {
        const element* source = k_source + (v - k);
        unsigned address = copy_address;
        if constexpr (HEAD_DIM_V != HEAD_DIM) {
            const size_t v_head = V_BEGIN(kv_index, blockIdx.y / (num_heads / num_heads_kv));
            source = v + v_head + (size_t)(n + copy_row) * V_ROW + copy_d;
            address = ring_address + 2 * swizzled<HEAD_DIM_V>(copy_row, copy_d);
        }
        load_tile<BLOCK_N, HEAD_DIM_V>(address + 2 * place, source,
                                       rows_left - n ROW_GIVEN(V_ROW));
    };
    // Every copy group has K of a tile and V of the previous one.
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        start_k(i * STAGE, lane_source + i * SOURCE_TILE, kv_begin + i * BLOCK_N);
        if (i > 0) {
            start_v((i - 1) * STAGE + K_TILE, lane_source + (i - 1) * SOURCE_TILE,
                    kv_begin + (i - 1) * BLOCK_N);
        }
        cp_async_commit();
    }

    // A lane's addresses for ldmatrix: of its row of K, of V, and of Q, which is read like V.
    const int k_row = lane / 16 * 8 + lane % 8, v_row = lane % 16;
    const unsigned k_lane = ring_address + 2 * swizzled<HEAD_DIM>(k_row, lane / 8 % 2 * 8);
    const unsigned v_lane =
        ring_address + 2 * (K_TILE + swizzled<HEAD_DIM_V>(v_row, lane / 16 * 8));
    unsigned q_lane = ring_address + 2 * (RING_ROWS + warp * WARP_ROWS) * HEAD_DIM +
                      2 * swizzled<HEAD_DIM>(v_row, lane / 16 * 8);

    // Only tiles across the end of the keys, across the diagonal or across the edge of a window
    // have anything to mask.
    const int all_visible = END_SEEN_BY_ALL(begin);

    // S and P of the first tile.
    Scores s_rmem[ROW_TILES];
    Weights p_rmem[ROW_TILES];
    Keys k_ahead;
    cp_async_wait<STAGES - 1>();
    // All threads' copies of its K have arrived.
    __syncthreads();
    load_ahead(k_ahead, k_lane);
    multiply_scores<0, KEY_STEPS>(s_rmem, q_rmem, k_ahead, q_lane, k_lane);
    if constexpr (HAS_SCORE_MOD) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            modify_scores(s_rmem[t], kv_begin, query0 + t * 16, pair, LENGTHS, score_mod);
        }
    }
    if (kv_begin + BLOCK_N > all_visible || IS_BEFORE_A_WINDOW(kv_begin, end)) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            mask_scores(s_rmem[t], kv_begin, query0 + t * 16, pair, LENGTHS);
        }
    }
    cp_async_wait<STAGES - 2>();
    // The second K has arrived, and the first is no longer read.
    __syncthreads();
    start_k(0, lane_source + STAGES * SOURCE_TILE, kv_begin + STAGES * BLOCK_N);
    cp_async_commit();
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        update_maxima(s_rmem[t], m_scaled[t], l_rmem[t], correction[t], scale_log2);
    }
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        exponentiate<0, EARLY>(s_rmem[t], p_rmem[t], l_rmem[t], m_scaled[t], scale_log2);
    }
    load_ahead(k_ahead, k_lane + 2 * STAGE);

    constexpr int LAST_STAGE = (STAGES - 1) * STAGE;
    int v_stage = 0;         // offset of this tile's V in the ring, K before V
    int k_stage = STAGE;  // offset of the next tile's K
    int next = (WINDOW > 0 ? kv_begin : 0) + BLOCK_N;  // first key of the next tile
    lane_source += (STAGES - 1) * SOURCE_TILE;  // V that is copied next
    const auto visit = [&](auto kind) {
        // Hides from the compiler that q_lane is loop-invariant: it would keep Q's address of every
        // step in its own register, and spill others.
        asm volatile("" : "+r"(q_lane));

        // S of the next tile, overlapped with the rest of this tile's P and the rescaling of O for
        // it, ...
        const unsigned k_next = k_lane + 2 * k_stage;
        multiply_scores<0, EARLY>(s_rmem, q_rmem, k_ahead, q_lane, k_next);
        if constexpr (EARLY < KEY_STEPS) {
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                exponentiate<EARLY, KEY_STEPS>(s_rmem[t], p_rmem[t], l_rmem[t], m_scaled[t],
                                               scale_log2);
            }
            multiply_scores<EARLY, KEY_STEPS>(s_rmem, q_rmem, k_ahead, q_lane, k_next);
        }
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) rescale(acc_rmem[t], correction[t]);
        if constexpr (HAS_SCORE_MOD) {
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                modify_scores(s_rmem[t], next, query0 + t * 16, pair, LENGTHS, score_mod);
            }
        }
        if (decltype(kind)::value &&
            (TWO_LOOPS || next + BLOCK_N > all_visible || IS_BEFORE_A_WINDOW(next, end))) {
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                mask_scores(s_rmem[t], next, query0 + t * 16, pair, LENGTHS);
            }
        }

        cp_async_wait<STAGES - 2>();
        // All threads' copies of this tile's V and of K two tiles ahead have arrived, and K of the
        // next tile and V of the previous one are no longer read: new copies overwrite them.
        __syncthreads();
        const int v_place = (v_stage == 0 ? LAST_STAGE : v_stage - STAGE) + K_TILE;
        const auto refill = [&] {
            start_k(k_stage, lane_source + 2 * SOURCE_TILE, next + STAGES * BLOCK_N);
            start_v(v_place, lane_source, next + (STAGES - 2) * BLOCK_N);
            cp_async_commit();
        };
        if constexpr (COPIES_FIRST) refill();
        // ... and O of this tile: the tensor cores compute it during the softmax of the next tile,
        // which other units compute. In v10 a warp does one after the other.
        multiply_values(acc_rmem, p_rmem, v_lane + 2 * v_stage);
        if constexpr (!COPIES_FIRST) refill();
        lane_source += SOURCE_TILE;
        v_stage = k_stage;
        k_stage = k_stage == LAST_STAGE ? 0 : k_stage + STAGE;
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            update_maxima(s_rmem[t], m_scaled[t], l_rmem[t], correction[t], scale_log2);
        }
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            exponentiate<0, EARLY>(s_rmem[t], p_rmem[t], l_rmem[t], m_scaled[t], scale_log2);
        }
        load_ahead(k_ahead, k_lane + 2 * k_stage);
    };
    // Two loops, so that the body of the first is one basic block: the compiler interleaves softmax
    // and products only within a basic block.
    if constexpr (TWO_LOOPS) {
        for (; next + BLOCK_N <= all_visible; next += BLOCK_N) visit(Unmasked());
    }
    for (; next < kv_end; next += BLOCK_N) visit(Masked());

    // The last tile has no next.
    if constexpr (EARLY < KEY_STEPS) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            exponentiate<EARLY, KEY_STEPS>(s_rmem[t], p_rmem[t], l_rmem[t], m_scaled[t],
                                           scale_log2);
        }
    }
    cp_async_wait<0>();
    // All threads' copies of its V have arrived.
    __syncthreads();
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) rescale(acc_rmem[t], correction[t]);
    multiply_values(acc_rmem, p_rmem, v_lane + 2 * v_stage);

    // O overwrites the ring and Q, which slower warps are still reading.
    __syncthreads();
    element* o_smem = ring + warp * WARP_ROWS * HEAD_DIM_V;  // [WARP_ROWS, HEAD_DIM_V], swizzled
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = t * 16 + lane / 4 + r * 8;
            const float inv_l =
                1.0f / with_sink(row_sum(l_rmem[t][r]), given, blockIdx.y, m_scaled[t][r]);
            STORE_LSE(pair == 0 && m0 + warp * WARP_ROWS + row < NUM_QUERIES,
                      ((size_t)blockIdx.z * num_heads + blockIdx.y) * seqlen + m0 +
                          warp * WARP_ROWS + row,
                      m_scaled[t][r], inv_l);
#pragma unroll
            for (int tile = 0; tile < HEAD_DIM_V / 8; tile++) {
                const float(&o)[4] = acc_rmem[t][tile];
                *reinterpret_cast<element2*>(o_smem + swizzled<HEAD_DIM_V>(row, tile * 8) + pair) =
                    to_element2(o[2 * r] * inv_l, o[2 * r + 1] * inv_l);
            }
        }
    }
    // The offset of O is computed again: keeping it would cost registers in the loop.
    asm volatile("" : "+r"(num_heads), "+r"(seqlen));
    const size_t o_index = (size_t)blockIdx.z * num_heads + blockIdx.y;
#if HAS_VARLEN
    element* out_rows = out + O_HEAD + (size_t)(m0 + warp * WARP_ROWS) * O_ROW;
#else
    element* out_rows = out + (o_index * seqlen + m0 + warp * WARP_ROWS) * HEAD_DIM_V;
#endif
    const int num_rows = (HAS_VARLEN ? NUM_QUERIES : seqlen) - m0 - warp * WARP_ROWS;
    // Each warp stores its own rows, 16 bytes a lane; other lanes wrote them.
    __syncwarp();
#pragma unroll
    for (int first = 0; first < WARP_ROWS * HEAD_DIM_V / VECTOR; first += 32) {
        const int row = (first + lane) / (HEAD_DIM_V / VECTOR);
        const int d = (first + lane) % (HEAD_DIM_V / VECTOR) * VECTOR;
        if (row < num_rows) {
            *reinterpret_cast<uint4*>(out_rows + row * O_ROW + d) =
                *reinterpret_cast<const uint4*>(o_smem + swizzled<HEAD_DIM_V>(row, d));
        }
    }
}
