// Softmax of rows of COLUMNS elements, one warp per row; and a sum over the whole grid.
#include "ptx.cuh"

constexpr unsigned FULL_WARP = 0xffffffffu;

__device__ __forceinline__ float warp_max(float x) {
    for (int bit = 16; bit; bit /= 2) x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, bit));
    return x;
}
__device__ __forceinline__ float warp_sum(float x) {
    for (int lanes = 16; lanes; lanes /= 2) x += __shfl_down_sync(FULL_WARP, x, lanes);
    return __shfl_sync(FULL_WARP, x, 0);
}

template <int PER_LANE>
__device__ __forceinline__ void softmax_row(const element *in, float *out) {
    const int lane = threadIdx.x % 32;
    float x[PER_LANE], largest = -INFINITY, sum = 0.f;
    for (int i = 0; i < PER_LANE; i++) {
        x[i] = (float)in[i * 32 + lane];
        largest = fmaxf(largest, x[i]);
    }
    largest = warp_max(largest);
    for (int i = 0; i < PER_LANE; i++) {
        x[i] = __expf(x[i] - largest);
        sum += x[i];
    }
    sum = warp_sum(sum);
    for (int i = 0; i < PER_LANE; i++) out[i * 32 + lane] = x[i] / sum;
}

extern "C" __global__ void warp_softmax(const element *__restrict__ in,  // [rows, COLUMNS]
                                        float *__restrict__ out,         // [rows, COLUMNS]
                                        int rows) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    softmax_row<COLUMNS / 32>(in + (size_t)row * COLUMNS, out + (size_t)row * COLUMNS);
}

extern "C" __global__ void grid_sum(const float *__restrict__ in, float *__restrict__ out, int n) {
    __shared__ float of_warp[32];
    float sum = 0.f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += in[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = warp_sum(threadIdx.x < blockDim.x / 32 ? of_warp[threadIdx.x] : 0.f);
        if (threadIdx.x == 0) atomicAdd(out, sum);
    }
}
