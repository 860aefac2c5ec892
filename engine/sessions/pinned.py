"""The pinned evaluation: one that later ones are held against, kept in the user's folder."""

from __future__ import annotations

import json
from pathlib import Path

from engine.base import files
from engine.base.errors import AttuneError
from engine.base.files import data_folder
from engine.base.units import format_speedup, format_us
from engine.evaluation import Correctness, Evaluation, Latency, PassReport
from engine.problem import Problem
from engine.schema import decode, encode

_MAX_BYTES = 16 << 20


def pinned_path() -> Path:
    return data_folder() / "pinned.json"


def pin(evaluation: Evaluation) -> None:
    """Make this the baseline. StoreError when the disk refuses."""
    path = pinned_path()
    with files.as_sentence(f"{path} cannot be written"):
        files.make_folder(path.parent)
        files.write(path, json.dumps(encode(evaluation)).encode())


def unpin() -> None:
    """There is no baseline any more. StoreError when the disk refuses."""
    with files.as_sentence(f"{pinned_path()} cannot be deleted"):
        pinned_path().unlink(missing_ok=True)


def pinned() -> Evaluation | None:
    """The baseline; None where there is none, or its file is damaged."""
    try:
        raw = json.loads(files.read(pinned_path(), _MAX_BYTES))
        return decode(Evaluation, raw, name="The pinned evaluation").as_recorded()
    except (OSError, ValueError, AttuneError):
        return None


def deltas(
    baseline: Evaluation,
    *,
    problem: Problem,
    device: str,
    correctness: Correctness | None,
    main: PassReport | None,
    latency: Latency | None,
) -> dict[str, str]:
    """What became of each of Tune's figures: `registers` → `+7, was 64`.

    Keys: correctness, latency, registers, occupancy, waves, gpu_fill; those of which one side is
    not known are left out. Times and errors are held against those of the same problem and GPU
    alone.
    """
    told: dict[str, str] = {}
    same = (baseline.problem, baseline.device) == (problem, device)
    before, c = baseline.main_pass, baseline.correctness
    if same and correctness is not None and c is not None:
        told["correctness"] = _change(c.max_abs_err, correctness.max_abs_err, ".2g")
    if latency is not None and baseline.latency is not None:
        was = f"{format_us(baseline.latency.median_us)} {baseline.latency.origin}"
        if was == f"{format_us(latency.median_us)} {latency.origin}":
            change = "as pinned"
        else:
            speedup = baseline.latency.median_us / latency.median_us
            change = f"{format_speedup(speedup)}, was {was}"
        told["latency"] = change if same else "another problem"
    if main is not None and before is not None:
        told["registers"] = _change(
            before.resources.registers_per_thread, main.resources.registers_per_thread, "d"
        )
        spilled = main.resources.spill_bytes - before.resources.spill_bytes
        if spilled:
            told["registers"] += f"; spills {spilled:+,} B"
        told["occupancy"] = _change(
            100 * before.occupancy.occupancy, 100 * main.occupancy.occupancy, ".0f", "%"
        )
        for name in ("waves", "gpu_fill"):
            old, new = getattr(before.occupancy, name), getattr(main.occupancy, name)
            if old is not None and new is not None:
                unit, scale = ("%", 100) if name == "gpu_fill" else ("", 1)
                told[name] = _change(scale * old, scale * new, ".3g", unit)
    return told


def _change(before: float, after: float, form: str, unit: str = "") -> str:
    """`+7, was 64`, or `as pinned`."""
    if format(before, form) == format(after, form):
        return "as pinned"
    return (
        f"{'+' if after > before else '−'}{abs(after - before):{form}}, was {before:{form}}{unit}"
    )
