// Attention, one warp per query row, half precision. Written from scratch.
#include <cuda_fp16.h>
#include <math_constants.h>

__global__ void half_rows(const __half* __restrict__ Q, const __half* __restrict__ K,
                          const __half* __restrict__ V, __half* __restrict__ O,
                          int batch, int num_heads, int seqlen, int head_dim, float scale) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const long long row = (long long)blockIdx.x * (blockDim.x / 32) + warp;
    if (row >= (long long)batch * num_heads * seqlen) return;
    const long long head = row / seqlen * (long long)seqlen * head_dim;
    const __half* q = Q + row * head_dim;
    float acc[4] = {0.f, 0.f, 0.f, 0.f}, m = -CUDART_INF_F, l = 0.f;
    for (int j = 0; j < seqlen; ++j) {
        const __half* k = K + head + (long long)j * head_dim;
        float s = 0.f;
        for (int d = lane; d < head_dim; d += 32) s += __half2float(q[d]) * __half2float(k[d]);
        for (int o = 16; o > 0; o /= 2) s += __shfl_xor_sync(0xffffffffu, s, o);
        s *= scale;
        const float mn = fmaxf(m, s), a = __expf(m - mn), p = __expf(s - mn);
        l = l * a + p;
        m = mn;
        const __half* v = V + head + (long long)j * head_dim;
        for (int d = lane, i = 0; d < head_dim; d += 32, ++i) acc[i] = acc[i] * a + p * __half2float(v[d]);
    }
    for (int d = lane, i = 0; d < head_dim; d += 32, ++i) O[row * head_dim + d] = __float2half(acc[i] / l);
}

int main() {
    const int B = 2, H = 4, S = 256, D = 64;
    __half *q, *k, *v, *o;
    size_t bytes = sizeof(__half) * B * H * S * D;
    cudaMalloc(&q, bytes); cudaMalloc(&k, bytes); cudaMalloc(&v, bytes); cudaMalloc(&o, bytes);
    const int warps = 4;
    half_rows<<<dim3((B * H * S + warps - 1) / warps), dim3(32 * warps)>>>(q, k, v, o, B, H, S, D, 0.125f);
    return cudaDeviceSynchronize();
}
