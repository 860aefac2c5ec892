// Types, built-in variables and intrinsics are known without this header. Host code is not compiled,
// so of the runtime's API only the versions are here.
#pragma once

#define CUDART_VERSION 12080
#define CUDA_VERSION 12080
