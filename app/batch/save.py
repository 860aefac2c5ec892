"""Save a batch recommendation as a snapshot: the predicted points, what was measured, the words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from app.shared.widgets import plain_markdown
from engine.environment import collect_environment
from engine.errors import AttuneError
from engine.evaluation import BaselineTiming, Evaluation, Latency, Status
from engine.model.batch.types import BatchRequest, BatchResult
from engine.model.batch.validate import Validation
from engine.model.measurements import Measurement
from engine.pipeline.preview import preview
from engine.pipeline.request import EvaluationRequest
from engine.records.snapshot import Snapshot
from engine.sessions.build import make_snapshot, now
from engine.sessions.store.store import default_store

_OUTCOME = "batch_save_outcome"


def snapshot_of(
    request: BatchRequest,
    result: BatchResult,
    gpu: str | None,
    points: Sequence[Measurement],
    validation: Validation | None,
) -> Snapshot:
    """A snapshot that says what was recommended, and what it was compared with."""
    words = [f"{r.target:.0%}: {r.reason}" for r in result.recommendations]
    words += [*result.warnings, *result.notes]
    if result.saving is not None:
        words.append(f"Cost: {result.saving.reason}")
    if validation is not None:
        words.append(f"Validation: {validation.reason}")
    return make_snapshot(
        [*_predicted(request, result, gpu), *_recorded(result, points)],
        environment=collect_environment(),
        title=f"Batch size of {result.variant} on {result.device}",
        notes="\n".join(words),
        provenance="Predicted by Attune's latency model"
        + (f"; {len(points)} measured points from outside this session." if points else "."),
    )


def _predicted(request: BatchRequest, result: BatchResult, gpu: str | None) -> list[Evaluation]:
    """The present batch and each recommended one, with resources and occupancy of the compile."""
    found = []
    batches = {result.problem.batch: None, **{r.batch: r for r in result.recommendations}}
    heads = 1 if request.heads_free else result.problem.num_heads
    for batch, why in batches.items():
        row = result.table[result.table["batch"] == batch].iloc[0]
        problem = replace(result.problem, batch=batch, num_heads=heads)
        seen = preview(EvaluationRequest(result.variant, problem, result.config, gpu=gpu))
        found.append(
            Evaluation(
                status=Status.SKIPPED,
                reason="Predicted, not executed.",
                variant=result.variant,
                problem=problem,
                config=result.config,
                device=result.device,
                when=now(),
                passes=seen.passes,
                latency=Latency(
                    "predicted",
                    float(row["predicted_us"]),
                    float(row["low_us"]),
                    float(row["high_us"]),
                    why.reason if why is not None else "The batch of today.",
                ),
            )
        )
    return found


def _recorded(result: BatchResult, points: Sequence[Measurement]) -> list[Evaluation]:
    def recorded(us: float) -> Latency:
        return Latency("recorded", us, us, us, "A measured point, imported.")

    return [
        Evaluation(
            status=Status.SKIPPED,
            reason="Recorded elsewhere, not executed here.",
            variant=result.variant,
            problem=p.problem,
            config=result.config,
            device=result.device,
            when=now(),
            latency=recorded(p.measured_us),
            baselines=() if p.sdpa_us is None else (BaselineTiming("SDPA", recorded(p.sdpa_us)),),
        )
        for p in points
    ]


def _save(*of_snapshot: object) -> None:
    try:
        name = default_store().save(snapshot_of(*of_snapshot))  # type: ignore[arg-type]
    except AttuneError as error:
        st.session_state[_OUTCOME] = ("", str(error))
    else:
        st.session_state[_OUTCOME] = (name, "")


def button(*of_snapshot: object) -> None:
    """Save what the page shows; the arguments are those of `snapshot_of`."""
    st.button("Save", key="batch_save", icon=":material/save:", on_click=_save, args=of_snapshot)


def outcome() -> None:
    if _OUTCOME not in st.session_state:
        return
    name, error = st.session_state.pop(_OUTCOME)
    if error:
        st.error(plain_markdown(error), icon=":material/error:")
    else:
        st.success(f"Saved as `{name}`.", icon=":material/check:")
