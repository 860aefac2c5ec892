// Clusters of sm_90 and later: their CTAs run together, wait for each other, and read each other's
// shared memory.
#pragma once

// All threads of all CTAs of the cluster arrive, without waiting; their earlier writes are visible
// to threads that wait.
__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The address in another CTA's shared memory that corresponds to one in this CTA's.
__device__ __forceinline__ unsigned address_of_cta(const void* own_smem, int rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"((unsigned)__cvta_generic_to_shared(own_smem)), "r"(rank));
    return address;
}
// Load one float, or two, from that CTA.
__device__ __forceinline__ float load_of_cta(const float* own_smem, int rank) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];"
                 : "=f"(value)
                 : "r"(address_of_cta(own_smem, rank))
                 : "memory");
    return value;
}
__device__ __forceinline__ float2 load_2_of_cta(const float* own_smem, int rank) {
    float2 values;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(values.x), "=f"(values.y)
                 : "r"(address_of_cta(own_smem, rank))
                 : "memory");
    return values;
}
