"""The tab Mix: one kernel, batch and number of splits for all of your traffic."""

from __future__ import annotations

from typing import Literal

import streamlit as st

from app.batch import charts
from app.batch.inputs import own_prices
from app.batch.question import Question
from app.shared import known_times, missing_kernels, plot, tables, url_state
from app.shared.palette import color_of
from app.shared.terms import TERMS
from app.shared.widgets import busy, empty, plain_markdown, problem, theme
from engine.attention.evaluation import METHODS
from engine.base.errors import AttuneError
from engine.base.table import Table
from engine.choose.batch.mix import MixResult, parse_mix, recommend_mix
from engine.jobs.manager import JobStatus
from kernels.variant import AUTO

_OF: tuple[Literal["auto", "selected"], ...] = ("auto", "selected")
_MAX_BATCH = 1024


def draw(question: Question) -> tuple[JobStatus, ...]:
    """Draw the traffic field and the recommendation; return the jobs that it waits for."""
    chosen = question.selection
    field, side = st.columns([5, 3], gap="medium")
    text = url_state.text(
        field,
        "Launches a day, B, H, S of each problem",
        "mix",
        lines=True,
        placeholder="1000,1,8,512\n200,4,8,2048\n5000,1,8,128",
        help=TERMS["mix"],
    )
    names = {"auto": "kernels that auto chooses", "selected": f"{chosen.variant.id}, any splits"}
    of = url_state.segments(
        side, "Kernel", "mix_of", _OF, "auto", format_func=names.__getitem__, help=TERMS["mix_of"]
    )
    target = url_state.number(
        side, "Share of the highest throughput, %", "mix_target", 90, low=1, high=100
    )
    if not text:
        empty(
            "nothing yet",
            "No traffic yet",
            "Write one line for each problem that you run: launches a day, B, H, S, and optionally "
            "D, causal and dtype (default: those of the sidebar).",
        )
        return ()
    one = chosen.problem
    assert one is not None  # without a problem the page stops earlier
    history = known_times.history()
    try:
        lines = parse_mix(
            text, "The mix", head_dim=one.head_dim, causal=one.causal, dtype=one.dtype
        )
        result = recommend_mix(
            lines,
            question.device,
            history,
            variant=AUTO if of == "auto" else chosen.variant.id,
            target=target / 100,
            max_batch=_MAX_BATCH,
            price_usd_per_hour=own_prices().get(question.device.name),
        )
    except AttuneError as error:
        jobs = missing_kernels.jobs_for(history, question.local_gpu)
        if waiting := tuple(job for job in jobs if not job.is_over):
            busy("Compiling the candidate kernels.")
        else:
            problem(str(error))
        return waiting
    jobs = missing_kernels.jobs_for(history, question.local_gpu)
    waiting = tuple(job for job in jobs if not job.is_over)
    if waiting:
        s = "" if len(waiting) == 1 else "s"
        busy(f"{len(waiting)} kernel{s} and problem{s} are still being compiled or simulated.")
    if not waiting or result.method == METHODS[0]:
        _answer(result)
    return waiting


def _answer(result: MixResult) -> None:
    st.success(plain_markdown(result.reason), icon=":material/recommend:")
    st.caption(
        plain_markdown(
            f"On {result.device}; {result.basis} {result.interval} a day in all with every time at "
            "the low or the high end of its interval."
        )
    )
    lines, kernels = result.tables()
    tables.draw(lines.frame())
    st.markdown(f"**{kernels.title}**")
    tables.draw(kernels.frame())
    if kernels.remark:
        st.caption(kernels.remark)
    curve = Table("GPU-hours", ("batch", "gpu_hours"), tuple(result.curve)).frame(dashes=False)
    figure = charts.traffic(curve, result.batch, color_of(result.variant), theme())
    plot.draw(figure, key="mix_curve")
    tables.download(
        "These lines, CSV", lambda: tables.csv(result.to_frame()), "mix.csv", key="mix_csv"
    )
    for note in result.notes:
        st.caption(plain_markdown(note))
