// The tensor-core instructions of sm_75 and later, each wrapped by one function.
#pragma once
#include "arch.cuh"
#include "element.cuh"

// Packs two elements into one 32-bit register, as the instructions take them; `low` comes first.
union ElementPair {
    element2 elements;
    unsigned bits;
};

__device__ __forceinline__ unsigned pack(float low, float high) {
    ElementPair pair;
    pair.elements = to_element2(low, high);
    return pair.bits;
}

// Four 8x8 matrices from shared memory: lane i supplies the address of row i % 8 of matrix i / 8
// and gets, of each matrix, two neighbouring elements of row lane / 4 (transposed: of column lane /
// 4).
__device__ __forceinline__ void ldmatrix_x4(unsigned (&fragment)[4], unsigned row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row_address)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_transposed(unsigned (&fragment)[4],
                                                       unsigned row_address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
                 : "r"(row_address)
                 : "memory");
}

// The 32-bit address in shared memory that the instructions take.
__device__ __forceinline__ unsigned shared_address(const void* shared) {
    return (unsigned)__cvta_generic_to_shared(shared);
}
__device__ __forceinline__ void ldmatrix_x4(unsigned (&fragment)[4], const element* row) {
    ldmatrix_x4(fragment, shared_address(row));
}
__device__ __forceinline__ void ldmatrix_x4_transposed(unsigned (&fragment)[4],
                                                       const element* row) {
    ldmatrix_x4_transposed(fragment, shared_address(row));
}

#if IS_BF16
#define MMA_M16N8K16 "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
#else
#define MMA_M16N8K16 "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
#endif

// D [16, 8] += A [16, 16] @ B [16, 8], in FP32.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                             unsigned b1) {
#if HAS_MMA_K16 || IS_BF16
    asm volatile(MMA_M16N8K16 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else  // sm_75 multiplies 8 columns of A at a time, and FP16 alone
    const unsigned halves[2][3] = {{a[0], a[1], b0}, {a[2], a[3], b1}};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, "
                     "{%6}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(halves[half][0]), "r"(halves[half][1]), "r"(halves[half][2]));
    }
#endif
}
