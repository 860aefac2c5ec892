// Declarations that nvcc has without an include (it includes cuda_runtime.h itself) and NVRTC
// lacks.
#pragma once

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
#ifdef ATTUNE_LIBCUDACXX  // libcu++ declares these types itself
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
#define SHRT_MAX INT16_MAX
#define SHRT_MIN INT16_MIN
#define USHRT_MAX UINT16_MAX
#define CHAR_MAX INT8_MAX
#define CHAR_MIN INT8_MIN
#define UCHAR_MAX UINT8_MAX
#define LONG_MAX INT64_MAX
#define LONG_MIN INT64_MIN
#define ULONG_MAX UINT64_MAX
#define LLONG_MIN INT64_MIN
#define RAND_MAX INT32_MAX

typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// Constant expressions, as in host compilers.
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#define NAN __builtin_bit_cast(float, 0x7fffffff)
#define HUGE_VALF INFINITY
#define HUGE_VAL ((double)INFINITY)
#define M_E 2.7182818284590452354
#define M_LOG2E 1.4426950408889634074
#define M_LOG10E 0.43429448190325182765
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440
