"""The output of `sass`: counts, loops, lines, the listing, and the JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.attention.evaluation import METHODS, Latency
from engine.base.table import Table
from engine.base.units import format_bytes, format_us
from engine.cli.output import print_figures, print_table
from engine.devices import DeviceSpec
from engine.machine_code.advice import Advice
from engine.machine_code.analysis import (
    Analysis,
    Figures,
    has_guessed_addresses,
    launch_figures,
    line_figures,
    loop_figures,
    notes,
    outer_line,
    useful_math,
)
from engine.machine_code.disassembly import NO_BARRIER, Instruction, SourceLine
from engine.machine_code.emulation import EXECUTED, IDEAL_WAVEFRONTS, SECTORS, WAVEFRONTS
from engine.machine_code.overlap import overlaps
from engine.machine_code.timing.simulate import SimulatedLatency, TimedLaunch
from engine.pipeline.simulated_launches import advise_launch


@dataclass(frozen=True, slots=True)
class Result:
    """One pass: its counts, and its time if a GPU was named."""

    analysis: Analysis
    timed: TimedLaunch | None
    clock_note: str = ""  # note on the clock
    device: DeviceSpec | None = None  # at this clock
    predicted: Latency | None = None  # of all passes of a variant, as `evaluate` predicts it

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the limits of the result."""
        found = self.timed.simulated if self.timed else None
        sentences = notes(self.analysis, *((found.iterations, found.start_spread) if found else ()))
        return (*sentences, self.clock_note) if self.clock_note else tuple(sentences)

    @property
    def method(self) -> str:
        """Return the method of the time, one of `METHODS`."""
        return self.predicted.method if self.predicted is not None else METHODS[0]

    @property
    def has_interval(self) -> bool:
        """Return True if the time's interval is known: no addresses were assumed."""
        return self.predicted is not None or not has_guessed_addresses(self.analysis)


def as_json(kernel: str, results: Sequence[Result], device: DeviceSpec | None) -> dict[str, Any]:
    """Return one object with figures of the whole call and of each pass."""
    passes = [_pass_as_json(r, device) for r in results]
    main = max(passes, key=lambda p: p["counted"]["warp_instructions"])
    merged: dict[str, int] = {}
    for one in passes:
        for pipe, count in one["instructions"].items():
            merged[pipe] = merged.get(pipe, 0) + count
    whole = {
        "kernel": kernel,
        "gpu": device.name if device else None,
        "arch": main["arch"],
        "entry": main["entry"],
        "instructions": merged,
        "shared": _added(passes, "shared"),
        "global": _added(passes, "global"),
        "registers": main["registers"],
        "code_bytes": main["code_bytes"],
    }
    if device is not None:
        for key in ("resident_ctas", "cta_cycles", "sm_cycles", "busy", "clock_mhz", "clock"):
            whole[key] = main[key]
        for key in ("dram_bytes", "dram_us"):
            whole[key] = sum(one[key] for one in passes)
        longest = max(passes, key=lambda p: p["latency"]["median_us"])
        whole["bound"] = longest["bound"]
        whole["latency"] = _latency_of(results, results[0].predicted)
    return whole | {"passes": passes}


def _latency_of(results: Sequence[Result], predicted: Latency | None = None) -> dict[str, Any]:
    """Return the predicted latency, else the sum of those of the passes, which run one after the
    other."""
    each = [r.timed.simulated.latency for r in results if r.timed is not None]
    found = (
        sum(x.median_us for x in each),
        sum(x.low_us for x in each),
        sum(x.high_us for x in each),
    )
    if predicted is not None:
        found = predicted.median_us, predicted.low_us, predicted.high_us
    is_known = all(r.has_interval for r in results)
    return {
        "median_us": found[0],
        "low_us": found[1] if is_known else None,
        "high_us": found[2] if is_known else None,
        "origin": "predicted",
        "method": results[0].method,
        **({"reason": predicted.reason} if predicted is not None else {}),
    }


def _added(passes: Sequence[dict[str, Any]], group: str) -> dict[str, int]:
    return {key: sum(one[group][key] for one in passes) for key in passes[0][group]}


def _pass_as_json(result: Result, device: DeviceSpec | None) -> dict[str, Any]:
    advice = [_advice_as_json(a) for a in advise_launch(result.analysis, device, result.timed)]
    remarks = {"notes": list(result.notes), "advice": advice}
    return _counts_as_json(result.analysis) | _time_as_json(result) | remarks


def _advice_as_json(advice: Advice) -> dict[str, Any]:
    gain = advice.gain
    return {
        "kind": advice.kind,
        "line": _line(advice.source) if advice.source else None,
        "share": advice.share,
        "gain": {"low": gain.low, "high": gain.high, "origin": "simulated"} if gain else None,
        "sentence": advice.sentence,
    }


def _time_as_json(result: Result) -> dict[str, Any]:
    if result.timed is None:
        return {}
    simulated = result.timed.simulated
    return {
        "resident_ctas": simulated.resident_ctas,
        "ctas_per_sm": simulated.ctas_per_sm,
        "cta_cycles": simulated.cta_cycles,
        "sm_cycles": simulated.sm_cycles,
        "dram_us": simulated.dram_us,
        "dram_bytes": simulated.dram_bytes,
        "clock_mhz": simulated.latency.clock_mhz,
        "clock": simulated.latency.clock,
        "bound": simulated.bound,
        "touched_bytes": result.timed.touched_bytes,
        "busy": simulated.busy(),
        "stall_cycles": {
            reason.label: cycles for reason, cycles in simulated.round.stall_cycles().items()
        },
        "latency": _latency_of([result]),
    }


def _counts_as_json(analysis: Analysis) -> dict[str, Any]:
    counts, figures = analysis.counts, launch_figures(analysis.counts)
    program, launch = analysis.program, analysis.launch
    return {
        "entry": program.entry,
        "arch": program.arch,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "registers": program.registers,
        "live_registers": analysis.most_live,
        "smem_bytes": analysis.smem_bytes,
        "code_bytes": program.code_bytes,
        "counted": {
            "ctas": launch.ctas,
            "warp_instructions": figures.executed,
            "lane_share": figures.lane_share,
            "barriers": figures.barriers,
            "mufu": figures.mufu,
            "conversions": figures.conversions,
            "scalar_math": figures.scalar_math,
            "tensor_math": figures.tensor_math,
            "local_sectors": figures.local_sectors,
            "exact": counts.exact,
            "exact_sectors": counts.exact_sectors,
            "ctas_run": counts.emulated,
        },
        "instructions": figures.instructions,
        "shared": {
            "wavefronts": figures.shared_wavefronts,
            "ideal_wavefronts": figures.ideal_shared_wavefronts,
        },
        "global": {
            "sectors": figures.global_sectors,
            "ideal_sectors": figures.ideal_global_sectors,
            "bytes": figures.global_bytes,
        },
        "loops": [
            {
                "line": _line(loop.source),
                "depth": loop.loop.depth,
                "iterations": loop.iterations,
                "instructions_per_iteration": loop.instructions_per_iteration,
            }
            for loop in loop_figures(counts)
        ],
        "overlaps": [
            {
                "what": overlap.what,
                "line": f"{overlap.file}:{overlap.line}" if overlap.line else None,
                "beside": overlap.beside,
                "of": overlap.of,
            }
            for overlap in overlaps(program, counts.totals[:, EXECUTED])
        ],
        "lines": [
            {
                "file": line.source.file,
                "line": line.source.line,
                "instructions": line.figures.executed,
                "shared_wavefronts": line.figures.shared_wavefronts,
                "ideal_shared_wavefronts": line.figures.ideal_shared_wavefronts,
                "global_sectors": line.figures.global_sectors,
                "ideal_global_sectors": line.figures.ideal_global_sectors,
            }
            for line in line_figures(counts)
        ],
    }


def print_results(
    kernel: str,
    results: Sequence[Result],
    device: DeviceSpec | None,
    most_lines: int,
    listing: bool,
) -> None:
    """Print tables for each pass."""
    for result in results:
        _print_counts(kernel, result.analysis)
        _print_loops(result.analysis)
        _print_lines(result.analysis, most_lines)
        if device is not None:
            _print_time(result, device)
        if listing:
            _print_listing(result.analysis)
        for advice in advise_launch(result.analysis, device, result.timed):
            where = f"{_line(advice.source)}: " if advice.source else ""
            gain = f" (saves {advice.gain} of the simulated time)" if advice.gain else ""
            print(f"Advice{gain}: {where}{advice.sentence}")
        for note in result.notes:
            print(f"Note: {note}")
    if device is None:
        print("Only counts: name a GPU (--gpu L4) for a simulated time.")
    elif len(results) > 1:
        whole = _latency_of(results, results[0].predicted)
        print(
            f"All passes together: {format_us(whole['median_us'])} predicted by {whole['method']}."
        )


def _print_time(result: Result, device: DeviceSpec) -> None:
    if result.timed is None:
        return
    simulated = result.timed.simulated
    latency, busy = simulated.latency, simulated.busy()
    stalls = simulated.round.stall_cycles()
    cycles = sum(stalls.values()) or 1.0
    shares = sorted(((c / cycles, r) for r, c in stalls.items() if c), reverse=True)
    units = sorted(((share, unit) for unit, share in busy.items() if share), reverse=True)
    rows: list[tuple[str, object]] = [
        (
            "latency",
            f"{format_us(latency.median_us)} predicted by {result.method} "
            f"({_interval(result, latency)})",
        ),
        ("SM clock", _clock(latency)),
        ("bound by", simulated.bound),
        ("resident CTAs per SM", f"{simulated.resident_ctas} of {simulated.ctas_per_sm} in all"),
        ("cycles of one CTA alone", f"{simulated.cta_cycles:,.0f}"),
        ("cycles of the busiest SM", f"{simulated.sm_cycles:,.0f}"),
        ("global memory touched", format_bytes(result.timed.touched_bytes)),
        ("bytes of DRAM", format_bytes(round(simulated.dram_bytes))),
        ("time of DRAM", format_us(simulated.dram_us)),
        ("busy", ", ".join(f"{unit} {share:.0%}" for share, unit in units[:6])),
        ("warps' cycles", ", ".join(f"{r.label.lower()} {s:.0%}" for s, r in shares[:6])),
    ]
    title = f"{result.analysis.program.entry} on {device.name}, simulated"
    print_figures(title, rows)


def _interval(result: Result, latency: SimulatedLatency) -> str:
    if not result.has_interval:
        return "interval unknown"
    return f"{format_us(latency.low_us)} – {format_us(latency.high_us)}"


def _clock(latency: SimulatedLatency) -> str:
    return f"{latency.clock_mhz:,.0f} MHz, {latency.clock}"


def _print_counts(kernel: str, analysis: Analysis) -> None:
    program, launch, counts = analysis.program, analysis.launch, analysis.counts
    figures = launch_figures(counts)
    live = "" if analysis.most_live is None else f" ({analysis.most_live} alive at most)"
    rows: list[tuple[str, object]] = [
        ("launch", f"grid {launch.grid}, block {launch.block}"),
        ("registers per thread", f"{program.registers}{live}"),
        ("shared memory per CTA", format_bytes(analysis.smem_bytes)),
        (
            "code",
            f"{len(program.instructions):,} instructions, {format_bytes(program.code_bytes)}",
        ),
        (
            "warp instructions",
            f"{figures.executed:,} ({figures.executed // launch.ctas:,} per CTA)",
        ),
    ]
    for pipe, count in sorted(figures.instructions.items(), key=lambda item: -item[1]):
        rows.append((f"  {pipe}", f"{count:,} ({count / figures.executed:.1%})"))
    rows += [
        ("multiply-add instructions", f"{useful_math(figures):.1%} of all"),
        ("lanes occupied", f"{figures.lane_share:.1%}"),
        ("conversions", f"{figures.conversions:,}"),
        ("MUFU", f"{figures.mufu:,}"),
        ("barriers", f"{figures.barriers:,}"),
        ("shared wavefronts", _against(figures.shared_wavefronts, figures.ideal_shared_wavefronts)),
        ("global sectors", _against(figures.global_sectors, figures.ideal_global_sectors)),
        ("global bytes requested", format_bytes(figures.global_bytes)),
    ]
    if figures.local_sectors:
        rows.append(("local sectors (spills, stack)", f"{figures.local_sectors:,}"))
    title = f"{kernel}: {program.entry} for {program.arch}, counted"
    print_figures(title, rows)


def _against(actual: int, ideal: int) -> str:
    if ideal == 0:
        return f"{actual:,}"
    return f"{actual:,} ({ideal:,} at best, {actual / ideal:.2f}×)"


def _print_loops(analysis: Analysis) -> None:
    ctas = analysis.launch.ctas
    records = (
        {
            "loop at": "  " * loop.loop.depth + _line(loop.source),
            "iterations per CTA": f"{loop.iterations / ctas:,.1f}",
            "instructions per iteration": f"{loop.instructions_per_iteration:,.1f}",
            "of all": f"{loop.figures.executed / analysis.counts.executed:.1%}",
            **_memory(loop.figures),
        }
        for loop in loop_figures(analysis.counts)
    )
    print_table(Table.of("Loops", records))
    for overlap in overlaps(analysis.program, analysis.counts.totals[:, EXECUTED]):
        print(f"Overlap, in an iteration: {overlap} instructions.")


def _print_lines(analysis: Analysis, most: int) -> None:
    records = (
        {
            "line": _line(line.source),
            "instructions": f"{line.figures.executed:,}",
            "of all": f"{line.figures.executed / analysis.counts.executed:.1%}",
            "pipes": _pipes(line.figures),
            **_memory(line.figures),
        }
        for line in line_figures(analysis.counts)[: max(0, most)]
    )
    print_table(Table.of("Hottest lines", records))


def _memory(figures: Figures) -> dict[str, str | None]:
    return {
        "wavefronts": _ratio(figures.shared_wavefronts, figures.ideal_shared_wavefronts),
        "sectors": _ratio(figures.global_sectors, figures.ideal_global_sectors),
    }


def _pipes(figures: Figures) -> str:
    most = sorted(figures.instructions.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{pipe} {count / figures.executed:.0%}" for pipe, count in most)


def _ratio(actual: int, ideal: int) -> str | None:
    """Return `2,048 (4.0x)`; empty if the count is 0."""
    if not actual:
        return None
    return f"{actual:,}" if actual == ideal or not ideal else f"{actual:,} ({actual / ideal:.1f}x)"


def _line(source: SourceLine | None) -> str:
    return f"{source.file}:{source.line}" if source else "?"


def _print_listing(analysis: Analysis) -> None:
    totals, last = analysis.counts.totals, None
    heading = "  executed wavefronts    sectors live stall waits  wr rd pipe     address"
    print(f"{heading} instruction")
    for n, instruction in enumerate(analysis.program.instructions):
        here = outer_line(instruction)
        if here is not None and here != last:
            print(f"--- {_line(here)}")
            last = here
        row = totals[n]
        wavefronts = f"{row[WAVEFRONTS]}" if row[IDEAL_WAVEFRONTS] else ""
        sectors = f"{row[SECTORS]}" if row[SECTORS] else ""
        live = analysis.live_registers.get(instruction.address, "")
        print(
            f"{row[EXECUTED]:10} {wavefronts:>10} {sectors:>10} {live:>4} "
            f"{_schedule(instruction)} {instruction.pipe.value:8} {instruction.address:#07x} "
            f"{instruction}"
        )


def _schedule(instruction: Instruction) -> str:
    c = instruction.control
    waits = "".join(str(b) if c.wait_mask >> b & 1 else "." for b in range(6))
    write, read = ("-" if b == NO_BARRIER else str(b) for b in (c.write_barrier, c.read_barrier))
    return f"{c.stall:5} {waits} {write:>2} {read:>2}"
