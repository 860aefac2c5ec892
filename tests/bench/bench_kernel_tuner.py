"""Configs per minute beside Kernel Tuner's: `python tests/bench/bench_kernel_tuner.py`.

On an NVIDIA GPU with `pip install kernel_tuner`. Both compile, check and measure every config of
one variant on the same problem, GPU and inputs, alternating in one process, each time with empty
caches. Then the best configs of both are timed against each other in one run. Kernel Tuner launches
one kernel, so variants with several passes are not supported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from engine.attention.plan import make_plan  # noqa: E402
from engine.attention.problem import Problem  # noqa: E402
from engine.attention.tensors import make_inputs  # noqa: E402
from engine.backends.cuda import why_not_cuda  # noqa: E402
from engine.base.launch_arguments import TensorArg  # noqa: E402
from engine.correctness.check import absolute_tolerance  # noqa: E402
from engine.correctness.reference import reference  # noqa: E402
from engine.jobs.sweep_job import CompileAhead  # noqa: E402
from engine.pipeline.evaluate import Evaluator  # noqa: E402
from engine.search.autotune import (  # noqa: E402
    gpu_candidates,
    problem_results,
)
from engine.search.space import Space, SweepOptions  # noqa: E402
from engine.search.sweep.journal import SweepJournal, SweepSpec  # noqa: E402
from engine.search.sweep.run import run_sweep  # noqa: E402
from kernels.ladder import by_id  # noqa: E402
from kernels.variant import Variant  # noqa: E402

GOAL = 3.0
Config = dict[str, int]


def attune(variant: Variant, problem: Problem, folder: Path) -> tuple[float, Config]:
    """Return seconds for the whole space, including the final round, and the best config."""
    os.environ["ATTUNE_CACHE_DIR"] = str(folder)
    options = SweepOptions(backend="cuda", effort="quick")
    spec = SweepSpec(Space((variant.id,), (problem,)), options)
    book = SweepJournal(folder / "sweep.jsonl")
    runnable = [p.request for p in spec.space.points(options) if p.why_not is None]
    start = time.perf_counter()
    with Evaluator() as evaluator, CompileAhead(runnable, on_cpu=False) as ahead:

        def evaluate(request: Any) -> Any:
            ahead.next_point()
            return evaluator.evaluate(request)

        run_sweep(spec, evaluate, book, on_gpu=True)
        (result,) = problem_results(list(book.rows.values()), gpu_candidates(evaluator))
    return time.perf_counter() - start, dict(book.rows[result.places[0].point].config)


def kernel_tuner(
    variant: Variant, problem: Problem, configs: list[Config], folder: Path
) -> tuple[float, Config]:
    """Return the same by Kernel Tuner's CuPy backend, with its defaults."""
    from kernel_tuner import tune_kernel

    os.environ["CUPY_CACHE_DIR"] = str(folder)
    plans = {tuple(sorted(c.items())): make_plan(variant, problem, c) for c in configs}
    inputs = make_inputs(problem)
    out = np.zeros_like(inputs.q)
    correct = reference(inputs)
    tensors = {"q": inputs.q, "k": inputs.k, "v": inputs.v, "out": out}
    first = next(iter(plans.values()))
    arguments = [
        tensors[a.name] if isinstance(a, TensorArg) else getattr(np, a.ctype)(a.value)
        for a in first.passes[0].args
    ]
    answer = [
        correct.astype(np.float16) if isinstance(a, TensorArg) and a.name == "out" else None
        for a in first.passes[0].args
    ]

    def plan(params: Mapping[str, Any]) -> Any:
        key = {n: int(params[f"tune_{n}"]) for n in configs[0]}
        return plans.get(tuple(sorted(key.items())))

    def source(params: Mapping[str, Any]) -> str:
        # Kernel Tuner defines parameters by their names, which the kernel reads as these macros.
        defines = "".join(f"#define {name} {value}\n" for name, value in plan(params).defines)
        return defines + variant.source.read_text()

    def fits(params: Mapping[str, Any]) -> bool:
        found = plan(params)
        return found is not None and found.passes[0].threads == params["block_size_x"]

    tunables: dict[str, list[int]] = {
        f"tune_{name}": sorted({c[name] for c in configs}) for name in configs[0]
    }
    tunables["block_size_x"] = sorted({p.passes[0].threads for p in plans.values()})
    start = time.perf_counter()
    results, _ = tune_kernel(
        first.passes[0].entry,
        source,
        lambda params: plan(params).passes[0].grid,
        arguments,
        tunables,
        grid_div_x=[],
        grid_div_y=[],
        grid_div_z=[],
        restrictions=fits,
        answer=answer,
        atol=4 * absolute_tolerance(float(np.abs(correct).max()), problem.dtype),
        lang="CuPy",
        smem_args={"size": lambda params: plan(params).passes[0].dynamic_smem_bytes},
        compiler_options=[f"-I{variant.source.parent}", "--std=c++17"],
        quiet=True,
    )
    took_s = time.perf_counter() - start
    best = min((r for r in results if isinstance(r["time"], float)), key=lambda r: r["time"])
    return took_s, {n: int(best[f"tune_{n}"]) for n in configs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variant", nargs="?", default="v04")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    if (why := why_not_cuda()) is not None:
        raise SystemExit(why)
    variant, problem = by_id(args.variant), Problem(4, 16, 1024, 64)
    points = Space((variant.id,), (problem,)).points(SweepOptions(backend="cuda"))
    configs = [dict(p.request.config) for p in points if p.why_not is None]
    print(f"{variant.id}, {problem.label()}: {len(configs)} configs")
    rates: dict[str, list[float]] = {"Attune": [], "Kernel Tuner": []}
    best: dict[str, Config] = {}
    for _ in range(args.turns):
        for name in rates:
            with tempfile.TemporaryDirectory() as folder:
                if name == "Attune":
                    took_s, best[name] = attune(variant, problem, Path(folder))
                else:
                    took_s, best[name] = kernel_tuner(variant, problem, configs, Path(folder))
            rates[name].append(60 * len(configs) / took_s)
            print(f"{name:<14}{rates[name][-1]:8.1f} configs/min, best {best[name]}")
    ratio = statistics.median(rates["Attune"]) / statistics.median(rates["Kernel Tuner"])
    print(f"ratio {ratio:.2f} (goal {GOAL:g}: {'met' if ratio >= GOAL else 'missed'})")


if __name__ == "__main__":
    main()
