"""Compiles the next points of a sweep beside the one that is being measured.

In processes of their own: a compiler that crashes takes no measurement with it, and no thread of
theirs stands between two CUDA calls. What they leave is an entry in the cache on disk; a point that
is not there yet is compiled by whoever evaluates it.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Self

from engine.base.errors import AttuneError
from engine.pipeline.request import EvaluationRequest
from engine.schema import decode, encode

_AHEAD = 4  # points per process that may be compiled before their turn


class CompileAhead:
    """A context manager; `next_point` is called once per evaluation and returns at once.

    Args:
        requests: in the order in which they will be evaluated, as far as that is known.
        on_cpu: whether the host build is needed too.
        processes: one less than the machine has by default, and at least one.
    """

    def __init__(
        self, requests: Iterable[EvaluationRequest], *, on_cpu: bool, processes: int | None = None
    ) -> None:
        self._waiting = deque(requests)
        self._on_cpu = on_cpu
        self._processes = processes or max(1, (os.cpu_count() or 1) - 1)
        self._started: deque[Future[None]] = deque()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if len(self._waiting) > 1:
            # Not by fork: this process has threads and perhaps a CUDA context.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, context, _end_with_parent)
            self._fill()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is not compiled yet. Safe to call twice."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def next_point(self) -> None:
        """One more point is about to be evaluated."""
        if self._pool is not None and self._started:
            self._started.popleft()
            self._fill()

    def _fill(self) -> None:
        while (
            self._pool is not None
            and self._waiting
            and len(self._started) < _AHEAD * self._processes
        ):
            request = encode(self._waiting.popleft())
            try:
                self._started.append(self._pool.submit(_compile, request, self._on_cpu))
            except (BrokenProcessPool, RuntimeError):
                self.close()  # the evaluations compile for themselves, as they would have anyway


def _end_with_parent() -> None:
    """A pool's process outlives a parent that is killed, or replaces itself; not this one."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def _compile(data: dict[str, Any], on_cpu: bool) -> None:
    """Put one point's builds into the cache. What fails here fails again there, with its reason."""
    from engine.compiled_plan import compile_plan
    from engine.cuda_on_host.build import build_kernels
    from engine.pipeline.request import resolve
    from engine.plan import make_plan

    request = decode(EvaluationRequest, data)
    try:
        target = resolve(request)
        plan = make_plan(target.variant, request.problem, target.config)
        if target.device is not None:
            compile_plan(plan, target.device.arch)
        if on_cpu:
            build_kernels(
                plan.source,
                plan.entries,
                plan.defines,
                request.check,
                target.arch,
                plan.include_folders,
                plan.cpp,
            )
    except AttuneError:
        return
