// What device code uses of PyTorch's headers: its 16-bit types, which are CUDA's here, and the
// type that they are summed in.
#ifndef ATTUNE_PYTORCH
#define ATTUNE_PYTORCH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace c10 {
using Half = __half;
using BFloat16 = __nv_bfloat16;
}  // namespace c10

namespace at {
using c10::BFloat16;
using c10::Half;

template <class T>
struct Accumulated {
    using type = float;
};
template <>
struct Accumulated<double> {
    using type = double;
};
template <class T, bool OnGpu>
using acc_type = typename Accumulated<T>::type;
template <class T>
using opmath_type = typename Accumulated<T>::type;
}  // namespace at

#endif
