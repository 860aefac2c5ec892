#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/util/Half.h>

#define SPLITS 4
#define D 64

// Each block takes one query row of one head and one of the SPLITS parts of the keys.
__global__ void partial_kernel(const at::Half* q, const at::Half* k, const at::Half* v,
                               float* partial_out, float* partial_m, float* partial_l,
                               int seq_len, float scale) {
  int row = blockIdx.x, split = blockIdx.y, bh = blockIdx.z, d = threadIdx.x;
  __shared__ float dots[D];
  int chunk = (seq_len + SPLITS - 1) / SPLITS;
  int first = split * chunk, last = min(first + chunk, seq_len);
  float qd = float(q[((int64_t)bh * seq_len + row) * D + d]) * scale;
  float m = -INFINITY, l = 0.f, acc = 0.f;
  for (int j = first; j < last; ++j) {
    dots[d] = qd * float(k[((int64_t)bh * seq_len + j) * D + d]);
    __syncthreads();
    for (int w = D / 2; w > 0; w >>= 1) {
      if (d < w) dots[d] += dots[d + w];
      __syncthreads();
    }
    float s = dots[0];
    __syncthreads();
    float m_new = fmaxf(m, s), c = expf(m - m_new), p = expf(s - m_new);
    l = l * c + p;
    acc = acc * c + p * float(v[((int64_t)bh * seq_len + j) * D + d]);
    m = m_new;
  }
  int64_t at = ((int64_t)bh * SPLITS + split) * seq_len + row;
  partial_out[at * D + d] = acc;
  if (d == 0) { partial_m[at] = m; partial_l[at] = l; }
}

__global__ void combine_kernel(const float* partial_out, const float* partial_m,
                               const float* partial_l, at::Half* out, int seq_len) {
  int row = blockIdx.x, bh = blockIdx.y, d = threadIdx.x;
  float m = -INFINITY, l = 0.f, acc = 0.f;
  for (int s = 0; s < SPLITS; ++s)
    m = fmaxf(m, partial_m[((int64_t)bh * SPLITS + s) * seq_len + row]);
  for (int s = 0; s < SPLITS; ++s) {
    int64_t at = ((int64_t)bh * SPLITS + s) * seq_len + row;
    float w = partial_l[at] > 0.f ? expf(partial_m[at] - m) : 0.f;
    l += w * partial_l[at];
    acc += w * partial_out[at * D + d];
  }
  out[((int64_t)bh * seq_len + row) * D + d] = at::Half(acc / l);
}

torch::Tensor split_attention(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
  int B = q.size(0), H = q.size(1), S = q.size(2);
  TORCH_CHECK(q.size(3) == D);
  auto opts = torch::TensorOptions().dtype(torch::kFloat32).device(q.device());
  auto partial_out = torch::empty({B * H, SPLITS, S, D}, opts);
  auto partial_m = torch::empty({B * H, SPLITS, S}, opts);
  auto partial_l = torch::empty({B * H, SPLITS, S}, opts);
  auto out = torch::empty_like(q);
  cudaStream_t stream = at::cuda::getCurrentCUDAStream();
  partial_kernel<<<dim3(S, SPLITS, B * H), D, 0, stream>>>(
      q.data_ptr<at::Half>(), k.data_ptr<at::Half>(), v.data_ptr<at::Half>(),
      partial_out.data_ptr<float>(), partial_m.data_ptr<float>(), partial_l.data_ptr<float>(),
      S, 1.0f / sqrtf((float)D));
  combine_kernel<<<dim3(S, B * H), D, 0, stream>>>(
      partial_out.data_ptr<float>(), partial_m.data_ptr<float>(), partial_l.data_ptr<float>(),
      out.data_ptr<at::Half>(), S);
  return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("split_attention", &split_attention); }
