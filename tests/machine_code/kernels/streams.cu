// Kernels limited by memory or latency, modelled on published series: a sum, a scan of each CTA's
// part, softmax of rows, and a transpose of tiles that are loaded and stored by TMA.
#include "hopper.cuh"

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// Each thread reads 16 pieces of 16 bytes; one atomic per CTA.
extern "C" __global__ void __launch_bounds__(1024)
sum(const float4* __restrict__ input,  // [gridDim.x, 16, 1024]
    float* __restrict__ total) {
    __shared__ float parts[32];
    const float4* from = input + static_cast<long long>(blockIdx.x) * 16 * 1024 + threadIdx.x;
    float own = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        const float4 x = from[i * 1024];
        own += x.x + x.y + x.z + x.w;
    }
    own = warp_sum(own);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    own = warp_sum(parts[threadIdx.x]);
    if (threadIdx.x == 0) atomicAdd(total, own);
}

// Running sums within each CTA's part, in shared memory, two barriers a step.
extern "C" __global__ void __launch_bounds__(512)
scan(const int* __restrict__ input,  // [gridDim.x, 512]
     int* __restrict__ output) {
    __shared__ int sums[512];
    const int thread = threadIdx.x;
    const long long at = static_cast<long long>(blockIdx.x) * 512 + thread;
    sums[thread] = input[at];
    __syncthreads();
#pragma unroll
    for (int offset = 1; offset < 512; offset *= 2) {
        const int before = thread >= offset ? sums[thread - offset] : 0;
        __syncthreads();
        sums[thread] += before;
        __syncthreads();
    }
    output[at] = sums[thread];
}

// One row per CTA, read three times: for its maximum, its sum and its output.
extern "C" __global__ void __launch_bounds__(1024)
softmax(const float* __restrict__ input,  // [gridDim.x, width]
        float* __restrict__ output, int width) {
    __shared__ float parts[33];
    const float* from = input + static_cast<long long>(blockIdx.x) * width;
    float* to = output + static_cast<long long>(blockIdx.x) * width;
    float top = -INFINITY;
    for (int i = threadIdx.x; i < width; i += 1024) top = fmaxf(top, from[i]);
    top = warp_max(top);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = top;
    __syncthreads();
    if (threadIdx.x < 32) parts[32] = warp_max(parts[threadIdx.x]);
    __syncthreads();
    top = parts[32];
    float total = 0;
    for (int i = threadIdx.x; i < width; i += 1024) total += __expf(from[i] - top);
    total = warp_sum(total);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x < 32) parts[32] = warp_sum(parts[threadIdx.x]);
    __syncthreads();
    const float inverse = 1.0f / parts[32];
    for (int i = threadIdx.x; i < width; i += 1024) to[i] = __expf(from[i] - top) * inverse;
}

// A 32 by 32 tile per CTA of 1,024 threads, all of which arrive; 32 threads store to the same bank.
#if __CUDA_ARCH__ >= 900
extern "C" __global__ void __launch_bounds__(1024)
transpose(const __grid_constant__ TensorMap from,  // [size, size], boxes of 32 by 32
          const __grid_constant__ TensorMap to) {
    __shared__ alignas(128) float tile[1024], turned[1024];
    __shared__ unsigned long long landed;
    const int x = blockIdx.x * 32, y = blockIdx.y * 32, column = threadIdx.x % 32, row = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        barrier_init(&landed, 1024);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        tma_load(tile, &from, &landed, x, y);
        barrier_expect(&landed, sizeof(tile));
    } else {
        barrier_arrive(&landed);
    }
    barrier_wait(&landed, 0);
    turned[column * 32 + row] = tile[row * 32 + column];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x != 0) return;
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(&to),
                 "r"(shared_address(turned)), "r"(y), "r"(x)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory");
}
#endif
