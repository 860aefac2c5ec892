/* attune
idea = "Decoding: a warp per query row and split of the keys, then a pass that merges them."
head_dims = [64, 128]
dtypes = ["float16"]
causal = [false]
include = ["include"]
defines = {D = "{head_dim}", ROWS = 4}
tunables.splits = {values = [1, 2, 4], default = 2, meaning = "parts of the keys"}
lse = {base = "2", layout = "bsh"}

[scratch]
acc = {shape = ["splits", "batch", "num_heads", "seqlen", "head_dim"]}
ml = {shape = ["splits", "batch", "num_heads", "seqlen", 2]}

[[passes]]
entry = "decode_split"
grid = ["ceil_div(seqlen, 4)", "num_heads * batch", "splits"]
threads = [32, 4]
args = ["acc", "ml", {name = "scale", ctype = "float64", value = "1.4426950408889634 * softmax_scale"},
        "q", "k", "v", {name = "heads", ctype = "uint32", value = "num_heads"},
        {name = "group", ctype = "int32", value = "num_heads // num_heads_kv"},
        {name = "seqlen_q", ctype = "int64", value = "seqlen"}, "seqlen_kv",
        {name = "bias", ctype = "null"}]

[[passes]]
entry = "decode_merge<{splits}>"
grid = ["seqlen", "num_heads", "batch"]
threads = "head_dim"
args = ["out", "acc", "ml", "lse"]
*/
#include <attn/reduce.cuh>
#include <cuda_fp16.h>
#include <float.h>

#include <iostream>

static_assert(D % 32 == 0, "a lane owns D / 32 columns");

// One warp per query row: threadIdx.y is the row of the CTA, threadIdx.x the lane.
__global__ void decode_split(float* __restrict__ acc_out, float2* __restrict__ ml, double scale,
                             const half* __restrict__ q, const half* __restrict__ k,
                             const half* __restrict__ v, unsigned heads, int group,
                             long long seqlen_q, int seqlen_kv, const half* bias) {
    const int row = blockIdx.x * ROWS + threadIdx.y;
    if (row >= seqlen_q) return;
    const int head = blockIdx.y % heads, batch = blockIdx.y / heads;
    const size_t q_row = (size_t)blockIdx.y * seqlen_q + row;
    const size_t kv_head = (size_t)batch * (heads / group) + head / group;
    const int per_split = (seqlen_kv + gridDim.z - 1) / gridDim.z;
    const int first = blockIdx.z * per_split, last = min(first + per_split, seqlen_kv);

    float m = -FLT_MAX, l = 0.f, o[D / 32] = {};
    for (int key = first; key < last; key++) {
        const half* k_row = k + (kv_head * seqlen_kv + key) * D;
        const half* v_row = v + (kv_head * seqlen_kv + key) * D;
        float s = 0.f;
        for (int i = 0; i < D / 32; i++) {
            const int d = i * 32 + threadIdx.x;
            s += __half2float(q[q_row * D + d]) * __half2float(k_row[d]);
        }
        s = warp_sum(s) * (float)scale;
        if (bias != nullptr) s += __half2float(bias[key]);
        const float m_new = fmaxf(m, s), p = exp2f(s - m_new), rescale = exp2f(m - m_new);
        l = l * rescale + p;
        for (int i = 0; i < D / 32; i++) {
            o[i] = o[i] * rescale + p * __half2float(v_row[i * 32 + threadIdx.x]);
        }
        m = m_new;
    }
    const size_t at = (size_t)blockIdx.z * gridDim.y * seqlen_q + q_row;
    for (int i = 0; i < D / 32; i++) acc_out[at * D + i * 32 + threadIdx.x] = o[i];
    if (threadIdx.x == 0) ml[at] = make_float2(m, l);
}

template <int SPLITS>
__global__ void decode_merge(half* out, const float* acc, const float2* ml, float* lse) {
    const int row = blockIdx.x, head = blockIdx.y, batch = blockIdx.z;
    const size_t q_row = ((size_t)batch * gridDim.y + head) * gridDim.x + row;
    const size_t rows = (size_t)gridDim.z * gridDim.y * gridDim.x;
    float m = -FLT_MAX;
    for (int s = 0; s < SPLITS; s++) m = fmaxf(m, ml[s * rows + q_row].x);
    float l = 0.f, o = 0.f;
    for (int s = 0; s < SPLITS; s++) {
        const float2 part = ml[s * rows + q_row];
        const float w = exp2f(part.x - m);
        l += part.y * w;
        o += acc[(s * rows + q_row) * D + threadIdx.x] * w;
    }
    out[q_row * D + threadIdx.x] = __float2half(o / l);
    // [batch, seqlen, heads], base 2
    if (threadIdx.x == 0) lse[((size_t)batch * gridDim.x + row) * gridDim.y + head] = m + log2f(l);
}

int run(half* q) {
    decode_split<<<dim3(1, 1, 2), dim3(32, ROWS)>>>(nullptr, nullptr, 1.0, q, q, q, 1, 1, 1, 1, q);
    decode_merge<2><<<1, D>>>(q, nullptr, nullptr, nullptr);
    std::cout << "done" << std::endl;
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 1;
}
