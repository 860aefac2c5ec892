// The emulator with real memory: whole launches, with the values that the GPU would compute. A separate
// library, built on first use.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#endif

#define EXECUTES 1
#include "emulator.cpp"
