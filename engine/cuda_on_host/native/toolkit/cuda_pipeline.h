// The C primitives of asynchronous copies. cuda::pipeline, part of libcu++, is not supported.
#pragma once

#include "cuda_pipeline_primitives.h"
