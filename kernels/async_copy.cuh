// cp.async of sm_80 and later: asynchronous copies from global to shared memory that need no
// registers. On sm_75 an ordinary load and store.
#pragma once
#include "arch.cuh"

// 16 bytes to shared memory past the L1 cache; zeros when not `valid` (`source` is then not read).
__device__ __forceinline__ void cp_async_16(unsigned destination, const void* source, bool valid) {
#if HAS_CP_ASYNC
    const int source_bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(destination), "l"(source), "r"(source_bytes)
                 : "memory");
#else
    uint4 chunk = make_uint4(0, 0, 0, 0);
    if (valid) chunk = *static_cast<const uint4*>(source);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "r"(destination), "r"(chunk.x), "r"(chunk.y), "r"(chunk.z), "r"(chunk.w)
                 : "memory");
#endif
}
__device__ __forceinline__ void cp_async_16(void* destination, const void* source, bool valid) {
    cp_async_16((unsigned)__cvta_generic_to_shared(destination), source, valid);
}

// Commits a group: the copies that this thread started since the last group. It may be empty.
__device__ __forceinline__ void cp_async_commit() {
#if HAS_CP_ASYNC
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most GROUPS of this thread's latest groups are in flight. As below, other
// threads see the data only after a barrier.
template <int GROUPS>
__device__ __forceinline__ void cp_async_wait() {
#if HAS_CP_ASYNC
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
#endif
}

// Waits for this thread's own copies; other threads see the data only after a barrier.
__device__ __forceinline__ void cp_async_wait_all() {
#if HAS_CP_ASYNC
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
