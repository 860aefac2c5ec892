#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_fp16.h>

constexpr int kWarpSize = 32;
constexpr int kWarpsPerBlock = 4;
constexpr int kKeysPerTile = 32;

// Each warp takes a query row; the keys of a tile are shared by the block's warps.
template <int kHeadDim>
__global__ void mha_fwd_kernel(const half* __restrict__ q_ptr, const half* __restrict__ k_ptr,
                               const half* __restrict__ v_ptr, half* __restrict__ o_ptr,
                               int64_t q_stride_b, int64_t k_stride_b, int64_t stride_h, int64_t stride_s,
                               int seqlen_q, int seqlen_k, float softmax_scale) {
    constexpr int kPerLane = kHeadDim / kWarpSize;
    __shared__ half k_tile[kKeysPerTile][kHeadDim];
    __shared__ half v_tile[kKeysPerTile][kHeadDim];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int row = blockIdx.x * kWarpsPerBlock + warp;
    const int64_t offset = blockIdx.z * q_stride_b + blockIdx.y * stride_h;
    const int64_t kv_offset = blockIdx.z * k_stride_b + blockIdx.y * stride_h;
    float q[kPerLane], acc[kPerLane] = {};
    for (int i = 0; i < kPerLane; ++i)
        q[i] = row < seqlen_q ? __half2float(q_ptr[offset + row * stride_s + lane + i * kWarpSize]) : 0.f;
    float m = -INFINITY, l = 0.f;
    for (int first = 0; first < seqlen_k; first += kKeysPerTile) {
        __syncthreads();
        for (int key = warp; key < kKeysPerTile; key += kWarpsPerBlock)
            for (int d = lane; d < kHeadDim; d += kWarpSize) {
                const bool there = first + key < seqlen_k;
                k_tile[key][d] = there ? k_ptr[kv_offset + (first + key) * stride_s + d] : __float2half(0.f);
                v_tile[key][d] = there ? v_ptr[kv_offset + (first + key) * stride_s + d] : __float2half(0.f);
            }
        __syncthreads();
        for (int key = 0; key < min(kKeysPerTile, seqlen_k - first); ++key) {
            float s = 0.f;
            for (int i = 0; i < kPerLane; ++i) s += q[i] * __half2float(k_tile[key][lane + i * kWarpSize]);
            for (int mask = 16; mask; mask >>= 1) s += __shfl_xor_sync(0xffffffffu, s, mask);
            s *= softmax_scale;
            const float m_new = fmaxf(m, s), fix = expf(m - m_new), p = expf(s - m_new);
            for (int i = 0; i < kPerLane; ++i)
                acc[i] = acc[i] * fix + p * __half2float(v_tile[key][lane + i * kWarpSize]);
            l = l * fix + p;
            m = m_new;
        }
    }
    if (row < seqlen_q)
        for (int i = 0; i < kPerLane; ++i)
            o_ptr[offset + row * stride_s + lane + i * kWarpSize] = __float2half(acc[i] / l);
}

at::Tensor mha_fwd(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    // q, k, v: (batch, seqlen, heads, head_dim)
    TORCH_CHECK(q.dtype() == torch::kFloat16, "only fp16");
    const at::cuda::OptionalCUDAGuard guard(device_of(q));
    const int batch_size = q.size(0);
    const int seqlen_q = q.size(1);
    const int num_heads = q.size(2);
    const int head_dim = q.size(3);
    const int seqlen_k = k.size(1);
    at::Tensor out = at::empty_like(q);
    const float softmax_scale = 1.f / std::sqrt(float(head_dim));
    dim3 block(kWarpSize, kWarpsPerBlock);
    dim3 grid((seqlen_q + kWarpsPerBlock - 1) / kWarpsPerBlock, num_heads, batch_size);
    auto stream = at::cuda::getCurrentCUDAStream().stream();
    const half* q_p = reinterpret_cast<const half*>(q.data_ptr<at::Half>());
    const half* k_p = reinterpret_cast<const half*>(k.data_ptr<at::Half>());
    const half* v_p = reinterpret_cast<const half*>(v.data_ptr<at::Half>());
    half* o_p = reinterpret_cast<half*>(out.data_ptr<at::Half>());
    switch (head_dim) {
        case 64:
            mha_fwd_kernel<64><<<grid, block, 0, stream>>>(q_p, k_p, v_p, o_p, q.stride(0), k.stride(0),
                q.stride(2), q.stride(1), seqlen_q, seqlen_k, softmax_scale);
            break;
        case 128:
            mha_fwd_kernel<128><<<grid, block, 0, stream>>>(q_p, k_p, v_p, o_p, q.stride(0), k.stride(0),
                q.stride(2), q.stride(1), seqlen_q, seqlen_k, softmax_scale);
            break;
        default:
            TORCH_CHECK(false, "head_dim must be 64 or 128");
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("mha_fwd", &mha_fwd); }
