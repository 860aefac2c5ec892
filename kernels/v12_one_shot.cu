// v12 One shot: for few keys; each warp of a CTA takes its query rows and its keys in one step.
// Idea: where every launch is too short to pipeline, spread the work of a tile and wait only once.
// Changed: against v08, rewritten without a K/V loop: warps split K too, no rescale.
// Limiter: latency from first load to last store, instruction fetches included.
// Constraints: from sm_75, BF16 from sm_80; D in {32, 64, 96, 128}; KV <= max_keys, at most 512.
// Passes: 1, attention_forward; grid (ceil(S / block_m), num_heads, batch), 32 num_warps threads.
// Source: Flash-Decoding's split (v05), inside one CTA, with one maximum for all parts.
// Weakness: causal warps whose keys lie past the diagonal idle; 16 rows a warp read K/V once each.
/* attune
idea = "Few keys: the warps of a CTA split rows and keys, without a loop, and merge on chip."
head_dims = [32, 64, 96, 128]
min_compute_capability = 7.5
gqa = true
takes = ["lse"]
let.key_warps = "num_warps // row_warps"
let.block_m = "16 * row_tiles * row_warps"
let.max_keys = "key_warps * keys_per_warp"

[tunables]
num_warps = {values = [2, 4, 8], default = 4, meaning = "warps per CTA"}
row_warps = {values = [1, 2, 4, 8], default = 1, meaning = "warps that share their keys"}
keys_per_warp = {values = [16, 32, 64, 128], default = 32, meaning = "keys per warp, in one step"}
row_tiles = {values = [1, 2], default = 1, meaning = "16-row tiles per warp"}

[[constraints]]
condition = "row_warps <= num_warps"
sentence = "row_warps={row_warps} exceeds num_warps={num_warps}: lower row_warps."

[[constraints]]
condition = "seqlen_kv <= max_keys"
sentence = """v12 keeps all keys of a head in one CTA, here {max_keys}, and there are \
              {seqlen_kv:,}: raise num_warps or keys_per_warp, lower row_warps, here {row_warps}, \
              or choose a variant that loops."""

[[constraints]]
condition = "row_warps == 1 or row_tiles == 1 and keys_per_warp >= 32"
sentence = """row_warps = {row_warps} goes with one tile of rows and 32 keys or more a warp: set \
              row_tiles = 1 and raise keys_per_warp, or set row_warps = 1."""

[[constraints]]
condition = "row_warps > 1 or keys_per_warp <= 64 and row_tiles * keys_per_warp * head_dim <= 12288"
sentence = """With row_warps = 1 a warp holds its K in registers, which have no room for \
              {keys_per_warp} keys of {head_dim} columns beside {row_tiles} tiles of rows: lower \
              keys_per_warp or row_tiles, or raise row_warps."""

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = "32 * num_warps"
# Of each part of the keys: V in rows padded by 8 elements, and K where warps share it; then, in
# their place, O as floats. A maximum and a sum of each row.
smem_bytes = """key_warps * (max(keys_per_warp * element_bytes * (head_dim + 8 + (head_dim
                                 + 32 * (head_dim % 64 == 0) if row_warps > 1 else 0)),
                                 block_m * head_dim * 4) + 2 * block_m * 4)"""
args = ["q", "k", "v", "out", "num_heads", "num_heads_kv", "seqlen", "seqlen_kv",
        {name = "kv_heads_per_head", ctype = "float32", value = "num_heads_kv / num_heads"},
        "softmax_scale", "lse"]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "max_keys"
conflict_ways = 1
*/
#include "async_copy.cuh"
#include "exp2.cuh"
#include "lse.cuh"
#include "mma.cuh"
#include "rows.cuh"

constexpr int KEY_WARPS = NUM_WARPS / ROW_WARPS;  // parts of the keys
constexpr int WARP_ROWS = 16 * ROW_TILES;         // query rows per warp: an mma tile has 16
constexpr int BLOCK_M = WARP_ROWS * ROW_WARPS;    // and per CTA
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int SHARING_THREADS = 32 * ROW_WARPS;   // that copy one part of K and V
constexpr int KEY_TILES = KEYS_PER_WARP / 8;      // an mma yields 8 columns of S
constexpr int DIM_TILES = HEAD_DIM / 8;           // and of O
constexpr int DIM_BLOCKS = HEAD_DIM / 32;         // 16 bytes of a row for each of four lanes
constexpr bool K_IS_SHARED = ROW_WARPS > 1;
constexpr int VECTOR = 8;                    // elements per 16-byte access
constexpr int V_STRIDE = HEAD_DIM + VECTOR;  // elements; padded as in v03
// Elements. A quarter of a warp reads 64 bytes of 2 rows, from different halves of the banks.
constexpr int K_STRIDE = HEAD_DIM + (HEAD_DIM % 64 == 0 ? 32 : 0);
constexpr int K_BYTES = K_IS_SHARED ? KEYS_PER_WARP * K_STRIDE * (int)sizeof(element) : 0;
constexpr int V_BYTES = KEYS_PER_WARP * V_STRIDE * (int)sizeof(element);
constexpr int O_BYTES = BLOCK_M * HEAD_DIM * (int)sizeof(float);
// Bytes for one part of the keys: K, V and later O.
constexpr int SLAB_BYTES = K_BYTES + V_BYTES > O_BYTES ? K_BYTES + V_BYTES : O_BYTES;
// The warps of the same rows merge O together: each sums this number of its tiles.
constexpr int OWN_TILES = (DIM_TILES + KEY_WARPS - 1) / KEY_WARPS;
// Elements, an odd number of 16 bytes: 8 rows lie in 8 groups of 4 banks.
constexpr int OUT_STRIDE = (OWN_TILES | 1) * VECTOR;
// Bytes of 16 rows of O in a slab: floats to be summed, or, if one warp has all keys, elements.
constexpr int TILE_BYTES = 16 * (KEY_WARPS > 1 ? HEAD_DIM * (int)sizeof(float)
                                               : OUT_STRIDE * (int)sizeof(element));
// Unrolled code costs instruction fetches, more than a loop does; 8 warps share that cost.
constexpr int COPIES_IN_A_ROW = ROW_WARPS == 8 ? 4 : 1;
// Two CTAs of 128 rows fill an SM, with 128 registers a thread, too few for a causal mask as well.
constexpr int MIN_CTAS = ROW_WARPS == 8 && HEAD_DIM <= 64 && !IS_CAUSAL ? 2 : 1;

static_assert(NUM_WARPS == 2 || NUM_WARPS == 4 || NUM_WARPS == 8,
              "num_warps must be 2, 4 or 8: 16 leave 128 registers, and D = 128 takes more");
static_assert(ROW_WARPS >= 1 && NUM_WARPS % ROW_WARPS == 0,
              "row_warps must divide num_warps: each warp has its rows and its keys");
static_assert(KEYS_PER_WARP == 16 || KEYS_PER_WARP == 32 || KEYS_PER_WARP == 64 ||
                  KEYS_PER_WARP == 128,
              "keys_per_warp must be 16, 32, 64 or 128: an mma takes 16, and S stays in registers");
static_assert(ROW_TILES == 1 || ROW_TILES == 2,
              "row_tiles must be 1 or 2: S and O of every tile stay in registers");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128,
              "head_dim must be a multiple of 32 up to 128: four lanes load 16 bytes each");

// The left operand of an mma, from registers that were loaded separately. ptxas would repeat plain
// moves for every mma; it does not recognise this logical operation (a, whatever b is) as a move.
__device__ __forceinline__ void gather(unsigned (&fragment)[4], unsigned a, unsigned b, unsigned c,
                                       unsigned d) {
    const unsigned sources[4] = {a, b, c, d};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        asm volatile("lop3.b32 %0, %1, %1, %1, 0xf0;" : "=r"(fragment[i]) : "r"(sources[i]));
    }
}

// Eight elements of one row as four pairs; zeros past the end.
__device__ __forceinline__ uint4 load_8(const element* head,  // [length, HEAD_DIM]
                                        int row, int d, int length) {
    if (row >= length) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4*>(head + (size_t)row * HEAD_DIM + d);
}

// Starts copying rows [first_row, first_row + KEYS_PER_WARP) of one head; `thread` is the index
// among the threads that share the work.
__device__ __forceinline__ void copy_keys(element* tile_smem,   // [KEYS_PER_WARP, stride]
                                          const element* head,  // [length, HEAD_DIM]
                                          int first_row, int length, int stride, int thread) {
    const element* rows = head + (size_t)first_row * HEAD_DIM;
#pragma unroll COPIES_IN_A_ROW
    for (int first = 0; first < KEYS_PER_WARP * HEAD_DIM / VECTOR; first += SHARING_THREADS) {
        const int i = first + thread;
        const int row = i / (HEAD_DIM / VECTOR);
        const int d = i % (HEAD_DIM / VECTOR) * VECTOR;
        // Zero-filled past the end: stale data could be NaN, and NaN * 0 is NaN.
        cp_async_16(tile_smem + row * stride + d, rows + i * VECTOR, first_row + row < length);
    }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, MIN_CTAS)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads_kv, seqlen_kv, HEAD_DIM]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM]
                  int num_heads, int num_heads_kv, int seqlen, int seqlen_kv,
                  float kv_heads_per_head, float softmax_scale LSE_PARAMETER) {
    extern __shared__ __align__(16) unsigned char smem[];
    const int lane = threadIdx.x % 32;
    const int row_warp = threadIdx.x / 32 % ROW_WARPS;
    const int key_warp = KEY_WARPS > 1 ? threadIdx.x / SHARING_THREADS : 0;
    unsigned char* slab = smem + key_warp * SLAB_BYTES;  // of this warp's keys
    element* k_smem = reinterpret_cast<element*>(slab);  // [keys, K_STRIDE]
    element* v_smem = reinterpret_cast<element*>(slab + K_BYTES);  // [keys, V_STRIDE]
    float* m_smem = reinterpret_cast<float*>(smem + KEY_WARPS * SLAB_BYTES);
    float* l_smem = m_smem + KEY_WARPS * BLOCK_M;  // both [KEY_WARPS, BLOCK_M]

    const int group = lane / 4;           // this lane's rows of a fragment: group, group + 8
    const int pair = 2 * (lane % 4);      // first of its two columns
    // The query tile is the fastest axis, and causal the longest tiles start first, as in v08.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int cta_m0 = tile_index * BLOCK_M;       // first query row of this CTA
    const int m0 = cta_m0 + row_warp * WARP_ROWS;  // and of this warp
    const int n0 = key_warp * KEYS_PER_WARP;       // first key of this warp
    const float scale_log2 = softmax_scale * LOG2_E;
    // Times a reciprocal: an integer division would delay the addresses of K and V. The rounding
    // error is below half a head.
    const int kv_head_index = (int)((blockIdx.y + 0.5f) * kv_heads_per_head);
    // batch * num_heads * seqlen * HEAD_DIM may pass 2^31, one head of it does not.
    const unsigned q_index = blockIdx.z * num_heads + blockIdx.y;
    const unsigned kv_index = blockIdx.z * num_heads_kv + kv_head_index;
    const size_t q_head = (size_t)q_index * (unsigned)(seqlen * HEAD_DIM);  // where Q and O begin
    const size_t kv_head = (size_t)kv_index * (unsigned)(seqlen_kv * HEAD_DIM);  // K and V
    // Keys past the end, or past the diagonal for all of the CTA's rows, are not read.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, cta_m0 + BLOCK_M) : seqlen_kv;
    const bool sees_keys = !IS_CAUSAL || n0 < kv_end;

    // All loads are issued before the first is waited for. A warp that has its keys alone loads K
    // straight into registers; warps that share keys copy K for each other.
    const int thread = threadIdx.x % SHARING_THREADS;
    if (K_IS_SHARED) {
        copy_keys(k_smem, k + kv_head, n0, kv_end, K_STRIDE, thread);
        cp_async_commit();
    }
    uint4 q_rmem[DIM_BLOCKS][ROW_TILES][2], k_rmem[DIM_BLOCKS][KEY_TILES];
#pragma unroll
    for (int block = 0; block < DIM_BLOCKS; block++) {
        const int d = block * 32 + pair * 4;
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            const int row = m0 + t * 16 + group;
            q_rmem[block][t][0] = load_8(q + q_head, row, d, seqlen);
            q_rmem[block][t][1] = load_8(q + q_head, row + 8, d, seqlen);
        }
#pragma unroll
        for (int tile = 0; tile < KEY_TILES && !K_IS_SHARED; tile++) {
            k_rmem[block][tile] = load_8(k + kv_head, n0 + tile * 8 + group, d, kv_end);
        }
    }
    // Then V: its copy overlaps with S.
    copy_keys(v_smem, v + kv_head, n0, kv_end, V_STRIDE, thread);

    if (K_IS_SHARED) {
        // This thread's copies of K have arrived; those of V, a later group, may still be in
        // flight.
        cp_async_wait<0>();
        // And now those of the other warps.
        __syncthreads();
    }

    float s_rmem[ROW_TILES][KEY_TILES][4] = {};
    float m_rmem[ROW_TILES][2];  // maxima of the unscaled scores
#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) m_rmem[t][0] = m_rmem[t][1] = -INFINITY;
    if (sees_keys) {
        // S = Q @ K^T [WARP_ROWS, KEYS_PER_WARP]. The order of the summands is free, so a lane's 16
        // bytes serve as the pairs of two steps: what the mma takes for columns 2t, 2t + 1, 2t + 8,
        // 2t + 9 are columns 8t to 8t + 3, and then 8t + 4 to 8t + 7, in Q and in K alike. Four
        // lanes read 64 bytes in a row.
        unsigned first[DIM_BLOCKS][ROW_TILES][4], second[DIM_BLOCKS][ROW_TILES][4];
#pragma unroll
        for (int block = 0; block < DIM_BLOCKS; block++) {
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                const uint4 upper = q_rmem[block][t][0], lower = q_rmem[block][t][1];
                gather(first[block][t], upper.x, lower.x, upper.y, lower.y);
                gather(second[block][t], upper.z, lower.z, upper.w, lower.w);
            }
        }
#pragma unroll
        for (int tile = 0; tile < KEY_TILES; tile++) {
#pragma unroll
            for (int block = 0; block < DIM_BLOCKS; block++) {
                uint4 keys = k_rmem[block][tile];
                if (K_IS_SHARED) {
                    const int row = tile * 8 + group;
                    const int d = block * 32 + pair * 4;
                    keys = *reinterpret_cast<const uint4*>(k_smem + row * K_STRIDE + d);
                }
#pragma unroll
                for (int t = 0; t < ROW_TILES; t++) {
                    mma_m16n8k16(s_rmem[t][tile], first[block][t], keys.x, keys.y);
                    mma_m16n8k16(s_rmem[t][tile], second[block][t], keys.z, keys.w);
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
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
#pragma unroll
                for (int tile = 0; tile < KEY_TILES; tile++) {
                    const float(&scores)[4] = s_rmem[t][tile];
                    m_rmem[t][r] = fmaxf(m_rmem[t][r], fmaxf(scores[2 * r], scores[2 * r + 1]));
                }
                m_rmem[t][r] = row_max(m_rmem[t][r]);
            }
        }
    }

    // Each warp stores the maxima over its keys; -inf if a row sees none of them.
    const int row0 = row_warp * WARP_ROWS + group;  // this lane's first row in the CTA
    if (KEY_WARPS > 1 && pair == 0) {
#pragma unroll
        for (int i = 0; i < 2 * ROW_TILES; i++) {
            m_smem[key_warp * BLOCK_M + row0 + i * 8] = m_rmem[i / 2][i % 2];
        }
    }
    // This thread's copies of V have arrived.
    cp_async_wait_all();
    // And now those of the other threads, and the maxima of the other warps.
    __syncthreads();

    float acc_rmem[ROW_TILES][DIM_TILES][4] = {};  // O over this warp's keys, not divided by l
    float l_rmem[ROW_TILES][2] = {};               // row sums over them
    float m_scaled[ROW_TILES][2];
    if (sees_keys) {
        // m = max over warps, so that O and l of the warps only add up. Every row sees key 0.
#pragma unroll
        for (int i = 0; i < 2 * ROW_TILES; i++) {
            float m = m_rmem[i / 2][i % 2];
#pragma unroll
            for (int w = 0; w < KEY_WARPS && KEY_WARPS > 1; w++) {
                m = fmaxf(m, m_smem[w * BLOCK_M + row0 + i * 8]);
            }
            m_scaled[i / 2][i % 2] = m * scale_log2;
        }

        // l = P @ 1 along with it: a column of ones costs less than sums in registers.
        const unsigned ones = pack(1.0f, 1.0f);
        float sum_rmem[ROW_TILES][4] = {};
        // O = P @ V [WARP_ROWS, HEAD_DIM]: two tiles of S side by side are one left operand.
#pragma unroll
        for (int key_step = 0; key_step < KEYS_PER_WARP / 16; key_step++) {
            unsigned p_rmem[ROW_TILES][4];
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    // P = exp(scale (S - m))
                    float(&scores)[4] = s_rmem[t][2 * key_step + half];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        scores[i] = fast_exp2(scores[i] * scale_log2 - m_scaled[t][i / 2]);
                    }
                    p_rmem[t][2 * half] = pack(scores[0], scores[1]);
                    p_rmem[t][2 * half + 1] = pack(scores[2], scores[3]);
                }
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
#pragma unroll
            for (int t = 0; t < ROW_TILES; t++) {
                mma_m16n8k16(sum_rmem[t], p_rmem[t], ones, ones);
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * ROW_TILES; i++) {
            l_rmem[i / 2][i % 2] = sum_rmem[i / 2][i % 2 * 2];
        }
    }

    if (!K_IS_SHARED) {
        // O overwrites V, which other lanes of the warp may still be reading.
        __syncwarp();
    } else if (ROW_WARPS * ROW_TILES * TILE_BYTES > K_BYTES) {
        // O overwrites K and V, and other warps may still be reading V.
        __syncthreads();
    }
    const int tiles_at = row_warp * ROW_TILES * TILE_BYTES;  // this warp's rows in a slab
    if (KEY_WARPS > 1) {
        // Each warp stores its O and l. Each lane reads back what the same lane of other warps
        // stored, so a tile is stored by lane, 16 bytes each, not by row.
#pragma unroll
        for (int t = 0; t < ROW_TILES; t++) {
            float4* o_smem = reinterpret_cast<float4*>(slab + tiles_at + t * TILE_BYTES);
#pragma unroll
            for (int tile = 0; tile < DIM_TILES; tile++) {
                const float(&o)[4] = acc_rmem[t][tile];
                o_smem[tile * 32 + lane] = make_float4(o[0], o[1], o[2], o[3]);
            }
        }
        if (pair == 0) {
#pragma unroll
            for (int i = 0; i < 2 * ROW_TILES; i++) {
                l_smem[key_warp * BLOCK_M + row0 + i * 8] = l_rmem[i / 2][i % 2];
            }
        }
        // The sums need the slabs of all warps.
        __syncthreads();
    }
    const int first_tile = key_warp * OWN_TILES;
    // D = 32 has fewer tiles than 8 warps.
    if (KEY_WARPS * OWN_TILES > DIM_TILES && first_tile >= DIM_TILES) return;

#pragma unroll
    for (int t = 0; t < ROW_TILES; t++) {
        // O = sum_w O_w, l = sum_w l_w
        float o_rmem[OWN_TILES][4], l[2] = {l_rmem[t][0], l_rmem[t][1]};
#pragma unroll
        for (int j = 0; j < OWN_TILES; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) o_rmem[j][i] = KEY_WARPS > 1 ? 0.0f : acc_rmem[t][j][i];
        }
        const int at = tiles_at + t * TILE_BYTES + first_tile * 32 * (int)sizeof(float4);
        if (KEY_WARPS > 1) {
            l[0] = l[1] = 0.0f;
#pragma unroll
            for (int w = 0; w < KEY_WARPS; w++) {
#pragma unroll
                for (int r = 0; r < 2; r++) l[r] += l_smem[w * BLOCK_M + row0 + t * 16 + r * 8];
#pragma unroll
                for (int j = 0; j < OWN_TILES; j++) {
                    const unsigned char* tiles = smem + w * SLAB_BYTES + at;
                    const float4 o = reinterpret_cast<const float4*>(tiles)[j * 32 + lane];
                    o_rmem[j][0] += o.x, o_rmem[j][1] += o.y;
                    o_rmem[j][2] += o.z, o_rmem[j][3] += o.w;
                }
            }
            // What follows overwrites this warp's own tiles, which all lanes have now read.
            __syncwarp();
        }

        // O = O / l, through shared memory: a lane holds pairs of columns, but stores 16 bytes.
        element* out_smem = reinterpret_cast<element*>(slab + at);  // [16, OUT_STRIDE]
        element* lane_smem = out_smem + group * OUT_STRIDE + pair;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float inv_l = __fdividef(1.0f, l[r]);
            STORE_LSE(pair == 0 && key_warp == 0 && m0 + t * 16 + group + r * 8 < seqlen,
                      q_head / HEAD_DIM + m0 + t * 16 + group + r * 8, m_scaled[t][r], inv_l);
#pragma unroll
            for (int j = 0; j < OWN_TILES; j++) {
                *reinterpret_cast<element2*>(lane_smem + r * 8 * OUT_STRIDE + j * 8) =
                    to_element2(o_rmem[j][2 * r] * inv_l, o_rmem[j][2 * r + 1] * inv_l);
            }
        }
        // Lanes store what other lanes of the warp have divided.
        __syncwarp();
#pragma unroll
        for (int first = 0; first < 16 * OWN_TILES; first += 32) {
            const int row = (first + lane) / (8 * OWN_TILES) * 8 + lane % 8;
            const int d = (first + lane) / 8 % OWN_TILES * VECTOR;
            const int query = m0 + t * 16 + row;
            if (row < 16 && query < seqlen) {
                element* out_row = out + q_head + (size_t)query * HEAD_DIM;
                *reinterpret_cast<uint4*>(out_row + first_tile * 8 + d) =
                    *reinterpret_cast<const uint4*>(out_smem + row * OUT_STRIDE + d);
            }
        }
    }
}
