"""`Kernel`: a variant with a config on a GPU. Resources, occupancy and times belong to it.

Only this module estimates a launch: plan → resources → occupancy → predicted latency.
`engine.history` calls it with the kernel's resources, CTA times and calibration. The equations are
in `engine.model.equations`, where one launch is an array of length 1; curves over many launches use
the same equations (`engine.choose.batch.batch_table`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, prod
from typing import Protocol, Self, TypeVar

import numpy as np

from engine.attention.config import default_config, find_variant
from engine.attention.evaluation import CALIBRATED, Latency, Occupancy, PassReport, Resources
from engine.attention.plan import CountedPlan, LaunchPlan, compile_plan, make_plan, resources
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.base.units import format_us
from engine.devices import target_gpu
from engine.devices.spec import ClockKind, DeviceSpec, limits_for
from engine.machine_code.cubin_files import why_no_cubin
from engine.machine_code.timing.constants import LAUNCH_FLOOR_US, widened
from engine.machine_code.timing.power import Work, sustained_note
from engine.model.equations import (
    TENSOR_FORMATS,
    Z90,
    Calibration,
    CtaCurve,
    FloatArray,
    Machine,
    Parameters,
    Terms,
    evaluate,
    machine,
    predict_arrays,
)
from engine.model.launches import Launches, collect
from engine.model.occupancy import (
    FIRST_CAPABILITY,
    IntArray,
    ctas_per_sm,
    max_active_clusters,
    named_obstacle,
    no_clusters,
    occupancy,
)
from kernels.variant import Config, Dtype, Variant

BF16_CAPABILITY = (8, 0)  # the first with BF16 tensor cores


def capability_reason(variant: Variant, dtype: Dtype, device: DeviceSpec) -> str | None:
    """Return a sentence why the device's compute capability cannot run the variant, or None."""
    needed, has = variant.min_compute_capability, device.compute_capability
    if has < needed:
        return (
            f"{variant.id} needs compute capability {needed[0]}.{needed[1]} and "
            f"{device.name} has {has[0]}.{has[1]}: choose another variant or GPU."
        )
    if variant.arch_specific and has != needed:
        return (
            f"{variant.id} uses instructions that exist on compute capability "
            f"{needed[0]}.{needed[1]} alone, and {device.name} has {has[0]}.{has[1]}: "
            "choose another variant or GPU."
        )
    if variant.cubins and (why := why_no_cubin(variant.cubins, device.arch)) is not None:
        return why
    if dtype != "float16" and variant.work.math_unit == "tensor" and has < BF16_CAPABILITY:
        return (
            f"{variant.id} multiplies on tensor cores, and those of {device.name} "
            f"({device.arch}) have no {TENSOR_FORMATS[dtype]}: choose FP16, or a variant without "
            "tensor cores."
        )
    return None


def unsupported_reason(
    variant: Variant, problem: Problem, config: Config, device: DeviceSpec | None
) -> str | None:
    """Return a sentence on the first constraint that variant, config, problem and GPU violate, or
    None.

    Args:
        device: None leaves compute capability and shared memory unchecked.
    """
    # First, constraints that no config can meet.
    if device is not None and (why := capability_reason(variant, problem.dtype, device)):
        return why
    why = variant.unsupported(problem, config)
    if why is None or device is None:
        return why
    return named_obstacle(variant, problem, device, why)


def launch_plan(
    variant: Variant, problem: Problem, config: Config, device: DeviceSpec | None
) -> LaunchPlan:
    """Return the launch plan of a problem that variant, config and GPU support.

    Raises:
        InvalidProblem: a constraint, the compute capability or CUDA's grid limits forbid it.
    """
    if (why := unsupported_reason(variant, problem, config, device)) is not None:
        raise InvalidProblem(why, code="launch_not_taken")
    plan = make_plan(variant, problem, config)
    has_clusters = any(prod(p.cluster) > 1 for p in plan.passes)
    if device is not None and has_clusters and device.compute_capability < FIRST_CAPABILITY:
        raise no_clusters(device.compute_capability)
    return plan


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
        return tuple(p.resources for p in self.passes)

    def sustained_note(self, counted: CountedPlan) -> str:
        """Return a sentence on the time of continuous launches if the power limit keeps the
        clock below boost; else empty."""
        device, latency, terms = self.kernel.device, self.latency, self.terms
        if latency is None or terms is None or not latency.is_simulated or device.clock != "boost":
            return ""
        compute_us, dram_us = float(terms.compute_us[0] + terms.fuse_us[0]), float(terms.dram_us[0])
        work = Work(
            ((compute_us * (device.boost_clock_mhz or 0), dram_us),),
            counted.tensor_flops,
            counted.instructions,
            dram_us * device.dram(device.memory_gb_per_s or 0.0).bytes_per_us,
        )
        return sustained_note(device, work, latency.median_us)


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
    launches = collect(kernel.variant, plan.config, [plan.problem])
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
        # The rest of a GPC on which no further cluster fits stays idle.
        clusters = max_active_clusters(device.compute_capability, m.num_sms, held, size)
        m = replace(m, num_sms=clusters * size // held)
    if calibration is not None and not calibration.by_machine_code:
        curve = None
    elif curve is None:
        calibration = None  # based on CTA times that are not known here
    launches = collect(variant, plan.config, [plan.problem])
    resident = np.array([[p.occupancy.ctas_per_sm] for p in passes], dtype=np.int64)
    spread = predict_arrays(variant, launches, resident, m, calibration, curve)
    note = _method_note(calibration, curve)
    reason = f"{_binding_sentence(spread.terms, device)} {note} At {device.clock_label}."
    if spilled := sum(p.resources.spill_bytes for p in passes):
        reason += f" It spills {spilled:,} bytes of registers, which the model does not count."
    latency = Latency(
        origin="predicted",
        median_us=(median_us := float(spread.terms.total_us[0])),
        low_us=_outer(median_us, float(spread.low_us[0]), device.clock),
        high_us=_outer(median_us, float(spread.high_us[0]), device.clock),
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


@dataclass(frozen=True, slots=True)
class PassTime:
    """One pass of a backward kernel, simulated separately; µs."""

    us: float  # without the launch floor
    sm_us: float  # the busiest SM
    cta_us: float  # the longest CTA, alone on an SM
    dram_us: float
    spread: float  # standard deviation of the logarithm of its error


def least_us(kernel: Kernel, plan: LaunchPlan) -> float | None:
    """Return the roofline's lower bound of a launch (`Terms.bound_us`), µs, which needs no
    compile. None if the GPU has no rate for its arithmetic."""
    try:
        m = machine(kernel.device, kernel.variant, plan.problem.dtype)
    except InvalidProblem:
        return None
    if plan.is_backward:
        return max(_backward_roofline(plan, m))
    launches = collect(kernel.variant, plan.config, [plan.problem])
    one_each = np.ones((len(plan.passes), 1), dtype=np.int64)  # not used by the bound
    return float(evaluate(kernel.variant, launches, one_each, m, Parameters()).bound_us[0])


def _backward_roofline(plan: LaunchPlan, m: Machine) -> tuple[float, float]:
    """Return the time of the arithmetic at the math units' peak and of the bytes at DRAM's
    bandwidth, µs."""
    moved = float(plan.device_bytes) if plan.device_bytes > m.l2_bytes else 0.0
    gradients = float(plan.problem.tensor_bytes + plan.problem.kv_bytes)
    return (
        plan.problem.flops / (m.flops_per_us_per_sm * m.num_sms),
        m.dram.us(moved, min(gradients, moved)),
    )


# For a backward kernel that is not simulated: assumed share of the math peak, and its uncertainty.
_ASSUMED_EFFICIENCY, _ASSUMED_FACTOR = 0.3, 4.0


def estimate_backward(
    kernel: Kernel,
    plan: LaunchPlan,
    passes: tuple[PassReport, ...],
    times: Sequence[PassTime] | None,
) -> Estimate:
    """Return occupancy and predicted latency of a backward launch: the sum of its passes.

    Args:
        times: simulated time of each pass; None assumes a share of the math units' peak.
    """
    if why := misfit_of(kernel, passes):
        return Estimate(kernel, plan, passes, why, None, None, why)
    try:
        m = machine(kernel.device, kernel.variant, plan.problem.dtype)
    except InvalidProblem as error:
        return Estimate(kernel, plan, passes, "", None, None, str(error))
    peak_us, dram_us = _backward_roofline(plan, m)
    if times is not None:
        floor_us = len(times) * LAUNCH_FLOOR_US
        compute_us, sm_us = sum(t.us for t in times), sum(t.sm_us for t in times)
        cta_us, dram_us = max(t.cta_us for t in times), sum(t.dram_us for t in times)
        factor = exp(Z90 * max(t.spread for t in times))
        largest = max(range(len(times)), key=lambda i: times[i].us)
        entry, share = plan.passes[largest].entry, times[largest].us / max(compute_us, 1e-9)
        what = f"{entry} takes {share:.0%} of its {len(times)} passes."
    else:
        floor_us = len(passes) * Parameters().floor_us
        compute_us = sm_us = max(peak_us, dram_us) / _ASSUMED_EFFICIENCY
        cta_us, factor = 0.0, _ASSUMED_FACTOR
        what = (
            f"Its products are assumed to run at {_ASSUMED_EFFICIENCY:.0%} of the math units' peak."
        )
    total_us = floor_us + compute_us
    note = _method_note(None, None)
    if times is not None:
        note = (
            "By machine code: the sum of the passes, each simulated by itself; the interval comes "
            "from kernels that were both measured and simulated."
        )
    reason = f"{what} {note} At {kernel.device.clock_label}."
    if spilled := sum(p.resources.spill_bytes for p in passes):
        reason += f" It spills {spilled:,} bytes of registers, which the model does not count."
    clock = kernel.device.clock
    latency = Latency(
        origin="predicted",
        median_us=total_us,
        low_us=_outer(total_us, total_us / factor, clock),
        high_us=_outer(total_us, total_us * factor, clock),
        reason=reason,
    )
    main = passes[min(1, len(passes) - 1)].occupancy

    def one(value: float) -> FloatArray:
        return np.array([value])

    zero, ctas = one(0.0), np.array([main.ctas])
    terms = Terms(
        total_us=one(total_us),
        floor_us=one(floor_us),
        cta_us=one(cta_us),
        shared_us=zero,
        ctas=ctas,
        ctas_per_sm=np.array([main.ctas_per_sm]),
        load_per_sm=-(-ctas // m.num_sms),
        compute_us=one(sm_us),
        peak_us=one(peak_us),
        exp_us=zero,
        l2_us=zero,
        dram_us=one(dram_us),
        fuse_us=zero,
    )
    by_machine_code = times is not None
    return Estimate(kernel, plan, passes, "", latency, terms, reason, by_machine_code)


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


def _outer(median_us: float, end_us: float, clock: ClockKind) -> float:
    """Return an end of the interval, widened if the clock is predicted, too."""
    if clock != "sustained":
        return end_us
    low, high = widened(median_us, abs(log(end_us / median_us)), clock)
    return low if end_us < median_us else high


def _method_note(calibration: Calibration | None, curve: CtaCurve | None) -> str:
    """Return a sentence on the origin of the CTA time and its uncertainty."""
    if curve is not None:
        method = "By machine code: a CTA's time is simulated on one SM"
        if calibration is None:
            return f"{method}; the interval comes from kernels both measured and simulated."
    else:
        method = "By roofline: a CTA's time is assumed"
        if calibration is None:
            return f"{method}. Not calibrated on times of this source, so the interval is wide."
    s = "s" if calibration.points > 1 else ""
    return f"{method}. {CALIBRATED} {calibration.points} measured point{s}."


def _binding_sentence(terms: Terms, device: DeviceSpec) -> str:
    """Return one sentence on the limiting term of a launch."""
    binds = terms.binding()
    if binds == "launch floor":
        return f"Launch overhead is the largest part ({format_us(terms.floor_us[0])})."
    if binds == "one CTA":
        idle = (device.num_sms or 0) - int(terms.ctas[0])
        rest = f" while {idle:,} of {device.num_sms} SMs idle" if idle > 0 else ""
        return (
            f"The serial work of one CTA is the largest part ({format_us(terms.cta_us[0])}){rest}."
        )
    if binds == "CTAs per SM":
        load, resident = int(terms.load_per_sm[0]), int(terms.ctas_per_sm[0])
        return (
            f"The busiest SM works through {load:,} CTAs, {min(load, resident)} at a time "
            f"({format_us(terms.compute_us[0])})."
        )
    what, time_us = {
        "math peak": ("The peak rate of the math units is the limit", terms.peak_us),
        "exp peak": ("The peak rate of the exponential units is the limit", terms.exp_us),
        "L2": ("L2 bandwidth is the limit", terms.l2_us),
        "DRAM": ("DRAM bandwidth is the limit", terms.dram_us),
        "fusion pass": ("Fusing the partial results is the largest part", terms.fuse_us),
    }[binds]
    return f"{what} ({format_us(time_us[0])})."


@dataclass(frozen=True, slots=True)
class Kernel:
    """A variant, a complete config and a GPU. Cheap to create and to compare; hashable."""

    variant: Variant
    values: tuple[tuple[str, int], ...]  # the config, in the variant's order
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

    @property
    def config(self) -> dict[str, int]:
        return dict(self.values)

    def __hash__(self) -> int:
        return hash((self.variant.id, self.values, self.device.name))

    def describe(self) -> str:
        """`v12 num_warps=4 keys_per_warp=32`."""
        return " ".join([self.variant.id, *(f"{name}={value}" for name, value in self.values)])

    def with_config(self, **values: int) -> Self:
        """Return a copy with other values of some tunables."""
        return replace(self, values=tuple((self.config | values).items()))

    def unsupported(self, problem: Problem) -> str | None:
        """Return a sentence why it cannot run the problem, or None."""
        return unsupported_reason(self.variant, problem, self.config, self.device)

    def plan(self, problem: Problem) -> LaunchPlan:
        """The launch. Raises InvalidProblem where variant, config or GPU do not take it."""
        return launch_plan(self.variant, problem, self.config, self.device)

    def resources(self, problem: Problem) -> tuple[Resources, ...]:
        """Return registers and shared memory of each pass, from the real compiler; no GPU needed.

        Raises:
            InvalidProblem: as `plan`.
            CompileError, ToolMissing, UnknownName: as `compile_plan`.
        """
        plan = self.plan(problem)
        return resources(plan, compile_plan(plan, self.device.arch))

    def passes(self, problem: Problem) -> tuple[PassReport, ...]:
        """Resources and occupancy of each pass. Raises as `resources`."""
        return pass_reports(self, self.plan(problem), self.resources(problem))

    def occupancy(self, problem: Problem) -> Occupancy:
        """Occupancy of the main pass. Raises as `resources`."""
        return problem.main_of(self.passes(problem)).occupancy

    def time(self, problem: Problem, history: Times[TimeT]) -> TimeT:
        """Return the time of a launch as every page and command shows it: `history.time_of`."""
        return history.time_of(self, problem)


TimeT = TypeVar("TimeT", covariant=True)


class Times(Protocol[TimeT]):
    """What knows times of kernels: `engine.history.History`, which lies above the models."""

    def time_of(self, kernel: Kernel, problem: Problem) -> TimeT: ...


class Known(Protocol):
    """Known figures of kernels, in the form that the models need.

    `engine.history.History` implements it and looks up, compiles or simulates, as its `work`
    allows.
    """

    def resources(self, kernel: Kernel, problem: Problem) -> tuple[Resources, ...]:
        """Of each pass. Raises ToolMissing where they are only looked up, and not cached."""
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
