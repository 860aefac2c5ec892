// Types, built-in variables and intrinsics are declared without this header. Host code is not
// compiled, so only the version macros of the runtime API are here.
#pragma once

#define CUDART_VERSION 12080
#define CUDA_VERSION 12080
