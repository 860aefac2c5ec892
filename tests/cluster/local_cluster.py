"""Dask schedulers and workers as local processes, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 60.0

# Like `dask scheduler` on a machine without Attune.
_WITHOUT_ATTUNE = """
import sys
sys.modules["engine"] = sys.modules["kernels"] = None
from dask.__main__ import main
main()
"""


class LocalCluster:
    """A scheduler and its workers as processes, all of which are ended on exit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._file = folder / "scheduler.json"
        self.address = ""
        self.environment = {
            **os.environ,
            "ATTUNE_CPU_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", Path(__file__).parent))),
            # A worker that has lost its scheduler gives up soon.
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s",
        }

    def __enter__(self) -> Self:
        options = ["--port", "0", "--scheduler-file", str(self._file)]
        self.scheduler = self._start("scheduler", options, attune=False)
        wait_for(lambda: self._file.exists() and self._file.read_text().endswith("}"))
        self.address = json.loads(self._file.read_text())["address"]
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def add_worker(
        self,
        *,
        nanny: bool = True,
        preload: str = "",
        env: Mapping[str, str] | None = None,
        attune: bool = True,
    ) -> None:
        """Start a worker, which runs `preload` before any task."""
        options = [self.address, "--nthreads", "1", "--memory-limit", "0"]
        options += ["--nanny" if nanny else "--no-nanny"]
        options += ["--local-directory", str(self._folder)]
        if preload:
            path = self._folder / f"preload{len(self._processes)}.py"
            path.write_text(preload)
            options += ["--preload", str(path)]
        self._start("worker", options, env or {}, attune)

    def log(self) -> str:
        return "\n".join(p.read_text() for p in sorted(self._folder.glob("*.log")))

    def _start(
        self,
        what: str,
        options: list[str],
        env: Mapping[str, str] | None = None,
        attune: bool = True,
    ) -> subprocess.Popen[bytes]:
        code = ["-m", "dask"] if attune else ["-c", _WITHOUT_ATTUNE]
        argv = [sys.executable, *code, what, *options, "--host", "127.0.0.1", "--no-dashboard"]
        with (self._folder / f"{what}{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                argv,
                cwd=self._folder,
                env={**self.environment, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)
        return process


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
