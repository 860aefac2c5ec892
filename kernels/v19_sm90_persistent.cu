// v19 Persistent on Hopper: persistent CTAs keep the SM's pipes busy between query tiles.
// Idea: load the next Q and store the last O while products run, so that a tile's end costs little.
// Changed: against v18, rewritten around its loop: persistent CTAs, two Q buffers, multicast.
// Limiter: as v18 in the steady state, from the first key of a CTA to its last.
// Constraints: sm_90a alone; D in {32, 64, 96, 128}; any S, KV, H, B; sequences of one length.
// Passes: 1, attention_forward; grid (min(num_ctas, query tiles)), 128 (consumers + 1) threads.
// Source: FlashAttention-3 (arXiv 2407.08608) and its L2-aware longest-first order; v13.
// Weakness: the schedule of tiles is static; O is written before a group's next products.
/* attune
idea = "Persistent CTAs load the next Q and store the previous O while products continue."
head_dims = [32, 64, 96, 128]
min_compute_capability = 9.0
arch_specific = true
gqa = true
takes = ["kv_offset", "window", "softcap", "alibi", "sinks", "lse"]
let.block_m = "64 * consumers"
# A cluster takes as many neighbouring query tiles of a head at a time as it has CTAs.
let.query_tiles = "ceil_div(seqlen, block_m * cluster_size) * cluster_size"
let.ctas = "min(num_ctas, query_tiles * num_heads * batch)"
# A swizzled row is as wide as the swizzle: D = 128 takes two boxes, D = 96 three of half the width.
let.columns = "64 if head_dim % 64 == 0 else 32"
# Causal: as many K/V heads at a time as kv_mib holds, with all query heads of each.
let.kv_heads_at_once = "max(1, kv_mib * 262144 // (seqlen_kv * head_dim))"
let.heads_at_once = "kv_heads_at_once * (num_heads // num_heads_kv) if causal else 1"

[tunables]
block_n = {values = [64, 128, 160, 192], default = 128, meaning = "K/V rows per tile"}
stages = {values = [2, 3], default = 2, meaning = "K/V tiles in the ring"}
consumers = {values = [2, 3], default = 2, meaning = "warpgroups that compute, 64 query rows each"}
num_ctas.values = [4, 78, 114, 132]
num_ctas.default = 132
num_ctas.per_sm = 1
num_ctas.meaning = "persistent CTAs: the GPU's SMs"
cluster_size = {values = [1, 2], default = 1, meaning = "CTAs that share K/V tiles by multicast"}
kv_mib = {values = [1, 16, 32], default = 32, meaning = "MiB of K/V in use at a time if causal"}
rescale_threshold = {values = [0, 8], default = 0, meaning = "log2 of the growth that rescales O"}

[[constraints]]
condition = "2 * (64 * consumers + stages * block_n) * head_dim * element_bytes <= 232000"
sentence = """v19 keeps two tiles of Q and {stages} of K and V in shared memory, and 227 KB hold \
              no more: lower stages, block_n or consumers."""

[[constraints]]
condition = "num_ctas % cluster_size == 0"
sentence = """v19 launches whole clusters of {cluster_size} CTAs, and num_ctas={num_ctas} is no \
              multiple: name one, or cluster_size=1."""

[[constraints]]
condition = "2 * head_dim + 3 * block_n <= (768 if consumers == 2 else 512)"  # O, S and P
sentence = """v19 has 232 registers a thread, or 160 with three consumers: too few for \
              block_n={block_n} with D={head_dim}, so lower block_n or consumers."""

[tensor_maps]
q_map = {tensor = "q", box = ["columns", "block_m", 1, 1], swizzle = "2 * columns"}
k_map = {tensor = "k", box = ["columns", "block_n // cluster_size", 1, 1], swizzle = "2 * columns"}
v_map = {tensor = "v", box = ["columns", "block_n // cluster_size", 1, 1], swizzle = "2 * columns"}
out_map = {tensor = "out", box = ["columns", "block_m", 1, 1], swizzle = "2 * columns"}

[[passes]]
entry = "attention_forward"
grid = ["ctas", "1", "1"]
threads = "128 * (consumers + 1)"
cluster = ["cluster_size", 1, 1]
# The producer gives back what the consumers take; 0 where there is no third one.
warpgroup_registers = ["40 if consumers == 2 else 32", "232 if consumers == 2 else 160",
                       "232 if consumers == 2 else 160", "0 if consumers == 2 else 160"]
# Two tiles of Q, the ring of K and V, four barriers for Q and O, and four for each stage.
smem_bytes = "2 * (block_m + stages * block_n) * head_dim * element_bytes + 8 * (4 + 4 * stages)"
args = ["q_map", "k_map", "v_map", "out_map", "batch", "num_heads", "num_heads_kv", "seqlen",
        "seqlen_kv", {name = "heads_at_once", ctype = "int32", value = "heads_at_once"},
        "softmax_scale", "alibi_slopes", "sinks", "lse"]

[work]
math_unit = "tensor"
math_threads = "128 * consumers"
query_rows = "block_m"
kv_rows = "ceil_div(query_tiles * num_heads * batch, ctas) * round_up(seqlen_kv, block_n)"
conflict_ways = 1
schedule = {shares = "query tiles", heads_at_once = "heads_at_once"}
*/
#include "cluster.cuh"
#include "exp2.cuh"
#include "features.cuh"
#include "hopper.cuh"
#include "rows.cuh"

constexpr int GROUP_ROWS = 64;                      // query rows of a warpgroup
constexpr int BLOCK_M = GROUP_ROWS * CONSUMERS;     // and of a CTA
constexpr int WARPGROUP = 128;                      // threads
constexpr int NUM_THREADS = WARPGROUP * (CONSUMERS + 1);
constexpr int PRODUCER_REGISTERS = CONSUMERS == 2 ? 40 : 32;  // per thread; a CTA has 65,536
constexpr int CONSUMER_REGISTERS = CONSUMERS == 2 ? 232 : 160;
constexpr int COLUMNS = HEAD_DIM % 64 == 0 ? 64 : 32;  // of a box: a row is as wide as the swizzle
constexpr int ROW_BYTES = 2 * COLUMNS;
constexpr int BOXES = HEAD_DIM / COLUMNS;           // side by side make a tile
constexpr int TILE_BYTES = BLOCK_N * HEAD_DIM * 2;  // of K or V
constexpr int Q_BYTES = BLOCK_M * HEAD_DIM * 2;
constexpr int DIM_STEPS = HEAD_DIM / 16;  // a wgmma takes 16 columns of Q and K
constexpr int KEY_STEPS = BLOCK_N / 16;   // and 16 rows of V
constexpr int SHARE_ROWS = BLOCK_N / CLUSTER_SIZE;  // of a tile that each CTA of a cluster loads
constexpr int TURNS = 1;  // id of the first named barrier of the turns

static_assert(CONSUMERS == 2 || CONSUMERS == 3,
              "consumers must be 2 or 3: a fourth would leave each thread 120 registers");
static_assert(BLOCK_N == 64 || BLOCK_N == 128 || BLOCK_N == 160 || BLOCK_N == 192,
              "block_n must be 64, 128, 160 or 192: S of a tile stays in a warpgroup's registers");
static_assert(STAGES == 2 || STAGES == 3,
              "stages must be 2 or 3: one tile is computed while the others arrive");
static_assert(CLUSTER_SIZE == 1 || CLUSTER_SIZE == 2,
              "cluster_size must be 1 or 2: a warp tells its CTA and one other what it has read");
static_assert(NUM_CTAS >= 1 && KV_MIB >= 1,
              "num_ctas and kv_mib must be at least 1: one CTA takes one head at a time");
static_assert(RESCALE_THRESHOLD >= 0 && RESCALE_THRESHOLD <= 15,
              "rescale_threshold must be 0 to 15: P is at most 2 to this, and FP16 ends at 65,504");
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128,
              "head_dim must be 32, 64, 96 or 128: a box has 32 or 64 columns, O is in registers");

// Offset from the descriptor of the first 16 columns of ROWS rows of Q or K to that of another
// step. Its address counts units of 16 bytes; adding costs a third of building a descriptor.
template <int ROWS>
__device__ __forceinline__ unsigned long long columns_of(unsigned long long first, int step) {
    constexpr int STEPS = COLUMNS / 16;  // of a box
    return first + ((step / STEPS * ROWS * ROW_BYTES + step % STEPS * 32) >> 4);
}

// One of a CTA's query tiles.
struct QueryTile {
    int batch, head;
    int m0;     // its first query row
    int tiles;  // of keys that it visits; 0 past the last query tile
};

// Rank of this CTA in its cluster.
__device__ __forceinline__ int cluster_rank() { return blockIdx.x % CLUSTER_SIZE; }

// Reports a tile as read to the other CTA, which loads a share of the stage's next tile.
__device__ __forceinline__ void tell_other_cta(Mbarrier* empty, int lane) {
    if constexpr (CLUSTER_SIZE > 1) {
        if (lane == 1) mbarrier_arrive_at(empty, cluster_rank() ^ 1);
    }
}

// First key of the first tile of keys that a query tile visits, and with it those of the cluster's
// other CTAs: 0 without a window.
__device__ __forceinline__ int first_key_of(int m0, int seqlen, int seqlen_kv) {
    return FIRST_KEY(POSITION_OF(m0 - cluster_rank() * BLOCK_M)) / BLOCK_N * BLOCK_N;
}

// Index of a CTA's query tile, or its cluster's pair of tiles, in a round: see query_tile_of.
__device__ __forceinline__ int position_of(int round) {
    const unsigned clusters = gridDim.x / CLUSTER_SIZE, cluster = blockIdx.x / CLUSTER_SIZE;
    return round * clusters + (round % 2 == 0 ? cluster : clusters - 1 - cluster);
}

// Query tiles of a head, or pairs of them where a cluster takes two.
__device__ __forceinline__ int query_tiles_of(int seqlen) {
    return (seqlen + CLUSTER_SIZE * BLOCK_M - 1) / (CLUSTER_SIZE * BLOCK_M);
}

// The query tile of a CTA in a round. All query tiles are one sequence in which heads that share
// K/V are neighbours; each round takes the next gridDim.x of them, every other round in reverse.
// Causal: a section of the sequence has the heads whose K and V fit in L2 together. In the last
// section the longest tile comes first, in the one before the shortest, and so on: neighbours have
// similar lengths, a CTA with more work in one round has less in the next, and the shortest tiles
// come last. A cluster takes pairs of neighbouring tiles and visits all keys that one of the two
// sees; one of them may lie past the last query: its rows are zeros and are not stored.
__device__ __forceinline__ QueryTile query_tile_of(int round, int batch, int num_heads,
                                                   int heads_at_once, int seqlen, int seqlen_kv) {
    // Hides from the compiler that these are loop-invariant: it would keep their reciprocals in
    // registers.
    asm volatile("" : "+r"(num_heads), "+r"(heads_at_once), "+r"(seqlen));
    const int all_heads = batch * num_heads;
    const int query_tiles = query_tiles_of(seqlen);
    const int position = position_of(round);
    QueryTile found = {0, 0, 0, 0};
    if (position >= query_tiles * all_heads) return found;
    const int section = position / (query_tiles * heads_at_once);
    const int first_head = section * heads_at_once;
    const int heads = min(heads_at_once, all_heads - first_head);
    const int within = position - first_head * query_tiles;
    int tile_index = within / heads;
    const int head = first_head + within % heads;  // over batches, too
    found.batch = head / num_heads;
    found.head = head % num_heads;
    if (IS_CAUSAL) {
        const int last_section = (all_heads - 1) / heads_at_once;
        if ((last_section - section) % 2 == 0) tile_index = query_tiles - 1 - tile_index;
    }
    // Keys after the tile's last query, or outside all windows, are masked for all of its rows.
    tile_index = tile_index * CLUSTER_SIZE + cluster_rank();
    const int end =
        END_OF_KEYS(POSITION_OF((tile_index + CLUSTER_SIZE - cluster_rank()) * BLOCK_M));
    const int begin = first_key_of(tile_index * BLOCK_M, seqlen, seqlen_kv);
    found.tiles = (end - begin + BLOCK_N - 1) / BLOCK_N;
    found.m0 = tile_index * BLOCK_M;
    return found;
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS, 1)
attention_forward(const __grid_constant__ TensorMap q_map,    // [batch, num_heads, seqlen, D]
                  const __grid_constant__ TensorMap k_map,    // [batch, num_heads_kv, seqlen_kv, D]
                  const __grid_constant__ TensorMap v_map,    // [batch, num_heads_kv, seqlen_kv, D]
                  const __grid_constant__ TensorMap out_map,  // [batch, num_heads, seqlen, D]
                  int batch, int num_heads, int num_heads_kv, int seqlen, int seqlen_kv,
                  int heads_at_once,  // query heads of a section
                  float softmax_scale FEATURE_PARAMETERS) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned char* q_smem = smem;                // [2, BOXES, BLOCK_M, COLUMNS], swizzled
    unsigned char* k_ring = q_smem + 2 * Q_BYTES;  // [STAGES, BOXES, BLOCK_N, COLUMNS]
    unsigned char* v_ring = k_ring + STAGES * TILE_BYTES;
    Mbarrier* q_full = reinterpret_cast<Mbarrier*>(v_ring + STAGES * TILE_BYTES);  // of each buffer
    Mbarrier* o_full = q_full + 2;         // every consumer warp has replaced its Q by O
    Mbarrier* k_full = o_full + 2;         // of each stage: its tile has arrived
    Mbarrier* v_full = k_full + STAGES;
    Mbarrier* k_empty = v_full + STAGES;   // and has been read by the cluster's consumer warps
    Mbarrier* v_empty = k_empty + STAGES;

    const Features given = FEATURES_GIVEN;
    const auto query_tile = [&](int round) {
        return query_tile_of(round, batch, num_heads, heads_at_once, seqlen, seqlen_kv);
    };
    const auto is_query_tile = [&](int round) {
        return position_of(round) < query_tiles_of(seqlen) * batch * num_heads;
    };

    if (threadIdx.x == 0) {
#pragma unroll
        for (int place = 0; place < 2; place++) {
            mbarrier_init(q_full + place, 1);
            mbarrier_init(o_full + place, 4 * CONSUMERS);
        }
#pragma unroll
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(k_full + stage, 1);
            mbarrier_init(v_full + stage, 1);
            mbarrier_init(k_empty + stage, 4 * CONSUMERS * CLUSTER_SIZE);
            mbarrier_init(v_empty + stage, 4 * CONSUMERS * CLUSTER_SIZE);
        }
        mbarrier_init_fence();
    }
    // No thread uses a barrier before it is initialised, in this CTA or another.
    if constexpr (CLUSTER_SIZE > 1) {
        cluster_arrive();
        cluster_wait();
    } else {
        // Only barriers of this CTA.
        __syncthreads();
    }

    if (threadIdx.x < WARPGROUP) {
        fewer_registers<PRODUCER_REGISTERS>();
        const int role = threadIdx.x / 32;  // warp 0 loads K and V, warp 1 loads Q, stores O
        if (role > 1 || !elect_one()) return;
        if (role == 0) {
            // Loads a tile of K or V into its stage, once the stage's previous tile has been read:
            // all of it, or this CTA's share into every CTA of the cluster. `count`: tiles loaded
            // before.
            const auto load_tile = [&](const TensorMap* map, unsigned char* ring, Mbarrier* full,
                                       Mbarrier* empty, int count, int row, int kv_head,
                                       int batch) {
                const int stage = count % STAGES;
                mbarrier_wait(empty + stage, count / STAGES % 2 ^ 1);
                mbarrier_arrive_expect(full + stage, TILE_BYTES);
#pragma unroll
                for (int box = 0; box < BOXES; box++) {
                    unsigned char* to = ring + stage * TILE_BYTES + box * BLOCK_N * ROW_BYTES;
                    if constexpr (CLUSTER_SIZE > 1) {
                        const int first = cluster_rank() * SHARE_ROWS;
                        tma_load_to_all<CLUSTER_SIZE>(to + first * ROW_BYTES, map, full + stage,
                                                      box * COLUMNS, row + first, kv_head, batch);
                    } else {
                        tma_load(to, map, full + stage, box * COLUMNS, row, kv_head, batch);
                    }
                }
            };
            // In the order of use: K of a tile before V of the previous one.
            int count = 0, last_row = 0, last_kv_head = 0, last_batch = 0;
            const auto load_last_v = [&]() {
                load_tile(&v_map, v_ring, v_full, v_empty, count - 1, last_row, last_kv_head,
                          last_batch);
            };
            for (int round = 0;; round++) {
                const QueryTile now = query_tile(round);
                const int kv_head = now.head / (num_heads / num_heads_kv);
                for (int tile = 0; tile < now.tiles; tile++, count++) {
                    const int row = first_key_of(now.m0, seqlen, seqlen_kv) + tile * BLOCK_N;
                    load_tile(&k_map, k_ring, k_full, k_empty, count, row, kv_head, now.batch);
                    if (count > 0) load_last_v();
                    last_row = row;
                    last_kv_head = kv_head;
                    last_batch = now.batch;
                }
                if (now.tiles == 0) break;
            }
            load_last_v();
            return;
        }
        for (int round = 0;; round++) {
            unsigned char* place = q_smem + round % 2 * Q_BYTES;
            if (round >= 2) {  // O of two rounds ago leaves the buffer
                const QueryTile last = query_tile(round - 2);
                if (last.tiles == 0) return;
                mbarrier_wait(o_full + round % 2, round / 2 % 2 ^ 1);
#pragma unroll
                for (int box = 0; box < BOXES; box++) {
                    tma_store(&out_map, place + box * BLOCK_M * ROW_BYTES, box * COLUMNS, last.m0,
                              last.head, last.batch);
                }
                tma_store_commit();
                tma_store_wait();
            }
            const QueryTile next = query_tile(round);
            if (next.tiles == 0) continue;
            mbarrier_arrive_expect(q_full + round % 2, Q_BYTES);
#pragma unroll
            for (int box = 0; box < BOXES; box++) {
                tma_load(place + box * BLOCK_M * ROW_BYTES, &q_map, q_full + round % 2,
                         box * COLUMNS, next.m0, next.head, next.batch);
            }
        }
    }

    more_registers<CONSUMER_REGISTERS>();
    const int group = static_cast<int>(warp_uniform(threadIdx.x / WARPGROUP)) - 1;
    const int warp = threadIdx.x / 32 % 4;  // of its group
    const int lane = threadIdx.x % 32;
    const int pair = 2 * (lane % 4);  // first of a lane's two columns of eight
    const int group_row = group * GROUP_ROWS + warp * 16 + lane / 4;  // this lane's first row

    float acc_rmem[HEAD_DIM / 2];  // O, not yet divided by l: 8 columns are 4 registers
    float m_rmem[2];               // reference maxima of the scores, times scale_log2
    float l_rmem[2];               // running sums over this lane's keys only
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    // Turns go round: a group is signalled by the previous one, the first by the last.
    const int turn = TURNS + group, next_turn = TURNS + (group + 1) % CONSUMERS;
    const bool is_last = group == CONSUMERS - 1;
    if (is_last) named_barrier_arrive(next_turn, 2 * WARPGROUP);

    float s_rmem[BLOCK_N / 2];
    unsigned p_rmem[KEY_STEPS][4];  // two by eight columns of S are one left operand

    // Descriptors of the group's rows of Q, and of the first stage of K and V. Offsets are
    // warp-uniform, and ptxas knows it: otherwise each product would fetch them from the lanes.
    const unsigned long long q_rows = wgmma_descriptor<ROW_BYTES>(
        shared_address(q_smem) + group * GROUP_ROWS * ROW_BYTES, 16);
    const unsigned long long k_rows = wgmma_descriptor<ROW_BYTES>(shared_address(k_ring), 16);
    const unsigned long long v_rows =
        wgmma_descriptor<ROW_BYTES>(shared_address(v_ring), BLOCK_N * ROW_BYTES);

    // S = Q @ K^T [GROUP_ROWS, BLOCK_N], started
    const auto multiply_q_k = [&](int round, int stage) {
        const unsigned long long q_first = q_rows + warp_uniform(round % 2) * (Q_BYTES >> 4);
        const unsigned long long k_first = k_rows + warp_uniform(stage) * (TILE_BYTES >> 4);
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            const unsigned long long q_columns = columns_of<BLOCK_M>(q_first, step);
            const unsigned long long k_columns = columns_of<BLOCK_N>(k_first, step);
            if (step == 0) wgmma<false>(s_rmem, q_columns, k_columns);
            else wgmma<true>(s_rmem, q_columns, k_columns);
        }
        wgmma_commit();
    };

    // O += P @ V [GROUP_ROWS, HEAD_DIM], started
    const auto multiply_p_v = [&](int stage) {
        const unsigned long long v_first = v_rows + warp_uniform(stage) * (TILE_BYTES >> 4);
#pragma unroll
        for (int step = 0; step < KEY_STEPS; step++) {
            wgmma(acc_rmem, p_rmem[step], v_first + (step * 16 * ROW_BYTES >> 4));
        }
        wgmma_commit();
    };

    const auto start_rows = [&]() {
#pragma unroll
        for (int r = 0; r < 2; r++) m_rmem[r] = FIRST_SCALED_MAXIMUM, l_rmem[r] = 0.0f;
    };
    const auto start_o = [&]() {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) acc_rmem[i] = 0.0f;
    };

    // P = exp(scale (S - m)) in place of S. Also whether O must be rescaled, because m changed, and
    // the factors.
    const auto softmax = [&](int m0, int head, int tile, float (&correction)[2]) {
        const int n0 = first_key_of(m0, seqlen, seqlen_kv) + tile * BLOCK_N;
        if constexpr (HAS_SCORE_MOD) {
            const ScoreMod score_mod = score_mod_of(given, head, softmax_scale);
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++) {
                const int key = n0 + i / 4 * 8 + pair + i % 2;
                const int position = POSITION_OF(m0 + group_row + i / 2 % 2 * 8);
                s_rmem[i] = score_mod(s_rmem[i], position - key);
            }
        }
        // Only tiles across the end of the keys, across the diagonal or across the edge of a window
        // have anything to mask.
        if (n0 + BLOCK_N > END_SEEN_BY_ALL(POSITION_OF(m0)) ||
            IS_BEFORE_A_WINDOW(n0, POSITION_OF(m0 + BLOCK_M))) {
#pragma unroll
            for (int i = 0; i < BLOCK_N / 2; i++) {  // bit 0: second column, bit 1: second row
                const int key = n0 + i / 4 * 8 + pair + i % 2;
                const int query = m0 + group_row + i / 2 % 2 * 8;
                const bool visible = IS_VISIBLE(key, POSITION_OF(query));
                if (!visible) s_rmem[i] = -INFINITY;
            }
        }

        // Maxima are taken of the bits as integers, of which sm_90 compares three at once: positive
        // floats have the same order. If all scores of a row are negative, the exact maximum
        // matters only if m is so low that it could rise: then they are compared as floats.
        bool is_low = false;
        float m_new[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int most = __float_as_int(s_rmem[2 * r]);
#pragma unroll
            for (int i = 2 * r; i < BLOCK_N / 2; i += 4) {
                most = max(max(most, __float_as_int(s_rmem[i])), __float_as_int(s_rmem[i + 1]));
            }
            most = max(most, __shfl_xor_sync(FULL_WARP, most, 1));
            most = max(most, __shfl_xor_sync(FULL_WARP, most, 2));
            m_new[r] = __int_as_float(most) * scale_log2;
            is_low |= most < 0 && m_rmem[r] < -RESCALE_THRESHOLD;
        }
        if (__any_sync(FULL_WARP, is_low)) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                m_new[r] = s_rmem[2 * r];
#pragma unroll
                for (int i = 2 * r; i < BLOCK_N / 2; i += 4) {
                    m_new[r] = fmaxf(m_new[r], fmaxf(s_rmem[i], s_rmem[i + 1]));
                }
                m_new[r] = row_max(m_new[r]) * scale_log2;
            }
        }

        // Online softmax: rescale what was summed from the old maximum to the new one, but only if
        // one of the warp's maxima grew by more than the threshold. Until then P may exceed 1,
        // which l compensates, as it is relative to the same m. Key 0 is visible to every row, or m
        // begins at a finite value, so that m is finite from the first tile on.
        bool is_grown = RESCALE_THRESHOLD == 0;
#pragma unroll
        for (int r = 0; r < 2; r++) is_grown |= m_new[r] > m_rmem[r] + RESCALE_THRESHOLD;
        if constexpr (RESCALE_THRESHOLD > 0) is_grown = __any_sync(FULL_WARP, is_grown);
        // One FFMA and one EX2 per score; l sums it before P is rounded.
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float m_old = m_rmem[r];
            m_rmem[r] = is_grown ? fmaxf(m_old, m_new[r]) : m_old;
            correction[r] = fast_exp2(m_old - m_rmem[r]);
            l_rmem[r] *= correction[r];
        }
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i++) {
            s_rmem[i] = fast_exp2(s_rmem[i] * scale_log2 - m_rmem[i / 2 % 2]);
            l_rmem[i / 2 % 2] += s_rmem[i];
        }
        return is_grown;
    };
    const auto rescale_o = [&](const float (&correction)[2]) {
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 2; i++) acc_rmem[i] *= correction[i / 2 % 2];
    };
    const auto pack_p = [&]() {
#pragma unroll
        for (int i = 0; i < BLOCK_N / 2; i += 2) {
            p_rmem[i / 8][i / 2 % 4] = pack(s_rmem[i], s_rmem[i + 1]);
        }
    };

    const auto divide_one_by_l = [&](const QueryTile& of, float (&inv_l)[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            inv_l[r] = 1.0f / with_sink(row_sum(l_rmem[r]), given, of.head, m_rmem[r]);
            STORE_LSE(pair == 0 && of.m0 + group_row + r * 8 < seqlen,
                      ((size_t)of.batch * num_heads + of.head) * seqlen + of.m0 + group_row + r * 8,
                      m_rmem[r], inv_l[r]);
        }
    };

    // O overwrites the group's own rows of Q: its warps had waited for their products with Q before
    // they arrived at the barrier of the last turn.
    const auto store_rows = [&](int round, const float (&inv_l)[2]) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = group_row + r * 8;
#pragma unroll
            for (int i = 2 * r; i < HEAD_DIM / 2; i += 4) {
                const int column = i / 4 * 8;
                const int chunk = column % COLUMNS / 8 ^ row * ROW_BYTES / 128 % (COLUMNS / 8);
                unsigned char* o_smem = q_smem + round % 2 * Q_BYTES +
                                        (column / COLUMNS * BLOCK_M + row) * ROW_BYTES;
                *reinterpret_cast<unsigned*>(o_smem + chunk * 16 + pair * 2) =
                    pack(acc_rmem[i] * inv_l[r], acc_rmem[i + 1] * inv_l[r]);
            }
        }
        async_proxy_fence();
        // All lanes' parts of O are written before the warp arrives.
        __syncwarp();
        if (lane == 0) mbarrier_arrive(o_full + round % 2);
    };

    // Stage and parity of this tile of K and V, and of the previous one.
    int stage = 0, parity = 0, last_stage = 0;
    const auto wait_for_last_v = [&]() {
        mbarrier_wait(v_full + last_stage, parity ^ stage == 0);
    };
    const auto step_ring = [&]() {
        last_stage = stage;
        stage = stage == STAGES - 1 ? 0 : stage + 1;
        parity ^= stage == 0;
    };
    // Issues S of this tile and O of the previous one together, before the products of the next
    // group.
    const auto start_products = [&](int round) {
        wait_for_last_v();
        named_barrier(turn, 2 * WARPGROUP);  // the other groups' products have been issued
        wgmma_fence();
        multiply_q_k(round, stage);
        multiply_p_v(last_stage);
        named_barrier_arrive(next_turn, 2 * WARPGROUP);
    };
    const auto wait_for_s = [&]() {
        wgmma_wait<1>(s_rmem);
        if (lane == 0) mbarrier_arrive(k_empty + stage);
        tell_other_cta(k_empty + stage, lane);
    };
    const auto wait_for_o = [&]() {
        wgmma_wait<0>(acc_rmem);
        if (lane == 0) mbarrier_arrive(v_empty + last_stage);
        tell_other_cta(v_empty + last_stage, lane);
    };
    // Waits for K of the next tile, if there is one, after a softmax. Its branch, which depends on
    // all of P, ends the basic block: otherwise ptxas would move the wait for O ahead of the
    // softmax. The compiler does not know that l is never negative.
    const auto wait_for_next_k = [&](bool is_there) {
        const int next_stage = stage == STAGES - 1 ? 0 : stage + 1;
        if (is_there && !(l_rmem[0] + l_rmem[1] < 0.0f)) {
            mbarrier_wait(k_full + next_stage, parity ^ next_stage == 0);
        }
    };

    QueryTile now = query_tile(0);
    float correction[2], inv_l[2];
    start_rows();
    start_o();
    mbarrier_wait(q_full, 0);
    mbarrier_wait(k_full, 0);
    // As in start_products; there is no P yet.
    named_barrier(turn, 2 * WARPGROUP);
    wgmma_fence();
    multiply_q_k(0, 0);
    named_barrier_arrive(next_turn, 2 * WARPGROUP);
    wgmma_wait<0>(s_rmem);
    if (lane == 0) mbarrier_arrive(k_empty);
    tell_other_cta(k_empty, lane);
    softmax(now.m0, now.head, 0, correction);
    bool is_next = is_query_tile(1);  // whether there is another query tile
    wait_for_next_k(now.tiles > 1 || is_next);
    pack_p();
    step_ring();
    int round = 1;
    for (;; round++) {
        for (int tile = 1; tile < now.tiles; tile++, step_ring()) {
            start_products(round - 1);
            wait_for_s();
            const bool is_grown = softmax(now.m0, now.head, tile, correction);
            wait_for_next_k(tile + 1 < now.tiles || is_next);
            wait_for_o();
            if (is_grown) rescale_o(correction);
            pack_p();
        }
        if (!is_next) break;
        // The last keys of one query tile, and the first of the next.
        const QueryTile last = now;
        now = query_tile(round);
        is_next = is_query_tile(round + 1);
        divide_one_by_l(last, inv_l);
        start_rows();
        mbarrier_wait(q_full + round % 2, round / 2 % 2);
        start_products(round);
        wait_for_s();
        softmax(now.m0, now.head, 0, correction);
        wait_for_next_k(now.tiles > 1 || is_next);
        wait_for_o();
        store_rows(round - 1, inv_l);
        start_o();
        pack_p();
        step_ring();
    }
    if constexpr (CLUSTER_SIZE > 1) cluster_arrive();
    wait_for_last_v();
    // O of the last tile is issued alone. The last group has the last turn, and signals no other
    // group.
    named_barrier(turn, 2 * WARPGROUP);
    wgmma_fence();
    multiply_p_v(last_stage);
    if (!is_last) named_barrier_arrive(next_turn, 2 * WARPGROUP);
    divide_one_by_l(now, inv_l);
    wgmma_wait<0>(acc_rmem);
    store_rows(round - 1, inv_l);
    // Returns only after the other CTA's warps have reported all their reads to this one.
    if constexpr (CLUSTER_SIZE > 1) cluster_wait();
}
