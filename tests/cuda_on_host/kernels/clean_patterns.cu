// Correct code that a simple checker would report. Launched like planted_bugs.cu; each kernel
// writes 1 to out[CTA * 64 + thread] if the values that it read are the expected ones.
#include "ptx.cuh"

#define KERNEL(NAME)                                                                     \
    extern "C" __global__ void NAME(const float *in, float *out, float *scratch,         \
                                    int *counter, int n)
#define TID ((int)threadIdx.x)
#define LANE (TID % 32)
#define EXPECT(CONDITION) out[blockIdx.x * 64 + TID] = (CONDITION) ? 1.f : 0.f

KERNEL(exchange_in_a_warp) {
    __shared__ float s[64];
    bool good = true;
    for (int round = 0; round < 3; round++) {
        s[TID] = in[TID] + round;
        __syncwarp();
        good = good && s[TID ^ 1] == in[TID ^ 1] + round;
        __syncwarp();
    }
    EXPECT(good);
}
KERNEL(half_warps) {
    __shared__ float s[64];
    const unsigned mask = LANE < 16 ? 0xffffu : 0xffff0000u;
    s[TID] = in[TID];
    __syncwarp(mask);
    const float other = __shfl_xor_sync(mask, in[TID], 3, 16);
    EXPECT(s[TID ^ 3] == other && __ballot_sync(mask, 1) == mask);
}
KERNEL(shuffles) {
    const float x = in[TID];
    const unsigned all = 0xffffffffu;
    bool good = __shfl_sync(all, x, 5) == in[TID - LANE + 5];
    good = good && __shfl_xor_sync(all, x, 7) == in[TID ^ 7];
    good = good && __shfl_up_sync(all, x, 2) == in[LANE < 2 ? TID : TID - 2];
    good = good && __shfl_down_sync(all, x, 3) == in[LANE > 28 ? TID : TID + 3];
    good = good && __shfl_sync(all, x, 1, 4) == in[TID / 4 * 4 + 1];
    good = good && __shfl_down_sync(all, x, 2, 8) == in[LANE % 8 > 5 ? TID : TID + 2];
    good = good && __shfl_xor_sync(all, (double)x, 1) == (double)in[TID ^ 1];
    good = good && __any_sync(all, LANE == 7) && !__any_sync(all, 0);
    good = good && __all_sync(all, 1) && !__all_sync(all, LANE != 7);
    EXPECT(good && __ballot_sync(all, LANE % 2) == 0xaaaaaaaau);
}
KERNEL(one_shuffle_from_two_lines) {  // legal since sm_70
    const unsigned all = 0xffffffffu;
    float x;
    if (LANE < 16) {
        x = __shfl_xor_sync(all, in[TID], 1);
    } else {
        x = __shfl_xor_sync(all, in[TID], 2);
    }
    const unsigned votes = LANE % 2 ? __ballot_sync(all, 1) : __ballot_sync(all, 0);
    EXPECT(x == in[TID ^ (LANE < 16 ? 1 : 2)] && votes == 0xaaaaaaaau);
}
KERNEL(active_lanes_of_a_branch) {  // one atomic for all lanes of the branch
    const unsigned whole = __activemask();
    bool good = whole == 0xffffffffu;
    if (LANE % 3 == 0) {
        const unsigned mask = __activemask();
        const int leader = __ffs(mask) - 1;
        int base = 0;
        if (LANE == leader) base = atomicAdd(&counter[64 + blockIdx.x], __popc(mask));
        base = __shfl_sync(mask, base, leader);
        good = good && mask == 0x49249249u && base % 11 == 0;
    }
    for (int i = 0; i <= LANE % 4; i++) {  // lanes leave the loop one after the other
        const unsigned mask = __activemask();
        good = good && (__ballot_sync(mask, 1) == mask) && (mask >> LANE & 1);
    }
    EXPECT(good);
}
KERNEL(producer_and_consumer) {  // two stages handed over by named barriers
    __shared__ float s[2][32];
    bool good = true;
    for (int i = 0; i < 6; i++) {
        const int stage = i % 2;
        if (TID < 32) {
            if (i >= 2) named_barrier_sync(3 + stage, 64);  // free again
            s[stage][TID] = in[TID] * i;
            named_barrier_arrive(1 + stage, 64);
        } else {
            named_barrier_sync(1 + stage, 64);  // full
            good = good && s[stage][LANE ^ 1] == in[LANE ^ 1] * i;
            if (i < 4) named_barrier_arrive(3 + stage, 64);
        }
    }
    EXPECT(good);
}
KERNEL(last_cta_fuses) {
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID] * (blockIdx.x + 1);
    __threadfence();
    __syncthreads();
    if (TID == 0) {
        is_last[0] = atomicAdd(counter, 1) == (int)gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last[0]) return;
    for (int cta = 0; cta < (int)gridDim.x; cta++) {
        out[cta * 64 + TID] = scratch[cta * 64 + TID] == in[TID] * (cta + 1) ? 1.f : 0.f;
    }
    if (TID == 0) counter[0] = 0;  // ready for the next launch
}
KERNEL(one_thread_fences_for_all) {  // after a barrier: what it is ordered after is released too
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID] * (blockIdx.x + 1);
    __syncthreads();
    if (TID == 0) {
        __threadfence();
        is_last[0] = atomicAdd(counter, 1) == (int)gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!is_last[0]) return;
    for (int cta = 0; cta < (int)gridDim.x; cta++) {
        out[cta * 64 + TID] = scratch[cta * 64 + TID] == in[TID] * (cta + 1) ? 1.f : 0.f;
    }
    if (TID == 0) counter[0] = 0;
}
KERNEL(atomics_that_order) {  // no fence: the atomic is release and acquire itself
    __shared__ int is_last[1];
    scratch[blockIdx.x * 64 + TID] = in[TID] * (blockIdx.x + 1);
    __syncthreads();
    if (TID == 0) {
        int before;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                     : "=r"(before) : "l"(counter) : "memory");
        is_last[0] = before == (int)gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last[0]) return;
    for (int cta = 0; cta < (int)gridDim.x; cta++) {
        out[cta * 64 + TID] = scratch[cta * 64 + TID] == in[TID] * (cta + 1) ? 1.f : 0.f;
    }
    if (TID == 0) counter[0] = 0;
}
__device__ int lock_word;
__device__ float guarded[64];
KERNEL(lock_around_a_device_variable) {
    if (TID == 0) {
        while (atomicCAS(&lock_word, 0, 1) != 0) __nanosleep(20);
        __threadfence();
    }
    __syncthreads();
    guarded[TID] += 1.f;
    __syncthreads();
    if (TID == 0) {
        __threadfence();
        atomicExch(&lock_word, 0);
    }
    EXPECT(true);
}
KERNEL(flag_and_fence_within_a_cta) {  // warp 1 hands an array to warp 0, by a flag in shared memory
    __shared__ int flag[1];
    __shared__ float s[32];
    if (TID == 0) flag[0] = 0;
    __syncthreads();
    if (TID >= 32) {
        s[LANE] = in[LANE];
        __syncwarp();
        if (LANE == 0) {
            __threadfence_block();
            atomicExch(&flag[0], 1);
        }
        EXPECT(true);
    } else {
        while (atomicAdd(&flag[0], 0) == 0) __nanosleep(20);
        __threadfence_block();
        EXPECT(s[31 - LANE] == in[31 - LANE]);
    }
}
KERNEL(two_ctas_write_neighbouring_bytes) {
    unsigned char *bytes = reinterpret_cast<unsigned char *>(scratch);
    bytes[2 * TID + blockIdx.x] = (unsigned char)TID;
    __syncthreads();
    EXPECT(bytes[2 * TID + blockIdx.x] == TID);
}
KERNEL(work_queue) {
    __shared__ int item[1];
    for (;;) {
        if (TID == 0) item[0] = atomicAdd(counter, 1);
        __syncthreads();
        const int mine = item[0];
        __syncthreads();
        if (mine >= 2) return;
        out[mine * 64 + TID] = 1.f;
    }
}
KERNEL(neighbouring_bytes) {
    __shared__ unsigned char s[64];
    s[TID] = (unsigned char)(TID * 3);
    __syncthreads();
    EXPECT(s[63 - TID] == (unsigned char)((63 - TID) * 3));
}
KERNEL(neighbouring_halves) {
    __shared__ __half s[64];
    s[TID] = __float2half_rn((float)TID);
    __syncthreads();
    EXPECT(__half2float(s[TID ^ 1]) == (float)(TID ^ 1));
}
KERNEL(shared_histogram) {
    __shared__ int bins[4];
    __shared__ float largest[1];
    if (TID < 4) bins[TID] = 0;
    if (TID == 0) largest[0] = 0.f;
    __syncthreads();
    atomicAdd(&bins[TID % 4], 1);
    atomicMax(reinterpret_cast<int *>(largest), __float_as_int((float)TID));
    __syncthreads();
    EXPECT(bins[TID % 4] == 16 && largest[0] == 63.f);
}
KERNEL(atomics) {
    int *cell = counter + 8 * (blockIdx.x + 1);  // zero at first
    unsigned *word = reinterpret_cast<unsigned *>(cell);
    bool good = true;
    if (TID == 0) {
        good = good && atomicExch(cell, 5) == 0 && atomicAdd(cell, 2) == 5;
        good = good && atomicSub(cell, 1) == 7 && atomicMax(cell, 4) == 6;
        good = good && atomicMin(cell, -3) == 6 && atomicMax(cell, -9) == -3;
        good = good && atomicCAS(cell, 1, 2) == -3 && atomicCAS(cell, -3, 12) == -3;
        good = good && atomicAnd(cell, 6) == 12 && atomicOr(cell, 1) == 4;
        good = good && atomicInc(word, 5u) == 5u && atomicInc(word, 5u) == 0u;
        good = good && atomicMax(word, 0xfffffff0u) == 1u && atomicMin(word, 3u) == 0xfffffff0u;
        good = good && atomicExch(cell, 0) == 3;
        good = good && atomicAdd(reinterpret_cast<unsigned long long *>(cell), 1ull << 40) == 0ull;
        good = good && atomicCAS(reinterpret_cast<unsigned long long *>(cell), 1ull << 40, 0ull);
        good = good && atomicAdd(reinterpret_cast<float *>(cell), 0.5f) == 0.f;
        good = good && atomicAdd(reinterpret_cast<float *>(cell), 1.f) == 0.5f;
        good = good && atomicExch(cell, 0) == __float_as_int(1.5f);
    }
    EXPECT(good);
}
KERNEL(one_barrier_per_stage) {
    __shared__ float s[2][64];
    bool good = true;
    for (int i = 0; i < 5; i++) {
        s[i % 2][TID] = in[TID] + i;
        __syncthreads();
        good = good && s[i % 2][63 - TID] == in[63 - TID] + i;
    }
    EXPECT(good);
}
KERNEL(pipelined_copies) {
    __shared__ __align__(16) float s[2][256];
    bool good = true;
    cp_async_16(&s[0][TID * 4], in + TID * 4, true);
    cp_async_commit();
    for (int i = 0; i < 4; i++) {
        if (i < 3) cp_async_16(&s[(i + 1) % 2][TID * 4], in + TID * 4, i % 2 == 0);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        const float expected = i % 2 == 0 && i > 0 ? 0.f : in[(63 - TID) * 4];
        good = good && s[i % 2][(63 - TID) * 4] == expected;
        __syncthreads();
    }
    EXPECT(good);
}
KERNEL(threads_that_left_early) {
    __shared__ float s[64];
    s[TID] = in[TID];
    EXPECT(true);
    if (TID >= 40) return;
    __syncthreads();
    EXPECT(s[39 - TID] == in[39 - TID]);
}
KERNEL(barrier_reductions) {
    bool good = __syncthreads_count(TID < 10) == 10;
    good = good && __syncthreads_or(TID == 63) && !__syncthreads_or(0);
    good = good && __syncthreads_and(1) && !__syncthreads_and(TID != 5);
    EXPECT(good);
}
KERNEL(flag_between_warps) {
    __shared__ int flag[1];
    if (TID == 0) flag[0] = 0;
    __syncthreads();
    if (TID == 40) {
        for (int i = 0; i < 5; i++) __nanosleep(20);
        atomicExch(&flag[0], 1);
    }
    if (TID < 32) {
        while (atomicAdd(&flag[0], 0) == 0) __nanosleep(20);
    }
    EXPECT(true);
}
struct Pair {
    float first;
    int second;
};
template <int SIZE>
__device__ float reversed(float x) {
    __shared__ float s[SIZE], unused_tail[2];
    __syncthreads();
    s[TID] = x;
    __syncthreads();
    if (TID < 2) unused_tail[TID] = 0.f;
    return s[SIZE - 1 - TID];
}
__constant__ const float TABLE[4] = {1.f, 2.f, 3.f, 4.f};
KERNEL(kinds_of_shared_arrays) {
    extern __shared__ float smem[];
    __shared__ Pair pair;
    __shared__ volatile int word;
    __align__(32) __shared__ unsigned char aligned[33], *pointers[2];
    if (TID == 0) {
        pair = Pair{2.f, 3};
        word = 4;
        pointers[1] = aligned + 32;
        aligned[32] = 9;
    }
    smem[TID] = in[TID];
    __syncthreads();
    bool good = pair.first == 2.f && pair.second == 3 && word == 4 && *pointers[1] == 9;
    good = good && (size_t)aligned % 32 == 0 && smem[63 - TID] == in[63 - TID];
    good = good && reversed<64>(in[TID]) == in[63 - TID];
    float local[4];
    for (int i = 0; i < 4; i++) local[i] = TABLE[(i + TID) % 4];
    EXPECT(good && local[n % 4] == TABLE[TID % 4]);
}
KERNEL(numbers) {
    const __half h = __float2half_rn(1.5f);
    const __half2 pair = __floats2half2_rn(2.f, 3.f);
    bool good = __half2float(h * h) == 2.25f && __low2float(pair) == 2.f;
    good = good && __high2float(pair) == 3.f && __hfma(h, h, h) == __float2half(3.75f);
    good = good && __half22float2(__hfma2(pair, pair, pair)).y == 12.f && h > __float2half(1.f);
    const __nv_bfloat162 wide = __floats2bfloat162_rn(2.f, 0.5f);
    good = good && __bfloat1622float2(wide).y == 0.5f && __bfloat162float(wide.x) == 2.f;
    good = good && min(3, 2) == 2 && max(2.f, 5.f) == 5.f && __popc(7u) == 3 && __clz(1) == 31;
    good = good && __int_as_float(0x3f800000) == 1.f && __float_as_uint(2.f) == 0x40000000u;
    good = good && rsqrtf(4.f) == 0.5f && exp2f(3.f) == 8.f;
    good = good && fabsf(__expf(1.f) - 2.7182817f) < 1e-6f;
    good = good && __saturatef(2.f) == 1.f && __fdividef(1.f, 4.f) == 0.25f && __ffs(8) == 4;
    EXPECT(good && fmaxf(-INFINITY, 1.f) == 1.f && __brev(1u) == 0x80000000u);
}
