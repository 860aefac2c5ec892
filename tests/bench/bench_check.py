"""Time of a check: of the first variant on a problem, and of one with a cached reference.

    python tests/bench/bench_check.py                        # B32 H16 S512 D128, v08
    python tests/bench/bench_check.py --B 1 --H 8 --S 1024 --D 64 --variant v02
    python tests/bench/bench_check.py --compare v01,v06,v08,v11,v15 --B 1 [--gpu H200]
    python tests/bench/bench_check.py --part

One round evaluates without cached inputs, reference and SDPA (they are computed beside the
execution), then with them, as for a second variant. Both sides alternate in one process. The time
inside the backend is printed too; the rest is copies and the comparison.

`--compare` executes each kernel by a host build and as machine code, alternating, and prints the
time of an execution by each and their ratio. `--part` prints the time from the click to the verdict
on a part and on the whole: of the first evaluation in this process, which loads PyTorch, of a
second, and of one on new inputs, as in a running worker; the goals are for two idle cores.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.backends.base import BackendName
from engine.base.errors import Status
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest

GOAL_PART_S, GOAL_WHOLE_S = 2.0, 5.0


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in (("B", 32), ("H", 16), ("S", 512), ("D", 128), ("rounds", 3)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--variant", default="v08")
    p.add_argument("--gpu", default="L4")
    p.add_argument("--compare", metavar="VARIANTS", default="")
    p.add_argument("--part", action="store_true")
    args = p.parse_args()
    problem = Problem(args.B, args.H, args.S, args.D)
    if args.compare:
        compare(args.compare.split(","), problem, args.gpu, args.rounds)
    elif args.part:
        part(args.variant, problem, args.gpu)
    else:
        first_and_second(args.variant, problem, args.rounds)


def first_and_second(variant: str, problem: Problem, rounds: int) -> None:
    """Return times with the expected output to be computed, and with it cached."""
    first: list[float] = []
    second: list[float] = []
    executed: list[float] = []
    with Evaluator() as warm:
        _evaluate(warm, variant, problem)  # builds, PyTorch and the child process
        for _ in range(rounds):
            warm.expected.clear()
            first.append(_evaluate(warm, variant, problem)[0])
            took_s, inside_s = _evaluate(warm, variant, problem)
            second.append(took_s)
            executed.append(inside_s)
    print(f"{variant} on {problem.label()}, medians of {rounds} interleaved rounds")
    print(f"first on the problem   {statistics.median(first):8.2f} s")
    print(f"second on the problem  {statistics.median(second):8.2f} s")
    print(f"of it inside the CPU backend, both runs  {statistics.median(executed):8.2f} s")


def compare(variants: list[str], problem: Problem, gpu: str, rounds: int) -> None:
    """Compare host build and machine code in one process, interleaved."""
    sides: tuple[BackendName, BackendName] = ("cpu", "machine-code")
    with Evaluator() as evaluator:
        for variant in variants:
            took: dict[str, list[float]] = {name: [] for name in sides}
            for number in range(rounds + 1):
                for name in sides:
                    request = EvaluationRequest(
                        variant, problem, gpu=gpu, backend=name, timeout_s=600.0
                    )
                    made = evaluator.evaluate(request, simulates=False).evaluation
                    if made.status is not Status.PASSED or made.execution is None:
                        raise SystemExit(f"{made.status}: {made.reason}")
                    if number:  # the first run builds
                        took[name].append(made.execution.cpu_execution_ms or 0.0)
            host, code = (statistics.median(took[name]) for name in sides)
            print(
                f"{variant} on {problem.label()} for {gpu}: host build {host:,.1f} ms, machine "
                f"code {code:,.1f} ms, {host / code:.2f} times as fast",
                flush=True,
            )


def part(variant: str, problem: Problem, gpu: str) -> None:
    """Time an evaluation as in a job: first the verdict on a part, then on the whole."""
    with Evaluator() as evaluator:
        for which, seed in (("first", 0), ("second", 0), ("new inputs'", 1)):
            begin, cpu = time.perf_counter(), time.process_time()
            first: list[float] = []

            def on_part(_: Evaluation, first: list[float] = first, begin: float = begin) -> None:
                first.append(time.perf_counter() - begin)

            request = EvaluationRequest(variant, problem, gpu=gpu, seed=seed)
            made = evaluator.evaluate(request, on_part=on_part, simulates=False).evaluation
            whole, cpu = time.perf_counter() - begin, time.process_time() - cpu
            seen = f"{first[0]:.2f} s" if first else "none"
            name = made.execution.backend if made.execution is not None else "nothing"
            is_met = whole <= GOAL_WHOLE_S and all(s <= GOAL_PART_S for s in first)
            print(
                f"{which} evaluation of {variant} on {problem.label()} by {name}: part's verdict "
                f"{seen}, whole {whole:.2f} s ({cpu:.2f} s of processor time): {made.status}   "
                f"goals {GOAL_PART_S:g} and {GOAL_WHOLE_S:g} s: {'met' if is_met else 'missed'}",
                flush=True,
            )


def _evaluate(evaluator: Evaluator, variant: str, problem: Problem) -> tuple[float, float]:
    """Return seconds of the evaluation, and of its two executions."""
    begin = time.perf_counter()
    request = EvaluationRequest(variant, problem, backend="cpu", timeout_s=600.0)
    evaluation = evaluator.evaluate(request).evaluation
    took = time.perf_counter() - begin
    if evaluation.status is not Status.PASSED or evaluation.execution is None:
        raise SystemExit(f"{evaluation.status}: {evaluation.reason}")
    return took, 2 * (evaluation.execution.cpu_execution_ms or 0.0) / 1e3


if __name__ == "__main__":
    main()
