// source of cupy.RawKernel(code, "attention_row"): one block of 128 threads works out one row of O
extern "C" __global__
void attention_row(const float* __restrict__ Q, const float* __restrict__ K,
                   const float* __restrict__ V, float* __restrict__ O,
                   const int N, const int D, const float scale)
{
    extern __shared__ float scores[];
    __shared__ float red[128];
    const int row = blockIdx.x;
    const int bh = blockIdx.y;
    const int tid = threadIdx.x;
    const float* q = Q + ((size_t)bh * N + row) * D;
    const float* k = K + (size_t)bh * N * D;
    const float* v = V + (size_t)bh * N * D;

    float m = -3.0e38f;
    for (int j = tid; j < N; j += blockDim.x) {
        float s = 0.0f;
        for (int d = 0; d < D; ++d) s += q[d] * k[j * D + d];
        scores[j] = s * scale;
        m = fmaxf(m, scores[j]);
    }
    red[tid] = m;
    __syncthreads();
    for (int w = blockDim.x / 2; w > 0; w /= 2) {
        if (tid < w) red[tid] = fmaxf(red[tid], red[tid + w]);
        __syncthreads();
    }
    m = red[0];
    __syncthreads();
    float l = 0.0f;
    for (int j = tid; j < N; j += blockDim.x) {
        scores[j] = __expf(scores[j] - m);
        l += scores[j];
    }
    red[tid] = l;
    __syncthreads();
    for (int w = blockDim.x / 2; w > 0; w /= 2) {
        if (tid < w) red[tid] += red[tid + w];
        __syncthreads();
    }
    l = red[0];
    for (int d = tid; d < D; d += blockDim.x) {
        float o = 0.0f;
        for (int j = 0; j < N; ++j) o += scores[j] * v[j * D + d];
        O[((size_t)bh * N + row) * D + d] = o / l;
    }
}
