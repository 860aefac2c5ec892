"""The CUDA backend: executes plans, and times those whose result is correct."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.attention.evaluation import Correctness
from engine.attention.plan import LaunchPlan
from engine.attention.tensors import Inputs
from engine.backends.base import BackendName, RunOptions
from engine.backends.cuda.availability import is_software_gpu, why_not_cuda
from engine.backends.cuda.calls import (
    WAIT_S,
    CupyCalls,
    Failure,
    GpuCalls,
    GpuTimeout,
    Kernel,
    explain,
)
from engine.backends.cuda.timing import Buffers, DeviceTimer, why_too_large
from engine.base.errors import CompileError, MeasureError, Status, ToolMissing, UnknownName
from engine.base.units import format_bytes
from engine.cuda_on_host.client import RunResult
from engine.cuda_source.nvrtc import CompiledKernel
from engine.model.kernel import compile_plan

SOFTWARE_TIMES = "This is a software GPU, whose times mean nothing: nothing is measured on it."


class CudaBackend:
    """Implements `engine.backends.base.Backend`. One per process and GPU; not thread-safe.

    Args:
        calls: default: those that `connect` gives, if CuPy can use a GPU.

    Raises:
        ToolMissing: CuPy can use no GPU; with the reason.
    """

    def __init__(
        self, calls: GpuCalls | None = None, connect: Callable[[], GpuCalls] = CupyCalls
    ) -> None:
        self._is_software = calls is None and is_software_gpu()
        if calls is None:
            if (why := why_not_cuda()) is not None:
                raise ToolMissing(why, code="cuda_unavailable")
            try:
                calls = connect()
            except RuntimeError as error:
                raise ToolMissing(
                    f"This machine's GPU cannot be used now ({error}): see nvidia-smi for who "
                    "holds it.",
                    code="gpu_busy",
                ) from error
        self._calls = calls
        self._gpu_error: str | None = None  # why CUDA calls in this process fail from now on

    @property
    def name(self) -> BackendName:
        return "cuda"

    @property
    def is_software(self) -> bool:
        """True if the GPU is emulated in software, on which nothing is measured."""
        return self._is_software

    @property
    def calls(self) -> GpuCalls:
        """Return the GPU's calls, for checks of the GPU itself."""
        return self._calls

    def run(self, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
        """Execute every pass on poisoned output and scratch, and report what happened.

        With `options.repeat`, twice; the second run gets the counters in scratch as the first left
        them.
        """
        log = ""
        try:
            compiled = self._prepare(plan)
            log = compiled.log
            with Buffers(self._calls, plan) as buffers:
                buffers.upload(inputs)
                return self._run(plan, buffers, compiled, options)
        except _Stopped as stopped:
            failure = stopped.failure
            return RunResult(failure.status, failure.reason, stopped.log or log)
        except Exception as error:
            failure = self._failure(error, plan.variant)
            return RunResult(failure.status, failure.reason, log)

    @contextmanager
    def timer(
        self, plan: LaunchPlan, inputs: Inputs, correctness: Correctness
    ) -> Iterator[DeviceTimer]:
        """Return a timer of the plan for the sampler; leaving the context frees its device memory.

        Args:
            correctness: the check of this plan's output; incorrect kernels are not timed.

        Raises:
            ValueError: the check did not pass.
            MeasureError: the kernel cannot be launched.
        """
        if not correctness.passed:
            raise ValueError("no timing for a result that is not correct")
        if self._is_software:
            raise MeasureError(SOFTWARE_TIMES)
        try:
            compiled = self._prepare(plan)
            kernels = self._load(plan, compiled)
        except _Stopped as stopped:
            raise MeasureError(stopped.failure.reason) from stopped
        except Exception as error:
            raise MeasureError(self._failure(error, plan.variant).reason) from error

        def explain(error: Exception) -> str:
            return self._failure(error, plan.variant).reason

        try:
            with DeviceTimer(self._calls, plan, kernels, inputs, explain) as timer:
                yield timer
        finally:
            self._calls.unload(kernels)

    @property
    def gpu_error(self) -> str | None:
        """Return why all further CUDA calls of this process fail; None if they do not."""
        return self._gpu_error

    def close(self) -> None:
        """Free cached device memory. Safe to call twice."""
        if self._gpu_error is None:
            self._calls.close()

    def _prepare(self, plan: LaunchPlan) -> CompiledKernel:
        """Compile, and check that the plan can be launched, before anything is allocated."""
        if self._gpu_error is not None:
            raise _Stopped(Failure(Status.LAUNCH_ERROR, self._gpu_error))
        try:
            compiled = compile_plan(plan, self._calls.arch)
        except CompileError as error:
            raise _Stopped(Failure(Status.COMPILE_ERROR, str(error)), error.log) from error
        except (ToolMissing, UnknownName) as error:
            raise _Stopped(Failure(Status.COMPILE_ERROR, str(error))) from error
        limit = self._calls.max_dynamic_smem_bytes
        for launch in plan.passes:
            smem = launch.dynamic_smem_bytes + compiled.entries[launch.entry].static_smem_bytes
            if smem > limit:
                reason = (
                    f"{launch.entry} needs {format_bytes(smem)} of shared memory per CTA and this "
                    f"GPU has {format_bytes(limit)}: choose smaller tiles or fewer stages."
                )
                raise _Stopped(Failure(Status.LAUNCH_ERROR, reason), compiled.log)
        if (why := why_too_large(plan, self._calls.free_bytes())) is not None:
            raise _Stopped(Failure(Status.OUT_OF_MEMORY, why), compiled.log)
        return compiled

    def _load(self, plan: LaunchPlan, compiled: CompiledKernel) -> dict[str, Kernel]:
        smem: dict[str, int] = {}
        for launch in plan.passes:
            smem[launch.entry] = max(smem.get(launch.entry, 0), launch.dynamic_smem_bytes)
        return self._calls.load(compiled.cubin, smem, compiled.symbols)

    def _run(
        self, plan: LaunchPlan, buffers: Buffers, compiled: CompiledKernel, options: RunOptions
    ) -> RunResult:
        kernels = self._load(plan, compiled)
        try:
            return self._check(plan, buffers, kernels, compiled.log, options)
        finally:
            self._calls.unload(kernels)

    def _check(
        self,
        plan: LaunchPlan,
        buffers: Buffers,
        kernels: dict[str, Kernel],
        log: str,
        options: RunOptions,
    ) -> RunResult:
        uploaded = buffers.input_fingerprints()
        execution_ms = self._execute(plan, buffers, kernels, options.timeout_s)
        out = None if plan.is_backward else buffers.output()
        gradients, lse = buffers.gradients() if plan.is_backward else None, buffers.lse()
        first = buffers.output_fingerprint()
        damage = buffers.guard_damage()
        changed = buffers.changed_inputs(uploaded)
        repeatable = True
        if options.repeat:
            buffers.poison()
            self._execute(plan, buffers, kernels, options.timeout_s)
            repeatable = buffers.output_fingerprint() == first
            damage = damage or buffers.guard_damage()
            changed = (*changed, *buffers.changed_inputs(uploaded))
        return RunResult(
            Status.PASSED,
            reason=damage or "",
            log=log,
            out=out,
            gradients=gradients,
            lse=lse,
            changed_inputs=tuple(dict.fromkeys(changed)),
            repeatable=repeatable,
            guards_intact=damage is None,
            execution_ms=execution_ms,
        )

    def _execute(
        self, plan: LaunchPlan, buffers: Buffers, kernels: dict[str, Kernel], timeout_s: float
    ) -> float:
        """Execute all passes and return the time in ms. Waits for each: errors name the pass."""
        start = time.perf_counter()
        deadline = start + timeout_s
        for launch in plan.passes:
            try:
                self._calls.launch(
                    kernels[launch.entry],
                    launch.grid,
                    launch.block,
                    launch.dynamic_smem_bytes,
                    buffers.arguments(launch),
                    launch.cluster,
                )
                self._calls.wait(max(0.0, deadline - time.perf_counter()))
            except GpuTimeout as error:
                raise _Stopped(self._timed_out(launch.entry, f"{timeout_s:g} s")) from error
            except Exception as error:
                raise _Stopped(self._failure(error, launch.entry)) from error
        return (time.perf_counter() - start) * 1000

    def _timed_out(self, entry: str, limit: str) -> Failure:
        # A running kernel cannot be stopped; it ends with its process.
        self._lose_gpu(f"An earlier kernel still runs ({entry})")
        reason = f"{entry} did not finish within {limit}: it may loop for ever."
        return Failure(Status.TIMEOUT, reason, context_lost=True)

    def _failure(self, error: Exception, entry: str) -> Failure:
        if isinstance(error, GpuTimeout):
            return self._timed_out(entry, f"{WAIT_S:g} s")
        failure = explain(error, entry)
        if failure.context_lost:
            self._lose_gpu(
                f"An earlier kernel broke this process's CUDA context ({failure.reason})"
            )
        return failure

    def _lose_gpu(self, why: str) -> None:
        if self._gpu_error is None:
            self._gpu_error = f"{why}: restart Attune's worker to use the GPU again."
            self._calls.abandon()


class _Stopped(Exception):
    """Raised with a failure, which `run` turns into a result."""

    def __init__(self, failure: Failure, log: str = "") -> None:
        super().__init__(failure.reason)
        self.failure = failure
        self.log = log
