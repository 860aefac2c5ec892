// C = A @ B^T of square matrices, tiles of 64 by 64; ORDER chooses which CTA computes which tile.
// ORDER 0: a grid of two axes; 1: one axis, row by row; 2: one axis, groups of 8 rows of tiles;
// 3: few persistent CTAs, in the order of 2.
constexpr int TILE = 64, DEPTH = 16, THREADS = 256, GROUP = 8;

__device__ __forceinline__ void place_of(int number, int tiles, int& row, int& column) {
#if ORDER == 1
    row = number / tiles, column = number % tiles;
#else
    const int in_group = number % (GROUP * tiles), first = number / (GROUP * tiles) * GROUP;
    const int rows = min(GROUP, tiles - first);
    row = first + in_group % rows, column = in_group / rows;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm(const float* __restrict__ a,  // [size, size]
     const float* __restrict__ b,  // [size, size]
     float* __restrict__ c,        // [size, size]
     int size) {
    __shared__ float a_smem[DEPTH][TILE + 4], b_smem[DEPTH][TILE + 4];
    const int tiles = size / TILE, thread = threadIdx.x;
#if ORDER == 0
    const int row = blockIdx.y, column = blockIdx.x;
    {
#elif ORDER == 3
    for (int number = blockIdx.x; number < tiles * tiles; number += gridDim.x) {
        int row, column;
        place_of(number, tiles, row, column);
#else
    int row, column;
    place_of(blockIdx.x, tiles, row, column);
    {
#endif
        float acc[4][4] = {};
        for (int k = 0; k < size; k += DEPTH) {
            const int r = thread / 4, d = thread % 4 * 4;
            const float4 x = *reinterpret_cast<const float4*>(a + (row * TILE + r) * size + k + d);
            const float4 y = *reinterpret_cast<const float4*>(b + (column * TILE + r) * size + k + d);
            a_smem[d][r] = x.x, a_smem[d + 1][r] = x.y, a_smem[d + 2][r] = x.z, a_smem[d + 3][r] = x.w;
            b_smem[d][r] = y.x, b_smem[d + 1][r] = y.y, b_smem[d + 2][r] = y.z, b_smem[d + 3][r] = y.w;
            __syncthreads();
#pragma unroll
            for (int step = 0; step < DEPTH; step++)
                for (int i = 0; i < 4; i++)
                    for (int j = 0; j < 4; j++)
                        acc[i][j] += a_smem[step][thread / 16 * 4 + i] * b_smem[step][thread % 16 * 4 + j];
            __syncthreads();
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++)
                c[(row * TILE + thread / 16 * 4 + i) * size + column * TILE + thread % 16 * 4 + j] = acc[i][j];
    }
}
