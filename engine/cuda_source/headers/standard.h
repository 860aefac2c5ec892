// What kernels use of the C and C++ standard libraries, for NVRTC, which has neither.
// Mathematics, printf, assert and memcpy are built into NVRTC or the toolkit's headers.
#pragma once

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
#ifdef ATTUNE_LIBCUDACXX  // which has its own, of these types
typedef long long int64_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
#else
typedef long int64_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
#endif
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;

#define INT8_MIN (-128)
#define INT8_MAX 127
#define UINT8_MAX 255
#define INT16_MIN (-32768)
#define INT16_MAX 32767
#define UINT16_MAX 65535
#define INT32_MIN (-2147483647 - 1)
#define INT32_MAX 2147483647
#define UINT32_MAX 4294967295u
#define INT64_MIN (-9223372036854775807L - 1)
#define INT64_MAX 9223372036854775807L
#define UINT64_MAX 18446744073709551615ul
#define CHAR_BIT 8
#define INT_MIN INT32_MIN
#define INT_MAX INT32_MAX
#define UINT_MAX UINT32_MAX
#define LLONG_MAX INT64_MAX
#define ULLONG_MAX UINT64_MAX
#define SIZE_MAX UINT64_MAX

#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define HUGE_VALF INFINITY
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LN2 0.69314718055994530942
#define M_PI 3.14159265358979323846

#ifndef assert
#define assert(condition) ((void)0)
#endif

namespace std {
using ::int8_t;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::uint8_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uintptr_t;
using size_t = decltype(sizeof(0));
using ptrdiff_t = decltype((char *)0 - (char *)0);
using nullptr_t = decltype(nullptr);

template <class T, T V>
struct integral_constant {
    static constexpr T value = V;
    using value_type = T;
    using type = integral_constant;
    constexpr operator T() const { return V; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <class A, class B>
struct is_same : false_type {};
template <class A>
struct is_same<A, A> : true_type {};
template <class A, class B>
inline constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, class T, class F>
struct conditional {
    using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
    using type = F;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;
template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
    using type = T;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;
template <class T>
struct remove_reference {
    using type = T;
};
template <class T>
struct remove_reference<T &> {
    using type = T;
};
template <class T>
struct remove_reference<T &&> {
    using type = T;
};
template <class T>
struct remove_cv {
    using type = T;
};
template <class T>
struct remove_cv<const T> : remove_cv<T> {};
template <class T>
struct remove_cv<volatile T> : remove_cv<T> {};
template <class T>
using remove_reference_t = typename remove_reference<T>::type;
template <class T>
using remove_cv_t = typename remove_cv<T>::type;

// std::move and std::forward are NVRTC's own.
template <class T>
__host__ __device__ constexpr const T &min(const T &a, const T &b) {
    return b < a ? b : a;
}
template <class T>
__host__ __device__ constexpr const T &max(const T &a, const T &b) {
    return a < b ? b : a;
}
template <class T>
__host__ __device__ constexpr void swap(T &a, T &b) {
    T kept = a;
    a = b;
    b = kept;
}

template <class T>
struct numeric_limits;
template <>
struct numeric_limits<float> {
    __host__ __device__ static constexpr float max() { return FLT_MAX; }
    __host__ __device__ static constexpr float lowest() { return -FLT_MAX; }
    __host__ __device__ static constexpr float min() { return FLT_MIN; }
    __host__ __device__ static constexpr float epsilon() { return FLT_EPSILON; }
    __host__ __device__ static float infinity() { return INFINITY; }
    __host__ __device__ static float quiet_NaN() { return NAN; }
};
template <>
struct numeric_limits<int> {
    __host__ __device__ static constexpr int max() { return INT_MAX; }
    __host__ __device__ static constexpr int lowest() { return INT_MIN; }
    __host__ __device__ static constexpr int min() { return INT_MIN; }
};
template <>
struct numeric_limits<unsigned> {
    __host__ __device__ static constexpr unsigned max() { return UINT_MAX; }
    __host__ __device__ static constexpr unsigned lowest() { return 0; }
    __host__ __device__ static constexpr unsigned min() { return 0; }
};
}  // namespace std
