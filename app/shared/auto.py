"""`auto` in the sidebar: its choice, the reason, and a button to edit the choice."""

from __future__ import annotations

import streamlit as st

from app.shared import known_times, runs, selection
from app.shared.machine import device_of
from app.shared.terms import TERMS
from app.shared.widgets import busy, plain_markdown
from engine.attention.problem import Problem
from engine.base.memory import Newest
from engine.choose.auto import Choice, choose, decided_by
from engine.pipeline.request import EvaluationRequest
from kernels.variant import AUTO

_POLL_S = 1.0

# Cache of final choices and what they depend on: a page asks for its choice each time it is drawn,
# and a choice takes some ten predictions.
_kept: Newest[tuple[Problem, str], tuple[tuple[object, ...], Choice]] = Newest(64)


def choice_for(problem: Problem | None, gpu: str | None) -> Choice | None:
    """Return the choice of `auto`; None without a valid problem.

    Args:
        gpu: name of the target GPU; None is this machine's GPU.
    """
    if problem is None:
        return None
    history, device = known_times.history(), device_of(gpu)
    if device is None:
        return choose(problem, device, None, history)
    basis, key = decided_by(problem, device, history), (problem, device.name)
    kept = _kept.get(key)
    if kept is not None and kept[0] == basis:
        return kept[1]
    choice = choose(problem, device, None, history)
    if choice.is_final:
        _kept[key] = basis, choice
    return choice


def label(choice: Choice | None) -> str:
    """Return the choice's label in the menu of variants, for example `auto: v12  One shot`."""
    return AUTO if choice is None else f"{AUTO}: {selection.variant_label(choice.variant)}"


def simulate_candidates(choice: Choice, problem: Problem, gpu: str | None) -> None:
    """Simulate candidates without a time in the job worker; the choice may change then."""
    if choice.is_final:
        return
    job = runs.simulate_job(EvaluationRequest(AUTO, problem, gpu=gpu, execute=False))
    if job is not None and not job.is_over:
        runs.rerun_as_jobs_end([job], _POLL_S, lambda _: busy("Simulating auto's candidates."))


def draw(choice: Choice, problem: Problem | None, gpu: str | None, gpu_name: str) -> None:
    """Draw the chosen config in place of the tunables, and the reason.

    Candidates without a time are simulated by the worker; the choice may change after that.
    """
    if not choice.is_supported:
        st.caption(plain_markdown(choice.reason))
        return
    config = ", ".join(f"{name}={value}" for name, value in choice.config.items())
    shown = plain_markdown(f"{choice.variant.id}, {config or 'no tunables'}")
    st.markdown(f":material/auto_awesome: **auto takes** {shown}", help=TERMS["auto"])
    st.caption(plain_markdown(choice.reason))
    if problem is not None:
        simulate_candidates(choice, problem, gpu)
        st.button(
            "Edit this choice",
            key="auto_by_hand",
            type="tertiary",
            help="Select this variant with this config, so that you can change it.",
            on_click=selection.select,
            args=(choice.variant.id, choice.config, problem, gpu_name),
        )
