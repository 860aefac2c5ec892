// Features beyond plain and square causal attention, each enabled by -D, so that the machine code
// of plain attention contains none of them (a test compares).
//   HEAD_DIM_V     columns of V and O, DeepSeek's 128 where K has 192 (HEAD_DIM where left out)
//   HAS_KV_OFFSET  the last query stands at the last key, and there are more keys than queries
//   WINDOW         a query at p sees keys j with |p - j| < WINDOW (0: all), Mistral's where causal
//   SOFTCAP        a score becomes SOFTCAP tanh(score / SOFTCAP) (0: it does not), Gemma 2's
//   HAS_ALIBI      then it loses slope |p - j|, a slope for each query head (Press et al., 2022)
//   HAS_SINKS      a logit of each query head takes part in the row sums, gpt-oss's
//   HAS_VARLEN     each sequence has its own number of keys; its queries are the last ones; padded
//                  to the longest, or packed where a kernel has TAKES_PACKED before this file
//   HAS_LSE        LSE is written besides O: lse.cuh
//   HAS_KV_FP8     K and V are bytes of E4M3, and their heads have factors: fp8.cuh
// Kernels keep scores unscaled, as Q @ K^T, and scale them in the exponent, so that a bias or a
// softcap here is divided by the softmax scale.
#pragma once

#include "element.cuh"
#include "exp2.cuh"
#include "lse.cuh"

#ifndef HEAD_DIM_V
#define HEAD_DIM_V HEAD_DIM
#endif
#ifndef HAS_KV_OFFSET
#define HAS_KV_OFFSET 0
#endif
#ifndef WINDOW
#define WINDOW 0
#endif
#ifndef SOFTCAP
#define SOFTCAP 0.0f
#endif
#ifndef HAS_ALIBI
#define HAS_ALIBI 0
#endif
#ifndef HAS_SINKS
#define HAS_SINKS 0
#endif
#ifndef HAS_VARLEN
#define HAS_VARLEN 0
#endif
#ifndef HAS_KV_FP8
#define HAS_KV_FP8 0
#endif
#ifndef TAKES_PACKED
#define TAKES_PACKED 0
#endif

// Parameters of the features, in this order after a kernel's others, and the same as a Features.
#if HAS_ALIBI
#define ALIBI_PARAMETER , const float* __restrict__ alibi_slopes
#define ALIBI_GIVEN alibi_slopes
#else
#define ALIBI_PARAMETER
#define ALIBI_GIVEN nullptr
#endif
#if HAS_SINKS
#define SINKS_PARAMETER , const float* __restrict__ sinks
#define SINKS_GIVEN sinks
#else
#define SINKS_PARAMETER
#define SINKS_GIVEN nullptr
#endif
#if HAS_VARLEN && TAKES_PACKED
#define SEQLENS_PARAMETER \
    , const int* __restrict__ cu_seqlens_q, const int* __restrict__ cu_seqlens_k
#define SEQLENS_GIVEN cu_seqlens_q, cu_seqlens_k
#elif HAS_VARLEN
#define SEQLENS_PARAMETER , const int* __restrict__ seqlens
#define SEQLENS_GIVEN seqlens
#else
#define SEQLENS_PARAMETER
#define SEQLENS_GIVEN nullptr
#endif
#if HAS_KV_FP8
#define SCALES_PARAMETER , const float* __restrict__ k_scale, const float* __restrict__ v_scale
#define SCALES_GIVEN , k_scale, v_scale
using kv_element = unsigned char;
#else
#define SCALES_PARAMETER
#define SCALES_GIVEN
using kv_element = element;
#endif
#define FEATURE_PARAMETERS \
    ALIBI_PARAMETER SINKS_PARAMETER SEQLENS_PARAMETER SCALES_PARAMETER LSE_PARAMETER
#define FEATURES_GIVEN {ALIBI_GIVEN, SINKS_GIVEN, SEQLENS_GIVEN SCALES_GIVEN}

struct Features {
    const float* alibi_slopes;  // [num_heads]
    const float* sinks;         // [num_heads]
#if HAS_VARLEN && TAKES_PACKED
    const int* cu_seqlens_q;    // [batch + 1], first row of each sequence in Q and O
    const int* cu_seqlens_k;    // and in K and V
#else
    const int* seqlens;         // [batch], keys
#endif
#if HAS_KV_FP8
    const float* k_scale;       // [num_heads_kv], factor of a head's bytes of K
    const float* v_scale;       // and of V
#endif
};

// A score modification, as FlexAttention calls it. A constexpr would take constant memory.
#define HAS_SCORE_MOD (SOFTCAP > 0.0f || HAS_ALIBI)

// A window may start after the first tiles, in which its query then sees no key: a finite maximum
// keeps -infinity - -infinity, which is NaN, out of the exponent. The scaled maximum to subtract,
// from that of unscaled scores, and the scaled maximum to begin with.
#if WINDOW
#define SCALED_MAXIMUM(m, scale) ((m) == -INFINITY ? 0.0f : (m) * (scale))
#define FIRST_SCALED_MAXIMUM -1e30f
#else
#define SCALED_MAXIMUM(m, scale) ((m) * (scale))
#define FIRST_SCALED_MAXIMUM -INFINITY
#endif

// Numbers of rows of Q and of K and V of a CTA's sequence, under the names of a kernel's
// parameters: valid after OWN_LENGTHS, if sequences have their own lengths. These and what follows
// are macros, because ptxas orders code around inlined functions differently.
struct Lengths {
    int queries, keys;
};

#if HAS_VARLEN && TAKES_PACKED
#define OWN_LENGTHS(given, batch)                                                       \
    const Lengths own = {(given).cu_seqlens_q[(batch) + 1] - (given).cu_seqlens_q[batch], \
                         (given).cu_seqlens_k[(batch) + 1] - (given).cu_seqlens_k[batch]}
#elif HAS_VARLEN
#define OWN_LENGTHS(given, batch) \
    const Lengths own = {min(seqlen, (given).seqlens[batch]), (given).seqlens[batch]}
#else
#define OWN_LENGTHS(given, batch)
#endif
#if HAS_VARLEN
#define NUM_QUERIES own.queries
#define NUM_KEYS own.keys
#define LENGTHS own
#define LENGTHS_PARAMETER Lengths own
#else
#define NUM_QUERIES seqlen
#define NUM_KEYS seqlen_kv
#if HAS_KV_OFFSET
#define LENGTHS seqlen, seqlen_kv
#define LENGTHS_PARAMETER int seqlen, int seqlen_kv
#else
#define LENGTHS seqlen_kv
#define LENGTHS_PARAMETER int seqlen_kv
#endif
#endif

// Offset of a head in its tensor, and its row stride in elements: [batch, heads, rows, HEAD_DIM],
// or packed without padding, [sum of rows, heads, HEAD_DIM]; HEAD_DIM_V in V and O. COLUMNS:
// columns that a function copies.
#if HAS_VARLEN && TAKES_PACKED
#define Q_BEGIN(index, head) (((size_t)cu_seqlens_q[blockIdx.z] * num_heads + (head)) * HEAD_DIM)
#define KV_BEGIN(index, head) \
    (((size_t)cu_seqlens_k[blockIdx.z] * num_heads_kv + (head)) * HEAD_DIM)
#define Q_ROW (num_heads * HEAD_DIM)
#define KV_ROW (num_heads_kv * HEAD_DIM)
#define ROW_PARAMETER , int row_elements
#define ROW_ELEMENTS row_elements
#define V_BEGIN(index, head) \
    (((size_t)cu_seqlens_k[blockIdx.z] * num_heads_kv + (head)) * HEAD_DIM_V)
#define O_BEGIN(index, head) \
    (((size_t)cu_seqlens_q[blockIdx.z] * num_heads + (head)) * HEAD_DIM_V)
#define O_ROW (num_heads * HEAD_DIM_V)
#define V_ROW (num_heads_kv * HEAD_DIM_V)
#define ROW_GIVEN(elements) , elements
#else
#define Q_BEGIN(index, head) ((index) * seqlen * HEAD_DIM)
#define KV_BEGIN(index, head) ((index) * seqlen_kv * HEAD_DIM)
#define Q_ROW HEAD_DIM
#define KV_ROW HEAD_DIM
#define ROW_PARAMETER
#define V_BEGIN(index, head) ((index) * seqlen_kv * HEAD_DIM_V)
#define O_BEGIN(index, head) ((index) * seqlen * HEAD_DIM_V)
#define O_ROW HEAD_DIM_V
#define V_ROW HEAD_DIM_V
#define ROW_ELEMENTS COLUMNS
#define ROW_GIVEN(elements)
#endif

// Position of a query among the keys, and the keys that it sees.
#if HAS_KV_OFFSET
#define POSITION_OF(query) ((query) + NUM_KEYS - NUM_QUERIES)
#else
#define POSITION_OF(query) (query)
#endif
#if WINDOW
#define IS_IN_WINDOW(key, position) \
    ((key) > (position) - WINDOW && (IS_CAUSAL || (key) < (position) + WINDOW))
#else
#define IS_IN_WINDOW(key, position) true
#endif
#define IS_VISIBLE(key, position) \
    ((key) < NUM_KEYS && (!IS_CAUSAL || (key) <= (position)) && IS_IN_WINDOW(key, position))

// For neighbouring rows at positions `begin` up to `end`: the first key that any of them sees, the
// end of their keys, the end of the keys that all of them see, and whether some of them no longer
// see key n.
#if WINDOW
#define FIRST_KEY(begin) max(0, (begin) - WINDOW + 1)
#define END_OF_KEYS(end) (IS_CAUSAL ? min(NUM_KEYS, end) : min(NUM_KEYS, (end) - 1 + WINDOW))
#define END_SEEN_BY_ALL(begin) \
    (IS_CAUSAL ? min(NUM_KEYS, (begin) + 1) : min(NUM_KEYS, (begin) + WINDOW))
#define IS_BEFORE_A_WINDOW(n, end) ((n) < FIRST_KEY((end) - 1))
#else
#define FIRST_KEY(begin) 0
#define END_OF_KEYS(end) (IS_CAUSAL ? min(NUM_KEYS, end) : NUM_KEYS)
#define END_SEEN_BY_ALL(begin) (IS_CAUSAL ? min(NUM_KEYS, (begin) + 1) : NUM_KEYS)
#define IS_BEFORE_A_WINDOW(n, end) false
#endif

// The score modification of one query head: softcap, then ALiBi.
struct ScoreMod {
    float softmax_scale;
    float slope;  // of ALiBi, for scores that are not scaled

    // `distance`: from the key to the query's position.
    __device__ __forceinline__ float operator()(float score, int distance) const {
        if constexpr (SOFTCAP > 0.0f) {
            // tanh(x) = 1 - 2 / (1 + e^2x): errs by 1e-7, where tanh.approx errs by 5e-4.
            const float power = fast_exp2(score * (softmax_scale * (2.0f * LOG2_E / SOFTCAP)));
            score = (SOFTCAP - 2.0f * SOFTCAP * fast_reciprocal(1.0f + power)) / softmax_scale;
        }
        if constexpr (HAS_ALIBI) score -= slope * (float)abs(distance);
        return score;
    }
};

__device__ __forceinline__ ScoreMod score_mod_of(Features given, int head,
                                                 float softmax_scale) {
    float slope = 0.0f;
    if constexpr (HAS_ALIBI) slope = given.alibi_slopes[head] / softmax_scale;
    return {softmax_scale, slope};
}

// The row sum with the head's sink; `m_scaled` is the row's maximum times scale log2(e).
__device__ __forceinline__ float with_sink(float l, Features given, int head, float m_scaled) {
    if constexpr (HAS_SINKS) l += fast_exp2(given.sinks[head] * LOG2_E - m_scaled);
    return l;
}
