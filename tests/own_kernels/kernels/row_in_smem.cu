/* attune
idea = "A CTA per query row: all scores of the row in shared memory, then two passes over them."
head_dims = [64, 128]
dtypes = ["float16"]
layout = "bshd"
gqa = true
lse = {base = "e", layout = "bhs"}

[[passes]]
entry = "attention_row"
grid = ["seqlen", "num_heads", "batch"]
threads = 128
smem_bytes = "seqlen_kv * 4"
args = ["out", "lse", "q", "k", "v", "seqlen_kv", "num_heads_kv", "softmax_scale"]
*/
// One block per row, as a first port of PyTorch code has it: scores, softmax, weighted sum.
#include <cuda_fp16.h>
#include <float.h>
#include <math.h>

#define HS HEAD_DIM
#define BLOCK 128
#define WARPS (BLOCK / 32)

// What every thread of the block gets: the largest, or the sum, of one value a thread.
__device__ float block_reduce(float value, bool largest) {
    __shared__ float per_warp[WARPS];
    for (int step = 16; step > 0; step >>= 1) {
        const float other = __shfl_down_sync(0xffffffff, value, step);
        value = largest ? fmaxf(value, other) : value + other;
    }
    if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = value;
    __syncthreads();
    float result = per_warp[0];
    for (int w = 1; w < WARPS; w++) result = largest ? fmaxf(result, per_warp[w]) : result + per_warp[w];
    __syncthreads();  // the next call writes here again
    return result;
}

// q, out: (B, T, NH, HS); k, v: (B, TK, NHK, HS); lse: (B, NH, T)
__global__ void attention_row(half* out, float* lse, const half* q, const half* k, const half* v,
                              int TK, int NHK, float scale) {
    extern __shared__ float att[];  // [TK]
    const int t = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
    const int T = gridDim.x, NH = gridDim.y;
    const int hk = h / (NH / NHK);
    const half* query = q + ((size_t)(b * T + t) * NH + h) * HS;
    const int keys = IS_CAUSAL ? min(TK, t + 1) : TK;

    float highest = -FLT_MAX;
    for (int t2 = threadIdx.x; t2 < keys; t2 += BLOCK) {
        const half* key = k + ((size_t)(b * TK + t2) * NHK + hk) * HS;
        float dot = 0.0f;
        for (int i = 0; i < HS; i++) dot += __half2float(query[i]) * __half2float(key[i]);
        dot *= scale;
        att[t2] = dot;
        highest = fmaxf(highest, dot);
    }
    highest = block_reduce(highest, true);

    float sum = 0.0f;
    for (int t2 = threadIdx.x; t2 < keys; t2 += BLOCK) {
        att[t2] = expf(att[t2] - highest);
        sum += att[t2];
    }
    sum = block_reduce(sum, false);
    if (threadIdx.x == 0) lse[((size_t)b * NH + h) * T + t] = highest + logf(sum);

    // Two threads to a column: one takes the even keys, the other the odd ones.
    __shared__ float halves[BLOCK];
    for (int i0 = 0; i0 < HS; i0 += BLOCK / 2) {
        const int i = i0 + threadIdx.x % (BLOCK / 2);
        float total = 0.0f;
        for (int t2 = threadIdx.x / (BLOCK / 2); t2 < keys; t2 += 2) {
            total += att[t2] * __half2float(v[((size_t)(b * TK + t2) * NHK + hk) * HS + i]);
        }
        halves[threadIdx.x] = total;
        __syncthreads();
        if (threadIdx.x < BLOCK / 2) {
            const float o = halves[threadIdx.x] + halves[threadIdx.x + BLOCK / 2];
            out[((size_t)(b * T + t) * NH + h) * HS + i] = __float2half(o / sum);
        }
        __syncthreads();
    }
}
