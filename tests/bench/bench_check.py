"""What a check costs: the first variant on a problem, and one that finds the reference ready.

    python tests/bench/bench_check.py                        # B32 H16 S512 D128, v08
    python tests/bench/bench_check.py --B 1 --H 8 --S 1024 --D 64 --variant v02

One round evaluates with nothing kept (inputs, reference and SDPA are made, beside the execution),
then once more (they are found), as a second variant would. Both sides alternate in one process. The
time inside the backend is printed beside them; what is left is copies and the comparison itself.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine.base.status import Status
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest
from engine.problem import Problem


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in (("B", 32), ("H", 16), ("S", 512), ("D", 128), ("rounds", 3)):
        p.add_argument(f"--{name}", type=int, default=value)
    p.add_argument("--variant", default="v08")
    args = p.parse_args()
    problem = Problem(args.B, args.H, args.S, args.D)
    first: list[float] = []
    second: list[float] = []
    executed: list[float] = []
    with Evaluator() as warm:
        _evaluate(warm, args.variant, problem)  # builds, PyTorch and the child process
        for _ in range(args.rounds):
            warm.expected.clear()
            first.append(_evaluate(warm, args.variant, problem)[0])
            took_s, inside_s = _evaluate(warm, args.variant, problem)
            second.append(took_s)
            executed.append(inside_s)
    print(f"{args.variant} on {problem.label()}, medians of {args.rounds} interleaved rounds")
    print(f"first on the problem   {statistics.median(first):8.2f} s")
    print(f"second on the problem  {statistics.median(second):8.2f} s")
    print(f"of it inside the CPU backend, both runs  {statistics.median(executed):8.2f} s")


def _evaluate(evaluator: Evaluator, variant: str, problem: Problem) -> tuple[float, float]:
    """(seconds of the evaluation, seconds that its two executions took)."""
    begin = time.perf_counter()
    request = EvaluationRequest(variant, problem, backend="cpu", timeout_s=600.0)
    evaluation = evaluator.evaluate(request).evaluation
    took = time.perf_counter() - begin
    if evaluation.status is not Status.PASSED or evaluation.execution is None:
        raise SystemExit(f"{evaluation.status}: {evaluation.reason}")
    return took, 2 * (evaluation.execution.cpu_execution_ms or 0.0) / 1e3


if __name__ == "__main__":
    main()
