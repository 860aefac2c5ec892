// v13 Persistent: as many CTAs as the GPU holds, each with an equal share of all work.
// Idea: query tiles seldom divide evenly among SMs, their key tiles do: cut where a share ends.
// Changed: against v11, rewritten around its loop: pieces of query tiles, partial O, fusion.
// Limiter: as v11, without its last, partly filled wave.
// Constraints: from sm_75, BF16 from sm_80; D in {32, 64, 96, 128}; any S, KV, H, B and num_ctas.
// Passes: 1, attention_forward; grid (min(num_ctas, all query tiles)), 32 num_warps threads.
// Source: stream-K (Osama et al., PPoPP 2023, arXiv 2301.03598); v06's arrival counter.
// Weakness: all heads are in flight at once, so that K/V beyond L2 is read again for each tile.
/* attune
idea = "Persistent CTAs with equal shares of all key tiles; the last CTA fuses a split query tile."
head_dims = [32, 64, 96, 128]
min_compute_capability = 7.5
gqa = true
takes = ["lse"]
let.block_m = "16 * row_tiles * num_warps"
let.query_tiles = "ceil_div(seqlen, block_m)"
let.ctas = "min(num_ctas, query_tiles * num_heads * batch)"

[tunables]
block_n = {values = [32, 64, 128], default = 32, meaning = "K/V rows per tile"}
stages = {values = [2, 3], default = 2, meaning = "K/V tiles in the ring"}
num_warps = {values = [2, 4, 8], default = 4, meaning = "warps per CTA"}
row_tiles = {values = [1, 2], default = 2, meaning = "16-row tiles per warp, which share K/V"}
num_ctas.values = [4, 58, 84, 108, 116, 132, 142, 168, 170, 216, 264, 284, 340, 396]
num_ctas.default = 264
num_ctas.per_sm = 2
num_ctas.meaning = "persistent CTAs: the GPU's SMs times what each holds"

[[constraints]]
# S counts twice: while P is made of it, S of the next tile begins.
condition = "row_tiles * (head_dim + 2 * block_n) <= 448"
sentence = """v13 holds O and S of {row_tiles} row tiles in registers, and block_n={block_n} with \
              D={head_dim} takes more: lower block_n or row_tiles."""

# A CTA cuts two query tiles at most: the one that it begins in, and the one that it ends in.
[scratch]
o_partial = {shape = ["2 * ctas", "head_dim // 8 * row_tiles", "32 * num_warps", "4"]}
m_partial = {shape = ["2 * ctas", "2 * row_tiles", "32 * num_warps"]}
l_partial = {shape = ["2 * ctas", "2 * row_tiles", "32 * num_warps"]}
arrivals = {dtype = "int32", shape = ["batch", "num_heads", "query_tiles"], fill = "zero"}

[[passes]]
entry = "attention_forward"
grid = ["ctas", "1", "1"]
threads = "32 * num_warps"
# The ring of K and V, and O, in whose place Q lies before where it is not in registers.
smem_bytes = "(2 * stages * block_n + block_m) * head_dim * element_bytes"
args = ["q", "k", "v", "out", "o_partial", "m_partial", "l_partial", "arrivals", "batch",
        "num_heads", "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale", "lse"]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "ceil_div(query_tiles * num_heads * batch * round_up(seqlen_kv, block_n), ctas)"
conflict_ways = 1

[work.schedule]
shares = "key tiles"
start_tiles = "max(2, block_m // block_n) if causal else 2"
*/
#include "arch.cuh"
#include "arrival.cuh"
#include "async_copy.cuh"
#include "exp2.cuh"
#include "lse.cuh"
#include "mma.cuh"
#include "rows.cuh"

constexpr int WARP_ROWS = 16 * ROW_TILES;       // query rows per warp
constexpr int BLOCK_M = WARP_ROWS * NUM_WARPS;  // query rows per CTA
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int DIM_STEPS = HEAD_DIM / 16;  // an mma takes 16 columns of Q and K
constexpr int KEY_STEPS = BLOCK_N / 16;   // and 16 rows of V
constexpr int VECTOR = 8;                 // elements per 16-byte access
constexpr int TILE = BLOCK_N * HEAD_DIM;  // elements of K or V in a tile
constexpr bool Q_IN_SMEM = ROW_TILES * (HEAD_DIM + BLOCK_N) > 192;
// Whether unmasked tiles have a separate loop: not if two loops would spill.
constexpr bool TWO_LOOPS =
    IS_CAUSAL ? !Q_IN_SMEM && !V13_CAUSAL_LOOP_SPILLS
              : !(Q_IN_SMEM &&
                  (V13_FULL_LOOP_SPILLS || (V13_FULL_LOOP_SPILLS_AT_96 && HEAD_DIM == 96)));
// P of a tile's first EARLY steps of keys is computed during the previous tile's O, that of the
// other steps during the next tile's S. All are early if Q would otherwise be read from shared
// memory twice, and at D = 128, for lack of registers.
constexpr int EARLY = Q_IN_SMEM || HEAD_DIM == 128 ? KEY_STEPS : KEY_STEPS / 2;
// Steps of keys whose first fragment is preloaded when a tile begins: as many as registers allow.
constexpr int AHEAD = HEAD_DIM == 128 ? 0 : Q_IN_SMEM ? 1 : 2;
// Fixed cost of a query tile, in key tiles: loading Q, storing O, and masks.
constexpr int START_TILES = IS_CAUSAL && BLOCK_M / BLOCK_N > 2 ? BLOCK_M / BLOCK_N : 2;
constexpr int RING_ROWS = 2 * STAGES * BLOCK_N;
constexpr int ROW_PAIRS = 2 * ROW_TILES;  // rows of a lane
constexpr int O_VECTORS = ROW_TILES * HEAD_DIM / 8;  // of four floats, in a thread
// Initial maximum: below any score, but exp2(-inf - LOWEST) is 0, whereas -inf would give NaN.
constexpr float LOWEST = -3e38f;

static_assert(NUM_WARPS == 2 || NUM_WARPS == 4 || NUM_WARPS == 8,
              "num_warps must be 2, 4 or 8: 16 leave 128 registers, and D = 128 takes more");
static_assert(BLOCK_N == 32 || BLOCK_N == 64 || BLOCK_N == 128,
              "block_n must be 32, 64 or 128: S of a tile stays in the registers of one warp");
static_assert(STAGES == 2 || STAGES == 3,
              "stages must be 2 or 3: one tile is computed while the others arrive");
static_assert(ROW_TILES == 1 || ROW_TILES == 2,
              "row_tiles must be 1 or 2: O of every tile stays in registers");
static_assert(NUM_CTAS >= 1, "num_ctas must be at least 1: one CTA visits all keys");
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 128,
              "head_dim must be a multiple of 16 up to 128: O stays in registers");

// Position of a chunk of 8 elements in its row, as in v09. It depends on row % 8 alone, so that
// rows 8 apart differ by an immediate.
__device__ __forceinline__ int spread_of(int row) {
    return (HEAD_DIM % 64 == 0 ? row % 8 : row / 2 % 4) * VECTOR;
}

__device__ __forceinline__ int swizzled(int row, int d) {
    return row * HEAD_DIM + (d ^ spread_of(row));
}

// The address of a lane's row, 16 columns further for every step. Rows begin at multiples of 128
// bytes (D = 64, 128) or 64, and the swizzle changes only lower bits, so that an XOR replaces an
// add.
__device__ __forceinline__ unsigned step_address(unsigned lane_address, int step) {
    if (HEAD_DIM % 64 == 0) return lane_address ^ step * 32;
    return (lane_address ^ step % 2 * 32) + step / 2 * 64;
}

// A thread's part of the copy of a tile: the same columns of every ROW_STEP-th row, so that all of
// its addresses are one register plus immediates.
constexpr int ROW_LANES = HEAD_DIM % 64 == 0 ? 8 : 4;  // neighbouring threads in a row
constexpr int ROW_STEP = NUM_THREADS / ROW_LANES;      // a multiple of 8

// Starts the copies of ROWS rows into shared memory. Both addresses are those of the thread's first
// row and its columns; `length` counts the rows that are there from that row on.
template <int ROWS>
__device__ __forceinline__ void load_tile(unsigned lane_smem,          // in [ROWS, HEAD_DIM]
                                          const element* lane_source,  // in [length, HEAD_DIM]
                                          int length) {
#pragma unroll
    for (int first = 0; first < ROWS; first += ROW_STEP) {
        if (ROWS % ROW_STEP != 0 && first + (int)threadIdx.x / ROW_LANES >= ROWS) break;
#pragma unroll
        for (int column = 0; column < HEAD_DIM; column += ROW_LANES * VECTOR) {
            // Rows past the end are zero-filled: stale data could be NaN, and NaN * 0 is NaN.
            cp_async_16(lane_smem + 2 * (first * HEAD_DIM + column),
                        lane_source + first * HEAD_DIM + column, first < length);
        }
    }
}

// A lane's part of S and O of one row tile: of each accumulator tile two columns of row lane / 4,
// and then of row lane / 4 + 8.
using Scores = float[BLOCK_N / 8][4];
using Output = float[HEAD_DIM / 8][4];
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
                ldmatrix_x4(q_rmem[t][0], step_address(q_address, step) + t * 32 * HEAD_DIM);
            }
        }
#pragma unroll
        for (int key_step = FIRST; key_step < END; key_step++) {
            unsigned k_rmem[4];
            if (step == 0 && key_step < AHEAD) {
#pragma unroll
                for (int i = 0; i < 4; i++) k_rmem[i] = k_ahead[key_step][i];
            } else {
                ldmatrix_x4(k_rmem, step_address(k_address, step) + key_step * 32 * HEAD_DIM);
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

// Masks keys past the end or the diagonal with -infinity; n0 is the tile's first key.
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
// later. A row may see no key of a causal piece: its maximum stays LOWEST.
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
    for (int tile = 0; tile < HEAD_DIM / 8; tile++) {
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

// O += P @ V [WARP_ROWS, HEAD_DIM]. V's rows are the rows of the right operand, so its matrices
// load transposed.
__device__ __forceinline__ void multiply_values(Output (&acc_rmem)[ROW_TILES],
                                                const Weights (&p_rmem)[ROW_TILES],
                                                unsigned v_address) {
#pragma unroll
    for (int key_step = 0; key_step < KEY_STEPS; key_step++) {
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            unsigned v_rmem[4];
            ldmatrix_x4_transposed(v_rmem,
                                   step_address(v_address, step) + key_step * 32 * HEAD_DIM);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                const unsigned(&p_step)[4] = p_rmem[t][key_step];
                mma_m16n8k16(acc_rmem[t][2 * step], p_step, v_rmem[0], v_rmem[1]);
                mma_m16n8k16(acc_rmem[t][2 * step + 1], p_step, v_rmem[2], v_rmem[3]);
            }
        }
    }
}

// Key tiles that query tile `tile` visits. Causal: those past its last query are masked for all of
// its rows.
__device__ __forceinline__ int tiles_of(int tile, int seqlen_kv) {
    const int keys = IS_CAUSAL ? min(seqlen_kv, (tile + 1) * BLOCK_M) : seqlen_kv;
    return (keys + BLOCK_N - 1) / BLOCK_N;
}

// Total cost of a query tile, in key tiles.
__device__ __forceinline__ int cost_of(int tile, int seqlen_kv) {
    return START_TILES + tiles_of(tile, seqlen_kv);
}

// Total cost of all query tiles of a head. 64-bit: from 3 million rows and keys on it may pass
// 2^31.
__device__ __forceinline__ long long cost_of_head(int query_tiles, int seqlen_kv) {
    if (!IS_CAUSAL) return (long long)query_tiles * cost_of(0, seqlen_kv);
    long long cost = 0;
    for (int tile = 0; tile < query_tiles; tile++) cost += cost_of(tile, seqlen_kv);
    return cost;
}

// The 1: one resident CTA is enough, so ptxas may use as many registers as it needs, see v02.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM]
                  float4* __restrict__ o_partial,  // [2 gridDim.x, O_VECTORS, NUM_THREADS]
                  float* __restrict__ m_partial,   // [2 gridDim.x, ROW_PAIRS, NUM_THREADS]
                  float* __restrict__ l_partial,   // [2 gridDim.x, ROW_PAIRS, NUM_THREADS]
                  int* __restrict__ arrivals,  // [batch, num_heads, query tiles], all zero
                  int batch, int num_heads, int num_heads_kv, int seqlen, int seqlen_kv,
                  float softmax_scale LSE_PARAMETER) {
    extern __shared__ __align__(128) unsigned char smem[];
    element* ring = reinterpret_cast<element*>(smem);  // [STAGES, K and V, BLOCK_N, HEAD_DIM]
    element* rows_smem = ring + RING_ROWS * HEAD_DIM;  // [BLOCK_M, HEAD_DIM] of Q and later O

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int pair = 2 * (lane % 4);  // first of a lane's two columns of a fragment
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    // The query tiles of all heads in order, within a head the longest first, have a total cost. It
    // is split into gridDim.x equal shares, which may begin and end inside a tile: CTA c takes
    // share c. 64-bit: this product may pass 2^31.
    const int query_tiles = (seqlen + BLOCK_M - 1) / BLOCK_M;
    long long head_cost = cost_of_head(query_tiles, seqlen_kv);
    const auto share_begin = [&](int cta) {
        return batch * num_heads * head_cost * cta / gridDim.x;
    };

    // Start of this CTA's share: head, query tile, and position within it.
    long long left = share_begin(blockIdx.x + 1) - share_begin(blockIdx.x);  // of its share
    int head = (int)(share_begin(blockIdx.x) / head_cost);  // batch * num_heads + its head
    long long position_of_head = share_begin(blockIdx.x) % head_cost;
    int tile_index = query_tiles - 1;
    if (IS_CAUSAL) {
        while (position_of_head >= cost_of(tile_index, seqlen_kv)) {
            position_of_head -= cost_of(tile_index--, seqlen_kv);
        }
    } else {
        tile_index -= (int)(position_of_head / cost_of(0, seqlen_kv));
        position_of_head %= cost_of(0, seqlen_kv);
    }
    int position = (int)position_of_head;  // within the query tile

    while (left > 0) {
        const int end = (int)min((long long)cost_of(tile_index, seqlen_kv), position + left);
        left -= end - position;
        const int begin_tile = max(0, position - START_TILES);
        const int end_tile = end - START_TILES;
        if (end_tile <= 0) break;  // the share ends before the first key tile
        const int m0 = tile_index * BLOCK_M;                  // first query row of this piece
        const int query0 = m0 + warp * WARP_ROWS + lane / 4;  // this lane's first row
        // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
        const size_t kv_index = head / (num_heads / num_heads_kv);  // over batches, too
        const size_t q_head = (size_t)head * seqlen * HEAD_DIM;  // where this head's Q and O begin
        const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;  // and its K and V

        // Q as the left operand of two tiles of 8 rows and two of 8 columns: from global memory as
        // in v08, or step by step from shared memory.
        Fragments q_rmem[ROW_TILES];
        const int copy_row = threadIdx.x / ROW_LANES;
        const int copy_d = threadIdx.x % ROW_LANES * VECTOR;
        const int copy_offset = copy_row * HEAD_DIM + copy_d;
        const unsigned copy_address = shared_address(ring) + 2 * swizzled(copy_row, copy_d);
        if constexpr (Q_IN_SMEM) {
            load_tile<BLOCK_M>(copy_address + 2 * RING_ROWS * HEAD_DIM,
                               q + q_head + (size_t)m0 * HEAD_DIM + copy_offset,
                               seqlen - m0 - copy_row);
        } else {
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
                for (int step = 0; step < DIM_STEPS; step++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {  // bit 0: lower 8 rows, bit 1: right 8 columns
                        const int query = query0 + t * 16 + i % 2 * 8;
                        const int d = step * 16 + i / 2 * 8 + pair;
                        const element* source = q + q_head + (size_t)query * HEAD_DIM + d;
                        ElementPair elements;
                        elements.bits = 0;  // rows past the end: any finite value would do
                        if (query < seqlen) {
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
        for (int t = 0; t < ROW_TILES; t++) m_scaled[t][0] = m_scaled[t][1] = LOWEST;

        const int kv_begin = begin_tile * BLOCK_N;
        const int kv_end = min(seqlen_kv, end_tile * BLOCK_N);

        // Copies the tile whose first key is n; past the last one, zeros. Offsets in the ring are
        // in elements. V is addressed from K's pointer, to save registers.
        const int rows_left = kv_end - copy_row;
        const element* lane_source = k + kv_head + (size_t)kv_begin * HEAD_DIM + copy_offset;
        const auto start_copy = [&](int place, const element* source, int n) {
            load_tile<BLOCK_N>(copy_address + 2 * place, source, rows_left - n);
        };
        // Every copy group has K of a tile and V of the previous one.
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            start_copy(2 * i * TILE, lane_source + i * TILE, kv_begin + i * BLOCK_N);
            if (i > 0) {
                start_copy((2 * i - 1) * TILE, lane_source + (v - k) + (i - 1) * TILE,
                           kv_begin + (i - 1) * BLOCK_N);
            }
            cp_async_commit();
        }

        // A lane's addresses for ldmatrix: of its row of K, of V, and of Q, which is read like V.
        const int k_row = lane / 16 * 8 + lane % 8, v_row = lane % 16;
        const unsigned ring_address = shared_address(ring);
        const unsigned k_lane = ring_address + 2 * swizzled(k_row, lane / 8 % 2 * 8);
        const unsigned v_lane = ring_address + 2 * (TILE + swizzled(v_row, lane / 16 * 8));
        unsigned q_lane = ring_address + 2 * (RING_ROWS + warp * WARP_ROWS) * HEAD_DIM +
                                2 * swizzled(v_row, lane / 16 * 8);

        // Only tiles across the end of the keys or across the diagonal have anything to mask.
        const int all_visible = IS_CAUSAL ? min(seqlen_kv, m0 + 1) : seqlen_kv;

        // S and P of the piece's first tile.
        Scores s_rmem[ROW_TILES];
        Weights p_rmem[ROW_TILES];
        Keys k_ahead;
        cp_async_wait<STAGES - 1>();
        // All threads' copies of its K have arrived.
        __syncthreads();
        load_ahead(k_ahead, k_lane);
        multiply_scores<0, KEY_STEPS>(s_rmem, q_rmem, k_ahead, q_lane, k_lane);
        if (kv_begin + BLOCK_N > all_visible) {
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                mask_scores(s_rmem[t], kv_begin, query0 + t * 16, pair, seqlen_kv);
            }
        }
        cp_async_wait<STAGES - 2>();
        // The second K has arrived, and the first is no longer read.
        __syncthreads();
        start_copy(0, lane_source + STAGES * TILE, kv_begin + STAGES * BLOCK_N);
        cp_async_commit();
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            update_maxima(s_rmem[t], m_scaled[t], l_rmem[t], correction[t], scale_log2);
        }
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            exponentiate<0, EARLY>(s_rmem[t], p_rmem[t], l_rmem[t], m_scaled[t], scale_log2);
        }
        load_ahead(k_ahead, k_lane + 4 * TILE);

        constexpr int LAST_STAGE = 2 * (STAGES - 1) * TILE;
        int v_stage = 0;                     // of this tile in the ring, K before V
        int next = kv_begin + BLOCK_N;       // first key of the next tile
        lane_source += (STAGES - 1) * TILE;  // V that is copied next
        const auto visit = [&](auto kind) {
            // Hides from the compiler that q_lane is loop-invariant: it would keep Q's address of
            // every step in its own register, and spill others.
            asm volatile("" : "+r"(q_lane));

            // S of the next tile, overlapped with the rest of this tile's P and the rescaling of O
            // for it, ...
            const int k_stage = v_stage == LAST_STAGE ? 0 : v_stage + 2 * TILE;
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
            if (decltype(kind)::value && next + BLOCK_N > all_visible) {
#pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    mask_scores(s_rmem[t], next, query0 + t * 16, pair, seqlen_kv);
                }
            }

            cp_async_wait<STAGES - 2>();
            // All threads' copies of this tile's V and of K two tiles ahead have arrived, and K of
            // the next tile and V of the previous one are no longer read: new copies overwrite
            // them.
            __syncthreads();
            const int v_place = (v_stage == 0 ? LAST_STAGE : v_stage - 2 * TILE) + TILE;
            start_copy(k_stage, lane_source + 2 * TILE, next + STAGES * BLOCK_N);
            start_copy(v_place, lane_source + (v - k), next + (STAGES - 2) * BLOCK_N);
            cp_async_commit();
            // ... and O of this tile: the tensor cores compute it during the softmax of the next
            // tile, which other units compute. In v10 a warp does one after the other.
            multiply_values(acc_rmem, p_rmem, v_lane + 2 * v_stage);
            lane_source += TILE;
            v_stage = k_stage;
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                update_maxima(s_rmem[t], m_scaled[t], l_rmem[t], correction[t], scale_log2);
            }
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                exponentiate<0, EARLY>(s_rmem[t], p_rmem[t], l_rmem[t], m_scaled[t], scale_log2);
            }
            load_ahead(k_ahead, k_lane + 2 * (k_stage == LAST_STAGE ? 0 : k_stage + 2 * TILE));
        };
        // Two loops, as in v11; one where a second would take registers that are not left.
        if constexpr (TWO_LOOPS) {
            for (; next < kv_end && next + BLOCK_N <= all_visible; next += BLOCK_N) {
                visit(Unmasked());
            }
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

        // If other CTAs have a piece of this query tile: store (O, m, l), each thread where the
        // same thread reads it back, and continue, unless this CTA is the last.
        bool is_stored_here = true;
        const int num_tiles = tiles_of(tile_index, seqlen_kv);
        if (end_tile - begin_tile < num_tiles) {
            // Hides from the compiler that this is loop-invariant: it would keep 64-bit products in
            // registers.
            asm volatile("" : "+l"(head_cost));
            // The CTA to which a key tile of this query tile belongs.
            const long long first_position = share_begin(blockIdx.x + 1) - left - end_tile;
            const auto owner_of = [&](int key_tile) {
                const long long after = first_position + key_tile + 1;
                return (int)((after * gridDim.x - 1) / share_begin(gridDim.x));
            };
            const int first_cta = owner_of(0), last_cta = owner_of(num_tiles - 1);
            // Of a CTA's two slots, the first is for the tile in which its share starts.
            const size_t slot = 2 * (size_t)blockIdx.x + (begin_tile == 0);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const size_t row = (slot * ROW_PAIRS + 2 * t + r) * NUM_THREADS + threadIdx.x;
                    m_partial[row] = m_scaled[t][r];
                    l_partial[row] = l_rmem[t][r];
                }
#pragma unroll
                for (int tile = 0; tile < HEAD_DIM / 8; tile++) {
                    const float(&o)[4] = acc_rmem[t][tile];
                    const size_t vector = slot * O_VECTORS + t * (HEAD_DIM / 8) + tile;
                    o_partial[vector * NUM_THREADS + threadIdx.x] =
                        make_float4(o[0], o[1], o[2], o[3]);
                }
            }
            // Thread 0 arrives for the whole CTA, so all of its threads must have written.
            __syncthreads();
            int* tile_arrivals = arrivals + (size_t)head * query_tiles + tile_index;
            const bool came_last =
                threadIdx.x == 0 && arrive_at_counter(tile_arrivals) == last_cta - first_cta;
            // Only thread 0 knows whether this CTA is last: the barrier broadcasts it, and makes
            // what the other CTAs wrote visible.
            is_stored_here = __syncthreads_or(came_last);
            if (is_stored_here) {
                if (threadIdx.x == 0) *tile_arrivals = 0;  // reset for the next launch

                // m = max over the pieces, finite: the first holds key 0, which every row sees.
#pragma unroll
                for (int i = 0; i < ROW_PAIRS; i++) m_scaled[i / 2][i % 2] = LOWEST;
                for (int cta = first_cta; cta <= last_cta; cta++) {
                    const size_t piece = 2 * (size_t)cta + (cta == first_cta);
#pragma unroll
                    for (int i = 0; i < ROW_PAIRS; i++) {
                        const size_t row = (piece * ROW_PAIRS + i) * NUM_THREADS + threadIdx.x;
                        m_scaled[i / 2][i % 2] = fmaxf(m_scaled[i / 2][i % 2], m_partial[row]);
                    }
                }
                // O = sum_s exp(scale (m_s - m)) O_s, and l alike; in the order of the pieces, so
                // that the result is bitwise the same whichever CTA is last.
#pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    l_rmem[t][0] = l_rmem[t][1] = 0.0f;
#pragma unroll
                    for (int i = 0; i < HEAD_DIM / 2; i++) acc_rmem[t][i / 4][i % 4] = 0.0f;
                }
                for (int cta = first_cta; cta <= last_cta; cta++) {
                    const size_t piece = 2 * (size_t)cta + (cta == first_cta);
#pragma unroll
                    for (int t = 0; t < ROW_TILES; t++) {
                        float weight[2];
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            const size_t row =
                                (piece * ROW_PAIRS + 2 * t + r) * NUM_THREADS + threadIdx.x;
                            weight[r] = fast_exp2(m_partial[row] - m_scaled[t][r]);
                            l_rmem[t][r] += weight[r] * l_partial[row];
                        }
#pragma unroll
                        for (int tile = 0; tile < HEAD_DIM / 8; tile++) {
                            const size_t vector = piece * O_VECTORS + t * (HEAD_DIM / 8) + tile;
                            const float4 o = o_partial[vector * NUM_THREADS + threadIdx.x];
                            acc_rmem[t][tile][0] += weight[0] * o.x;
                            acc_rmem[t][tile][1] += weight[0] * o.y;
                            acc_rmem[t][tile][2] += weight[1] * o.z;
                            acc_rmem[t][tile][3] += weight[1] * o.w;
                        }
                    }
                }
            }
        }

        if (is_stored_here) {
            // [WARP_ROWS, HEAD_DIM], swizzled
            element* o_smem = rows_smem + warp * WARP_ROWS * HEAD_DIM;
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int row = t * 16 + lane / 4 + r * 8;
                    const float inv_l = 1.0f / row_sum(l_rmem[t][r]);
                    STORE_LSE(pair == 0 && m0 + warp * WARP_ROWS + row < seqlen,
                              q_head / HEAD_DIM + m0 + warp * WARP_ROWS + row, m_scaled[t][r],
                              inv_l);
#pragma unroll
                    for (int tile = 0; tile < HEAD_DIM / 8; tile++) {
                        const float(&o)[4] = acc_rmem[t][tile];
                        *reinterpret_cast<element2*>(o_smem + swizzled(row, tile * 8) + pair) =
                            to_element2(o[2 * r] * inv_l, o[2 * r + 1] * inv_l);
                    }
                }
            }
            // Each warp stores its own rows, 16 bytes a lane; other lanes wrote them.
            __syncwarp();
#pragma unroll
            for (int first = 0; first < WARP_ROWS * HEAD_DIM / VECTOR; first += 32) {
                const int row = (first + lane) / (HEAD_DIM / VECTOR);
                const int d = (first + lane) % (HEAD_DIM / VECTOR) * VECTOR;
                const int query = m0 + warp * WARP_ROWS + row;
                if (query < seqlen) {
                    *reinterpret_cast<uint4*>(out + q_head + (size_t)query * HEAD_DIM + d) =
                        *reinterpret_cast<const uint4*>(o_smem + swizzled(row, d));
                }
            }
        }
        // The next piece's copies overwrite Q and O, which slower warps are still reading.
        __syncthreads();

        position = 0;
        if (--tile_index < 0) {
            tile_index = query_tiles - 1;
            head++;
        }
    }
}
