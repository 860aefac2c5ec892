// What differs between archs, in one place. First what older ones lack; then what ptxas makes of
// their registers, as found by compiling every config (tests/kernels/test_compile_matrix.py).
// Macros, as constants that a kernel does not use would take memory in its cubin.
#pragma once

#define HAS_CP_ASYNC (__CUDA_ARCH__ >= 800)
#define HAS_MMA_K16 (__CUDA_ARCH__ >= 800)  // m16n8k16 of FP16
// At least 164 KB of shared memory an SM, where the others of sm_75 and later have 64 to 100.
#define HAS_LARGE_SMEM (__CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000)

// A loop of their own for tiles with nothing to mask would spill: under a causal mask or without
// one, where Q stays in shared memory (v13's causal one on sm_120 also where it does not).
#define V11_CAUSAL_LOOP_SPILLS_AT_96 (__CUDA_ARCH__ == 900)
#define V13_CAUSAL_LOOP_SPILLS (__CUDA_ARCH__ >= 1200)
#define V13_FULL_LOOP_SPILLS (__CUDA_ARCH__ == 750 || __CUDA_ARCH__ == 1000)
#define V13_FULL_LOOP_SPILLS_AT_96 (__CUDA_ARCH__ >= 1200)
// v11's copies that start behind the reads of V would, under a causal mask at D = 128.
#define V11_CAUSAL_LATE_COPIES_SPILL (__CUDA_ARCH__ == 800)
