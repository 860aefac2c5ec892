// A 64-bit hash of a buffer: the sum over its 32-bit words of a mix of the word and its index.
// A sum does not depend on the order of CTAs, so equal contents give equal hashes; the index inside
// the mix makes two exchanged words show.

// The finaliser of MurmurHash3 (Appleby): every input bit reaches every output bit.
__device__ unsigned long long mix(unsigned long long x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
    return x ^ (x >> 33);
}

extern "C" __global__ void __launch_bounds__(256)
fingerprint(const unsigned int* __restrict__ words,  // [count]
            unsigned long long count,
            unsigned long long* __restrict__ total)  // [1], zero before the launch
{
    unsigned long long sum = 0;
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    for (unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
         i < count; i += stride) {
        // An odd factor spreads the index over all 64 bits before the word comes in.
        sum += mix((i + 1) * 0x9e3779b97f4a7c15ull ^ words[i]);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    }
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}
