"""The roofline of a launch: its arithmetic intensity and rate, and the GPU's roofs.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 2009, with a
roof for each level of memory (hierarchical roofline, Yang et al., 2020). FLOPs are counted as in
FlashAttention (`Problem.flops`), so padding and recomputation lower a kernel's TFLOP/s. Bytes are
modelled, not counted, for a warm launch: data that fit in L2 do not come from DRAM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from engine.attention.evaluation import Origin
from engine.attention.plan import TENSOR_FORMATS, LaunchPlan
from engine.base.table import Table
from engine.base.units import format_bytes, format_count, format_us
from engine.devices.spec import DeviceSpec
from engine.model.equations import Machine, bytes_beyond_l2, l2_traffic, machine
from engine.model.kernel import Kernel
from engine.model.launches import collect, traffic_by_order
from kernels.variant import Dtype, Variant

Level: TypeAlias = Literal["L2", "DRAM"]
LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, slots=True)
class Roofs:
    """A GPU's peak rates for one math unit and number format."""

    device: str
    math_name: str  # "FP32 FMA", "FP16 tensor cores"
    math_tflops: float  # dense, at the boost clock: the vendor's figure
    l2_gb_per_s: float  # for all SMs together, published or assumed for the arch
    dram_gb_per_s: float  # the vendor's figure

    def gb_per_s(self, level: Level) -> float:
        """Return the bandwidth of a memory level."""
        return self.l2_gb_per_s if level == "L2" else self.dram_gb_per_s

    def ridge(self, level: Level) -> float:
        """Return the intensity, in FLOP/B, above which the math unit is the roof."""
        return 1e3 * self.math_tflops / self.gb_per_s(level)

    @property
    def ridges(self) -> dict[Level, float]:
        """Return the ridge of each memory level, in FLOP/B."""
        return {level: self.ridge(level) for level in LEVELS}

    def attainable_tflops(self, level: Level, intensity: float) -> float:
        """Return the roof at an intensity in FLOP/B."""
        return min(self.math_tflops, intensity * self.gb_per_s(level) / 1e3)


def roofs_of(device: DeviceSpec, variant: Variant, dtype: Dtype) -> Roofs:
    """Return the roofs of a variant's points.

    Raises:
        InvalidProblem: the GPU's row lacks a figure; the text names it.
    """
    m = machine(device, variant, dtype)
    name = f"{TENSOR_FORMATS[dtype]} tensor cores"
    return Roofs(
        device=device.name,
        math_name="FP32 FMA" if variant.work.math_unit == "fma" else name,
        math_tflops=m.flops_per_us_per_sm * m.num_sms / 1e6,
        l2_gb_per_s=m.l2_bytes_per_us / 1e3,
        dram_gb_per_s=m.dram_gb_per_s,
    )


@dataclass(frozen=True, slots=True)
class LaunchWork:
    """FLOPs, bytes and threads of one warm launch, all passes together."""

    flops: int
    l2_bytes: float
    dram_bytes: float  # 0 if everything stays in L2
    least_bytes: int  # Q, K, V and O once each: the minimum of a cold launch
    kv_l2_loads: float  # how often each byte of K and V is loaded from L2
    kv_dram_loads: float  # the same from DRAM
    by_order: bool  # DRAM's bytes follow from the order of CTAs; else each byte counts once
    computing_threads: int  # of the main pass, that execute inner products
    threads: int  # of the main pass

    def bytes_from(self, level: Level) -> float:
        """Return the bytes that the launch reads from and writes to a memory level."""
        return self.l2_bytes if level == "L2" else self.dram_bytes

    def intensity(self, level: Level) -> float | None:
        """Return the intensity in FLOP/B; None if no byte comes from that memory."""
        moved = self.bytes_from(level)
        return self.flops / moved if moved > 0 else None

    @property
    def computing_share(self) -> float:
        """Return the share of threads that execute inner products, 0..1."""
        return self.computing_threads / self.threads

    @property
    def dram_method(self) -> str:
        """Return a sentence on how DRAM's bytes are determined."""
        if self.dram_bytes == 0:
            return (
                "Warm, everything stays in L2 and nothing comes from DRAM; a cold launch moves "
                f"{format_bytes(self.least_bytes)} at least."
            )
        if self.by_order:
            return "DRAM's bytes follow from the order in which the CTAs start."
        return "DRAM's bytes count every byte once: the order of the CTAs is not known."


def launch_work(kernel: Kernel, plan: LaunchPlan, resident: int) -> LaunchWork:
    """Return FLOPs, bytes and threads of a launch.

    Args:
        resident: CTAs of the main pass on an SM.

    Raises:
        InvalidProblem: as `roofs_of`.
    """
    launches = collect(kernel, [plan.problem])
    m = machine(kernel.device, kernel.variant, plan.problem.dtype)
    if plan.is_backward:
        return _backward_work(kernel.variant, plan, m)
    moved = l2_traffic(launches)
    ordered = traffic_by_order(kernel, plan, resident)
    once = float(bytes_beyond_l2(launches, m)[0])
    later_passes = len(plan.passes) - 1
    return LaunchWork(
        flops=plan.problem.flops,
        l2_bytes=float(moved.main_bytes[0]) + later_passes * float(moved.fuse_bytes[0]),
        dram_bytes=once if ordered is None else ordered.dram_bytes,
        least_bytes=plan.problem.io_bytes,
        kv_l2_loads=float(moved.kv_bytes[0]) / plan.problem.kv_bytes,
        kv_dram_loads=float(once > 0) if ordered is None else ordered.kv_reads,
        by_order=ordered is not None,
        computing_threads=int(launches.useful_ctas[0] * launches.math_threads[0]),
        threads=int(launches.ctas[0, 0] * launches.threads[0, 0]),
    )


def _backward_work(variant: Variant, plan: LaunchPlan, m: Machine) -> LaunchWork:
    """Return the work of a backward launch, in whose main pass a CTA owns keys and visits all
    queries.

    It reads K and V from L2 once, Q and dO for each key tile, and what other passes read and write.
    """
    problem = plan.problem
    main = problem.main_of(plan.passes)
    tiles = -(-problem.num_keys // variant.work.kv_rows(problem, plan.config))
    scratch_bytes = sum(2 * s.size_bytes for s in plan.scratch)
    share = problem.twice_scores / (2 * problem.batch * problem.seqlen * problem.num_keys)
    beyond = plan.device_bytes if plan.device_bytes > m.l2_bytes else 0
    return LaunchWork(
        flops=problem.flops,
        l2_bytes=problem.io_bytes + share * 2 * tiles * problem.tensor_bytes + scratch_bytes,
        dram_bytes=float(beyond),
        least_bytes=problem.io_bytes,
        kv_l2_loads=1.0,
        kv_dram_loads=float(beyond > 0),
        by_order=False,
        computing_threads=main.ctas * variant.work.math_threads(problem, plan.config),
        threads=main.ctas * main.threads,
    )


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A time of a launch at one level of memory."""

    level: Level
    intensity: float  # FLOP a byte
    tflops: float
    origin: Origin
    time_us: float
    roof_tflops: float  # the lower of the two roofs at its intensity

    @property
    def share(self) -> float:
        """Return the achieved share of the roof."""
        return self.tflops / self.roof_tflops


def roofline_points(
    roofs: Roofs, work: LaunchWork, times: Iterable[tuple[float, Origin]]
) -> tuple[RooflinePoint, ...]:
    """Return a point for each time and each level from which the launch moves bytes.

    Args:
        times: in microseconds, with their origins.
    """
    return tuple(
        RooflinePoint(
            level=level,
            intensity=intensity,
            tflops=work.flops / time_us / 1e6,
            origin=origin,
            time_us=time_us,
            roof_tflops=roofs.attainable_tflops(level, intensity),
        )
        for time_us, origin in times
        for level in LEVELS
        if (intensity := work.intensity(level)) is not None
    )


def roofs_table(roofs: Roofs) -> Table:
    """Return the roofs as a table."""
    rows = [(roofs.math_name, f"{roofs.math_tflops:.3g} TFLOP/s", "", "the GPU's figure")]
    for level in LEVELS:
        known = "all SMs together, as in the simulation" if level == "L2" else "the GPU's figure"
        speed = f"{roofs.gb_per_s(level):,.0f} GB/s"
        rows.append((level, speed, f"{roofs.ridge(level):,.3g}", known))
    return Table(
        f"Roofs of {roofs.device}", ("roof", "at most", "ridge, FLOP/B", "known"), tuple(rows)
    )


def work_table(work: LaunchWork) -> Table:
    """Return the launch's work as a table."""
    rows = [
        ("FLOPs", format_count(work.flops)),
        ("bytes from L2, modelled", format_bytes(round(work.l2_bytes))),
        ("bytes from DRAM, modelled", format_bytes(round(work.dram_bytes))),
        ("Q, K, V and O once", format_bytes(work.least_bytes)),
        ("K/V loaded from L2", f"{work.kv_l2_loads:,.3g} times"),
        ("K/V loaded from DRAM", f"{work.kv_dram_loads:,.3g} times"),
        ("threads", format_count(work.threads)),
        ("of them computing", f"{work.computing_share:.0%}"),
    ]
    return Table("Work of the launch", ("figure", "value"), tuple(rows), work.dram_method)


def points_table(points: Iterable[RooflinePoint]) -> Table:
    """Return the points as a table."""
    return Table.of(
        "Against the roofs",
        (
            {
                "level": p.level,
                "FLOP/B": f"{p.intensity:,.3g}",
                "time": f"{format_us(p.time_us)} {p.origin}",
                "TFLOP/s": f"{p.tflops:.3g}",
                "roof, TFLOP/s": f"{p.roof_tflops:.3g}",
                "of the roof": f"{p.share:.1%}",
            }
            for p in points
        ),
    )
