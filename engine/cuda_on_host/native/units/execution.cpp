// The half of the runtime library that executes kernels: fibers, barriers, memory, matrices,
// launches. One translation unit, so that the scheduler is inlined into the barriers.
#include "../runtime.h"
#include "../cluster.h"
#include "../hopper.h"

#include "../context_switch.cpp"
#include "../errors.cpp"
#include "../memory.cpp"
#include "../scheduler.cpp"
#include "../barriers.cpp"
#include "../collectives.cpp"
#include "../atomics.cpp"
#include "../async_copy.cpp"
#include "../matrix.cpp"
#include "../wgmma.cpp"
#include "../warp_registers.cpp"
#include "../signals.cpp"
#include "../launch.cpp"
