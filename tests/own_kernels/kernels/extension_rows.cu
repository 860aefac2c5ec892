#include <torch/extension.h>
#include <c10/cuda/CUDAStream.h>
#include <ATen/cuda/CUDAContext.h>
#include <vector>
#include "softmax_bits.cuh"

// one warp per query row writes its row of scores
__global__ void score_rows(const float* __restrict__ query, const float* __restrict__ key,
                           float* __restrict__ att, int T, int hs, float scale) {
    int row = blockIdx.x, head = blockIdx.y, lane = threadIdx.x;
    const float* q = query + ((size_t)head * T + row) * hs;
    for (int j = lane; j < T; j += 32) {
        const float* k = key + ((size_t)head * T + j) * hs;
        float s = 0.f;
        for (int d = 0; d < hs; ++d) s += q[d] * k[d];
        att[((size_t)head * T + row) * T + j] = s * scale;
    }
}
__global__ void normalize_rows(float* __restrict__ att, int T) {
    int lane = threadIdx.x;
    float* row = att + (size_t)blockIdx.x * T;
    float m = -INFINITY;
    for (int j = lane; j < T; j += 32) m = fmaxf(m, row[j]);
    m = warp_max(m);
    float l = 0.f;
    for (int j = lane; j < T; j += 32) l += row[j] = expf(row[j] - m);
    l = warp_sum(l);
    for (int j = lane; j < T; j += 32) row[j] /= l;
}
__global__ void mix_rows(const float* __restrict__ att, const float* __restrict__ value,
                         float* __restrict__ y, int T, int hs) {
    int row = blockIdx.x, head = blockIdx.y;
    for (int d = threadIdx.x; d < hs; d += blockDim.x) {
        float s = 0.f;
        for (int j = 0; j < T; ++j)
            s += att[((size_t)head * T + row) * T + j] * value[((size_t)head * T + j) * hs + d];
        y[((size_t)head * T + row) * hs + d] = s;
    }
}

torch::Tensor attention_cuda(torch::Tensor query, torch::Tensor key, torch::Tensor value) {
    TORCH_CHECK(query.is_cuda(), "query must be on the GPU");
    const int B = query.size(0), H = query.size(1), T = query.size(2), hs = query.size(3);
    auto y = torch::empty_like(query);
    auto att = torch::empty({B, H, T, T}, query.options());
    auto stream = at::cuda::getCurrentCUDAStream();
    score_rows<<<dim3(T, B * H), 32, 0, stream>>>(query.data_ptr<float>(), key.data_ptr<float>(),
        att.data_ptr<float>(), T, hs, 1.0f / sqrtf(hs));
    normalize_rows<<<B * H * T, 32, 0, stream>>>(att.data_ptr<float>(), T);
    mix_rows<<<dim3(T, B * H), 64, 0, stream>>>(att.data_ptr<float>(), value.data_ptr<float>(),
        y.data_ptr<float>(), T, hs);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("attention", &attention_cuda, "attention (CUDA)");
}
