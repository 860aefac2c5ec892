// v22 One shot by wgmma: few keys on Hopper; TMA loads a head's K and V at once, wgmma reads them.
// Idea: as v12, wait once and never loop, but read shared memory once per 64 rows, not per 16.
// Changed: against v12, rewritten for TMA and wgmma, as v15: 64 rows a warpgroup, no merge.
// Limiter: latency with one head per SM; with more, exp, which all warps reach together; loads.
// Constraints: sm_90a alone; D in {32, 64, 96, 128}; KV <= keys, at most 256; any S, H and B.
// Passes: 1, attention_forward; grid (ceil(S / (16 num_warps)), H, B), 32 num_warps threads.
// Source: v12; PTX ISA, wgmma, cp.async.bulk.tensor and stmatrix.
// Weakness: with heads for less than half of the SMs v12 is faster; masked keys are multiplied.
/* attune
idea = "Few keys on Hopper: TMA loads all K and V of a head at once, wgmma multiplies, no loop."
head_dims = [32, 64, 96, 128]
min_compute_capability = 9.0
arch_specific = true
gqa = true
takes = ["lse"]
let.block_m = "16 * num_warps"
# A swizzled row is as wide as the swizzle: D = 128 takes two boxes, D = 96 three of half the width.
let.columns = "64 if head_dim % 64 == 0 else 32"

[tunables]
num_warps = {values = [4, 8], default = 8, meaning = "warps per CTA, four to 64 query rows"}
keys = {values = [64, 128, 256], default = 128, meaning = "keys of a head, all loaded at once"}

[[constraints]]
condition = "seqlen_kv <= keys"
sentence = """v22 takes all keys of a head at once, here {keys}, and there are {seqlen_kv:,}: \
              raise keys, or choose a variant that loops."""

[[constraints]]
condition = "keys <= 128 or head_dim <= 96"
sentence = """v22 keeps the scores of all keys in registers, which have no room for {keys} keys \
              beside {head_dim} columns of O: lower keys, or choose a variant that loops."""

[tensor_maps]
q_map = {tensor = "q", box = ["columns", 64, 1, 1], swizzle = "2 * columns"}
k_map = {tensor = "k", box = ["columns", "keys // 2", 1, 1], swizzle = "2 * columns"}
v_map = {tensor = "v", box = ["columns", "keys", 1, 1], swizzle = "2 * columns"}
out_map = {tensor = "out", box = ["columns", 16, 1, 1], swizzle = "2 * columns"}

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = "32 * num_warps"
# Q, K, V, and a barrier for the rows of each warpgroup, for the second half of K and for V.
smem_bytes = "(block_m + 2 * keys) * head_dim * element_bytes + 8 * (num_warps // 4 + 2)"
args = ["q_map", "k_map", "v_map", "out_map", "seqlen_kv",
        {name = "kv_heads_per_head", ctype = "float32", value = "num_heads_kv / num_heads"},
        "softmax_scale", "lse", {name = "seqlen", ctype = "int32", feature = "lse"}]

[work]
math_unit = "tensor"
query_rows = "block_m"
kv_rows = "keys"
conflict_ways = 1
*/
#include "exp2.cuh"
#include "lse.cuh"
#include "hopper.cuh"
#include "rows.cuh"

constexpr int GROUP_ROWS = 64;           // query rows of a warpgroup
constexpr int GROUPS = NUM_WARPS / 4;    // warpgroups
constexpr int BLOCK_M = 16 * NUM_WARPS;  // query rows of a CTA
constexpr int NUM_THREADS = 32 * NUM_WARPS;
constexpr int COLUMNS = HEAD_DIM % 64 == 0 ? 64 : 32;  // of a box: a row is as wide as the swizzle
constexpr int ROW_BYTES = 2 * COLUMNS;
constexpr int BOXES = HEAD_DIM / COLUMNS;  // side by side make a tile
constexpr int CHUNKS = COLUMNS / 8;        // of 16 bytes in a row of a box
constexpr int STEPS = COLUMNS / 16;        // in it; a wgmma takes 16 columns of Q and K
constexpr int DIM_STEPS = HEAD_DIM / 16;
constexpr int KEY_STEPS = KEYS / 16;       // and 16 rows of V
constexpr int HALF_KEYS = KEYS / 2;        // K is loaded in two halves
constexpr int HALF_SCORES = HALF_KEYS / 2;              // of them in a thread
constexpr int HALF_BYTES = HALF_KEYS * HEAD_DIM * 2;    // of K
constexpr int TILE_BYTES = 2 * HALF_BYTES;              // of K or V
constexpr int GROUP_BYTES = GROUP_ROWS * HEAD_DIM * 2;  // of Q
// 128 registers a thread are enough for two CTAs on an SM.
constexpr int MIN_CTAS = NUM_WARPS == 8 && HEAD_DIM <= 64 && KEYS <= 128 ? 2 : 1;

static_assert(NUM_WARPS == 4 || NUM_WARPS == 8,
              "num_warps must be 4 or 8: four issue a wgmma, and the second group has one barrier");
static_assert(KEYS == 64 || KEYS == 128 || KEYS == 256,
              "keys must be 64, 128 or 256: S of all keys stays in the registers of a warpgroup");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128,
              "head_dim must be 32, 64, 96 or 128: a box has 32 or 64 columns, O is in registers");

// Increment of a wgmma descriptor to the next 16 columns in boxes of ROWS rows. Adding a constant
// takes less code than building a descriptor, and fetching code takes time.
template <int ROWS>
__device__ __forceinline__ int columns_at(int step) {
    return (step / STEPS * ROWS * ROW_BYTES + step % STEPS * 32) >> 4;
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, MIN_CTAS)
attention_forward(const __grid_constant__ TensorMap q_map,    // [batch, num_heads, seqlen, D]
                  const __grid_constant__ TensorMap k_map,    // [batch, num_heads_kv, seqlen_kv, D]
                  const __grid_constant__ TensorMap v_map,    // [batch, num_heads_kv, seqlen_kv, D]
                  const __grid_constant__ TensorMap out_map,  // [batch, num_heads, seqlen, D]
                  int seqlen_kv, float kv_heads_per_head,
                  float softmax_scale LSE_PARAMETER_AND_SEQLEN) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* q_smem = smem;  // [GROUPS, BOXES, GROUP_ROWS, COLUMNS], swizzled
    unsigned char* k_smem = q_smem + GROUPS * GROUP_BYTES;  // [2, BOXES, HALF_KEYS, COLUMNS]
    unsigned char* v_smem = k_smem + TILE_BYTES;            // [BOXES, KEYS, COLUMNS]
    // For each group's rows; the first group's also for the first half of K.
    Mbarrier* q_full = reinterpret_cast<Mbarrier*>(v_smem + TILE_BYTES);
    Mbarrier* k_full = q_full + GROUPS;  // of its second half
    Mbarrier* v_full = k_full + 1;

    // The query tile is the fastest axis: concurrent CTAs share their head's K/V in L2.
    const int m0 = blockIdx.x * BLOCK_M;  // first query row of this CTA
    const int head = blockIdx.y, batch = blockIdx.z;
    // As in v12, no division.
    const int kv_head = (int)((head + 0.5f) * kv_heads_per_head);

    const auto load_q = [&](int of_group) {
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            tma_load(q_smem + of_group * GROUP_BYTES + box * GROUP_ROWS * ROW_BYTES, &q_map,
                     q_full + of_group, box * COLUMNS, m0 + of_group * GROUP_ROWS, head, batch);
        }
    };
    const auto load_k = [&](int half, Mbarrier* full) {
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            tma_load(k_smem + half * HALF_BYTES + box * HALF_KEYS * ROW_BYTES, &k_map, full,
                     box * COLUMNS, half * HALF_KEYS, kv_head, batch);
        }
    };
    // One thread issues all loads before anything else. In this order the first group is a step
    // ahead of the second, so that its softmax overlaps with the second's products.
    if (threadIdx.x < 32 && elect_one()) {
#pragma unroll
        for (int i = 0; i < GROUPS + 2; i++) mbarrier_init(q_full + i, 1);
        mbarrier_init_fence();
        mbarrier_arrive_expect(q_full, GROUP_BYTES + HALF_BYTES);
        load_q(0);
        load_k(0, q_full);
        mbarrier_arrive_expect(k_full, HALF_BYTES);
        load_k(1, k_full);
        if (GROUPS > 1) {
            mbarrier_arrive_expect(q_full + 1, GROUP_BYTES);
            load_q(1);
        }
        mbarrier_arrive_expect(v_full, TILE_BYTES);
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            tma_load(v_smem + box * KEYS * ROW_BYTES, &v_map, v_full, box * COLUMNS, 0, kv_head,
                     batch);
        }
    }
    // Warp-uniform, and known to the compiler as such: descriptors are read from uniform registers.
    const int warp = __shfl_sync(FULL_WARP, threadIdx.x / 32, 0);
    const int group = warp / 4;
    const int lane = threadIdx.x % 32;
    const int pair = 2 * (lane % 4);  // first of a lane's two columns of eight
    const unsigned q_address = shared_address(q_smem) + group * GROUP_BYTES;
    const unsigned long long q_first = wgmma_descriptor<ROW_BYTES>(q_address, 16);
    const unsigned long long k_first = wgmma_descriptor<ROW_BYTES>(shared_address(k_smem), 16);
    const unsigned long long v_first =
        wgmma_descriptor<ROW_BYTES>(shared_address(v_smem), KEYS * ROW_BYTES);

    // The barriers are initialised.
    __syncthreads();
    mbarrier_wait(q_full, 0);
    if (group > 0) mbarrier_wait(q_full + group, 0);

    // S = Q @ K^T [GROUP_ROWS, KEYS], one half of the keys after the other, as they arrive
    float s_rmem[2][HALF_SCORES];
    const auto score = [&](int i) -> float& { return s_rmem[i / HALF_SCORES][i % HALF_SCORES]; };
    wgmma_fence();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half == 1) mbarrier_wait(k_full, 0);
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            const unsigned long long q_columns = q_first + columns_at<GROUP_ROWS>(step);
            const unsigned long long k_columns =
                k_first + half * (HALF_BYTES >> 4) + columns_at<HALF_KEYS>(step);
            if (step == 0) wgmma<false>(s_rmem[half], q_columns, k_columns);
            else wgmma<true>(s_rmem[half], q_columns, k_columns);
        }
        wgmma_commit();
    }
    wgmma_wait<0>(s_rmem[0], s_rmem[1]);

    // Only keys across the end or across the diagonal have anything to mask.
    if (KEYS > (IS_CAUSAL ? min(seqlen_kv, m0 + 1) : seqlen_kv)) {
        int visible[2];  // keys of the lane's rows, counted from its first one
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int query = m0 + warp * 16 + lane / 4 + r * 8;
            visible[r] = (IS_CAUSAL ? min(seqlen_kv, query + 1) : seqlen_kv) - pair;
        }
#pragma unroll
        for (int i = 0; i < KEYS / 2; i++) {  // bit 0: second column, bit 1: second row
            if (i / 4 * 8 + i % 2 >= visible[i / 2 % 2]) score(i) = -INFINITY;
        }
    }
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))
    float m_scaled[2], l_rmem[2] = {};  // maxima and sums of the lane's rows
#pragma unroll
    for (int r = 0; r < 2; r++) {
        // Every row sees key 0, so that its maximum is finite.
        float m = fmaxf(score(2 * r), score(2 * r + 1));
#pragma unroll
        for (int i = 2 * r + 4; i < KEYS / 2; i += 4) m = fmaxf(m, fmaxf(score(i), score(i + 1)));
        m_scaled[r] = row_max(m) * scale_log2;
    }

    float acc_rmem[HEAD_DIM / 2];   // O, not yet divided by l: 8 columns are 4 registers
    unsigned p_rmem[KEY_STEPS][4];  // two by eight columns of S are one left operand
#pragma unroll
    for (int step = 0; step < KEY_STEPS; step++) {
        // P = exp(scale (S - m)) of 16 keys, while the products of those before them run
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = i % 2, at = step * 8 + i * 2;
            const float left = fast_exp2(score(at) * scale_log2 - m_scaled[r]);
            const float right = fast_exp2(score(at + 1) * scale_log2 - m_scaled[r]);
            l_rmem[r] += left + right;
            p_rmem[step][i] = pack(left, right);
        }
        // O = P @ V [GROUP_ROWS, HEAD_DIM]
        if (step == 0) mbarrier_wait(v_full, 0);
        wgmma_fence();
        const unsigned long long v_rows = v_first + (step * 16 * ROW_BYTES >> 4);
        if (step == 0) wgmma<false>(acc_rmem, p_rmem[step], v_rows);
        else wgmma<true>(acc_rmem, p_rmem[step], v_rows);
    }
    wgmma_commit();
    wgmma_wait<0>(acc_rmem);

    // The products of the group's other warps have read Q too: a warp's wait covers only its own.
    named_barrier(1 + group, 4 * 32);
    // O = O / l overwrites the warp's own rows of Q.
    float inv_l[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        inv_l[r] = __fdividef(1.0f, row_sum(l_rmem[r]));
        STORE_LSE(pair == 0 && m0 + warp * 16 + lane / 4 + r * 8 < seqlen,
                  ((size_t)batch * gridDim.y + head) * seqlen + m0 + warp * 16 + lane / 4 + r * 8,
                  m_scaled[r], inv_l[r]);
    }
    const int row = warp % 4 * 16 + lane % 16;  // of a matrix that this lane points at
    const int chunk = lane / 16 ^ row * ROW_BYTES / 128 % CHUNKS;
    const unsigned lane_smem = q_address + row * ROW_BYTES + chunk * 16;
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) {
        unsigned o_rmem[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float* o = acc_rmem + step * 8 + i * 2;
            o_rmem[i] = pack(o[0] * inv_l[i % 2], o[1] * inv_l[i % 2]);
        }
        const unsigned box_smem = lane_smem + step / STEPS * GROUP_ROWS * ROW_BYTES;
        stmatrix_x4(box_smem ^ step % STEPS * 32, o_rmem);
    }
    async_proxy_fence();
    // All rows of the warp are written before one thread issues their TMA store.
    __syncwarp();
    if (elect_one()) {
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            unsigned char* rows = q_smem + group * GROUP_BYTES +
                                  (box * GROUP_ROWS + warp % 4 * 16) * ROW_BYTES;
            tma_store(&out_map, rows, box * COLUMNS, m0 + warp * 16, head, batch);
        }
        tma_store_commit();
        tma_store_wait();
    }
}
