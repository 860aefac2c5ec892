"""Choose where a plan is executed, and how many of its CTAs.

`where_to_execute` chooses the backend. A launch that takes too long is executed in part
(`PartialRun`). `execute` launches on given tensors, without checks or times.
`disagreement` compares two ways of executing one source, `coverage_of` says which lines ran.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from engine.attention.coverage import LineCoverage
from engine.attention.evaluation import Correctness, Execution
from engine.attention.plan import LaunchPlan
from engine.attention.problem import Problem
from engine.attention.tensors import InputKind, Inputs, decode, make_inputs
from engine.backends.base import BackendName, Part, RunOptions
from engine.base.errors import CompileError, ExecutionError, InvalidProblem, Status
from engine.base.units import line_ranges
from engine.correctness import check_output
from engine.correctness.expected import Expected, Prepared, expect
from engine.correctness.gradients import ExpectedGradients
from engine.correctness.reference import Coverage
from engine.cuda_on_host.client import RunResult
from engine.pipeline.request import (
    EvaluationRequest,
    ResolvedRequest,
    check_host_memory,
    choose_backend,
    resolve,
)

if TYPE_CHECKING:
    from engine.attention.tensors import RawArray
    from engine.backends.cpu import CpuBackend
    from engine.backends.machine_code import MachineCodeBackend
    from engine.backends.partial import PartOfLaunch
    from engine.cuda_on_host.instrument import ExecutedStatements
    from engine.pipeline.evaluate import Evaluator

# A host build switches fibers for each lane of each matrix product. From here on, where it takes
# 0.3 s and more, executing machine code is several times faster; below, a host build is quick
# enough.
_WORTH_IT_FLOPS = 1e9
# From here on, building the emulator, once per machine, pays off, too.
_WORTH_BUILDING_FLOPS = 2e10
# Statuses of machine code that cannot be executed on this machine.
NOT_HERE = frozenset({Status.SKIPPED, Status.COMPILE_ERROR})


def where_to_execute(
    request: EvaluationRequest,
    resolved: ResolvedRequest,
    plan: LaunchPlan,
    has_emulator: bool | None = None,
) -> tuple[BackendName, str | None]:
    """Choose the backend of a plan; also say why the requested backend cannot be used.

    Without a GPU, this is a host build, or machine code in software if that is faster: for a large
    enough problem of a tensor-core kernel compiled for a target GPU, without a thorough check,
    another schedule or a partial run. The caller falls back to the host build if the machine code
    ends in `NOT_HERE`. A cubin can only be executed as machine code.

    Args:
        has_emulator: whether the emulator is built; None: look.
    """
    name, why_not = choose_backend(request, resolved.device)
    if plan.cubins and name == "cpu":
        why = f"{plan.source.name} describes machine code, which has no host build: "
        why += "leave --backend out to execute it in software."
        return "machine-code", why if request.backend == "cpu" else None
    if name != "cpu" or request.backend != "auto":
        return name, why_not
    is_plain = not request.check and request.schedule == "in_order" and request.partial != "always"
    is_tensor = resolved.device is not None and resolved.variant.work.math_unit != "fma"
    if not is_plain or not is_tensor or plan.problem.flops < _WORTH_IT_FLOPS:
        return name, why_not
    from engine.machine_code.execution import is_prepared

    fits = check_host_memory(plan, "machine-code") is None
    if not fits or not machine_code_ends_in_time(plan, request.timeout_s):
        return name, why_not
    is_built = is_prepared() if has_emulator is None else has_emulator
    is_ready = plan.problem.flops >= _WORTH_BUILDING_FLOPS or is_built
    return ("machine-code" if is_ready else name), why_not


def execute(evaluator: Evaluator, request: EvaluationRequest, inputs: Inputs) -> RawArray:
    """Return O of the request's kernel on these inputs.

    Args:
        inputs: of the request's problem.

    Returns:
        Raw, `[batch, num_heads, seqlen, head_dim]` (see `engine.attention.tensors`).

    Raises:
        UnknownName, InvalidKernel: as `resolve`.
        InvalidProblem: it cannot be launched, or not on this backend.
        CompileError: it does not compile.
        ExecutionError: the launch did not finish.
    """
    resolved = resolve(request, evaluator.history)
    plan = resolved.plan(request.problem)
    name, why_not = where_to_execute(request, resolved, plan)
    if why := why_not or check_host_memory(plan, name):
        raise InvalidProblem(why)
    options = request.run_options(resolved.arch, repeat=False)
    with alone_on_gpu(name, f"{resolved.variant.id}, {request.problem.label()}"):
        result = evaluator.backend(name).run(plan, inputs, options)
    can_fall_back = name == "machine-code" and request.backend == "auto" and not plan.cubins
    if can_fall_back and result.status in NOT_HERE:
        result = evaluator.backend("cpu").run(plan, inputs, options)
    if result.status is Status.COMPILE_ERROR:
        raise CompileError(result.reason, result.log)
    if result.out is None:
        raise ExecutionError(f"{result.status}: {result.reason}", result.log)
    return result.out


def alone_on_gpu(
    name: BackendName, purpose: str, on_wait: Callable[[str], None] = lambda _: None
) -> AbstractContextManager[None]:
    """Hold the GPU's lock, so that no other process measures at the same time. Do nothing on a
    CPU."""
    if name != "cuda":
        return nullcontext()
    from engine.measure.device_lock import gpu_lock

    return gpu_lock(purpose, on_wait)


def execution_of(
    request: EvaluationRequest, name: BackendName, result: RunResult, partial: str
) -> Execution:
    """Return an evaluation's record of a run.

    Args:
        partial: `Part.counts()`; empty if all CTAs ran.
    """
    if name == "cuda":
        return Execution(name, "device", "device", request.seed, None, partial)
    build: Literal["check", "fast", "device"] = "check" if request.check else "fast"
    if name == "machine-code":
        build = "check" if request.check else "device"
        return Execution(name, build, "device", request.seed, result.execution_ms, partial)
    return Execution("cpu", build, request.schedule, request.seed, result.execution_ms, partial)


def shared_heads(problem: Problem, reason: str) -> str:
    """Return the likely cause, with GQA, of an access past the end of K or V; else empty."""
    if problem.head_group == 1 or not re.search(
        r"(out of bounds.* of buffer|\bbyte -?\d+ of) '[kv]'", reason
    ):
        return ""
    return (
        f" K and V have {problem.kv_heads:,} heads and Q has {problem.num_heads:,}: a kernel that "
        "indexes K/V heads by the query head reads past their end."
    )


# Rough rates of two host threads. A launch that needs far more than the time limit is not started,
# and a partial run takes a share of the limit.
_MAX_FLOPS_PER_S = {False: 4e9, True: 4e8}  # key: check build
_MACHINE_CODE_FLOPS_PER_S = 8e9  # of tensor-core kernels, on a busy machine
_SURE_FLOPS_PER_S = {False: 5e8, True: 5e7}
_SHARE_OF_LIMIT = 0.25
_A_WHILE_S = 2.0  # of execution; shorter runs do not check a few CTAs first
_FIRST_S = 0.5


def takes_too_long(plan: LaunchPlan, check: bool, timeout_s: float) -> bool:
    """True if executing all of it is certain to exceed the time limit."""
    return plan.problem.flops > _MAX_FLOPS_PER_S[check] * timeout_s


def too_long(plan: LaunchPlan, request: EvaluationRequest) -> str:
    """Return the advice for a launch that takes too long and cannot be executed in part."""
    needed_s = 60 * math.ceil(plan.problem.flops / _MAX_FLOPS_PER_S[request.check] / 60)
    return (
        f"Its {plan.problem.flops / 1e12:,.1f} TFLOP are not executed: they take longer than "
        f"{request.timeout_s:g} s here. Choose fewer heads or a shorter S, or allow more time "
        f"(--timeout {needed_s}); `attune sass` simulates its time without executing it."
    )


def takes_a_while(plan: LaunchPlan, name: BackendName, check: bool) -> bool:
    """True if executing all of it may take so long that a part should be checked first."""
    per_s = _MAX_FLOPS_PER_S[check] if name == "cpu" else _MACHINE_CODE_FLOPS_PER_S
    return plan.problem.flops > per_s * _A_WHILE_S


def machine_code_ends_in_time(plan: LaunchPlan, timeout_s: float) -> bool:
    """True if executing all of its machine code most likely ends within the time limit."""
    return plan.problem.flops <= _MACHINE_CODE_FLOPS_PER_S * timeout_s


def first_flops(check: bool) -> float:
    """Return the maximum FLOPs of the part that is checked first."""
    return _SURE_FLOPS_PER_S[check] * _FIRST_S


@dataclass(frozen=True, slots=True)
class PartialRun:
    """Chosen CTAs of a plan, with methods to run and check them."""

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
        """Choose the CTAs. Return the failed result if the kernel does not compile.

        Args:
            max_flops: maximum FLOPs of all chosen CTAs; None takes a share of the time limit.

        Raises:
            PartialRunError: it is not known which CTAs belong together.
        """
        if max_flops is None:
            max_flops = _SURE_FLOPS_PER_S[options.check] * options.timeout_s * _SHARE_OF_LIMIT
        chosen = backend.choose_part(plan, options, max_flops)
        return chosen if isinstance(chosen, RunResult) else cls(backend, plan, chosen, options)

    @property
    def part(self) -> Part:
        """Return the chosen CTAs."""
        return self.chosen.part

    def prepare(self, seed: int, kind: InputKind) -> Prepared:
        """Return inputs of the chosen slices, and the expected output on the chosen rows."""
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
        """Execute the chosen CTAs on the inputs of `prepare`."""
        return self.backend.run_part(self.plan, self.chosen, inputs, self.options)

    def relabel(self, correctness: Correctness) -> Correctness:
        """Return the verdict with the part's indices replaced by those of the whole problem.

        Findings are dropped, because they were derived from the chosen heads only.
        """
        first = correctness.first_bad_index
        if first is not None:
            first = (*self.part.pairs[first[1]], *first[2:])
        return replace(correctness, first_bad_index=first, findings=())


def disagreement(
    host: CpuBackend,
    executed: MachineCodeBackend,
    plan: LaunchPlan,
    inputs: Inputs,
    options: RunOptions,
    result: RunResult,
) -> str:
    """Compare the host build's output with a wrong output of the machine code.

    Args:
        result: of the machine code, with its output.

    Returns:
        One or two sentences; empty if there is no host build.
    """
    found = host.run(plan, inputs, replace(options, check=False, repeat=False))
    if found.out is None or result.out is None:
        return f"The host build of the same source ends differently: {found.reason}".strip()
    ours, theirs = (decode(out, plan.problem.dtype) for out in (result.out, found.out))
    verdict = check_output(inputs, found, plan=plan)
    off = np.abs(ours - theirs)
    differing = np.argwhere(~(off <= verdict.tolerance))  # NaN differs from anything
    if not len(differing):
        if verdict.passed:
            return (
                "The host build of the same source passes, and no element differs by more than "
                f"{verdict.tolerance:.3g}: the error is smaller than that, or shows only on "
                "average."
            )
        return (
            "The host build of the same source is wrong in the same elements: look at the source."
        )
    if not verdict.passed:
        said = "is also wrong, but differently"
    else:
        said = "is right"
    batch, head, row, column = (int(n) for n in differing[0])
    where = (batch, head, row, column)
    text = (
        f"The host build of the same source {said}: {len(differing):,} elements differ by more "
        f"than {verdict.tolerance:.3g}, first (batch {batch}, head {head}, row {row}, column "
        f"{column}): {ours[where]:.6g} by machine code, {theirs[where]:.6g} by the host build."
    )
    place = _place(plan, where)
    writer = executed.writer_of(plan, inputs, options, place) if place is not None else None
    if writer is not None:
        text += f" {writer} writes that element."
    return text


def coverage_of(executed: ExecutedStatements, kernel: str) -> tuple[LineCoverage, ...]:
    """Return which lines ran, by file, the kernel's first."""
    ran: dict[str, set[int]] = defaultdict(set)
    skipped: dict[str, set[int]] = defaultdict(set)
    left_out: dict[str, set[int]] = defaultdict(set)
    for mark, file, first, last in executed.statements:
        (ran if mark in executed.marks else skipped)[file].update(range(first, last + 1))
    for file, first, last in executed.not_compiled:
        left_out[file].update(range(first, last + 1))
    files = dict.fromkeys((kernel, *ran, *skipped, *left_out))
    return tuple(
        LineCoverage(
            file=file,
            lines=len(ran[file] | skipped[file]),
            not_run=line_ranges(skipped[file] - ran[file]),
            partly_run=line_ranges(skipped[file] & ran[file]),
            not_compiled=line_ranges(left_out[file]),
        )
        for file in files
    )


def _place(plan: LaunchPlan, where: tuple[int, int, int, int]) -> int | None:
    """Return the element's offset in memory; None for a custom layout."""
    batch, head, row, column = where
    p = plan.problem
    match plan.layouts.get("out", "bhsd"):
        case "bhsd":
            return ((batch * p.num_heads + head) * p.seqlen + row) * p.value_dim + column
        case "bshd":
            return ((batch * p.seqlen + row) * p.num_heads + head) * p.value_dim + column
        case _:
            return None
