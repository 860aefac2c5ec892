// Hopper's asynchronous instructions, each wrapped by one function: mbarrier, TMA, wgmma,
// setmaxnreg; and stmatrix.
#pragma once
#include "mma.cuh"

// Tensor map for TMA: the driver's CUtensorMap, whose bytes are opaque.
struct alignas(64) TensorMap {
    unsigned long long words[16];
};

// ---- mbarrier: 8 bytes in shared memory that count arrivals and bytes, phase after phase ----
using Mbarrier = unsigned long long;

__device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}
// Makes initialised mbarriers visible to TMA too.
__device__ __forceinline__ void mbarrier_init_fence() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}
// Arrives at the barrier at the same offset in another CTA of the cluster.
__device__ __forceinline__ void mbarrier_arrive_at(Mbarrier* barrier, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 address;\n"
        "mapa.shared::cluster.u32 address, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [address];\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}
// Arrives, and adds `bytes` to the transaction bytes that the phase waits for.
__device__ __forceinline__ void mbarrier_arrive_expect(Mbarrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                     shared_address(barrier)),
                 "r"(bytes)
                 : "memory");
}
// Waits until the phase of this parity is complete. At first, parity 1 counts as complete.
__device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 complete, [%0], %1;\n"
        "@!complete bra again;\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}

// ---- TMA: a box of a [batch, head, row, column] tensor, and back ----
// Load to shared memory, counted by the barrier. Elements outside the tensor are zero.
__device__ __forceinline__ void tma_load(void* to_smem, const TensorMap* map, Mbarrier* barrier,
                                         int column, int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to_smem)),
        "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
// Multicast load to the same offset in each of the first CTAS of the cluster, counted there by the
// barrier at the same offset as `barrier`.
template <int CTAS>
__device__ __forceinline__ void tma_load_to_all(void* to_smem, const TensorMap* map,
                                                Mbarrier* barrier, int column, int row, int head,
                                                int batch) {
    constexpr unsigned short MASK = (1 << CTAS) - 1;
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(
            shared_address(to_smem)),
        "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(head), "r"(batch),
        "h"(MASK)
        : "memory");
}
// Store from shared memory; elements outside the tensor are not stored.
__device__ __forceinline__ void tma_store(const TensorMap* map, const void* from_smem, int column,
                                          int row, int head, int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
        "[%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
        "r"(shared_address(from_smem)), "r"(column), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
__device__ __forceinline__ void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until this thread's stores have read shared memory.
__device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Orders this thread's ordinary stores to shared memory before reads by TMA and wgmma.
__device__ __forceinline__ void async_proxy_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- threads ----
// A warp-uniform value, known as such to ptxas: values that follow from it are computed once for
// the warp, in uniform registers, from which descriptors are read.
__device__ __forceinline__ unsigned warp_uniform(unsigned x) {
    return __shfl_sync(0xffffffffu, x, 0);
}
// Elects one thread of the warp; called by all of its threads.
__device__ __forceinline__ bool elect_one() {
    int elected;
    asm volatile(
        "{\n"
        ".reg .pred elected;\n"
        "elect.sync _|elected, 0xffffffff;\n"
        "selp.b32 %0, 1, 0, elected;\n"
        "}"
        : "=r"(elected));
    return elected;
}
// Named barrier `id`, 1 to 15, of `threads` threads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Arrives at a named barrier without waiting.
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
template <int COUNT>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Four 8x8 matrices to shared memory, the reverse of ldmatrix: lane i supplies the address of row i
// % 8 of matrix i / 8.
__device__ __forceinline__ void stmatrix_x4(unsigned row_address, const unsigned (&fragment)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     row_address),
                 "r"(fragment[0]), "r"(fragment[1]), "r"(fragment[2]), "r"(fragment[3])
                 : "memory");
}

// ---- wgmma: products of a warpgroup, four warps; operands in shared memory by descriptor ----
// Descriptor of contiguous rows of 128, 64 or 32 bytes, with a swizzle of that width. `leading`:
// bytes between blocks of that width, if columns are not the summed dimension.
template <int ROW_BYTES>
__device__ __forceinline__ unsigned long long wgmma_descriptor(unsigned address, int leading) {
    static_assert(ROW_BYTES == 128 || ROW_BYTES == 64 || ROW_BYTES == 32,
                  "rows are as wide as a swizzle of wgmma");
    constexpr unsigned long long LAYOUT = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
    constexpr unsigned long long GROUP = 8 * ROW_BYTES >> 4;
    const unsigned long long start = (address & 0x3ffff) >> 4, block = leading >> 4;
    return start | block << 16 | GROUP << 32 | LAYOUT << 62;
}

// Orders earlier accesses to registers before products that use these registers.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// An empty asm statement that changes these sums: the compiler moves no use of them ahead of it.
template <int SUMS>
__device__ __forceinline__ void change_here(float (&sums)[SUMS]) {
#pragma unroll
    for (int i = 0; i < SUMS; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
// Waits until at most GROUPS groups of products are in flight. `sums`: the sums of the completed
// groups.
template <int GROUPS, int... SUMS>
__device__ __forceinline__ void wgmma_wait(float (&...sums)[SUMS]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
    (change_here(sums), ...);
}

#if IS_BF16
#define WGMMA_TYPES "k16.f32.bf16.bf16 "
#else
#define WGMMA_TYPES "k16.f32.f16.f16 "
#endif

#define WGMMA_NAMES_16 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_NAMES_24 WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_NAMES_32                                                                     \
    WGMMA_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, " \
                   "%30, %31"
#define WGMMA_NAMES_48                                                                     \
    WGMMA_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
                   "%46, %47"
#define WGMMA_NAMES_64                                                                     \
    WGMMA_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, " \
                   "%62, %63"
#define WGMMA_NAMES_80                                                                     \
    WGMMA_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, " \
                   "%78, %79"
#define WGMMA_NAMES_88 WGMMA_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_NAMES_96                                                                     \
    WGMMA_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, " \
                   "%94, %95"
#define WGMMA_SUMS_8(i)                                                                     \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define WGMMA_SUMS_16 WGMMA_SUMS_8(0), WGMMA_SUMS_8(8)
#define WGMMA_SUMS_24 WGMMA_SUMS_16, WGMMA_SUMS_8(16)
#define WGMMA_SUMS_32 WGMMA_SUMS_24, WGMMA_SUMS_8(24)
#define WGMMA_SUMS_48 WGMMA_SUMS_32, WGMMA_SUMS_8(32), WGMMA_SUMS_8(40)
#define WGMMA_SUMS_64 WGMMA_SUMS_48, WGMMA_SUMS_8(48), WGMMA_SUMS_8(56)
#define WGMMA_SUMS_80 WGMMA_SUMS_64, WGMMA_SUMS_8(64), WGMMA_SUMS_8(72)
#define WGMMA_SUMS_88 WGMMA_SUMS_80, WGMMA_SUMS_8(80)
#define WGMMA_SUMS_96 WGMMA_SUMS_80, WGMMA_SUMS_8(80), WGMMA_SUMS_8(88)

// For each width N of D [64, N], with N / 2 sums in a thread, of which %A to %F are the operands
// that follow; without ACCUMULATE D is overwritten:
// D (+)= A [64, 16] @ B^T, rows of A and of B [N, 16] in shared memory, along the summed dimension;
// D (+)= A [64, 16] @ B [16, N], A in registers as of an mma, rows of B along D's columns;
// D (+)= A^T @ B, A [16, 64] and B [16, N] in shared memory, rows of A along D's.
#define WGMMA_OF_WIDTH(N, SUMS, A, B, C, D, E, F)                                                 \
    template <bool ACCUMULATE>                                                                    \
    __device__ __forceinline__ void wgmma(float(&d)[SUMS], unsigned long long a,                  \
                                          unsigned long long b) {                                 \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N WGMMA_TYPES "{" WGMMA_NAMES_##SUMS    \
                     "}, %" #A ", %" #B ", %" #C ", 1, 1, 0, 0;"                                  \
                     : WGMMA_SUMS_##SUMS                                                          \
                     : "l"(a), "l"(b), "n"(int(ACCUMULATE)));                                     \
    }                                                                                             \
    template <bool ACCUMULATE = true>                                                             \
    __device__ __forceinline__ void wgmma(float(&d)[SUMS], const unsigned(&a)[4],                 \
                                          unsigned long long b) {                                 \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N WGMMA_TYPES "{" WGMMA_NAMES_##SUMS    \
                     "}, {%" #A ", %" #B ", %" #C ", %" #D "}, %" #E ", %" #F ", 1, 1, 1;"        \
                     : WGMMA_SUMS_##SUMS                                                          \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                        \
                       "n"(int(ACCUMULATE)));                                                     \
    }                                                                                             \
    template <bool ACCUMULATE>                                                                    \
    __device__ __forceinline__ void wgmma_transposed(float(&d)[SUMS], unsigned long long a,       \
                                                     unsigned long long b) {                      \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N WGMMA_TYPES "{" WGMMA_NAMES_##SUMS    \
                     "}, %" #A ", %" #B ", %" #C ", 1, 1, 1, 1;"                                  \
                     : WGMMA_SUMS_##SUMS                                                          \
                     : "l"(a), "l"(b), "n"(int(ACCUMULATE)));                                     \
    }

WGMMA_OF_WIDTH(32, 16, 16, 17, 18, 19, 20, 21)
WGMMA_OF_WIDTH(48, 24, 24, 25, 26, 27, 28, 29)
WGMMA_OF_WIDTH(64, 32, 32, 33, 34, 35, 36, 37)
WGMMA_OF_WIDTH(96, 48, 48, 49, 50, 51, 52, 53)
WGMMA_OF_WIDTH(128, 64, 64, 65, 66, 67, 68, 69)
WGMMA_OF_WIDTH(160, 80, 80, 81, 82, 83, 84, 85)
WGMMA_OF_WIDTH(176, 88, 88, 89, 90, 91, 92, 93)
WGMMA_OF_WIDTH(192, 96, 96, 97, 98, 99, 100, 101)
