// CUDA's built-in vector types.
#pragma once

// Tiny functions are inlined even in the check build, so that an access is seen on its own line.
#define COH_INLINE static inline __attribute__((always_inline))

struct uint3 {
    unsigned x, y, z;
};

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct float3 {
    float x, y, z;
};
COH_INLINE float3 make_float3(float x, float y, float z) { return float3{x, y, z}; }

#define COH_VECTOR2(SCALAR, NAME)                                                        \
    struct alignas(2 * sizeof(SCALAR)) NAME {                                            \
        SCALAR x, y;                                                                     \
    };                                                                                   \
    COH_INLINE NAME make_##NAME(SCALAR x, SCALAR y) { return NAME{x, y}; }
#define COH_VECTOR4(SCALAR, NAME)                                                        \
    struct alignas(4 * sizeof(SCALAR)) NAME {                                            \
        SCALAR x, y, z, w;                                                               \
    };                                                                                   \
    COH_INLINE NAME make_##NAME(SCALAR x, SCALAR y, SCALAR z, SCALAR w) {                \
        return NAME{x, y, z, w};                                                         \
    }

COH_VECTOR2(float, float2)
COH_VECTOR2(double, double2)
COH_VECTOR2(int, int2)
COH_VECTOR2(unsigned, uint2)
COH_VECTOR2(short, short2)
COH_VECTOR2(unsigned short, ushort2)
COH_VECTOR4(float, float4)
COH_VECTOR4(int, int4)
COH_VECTOR4(unsigned, uint4)
COH_VECTOR4(short, short4)
COH_VECTOR4(unsigned short, ushort4)
#undef COH_VECTOR2
#undef COH_VECTOR4
