// Sums tiles of 16 KB that each CTA of a cluster needs whole: without a cluster a CTA copies all of
// each tile, in a cluster its share, by multicast to all CTAs. A ring of two tiles.
#include "hopper.cuh"

constexpr int TILE = 16384, SHARE = TILE / CLUSTER, STAGES = 2;

__device__ __forceinline__ unsigned of_rank(const void* p, unsigned rank) {
    unsigned mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(mapped) : "r"(shared_address(p)), "r"(rank));
    return mapped;
}
__device__ __forceinline__ void copy(void* to, const char* from, unsigned long long* full) {
#if CLUSTER > 1
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(SHARE), "r"(shared_address(full)),
                 "h"((short)((1 << CLUSTER) - 1)) : "memory");
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from), "r"(SHARE),
                 "r"(shared_address(full)) : "memory");
#endif
}
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(128, 1) __cluster_dims__(CLUSTER, 1, 1)
tiles(const char* in, float* out, int count) {
    extern __shared__ __align__(1024) unsigned char smem[];
    unsigned long long* full = reinterpret_cast<unsigned long long*>(smem + STAGES * TILE);
    unsigned long long* empty = full + STAGES;
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            barrier_init(full + stage, 1);
            barrier_init(empty + stage, 4 * CLUSTER);  // each warp of every CTA
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_barrier();
    const auto load = [&](int tile) {
        const int stage = tile % STAGES;
        barrier_wait(empty + stage, tile / STAGES % 2 ^ 1);
        barrier_expect(full + stage, TILE);
        copy(smem + stage * TILE + rank * SHARE, in + tile * TILE + rank * SHARE, full + stage);
    };
    if (threadIdx.x == 0) load(0);
    float sum = 0;
    for (int tile = 0; tile < count; tile++) {
        if (threadIdx.x == 0 && tile + 1 < count) load(tile + 1);
        const int stage = tile % STAGES;
        barrier_wait(full + stage, tile / STAGES % 2);
        const float4* from = reinterpret_cast<const float4*>(smem + stage * TILE);
#pragma unroll 8
        for (int i = threadIdx.x; i < TILE / 16; i += 128) {
            const float4 x = from[i];
            sum += x.x + x.y + x.z + x.w;
        }
        __syncwarp();
        if (threadIdx.x % 32 < CLUSTER) {
            asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::
                         "r"(of_rank(empty + stage, threadIdx.x % 32)) : "memory");
        }
    }
    out[blockIdx.x * 128 + threadIdx.x] = sum;
    cluster_barrier();  // no CTA exits while copies and arrivals of others address its memory
}
