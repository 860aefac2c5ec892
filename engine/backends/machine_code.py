"""The backend that executes the compiled machine code of a plan's passes in an emulator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.attention.plan import LaunchPlan
from engine.attention.tensors import POISON_BITS, Inputs, gradients_of, lse_of, output_of
from engine.backends.base import BackendName, RunOptions
from engine.backends.partial import (
    PartialRunError,
    PartOfLaunch,
    WrongOffsetError,
    choose_part,
    not_probed,
)
from engine.base.errors import (
    AttuneError,
    CompileError,
    InvalidProblem,
    Status,
    ToolMissing,
    UnknownName,
)
from engine.base.launch_arguments import PassLaunch
from engine.cuda_on_host.client import RunResult, worker_threads
from engine.cuda_source.nvrtc import CompiledKernel
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import Cubin, read_cubin
from engine.machine_code.disassembly import find_entry
from engine.machine_code.execution import (
    ExecutionFault,
    ExecutionTimeout,
    GlobalBuffer,
    Hazard,
    Module,
    OutOfBounds,
    ReadOnlyWrite,
    UnsupportedInstruction,
    Watch,
    execute,
    load_module,
    prepare,
)
from engine.machine_code.launch import buffer_address
from engine.model.kernel import compile_plan, launch_of_pass

_MAX_PROBES = 1000  # CTAs along the axes of a pass; each takes about 0.3 ms
# Above it (about 2 s on two cores), the second run covers only a part of the CTAs.
_WHOLE_REPEAT_FLOPS = 3e10
_REPEATED_SHARE = 16


class MachineCodeBackend:
    """Implements `engine.backends.base.Backend`. It measures nothing and returns no latency.

    Global memory consists of the plan's buffers. Each has its own bounds, so that accesses outside
    are errors, and unwritten memory holds a NaN pattern.

    Args:
        whole_repeat_flops: of larger launches the second run covers only a part of the CTAs.
        execute: how a plan is executed.
    """

    def __init__(
        self,
        whole_repeat_flops: float = _WHOLE_REPEAT_FLOPS,
        execute: Callable[..., None] | None = None,
    ) -> None:
        self._whole_repeat_flops = whole_repeat_flops
        self._execute = execute or execute_plan

    @property
    def name(self) -> BackendName:
        return "machine-code"

    def run(self, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
        """Execute every pass on poisoned output and scratch, and report what happened.

        With `options.repeat`, twice; the second run gets the counters in scratch as the first left
        them, and of large launches whose CTAs share nothing it executes a random one in 16. With
        `options.check`, hazards in shared memory give RACE, with both instructions. A schedule
        other than "in_order" runs CTAs and warps in reverse order. SKIPPED: the code has an
        instruction that the emulator does not support.
        """
        try:
            prepare()
            compiled = compile_plan(plan, options.arch.removesuffix("a"))
        except CompileError as error:
            return RunResult(Status.COMPILE_ERROR, str(error), error.log)
        except (ToolMissing, UnknownName) as error:
            return RunResult(Status.COMPILE_ERROR, str(error))
        try:
            return self._run(plan, compiled, inputs, options, keeps_inputs=True)
        except ReadOnlyWrite:  # with copies the kernel can run to its end
            return self._run(plan, compiled, inputs, options, keeps_inputs=False)

    def _run(
        self,
        plan: LaunchPlan,
        compiled: CompiledKernel,
        inputs: Inputs,
        options: RunOptions,
        *,
        keeps_inputs: bool,
    ) -> RunResult:
        """Run on the inputs themselves, or on copies that the kernel may change.

        Raises:
            ReadOnlyWrite: the kernel writes to inputs that are not copied.
        """
        read_only = frozenset(plan.inputs) - _written(plan) if keeps_inputs else frozenset()
        memory = memory_of(plan, inputs, read_only)
        hazards: list[Hazard] | None = [] if options.check else None
        try:
            cubin = read_cubin(compiled.cubin)
            module = load_module(cubin)
            begin = time.perf_counter()
            self._execute(
                plan, compiled, cubin, module, memory, options, hazards, read_only=read_only
            )
            execution_ms = (time.perf_counter() - begin) * 1000
            first = {n: memory[n] for n in plan.outputs}
            repeatable, repeated = True, ""
            if options.repeat:
                memory |= {n: _unwritten(raw.nbytes) for n, raw in first.items()}
                for scratch in plan.scratch:  # except counters, which keep their values
                    if scratch.fill == "poison":
                        memory[scratch.name].view(np.uint16)[:] = POISON_BITS
                some = _repeated_ctas(plan, options.seed, self._whole_repeat_flops)
                self._execute(
                    plan, compiled, cubin, module, memory, options, ctas=some, read_only=read_only
                )
                if some is None:
                    repeatable = all(np.array_equal(first[n], memory[n]) for n in first)
                else:
                    repeatable = all(_is_part_of(memory[n], first[n]) for n in first)
                    repeated = (
                        "The second run, which must give the same bits, covered "
                        f"{len(some):,} of the {plan.passes[0].ctas:,} CTAs."
                    )
        except ReadOnlyWrite:
            raise
        except ExecutionTimeout as error:
            return RunResult(Status.TIMEOUT, str(error), compiled.log)
        except UnsupportedInstruction as error:
            return RunResult(Status.SKIPPED, str(error), compiled.log)
        except OutOfBounds as error:
            return RunResult(Status.OUT_OF_BOUNDS, str(error), compiled.log)
        except (ExecutionFault, InvalidProblem) as error:
            return RunResult(Status.LAUNCH_ERROR, str(error), compiled.log)
        except AttuneError as error:
            return RunResult(Status.COMPILE_ERROR, str(error), compiled.log)
        if hazards:
            said = [hazard.sentence for hazard in hazards]
            return RunResult(Status.RACE, said[0], "\n".join([*said, compiled.log]).strip())
        out = gradients = None
        if plan.is_backward:
            gradients = gradients_of(first, plan.problem)
        else:
            out = plan.output_of(first["out"])
        return RunResult(
            Status.PASSED,
            log=compiled.log,
            out=out,
            gradients=gradients,
            lse=lse_of(first["lse"], plan.problem, plan.lse) if plan.lse is not None else None,
            changed_inputs=tuple(
                name
                for name, tensor in plan.tensors_of(inputs).items()
                if name not in _written(plan) | read_only
                and not np.array_equal(memory[name], _bytes_of(tensor))
            ),
            repeatable=repeatable,
            repeated=repeated,
            execution_ms=execution_ms,
        )

    def choose_part(
        self, plan: LaunchPlan, options: RunOptions, max_flops: float
    ) -> PartOfLaunch | RunResult:
        """Choose some CTAs to execute before all others: see `partial.choose_part`.

        Raises:
            PartialRunError: it cannot be found quickly which CTAs belong to the same (batch, head).
        """
        if any(prod(launch.cluster) > 1 for launch in plan.passes):
            raise PartialRunError("its CTAs run in clusters", code="part_clusters")
        if any(sum(launch.grid) > _MAX_PROBES for launch in plan.passes):
            raise PartialRunError(
                "its grid is too wide to be examined quickly", code="part_wide_grid"
            )
        compiled, cubin, module = loaded(plan, options)
        zeros = {
            n: _aligned(size) for n, size in plan.buffer_bytes.items() if n not in ("q", "out")
        }
        numbers = {name: number for number, name in enumerate(plan.buffer_bytes)}
        buffers = [GlobalBuffer(n, buffer_address(numbers[n]), data) for n, data in zeros.items()]

        row_bytes = plan.problem.head_dim * plan.problem.element_bytes
        slice_bytes = plan.problem.seqlen * row_bytes

        def touched(launch: PassLaunch, cta: int) -> tuple[str, int] | None:
            """Return where a CTA first accesses Q or O, which are unmapped so that it faults."""
            try:
                _execute_pass(plan, compiled, cubin, module, buffers, options, launch, (cta,))
            except OutOfBounds as fault:
                offsets = {n: fault.address - buffer_address(numbers[n]) for n in ("q", "out")}
                name, at = min(offsets.items(), key=lambda item: abs(item[1]))
                # Any warp may be first: the CTA's tile begins with its lowest row.
                row = at % slice_bytes // row_bytes
                return name, at - row % plan.query_rows * row_bytes
            except AttuneError as error:
                raise not_probed(str(error)) from None
            return None

        def probe(launch: PassLaunch, ctas: Sequence[int]) -> Sequence[tuple[str, int] | None]:
            return [touched(launch, cta) for cta in ctas]

        try:
            return choose_part(plan, probe, max_flops)
        except WrongOffsetError as mistake:  # the run of all CTAs reports it
            raise PartialRunError(str(mistake), code="part_wrong_offset") from None

    def run_part(
        self, plan: LaunchPlan, part: PartOfLaunch, inputs: Inputs, options: RunOptions
    ) -> RunResult:
        """Execute the CTAs of `part`, once. Only its slices of the tensors are mapped.

        Args:
            inputs: the tensors of `part.part.problem`.

        Returns:
            `out` has that problem's shape; rows outside the part are zero.
        """
        problem, whole = part.part.problem, plan.problem
        slices: dict[str, tuple[tuple[int, ...], NDArray[np.uint8], int]] = {}
        steps = {
            "q": whole.tensor_bytes // (whole.batch * whole.num_heads),
            "k": whole.k_bytes // (whole.batch * whole.kv_heads),
            "v": whole.v_bytes // (whole.batch * whole.kv_heads),
            "out": whole.out_bytes // (whole.batch * whole.num_heads),
        }
        for name, raw in (("q", inputs.q), ("k", inputs.k), ("v", inputs.v)):
            of = part.q_slices if name == "q" else part.kv_slices
            slices[name] = of, _bytes_of(raw), steps[name]
        bytes_out = _unwritten(problem.out_bytes)
        slices["out"] = part.q_slices, bytes_out, steps["out"]
        buffers: list[GlobalBuffer] = []
        fills = {scratch.name: scratch.fill for scratch in plan.scratch}
        for number, (name, size) in enumerate(plan.buffer_bytes.items()):
            if name not in slices:
                content = _aligned(size) if fills.get(name) == "zero" else _unwritten(size)
                buffers.append(GlobalBuffer(name, buffer_address(number), content))
                continue
            of, data, step = slices[name]
            for place, which in enumerate(of):
                piece = data[place * step : (place + 1) * step]
                buffers.append(GlobalBuffer(name, buffer_address(number) + which * step, piece))
        begin = time.perf_counter()
        try:
            compiled, cubin, module = loaded(plan, options)
            for launch, ctas in zip(plan.passes, part.ctas, strict=True):
                _execute_pass(plan, compiled, cubin, module, buffers, options, launch, ctas)
        except AttuneError as error:
            return RunResult(Status.LAUNCH_ERROR, str(error))
        computed = output_of(bytes_out, problem, "bhsd")
        others = np.ones(problem.seqlen, bool)
        others[list(part.part.row_numbers)] = False
        computed[:, :, others] = 0
        took_ms = (time.perf_counter() - begin) * 1000
        return RunResult(Status.PASSED, log=compiled.log, out=computed, execution_ms=took_ms)

    def writer_of(
        self, plan: LaunchPlan, inputs: Inputs, options: RunOptions, element: int
    ) -> str | None:
        """Return the instruction that last writes an element of the output (`out`, or dQ), with
        source line, CTA and warp; None if none does, or the kernel does not end.

        Args:
            element: its linear index in the layout that the plan gives the output.
        """
        try:
            compiled = compile_plan(plan, options.arch.removesuffix("a"))
            cubin = read_cubin(compiled.cubin)
            number = list(plan.buffer_bytes).index(plan.outputs[0])
            size = plan.problem.element_bytes
            watch = Watch(buffer_address(number) + element * size, [])
            memory = memory_of(plan, inputs)
            self._execute(plan, compiled, cubin, load_module(cubin), memory, options, None, watch)
        except AttuneError:
            return None
        return watch.writes[-1] if watch.writes else None

    def close(self) -> None:
        """Do nothing: there is no process or memory to release."""


def loaded(plan: LaunchPlan, options: RunOptions) -> tuple[CompiledKernel, Cubin, Module]:
    """Return the plan's code, loaded for execution. Raises as `prepare` and `compile_plan`."""
    prepare()
    compiled = compile_plan(plan, options.arch.removesuffix("a"))
    cubin = read_cubin(compiled.cubin)
    return compiled, cubin, load_module(cubin)


def _execute_pass(
    plan: LaunchPlan,
    compiled: CompiledKernel,
    cubin: Cubin,
    module: Module,
    buffers: Sequence[GlobalBuffer],
    options: RunOptions,
    launch: PassLaunch,
    ctas: tuple[int, ...],
) -> None:
    """Execute some CTAs of one pass."""
    name = find_entry(cubin, compiled.symbols.get(launch.entry, launch.entry)).name
    execute(
        program_of(cubin, name),
        module.entries[name],
        launch_of_pass(plan, plan.passes.index(launch)),
        [*buffers, *module.buffers],
        timeout_s=options.timeout_s,
        threads=worker_threads() if len(ctas) > 1 else 1,
        ctas=ctas,
    )


def _bytes_of(raw: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(raw).reshape(-1).view(np.uint8)


def _aligned(size: int) -> NDArray[np.uint8]:
    """Return zeros aligned to at least 16 bytes, which host atomics need."""
    return np.zeros(-(-size // 8), np.uint64).view(np.uint8)[:size]


def _written(plan: LaunchPlan) -> set[str]:
    return {*plan.outputs, *(scratch.name for scratch in plan.scratch)}


def _unwritten(size: int) -> NDArray[np.uint8]:
    """Return memory filled with the pattern of unwritten memory."""
    content = np.empty(-(-size // 8), np.uint64).view(np.uint8)[:size]
    content.view(np.uint16)[:] = POISON_BITS
    return content


def memory_of(
    plan: LaunchPlan, inputs: Inputs, read_only: Set[str] = frozenset()
) -> dict[str, NDArray[np.uint8]]:
    """Return the bytes of every buffer: inputs in `read_only` without a copy, all others copied."""
    memory: dict[str, NDArray[np.uint8]] = {}
    tensors = plan.tensors_of(inputs)
    fills = {scratch.name: scratch.fill for scratch in plan.scratch}
    for name, size in plan.buffer_bytes.items():
        if name in tensors and name in read_only:
            memory[name] = _bytes_of(tensors[name])
        elif name in tensors:
            memory[name] = _aligned(size)
            memory[name][:] = _bytes_of(tensors[name])
        else:
            memory[name] = _aligned(size) if fills.get(name) == "zero" else _unwritten(size)
    return memory


def _repeated_ctas(plan: LaunchPlan, seed: int, whole_flops: float) -> Sequence[int] | None:
    """Return the CTAs that are run a second time, ascending.

    None means all CTAs: if they take little time, or if some may read what others write.
    """
    shares = plan.scratch or len(plan.passes) > 1 or prod(plan.passes[0].cluster) > 1
    if shares or plan.out_fill != "poison" or plan.problem.flops < whole_flops:
        return None
    count = plan.passes[0].ctas
    chosen = np.random.default_rng(seed).choice(count, -(-count // _REPEATED_SHARE), replace=False)
    return [int(number) for number in np.sort(chosen)]


def _is_part_of(some: NDArray[np.uint8], whole: NDArray[np.uint8]) -> bool:
    """True if `some` has at least one written 16-bit word and all its written words equal those of
    `whole`."""
    pairs = zip(
        *(np.split(raw.view(np.uint16), _pieces(raw)) for raw in (some, whole)), strict=True
    )
    is_written = False
    for again, before in pairs:  # piecewise, without temporary arrays as large as the output
        unwritten = again == POISON_BITS
        if unwritten.all():
            continue
        if not (unwritten | (again == before)).all():
            return False
        is_written = True
    return is_written


def _pieces(raw: NDArray[np.uint8]) -> range:
    """Return the start of each piece of 1 MiB, in 16-bit words."""
    return range(1 << 19, raw.nbytes // 2, 1 << 19)


def execute_plan(
    plan: LaunchPlan,
    compiled: CompiledKernel,
    cubin: Cubin,
    module: Module,
    memory: dict[str, NDArray[np.uint8]],
    options: RunOptions,
    hazards: list[Hazard] | None = None,
    watch: Watch | None = None,
    ctas: Sequence[int] | None = None,
    read_only: Set[str] = frozenset(),
) -> None:
    """Execute all passes on memory given by name. Raises as `execution.execute`.

    Args:
        ctas: CTAs of the only pass to execute; None: all.
        read_only: names of buffers that must not be written to.
    """
    buffers = [
        GlobalBuffer(name, buffer_address(n), memory[name], name in read_only)
        for n, name in enumerate(plan.buffer_bytes)
    ]
    deadline = time.monotonic() + options.timeout_s
    for number, launch in enumerate(plan.passes):
        name = find_entry(cubin, compiled.symbols.get(launch.entry, launch.entry)).name
        execute(
            program_of(cubin, name),
            module.entries[name],
            launch_of_pass(plan, number),
            [*buffers, *module.buffers],
            cluster=launch.cluster,
            timeout_s=max(0.1, deadline - time.monotonic()),
            threads=worker_threads() if watch is None else 1,
            reverse=options.schedule != "in_order",
            hazards=hazards,
            watch=watch,
            ctas=ctas,
        )
