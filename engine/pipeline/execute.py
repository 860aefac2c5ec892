"""One launch on tensors that somebody gives: nothing is checked, timed or kept."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from engine.backends.base import BackendName, RunOptions
from engine.base.errors import CompileError, ExecutionError, InvalidProblem
from engine.base.status import Status
from engine.model.estimate import launch_plan
from engine.pipeline.memory import check_host_memory
from engine.pipeline.request import EvaluationRequest, choose_backend, resolve

if TYPE_CHECKING:
    from engine.pipeline.evaluate import Evaluator
    from engine.tensors import Inputs, RawArray


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
    name, why_not = choose_backend(request, resolved.device)
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
