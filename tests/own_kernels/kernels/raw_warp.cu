#include <cuda_fp16.h>
// cupy.RawKernel, one warp for each query row, lanes share the head dimension
constexpr int HEAD_SIZE = 128;
constexpr int WARPS = 4;
constexpr int PER_LANE = HEAD_SIZE / 32;

__device__ __forceinline__ float warp_sum(float x) {
    #pragma unroll
    for (int offset = 16; offset; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

extern "C" __global__ void warp_attention(half* o, const half* q, const half* k, const half* v,
                                          int batch, int heads, int seqlen, float scale)
{
    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int row = blockIdx.x * WARPS + warp;
    if (row >= batch * heads * seqlen) return;
    const int bh = row / seqlen;
    float qr[PER_LANE], acc[PER_LANE];
    for (int i = 0; i < PER_LANE; ++i) {
        qr[i] = __half2float(q[(size_t)row * HEAD_SIZE + i * 32 + lane]) * scale;
        acc[i] = 0.f;
    }
    float m = -INFINITY, l = 0.f;
    for (int j = 0; j < seqlen; ++j) {
        const size_t base = ((size_t)bh * seqlen + j) * HEAD_SIZE;
        float s = 0.f;
        for (int i = 0; i < PER_LANE; ++i) s += qr[i] * __half2float(k[base + i * 32 + lane]);
        s = warp_sum(s);
        const float m_new = fmaxf(m, s);
        const float alpha = __expf(m - m_new), p = __expf(s - m_new);
        l = l * alpha + p;
        for (int i = 0; i < PER_LANE; ++i) acc[i] = acc[i] * alpha + p * __half2float(v[base + i * 32 + lane]);
        m = m_new;
    }
    for (int i = 0; i < PER_LANE; ++i)
        o[(size_t)row * HEAD_SIZE + i * 32 + lane] = __float2half(acc[i] / l);
}
