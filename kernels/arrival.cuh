// Counting the CTAs that have written their part, so that the last one to come can fuse them.
#pragma once

// One more arrival at a counter in global memory; how many there were before it. For one thread of
// a CTA, between two barriers: release and acquire go through them. What the CTA's threads wrote
// in front of the first is seen by whoever arrives later, and behind the second they see what those
// wrote that arrived earlier. One thread's order costs less than a fence of every thread.
__device__ __forceinline__ int arrive_at_counter(int* counter) {
    int before;
    asm volatile("atom.acq_rel.gpu.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}
