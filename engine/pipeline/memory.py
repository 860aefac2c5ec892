"""Does it fit in host memory? Answered in one sentence before anything is allocated.

The figures are upper estimates of what the pipeline holds at once, in units of the tensors where
they grow with the problem; a test compares them with what is really allocated.
"""

from __future__ import annotations

from engine.backends.base import BackendName
from engine.base.host_memory import available_host_memory
from engine.base.units import format_bytes
from engine.correctness.reference import coverage_size
from engine.correctness.suspected_bugs import MAX_CASES
from engine.plan import LaunchPlan

# The user half of a 48-bit address space; the only limit known where the system names none.
_ADDRESSABLE_BYTES = 1 << 47
# Interpreter, PyTorch and BLAS buffers that come with the first evaluation.
_FIXED_BYTES = 384 << 20


def host_bytes_needed(plan: LaunchPlan, backend: BackendName) -> int:
    """Host memory of one evaluation at its worst moment, from inputs to correctness."""
    problem = plan.problem
    output, kv = problem.tensor_bytes, max(problem.k_bytes, problem.v_bytes)
    inputs = output + 2 * kv
    # float32 originals of Q, K and V beside the rounded ones, and rounding's own copies.
    drawing = 3 * inputs + 8 * max(output, kv)
    # The child sees copies of Q, K, V and O in shared memory; a second run's output is compared.
    running = inputs + 2 * output
    if backend != "cuda":
        running += plan.device_bytes
    num_slices, num_rows = coverage_size(problem)
    covered = 8 * num_slices * num_rows * problem.head_dim
    total = problem.batch * problem.num_heads
    # As the slices have them, one K/V head each: with GQA more than there are.
    repeated = output + 2 * kv * problem.head_group
    # SDPA runs on the covered slices: 16-bit copies of Q, K, V, its output, and that in float32.
    sdpa = num_slices * (repeated + 3 * output) // total
    # One slice of Q, K and V in float64 (4 times its 16 bits), twice while it is converted; the
    # diagnosis keeps those of a few slices.
    one_slice = (2 + MAX_CASES) * 4 * repeated // total
    # Reference and SDPA, computed while the kernel runs.
    expecting = sdpa + one_slice + 2 * covered
    # Reference, output, error and what the maps and statistics make of them.
    checking = inputs + output + one_slice + 6 * covered
    return _FIXED_BYTES + max(drawing, running + expecting, checking)


def check_host_memory(plan: LaunchPlan, backend: BackendName) -> str | None:
    """Why the evaluation does not fit in host memory: one sentence, or None when it fits."""
    needed = host_bytes_needed(plan, backend)
    host = available_host_memory()
    limit = _ADDRESSABLE_BYTES if host is None else host
    if needed <= limit:
        return None
    return (
        f"{plan.problem.label()} needs {format_bytes(needed)} of host memory (inputs, copies, "
        f"reference, SDPA) and {format_bytes(limit)} is free: choose a smaller batch, fewer heads "
        "or a shorter sequence."
    )
