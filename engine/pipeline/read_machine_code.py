"""A request's machine code for a page: made once, kept on disk."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine.base.errors import AttuneError, InvalidProblem
from engine.compiled_plan import analyse_plan, cached_kernel, compile_plan
from engine.cuda_source.cache import cache_root, read_entry, write_entry
from engine.cuda_source.sources import read_source
from engine.history import History
from engine.machine_code.analysis import Analysis, code_digest
from engine.machine_code.report import Hint, MachineCode, PassReport, own_line, report
from engine.machine_code.timing.simulate import residency_ratios
from engine.model.estimate import Estimate
from engine.model.kernel import Kernel
from engine.pipeline.request import EvaluationRequest, resolve
from engine.plan import LaunchPlan
from engine.schema import decode, encode

if TYPE_CHECKING:
    from engine.cuda_source import CompiledKernel
    from engine.pipeline.machine_code import TimedLaunch

_FORMAT = "4"
_RESIDENCIES = (1, 2, 3, 4)
_MOST_KEPT = 16
_kept: dict[Path, MachineCode] = {}


def known_machine_code(request: EvaluationRequest, history: History) -> MachineCode | None:
    """What `read_machine_code` made before of the source as it stands now; None: nothing yet.

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


def read_machine_code(request: EvaluationRequest, history: History) -> MachineCode:
    """Compile, count and time every pass of the request; the result is kept on disk.

    Raises:
        CompileError: it does not compile, or its code cannot be run on.
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
    """The simulated launch of one pass as the JSON text of a trace for Perfetto.

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
    """(each pass's time, why there is none): counts are worth reading all the same."""
    from engine.pipeline.machine_code import time_passes

    kernel, plan = predicted.kernel, predicted.plan
    try:
        return time_passes(kernel.variant, plan, analyses, kernel.device, predicted), ""
    except AttuneError as error:
        return [None] * len(analyses), str(error)


def _report(
    kernel: Kernel,
    analysis: Analysis,
    timed: TimedLaunch | None,
    no_time: str,
) -> PassReport:
    from engine.pipeline.machine_code import advise_launch

    device, name, times = kernel.device, kernel.variant.source.name, {}
    if timed is not None:
        times = residency_ratios(
            analysis.program, analysis.launch, device, timed.simulated, _RESIDENCIES
        )
    hints = tuple(
        Hint(
            line=own_line(a.source.file, name, a.source.line) if a.source else 0,
            sentence=a.sentence,
            gain=str(a.gain) if a.gain else "",
            kind=a.kind,
            low=a.gain.low if a.gain else 0.0,
            high=a.gain.high if a.gain else 0.0,
        )
        for a in advise_launch(analysis, device, timed)
    )
    return report(analysis, timed.simulated if timed else None, times, no_time, hints)


def _kernel(request: EvaluationRequest, history: History) -> Kernel:
    resolved = resolve(request, history)
    if resolved.kernel is None:
        raise InvalidProblem(
            f"Machine code is made for one architecture: choose a GPU. {resolved.device_reason}"
        )
    return resolved.kernel


def _path(plan: LaunchPlan, compiled: CompiledKernel, predicted: Estimate) -> Path:
    """By cubin, launch, GPU and prediction, and by what counts and times."""
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
        return None  # it is made again
    while len(_kept) >= _MOST_KEPT:
        _kept.pop(next(iter(_kept)), None)
    _kept[path] = read
    return read
