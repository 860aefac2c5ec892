// Shared by the backward rungs on tensor cores: copies of a tile, and the two kinds of products of
// a warp's 16 rows.
#pragma once
#include "async_copy.cuh"
#include "exp2.cuh"
#include "mma.cuh"

constexpr int VECTOR = 8;                      // elements of a 16-byte copy
constexpr int ROW_STRIDE = HEAD_DIM + VECTOR;  // elements: neighbouring rows in different banks
constexpr int DIM_STEPS = HEAD_DIM / 16;
constexpr unsigned FULL_WARP = 0xffffffffu;
constexpr int DELTA_ROWS = 8;  // rows per CTA of the first pass, one warp each

// Starts the copies of rows [first_row, first_row + ROWS) of one head into shared memory.
template <int ROWS, int THREADS>
__device__ __forceinline__ void load_tile(element* tile_smem,   // [ROWS, ROW_STRIDE]
                                          const element* head,  // [length, HEAD_DIM]
                                          int first_row, int length) {
    constexpr int VECTORS_PER_ROW = HEAD_DIM / VECTOR;
    constexpr int VECTORS = ROWS * VECTORS_PER_ROW;
#pragma unroll 4
    for (int first = 0; first < VECTORS; first += THREADS) {  // compile-time trip count
        const int i = first + threadIdx.x;
        if (VECTORS % THREADS != 0 && i >= VECTORS) break;
        const int row = i / VECTORS_PER_ROW;
        const int d = i % VECTORS_PER_ROW * VECTOR;
        // Rows past the end are zero-filled: stale data could be NaN, and NaN * 0 is NaN.
        cp_async_16(tile_smem + row * ROW_STRIDE + d,
                    head + (size_t)(first_row + row) * HEAD_DIM + d, first_row + row < length);
    }
}

// acc [16, COLUMNS] += A @ B^T over head_dim: `a` are 16 rows of one tile, `b` COLUMNS rows of
// another. A's matrices load untransposed, and so do B's, whose rows are the product's columns.
template <int COLUMNS>
__device__ __forceinline__ void multiply_rows(float (&acc_rmem)[COLUMNS / 8][4], const element* a,
                                              const element* b, int lane) {
#pragma unroll
    for (int step = 0; step < DIM_STEPS; step++) {
        unsigned a_rmem[4];
        ldmatrix_x4(a_rmem, a + lane % 16 * ROW_STRIDE + step * 16 + lane / 16 * 8);
#pragma unroll
        for (int column = 0; column < COLUMNS / 16; column++) {
            const int row = column * 16 + lane / 16 * 8 + lane % 8;
            unsigned b_rmem[4];
            ldmatrix_x4(b_rmem, b + row * ROW_STRIDE + step * 16 + lane / 8 % 2 * 8);
            mma_m16n8k16(acc_rmem[2 * column], a_rmem, b_rmem[0], b_rmem[1]);
            mma_m16n8k16(acc_rmem[2 * column + 1], a_rmem, b_rmem[2], b_rmem[3]);
        }
    }
}

// acc [16, HEAD_DIM] += W @ B: `w` are accumulators [16, ROWS], two tiles of which side by side are
// one left operand; B's rows are those of the right operand, so its matrices load transposed.
template <int ROWS>
__device__ __forceinline__ void add_weighted(float (&acc_rmem)[HEAD_DIM / 8][4],
                                             const float (&w_rmem)[ROWS / 8][4], const element* b,
                                             int lane) {
#pragma unroll
    for (int part = 0; part < ROWS / 16; part++) {
        const float(&left)[4] = w_rmem[2 * part];
        const float(&right)[4] = w_rmem[2 * part + 1];
        const unsigned a_rmem[4] = {pack(left[0], left[1]), pack(left[2], left[3]),
                                    pack(right[0], right[1]), pack(right[2], right[3])};
#pragma unroll
        for (int step = 0; step < DIM_STEPS; step++) {
            unsigned b_rmem[4];
            ldmatrix_x4_transposed(b_rmem, b + (part * 16 + lane % 16) * ROW_STRIDE + step * 16 +
                                               lane / 16 * 8);
            mma_m16n8k16(acc_rmem[2 * step], a_rmem, b_rmem[0], b_rmem[1]);
            mma_m16n8k16(acc_rmem[2 * step + 1], a_rmem, b_rmem[2], b_rmem[3]);
        }
    }
}

// Stores a warp's accumulators [16, HEAD_DIM], times `factor`, where rows exist.
__device__ __forceinline__ void store_rows(element* head,  // [length, HEAD_DIM]
                                           const float (&acc_rmem)[HEAD_DIM / 8][4], float factor,
                                           int first_row, int length, int lane) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = first_row + lane / 4 + r * 8;
        if (row >= length) continue;
        element* to = head + (size_t)row * HEAD_DIM + 2 * (lane % 4);
#pragma unroll
        for (int tile = 0; tile < HEAD_DIM / 8; tile++) {
            *reinterpret_cast<element2*>(to + tile * 8) = to_element2(
                acc_rmem[tile][2 * r] * factor, acc_rmem[tile][2 * r + 1] * factor);
        }
    }
}

// D = rowsum(dO * O) of one row, by a warp: the softmax's derivative subtracts it from each dP.
__device__ __forceinline__ float row_delta(const element* out_row, const element* dout_row,
                                           int lane) {
    float sum = 0.0f;
#pragma unroll
    for (int d = 0; d < HEAD_DIM; d += 32) {
        sum += to_float(out_row[d + lane]) * to_float(dout_row[d + lane]);
    }
#pragma unroll
    for (int lane_bit = 16; lane_bit > 0; lane_bit /= 2) {
        sum += __shfl_xor_sync(FULL_WARP, sum, lane_bit);
    }
    return sum;
}
