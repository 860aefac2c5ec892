// Faults that must not end the calling process. Launched like planted_bugs.cu; `// BUG` as there.
#include "ptx.cuh"

#define KERNEL(NAME)                                                                     \
    extern "C" __global__ void NAME(const float *in, float *out, float *scratch,         \
                                    int *counter, int n)
#define TID ((int)threadIdx.x)

KERNEL(well_behaved) { out[blockIdx.x * 64 + TID] = 2.f * in[TID]; }
KERNEL(null_pointer) {
    float *nowhere = (float *)(size_t)(n - 256);
    if (TID == 3) nowhere[0] = 1.f;  // BUG null_pointer
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(wild_pointer) {
    if (TID == 3) out[(size_t)n << 40] = 1.f;  // BUG wild_pointer
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(beyond_the_buffer) {
    if (TID == 3) out[n * 1000] = 1.f;  // BUG beyond_the_buffer
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(just_behind_the_buffer) { out[TID + n - 63] = in[TID]; }
KERNEL(behind_shared) {
    extern __shared__ float smem[];
    if (TID == 3) smem[n] = 1.f;  // BUG behind_shared
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(behind_odd_shared) {  // launched with 1,000 bytes: 24 more up to the window's end
    extern __shared__ float smem[];
    smem[TID == 3 ? 251 : TID] = in[TID];
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(copy_from_far_away) {
    __shared__ __align__(16) float s[256];
    cp_async_16(s + TID * 4, in + (size_t)n * 4096, true);  // BUG copy_from_far_away
    cp_async_commit();
    cp_async_wait<0>();
    out[blockIdx.x * 64 + TID] = s[TID * 4];
}
KERNEL(atomic_far_away) {
    atomicAdd(counter + n * 4096, 1);  // BUG atomic_far_away
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(integer_division) {
    out[blockIdx.x * 64 + TID] = (float)(n / (int)(in[TID] * 0.f));  // BUG integer_division
}
static __device__ __noinline__ float descend(float x, int depth) {
    volatile float frame[256];
    for (int i = 0; i < 256; i++) frame[i] = x;
    if (depth == 0) return frame[0];
    return descend(x + 1.f, depth - 1) + frame[depth % 256];
}
KERNEL(stack_overflow) { out[blockIdx.x * 64 + TID] = descend(in[TID], n * 100); }
KERNEL(endless) {
    volatile int forever = n;
    while (forever) {  // BUG endless
    }
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(ends_the_process) {
    if (TID == 5) __builtin_abort();
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(prints) {
    if (blockIdx.x == 0 && TID == 0) printf("n is %d\n", n);
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(changes_its_input) {
    const_cast<float *>(in)[TID] = 7.f;
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(forgets_elements) {
    if (TID != 9) out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(counts_its_runs) { out[blockIdx.x * 64 + TID] = (float)atomicAdd(counter, 1); }
