// The CUDA C++ device language on the host: one fiber per CUDA thread.
//
// This header is force-included before a kernel's source. Inline PTX is executed
// (engine/cuda_on_host/ptx), so kernels need no second version for the CPU. It defines
// __CUDA_ON_HOST__ nevertheless, so that a kernel can replace PTX that is not supported here:
//
//     #if defined(__CUDA_ON_HOST__)
//     inline void named_barrier(int id, int threads, coh::Site site = coh::Site::here()) {
//         coh::barrier_sync(id, threads, site);
//     }
//     #else
//     ... asm volatile ...
//     #endif
//
// The #else branch is then never executed on the host. The defaulted `Site` makes an error name the
// line that called the wrapper. The functions that wrappers may call are declared and documented in
// host_runtime.h (threads, barriers, collectives, cp.async, ldmatrix, mma) and host_hopper.h
// (mbarrier, TMA, wgmma).
//
// Standard headers come first, because the CUDA keyword macros at the end would break them. Headers
// of the CUDA toolkit are replaced by those in toolkit/: NVIDIA's own are not installed everywhere,
// take twice as long to compile and, on a host, lack the functions whose bodies are PTX.
#pragma once

// Leave out C++17's special functions (Bessel and others) of libstdc++'s <math.h>: device code does
// not have them, and they take a fifth of the compile time of a small kernel.
#if __has_include(<bits/c++config.h>)
#include <bits/c++config.h>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#endif
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <limits>
#include <type_traits>
#include <utility>

#define __CUDA_ON_HOST__ 1

#include "host_types.h"
#include "host_runtime.h"
#include "host_hopper.h"
#include "host_16bit.h"
#include "host_math.h"
#include "ptx_registers.h"
#include "ptx_types.h"
#include "ptx_arithmetic.h"
#include "host_rounding.h"
#include "host_atomics.h"
#include "ptx_memory.h"
#include "host_warp.h"
#include "host_launch.h"
#include "host_checks.h"
#include "host_keywords.h"
