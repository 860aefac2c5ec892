// One bug per kernel. The line that the check build must name has `// BUG <kernel>`.
// Every kernel is launched with 2 CTAs of 64 threads and 1,024 bytes of dynamic shared memory;
// `in` and `out` have 256 floats, `scratch` (poisoned) and `counter` (zero) are 256 words.
#include "ptx.cuh"

#define KERNEL(NAME)                                                                     \
    extern "C" __global__ void NAME(const float *in, float *out, float *scratch,         \
                                    int *counter, int n)
#define TID ((int)threadIdx.x)

// ---- races in shared memory ----
KERNEL(missing_syncthreads) {
    __shared__ float s[64];
    s[TID] = in[TID];
    out[blockIdx.x * 64 + TID] = s[TID ^ 32];  // BUG missing_syncthreads
}
KERNEL(missing_syncwarp) {
    __shared__ float s[64];
    s[TID] = in[TID];
    out[blockIdx.x * 64 + TID] = s[TID ^ 1];  // BUG missing_syncwarp
}
KERNEL(two_writers) {
    __shared__ float s[1];
    s[0] = in[TID];  // BUG two_writers
    __syncthreads();
    if (TID == 0) out[blockIdx.x] = s[0];
}
KERNEL(two_writers_of_one_value) {
    __shared__ float s[1];
    s[0] = 1.f;  // BUG two_writers_of_one_value
    __syncthreads();
    if (TID == 0) out[blockIdx.x] = s[0];
}
KERNEL(barrier_passed_by) {
    __shared__ float s[64];
    s[TID] = in[TID];
    if (TID < 32) {
        __syncthreads();
    }
    s[TID ^ 32] = in[TID];  // BUG barrier_passed_by
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(overwritten_while_read) {
    __shared__ float s[64];
    s[TID] = in[TID];
    __syncthreads();
    const float x = s[TID ^ 32];
    s[TID] = x + 1.f;  // BUG overwritten_while_read
    out[blockIdx.x * 64 + TID] = x;
}
KERNEL(same_byte) {
    __shared__ unsigned char s[64];
    s[TID / 2] = (unsigned char)TID;  // BUG same_byte
    __syncthreads();
    out[blockIdx.x * 64 + TID] = s[TID / 2];
}
KERNEL(shuffle_is_no_barrier) {
    __shared__ float s[64];
    s[TID] = in[TID];
    const float other = __shfl_xor_sync(0xffffffffu, in[TID], 1);
    out[blockIdx.x * 64 + TID] = other + s[TID ^ 1];  // BUG shuffle_is_no_barrier
}
KERNEL(atomic_and_plain) {
    __shared__ int total[1];
    if (TID == 0) total[0] = 0;
    __syncthreads();
    atomicAdd(&total[0], 1);
    if (TID == 63) out[blockIdx.x] = (float)total[0];  // BUG atomic_and_plain
}
KERNEL(barrier_of_the_wrong_threads) {
    __shared__ float s[64];
    s[TID] = in[TID];
    named_barrier_sync(1 + TID / 32, 32);
    out[blockIdx.x * 64 + TID] = s[TID ^ 32];  // BUG barrier_of_the_wrong_threads
}

KERNEL(producer_does_not_wait) {  // it arrives at the barrier and goes on to the next round
    __shared__ float s[32];
    float sum = 0.f;
    for (int i = 0; i < 3; i++) {
        if (TID < 32) {
            s[TID] = in[TID] + i;  // BUG producer_does_not_wait
            named_barrier_arrive(1 + i, 64);
        } else {
            named_barrier_sync(1 + i, 64);
            sum += s[(TID + 1) % 32];
        }
    }
    out[blockIdx.x * 64 + TID] = sum;
}

// ---- bounds and initialisation of shared memory ----
KERNEL(static_array_index) {
    __shared__ float s[64];
    s[TID + (n - n / 2) / 128 * 1] = in[TID];  // BUG static_array_index
    __syncthreads();
    out[blockIdx.x * 64 + TID] = s[TID];
}
KERNEL(static_array_pointer) {
    __shared__ float s[64];
    float *p = s + 1;
    p[TID] = in[TID];  // BUG static_array_pointer
    __syncthreads();
    out[blockIdx.x * 64 + TID] = s[TID];
}
KERNEL(dynamic_memory_end) {
    extern __shared__ float smem[];
    smem[193 + TID] = in[TID];  // BUG dynamic_memory_end
    __syncthreads();
    out[blockIdx.x * 64 + TID] = smem[193 + TID];
}
KERNEL(uninitialised_shared) {
    __shared__ float s[65];
    s[TID] = in[TID];
    __syncthreads();
    out[blockIdx.x * 64 + TID] = s[TID + 1];  // BUG uninitialised_shared
}
KERNEL(uninitialised_counter) {
    __shared__ int total[1];
    atomicAdd(&total[0], 1);  // BUG uninitialised_counter
    __syncthreads();
    out[blockIdx.x * 64 + TID] = (float)total[0];
}
KERNEL(left_from_the_cta_before) {  // the second CTA finds what the first one wrote
    __shared__ float s[64];
    if (blockIdx.x == 0) s[TID] = in[TID];
    __syncthreads();
    out[blockIdx.x * 64 + TID] = s[TID];  // BUG left_from_the_cta_before
}

// ---- cp.async ----
KERNEL(copy_without_wait) {
    __shared__ __align__(16) float s[256];
    cp_async_16(s + TID * 4, in + TID * 4, true);
    cp_async_commit();
    out[blockIdx.x * 64 + TID] = s[TID * 4];  // BUG copy_without_wait
}
KERNEL(copy_waits_for_the_wrong_group) {
    __shared__ __align__(16) float s[256];
    cp_async_16(s + TID * 4, in + TID * 4, true);
    cp_async_commit();
    cp_async_wait<1>();
    out[blockIdx.x * 64 + TID] = s[TID * 4];  // BUG copy_waits_for_the_wrong_group
}
KERNEL(copy_without_barrier) {
    __shared__ __align__(16) float s[256];
    cp_async_16(s + TID * 4, in + TID * 4, true);
    cp_async_commit();
    cp_async_wait<0>();
    out[blockIdx.x * 64 + TID] = s[(TID ^ 32) * 4];  // BUG copy_without_barrier
}
KERNEL(copy_misaligned) {
    __shared__ __align__(16) float s[260];
    cp_async_16(s + TID * 4 + 1, in + TID * 4, true);  // BUG copy_misaligned
    cp_async_commit();
    cp_async_wait<0>();
    out[blockIdx.x * 64 + TID] = s[TID * 4];
}

// ---- global memory ----
KERNEL(global_read_end) {
    out[blockIdx.x * 64 + TID] = in[n - 63 + TID];  // BUG global_read_end
}
KERNEL(global_write_end) {
    if (blockIdx.x == 0) out[n - 63 + TID] = in[TID];  // BUG global_write_end
}
KERNEL(global_write_before) {
    if (blockIdx.x == 0) out[TID - 1] = in[TID];  // BUG global_write_before
}
KERNEL(write_to_input) {
    const_cast<float *>(in)[TID] = 1.f;  // BUG write_to_input
    out[blockIdx.x * 64 + TID] = 0.f;
}
KERNEL(uninitialised_scratch) {
    if (TID < 63) scratch[blockIdx.x * 64 + TID] = in[TID];
    __syncthreads();
    out[blockIdx.x * 64 + TID] = scratch[blockIdx.x * 64 + TID];  // BUG uninitialised_scratch
}
KERNEL(ctas_write_the_same) {
    out[TID] = in[TID];  // BUG ctas_write_the_same
}
KERNEL(cta_reads_another) {
    scratch[blockIdx.x * 64 + TID] = in[TID];
    __syncthreads();
    if (TID == 0) while (atomicAdd(counter, 0) + 2 < (int)blockIdx.x) __nanosleep(1);
    out[blockIdx.x * 64 + TID] = scratch[TID];  // BUG cta_reads_another
}
KERNEL(fusion_without_fence) {  // the CTA that comes last adds up what all have written
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID];
    __syncthreads();
    if (TID == 0) is_last[0] = atomicAdd(counter, 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (is_last[0]) out[TID] = scratch[TID] + scratch[64 + TID];  // BUG fusion_without_fence
}
// The next kernels lack one fence, or have one in the wrong place.
KERNEL(fence_before_the_writes) {
    __shared__ int is_last[1];
    __threadfence();
    scratch[blockIdx.x * 64 + TID] = in[TID];  // BUG fence_before_the_writes
    __syncthreads();
    if (TID == 0) is_last[0] = atomicAdd(counter, 1) == (int)gridDim.x - 1;
    __syncthreads();
    __threadfence();
    if (is_last[0]) out[TID] = scratch[TID] + scratch[64 + TID];
}
KERNEL(fence_of_one_thread) {  // before the barrier: it covers that thread's writes alone
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID];
    if (TID == 0) __threadfence();
    __syncthreads();
    if (TID == 0) is_last[0] = atomicAdd(counter, 1) == (int)gridDim.x - 1;
    __syncthreads();
    __threadfence();
    if (is_last[0]) out[TID] = scratch[TID] + scratch[64 + TID];  // BUG fence_of_one_thread
}
KERNEL(no_barrier_before_the_arrival) {
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID];
    __threadfence();
    if (TID == 0) is_last[0] = atomicAdd(counter, 1) == (int)gridDim.x - 1;
    __syncthreads();
    __threadfence();
    if (is_last[0]) out[TID] = scratch[TID] + scratch[64 + TID];  // BUG no_barrier_before_the_arrival
}
KERNEL(no_fence_before_the_reads) {
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID];
    __threadfence();
    __syncthreads();
    if (TID == 0) is_last[0] = atomicAdd(counter, 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (is_last[0]) out[TID] = scratch[TID] + scratch[64 + TID];  // BUG no_fence_before_the_reads
}
KERNEL(one_thread_fences_before_the_reads) {
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID];
    __threadfence();
    __syncthreads();
    if (TID == 0) is_last[0] = atomicAdd(counter, 1) == (int)gridDim.x - 1;
    __syncthreads();
    if (!is_last[0]) return;
    if (TID == 0) __threadfence();
    out[TID] = scratch[TID] + scratch[64 + TID];  // BUG one_thread_fences_before_the_reads
}
KERNEL(fence_of_cta_scope) {
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID];
    __threadfence_block();
    __syncthreads();
    if (TID == 0) is_last[0] = atomicAdd(counter, 1) == (int)gridDim.x - 1;
    __syncthreads();
    __threadfence();
    if (is_last[0]) out[TID] = scratch[TID] + scratch[64 + TID];  // BUG fence_of_cta_scope
}
KERNEL(atomic_of_cta_scope) {
    if (TID == 0) {
        int before;
        asm volatile("atom.relaxed.cta.global.add.s32 %0, [%1], 1;"  // BUG atomic_of_cta_scope
                     : "=r"(before) : "l"(counter) : "memory");
    }
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(release_without_acquire) {
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID];
    __syncthreads();
    if (TID == 0) {
        int before;
        asm volatile("atom.release.gpu.global.add.s32 %0, [%1], 1;"
                     : "=r"(before) : "l"(counter) : "memory");
        is_last[0] = before == (int)gridDim.x - 1;
    }
    __syncthreads();
    if (is_last[0]) out[TID] = scratch[TID] + scratch[64 + TID];  // BUG release_without_acquire
}
KERNEL(written_after_another_cta_read) {
    const int word = counter[200];  // BUG written_after_another_cta_read
    if (blockIdx.x == 1 && TID == 0) counter[200] = 1;
    out[blockIdx.x * 64 + TID] = (float)word;
}
KERNEL(written_after_another_thread_read) {
    const int word = counter[200 + blockIdx.x];  // BUG written_after_another_thread_read
    if (TID == 17) counter[200 + blockIdx.x] = 1;
    out[blockIdx.x * 64 + TID] = (float)word;
}
__device__ float device_sum[2];
KERNEL(ctas_share_a_device_variable) {
    if (TID == 0) device_sum[1] = in[blockIdx.x];  // BUG ctas_share_a_device_variable
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(threads_share_a_device_variable) {
    if (blockIdx.x == 0 && TID < 2) device_sum[0] += 1.f;  // BUG threads_share_a_device_variable
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(threads_share_global) {
    scratch[blockIdx.x * 64 + TID] = in[TID];
    out[blockIdx.x * 64 + TID] = scratch[blockIdx.x * 64 + (TID ^ 32)];  // BUG threads_share_global
}
KERNEL(misaligned_vector) {
    const float4 v = *reinterpret_cast<const float4 *>(in + TID + 1);  // BUG misaligned_vector
    out[blockIdx.x * 64 + TID] = v.x + v.w;
}
KERNEL(misaligned_shared_vector) {
    __shared__ __align__(16) float s[68];
    s[TID] = in[TID];
    if (TID < 4) s[64 + TID] = 0.f;
    __syncthreads();
    const float2 v = *reinterpret_cast<const float2 *>(s + TID);  // BUG misaligned_shared_vector
    out[blockIdx.x * 64 + TID] = v.x;
}
KERNEL(anothers_local_memory) {
    __shared__ float *pointer[1];
    float mine[4] = {in[TID], 0.f, 0.f, 0.f};
    if (TID == 0) pointer[0] = mine;
    __syncthreads();
    out[blockIdx.x * 64 + TID] = pointer[0][n - n];  // BUG anothers_local_memory
    __syncthreads();
    if (TID == 0) out[blockIdx.x * 64] = mine[n / 256];
}

// ---- control ----
KERNEL(divergent_syncthreads) {
    if (TID < 32) {
        __syncthreads();
    } else {
        __syncthreads();  // BUG divergent_syncthreads
    }
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(barrier_with_two_counts) {
    if (TID < 32) {
        named_barrier_sync(1, 64);
    } else {
        named_barrier_sync(1, 96);  // BUG barrier_with_two_counts
    }
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(barrier_never_complete) {
    if (TID < 32) named_barrier_sync(3, 64);  // BUG barrier_never_complete
    out[blockIdx.x * 64 + TID] = in[TID];
}
KERNEL(lanes_that_left) {
    if (TID % 32 >= 16) return;
    out[blockIdx.x * 64 + TID] = __shfl_sync(0xffffffffu, in[TID], 0);  // BUG lanes_that_left
}
KERNEL(lanes_in_two_places) {
    float x = in[TID];
    if (TID % 32 < 16) {
        x = __shfl_xor_sync(0xffffffffu, x, 1);
    } else {
        x = __shfl_down_sync(0xffffffffu, x, 2);  // BUG lanes_in_two_places
    }
    out[blockIdx.x * 64 + TID] = x;
}
KERNEL(mask_without_the_lane) {
    const float x = __shfl_sync(0xffffu, in[TID], 0);  // BUG mask_without_the_lane
    out[blockIdx.x * 64 + TID] = x;
}
KERNEL(trap) {
    if (TID == 40) __trap();  // BUG trap
    out[blockIdx.x * 64 + TID] = in[TID];
}
