"""The predictions that were made, in one file for all sessions, as they are made.

How they fared is `engine.sessions.ledger`'s to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from engine.base import files, journal
from engine.base.errors import AttuneError, StoreError
from engine.base.files import data_folder
from engine.base.text import Line
from engine.evaluation import Evaluation, Latency
from engine.problem import Problem
from engine.schema import Integer, Stored, decode, encode


@dataclass(frozen=True, slots=True)
class Prediction(Stored):
    """One prediction of one launch."""

    when: Line  # UTC, ISO 8601
    variant: Line
    config: Mapping[Line, Integer]
    problem: Problem
    device: Line
    source_sha256: Line
    latency: Latency

    @property
    def key(self) -> tuple[object, ...]:
        """What was predicted: variant, config, problem, GPU."""
        return self.variant, tuple(sorted(self.config.items())), self.problem, self.device


def predictions_path() -> Path:
    return data_folder() / "predictions.jsonl"


def keep_prediction(evaluation: Evaluation, predicted: Latency | None) -> None:
    """Write down what was predicted of an evaluation. Nothing is lost where the disk refuses."""
    if predicted is None or not evaluation.source_sha256:
        return
    path = predictions_path()
    of_both = {f.name: getattr(evaluation, f.name) for f in fields(Prediction)}
    try:
        files.make_folder(path.parent)
        journal.append(path, encode(Prediction(**(of_both | {"latency": predicted}))))
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
            prediction = decode(Prediction, event)
        except AttuneError:
            continue
        latency = prediction.latency
        if latency.origin != "predicted":  # the ledger holds predictions alone
            continue
        figures = (latency.low_us, latency.median_us, latency.high_us)
        kept.setdefault((prediction.key, prediction.source_sha256, figures), prediction)
    return list(kept.values())
