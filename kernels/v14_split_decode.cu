// v14 Split decode: few queries, many keys; grouped heads fill the rows of one tensor-core tile.
// Idea: decoding is bound by reading all K/V once: keep as many loads in flight as possible.
// Changed: against v12, rewritten for decoding: heads packed, a ring a warp, splits, clusters.
// Limiter: DRAM bandwidth, once the splits fill the GPU.
// Constraints: sm_75, BF16 sm_80; D in {32, 64, 96, 128, 256}; B <= 65535; clusters from sm_90.
// Passes: 1, attention_forward; grid (num_splits, num_heads_kv * row tiles, batch), 32 num_warps.
// Source: Flash-Decoding (Dao et al., 2023); v06's arrival counter; FlashAttention packs GQA alike.
// Weakness: one query of an ungrouped head fills 1 row of 16; the last CTA of a head fuses alone.
/* attune
idea = "Decoding: grouped heads in one tile, a ring per warp, even splits, fused by the last CTA."
head_dims = [32, 64, 96, 128, 256]
min_compute_capability = 7.5
gqa = true
takes = ["kv_offset", "window", "softcap", "alibi", "sinks", "varlen", "kv_fp8", "lse"]
let.block_m = 16
let.row_tiles = "ceil_div(seqlen * (num_heads // num_heads_kv), block_m)"

[tunables]
num_warps = {values = [2, 4, 8], default = 4, meaning = "warps per CTA, with tiles in turn"}
block_n = {values = [16, 32], default = 16, meaning = "K/V rows per tile of one warp"}
stages = {values = [2, 3, 4], default = 3, meaning = "K/V tiles in the ring of one warp"}
num_splits = {values = [1, 2, 4, 8, 16, 32, 64], default = 4, meaning = "number of KV splits"}
cluster_size = {values = [1, 2, 4, 8], default = 1, meaning = "splits per cluster (from sm_90 on)"}

[[constraints]]
# At most 128 KB, or 96 KB at D = 256, which fit on sm_86 and sm_89, too.
condition = """num_warps * stages * block_n * head_dim * kv_element_bytes \
               <= (65536 if head_dim <= 128 else 49152)"""
sentence = """v14 keeps {num_warps} rings of {stages} tiles in shared memory, too large with \
              D={head_dim}: lower num_warps, stages or block_n."""

[[constraints]]
condition = "num_splits % cluster_size == 0"
sentence = """v14 fuses {cluster_size} splits on chip, more than the {num_splits} there are: \
              raise num_splits, or lower cluster_size."""

[[constraints]]
condition = "head_dim % (4 * num_warps * cluster_size) == 0"
sentence = """v14 has {cluster_size} CTAs fuse equal parts of a row, whole pairs of columns each, \
              into which D={head_dim} does not divide: lower cluster_size or num_warps."""

[scratch]
o_partial = {shape = ["num_splits // cluster_size", "batch", "num_heads", "seqlen", "head_dim"]}
m_partial = {shape = ["num_splits", "batch", "num_heads", "seqlen"]}
l_partial = {shape = ["num_splits", "batch", "num_heads", "seqlen"]}
arrivals.shape = ["batch", "num_heads_kv", "row_tiles", "cluster_size"]
arrivals.dtype = "int32"
arrivals.fill = "zero"

[[passes]]
entry = "attention_forward"
grid = ["num_splits", "num_heads_kv * row_tiles", "batch"]
threads = "32 * num_warps"
cluster = ["cluster_size", 1, 1]
# A ring of K and V for each warp, later its O; m and l as floats.
smem_bytes = """num_warps * (max(2 * stages * block_n * head_dim * kv_element_bytes, \
                             block_m * (head_dim + 8) * 4) + 2 * block_m * 4)"""
args = ["q", "k", "v", "out", "o_partial", "m_partial", "l_partial", "arrivals", "num_heads",
        "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale",
        "alibi_slopes", "sinks", "seqlens", "k_scale", "v_scale",
        "lse"]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "ceil_div(ceil_div(seqlen_kv, block_n), num_splits) * block_n"
conflict_ways = 1
*/
#include "arrival.cuh"
#include "async_copy.cuh"
#include "cluster.cuh"
#include "exp2.cuh"
#include "features.cuh"
#include "fp8.cuh"
#include "mma.cuh"
#include "rows.cuh"

constexpr int BLOCK_M = 16;  // packed query rows per CTA: one mma tile
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int DIM_STEPS = HEAD_DIM / 16;
constexpr int KEY_TILES = BLOCK_N / 8;
constexpr int VECTOR = 16 / sizeof(kv_element);  // elements of K and V per 16-byte access
constexpr int TILE = BLOCK_N * HEAD_DIM;  // elements of K or V in a tile
// Elements of one warp's ring, or of its O, which overwrites the ring: with FP8 O may be larger.
constexpr int RING = 2 * STAGES * TILE * (int)sizeof(kv_element) >= BLOCK_M * (HEAD_DIM + 8) * 4
                         ? 2 * STAGES * TILE
                         : BLOCK_M * (HEAD_DIM + 8) * 4 / (int)sizeof(kv_element);
// Floats: 8 of padding put 4 rows in 4 groups of 8 banks; the ring has room for it.
constexpr int O_STRIDE = HEAD_DIM + 8;
constexpr int MERGE_THREADS = NUM_THREADS / BLOCK_M;         // threads that merge one row
constexpr int MERGE_PAIRS = HEAD_DIM / (2 * MERGE_THREADS);  // pairs of columns for each
constexpr int PARTS = NUM_SPLITS / CLUSTER_SIZE;             // partial results to fuse in memory
constexpr int SHARE_PAIRS = MERGE_PAIRS / CLUSTER_SIZE;      // of a thread, across a cluster

static_assert(NUM_WARPS == 2 || NUM_WARPS == 4 || NUM_WARPS == 8,
              "num_warps must be 2, 4 or 8: 16 threads merge the 16 pairs of a row of D = 32");
static_assert(BLOCK_N == 16 || BLOCK_N == 32,
              "block_n must be 16 or 32: an mma takes 16, and every warp has a ring of its own");
static_assert(STAGES >= 2 && STAGES <= 4,
              "stages must be 2 to 4: one tile is computed while the others arrive");
static_assert(NUM_SPLITS >= 1, "num_splits must be at least 1: one split visits all keys");
static_assert(NUM_SPLITS % CLUSTER_SIZE == 0 && MERGE_PAIRS % CLUSTER_SIZE == 0,
              "cluster_size must divide num_splits, and the pairs: CTAs fuse equal shares");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 256,
              "head_dim must be a multiple of 32 up to 256: Q and O stay in registers");

// Position of a chunk of 8 elements in its row, as in v09.
__device__ __forceinline__ int swizzled(int row, int d) {
    const int spread = SPREAD_OF(row);
    return row * HEAD_DIM + (d ^ spread * VECTOR);
}

// Starts a warp's copies of a tile's rows, of which `length` are there.
__device__ __forceinline__ void load_tile(kv_element* tile_smem,  // [BLOCK_N, HEAD_DIM], swizzled
                                          const kv_element* source,  // [length, HEAD_DIM]
                                          int length) {
    constexpr int VECTORS_PER_ROW = HEAD_DIM / VECTOR;
#pragma unroll
    for (int first = 0; first < BLOCK_N * VECTORS_PER_ROW; first += 32) {
        const int i = first + threadIdx.x % 32;
        const int row = i / VECTORS_PER_ROW;
        const int d = i % VECTORS_PER_ROW * VECTOR;
        // Rows past the end are zero-filled: stale data could be NaN, and NaN * 0 is NaN.
        cp_async_16(tile_smem + swizzled(row, d), source + (size_t)row * HEAD_DIM + d,
                    row < length);
    }
}

// The 1: one resident CTA is enough, so ptxas may use as many registers as it needs, see v02.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const element* __restrict__ q,   // [batch, num_heads, seqlen, HEAD_DIM]
                  const kv_element* __restrict__ k,   // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  const kv_element* __restrict__ v,   // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  element* __restrict__ out,       // [batch, num_heads, seqlen, HEAD_DIM]
                  float* __restrict__ o_partial,   // [PARTS, batch, num_heads, seqlen, HEAD_DIM]
                  float* __restrict__ m_partial,   // [splits, batch, num_heads, seqlen]
                  float* __restrict__ l_partial,   // [splits, batch, num_heads, seqlen]
                  int* __restrict__ arrivals,      // [batch, num_heads_kv, row tiles, CLUSTER_SIZE]
                  int num_heads, int num_heads_kv, int seqlen, int seqlen_kv,
                  float softmax_scale FEATURE_PARAMETERS) {
    extern __shared__ __align__(128) unsigned char smem[];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    kv_element* ring = reinterpret_cast<kv_element*>(smem) + warp * RING;  // this warp's own
    float* m_smem =
        reinterpret_cast<float*>(reinterpret_cast<kv_element*>(smem) + NUM_WARPS * RING);
    float* l_smem = m_smem + NUM_WARPS * BLOCK_M;  // both [NUM_WARPS, BLOCK_M]

    // Packed rows: for every query, the query heads of one K/V head side by side.
    const int group = num_heads / num_heads_kv;
    const Features given = FEATURES_GIVEN;
    OWN_LENGTHS(given, blockIdx.z);
    const int num_rows = NUM_QUERIES * group;
    const int row_tiles = (seqlen * group + BLOCK_M - 1) / BLOCK_M;
    const int kv_head_index = blockIdx.y / row_tiles;
    const int row0 = blockIdx.y % row_tiles * BLOCK_M;  // this CTA's first packed row
    const int split = blockIdx.x;
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t kv_index = (size_t)blockIdx.z * num_heads_kv + kv_head_index;
    const kv_element* k_head = k + kv_index * seqlen_kv * HEAD_DIM;
    const kv_element* v_head = v + kv_index * seqlen_kv * HEAD_DIM;
    // Index of a packed row in [batch, num_heads, seqlen].
    const auto row_index = [&](int row) {
        const size_t head = (size_t)blockIdx.z * num_heads + kv_head_index * group + row % group;
        return head * seqlen + row / group;
    };

    if (HAS_VARLEN && row0 >= num_rows) return;  // the sequence ends before this tile
    const auto head_of = [&](int row) { return kv_head_index * group + row % group; };

    // Q as the left operand, as in v08: rows lane / 4 and lane / 4 + 8.
    const int pair = 2 * (lane % 4);  // first of a lane's two columns
    unsigned q_rmem[DIM_STEPS][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = row0 + lane / 4 + r * 8;
        const bool valid = row < num_rows;  // rows past the end: any finite value would do
        const element* source = q + row_index(valid ? row : 0) * HEAD_DIM + Q_COLUMN(pair);
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                ElementPair elements;
                elements.bits = 0;
                if (valid) {
                    elements.elements =
                        *reinterpret_cast<const element2*>(source + step * 16 + HALF_OF_Q(half));
                }
                q_rmem[step][half * 2 + r] = elements.bits;
            }
        }
    }

    float acc_rmem[HEAD_DIM / 8][4] = {};      // O over this warp's keys, not divided by l
    float m_rmem[2] = {-INFINITY, -INFINITY};  // maxima of the unscaled scores
    float l_rmem[2] = {0.0f, 0.0f};            // sums over this lane's keys only
#if HAS_KV_FP8
    softmax_scale *= given.k_scale[kv_head_index] * FP8_UNIT;  // applied to unscaled scores
#endif
    const float scale_log2 = softmax_scale * LOG2_E;

    // Causal: no row of this tile sees a key past its last query.
    const int last_query = min(num_rows, row0 + BLOCK_M) - 1;
    const int end = POSITION_OF(last_query / group + 1);
    const int kv_end = END_OF_KEYS(end);
    // Even splits: numbers of tiles differ by at most one. 64-bit: tiles * splits may be large.
    // Tiles before all windows are skipped.
    const int before = FIRST_KEY(POSITION_OF(row0 / group)) / BLOCK_N;
    const int tiles = (kv_end + BLOCK_N - 1) / BLOCK_N - before;
    const int first_tile = before + (int)((long long)tiles * split / NUM_SPLITS);
    const int end_tile = before + (int)((long long)tiles * (split + 1) / NUM_SPLITS);

    // Commits a group for every tile, copied or not, so that groups in flight can be counted.
    const auto start_copies = [&](int stage, int tile) {
        if (tile < end_tile) {
            const size_t start = (size_t)tile * BLOCK_N * HEAD_DIM;
            load_tile(ring + 2 * stage * TILE, k_head + start, NUM_KEYS - tile * BLOCK_N);
            load_tile(ring + (2 * stage + 1) * TILE, v_head + start, NUM_KEYS - tile * BLOCK_N);
        }
        cp_async_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) start_copies(i, first_tile + warp + i * NUM_WARPS);

    int stage = 0;  // of this tile
    for (int tile = first_tile + warp; tile < end_tile; tile += NUM_WARPS) {
        cp_async_wait<STAGES - 2>();
        // All lanes' copies of this tile have arrived, and no lane reads the previous one any more.
        // No other warp uses this ring.
        __syncwarp();
        start_copies(stage == 0 ? STAGES - 1 : stage - 1, tile + (STAGES - 1) * NUM_WARPS);
        const kv_element* k_smem = ring + 2 * stage * TILE;  // [BLOCK_N, HEAD_DIM]
        const kv_element* v_smem = k_smem + TILE;            // [BLOCK_N, HEAD_DIM]
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        const int n0 = tile * BLOCK_N;

        // S = Q @ K^T [BLOCK_M, BLOCK_N], as in v08.
        float s_rmem[KEY_TILES][4] = {};
#if HAS_KV_FP8
        // A fragment of 8 keys by 16 bytes holds, of each key, four neighbouring columns in a lane,
        // not twice two. Q was loaded in the same order, and the sum does not depend on it.
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step += 2) {
#pragma unroll
            for (int key_step = 0; key_step < BLOCK_N / 16; key_step++) {
                const int row = key_step * 16 + lane / 16 * 8 + lane % 8;
                unsigned k_rmem[4];
                ldmatrix_x4(k_rmem, shared_address(
                                        k_smem + swizzled(row, (step + lane / 8 % 2) * 16)));
#pragma unroll
                for (int i = 0; i < 4; i++) {  // bit 0: the second step, bit 1: the last 8 keys
                    mma_m16n8k16(s_rmem[2 * key_step + i / 2], q_rmem[step + i % 2],
                                 widened_low(k_rmem[i]), widened_high(k_rmem[i]));
                }
            }
        }
#else
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
#pragma unroll
            for (int key_step = 0; key_step < BLOCK_N / 16; key_step++) {
                const int row = key_step * 16 + lane / 16 * 8 + lane % 8;
                unsigned k_rmem[4];
                ldmatrix_x4(k_rmem, k_smem + swizzled(row, step * 16 + lane / 8 % 2 * 8));
                mma_m16n8k16(s_rmem[2 * key_step], q_rmem[step], k_rmem[0], k_rmem[1]);
                mma_m16n8k16(s_rmem[2 * key_step + 1], q_rmem[step], k_rmem[2], k_rmem[3]);
            }
        }
#endif
        if constexpr (HAS_SCORE_MOD) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int row = min(row0 + lane / 4 + r * 8, num_rows - 1);
                const ScoreMod score_mod = score_mod_of(given, head_of(row), softmax_scale);
                const int position = POSITION_OF(row / group);
#pragma unroll
                for (int t = 0; t < KEY_TILES; t++) {
#pragma unroll
                    for (int i = 2 * r; i < 2 * r + 2; i++) {
                        const int key = n0 + t * 8 + pair + i % 2;
                        s_rmem[t][i] = score_mod(s_rmem[t][i], position - key);
                    }
                }
            }
        }
        if (n0 + BLOCK_N > END_SEEN_BY_ALL(POSITION_OF(row0 / group)) ||
            IS_BEFORE_A_WINDOW(n0, end)) {
#pragma unroll
            for (int t = 0; t < KEY_TILES; t++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {  // bit 0: the second column, bit 1: the second row
                    const int key = n0 + t * 8 + pair + i % 2;
                    const int query = (row0 + lane / 4 + i / 2 * 8) / group;
                    const bool visible =
                        IS_VISIBLE(key, POSITION_OF(query));
                    if (!visible) s_rmem[t][i] = -INFINITY;
                }
            }
        }

        // Online softmax. A causal row may have seen no key yet: -inf - -inf would be NaN.
        float m_scaled[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float m_new = m_rmem[r];
#pragma unroll
            for (int t = 0; t < KEY_TILES; t++) {
                m_new = fmaxf(m_new, fmaxf(s_rmem[t][2 * r], s_rmem[t][2 * r + 1]));
            }
            m_new = row_max(m_new);
            m_scaled[r] = m_new == -INFINITY ? 0.0f : m_new * scale_log2;
            const float correction = fast_exp2(m_rmem[r] * scale_log2 - m_scaled[r]);
            m_rmem[r] = m_new;
            l_rmem[r] *= correction;
#pragma unroll
            for (int t = 0; t < HEAD_DIM / 8; t++) {
                acc_rmem[t][2 * r] *= correction;
                acc_rmem[t][2 * r + 1] *= correction;
            }
        }
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s_rmem[t][i] = fast_exp2(s_rmem[t][i] * scale_log2 - m_scaled[i / 2]);
                l_rmem[i / 2] += s_rmem[t][i];
            }
        }

        // O += P @ V [BLOCK_M, HEAD_DIM]: two tiles of S side by side are one left operand.
#pragma unroll
        for (int key_step = 0; key_step < BLOCK_N / 16; key_step++) {
            const float(&left)[4] = s_rmem[2 * key_step];
            const float(&right)[4] = s_rmem[2 * key_step + 1];
            const unsigned p_rmem[4] = {pack(left[0], left[1]), pack(left[2], left[3]),
                                        pack(right[0], right[1]), pack(right[2], right[3])};
#if HAS_KV_FP8
            // Transposed pairs of bytes: two columns of a lane's two keys. The even columns of 16
            // are one tile of O, the odd ones the next.
#pragma unroll
            for (int step = 0; step < DIM_STEPS; step += 2) {
                const int row = key_step * 16 + lane % 16;
                unsigned v_rmem[4];
                ldmatrix_x4_transposed(
                    v_rmem, shared_address(v_smem + swizzled(row, (step + lane / 16) * 16)));
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const unsigned first = v_rmem[2 * i], last = v_rmem[2 * i + 1];  // 8 keys each
                    mma_m16n8k16(acc_rmem[2 * (step + i)], p_rmem, widened_even(first),
                                 widened_even(last));
                    mma_m16n8k16(acc_rmem[2 * (step + i) + 1], p_rmem, widened_odd(first),
                                 widened_odd(last));
                }
            }
#else
#pragma unroll
            for (int step = 0; step < DIM_STEPS; step++) {
                const int row = key_step * 16 + lane % 16;
                unsigned v_rmem[4];
                ldmatrix_x4_transposed(v_rmem,
                                       v_smem + swizzled(row, step * 16 + lane / 16 * 8));
                mma_m16n8k16(acc_rmem[2 * step], p_rmem, v_rmem[0], v_rmem[1]);
                mma_m16n8k16(acc_rmem[2 * step + 1], p_rmem, v_rmem[2], v_rmem[3]);
            }
#endif
        }
    }
    // Every lane has read its last tile: O takes the ring's place.
    __syncwarp();

    // Each warp stores its (O, m, l); all lanes of a row hold its m, and its l is summed here.
    float* o_smem = reinterpret_cast<float*>(ring);  // [BLOCK_M, O_STRIDE]
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = lane / 4 + r * 8;
        const float l = row_sum(l_rmem[r]);
        if (pair == 0) {
            m_smem[warp * BLOCK_M + row] = m_rmem[r];
            l_smem[warp * BLOCK_M + row] = l;
        }
#if HAS_KV_FP8
#pragma unroll
        for (int t = 0; t < HEAD_DIM / 8; t += 2) {
            *reinterpret_cast<float4*>(o_smem + row * O_STRIDE + t * 8 + 2 * pair) =
                make_float4(acc_rmem[t][2 * r], acc_rmem[t + 1][2 * r], acc_rmem[t][2 * r + 1],
                            acc_rmem[t + 1][2 * r + 1]);
        }
#else
#pragma unroll
        for (int t = 0; t < HEAD_DIM / 8; t++) {
            *reinterpret_cast<float2*>(o_smem + row * O_STRIDE + t * 8 + pair) =
                make_float2(acc_rmem[t][2 * r], acc_rmem[t][2 * r + 1]);
        }
#endif
    }
    // All warps have stored their partial results, which are now merged.
    __syncthreads();

    const int tile_row = threadIdx.x / MERGE_THREADS;
    const int part = threadIdx.x % MERGE_THREADS;
    const int row = row0 + tile_row;
    const bool has_row = row < num_rows;
    const size_t out_row = row_index(has_row ? row : 0);

    // m = max over warps; -inf if this split has no key for the row.
    float m = -INFINITY;
#pragma unroll
    for (int w = 0; w < NUM_WARPS; w++) m = fmaxf(m, m_smem[w * BLOCK_M + tile_row]);
    const float m_finite = m == -INFINITY ? 0.0f : m;
    float2 merged_rmem[MERGE_PAIRS] = {};
    float l = 0.0f;
#pragma unroll
    for (int w = 0; w < NUM_WARPS; w++) {
        const float weight = fast_exp2((m_smem[w * BLOCK_M + tile_row] - m_finite) * scale_log2);
        l += weight * l_smem[w * BLOCK_M + tile_row];
        const kv_element* slab = reinterpret_cast<const kv_element*>(smem) + w * RING;
        const float* o_row = reinterpret_cast<const float*>(slab) + tile_row * O_STRIDE;
#pragma unroll
        for (int j = 0; j < MERGE_PAIRS; j++) {
            const float2 o =
                *reinterpret_cast<const float2*>(o_row + 2 * (part + j * MERGE_THREADS));
            merged_rmem[j].x += weight * o.x;
            merged_rmem[j].y += weight * o.y;
        }
    }

    // The CTAs of a cluster fuse their splits on chip, each a share of the columns.
    const int rank = split % CLUSTER_SIZE;
    float2 share_rmem[SHARE_PAIRS];
    if constexpr (CLUSTER_SIZE == 1) {
#pragma unroll
        for (int j = 0; j < SHARE_PAIRS; j++) share_rmem[j] = merged_rmem[j];
    } else {
        // Next, warp 0's part is overwritten. Its O was read by this thread alone, its m and l also
        // by the other lanes of the row.
        __syncwarp();
        float* o_row = reinterpret_cast<float*>(smem) + tile_row * O_STRIDE;
        if (part == 0) {
            m_smem[tile_row] = m;
            l_smem[tile_row] = l;
        }
#pragma unroll
        for (int j = 0; j < MERGE_PAIRS; j++) {
            *reinterpret_cast<float2*>(o_row + 2 * (part + j * MERGE_THREADS)) = merged_rmem[j];
        }
        // Every CTA reads the partial results of all of them.
        cluster_arrive();
        cluster_wait();
        float m_of[CLUSTER_SIZE];
        m = -INFINITY;
#pragma unroll
        for (int r = 0; r < CLUSTER_SIZE; r++) {
            m_of[r] = load_of_cta(m_smem + tile_row, r);
            m = fmaxf(m, m_of[r]);
        }
        const float m_known = m == -INFINITY ? 0.0f : m;
        l = 0.0f;
#pragma unroll
        for (int j = 0; j < SHARE_PAIRS; j++) share_rmem[j] = make_float2(0.0f, 0.0f);
        const float* share = o_row + rank * (HEAD_DIM / CLUSTER_SIZE);
#pragma unroll
        for (int r = 0; r < CLUSTER_SIZE; r++) {
            const float weight = fast_exp2((m_of[r] - m_known) * scale_log2);
            l += weight * load_of_cta(l_smem + tile_row, r);
#pragma unroll
            for (int j = 0; j < SHARE_PAIRS; j++) {
                const float2 o = load_2_of_cta(share + 2 * (part + j * MERGE_THREADS), r);
                share_rmem[j].x += weight * o.x;
                share_rmem[j].y += weight * o.y;
            }
        }
        // This CTA no longer reads the shared memory of the others.
        cluster_arrive();
    }
    // This thread's pairs of columns, every MERGE_THREADS-th.
    const int d0 = rank * (HEAD_DIM / CLUSTER_SIZE) + 2 * part;

    const size_t all_rows = (size_t)gridDim.z * num_heads * seqlen;
    if constexpr (PARTS > 1) {
        // Each CTA has its own m and l: its columns are fused by the CTA of the same rank.
        const size_t partial_row = split * all_rows + out_row;
        if (has_row && part == 0) {
            m_partial[partial_row] = m;
            l_partial[partial_row] = l;
        }
        if (has_row && m > -INFINITY) {  // for a row without keys, m = -inf, and O is not read
            float* o_row = o_partial + (split / CLUSTER_SIZE * all_rows + out_row) * HEAD_DIM;
#pragma unroll
            for (int j = 0; j < SHARE_PAIRS; j++) {
                *reinterpret_cast<float2*>(o_row + d0 + 2 * j * MERGE_THREADS) = share_rmem[j];
            }
        }
    }
    // Other CTAs may still be reading this CTA's shared memory, which is freed when it returns.
    if constexpr (CLUSTER_SIZE > 1) cluster_wait();
    if constexpr (PARTS > 1) {
        // Thread 0 arrives for the whole CTA, so all of its threads must have written.
        __syncthreads();
        const size_t tile_index = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
        int* tile_arrivals = arrivals + tile_index * CLUSTER_SIZE + rank;
        const bool came_last = threadIdx.x == 0 && arrive_at_counter(tile_arrivals) == PARTS - 1;
        // Only thread 0 knows whether this CTA is last: the barrier broadcasts it, and makes what
        // the other splits wrote visible.
        if (!__syncthreads_or(came_last)) return;
        if (threadIdx.x == 0) *tile_arrivals = 0;  // reset for the next launch
        if (!has_row) return;

        // The same sum over parts, in their order, so that the result is bitwise the same whichever
        // CTA is last.
        m = -INFINITY;
        for (int p = 0; p < PARTS; p++) {
            m = fmaxf(m, m_partial[(p * CLUSTER_SIZE + rank) * all_rows + out_row]);
        }
        l = 0.0f;
#pragma unroll
        for (int j = 0; j < SHARE_PAIRS; j++) share_rmem[j] = make_float2(0.0f, 0.0f);
        for (int p = 0; p < PARTS; p++) {
            const size_t row_of_part = (p * CLUSTER_SIZE + rank) * all_rows + out_row;
            const float m_part = m_partial[row_of_part];
            if (m_part == -INFINITY) continue;  // empty for this row: its O was never written
            const float weight = fast_exp2((m_part - m) * scale_log2);
            l += weight * l_partial[row_of_part];
            const float* o_row = o_partial + (p * all_rows + out_row) * HEAD_DIM;
#pragma unroll
            for (int j = 0; j < SHARE_PAIRS; j++) {
                const float2 o =
                    *reinterpret_cast<const float2*>(o_row + d0 + 2 * j * MERGE_THREADS);
                share_rmem[j].x += weight * o.x;
                share_rmem[j].y += weight * o.y;
            }
        }
    }
    if (!has_row) return;

    // O = O / l, two columns a store.
    l = with_sink(l, given, head_of(row), m * scale_log2);
    STORE_LSE(d0 == 0, out_row, m * scale_log2, 1.0f / l);
#if HAS_KV_FP8
    const float inv_l = given.v_scale[kv_head_index] * FP8_UNIT / l;
#else
    const float inv_l = 1.0f / l;
#endif
#pragma unroll
    for (int j = 0; j < SHARE_PAIRS; j++) {
        *reinterpret_cast<element2*>(out + out_row * HEAD_DIM + d0 + 2 * j * MERGE_THREADS) =
            to_element2(share_rmem[j].x * inv_l, share_rmem[j].y * inv_l);
    }
}
