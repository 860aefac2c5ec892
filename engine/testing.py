"""For a person's own tests: `attune.testing.assert_correct(kernel, …)` under pytest or by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from engine.attention.evaluation import Evaluation
from engine.attention.tensors import NORMAL, InputKind
from engine.base.errors import Status
from engine.interface.attention_kernel import AttentionKernel, Sizes, kernel

__all__ = ["assert_correct"]


def assert_correct(
    of: AttentionKernel | str | Path,
    *,
    gpu: str | None = None,
    thorough: bool = False,
    seed: int = 0,
    inputs: InputKind = NORMAL,
    timeout_s: float = 60.0,
    **sizes: Unpack[Sizes],
) -> Evaluation:
    """Execute a kernel and fail unless it is right.

    Args:
        of: a kernel, its name or its file.
        gpu: the GPU, where `of` does not say it, as `kernel` takes it.
        thorough: fail for races, accesses out of bounds and uninitialised reads, too.
        sizes: the problem, as `AttentionKernel.check` takes it.

    Returns:
        The evaluation, to be looked at further.

    Raises:
        AssertionError: it is incorrect, failed, or was not executed: the sentence that says why,
            then what was found.
        UnknownName, InvalidKernel, InvalidProblem: as `kernel` and `AttentionKernel.check`.

    Example:
        >>> from engine.testing import assert_correct
        >>> str(assert_correct("v01", seqlen=70, head_dim=32, causal=True).status)
        'PASSED'
        >>> assert_correct("v01", head_dim=48)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        AssertionError: v01 at B1 H1 S128 D48 fp16 is SKIPPED: ...
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    asked = of if isinstance(of, AttentionKernel) else kernel(of)
    asked = asked.on(gpu) if gpu is not None else asked
    done = asked.check(thorough=thorough, seed=seed, inputs=inputs, timeout_s=timeout_s, **sizes)
    if done.status is Status.PASSED:
        return done
    findings = done.correctness.findings if done.correctness is not None else ()
    told = [f"{done.variant} at {done.problem.label()} is {done.status}: {done.reason}"]
    raise AssertionError("\n".join([*told, *(f.text() for f in findings)]))
