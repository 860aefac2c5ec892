"""Words of the page "Sweep", each explained once."""

from __future__ import annotations

from typing import NamedTuple


class Axis(NamedTuple):
    """A size of the problem: its letter in the sidebar and its name in the engine."""

    letter: str
    name: str


AXES = (
    Axis("B", "batch"),
    Axis("H", "num_heads"),
    Axis("S", "seqlen"),
    Axis("KV", "seqlen_kv"),
    Axis("D", "head_dim"),
)

TERMS: dict[str, str] = {
    "axis": "A list 1,2,4, a range 64:512:64, or factors 64:1024:x2. Left empty: the value shown.",
    "variants": "Every variant brings its own tunables. Left empty: the sidebar's.",
    "presets": "Real shapes. With axes left empty, these problems alone.",
    "sweep_causal": "Left empty: the sidebar's.",
    "sweep_own": "What tunables with no values of their own below take: every value that the "
    "variant offers, or its default alone.",
    "sweep_strategy": "Exhaustive tries every point in order, random in shuffled order. Coordinate "
    "descent improves one tunable at a time; bayesian proposes configs by what it has seen. Each "
    "variant and problem is a search of its own.",
    "sweep_execute": "Runs each kernel and checks its output. Off: compile, occupancy and "
    "prediction only, which is faster.",
    "sweep_on": "Left empty: this machine. Else the address of a Dask scheduler, for instance "
    "tcp://10.0.0.5:8786, whose workers evaluate the points.",
    "sweep_full": "On a GPU: baselines, cold and end-to-end time of every point as well. The best "
    "are measured side by side at the end either way.",
    "rate": "Points that were evaluated each minute, lately.",
    "left": "Time that is still to go at the present rate.",
    "without": "Points that constraints exclude, and those that failed; each is a row with its "
    "reason.",
    "importance": "The share of the spread of times that a tunable explains by itself, within "
    "each problem. What is left belongs to combinations of tunables.",
}
