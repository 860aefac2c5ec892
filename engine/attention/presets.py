"""Shapes of real models to start from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engine.attention.problem import Problem, parse_seqlens
from engine.base.errors import unknown


@dataclass(frozen=True, slots=True)
class Preset:
    """A named problem. `source` is the origin of the shape."""

    name: str
    group: str
    problem: Problem
    note: str
    source: str


_FILE = Path(__file__).with_suffix(".toml")


@cache
def presets() -> tuple[Preset, ...]:
    """Return every preset, in menu order, by group."""
    groups = tomllib.loads(_FILE.read_text(encoding="utf-8"))["groups"]
    return tuple(_preset(group, dict(raw)) for group in groups for raw in group["presets"])


def _preset(group: dict[str, Any], raw: dict[str, Any]) -> Preset:
    name, note = raw.pop("name"), raw.pop("note", group.get("note", ""))
    if "seqlens" in raw:
        lengths = parse_seqlens(raw["seqlens"])
        raw |= {"seqlens": lengths, "batch": len(lengths), "seqlen": max(lengths)}
    return Preset(name, group["name"], Problem(**raw), note.format(**raw), group["source"])


def find_preset(name: str) -> Preset:
    """Return the preset with this name.

    Raises:
        UnknownName: no such preset; the nearest names are in the text.
    """
    for preset in presets():
        if preset.name == name.strip().casefold():
            return preset
    raise unknown("preset", name, (p.name for p in presets()))


# Sets of problems for `bench --preset`.
_SMALL = (
    *(Problem(1, 1, seqlen, 64) for seqlen in (64, 128, 256, 512)),
    *(Problem(1, heads, 128, 64) for heads in (8, 32, 64, 128, 256)),
)
_TOKENS, _WIDTH = 16_384, 2_048  # batch · seqlen and num_heads · head_dim of every large problem
_LARGE = tuple(
    Problem(_TOKENS // seqlen, _WIDTH // head_dim, seqlen, head_dim, causal)
    for head_dim in (128, 64)
    for causal in (False, True)
    for seqlen in (512, 1024, 2048, 4096, 8192, 16_384)
)
# One query for each of 32 heads against a KV cache, as Llama 3 8B decodes with its K/V heads
# repeated, so that every variant takes it; the last one reads 2 GiB.
_DECODE = tuple(
    Problem(batch, 32, 1, 128, seqlen_kv=keys)
    for batch, keys in ((1, 1024), (1, 4096), (1, 16_384), (8, 4096), (32, 4096))
)
BENCH_PROBLEMS: Mapping[str, tuple[Problem, ...]] = {
    "small": _SMALL,
    "large": _LARGE,
    "decode": _DECODE,
}
