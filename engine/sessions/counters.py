"""Nsight Compute's counters of imported launches, beside what Attune estimates of them.

An import keeps each counter as a note of its evaluation (`name: value unit`); here they are read
again. Estimates are made for the recorded variant as it stands here, which may be another source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from engine.base.errors import AttuneError
from engine.base.table import Table
from engine.base.units import format_bytes, format_us
from engine.evaluation import Evaluation
from engine.history import History
from engine.model.estimate import Estimate
from engine.model.kernel import Kernel
from engine.model.launches import collect

# What `attune profile` asks for, and what people read in the details page.
DURATION = "gpu__time_duration.sum"
DRAM_READ, DRAM_WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
L2_BYTES = "lts__t_bytes.sum"
ACHIEVED = "sm__warps_active.avg.pct_of_peak_sustained_active"
THEORETICAL = "sm__maximum_warps_per_active_cycle_pct"
REGISTERS = "launch__registers_per_thread"
WAVES = "launch__waves_per_multiprocessor"
METRICS = (
    DURATION,
    DRAM_READ,
    DRAM_WRITTEN,
    L2_BYTES,
    ACHIEVED,
    THEORETICAL,
    REGISTERS,
    WAVES,
)
_SAME = {
    ACHIEVED: "Achieved Occupancy",
    THEORETICAL: "Theoretical Occupancy",
    REGISTERS: "Registers Per Thread",
    WAVES: "Waves Per SM",
}
_NOTE = re.compile(r"(?P<name>[^:]{1,80}): (?P<value>[\d.,]+(?:e[-+]?\d+)?)(?: (?P<unit>\S+))?")
_BYTES = {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9}
_BYTES |= {"KB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1.0}


@dataclass(frozen=True, slots=True)
class Counter:
    """One figure as Nsight Compute gave it."""

    value: float
    unit: str

    @property
    def size_bytes(self) -> float | None:
        scale = _BYTES.get(self.unit)
        return None if scale is None else self.value * scale


def counters_of(evaluation: Evaluation) -> Mapping[str, Counter]:
    """The counters that an import kept; empty for an evaluation of any other origin."""
    latency = evaluation.latency
    if latency is None or not latency.reason.startswith("Nsight Compute"):
        return {}
    counters = {}
    for note in evaluation.notes:
        match = _NOTE.fullmatch(note)
        if match is not None:
            try:
                value = float(match["value"].replace(",", ""))
            except ValueError:
                continue
            counters[match["name"]] = Counter(value, match["unit"] or "")
    return counters


def counters_table(evaluations: Iterable[Evaluation], history: History) -> Table:
    """Counted beside estimated, a row per figure; no rows where nothing was imported."""
    records: list[dict[str, object]] = []
    for index, e in enumerate(evaluations):
        counters = counters_of(e)
        if counters:
            known = _estimate(e, history)
            records += [
                {"#": index, "variant": e.variant, "problem": e.problem.label(), **row}
                for row in _rows(e, counters, known)
            ]
    return Table.of(
        "Nsight Compute beside the estimates",
        records,
        "Counted by Nsight Compute on the GPU, caches flushed and clocks fixed; estimated for this "
        "machine's source of the variant. Bytes from DRAM are estimated as every byte once.",
    )


def _estimate(e: Evaluation, history: History) -> Estimate | None:
    try:
        return history.estimate(Kernel.of(e.variant, e.device, e.config), e.problem)
    except AttuneError:
        return None


def _rows(
    e: Evaluation, counters: Mapping[str, Counter], known: Estimate | None
) -> Iterator[dict[str, object]]:
    def counter(metric: str) -> Counter | None:
        return counters.get(metric) or counters.get(_SAME.get(metric, ""))

    main = e.problem.main_of(known.passes) if known is not None else None
    if e.latency is not None:
        predicted = known.latency if known is not None else None
        yield _row(
            "duration",
            format_us(e.latency.median_us),
            format_us(predicted.median_us) if predicted is not None else None,
            f"predicted by {predicted.method}, warm" if predicted is not None else "",
        )
    occupancy = f"{main.occupancy.occupancy:.0%}" if main is not None else None
    for metric, figure in (
        (ACHIEVED, "achieved occupancy"),
        (THEORETICAL, "theoretical occupancy"),
    ):
        if (counted := counter(metric)) is not None:
            yield _row(figure, f"{counted.value:.0f}%", occupancy, "of a full SM")
    if (counted := counter(REGISTERS)) is not None:
        registers = main.resources.registers_per_thread if main is not None else None
        yield _row("registers per thread", f"{counted.value:.0f}", registers, "as compiled here")
    if (counted := counter(WAVES)) is not None:
        waves = main.occupancy.waves if main is not None else None
        yield _row("waves", f"{counted.value:.3g}", None if waves is None else f"{waves:.3g}", "")
    moved = [counter(metric) for metric in (DRAM_READ, DRAM_WRITTEN)]
    sizes = [c.size_bytes for c in moved if c is not None and c.size_bytes is not None]
    if sizes:
        once = None
        if known is not None:
            launches = collect(known.kernel.variant, known.plan.config, [e.problem])
            once = format_bytes(int(launches.device_bytes[0]))
        yield _row(
            "bytes from and to DRAM", format_bytes(round(sum(sizes))), once, "every byte once"
        )
    if (counted := counter(L2_BYTES)) is not None and counted.size_bytes is not None:
        yield _row("bytes through L2", format_bytes(round(counted.size_bytes)), None, "")


def _row(figure: str, counted: str, estimated: object, basis: str) -> dict[str, object]:
    return {"figure": figure, "counted": counted, "estimated": estimated, "estimate is": basis}
