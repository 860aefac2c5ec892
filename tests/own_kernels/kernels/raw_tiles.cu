// flash attention for cupy.RawKernel: a block takes TILE_Q rows, K and V pass through shared memory
#define TILE_Q 32
#define TILE_K 32
#define DIM 64

extern "C" __global__ void __launch_bounds__(TILE_Q)
flash_tiles(const float* Q, const float* K, const float* V, float* O, int H, int S, float scale)
{
    __shared__ float Ks[TILE_K][DIM];
    __shared__ float Vs[TILE_K][DIM];
    const int tile = blockIdx.x, h = blockIdx.y, b = blockIdx.z;
    const int r = tile * TILE_Q + threadIdx.x;
    const size_t base = ((size_t)b * H + h) * S * DIM;
    float q[DIM], acc[DIM];
    for (int d = 0; d < DIM; d++) { q[d] = r < S ? Q[base + (size_t)r * DIM + d] * scale : 0.f; acc[d] = 0.f; }
    float m = -INFINITY, l = 0.f;
    for (int start = 0; start < S; start += TILE_K) {
        for (int i = threadIdx.x; i < TILE_K * DIM; i += blockDim.x) {
            const int row = start + i / DIM;
            Ks[i / DIM][i % DIM] = row < S ? K[base + (size_t)row * DIM + i % DIM] : 0.f;
            Vs[i / DIM][i % DIM] = row < S ? V[base + (size_t)row * DIM + i % DIM] : 0.f;
        }
        __syncthreads();
        const int n = min(TILE_K, S - start);
        for (int j = 0; j < n; j++) {
            float s = 0.f;
            for (int d = 0; d < DIM; d++) s += q[d] * Ks[j][d];
            const float mx = fmaxf(m, s), c = __expf(m - mx), p = __expf(s - mx);
            l = l * c + p;
            for (int d = 0; d < DIM; d++) acc[d] = acc[d] * c + p * Vs[j][d];
            m = mx;
        }
        __syncthreads();
    }
    if (r < S) for (int d = 0; d < DIM; d++) O[base + (size_t)r * DIM + d] = acc[d] / l;
}
