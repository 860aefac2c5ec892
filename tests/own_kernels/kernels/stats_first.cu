/* attune
idea = "A pass for each row's maximum and sum, a second one for O: no rescaling at all."
head_dims = [64]
dtypes = ["float32"]
gqa = true
tunables.rows = {values = [4, 8], default = 4, meaning = "query rows per CTA, a warp each"}
scratch.stats = {shape = ["batch", "num_heads", "seqlen", 2]}

[[passes]]
entry = "row_stats"
grid = ["ceil_div(seqlen, rows)", "num_heads", "batch"]
threads = [32, "rows"]
args = ["q", "k", "stats", "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale"]

[[passes]]
entry = "weighted_values"
grid = ["ceil_div(seqlen, rows)", "num_heads", "batch"]
threads = [32, "rows"]
args = ["q", "k", "v", "stats", "out", "num_heads_kv", "seqlen", "seqlen_kv", "softmax_scale"]
*/
#include <cuda_runtime.h>

#define FULL 0xffffffffu

struct Place {
    size_t row;       // of Q, O and the statistics
    size_t kv_first;  // first row of this head's K and V
    int query;
};

__device__ Place place_of(int kv_heads, int seqlen, int seqlen_kv) {
    Place at;
    at.query = blockIdx.x * blockDim.y + threadIdx.y;
    at.row = ((size_t)blockIdx.z * gridDim.y + blockIdx.y) * seqlen + at.query;
    const int kv_head = blockIdx.y * kv_heads / gridDim.y;
    at.kv_first = ((size_t)blockIdx.z * kv_heads + kv_head) * seqlen_kv;
    return at;
}

// The score of this row and one key a lane, from float4 loads of both.
__device__ float score_of(const float* q_row, const float* k_row, float scale) {
    float dot = 0.0f;
    for (int d = 0; d < HEAD_DIM; d += 4) {
        const float4 a = *(const float4*)(q_row + d), b = *(const float4*)(k_row + d);
        dot += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
    return dot * scale;
}

__global__ void row_stats(const float* q, const float* k, float2* stats, int kv_heads, int seqlen,
                          int seqlen_kv, float scale) {
    const Place at = place_of(kv_heads, seqlen, seqlen_kv);
    if (at.query >= seqlen) return;
    const int visible = IS_CAUSAL ? min(seqlen_kv, at.query + 1) : seqlen_kv;
    float m = -INFINITY, l = 0.0f;
    for (int key = threadIdx.x; key < visible; key += 32) {
        const float s = score_of(q + at.row * HEAD_DIM, k + (at.kv_first + key) * HEAD_DIM, scale);
        const float m_new = fmaxf(m, s);
        l = l * expf(m - m_new) + expf(s - m_new);
        m = m_new;
    }
    for (int step = 1; step < 32; step *= 2) {
        const float m_other = __shfl_xor_sync(FULL, m, step), l_other = __shfl_xor_sync(FULL, l, step);
        const float m_new = fmaxf(m, m_other);
        if (m_new > -INFINITY) l = l * expf(m - m_new) + l_other * expf(m_other - m_new);
        m = m_new;
    }
    if (threadIdx.x == 0) stats[at.row] = make_float2(m, 1.0f / l);
}

__global__ void weighted_values(const float* q, const float* k, const float* v, const float2* stats,
                                float* out, int kv_heads, int seqlen, int seqlen_kv, float scale) {
    __shared__ float weights[8][32];
    const Place at = place_of(kv_heads, seqlen, seqlen_kv);
    if (at.query >= seqlen) return;
    const int visible = IS_CAUSAL ? min(seqlen_kv, at.query + 1) : seqlen_kv;
    const float2 own = stats[at.row];
    float2 o = make_float2(0.0f, 0.0f);  // a lane owns two columns
    for (int first = 0; first < visible; first += 32) {
        const int key = first + threadIdx.x;
        float w = 0.0f;
        if (key < visible) {
            w = expf(score_of(q + at.row * HEAD_DIM, k + (at.kv_first + key) * HEAD_DIM, scale) - own.x);
        }
        weights[threadIdx.y][threadIdx.x] = w * own.y;
        __syncwarp();
        const int count = min(32, visible - first);
        for (int j = 0; j < count; j++) {
            const float* v_row = v + (at.kv_first + first + j) * HEAD_DIM;
            const float2 pair = *(const float2*)(v_row + 2 * threadIdx.x);
            o.x += weights[threadIdx.y][j] * pair.x;
            o.y += weights[threadIdx.y][j] * pair.y;
        }
        __syncwarp();
    }
    *(float2*)(out + at.row * HEAD_DIM + 2 * threadIdx.x) = o;
}
