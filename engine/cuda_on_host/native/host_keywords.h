// CUDA's keywords and built-in variables. Included last, as these macros break standard headers.
#pragma once

// As in nvcc's device pass. The build defines the target GPU.
#define __CUDACC__ 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#if defined(COH_CUDA_ARCH)
#define __CUDA_ARCH__ COH_CUDA_ARCH
#endif

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __maxnreg__(n)
#define __cluster_dims__(...) COH_CLUSTER_DIMS(__VA_ARGS__)  // engine/cuda_on_host/rewrite.py
#define __align__(n) alignas(n)
#define __grid_constant__
#define threadIdx (coh::self->thread_idx)
#define blockIdx (coh::self->block_idx)
#define blockDim (coh::self->block_dim)
#define gridDim (coh::self->grid_dim)
#define warpSize 32
#if !defined(__clang__)
#define __builtin_assume(condition) ((void)0)
#endif

// Object-like macros, so that a member named malloc is renamed wherever it is used.
#define malloc coh_malloc
#define free coh_free
COH_INLINE void *coh_malloc(size_t bytes) { return coh::device_malloc(bytes); }
COH_INLINE void coh_free(void *pointer, COH_SITE) { coh::device_free(pointer, site); }

// The build rewrites `__shared__` declarations to these two macros, without moving any line.
//
// A static array gets its address while the library is loaded (when static members of class
// templates are initialised), so the whole layout is known before a CTA's first instruction.
namespace coh {
template <class Array>
struct SharedSlot {
    static const uint32_t offset;
};
template <class Array>
const uint32_t SharedSlot<Array>::offset = allocate_shared(
    &coh_module, sizeof(typename Array::type), Array::alignment(), Array::name());

// First statement of a kernel with __cluster_dims__, with their values: a launch queries them.
COH_INLINE bool asked_for_cluster(uint32_t x, uint32_t y = 1, uint32_t z = 1) {
    uint32_t *const dims = coh_module.asks_for_cluster;
    if (!dims) return false;
    dims[0] = x;
    dims[1] = y;
    dims[2] = z;
    return true;
}

// Used where a kernel synchronises the grid: the launch then runs all CTAs concurrently.
template <int = 0>
struct NeedsWholeGrid {
    static const bool noted;
};
template <int I>
const bool NeedsWholeGrid<I>::noted = (coh_module.needs_whole_grid = true);
}  // namespace coh

#define COH_SHARED_ARRAY(ALIGNMENT, NAME, DIMENSIONS, ...)                               \
    struct coh_##NAME {                                                                  \
        using type = __VA_ARGS__ DIMENSIONS;                                             \
        static constexpr size_t alignment() {                                            \
            return (ALIGNMENT) > alignof(type) ? (ALIGNMENT) : alignof(type);            \
        }                                                                                \
        static const char *name() { return #NAME; }                                      \
    };
#define COH_SHARED_PLACE(NAME)                                                           \
    *reinterpret_cast<typename coh_##NAME::type *>(coh::self->static_smem +              \
                                                   coh::SharedSlot<coh_##NAME>::offset)
#define COH_SHARED(ALIGNMENT, NAME, DIMENSIONS, ...)                                     \
    COH_SHARED_ARRAY(ALIGNMENT, NAME, DIMENSIONS, __VA_ARGS__)                           \
    typename coh_##NAME::type &NAME = COH_SHARED_PLACE(NAME)
#define COH_DYNAMIC_SHARED(NAME, ...)                                                    \
    __VA_ARGS__ *const NAME = reinterpret_cast<__VA_ARGS__ *>(coh::self->dynamic_smem)
// Outside of functions: defines a function, and the build makes NAME a macro that calls it.
#define COH_SHARED_AT_FILE_SCOPE(ALIGNMENT, NAME, DIMENSIONS, ...)                       \
    COH_SHARED_ARRAY(ALIGNMENT, NAME, DIMENSIONS, __VA_ARGS__)                           \
    COH_INLINE coh_##NAME::type &coh_shared_##NAME() { return COH_SHARED_PLACE(NAME); }
#define COH_DYNAMIC_SHARED_AT_FILE_SCOPE(NAME, ...)                                      \
    COH_INLINE __VA_ARGS__ *coh_shared_##NAME() {                                        \
        return reinterpret_cast<__VA_ARGS__ *>(coh::self->dynamic_smem);                 \
    }
