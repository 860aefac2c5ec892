/* attune
idea = "Q, K and V in one tensor; O, its maximum and its sum run on in global memory."
head_dims = [64]
dtypes = ["float32"]
layout = "bs3hd"
out_fill = "zero"
scratch.highest = {dtype = "float32", shape = ["batch", "num_heads", "seqlen"], fill = "-inf"}
scratch.sums = {dtype = "float64", shape = ["batch", "num_heads", "seqlen"], fill = "zero", each_launch = true}
[[passes]]
entry = "packed"
grid = ["num_heads", "batch"]
threads = 64
args = ["qkv", "k", "out", "highest", "sums", "seqlen", {name = "stride", ctype = "int64", value = "q_stride_row"}]
*/
#include <math.h>

// QKV [B, S, 3, H, D], K points into it; O [B, S, H, D]
__global__ void packed(const float* QKV, const float* K, float* O, float* M, double* L, int S,
                       long long stride) {
    const int h = blockIdx.x, b = blockIdx.y, H = gridDim.x;
    const float* q = QKV + b * S * stride + h * HEAD_DIM;
    const float* k = K + b * S * stride + h * HEAD_DIM;
    const float* v = q + 2 * H * HEAD_DIM;
    for (int row = threadIdx.x; row < S; row += blockDim.x) {
        float* o = O + ((long long)(b * S + row) * H + h) * HEAD_DIM;
        const long long at = (long long)(b * H + h) * S + row;
        for (int j = 0; j < (IS_CAUSAL ? row + 1 : S); j++) {
            float s = 0.0f;
            for (int d = 0; d < HEAD_DIM; d++) s += q[row * stride + d] * k[j * stride + d];
            s *= rsqrtf((float)HEAD_DIM);
            const float highest = fmaxf(M[at], s), c = expf(M[at] - highest), p = expf(s - highest);
            L[at] = L[at] * c + p;
            for (int d = 0; d < HEAD_DIM; d++) o[d] = o[d] * c + p * v[j * stride + d];
            M[at] = highest;
        }
        for (int d = 0; d < HEAD_DIM; d++) o[d] /= (float)L[at];
    }
}
