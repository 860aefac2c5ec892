// Differences between archs: first features that older ones lack, then where ptxas would spill,
// found by compiling every config (tests/kernels/test_compile_matrix.py). These are macros, because
// unused constants would take memory in a kernel's cubin.
#pragma once

#define HAS_CP_ASYNC (__CUDA_ARCH__ >= 800)
#define HAS_MMA_K16 (__CUDA_ARCH__ >= 800)  // m16n8k16 of FP16
// At least 164 KB of shared memory per SM; the others from sm_75 on have 64 to 100.
#define HAS_LARGE_SMEM (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)

// Whether a separate loop for unmasked tiles would spill, with or without a causal mask, if Q stays
// in shared memory (v13 with a causal mask on sm_120 also if it does not).
#define V11_CAUSAL_LOOP_SPILLS_AT_96 (__CUDA_ARCH__ == 900)
#define V13_CAUSAL_LOOP_SPILLS (__CUDA_ARCH__ >= 1200)
#define V13_FULL_LOOP_SPILLS (__CUDA_ARCH__ == 750 || __CUDA_ARCH__ == 1000)
#define V13_FULL_LOOP_SPILLS_AT_96 (__CUDA_ARCH__ >= 1200)
// Whether v11 would spill if copies started after the reads of V, with a causal mask at D = 128.
#define V11_CAUSAL_LATE_COPIES_SPILL (__CUDA_ARCH__ == 800)
