// v12 One shot: for few keys; the warps of a CTA share 16 query rows, each takes its keys at once.
// Idea: where every launch is too short to pipeline, spread one tile's keys and wait only once.
// Changed: against v08, warps split K, not Q; K skips shared memory; no K/V loop, so no rescale.
// Limiter: latency from first load to last store; with many heads, reading all K/V for each CTA.
// Constraints: from sm_75, BF16 from sm_80; D in {32, 64, 96, 128}; KV <= num_warps keys_per_warp.
// Passes: 1, attention_forward; grid (ceil(S / (16 row_tiles)), num_heads, batch), 32 num_warps.
// Source: Flash-Decoding's split and log-sum-exp merge (v05), inside one CTA.
// Weakness: KV <= 512; causal warps whose keys lie past the diagonal idle; 4-byte output stores.
// Counted: 4,000 instructions a CTA at S = 128, D = 64 on sm_90 (4,264 with a division of heads).
// Simulated on an H200, all of Q and K asked for before V: S = 64, 128, 256, 512 at B·H = 1 take
//   2.0, 2.2, 2.7, 3.6 us (with V first and the division 2.2, 2.5, 2.9, 3.8); S = 128 at B·H = 256
//   takes 9.1 us, aimed at 3.9: every 32 rows read K and V again.
/* attune
idea = "Short S: the warps of a CTA split the keys, take them at once, merge on chip."
head_dims = [32, 64, 96, 128]
min_compute_capability = 7.5
gqa = true
let.block_m = "16 * row_tiles"
let.max_keys = "num_warps * keys_per_warp"

[tunables]
num_warps = {values = [2, 4, 8], default = 4, meaning = "warps per CTA, which split the keys"}
keys_per_warp = {values = [16, 32, 64], default = 32, meaning = "keys each warp takes at once"}
row_tiles = {values = [1, 2], default = 1, meaning = "16-row tiles per CTA, which share K/V"}

[[constraints]]
condition = "seqlen_kv <= max_keys"
sentence = """v12 keeps all keys of a head in one CTA, here {max_keys}, and there are \
              {seqlen_kv:,}: raise num_warps or keys_per_warp, or choose a variant that loops."""

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = "32 * num_warps"
# Of each warp: V in rows padded by 8 elements and then, in its place, O in rows padded by 8 floats;
# m and l as floats.
smem_bytes = """num_warps * (max(keys_per_warp * element_bytes, block_m * 4) * (head_dim + 8)
                             + 2 * block_m * 4)"""
args = ["q", "k", "v", "out", "num_heads", "num_heads_kv", "seqlen", "seqlen_kv",
        {name = "kv_heads_per_head", ctype = "float32", value = "num_heads_kv / num_heads"},
        "softmax_scale"]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "max_keys"
conflict_ways = 1
*/
#include "async_copy.cuh"
#include "exp2.cuh"
#include "mma.cuh"

constexpr int BLOCK_M = 16 * ROW_TILES;  // query rows per CTA: an mma tile has 16
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int KEY_TILES = KEYS_PER_WARP / 8;  // an mma yields 8 columns of S
constexpr int DIM_BLOCKS = HEAD_DIM / 32;     // 16 bytes of a row for each of four lanes
// Blocks of Q and K loaded before any is multiplied: all, unless they take too many registers.
constexpr int BLOCK_REGISTERS = 4 * (KEY_TILES + 2 * ROW_TILES);
constexpr int BLOCKS_AHEAD = BLOCK_REGISTERS * DIM_BLOCKS <= 160 ? DIM_BLOCKS : 1;
constexpr int VECTOR = 8;                     // elements per 16-byte access
constexpr int V_STRIDE = HEAD_DIM + VECTOR;   // elements; padded as in v03
// Floats. Half a warp stores 8 columns of 4 rows, which 8 of padding put in 4 groups of 8 banks.
constexpr int O_STRIDE = HEAD_DIM + 8;
constexpr int V_BYTES = KEYS_PER_WARP * V_STRIDE * (int)sizeof(element);
constexpr int O_BYTES = BLOCK_M * O_STRIDE * (int)sizeof(float);
constexpr int SLAB_BYTES = V_BYTES > O_BYTES ? V_BYTES : O_BYTES;  // of one warp: V, later O
constexpr int MERGE_THREADS = NUM_THREADS / 16;              // threads that merge one row
constexpr int MERGE_PAIRS = HEAD_DIM / (2 * MERGE_THREADS);  // pairs of columns for each
constexpr unsigned FULL_WARP = 0xffffffffu;

static_assert(NUM_WARPS == 2 || NUM_WARPS == 4 || NUM_WARPS == 8,
              "num_warps must be 2, 4 or 8: 16 threads merge the 16 pairs of a row of D = 32");
static_assert(KEYS_PER_WARP == 16 || KEYS_PER_WARP == 32 || KEYS_PER_WARP == 64,
              "keys_per_warp must be 16, 32 or 64: an mma takes 16, and S stays in registers");
static_assert(ROW_TILES == 1 || ROW_TILES == 2,
              "row_tiles must be 1 or 2: S and O of every tile stay in registers");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128,
              "head_dim must be a multiple of 32 up to 128: four lanes load 16 bytes each");

// Maximum and sum over the 4 neighbouring lanes that hold one row; all of them get it.
__device__ __forceinline__ float row_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

__device__ __forceinline__ float row_sum(float x) {
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

// Eight elements of one row as four pairs; zeros past the end.
__device__ __forceinline__ uint4 load_8(const element* head,  // [length, HEAD_DIM]
                                        int row, int d, int length) {
    if (row >= length) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(head + (size_t)row * HEAD_DIM + d);
}

// The 1 lets ptxas use the registers it wants, as in v02.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM]
                  int num_heads, int num_heads_kv, int seqlen, int seqlen_kv,
                  float kv_heads_per_head, float softmax_scale) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    float* o_smem = reinterpret_cast<float*>(smem + warp * SLAB_BYTES);      // [BLOCK_M, O_STRIDE]
    element* v_smem = reinterpret_cast<element*>(smem + warp * SLAB_BYTES);  // [keys, V_STRIDE]
    float* m_smem = reinterpret_cast<float*>(smem + NUM_WARPS * SLAB_BYTES);
    float* l_smem = m_smem + NUM_WARPS * BLOCK_M;  // both [NUM_WARPS, BLOCK_M]

    const int group = lane / 4;           // this lane's rows of a fragment: group, group + 8
    const int pair = 2 * (lane % 4);      // first of its two columns
    // The query tile is the fastest axis, and causal the longest tiles start first, as in v08.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * BLOCK_M;  // first query row of this CTA
    const int n0 = warp * KEYS_PER_WARP;  // first key of this warp
    const float scale_log2 = softmax_scale * LOG2_E;
    // K and V wait for this product and no division: half a head is more than it can be off by.
    const int kv_head_index = (int)((blockIdx.y + 0.5f) * kv_heads_per_head);
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t q_index = (size_t)blockIdx.z * num_heads + blockIdx.y;
    const size_t kv_index = (size_t)blockIdx.z * num_heads_kv + kv_head_index;
    const size_t q_head = q_index * seqlen * HEAD_DIM;       // where this head's Q and O begin
    const size_t kv_head = kv_index * seqlen_kv * HEAD_DIM;  // and its K and V

    float acc_rmem[ROW_TILES][HEAD_DIM / 8][4] = {};  // O over this warp's keys, not divided by l
    float m_rmem[ROW_TILES][2];                       // maxima of the unscaled scores
    float l_rmem[ROW_TILES][2] = {};
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) m_rmem[t][0] = m_rmem[t][1] = -INFINITY;

    // A warp whose keys lie past the end, or past the diagonal, keeps m = -inf and O = 0.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv;
    if (n0 < kv_end) {
        // S = Q @ K^T [BLOCK_M, KEYS_PER_WARP], both operands straight from global memory. The
        // order of the summands is free, so a lane's 16 bytes serve as the pairs of two steps: what
        // the mma takes for columns 2t, 2t + 1, 2t + 8, 2t + 9 are columns 8t to 8t + 3, and then
        // 8t + 4 to 8t + 7, in Q and in K alike. Four lanes read 64 bytes in a row. All loads are
        // under way before the first is waited for.
        uint4 q_rmem[DIM_BLOCKS][ROW_TILES][2], k_rmem[DIM_BLOCKS][KEY_TILES];
        const auto load_block = [&](int block) {
            const int d = block * 32 + pair * 4;
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                const int row = m0 + t * 16 + group;
                q_rmem[block][t][0] = load_8(q + q_head, row, d, seqlen);
                q_rmem[block][t][1] = load_8(q + q_head, row + 8, d, seqlen);
            }
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; tile++) {
                k_rmem[block][tile] = load_8(k + kv_head, n0 + tile * 8 + group, d, seqlen_kv);
            }
        };
#pragma unroll
        for (int block = 0; block < BLOCKS_AHEAD; block++) load_block(block);

        // V behind them: its copy runs beside all of S and the softmax.
#pragma unroll
        for (int first = 0; first < KEYS_PER_WARP * HEAD_DIM / VECTOR; first += 32) {
            const int row = (first + lane) / (HEAD_DIM / VECTOR);
            const int d = (first + lane) % (HEAD_DIM / VECTOR) * VECTOR;
            const bool valid = n0 + row < seqlen_kv;  // zeros past the end: NaN * 0 would be NaN
            cp_async_16(v_smem + row * V_STRIDE + d,
                        v + kv_head + (size_t)(valid ? n0 + row : 0) * HEAD_DIM + d, valid);
        }

        float s_rmem[ROW_TILES][KEY_TILES][4] = {};
#pragma unroll
        for (int block = 0; block < DIM_BLOCKS; block++) {
            if (block + BLOCKS_AHEAD < DIM_BLOCKS) load_block(block + BLOCKS_AHEAD);
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                const uint4 upper = q_rmem[block][t][0], lower = q_rmem[block][t][1];
                const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y};
                const unsigned second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
                for (int tile = 0; tile < KEY_TILES; tile++) {
                    const uint4 keys = k_rmem[block][tile];
                    mma_m16n8k16(s_rmem[t][tile], first, keys.x, keys.y);
                    mma_m16n8k16(s_rmem[t][tile], second, keys.z, keys.w);
                }
            }
        }

        // Only keys across the end or across the diagonal have anything to mask.
        if (n0 + KEYS_PER_WARP > (IS_CAUSAL ? min(seqlen_kv, m0 + 1) : seqlen_kv)) {
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
                for (int tile = 0; tile < KEY_TILES; tile++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {  // bit 0: second column, bit 1: second row
                        const int key = n0 + tile * 8 + pair + i % 2;
                        const int query = m0 + t * 16 + group + i / 2 * 8;
                        const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= query);
                        if (!visible) s_rmem[t][tile][i] = -INFINITY;
                    }
                }
            }
        }

        // P = exp(scale (S - m)). A causal row may see none of these keys: -inf - -inf is NaN.
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            float m_scaled[2];
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int tile = 0; tile < KEY_TILES; tile++) {
                    const float(&scores)[4] = s_rmem[t][tile];
                    m_rmem[t][r] = fmaxf(m_rmem[t][r], fmaxf(scores[2 * r], scores[2 * r + 1]));
                }
                m_rmem[t][r] = row_max(m_rmem[t][r]);
                m_scaled[r] = m_rmem[t][r] == -INFINITY ? 0.0f : m_rmem[t][r] * scale_log2;
            }
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; tile++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float& score = s_rmem[t][tile][i];
                    score = fast_exp2(score * scale_log2 - m_scaled[i / 2]);
                    l_rmem[t][i / 2] += score;
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) l_rmem[t][r] = row_sum(l_rmem[t][r]);
        }

        // V has arrived, each lane's own part of it;
        cp_async_wait_all();
        // and now the parts that the other lanes of the warp copied. No other warp is involved.
        __syncwarp();

        // O = P @ V [BLOCK_M, HEAD_DIM]: two tiles of S side by side are one left operand.
#pragma unroll
        for (int key_step = 0; key_step < KEYS_PER_WARP / 16; key_step++) {
            unsigned p_rmem[ROW_TILES][4];
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                const float(&left)[4] = s_rmem[t][2 * key_step];
                const float(&right)[4] = s_rmem[t][2 * key_step + 1];
                p_rmem[t][0] = pack(left[0], left[1]), p_rmem[t][1] = pack(left[2], left[3]);
                p_rmem[t][2] = pack(right[0], right[1]), p_rmem[t][3] = pack(right[2], right[3]);
            }
#pragma unroll
            for (int step = 0; step < HEAD_DIM / 16; step++) {
                const int row = key_step * 16 + lane % 16;
                const int d = step * 16 + lane / 16 * 8;
                unsigned v_rmem[4];
                ldmatrix_x4_transposed(v_rmem, v_smem + row * V_STRIDE + d);
#pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    mma_m16n8k16(acc_rmem[t][2 * step], p_rmem[t], v_rmem[0], v_rmem[1]);
                    mma_m16n8k16(acc_rmem[t][2 * step + 1], p_rmem[t], v_rmem[2], v_rmem[3]);
                }
            }
        }
        // O takes V's place, which other lanes may still be reading.
        __syncwarp();
    }

    // Each warp leaves its (O, m, l) in a slab of its own.
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = t * 16 + group + r * 8;
            if (pair == 0) {
                m_smem[warp * BLOCK_M + row] = m_rmem[t][r];
                l_smem[warp * BLOCK_M + row] = l_rmem[t][r];
            }
#pragma unroll
            for (int tile = 0; tile < HEAD_DIM / 8; tile++) {
                *reinterpret_cast<float2*>(o_smem + row * O_STRIDE + tile * 8 + pair) =
                    make_float2(acc_rmem[t][tile][2 * r], acc_rmem[t][tile][2 * r + 1]);
            }
        }
    }
    // The merge reads the slabs of all warps. The only wait of one warp for another.
    __syncthreads();

#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        const int row = t * 16 + threadIdx.x / MERGE_THREADS;
        const int part = threadIdx.x % MERGE_THREADS;
        const int query = m0 + row;
        if (query >= seqlen) return;

        // m = max over warps. Key 0 belongs to warp 0 and every row sees it, so m is finite.
        float m = -INFINITY;
#pragma unroll
        for (int w = 0; w < NUM_WARPS; w++) m = fmaxf(m, m_smem[w * BLOCK_M + row]);

        // O = sum_w exp(m_w - m) O_w, l = sum_w exp(m_w - m) l_w
        float2 merged_rmem[MERGE_PAIRS] = {};
        float l = 0.0f;
#pragma unroll
        for (int w = 0; w < NUM_WARPS; w++) {
            const float weight = fast_exp2((m_smem[w * BLOCK_M + row] - m) * scale_log2);
            l += weight * l_smem[w * BLOCK_M + row];
            const float* o_row =
                reinterpret_cast<const float*>(smem + w * SLAB_BYTES) + row * O_STRIDE;
#pragma unroll
            for (int j = 0; j < MERGE_PAIRS; j++) {
                const float2 o =
                    *reinterpret_cast<const float2*>(o_row + 2 * (part + j * MERGE_THREADS));
                merged_rmem[j].x += weight * o.x;
                merged_rmem[j].y += weight * o.y;
            }
        }

        // O = O / l, two columns a store.
        const float inv_l = 1.0f / l;
        element* out_row = out + q_head + (size_t)query * HEAD_DIM;
#pragma unroll
        for (int j = 0; j < MERGE_PAIRS; j++) {
            *reinterpret_cast<element2*>(out_row + 2 * (part + j * MERGE_THREADS)) =
                to_element2(merged_rmem[j].x * inv_l, merged_rmem[j].y * inv_l);
        }
    }
}
