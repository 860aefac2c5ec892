"""The equations of the latency model: explicit terms, in microseconds, over arrays of problems.

One pass takes its launch floor plus the slowest of three: the SMs, L2, DRAM. Simulated CTA times
already include waiting for L2. A CTA alone on an SM takes `cta_us`. Each further resident CTA adds
`shared_us`, its time on contended units (the shared-memory pipe, the tensor cores). The busiest SM
gets ⌈CTAs / SMs⌉ CTAs and holds `ctas_per_sm` at once, so it works in rounds (CTAs of empty splits
end at once and are not counted):

    time(n resident) = cta_us + (n − 1) · shared_us, never under n CTAs at the math or exp peak
    compute = rounds · time(ctas_per_sm) + time(rest)

Priors (the assumed speed of an uncalibrated kernel and its uncertainty) are constants below, each
with its reason; `engine.model.calibrate` replaces them by measurements. They were chosen with
knowledge of the L4 study's times of v01, so those points do not validate them. FlashAttention-2 on
an H200 validates those of tensor kernels (42 of 42 recorded times inside the 90 % interval).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.evaluation import CALIBRATED
from engine.attention.plan import TENSOR_FORMATS
from engine.base.errors import InvalidProblem
from engine.base.units import format_us
from engine.devices.spec import DeviceSpec, DramRate
from engine.machine_code.timing.constants import l2_share_bytes_per_cycle
from engine.model.launches import Launches
from engine.model.occupancy import WARP_SIZE, IntArray
from kernels.variant import Dtype, Variant

FloatArray: TypeAlias = npt.NDArray[np.float64]

# Scalar kernels. A chain of dependent FMAs issues every 4 cycles; both operands come from shared
# memory, and each way of a bank conflict delays both loads by one cycle.
_FMA_CHAIN_CYCLES = 4.0
_STEP_CYCLES = 2.0
_STEP_CYCLES_PER_WAY = 2.0
# Cycles of a step on the SM's shared-memory pipe: two accesses, plus those of conflicts in half of
# the steps (Q @ K^T, not P @ V), with two elements per word.
_PIPE_CYCLES = 2.0
_PIPE_CYCLES_PER_WAY = 0.25
# Tensor kernels. Well-written mma.sync kernels reach about 40 % of peak; an SM needs about two
# warps per sub-partition to get there.
_TENSOR_EFFICIENCY = 0.4
_TENSOR_WARPS = 8
_EXP_PER_CYCLE = 16  # MUFU results per SM and cycle, all of sm_75 to sm_121
# An SM's port to L2 carries 64 bytes a cycle; together the SMs get less.
_L2_BYTES_PER_CYCLE = 64
_L2_PORT_EFFICIENCY = 0.8
# A dependent pass starts about 2 µs after the previous one has drained, or sooner with a low floor.
_MAX_GAP_US = 2.0
# A CTA of a fusion pass: two dependent trips to L2 and back.
_FUSE_CTA_US = 1.5

TERMS = (
    "launch floor",
    "one CTA",
    "CTAs per SM",
    "math peak",
    "exp peak",
    "L2",
    "DRAM",
    "fusion pass",
)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Parameters that calibration fits; the defaults are the priors' medians."""

    floor_us: float = 3.0  # start, drain and timing of an otherwise empty launch
    pace: float = 1.0  # a CTA's time divided by the assumed time
    # The part that resident CTAs cannot overlap, divided by the assumed part.
    contention: float = 1.0
    bandwidth: float = 1.0  # L2 and DRAM rates divided by the assumed rates


@dataclass(frozen=True, slots=True)
class ParameterArrays:
    """k sets of `Parameters` that are evaluated at once: arrays `[k, 1]`."""

    floor_us: FloatArray
    pace: FloatArray
    contention: FloatArray
    bandwidth: FloatArray


PARAMETER_NAMES = ("floor_us", "pace", "contention", "bandwidth")
# Factors of the priors' 90 % intervals. An empty kernel takes 0.5 µs in a graph and 9 µs between
# events; scalar kernels of one design differ up to fivefold by how their loads compile.
_PRIOR_FACTORS = {"floor_us": 3.0, "pace": 5.0, "contention": 2.5, "bandwidth": 1.6}
_TENSOR_PACE_FACTOR = 3.5
# The same with simulated CTA times: the floor is that of a CUDA graph.
_SIMULATED_FACTORS = {"floor_us": 1.5, "contention": 1.3, "bandwidth": 1.6}
Z90 = 1.6449  # the normal's 95 % point: half of a 90 % interval
# Run-to-run noise of a launch's time, as a standard deviation of its logarithm.
NOISE = 0.03


def prior_covariance(variant: Variant) -> FloatArray:
    """Prior covariance of the logarithms of `PARAMETER_NAMES`, `[4, 4]`."""
    factors = dict(_PRIOR_FACTORS)
    if variant.work.math_unit == "tensor":
        factors["pace"] = _TENSOR_PACE_FACTOR
    return np.diag([(np.log(factors[name]) / Z90) ** 2 for name in PARAMETER_NAMES])


@dataclass(frozen=True, slots=True)
class CtaCurve:
    """Simulated CTA times of n launches, which replace the assumed ones."""

    cta_us: FloatArray  # [n] one CTA, the longest, alone on an SM
    # [n] time that each further resident CTA adds, with as many as an SM holds.
    added_us: FloatArray
    sm_us: FloatArray  # [n] time of all SMs, until the last CTA has ended
    spread: float  # standard deviation of the logarithm of the simulation's error
    floor_us: float  # of an empty launch, as measured
    dram_bytes: FloatArray | None = None  # [n] by the order of CTAs; None: every byte once

    def take(self, keep: npt.NDArray[np.bool_]) -> CtaCurve:
        """Return the curve of some of the launches."""
        return CtaCurve(
            cta_us=self.cta_us[keep],
            added_us=self.added_us[keep],
            sm_us=self.sm_us[keep],
            spread=self.spread,
            floor_us=self.floor_us,
            dram_bytes=None if self.dram_bytes is None else self.dram_bytes[keep],
        )

    @staticmethod
    def joined(curves: Sequence[CtaCurve]) -> CtaCurve:
        """Return the concatenation of several curves."""
        moved = [c.dram_bytes for c in curves if c.dram_bytes is not None]
        return CtaCurve(
            cta_us=np.concatenate([c.cta_us for c in curves]),
            added_us=np.concatenate([c.added_us for c in curves]),
            sm_us=np.concatenate([c.sm_us for c in curves]),
            spread=max(c.spread for c in curves),
            floor_us=curves[0].floor_us,
            dram_bytes=np.concatenate(moved) if len(moved) == len(curves) else None,
        )


def priors(variant: Variant, curve: CtaCurve | None = None) -> tuple[Parameters, FloatArray]:
    """Return the uncalibrated parameters, and the covariance of their logarithms, `[4, 4]`.

    With simulated CTA times, the pace's error is that of the validation, and the floor that of a
    CUDA graph.
    """
    if curve is None:
        return Parameters(), prior_covariance(variant)
    deviations = {name: np.log(factor) / Z90 for name, factor in _SIMULATED_FACTORS.items()}
    deviations["pace"] = curve.spread
    covariance = np.diag([deviations[name] ** 2 for name in PARAMETER_NAMES])
    return Parameters(floor_us=curve.floor_us), covariance


@dataclass(frozen=True, slots=True)
class Calibration:
    """Parameters fitted to measured points, and their uncertainty."""

    parameters: Parameters
    covariance: tuple[tuple[float, ...], ...]  # of the logarithms of PARAMETER_NAMES, [4, 4]
    noise: float  # standard deviation of log(measured / predicted) that the fit leaves
    fitted: tuple[str, ...]  # the rest of PARAMETER_NAMES keeps its prior
    points: int
    notes: tuple[str, ...] = ()
    # For a kernel other than the variant's file: it does not visit keys past the end.
    skips_absent_keys: bool = False
    by_machine_code: bool = False  # based on simulated CTA times, not on assumed ones


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of one GPU for one math unit and dtype, per µs unless a name says otherwise."""

    num_sms: int
    cycles_per_us: float
    flops_per_us_per_sm: float
    dram_gb_per_s: float  # from the data sheet
    dram: DramRate
    l2_bytes: int
    l2_bytes_per_cycle: int  # per SM while all SMs read, as in the simulation

    @property
    def l2_bytes_per_us(self) -> float:
        """Return L2's bandwidth of all SMs together."""
        return self.l2_bytes_per_cycle * self.cycles_per_us * self.num_sms


def machine(device: DeviceSpec, variant: Variant, dtype: Dtype) -> Machine:
    """Return the device's rates.

    Raises:
        InvalidProblem: its row lacks figures that a prediction needs; the text names them.
    """
    if variant.work.math_unit == "fma":
        peak, peak_name = device.fp32_tflops, "FP32 peak"
    else:
        peak, peak_name = device.tensor_tflops(dtype), f"{TENSOR_FORMATS[dtype]} tensor peak"
    figures = {
        "number of SMs": device.num_sms,
        "clock": device.boost_clock_mhz,
        peak_name: peak,
        "memory bandwidth": device.memory_gb_per_s,
        "L2 size": device.l2_bytes,
    }
    missing = [name for name, figure in figures.items() if figure is None]
    if missing:
        raise InvalidProblem(
            f"No latency is predicted for {device.name}: its {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} unknown.",
            code="not_predicted",
        )
    num_sms, clock_mhz, tflops, gb_per_s, l2_bytes = (float(x or 0) for x in figures.values())
    return Machine(
        num_sms=int(num_sms),
        cycles_per_us=clock_mhz,
        flops_per_us_per_sm=tflops * 1e6 / num_sms,
        dram_gb_per_s=gb_per_s,
        dram=device.dram(gb_per_s),
        l2_bytes=int(l2_bytes),
        l2_bytes_per_cycle=l2_share_bytes_per_cycle(device.arch),
    )


@dataclass(frozen=True, slots=True)
class Terms:
    """The model's terms for n problems; times in µs.

    Arrays are `[n]`; with k sets of parameters, those that depend on a parameter are `[k, n]`.
    """

    total_us: FloatArray
    floor_us: FloatArray  # of all passes
    cta_us: FloatArray  # a CTA alone on an SM
    shared_us: FloatArray  # time that another resident CTA adds
    ctas: IntArray  # of the main pass, without CTAs of empty splits
    ctas_per_sm: IntArray
    load_per_sm: IntArray  # ⌈CTAs / SMs⌉
    compute_us: FloatArray
    peak_us: FloatArray  # the busiest SM at the math unit's peak
    exp_us: FloatArray  # the busiest SM at the exponential unit's peak
    l2_us: FloatArray
    dram_us: FloatArray
    fuse_us: FloatArray  # later passes without their floors

    @property
    def limiting(self) -> npt.NDArray[np.int64]:
        """Return the largest term, as an index into TERMS, which splits compute into its parts."""
        largest = np.argmax(
            np.stack([self.floor_us, self.compute_us, self.l2_us, self.dram_us, self.fuse_us]),
            axis=0,
        )
        at_peak = 0.99 * self.compute_us
        compute = np.select(
            [self.peak_us >= at_peak, self.exp_us >= at_peak, self.load_per_sm > 1],
            [TERMS.index("math peak"), TERMS.index("exp peak"), TERMS.index("CTAs per SM")],
            TERMS.index("one CTA"),
        )
        others = [TERMS.index(x) for x in ("launch floor", "one CTA", "L2", "DRAM", "fusion pass")]
        return np.where(largest == 1, compute, np.array(others)[largest])

    @property
    def bound_us(self) -> FloatArray:
        """Return the lower bound of a launch: its arithmetic at the math units' peak rate and
        its bytes at DRAM's bandwidth. Nothing is assumed about a CTA's time."""
        return np.maximum(self.peak_us, self.dram_us)

    def limited_by(self, i: int = 0) -> str:
        """Return the name of the limiting term of the i-th launch, one of TERMS."""
        return TERMS[int(self.limiting[i])]


def evaluate(
    variant: Variant,
    launches: Launches,
    resident: IntArray,
    m: Machine,
    parameters: Parameters | ParameterArrays,
    curve: CtaCurve | None = None,
) -> Terms:
    """Return the terms of all launches.

    Args:
        resident: CTAs per SM, `[passes, n]`, at least 1 (`engine.model.kernel.resident_ctas`).
        curve: simulated CTA times; None assumes them.
    """
    rows, kv_rows = launches.query_rows, launches.kv_rows
    # Inner-product steps of one query row: Q·K and P·V over the K/V rows, reading Q, writing O.
    steps = launches.head_dim * (2 * kv_rows + 2)
    warps = -(-launches.math_threads // WARP_SIZE)
    peak_cta_us = 2.0 * rows * steps / m.flops_per_us_per_sm
    per_sm = resident[0]
    useful = launches.useful_ctas
    load = -(-useful // m.num_sms)
    rounds, rest = np.divmod(load, per_sm)
    if curve is not None:
        cta_us = parameters.pace * curve.cta_us
        added_us = parameters.pace * parameters.contention * curve.added_us
        shared_us = added_us / np.maximum(1, per_sm - 1)
    else:
        if variant.work.math_unit == "fma":
            per_thread = steps * rows / launches.math_threads
            ways = launches.conflict_ways
            step_cycles = np.maximum(_FMA_CHAIN_CYCLES, _STEP_CYCLES + _STEP_CYCLES_PER_WAY * ways)
            alone_us = per_thread * step_cycles / m.cycles_per_us
            pipe_cycles = _PIPE_CYCLES + _PIPE_CYCLES_PER_WAY * ways
            pipe_us = per_thread * warps * pipe_cycles / m.cycles_per_us
        else:
            pipe_us = peak_cta_us / _TENSOR_EFFICIENCY
            alone_us = pipe_us * np.maximum(1.0, _TENSOR_WARPS / warps)
        cta_us = parameters.pace * np.maximum(alone_us, pipe_us)
        shared_us = np.minimum(cta_us, parameters.pace * parameters.contention * pipe_us)
    exp_cta_us = rows * kv_rows / (_EXP_PER_CYCLE * m.cycles_per_us)
    least = np.maximum(peak_cta_us, exp_cta_us)

    def together(n: IntArray) -> FloatArray:
        """Return the time of n resident CTAs on one SM; 0 for none."""
        return np.where(n > 0, np.maximum(cta_us + (n - 1) * shared_us, n * least), 0.0)

    share = visited_share(launches)
    if curve is not None:
        # Contention scales the time that further resident CTAs add.
        contended = (cta_us + added_us) / (curve.cta_us + curve.added_us)
        compute_us = np.maximum(contended * curve.sm_us, share * load * least)
    else:
        whole = rounds * together(per_sm) + together(rest)
        compute_us = np.maximum(share * whole, together(np.minimum(load, 1)))
    peak_us, exp_us = share * load * peak_cta_us, share * load * exp_cta_us

    moved = l2_traffic(launches)
    port = _L2_BYTES_PER_CYCLE * m.cycles_per_us * parameters.bandwidth
    l2_rate = parameters.bandwidth * m.l2_bytes_per_us
    l2_us = np.maximum(
        moved.main_bytes / l2_rate, load * moved.cta_bytes / (_L2_PORT_EFFICIENCY * port)
    )
    if curve is not None:  # simulated times already include waiting for L2
        l2_us = np.minimum(l2_us, compute_us)
    spilled = bytes_beyond_l2(launches, m)
    if curve is not None and curve.dram_bytes is not None:
        spilled = curve.dram_bytes
    written = np.where(spilled > 0, launches.written_bytes, 0.0)
    dram_us = m.dram.us(spilled, written) / parameters.bandwidth

    fuse_us = np.zeros_like(compute_us)
    num_passes = len(variant.passes)
    if num_passes > 1:
        fuse_bytes = moved.fuse_bytes
        dram_rate = m.dram.bytes_per_us * parameters.bandwidth
        fuse_rate = np.where(spilled > 0, dram_rate, l2_rate)
        for i in range(1, num_passes):
            fuse_rounds = -(-launches.ctas[i] // (m.num_sms * resident[i]))
            fuse_us = fuse_us + np.maximum(fuse_bytes / fuse_rate, fuse_rounds * _FUSE_CTA_US)
    gap_us = np.minimum(parameters.floor_us, _MAX_GAP_US)
    floor_us = np.zeros_like(compute_us) + (parameters.floor_us + (num_passes - 1) * gap_us)

    slowest = np.maximum(np.maximum(compute_us, l2_us), dram_us)
    return Terms(
        total_us=floor_us + slowest + fuse_us,
        floor_us=floor_us,
        cta_us=cta_us,
        shared_us=shared_us,
        ctas=useful,
        ctas_per_sm=per_sm,
        load_per_sm=load,
        compute_us=compute_us,
        peak_us=peak_us,
        exp_us=exp_us,
        l2_us=l2_us,
        dram_us=dram_us,
        fuse_us=fuse_us,
    )


@dataclass(frozen=True, slots=True)
class L2Traffic:
    """Bytes that n launches read from and write to L2: arrays `[n]`."""

    cta_bytes: FloatArray  # of one CTA of the main pass: its Q and K/V rows, and O
    main_bytes: FloatArray  # of all CTAs, including the partial results that they write
    kv_bytes: FloatArray  # of which K and V
    fuse_bytes: IntArray  # of each later pass: partial results in, O out


def l2_traffic(launches: Launches) -> L2Traffic:
    """Return the bytes that CTAs read and write, without reuse on an SM between CTAs."""
    keys = visited_share(launches) * np.minimum(launches.kv_rows, launches.num_keys)
    row_bytes = 2 * launches.element_bytes * launches.head_dim  # of Q and O
    key_bytes = 2 * launches.kv_element_bytes * launches.head_dim  # of K and V
    cta_bytes = row_bytes * launches.query_rows + key_bytes * keys
    return L2Traffic(
        cta_bytes=cta_bytes,
        main_bytes=launches.useful_ctas * cta_bytes + launches.scratch_bytes,
        kv_bytes=launches.useful_ctas * key_bytes * keys,
        fuse_bytes=launches.scratch_bytes + launches.element_bytes * launches.elements,
    )


def bytes_beyond_l2(launches: Launches, m: Machine) -> FloatArray:
    """Return the bytes from DRAM without regard to the order of CTAs, `[n]`: each once.

    The launch is warm: data that fit in L2 do not come from DRAM.
    """
    return np.where(launches.device_bytes > m.l2_bytes, launches.device_bytes, 0.0)


def visited_share(launches: Launches) -> FloatArray:
    """Return the average share of its K/V rows that a CTA visits, `[n]`: less than 1 with a
    causal mask and for sequences shorter than the longest."""
    share = _share_of_equal(launches)
    for i in np.flatnonzero(launches.has_own_lengths).tolist():
        each = launches.of_each[i]
        rows = visited_share(each) * each.kv_rows * each.useful_ctas
        share[i] = rows.sum() / (launches.kv_rows[i] * launches.useful_ctas[i])
    return share


def _share_of_equal(launches: Launches) -> FloatArray:
    # A causal CTA visits K/V up to its own rows, half on average, and the keys before the first
    # query.
    seqlen, before = launches.seqlen, launches.num_keys - launches.seqlen
    half = np.minimum(1.0, (before + 0.5 * (seqlen + launches.query_rows)) / launches.num_keys)
    # Keys of empty splits are visited by the other CTAs.
    causal = np.minimum(1.0, half * launches.ctas[0] / launches.useful_ctas)
    share = np.where(launches.causal, causal, 1.0)
    # With a window, a row has keys on one or both sides, and a query tile those of all its rows.
    seen = np.where(launches.causal, 1, 2) * launches.window + launches.query_rows
    inside = np.minimum(share, seen / launches.num_keys)
    return np.where(launches.window > 0, inside, share)


@dataclass(frozen=True, slots=True)
class Spread:
    """Terms of n launches, their 90 % interval, and the totals from which it follows."""

    terms: Terms
    low_us: FloatArray  # [n]
    high_us: FloatArray  # [n]
    # [k, n]: totals with each parameter at an end of its own 90 % interval.
    ends_us: FloatArray
    by_machine_code: bool  # CTA times are simulated, not assumed


def predict_arrays(
    variant: Variant,
    launches: Launches,
    resident: IntArray,
    m: Machine,
    calibration: Calibration | None,
    curve: CtaCurve | None = None,
) -> Spread:
    """Return terms and interval for n launches.

    The parameters' uncertainty is propagated through the model: each principal direction of their
    covariance is moved to both its 90 % ends, and the changes add in quadrature. Uncalibrated
    simulated times instead have the interval of the validation's residuals.

    Args:
        calibration: of the same variant and device; None uses the priors.
        curve: simulated CTA times; None assumes them. A calibration is based on either assumed or
            simulated times and uses the same here.
    """
    if calibration is not None and not calibration.by_machine_code:
        curve = None
    parameters, covariance, noise = *priors(variant, curve), NOISE
    if calibration is not None:
        assert curve is not None or not calibration.by_machine_code
        parameters = calibration.parameters
        covariance, noise = np.array(calibration.covariance), calibration.noise
        if calibration.skips_absent_keys:
            launches = launches.without_absent_keys()
    terms = evaluate(variant, launches, resident, m, parameters, curve)
    ends = _parameter_ends(parameters, covariance)
    ends_us = evaluate(variant, launches, resident, m, ends, curve).total_us
    middle = np.log(terms.total_us)
    # [directions, ends, n]
    change = np.log(ends_us).reshape(-1, 2, launches.size) - middle
    if curve is not None and calibration is None:
        # Error of the total time of measured kernels, for any limiting term.
        below = above = np.full(launches.size, (Z90 * curve.spread) ** 2)
    else:
        least = (Z90 * noise) ** 2
        below = least + np.sum(np.minimum(change.min(axis=1), 0.0) ** 2, axis=0)
        above = least + np.sum(np.maximum(change.max(axis=1), 0.0) ** 2, axis=0)
    return Spread(
        terms=terms,
        low_us=np.exp(middle - np.sqrt(below)),
        high_us=np.exp(middle + np.sqrt(above)),
        ends_us=ends_us,
        by_machine_code=curve is not None,
    )


def _parameter_ends(parameters: Parameters, covariance: FloatArray) -> ParameterArrays:
    """Return both ends of the 90 % interval along each principal direction, low before high."""
    center = np.log([getattr(parameters, name) for name in PARAMETER_NAMES])
    variances, directions = np.linalg.eigh(covariance)
    # [directions, parameters]
    steps = (Z90 * np.sqrt(np.maximum(variances, 0.0)) * directions).T
    ends = np.exp(center + np.stack([-steps, steps], axis=1)).reshape(-1, len(PARAMETER_NAMES))
    return ParameterArrays(*ends.T[..., np.newaxis])


def method_note(calibration: Calibration | None, curve: CtaCurve | None) -> str:
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
    return f"{method}. {CALIBRATED} {calibration.points} known time{s}."


def limit_sentence(terms: Terms, device: DeviceSpec) -> str:
    """Return one sentence on the limiting term of a launch."""
    limit = terms.limited_by()
    if limit == "launch floor":
        return f"Launch overhead is the largest part ({format_us(terms.floor_us[0])})."
    if limit == "one CTA":
        idle = (device.num_sms or 0) - int(terms.ctas[0])
        rest = f" while {idle:,} of {device.num_sms} SMs idle" if idle > 0 else ""
        return (
            f"The serial work of one CTA is the largest part ({format_us(terms.cta_us[0])}){rest}."
        )
    if limit == "CTAs per SM":
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
    }[limit]
    return f"{what} ({format_us(time_us[0])})."
