"""The predictions that were made, in one file for all sessions, as they are made.

How they fared is `engine.sessions.ledger`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import AttuneError, SnapshotError, StoreError
from engine.evaluation import Evaluation, Latency
from engine.problem import Problem
from engine.records import journal
from engine.records.encoding import decode, encode
from engine.text import clean_line
from engine.user_data import data_folder


@dataclass(frozen=True, slots=True)
class Prediction:
    """One prediction of one launch."""

    when: str  # UTC, ISO 8601
    variant: str
    config: tuple[tuple[str, int], ...]
    problem: Problem
    device: str
    source_sha256: str
    latency: Latency

    @property
    def key(self) -> tuple[object, ...]:
        """What was predicted: variant, config, problem, GPU."""
        return self.variant, self.config, self.problem, self.device


def predictions_path() -> Path:
    return data_folder() / "predictions.jsonl"


def keep_prediction(evaluation: Evaluation, predicted: Latency | None) -> None:
    """Write down what was predicted of an evaluation. Nothing is lost where the disk refuses."""
    if predicted is None or not evaluation.source_sha256:
        return
    path = predictions_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        journal.append(
            path,
            {
                "when": evaluation.when,
                "variant": evaluation.variant,
                "config": dict(evaluation.config),
                "problem": encode(evaluation.problem),
                "device": evaluation.device,
                "source_sha256": evaluation.source_sha256,
                "latency": encode(predicted),
            },
        )
    except (ImportError, OSError, StoreError):
        return  # a machine that can only measure, or a full disk: the evaluation counts for more


def predictions() -> list[Prediction]:
    """What was kept, oldest first; a repeated one once. Damaged lines are passed over.

    Raises:
        StoreError: the file cannot be read.
    """
    events, _ = journal.read_from(predictions_path(), 0)
    kept: dict[object, Prediction] = {}
    for event in events:
        try:
            prediction = _read(event)
        except (AttuneError, KeyError, TypeError, ValueError, AttributeError):
            continue
        latency = prediction.latency
        figures = (latency.low_us, latency.median_us, latency.high_us)
        kept.setdefault((prediction.key, prediction.source_sha256, figures), prediction)
    return list(kept.values())


def _read(event: dict[str, Any]) -> Prediction:
    latency = decode(Latency, event["latency"])
    if latency.origin != "predicted":
        raise SnapshotError("The ledger holds predictions alone.")
    return Prediction(
        when=clean_line(str(event["when"])),
        variant=clean_line(str(event["variant"])),
        config=tuple(sorted((clean_line(str(k)), int(v)) for k, v in event["config"].items())),
        problem=decode(Problem, event["problem"]),
        device=clean_line(str(event["device"])),
        source_sha256=clean_line(str(event["source_sha256"])),
        latency=latency,
    )
