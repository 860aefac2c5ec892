"""One rung of the ladder on one problem and GPU: what is known of it, and working the rest out.

What is worked out is kept on disk (compiled kernels, simulated times, counts), so that a page asks
for what is known, and leaves the rest to a worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.base.errors import AttuneError
from engine.base.table import Table
from engine.base.units import format_bytes, format_us
from engine.config import default_config
from engine.devices import find_device
from engine.evaluation import Latency, PassReport
from engine.history import History, KnownTime
from engine.kernel_figures.counts import TileCounts, count_tile, known_tile_counts
from engine.model.calibrate import fitting_config
from engine.model.kernel import Kernel
from engine.pipeline.preview import Preview, preview
from engine.pipeline.request import EvaluationRequest, target_device
from engine.problem import Problem
from kernels.variant import Variant


@dataclass(frozen=True, slots=True)
class Rung:
    """A variant on one problem and GPU."""

    variant: Variant
    config: dict[str, int]
    request: EvaluationRequest
    why_not: str  # why it cannot run here, or what failed; empty where it can
    main: PassReport | None  # registers, shared memory, occupancy of the main pass
    spill_bytes: int  # of all passes
    counts: TileCounts | None
    latency: Latency | None  # predicted
    is_simulated: bool  # by machine code
    known: KnownTime | None  # taken of this variant and config, of the very file that stands here
    is_complete: bool  # nothing is left to work out

    @property
    def describe_config(self) -> str:
        """`block_n=64 num_warps=4`."""
        return " ".join(f"{name}={value}" for name, value in self.config.items())

    @property
    def describe_changed(self) -> str:
        """`num_warps=8`: the values that are not the GPU's defaults, or `defaults`."""
        device = find_device(self.request.gpu) if self.request.gpu else None
        defaults = default_config(self.variant, {}, device)
        changed = [f"{n}={value}" for n, value in self.config.items() if value != defaults[n]]
        return " ".join(changed) or "defaults"


def request_of(
    variant: Variant, problem: Problem, gpu: str | None, config: Mapping[str, int] | None = None
) -> EvaluationRequest:
    """What is worked out for a rung.

    Args:
        config: None takes the defaults, or where they do not fit (too many keys for a kernel that
            holds them all, more shared memory than a CTA of this GPU has) the nearest that do.
    """
    device = target_device(gpu)
    values = default_config(variant, config or {}, device)
    if config is None:
        values = fitting_config(variant, problem, device) or values
    return EvaluationRequest(variant.id, problem, values, gpu=gpu, execute=False)


def known_rung(
    variant: Variant,
    request: EvaluationRequest,
    history: History | None = None,
) -> Rung:
    """What is known of a rung without compiling, simulating or counting: milliseconds."""
    history = (history or History()).doing("look up")
    try:
        seen = preview(request, history)
    except AttuneError as error:
        return _without(variant, request, str(error))
    result = seen.estimate
    counts = _known_counts(seen)
    known = None
    if seen.device is not None:
        kernel = Kernel.of(variant, seen.device, request.config)
        known = history.taken(kernel, request.problem)
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
    """Compile, simulate and count a rung; `known_rung` then knows it.

    Takes a second or two the first time and milliseconds after that.

    Raises:
        AttuneError: it cannot run here, does not compile, or its machine code cannot be run.
    """
    from engine.compiled_plan import compile_plan
    from engine.pipeline.request import resolve

    history = history or History()
    kernel = resolve(request, history).kernel
    if kernel is None:
        return
    plan = kernel.plan(request.problem)
    compiled = compile_plan(plan, kernel.device.arch)
    history.doing("simulate").estimate_plan(kernel, plan, compiled)
    count_tile(kernel.variant, plan, compiled)


def _known_counts(seen: Preview) -> TileCounts | None:
    from engine.compiled_plan import cached_kernel

    if seen.plan is None or seen.device is None:
        return None
    compiled = cached_kernel(seen.plan, seen.device.arch)
    return known_tile_counts(seen.plan, compiled) if compiled is not None else None


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


REMARK = (
    "Registers, shared memory and spills are the compiler's, occupancy the calculator's. "
    "Instructions and conflicts are counted in the machine code, for 64 query rows and 64 keys: a "
    "warp's instructions, and shared-memory wavefronts for each that is needed. Simulated times "
    "come from that machine code, with a 90 % interval; nothing was measured unless it says so."
)


def ladder_table(rungs: Iterable[Rung], title: str) -> Table:
    """One row for each rung; what is not known is a dash."""
    return Table.of(title, (_record(rung) for rung in rungs), REMARK)


def reasons(why_not: Mapping[str, str]) -> list[str]:
    """Why rungs cannot run here: sentences that differ in the rung's id alone stand once.

    Args:
        why_not: a sentence by the rung's id; empty where it can run.
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
        "simulated": format_us(latency.median_us) if latency is not None else None,
        "90 % interval": f"{format_us(latency.low_us)} to {format_us(latency.high_us)}"
        if latency is not None
        else None,
        "known": _known(rung),
        "not here, because": rung.why_not or None,
    }


def _known(rung: Rung) -> str | None:
    if rung.known is None:
        return None
    return f"{format_us(rung.known.latency.median_us)} {rung.known.latency.origin}"


def without_empty(table: Table) -> Table:
    """Without the columns that say nothing anywhere."""
    kept = [n for n, _ in enumerate(table.columns) if any(row[n] is not None for row in table.rows)]
    return Table(
        table.title,
        tuple(table.columns[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in table.rows),
        table.remark,
    )
