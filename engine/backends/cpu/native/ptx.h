// What translated inline PTX calls (engine/backends/cpu/ptx writes the calls). Included before a
// kernel's source that holds `asm` statements.
#pragma once

#include "ptx_types.h"
#include "ptx_registers.h"
#include "ptx_arithmetic.h"
#include "ptx_memory.h"
