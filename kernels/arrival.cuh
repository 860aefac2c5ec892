// Counts the CTAs that have written their part, so that the last one to arrive can fuse them.
#pragma once

// Increments an arrival counter in global memory; returns the previous count. Called by one thread
// of a CTA between two barriers, which extend its release and acquire to the whole CTA: CTAs that
// arrive later see what its threads wrote before the first barrier, and after the second barrier
// its threads see what CTAs wrote that arrived earlier. That costs less than a fence by every
// thread.
__device__ __forceinline__ int arrive_at_counter(int* counter) {
    int before;
    asm volatile("atom.acq_rel.gpu.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}
