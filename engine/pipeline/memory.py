"""Does it fit? Answered in one sentence before anything is allocated.

The figures are upper estimates of what the pipeline holds at once, in units of the tensors where
they grow with the problem; a test compares them with what is really allocated.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from engine.backends.base import BackendName
from engine.correctness.reference import coverage_size
from engine.correctness.suspected_bugs.case import MAX_CASES
from engine.plan import LaunchPlan
from engine.units import format_bytes

# The user half of a 48-bit address space; the only limit known where the system names none.
_ADDRESSABLE_BYTES = 1 << 47
# Interpreter, PyTorch and BLAS buffers that come with the first evaluation.
_FIXED_BYTES = 384 << 20
_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """What one evaluation needs at its worst moment."""

    host_bytes: int
    device_bytes: int  # 0 on the CPU backend


def memory_need(plan: LaunchPlan, backend: BackendName) -> MemoryNeed:
    """Host and device memory of one evaluation, from inputs to correctness."""
    problem = plan.problem
    output, kv = problem.tensor_bytes, problem.kv_bytes
    inputs = output + 2 * kv
    # float32 originals of Q, K and V beside the rounded ones, and rounding's own copies.
    drawing = 3 * inputs + 8 * max(output, kv)
    # The child sees copies of Q, K, V and O in shared memory; a second run's output is compared.
    running = inputs + 2 * output
    if backend == "cpu":
        running += plan.device_bytes
    num_slices, num_rows = coverage_size(problem)
    covered = 8 * num_slices * num_rows * problem.head_dim
    total = problem.batch * problem.num_heads
    # SDPA runs on the covered slices: 16-bit copies of Q, K, V, its output, and that in float32.
    sdpa = num_slices * (inputs + 3 * output) // total
    # One slice of Q, K and V in float64 (4 times its 16 bits), twice while it is converted; the
    # diagnosis keeps those of a few slices.
    one_slice = (2 + MAX_CASES) * 4 * inputs // total
    # Reference, output, error and what the maps and statistics make of them.
    checking = inputs + output + sdpa + one_slice + 6 * covered
    device = 0
    if backend == "cuda":
        device = plan.device_bytes + output
    return MemoryNeed(_FIXED_BYTES + max(drawing, running, checking), device)


def available_host_memory() -> int | None:
    """Bytes that can be allocated without swapping, or None where the system does not say.

    The kernel's MemAvailable and the limits of the control group (containers), whichever is less.
    """
    limits = [x for x in (_mem_available(), _cgroup_v2(), _cgroup_v1()) if x is not None]
    if limits:
        return max(0, min(limits))
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def check_memory(
    plan: LaunchPlan, backend: BackendName, device_free_bytes: int | None
) -> str | None:
    """Why the evaluation does not fit in memory: one sentence, or None when it fits.

    Args:
        device_free_bytes: free memory of the GPU; None skips that part.
    """
    need = memory_need(plan, backend)
    label = plan.problem.label()
    host = available_host_memory()
    limit = _ADDRESSABLE_BYTES if host is None else host
    if need.host_bytes > limit:
        return (
            f"{label} needs {format_bytes(need.host_bytes)} of host memory (inputs, copies, "
            f"reference, SDPA) and {format_bytes(limit)} is free: {_ADVICE}"
        )
    if device_free_bytes is not None and need.device_bytes > device_free_bytes:
        return (
            f"{label} needs {format_bytes(need.device_bytes)} of GPU memory (Q, K, V, O, scratch) "
            f"and {format_bytes(device_free_bytes)} is free: {_ADVICE}"
        )
    return None


_ADVICE = "choose a smaller batch, fewer heads or a shorter sequence."


def _mem_available() -> int | None:
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _cgroup_v2() -> int | None:
    group = _own_group("")
    if group is None:
        return None
    return _least_free(_CGROUP_ROOT, group, "memory.max", "memory.current", "inactive_file")


def _cgroup_v1() -> int | None:
    group = _own_group("memory")
    if group is None:
        return None
    files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return _least_free(_CGROUP_ROOT / "memory", group, *files)


def _own_group(controller: str) -> str | None:
    """The process's group of a v1 controller, or of v2 with an empty name."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return None


def _least_free(root: Path, group: str, limit: str, usage: str, cache: str) -> int | None:
    """The tightest limit on the way from the process's group up to the root.

    Inside a container the group's path may not exist below the mounted root; then the root itself
    is the container's group.
    """
    least: int | None = None
    folders = [root / group, *(root / group).parents]
    for folder in folders[: folders.index(root) + 1]:
        maximum, current = _number(folder / limit), _number(folder / usage)
        if maximum is None or current is None:
            continue
        free = maximum - current + _reclaimable(folder / "memory.stat", cache)
        least = free if least is None else min(least, free)
    return least


def _reclaimable(stat: Path, field: str) -> int:
    """File cache that counts as used but gives way."""
    for line in _read(stat).splitlines():
        name, _, value = line.partition(" ")
        if name == field:
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
