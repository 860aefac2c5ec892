// FlashAttention-2's shape: a parameter structure by value, strides of any layout, templates over
// the element type and tile sizes, swizzled shared memory, ldmatrix, mma and cp.async as PTX, and
// PyTorch's launch code below.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <torch/extension.h>

#include <ATen/cuda/CUDAContext.h>
#include <algorithm>
#include <type_traits>

namespace flash {

struct Flash_fwd_params {
    using index_t = int64_t;

    void *__restrict__ q_ptr;
    void *__restrict__ k_ptr;
    void *__restrict__ v_ptr;
    void *__restrict__ o_ptr;
    float *__restrict__ softmax_lse_ptr;

    index_t q_batch_stride, k_batch_stride, v_batch_stride, o_batch_stride;
    index_t q_head_stride, k_head_stride, v_head_stride, o_head_stride;
    index_t q_row_stride, k_row_stride, v_row_stride, o_row_stride;

    int b, h, h_k;
    int seqlen_q, seqlen_k;
    float scale_softmax_log2;
    bool is_causal;
};

template <int kHeadDim_, int kBlockM_, int kBlockN_, int kNWarps_>
struct Kernel_traits {
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kBlockM = kBlockM_;
    static constexpr int kBlockN = kBlockN_;
    static constexpr int kNThreads = kNWarps_ * 32;
    // Q is in registers by the time V arrives, so that the two share their memory.
    static constexpr int kSmemSize = std::max(kBlockM, kBlockN) * kHeadDim * 2 + kBlockN * kHeadDim * 2;
};

#define FLASH_DEVICE __forceinline__ __device__

// A row's 16-byte chunks, permuted so that 8 rows of one column lie in 8 groups of banks.
template <int kHeadDim>
FLASH_DEVICE int swizzle(int row, int chunk) {
    return row * kHeadDim + ((chunk ^ (row & 7)) * 8);
}

FLASH_DEVICE uint32_t smem_addr(const void *ptr) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(ptr));
}

FLASH_DEVICE void cp_async_16(uint32_t dst, const void *src, bool pred) {
    const int bytes = pred ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes));
}

FLASH_DEVICE void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr));
}

FLASH_DEVICE void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr));
}

template <typename Element>
FLASH_DEVICE void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<Element, __half>) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

template <typename Element>
FLASH_DEVICE uint32_t pack(float x, float y) {
    if constexpr (std::is_same_v<Element, __half>) {
        __half2 v = __floats2half2_rn(x, y);
        return *reinterpret_cast<uint32_t *>(&v);
    } else {
        __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<uint32_t *>(&v);
    }
}

template <typename Traits, int kRows, typename Element>
FLASH_DEVICE void load_tile(Element *smem, const Element *gmem, int64_t row_stride, int first_row,
                            int num_rows) {
    constexpr int kChunks = Traits::kHeadDim / 8;
    for (int i = threadIdx.x; i < kRows * kChunks; i += Traits::kNThreads) {
        const int row = i / kChunks, chunk = i % kChunks;
        const bool valid = first_row + row < num_rows;
        const Element *src = gmem + (valid ? (first_row + row) * row_stride : 0) + chunk * 8;
        cp_async_16(smem_addr(smem + swizzle<Traits::kHeadDim>(row, chunk)), src, valid);
    }
    asm volatile("cp.async.commit_group;\n" ::);
}

template <int N>
FLASH_DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N));
}

template <typename Traits, typename Element, bool Is_causal>
__global__ void __launch_bounds__(Traits::kNThreads)
    flash_fwd_kernel(const __grid_constant__ Flash_fwd_params params) {
    constexpr int kHeadDim = Traits::kHeadDim, kBlockM = Traits::kBlockM, kBlockN = Traits::kBlockN;
    constexpr int kSteps = kHeadDim / 16, kTiles = kBlockN / 8;
    extern __shared__ char smem_[];
    Element *sK = reinterpret_cast<Element *>(smem_);
    Element *sV = sK + kBlockN * kHeadDim;
    Element *sQ = sV;

    const int m_block = blockIdx.x, bidb = blockIdx.y, bidh = blockIdx.z;
    const int bidh_k = bidh / (params.h / params.h_k);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Element *gQ = static_cast<const Element *>(params.q_ptr) + bidb * params.q_batch_stride +
                        bidh * params.q_head_stride;
    const Element *gK = static_cast<const Element *>(params.k_ptr) + bidb * params.k_batch_stride +
                        bidh_k * params.k_head_stride;
    const Element *gV = static_cast<const Element *>(params.v_ptr) + bidb * params.v_batch_stride +
                        bidh_k * params.v_head_stride;

    load_tile<Traits, kBlockM>(sQ, gQ, params.q_row_stride, m_block * kBlockM, params.seqlen_q);
    cp_async_wait<0>();
    __syncthreads();
    uint32_t rQ[kSteps][4];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
        ldmatrix_x4(rQ[k], smem_addr(sQ + swizzle<kHeadDim>(warp * 16 + lane % 16, k * 2 + lane / 16)));
    }
    __syncthreads();

    float rO[kHeadDim / 8][4] = {};
    float row_max[2] = {-INFINITY, -INFINITY}, row_sum[2] = {0.f, 0.f};
    const int first_row = m_block * kBlockM + warp * 16 + lane / 4;
    int n_blocks = (params.seqlen_k + kBlockN - 1) / kBlockN;
    if (Is_causal) n_blocks = min(n_blocks, ((m_block + 1) * kBlockM + kBlockN - 1) / kBlockN);

    for (int n = 0; n < n_blocks; ++n) {
        load_tile<Traits, kBlockN>(sK, gK, params.k_row_stride, n * kBlockN, params.seqlen_k);
        load_tile<Traits, kBlockN>(sV, gV, params.v_row_stride, n * kBlockN, params.seqlen_k);
        cp_async_wait<1>();
        __syncthreads();

        float rS[kTiles][4] = {};
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
#pragma unroll
            for (int t = 0; t < kTiles / 2; ++t) {
                uint32_t b[4];
                const int key = t * 16 + lane % 8 + lane / 16 * 8;
                ldmatrix_x4(b, smem_addr(sK + swizzle<kHeadDim>(key, k * 2 + lane / 8 % 2)));
                mma_m16n8k16<Element>(rS[2 * t], rQ[k], b[0], b[1]);
                mma_m16n8k16<Element>(rS[2 * t + 1], rQ[k], b[2], b[3]);
            }
        }

#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = first_row + half * 8;
            float highest = row_max[half];
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float &s = rS[t][half * 2 + j];
                    const int col = n * kBlockN + t * 8 + lane % 4 * 2 + j;
                    s = col < params.seqlen_k && (!Is_causal || col <= row)
                            ? s * params.scale_softmax_log2
                            : -INFINITY;
                    highest = fmaxf(highest, s);
                }
            }
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 1));
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffff, highest, 2));
            const float safe = highest == -INFINITY ? 0.f : highest;
            const float rescale = exp2f(row_max[half] - safe);
            row_max[half] = highest;
            row_sum[half] *= rescale;
#pragma unroll
            for (int d = 0; d < kHeadDim / 8; ++d) {
                rO[d][half * 2] *= rescale;
                rO[d][half * 2 + 1] *= rescale;
            }
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
                rS[t][half * 2] = exp2f(rS[t][half * 2] - safe);
                rS[t][half * 2 + 1] = exp2f(rS[t][half * 2 + 1] - safe);
                row_sum[half] += rS[t][half * 2] + rS[t][half * 2 + 1];
            }
        }

        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kBlockN / 16; ++k) {
            const uint32_t rP[4] = {pack<Element>(rS[2 * k][0], rS[2 * k][1]),
                                    pack<Element>(rS[2 * k][2], rS[2 * k][3]),
                                    pack<Element>(rS[2 * k + 1][0], rS[2 * k + 1][1]),
                                    pack<Element>(rS[2 * k + 1][2], rS[2 * k + 1][3])};
#pragma unroll
            for (int d = 0; d < kHeadDim / 16; ++d) {
                uint32_t b[4];
                ldmatrix_x4_trans(
                    b, smem_addr(sV + swizzle<kHeadDim>(k * 16 + lane % 16, d * 2 + lane / 16)));
                mma_m16n8k16<Element>(rO[2 * d], rP, b[0], b[1]);
                mma_m16n8k16<Element>(rO[2 * d + 1], rP, b[2], b[3]);
            }
        }
        __syncthreads();
    }

    Element *gO = static_cast<Element *>(params.o_ptr) + bidb * params.o_batch_stride +
                  bidh * params.o_head_stride;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float sum = row_sum[half];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        const int row = first_row + half * 8;
        if (row >= params.seqlen_q) continue;
        const float inv = 1.f / sum;
#pragma unroll
        for (int d = 0; d < kHeadDim / 8; ++d) {
            const uint32_t v = pack<Element>(rO[d][half * 2] * inv, rO[d][half * 2 + 1] * inv);
            *reinterpret_cast<uint32_t *>(gO + row * params.o_row_stride + d * 8 + lane % 4 * 2) = v;
        }
        if (lane % 4 == 0) {
            params.softmax_lse_ptr[(bidb * params.h + bidh) * params.seqlen_q + row] =
                (row_max[half] + log2f(sum)) * float(M_LN2);
        }
    }
}

template <typename Element, bool Is_causal>
void run_flash_fwd(Flash_fwd_params &params, cudaStream_t stream) {
    using Traits = Kernel_traits<64, 64, 64, 4>;
    dim3 grid((params.seqlen_q + Traits::kBlockM - 1) / Traits::kBlockM, params.b, params.h);
    auto kernel = &flash_fwd_kernel<Traits, Element, Is_causal>;
    C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        Traits::kSmemSize));
    kernel<<<grid, Traits::kNThreads, Traits::kSmemSize, stream>>>(params);
}

}  // namespace flash

std::vector<at::Tensor> mha_fwd(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v,
                                float softmax_scale, bool is_causal) {
    TORCH_CHECK(q.stride(-1) == 1, "q must have a contiguous last dimension");
    auto out = torch::empty_like(q);
    flash::Flash_fwd_params params = {};
    params.q_ptr = q.data_ptr();
    params.q_row_stride = q.stride(-3);
    if (is_causal) {
        flash::run_flash_fwd<__half, true>(params, at::cuda::getCurrentCUDAStream());
    } else {
        flash::run_flash_fwd<__half, false>(params, at::cuda::getCurrentCUDAStream());
    }
    return {out};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("fwd", &mha_fwd, "forward"); }
