"""One plan on the GPU as something to time. How that is done is in engine/measure/replay.py."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

import numpy as np

from engine.backends.cuda.buffers import kernel_arguments
from engine.backends.cuda.calls import GpuCalls, Kernel
from engine.errors import MeasureError
from engine.plan import LaunchPlan
from engine.tensors import POISON_BITS, Inputs

_ALIGNMENT = 256  # what cudaMalloc gives, so that a copy is like an allocation of its own
_TENSORS = ("q", "k", "v", "out")


class DeviceTimer:
    """Holds the device memory of one measurement. A context manager; leaving it frees the memory.

    Satisfies `engine.measure.replay.Launchable`.

    Args:
        explain: the sentence for what CuPy raises; raises it again when it is not CUDA's.
    """

    def __init__(
        self,
        calls: GpuCalls,
        plan: LaunchPlan,
        kernels: dict[str, Kernel],
        inputs: Inputs,
        explain: Callable[[Exception], str],
    ) -> None:
        self._calls = calls
        self._plan = plan
        self._kernels = kernels
        self._inputs = inputs
        self._explain = explain
        self._alone: int | None = None  # fingerprint of a single launch's output
        self._allocated: list[int] = []
        # Where each tensor begins in a copy.
        self._offsets: dict[str, int] = {}
        self._copy_bytes = 0
        problem = plan.problem
        sizes = (problem.tensor_bytes, problem.kv_bytes, problem.kv_bytes, problem.tensor_bytes)
        for name, size in zip(_TENSORS, sizes, strict=True):
            self._offsets[name] = self._copy_bytes
            self._copy_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._scratch: dict[str, int] = {}
        self._copies: list[int] = []
        self._flush_area: int | None = None

    def __enter__(self) -> Self:
        try:
            self._copies.append(self._alloc(self.copy_bytes))
            self._upload()
            self._launch_alone()
        except (RuntimeError, MemoryError) as error:
            self.__exit__()
            raise self.failed(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        for address in self._allocated:
            self._calls.free(address)
        self._allocated.clear()

    @property
    def copy_bytes(self) -> int:
        return self._copy_bytes

    @property
    def l2_bytes(self) -> int:
        return self._calls.l2_bytes

    def free_bytes(self) -> int:
        return self._calls.free_bytes()

    def make_copies(self, count: int) -> None:
        more = count - len(self._copies)
        if more <= 0:
            return
        arena = self._alloc(more * self.copy_bytes)
        for i in range(more):
            address = arena + i * self.copy_bytes
            self._calls.copy(address, self._copies[0], self.copy_bytes)
            self._copies.append(address)

    def once_us(self) -> float:
        return self._calls.elapsed_us(self._queue(0))

    def graph(self, launches: int, copies: int) -> Callable[[], float]:
        rotation = [self._queue(i) for i in range(copies)]

        def queue() -> None:
            for i in range(launches):
                rotation[i % copies]()

        graph = self._calls.capture(queue)
        return lambda: self._calls.replay_us(graph)

    def flush_l2(self, size: int) -> None:
        if self._flush_area is None:
            self._flush_area = self._alloc(size)
        self._calls.fill(self._flush_area, size, np.uint16(0))

    def call_us(self, calls: int) -> float:
        queue = self._queue(0)
        start = time.perf_counter_ns()
        for _ in range(calls):
            queue()
            self._calls.wait()
        # Calls shorter than the clock's tick still took some time.
        return max(time.perf_counter_ns() - start, 1) / 1000 / calls

    def verify(self) -> None:
        """The first and the last copy hold the output of a single launch."""
        if {self._output_fingerprint(0), self._output_fingerprint(-1)} != {self._alone}:
            raise MeasureError(
                "Launches that follow each other at once gave another output than a single one, "
                "so their time says nothing: look for a race, or for scratch that is not reset."
            )

    def failed(self, error: Exception) -> MeasureError:
        return MeasureError(self._explain(error))

    def _launch_alone(self) -> None:
        self._queue(0)()
        self._calls.wait()
        self._alone = self._output_fingerprint(0)
        self._poison_output()

    def _alloc(self, size: int) -> int:
        address = self._calls.alloc(size)
        self._allocated.append(address)
        return address

    def _upload(self) -> None:
        inputs = self._inputs
        for name, values in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v)):
            self._calls.write(self._copies[0] + self._offsets[name], values)
        for scratch in self._plan.scratch:
            address = self._scratch[scratch.name] = self._alloc(scratch.size_bytes)
            fill = np.uint16(0) if scratch.fill == "zero" else POISON_BITS
            self._calls.fill(address, scratch.size_bytes, fill)

    def _queue(self, copy: int) -> Callable[[], None]:
        """A function that queues all passes of one launch on this copy."""
        addresses = {
            name: self._copies[copy] + offset for name, offset in self._offsets.items()
        } | self._scratch
        launches = [
            (
                self._kernels[p.entry],
                p.grid,
                p.threads,
                p.dynamic_smem_bytes,
                kernel_arguments(p, addresses),
            )
            for p in self._plan.passes
        ]

        def queue() -> None:
            for launch in launches:
                self._calls.launch(*launch)

        return queue

    def _out(self, copy: int) -> int:
        return self._copies[copy] + self._offsets["out"]

    def _output_fingerprint(self, copy: int) -> int:
        return self._calls.fingerprint(self._out(copy), self._plan.problem.tensor_bytes)

    def _poison_output(self) -> None:
        """Of the first copy; the others are made from it."""
        self._calls.fill(self._out(0), self._plan.problem.tensor_bytes, POISON_BITS)
