"""The backend that executes machine code: a plan's passes as the compiler made them for a GPU."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import BackendName, RunOptions, RunResult
from engine.base.errors import AttuneError, CompileError, ToolMissing, UnknownName
from engine.base.status import Status
from engine.compiled_plan import compile_plan, launch_of_pass
from engine.cuda_on_host.client import worker_threads
from engine.cuda_source.nvrtc import CompiledKernel
from engine.machine_code.analysis import program_of
from engine.machine_code.cubin import Cubin, read_cubin
from engine.machine_code.disassembly import find_entry
from engine.machine_code.execution.hazards import Hazard
from engine.machine_code.execution.module import Module, load_module
from engine.machine_code.execution.run import (
    ExecutionFault,
    ExecutionTimeout,
    GlobalBuffer,
    NotFollowed,
    OutOfBounds,
    Watch,
    execute,
    prepare,
)
from engine.machine_code.launch import buffer_address
from engine.plan import LaunchPlan
from engine.tensors import POISON_BITS, Inputs, lse_of


class MachineCodeBackend:
    """Satisfies `engine.backends.base.Backend`. It measures nothing: no latency comes from here.

    Global memory is what the plan names: each buffer has bounds of its own, so that nothing beside
    it can be touched, and what is not written yet holds a NaN pattern.
    """

    @property
    def name(self) -> BackendName:
        return "machine-code"

    def run(self, plan: LaunchPlan, inputs: Inputs, options: RunOptions) -> RunResult:
        """Execute every pass on poisoned output and scratch, and report what happened.

        With `options.repeat` a second time, on the scratch as the first run left its counters. With
        `options.check` hazards of shared memory end it as RACE, with both instructions. A schedule
        other than "in_order" runs CTAs and warps in the reverse of their order. SKIPPED: the code
        holds an instruction that is not executed here.
        """
        try:
            prepare()
            compiled = compile_plan(plan, options.arch.removesuffix("a"))
        except CompileError as error:
            return RunResult(Status.COMPILE_ERROR, str(error), error.log)
        except (ToolMissing, UnknownName) as error:
            return RunResult(Status.COMPILE_ERROR, str(error))
        memory = _memory(plan, inputs)
        hazards: list[Hazard] | None = [] if options.check else None
        given = {n: memory[n].copy() for n in memory if n not in _written(plan)}
        try:
            cubin = read_cubin(compiled.cubin)
            module = load_module(cubin)
            begin = time.perf_counter()
            _execute(plan, compiled, cubin, module, memory, options, hazards)
            execution_ms = (time.perf_counter() - begin) * 1000
            first = {n: memory[n].copy() for n in _outputs(plan)}
            repeatable = True
            if options.repeat:
                _poison(plan, memory)
                _execute(plan, compiled, cubin, module, memory, options)
                repeatable = all(np.array_equal(first[n], memory[n]) for n in first)
        except ExecutionTimeout as error:
            return RunResult(Status.TIMEOUT, str(error), compiled.log)
        except NotFollowed as error:
            return RunResult(Status.SKIPPED, str(error), compiled.log)
        except OutOfBounds as error:
            return RunResult(Status.OUT_OF_BOUNDS, str(error), compiled.log)
        except ExecutionFault as error:
            return RunResult(Status.LAUNCH_ERROR, str(error), compiled.log)
        except AttuneError as error:
            return RunResult(Status.COMPILE_ERROR, str(error), compiled.log)
        if hazards:
            said = [hazard.sentence for hazard in hazards]
            return RunResult(Status.RACE, said[0], "\n".join([*said, compiled.log]).strip())
        out = plan.output_of(first["out"])
        return RunResult(
            Status.PASSED,
            log=compiled.log,
            out=out,
            lse=lse_of(first["lse"], plan.problem, plan.lse) if plan.lse is not None else None,
            inputs_unchanged=all(np.array_equal(memory[n], given[n]) for n in given),
            repeatable=repeatable,
            execution_ms=execution_ms,
        )

    def writer_of(
        self, plan: LaunchPlan, inputs: Inputs, options: RunOptions, element: int
    ) -> str | None:
        """Which instruction writes this element of `out` last, with source line, CTA and warp; None
        where none does, or the kernel does not come to its end.

        Args:
            element: its place in memory, in the layout that the plan gives the output.
        """
        try:
            compiled = compile_plan(plan, options.arch.removesuffix("a"))
            cubin = read_cubin(compiled.cubin)
            number = list(plan.buffer_bytes).index("out")
            size = plan.problem.element_bytes
            watch = Watch(buffer_address(number) + element * size, [])
            memory = _memory(plan, inputs)
            _execute(plan, compiled, cubin, load_module(cubin), memory, options, None, watch)
        except AttuneError:
            return None
        return watch.writes[-1] if watch.writes else None

    def close(self) -> None:
        """Nothing is kept."""


def _outputs(plan: LaunchPlan) -> tuple[str, ...]:
    return ("out",) if plan.lse is None else ("out", "lse")


def _written(plan: LaunchPlan) -> set[str]:
    return {*_outputs(plan), *(scratch.name for scratch in plan.scratch)}


def _memory(plan: LaunchPlan, inputs: Inputs) -> dict[str, NDArray[np.uint8]]:
    """Every buffer's bytes."""
    memory: dict[str, NDArray[np.uint8]] = {}
    tensors = plan.tensors_of(inputs)
    fills = {scratch.name: scratch.fill for scratch in plan.scratch}
    for name, size in plan.buffer_bytes.items():
        # Aligned as NumPy aligns large arrays, 16 bytes at least, which host atomics need.
        content = np.zeros(-(-size // 8), np.uint64).view(np.uint8)[:size]
        if name in tensors:
            content[:] = np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8)
        elif fills.get(name) != "zero":
            content.view(np.uint16)[:] = POISON_BITS
        memory[name] = content
    return memory


def _poison(plan: LaunchPlan, memory: dict[str, NDArray[np.uint8]]) -> None:
    """Make output and poisoned scratch unwritten again; counters keep their values."""
    for name in (*_outputs(plan), *(s.name for s in plan.scratch if s.fill == "poison")):
        memory[name].view(np.uint16)[:] = POISON_BITS


def _execute(
    plan: LaunchPlan,
    compiled: CompiledKernel,
    cubin: Cubin,
    module: Module,
    memory: dict[str, NDArray[np.uint8]],
    options: RunOptions,
    hazards: list[Hazard] | None = None,
    watch: Watch | None = None,
) -> None:
    buffers = [
        GlobalBuffer(name, buffer_address(n), memory[name])
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
        )
