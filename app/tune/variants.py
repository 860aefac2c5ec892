"""Every variant on the selected problem and GPU, side by side; sweeps add their best configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import streamlit as st

from app.evaluation import charts
from app.shared import known_times, plot, tables, url_state
from app.shared.runs import compile_job, evaluation_of, rerun_as_jobs_end
from app.shared.selection import Selection, problem_values
from app.shared.widgets import busy, plain_markdown, theme
from app.tune import variants_frame
from app.tune.run_state import simulation_of
from engine.base.errors import AttuneError
from engine.jobs.manager import JobStatus, manager
from engine.jobs.sweep_files import sweep_files
from engine.kernel_figures.rung import reasons
from engine.pipeline.request import EvaluationRequest, preview
from engine.search.ranking import SweepRow
from engine.versions.figures import default_threshold
from kernels.ladder import LADDER
from kernels.variant import Variant

_MAX_SWEEPS = 5  # the newest
_POLL_S = 0.5
# Fixed widths, because the table's own widths cut the content.
_WIDTHS_PX = {
    "predicted": 140,  # "13.5 µs machine code"
    "known": 130,
    "variant": 85,  # "v11 (auto)"
    "order": 100,  # "fastest so far"
    "smem": 80,  # "41.8 KiB"
    "limiter": 170,  # "registers and shared memory"
    "waves": 60,  # "0.00862"
    # "block_n=16 cluster_size=1 num_splits=4 num_warps=4 page_size=64 stages=3", in two lines: in
    # one, it would be cut in a window of 1440 pixels.
    "config": 250,
}
_CONFIG_LETTERS = 41  # that fit into a line of it


def draw(selection: Selection) -> None:
    """Draw table and chart. The job worker compiles variants that are not compiled yet."""
    problem = selection.problem
    assert problem is not None
    rows = [row for row in _sweep_rows() if (row.problem, row.device) == _at(selection)]
    waiting: list[JobStatus] = []
    notes: set[str] = set()  # reasons why kernels could not be compiled here
    lines: list[variants_frame.Line] = []
    rungs = LADDER.of(problem)
    own = [selection.variant] if selection.variant.id not in {v.id for v in rungs} else []
    for variant in (*own, *rungs):
        best = variants_frame.best_row(rows, variant.id)
        config = dict(best.config) if best is not None else {}
        if variant.id == selection.variant.id and best is None:
            config = selection.config
        lines.append(_line(selection, variant, config, best, waiting, notes))
        choice = selection.choice
        if choice is not None and choice.is_supported and choice.variant.id == variant.id:
            of_auto = _line(selection, variant, choice.config, None, waiting, notes)
            if of_auto.config != lines[-1].config:
                lines.append(replace(of_auto, is_auto=True))
    frame = variants_frame.frame(lines, is_complete=not waiting)
    timed = variants_frame.chart_frame(lines)
    where = plain_markdown(f"{problem.label()}, {_at(selection)[1]}")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.markdown(f"**Every variant on {where}**", width="content")
        st.page_link(
            "app_pages/sweep.py",
            label="Sweep all variants",
            icon=":material/grid_on:",
            query_params=url_state.link_params(
                {
                    **problem_values(problem),
                    "gpu": selection.gpu,
                    "variant": selection.variant.id,
                    "sweep_variants": ",".join(v.id for v in (*own, *rungs)),
                }
            ),
        )
    if len(timed) > 1:
        plot.draw(charts.latencies(timed, theme()), key="variants_chart", tools=False)
    if len(frame):
        tables.draw(
            frame,
            rows=len(frame),
            row_height=tables.row_px(frame["config"], _CONFIG_LETTERS),
            columns={
                n: st.column_config.TextColumn(width=px, pinned=n == "variant")
                for n, px in _WIDTHS_PX.items()
            },
            # The table measures widths once: those of the first, emptier rows would cut later
            # content.
            key=f"variants_table_{len(waiting)}",
        )
    for sentence in reasons({each.variant: each.reason for each in lines}):
        st.caption(f":material/block: {plain_markdown(sentence)}")
    for note in sorted(notes):
        st.caption(f":material/info: {plain_markdown(note)}")
    st.caption(
        "Predictions are for a sweep's best config, else for the tuned or the default config. "
        "Correctness is shown for kernels that were run. Against SDPA: SDPA's time divided by the "
        "variant's; left out for imported times, whose method of measurement is unknown. In the "
        "chart, a name that is not a variant's is another kernel, launched like one. Order: "
        "compared with the fastest simulated variant; ✓: the order is reliable. "
        f"{default_threshold()} (auto): the config that auto takes, if it is another one."
    )
    rerun_as_jobs_end(
        waiting,
        _POLL_S,
        lambda count: busy(
            f"Compiling or simulating {count} kernel{'s' if count != 1 else ''} for predictions."
        ),
    )


def _line(
    selection: Selection,
    variant: Variant,
    config: Mapping[str, int],
    best: SweepRow | None,
    waiting: list[JobStatus],
    notes: set[str],
) -> variants_frame.Line:
    """Return what is known of one config; add the job that finds out more, and its notes."""
    problem = selection.problem
    assert problem is not None
    request = EvaluationRequest(variant.id, problem, config, gpu=selection.gpu, execute=False)
    try:
        seen = preview(request, known_times.history())
    except AttuneError as error:
        return variants_frame.without_preview(variant, str(error))
    if seen.needs_compile and not seen.unsupported:
        job = compile_job(request)
        waiting += [job] if job is not None and not job.is_over else []
        compiled = evaluation_of(job) if job is not None else None
        notes.update(compiled.notes if compiled is not None else ())
    elif (job := simulation_of(seen, request)) is not None:
        waiting.append(job)
    return variants_frame.line(seen, best, known_times.at(problem, _at(selection)[1]))


def _at(selection: Selection) -> tuple[object, str]:
    return selection.problem, selection.gpu_name


def _sweep_rows() -> list[SweepRow]:
    """Return the points of the newest sweeps, of the app and of the command line."""
    sweeps = [job for job in manager().jobs() if job.kind == "sweep"][:_MAX_SWEEPS]
    rows = [row for job in sweeps for row in manager().rows(job.job_id)]
    listed = sweep_files().listed()[:_MAX_SWEEPS]
    return [*rows, *(row for job in listed for row in sweep_files().rows(job.job_id))]
