// Split-KV attention forward for [batch, seqlen, heads, head_dim] tensors, FP16 or BF16: a first
// kernel computes partial outputs and their log-sum-exp, a second one combines them.
//
//   nvcc -O3 -std=c++17 -arch=sm_80 flash_split.cu -o flash_split && ./flash_split 2048 8
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <type_traits>
#include <vector>

#define CUDA_CHECK(expr)                                                                   \
    do {                                                                                   \
        cudaError_t status_ = (expr);                                                      \
        if (status_ != cudaSuccess) {                                                      \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status_)); \
            exit(EXIT_FAILURE);                                                            \
        }                                                                                  \
    } while (0)
#define DEVICE __device__ __forceinline__
#define HOST_DEVICE __host__ __device__ __forceinline__

namespace attn {
namespace {

template <typename A, typename B>
HOST_DEVICE constexpr auto div_up(A a, B b) {
    return (a + b - 1) / b;
}

struct Strides {  // in elements
    int64_t batch, row, head;
    HOST_DEVICE int64_t offset(int b, int s, int h) const {
        return b * batch + s * row + h * head;
    }
};

struct Params {
    const void *q, *k, *v;
    Strides q_strides, k_strides, v_strides;
    int32_t seqlen_q, seqlen_k, heads_per_group;
    float scale_log2;
};

template <int Bits, int Base, int Shift>
struct Swizzle {
    HOST_DEVICE static constexpr uint32_t apply(uint32_t offset) {
        constexpr uint32_t mask = ((1u << Bits) - 1) << (Base + Shift);
        return offset ^ ((offset & mask) >> Shift);
    }
};

template <typename T, int N>
struct alignas(16) Fragment {
    T data[N];
    DEVICE T& operator[](int i) { return data[i]; }
    DEVICE const T& operator[](int i) const { return data[i]; }
    DEVICE void fill(T x) {
#pragma unroll
        for (int i = 0; i < N; ++i) data[i] = x;
    }
};

template <int kHeadDim_, int kBlockM_, int kBlockN_>
struct Traits {
    static constexpr int kHeadDim = kHeadDim_, kBlockM = kBlockM_, kBlockN = kBlockN_;
    static constexpr int kWarps = kBlockM / 16, kThreads = 32 * kWarps;
    static constexpr int kChunks = kHeadDim / 8;  // of 16 bytes
    using SmemLayout = Swizzle<3, 4, 3>;          // rows of 128 bytes; 16-byte chunks move
    static constexpr int kSmemBytes = (kBlockM + 2 * kBlockN) * kHeadDim * 2;
};

DEVICE uint32_t smem_u32(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Offset in bytes of 16-byte chunk `chunk` of row `row`: panels of 64 columns one after the other.
template <class Tr, int Rows>
DEVICE uint32_t chunk_offset(int row, int chunk) {
    const int panel = chunk / 8;
    return panel * Rows * 128 + Tr::SmemLayout::apply(row * 128 + chunk % 8 * 16);
}

DEVICE void cp_async16(uint32_t dst, const void* src, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src),
                 "r"(bytes));
}
DEVICE void cp_async_fence() { asm volatile("cp.async.commit_group;\n" ::); }
template <int N>
DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N));
}

template <bool Transposed = false>
DEVICE void ldsm_x4(uint32_t address, uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
    if constexpr (Transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                     : "r"(address));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                     : "r"(address));
    }
}

template <typename T>
DEVICE void mma_16816(Fragment<float, 4>& d, const Fragment<uint32_t, 4>& a, uint32_t b0,
                      uint32_t b1) {
    if constexpr (std::is_same_v<T, __half>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

template <typename T>
DEVICE uint32_t pack2(float low, float high) {
    uint32_t r;
    if constexpr (std::is_same_v<T, __half>) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    }
    return r;
}

DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <typename Op>
DEVICE float quad_reduce(float x, Op op) {
    x = op(x, __shfl_xor_sync(~0u, x, 1));
    return op(x, __shfl_xor_sync(~0u, x, 2));
}

template <class Tr, int Rows, typename T>
DEVICE void load_rows(uint32_t smem, const T* base, int64_t row_stride, int first, int end) {
    for (int i = threadIdx.x; i < Rows * Tr::kChunks; i += Tr::kThreads) {
        const int row = i / Tr::kChunks, chunk = i % Tr::kChunks;
        const bool valid = first + row < end;
        const T* src = base + (valid ? first + row : 0) * row_stride + chunk * 8;
        cp_async16(smem + chunk_offset<Tr, Rows>(row, chunk), src, valid);
    }
}

}  // namespace

template <class Tr, typename T, bool Causal>
__global__ __launch_bounds__(Tr::kThreads) void flash_split_kernel(
    const __grid_constant__ Params p, float* __restrict__ o_accum, float* __restrict__ lse_accum) {
    extern __shared__ __align__(128) uint8_t smem_raw[];
    const uint32_t q_smem = smem_u32(smem_raw), k_smem = q_smem + Tr::kBlockM * Tr::kHeadDim * 2,
                   v_smem = k_smem + Tr::kBlockN * Tr::kHeadDim * 2;
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int m0 = blockIdx.x * Tr::kBlockM, num_splits = gridDim.y;
    const int heads = gridDim.z & 0xffff;  // batch is launched as z, heads folded into x of a split
    (void)heads;
    const int batch_head = blockIdx.z, num_heads = p.q_strides.row / Tr::kHeadDim;
    const int batch = batch_head / num_heads, head = batch_head % num_heads;

    const auto* q = static_cast<const T*>(p.q) + p.q_strides.offset(batch, 0, head);
    const auto* k = static_cast<const T*>(p.k) +
                    p.k_strides.offset(batch, 0, head / p.heads_per_group);
    const auto* v = static_cast<const T*>(p.v) +
                    p.v_strides.offset(batch, 0, head / p.heads_per_group);

    const int tiles = div_up(p.seqlen_k, Tr::kBlockN), per_split = div_up(tiles, num_splits);
    const int begin = blockIdx.y * per_split;
    int end = min(begin + per_split, tiles);
    if (Causal) end = min(end, div_up(m0 + Tr::kBlockM, Tr::kBlockN));

    load_rows<Tr, Tr::kBlockM>(q_smem, q, p.q_strides.row, m0, p.seqlen_q);
    cp_async_fence();

    Fragment<float, 4> acc[Tr::kHeadDim / 8];
#pragma unroll
    for (auto& tile : acc) tile.fill(0.f);
    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0.f, 0.f};
    const int row = m0 + warp * 16 + lane / 4;

#pragma unroll 1
    for (int n = begin; n < end; ++n) {
        __syncthreads();
        load_rows<Tr, Tr::kBlockN>(k_smem, k, p.k_strides.row, n * Tr::kBlockN, p.seqlen_k);
        cp_async_fence();
        load_rows<Tr, Tr::kBlockN>(v_smem, v, p.v_strides.row, n * Tr::kBlockN, p.seqlen_k);
        cp_async_fence();
        cp_async_wait<1>();
        __syncthreads();

        Fragment<float, 4> scores[Tr::kBlockN / 8];
#pragma unroll
        for (auto& tile : scores) tile.fill(0.f);
#pragma unroll
        for (int ks = 0; ks < Tr::kHeadDim / 16; ++ks) {
            Fragment<uint32_t, 4> a;
            ldsm_x4(q_smem + chunk_offset<Tr, Tr::kBlockM>(warp * 16 + lane % 16,
                                                           2 * ks + lane / 16),
                    a[0], a[1], a[2], a[3]);
#pragma unroll
            for (int j = 0; j < Tr::kBlockN / 16; ++j) {
                uint32_t b[4];
                ldsm_x4(k_smem + chunk_offset<Tr, Tr::kBlockN>(j * 16 + lane / 16 * 8 + lane % 8,
                                                               2 * ks + lane / 8 % 2),
                        b[0], b[1], b[2], b[3]);
                mma_16816<T>(scores[2 * j], a, b[0], b[1]);
                mma_16816<T>(scores[2 * j + 1], a, b[2], b[3]);
            }
        }

        const bool partial = (n + 1) * Tr::kBlockN > p.seqlen_k;
        if (partial || Causal) {
#pragma unroll
            for (int j = 0; j < Tr::kBlockN / 8; ++j)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int col = n * Tr::kBlockN + j * 8 + lane % 4 * 2 + (i & 1);
                    if (col >= p.seqlen_k || (Causal && col > row + (i >> 1) * 8)) {
                        scores[j][i] = -INFINITY;
                    }
                }
        }

#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float m = row_max[r];
            for (auto& tile : scores) m = fmaxf(m, fmaxf(tile[2 * r], tile[2 * r + 1]));
            m = quad_reduce(m, [](float x, float y) { return fmaxf(x, y); });
            const float m_scaled = m == -INFINITY ? 0.f : m * p.scale_log2;
            const float rescale = fast_exp2(row_max[r] * p.scale_log2 - m_scaled);
            row_max[r] = m;
            row_sum[r] *= rescale;
            for (auto& tile : scores) {
                for (int i = 2 * r; i < 2 * r + 2; ++i) {
                    tile[i] = fast_exp2(__fmaf_rn(tile[i], p.scale_log2, -m_scaled));
                    row_sum[r] += tile[i];
                }
            }
            for (auto& tile : acc) tile[2 * r] *= rescale, tile[2 * r + 1] *= rescale;
        }

        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int ks = 0; ks < Tr::kBlockN / 16; ++ks) {
            Fragment<uint32_t, 4> a;
            a[0] = pack2<T>(scores[2 * ks][0], scores[2 * ks][1]);
            a[1] = pack2<T>(scores[2 * ks][2], scores[2 * ks][3]);
            a[2] = pack2<T>(scores[2 * ks + 1][0], scores[2 * ks + 1][1]);
            a[3] = pack2<T>(scores[2 * ks + 1][2], scores[2 * ks + 1][3]);
#pragma unroll
            for (int j = 0; j < Tr::kHeadDim / 16; ++j) {
                uint32_t b[4];
                ldsm_x4<true>(
                    v_smem + chunk_offset<Tr, Tr::kBlockN>(ks * 16 + lane % 16, 2 * j + lane / 16),
                    b[0], b[1], b[2], b[3]);
                mma_16816<T>(acc[2 * j], a, b[0], b[1]);
                mma_16816<T>(acc[2 * j + 1], a, b[2], b[3]);
            }
        }
    }

    // Partial O, normalised, and its log-sum-exp; a split without keys has -inf.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float sum = quad_reduce(row_sum[r], [](float x, float y) { return x + y; });
        const float inv = sum == 0.f ? 0.f : __frcp_rn(sum);
        const int query = row + 8 * r;
        if (query >= p.seqlen_q) continue;
        const int64_t at = ((int64_t)blockIdx.y * gridDim.z + batch_head) * p.seqlen_q + query;
        if (lane % 4 == 0) {
            lse_accum[at] =
                sum == 0.f ? -INFINITY : row_max[r] * p.scale_log2 * float(M_LN2) + logf(sum);
        }
        for (int j = 0; j < Tr::kHeadDim / 8; ++j) {
            auto* out = reinterpret_cast<float2*>(o_accum + at * Tr::kHeadDim + j * 8) + lane % 4;
            *out = make_float2(acc[j][2 * r] * inv, acc[j][2 * r + 1] * inv);
        }
    }
}

// One warp per query row. Grid (seqlen_q, batch * heads).
template <typename T, int kHeadDim>
__global__ void combine_kernel(T* __restrict__ o, Strides o_strides, float* __restrict__ lse,
                               const float* __restrict__ o_accum,
                               const float* __restrict__ lse_accum, int num_heads, int num_splits) {
    extern __shared__ float weights[];
    const int query = blockIdx.x, batch_head = blockIdx.y, lane = threadIdx.x;
    const int64_t split_stride = (int64_t)gridDim.y * gridDim.x;
    const int64_t at = (int64_t)batch_head * gridDim.x + query;

    float mine = lane < num_splits ? __ldg(lse_accum + lane * split_stride + at) : -INFINITY;
    float top = mine;
    for (int mask = 16; mask > 0; mask >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
    float total = __expf(mine - top);
    for (int mask = 16; mask > 0; mask >>= 1) total += __shfl_xor_sync(~0u, total, mask);
    const float merged = top + __logf(total);
    if (lane < num_splits) weights[lane] = __expf(mine - merged);
    if (lane == 0) lse[at] = merged;
    __syncwarp();

    T* out = o + o_strides.offset(batch_head / num_heads, query, batch_head % num_heads);
    for (int d = lane; d < kHeadDim; d += 32) {
        float sum = 0.f;
        for (int split = 0; split < num_splits; ++split) {
            sum += weights[split] * o_accum[(split * split_stride + at) * kHeadDim + d];
        }
        if constexpr (std::is_same_v<T, __half>) {
            out[d] = __float2half_rn(sum);
        } else {
            out[d] = __float2bfloat16(sum);
        }
    }
}

template <int kHeadDim, typename T>
void run(Params params, T* out, float* lse, float* o_accum, float* lse_accum, int batch, int heads,
         int num_splits, bool causal, cudaStream_t stream) {
    using Tr = Traits<kHeadDim, 64, 64>;
    auto kernel = causal ? &flash_split_kernel<Tr, T, true> : &flash_split_kernel<Tr, T, false>;
    CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    Tr::kSmemBytes));
    dim3 grid(div_up(params.seqlen_q, Tr::kBlockM), num_splits, batch * heads);
    kernel<<<grid, Tr::kThreads, Tr::kSmemBytes, stream>>>(params, o_accum, lse_accum);
    const Strides strides{(int64_t)params.seqlen_q * heads * kHeadDim, heads * kHeadDim, kHeadDim};
    combine_kernel<T, kHeadDim><<<dim3(params.seqlen_q, batch * heads), 32,
                                  num_splits * sizeof(float), stream>>>(
        out, strides, lse, o_accum, lse_accum, heads, num_splits);
    CUDA_CHECK(cudaGetLastError());
}

}  // namespace attn

int main(int argc, char** argv) {
    const int seqlen = argc > 1 ? atoi(argv[1]) : 1024, heads = argc > 2 ? atoi(argv[2]) : 4;
    constexpr int kHeadDim = 64, kSplits = 4, kBatch = 2;
    const size_t count = (size_t)kBatch * seqlen * heads * kHeadDim;
    std::vector<__half> host(count);
    std::mt19937 generator(42);
    std::normal_distribution<float> normal;
    for (auto& x : host) x = __float2half(normal(generator));
    __half *q, *o;
    float *lse, *o_accum, *lse_accum;
    CUDA_CHECK(cudaMalloc(&q, count * sizeof(__half)));
    CUDA_CHECK(cudaMalloc(&o, count * sizeof(__half)));
    CUDA_CHECK(cudaMalloc(&lse, count / kHeadDim * sizeof(float)));
    CUDA_CHECK(cudaMalloc(&o_accum, kSplits * count * sizeof(float)));
    CUDA_CHECK(cudaMalloc(&lse_accum, kSplits * count / kHeadDim * sizeof(float)));
    CUDA_CHECK(cudaMemcpy(q, host.data(), count * sizeof(__half), cudaMemcpyHostToDevice));
    const attn::Strides strides{(int64_t)seqlen * heads * kHeadDim, heads * kHeadDim, kHeadDim};
    attn::Params params{q,      q, q, strides, strides, strides, seqlen,
                        seqlen, 1, 1.44269504f / sqrtf(kHeadDim)};
    const auto start = std::chrono::steady_clock::now();
    attn::run<kHeadDim>(params, o, lse, o_accum, lse_accum, kBatch, heads, kSplits, false, 0);
    CUDA_CHECK(cudaDeviceSynchronize());
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    printf("%.3f ms\n", took.count() * 1e3);
    return 0;
}
