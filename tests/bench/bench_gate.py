"""Wall and processor time of the gate: without a change, with a changed kernel or header.

    python tests/bench/bench_gate.py [NAME ...]

Each case runs `attune gate HEAD` in a new process, on a copy of the kernels in a new repository,
with the default problems and GPUs and an empty compile cache; the emulator's libraries are built
before. NAME selects cases by a part of their name. Processor time is that of all processes. Goals
on two idle cores: 5 s unchanged, 30 s with a changed kernel.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gate.repositories import edit, git, kernel_file, repository  # noqa: E402

# Name → (a kernel, or part of a header's name; old text; new text).
CASES: dict[str, tuple[str, str, str] | None] = {
    "unchanged": None,
    "v08, a comment": ("v08", "#include", "// A comment.\n#include"),
    "v08, loads not unrolled": ("v08", "unroll 4", "unroll 1"),
    "v11, a comment": ("v11", "#include", "// A comment.\n#include"),
    "v11, another scale": ("v11", "softmax_scale * LOG2_E", "softmax_scale * 0.5f * LOG2_E"),
    "v18, a comment": ("v18", "#include", "// A comment.\n#include"),
    "v18, another scale": ("v18", "softmax_scale * LOG2_E", "softmax_scale * 0.5f * LOG2_E"),
    "a header of 7 kernels, a comment": ("hopper", "#pragma once", "#pragma once  // A comment."),
}


# Build the libraries that count and simulate, and the one that executes.
_BUILD = """
from engine.machine_code.execution import prepare
from engine.machine_code.native_library import build_libraries
build_libraries()
prepare()
"""


def spent() -> tuple[float, float]:
    """(clock, processor time of the processes that have ended), s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter(), used.ru_utime + used.ru_stime


def attune(*arguments: str, cache: Path, where: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ATTUNE_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=where, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def changed_file(repo: Path, name: str) -> Path:
    headers = list((repo / "kernels").glob(f"*{name}*.cuh"))
    return headers[0] if headers else kernel_file(repo, name)


def run(wanted: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "built")
        began = spent()
        attune("-c", _BUILD, cache=built, where=ROOT)
        every = [f"v{n:02}" for n in range(1, 30)]
        repo = repository(Path(folder, "repo"), *every, settings="")
        print(f"{'case':36} {'clock, s':>9} {'processor, s':>13}  exit code, verdicts")
        clock, processor = (b - a for a, b in zip(began, spent(), strict=True))
        print(f"{'the emulator built, once':36} {clock:9.1f} {processor:13.1f}")
        for name, change in CASES.items():
            if wanted and not any(word in name for word in wanted):
                continue
            git(repo, "checkout", "-q", ".")
            if change is not None:
                edit(changed_file(repo, change[0]), change[1:])
            cache = Path(folder, "cache")
            shutil.copytree(built, cache)
            before = spent()
            done = attune("-m", "engine", "gate", "HEAD", cache=cache, where=repo)
            clock, processor = (b - a for a, b in zip(before, spent(), strict=True))
            shutil.rmtree(cache)
            said = [line for line in done.stdout.splitlines() if line.strip()]
            print(
                f"{name:36} {clock:9.1f} {processor:13.1f}  {done.returncode}, {said[0].strip()}",
                flush=True,
            )


if __name__ == "__main__":
    run(sys.argv[1:])
