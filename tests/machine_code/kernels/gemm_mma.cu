// C = A @ B^T by mma.sync, in the variants of published series (tests/bench/counted_sets.json), chosen
// by macros. ELEMENT 0: FP16, 1: BF16, 2: INT8. COPY of a tile to shared memory 0: through registers,
// 1: cp.async, 2: TMA. LAYOUT there 0: as in memory, 1: rows padded by 16 bytes, 2: swizzled.
// GROUP 0: one axis of CTAs, row by row of tiles; n: one axis, n rows of tiles at a time; -1: two axes.
// NARROW 1: C is rounded to BF16.
#include "hopper.cuh"
#include <cuda_bf16.h>

#if ELEMENT == 2
using Element = signed char;
using Sum = int;
#else
using Element = __half;  // BF16 has the same size
using Sum = float;
#endif

#if NARROW
using Result = __nv_bfloat16;
#else
using Result = Sum;
#endif

constexpr int BYTES = sizeof(Element), ROW_BYTES = BLOCK_K * BYTES, STRIDE = ROW_BYTES + 16 * (LAYOUT == 1);
constexpr int WARP_ROWS = BLOCK_M / WARPS_M, WARP_COLUMNS = BLOCK_N / WARPS_N;
constexpr int ROW_TILES = WARP_ROWS / 16, COLUMN_TILES = WARP_COLUMNS / 8, STEPS = ROW_BYTES / 32;
constexpr int THREADS = 32 * WARPS_M * WARPS_N, STAGE_BYTES = (BLOCK_M + BLOCK_N) * STRIDE;

#if COPY == 2
#define OPERAND const __grid_constant__ TensorMap
#else
#define OPERAND const Element* __restrict__
#endif

// Offset of a byte in a tile; if swizzled, any eight adjacent rows lie in different banks.
__device__ __forceinline__ unsigned place(int row, int byte) {
    const int turn = ROW_BYTES >= 128 ? row & 7 : row / 2 & 3;
    return row * STRIDE + (LAYOUT == 2 ? byte ^ turn << 4 : byte);
}

// A thread copies the same bytes of several rows of a tile.
template <int ROWS>
__device__ __forceinline__ void copy_rows(char* to, const Element* from, int size) {
    constexpr int PIECES = ROW_BYTES / 16, APART = THREADS / PIECES;
    const int row = threadIdx.x / PIECES, byte = threadIdx.x % PIECES * 16;
    from += row * size + byte / BYTES;
#pragma unroll
    for (int i = 0; i < ROWS / APART; ++i) {
        const Element* source = from + i * APART * size;
        char* target = to + place(row + i * APART, byte);
#if COPY == 0
        *reinterpret_cast<uint4*>(target) = *reinterpret_cast<const uint4*>(source);
#else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(target)), "l"(source));
#endif
    }
}

__device__ __forceinline__ void load_four(unsigned (&to)[4], const char* from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(from)));
}

__device__ __forceinline__ void multiply(Sum (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if ELEMENT == 2
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif __CUDA_ARCH__ < 800
#pragma unroll
    for (int half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};\n"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(half ? b1 : b0));
#elif ELEMENT == 1
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(OPERAND a,             // [size, size]
     OPERAND b,             // [size, size]
     Result* __restrict__ c,  // [size, size]
     int size) {
    extern __shared__ __align__(1024) char smem[];
    __shared__ unsigned long long landed[STAGES];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, tiles = size / BLOCK_K;
    const int across = size / BLOCK_N;
    int row = blockIdx.y, column = blockIdx.x;
#if GROUP == 0
    row = blockIdx.x / across, column = blockIdx.x % across;
#elif GROUP > 0
    const int first = blockIdx.x / (GROUP * across) * GROUP, rows = min(GROUP, size / BLOCK_M - first);
    row = first + blockIdx.x % (GROUP * across) % rows, column = blockIdx.x % (GROUP * across) / rows;
#endif
    row *= BLOCK_M, column *= BLOCK_N;
    const int warp_row = warp / WARPS_N * WARP_ROWS, warp_column = warp % WARPS_N * WARP_COLUMNS;

    const auto begin_copy = [&](int tile) {
        char* to = smem + tile % STAGES * STAGE_BYTES;
#if COPY == 2
        if (threadIdx.x == 0 && tile < tiles) {
            unsigned long long* barrier = landed + tile % STAGES;
            barrier_expect(barrier, STAGE_BYTES);
            tma_load(to, &a, barrier, tile * BLOCK_K, row);
            tma_load(to + BLOCK_M * STRIDE, &b, barrier, tile * BLOCK_K, column);
        }
#else
        if (tile < tiles) {
            copy_rows<BLOCK_M>(to, a + row * size + tile * BLOCK_K, size);
            copy_rows<BLOCK_N>(to + BLOCK_M * STRIDE, b + column * size + tile * BLOCK_K, size);
        }
#if COPY == 1
        asm volatile("cp.async.commit_group;\n");
#endif
#endif
    };
    const auto wait_for_copy = [&](int tile) {
#if COPY == 2
        barrier_wait(landed + tile % STAGES, tile / STAGES & 1);
#elif COPY == 1
        asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 1));
        __syncthreads();
#else
        __syncthreads();
#endif
    };
#if COPY == 2
    if (threadIdx.x == 0)
        for (int stage = 0; stage < STAGES; ++stage) barrier_init(landed + stage, 1);
    __syncthreads();
#endif
    Sum sums[ROW_TILES][COLUMN_TILES][4] = {};
    constexpr int AHEAD = STAGES == 1 ? 0 : COPY == 2 ? STAGES : STAGES - 1;
    for (int tile = 0; tile < AHEAD; ++tile) begin_copy(tile);
    for (int tile = 0; tile < tiles; ++tile) {
        if (STAGES > 1 && COPY != 2) __syncthreads();  // all threads have read that stage
        if (STAGES == 1 || COPY != 2) begin_copy(tile + AHEAD);
        wait_for_copy(tile);
        const char* of_a = smem + tile % STAGES * STAGE_BYTES;
        const char* of_b = of_a + BLOCK_M * STRIDE;
        unsigned left[STEPS][ROW_TILES][4], right[STEPS][COLUMN_TILES / 2][4];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
                load_four(left[step][m], of_a + place(warp_row + m * 16 + lane % 16, step * 32 + lane / 16 * 16));
#pragma unroll
            for (int n = 0; n < COLUMN_TILES / 2; ++n)
                load_four(right[step][n], of_b + place(warp_column + n * 16 + lane % 8 + lane / 16 * 8, step * 32 + lane / 8 % 2 * 16));
        }
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
                for (int n = 0; n < COLUMN_TILES; ++n)
                    multiply(sums[m][n], left[step][m], right[step][n / 2][n % 2 * 2], right[step][n / 2][n % 2 * 2 + 1]);
        if (STAGES == 1 || COPY == 2) __syncthreads();
        if (STAGES > 1 && COPY == 2) begin_copy(tile + AHEAD);
    }
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; ++n)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                Result* to = c + static_cast<long long>(row + warp_row + m * 16 + lane / 4 + half * 8) * size + column + warp_column + n * 8 + lane % 4 * 2;
#if NARROW
                *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
#else
                to[0] = sums[m][n][2 * half], to[1] = sums[m][n][2 * half + 1];
#endif
            }
}
