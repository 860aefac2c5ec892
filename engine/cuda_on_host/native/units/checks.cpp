// The half of the runtime library that deals with the order of accesses: the check build's checks,
// and clusters, mbarriers and TMA, which synchronise threads.
#include "../runtime.h"
#include "../cluster.h"
#include "../hopper.h"

#include "../places.cpp"
#include "../ordering.cpp"
#include "../clocks.cpp"
#include "../shared_checks.cpp"
#include "../global_checks.cpp"
#include "../checks.cpp"
#include "../cluster.cpp"
#include "../mbarrier.cpp"
#include "../tma.cpp"
#include "../mbarrier_waits.cpp"
#include "../sanitizer_hooks.cpp"
