// Hopper's instructions behind functions: mbarrier, TMA, wgmma, setmaxnreg.
#pragma once
#include "ptx.cuh"

struct alignas(64) TensorMap {  // size and alignment of CUtensorMap
    unsigned long long words[16];
};

// 128-byte swizzle, 1024 bytes between groups of 8 rows.
PTX_FN uint64_t wgmma_descriptor(const void *tile) {
    return (uint64_t)((smem_address(tile) & 0x3ffff) >> 4) | (uint64_t)1 << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

PTX_FN void mbarrier_init(uint64_t *b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(smem_address(b)), "r"(arrivals));
}
PTX_FN void mbarrier_fence_init() {
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
PTX_FN void mbarrier_expect(uint64_t *b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(smem_address(b)),
                 "r"(bytes)
                 : "memory");
}
PTX_FN void mbarrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(smem_address(b)) : "memory");
}
PTX_FN void mbarrier_wait(uint64_t *b, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n}\n" ::"r"(smem_address(b)),
        "r"(parity)
        : "memory");
}
PTX_FN void tma_load(void *tile, const TensorMap *map, uint64_t *b, int column, int row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];\n" ::"r"(smem_address(tile)),
        "l"(map), "r"(smem_address(b)), "r"(column), "r"(row)
        : "memory");
}
PTX_FN void tma_store(const TensorMap *map, const void *tile, int column, int row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];\n" ::"l"(map),
        "r"(smem_address(tile)), "r"(column), "r"(row)
        : "memory");
}
PTX_FN void bulk_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
PTX_FN void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;\n" ::: "memory"); }
PTX_FN void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
template <int REGISTERS>
PTX_FN void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}
template <int REGISTERS>
PTX_FN void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}
PTX_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
PTX_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int PENDING>
PTX_FN void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}
#define D8(i)                                                                            \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),          \
        "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define D32                                                                              \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"                            \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
PTX_FN void wgmma_ss(float (&d)[32], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." MMA_TYPE " " D32
                 ", %32, %33, 1, 1, 1, 0, 0;\n"
                 : D8(0), D8(8), D8(16), D8(24)
                 : "l"(a), "l"(b));
}
PTX_FN void wgmma_rs_transposed(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." MMA_TYPE " " D32
                 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;\n"
                 : D8(0), D8(8), D8(16), D8(24)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
