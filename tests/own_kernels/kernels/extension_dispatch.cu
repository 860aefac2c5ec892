#include <torch/extension.h>
#include <ATen/Dispatch.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>

#define CHECK_CUDA(x) TORCH_CHECK(x.device().is_cuda(), #x " must be a CUDA tensor")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)

namespace {

template <typename scalar_t>
__global__ void attention_forward_kernel(
    const scalar_t* __restrict__ query,
    const scalar_t* __restrict__ key,
    const scalar_t* __restrict__ value,
    scalar_t* __restrict__ output,
    const int seq_len,
    const int head_size,
    const float scale,
    const bool is_causal) {
  extern __shared__ float shared_scores[];
  const int row = blockIdx.x;
  const int64_t head = static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  const scalar_t* q = query + (head * seq_len + row) * head_size;
  const int last = is_causal ? row + 1 : seq_len;
  __shared__ float row_max, row_sum;

  for (int j = threadIdx.x; j < last; j += blockDim.x) {
    const scalar_t* k = key + (head * seq_len + j) * head_size;
    float dot = 0.f;
    for (int d = 0; d < head_size; ++d) {
      dot += static_cast<float>(q[d]) * static_cast<float>(k[d]);
    }
    shared_scores[j] = dot * scale;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float m = shared_scores[0];
    for (int j = 1; j < last; ++j) m = max(m, shared_scores[j]);
    float l = 0.f;
    for (int j = 0; j < last; ++j) l += expf(shared_scores[j] - m);
    row_max = m;
    row_sum = l;
  }
  __syncthreads();
  for (int d = threadIdx.x; d < head_size; d += blockDim.x) {
    float sum = 0.f;
    for (int j = 0; j < last; ++j) {
      sum += expf(shared_scores[j] - row_max) *
             static_cast<float>(value[(head * seq_len + j) * head_size + d]);
    }
    output[(head * seq_len + row) * head_size + d] = static_cast<scalar_t>(sum / row_sum);
  }
}

}  // namespace

torch::Tensor attention_cuda_forward(torch::Tensor query, torch::Tensor key, torch::Tensor value,
                                     bool is_causal) {
  CHECK_INPUT(query);
  CHECK_INPUT(key);
  CHECK_INPUT(value);
  auto output = torch::empty_like(query);
  const auto batch_size = query.size(0);
  const auto num_heads = query.size(1);
  const auto seq_len = query.size(2);
  const auto head_size = query.size(3);
  const float scale = 1.0 / std::sqrt(static_cast<double>(head_size));

  const dim3 blocks(seq_len, num_heads, batch_size);
  const int threads = 64;
  const size_t smem = seq_len * sizeof(float);

  AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16,
      query.scalar_type(), "attention_forward_cuda", ([&] {
    attention_forward_kernel<scalar_t><<<blocks, threads, smem>>>(
        query.data_ptr<scalar_t>(),
        key.data_ptr<scalar_t>(),
        value.data_ptr<scalar_t>(),
        output.data_ptr<scalar_t>(),
        seq_len,
        head_size,
        scale,
        is_causal);
  }));
  return output;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &attention_cuda_forward, "attention forward (CUDA)");
}
