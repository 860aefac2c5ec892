// Kernels that only move data: lower bounds of the time of a small attention launch. All pointers are to
// 16-byte pieces; `pieces` is how many one head's K holds (8 for each row of 64 halves).
#include <cuda_fp16.h>

// Each thread reads one piece of Q, K and V and writes one of O.
extern "C" __global__ void copy(const uint4* q, const uint4* k, const uint4* v, uint4* out,
                                int pieces) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pieces) return;
    uint4 mixed = q[i];
    const uint4 key = k[i], value = v[i];
    mixed.x ^= key.x ^ value.x;
    out[i] = mixed;
}

__device__ __forceinline__ void copy_async(uint4* to_smem, const uint4* from) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(to_smem);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from));
}

// Each CTA stages K and V of its head in shared memory, one group of copies each, reads all of it
// once, and writes 16 rows of O: attention of one tile without its mathematics.
extern "C" __global__ void stage(const uint4* q, const uint4* k, const uint4* v, uint4* out,
                                 int pieces) {
    extern __shared__ uint4 tiles[];  // [2, pieces]
    const int head = blockIdx.y * pieces, first = threadIdx.x, step = blockDim.x;
    for (int i = first; i < pieces; i += step) copy_async(tiles + i, k + head + i);
    asm volatile("cp.async.commit_group;");
    for (int i = first; i < pieces; i += step) copy_async(tiles + pieces + i, v + head + i);
    asm volatile("cp.async.commit_group;");
    uint4 mixed = q[head + blockIdx.x * 128 + (first & 127)];
    asm volatile("cp.async.wait_group 1;");
    __syncthreads();
    for (int i = first; i < pieces; i += step) mixed.x += tiles[i].x;
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
    for (int i = first; i < pieces; i += step) mixed.y += tiles[pieces + i].y;
    tiles[first] = mixed;
    __syncthreads();
    mixed = tiles[step - 1 - first];
    if (first < 128) out[head + blockIdx.x * 128 + first] = mixed;
}
