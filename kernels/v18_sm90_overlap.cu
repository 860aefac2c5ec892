// v18 Overlap: intra-warpgroup overlap of a tile's softmax with the previous tile's products.
// Idea: issue S of the next tile first, then O of this one: the softmax waits only for S.
// Changed: against v17, the products' order; O and P are kept while the tensor cores use them.
// Limiter: exp2 at D = 64, tensor cores at D = 128; they overlap within a group and across groups.
// Constraints: sm_90a alone; D in {32, 64, 96, 128}; any S, KV, H and B.
// Passes: 1, attention_forward; grid (ceil(S / (64 consumers)), H, B), 128 (consumers + 1) threads.
// Source: FlashAttention-3 (arXiv 2407.08608), overlap within a warpgroup.
// Weakness: S and P of two tiles are alive at a time: three consumers at D = 128 are too many.
/* attune
idea = "Intra-warpgroup overlap: a tile's softmax runs during the products of its neighbours."
head_dims = [32, 64, 96, 128]
min_compute_capability = 9.0
arch_specific = true
gqa = true
takes = ["lse"]
let.block_m = "64 * consumers"
# A swizzled row is as wide as the swizzle: D = 128 takes two boxes, D = 96 three of half the width.
let.columns = "64 if head_dim % 64 == 0 else 32"

[tunables]
block_n = {values = [64, 128, 176], default = 128, meaning = "K/V rows per tile"}
stages = {values = [2, 3], default = 2, meaning = "K/V tiles in the ring"}
consumers = {values = [2, 3], default = 2, meaning = "warpgroups that compute, 64 query rows each"}

[[constraints]]
condition = "(64 * consumers + 2 * stages * block_n) * head_dim * element_bytes <= 232000"
sentence = """v18 keeps Q and {stages} K/V tiles in shared memory, and 227 KB hold no more: lower \
              stages, block_n or consumers."""

[[constraints]]
condition = "consumers == 2 or head_dim + block_n <= 192"
sentence = """v18 has 160 registers a thread with three consumers, too few for block_n={block_n} \
              with D={head_dim}: lower block_n or consumers."""

[tensor_maps]
q_map = {tensor = "q", box = ["columns", "block_m", 1, 1], swizzle = "2 * columns"}
k_map = {tensor = "k", box = ["columns", "block_n", 1, 1], swizzle = "2 * columns"}
v_map = {tensor = "v", box = ["columns", "block_n", 1, 1], swizzle = "2 * columns"}
out_map = {tensor = "out", box = ["columns", 64, 1, 1], swizzle = "2 * columns"}

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = "128 * (consumers + 1)"
# The producer gives back what the consumers take; 0 where there is no third one.
warpgroup_registers = ["24 if consumers == 2 else 32", "240 if consumers == 2 else 160",
                       "240 if consumers == 2 else 160", "0 if consumers == 2 else 160"]
# Q, the ring of K and V, a barrier for Q, and four for each stage.
smem_bytes = "(block_m + 2 * stages * block_n) * head_dim * element_bytes + 8 * (1 + 4 * stages)"
args = ["q_map", "k_map", "v_map", "out_map", "num_heads", "num_heads_kv", "seqlen_kv",
        "softmax_scale", "lse", {name = "seqlen", ctype = "int32", feature = "lse"}]

[work]
math_unit = "tensor"
math_threads = "128 * consumers"
query_rows = "block_m"
kv_rows = "round_up(min(seqlen_kv, seqlen) if causal else seqlen_kv, block_n)"
conflict_ways = 1
*/
#include "exp2.cuh"
#include "lse.cuh"
#include "hopper.cuh"
#include "rows.cuh"

constexpr int GROUP_ROWS = 64;                      // query rows of a warpgroup
constexpr int BLOCK_M = GROUP_ROWS * CONSUMERS;     // and of a CTA
constexpr int WARPGROUP = 128;                      // threads
constexpr int NUM_THREADS = WARPGROUP * (CONSUMERS + 1);
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 24 : 32;  // per thread; a CTA has 65,536
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 240 : 160;
constexpr int COLUMNS = HEAD_DIM % 64 == 0 ? 64 : 32;  // of a box: a row is as wide as the swizzle
constexpr int ROW_BYTES = 2 * COLUMNS;
constexpr int BOXES = HEAD_DIM / COLUMNS;           // side by side make a tile
constexpr int TILE_BYTES = BLOCK_N * HEAD_DIM * 2;  // of K or V
constexpr int Q_BYTES = BLOCK_M * HEAD_DIM * 2;
constexpr int DIM_STEPS = HEAD_DIM / 16;  // a wgmma takes 16 columns of Q and K
constexpr int KEY_STEPS = BLOCK_N / 16;   // and 16 rows of V
constexpr int TURNS = 4;  // id of the first named barrier of the turns; ids 1 to 3: stores of O

static_assert(CONSUMERS == 2 || CONSUMERS == 3,
              "consumers must be 2 or 3: a fourth would leave each thread 120 registers");
static_assert(BLOCK_N == 64 || BLOCK_N == 128 || BLOCK_N == 176,
              "block_n must be 64, 128 or 176: S of a tile stays in a warpgroup's registers");
static_assert(STAGES == 2 || STAGES == 3,
              "stages must be 2 or 3: one tile is computed while the others arrive");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128,
              "head_dim must be 32, 64, 96 or 128: a box has 32 or 64 columns, O is in registers");

// The descriptor of 16 columns of ROWS rows of Q or K, whose first box begins at `tile`.
template <int ROWS>
__device__ __forceinline__ unsigned long long columns_of(unsigned tile, int step) {
    constexpr int STEPS = COLUMNS / 16;  // of a box
    return wgmma_descriptor<ROW_BYTES>(
        tile + step / STEPS * ROWS * ROW_BYTES + step % STEPS * 32, 16);
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const __grid_constant__ TensorMap q_map,    // [batch, num_heads, seqlen, D]
                  const __grid_constant__ TensorMap k_map,    // [batch, num_heads_kv, seqlen_kv, D]
                  const __grid_constant__ TensorMap v_map,    // [batch, num_heads_kv, seqlen_kv, D]
                  const __grid_constant__ TensorMap out_map,  // [batch, num_heads, seqlen, D]
                  int num_heads, int num_heads_kv, int seqlen_kv,
                  float softmax_scale LSE_PARAMETER_AND_SEQLEN) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* q_smem = smem;                       // [BOXES, BLOCK_M, COLUMNS], swizzled
    unsigned char* k_ring = q_smem + Q_BYTES;           // [STAGES, BOXES, BLOCK_N, COLUMNS]
    unsigned char* v_ring = k_ring + STAGES * TILE_BYTES;
    Mbarrier* q_full = reinterpret_cast<Mbarrier*>(v_ring + STAGES * TILE_BYTES);
    Mbarrier* k_full = q_full + 1;         // of each stage: its tile has arrived
    Mbarrier* v_full = k_full + STAGES;
    Mbarrier* k_empty = v_full + STAGES;   // and has been read by every consumer warp
    Mbarrier* v_empty = k_empty + STAGES;

    // The query tile is the fastest axis: concurrent CTAs share their head's K/V in L2. Causal: the
    // longest tiles start first, which keeps the last wave short.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * BLOCK_M;  // first query row of this CTA
    const int head = blockIdx.y, batch = blockIdx.z;
    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = IS_CAUSAL ? min(seqlen_kv, m0 + BLOCK_M) : seqlen_kv;
    const int tiles = (kv_end + BLOCK_N - 1) / BLOCK_N;

    if (threadIdx.x == 0) {
        mbarrier_init(q_full, 1);
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(k_full + stage, 1);
            mbarrier_init(v_full + stage, 1);
            mbarrier_init(k_empty + stage, 4 * CONSUMERS);
            mbarrier_init(v_empty + stage, 4 * CONSUMERS);
        }
        mbarrier_init_fence();
    }
    // No thread uses a barrier before it is initialised.
    __syncthreads();

    if (threadIdx.x < WARPGROUP) {
        fewer_registers<PRODUCER_REGISTERS>();
        if (threadIdx.x >= 32 || !elect_one()) return;
        const int kv_head = head / (num_heads / num_heads_kv);
        mbarrier_arrive_expect(q_full, Q_BYTES);
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            tma_load(q_smem + box * BLOCK_M * ROW_BYTES, &q_map, q_full, box * COLUMNS, m0, head,
                     batch);
        }
        // Loads a tile of K or V into its stage, once the stage's previous tile has been read.
        const auto load_tile = [&](const TensorMap* map, unsigned char* ring, Mbarrier* full,
                                   Mbarrier* empty, int tile) {
            const int stage = tile % STAGES;
            mbarrier_wait(empty + stage, tile / STAGES % 2 ^ 1);
            mbarrier_arrive_expect(full + stage, TILE_BYTES);
#pragma unroll
            for (int box = 0; box < BOXES; box++) {
                tma_load(ring + stage * TILE_BYTES + box * BLOCK_N * ROW_BYTES, map, full + stage,
                         box * COLUMNS, tile * BLOCK_N, kv_head, batch);
            }
        };
        // Loaded in the order in which the consumers read them.
        load_tile(&k_map, k_ring, k_full, k_empty, 0);
        for (int tile = 1; tile < tiles; tile++) {
            load_tile(&k_map, k_ring, k_full, k_empty, tile);
            load_tile(&v_map, v_ring, v_full, v_empty, tile - 1);
        }
        load_tile(&v_map, v_ring, v_full, v_empty, tiles - 1);
        return;
    }

    more_registers<CONSUMER_REGISTERS>();
    const int group = threadIdx.x / WARPGROUP - 1;
    const int warp = threadIdx.x / 32 % 4;  // of its group
    const int lane = threadIdx.x % 32;
    const int pair = 2 * (lane % 4);  // first of a lane's two columns of eight
    const int query0 = m0 + group * GROUP_ROWS + warp * 16 + lane / 4;  // this lane's first row

    float acc_rmem[HEAD_DIM / 2] = {};  // O, not yet divided by l: 8 columns are 4 registers
    float m_rmem[2] = {-INFINITY, -INFINITY};  // running maxima of the lane's rows, unscaled
    float l_rmem[2] = {};                      // running sums over this lane's keys only
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))
    const unsigned q_address = shared_address(q_smem) + group * GROUP_ROWS * ROW_BYTES;

    // Turns go round: a group is signalled by the previous one, the first by the last.
    const int turn = TURNS + group, next_turn = TURNS + (group + 1) % CONSUMERS;
    const bool is_last = group == CONSUMERS - 1;
    if (is_last) named_barrier_arrive(next_turn, 2 * WARPGROUP);

    float s_rmem[BLOCK_N / 2];
    unsigned p_rmem[KEY_STEPS][4];  // two by eight columns of S are one left operand

    // S = Q @ K^T [GROUP_ROWS, BLOCK_N], started
    const auto multiply_q_k = [&](int tile) {
        const unsigned k_address = shared_address(k_ring) + tile % STAGES * TILE_BYTES;
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            const unsigned long long q_columns = columns_of<BLOCK_M>(q_address, step);
            const unsigned long long k_columns = columns_of<BLOCK_N>(k_address, step);
            if (step == 0) wgmma<false>(s_rmem, q_columns, k_columns);
            else wgmma<true>(s_rmem, q_columns, k_columns);
        }
        wgmma_commit();
    };

    // O += P @ V [GROUP_ROWS, HEAD_DIM], started
    const auto multiply_p_v = [&](int tile) {
        const unsigned v_address = shared_address(v_ring) + tile % STAGES * TILE_BYTES;
#pragma unroll
        for (int step = 0; step < KEY_STEPS; step++) {
            wgmma(acc_rmem, p_rmem[step],
                  wgmma_descriptor<ROW_BYTES>(v_address + step * 16 * ROW_BYTES,
                                              BLOCK_N * ROW_BYTES));
        }
        wgmma_commit();
    };

    // P = exp(scale (S - m)) in place of S, and the factors that rescale O.
    const auto softmax = [&](int tile, float (&correction)[2]) {
        // Only tiles across the end of the keys or across the diagonal have anything to mask.
        const int n0 = tile * BLOCK_N;
        if (n0 + BLOCK_N > (IS_CAUSAL ? min(seqlen_kv, m0 + 1) : seqlen_kv)) {
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++) {  // bit 0: second column, bit 1: second row
                const int key = n0 + i / 4 * 8 + pair + i % 2;
                const int query = query0 + i / 2 % 2 * 8;
                const bool visible = key < seqlen_kv && (!IS_CAUSAL || key <= query);
                if (!visible) s_rmem[i] = -INFINITY;
            }
        }

        // Online softmax: what was summed so far is rescaled from the old maximum to the new one.
        // Key 0 is visible to every row, so the row's maximum is finite from the first tile on. One
        // FFMA and one EX2 per score; l sums it before P is rounded.
        float m_scaled[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float m_new = m_rmem[r];
#pragma unroll
            for (int i = 2 * r; i < BLOCK_N / 2; i += 4) {
                m_new = fmaxf(m_new, fmaxf(s_rmem[i], s_rmem[i + 1]));
            }
            m_new = row_max(m_new);
            m_scaled[r] = m_new * scale_log2;
            correction[r] = fast_exp2(m_rmem[r] * scale_log2 - m_scaled[r]);
            m_rmem[r] = m_new;
            l_rmem[r] *= correction[r];
        }
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) {
            s_rmem[i] = fast_exp2(s_rmem[i] * scale_log2 - m_scaled[i / 2 % 2]);
            l_rmem[i / 2 % 2] += s_rmem[i];
        }
    };
    const auto rescale_and_pack = [&](const float (&correction)[2]) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) acc_rmem[i] *= correction[i / 2 % 2];
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i += 2) {
            p_rmem[i / 8][i / 2 % 4] = pack(s_rmem[i], s_rmem[i + 1]);
        }
    };
    const auto parity_of = [](int tile) { return tile / STAGES % 2; };
    // Called after a softmax. Its branch, which depends on all of P, ends the basic block:
    // otherwise ptxas would move the wait for O ahead of the softmax. The compiler does not know
    // that l is never negative.
    const auto wait_for_k = [&](int tile) {
        if (tile < tiles && !(l_rmem[0] + l_rmem[1] < 0.0f)) {
            mbarrier_wait(k_full + tile % STAGES, parity_of(tile));
        }
    };

    mbarrier_wait(q_full, 0);
    mbarrier_wait(k_full, 0);
    // All products of this group are issued together, before those of the next group.
    named_barrier(turn, 2 * WARPGROUP);
    wgmma_fence();
    multiply_q_k(0);
    named_barrier_arrive(next_turn, 2 * WARPGROUP);
    wgmma_wait<0>(s_rmem);
    if (lane == 0) mbarrier_arrive(k_empty);
    float correction[2];
    softmax(0, correction);
    wait_for_k(1);
    rescale_and_pack(correction);
    for (int tile = 1; tile < tiles; tile++) {
        const int stage = tile % STAGES, last_stage = (tile - 1) % STAGES;
        mbarrier_wait(v_full + last_stage, parity_of(tile - 1));
        // As above: the other groups' products run during this group's softmax.
        named_barrier(turn, 2 * WARPGROUP);
        wgmma_fence();
        multiply_q_k(tile);
        multiply_p_v(tile - 1);
        named_barrier_arrive(next_turn, 2 * WARPGROUP);
        // S is complete; O and P must not be touched before the other product is.
        wgmma_wait<1>(s_rmem);
        if (lane == 0) mbarrier_arrive(k_empty + stage);
        softmax(tile, correction);
        wait_for_k(tile + 1);
        wgmma_wait<0>(acc_rmem);
        if (lane == 0) mbarrier_arrive(v_empty + last_stage);
        rescale_and_pack(correction);
    }
    mbarrier_wait(v_full + (tiles - 1) % STAGES, parity_of(tiles - 1));
    // O of the last tile is issued alone. The last group has the last turn, and signals no other
    // group.
    named_barrier(turn, 2 * WARPGROUP);
    wgmma_fence();
    multiply_p_v(tiles - 1);
    if (!is_last) named_barrier_arrive(next_turn, 2 * WARPGROUP);
    wgmma_wait<0>(acc_rmem);

    // O overwrites the group's own rows of Q: its warps had waited for their products with Q before
    // they arrived at the barrier of the last turn.
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = group * GROUP_ROWS + warp * 16 + lane / 4 + r * 8;
        const float inv_l = 1.0f / row_sum(l_rmem[r]);
        STORE_LSE(pair == 0 && m0 + row < seqlen,
                  ((size_t)batch * num_heads + head) * seqlen + m0 + row, m_rmem[r] * scale_log2,
                  inv_l);
#pragma unroll
        for (int i = 2 * r; i < HEAD_DIM / 2; i += 4) {
            const int column = i / 4 * 8;
            const int chunk = column % COLUMNS / 8 ^ row * ROW_BYTES / 128 % (COLUMNS / 8);
            unsigned char* o_smem = q_smem + (column / COLUMNS * BLOCK_M + row) * ROW_BYTES;
            *reinterpret_cast<unsigned*>(o_smem + chunk * 16 + pair * 2) =
                pack(acc_rmem[i] * inv_l, acc_rmem[i + 1] * inv_l);
        }
    }
    async_proxy_fence();
    // All rows of the group are written before its first thread issues their TMA store.
    named_barrier(1 + group, WARPGROUP);
    if (warp == 0 && elect_one()) {
#pragma unroll
        for (int box = 0; box < BOXES; box++) {
            tma_store(&out_map, q_smem + (box * BLOCK_M + group * GROUP_ROWS) * ROW_BYTES,
                      box * COLUMNS, m0 + group * GROUP_ROWS, head, batch);
        }
        tma_store_commit();
        tma_store_wait();
    }
}
