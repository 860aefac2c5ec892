"""Device memory of one run with guard zones, and the timer of a plan on the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np

from engine.attention.plan import LaunchPlan
from engine.attention.tensors import POISON_BITS, FloatArray, Inputs, RawArray, gradients_of, lse_of
from engine.backends.cuda.calls import GpuCalls, Graph, Kernel, KernelArgument
from engine.base.errors import MeasureError
from engine.base.launch_arguments import (
    FORMATS,
    PassLaunch,
    ScalarArg,
    StructArg,
    TensorMapArg,
    encode_argument,
)
from engine.base.units import format_bytes

# Device memory of one run: Q, K, V, O and scratch, each with a guard zone on either side.
#
# Guards and all unwritten memory hold a NaN pattern, so a read out of bounds gives NaN in the
# output, and a write out of bounds changes a guard.

GUARD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class GuardedBuffer:
    """`size` bytes at `address`, with GUARD_BYTES of the pattern on either side."""

    name: str
    address: int
    size: int

    @property
    def before(self) -> int:
        """Return the address of the front guard, where the allocation begins."""
        return self.address - GUARD_BYTES

    @property
    def behind(self) -> int:
        return self.address + self.size


def why_too_large(plan: LaunchPlan, free_bytes: int) -> str | None:
    """Return a sentence if tensors and scratch exceed the GPU's free memory; None if they fit."""
    # The backend keeps a copy of the output for comparison with a second run.
    needed = plan.device_bytes + plan.problem.tensor_bytes
    if needed <= free_bytes:
        return None
    return (
        f"{plan.problem.label()} needs {format_bytes(needed)} of GPU memory (Q, K, V, O, scratch) "
        f"and {format_bytes(free_bytes)} is free: choose a smaller batch, fewer heads or a shorter "
        "sequence."
    )


class Buffers:
    """The device buffers of one plan; a context manager that frees them."""

    def __init__(self, calls: GpuCalls, plan: LaunchPlan) -> None:
        self._calls = calls
        self._plan = plan
        self._by_name: dict[str, GuardedBuffer] = {}

    def __enter__(self) -> Self:
        try:
            for name, size in self._plan.buffer_bytes.items():
                self._allocate(name, size)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self._by_name.values():
            self._calls.free(buffer.before)
        self._by_name.clear()

    def _allocate(self, name: str, size: int) -> None:
        base = self._calls.alloc(size + 2 * GUARD_BYTES)
        self._by_name[name] = GuardedBuffer(name, base + GUARD_BYTES, size)
        self._calls.fill(base, size + 2 * GUARD_BYTES, POISON_BITS)

    def upload(self, inputs: Inputs) -> None:
        """Upload the inputs and the initial contents of scratch and output."""
        for name, values in self._plan.tensors_of(inputs).items():
            self._calls.write(self._by_name[name].address, values)
        for scratch in self._plan.scratch:
            if (initial := scratch.initial) is not None:
                self._calls.write(self._by_name[scratch.name].address, initial)
        self._refill()

    def poison(self) -> None:
        """Fill output and poisoned scratch with the pattern again; counters keep their values."""
        names = [*self._plan.outputs, *(s.name for s in self._plan.scratch if s.fill == "poison")]
        for buffer in (self._by_name[name] for name in names):
            self._calls.fill(buffer.address, buffer.size, POISON_BITS)
        self._refill()

    def _refill(self) -> None:
        for name, values in self._plan.refilled.items():
            self._calls.write(self._by_name[name].address, values)

    def arguments(self, launch: PassLaunch) -> tuple[KernelArgument, ...]:
        """Return the kernel's arguments by value, in order."""
        addresses = self._plan.addresses({n: b.address for n, b in self._by_name.items()})
        return kernel_arguments(self._calls, launch, addresses)

    def input_fingerprints(self) -> dict[str, int]:
        """Return a hash of the contents of Q, K, V and the block table on the device, by name."""
        names = self._plan.inputs
        return dict(zip(names, self._fingerprints(*names), strict=True))

    def changed_inputs(self, uploaded: Mapping[str, int]) -> tuple[str, ...]:
        """Return the names of inputs that differ from the fingerprints taken at upload."""
        now = self.input_fingerprints()
        return tuple(name for name in now if now[name] != uploaded[name])

    def output_fingerprint(self) -> tuple[int, ...]:
        """Return a hash of the outputs on the device."""
        return tuple(self._fingerprints(*self._plan.outputs))

    def _fingerprints(self, *names: str) -> list[int]:
        buffers = (self._by_name[name] for name in names)
        return self._calls.fingerprints([(b.address, b.size) for b in buffers])

    def output(self) -> RawArray:
        """Return O as a raw array, `[batch, num_heads, seqlen, head_dim]`."""
        buffer = self._by_name["out"]
        raw = self._calls.read(buffer.address, buffer.size)
        return self._plan.output_of(raw)

    def gradients(self) -> dict[str, RawArray]:
        """Return dQ, dK and dV of a backward kernel by name, in the shapes of Q, K and V."""
        buffers = {name: self._by_name[name] for name in self._plan.outputs}
        raw = {n: self._calls.read(b.address, b.size) for n, b in buffers.items()}
        return gradients_of(raw, self._plan.problem)

    def lse(self) -> FloatArray | None:
        """Return the LSE (natural logarithm), `[batch, num_heads, seqlen]`; None if not written."""
        if self._plan.lse is None:
            return None
        buffer = self._by_name["lse"]
        raw = self._calls.read(buffer.address, buffer.size)
        return lse_of(raw, self._plan.problem, self._plan.lse)

    def guard_damage(self) -> str | None:
        """Return a sentence on writes outside a buffer; None if all guards are intact."""
        for buffer in self._by_name.values():
            behind = self._damaged_bytes(buffer.behind)
            if behind.size:
                return (
                    f"The kernel wrote past the end of {buffer.name} ({buffer.size:,} bytes): "
                    f"bytes {behind[0]:,} to {behind[-1]:,} behind it changed."
                )
            before = self._damaged_bytes(buffer.before)
            if before.size:
                return (
                    f"The kernel wrote in front of {buffer.name}: bytes "
                    f"{before[0] - GUARD_BYTES:,} to {before[-1] - GUARD_BYTES:,} changed."
                )
        return None

    def _damaged_bytes(self, guard: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
        content = self._calls.read(guard, GUARD_BYTES)
        return np.flatnonzero(content != np.full(GUARD_BYTES // 2, POISON_BITS).view(np.uint8))


def kernel_arguments(
    calls: GpuCalls, launch: PassLaunch, addresses: dict[str, int]
) -> tuple[KernelArgument, ...]:
    """Return pointers and scalars as NumPy scalars of the kernel's types, structures as bytes."""
    values: list[KernelArgument] = []
    for arg in launch.args:
        if isinstance(arg, TensorMapArg):
            values.append(calls.tensor_map(arg, addresses[arg.buffer]))
            continue
        data = encode_argument(arg).with_addresses(addresses)
        if isinstance(arg, StructArg):
            values.append(np.frombuffer(data, np.uint8))
        else:
            kind = FORMATS[arg.ctype] if isinstance(arg, ScalarArg) else "u8"
            values.append(np.frombuffer(data, np.dtype(kind))[0])
    return tuple(values)


_ALIGNMENT = 256  # cudaMalloc's, so that a copy is aligned like a separate allocation


@dataclass(frozen=True, slots=True)
class _Captured:
    """A graph and the number of copies that its launches use."""

    graph: Graph
    copies: int


class DeviceTimer:
    """Times one plan; a context manager that owns and frees the device memory.

    Implements `engine.measure.side_by_side.Launchable`. Launches rotate over copies of everything
    that a launch touches (Q, K, V, O and scratch), so that cold launches find none of it in L2.

    Args:
        explain: returns a sentence for an exception of CuPy.
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
        self._expected = 0  # fingerprint of the output of a single launch
        self._allocated: list[int] = []
        # Offset of each buffer within a copy.
        self._offsets: dict[str, int] = {}
        self._copy_bytes = 0
        for name, size in plan.buffer_bytes.items():
            self._offsets[name] = self._copy_bytes
            self._copy_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self._copies: list[int] = []
        # (address, bytes) of the contents that are copied before each launch, by buffer name.
        self._fills: dict[str, tuple[int, int]] = {}
        self._graphs: list[_Captured] = []
        self._replayed = 1  # number of copies, from the first on, that hold an output
        self._flush_area: int | None = None

    def __enter__(self) -> Self:
        try:
            self._copies.append(self._alloc(self.copy_bytes))
            self._upload()
            self._launch_first()
        except Exception as error:
            self.__exit__()
            raise self.failed(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        for captured in self._graphs:
            self._calls.discard(captured.graph)
        self._graphs.clear()
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
        # The first copy now holds the expected output.
        self._poison_outputs(len(self._copies) - more, len(self._copies))

    def once_us(self) -> float:
        return self._calls.elapsed_us(self._queue(0))

    def graph(self, launches: int, copies: int) -> Callable[[], float]:
        rotation = [self._queue(i) for i in range(copies)]

        def queue() -> None:
            for i in range(launches):
                rotation[i % copies]()

        captured = _Captured(self._calls.capture(queue), copies)
        self._graphs.append(captured)
        return lambda: self._replay(captured)

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
        # Calls shorter than the clock's resolution still took some time.
        return max(time.perf_counter_ns() - start, 1) / 1000 / calls

    def verify(self) -> None:
        """Check that every used copy holds the same output as a single launch.

        Outputs are checked as the samples left them, and again after each graph has overwritten
        poison: an earlier correct output would hide launches that no longer write it.
        """
        self._compare()
        for captured in self._graphs:
            self._poison_outputs(0, captured.copies)
            self._replay(captured)
            self._compare()

    def failed(self, error: Exception) -> MeasureError:
        return MeasureError(self._explain(error))

    def _replay(self, captured: _Captured) -> float:
        self._replayed = max(self._replayed, captured.copies)
        return self._calls.replay_us(captured.graph)

    def _compare(self) -> None:
        if not self._plan.repeatable:
            return  # its description says that bits differ between launches
        outputs = [(self._out(i), self._out_bytes) for i in range(self._replayed)]
        if set(self._calls.fingerprints(outputs)) != {self._expected}:
            raise MeasureError(
                "Back-to-back launches gave another output than a single one, so their time means "
                "nothing: look for a race, or for scratch that is not reset."
            )

    def _launch_first(self) -> None:
        self._queue(0)()
        self._calls.wait()
        (self._expected,) = self._calls.fingerprints([(self._out(0), self._out_bytes)])
        self._poison_outputs(0, 1)

    def _alloc(self, size: int) -> int:
        address = self._calls.alloc(size)
        self._allocated.append(address)
        return address

    def _upload(self) -> None:
        first, inputs = self._copies[0], self._inputs
        for name, values in self._plan.tensors_of(inputs).items():
            self._calls.write(first + self._offsets[name], values)
        for scratch in self._plan.scratch:
            address = first + self._offsets[scratch.name]
            if (initial := scratch.initial) is None:
                self._calls.fill(address, scratch.size_bytes, POISON_BITS)
            else:
                self._calls.write(address, initial)
        for name, filled in self._plan.refilled.items():
            self._fills[name] = self._alloc(filled.nbytes), filled.nbytes
            self._calls.write(self._fills[name][0], filled)
        # Makes unwritten elements equal in every launch.
        self._poison_outputs(0, 1)

    def _queue(self, copy: int) -> Callable[[], None]:
        """Return a function that queues all passes of one launch on this copy."""
        addresses = self._plan.addresses(
            {name: self._copies[copy] + offset for name, offset in self._offsets.items()}
        )
        launches = [
            (
                self._kernels[p.entry],
                p.grid,
                p.block,
                p.dynamic_smem_bytes,
                kernel_arguments(self._calls, p, addresses),
                p.cluster,
            )
            for p in self._plan.passes
        ]

        def queue() -> None:
            # Part of the call, and so of its time.
            for name, (filled, size) in self._fills.items():
                self._calls.copy(addresses[name], filled, size)
            for launch in launches:
                self._calls.launch(*launch)

        return queue

    @property
    def _out_bytes(self) -> int:
        return self._plan.problem.tensor_bytes

    def _out(self, copy: int) -> int:
        return self._copies[copy] + self._offsets[self._plan.outputs[0]]

    def _poison_outputs(self, begin: int, end: int) -> None:
        """Fill the outputs of copies `begin` to `end` - 1 with poison."""
        first = self._out(begin)
        self._calls.fill(first, self._out_bytes, POISON_BITS)
        for copy in range(begin + 1, end):
            self._calls.copy(self._out(copy), first, self._out_bytes)
