// The C primitives of asynchronous copies. cuda::pipeline itself is libcu++.
#pragma once

#include "cuda_pipeline_primitives.h"
