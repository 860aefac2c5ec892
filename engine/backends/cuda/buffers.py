"""Device memory of one run: Q, K, V, O and scratch, each between two guard zones.

Guards and everything unwritten hold a NaN pattern. A read beyond a buffer therefore shows up in the
output, and a write beyond it is found in the guard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from engine.backends.cuda.calls import GpuCalls, KernelArgument
from engine.base.launch import (
    FORMATS,
    PassLaunch,
    ScalarArg,
    StructArg,
    TensorMapArg,
    encode_argument,
)
from engine.base.units import format_bytes
from engine.plan import LaunchPlan
from engine.tensors import POISON_BITS, FloatArray, Inputs, RawArray, gradients_of, lse_of

GUARD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class GuardedBuffer:
    """`size` bytes at `address`, with GUARD_BYTES of the pattern on either side."""

    name: str
    address: int
    size: int

    @property
    def before(self) -> int:
        """Address of the guard in front, which is also that of the allocation."""
        return self.address - GUARD_BYTES

    @property
    def behind(self) -> int:
        return self.address + self.size


def why_too_large(plan: LaunchPlan, free_bytes: int) -> str | None:
    """Why tensors and scratch exceed the GPU's free memory: one sentence, or None when they fit."""
    # The backend keeps a copy of the output, to compare a second run with.
    needed = plan.device_bytes + plan.problem.tensor_bytes
    if needed <= free_bytes:
        return None
    return (
        f"{plan.problem.label()} needs {format_bytes(needed)} of GPU memory (Q, K, V, O, scratch) "
        f"and {format_bytes(free_bytes)} is free: choose a smaller batch, fewer heads or a shorter "
        "sequence."
    )


class Buffers:
    """The buffers of one plan. A context manager; leaving it frees them."""

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
        """Inputs, and what scratch and output start with."""
        for name, values in self._plan.tensors_of(inputs).items():
            self._calls.write(self._by_name[name].address, values)
        for scratch in self._plan.scratch:
            if (initial := scratch.initial) is not None:
                self._calls.write(self._by_name[scratch.name].address, initial)
        self._refill()

    def poison(self) -> None:
        """Make output and poisoned scratch unwritten again; counters keep their values."""
        names = [*self._plan.outputs, *(s.name for s in self._plan.scratch if s.fill == "poison")]
        for buffer in (self._by_name[name] for name in names):
            self._calls.fill(buffer.address, buffer.size, POISON_BITS)
        self._refill()

    def _refill(self) -> None:
        for name, values in self._plan.refilled.items():
            self._calls.write(self._by_name[name].address, values)

    def arguments(self, launch: PassLaunch) -> tuple[KernelArgument, ...]:
        """The kernel's arguments by value, in order."""
        addresses = self._plan.addresses({n: b.address for n, b in self._by_name.items()})
        return kernel_arguments(self._calls, launch, addresses)

    def inputs_fingerprint(self) -> tuple[int, ...]:
        """Changes when Q, K, V or the block table on the device change."""
        return tuple(self._fingerprints(*self._plan.inputs))

    def output_fingerprint(self) -> tuple[int, ...]:
        """Changes when the outputs on the device change."""
        return tuple(self._fingerprints(*self._plan.outputs))

    def _fingerprints(self, *names: str) -> list[int]:
        buffers = (self._by_name[name] for name in names)
        return self._calls.fingerprints([(b.address, b.size) for b in buffers])

    def output(self) -> RawArray:
        """O as a raw array, `[batch, num_heads, seqlen, head_dim]`."""
        buffer = self._by_name["out"]
        raw = self._calls.read(buffer.address, buffer.size)
        return self._plan.output_of(raw)

    def gradients(self) -> dict[str, RawArray]:
        """dQ, dK and dV of a backward kernel by name, each of its own shape."""
        buffers = {name: self._by_name[name] for name in self._plan.outputs}
        raw = {n: self._calls.read(b.address, b.size) for n, b in buffers.items()}
        return gradients_of(raw, self._plan.problem)

    def lse(self) -> FloatArray | None:
        """Natural LSE, `[batch, num_heads, seqlen]`, where the kernel writes one."""
        if self._plan.lse is None:
            return None
        buffer = self._by_name["lse"]
        raw = self._calls.read(buffer.address, buffer.size)
        return lse_of(raw, self._plan.problem, self._plan.lse)

    def guard_damage(self) -> str | None:
        """What was written beside a buffer: one sentence, or None when all guards are intact."""
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
    """Pointers and scalars as NumPy scalars of the kernel's types, structures as their bytes."""
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
