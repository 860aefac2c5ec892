// Two passes that copy Q through a scratch buffer and count how often they ran. Macros add
// defects.
typedef unsigned short half_bits;
#ifndef VALUE
#define VALUE q[i]
#endif
#ifndef WHERE
#define WHERE true
#endif
#ifndef BEFORE
#define BEFORE
#endif
#ifndef AFTER
#define AFTER
#endif

__device__ const half_bits* first;  // the Q of the first launch

__device__ bool stop() {
    asm volatile("trap;");
    return true;
}

extern "C" __global__ void produce(half_bits* q, float* partial, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) {
        BEFORE;
    }
    if (i < count) partial[i] = VALUE;
}

extern "C" __global__ void finish(const float* partial, int* counter, half_bits* out, int count,
                                  float scale) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int before = counter[blockIdx.x];
    if (i < count && (WHERE)) out[i] = (half_bits)(scale * partial[i]);
    __syncthreads();
    if (threadIdx.x == 0) counter[blockIdx.x]++;
    if (i == 0) {
        AFTER;
    }
}

// Q, exclusive-or all of K and half of all of V.
extern "C" __global__ void combine(const half_bits* q, const half_bits* k, const half_bits* v,
                                   half_bits* out, int rows, int keys) {
    int of_k = 0, of_v = 0;
    for (int i = 0; i < keys; i++) of_k ^= k[i], of_v ^= v[i];
    for (int i = threadIdx.x; i < rows; i += blockDim.x) out[i] = q[i] ^ of_k ^ of_v >> 1;
}

// The pages in the order of the table.
extern "C" __global__ void gather(const half_bits* pages, int* table, half_bits* out, int page,
                                  int count, int spoils) {
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        out[i] = pages[table[i / page] * page + i % page];
    __syncthreads();
    if (spoils && threadIdx.x == 0) table[0] = 0;
}

// 1 where the output was zero and `highest` was the lowest value.
extern "C" __global__ void raise(half_bits* out, int count, float* highest) {
    const bool is_fresh = highest[threadIdx.x % 7] == -__int_as_float(0x7f800000);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] += is_fresh;
    if (threadIdx.x < 7) highest[threadIdx.x] = 3.0f;
}

struct Fields {
    int a;
    double b;
};
extern "C" __global__ void by_value(half_bits* out, int count, const Fields fields) {
    for (int i = threadIdx.x; i < count; i += blockDim.x)
        out[i] = fields.a + (half_bits)(16 * fields.b);
}

struct alignas(64) TensorMap {
    char bytes[128];
};
extern "C" __global__ void mapped(half_bits* out, int count,
                                  const __grid_constant__ TensorMap map) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) out[i] = map.bytes[0];
}
