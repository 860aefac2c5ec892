// C = alpha * A @ B + beta * C in FP32, in ten steps modelled on the published SGEMM_CUDA series: each
// step's use of shared memory, registers and threads is that series', the code is not.
// Compile with -DSTEP=1 ... 10; tile sizes may be given by -D.
// A is [m, k], B is [k, n], C is [m, n], row-major; sizes are multiples of the tiles.

#ifndef STEP
#define STEP 1
#endif
#ifndef BLOCK_M
#define BLOCK_M (STEP == 4 ? 64 : 128)
#endif
#ifndef BLOCK_N
#define BLOCK_N (STEP == 4 ? 64 : 128)
#endif
#ifndef BLOCK_K
#define BLOCK_K (STEP >= 9 ? 16 : 8)
#endif
#ifndef THREAD_M
#define THREAD_M 8
#endif
#ifndef THREAD_N
#define THREAD_N (STEP == 10 ? 4 : 8)
#endif
#ifndef WARP_M
#define WARP_M 64
#endif
#ifndef WARP_N
#define WARP_N 64
#endif
#ifndef STEPS_N
#define STEPS_N 4
#endif

#define ARGUMENTS                                                                              \
    int m, int n, int k, float alpha, const float *a, const float *b, \
        float beta, float *c

__device__ __forceinline__ float4 load4(const float* from) {
    return *reinterpret_cast<const float4*>(from);
}
__device__ __forceinline__ void store4(float* to, float4 value) {
    *reinterpret_cast<float4*>(to) = value;
}
__device__ __forceinline__ float4 blend(float alpha, const float* sums, float beta, float4 old) {
    return make_float4(alpha * sums[0] + beta * old.x, alpha * sums[1] + beta * old.y,
                       alpha * sums[2] + beta * old.z, alpha * sums[3] + beta * old.w);
}

#if STEP == 1 || STEP == 2
// One thread per element of C; in step 1 neighbouring threads take neighbouring rows.
extern "C" __global__ void sgemm(ARGUMENTS) {
#if STEP == 1
    const unsigned row = blockIdx.x * 32 + threadIdx.x, col = blockIdx.y * 32 + threadIdx.y;
#else
    const unsigned row = blockIdx.x * 32 + threadIdx.x / 32, col = blockIdx.y * 32 + threadIdx.x % 32;
#endif
    if (row >= m || col >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[row * k + i] * b[i * n + col];
    c[row * n + col] = alpha * sum + beta * c[row * n + col];
}

#elif STEP == 3
// 32 x 32 tiles of A and B in shared memory, one thread per element.
extern "C" __global__ void sgemm(ARGUMENTS) {
    __shared__ float a_smem[32 * 32], b_smem[32 * 32];
    const unsigned row = threadIdx.x / 32, col = threadIdx.x % 32;
    a += blockIdx.x * 32 * k;
    b += blockIdx.y * 32;
    c += blockIdx.x * 32 * n + blockIdx.y * 32;
    float sum = 0.0f;
    for (int first = 0; first < k; first += 32) {
        a_smem[row * 32 + col] = a[row * k + col];
        b_smem[row * 32 + col] = b[row * n + col];
        __syncthreads();
        a += 32;
        b += 32 * n;
        for (int i = 0; i < 32; ++i) sum += a_smem[row * 32 + i] * b_smem[i * 32 + col];
        __syncthreads();
    }
    c[row * n + col] = alpha * sum + beta * c[row * n + col];
}

#elif STEP == 4
// A column of THREAD_M elements per thread.
extern "C" __global__ void sgemm(ARGUMENTS) {
    __shared__ float a_smem[BLOCK_M * BLOCK_K], b_smem[BLOCK_K * BLOCK_N];
    const int t = threadIdx.x, col = t % BLOCK_N, strip = t / BLOCK_N;
    a += blockIdx.y * BLOCK_M * k;
    b += blockIdx.x * BLOCK_N;
    c += blockIdx.y * BLOCK_M * n + blockIdx.x * BLOCK_N;
    const unsigned a_row = t / BLOCK_K, a_col = t % BLOCK_K, b_row = t / BLOCK_N;
    float sums[THREAD_M] = {};
    for (unsigned first = 0; first < k; first += BLOCK_K) {
        a_smem[a_row * BLOCK_K + a_col] = a[a_row * k + a_col];
        b_smem[b_row * BLOCK_N + col] = b[b_row * n + col];
        __syncthreads();
        a += BLOCK_K;
        b += BLOCK_K * n;
        for (unsigned i = 0; i < BLOCK_K; ++i) {
            const float right = b_smem[i * BLOCK_N + col];
            for (unsigned r = 0; r < THREAD_M; ++r)
                sums[r] += a_smem[(strip * THREAD_M + r) * BLOCK_K + i] * right;
        }
        __syncthreads();
    }
    for (unsigned r = 0; r < THREAD_M; ++r) {
        float* to = c + (strip * THREAD_M + r) * n + col;
        *to = alpha * sums[r] + beta * *to;
    }
}

#elif STEP <= 8
// THREAD_M x THREAD_N elements per thread. 5: 4-byte accesses; 6: 16-byte ones, A transposed;
// 7: B rearranged so that a warp reads adjacent elements; 8: B's rows padded instead.
constexpr int THREADS = BLOCK_M * BLOCK_N / (THREAD_M * THREAD_N);
constexpr int B_STRIDE = BLOCK_N + (STEP == 8 ? 5 : 0);

extern "C" __global__ void
#if STEP == 5
__launch_bounds__(THREADS, 1)
#endif
sgemm(ARGUMENTS) {
    __shared__ float a_smem[BLOCK_M * BLOCK_K], b_smem[BLOCK_K * B_STRIDE];
    const int t = threadIdx.x, col = t % (BLOCK_N / THREAD_N), row = t / (BLOCK_N / THREAD_N);
    a += blockIdx.y * BLOCK_M * k;
    b += blockIdx.x * BLOCK_N;
    c += blockIdx.y * BLOCK_M * n + blockIdx.x * BLOCK_N;
    float sums[THREAD_M * THREAD_N] = {}, left[THREAD_M] = {}, right[THREAD_N] = {};
#if STEP == 5
    const unsigned a_row = t / BLOCK_K, a_col = t % BLOCK_K;
    const unsigned b_row = t / BLOCK_N, b_col = t % BLOCK_N;
    constexpr unsigned A_ROWS = THREADS / BLOCK_K, B_ROWS = THREADS / BLOCK_N;
#else
    const unsigned a_row = t / (BLOCK_K / 4), a_col = t % (BLOCK_K / 4);
    const unsigned b_row = t / (BLOCK_N / 4), b_col = t % (BLOCK_N / 4);
#endif
    for (unsigned first = 0; first < k; first += BLOCK_K) {
#if STEP == 5
        for (unsigned i = 0; i < BLOCK_M; i += A_ROWS)
            a_smem[(a_row + i) * BLOCK_K + a_col] = a[(a_row + i) * k + a_col];
        for (unsigned i = 0; i < BLOCK_K; i += B_ROWS)
            b_smem[(b_row + i) * BLOCK_N + b_col] = b[(b_row + i) * n + b_col];
#else
        float4 piece = load4(a + a_row * k + a_col * 4);
        a_smem[(a_col * 4 + 0) * BLOCK_M + a_row] = piece.x;
        a_smem[(a_col * 4 + 1) * BLOCK_M + a_row] = piece.y;
        a_smem[(a_col * 4 + 2) * BLOCK_M + a_row] = piece.z;
        a_smem[(a_col * 4 + 3) * BLOCK_M + a_row] = piece.w;
        piece = load4(b + b_row * n + b_col * 4);
#if STEP == 6
        store4(b_smem + b_row * BLOCK_N + b_col * 4, piece);
#elif STEP == 7
        float* to = b_smem + (b_col % 2 * 4 + b_row * 8) * 16 + b_col / 2;
        to[0] = piece.x, to[16] = piece.y, to[32] = piece.z, to[48] = piece.w;
#else
        float* to = b_smem + b_row * B_STRIDE + b_col * 4;
        to[0] = piece.x, to[1] = piece.y, to[2] = piece.z, to[3] = piece.w;
#endif
#endif
        __syncthreads();
        a += BLOCK_K;
        b += BLOCK_K * n;
        for (unsigned i = 0; i < BLOCK_K; ++i) {
            for (unsigned r = 0; r < THREAD_M; ++r)
#if STEP == 5
                left[r] = a_smem[(row * THREAD_M + r) * BLOCK_K + i];
#else
                left[r] = a_smem[i * BLOCK_M + row * THREAD_M + r];
#endif
            for (unsigned s = 0; s < THREAD_N; ++s)
#if STEP == 7
                right[s] = b_smem[(i * 8 + s) * 16 + col];
#else
                right[s] = b_smem[i * B_STRIDE + col * THREAD_N + s];
#endif
            for (unsigned r = 0; r < THREAD_M; ++r)
                for (unsigned s = 0; s < THREAD_N; ++s) sums[r * THREAD_N + s] += left[r] * right[s];
        }
        __syncthreads();
    }
    for (unsigned r = 0; r < THREAD_M; ++r) {
        float* to = c + (row * THREAD_M + r) * n + col * THREAD_N;
#if STEP == 5
        for (unsigned s = 0; s < THREAD_N; ++s)
            to[s] = alpha * sums[r * THREAD_N + s] + beta * to[s];
#else
        for (unsigned s = 0; s < THREAD_N; s += 4)
            store4(to + s, blend(alpha, sums + r * THREAD_N + s, beta, load4(to + s)));
#endif
    }
}

#else
// 9: the CTA's tile in pieces of 16 x 16 threads; 10: in pieces of one warp each, whose operands
// all lie in registers before they are multiplied.
#if STEP == 9
constexpr int THREADS = 256;
constexpr int PIECE_M = THREAD_M * 16, PIECE_N = THREAD_N * 16;
constexpr int PIECES_M = (BLOCK_M + PIECE_M - 1) / PIECE_M;
constexpr int PIECES_N = (BLOCK_N + PIECE_N - 1) / PIECE_N;
#else
#ifndef NUM_THREADS
#define NUM_THREADS 128
#endif
constexpr int THREADS = NUM_THREADS;
constexpr int PIECES_N = STEPS_N;
constexpr int PIECES_M = WARP_M * WARP_N / (32 * THREAD_M * THREAD_N * PIECES_N);
constexpr int PIECE_M = WARP_M / PIECES_M, PIECE_N = WARP_N / PIECES_N;
#endif
constexpr int A_ROWS = THREADS * 4 / BLOCK_K, B_ROWS = THREADS / (BLOCK_N / 4);

extern "C" __global__ void __launch_bounds__(THREADS) sgemm(ARGUMENTS) {
    __shared__ float a_smem[BLOCK_M * BLOCK_K], b_smem[BLOCK_K * BLOCK_N];
    const unsigned t = threadIdx.x;
    a += blockIdx.y * BLOCK_M * k;
    b += blockIdx.x * BLOCK_N;
#if STEP == 9
    const int col = t % (PIECE_N / THREAD_N), row = t / (PIECE_N / THREAD_N);
    const unsigned warp_row = 0, warp_col = 0;
#else
    const unsigned warp = t / 32, lane = t % 32;
    const unsigned warp_col = warp % (BLOCK_N / WARP_N) * WARP_N;
    const unsigned warp_row = warp / (BLOCK_N / WARP_N) * WARP_M;
    const unsigned col = lane % (PIECE_N / THREAD_N), row = lane / (PIECE_N / THREAD_N);
#endif
    c += (blockIdx.y * BLOCK_M + warp_row) * n + blockIdx.x * BLOCK_N + warp_col;
    const unsigned a_row = t / (BLOCK_K / 4), a_col = t % (BLOCK_K / 4);
    const unsigned b_row = t / (BLOCK_N / 4), b_col = t % (BLOCK_N / 4);
    float sums[PIECES_M * THREAD_M * PIECES_N * THREAD_N] = {};
#if STEP == 9
    float left[THREAD_M] = {}, right[THREAD_N] = {};
#else
    float left[PIECES_M * THREAD_M] = {}, right[PIECES_N * THREAD_N] = {};
#endif
    for (unsigned first = 0; first < k; first += BLOCK_K) {
        for (unsigned i = 0; i + A_ROWS <= BLOCK_M; i += A_ROWS) {
            const float4 piece = load4(a + (a_row + i) * k + a_col * 4);
            float* to = a_smem + a_col * 4 * BLOCK_M + a_row + i;
            to[0] = piece.x, to[BLOCK_M] = piece.y, to[2 * BLOCK_M] = piece.z;
            to[3 * BLOCK_M] = piece.w;
        }
        for (unsigned i = 0; i + B_ROWS <= BLOCK_K; i += B_ROWS)
            store4(b_smem + (b_row + i) * BLOCK_N + b_col * 4, load4(b + (b_row + i) * n + b_col * 4));
        __syncthreads();
#if STEP == 9
        for (unsigned p = 0; p < PIECES_M; ++p)
            for (unsigned q = 0; q < PIECES_N; ++q)
                for (unsigned i = 0; i < BLOCK_K; ++i) {
                    for (unsigned r = 0; r < THREAD_M; ++r)
                        left[r] = a_smem[i * BLOCK_M + p * PIECE_M + row * THREAD_M + r];
                    for (unsigned s = 0; s < THREAD_N; ++s)
                        right[s] = b_smem[i * BLOCK_N + q * PIECE_N + col * THREAD_N + s];
                    for (unsigned r = 0; r < THREAD_M; ++r)
                        for (unsigned s = 0; s < THREAD_N; ++s)
                            sums[(p * THREAD_M + r) * PIECES_N * THREAD_N + q * THREAD_N + s] +=
                                left[r] * right[s];
                }
#else
        for (unsigned i = 0; i < BLOCK_K; ++i) {
            for (unsigned p = 0; p < PIECES_M; ++p)
                for (unsigned r = 0; r < THREAD_M; ++r)
                    left[p * THREAD_M + r] =
                        a_smem[i * BLOCK_M + warp_row + p * PIECE_M + row * THREAD_M + r];
            for (unsigned q = 0; q < PIECES_N; ++q)
                for (unsigned s = 0; s < THREAD_N; ++s)
                    right[q * THREAD_N + s] =
                        b_smem[i * BLOCK_N + warp_col + q * PIECE_N + col * THREAD_N + s];
            for (unsigned p = 0; p < PIECES_M; ++p)
                for (unsigned q = 0; q < PIECES_N; ++q)
                    for (unsigned r = 0; r < THREAD_M; ++r)
                        for (unsigned s = 0; s < THREAD_N; ++s)
                            sums[(p * THREAD_M + r) * PIECES_N * THREAD_N + q * THREAD_N + s] +=
                                left[p * THREAD_M + r] * right[q * THREAD_N + s];
        }
#endif
        a += BLOCK_K;
        b += BLOCK_K * n;
        __syncthreads();
    }
    for (unsigned p = 0; p < PIECES_M; ++p)
        for (unsigned q = 0; q < PIECES_N; ++q)
            for (unsigned r = 0; r < THREAD_M; ++r)
                for (unsigned s = 0; s < THREAD_N; s += 4) {
                    float* to = c + (p * PIECE_M + row * THREAD_M + r) * n + q * PIECE_N +
                                col * THREAD_N + s;
                    const float* sum =
                        sums + (p * THREAD_M + r) * PIECES_N * THREAD_N + q * THREAD_N + s;
                    store4(to, blend(alpha, sum, beta, load4(to)));
                }
}
#endif
