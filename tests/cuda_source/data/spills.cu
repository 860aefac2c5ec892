// A CTA of 1,024 threads leaves 64 registers a thread; 200 live values do not fit: it spills.
extern "C" __global__ void __launch_bounds__(1024, 1) spills(float* x)  // [200]
{
    float values[200];
    for (int i = 0; i < 200; i++) values[i] = x[i * x[0] == 0];
    for (int round = 0; round < x[5]; round++) {
#pragma unroll
        for (int i = 0; i < 200; i++) values[i] += values[(i * 7) % 200];
    }
    float sum = 0;
    for (int i = 0; i < 200; i++) sum += values[i];
    x[1] = sum;
}
