// Scalar intrinsics. Approximate device functions (__expf, ex2) are the exact ones here: their
// error is far below the 16-bit result's.
#pragma once

// Macros, because glibc already declares functions of these names.
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
namespace coh {
COH_INLINE float rsqrt(float x) { return 1.0f / sqrtf(x); }
}
#define rsqrtf(x) coh::rsqrt(x)

COH_INLINE float __fdividef(float a, float b) { return a / b; }
COH_INLINE float __fdiv_rn(float a, float b) { return a / b; }
COH_INLINE float __frcp_rn(float x) { return 1.0f / x; }
COH_INLINE float __fsqrt_rn(float x) { return sqrtf(x); }
COH_INLINE float __frsqrt_rn(float x) { return coh::rsqrt(x); }
COH_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
COH_INLINE float __fadd_rn(float a, float b) { return a + b; }
COH_INLINE float __fmul_rn(float a, float b) { return a * b; }
COH_INLINE float __saturatef(float x) { return x > 0.0f ? fminf(x, 1.0f) : 0.0f; }  // NaN: 0

template <class To, class From>
COH_INLINE To coh_bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
COH_INLINE int __float_as_int(float f) { return coh_bit_cast<int>(f); }
COH_INLINE float __int_as_float(int i) { return coh_bit_cast<float>(i); }
COH_INLINE unsigned __float_as_uint(float f) { return coh_bit_cast<unsigned>(f); }
COH_INLINE float __uint_as_float(unsigned i) { return coh_bit_cast<float>(i); }

COH_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
COH_INLINE int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
COH_INLINE int __ffs(int x) { return __builtin_ffs(x); }
COH_INLINE unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}

#define COH_MIN_MAX(TYPE)                                                                \
    COH_INLINE TYPE min(TYPE a, TYPE b) { return a < b ? a : b; }                        \
    COH_INLINE TYPE max(TYPE a, TYPE b) { return a > b ? a : b; }
COH_MIN_MAX(int)
COH_MIN_MAX(unsigned)
COH_MIN_MAX(long)
COH_MIN_MAX(unsigned long)
COH_MIN_MAX(long long)
COH_MIN_MAX(unsigned long long)
#undef COH_MIN_MAX
COH_INLINE float min(float a, float b) { return fminf(a, b); }
COH_INLINE float max(float a, float b) { return fmaxf(a, b); }

template <class T>
COH_INLINE T __ldg(const T *p) {
    return *p;
}
template <class T>
COH_INLINE T __ldcg(const T *p) {
    return *p;
}
template <class T>
COH_INLINE T __ldcs(const T *p) {
    return *p;
}
template <class T>
COH_INLINE void __stcg(T *p, T v) {
    *p = v;
}
template <class T>
COH_INLINE void __stcs(T *p, T v) {
    *p = v;
}
COH_INLINE size_t __cvta_generic_to_shared(const void *p, coh::Site site = coh::Site::here()) {
    return coh::shared_address(p, site);
}
COH_INLINE void *__cvta_shared_to_generic(size_t address, coh::Site site = coh::Site::here()) {
    return coh::shared_pointer(address, site);
}
