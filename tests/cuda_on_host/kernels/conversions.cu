// Converts every bit pattern of the 16-bit formats to float, and every float to these formats.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

extern "C" __global__ void to_float(const unsigned short *half_bits,
                                    const unsigned short *bf16_bits, float *from_half,
                                    float *from_bf16, int n) {
    if ((int)INDEX >= n) return;
    from_half[INDEX] = __half2float(__ushort_as_half(half_bits[INDEX]));
    from_bf16[INDEX] = __bfloat162float(__ushort_as_bfloat16(bf16_bits[INDEX]));
}
extern "C" __global__ void from_float(const float *values, unsigned short *half_bits,
                                      unsigned short *bf16_bits, int n) {
    if ((int)INDEX >= n) return;
    half_bits[INDEX] = __half_as_ushort(__float2half_rn(values[INDEX]));
    bf16_bits[INDEX] = __bfloat16_as_ushort(__float2bfloat16_rn(values[INDEX]));
}
