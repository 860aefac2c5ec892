"""`CpuBackend`: launch plans really executed, on the host."""

from __future__ import annotations

from engine.backends.base import BackendName, RunOptions, RunResult
from engine.backends.cpu.build import HostLibrary, build_kernels
from engine.backends.cpu.client import Client
from engine.backends.cpu.job import Buffer, Job, KernelLaunch
from engine.errors import CompileError, ToolMissing
from engine.evaluation import Status
from engine.plan import LaunchPlan
from engine.tensors import FloatArray, Inputs, RawArray, lse_of, output_of


class CpuBackend:
    """Compiles a plan's `.cu` for the host and runs it in a child process.

    What it reports about correctness is real; its times say nothing about a GPU. Threads may share
    one backend: compiles run side by side, executions one after the other.

    Args:
        workers: host threads that run CTAs; `ATTUNE_CPU_THREADS` or the number of processors when
            not given.
    """

    def __init__(self, workers: int | None = None) -> None:
        self._client = Client(workers)

    @property
    def name(self) -> BackendName:
        return "cpu"

    def run(self, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
        """Execute every pass on poisoned output and scratch, and report what happened.

        A missing compiler is a COMPILE_ERROR whose reason says how to get one.
        """
        try:
            library = build_kernels(
                plan.source,
                plan.entries,
                plan.defines,
                options.check,
                options.arch,
                plan.include_folders,
            )
        except CompileError as error:
            return RunResult(Status.COMPILE_ERROR, str(error), log=error.log)
        except ToolMissing as error:
            return RunResult(Status.COMPILE_ERROR, str(error))
        result = self._client.run(_job(plan, inputs, options, library), options.timeout_s)
        out: RawArray | None = None
        lse: FloatArray | None = None
        if result.status is Status.PASSED:
            layout = plan.layouts.get("out", "bhsd")
            out = output_of(result.returned["out"], plan.problem, layout)
            if plan.lse is not None:
                lse = lse_of(result.returned["lse"], plan.problem, plan.lse)
        return RunResult(
            status=result.status,
            reason=result.reason,
            log=result.log,
            out=out,
            lse=lse,
            inputs_unchanged=not result.changed_inputs,
            repeatable=result.repeatable,
            guards_intact=result.guards_intact,
            execution_ms=result.execution_ms,
            executed=result.executed,
        )

    def close(self) -> None:
        """End the child process; safe to call twice, and the next run starts a new one."""
        self._client.close()


def _job(plan: LaunchPlan, inputs: Inputs, options: RunOptions, library: HostLibrary) -> Job:
    tensors = inputs.in_layouts(plan.layouts)
    outputs = [name for name in ("out", "lse") if name in plan.buffer_bytes]
    return Job(
        library=library,
        buffers=(
            *(Buffer(name, data=data, read_only=True) for name, data in tensors.items()),
            *(Buffer(n, size_bytes=plan.buffer_bytes[n], returned=True) for n in outputs),
            *(Buffer(s.name, size_bytes=s.size_bytes, fill=s.fill) for s in plan.scratch),
        ),
        launches=tuple(
            KernelLaunch(p.entry, p.grid, p.block, p.args, p.dynamic_smem_bytes)
            for p in plan.passes
        ),
        schedule=options.schedule,
        seed=options.seed,
        repeat=options.repeat,
    )
