"""CPU time of counting in several commits of this repository, with ratios to the first one.

`python tests/bench/bench_counting.py COMMIT [COMMIT …]`: the first CTA of some rungs is emulated
for its counts and for its trace, alternating between one process for each commit and for these
files; medians of CPU time in ms are printed. All run the cubins and launches of these files, so an
old commit must support launches without known memory (from 2026-11-22 on).
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ("v01", "v06", "v08", "v11", "v15", "v17")
ROUNDS = 12


def write_launches(to: IO[bytes]) -> None:
    """Write cubins and launches as bytes and numbers, which any version reads."""
    sys.path.insert(0, str(ROOT / "tests"))
    from fitting import fitting_config

    from engine.attention.plan import make_plan
    from engine.attention.problem import Problem
    from engine.model.kernel import compile_plan, launch_of_pass
    from kernels.ladder import LADDER

    for name in KERNELS:
        problem = Problem(1, 4, 512, 128 if name > "v06" else 64)
        plan = make_plan(LADDER.by_id(name), problem, fitting_config(LADDER.by_id(name), problem))
        compiled = compile_plan(plan, "sm_90" if name >= "v15" else "sm_89")
        entry, launch = plan.passes[0].entry, launch_of_pass(plan, 0)
        parts = (launch.grid, launch.block, launch.dynamic_smem_bytes, launch.arguments)
        pickle.dump((name, compiled.cubin, compiled.symbols.get(entry, entry), parts), to)
    to.flush()


def serve(launches: Path) -> None:
    """Time the launches named on standard input with this version; print to standard output."""
    from engine.machine_code.analysis import program_of
    from engine.machine_code.cubin import read_cubin
    from engine.machine_code.emulation import Emulator
    from engine.machine_code.launch import Launch

    emulators = {}
    with launches.open("rb") as file:
        for _ in KERNELS:
            name, code, entry, launch = pickle.load(file)
            cubin = read_cubin(code)
            emulators[name] = Emulator(
                program_of(cubin, entry), cubin.entries[entry], Launch(*launch)
            )
            emulators[name].totals((0, 0, 0))
    print("ready", flush=True)
    for line in sys.stdin:
        name, what = line.split()
        times, begin = 0, time.process_time()
        while times < 3 or time.process_time() < begin + 0.05:
            getattr(emulators[name], what)((0, 0, 0))
            times += 1
        print((time.process_time() - begin) / times * 1e3, flush=True)


def compare(commits: list[str]) -> None:
    with ExitStack() as stack:
        launches = stack.enter_context(tempfile.NamedTemporaryFile())
        write_launches(launches)
        children = []
        for commit in [*commits, None]:
            folder = ROOT
            if commit is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                files = subprocess.run(
                    ["git", "-C", ROOT, "archive", commit], check=True, stdout=subprocess.PIPE
                )
                subprocess.run(["tar", "-x", "-C", folder], check=True, input=files.stdout)
            begin = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
            command = [sys.executable, "-c", begin, "--serve", launches.name]
            pipe = subprocess.PIPE
            child = subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe, text=True)
            stack.callback(child.kill)
            assert child.stdin is not None
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                sys.exit(f"{commit or 'These files'} cannot count these launches.")
            children.append((child.stdin, child.stdout))
        print("kernel, what:", *commits, "these files", sep="  ")
        for what in ("totals", "trace"):
            for name in KERNELS:
                took: list[list[float]] = [[] for _ in children]
                for _ in range(ROUNDS):
                    for times, (to, back) in zip(took, children, strict=True):
                        print(name, what, file=to, flush=True)
                        times.append(float(back.readline()))
                middle = [statistics.median(times) for times in took]
                each = "  ".join(f"{ms:.2f} ms ({ms / middle[0]:.2f})" for ms in middle)
                print(f"{name} {what}:  {each}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="*", metavar="COMMIT")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    serve(args.serve) if args.serve else compare(args.commits)
