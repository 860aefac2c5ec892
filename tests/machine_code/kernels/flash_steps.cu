// Attention by mma.sync in five steps: ROWS query rows of one head per CTA of four warps, D = 128,
// BF16. It has the steps, in their order, of the series whose rates on an RTX 5090 are in
// bench_sass_validation.py. STEP 1: tiles as they are in memory; 2: swizzled; 3: K and V of 32 keys
// in two buffers each; 4: as 3, four matrices an ldmatrix; 5: 64 keys, two buffers for K, one for V.
#include <cuda_bf16.h>

constexpr int DIM = 128, THREADS = 128, ROW_BYTES = DIM * 2;
constexpr int ROW_TILES = ROWS / 64;  // of 16 rows, of one warp
constexpr int KEYS = STEP == 3 || STEP == 4 ? 32 : 64;
constexpr int TILE_BYTES = KEYS * ROW_BYTES;
constexpr unsigned ALL = 0xffffffffu;

// Offset of a byte in a tile; swizzled from STEP 2 on, so that rows begin at different banks.
__device__ __forceinline__ unsigned place(int row, int column) {
    const unsigned byte = row * ROW_BYTES + column * 2;
    return STEP == 1 ? byte : byte ^ ((row & 7) << 4);
}
template <int COUNT>
__device__ __forceinline__ void load_rows(unsigned to, const __nv_bfloat16* from) {
#pragma unroll
    for (int i = 0; i < COUNT * DIM / 8 / THREADS; ++i) {
        const int piece = i * THREADS + threadIdx.x, row = piece / (DIM / 8);
        const int column = piece % (DIM / 8) * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to + place(row, column)),
                     "l"(from + row * DIM + column));
    }
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;\n"); }
template <int OPEN>
__device__ __forceinline__ void wait_for_group() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(OPEN));
    __syncthreads();
}
template <bool TRANSPOSED>
__device__ __forceinline__ void load_two(unsigned* to, unsigned from) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];\n"
                     : "=r"(to[0]), "=r"(to[1]) : "r"(from));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];\n"
                     : "=r"(to[0]), "=r"(to[1]) : "r"(from));
}
template <bool TRANSPOSED>
__device__ __forceinline__ void load_four(unsigned* to, unsigned from) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from));
}
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4],
                                         const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void scores(float (&s)[ROW_TILES][KEYS / 8][4],
                                       const unsigned (&q)[ROW_TILES][DIM / 16][4], unsigned keys) {
    const int lane = threadIdx.x & 31;
    unsigned k[KEYS / 8][DIM / 16][2];
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int d = 0; d < DIM / 16; d += STEP >= 4 ? 2 : 1) {
            const unsigned from = keys + (place(lane & 7, lane / 8 * 8) ^ d * 32) + n * 8 * ROW_BYTES;
            if (STEP >= 4)
                load_four<false>(k[n][d], from);
            else
                load_two<false>(k[n][d], from);
        }
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int d = 0; d < DIM / 16; ++d) multiply(s[m][n], q[m][d], k[n][d]);
}
__device__ __forceinline__ void weigh(float (&o)[ROW_TILES][DIM / 8][4],
                                      const unsigned (&p)[ROW_TILES][KEYS / 16][4],
                                      unsigned values) {
    const int lane = threadIdx.x & 31;
    unsigned v[KEYS / 16][DIM / 8][2];
#pragma unroll
    for (int n = 0; n < KEYS / 16; ++n)
#pragma unroll
        for (int d = 0; d < DIM / 8; d += STEP >= 4 ? 2 : 1) {
            const unsigned from =
                values + (place(lane & 15, lane / 16 * 8) ^ d * 16) + n * 16 * ROW_BYTES;
            if (STEP >= 4)
                load_four<true>(v[n][d], from);
            else
                load_two<true>(v[n][d], from);
        }
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int d = 0; d < DIM / 8; ++d)
#pragma unroll
            for (int n = 0; n < KEYS / 16; ++n) multiply(o[m][d], p[m][n], v[n][d]);
}
// One row tile: replaces s by p, updates the row sums, and rescales o to the new maxima.
__device__ __forceinline__ void soften(float (&s)[KEYS / 8][4], unsigned (&p)[KEYS / 16][4],
                                       float (&o)[DIM / 8][4], float (&most)[2],
                                       float (&total)[2]) {
    const float scale = rsqrtf((float)DIM);
    float larger[2] = {-1e38f, -1e38f}, shrink[2], sum[2] = {};
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            s[n][j] *= scale;
            larger[j / 2] = fmaxf(larger[j / 2], s[n][j]);
        }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        larger[r] = fmaxf(larger[r], __shfl_xor_sync(ALL, larger[r], 1));
        larger[r] = fmaxf(larger[r], __shfl_xor_sync(ALL, larger[r], 2));
        larger[r] = fmaxf(larger[r], most[r]);
        shrink[r] = __expf(most[r] - larger[r]);
        most[r] = larger[r];
    }
#pragma unroll
    for (int d = 0; d < DIM / 8; ++d)
#pragma unroll
        for (int j = 0; j < 4; ++j) o[d][j] *= shrink[j / 2];
#pragma unroll
    for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float a = __expf(s[n][2 * r] - most[r]), b = __expf(s[n][2 * r + 1] - most[r]);
            sum[r] += a + b;
            const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
            p[n / 2][n % 2 * 2 + r] = *reinterpret_cast<const unsigned*>(&pair);
        }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        sum[r] += __shfl_xor_sync(ALL, sum[r], 1);
        sum[r] += __shfl_xor_sync(ALL, sum[r], 2);
        total[r] = total[r] * shrink[r] + sum[r];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
flash(const __nv_bfloat16* q, const __nv_bfloat16* k, const __nv_bfloat16* v, __nv_bfloat16* out,
      int length, int keys) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const unsigned q_smem = (unsigned)__cvta_generic_to_shared(smem);
    // Q shares its memory with later K and V tiles. Buffers: K0 V0 K1 V1 (STEP 5: K0 K1 V).
    const unsigned k_smem = q_smem, v_smem = q_smem + (STEP == 5 ? 2 : 1) * TILE_BYTES;
    const unsigned k_stride = STEP == 5 ? TILE_BYTES : 2 * TILE_BYTES, v_stride = 2 * TILE_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int tiles_of_head = length / ROWS, head = blockIdx.x / tiles_of_head;
    q += (size_t)blockIdx.x * ROWS * DIM;
    out += (size_t)blockIdx.x * ROWS * DIM;
    k += (size_t)head * keys * DIM;
    v += (size_t)head * keys * DIM;

    load_rows<ROWS>(q_smem, q);
    close_group();
    wait_for_group<0>();
    unsigned q_rmem[ROW_TILES][DIM / 16][4];
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int d = 0; d < DIM / 16; ++d) {
            const int row = (warp * ROW_TILES + m) * 16 + (lane & 15);
            load_four<false>(q_rmem[m][d], q_smem + (place(row, lane / 16 * 8) ^ d * 32));
        }
    __syncthreads();

    float o[ROW_TILES][DIM / 8][4] = {}, most[ROW_TILES][2], total[ROW_TILES][2] = {};
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m) most[m][0] = most[m][1] = -1e38f;
    const int tiles = (keys + KEYS - 1) / KEYS;
    const auto fetch = [&](unsigned to, const __nv_bfloat16*& from, int tile) {
        if (tile < tiles) {
            load_rows<KEYS>(to, from);
            from += KEYS * DIM;
        }
        close_group();
    };
    if (STEP >= 3) fetch(k_smem, k, 0);
    if (STEP == 3 || STEP == 4) fetch(v_smem, v, 0);
    for (int tile = 0; tile < tiles; ++tile) {
        if (STEP <= 2) {
            fetch(k_smem, k, tile);
            wait_for_group<0>();
        } else if (STEP <= 4) {
            fetch(k_smem + (tile + 1) % 2 * k_stride, k, tile + 1);
            wait_for_group<2>();
        } else {
            __syncthreads();
            fetch(v_smem, v, tile);
            wait_for_group<1>();
        }
        float s[ROW_TILES][KEYS / 8][4] = {};
        scores(s, q_rmem, STEP <= 2 ? k_smem : k_smem + tile % 2 * k_stride);
        if (STEP == 3 || STEP == 4) fetch(v_smem + (tile + 1) % 2 * v_stride, v, tile + 1);
        if (STEP == 5) fetch(k_smem + (tile + 1) % 2 * k_stride, k, tile + 1);

        unsigned p[ROW_TILES][KEYS / 16][4];
#pragma unroll
        for (int m = 0; m < ROW_TILES; ++m) soften(s[m], p[m], o[m], most[m], total[m]);
        if (STEP <= 2) {
            fetch(v_smem, v, tile);
            wait_for_group<0>();
        } else if (STEP <= 4) {
            wait_for_group<2>();
        } else {
            wait_for_group<1>();
        }
        weigh(o, p, STEP == 3 || STEP == 4 ? v_smem + tile % 2 * v_stride : v_smem);
    }
#pragma unroll
    for (int m = 0; m < ROW_TILES; ++m)
#pragma unroll
        for (int d = 0; d < DIM / 8; ++d)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = (warp * ROW_TILES + m) * 16 + lane / 4 + r * 8;
                *reinterpret_cast<__nv_bfloat162*>(out + row * DIM + d * 8 + lane % 4 * 2) =
                    __floats2bfloat162_rn(o[m][d][2 * r] / total[m][r],
                                          o[m][d][2 * r + 1] / total[m][r]);
            }
}
