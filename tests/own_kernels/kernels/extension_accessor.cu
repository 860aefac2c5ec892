// An extension whose kernel takes tensors by value, as packed accessors.
#include <torch/extension.h>

template <typename scalar_t>
__global__ void attention_rows_kernel(
    const torch::PackedTensorAccessor32<scalar_t, 4, torch::RestrictPtrTraits> query,
    const torch::PackedTensorAccessor32<scalar_t, 4, torch::RestrictPtrTraits> key,
    const torch::PackedTensorAccessor32<scalar_t, 4, torch::RestrictPtrTraits> value,
    torch::PackedTensorAccessor32<scalar_t, 4, torch::RestrictPtrTraits> output,
    torch::PackedTensorAccessor32<float, 3, torch::RestrictPtrTraits> lse,
    const float scale) {
  const int b = blockIdx.z;
  const int h = blockIdx.y;
  const int i = blockIdx.x;
  const int keys = key.size(2), dims = query.size(3);
  extern __shared__ float scores[];
  __shared__ float highest, total;
  const auto q = query[b][h][i];
  for (int j = threadIdx.x; j < keys; j += blockDim.x) {
    float dot = 0.f;
    for (int d = 0; d < dims; ++d)
      dot += static_cast<float>(q[d]) * static_cast<float>(key[b][h][j][d]);
    scores[j] = dot * scale;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float m = -INFINITY, l = 0.f;
    for (int j = 0; j < keys; ++j) m = fmaxf(m, scores[j]);
    for (int j = 0; j < keys; ++j) l += expf(scores[j] - m);
    highest = m;
    total = l;
    lse[b][h][i] = m + logf(l);
  }
  __syncthreads();
  for (int d = threadIdx.x; d < dims; d += blockDim.x) {
    float sum = 0.f;
    for (int j = 0; j < keys; ++j)
      sum += expf(scores[j] - highest) * static_cast<float>(value[b][h][j][d]);
    output[b][h][i][d] = static_cast<scalar_t>(sum / total);
  }
}

std::vector<torch::Tensor> attention_forward(torch::Tensor query, torch::Tensor key,
                                             torch::Tensor value) {
  const auto batch = query.size(0), heads = query.size(1), seq_len = query.size(2);
  auto output = torch::empty_like(query);
  auto lse = torch::empty({batch, heads, seq_len}, query.options().dtype(torch::kFloat));
  const float scale = 1.0f / sqrtf(query.size(3));
  const dim3 blocks(seq_len, heads, batch);
  AT_DISPATCH_FLOATING_TYPES_AND_HALF(query.scalar_type(), "attention_forward", ([&] {
    attention_rows_kernel<scalar_t><<<blocks, 128, key.size(2) * sizeof(float)>>>(
        query.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(),
        key.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(),
        value.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(),
        output.packed_accessor32<scalar_t, 4, torch::RestrictPtrTraits>(),
        lse.packed_accessor32<float, 3, torch::RestrictPtrTraits>(), scale);
  }));
  return {output, lse};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &attention_forward); }
