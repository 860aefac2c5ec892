// v26 Backward, wgmma: v24's loop by TMA and wgmma; P^T and dS^T stay in registers.
// Idea: S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T are left operands in registers.
// Changed: against v24, rewritten for a producer warp, its ring and wgmma; missing rows padded.
// Limiter: shared memory: wgmma reads K, V and dS from it, as left operands, for each query tile.
// Constraints: sm_90a alone; D in {32, 64, 96, 128}; H <= 65535; B <= 65535; S <= KV where causal.
// Passes: 3, backward_rows by 8 rows, backward_loop by 128 keys, backward_convert, of each head.
// Source: FlashAttention-3 (arXiv 2407.08608), its backward pass; dQ's sums lie as wgmma has them.
// Weakness: dQ's order of sums varies; the two warpgroups synchronise at dS for each query tile.
/* attune
idea = "Backward by TMA and wgmma: S and dP are computed transposed, so P and dS stay in registers."
head_dims = [32, 64, 96, 128]
min_compute_capability = 9.0
arch_specific = true
gqa = true
takes = ["backward", "kv_offset"]
repeatable = false
let.block_m = "128 if head_dim <= 64 else 64"
# A swizzled row is as wide as the swizzle: D = 128 takes two boxes, D = 96 six.
let.columns = "16 if head_dim == 96 else min(head_dim, 64)"
let.padded = "round_up(seqlen, block_m)"

[tunables]
stages = {values = [2, 3], default = 2, meaning = "tiles of Q and dO in the ring"}

[scratch]
rows = {shape = ["batch", "num_heads", "padded", 2]}  # LSE and D, tile by tile of queries
dq_sum = {shape = ["batch", "num_heads", "padded", "head_dim"]}

[tensor_maps]
q_map = {tensor = "q", box = ["columns", "block_m", 1, 1], swizzle = "2 * columns"}
k_map = {tensor = "k", box = ["columns", 128, 1, 1], swizzle = "2 * columns"}
v_map = {tensor = "v", box = ["columns", 128, 1, 1], swizzle = "2 * columns"}
dout_map = {tensor = "dout", box = ["columns", "block_m", 1, 1], swizzle = "2 * columns"}
dk_map = {tensor = "dk", box = ["columns", 64, 1, 1], swizzle = "2 * columns"}
dv_map = {tensor = "dv", box = ["columns", 64, 1, 1], swizzle = "2 * columns"}

[[passes]]
entry = "backward_rows"
grid = ["padded // 8", "num_heads", "batch"]  # a warp for each row
threads = 256
args = ["out", "dout", "lse", "rows", "dq_sum", "seqlen"]

[[passes]]
entry = "backward_loop"
grid = ["ceil_div(seqlen_kv, 128)", "num_heads_kv", "batch"]
threads = 384
# The producer gives back what the two consumers take.
warpgroup_registers = [24, 240, 240]
# K and V, the ring of Q and dO, two tiles of dS^T; LSE and D of each stage; the barriers.
smem_bytes = """2 * 128 * head_dim * element_bytes + 2 * stages * block_m * head_dim * element_bytes
                + 2 * 128 * block_m * element_bytes + stages * 2 * block_m * 4
                + 8 * (1 + 2 * stages)"""
args = ["q_map", "k_map", "v_map", "dout_map", "dk_map", "dv_map", "rows", "dq_sum", "num_heads",
        "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale"]

[[passes]]
entry = "backward_convert"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = 256
args = ["dq_sum", "dq", "seqlen", "softmax_scale"]

[work]
math_unit = "tensor"
math_threads = 256
query_rows = "block_m"
kv_rows = 128
conflict_ways = 1
*/
#include "backward.cuh"
#include "hopper.cuh"

constexpr int WARPGROUP = 128;                     // threads
constexpr int CONSUMERS = 2;                       // warpgroups that compute
constexpr int COMPUTING = CONSUMERS * WARPGROUP;   // threads
constexpr int NUM_THREADS = COMPUTING + WARPGROUP;
constexpr int PRODUCER_REGISTERS = 24;             // per thread; a CTA has 65,536
constexpr int CONSUMER_REGISTERS = 240;
constexpr int GROUP_ROWS = 64;                     // keys of a warpgroup, and rows of a wgmma
constexpr int BLOCK_N = GROUP_ROWS * CONSUMERS;    // keys of a CTA
constexpr int BLOCK_M = HEAD_DIM <= 64 ? 128 : 64;  // query rows per tile
constexpr int COLUMNS =  // of a box: as wide as the swizzle
    HEAD_DIM == 96 ? 16 : HEAD_DIM < 64 ? HEAD_DIM : 64;
constexpr int ROW_BYTES = 2 * COLUMNS;
constexpr int BOXES = HEAD_DIM / COLUMNS;          // side by side make a tile
constexpr int KV_BYTES = BLOCK_N * HEAD_DIM * 2;
constexpr int Q_BYTES = BLOCK_M * HEAD_DIM * 2;
constexpr int QUERY_STEPS = BLOCK_M / 16;          // a wgmma sums over 16
constexpr int KEY_STEPS = BLOCK_N / 16;
constexpr int DS_ROW_BYTES = 128;                  // 64 queries of one key
constexpr int DS_BYTES = BLOCK_N * BLOCK_M * 2;
// The groups share dQ [BLOCK_M, HEAD_DIM]: 64 rows each, or half of the boxes of the columns.
constexpr bool SHARE_ROWS = BLOCK_M > GROUP_ROWS;
constexpr int DQ_COLUMNS = SHARE_ROWS ? HEAD_DIM : HEAD_DIM / 2;
constexpr int DQ_SUMS = DQ_COLUMNS / 2;            // of a thread
constexpr int DQ_TILE = BLOCK_M * HEAD_DIM;
constexpr int BOTH_GROUPS = 1;                     // named barriers
constexpr int OWN_GROUP = 2;                       // the first of one for each group

static_assert(STAGES == 2 || STAGES == 3,
              "stages must be 2 or 3: one tile is computed while the others arrive");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128 && (SHARE_ROWS || BOXES % 2 == 0),
              "head_dim must be 32, 64, 96 or 128: the warpgroups share dQ by rows or by boxes");

// Input of the loop for each row, LSE in base 2 and D, and zeros where dQ is accumulated. For rows
// past the last one P = exp2(0 - infinity) = 0.
extern "C" __global__ void __launch_bounds__(32 * DELTA_ROWS)
backward_rows(const element* __restrict__ out,   // [batch, num_heads, seqlen, HEAD_DIM]
              const element* __restrict__ dout,  // [batch, num_heads, seqlen, HEAD_DIM]
              const float* __restrict__ lse,     // [batch, num_heads, seqlen], natural
              float* __restrict__ rows,          // [batch, num_heads, padded / BLOCK_M, LSE and D,
                                                 //  BLOCK_M]
              float* __restrict__ dq_sum,        // [batch, num_heads, padded, HEAD_DIM]
              int seqlen) {
    const int lane = threadIdx.x % 32;
    const int query = blockIdx.x * DELTA_ROWS + threadIdx.x / 32;
    const size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const size_t row = head * seqlen + query;
    const size_t padded_row = head * gridDim.x * DELTA_ROWS + query;
    const bool exists = query < seqlen;
    const float sum =
        exists ? row_delta(out + row * HEAD_DIM, dout + row * HEAD_DIM, lane) : 0.0f;
    if (lane == 0) {
        float* to = rows + padded_row / BLOCK_M * 2 * BLOCK_M + query % BLOCK_M;
        to[0] = exists ? lse[row] * LOG2_E : INFINITY;
        to[BLOCK_M] = sum;
    }
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 32) dq_sum[padded_row * HEAD_DIM + d + lane] = 0.0f;
}

// Offset from the descriptor of the first 16 columns of ROWS rows to that of another step. Its
// address counts units of 16 bytes.
template <int ROWS>
__device__ __forceinline__ unsigned long long columns_of(unsigned long long first, int step) {
    constexpr int STEPS = COLUMNS / 16;  // of a box
    return first + ((step / STEPS * ROWS * ROW_BYTES + step % STEPS * 32) >> 4);
}

// acc [GROUP_ROWS, BLOCK_M] = A @ B^T, started: a group's rows of K or V, and those of Q or dO.
__device__ __forceinline__ void multiply_rows(float (&acc_rmem)[BLOCK_M / 2],
                                              unsigned long long a, unsigned long long b) {
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++) {
        const unsigned long long a_columns = columns_of<BLOCK_N>(a, step);
        const unsigned long long b_columns = columns_of<BLOCK_M>(b, step);
        if (step == 0) wgmma<false>(acc_rmem, a_columns, b_columns);
        else wgmma<true>(acc_rmem, a_columns, b_columns);
    }
    wgmma_commit();
}

// acc [GROUP_ROWS, HEAD_DIM] += W @ B, started: W in registers, all rows of a tile of dO or Q.
__device__ __forceinline__ void add_weighted(float (&acc_rmem)[HEAD_DIM / 2],
                                             const unsigned (&w_rmem)[QUERY_STEPS][4],
                                             unsigned long long b) {
#pragma unroll
    for (int step = 0; step < QUERY_STEPS; step++) {
        wgmma(acc_rmem, w_rmem[step], b + (step * 16 * ROW_BYTES >> 4));
    }
    wgmma_commit();
}

// Packs two neighbouring columns of accumulators into one register of a left operand.
__device__ __forceinline__ void pack_operand(unsigned (&to_rmem)[QUERY_STEPS][4],
                                             const float (&from_rmem)[BLOCK_M / 2]) {
#pragma unroll
    for (int i = 0; i < BLOCK_M / 2; i += 2) {
        to_rmem[i / 8][i / 2 % 4] = pack(from_rmem[i], from_rmem[i + 1]);
    }
}

// Stores a group's sums, times `factor`, to rows of a tile [BOXES, BLOCK_N, COLUMNS], swizzled.
__device__ __forceinline__ void put_rows(unsigned char* tile,
                                         const float (&acc_rmem)[HEAD_DIM / 2], float factor,
                                         int first_row, int lane) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i += 2) {
        const int row = first_row + lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8;
        const int chunk = column % COLUMNS / 8 ^ row * ROW_BYTES / 128 % (COLUMNS / 8);
        unsigned char* to = tile + (column / COLUMNS * BLOCK_N + row) * ROW_BYTES;
        *reinterpret_cast<unsigned*>(to + chunk * 16 + lane % 4 * 4) =
            pack(acc_rmem[i] * factor, acc_rmem[i + 1] * factor);
    }
}

// dK and dV of BLOCK_N keys, and the contribution of these keys to dQ of all queries.
extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
backward_loop(const __grid_constant__ TensorMap q_map,     // [batch, num_heads, seqlen, D]
              const __grid_constant__ TensorMap k_map,     // [batch, num_heads_kv, seqlen_kv, D]
              const __grid_constant__ TensorMap v_map,     // [batch, num_heads_kv, seqlen_kv, D]
              const __grid_constant__ TensorMap dout_map,  // [batch, num_heads, seqlen, D]
              const __grid_constant__ TensorMap dk_map,    // [batch, num_heads_kv, seqlen_kv, D]
              const __grid_constant__ TensorMap dv_map,    // [batch, num_heads_kv, seqlen_kv, D]
              const float* __restrict__ rows,              // [batch, num_heads, padded / BLOCK_M,
                                                           //  LSE and D, BLOCK_M]
              float* __restrict__ dq_sum,                  // [batch, num_heads, padded / BLOCK_M,
                                                           //  group, sum, thread of the group]
              int num_heads, int num_heads_kv, int seqlen, int seqlen_kv, float softmax_scale) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* k_smem = smem;                    // [BOXES, BLOCK_N, COLUMNS], swizzled
    unsigned char* v_smem = k_smem + KV_BYTES;       // [BOXES, BLOCK_N, COLUMNS]
    unsigned char* ring = v_smem + KV_BYTES;         // [STAGES, Q and dO, BOXES, BLOCK_M, COLUMNS]
    unsigned char* ds_smem = ring + STAGES * 2 * Q_BYTES;  // [2, BLOCK_M / 64, BLOCK_N, 64], dS^T
    float* rows_smem = reinterpret_cast<float*>(ds_smem + 2 * DS_BYTES);  // [STAGES, 2, BLOCK_M]
    Mbarrier* kv_full = reinterpret_cast<Mbarrier*>(rows_smem + STAGES * 2 * BLOCK_M);
    Mbarrier* full = kv_full + 1;      // of each stage: its tiles and rows have arrived
    Mbarrier* empty = full + STAGES;   // and have been read by every consumer warp

    const int n0 = blockIdx.x * BLOCK_N;             // first key of this CTA
    const int kv_head = blockIdx.y, batch = blockIdx.z;
    const int heads = num_heads / num_heads_kv;      // query heads that read these keys
    const int offset = seqlen_kv - seqlen;           // query i stands at i + offset
    const int query_tiles = (seqlen + BLOCK_M - 1) / BLOCK_M;
    // Causal: queries before the tile's first key see none of its keys. The first keys, which most
    // queries see, start first.
    const int first_tile = IS_CAUSAL ? max(0, n0 - offset) / BLOCK_M : 0;
    const int tiles = query_tiles - first_tile;      // of each head, at least 1
    const int visits = tiles * heads;

    if (threadIdx.x == 0) {
        mbarrier_init(kv_full, 1);
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(full + stage, 1 + 32);  // copying thread, and a warp with rows
            mbarrier_init(empty + stage, 4 * CONSUMERS);
        }
        mbarrier_init_fence();
    }
    // No thread uses a barrier before it is initialised.
    __syncthreads();

    const int warp = threadIdx.x / 32 % 4;  // of its group
    const int lane = threadIdx.x % 32;
    // Index of a query tile among those of all heads and sequences.
    const auto tile_of = [&](int visit) {
        const size_t head = (size_t)batch * num_heads + kv_head * heads + visit / tiles;
        return head * query_tiles + first_tile + visit % tiles;
    };
    const auto parity_of = [](int visit) { return visit / STAGES % 2; };

    if (threadIdx.x < WARPGROUP) {
        fewer_registers<PRODUCER_REGISTERS>();
        if (warp == 1) {
#pragma unroll 1  // more than one at a time are too many registers
            for (int visit = 0; visit < visits; visit++) {
                const int stage = visit % STAGES;
                const float* from = rows + tile_of(visit) * 2 * BLOCK_M;
                mbarrier_wait(empty + stage, parity_of(visit) ^ 1);
#pragma unroll
                for (int i = 4 * lane; i < 2 * BLOCK_M; i += 4 * 32) {
                    *reinterpret_cast<float4*>(rows_smem + stage * 2 * BLOCK_M + i) =
                        *reinterpret_cast<const float4*>(from + i);
                }
                mbarrier_arrive(full + stage);
            }
        }
        if (warp != 0 || !elect_one()) return;
        mbarrier_arrive_expect(kv_full, 2 * KV_BYTES);
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            const int at = box * BLOCK_N * ROW_BYTES;
            tma_load(k_smem + at, &k_map, kv_full, box * COLUMNS, n0, kv_head, batch);
            tma_load(v_smem + at, &v_map, kv_full, box * COLUMNS, n0, kv_head, batch);
        }
        for (int visit = 0; visit < visits; visit++) {
            const int stage = visit % STAGES, head = kv_head * heads + visit / tiles;
            const int m0 = (first_tile + visit % tiles) * BLOCK_M;
            unsigned char* q_smem = ring + stage * 2 * Q_BYTES;
            mbarrier_wait(empty + stage, parity_of(visit) ^ 1);
            mbarrier_arrive_expect(full + stage, 2 * Q_BYTES);
#pragma unroll
            for (int box = 0; box < BOXES; box++) {
                const int at = box * BLOCK_M * ROW_BYTES;
                tma_load(q_smem + at, &q_map, full + stage, box * COLUMNS, m0, head, batch);
                tma_load(q_smem + Q_BYTES + at, &dout_map, full + stage, box * COLUMNS, m0, head,
                         batch);
            }
        }
        return;
    }

    more_registers<CONSUMER_REGISTERS>();
    const int group = static_cast<int>(warp_uniform(threadIdx.x / WARPGROUP)) - 1;
    const int first_row = group * GROUP_ROWS + warp * 16;  // of this warp, in the tile of keys
    const int pair = 2 * (lane % 4);                       // first of a lane's two columns of eight
    const int key0 = n0 + first_row + lane / 4;            // this lane's first key
    const float scale_log2 = softmax_scale * LOG2_E;       // exp(x) = 2^(x log2(e))
    const unsigned k_address = shared_address(k_smem), v_address = shared_address(v_smem);
    const unsigned own_rows = group * GROUP_ROWS * ROW_BYTES;
    const unsigned long long k_rows = wgmma_descriptor<ROW_BYTES>(k_address + own_rows, 16);
    const unsigned long long v_rows = wgmma_descriptor<ROW_BYTES>(v_address + own_rows, 16);
    // K's columns and dS's queries from which this group computes dQ.
    const unsigned long long dq_columns = wgmma_descriptor<ROW_BYTES>(
        k_address + (SHARE_ROWS ? 0 : group * DQ_COLUMNS * BLOCK_N * 2), BLOCK_N * ROW_BYTES);
    const unsigned long long dq_rows = wgmma_descriptor<DS_ROW_BYTES>(
        shared_address(ds_smem) + (SHARE_ROWS ? group * BLOCK_N * DS_ROW_BYTES : 0), 16);
    // Descriptors of the first stage of Q and dO: by rows (for S, dP), summed over rows (dV, dK).
    const unsigned long long ring_rows = wgmma_descriptor<ROW_BYTES>(shared_address(ring), 16);
    const unsigned long long ring_sums =
        wgmma_descriptor<ROW_BYTES>(shared_address(ring), BLOCK_M * ROW_BYTES);

    float dk_rmem[HEAD_DIM / 2] = {};
    float dv_rmem[HEAD_DIM / 2] = {};

    mbarrier_wait(kv_full, 0);
    for (int visit = 0; visit < visits; visit++) {
        const int stage = visit % STAGES;
        const int m0 = (first_tile + visit % tiles) * BLOCK_M;
        const unsigned place = warp_uniform(stage) * (2 * Q_BYTES >> 4);
        unsigned long long q_rows = ring_rows + place, q_sums = ring_sums + place;
        // Hides how they are computed: otherwise the compiler adds each step to the ring's first
        // descriptor.
        asm volatile("" : "+l"(q_rows), "+l"(q_sums));
        const float* lse_smem = rows_smem + stage * 2 * BLOCK_M;
        const float* delta_smem = lse_smem + BLOCK_M;
        mbarrier_wait(full + stage, parity_of(visit));

        // S^T = K @ Q^T and dP^T = V @ dO^T [GROUP_ROWS, BLOCK_M]: this group's keys.
        float s_rmem[BLOCK_M / 2], dp_rmem[BLOCK_M / 2];
        wgmma_fence();
        multiply_rows(s_rmem, k_rows, q_rows);
        multiply_rows(dp_rmem, v_rows, q_rows + (Q_BYTES >> 4));
        wgmma_wait<1>(s_rmem);

        // P = exp(scale S - LSE), overlapped with dP's product.
        const bool has_mask =
            n0 + BLOCK_N > (IS_CAUSAL ? min(seqlen_kv, m0 + offset + 1) : seqlen_kv);
#pragma unroll
        for (int i = 0; i < BLOCK_M / 2; i++) {  // bit 0: second column, bit 1: second row
            const float2 lse =
                *reinterpret_cast<const float2*>(lse_smem + i / 4 * 8 + pair);
            s_rmem[i] = fast_exp2(s_rmem[i] * scale_log2 - (i % 2 ? lse.y : lse.x));
        }
        if (has_mask) {
#pragma unroll
            for (int i = 0; i < BLOCK_M / 2; i++) {
                const int key = key0 + i / 2 % 2 * 8, query = m0 + i / 4 * 8 + pair + i % 2;
                const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= query + offset);
                if (!visible) s_rmem[i] = 0.0f;
            }
        }
        unsigned p_rmem[QUERY_STEPS][4];
        pack_operand(p_rmem, s_rmem);

        // dV += P^T @ dO, overlapped with dS = P (dP - D).
        wgmma_fence();
        add_weighted(dv_rmem, p_rmem, q_sums + (Q_BYTES >> 4));
        wgmma_wait<1>(dp_rmem);
#pragma unroll
        for (int i = 0; i < BLOCK_M / 2; i++) {
            const float2 delta =
                *reinterpret_cast<const float2*>(delta_smem + i / 4 * 8 + pair);
            s_rmem[i] *= dp_rmem[i] - (i % 2 ? delta.y : delta.x);
        }
        unsigned ds_rmem[QUERY_STEPS][4];
        pack_operand(ds_rmem, s_rmem);

        // dS^T for both groups' dQ. It overwrites that of two iterations ago, which was read before
        // the groups' barrier in the last one.
        const unsigned ds_address = shared_address(ds_smem) + visit % 2 * DS_BYTES;
#pragma unroll
        for (int step = 0; step < QUERY_STEPS; step++) {
            const int key = first_row + lane % 16, chunk = step % 4 * 2 + lane / 16;
            stmatrix_x4(ds_address + (step / 4 * BLOCK_N + key) * DS_ROW_BYTES +
                            (chunk ^ key % 8) * 16,
                        ds_rmem[step]);
        }
        async_proxy_fence();
        named_barrier(BOTH_GROUPS, COMPUTING);

        // dQ = dS @ K over all keys, then dK += dS^T @ Q, which overlaps with adding dQ.
        float dq_rmem[DQ_SUMS];
        const unsigned long long ds_rows = dq_rows + warp_uniform(visit % 2) * (DS_BYTES >> 4);
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < KEY_STEPS; step++) {
            const unsigned long long a = ds_rows + (step * 16 * DS_ROW_BYTES >> 4);
            const unsigned long long b = dq_columns + (step * 16 * ROW_BYTES >> 4);
            if (step == 0) wgmma_transposed<false>(dq_rmem, a, b);
            else wgmma_transposed<true>(dq_rmem, a, b);
        }
        wgmma_commit();
        add_weighted(dk_rmem, ds_rmem, q_sums);
        wgmma_wait<1>(dq_rmem, dv_rmem);
        float* to = dq_sum + tile_of(visit) * DQ_TILE + group * DQ_SUMS * WARPGROUP +
                    threadIdx.x % WARPGROUP;
#pragma unroll
        for (int i = 0; i < DQ_SUMS; i++) atomicAdd(to + i * WARPGROUP, dq_rmem[i]);
        // The next S and dP take the registers of this product's operand.
        wgmma_wait<0>(dk_rmem);
        if (lane == 0) mbarrier_arrive(empty + stage);
    }

    // dK and dV overwrite the group's own rows of K and V. K is read by both groups' dQ.
    named_barrier(BOTH_GROUPS, COMPUTING);
    put_rows(k_smem, dk_rmem, softmax_scale, first_row, lane);
    put_rows(v_smem, dv_rmem, 1.0f, first_row, lane);
    async_proxy_fence();
    // All rows of the group are written before its first thread issues their TMA store.
    named_barrier(OWN_GROUP + group, WARPGROUP);
    if (warp == 0 && elect_one()) {
        const int row = n0 + group * GROUP_ROWS;
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            const int at = (box * BLOCK_N + group * GROUP_ROWS) * ROW_BYTES;
            tma_store(&dk_map, k_smem + at, box * COLUMNS, row, kv_head, batch);
            tma_store(&dv_map, v_smem + at, box * COLUMNS, row, kv_head, batch);
        }
        tma_store_commit();
        tma_store_wait();
    }
}

// dQ = scale * its sum, in the tensors' dtype and layout.
extern "C" __global__ void __launch_bounds__(COMPUTING)
backward_convert(const float* __restrict__ dq_sum,  // as backward_loop leaves it
                 element* __restrict__ dq,          // [batch, num_heads, seqlen, HEAD_DIM]
                 int seqlen, float softmax_scale) {
    const int group = threadIdx.x / WARPGROUP, warp = threadIdx.x / 32 % 4;
    const int lane = threadIdx.x % 32;
    const size_t head = (size_t)blockIdx.z * gridDim.y + blockIdx.y;
    const float* from = dq_sum + (head * gridDim.x + blockIdx.x) * DQ_TILE +
                        group * DQ_SUMS * WARPGROUP + threadIdx.x % WARPGROUP;
    const int row = blockIdx.x * BLOCK_M + (SHARE_ROWS ? group * GROUP_ROWS : 0) + warp * 16 +
                    lane / 4;
    element* to = dq + head * seqlen * HEAD_DIM + (SHARE_ROWS ? 0 : group * DQ_COLUMNS) +
                  2 * (lane % 4);
#pragma unroll
    for (int i = 0; i < DQ_SUMS; i += 2) {
        const int query = row + i / 2 % 2 * 8;
        const float low = from[i * WARPGROUP], high = from[(i + 1) * WARPGROUP];
        if (query >= seqlen) continue;
        *reinterpret_cast<element2*>(to + (size_t)query * HEAD_DIM + i / 4 * 8) =
            to_element2(low * softmax_scale, high * softmax_scale);
    }
}
