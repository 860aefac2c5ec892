// The CUDA C++ device language on the host: one fiber per CUDA thread.
//
// This header is force-included before a kernel's source. Inline PTX is executed
// (engine/cuda_on_host/ptx), so kernels need no second version for the CPU. It defines
// __CUDA_ON_HOST__ all the same, as a way out for PTX that the CPU backend does not know:
//
//     #if defined(__CUDA_ON_HOST__)
//     inline void named_barrier(int id, int threads, coh::Site site = coh::Site::here()) {
//         coh::barrier_sync(id, threads, site);
//     }
//     #else
//     ... asm volatile ...
//     #endif
//
// What stands in the #else is then never executed here. The defaulted `Site` makes an error name
// the line that called the wrapper. What wrappers may call is declared, with its contract, in
// host_runtime.h (threads, barriers, collectives, cp.async, ldmatrix, mma) and host_hopper.h
// (mbarrier, TMA, wgmma).
//
// Standard headers come first, because the CUDA keyword macros at the end would break them. The
// toolkit's headers are those in toolkit/, written anew: NVIDIA's own are not installed everywhere,
// take twice as long to compile and, on a host, lack the functions whose bodies are PTX.
#pragma once

// libstdc++'s <math.h> brings C++17's Bessel functions and their like: a fifth of the time that it
// takes to compile a small kernel, for what no device code has.
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
