"""`Kernel`: a variant with a config on a GPU. Resources, occupancy and times belong to it.

Only this module compiles and estimates a launch: plan → cubin → resources → occupancy → predicted
latency. `engine.history` calls it with the kernel's CTA times and calibration. The equations are in
`engine.model.equations`, where one launch is an array of length 1; curves over many launches use
the same equations (`engine.choose.batch.batch_table`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, prod
from typing import Protocol, Self, TypeVar

import numpy as np

from engine.attention.config import default_config, find_variant
from engine.attention.evaluation import CodeCounts, Latency, Occupancy, PassReport, Resources
from engine.attention.plan import LaunchPlan, compile_arguments, resources, takes
from engine.attention.problem import Problem
from engine.attention.tensors import lengths_of
from engine.base.errors import CompileError, InvalidProblem, ToolMissing, UnknownName
from engine.base.launch_arguments import encode_argument
from engine.base.memory import Newest
from engine.cuda_source import nvrtc
from engine.cuda_source.nvrtc import (
    CompiledKernel,
    CompileReport,
    FindReport,
    cached_compile,
    compile_kernel,
)
from engine.cuda_source.sources import Sources
from engine.devices import target_gpu
from engine.devices.spec import ClockKind, DeviceSpec, limits_for
from engine.machine_code.analysis import Analysis, analyse, count, launch_figures, program_of
from engine.machine_code.cubin import read_cubin
from engine.machine_code.cubin_files import read_texts, take_cubin
from engine.machine_code.launch import Launch, buffer_address
from engine.machine_code.overlap import budget_mistake
from engine.machine_code.timing.constants import widened
from engine.machine_code.timing.power import Work, executed_work, power_limit_note
from engine.model.equations import (
    Calibration,
    CtaCurve,
    Machine,
    Parameters,
    Terms,
    evaluate,
    limit_sentence,
    machine,
    method_note,
    predict_arrays,
)
from engine.model.launches import Launches, collect
from engine.model.occupancy import (
    ConfiguredVariant,
    IntArray,
    ctas_per_sm,
    max_active_clusters,
    occupancy,
)
from kernels.variant import BLOCK_TABLE, Variant


def compile_plan(plan: LaunchPlan, arch: str) -> CompiledKernel:
    """Compile what a launch plan needs for `arch` ("sm_90"; the plan adds the "a" it may need).

    Raises:
        CompileError, UnknownName, ToolMissing: as `compile_kernel`.
    """
    if plan.cubins:
        sha256 = read_texts(plan.source, plan.include_folders, plan.cubins).source_sha256
        return take_cubin(plan.cubins, plan.passes, arch, sha256)
    return compile_kernel(*compile_arguments(plan, arch))


def cached_kernel(plan: LaunchPlan, arch: str) -> CompiledKernel | None:
    """Return the cached result of `compile_plan`; None if it must be compiled.

    Also None if the compiler is missing or does not know the arch; compiling reports that.
    """
    try:
        if plan.cubins:
            return compile_plan(plan, arch)
        return cached_compile(*compile_arguments(plan, arch))
    except (CompileError, UnknownName, ToolMissing):
        return None


def known_report(plan: LaunchPlan, arch: str, find: FindReport) -> CompileReport | None:
    """Return the compiler's report of `cached_kernel`, or the result of `find` for its key."""
    try:
        if plan.cubins:
            return compile_plan(plan, arch)
        return nvrtc.known_report(*compile_arguments(plan, arch), find)
    except (CompileError, UnknownName, ToolMissing):
        return None


def variant_sources(variant: Variant) -> Sources:
    """Return the present source texts of a variant, its cubins included.

    Raises CompileError as `read_sources`.
    """
    return read_texts(variant.source, variant.include_folders, variant.cubins)


def analyse_plan(plan: LaunchPlan, arch: str) -> tuple[Analysis, ...]:
    """Count every pass of a plan. Raises as `analyse` and `compile_plan`."""
    compiled = compile_plan(plan, arch)
    return tuple(
        analyse(
            compiled.cubin,
            compiled.symbols.get(launch.entry, launch.entry),
            launch_of_pass(plan, number),
        )
        for number, launch in enumerate(plan.passes)
    )


def code_digest(plan: LaunchPlan, compiled: CompiledKernel) -> str:
    """Return the SHA-256 of machine code and launches: plans with equal digests behave the same."""
    launches = [
        (p.grid, p.block, p.dynamic_smem_bytes, p.args, p.cluster, p.warpgroup_registers)
        for p in plan.passes
    ]
    key = repr((read_cubin(compiled.cubin).code_sha256, launches, plan.scratch))
    return hashlib.sha256(key.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CountedPlan:
    """Counts of all passes of a plan together."""

    counts: CodeCounts
    tensor_flops: float
    instructions: float  # warp instructions, without those of tensor cores


_counted = Newest[tuple[str, str], CountedPlan](256)


def count_plan(plan: LaunchPlan, compiled: CompiledKernel) -> CountedPlan:
    """Count all passes of a plan together. Raises as `analyse`.

    The counts of the last plans are cached.
    """
    key = (hashlib.sha256(compiled.cubin).hexdigest(), repr(plan))
    if (known := _counted.get(key)) is not None:
        return known
    counted = [
        count(
            compiled.cubin,
            compiled.symbols.get(launch.entry, launch.entry),
            launch_of_pass(plan, number),
        )
        for number, launch in enumerate(plan.passes)
    ]
    each = [launch_figures(counts) for counts in counted]
    work = [executed_work(counts) for counts in counted]
    counts = CodeCounts(
        code_sha256=code_digest(plan, compiled),
        code_bytes=sum(counts.program.code_bytes for counts in counted),
        instructions=sum(f.executed for f in each),
        conflicts=sum(f.shared_wavefronts - f.ideal_shared_wavefronts for f in each),
        wavefronts=sum(f.shared_wavefronts for f in each),
        sectors=sum(f.global_sectors for f in each),
        local_sectors=sum(f.local_sectors for f in each),
    )
    made = CountedPlan(counts, sum(flops for flops, _ in work), sum(n for _, n in work))
    _counted[key] = made
    return made


def launch_of_pass(plan: LaunchPlan, number: int) -> Launch:
    """Return the launch of pass `number`; a buffer has the same address in all passes."""
    launch = plan.passes[number]
    addresses = plan.addresses({n: buffer_address(i) for i, n in enumerate(plan.buffer_bytes)})
    arguments = tuple(encode_argument(arg).with_addresses(addresses) for arg in launch.args)
    known = []
    if plan.pages is not None:
        known.append((addresses[BLOCK_TABLE], plan.pages.table().tobytes()))
    for name, lengths in lengths_of(plan.problem).items():
        if name in addresses:
            known.append((addresses[name], lengths.tobytes()))
    return Launch(launch.grid, launch.block, launch.dynamic_smem_bytes, arguments, tuple(known))


def plan_budget_mistake(plan: LaunchPlan, compiled: CompiledKernel) -> str | None:
    """Return why a plan's code exceeds its register budgets; None if it does not.

    Without nvdisasm, only the compiler's messages are known.
    """
    for launch in plan.passes:
        if launch.warpgroup_registers:
            entry = compiled.symbols.get(launch.entry, launch.entry)
            try:
                program = program_of(read_cubin(compiled.cubin), entry)
            except ToolMissing:
                program = None
            registers = compiled.entries[launch.entry].registers_per_thread
            why = budget_mistake(launch, program, registers, compiled.log, plan.source.name)
            if why is not None:
                return why
    return None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Occupancy and predicted latency of a launch."""

    kernel: Kernel
    plan: LaunchPlan
    passes: tuple[PassReport, ...]
    misfit: str  # why not even one CTA of a pass fits on an SM; empty when all fit
    latency: Latency | None  # predicted, warm
    terms: Terms | None  # of that latency; arrays of length 1
    reason: str  # the limiting term, or why no latency is predicted
    by_machine_code: bool = False  # CTA times are simulated, not assumed
    calibrated_on: int = 0  # number of known times of this source

    @property
    def bound_us(self) -> float | None:
        """Return the lower bound of the launch if only the roofline is known; else None."""
        if self.terms is None or self.latency is None or not self.latency.is_bound:
            return None
        return float(self.terms.bound_us[0])

    @property
    def resources(self) -> tuple[Resources, ...]:
        """Return the resources of each pass."""
        return tuple(p.resources for p in self.passes)

    def power_limit_note(self, tensor_flops: float, instructions: float) -> str:
        """Return a sentence on the time of continuous launches if the power limit keeps the
        clock below boost; else empty.

        Args:
            tensor_flops: executed by tensor cores.
            instructions: warp instructions, without those of tensor cores.
        """
        device, latency, terms = self.kernel.device, self.latency, self.terms
        if latency is None or terms is None or not latency.is_simulated or device.clock != "boost":
            return ""
        compute_us, dram_us = float(terms.compute_us[0] + terms.fuse_us[0]), float(terms.dram_us[0])
        work = Work(
            ((compute_us * (device.boost_clock_mhz or 0), dram_us),),
            tensor_flops,
            instructions,
            dram_us * device.dram(device.memory_gb_per_s or 0.0).bytes_per_us,
        )
        return power_limit_note(device, work, latency.median_us)


def pass_reports(
    kernel: Kernel, plan: LaunchPlan, resources: tuple[Resources, ...]
) -> tuple[PassReport, ...]:
    """Return the occupancy of each pass.

    Args:
        resources: of each pass, as compiled for the kernel's GPU.

    Raises:
        UnknownName: the SM limits of the device's compute capability are not known.
    """
    limits = limits_for(kernel.device.compute_capability)
    launches = collect(kernel, [plan.problem])
    idle = [int(launches.ctas[0, 0] - launches.useful_ctas[0]), *[0] * (len(plan.passes) - 1)]
    return tuple(
        PassReport(
            r,
            occupancy(
                limits,
                kernel.device.num_sms,
                launch.ctas,
                launch.threads,
                r.registers_per_thread,
                r.static_smem_bytes + launch.dynamic_smem_bytes,
                idle_ctas,
                prod(launch.cluster),
            ),
        )
        for launch, r, idle_ctas in zip(plan.passes, resources, idle, strict=True)
    )


def misfit_of(kernel: Kernel, passes: Sequence[PassReport]) -> str:
    """Return why not even one CTA of a pass fits on an SM; empty if all fit."""
    for p in passes:
        if p.occupancy.ctas_per_sm == 0:
            return f"{p.resources.entry} does not fit on {kernel.device.name}: {p.occupancy.reason}"
    return ""


def estimate(
    kernel: Kernel,
    plan: LaunchPlan,
    passes: tuple[PassReport, ...],
    calibration: Calibration | None = None,
    curve: CtaCurve | None = None,
) -> Estimate:
    """Occupancy and predicted latency of a launch.

    Args:
        passes: of `pass_reports`.
        calibration: of the same variant and device; None uses the priors, with a wide interval. One
            based on simulated CTA times is ignored without `curve`.
        curve: simulated CTA times, if the calibration is based on them or there is none; None
            assumes a CTA time.
    """
    variant, device = kernel.variant, kernel.device
    if why := misfit_of(kernel, passes):
        return Estimate(kernel, plan, passes, why, None, None, why)
    try:
        m = machine(device, variant, plan.problem.dtype)
    except InvalidProblem as error:
        return Estimate(kernel, plan, passes, "", None, None, str(error))
    held = passes[0].occupancy.ctas_per_sm
    if (size := prod(plan.passes[0].cluster)) > 1:
        # SMs of a GPC on which no further cluster fits stay idle.
        clusters = max_active_clusters(device.compute_capability, m.num_sms, held, size)
        m = replace(m, num_sms=clusters * size // held)
    if calibration is not None and not calibration.by_machine_code:
        curve = None
    elif curve is None:
        calibration = None  # based on CTA times that are not known here
    launches = collect(kernel, [plan.problem])
    resident = np.array([[p.occupancy.ctas_per_sm] for p in passes], dtype=np.int64)
    spread = predict_arrays(variant, launches, resident, m, calibration, curve)
    note = method_note(calibration, curve)
    reason = f"{limit_sentence(spread.terms, device)} {note}"
    if calibration is None:  # known times are at a clock that is not known here
        reason += f" At {device.clock_label}."
    if spilled := sum(p.resources.spill_bytes for p in passes):
        reason += f" It spills {spilled:,} bytes of registers, which the model does not count."
    latency = Latency(
        origin="predicted",
        median_us=(median_us := float(spread.terms.total_us[0])),
        low_us=outer_end(median_us, float(spread.low_us[0]), device.clock),
        high_us=outer_end(median_us, float(spread.high_us[0]), device.clock),
        reason=reason,
    )
    return Estimate(
        kernel,
        plan,
        passes,
        "",
        latency,
        spread.terms,
        reason,
        by_machine_code=curve is not None,
        calibrated_on=calibration.points if calibration is not None else 0,
    )


def least_us(kernel: Kernel, plan: LaunchPlan) -> float | None:
    """Return the roofline's lower bound of a launch (`Terms.bound_us`), µs, which needs no
    compile. None if the GPU has no rate for its arithmetic."""
    try:
        m = machine(kernel.device, kernel.variant, plan.problem.dtype)
    except InvalidProblem:
        return None
    if plan.is_backward:
        return max(backward_roofline(plan, m))
    launches = collect(kernel, [plan.problem])
    one_each = np.ones((len(plan.passes), 1), dtype=np.int64)  # not used by the bound
    return float(evaluate(kernel.variant, launches, one_each, m, Parameters()).bound_us[0])


def backward_roofline(plan: LaunchPlan, m: Machine) -> tuple[float, float]:
    """Return the time of the arithmetic at the math units' peak and of the bytes at DRAM's
    bandwidth, µs."""
    moved = float(plan.device_bytes) if plan.device_bytes > m.l2_bytes else 0.0
    gradients = float(plan.problem.tensor_bytes + plan.problem.kv_bytes)
    return (
        plan.problem.flops / (m.flops_per_us_per_sm * m.num_sms),
        m.dram.us(moved, min(gradients, moved)),
    )


def resident_ctas(kernel: Kernel, launches: Launches, resources: tuple[Resources, ...]) -> IntArray:
    """Return CTAs per SM of each pass of many launches, `[passes, n]`.

    Args:
        resources: of each pass, as compiled for its GPU; one compile serves all the launches.

    Raises:
        InvalidProblem: not even one CTA fits on an SM.
        UnknownName: the SM limits of the device's compute capability are not known.
    """
    limits = limits_for(kernel.device.compute_capability)
    resident: IntArray = np.stack(
        [
            ctas_per_sm(
                limits,
                launches.threads[i],
                r.registers_per_thread,
                r.static_smem_bytes + launches.dynamic_smem_bytes[i],
            ).resident
            for i, r in enumerate(resources)
        ]
    )
    if (resident == 0).any():
        raise InvalidProblem(
            f"Not even one CTA of {kernel.variant.id} fits on an SM of {kernel.device.name}.",
            code="no_cta_fits",
        )
    return resident


def outer_end(median_us: float, end_us: float, clock: ClockKind) -> float:
    """Return an end of the interval, widened if the clock is predicted, too."""
    if clock != "sustained":
        return end_us
    low, high = widened(median_us, abs(log(end_us / median_us)), clock)
    return low if end_us < median_us else high


@dataclass(frozen=True, slots=True)
class Kernel(ConfiguredVariant):
    """A variant, a complete config and a GPU. Cheap to create and to compare; hashable.

    Its `values` are in the variant's order of tunables.
    """

    device: DeviceSpec

    @classmethod
    def of(
        cls, variant: Variant | str, gpu: DeviceSpec | str, config: Mapping[str, int] | None = None
    ) -> Self:
        """Create a kernel from names or objects; missing values are the GPU's defaults.

        Raises:
            UnknownName: no such variant or GPU.
            InvalidKernel: there is a mistake in the kernel's description.
        """
        found = find_variant(variant) if isinstance(variant, str) else variant
        device = target_gpu(gpu) if isinstance(gpu, str) else gpu
        return cls(found, tuple(default_config(found, config or {}, device).items()), device)

    def __hash__(self) -> int:
        return hash((self.variant.id, self.values, self.device.name))

    def describe(self) -> str:
        """`v12 num_warps=4 keys_per_warp=32`."""
        return " ".join([self.variant.id, *(f"{name}={value}" for name, value in self.values)])

    def with_config(self, **values: int) -> Self:
        """Return a copy with other values of some tunables."""
        return replace(self, values=tuple((self.config | values).items()))

    def fits(self, problem: Problem) -> bool:
        """True if a launch meets the variant's constraints and the GPU's limits, as far as they are
        known without compiling it: compute capability, clusters, dynamic shared memory."""
        is_taken = takes(self.variant, problem, self.config, self.device)
        return is_taken and self.unsupported(problem) is None

    def resources(self, problem: Problem) -> tuple[Resources, ...]:
        """Return registers and shared memory of each pass, from the real compiler; no GPU needed.

        Raises:
            InvalidProblem: as `plan`.
            CompileError, ToolMissing, UnknownName: as `compile_plan`.
        """
        plan = self.plan(problem)
        return resources(plan, compile_plan(plan, self.device.arch))

    def passes(self, problem: Problem) -> tuple[PassReport, ...]:
        """Return resources and occupancy of each pass. Raises as `resources`."""
        return pass_reports(self, self.plan(problem), self.resources(problem))

    def occupancy(self, problem: Problem) -> Occupancy:
        """Return the occupancy of the main pass. Raises as `resources`."""
        return problem.main_of(self.passes(problem)).occupancy

    def time(self, problem: Problem, history: Times[TimeT]) -> TimeT:
        """Return the time of a launch as every page and command shows it: `history.time_of`."""
        return history.time_of(self, problem)


TimeT = TypeVar("TimeT", covariant=True)


class Times(Protocol[TimeT]):
    """Interface to an object that knows times of kernels: `engine.history.History`, which is above
    the models."""

    def time_of(self, kernel: Kernel, problem: Problem) -> TimeT: ...


class Known(Protocol):
    """Known figures of kernels, in the form that the models need.

    `engine.history.History` implements it and looks up, compiles or simulates, as its `work`
    allows.
    """

    def resources(self, kernel: Kernel, problem: Problem) -> tuple[Resources, ...]:
        """Return the resources of each pass. Raises ToolMissing if they are not cached and may only
        be looked up."""
        ...

    def estimate(
        self, kernel: Kernel, problem: Problem, calibration: Calibration | None = None
    ) -> Estimate:
        """Return the prediction. `calibration` takes precedence over the history's own."""
        ...

    def calibration(self, kernel: Kernel, problem: Problem) -> Calibration | None:
        """Return the calibration for such problems; None without known times."""
        ...

    def batch_curve(
        self, kernel: Kernel, problem: Problem, launches: Launches, resident: IntArray
    ) -> CtaCurve | None:
        """Return simulated CTA times of a problem at many batches; None if there are none.

        Args:
            launches: the problem's, at each batch.
            resident: CTAs per SM of each pass, `[passes, n]`.
        """
        ...

    def points_curve(
        self, kernel: Kernel, problems: tuple[Problem, ...], resident: IntArray
    ) -> CtaCurve | None:
        """Return simulated CTA times of several problems; None unless all have them.

        Args:
            resident: CTAs per SM of each problem's main pass, `[n]`.
        """
        ...
