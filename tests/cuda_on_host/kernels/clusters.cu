// Kernels in clusters of 2 CTAs: correct ones first, then kernels with one bug each, in the line with
// `// BUG <kernel>`. Launched like planted_bugs.cu.
#include <cooperative_groups.h>
#include <stdint.h>

namespace cg = cooperative_groups;

#define KERNEL(NAME)                                                                     \
    extern "C" __global__ void __cluster_dims__(2, 1, 1)                                 \
        NAME(const float *in, float *out, float *scratch, int *counter, int n)
#define TID ((int)threadIdx.x)
#define CTA ((int)blockIdx.x)

__device__ uint32_t smem(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ uint32_t mapa(uint32_t address, uint32_t rank) {
    uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}
__device__ void cluster_sync_ptx() {
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void mbarrier_init(uint64_t *barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem(barrier)), "r"(arrivals));
}
__device__ void mbarrier_expect(uint64_t *barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(barrier)),
                 "r"(bytes) : "memory");
}
__device__ void mbarrier_wait(uint64_t *barrier, int parity) {
    asm volatile("{ .reg .pred done;\n"
                 "wait: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra wait; }" ::"r"(smem(barrier)), "r"(parity) : "memory");
}

// ---- correct ----
KERNEL(exchange) {
    __shared__ float s[64];
    cg::cluster_group cluster = cg::this_cluster();
    s[TID] = in[CTA * 64 + TID];
    cluster.sync();
    const float *other = cluster.map_shared_rank(s, cluster.block_rank() ^ 1);
    out[CTA * 64 + TID] = other[TID];
    cluster.sync();
}
KERNEL(exchange_ptx) {
    __shared__ float s[64];
    uint32_t rank, count;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
    cluster_sync_ptx();
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(mapa(smem(&s[TID]), (rank + 1) % count)),
                 "f"(in[CTA * 64 + TID]) : "memory");
    cluster_sync_ptx();
    out[CTA * 64 + TID] = s[TID];
}
KERNEL(split_barrier) {
    extern __shared__ float s[];
    auto cluster = cg::this_cluster();
    s[TID] = in[CTA * 64 + TID];
    auto token = cluster.barrier_arrive();
    const float own = in[128 + TID];
    cluster.barrier_wait(static_cast<decltype(token) &&>(token));
    out[CTA * 64 + TID] = own + cluster.map_shared_rank(s, cluster.block_rank() ^ 1)[TID];
    cluster.sync();
}
KERNEL(remote_atomics) {
    __shared__ int total;
    auto cluster = cg::this_cluster();
    if (TID == 0) total = 0;
    cluster.sync();
    atomicAdd(cluster.map_shared_rank(&total, 0), 1);
    cluster.sync();
    if (cluster.block_rank() == 0 && TID == 0) out[0] = (float)total;
}
// CTA 1 fills CTA 0's buffer and arrives at its mbarrier; CTA 0 gives it back by the other one.
KERNEL(remote_mbarrier) {
    __shared__ float s[64];
    __shared__ uint64_t full, empty;
    if (TID == 0) {
        mbarrier_init(&full, 64);
        mbarrier_init(&empty, 64);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
    for (int round = 0; round < 4; round++) {
        if (cg::this_cluster().block_rank() == 1) {
            if (round > 0) mbarrier_wait(&empty, (round - 1) & 1);
            asm volatile("st.shared::cluster.f32 [%0], %1;\n"
                         "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%2];" ::
                         "r"(mapa(smem(&s[TID]), 0)), "f"(in[TID] + round),
                         "r"(mapa(smem(&full), 0)) : "memory");
        } else {
            mbarrier_wait(&full, round & 1);
            out[round * 64 + TID] = s[63 - TID];
            asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::
                         "r"(mapa(smem(&empty), 1)) : "memory");
        }
    }
    cluster_sync_ptx();
}
// Each CTA loads a half for both.
KERNEL(multicast) {
    __shared__ alignas(128) float s[64];
    __shared__ uint64_t full;
    const uint32_t rank = cg::this_cluster().block_rank();
    if (TID == 0) {
        mbarrier_init(&full, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        mbarrier_expect(&full, 256);
    }
    cluster_sync_ptx();
    if (TID == 0) {
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1], 128, [%2], %3;" ::"r"(smem(s + 32 * rank)),
                     "l"(in + 32 * rank), "r"(smem(&full)), "h"((short)3) : "memory");
    }
    mbarrier_wait(&full, 0);
    out[CTA * 64 + TID] = s[TID];
    cluster_sync_ptx();
}
KERNEL(send) {
    __shared__ alignas(128) float from[64], to[64];
    __shared__ uint64_t full;
    const uint32_t other = cg::this_cluster().block_rank() ^ 1;
    if (TID == 0) {
        mbarrier_init(&full, 1);
        mbarrier_expect(&full, 256 + 4);
    }
    from[TID] = in[CTA * 64 + TID];
    __shared__ float extra;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    cg::this_cluster().sync();
    if (TID == 0) {
        const uint32_t barrier = mapa(smem(&full), other);
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
                     "[%0], [%1], 256, [%2];" ::"r"(mapa(smem(to), other)), "r"(smem(from)),
                     "r"(barrier) : "memory");
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::
                     "r"(mapa(smem(&extra), other)), "f"(1.0f), "r"(barrier) : "memory");
    }
    mbarrier_wait(&full, 0);
    out[CTA * 64 + TID] = to[TID] + extra;
    cg::this_cluster().sync();
}
KERNEL(global_handover) {
    scratch[CTA * 64 + TID] = in[CTA * 64 + TID];
    cg::this_cluster().sync();
    out[CTA * 64 + TID] = scratch[(CTA ^ 1) * 64 + TID];
}

// ---- with a bug ----
KERNEL(no_sync_after_writes) {
    __shared__ float s[64];
    auto cluster = cg::this_cluster();
    s[TID] = 0;
    cluster.sync();
    s[TID] = in[TID];
    out[CTA * 64 + TID] = cluster.map_shared_rank(s, CTA ^ 1)[TID];  // BUG no_sync_after_writes
    cluster.sync();
}
KERNEL(only_a_block_barrier) {
    __shared__ float s[64];
    auto cluster = cg::this_cluster();
    s[TID] = 0;
    cluster.sync();
    cluster.map_shared_rank(s, CTA ^ 1)[TID] = in[TID];
    __syncthreads();
    out[CTA * 64 + TID] = s[TID];  // BUG only_a_block_barrier
    cluster.sync();
}
KERNEL(relaxed_arrival) {
    __shared__ float s[64];
    s[TID] = in[TID];
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
    out[CTA * 64 + TID] = cg::this_cluster().map_shared_rank(s, CTA ^ 1)[TID];  // BUG relaxed_arrival
    cg::this_cluster().sync();
}
KERNEL(past_the_others_array) {
    __shared__ float s[64];
    auto cluster = cg::this_cluster();
    s[TID] = in[TID];
    cluster.sync();
    out[CTA * 64 + TID] = cluster.map_shared_rank(s, CTA ^ 1)[TID + 1];  // BUG past_the_others_array
    cluster.sync();
}
KERNEL(leaves_too_early) {
    __shared__ float s[64];
    auto cluster = cg::this_cluster();
    s[TID] = in[TID];
    cluster.sync();
    if (CTA == 1) out[TID] = cluster.map_shared_rank(s, 0)[TID];  // BUG leaves_too_early
}
KERNEL(before_it_started) {
    __shared__ float s[64];
    auto cluster = cg::this_cluster();
    cluster.map_shared_rank(s, CTA ^ 1)[TID] = in[TID];  // BUG before_it_started
    cluster.sync();
    out[CTA * 64 + TID] = s[TID];
}
KERNEL(arrives_twice) {
    cg::this_cluster().barrier_arrive();
    cg::this_cluster().barrier_arrive();  // BUG arrives_twice
}
KERNEL(waits_only) {
    cg::this_cluster().barrier_wait();  // BUG waits_only
}
KERNEL(rank_too_high) {
    __shared__ float s[64];
    s[TID] = in[TID];
    cg::this_cluster().sync();
    out[TID] = cg::this_cluster().map_shared_rank(s, 2)[TID];  // BUG rank_too_high
}
KERNEL(remote_address_on_shared) {
    __shared__ float s[64];
    s[TID] = in[TID];
    cluster_sync_ptx();
    float x;
    asm("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(mapa(smem(&s[TID]), CTA ^ 1)));  // BUG remote_address_on_shared
    out[CTA * 64 + TID] = x;
    cluster_sync_ptx();
}
KERNEL(one_cta_waits_elsewhere) {
    __shared__ uint64_t full;
    if (TID == 0) mbarrier_init(&full, 1);
    __syncthreads();
    if (CTA == 1) mbarrier_wait(&full, 0);
    cg::this_cluster().sync();  // BUG one_cta_waits_elsewhere
    out[TID] = 0;
}
KERNEL(overwritten_while_it_reads) {
    __shared__ float s[64];
    __shared__ uint64_t full;
    if (TID == 0) mbarrier_init(&full, 64);
    cg::this_cluster().sync();
    const uint32_t to = mapa(smem(&s[TID]), 0);
    if (CTA == 1) {
        asm volatile("st.shared::cluster.f32 [%0], %1;\n"
                     "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%2];" ::"r"(to),
                     "f"(in[TID]), "r"(mapa(smem(&full), 0)) : "memory");
        __nanosleep(100);
        *cg::this_cluster().map_shared_rank(&s[TID], 0) = 0;  // BUG overwritten_while_it_reads
    } else {
        mbarrier_wait(&full, 0);
        out[TID] = s[TID];
    }
    cg::this_cluster().sync();
}
KERNEL(message_not_waited_for) {
    __shared__ float s[64];
    __shared__ uint64_t full;
    if (TID == 0) mbarrier_init(&full, 64);
    cg::this_cluster().sync();
    if (CTA == 1) {
        asm volatile("st.shared::cluster.f32 [%0], %1;\n"
                     "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%2];" ::
                     "r"(mapa(smem(&s[TID]), 0)), "f"(in[TID]), "r"(mapa(smem(&full), 0))
                     : "memory");
    } else {
        out[TID] = s[TID];  // BUG message_not_waited_for
    }
    cg::this_cluster().sync();
}
