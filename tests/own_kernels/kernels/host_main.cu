#include <cstdio>
#include <cuda_runtime.h>
__global__ void warp_attention(const float *Q, const float *K, const float *V, float *O,
                               int rows, int S, int D, float scale) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float *q = Q + (size_t)row * D, *k = K + (size_t)(row / S) * S * D, *v = V + (size_t)(row / S) * S * D;
    float a0 = 0, a1 = 0, m = -INFINITY, l = 0;
    for (int j = 0; j < S; ++j) {
        float s = q[lane] * k[j * D + lane] + q[lane + 32] * k[j * D + lane + 32];
        for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(0xffffffff, s, o);
        s *= scale;
        float n = fmaxf(m, s), c = __expf(m - n), p = __expf(s - n);
        l = l * c + p; a0 = a0 * c + p * v[j * D + lane]; a1 = a1 * c + p * v[j * D + lane + 32]; m = n;
    }
    O[(size_t)row * D + lane] = a0 / l; O[(size_t)row * D + lane + 32] = a1 / l;
}
int main() {
    int B = 2, H = 4, S = 256, D = 64;
    float *Q, *K, *V, *O;
    cudaMalloc(&Q, sizeof(float) * B * H * S * D); cudaMalloc(&K, sizeof(float) * B * H * S * D);
    cudaMalloc(&V, sizeof(float) * B * H * S * D); cudaMalloc(&O, sizeof(float) * B * H * S * D);
    int warps = 4;
    warp_attention<<<(B*H*S+warps-1)/warps, warps * 32>>>(Q, K, V, O, B * H * S, S, D, 0.125f);
    cudaDeviceSynchronize();
    printf("done\n");
}
