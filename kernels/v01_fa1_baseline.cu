// v01 FA-1 baseline: FlashAttention-1 order, one thread per query row.
// Idea: visit K/V tile by tile under a running softmax, so S = Q @ K^T never leaves the chip.
// Changed: nothing; this is the baseline of every later rung.
// Limiter: two of eight warps compute, with 32-way bank conflicts on Q and S, kept as the baseline.
// Constraints: D in {4, 32, 64, 96, 128}, 192 with V's 128; H <= 65535; B <= 65535; no GQA or FP8.
// Passes: 1, attention_forward; grid (ceil(S / 64), num_heads, batch), 256 threads.
// Source: Dao et al., FlashAttention, 2022 (arXiv 2205.14135), algorithm 1, Q loop outside.
// Weakness: one CTA visits all keys of its 64 rows, and few CTAs run where B * H and S are small.
/* attune
idea = "FlashAttention-1 order: sequential K/V tiles, online softmax, one thread per row."
head_dims = [4, 32, 64, 96, 128]
min_compute_capability = 7.5
dim_pairs = [[192, 128]]
takes = ["kv_offset", "window", "softcap", "alibi", "sinks", "varlen", "lse"]
let.block_m = 64

[tunables]
block_n = {values = [32, 64], default = 64, meaning = "K/V rows per tile"}

[[passes]]
entry = "attention_forward"
grid = ["ceil_div(seqlen, block_m)", "num_heads", "batch"]
threads = 256
# Q, K and V, and the scores S as floats.
smem_bytes = """((block_m + block_n) * head_dim + block_n * head_dim_v) * element_bytes \
                + block_m * block_n * 4"""
args = ["q", "k", "v", "out", "num_heads", "seqlen", "seqlen_kv", "softmax_scale",
        "alibi_slopes", "sinks", "seqlens", "lse"]

[work]
math_unit = "fma"
math_threads = "block_m"
query_rows = "block_m"
kv_rows = "round_up(seqlen_kv, block_n)"
*/
#include "element.cuh"
#include "exp2.cuh"
#include "features.cuh"

constexpr int BLOCK_M = 64;       // query rows per CTA, one computing thread each
constexpr int NUM_THREADS = 256;  // all of them load, the first BLOCK_M compute

static_assert(BLOCK_N == 32 || BLOCK_N == 64,
              "block_n must be 32 or 64: at D = 128 a wider tile exceeds the 64 KB of sm_75");
static_assert(HEAD_DIM >= 1 && HEAD_DIM_V >= 1 && HEAD_DIM_V <= 128,
              "head_dim must be at most 128: one thread holds a whole output row in registers");
static_assert(BLOCK_M <= NUM_THREADS, "every query row needs a thread of its own");

// Copies rows [first_row, first_row + ROWS) of one head into shared memory, two bytes per load.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ void load_tile(element* tile_smem,   // [ROWS, COLUMNS]
                                          const element* head,  // [length, COLUMNS]
                                          int first_row, int length) {
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += NUM_THREADS) {
        const int row = first_row + i / COLUMNS;
        // Rows past the end are zero-filled: stale data could be NaN, and NaN * 0 is NaN.
        tile_smem[i] = row < length ? head[(size_t)row * COLUMNS + i % COLUMNS]
                                    : to_element(0.0f);
    }
}

extern "C" __global__ void __launch_bounds__(NUM_THREADS)
attention_forward(const element* __restrict__ q,  // [batch, num_heads, seqlen, HEAD_DIM]
                  const element* __restrict__ k,  // [batch, num_heads, seqlen_kv, HEAD_DIM]
                  const element* __restrict__ v,  // [batch, num_heads, seqlen_kv, HEAD_DIM_V]
                  element* __restrict__ out,      // [batch, num_heads, seqlen, HEAD_DIM_V]
                  int num_heads, int seqlen, int seqlen_kv,
                  float softmax_scale FEATURE_PARAMETERS) {
    // Dynamic, because at D = 128 the tiles exceed the 48 KB that a static array may have.
    extern __shared__ __align__(16) unsigned char smem[];
    element* q_smem = reinterpret_cast<element*>(smem);             // [BLOCK_M, HEAD_DIM]
    element* k_smem = q_smem + BLOCK_M * HEAD_DIM;                  // [BLOCK_N, HEAD_DIM]
    element* v_smem = k_smem + BLOCK_N * HEAD_DIM;                  // [BLOCK_N, HEAD_DIM_V]
    float* s_smem = reinterpret_cast<float*>(v_smem + BLOCK_N * HEAD_DIM_V);  // [BLOCK_M, BLOCK_N]

    const int tid = threadIdx.x;
    // The query tile is the fastest axis: concurrent CTAs share their head's K/V in L2. Causal: the
    // longest tiles start first, which keeps the last wave short.
    const int tile_index = IS_CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int m0 = tile_index * BLOCK_M;  // first query row of this CTA
    const int query = m0 + tid;           // this thread's query row, if it computes
    // 64-bit: batch * num_heads * seqlen_kv * HEAD_DIM may pass 2^31.
    const size_t head_index = (size_t)blockIdx.z * num_heads + blockIdx.y;
    const size_t q_head = head_index * seqlen * HEAD_DIM;      // where this head's Q begins,
    const size_t kv_head = head_index * seqlen_kv * HEAD_DIM;  // its K, and V and O of its width
#define V_HEAD (HEAD_DIM_V == HEAD_DIM ? kv_head : head_index * seqlen_kv * HEAD_DIM_V)
#define O_HEAD (HEAD_DIM_V == HEAD_DIM ? q_head : head_index * seqlen * HEAD_DIM_V)
    const Features given = FEATURES_GIVEN;
    OWN_LENGTHS(given, blockIdx.z);
    if (HAS_VARLEN && m0 >= NUM_QUERIES) return;  // the sequence ends before this tile
    const ScoreMod score_mod = score_mod_of(given, blockIdx.y, softmax_scale);

    load_tile<BLOCK_M, HEAD_DIM>(q_smem, q + q_head, m0, NUM_QUERIES);

    float acc_rmem[HEAD_DIM_V];  // O of this row, not yet divided by l
#pragma unroll
    for (int d = 0; d < HEAD_DIM_V; d++) acc_rmem[d] = 0.0f;
    float m = -INFINITY;  // running maximum of the row's scores, unscaled
    float l = 0.0f;       // running sum of exp(scale (score - m))
    const float scale_log2 = softmax_scale * LOG2_E;  // exp(x) = 2^(x log2(e))

    // Causal: keys after the tile's last query are masked for all of its rows, so stop there.
    const int kv_end = END_OF_KEYS(POSITION_OF(m0 + BLOCK_M));
    for (int n0 = FIRST_KEY(POSITION_OF(m0)) / BLOCK_N * BLOCK_N; n0 < kv_end; n0 += BLOCK_N) {
        load_tile<BLOCK_N, HEAD_DIM>(k_smem, k + kv_head, n0, NUM_KEYS);
        load_tile<BLOCK_N, HEAD_DIM_V>(v_smem, v + V_HEAD, n0, NUM_KEYS);
        // The computing threads read rows that other threads loaded (Q too, the first time).
        __syncthreads();

        if (tid < BLOCK_M) {
            const element* q_row = q_smem + tid * HEAD_DIM;
            float* s_row = s_smem + tid * BLOCK_N;  // read back by this thread only: no barrier

            // S = Q @ K^T [BLOCK_M, BLOCK_N], one row per thread. Neighbouring threads read q_smem
            // and s_smem a whole row apart, all in one bank: a 32-way conflict.
            float m_new = m;
            for (int n = 0; n < BLOCK_N; n++) {
                float score = 0.0f;
#pragma unroll
                for (int d = 0; d < HEAD_DIM; d++) {
                    score += to_float(q_row[d]) * to_float(k_smem[n * HEAD_DIM + d]);
                }
                const int key = n0 + n;
                if constexpr (HAS_SCORE_MOD) score = score_mod(score, POSITION_OF(query) - key);
                const bool visible = IS_VISIBLE(key, POSITION_OF(query));
                if (!visible) score = -INFINITY;
                s_row[n] = score;
                m_new = fmaxf(m_new, score);
            }

            // Online softmax: what was summed so far is rescaled from the old maximum to the new
            // one. Key 0 is visible to every row, so m_new is finite from the first tile on.
            const float m_scaled = SCALED_MAXIMUM(m_new, scale_log2);
            const float correction = fast_exp2(m * scale_log2 - m_scaled);
            l *= correction;
#pragma unroll
            for (int d = 0; d < HEAD_DIM_V; d++) acc_rmem[d] *= correction;

            // P = exp(scale (S - m)): one FFMA and one EX2 per score; O += P @ V [BLOCK_M,
            // HEAD_DIM]. A warp reads one V row: broadcast.
            for (int n = 0; n < BLOCK_N; n++) {
                const float p = fast_exp2(s_row[n] * scale_log2 - m_scaled);
                l += p;
#pragma unroll
                for (int d = 0; d < HEAD_DIM_V; d++) {
                    acc_rmem[d] += p * to_float(v_smem[n * HEAD_DIM_V + d]);
                }
            }
            m = m_new;
        }
        // The next tile overwrites K and V, which slower threads are still reading.
        __syncthreads();
    }

    // O = O / l. Each thread writes its own row, so a warp's stores are a row apart (uncoalesced).
    if (tid < BLOCK_M && query < NUM_QUERIES) {
        const float inv_l = 1.0f / with_sink(l, given, blockIdx.y, m * scale_log2);
        STORE_LSE(true, ((size_t)blockIdx.z * num_heads + blockIdx.y) * seqlen + query,
                  m * scale_log2, inv_l);
#pragma unroll
        for (int d = 0; d < HEAD_DIM_V; d++) {
            out[O_HEAD + (size_t)query * HEAD_DIM_V + d] = to_element(acc_rmem[d] * inv_l);
        }
    }
}
