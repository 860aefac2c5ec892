"""Checks of what is timed on the GPU: graphs, identical runs, PyTorch's backends."""

from __future__ import annotations

from functools import partial
from math import expm1, isinf

import numpy as np

from engine.backends.cuda import CudaBackend
from engine.backends.sdpa import BACKENDS, baseline, require_torch_on_gpu
from engine.compile import compile_plan
from engine.measure.local_gpu import gpu_states
from engine.measure.side_by_side import QUICK, TimingGroup
from engine.selfcheck.check import CheckFailed
from engine.selfcheck.gpu import checked, first_plan, small_plan
from engine.selfcheck.software import PROBLEM
from engine.tensors import make_inputs

_LAUNCHES = 1_000
_REPLAYS = 20
_MAX_EMPTY_US = 100.0
_MAX_DISAGREEMENT = 0.05
MAX_FLOOR = 0.02


def graph_timing(backend: CudaBackend) -> str:
    """Twice the launches take twice the time, once that of an empty graph is taken off."""
    calls = backend.calls
    with small_plan("") as plan:
        compiled = compile_plan(plan, calls.arch)
        kernels = calls.load(compiled.cubin, {"k": 0}, compiled.symbols)
        (launch,) = plan.passes
        memory = calls.alloc(plan.problem.tensor_bytes)
        try:

            def replay_us(launches: int) -> float:
                def queue() -> None:
                    for _ in range(launches):
                        calls.launch(kernels["k"], launch.grid, launch.block, 0, arguments)

                graph = calls.capture(queue)
                try:
                    return min(calls.replay_us(graph) for _ in range(_REPLAYS))
                finally:
                    calls.discard(graph)

            arguments = (np.uint64(memory), np.uint64(memory))
            empty, once, twice = (replay_us(n) for n in (0, _LAUNCHES, 2 * _LAUNCHES))
        finally:
            calls.free(memory)
            calls.unload(kernels)
    ratio = (twice - empty) / max(once - empty, 1e-9)
    if empty > _MAX_EMPTY_US or abs(ratio / 2 - 1) > _MAX_DISAGREEMENT:
        raise CheckFailed(
            f"An empty graph takes {empty:.1f} µs and twice the launches {ratio:.2f} times as "
            "long: times of short kernels cannot be trusted here. Stop what else runs on this GPU."
        )
    each = (once - empty) / _LAUNCHES
    return f"An empty graph takes {empty:.1f} µs, an empty kernel in a graph {each:.2f} µs."


def aa_floor(backend: CudaBackend) -> str:
    """How far identical runs seem apart."""
    plan = first_plan()
    correctness = checked(backend, plan)
    name = plan.variant
    with gpu_states() as read, TimingGroup(read, QUICK.kinds) as group:
        inputs = make_inputs(plan.problem)
        if not group.add(name, lambda: backend.timer(plan, inputs, correctness)):
            raise CheckFailed(group.failures[name])
        run = group.run(name, QUICK)
    if run.throttled:
        raise CheckFailed(run.throttled)
    floor = run.table.floor(QUICK.kinds[0])
    if isinf(floor) or expm1(floor) > MAX_FLOOR:
        shown = (
            "by an amount that could not be determined"
            if isinf(floor)
            else f"by {expm1(floor):.1%}"
        )
        raise CheckFailed(
            f"Identical runs differ {shown}, so smaller differences between kernels will not be "
            "seen: stop what else runs on this GPU, or lock its clocks."
        )
    return f"Identical runs differ by up to {expm1(floor):.2%}."


def sdpa_backends() -> str:
    """Which of PyTorch's attention backends take part as baselines."""
    require_torch_on_gpu()
    inputs = make_inputs(PROBLEM)
    with gpu_states() as read, TimingGroup(read, QUICK.kinds, placements=1) as group:
        for name in BACKENDS:
            group.add(name, partial(baseline, name, PROBLEM, inputs))
        names, failures = group.names, dict(group.failures)
    refused = "".join(f" {reason}" for reason in failures.values())
    if not names:
        raise CheckFailed(f"None of PyTorch's attention backends works:{refused}")
    return f"Baselines: {', '.join(names)}.{refused}"
