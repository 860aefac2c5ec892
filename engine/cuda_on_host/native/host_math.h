// Scalar device functions: intrinsics, conversions, bit operations. Approximate ones (__expf, ex2)
// are computed exactly: their error is far below that of 16-bit results.
#pragma once

template <class To, class From>
COH_INLINE To coh_bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "a bit cast keeps the size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// ---- functions that the host's math.h lacks ----
// Macros where glibc already declares functions of these names.
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __exp10f(x) coh::power_of_ten(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
#define exp10f(x) coh::power_of_ten((float)(x))
#define exp10(x) coh::power_of_ten((double)(x))
#define sincosf(x, s, c) coh::sine_and_cosine(x, s, c)
#define sincos(x, s, c) coh::sine_and_cosine(x, s, c)
#define rsqrtf(x) coh::rsqrt(x)
namespace coh {
COH_INLINE float rsqrt(float x) { return 1.0f / sqrtf(x); }
COH_INLINE float power_of_ten(float x) { return powf(10.0f, x); }
COH_INLINE double power_of_ten(double x) { return pow(10.0, x); }
COH_INLINE void sine_and_cosine(float x, float *s, float *c) {
    *s = sinf(x);
    *c = cosf(x);
}
COH_INLINE void sine_and_cosine(double x, double *s, double *c) {
    *s = sin(x);
    *c = cos(x);
}
constexpr double PI = 3.14159265358979323846;
}  // namespace coh
COH_INLINE double rsqrt(double x) { return 1.0 / sqrt(x); }
COH_INLINE float rsqrt(float x) { return coh::rsqrt(x); }
COH_INLINE double rcbrt(double x) { return 1.0 / cbrt(x); }
COH_INLINE float rcbrtf(float x) { return (float)rcbrt((double)x); }
COH_INLINE double sinpi(double x) { return sin(coh::PI * fmod(x, 2.0)); }
COH_INLINE double cospi(double x) { return cos(coh::PI * fmod(x, 2.0)); }
COH_INLINE float sinpif(float x) { return (float)sinpi((double)x); }
COH_INLINE float cospif(float x) { return (float)cospi((double)x); }
COH_INLINE void sincospi(double x, double *s, double *c) {
    *s = sinpi(x);
    *c = cospi(x);
}
COH_INLINE void sincospif(float x, float *s, float *c) {
    *s = sinpif(x);
    *c = cospif(x);
}
COH_INLINE double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
COH_INLINE float normcdff(float x) { return (float)normcdf((double)x); }
COH_INLINE float norm3df(float a, float b, float c) { return sqrtf(a * a + b * b + c * c); }
COH_INLINE float norm4df(float a, float b, float c, float d) {
    return sqrtf(a * a + b * b + c * c + d * d);
}
COH_INLINE float rnorm3df(float a, float b, float c) { return 1.0f / norm3df(a, b, c); }
COH_INLINE float rhypotf(float a, float b) { return 1.0f / hypotf(a, b); }
COH_INLINE float fdividef(float a, float b) { return a / b; }
COH_INLINE float __fdividef(float a, float b) { return a / b; }
COH_INLINE float __saturatef(float x) { return x > 0.0f ? fminf(x, 1.0f) : 0.0f; }  // NaN: 0
COH_INLINE float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }


// ---- bits ----
COH_INLINE int __float_as_int(float f) { return coh_bit_cast<int>(f); }
COH_INLINE float __int_as_float(int i) { return coh_bit_cast<float>(i); }
COH_INLINE unsigned __float_as_uint(float f) { return coh_bit_cast<unsigned>(f); }
COH_INLINE float __uint_as_float(unsigned i) { return coh_bit_cast<float>(i); }
COH_INLINE long long __double_as_longlong(double d) { return coh_bit_cast<long long>(d); }
COH_INLINE double __longlong_as_double(long long i) { return coh_bit_cast<double>(i); }
COH_INLINE int __double2hiint(double d) { return (int)(coh_bit_cast<uint64_t>(d) >> 32); }
COH_INLINE int __double2loint(double d) { return (int)coh_bit_cast<uint64_t>(d); }
COH_INLINE double __hiloint2double(int high, int low) {
    return coh_bit_cast<double>((uint64_t)(unsigned)high << 32 | (unsigned)low);
}

COH_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
COH_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
COH_INLINE int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
COH_INLINE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
COH_INLINE int __ffs(int x) { return __builtin_ffs(x); }
COH_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
// The n-th set bit of `mask` from bit `base` on; downwards when n is negative.
COH_INLINE unsigned __fns(unsigned mask, unsigned base, int n) {
    const int step = n < 0 ? -1 : 1;
    int missing = n < 0 ? -n : n;
    if (n == 0) return mask >> base & 1 ? base : 0xffffffffu;
    for (int bit = (int)base; bit >= 0 && bit < 32; bit += step) {
        if ((mask >> bit & 1) && --missing == 0) return (unsigned)bit;
    }
    return 0xffffffffu;
}

// ---- integers ----
COH_INLINE int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
COH_INLINE unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
COH_INLINE long long __mul64hi(long long a, long long b) {
    return (long long)((__int128)a * b >> 64);
}
COH_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
COH_INLINE int __mul24(int a, int b) { return (int)((unsigned)(a << 8 >> 8) * (b << 8 >> 8)); }
COH_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
COH_INLINE unsigned __sad(int a, int b, unsigned c) {
    return c + (a < b ? (unsigned)b - (unsigned)a : (unsigned)a - (unsigned)b);
}
COH_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) {
    return c + (a < b ? b - a : a - b);
}
COH_INLINE int __hadd(int a, int b) { return (int)(((long long)a + b) >> 1); }
COH_INLINE int __rhadd(int a, int b) { return (int)(((long long)a + b + 1) >> 1); }
COH_INLINE unsigned __uhadd(unsigned a, unsigned b) {
    return (unsigned)(((unsigned long long)a + b) >> 1);
}
COH_INLINE unsigned __urhadd(unsigned a, unsigned b) {
    return (unsigned)(((unsigned long long)a + b + 1) >> 1);
}

#define COH_MIN_MAX(A, B, TYPE)                                                          \
    COH_INLINE TYPE min(A a, B b) { return (TYPE)a < (TYPE)b ? (TYPE)a : (TYPE)b; }      \
    COH_INLINE TYPE max(A a, B b) { return (TYPE)a > (TYPE)b ? (TYPE)a : (TYPE)b; }
#define COH_MIN_MAX_INTEGER(TYPE)                                                        \
    COH_MIN_MAX(TYPE, TYPE, TYPE)                                                        \
    COH_MIN_MAX(unsigned TYPE, unsigned TYPE, unsigned TYPE)                             \
    COH_MIN_MAX(TYPE, unsigned TYPE, unsigned TYPE)                                      \
    COH_MIN_MAX(unsigned TYPE, TYPE, unsigned TYPE)
COH_MIN_MAX_INTEGER(int)
COH_MIN_MAX_INTEGER(long)
COH_MIN_MAX_INTEGER(long long)
#undef COH_MIN_MAX_INTEGER
#undef COH_MIN_MAX
COH_INLINE float min(float a, float b) { return fminf(a, b); }
COH_INLINE float max(float a, float b) { return fmaxf(a, b); }
COH_INLINE double min(double a, double b) { return fmin(a, b); }
COH_INLINE double max(double a, double b) { return fmax(a, b); }
COH_INLINE double min(float a, double b) { return fmin(a, b); }
COH_INLINE double max(float a, double b) { return fmax(a, b); }
COH_INLINE double min(double a, float b) { return fmin(a, b); }
COH_INLINE double max(double a, float b) { return fmax(a, b); }
COH_INLINE unsigned umin(unsigned a, unsigned b) { return a < b ? a : b; }
COH_INLINE unsigned umax(unsigned a, unsigned b) { return a < b ? b : a; }

// ---- loads and stores with a cache operator, which changes no result ----
#define COH_LOAD(NAME)                                                                   \
    template <class T>                                                                   \
    COH_INLINE T NAME(const T *p) {                                                      \
        return *p;                                                                       \
    }
#define COH_STORE(NAME)                                                                  \
    template <class T>                                                                   \
    COH_INLINE void NAME(T *p, T v) {                                                    \
        *p = v;                                                                          \
    }
COH_LOAD(__ldg)
COH_LOAD(__ldca)
COH_LOAD(__ldcg)
COH_LOAD(__ldcs)
COH_LOAD(__ldlu)
COH_LOAD(__ldcv)
COH_STORE(__stwb)
COH_STORE(__stcg)
COH_STORE(__stcs)
COH_STORE(__stwt)
#undef COH_LOAD
#undef COH_STORE

// ---- address spaces: a global pointer is the generic one ----
COH_INLINE size_t __cvta_generic_to_shared(const void *p, coh::Site site = coh::Site::here()) {
    return coh::shared_address(p, site);
}
COH_INLINE void *__cvta_shared_to_generic(size_t address, coh::Site site = coh::Site::here()) {
    return coh::shared_pointer(address, site);
}
COH_INLINE size_t __cvta_generic_to_global(const void *p) { return (size_t)p; }
COH_INLINE void *__cvta_global_to_generic(size_t address) { return (void *)address; }
COH_INLINE unsigned __isShared(const void *p) {
    return (uintptr_t)p - (uintptr_t)coh::self->static_smem < coh::SHARED_WINDOW_BYTES;
}
COH_INLINE unsigned __isGlobal(const void *p) { return !__isShared(p); }
