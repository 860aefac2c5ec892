// FlashAttention-2 with mma.sync and two stages of cp.async: 64 query rows of one head per CTA, 16
// per warp, tiles of 64 keys, D = 64. Takes the same steps in the same order as the kernel whose
// times on an H200 are in bench_sass_validation.py.
#include <cuda_fp16.h>

constexpr int DIM = 64, TILE = 64, STRIDE = DIM + 8, THREADS = 128;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr unsigned ALL = 0xffffffffu;

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return (unsigned)__cvta_generic_to_shared(p);
}
// Rows beyond the end are filled with zeros: nothing is read for them.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
                 "l"(from), "r"(exists ? 16 : 0) : "memory");
}
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void load_transposed(unsigned (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row)) : "memory");
}
__device__ __forceinline__ void multiply(float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};\n"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void load_tile(__half* to, const __half* from, size_t head, int first,
                                          int length) {
    for (int i = threadIdx.x; i < TILE * DIM / 8; i += THREADS) {
        const int row = i / (DIM / 8), d = i % (DIM / 8) * 8;
        const bool exists = first + row < length;
        copy_async(to + row * STRIDE + d,
                   from + head + (size_t)(exists ? first + row : 0) * DIM + d, exists);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
flash(const __half* __restrict__ q, const __half* __restrict__ k, const __half* __restrict__ v,
      __half* __restrict__ out, float* __restrict__ log_sum, int batch, int heads, int length,
      float scale) {
    extern __shared__ __align__(128) unsigned char smem[];
    __half* q_smem = reinterpret_cast<__half*>(smem);
    __half* k_smem = q_smem + TILE * STRIDE;      // [2, TILE, STRIDE]
    __half* v_smem = k_smem + 2 * TILE * STRIDE;  // [2, TILE, STRIDE]
    const float infinity = __int_as_float(0x7f800000);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
    const int first_row = blockIdx.z * TILE;
    const size_t head = ((size_t)blockIdx.y * heads + blockIdx.x) * length * DIM;
    const int tiles = (length + TILE - 1) / TILE;
    load_tile(q_smem, q, head, first_row, length);
    load_tile(k_smem, k, head, 0, length);
    load_tile(v_smem, v, head, 0, length);
    asm volatile("cp.async.commit_group;\n" ::: "memory");

    unsigned q_rmem[DIM / 16][4];
    float o[DIM / 8][4] = {}, most[2] = {-infinity, -infinity}, total[2] = {};
    const float scale_log2 = scale * LOG2_E;
    for (int tile = 0; tile < tiles; ++tile) {
        const int first_key = tile * TILE, now = tile & 1;
        if (tile + 1 < tiles) {
            load_tile(k_smem + (now ^ 1) * TILE * STRIDE, k, head, first_key + TILE, length);
            load_tile(v_smem + (now ^ 1) * TILE * STRIDE, v, head, first_key + TILE, length);
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        asm volatile("cp.async.wait_group 1;\n" ::: "memory");
        __syncthreads();
        const __half* keys = k_smem + now * TILE * STRIDE;
        const __half* values = v_smem + now * TILE * STRIDE;
        if (tile == 0)
            for (int d = 0; d < DIM / 16; ++d)
                load_matrices(q_rmem[d], q_smem + (warp * 16 + (lane & 15)) * STRIDE + d * 16 +
                                             (lane >> 4) * 8);
        float s[TILE / 8][4] = {};
        for (int d = 0; d < DIM / 16; ++d)
            for (int n = 0; n < TILE / 16; ++n) {
                unsigned piece[4];
                load_matrices(piece, keys + (n * 16 + (lane & 7) + (lane >> 4) * 8) * STRIDE +
                                         d * 16 + ((lane >> 3) & 1) * 8);
                multiply(s[2 * n], q_rmem[d], piece[0], piece[1]);
                multiply(s[2 * n + 1], q_rmem[d], piece[2], piece[3]);
            }
        float larger[2] = {most[0], most[1]};
        for (int n = 0; n < TILE / 8; ++n)
            for (int j = 0; j < 4; ++j) {
                if (first_key + n * 8 + 2 * quad + (j & 1) >= length) s[n][j] = -infinity;
                larger[j >> 1] = fmaxf(larger[j >> 1], s[n][j]);
            }
        float shrink[2], sum[2] = {}, base[2];
        for (int r = 0; r < 2; ++r) {
            larger[r] = fmaxf(larger[r], __shfl_xor_sync(ALL, larger[r], 1));
            larger[r] = fmaxf(larger[r], __shfl_xor_sync(ALL, larger[r], 2));
            base[r] = larger[r] == -infinity ? 0.f : larger[r];
            shrink[r] = exp2f((most[r] - base[r]) * scale_log2);
            most[r] = larger[r];
        }
        for (int n = 0; n < TILE / 8; ++n)
            for (int j = 0; j < 4; ++j) {
                s[n][j] = exp2f((s[n][j] - base[j >> 1]) * scale_log2);
                sum[j >> 1] += s[n][j];
            }
        for (int r = 0; r < 2; ++r) {
            sum[r] += __shfl_xor_sync(ALL, sum[r], 1);
            sum[r] += __shfl_xor_sync(ALL, sum[r], 2);
            total[r] = total[r] * shrink[r] + sum[r];
        }
        for (int d = 0; d < DIM / 8; ++d)
            for (int j = 0; j < 4; ++j) o[d][j] *= shrink[j >> 1];
        for (int n = 0; n < TILE / 16; ++n) {
            unsigned p[4];
            for (int j = 0; j < 4; ++j) {
                const float* pair = s[2 * n + (j >> 1)] + (j & 1) * 2;
                const __half2 packed = __floats2half2_rn(pair[0], pair[1]);
                p[j] = *reinterpret_cast<const unsigned*>(&packed);
            }
            for (int d = 0; d < DIM / 16; ++d) {
                unsigned piece[4];
                load_transposed(piece, values + (n * 16 + (lane & 15)) * STRIDE + d * 16 +
                                           (lane >> 4) * 8);
                multiply(o[2 * d], p, piece[0], piece[1]);
                multiply(o[2 * d + 1], p, piece[2], piece[3]);
            }
        }
        __syncthreads();
    }
    for (int r = 0; r < 2; ++r) {
        const int row = first_row + warp * 16 + group + r * 8;
        if (row >= length) continue;
        const float inverse = 1.f / total[r];
        for (int d = 0; d < DIM / 8; ++d)
            *reinterpret_cast<__half2*>(out + head + (size_t)row * DIM + d * 8 + 2 * quad) =
                __floats2half2_rn(o[d][2 * r] * inverse, o[d][2 * r + 1] * inverse);
        if (quad == 0)
            log_sum[((size_t)blockIdx.y * heads + blockIdx.x) * length + row] =
                most[r] * scale + logf(total[r]);
    }
}
