// the string of cupy.RawKernel(code, "raw_attention"), called with
//   raw_attention((b * h, (s + 63) // 64), (64,), (q, k, v, o, s, np.float32(d ** -0.5)))
extern "C" __global__
void raw_attention(const float* q, const float* k, const float* v, float* o, const int s, const float scale) {
    const int row = blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= s) return;
    const size_t base = (size_t)blockIdx.x * s * 64;
    float acc[64] = {};
    float m = -1e30f, l = 0;
    for (int j = 0; j < s; ++j) {
        float x = 0;
        for (int d = 0; d < 64; ++d) x += q[base + row * 64 + d] * k[base + j * 64 + d];
        x *= scale;
        const float n = fmaxf(m, x), c = expf(m - n), p = expf(x - n);
        l = l * c + p;
        for (int d = 0; d < 64; ++d) acc[d] = acc[d] * c + p * v[base + j * 64 + d];
        m = n;
    }
    for (int d = 0; d < 64; ++d) o[base + row * 64 + d] = acc[d] / l;
}
