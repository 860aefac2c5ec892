// cp.async of sm_80 and later: copies from global to shared memory that take no registers and run
// on while the thread computes.
#pragma once

// 16 bytes to shared memory past the L1 cache; zeros when not `valid` (`source` is then not read).
__device__ __forceinline__ void cp_async_16(void* destination, const void* source, bool valid) {
    const int source_bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((unsigned)__cvta_generic_to_shared(destination)), "l"(source),
                   "r"(source_bytes)
                 : "memory");
}

// Waits for this thread's own copies; other threads see them after a barrier on top.
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
