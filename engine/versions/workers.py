"""Run tasks in parallel in separate processes, each with limits of time and memory.

A judged change may be malicious or crash the compiler; then only its task fails, with a sentence.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

DEFAULT_SECONDS, DEFAULT_MEMORY_GIB = 300.0, 16.0

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Failed:
    """A task that has no result, and why."""

    sentence: str


class Workers(Generic[T, R]):
    """Runs `function` on tasks in `processes` processes.

    Args:
        function: a top-level function whose result can be pickled.
        seconds: time limit of one task.
        memory_gib: limit of a process' address space; not limited on platforms without such limits.
    """

    def __init__(
        self, function: Callable[[T], R], seconds: float, memory_gib: float, processes: int = 0
    ) -> None:
        self._function, self._seconds, self._memory_gib = function, seconds, memory_gib
        self._processes = processes or os.cpu_count() or 1

    def run(
        self, tasks: Sequence[T], on_done: Callable[[T, R | Failed], None] | None = None
    ) -> list[R | Failed]:
        """Return the tasks' results, in order."""
        results: list[R | Failed] = [Failed("It was not run.")] * len(tasks)
        waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(len(tasks)):
            waiting.put(number)
        stop = threading.Event()

        def work() -> None:
            process = _Process(self._function, self._memory_gib)
            try:
                while not stop.is_set():
                    number = waiting.get_nowait()
                    results[number] = process.call(tasks[number], self._seconds, stop)
                    if on_done is not None:
                        on_done(tasks[number], results[number])
            except queue.Empty:
                return
            finally:
                process.close()

        count = min(self._processes, len(tasks))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:
            stop.set()
            for thread in threads:
                thread.join(5)
            raise
        return results


class _Process:
    """One process, started on its first call and again after a crash."""

    def __init__(self, function: Callable[[Any], Any], memory_gib: float) -> None:
        self._function, self._memory_gib = function, memory_gib
        self._process: Any = None
        self._connection: Connection | None = None

    def call(self, task: Any, seconds: float, stop: threading.Event) -> Any:
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            self._connection, child_end = context.Pipe()
            self._process = context.Process(
                target=_serve, args=(child_end, self._function, self._memory_gib), daemon=True
            )
            self._process.start()
            child_end.close()
        try:
            self._connection.send(task)
            waited = 0.0
            while not self._connection.poll(0.2):
                waited += 0.2
                if stop.is_set() or waited > seconds:
                    self.close()
                    return Failed(f"It took longer than {seconds:.0f} s, the limit, and was ended.")
            return self._connection.recv()
        except (EOFError, OSError):
            assert self._process is not None
            self._process.join(5)
            code = self._process.exitcode
            self.close()
            return Failed(
                f"The process that judged it died (exit code {code}): a crash of the compiler, or "
                f"more than {self._memory_gib:g} GiB of memory."
            )

    def close(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                # Including the compilers that it started.
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def _serve(connection: Connection, function: Callable[[Any], Any], memory_gib: float) -> None:
    os.setsid()  # its own process group, which is killed as a whole
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    limit = int(memory_gib * (1 << 30))
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(EOFError, OSError):
        while True:
            task = connection.recv()
            try:
                answer = function(task)
            except MemoryError:
                answer = Failed(f"It needs more than {memory_gib:g} GiB of memory, the limit.")
            connection.send(answer)
