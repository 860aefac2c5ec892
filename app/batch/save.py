"""Save a batch recommendation as a snapshot: predicted points, measured points, the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import streamlit as st

from app.batch import frames
from app.batch.question import Question
from app.shared import known_times, saving
from engine.attention.evaluation import BaselineTiming, Evaluation, Latency
from engine.base.errors import Status
from engine.base.table import csv_text
from engine.choose.batch.types import BatchResult
from engine.choose.batch.validate import Validation
from engine.devices.environment import collect_environment
from engine.model.measured_points import Measurement, write_measurements
from engine.pipeline.request import EvaluationRequest, preview
from engine.sessions.session import make_attachment, make_snapshot, now
from engine.sessions.snapshot import Attachment, Snapshot


def button(question: Question, result: BatchResult, validation: Validation | None) -> None:
    """Draw the button that saves the recommendation."""
    st.button(
        "Save",
        key="batch_save",
        icon=":material/save:",
        on_click=lambda: saving.save("batch", lambda: _snapshot_of(question, result, validation)),
    )


def _snapshot_of(
    question: Question, result: BatchResult, validation: Validation | None
) -> Snapshot:
    """Return a snapshot of the recommendation and of the points it was validated with."""
    points = question.points.measurements
    words = [f"{r.target:.0%}: {r.reason}" for r in result.recommendations]
    words += [*result.warnings, *result.axis_notes, *result.notes]
    if result.saving is not None:
        words.append(f"Cost: {result.saving.reason}")
    words += [result.knee, *result.calibration_quality()]
    if result.kernel:
        words.insert(0, f"Of the recorded kernel {result.kernel}, launched like {result.variant}.")
    if validation is not None:
        words.append(f"Validation: {validation.reason}")
    return make_snapshot(
        [*_predicted(question, result), *_recorded(result, points)],
        environment=collect_environment(),
        title=f"Batch size of {result.variant} on {result.device}",
        notes="\n".join(filter(None, words)),
        attachments=_files(question, result),
        provenance="Predicted by Attune's latency model"
        + (f"; {len(points)} measured points from outside this session." if points else "."),
    )


def _files(question: Question, result: BatchResult) -> Iterator[Attachment]:
    """Return the table of batches, and the measured points as a CSV file that can be uploaded
    again."""
    heads_free = bool(question.axis["heads_free"])
    points = question.points.measurements
    measured = frames.measured(points, result, heads_free)
    rows = frames.selected_rows(result, result.problem.batch)
    yield make_attachment("batch.csv", csv_text(frames.table(rows, measured)))
    if points:
        yield make_attachment("points.csv", write_measurements(points))


def _predicted(question: Question, result: BatchResult) -> list[Evaluation]:
    """Return the present and the recommended batches as evaluations, with resources and
    occupancy."""
    evaluations = []
    batches = {result.problem.batch: None, **{r.batch: r for r in result.recommendations}}
    heads = 1 if question.axis["heads_free"] else result.problem.num_heads
    for batch, recommendation in batches.items():
        row = result.table[result.table["batch"] == batch].iloc[0]
        problem = replace(result.problem, batch=batch, num_heads=heads)
        seen = preview(
            EvaluationRequest(result.variant, problem, result.config, gpu=question.selection.gpu),
            known_times.history(),
        )
        evaluations.append(
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
                    float(row["predicted_low_us"]),
                    float(row["predicted_high_us"]),
                    recommendation.reason if recommendation else "The present batch.",
                ),
            )
        )
    return evaluations


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
