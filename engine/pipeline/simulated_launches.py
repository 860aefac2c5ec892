"""Simulated times of counted launches on a GPU, their clock, and the report that pages show."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engine.attention.plan import LaunchPlan
from engine.base.errors import AttuneError, InvalidProblem
from engine.base.files import cache_root, read_entry, write_entry
from engine.base.memory import Newest
from engine.base.schema import decode, encode
from engine.cuda_source.sources import read_source
from engine.devices.spec import DeviceSpec, at_clock
from engine.history import History
from engine.history.simulation import resident_of, time_launch
from engine.machine_code.advice import Advice, Rerun, advise
from engine.machine_code.analysis import Analysis, code_digest, live_registers_in_background
from engine.machine_code.launch_report import Hint, MachineCode, PassReport, own_line, report
from engine.machine_code.timing.power import (
    BURST_US,
    SustainedClock,
    power_limit_sentence,
    sustained_clock,
    work_of,
)
from engine.machine_code.timing.simulate import TimedLaunch, residency_ratios
from engine.machine_code.timing.traffic import Traffic
from engine.model.kernel import Estimate, Kernel, analyse_plan, cached_kernel, compile_plan
from engine.model.launches import traffic_by_order
from engine.pipeline.request import EvaluationRequest, resolve

if TYPE_CHECKING:
    from engine.cuda_source import CompiledKernel
    from engine.pipeline.request import Preview


def time_passes(
    kernel: Kernel,
    plan: LaunchPlan,
    analyses: Sequence[Analysis],
    predicted: Estimate | None,
) -> tuple[TimedLaunch, ...]:
    """Return a kernel's passes with the times of its prediction.

    Args:
        predicted: a prediction by machine code; otherwise, or if None, each launch is simulated
            separately.

    Raises:
        InvalidProblem, UnknownName, CompileError, ToolMissing: as `time_launch`.
    """
    device = kernel.device
    if plan.is_backward:  # the prediction is the sum of its passes
        return tuple(time_launch(analysis, device) for analysis in analyses)
    moved = main_pass_traffic(kernel, plan, analyses[0])
    is_known = predicted is not None and predicted.by_machine_code
    timed = [
        time_launch(
            analysis,
            device,
            None if number else moved,
            tensor_bytes=None if number else plan.device_bytes,
            quick=is_known,
        )
        for number, analysis in enumerate(analyses)
    ]
    return _with_prediction(timed, predicted, device) if predicted is not None else tuple(timed)


def _with_prediction(
    timed: Sequence[TimedLaunch], predicted: Estimate, device: DeviceSpec
) -> tuple[TimedLaunch, ...]:
    """Return the passes with the predicted times; shares of units, stalls and bytes are those
    simulated."""
    latency, terms = predicted.latency, predicted.terms
    if latency is None or terms is None:
        return tuple(timed)
    cycles_per_us = float(device.boost_clock_mhz or 0.0)
    floor_us, later_us = terms.floor_us[0] / len(timed), terms.fuse_us[0]
    main_us = latency.median_us - later_us - (len(timed) - 1) * floor_us
    result = []
    for number, each in enumerate(timed):
        us = floor_us + later_us / (len(timed) - 1) if number else main_us
        share = us / latency.median_us
        simulated = replace(
            each.simulated,
            latency=replace(
                each.simulated.latency,
                median_us=us,
                low_us=share * latency.low_us,
                high_us=share * latency.high_us,
            ),
        )
        if number == 0:
            simulated = replace(
                simulated,
                cta_cycles=float(terms.cta_us[0]) * cycles_per_us,
                sm_cycles=float(terms.compute_us[0]) * cycles_per_us,
                dram_us=float(terms.dram_us[0]),
            )
        result.append(replace(each, simulated=simulated))
    return tuple(result)


def advise_launch(
    analysis: Analysis, device: DeviceSpec | None = None, timed: TimedLaunch | None = None
) -> tuple[Advice, ...]:
    """Return advice on the launch, with the gain of each change if the launch was timed on
    `device`."""
    if device is None or timed is None:
        return advise(analysis)
    return advise(analysis, Rerun(analysis, device, timed.simulated), timed.shared)


def main_pass_traffic(kernel: Kernel, plan: LaunchPlan, analysis: Analysis) -> Traffic | None:
    """Return the DRAM traffic of a plan's main pass, from the order of its CTAs; None if
    unknown."""
    return traffic_by_order(kernel, plan, resident_of(analysis, kernel.device))


# A request's machine code for a page, cached on disk.

_FORMAT = "5"
_RESIDENCIES = (1, 2, 3, 4)
_kept: Newest[Path, MachineCode] = Newest(16)


def known_machine_code(request: EvaluationRequest, history: History) -> MachineCode | None:
    """Return the cached result of `read_machine_code` for the present source, or None.

    Raises:
        InvalidProblem, UnknownName, InvalidKernel: the request cannot be launched.
    """
    known = history.doing("look up")
    kernel = _kernel(request, known)
    plan = kernel.plan(request.problem)
    compiled = cached_kernel(plan, kernel.device.arch)
    if compiled is None:
        return None
    return _find(_path(plan, compiled, known.estimate_plan(kernel, plan, compiled)))


def machine_code_of(seen: Preview) -> MachineCode | None:
    """Return `known_machine_code` of a preview, without estimating it again."""
    if seen.plan is None or seen.device is None or seen.estimate is None:
        return None
    compiled = cached_kernel(seen.plan, seen.device.arch)
    return None if compiled is None else _find(_path(seen.plan, compiled, seen.estimate))


def read_machine_code(request: EvaluationRequest, history: History) -> MachineCode:
    """Compile, count and time every pass of the request. The result is cached on disk.

    Raises:
        CompileError: it does not compile, or its machine code cannot be executed.
        ToolMissing: nvdisasm or a C++ compiler is not installed.
        InvalidProblem, UnknownName, InvalidKernel: the request cannot be launched.
    """
    kernel = _kernel(request, history)
    variant, device = kernel.variant, kernel.device
    plan = kernel.plan(request.problem)
    source = read_source(variant.source)
    compiled = compile_plan(plan, device.arch)
    predicted = history.doing("simulate").estimate_plan(kernel, plan, compiled)
    path = _path(plan, compiled, predicted)
    if (known := _find(path)) is not None:
        return known
    analyses = analyse_plan(plan, device.arch)
    with live_registers_in_background(analyses):
        timed, no_time = _timed(predicted, analyses)
    made = MachineCode(
        variant=variant.id,
        config=" ".join(f"{k}={v}" for k, v in sorted(kernel.config.items())),
        device=device.name,
        arch=device.arch,
        source_name=variant.source.name,
        source=source,
        passes=tuple(
            _report(kernel, analysis, each, no_time)
            for analysis, each in zip(analyses, timed, strict=True)
        ),
    )
    write_entry(path, zlib.compress(json.dumps(encode(made)).encode(), level=1))
    return made


def simulated_timeline(request: EvaluationRequest, history: History, pass_number: int) -> str:
    """Return the simulated launch of one pass as a JSON trace for Perfetto.

    Args:
        pass_number: from 0, in the order in which passes are launched.

    Raises:
        As `read_machine_code`; also InvalidProblem: the launch has no simulated time.
    """
    from engine.machine_code.timing.timeline import timeline

    kernel = _kernel(request, history)
    plan = kernel.plan(request.problem)
    compiled = compile_plan(plan, kernel.device.arch)
    predicted = history.doing("simulate").estimate_plan(kernel, plan, compiled)
    analyses = analyse_plan(plan, kernel.device.arch)
    timed, no_time = _timed(predicted, analyses)
    if (chosen := timed[pass_number]) is None:
        raise InvalidProblem(no_time)
    trace = timeline(analyses[pass_number], kernel.device, chosen.simulated)
    return json.dumps(trace, separators=(",", ":"))


def _timed(
    predicted: Estimate, analyses: Sequence[Analysis]
) -> tuple[Sequence[TimedLaunch | None], str]:
    """Return (each pass's time, why there is none). Counts do not need times."""

    try:
        return time_passes(predicted.kernel, predicted.plan, analyses, predicted), ""
    except AttuneError as error:
        return [None] * len(analyses), str(error)


def _report(
    kernel: Kernel,
    analysis: Analysis,
    timed: TimedLaunch | None,
    no_time: str,
) -> PassReport:

    device, name, times = kernel.device, kernel.variant.source.name, {}
    if timed is not None:
        times = residency_ratios(
            analysis.program, analysis.launch, device, timed.simulated, _RESIDENCIES
        )
    hints = tuple(
        Hint(
            line=(own := own_line(a.source.file, name, a.source.line) if a.source else 0),
            sentence=a.sentence
            if own or a.source is None
            else f"{a.source.file}:{a.source.line}: {a.sentence}",
            gain=str(a.gain) if a.gain else "",
            kind=a.kind,
            low=a.gain.low if a.gain else 0.0,
            high=a.gain.high if a.gain else 0.0,
        )
        for a in advise_launch(analysis, device, timed)
    )
    return report(analysis, timed.simulated if timed else None, times, no_time, hints, name)


def _kernel(request: EvaluationRequest, history: History) -> Kernel:
    resolved = resolve(request, history)
    if resolved.kernel is None:
        raise InvalidProblem(
            f"Machine code is compiled for one architecture: choose a GPU. {resolved.device_reason}"
        )
    return resolved.kernel


def _path(plan: LaunchPlan, compiled: CompiledKernel, predicted: Estimate) -> Path:
    """Return the cache path, which depends on cubin, launch, GPU, prediction and the code that
    counts and times."""
    device, time = predicted.kernel.device, repr(predicted.latency)
    launches = [(p.entry, p.grid, p.block, p.dynamic_smem_bytes, repr(p.args)) for p in plan.passes]
    key = [_FORMAT, code_digest(), compiled.key, repr(plan.problem), launches, repr(device), time]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    return cache_root() / "sass" / name[:2] / f"{name}-report"


def _find(path: Path) -> MachineCode | None:
    if (kept := _kept.get(path)) is not None:
        return kept
    if (payload := read_entry(path)) is None:
        return None
    try:
        read = decode(MachineCode, json.loads(zlib.decompress(payload)))
    except (ValueError, zlib.error, AttuneError):
        return None  # computed again
    _kept[path] = read
    return read


# The clock of simulated times: boost, given in MHz, or sustained by the power limit.

BOOST: Final = "boost"
SUSTAINED: Final = "sustained"


def given_clock(text: str) -> float | None:
    """Return the clock in MHz; None for `boost` and `sustained`.

    Raises:
        InvalidProblem: it is none of these.
    """
    if text in (BOOST, SUSTAINED):
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidProblem(
            f"--clock takes a number of MHz, boost or sustained, not {text!r}."
        ) from None


def sustained_by(
    device: DeviceSpec, analyses: Sequence[Analysis], timed: Sequence[TimedLaunch]
) -> SustainedClock | None:
    """Return the clock that the GPU sustains in continuous launches; None if its power limit is
    not known."""
    each = [
        work_of(
            analysis.counts,
            launch.simulated.sm_cycles,
            launch.simulated.dram_us,
            launch.simulated.dram_bytes,
        )
        for analysis, launch in zip(analyses, timed, strict=True)
    ]
    return sustained_clock(device, reduce(add, each))


def device_at(
    device: DeviceSpec,
    word: str | None,
    analyses: Sequence[Analysis],
    time_at_boost: Callable[[], Sequence[TimedLaunch]],
) -> DeviceSpec:
    """Return the GPU at the named clock (None: boost).

    Args:
        time_at_boost: simulates the launches; called only for `sustained`.

    Raises:
        InvalidProblem: no such clock, or the GPU's power limit is not known.
    """
    if word is None or word == BOOST:
        return device
    if (mhz := given_clock(word)) is not None:
        return at_clock(device, mhz)
    found = sustained_by(device, analyses, time_at_boost())
    if found is None:
        raise InvalidProblem(
            f"The table of GPUs gives no power limit for {device.name}: give --clock in MHz."
        )
    is_other = found.is_limited or found.clock_mhz > (device.boost_clock_mhz or 0)
    return at_clock(device, found.clock_mhz, SUSTAINED) if is_other else device


def device_of_plan(
    kernel: Kernel,
    word: str | None,
    plan: LaunchPlan,
    analyses: Sequence[Analysis] = (),
) -> DeviceSpec:
    """Return `device_at` for a kernel's launches.

    Args:
        analyses: of the plan, where they are known; they may be of another architecture's code.
    """
    device = kernel.device
    if word is None or given_clock(word) is not None or word == BOOST:
        return device_at(device, word, (), tuple)
    of_passes = analyses or analyse_plan(plan, device.arch)

    def at_boost() -> Sequence[TimedLaunch]:
        predicted = None
        if of_passes[0].program.arch == device.arch:
            # Without known times, which are at a clock that is not known here.
            predicted = History().estimate(kernel, plan.problem)
        return time_passes(kernel, plan, of_passes, predicted)

    return device_at(device, word, of_passes, at_boost)


def clock_note(
    device: DeviceSpec, analyses: Sequence[Analysis], timed: Sequence[TimedLaunch]
) -> str:
    """Return one sentence on the clock of these times."""
    total = sum(t.simulated.latency.median_us for t in timed)
    if device.clock == "given":
        return f"Times are at {device.clock_label}."
    if device.clock == SUSTAINED:
        return (
            f"Times are at {device.clock_label}: {device.power_w} W while such launches follow "
            "each other, on random values. The energy model predicts published clocks that it was "
            "not fitted to within 12 %, by which the interval is widened."
        )
    found = sustained_by(device, analyses, timed)
    at = f"Times are at {device.clock_label}"
    if found is None:
        return f"{at}; its power limit, and so its sustained clock, is not known."
    if found.clock_mhz > (device.boost_clock_mhz or 0):
        held = f"{found.clock_mhz:,.0f} MHz"
        return f"{at}; {device.power_w} W sustain about {held} (--clock sustained)."
    if not found.is_limited:
        return f"{at}, which takes {found.watts:,.0f} of {device.power_w} W."
    slower = sum(t.simulated.us_at(found.clock_mhz) for t in timed)
    return (
        f"{at}, which bursts of up to {BURST_US / 1e3:.0f} ms reach. "
        f"{power_limit_sentence(device, found, total, slower)} (--clock sustained simulates it.)"
    )
