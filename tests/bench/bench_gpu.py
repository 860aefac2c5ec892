"""Checks of the sampler on an NVIDIA GPU: `python tests/bench/bench_gpu.py`.

Prints how much identical kernels seem to differ and how often one of them is called faster, and the
sampler's times beside other times of the same cubin: those of cuda-bench (NVIDIA's NVBench;
`pip install cuda-bench`; omitted if not installed) and, for short kernels, those of a CUDA graph
captured and replayed here.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import expm1
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from engine.attention.evaluation import Correctness, Latency  # noqa: E402
from engine.attention.plan import LaunchPlan, make_plan  # noqa: E402
from engine.attention.problem import Problem  # noqa: E402
from engine.attention.tensors import Inputs, make_inputs  # noqa: E402
from engine.backends.base import RunOptions  # noqa: E402
from engine.backends.cuda import CudaBackend, why_not_cuda  # noqa: E402
from engine.base.launch_arguments import TensorArg  # noqa: E402
from engine.correctness.check import check_output  # noqa: E402
from engine.devices.nvml import GpuState  # noqa: E402
from engine.devices.spec import detect_local  # noqa: E402
from engine.measure.device_lock import measuring  # noqa: E402
from engine.measure.sampler import SamplerSettings  # noqa: E402
from engine.measure.side_by_side import FULL, TimingGroup  # noqa: E402
from engine.model.kernel import compile_plan  # noqa: E402
from engine.sessions.importers.common import ImportOptions  # noqa: E402
from engine.sessions.importers.nvbench import from_results  # noqa: E402
from kernels.ladder import by_id  # noqa: E402

LONG = (("v01", Problem(4, 8, 512, 64)), ("v08", Problem(4, 16, 2048, 64)))  # over 20 µs
SHORT = (("v02", Problem(1, 1, 64, 64)), ("v08", Problem(1, 8, 128, 64)))
COPIES = 8  # identical kernels in one run
# At 0.5 µs each they take 1 ms, so the 5 µs of the events around them are at most 0.5 %.
GRAPH_LAUNCHES = 2_000
REPLAYS = 30


def right(backend: CudaBackend, plan: LaunchPlan, inputs: Inputs) -> Correctness:
    found = check_output(inputs, backend.run(plan, inputs, RunOptions()), plan=plan)
    if not found.passed:
        raise SystemExit(f"{plan.variant} is not right here: {found.reason}")
    return found


def false_verdicts(backend: CudaBackend, read: Callable[[], GpuState], pairs_wanted: int) -> None:
    """Compare pairs of identical kernels, in as many runs as needed."""
    plan = plan_of(*LONG[0])
    inputs = make_inputs(plan.problem)
    correctness = right(backend, plan, inputs)
    names = [f"copy{i}" for i in range(COPIES)]
    verdicts: Counter[str] = Counter()
    floors = []
    while verdicts.total() < pairs_wanted:
        with TimingGroup(read) as group:
            for name in names:
                if not group.add(name, partial(backend.timer, plan, inputs, correctness)):
                    raise SystemExit(group.failures[name])
            run = group.run(names[0], SamplerSettings(kinds=("device_warm",)))
            floors.append(expm1(run.table.floor("device_warm")))
            for a, b in itertools.combinations(names, 2):
                verdicts[str(run.table.compare(a, b, "device_warm").verdict)] += 1
    wrong = verdicts["FASTER"] + verdicts["SLOWER"]
    print(
        f"identical kernels: {verdicts.total()} pairs, {wrong} called faster or slower "
        f"({wrong / verdicts.total():.1%}); {dict(verdicts)}"
    )
    print(f"A/A floor: median {statistics.median(floors):.2%}, largest {max(floors):.2%}")


def plan_of(variant: str, problem: Problem) -> LaunchPlan:
    found = by_id(variant)
    return make_plan(found, problem, found.default_config())


def sampled(
    backend: CudaBackend, read: Callable[[], GpuState], plan: LaunchPlan
) -> dict[str, Latency]:
    inputs = make_inputs(plan.problem)
    with TimingGroup(read) as group:
        if not group.add("k", partial(backend.timer, plan, inputs, right(backend, plan, inputs))):
            raise SystemExit(group.failures["k"])
        return {x.kind: x for x in group.latencies(group.run("k", FULL), "k")}


def by_cuda_bench(plan: LaunchPlan, arch: str, folder: Path) -> dict[str, Latency]:
    """Time the same cubin, launch and sizes by cuda-bench, read by Attune's importer."""
    (launch,) = plan.passes
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compile_plan(plan, arch).cubin)
    problem = plan.problem
    job = {
        "cubin": str(cubin),
        "entry": launch.entry,
        "grid": launch.grid,
        "threads": launch.threads,
        "dynamic_smem_bytes": launch.dynamic_smem_bytes,
        "args": [
            ["tensor", problem.tensor_bytes] if isinstance(a, TensorArg) else [a.ctype, a.value]
            for a in launch.args
        ],
        "axes": {
            "B": problem.batch,
            "H": problem.num_heads,
            "S": problem.seqlen,
            "D": problem.head_dim,
        },
    }
    (folder / "job.json").write_text(json.dumps(job))
    child = Path(__file__).with_name("cuda_bench_child.py")
    subprocess.run(
        [sys.executable, str(child), str(folder / "job.json"), str(folder / "out.json")],
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=300,
    )
    parsed = json.loads((folder / "out.json").read_text())
    (evaluation,) = from_results(parsed, ImportOptions(), name="out.json").opened()
    assert evaluation.latency is not None
    return {x.kind: x for x in (evaluation.latency, *evaluation.other_latencies)}


def by_hand_us(plan: LaunchPlan, arch: str) -> float:
    """Return the median time of a launch in a graph of many on one copy, replayed by CuPy."""
    import cupy as cp
    import numpy as np

    (launch,) = plan.passes
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compile_plan(plan, arch).cubin)
        file.flush()
        function = cp.RawModule(path=file.name).get_function(launch.entry)
    function.max_dynamic_shared_size_bytes = launch.dynamic_smem_bytes
    inputs = make_inputs(plan.problem)
    tensors = {name: cp.asarray(getattr(inputs, name)) for name in ("q", "k", "v")}
    tensors["out"] = cp.empty_like(tensors["q"])
    arguments = tuple(
        tensors[a.name] if isinstance(a, TensorArg) else getattr(np, a.ctype)(a.value)
        for a in launch.args
    )
    stream, begin, end = cp.cuda.Stream(non_blocking=True), cp.cuda.Event(), cp.cuda.Event()
    times_us = []
    with stream:
        stream.begin_capture()
        for _ in range(GRAPH_LAUNCHES):
            function(
                launch.grid, (launch.threads,), arguments, shared_mem=launch.dynamic_smem_bytes
            )
        graph = stream.end_capture()
        for _ in range(REPLAYS):
            begin.record(stream)
            graph.launch(stream)
            end.record(stream)
            end.synchronize()
            times_us.append(1000 * cp.cuda.get_elapsed_time(begin, end) / GRAPH_LAUNCHES)
    return statistics.median(times_us)


def beside(what: str, ours_us: float, theirs: str, theirs_us: float, limit: float) -> None:
    ratio = ours_us / theirs_us
    word = "agrees" if abs(ratio - 1) <= limit else "DIFFERS"
    print(
        f"{what:<34} {ours_us:9.2f} µs   {theirs:<22} {theirs_us:9.2f} µs   "
        f"ratio {ratio:.3f}   {word} (goal within {limit:.0%})"
    )


def beside_cuda_bench(backend: CudaBackend, read: Callable[[], GpuState], arch: str) -> None:
    """Print kernels over 20 µs, which cuda-bench times one launch at a time."""
    try:
        found = importlib.util.find_spec("cuda.bench")
    except ModuleNotFoundError:
        found = None
    if found is None:
        print("cuda-bench is not installed, so kernels over 20 µs are set beside nothing.")
        return
    for variant, problem in LONG:
        plan = plan_of(variant, problem)
        ours = sampled(backend, read, plan)
        with tempfile.TemporaryDirectory() as folder:
            theirs = by_cuda_bench(plan, arch, Path(folder))
        for kind in ("device_cold", "device_warm"):
            if kind in theirs:
                beside(
                    f"{variant} {problem.label()} {kind}",
                    ours[kind].median_us,
                    "cuda-bench",
                    theirs[kind].median_us,
                    0.02,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=224, help="of identical kernels, at least")
    wanted = parser.parse_args().pairs
    if (why := why_not_cuda()) is not None:
        raise SystemExit(why)
    local = detect_local()
    assert not isinstance(local, str), local
    arch = local.spec.arch
    backend = CudaBackend()
    try:
        with measuring("bench_gpu", print) as read:
            false_verdicts(backend, read, wanted)
            beside_cuda_bench(backend, read, arch)
            for variant, problem in SHORT:
                plan = plan_of(variant, problem)
                ours = sampled(backend, read, plan)
                beside(
                    f"{variant} {problem.label()} device_warm",
                    ours["device_warm"].median_us,
                    "graph replayed by hand",
                    by_hand_us(plan, arch),
                    0.02,
                )
    finally:
        backend.close()


if __name__ == "__main__":
    main()
