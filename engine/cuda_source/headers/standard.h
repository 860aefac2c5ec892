// The parts of the C and C++ standard libraries that kernels use, for NVRTC, which has neither.
// Mathematics, printf, assert and memcpy are built into NVRTC or the toolkit's headers.
#pragma once

#include "attune/implicit.h"

#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define DBL_MAX 1.7976931348623158e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_EPSILON 2.2204460492503131e-16

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

// std::move and std::forward are built into NVRTC.
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
    __host__ __device__ static constexpr float infinity() { return INFINITY; }
    __host__ __device__ static constexpr float quiet_NaN() { return NAN; }
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
