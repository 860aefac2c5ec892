// CUDA's built-in vector types.
#pragma once

// Small functions are inlined even in the check build, so that an access is reported at the
// caller's line.
#define COH_INLINE static inline __attribute__((always_inline))
#define COH_METHOD __attribute__((always_inline))
// COH_INLINE as a template: the body is compiled only if it is used, and most kernels use few of
// them.
#define COH_LAZY template <int = 0> COH_INLINE

#define COH_VECTOR(SCALAR, NAME, ALIGNMENT2, ALIGNMENT4)                                 \
    struct NAME##1 {                                                                     \
        SCALAR x;                                                                        \
    };                                                                                   \
    struct alignas(ALIGNMENT2) NAME##2 {                                                 \
        SCALAR x, y;                                                                     \
    };                                                                                   \
    struct NAME##3 {                                                                     \
        SCALAR x, y, z;                                                                  \
    };                                                                                   \
    struct alignas(ALIGNMENT4) NAME##4 {                                                 \
        SCALAR x, y, z, w;                                                               \
    };                                                                                   \
    COH_INLINE NAME##1 make_##NAME##1(SCALAR x) { return NAME##1{x}; }                   \
    COH_INLINE NAME##2 make_##NAME##2(SCALAR x, SCALAR y) { return NAME##2{x, y}; }      \
    COH_INLINE NAME##3 make_##NAME##3(SCALAR x, SCALAR y, SCALAR z) {                    \
        return NAME##3{x, y, z};                                                         \
    }                                                                                    \
    COH_INLINE NAME##4 make_##NAME##4(SCALAR x, SCALAR y, SCALAR z, SCALAR w) {          \
        return NAME##4{x, y, z, w};                                                      \
    }
COH_VECTOR(signed char, char, 2, 4)
COH_VECTOR(unsigned char, uchar, 2, 4)
COH_VECTOR(short, short, 4, 8)
COH_VECTOR(unsigned short, ushort, 4, 8)
COH_VECTOR(int, int, 8, 16)
COH_VECTOR(unsigned, uint, 8, 16)
COH_VECTOR(long, long, 16, 16)
COH_VECTOR(unsigned long, ulong, 16, 16)
COH_VECTOR(long long, longlong, 16, 16)
COH_VECTOR(unsigned long long, ulonglong, 16, 16)
COH_VECTOR(float, float, 8, 16)
COH_VECTOR(double, double, 16, 16)
#undef COH_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
    constexpr operator uint3() const { return uint3{x, y, z}; }
};

// Handles of the CUDA runtime, which NVRTC and nvcc declare without an include. A structure that
// host and device share may contain them; device code does not use them.
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct CUgraph_st* cudaGraph_t;
typedef struct CUgraphExec_st* cudaGraphExec_t;
typedef struct CUfunc_st* cudaFunction_t;
typedef struct CUmemPoolHandle_st* cudaMemPool_t;
typedef struct cudaArray* cudaArray_t;
typedef unsigned long long cudaTextureObject_t;
typedef unsigned long long cudaSurfaceObject_t;
typedef enum cudaError { cudaSuccess = 0, cudaErrorInvalidValue = 1 } cudaError_t;
