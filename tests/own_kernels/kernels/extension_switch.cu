// An extension whose launcher chooses among instantiations for the head dimension.
#include <torch/extension.h>
#include <cuda_fp16.h>

template <int D, int WARPS>
__global__ void warp_attention(const half* __restrict__ q, const half* __restrict__ k,
                               const half* __restrict__ v, half* __restrict__ out, int seqlen,
                               float scale) {
  __shared__ float query[WARPS][D];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = blockIdx.x * WARPS + warp;
  if (row >= seqlen) return;
  const size_t head = size_t(blockIdx.y) * seqlen;
  for (int d = lane; d < D; d += 32) query[warp][d] = __half2float(q[(head + row) * D + d]);
  __syncwarp();
  float sums[D / 32] = {};
  float highest = -1e30f, total = 0.f;
  for (int j = 0; j < seqlen; ++j) {
    float dot = 0.f;
    for (int d = lane; d < D; d += 32) dot += query[warp][d] * __half2float(k[(head + j) * D + d]);
    for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xffffffff, dot, step);
    const float now = fmaxf(highest, dot * scale);
    const float old = __expf(highest - now), weight = __expf(dot * scale - now);
    highest = now;
    total = total * old + weight;
    for (int i = 0; i < D / 32; ++i)
      sums[i] = sums[i] * old + weight * __half2float(v[(head + j) * D + lane + 32 * i]);
  }
  for (int i = 0; i < D / 32; ++i)
    out[(head + row) * D + lane + 32 * i] = __float2half(sums[i] / total);
}

torch::Tensor forward(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
  const int B = q.size(0), H = q.size(1), N = q.size(2), D = q.size(3);
  auto out = torch::empty_like(q);
  const float scale = 1.0f / sqrtf(D);
  auto* Q = reinterpret_cast<half*>(q.data_ptr<at::Half>());
  auto* K = reinterpret_cast<half*>(k.data_ptr<at::Half>());
  auto* V = reinterpret_cast<half*>(v.data_ptr<at::Half>());
  auto* O = reinterpret_cast<half*>(out.data_ptr<at::Half>());
  const dim3 grid((N + 3) / 4, B * H);
  switch (D) {
    case 32:
      warp_attention<32, 4><<<grid, 128>>>(Q, K, V, O, N, scale);
      break;
    case 64:
      warp_attention<64, 4><<<grid, 128>>>(Q, K, V, O, N, scale);
      break;
    case 128:
      warp_attention<128, 4><<<grid, 128>>>(Q, K, V, O, N, scale);
      break;
    default:
      TORCH_CHECK(false, "head_dim must be 32, 64 or 128");
  }
  return out;
}
