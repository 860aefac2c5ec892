"""Time one compiled kernel with cuda-bench; started by `bench_gpu.py` as a process.

    python cuda_bench_child.py JOB.json RESULTS.json

The job names the cubin, the entry, the launch and the arguments: `["tensor", bytes]`,
`["int32", value]` or `["float32", value]`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cuda.bench as bench
import cupy as cp
import numpy as np


def main(job_file: str, results_file: str) -> None:
    job = json.loads(Path(job_file).read_text())
    function = cp.RawModule(path=job["cubin"]).get_function(job["entry"])
    function.max_dynamic_shared_size_bytes = job["dynamic_smem_bytes"]
    rng = cp.random.default_rng(0)
    arguments = []
    for kind, value in job["args"]:
        if kind == "tensor":
            arguments.append(rng.standard_normal(value // 2, dtype=cp.float32).astype(cp.float16))
        else:
            arguments.append(getattr(np, kind)(value))
    cp.cuda.Device().synchronize()

    def attention(state: bench.State) -> None:
        def launch(call: bench.Launch) -> None:
            with cp.cuda.ExternalStream(call.get_stream().addressof()):
                function(
                    tuple(job["grid"]),
                    (job["threads"],),
                    tuple(arguments),
                    shared_mem=job["dynamic_smem_bytes"],
                )

        state.exec(launch)

    benchmark = bench.register(attention)
    for name, value in job["axes"].items():
        benchmark.add_int64_axis(name, [value])
    bench.run_all_benchmarks(["attune", "--devices", "0", "--json", results_file])


if __name__ == "__main__":
    main(*sys.argv[1:])
