"""The tab's parts in order: limiting unit, hot lines, listing, comparison with another kernel."""

from __future__ import annotations

import streamlit as st

from app.shared import known_times, plot, tables
from app.shared.selection import Selection
from app.shared.terms import TERMS
from app.shared.widgets import busy, empty, plain_markdown, problem, theme
from app.tune.machine_code import charts, frames, listing
from app.tune.machine_code.other import Other, Seen, choose
from app.tune.machine_code.reading import Reading, read
from app.tune.run_state import RunState
from engine.attention.evaluation import Latency
from engine.base.units import format_us
from engine.history.known_time import are_comparable, not_comparable
from engine.machine_code.disassembly import plain_name
from engine.machine_code.launch_report import MachineCode, PassReport, compare_counts
from engine.pipeline.request import EvaluationRequest, resolve
from engine.pipeline.simulated_launches import simulated_timeline
from engine.pipeline.verdict import step_of


def draw(selection: Selection, state: RunState) -> None:
    """Draw the analysis of the selected launch, or the progress of the job that makes it."""
    request = selection.request(execute=False)
    reading = read(request, state.digest)
    if reading.code is None:
        _draw_missing(reading, f"Reading the machine code of {selection.variant.id}")
        return
    report = _which_pass(reading.code)
    predicted = state.preview.predicted if state.preview is not None else None
    _draw_time(report, predicted)
    _draw_timeline(request, reading.code, report)
    _draw_overlaps(report)
    _draw_lines(reading.code, report)
    _draw_advice(request, report)
    st.markdown("**Source and machine code**", help=TERMS["machine_code"])
    listing.draw(reading.code, report, "listing")
    _draw_registers(report)
    other = choose(selection, Seen(reading.code, predicted), state.digest)
    if other is not None:
        _draw_other(reading.code, report, predicted, other)
    with st.expander("All counts of the launch", icon=":material/tag:"):
        tables.draw(frames.counts(report.counts))
    for note in report.notes:
        st.caption(f":material/info: {plain_markdown(note)}")


def _draw_missing(reading: Reading, what: str) -> None:
    if reading.error:
        problem(reading.error, reading.log)
    else:
        busy(f"{plain_markdown(what)}: disassembling, counting, simulating.")
        reading.poll()


def _which_pass(code: MachineCode) -> PassReport:
    """Draw the choice of a pass; most variants have only one."""
    if len(code.passes) == 1:
        return code.passes[0]
    chosen = st.segmented_control(
        "Pass",
        range(len(code.passes)),
        format_func=lambda i: plain_markdown(plain_name(code.passes[i].entry)),
        default=0,
        required=True,
        key=f"machine_code_pass.{code.variant}",
        label_visibility="collapsed",
    )
    return code.passes[min(chosen, len(code.passes) - 1)]


def _draw_time(report: PassReport, predicted: Latency | None) -> None:
    if report.no_time:
        empty("nothing yet", "No simulated time", plain_markdown(report.no_time))
        return
    time = ""
    if predicted is not None:
        time = f"**{format_us(predicted.median_us)}** :gray[{_by(predicted)}.] "
    st.markdown(f"{time}{plain_markdown(report.verdict)}")
    left, right = st.columns(2)
    with left:
        st.markdown("**Busy units in the steady state**", help=TERMS["busy_units"])
        figure = charts.shares(frames.shares(report.units), "% of the cycles, simulated", theme())
        plot.draw(figure, "mc_units", tools=False)
    with right:
        st.markdown("**What warps wait for**", help=TERMS["stalls"])
        figure = charts.shares(
            frames.shares(report.stalls), "% of the warps' cycles, simulated", theme()
        )
        plot.draw(figure, "mc_stalls", tools=False)


def _draw_timeline(request: EvaluationRequest, code: MachineCode, report: PassReport) -> None:
    """Draw a button that makes a trace of the simulated launch and downloads it."""
    if report.no_time:
        return
    history, number = known_times.history(), code.passes.index(report)
    tables.download(
        "Timeline of the simulated launch",
        lambda: simulated_timeline(request, history, number).encode(),
        f"{code.variant}-{report.entry}-{code.arch}.trace.json",
        key="machine_code_timeline",
        mime="application/json",
        help=TERMS["timeline"],
    )


def _draw_overlaps(report: PassReport) -> None:
    """Draw, for each loop with asynchronous work, what overlaps with its computation."""
    if report.overlaps:
        st.markdown("**Overlap in the loops** :gray[instructions of one iteration, counted]")
        tables.draw(frames.overlaps(report.overlaps))


def _by(predicted: Latency) -> str:
    return (
        f"predicted{f' by {predicted.method}' if predicted.method else ''}, 90 % interval "
        f"{format_us(predicted.low_us)} to {format_us(predicted.high_us)}"
    )


def _compared(other: Latency, mine: Latency) -> str:
    if not are_comparable(other.basis, mine.basis):
        return not_comparable(other.basis, mine.basis)
    return f"{mine.basis}, ratio {other.median_us / mine.median_us:.2f}"


def _draw_lines(code: MachineCode, report: PassReport) -> None:
    st.markdown("**The ten hottest lines** :gray[inlined code included; counted]")
    if not report.lines:
        empty(
            "nothing yet",
            "No source lines",
            "The machine code contains no source line numbers: compile it with line information, "
            "as nvcc does with -lineinfo.",
        )
        return
    # In a narrow window the source is cut, not the figures.
    columns = {"source": st.column_config.TextColumn(width=280)}
    tables.draw(frames.hottest(report.lines, code.source, code.source_name), columns=columns)


def _draw_advice(request: EvaluationRequest, report: PassReport) -> None:
    """Draw the advice, with the same gains as the verdict line."""
    if not report.hints:
        return
    st.markdown("**Advice**")
    history = known_times.history()
    kernel = resolve(request, history).kernel
    for hint in report.hints:
        where = f"Line {hint.line}: " if hint.line else ""
        gain = ""
        if hint.gain and kernel is not None:
            step = step_of(hint, kernel, request.problem, history)
            gain = f" It saves {step.gain} of the simulated time."
        st.markdown(f"- {plain_markdown(f'{where}{hint.sentence}{gain}')}")


def _draw_registers(report: PassReport) -> None:
    if not any(report.listing.live):
        return
    st.markdown(
        "**Live registers along the code** :gray[loops shaded; dotted: registers allocated per "
        "thread]"
    )
    figure = charts.live_registers(
        frames.live(report), report.registers, frames.loops(report), theme()
    )
    plot.draw(figure, "mc_live")


def _draw_other(
    code: MachineCode, report: PassReport, predicted: Latency | None, other: Other
) -> None:
    if other.reading.code is None:
        _draw_missing(other.reading, f"Reading {other.name}")
        return
    number = min(code.passes.index(report), len(other.reading.code.passes) - 1)
    theirs = other.reading.code.passes[number]
    mine = "as it is now" if other.is_before else f"{code.variant} {code.config}".strip()
    if predicted is not None and other.predicted is not None:
        st.markdown(
            f"{plain_markdown(other.name)} takes **{format_us(other.predicted.median_us)}**, "
            f"{plain_markdown(mine)} **{format_us(predicted.median_us)}** "
            f":gray[{_compared(other.predicted, predicted)}]"
        )
    tables.draw(frames.count_pairs(compare_counts(theirs, report), (other.name, mine)))
    listing.draw_aligned(
        (other.name, other.reading.code, theirs), (mine, code, report), "listing_aligned"
    )
