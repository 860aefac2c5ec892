// The parts of PyTorch's headers that device code uses: 16-bit types (here CUDA's), their
// accumulation type, and tensors passed by value, as `packed_accessor32` passes them to a kernel.
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

template <class T>
struct DefaultPtrTraits {
    using PtrType = T*;
};
template <class T>
struct RestrictPtrTraits {
    using PtrType = T* __restrict__;
};

// A partly indexed tensor: the remaining axes. Sizes and strides belong to the tensor.
template <class T, int N, template <class> class PtrTraits, class Index>
class TensorAccessor {
public:
    using PtrType = typename PtrTraits<T>::PtrType;

    TensorAccessor(T* data, const Index* sizes, const Index* strides)
        : data_(data), sizes_(sizes), strides_(strides) {}

    decltype(auto) operator[](Index index) const {
        T* from = data_ + strides_[0] * index;
        if constexpr (N == 1) {
            return static_cast<T&>(*from);
        } else {
            return TensorAccessor<T, N - 1, PtrTraits, Index>(from, sizes_ + 1, strides_ + 1);
        }
    }
    Index size(Index axis) const { return sizes_[axis]; }
    Index stride(Index axis) const { return strides_[axis]; }
    T* data() const { return data_; }

private:
    PtrType data_;
    const Index* sizes_;
    const Index* strides_;
};

// A whole tensor, passed as a kernel argument: the order of its members is fixed.
template <class T, int N, template <class> class PtrTraits = DefaultPtrTraits,
          class Index = long long>
class GenericPackedTensorAccessor {
public:
    using PtrType = typename PtrTraits<T>::PtrType;

    decltype(auto) operator[](Index index) const {
        return TensorAccessor<T, N, PtrTraits, Index>(data_, sizes_, strides_)[index];
    }
    Index size(Index axis) const { return sizes_[axis]; }
    Index stride(Index axis) const { return strides_[axis]; }
    T* data() const { return data_; }

private:
    PtrType data_;
    Index sizes_[N];
    Index strides_[N];
};
template <class T, int N, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, PtrTraits, int>;
template <class T, int N, template <class> class PtrTraits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, PtrTraits, long long>;
}  // namespace at

namespace torch {
using namespace at;
}

#endif
