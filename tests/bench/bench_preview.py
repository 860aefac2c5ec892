"""CPU time of one preview, as at every slider step: `bench_preview.py [OTHER_CHECKOUT]`.

Every compile is in the cache; requests differ in sequence length, so that no answer is cached. Name
another checkout to compare with it: both alternate, each turn in a new process, and process CPU
time is compared, which depends least on other load.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TURNS = 15

# Runs in the checkout and prints milliseconds per preview.
_PROBE = """
import importlib, time

def module(*names):
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name):
                raise
    raise SystemExit(f"none of {names} is here")

preview = module("engine.pipeline.request", "engine.pipeline.preview", "engine.preview").preview
request_of = module("engine.pipeline.request", "engine.request").EvaluationRequest
compile_plan = module("engine.plan", "engine.model.kernel", "engine.attention.plan").compile_plan
Problem = module("engine.problem", "engine.attention.problem").Problem

requests = [
    request_of(variant, Problem(1, 8, seqlen, 64), gpu=gpu, backend="cpu")
    for seqlen in range(200, 240)
    for variant in ("v01", "v05")
    for gpu in ("L4", "A100")
]
for request in requests:
    shown = preview(request)
    if shown.needs_compile:
        compile_plan(shown.plan, shown.device.arch)
before = time.process_time()
for request in requests:
    assert preview(request).latency is not None
print((time.process_time() - before) * 1e3 / len(requests))
"""


def main() -> None:
    roots = [ROOT, *(Path(name).resolve() for name in sys.argv[1:2])]
    times_ms: list[list[float]] = [[] for _ in roots]
    for turn in range(TURNS):
        # The first one alternates.
        for i in range(len(roots)) if turn % 2 == 0 else reversed(range(len(roots))):
            command = [sys.executable, "-c", _PROBE]
            done = subprocess.run(command, cwd=roots[i], check=True, stdout=subprocess.PIPE)
            times_ms[i].append(float(done.stdout))
    for root, times in zip(roots, times_ms, strict=True):
        low, middle, high = min(times), statistics.median(times), max(times)
        print(f"{middle:6.2f} ms  ({low:.2f} to {high:.2f}, {TURNS} processes)  {root}")
    if len(roots) > 1:
        ratios = [here / other for here, other in zip(*times_ms, strict=True)]
        print(f"{statistics.median(ratios):6.2f}     of the other's, median of the turns")


if __name__ == "__main__":
    main()
