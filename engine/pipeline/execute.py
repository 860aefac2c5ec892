"""Where a plan is executed, and one launch on tensors that somebody gives.

Of the latter nothing is checked, timed or kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

from engine.backends.base import BackendName, RunOptions, RunResult
from engine.base.errors import CompileError, ExecutionError, InvalidProblem, Status
from engine.evaluation import Execution
from engine.model.estimate import launch_plan
from engine.pipeline.partial import check_host_memory
from engine.pipeline.request import EvaluationRequest, ResolvedRequest, choose_backend, resolve
from engine.plan import LaunchPlan
from engine.problem import Problem

if TYPE_CHECKING:
    from engine.pipeline.evaluate import Evaluator
    from engine.tensors import Inputs, RawArray

# A host build changes fibers for each lane of each product: machine code is several times faster
# from here on, where a host build takes 0.3 s and more. Below, it takes no longer to say it.
_WORTH_IT_FLOPS = 1e9
# From here on also worth the building of the emulator, which happens once on a machine.
_WORTH_BUILDING_FLOPS = 2e10
# How machine code that cannot be executed here ends.
NOT_HERE = frozenset({Status.SKIPPED, Status.COMPILE_ERROR})


def where_to_execute(
    request: EvaluationRequest, resolved: ResolvedRequest, plan: LaunchPlan
) -> tuple[BackendName, str | None]:
    """Where a plan is executed, and the sentence why the backend asked for cannot be used.

    Whoever executes a kernel asks here: the command line, jobs, sweeps, pages and the Python
    interface. Without a GPU it is a host build, or machine code in software where that is faster: a
    kernel of tensor cores that is compiled for a target GPU, on a problem of some size, of which no
    thorough check, other schedule or part is asked. It is for the caller to take the host build
    where the machine code ends in `NOT_HERE`.
    """
    name, why_not = choose_backend(request, resolved.device)
    if name != "cpu" or request.backend != "auto":
        return name, why_not
    is_plain = not request.check and request.schedule == "in_order" and request.partial != "always"
    is_tensor = resolved.device is not None and resolved.variant.work.math_unit != "fma"
    if not is_plain or not is_tensor or plan.problem.flops < _WORTH_IT_FLOPS:
        return name, why_not
    from engine.machine_code.execution.run import is_prepared
    from engine.pipeline.partial import machine_code_ends_in_time

    fits = check_host_memory(plan, "machine-code") is None
    if not fits or not machine_code_ends_in_time(plan, request.timeout_s):
        return name, why_not
    is_ready = plan.problem.flops >= _WORTH_BUILDING_FLOPS or is_prepared()
    return ("machine-code" if is_ready else name), why_not


def execute(evaluator: Evaluator, request: EvaluationRequest, inputs: Inputs) -> RawArray:
    """O of the request's kernel on these inputs.

    Args:
        inputs: of the request's problem.

    Returns:
        Raw, `[batch, num_heads, seqlen, head_dim]` (see `engine.tensors`).

    Raises:
        UnknownName, InvalidKernel: as `resolve`.
        InvalidProblem: it cannot be launched, or not there.
        CompileError: it does not compile.
        ExecutionError: it did not come to its end.
    """
    resolved = resolve(request, evaluator.history)
    plan = launch_plan(resolved.variant, request.problem, resolved.config, resolved.device)
    name, why_not = where_to_execute(request, resolved, plan)
    if why := why_not or check_host_memory(plan, name):
        raise InvalidProblem(why)
    options = RunOptions(
        request.check,
        request.schedule,
        request.seed,
        request.timeout_s,
        repeat=False,
        arch=resolved.arch,
    )
    with alone_on_gpu(name, f"{resolved.variant.id}, {request.problem.label()}"):
        result = evaluator.backend(name).run(plan, inputs, options)
    if name == "machine-code" and request.backend == "auto" and result.status in NOT_HERE:
        result = evaluator.backend("cpu").run(plan, inputs, options)
    if result.status is Status.COMPILE_ERROR:
        raise CompileError(result.reason, result.log)
    if result.out is None:
        raise ExecutionError(f"{result.status}: {result.reason}", result.log)
    return result.out


def alone_on_gpu(
    name: BackendName, purpose: str, on_wait: Callable[[str], None] = lambda _: None
) -> AbstractContextManager[None]:
    """On a GPU, no other process measures meanwhile."""
    if name != "cuda":
        return nullcontext()
    from engine.measure.device_lock import gpu_lock

    return gpu_lock(purpose, on_wait)


def execution_of(
    request: EvaluationRequest, name: BackendName, result: RunResult, partial: str
) -> Execution:
    """What an evaluation keeps of a run.

    Args:
        partial: `Part.counts()`; empty where all CTAs ran.
    """
    if name == "cuda":
        return Execution(name, "device", "device", request.seed, None, partial)
    build: Literal["check", "fast", "device"] = "check" if request.check else "fast"
    if name == "machine-code":
        build = "check" if request.check else "device"
        return Execution(name, build, "device", request.seed, result.execution_ms, partial)
    return Execution("cpu", build, request.schedule, request.seed, result.execution_ms, partial)


def shared_heads(problem: Problem, reason: str) -> str:
    """GQA: what an access past the end of K or V is most likely to be; else empty."""
    if problem.head_group == 1 or not re.search(
        r"(out of bounds.* of buffer|\bbyte -?\d+ of) '[kv]'", reason
    ):
        return ""
    return (
        f" K and V have {problem.kv_heads:,} heads where Q has {problem.num_heads:,}: one that "
        "takes the query head for the K/V head reads past their end."
    )
