/* attune
idea = "A warp per query row, a lane for each 32nd key; PTX in the kernel's own body, C++20."
head_dims = [32, 64]
dtypes = ["float32"]
std = "c++20"
defines = {}
scratch.finished = {dtype = "uint32", shape = [1], fill = "zero"}
[[passes]]
entry = "warp_rows<Shape{{{head_dim}, 4}}>"
grid = "ceil_div(batch * num_heads * seqlen, 4)"
threads = [32, 4]
args = ["q", "k", "v", "out", {name = "rows", ctype = "int32", value = "batch * num_heads * seqlen"},
        "seqlen", "softmax_scale_log2", "finished"]
*/
#include <cooperative_groups.h>

struct Shape {
    int head_dim, warps;
};

// Names that nvcc has without an include.
__device__ constexpr float lowest = -INFINITY;

template <Shape shape>
    requires(shape.head_dim % 32 == 0)
__global__ void warp_rows(const float* Q, const float* K, const float* V, float* O, int rows, int S,
                          float scale, uint32_t* finished) {
    namespace cg = cooperative_groups;
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    constexpr int D = shape.head_dim;
    __shared__ float weights[shape.warps][32];
    const int row = blockIdx.x * shape.warps + threadIdx.y, lane = warp.thread_rank();
    if (row >= rows) return;
    const float *q = Q + (size_t)row * D, *k = K + (size_t)(row / S) * S * D,
                *v = V + (size_t)(row / S) * S * D;
    float acc[D / 32] = {}, m = lowest, l = 0.0f;
    for (int j0 = 0; j0 < S; j0 += 32) {
        float s = lowest;
        if (j0 + lane < S) {
            s = 0.0f;
            for (int d = 0; d < D; d++)
                asm("fma.f32.rn %0, %1, %2, %0;" : "+f"(s) : "f"(q[d]), "f"(k[(j0 + lane) * D + d]));
            s *= scale;
        }
        float highest = s;
        for (int distance = 16; distance > 0; distance /= 2)
            highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
        highest = fmaxf(highest, m);
        const float c = exp2f(m - highest), p = exp2f(s - highest);
        float sum = p;
        for (int distance = 16; distance > 0; distance /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, distance);
        l = l * c + sum;
        weights[threadIdx.y][lane] = p;
        warp.sync();
        for (int i = 0; i < D / 32; i++) {
            acc[i] *= c;
            for (int j = 0; j < 32 && j0 + j < S; j++)
                acc[i] += weights[threadIdx.y][j] * v[(j0 + j) * D + i * 32 + lane];
        }
        warp.sync();
        m = highest;
    }
    for (int i = 0; i < D / 32; i++) O[(size_t)row * D + i * 32 + lane] = acc[i] / l;
    if (lane == 0) {
        uint32_t before;
        asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 1;"
                     : "=r"(before) : "l"(finished) : "memory");
    }
}
