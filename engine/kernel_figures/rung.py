"""One rung of the ladder on one problem and GPU: counts, resources and times.

Results are cached on disk (compiled kernels, simulated times, counts), so that a page shows known
figures while a worker computes others, and a later `renew` only does what is new.

`renew` computes the figures that ship with Attune (`attune variants --renew`). For one GPU of each
compute capability: every rung with its default config and every kernel that `auto` compares, in
FP16 with D = 64 and no mask, the app's initial problem; for three GPUs also with D = 128 and
causal. A kernel's figures are valid for any B and H, and for any S, except for v12, which keeps all
keys on chip.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.attention.config import TunedConfig, default_config, fitting_config
from engine.attention.evaluation import Latency, PassReport
from engine.attention.plan import LaunchPlan, make_plan, resources
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidProblem
from engine.base.files import cache_root, read_entry, write_entry
from engine.base.schema import encode
from engine.base.table import Table
from engine.base.units import format_bytes, format_us
from engine.choose.auto.choice import candidates_for
from engine.choose.auto.renew import GPUS, HEADS, LENGTHS
from engine.cuda_source.nvrtc import toolchain
from engine.devices import find_device, target_gpu
from engine.devices.spec import DeviceSpec
from engine.history import History, KnownTime, shipped
from engine.history.ctas import REGIMES, find, name_of
from engine.history.shipped import ShippedFigures, shipped_figures
from engine.model.kernel import Kernel, compile_plan, launch_of_pass, misfit_of, pass_reports
from engine.pipeline.request import EvaluationRequest, Preview, preview, target_device
from kernels.ladder import LADDER
from kernels.variant import Variant

if TYPE_CHECKING:
    from engine.cuda_source import CompiledKernel, CompileReport


# Instructions that a kernel executes for a tile of scores, counted by emulating two CTAs.
#
# The CTAs only differ in the keys that they visit, so their difference is the steady state, without
# work done once per CTA. Figures are for 64 query rows and 64 keys, so that rungs with different
# tile sizes can be compared.

_TILE = 64 * 64  # scores
_KEYS = (256, 512, 1024, 2048, 4096, 8192, 16384)
_SHUFFLES = ("SHFL", "MOVM")  # their wavefronts are not accesses
_FORMAT = 1
FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TileCounts:
    """Counts for 64 query rows and 64 keys; instructions are warp instructions."""

    by_pipe: Mapping[str, float]  # instructions
    wavefronts: float  # of shared memory
    ideal_wavefronts: float  # without bank conflicts
    code: int  # number of instructions in the kernel's code

    @property
    def instructions(self) -> float:
        """Return the warp instructions of all pipes."""
        return sum(self.by_pipe.values())

    @property
    def conflicts(self) -> float:
        """Return shared-memory wavefronts divided by those needed; 1 without conflicts."""
        return self.wavefronts / self.ideal_wavefronts if self.ideal_wavefronts else 1.0


def count_tile(kernel: Kernel, plan: LaunchPlan, compiled: CompiledKernel) -> TileCounts:
    """Count the main pass, or return cached counts.

    Raises:
        CompileError, InvalidProblem, ToolMissing: as `engine.machine_code.analysis.analyse`.
    """
    known = known_tile_counts(plan, compiled)
    if known is not None:
        return known
    counts = _count(kernel.variant, plan, compiled)
    write_entry(counts_path(plan, compiled), json.dumps(asdict(counts)).encode())
    return counts


def known_tile_counts(
    plan: LaunchPlan, compiled: CompileReport, shipped: bool = False
) -> TileCounts | None:
    """Return cached counts, or None.

    Args:
        shipped: also use figures that ship with Attune.
    """
    path = counts_path(plan, compiled)
    try:
        return _read(path)
    except (LookupError, ValueError, TypeError):  # missing or damaged: counted again
        fields = shipped_figures().counts.get(path.name) if shipped else None
        return TileCounts(**fields) if fields is not None else None


@lru_cache(maxsize=128)
def _read(path: Path) -> TileCounts:
    """Read a cached entry. Raises if it is missing, which is not cached, because another process
    may write it."""
    if (payload := read_entry(path)) is None:
        raise LookupError(path)
    return TileCounts(**json.loads(payload))


def counts_path(plan: LaunchPlan, compiled: CompileReport) -> Path:
    """Return the path of the main pass's counts; its name is also the key of shipped counts."""
    decodes = plan.problem.seqlen_kv is not None
    # The number of queries matters if it is less than a tile.
    rows = min(plan.problem.seqlen, 4 * plan.query_rows) if decodes else 0
    entry = plan.problem.main_of(plan.passes).entry
    key = json.dumps([_FORMAT, compiled.key, entry, decodes, rows])
    digest = hashlib.sha256(key.encode()).hexdigest()
    return cache_root() / "sass" / digest[:2] / f"{digest}-tile"


def _count(variant: Variant, plan: LaunchPlan, compiled: CompiledKernel) -> TileCounts:
    from engine.machine_code.analysis import program_of
    from engine.machine_code.cubin import read_cubin
    from engine.machine_code.disassembly import find_entry
    from engine.machine_code.emulation import EXECUTED, IDEAL_WAVEFRONTS, WAVEFRONTS, Emulator

    cubin = read_cubin(compiled.cubin)
    number = plan.problem.main_of(range(len(plan.passes)))
    name = plan.passes[number].entry
    entry = find_entry(cubin, compiled.symbols.get(name, name))
    program = program_of(cubin, entry.name)

    def longest_cta(at: LaunchPlan) -> FloatArray:
        """Return the longer of the first and the last CTA, because a mask may leave one of them
        little work."""
        launch = launch_of_pass(at, number)
        emulator = Emulator(program, entry, launch)
        last = (launch.grid[0] - 1, launch.grid[1] - 1, launch.grid[2] - 1)
        ends = [emulator.totals(cta).values for cta in dict.fromkeys([(0, 0, 0), last])]
        longest = max(ends, key=lambda values: int(values[:, EXECUTED].sum()))
        return longest.astype(np.float64)

    plans = _two_lengths(variant, plan)
    # In the backward pass, a CTA of the main pass owns keys and visits all queries.
    rows = [
        p.problem.seqlen * p.problem.head_group
        if p.is_backward
        else variant.work.kv_rows(p.problem, p.config)
        for p in plans
    ]
    values = longest_cta(plans[-1])
    visited = rows[-1]
    if len(plans) > 1:  # otherwise there is no loop over keys
        values -= longest_cta(plans[0])
        visited -= rows[0]
    own = variant.work.kv_rows if plan.is_backward else variant.work.query_rows
    values *= _TILE / (visited * own(plans[-1].problem, plan.config))
    executed = values[:, EXECUTED]
    opcodes = np.array([i.opcode for i in program.instructions])
    pipes = np.array([i.pipe.value for i in program.instructions])
    in_shared = ~np.isin(opcodes, _SHUFFLES)
    return TileCounts(
        by_pipe={str(p): float(executed[pipes == p].sum()) for p in np.unique(pipes)},
        wavefronts=float(values[in_shared, WAVEFRONTS].sum()),
        ideal_wavefronts=float(values[in_shared, IDEAL_WAVEFRONTS].sum()),
        code=len(program.instructions),
    )


def _two_lengths(variant: Variant, asked: LaunchPlan) -> list[LaunchPlan]:
    """Return plans whose CTAs visit different numbers of keys; only the problem's own if that is
    fixed."""
    problem, config = asked.problem, asked.config
    group = problem.head_group
    small = replace(problem, num_heads=group, num_heads_kv=1)
    plans: dict[int, LaunchPlan] = {}
    for keys in _KEYS:
        longer = (
            replace(small, seqlen=keys, seqlen_kv=None)
            if problem.direction == "backward"
            else small.with_keys(keys)
        )
        try:
            plan = make_plan(variant, longer, config)
        except InvalidProblem:
            break
        visits = keys if plan.is_backward else variant.work.kv_rows(longer, config)
        plans.setdefault(visits, plan)
        if len(plans) == 2:
            return list(plans.values())
    one = small if small.seqlens is not None else replace(small, batch=1)
    return [make_plan(variant, one, config)]


@dataclass(frozen=True, slots=True)
class Rung:
    """A variant on one problem and GPU."""

    variant: Variant
    config: dict[str, int]
    request: EvaluationRequest
    why_not: str  # why it cannot run, or what failed; else empty
    main: PassReport | None  # registers, shared memory, occupancy of the main pass
    spill_bytes: int  # of all passes
    counts: TileCounts | None
    latency: Latency | None  # predicted
    is_simulated: bool  # the latency is simulated
    known: KnownTime | None  # a known time of this config and the present source
    is_complete: bool  # all figures are known
    is_shipped: bool = False  # the figures ship with Attune and were not computed here

    @property
    def describe_config(self) -> str:
        """`block_n=64 num_warps=4`."""
        return " ".join(f"{name}={value}" for name, value in self.config.items())

    @property
    def describe_changed(self) -> str:
        """Return the values that differ from the GPU's defaults, such as `num_warps=8`, or
        `defaults`."""
        device = target_gpu(self.request.gpu) if self.request.gpu else None
        defaults = default_config(self.variant, {}, device)
        changed = [f"{n}={value}" for n, value in self.config.items() if value != defaults[n]]
        return " ".join(changed) or "defaults"


def request_of(
    variant: Variant, problem: Problem, gpu: str | None, config: Mapping[str, int] | None = None
) -> EvaluationRequest:
    """Return the request that computes a rung's figures.

    Args:
        config: given values; the others are those of `fitting_config`. Tuned configs are not used.
    """
    values = fitting_config(variant, config or {}, problem, target_device(gpu))
    return EvaluationRequest(variant.id, problem, values, gpu=gpu, execute=False)


def known_rung(
    variant: Variant,
    request: EvaluationRequest,
    history: History | None = None,
) -> Rung:
    """Return the known figures of a rung, without compiling, simulating or counting. Takes
    milliseconds.

    Figures that ship with Attune are used if they are complete and those computed here are not.
    """
    history = (history or History()).doing("look up")
    here = _looked_up(variant, request, history)
    if here.is_complete:
        return here
    shipped = _looked_up(variant, request, history.with_shipped())
    return replace(shipped, is_shipped=True) if shipped.is_complete else here


def _looked_up(variant: Variant, request: EvaluationRequest, history: History) -> Rung:
    try:
        seen = preview(request, history)
    except AttuneError as error:
        return _without(variant, request, str(error))
    result = seen.estimate
    counts = _known_counts(seen, history)
    known = None
    if seen.device is not None:
        kernel = Kernel.of(variant, seen.device, request.config)
        known = history.known_time(kernel, request.problem)
    return Rung(
        variant=variant,
        config=dict(request.config),
        request=request,
        why_not=seen.unsupported or seen.memory or "",
        main=request.problem.main_of(seen.passes) if seen.passes else None,
        spill_bytes=sum(p.resources.spill_bytes for p in seen.passes),
        counts=counts,
        latency=seen.latency,
        is_simulated=result is not None and result.by_machine_code,
        known=known,
        is_complete=bool(seen.unsupported)
        or (result is not None and result.by_machine_code and counts is not None),
    )


def work_out_rung(request: EvaluationRequest, history: History | None = None) -> None:
    """Compile, simulate and count a rung, and cache the results for `known_rung`.

    Takes a second or two the first time and milliseconds after that.

    Raises:
        AttuneError: it cannot run, does not compile, or its machine code cannot be executed.
    """
    from engine.pipeline.request import resolve

    history = history or History()
    kernel = resolve(request, history).kernel
    if kernel is None:
        return
    plan = kernel.plan(request.problem)
    compiled = compile_plan(plan, kernel.device.arch)
    history.doing("simulate").estimate_plan(kernel, plan, compiled)
    count_tile(kernel, plan, compiled)


def _known_counts(seen: Preview, history: History) -> TileCounts | None:
    if seen.plan is None or seen.device is None:
        return None
    compiled = history.report(Kernel.of(seen.variant, seen.device, seen.config), seen.plan)
    if compiled is None:
        return None
    return known_tile_counts(seen.plan, compiled, history.shipped)


def _without(variant: Variant, request: EvaluationRequest, why_not: str) -> Rung:
    return Rung(
        variant=variant,
        config=dict(request.config),
        request=request,
        why_not=why_not,
        main=None,
        spill_bytes=0,
        counts=None,
        latency=None,
        is_simulated=False,
        known=None,
        is_complete=True,
    )


# The ladder's figures as a table, for the command line, the Kernels page and the README.


_PREDICTED = "predicted"  # column of the predicted times
REMARK = (
    "Registers, shared memory and spills are the compiler's; occupancy is calculated. Instructions "
    "of a warp and bank conflicts (shared-memory wavefronts per wavefront needed) are counted in "
    "the machine code, for 64 query rows and 64 keys. Predicted times are simulated from that "
    "machine code, with a 90 % interval; those of a kernel with known times are calibrated on "
    "them, and say so. Only times marked measured were measured."
)


def ladder_table(rungs: Iterable[Rung], title: str) -> Table:
    """Return one row for each rung; unknown figures are dashes."""
    return Table.of(title, (_record(rung) for rung in rungs), REMARK)


def rung_dict(rung: Rung) -> dict[str, object]:
    """Return a row of `ladder_table` for `--json`, with the prediction, as `evaluate --json` gives
    it, and the known time as numbers."""
    known = rung.known.latency if rung.known is not None else None
    latencies = {"latency": rung.latency, "known_latency": known}
    made = rung.latency if rung.is_simulated else None
    shown = {
        ("simulated" if name == _PREDICTED else name): value
        for name, value in _record(rung).items()
    }
    return {
        **shown,
        "simulated": format_us(made.median_us) if made is not None else None,
        **{
            name: encode(x, derived=True) if x is not None else None
            for name, x in latencies.items()
        },
    }


def reasons(why_not: Mapping[str, str]) -> list[str]:
    """Return why rungs cannot run; sentences that differ only in the rung's id are merged.

    Args:
        why_not: sentence by the rung's id; empty if it can run.
    """
    alike: dict[str, list[str]] = {}
    for rung, why in why_not.items():
        if why:
            alike.setdefault(why.replace(rung, ""), []).append(rung)
    sentences = []
    for first, *others in alike.values():
        same = f" The same holds for {', '.join(others)}." if others else ""
        sentences.append(why_not[first] + same)
    return sentences


def _record(rung: Rung) -> dict[str, object]:
    r = rung.main.resources if rung.main is not None else None
    o = rung.main.occupancy if rung.main is not None else None
    c = rung.counts
    latency = rung.latency if rung.is_simulated else None
    return {
        "rung": rung.variant.id,
        "title": rung.variant.title,
        "config": rung.describe_config or None,
        "registers": r.registers_per_thread if r is not None else None,
        "shared memory": format_bytes(r.smem_bytes) if r is not None else None,
        "spills": format_bytes(rung.spill_bytes) if r is not None else None,
        "occupancy": f"{o.occupancy:.0%}" if o is not None else None,
        "instructions": round(c.instructions) if c is not None else None,
        "conflicts": f"{c.conflicts:.2f}×" if c is not None else None,
        _PREDICTED: _predicted(latency) if latency is not None else None,
        "90 % interval": f"{format_us(latency.low_us)} to {format_us(latency.high_us)}"
        if latency is not None
        else None,
        "known": _known(rung),
        "not here, because": rung.why_not or None,
    }


def _predicted(latency: Latency) -> str:
    return f"{format_us(latency.median_us)}{', calibrated' * latency.is_calibrated}"


def _known(rung: Rung) -> str | None:
    if rung.known is None:
        return None
    return f"{format_us(rung.known.latency.median_us)} {rung.known.latency.origin}"


def without_empty(table: Table) -> Table:
    """Return the table without empty columns."""
    kept = [n for n, _ in enumerate(table.columns) if any(row[n] is not None for row in table.rows)]
    return Table(
        table.title,
        tuple(table.columns[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in table.rows),
        table.remark,
    )


SHIPPED_GPUS = tuple(GPUS.values())
_WITH_MORE_SHAPES = ("L4", "A100 80GB SXM", "H200")


@dataclass(frozen=True)
class _Untuned(History):
    """A history without the user's tuned configs, which do not ship."""

    def tuned(self) -> list[TunedConfig]:
        return []


def renew(gpu: str, on_stage: Callable[[str], None] = lambda _: None) -> ShippedFigures:
    """Compute the figures of one GPU and write them.

    Raises:
        UnknownName: there is no such GPU.
        ToolMissing: there is no compiler, or no nvdisasm.
        OSError: the files cannot be written.
    """
    device, compiler = find_device(gpu), toolchain().exact_name
    wanted = _wanted(device)
    found = ShippedFigures()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, figures in enumerate(pool.map(lambda each: _figures(*each), wanted), 1):
            found.add(figures)
            on_stage(f"{device.name}: {done} of {len(wanted)}")
    today = datetime.now(UTC).date().isoformat()
    shipped.write(device.name, compiler, today, found)
    return found


def shapes_of(gpu: str) -> list[tuple[int, bool]]:
    """Return head dimensions and masks for which a GPU's figures ship."""
    more = gpu in _WITH_MORE_SHAPES
    return [(64, False), *([(64, True), (128, False), (128, True)] if more else [])]


def _wanted(device: DeviceSpec) -> list[tuple[Kernel, Problem]]:
    """Return the kernels, each with problems for which its figures may differ."""
    wanted: dict[tuple[Kernel, Problem], None] = {}
    for seqlen, (head_dim, causal) in product(LENGTHS, shapes_of(device.name)):
        problem = Problem(1, 1, seqlen, head_dim, causal)
        kernels = [
            Kernel.of(v, device, request_of(v, problem, device.name).config)
            for v in LADDER
            if v.min_compute_capability <= device.compute_capability
        ]
        for heads in HEADS:
            kernels += candidates_for(replace(problem, num_heads=heads), device, _Untuned())
        wanted |= dict.fromkeys((kernel, problem) for kernel in kernels)
    return list(wanted)


def _figures(kernel: Kernel, problem: Problem) -> ShippedFigures:
    """Return the figures of one kernel; none if it cannot run or be simulated."""
    found = ShippedFigures()
    try:
        plan = kernel.plan(problem)
        compiled = compile_plan(plan, kernel.device.arch)
        passes = pass_reports(kernel, plan, resources(plan, compiled))
        if misfit_of(kernel, passes):
            return found
        History().estimate_plan(kernel, plan, compiled)
        counts = count_tile(kernel, plan, compiled)
    except AttuneError:
        return found
    found.add_report(compiled)
    found.counts[counts_path(plan, compiled).name] = asdict(counts)
    resident = passes[0].occupancy.ctas_per_sm
    for regime in REGIMES:
        name = name_of(kernel, plan, compiled, resident, regime)
        if (ctas := find(name)) is not None:
            found.ctas[name] = asdict(ctas)
    return found
