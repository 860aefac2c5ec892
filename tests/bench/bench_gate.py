"""What the gate takes: the ladder unchanged, and with one kernel changed.

    python tests/bench/bench_gate.py

Both on a copy of the kernels in a repository of their own, with the default problems and GPUs and
an empty cache for what is compiled; the emulator's libraries are built before. Goals on two idle
cores: 5 s and 30 s.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from engine.cli import main  # noqa: E402
from engine.machine_code.native_library import build_libraries  # noqa: E402
from tests.gate.repositories import edit, kernel_file, repository  # noqa: E402


def timed(label: str) -> None:
    began = time.perf_counter()
    code = main(["gate", "HEAD"])
    print(f"\n{label}: exit code {code}, {time.perf_counter() - began:.1f} s\n")


def run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ATTUNE_CACHE_DIR"] = str(Path(folder, "cache"))
        build_libraries()
        every = [f"v{n:02}" for n in range(1, 30)]
        repo = repository(Path(folder, "repo"), *every, settings="")
        os.chdir(repo)
        timed("the ladder unchanged")
        edit(kernel_file(repo, "v08"), ("unroll 4", "unroll 1"))
        timed("one kernel changed")
        os.chdir(ROOT)


if __name__ == "__main__":
    run()
