// v12 One shot: for few keys; the warps of a CTA share 16 query rows, each takes its keys at once.
// Idea: where every launch is too short to pipeline, spread one tile's keys and wait only once.
// Changed: against v08, warps split K, not Q; K skips shared memory; no K/V loop, so no rescale.
// Limiter: latency from first load to last store; and each 16-row tile reads all K/V from L2.
// Constraints: sm_80 or later; D in {32, 64, 96, 128}; KV <= num_warps keys_per_warp; B <= 65535.
// Passes: 1, attention_forward; grid (num_heads, batch, ceil(S / 16)), 32 * num_warps threads.
// Source: Flash-Decoding's split and log-sum-exp merge (v05), inside one CTA.
// Weakness: KV <= 512; there D = 64 takes 109 KB, too much for sm_86 and sm_89; causal warps idle.
/* attune
idea = "Short S: the warps of a CTA split the keys, take them at once, merge on chip."
head_dims = [32, 64, 96, 128]
min_compute_capability = 8.0
let.block_m = 16
let.max_keys = "num_warps * keys_per_warp"

[tunables]
num_warps = {values = [2, 4, 8], default = 4, meaning = "warps per CTA, which split the keys"}
keys_per_warp = {values = [16, 32, 64], default = 32, meaning = "keys each warp takes at once"}

[[constraints]]
condition = "seqlen_kv <= max_keys"
sentence = """v12 keeps all keys of a head in one CTA, here {max_keys}, and there are \
              {seqlen_kv:,}: raise num_warps or keys_per_warp, or choose a variant that loops."""

[[passes]]
entry = "attention_forward"
grid = ["num_heads", "batch", "ceil_div(seqlen, block_m)"]
threads = "32 * num_warps"
# Of each warp: V in rows padded by 8 elements, O in rows padded by 8 floats, m and l as floats.
smem_bytes = """num_warps * (keys_per_warp * (head_dim + 8) * element_bytes
                             + block_m * (head_dim + 8) * 4 + 2 * block_m * 4)"""
args = ["q", "k", "v", "out", "num_heads", "seqlen", "seqlen_kv", "softmax_scale"]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "max_keys"
conflict_ways = 1
*/
#include "async_copy.cuh"
#include "mma.cuh"

constexpr int BLOCK_M = 16;  // query rows per CTA: one mma tile
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int KEY_TILES = KEYS_PER_WARP / 8;  // an mma yields 8 columns of S
constexpr int DIM_BLOCKS = HEAD_DIM / 32;     // 16 bytes of a row for each of four lanes
constexpr int VECTOR = 8;                     // elements per 16-byte access
constexpr int V_STRIDE = HEAD_DIM + VECTOR;   // elements; padded as in v03
// Floats. Half a warp stores 8 columns of 4 rows, which 8 of padding put in 4 groups of 8 banks.
constexpr int O_STRIDE = HEAD_DIM + 8;
constexpr int MERGE_THREADS = NUM_THREADS / BLOCK_M;         // threads that merge one row
constexpr int MERGE_PAIRS = HEAD_DIM / (2 * MERGE_THREADS);  // pairs of columns for each
constexpr unsigned FULL_WARP = 0xffffffffu;

static_assert(NUM_WARPS == 2 || NUM_WARPS == 4 || NUM_WARPS == 8,
              "num_warps must be 2, 4 or 8: 16 threads merge the 16 pairs of a row of D = 32");
static_assert(KEYS_PER_WARP == 16 || KEYS_PER_WARP == 32 || KEYS_PER_WARP == 64,
              "keys_per_warp must be 16, 32 or 64: an mma takes 16, and S stays in registers");
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
                  const element* __restrict__ k,  // [batch, num_heads, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads, seqlen_kv, HEAD_DIM]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM]
                  int num_heads, int seqlen, int seqlen_kv, float softmax_scale) {
    extern __shared__ __align__(16) unsigned char smem[];
    float* o_smem = reinterpret_cast<float*>(smem);           // [NUM_WARPS, BLOCK_M, O_STRIDE]
    float* m_smem = o_smem + NUM_WARPS * BLOCK_M * O_STRIDE;  // [NUM_WARPS, BLOCK_M]
    float* l_smem = m_smem + NUM_WARPS * BLOCK_M;             // [NUM_WARPS, BLOCK_M]
    element* v_smem = reinterpret_cast<element*>(l_smem + NUM_WARPS * BLOCK_M);

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int group = lane / 4;           // this lane's rows of a fragment: group, group + 8
    const int pair = 2 * (lane % 4);      // first of its two columns
    const int m0 = blockIdx.z * BLOCK_M;  // first query row of this CTA
    const int n0 = warp * KEYS_PER_WARP;  // first key of this warp
    v_smem += n0 * V_STRIDE;              // [KEYS_PER_WARP, V_STRIDE], this warp's own
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t head_index = (size_t)blockIdx.y * num_heads + blockIdx.x;
    const size_t q_head = head_index * seqlen * HEAD_DIM;      // where this head's Q and O begin
    const size_t kv_head = head_index * seqlen_kv * HEAD_DIM;  // and its K and V

    float acc_rmem[HEAD_DIM / 8][4] = {};  // O over this warp's keys, not divided by l
    float m_rmem[2] = {-INFINITY, -INFINITY};
    float l_rmem[2] = {0.0f, 0.0f};

    // A warp whose keys lie past the end, or past the diagonal, keeps m = -inf and O = 0.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv;
    if (n0 < kv_end) {
        // V first: its copy runs behind all of S and the softmax.
        for (int i = lane; i < KEYS_PER_WARP * HEAD_DIM / VECTOR; i += 32) {
            const int row = i / (HEAD_DIM / VECTOR);
            const int d = i % (HEAD_DIM / VECTOR) * VECTOR;
            const bool valid = n0 + row < seqlen_kv;  // zeros past the end: NaN * 0 would be NaN
            cp_async_16(v_smem + row * V_STRIDE + d,
                        v + kv_head + (size_t)(valid ? n0 + row : 0) * HEAD_DIM + d, valid);
        }

        // S = Q @ K^T [BLOCK_M, KEYS_PER_WARP], both operands straight from global memory. The
        // order of the summands is free, so a lane's 16 bytes serve as the pairs of two steps: what
        // the mma takes for columns 2t, 2t + 1, 2t + 8, 2t + 9 are columns 8t to 8t + 3, and then
        // 8t + 4 to 8t + 7, in Q and in K alike. Four lanes read 64 bytes in a row.
        float s_rmem[KEY_TILES][4] = {};
#pragma unroll
        for (int block = 0; block < DIM_BLOCKS; block++) {
            const int d = block * 32 + pair * 4;
            const uint4 upper = load_8(q + q_head, m0 + group, d, seqlen);
            const uint4 lower = load_8(q + q_head, m0 + group + 8, d, seqlen);
            const unsigned first[4] = {upper.x, lower.x, upper.y, lower.y};
            const unsigned second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
            for (int tile = 0; tile < KEY_TILES; tile++) {
                const uint4 keys = load_8(k + kv_head, n0 + tile * 8 + group, d, seqlen_kv);
                mma_m16n8k16(s_rmem[tile], first, keys.x, keys.y);
                mma_m16n8k16(s_rmem[tile], second, keys.z, keys.w);
            }
        }

#pragma unroll
        for (int tile = 0; tile < KEY_TILES; tile++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {  // bit 0: the second column, bit 1: the second row
                const int key = n0 + tile * 8 + pair + i % 2;
                const int query = m0 + group + i / 2 * 8;
                const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= query);
                float& score = s_rmem[tile][i];
                score = visible ? score * softmax_scale : -INFINITY;
                m_rmem[i / 2] = fmaxf(m_rmem[i / 2], score);
            }
        }

        // P = exp(S - m). A causal row may see none of these keys: -inf - -inf would be NaN.
        float m_finite[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            m_rmem[r] = row_max(m_rmem[r]);
            m_finite[r] = m_rmem[r] == -INFINITY ? 0.0f : m_rmem[r];
        }
#pragma unroll
        for (int tile = 0; tile < KEY_TILES; tile++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s_rmem[tile][i] = __expf(s_rmem[tile][i] - m_finite[i / 2]);
                l_rmem[i / 2] += s_rmem[tile][i];
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) l_rmem[r] = row_sum(l_rmem[r]);

        // V has arrived, each lane's own part of it;
        cp_async_wait_all();
        // and now the parts that the other lanes of the warp copied. No other warp is involved.
        __syncwarp();

        // O = P @ V [BLOCK_M, HEAD_DIM]: two tiles of S side by side are one left operand.
#pragma unroll
        for (int key_step = 0; key_step < KEYS_PER_WARP / 16; key_step++) {
            const float(&left)[4] = s_rmem[2 * key_step];
            const float(&right)[4] = s_rmem[2 * key_step + 1];
            const unsigned p_rmem[4] = {pack(left[0], left[1]), pack(left[2], left[3]),
                                        pack(right[0], right[1]), pack(right[2], right[3])};
#pragma unroll
            for (int step = 0; step < HEAD_DIM / 16; step++) {
                const int row = key_step * 16 + lane % 16;
                const int d = step * 16 + lane / 16 * 8;
                unsigned v_rmem[4];
                ldmatrix_x4_transposed(v_rmem, v_smem + row * V_STRIDE + d);
                mma_m16n8k16(acc_rmem[2 * step], p_rmem, v_rmem[0], v_rmem[1]);
                mma_m16n8k16(acc_rmem[2 * step + 1], p_rmem, v_rmem[2], v_rmem[3]);
            }
        }
    }

    // Each warp leaves its (O, m, l) in a slab of its own.
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp * BLOCK_M + group + r * 8;
        if (pair == 0) {
            m_smem[row] = m_rmem[r];
            l_smem[row] = l_rmem[r];
        }
#pragma unroll
        for (int tile = 0; tile < HEAD_DIM / 8; tile++) {
            *reinterpret_cast<float2*>(o_smem + row * O_STRIDE + tile * 8 + pair) =
                make_float2(acc_rmem[tile][2 * r], acc_rmem[tile][2 * r + 1]);
        }
    }
    // The merge reads the slabs of all warps. The only wait of one warp for another.
    __syncthreads();

    const int row = threadIdx.x / MERGE_THREADS;
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
        const float weight = __expf(m_smem[w * BLOCK_M + row] - m);
        l += weight * l_smem[w * BLOCK_M + row];
        const float* o_row = o_smem + (w * BLOCK_M + row) * O_STRIDE;
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
#pragma unroll
    for (int j = 0; j < MERGE_PAIRS; j++) {
        element* columns = out + q_head + (size_t)query * HEAD_DIM + 2 * (part + j * MERGE_THREADS);
        *reinterpret_cast<element2*>(columns) =
            to_element2(merged_rmem[j].x * inv_l, merged_rmem[j].y * inv_l);
    }
}
