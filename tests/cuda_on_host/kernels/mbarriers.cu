// mbarriers and named barriers in wrapper functions. Each kernel has one bug, in the line with
// `// BUG <kernel>`; the line of the other thread that takes part has `// OTHER <kernel>`.
// Launched like planted_bugs.cu.
#include "hopper.cuh"

#define KERNEL(NAME)                                                                     \
    extern "C" __global__ void NAME(const float *in, float *out, float *scratch,         \
                                    int *counter, int n)
#define TID ((int)threadIdx.x)
#define STAGES 2

PTX_FN void bulk_load(void *to, const void *from, int bytes, uint64_t *b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];\n" ::"r"(smem_address(to)), "l"(from), "r"(bytes),
                 "r"(smem_address(b)) : "memory");
}
PTX_FN void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
PTX_FN void named_barrier(int id) {  // arrives without waiting
    asm volatile("bar.arrive %0, 64;\n" ::"r"(id) : "memory");
}

// The producer copies only three of four tiles.
KERNEL(producer_leaves) {
    __shared__ alignas(128) float s[STAGES][32];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    if (TID == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(full + stage, 1);
            mbarrier_init(&empty[stage], 32);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    if (TID >= 32) {
        if (TID > 32) return;
        for (int tile = 0; tile < 3; tile++) {
            mbarrier_wait(&empty[tile % STAGES], tile / STAGES % 2 ^ 1);
            mbarrier_expect(full + tile % STAGES, 128);  // OTHER producer_leaves
            bulk_load(s[tile % STAGES], in + 32 * tile, 128, full + tile % STAGES);
        }
        return;
    }
    for (int tile = 0; tile < 4; tile++) {
        mbarrier_wait(full + tile % STAGES, tile / STAGES % 2);  // BUG producer_leaves
        out[blockIdx.x * 128 + tile * 32 + TID] = s[tile % STAGES][TID];
        mbarrier_arrive(&empty[tile % STAGES]);
    }
}
KERNEL(expects_too_much) {
    __shared__ alignas(128) float s[32];
    __shared__ uint64_t full;
    if (TID == 0) {
        mbarrier_init(&full, 1);
        mbarrier_fence_init();
        mbarrier_expect(&full, 256);  // OTHER expects_too_much
        bulk_load(s, in, 128, &full);
    }
    __syncthreads();
    mbarrier_wait(&full, 0);  // BUG expects_too_much
    out[blockIdx.x * 64 + TID] = s[TID % 32];
}
KERNEL(expects_nothing) {
    __shared__ alignas(128) float s[32];
    __shared__ uint64_t full;
    if (TID == 0) {
        mbarrier_init(&full, 1);
        mbarrier_fence_init();
        bulk_load(s, in, 128, &full);  // OTHER expects_nothing
    }
    __syncthreads();
    mbarrier_wait(&full, 0);  // BUG expects_nothing
    out[blockIdx.x * 64 + TID] = s[TID % 32];
}
KERNEL(no_fence_behind_the_initialisation) {
    __shared__ alignas(128) float s[32];
    __shared__ uint64_t full;
    if (TID == 0) mbarrier_init(&full, 1);  // OTHER no_fence_behind_the_initialisation
    __syncthreads();
    if (TID == 0) {
        mbarrier_expect(&full, 128);
        bulk_load(s, in, 128, &full);  // BUG no_fence_behind_the_initialisation
    }
    mbarrier_wait(&full, 0);
    out[blockIdx.x * 64 + TID] = s[TID % 32];
}
// Correct, except for the arrivals of the last round.
KERNEL(arrives_once_too_often) {
    __shared__ float s[32];
    for (int round = 0; round < 2; round++) {
        if (TID < 32) {
            s[TID] = in[TID];
            named_barrier(1);
        } else {
            named_barrier(1, 64);
            out[blockIdx.x * 32 + TID - 32] = s[TID - 32];
        }
        __syncthreads();
    }
    if (TID < 32) named_barrier(2);  // BUG arrives_once_too_often
}

// Two tiles with an mbarrier each; the second is read after a wait for the first, or for none.
PTX_FN void load_two_tiles(const float *in, float (*s)[32], uint64_t *full) {
    if (TID == 0) {
        for (int tile = 0; tile < 2; tile++) {
            mbarrier_init(full + tile, 1);
            mbarrier_fence_init();
            mbarrier_expect(full + tile, 128);
            bulk_load(s[tile], in + 32 * tile, 128, full + tile);
        }
    }
    __syncthreads();
}
KERNEL(waits_for_another_stage) {
    __shared__ alignas(128) float s[2][32];
    __shared__ uint64_t full[2];
    load_two_tiles(in, s, full);
    mbarrier_wait(full, 0);  // OTHER waits_for_another_stage
    out[blockIdx.x * 64 + TID] = s[1][TID % 32];  // BUG waits_for_another_stage
}
KERNEL(waits_for_another_phase) {
    __shared__ alignas(128) float s[2][32];
    __shared__ uint64_t full[2];
    load_two_tiles(in, s, full);
    mbarrier_wait(full + 1, 1);  // OTHER waits_for_another_phase
    out[blockIdx.x * 64 + TID] = s[1][TID % 32];  // BUG waits_for_another_phase
}
KERNEL(waits_for_nothing) {
    __shared__ alignas(128) float s[2][32];
    __shared__ uint64_t full[2];
    load_two_tiles(in, s, full);
    if (TID == 0) mbarrier_wait(full + 1, 0);  // OTHER waits_for_nothing
    if (TID != 0) out[blockIdx.x * 64 + TID] = s[1][TID % 32];  // BUG waits_for_nothing
}
KERNEL(overwritten_by_a_copy) {
    __shared__ alignas(128) float s[2][32];
    __shared__ uint64_t full[2];
    load_two_tiles(in, s, full);
    mbarrier_wait(full + 1, 0);
    out[blockIdx.x * 64 + TID] = s[1][TID % 32];  // OTHER overwritten_by_a_copy
    if (TID == 0) {
        mbarrier_expect(full + 1, 128);
        bulk_load(s[1], in, 128, full + 1);  // BUG overwritten_by_a_copy
        mbarrier_wait(full + 1, 1);
    }
}
// Correct, except that the second phase of three arrivals never completes.
KERNEL(initialised_for_one_more) {
    __shared__ uint64_t full;
    if (TID == 0) mbarrier_init(&full, 65);
    __syncthreads();
    mbarrier_arrive(&full);  // BUG initialised_for_one_more
    out[blockIdx.x * 64 + TID] = in[TID];
}
// Two warps at one barrier that expects the threads of one.
KERNEL(one_barrier_for_two_groups) {
    __shared__ float s[64];
    s[TID] = in[TID];
    named_barrier(1, 32);  // BUG one_barrier_for_two_groups
    __syncthreads();
    out[blockIdx.x * 64 + TID] = s[63 - TID];
}
// One warp after the other, with a barrier of all threads in between.
KERNEL(one_barrier_in_turn) {
    if (TID < 32) named_barrier(1, 32);
    __syncthreads();
    if (TID >= 32) named_barrier(1, 32);
    out[blockIdx.x * 64 + TID] = in[TID];
}
