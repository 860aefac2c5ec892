"""`CpuBackend`: executes launch plans on the host."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from engine.attention.plan import LaunchPlan
from engine.attention.tensors import FloatArray, Inputs, RawArray, gradients_of, lse_of, output_of
from engine.backends.base import BackendName, RunOptions
from engine.backends.partial import PartOfLaunch, WrongOffsetError, choose_part, not_probed
from engine.base.errors import FAULTS, CompileError, Status, ToolMissing
from engine.base.launch_arguments import PassLaunch
from engine.cuda_on_host.build import HostLibrary, build_kernels
from engine.cuda_on_host.client import Buffer, Client, Job, KernelLaunch, RunResult


class CpuBackend:
    """Compile a plan's `.cu` for the host and run it in a child process.

    The kernel's own code is executed, so correctness results are valid; its times say nothing about
    a GPU. Threads may share one backend: compiles run in parallel, executions one after another.

    Args:
        client: runs the jobs and is closed with the backend; None: a new one with the default
            threads and limits.
    """

    def __init__(self, client: Client | None = None) -> None:
        self._client = client or Client()

    @property
    def name(self) -> BackendName:
        return "cpu"

    @property
    def process_id(self) -> int | None:
        """Return the id of the child process that executes; None if there is none."""
        return self._client.process_id

    def run(self, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
        """Execute every pass on poisoned output and scratch, and report what happened.

        A missing compiler is a COMPILE_ERROR whose reason says how to get one.
        """
        library = _build(plan, options)
        if isinstance(library, RunResult):
            return library
        result = self._client.run(_job(plan, inputs, options, library), options.timeout_s)
        out: RawArray | None = None
        lse: FloatArray | None = None
        gradients = None
        if result.status is Status.PASSED and plan.is_backward:
            gradients = gradients_of(result.returned, plan.problem)
        elif result.status is Status.PASSED:
            out = plan.output_of(result.returned["out"])
            if plan.lse is not None:
                lse = lse_of(result.returned["lse"], plan.problem, plan.lse)
        reason = with_names(result.reason, plan.source)
        return replace(result, reason=reason, returned={}, out=out, gradients=gradients, lse=lse)

    def choose_part(
        self, plan: LaunchPlan, options: RunOptions, max_flops: float
    ) -> PartOfLaunch | RunResult:
        """Choose some CTAs to execute instead of all: see `partial.choose_part`.

        Returns:
            The part, or the result if the kernel does not compile.

        Raises:
            PartialRunError: it is unknown which CTAs belong to the same (batch, head).
        """
        library = _build(plan, replace(options, check=False))
        if isinstance(library, RunResult):
            return library

        def probe(launch: PassLaunch, ctas: Sequence[int]) -> Sequence[tuple[str, int] | None]:
            job = _probe_job(plan, launch, tuple(ctas), library)
            result = self._client.run(job, options.timeout_s)
            if result.status is not Status.PASSED:
                raise not_probed(result.reason)
            return result.touched

        try:
            return choose_part(plan, probe, max_flops)
        except WrongOffsetError as mistake:
            return self._explain(plan, mistake, library, options.timeout_s)

    def _explain(
        self, plan: LaunchPlan, mistake: WrongOffsetError, library: HostLibrary, timeout_s: float
    ) -> RunResult:
        """Return the error with the source line of the access if known; for that, the CTA runs
        again up to it."""
        if mistake.cta is not None:
            job = replace(_probe_job(plan, mistake.launch, (mistake.cta,), library), probe=False)
            result = self._client.run(job, timeout_s)
            if result.status in FAULTS:
                return result
        return RunResult(Status.LAUNCH_ERROR, f"{plan.source.name}: {mistake}.")

    def run_part(
        self, plan: LaunchPlan, part: PartOfLaunch, inputs: Inputs, options: RunOptions
    ) -> RunResult:
        """Execute the CTAs of `part` once, without a second run.

        Args:
            inputs: the tensors of `part.part.problem`.

        Returns:
            `out` has that problem's shape; rows outside the part are zero.
        """
        library = _build(plan, options)
        if isinstance(library, RunResult):
            return library
        job = _partial_job(plan, part, inputs, options, library)
        result = self._client.run(job, options.timeout_s)
        out: RawArray | None = None
        if result.status is Status.PASSED:
            out = output_of(result.returned["out"], part.part.problem, "bhsd")
            others = np.ones(out.shape[2], bool)
            others[list(part.part.row_numbers)] = False
            out[:, :, others] = 0
        reason = with_names(result.reason, plan.source)
        return replace(result, reason=reason, returned={}, out=out)

    def run_last_ctas(self, plan: LaunchPlan, options: RunOptions) -> RunResult:
        """Execute the last CTA of every pass on zeros; the buffers may be larger than memory.

        Returns:
            A status without output, which says whether all accesses are within the buffers.
        """
        library = _build(plan, options)
        if isinstance(library, RunResult):
            return library
        buffers = tuple(
            Buffer(
                name,
                size_bytes=size,
                fill="zero",
                pieces=(),
                opens_itself=True,
                read_only=name in plan.inputs,
            )
            for name, size in plan.buffer_bytes.items()
        )
        launches = tuple(_launch(p, (prod(p.grid) - 1,)) for p in plan.passes)
        result = self._client.run(Job(library, buffers, launches), options.timeout_s)
        return replace(result, reason=with_names(result.reason, plan.source))

    def close(self) -> None:
        """End the child process; safe to call twice, and the next run starts a new one."""
        self._client.close()


_MBARRIER = re.compile(r"the mbarrier (?=of ([^\s:]+):(\d+))")
_INITIALISED = re.compile(r"init\w*\s*\(\s*&?\s*([^,()]+?)\s*,")  # the first argument


def with_names(reason: str, source: Path) -> str:
    """Insert the names of mbarriers, taken from the lines that initialise them."""

    def named(found: re.Match[str]) -> str:
        file, line = found[1], int(found[2])
        if file != source.name:
            return found[0]
        lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
        call = _INITIALISED.search(lines[line - 1]) if line <= len(lines) else None
        return f"the mbarrier {call[1]} " if call is not None else found[0]

    return _MBARRIER.sub(named, reason)


def _job(plan: LaunchPlan, inputs: Inputs, options: RunOptions, library: HostLibrary) -> Job:
    tensors = plan.tensors_of(inputs)
    return Job(
        library=library,
        buffers=(
            *(Buffer(name, data=data, read_only=True) for name, data in tensors.items()),
            *(
                Buffer(
                    n,
                    data=plan.refilled.get(n),
                    size_bytes=plan.buffer_bytes[n],
                    returned=True,
                    each_launch=n in plan.refilled,
                )
                for n in plan.outputs
            ),
            *(
                Buffer(
                    s.name,
                    data=s.initial if s.each_launch or s.fill == "-inf" else None,
                    size_bytes=s.size_bytes,
                    fill="zero" if s.fill == "zero" else "poison",
                    each_launch=s.each_launch,
                )
                for s in plan.scratch
            ),
        ),
        launches=tuple(map(_launch, plan.passes)),
        schedule=options.schedule,
        seed=options.seed,
        repeat=options.repeat,
        inside=plan.inside,
    )


def _build(plan: LaunchPlan, options: RunOptions) -> HostLibrary | RunResult:
    """Return the compiled plan, or a result with the reason why there is none."""
    try:
        return build_kernels(
            plan.source,
            plan.entries,
            plan.defines,
            options.check,
            options.arch,
            plan.include_folders,
            plan.cpp,
        )
    except CompileError as error:
        return RunResult(Status.COMPILE_ERROR, str(error), log=error.log)
    except ToolMissing as error:
        return RunResult(Status.COMPILE_ERROR, str(error))


def _probe_job(
    plan: LaunchPlan, launch: PassLaunch, ctas: tuple[int, ...], library: HostLibrary
) -> Job:
    """Return a job in which any access to Q or O ends a CTA; all other buffers are zero."""
    buffers = tuple(
        Buffer(n, size_bytes=size, fill="zero", pieces=(), opens_itself=n not in ("q", "out"))
        for n, size in plan.buffer_bytes.items()
    )
    return Job(library, buffers, (_launch(launch, ctas),), probe=True)


def _partial_job(
    plan: LaunchPlan,
    part: PartOfLaunch,
    inputs: Inputs,
    options: RunOptions,
    library: HostLibrary,
) -> Job:
    problem = plan.problem

    def pieces(slices: tuple[int, ...], of: int) -> tuple[tuple[int, int], ...]:
        return tuple((s * of, of) for s in slices)

    q_bytes = problem.tensor_bytes // (problem.batch * problem.num_heads)
    kv_bytes = problem.k_bytes // (problem.batch * problem.kv_heads)
    own = {"q": pieces(part.q_slices, q_bytes), "out": pieces(part.q_slices, q_bytes)}
    own |= dict.fromkeys(("k", "v"), pieces(part.kv_slices, kv_bytes))
    tensors = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
    sizes = plan.buffer_bytes
    zeroed = {scratch.name for scratch in plan.scratch if scratch.fill == "zero"}
    others = [name for name in sizes if name not in own]
    return Job(
        library,
        (
            *(
                Buffer(n, data, size_bytes=sizes[n], read_only=True, pieces=own[n])
                for n, data in tensors.items()
            ),
            Buffer("out", size_bytes=sizes["out"], returned=True, pieces=own["out"]),
            *(
                Buffer(
                    n,
                    size_bytes=sizes[n],
                    fill="zero" if n in zeroed else "poison",
                    pieces=(),
                    opens_itself=True,
                )
                for n in others
            ),
        ),
        tuple(_launch(p, ctas) for p, ctas in zip(plan.passes, part.ctas, strict=True)),
        schedule=options.schedule,
        seed=options.seed,
    )


def _launch(p: PassLaunch, ctas: tuple[int, ...] | None = None) -> KernelLaunch:
    cluster = p.cluster if prod(p.cluster) > 1 else None
    return KernelLaunch(p.entry, p.grid, p.block, p.args, p.dynamic_smem_bytes, ctas, cluster)
