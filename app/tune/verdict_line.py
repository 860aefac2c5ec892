"""The line under the tiles: the verdict, with buttons for the next steps."""

from __future__ import annotations

from contextlib import suppress

import streamlit as st

from app.evaluation import metrics, source
from app.evaluation.view import EvaluationView
from app.shared import known_times, missing_kernels, selection
from app.shared.palette import STATUS_COLOR, STATUS_ICON
from app.shared.runs import is_machine_code_asked, machine_code_job, rerun_as_jobs_end
from app.shared.selection import Selection
from app.shared.terms import TERMS
from app.shared.widgets import plain_markdown
from app.tune.run_state import RunState
from engine.base.errors import AttuneError, Status
from engine.choose.auto import Choice
from engine.history import History
from engine.jobs.manager import JobStatus
from engine.machine_code.launch_report import PassReport
from engine.model.kernel import Kernel
from engine.pipeline.simulated_launches import machine_code_of
from engine.pipeline.verdict import LaunchVerdict, VerdictPart, verdict_of

_POLL_S = 0.5
_ICON = {
    "not_run": ":material/radio_button_unchecked:",
    "running": ":material/progress_activity:",
    "stale": ":material/history:",
}


def draw(chosen: Selection, state: RunState, view: EvaluationView, tabs_key: str) -> None:
    """Draw the verdict from what is known now, without waiting; a job may add to it.

    Args:
        tabs_key: key of the tabs that include the source.
    """
    history = known_times.history()
    verdict = _verdict(chosen, state, view, history)
    with st.container(
        horizontal=True, vertical_alignment="center", gap="xsmall", key="verdict", border=True
    ):
        first, *rest = verdict.parts
        texts = [_result(verdict, first)]
        if first.place is not None:
            _words(texts)
            texts = []
            source.line_button(view, first.place, "verdict", tabs_key)
            if first.other is not None:
                source.line_button(view, first.other, "verdict_other", tabs_key)
        for part in rest:
            if not _has_button(part, verdict, view, chosen.choice):
                texts.append(plain_markdown(part.with_place()))
                continue
            _words(texts)
            texts = []
            _button(part, chosen, view, tabs_key)
        _words(texts)
    metrics.draw_notes(_notes(state))
    job = _reading(chosen, state, view)
    # Once the machine code is read, look up the gain of the rung that follows the first advice, and
    # the time of auto's choice.
    asks = job is None and verdict.result == "passed" and not verdict.awaits_whole
    if asks and chosen.choice is not None and verdict.auto is not None and verdict.auto.us is None:
        with suppress(AttuneError):  # shown without a time
            history.estimate(chosen.choice.kernel, chosen.request(execute=False).problem)
    others = missing_kernels.jobs_for(history, _local_gpu(chosen)) if asks else ()
    waiting = [each for each in (job, *others) if each is not None and not each.is_over]
    rerun_as_jobs_end(waiting, _POLL_S)


def _reading(chosen: Selection, state: RunState, view: EvaluationView) -> JobStatus | None:
    """Submit and return the job that reads the machine code of a correct kernel; None once it has
    ended. Steps of a slider do not submit it, because their compiles come first."""
    run, request = view.evaluation, chosen.request(execute=False)
    if is_machine_code_asked(request, state.digest):
        return machine_code_job(request, state.digest)
    is_right = run is not None and run.status is Status.PASSED and not state.is_stale
    if not is_right or state.is_running or state.compiling or state.simulating:
        return None
    if _report(chosen, state) is not None or state.preview is None or state.preview.device is None:
        return None
    job = machine_code_job(request, state.digest)
    return None if job is None or job.is_over else job


def _notes(state: RunState) -> list[str]:
    """Return the notes of the last run without those of the compile, which are below the title."""
    if state.evaluation is None or state.is_stale or state.is_running:
        return []
    above = state.compiled.notes if state.compiled is not None else ()
    return [note for note in state.evaluation.notes if note not in above]


def _local_gpu(chosen: Selection) -> str:
    """Return the name of the device that requests leave empty."""
    return chosen.gpu_name if chosen.gpu is None else ""


def _verdict(
    chosen: Selection,
    state: RunState,
    view: EvaluationView,
    history: History,
) -> LaunchVerdict:
    assert chosen.problem is not None
    seen = state.preview
    device = seen.device if seen is not None else None
    run, stopped = view.evaluation, None
    main = chosen.problem.main_of(view.passes) if view.passes else None
    if seen is not None and seen.unsupported:
        stopped = Status.SKIPPED
    elif seen is not None and seen.memory and run is None:
        stopped = Status.OUT_OF_MEMORY
    elif state.compiled is not None and state.compiled.status is Status.COMPILE_ERROR:
        stopped, run = Status.COMPILE_ERROR, state.compiled
    return verdict_of(
        run,
        Kernel.of(chosen.variant, device, chosen.config) if device is not None else None,
        chosen.problem,
        latency=view.latency,
        bound_us=view.bound_us,
        ctas_per_sm=main.occupancy.ctas_per_sm if main is not None else None,
        report=_report(chosen, state) if stopped is None else None,
        choice=chosen.choice,
        stopped=stopped,
        is_stale=state.is_stale,
        is_running=state.is_running,
        part=state.part,
        history=history,
    )


def _report(chosen: Selection, state: RunState) -> PassReport | None:
    """Return the report on the main pass's machine code, if it was read."""
    code = machine_code_of(state.preview) if state.preview is not None else None
    assert chosen.problem is not None
    return chosen.problem.main_of(code.passes) if code is not None else None


def _result(verdict: LaunchVerdict, part: VerdictPart) -> str:
    """Return the first part of the verdict as Markdown, with colour and icon."""
    known = {status.lower(): status for status in Status}
    status = known.get(verdict.result)
    icon = STATUS_ICON[status] if status is not None else _ICON[verdict.result]
    color = STATUS_COLOR[status] if status is not None else "gray"
    return f":{color}[{icon} **{plain_markdown(part.text)}**]"


def _words(texts: list[str]) -> None:
    if texts:
        st.markdown(" · ".join(texts), width="content")


def _has_button(
    part: VerdictPart, verdict: LaunchVerdict, view: EvaluationView, choice: Choice | None
) -> bool:
    if part.code == "check" or (part.code == "next" and verdict.finding):
        return True
    if part.code == "auto":
        return choice is not None
    return part.place is not None and source.has_line(view, part.place)


def _button(
    part: VerdictPart,
    chosen: Selection,
    view: EvaluationView,
    tabs_key: str,
) -> None:
    """Draw the button that belongs to a part of the verdict."""
    if part.code == "next" and part.place is None:  # the output is incorrect
        st.button(
            plain_markdown(part.text),
            key="verdict_maps",
            type="tertiary",
            icon=":material/map:",
            help="Open the tab Correctness.",
            on_click=lambda: st.session_state.update({tabs_key: "Correctness"}),
        )
    elif part.place is not None:
        source.line_button(view, part.place, f"verdict_{part.code}", tabs_key, part.with_place())
    elif part.code == "auto" and (choice := chosen.choice) is not None:
        st.button(
            plain_markdown(part.text),
            key="verdict_auto",
            type="tertiary",
            icon=":material/auto_awesome:",
            help=plain_markdown(choice.reason),
            on_click=selection.select,
            args=(choice.variant.id, choice.config, chosen.problem, chosen.gpu_name),
        )
    else:
        st.button(
            f"{part.text} (check build)",
            key="verdict_check",
            type="tertiary",
            icon=":material/bug_report:",
            help=TERMS["check"],
            on_click=lambda: st.session_state.update(check=True),
        )
