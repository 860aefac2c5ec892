"""What is executed of a launch that is too large: does it fit in memory, which part of it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from engine.backends.base import BackendName, Part, RunOptions, RunResult
from engine.base.host_memory import available_host_memory
from engine.base.units import format_bytes
from engine.correctness.expected import Expected, Prepared, expect
from engine.correctness.gradients import ExpectedGradients
from engine.correctness.reference import Coverage, coverage_size
from engine.correctness.suspected_bugs import MAX_CASES
from engine.evaluation import Correctness
from engine.input_kinds import InputKind
from engine.plan import LaunchPlan
from engine.tensors import Inputs, make_inputs

if TYPE_CHECKING:
    from engine.backends.cpu import CpuBackend
    from engine.backends.machine_code import MachineCodeBackend
    from engine.backends.partial import PartOfLaunch


# Does it fit in host memory? Answered in one sentence before anything is allocated.
#
# The figures are upper estimates of what the pipeline holds at once, in units of the tensors where
# they grow with the problem; a test compares them with what is really allocated.

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


# What two host threads execute in a second, roughly: a launch that needs far more than the time
# limit is not begun, and a part takes a share of the limit.
_MOST_FLOPS_PER_S = {False: 4e9, True: 4e8}  # by whether it is the check build
_MACHINE_CODE_FLOPS_PER_S = 8e9  # of tensor-core kernels, on a busy machine
_SURE_FLOPS_PER_S = {False: 5e8, True: 5e7}
_SHARE_OF_LIMIT = 0.25
_A_WHILE_S = 2.0  # of execution; a run of at most that is not worth a first look at a part
_FIRST_S = 0.5


def takes_too_long(plan: LaunchPlan, check: bool, timeout_s: float) -> bool:
    """Whether executing all of it would surely exceed the time limit."""
    return plan.problem.flops > _MOST_FLOPS_PER_S[check] * timeout_s


def takes_a_while(plan: LaunchPlan, name: BackendName, check: bool) -> bool:
    """Whether executing all of it may take so long that a part is worth judging first."""
    per_s = _MOST_FLOPS_PER_S[check] if name == "cpu" else _MACHINE_CODE_FLOPS_PER_S
    return plan.problem.flops > per_s * _A_WHILE_S


def machine_code_ends_in_time(plan: LaunchPlan, timeout_s: float) -> bool:
    """Whether executing all of its machine code most likely ends within the time limit."""
    return plan.problem.flops <= _MACHINE_CODE_FLOPS_PER_S * timeout_s


def first_flops(check: bool) -> float:
    """What the part that is judged first may compute."""
    return _SURE_FLOPS_PER_S[check] * _FIRST_S


@dataclass(frozen=True, slots=True)
class PartialRun:
    """The chosen CTAs of one plan, and how to run and to judge them."""

    backend: CpuBackend | MachineCodeBackend
    plan: LaunchPlan
    chosen: PartOfLaunch
    options: RunOptions

    @classmethod
    def choose(
        cls,
        backend: CpuBackend | MachineCodeBackend,
        plan: LaunchPlan,
        options: RunOptions,
        max_flops: float | None = None,
    ) -> Self | RunResult:
        """Choose the CTAs; the result instead where the kernel does not compile.

        Args:
            max_flops: what they may compute together; None takes a share of the time limit.

        Raises:
            PartialRunError: it cannot be told which CTAs belong together.
        """
        if max_flops is None:
            max_flops = _SURE_FLOPS_PER_S[options.check] * options.timeout_s * _SHARE_OF_LIMIT
        chosen = backend.choose_part(plan, options, max_flops)
        return chosen if isinstance(chosen, RunResult) else cls(backend, plan, chosen, options)

    @property
    def part(self) -> Part:
        return self.chosen.part

    def prepare(self, seed: int, kind: InputKind) -> Prepared:
        """Inputs of the chosen slices, and what is expected on the chosen rows."""
        inputs = make_inputs(self.part.problem, seed, kind)
        coverage = Coverage(
            self.part.problem,
            np.arange(len(self.part.pairs)),
            np.array(self.part.row_numbers, dtype=np.intp),
            self.part.pairs,
        )
        expected: Future[Expected | ExpectedGradients] = Future()
        expected.set_result(expect(inputs, coverage=coverage))
        return Prepared(inputs, expected)

    def run(self, inputs: Inputs) -> RunResult:
        return self.backend.run_part(self.plan, self.chosen, inputs, self.options)

    def relabel(self, correctness: Correctness) -> Correctness:
        """In the whole problem's batches and heads. Findings speak of heads as if there were no
        others, so they are left out."""
        first = correctness.first_bad_index
        if first is not None:
            first = (*self.part.pairs[first[1]], *first[2:])
        return replace(correctness, first_bad_index=first, findings=())
