/* attune
idea = "A thread per query row, one key after another, in float."
head_dims = [32, 64, 128]
dtypes = ["float32"]
defines = {HEAD_DIM = "{head_dim}", CAUSAL = "{causal}"}
[[passes]]
entry = "attention_rows"
grid = "batch * num_heads * ceil_div(seqlen, 64)"
threads = 64
args = ["q", "k", "v", "out", "num_heads", "seqlen"]
*/
#include <float.h>
#include <math.h>

#if !defined(PRODUCT)
#define PRODUCT(a, b) ((a) * (b))
#endif

__global__ void attention_rows(const float* Q, const float* K, const float* V, float* O, int H,
                               int S) {
    const int tiles = (S + 63) / 64;
    const int row = blockIdx.x % tiles * 64 + threadIdx.x;
    if (row >= S) return;
    const long head = (long)(blockIdx.x / tiles) * S * HEAD_DIM;
    float acc[HEAD_DIM];
    for (int d = 0; d < HEAD_DIM; d++) acc[d] = 0.0f;
    float m = -INFINITY, l = 0.0f;
    const int keys = CAUSAL ? row + 1 : S;
    for (int j = 0; j < keys; j++) {
        float s = 0.0f;
        for (int d = 0; d < HEAD_DIM; d++)
            s += PRODUCT(Q[head + row * HEAD_DIM + d], K[head + j * HEAD_DIM + d]);
        s *= rsqrtf((float)HEAD_DIM);
        const float highest = fmaxf(m, s), c = expf(m - highest), p = expf(s - highest);
        l = l * c + p;
        for (int d = 0; d < HEAD_DIM; d++)
            acc[d] = acc[d] * c + PRODUCT(p, V[head + j * HEAD_DIM + d]);
        m = highest;
    }
    for (int d = 0; d < HEAD_DIM; d++) O[head + row * HEAD_DIM + d] = acc[d] / l;
}
