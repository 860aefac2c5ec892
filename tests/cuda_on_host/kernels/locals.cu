// Local variables that are read before they are written, and some that only seem to be. The line of
// the declaration has `// BUG <kernel>`. Launched like planted_bugs.cu.
#include "ptx.cuh"

#define KERNEL(NAME)                                                                     \
    extern "C" __global__ void NAME(const float *in, float *out, float *scratch,         \
                                    int *counter, int n)
#define TID ((int)threadIdx.x)
#define RESULT out[blockIdx.x * 64 + TID]

// ---- with a bug ----
KERNEL(accumulator) {
    float sum;  // BUG accumulator
    for (int i = 0; i < 4; i++) sum += in[i];
    RESULT = sum;
}
KERNEL(maximum_that_ignores_nan) {
    float largest;  // BUG maximum_that_ignores_nan
    for (int i = 0; i < 4; i++) largest = fmaxf(largest, in[i]);
    RESULT = largest;
}
KERNEL(one_element_of_an_array) {
    float acc[2][4];  // BUG one_element_of_an_array
    for (int i = 1; i < 8; i++) acc[i / 4][i % 4] = in[i];
    RESULT = acc[TID % 2][TID % 4];
}
KERNEL(last_in_a_list) {
    float first = 1.f, second[2] = {2.f, 3.f}, third;  // BUG last_in_a_list
    if (TID < 63) third = in[TID];
    RESULT = first + second[1] + third;
}
KERNEL(shifted_index) {
    unsigned int shift;  // BUG shifted_index
    if (TID != 5) shift = 1;
    RESULT = in[(TID + shift) % 64];
}
KERNEL(flag) {
    bool seen;  // BUG flag
    if (TID < 63) seen = true;
    RESULT = seen ? 1.f : 0.f;
}
KERNEL(pair_of_halves) {
    __half2 pair;  // BUG pair_of_halves
    pair.x = __float2half_rn(in[TID]);
    RESULT = __high2float(pair);
}
struct Row {
    float maximum, sum;
};
template <class Number, int COUNT>
__device__ Number total(const Number *values) {
    Number sum;  // BUG in_a_template
    for (int i = 0; i < COUNT; i++) sum += values[i];
    return sum;
}
KERNEL(in_a_template) { RESULT = total<float, 4>(in); }
KERNEL(member) {
    Row row;  // BUG member
    row.maximum = in[TID];
    RESULT = row.maximum + row.sum;
}

// ---- correct ----
KERNEL(every_branch_writes) {
    float x;
    if (TID % 2) x = in[TID];
    else x = -in[TID];
    RESULT = x;
}
KERNEL(written_by_an_instruction) {
    float x;
    asm volatile("mov.f32 %0, %1;" : "=f"(x) : "f"(in[TID]));
    uint32_t words[2];
    for (int i = 0; i < 2; i++) asm("mov.b32 %0, %1;" : "=r"(words[i]) : "r"(i));
    RESULT = x + words[1];
}
KERNEL(unread_elements) {
    float acc[8];
    for (int i = 0; i < 4; i++) acc[i] = in[i];
    float sum = 0.f;
    for (int i = 0; i < n / 64; i++) sum += acc[i];
    RESULT = sum;
}
KERNEL(unread_lanes) {
    float x;
    if (TID % 32 == 3) x = in[TID];
    RESULT = __shfl_sync(0xffffffffu, x, 3);
}
KERNEL(declared_in_strange_places) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float x;
            if (i) x = 1.f; else if (j) x = 2.f; else x = 3.f;
            switch (i + j) {
                case 0: float y; y = x; sum += y; break;
                case 1: {
                    float z;
                    z = 2.f * x;
                    sum += z;
                    break;
                }
                default: sum += x;
            }
        }
    int i = 0;
    do
        i++;
    while (i < 3);
    auto twice = [](float x) {
        float y;
        y = 2.f * x;
        return y;
    };
    while (i > 0) i--;
    RESULT = twice(sum) + i;
}
