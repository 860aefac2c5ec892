/* attune
idea = "16 x 16 threads, a score each; K transposed in shared memory, m and l there as well."
head_dims = [32, 64]
dtypes = ["bfloat16"]
lse = {base = "e", layout = "bhs"}

[[passes]]
entry = "square_tiles<{head_dim}>"
grid = ["num_heads * batch", "ceil_div(seqlen, 16)"]
threads = [16, 16]
args = ["q", "k", "v", "out", "lse", "seqlen", "seqlen_kv", "softmax_scale"]
*/
// The matrix product of a first CUDA course, twice, with an online softmax in between.
#include <cuda_bf16.h>

constexpr int TILE = 16;

template <int DIM>
__global__ void square_tiles(const __nv_bfloat16* __restrict__ Q, const __nv_bfloat16* __restrict__ K,
                             const __nv_bfloat16* __restrict__ V, __nv_bfloat16* __restrict__ O,
                             float* __restrict__ LSE, int M, int N, float scale) {
    __shared__ float q_tile[TILE][DIM + 1];
    __shared__ float kt_tile[DIM][TILE + 1];  // K^T
    __shared__ float v_tile[TILE][DIM + 1];
    __shared__ float p_tile[TILE][TILE + 1];
    __shared__ float row_m[TILE], row_l[TILE], row_scale[TILE];

    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y;
    const size_t q_at = (size_t)blockIdx.x * M * DIM, kv_at = (size_t)blockIdx.x * N * DIM;

    for (int d = x; d < DIM; d += TILE) {
        q_tile[y][d] = row < M ? __bfloat162float(Q[q_at + (size_t)row * DIM + d]) * scale : 0.0f;
    }
    if (x == 0) {
        row_m[y] = -INFINITY;
        row_l[y] = 0.0f;
    }
    float acc[DIM / TILE];
    for (int i = 0; i < DIM / TILE; i++) acc[i] = 0.0f;

    const int last_key = IS_CAUSAL ? min(N, (int)(blockIdx.y + 1) * TILE) : N;
    for (int first = 0; first < last_key; first += TILE) {
        const int key = first + y;
        for (int d = x; d < DIM; d += TILE) {
            const bool there = key < N;
            kt_tile[d][y] = there ? __bfloat162float(K[kv_at + (size_t)key * DIM + d]) : 0.0f;
            v_tile[y][d] = there ? __bfloat162float(V[kv_at + (size_t)key * DIM + d]) : 0.0f;
        }
        __syncthreads();

        float s = 0.0f;
        for (int d = 0; d < DIM; d++) s += q_tile[y][d] * kt_tile[d][x];
        const int column = first + x;
        if (column >= N || (IS_CAUSAL && column > row)) s = -INFINITY;
        p_tile[y][x] = s;
        __syncthreads();

        if (x == 0) {  // one thread a row: the other fifteen wait
            float m = row_m[y];
            for (int j = 0; j < TILE; j++) m = fmaxf(m, p_tile[y][j]);
            const float shrink = __expf(row_m[y] - m);
            float l = row_l[y] * shrink;
            for (int j = 0; j < TILE; j++) {
                const float p = __expf(p_tile[y][j] - m);
                p_tile[y][j] = p;
                l += p;
            }
            row_m[y] = m;
            row_l[y] = l;
            row_scale[y] = shrink;
        }
        __syncthreads();

        const float shrink = row_scale[y];
        for (int i = 0; i < DIM / TILE; i++) {
            float o = acc[i] * shrink;
            for (int j = 0; j < TILE; j++) o += p_tile[y][j] * v_tile[j][i * TILE + x];
            acc[i] = o;
        }
        __syncthreads();
    }

    if (row >= M) return;
    for (int i = 0; i < DIM / TILE; i++) {
        O[q_at + (size_t)row * DIM + i * TILE + x] = __float2bfloat16(acc[i] / row_l[y]);
    }
    if (x == 0) LSE[(size_t)blockIdx.x * M + row] = row_m[y] + __logf(row_l[y]);
}
