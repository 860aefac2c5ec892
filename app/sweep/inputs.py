"""What a sweep tries and how: the axes over problems, variants and tunables, strategy, budget.

An axis that is left empty holds the sidebar's value, so that the sidebar stays the starting point.
Everything here stands in the URL: a link or a reload asks for the same sweep.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from app.shared import url_state
from app.shared.machine import local_gpu
from app.shared.selection import DTYPES, Chosen, preset_named
from app.sweep.terms import AXES, TERMS
from engine.presets import presets
from engine.problem import Problem
from engine.search.space import ProblemAxes, Space, SweepOptions, parse_values
from engine.search.strategies import STRATEGIES
from engine.search.sweep.journal import Budget, SweepSpec
from kernels.ladder import LADDER, by_id
from kernels.variant import Variant

_CAUSAL = {"no": (False,), "yes": (True,), "both": (False, True)}
_FORMATS = {"float16": "FP16", "bfloat16": "BF16"}
OWN, DEFAULTS = "every value", "the default"
HERE, AS_QUERIES = "this machine", "as S"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sweep, and where it is to run: empty for this machine, else a Dask scheduler's address."""

    spec: SweepSpec
    cluster: str


@dataclass(frozen=True, slots=True)
class _Search:
    strategy: Any
    budget: Budget
    execute: bool
    full: bool
    cluster: str


def wanted(chosen: Chosen) -> Wanted:
    """Draw the inputs and return what they ask for.

    Raises:
        InvalidProblem, UnknownName: what they ask for cannot exist; the sentence says why.
    """
    variants = _variants(chosen)
    widths = [*[1.0] * len(AXES), 1.35, 1.0]  # causal, with its three words, and the formats
    columns = st.columns(widths, gap="small", vertical_alignment="bottom")
    texts = {
        axis.name: url_state.text(
            column,
            f"{axis.letter}, {axis.name.replace('_', ' ')}",
            f"sweep_{axis.letter}",
            placeholder=_held(chosen.problem, axis.name),
            help=TERMS["axis"],
        )
        for column, axis in zip(columns, AXES, strict=False)
    }
    causal = url_state.one_or_none(
        columns[-2], "Causal", "sweep_causal", list(_CAUSAL), help=TERMS["sweep_causal"]
    )
    dtypes = url_state.several(
        columns[-1],
        "Formats",
        "sweep_dtypes",
        DTYPES,
        format_func=_FORMATS.__getitem__,
        placeholder=_FORMATS[chosen.problem.dtype] if chosen.problem else "",
    )
    names = url_state.several(
        st,
        "Named problems, added to those of the axes",
        "sweep_presets",
        [p.name for p in presets()],
        placeholder="none",
        help=TERMS["presets"],
    )
    tunables, own_values = _tunables(variants)
    search = _search()
    spec = SweepSpec(
        space=Space(
            variants=tuple(v.id for v in variants),
            problems=_problems(chosen.problem, texts, causal, dtypes, names),
            tunables={n: parse_values(text, n) for n, text in tunables.items() if text},
            own_values=own_values,
        ),
        options=SweepOptions(
            gpu=chosen.gpu,
            check=chosen.check,
            schedule=chosen.schedule,  # type: ignore[arg-type]  # the sidebar's own options
            seed=chosen.seed,
            timeout_s=chosen.timeout_s,
            execute=search.execute,
            effort="full" if search.full else "quick",
            input_kind=chosen.input_kind,  # type: ignore[arg-type]  # the sidebar's own options
        ),
        strategy=search.strategy,
        budget=search.budget,
        seed=chosen.seed,
    )
    return Wanted(spec, search.cluster)


def _held(problem: Problem | None, name: str) -> str:
    """What an axis that is left empty holds."""
    value = getattr(problem, name, None)
    return str(value) if value is not None else AS_QUERIES if name == "seqlen_kv" else ""


def _variants(chosen: Chosen) -> list[Variant]:
    titles = {v.id: f"{v.id}  {v.title}" for v in LADDER}
    ids = url_state.several(
        st,
        "Variants",
        "sweep_variants",
        list(titles),
        format_func=titles.__getitem__,
        placeholder=f"{chosen.variant.id}, the sidebar's",
        help=TERMS["variants"],
    )
    return [by_id(name) for name in ids or [chosen.variant.id]]


def _problems(
    base: Problem | None,
    texts: dict[str, str],
    causal: str | None,
    dtypes: Iterable[Any],
    names: Iterable[str],
) -> tuple[Problem, ...]:
    """The product of the axes and the named problems; the names alone when no axis is given."""
    named = [p.problem for name in names if (p := preset_named(name)) is not None]
    axes: dict[str, Any] = {
        name: parse_values(text, name.replace("_", " ")) for name, text in texts.items() if text
    }
    if causal:
        axes["causal"] = _CAUSAL[causal]
    if dtypes:
        axes["dtype"] = tuple(dtypes)
    if named and not axes:
        return tuple(named)
    if base is not None:
        own = {f: (getattr(base, f),) for f in ProblemAxes.__dataclass_fields__}
        axes = {**own, **axes}
    return tuple(dict.fromkeys((*ProblemAxes(**axes).problems(), *named)))


def _tunables(variants: list[Variant]) -> tuple[dict[str, str], bool]:
    """Text per tunable of the chosen variants, and what those left empty take."""
    values: dict[str, list[int]] = {}
    meanings: dict[str, str] = {}
    for tunable in (t for v in variants for t in v.tunables):
        known = values.setdefault(tunable.name, [])
        known += [value for value in tunable.values if value not in known]
        meanings.setdefault(tunable.name, tunable.meaning)
    columns = st.columns(len(values) + 1, gap="small", vertical_alignment="bottom")
    own = url_state.segments(
        columns[0], "Tunables take", "sweep_own", (OWN, DEFAULTS), OWN, help=TERMS["sweep_own"]
    )
    texts = {
        name: url_state.text(
            column,
            name.replace("_", " "),
            f"sweep_{name}",
            placeholder=",".join(map(str, sorted(values[name]))) if own == OWN else DEFAULTS,
            help=f"{meanings[name]} {TERMS['axis']}",
        )
        for name, column in zip(values, columns[1:], strict=True)
    }
    return texts, own == OWN


def _search() -> _Search:
    """Strategy, budget, how much is done at each point, and where."""
    top = st.columns([3, 1, 1], gap="small", vertical_alignment="bottom")
    strategy = url_state.segments(
        top[0],
        "Strategy",
        "sweep_strategy",
        STRATEGIES,
        STRATEGIES[0],
        help=TERMS["sweep_strategy"],
    )
    evaluations = url_state.number_or_none(
        top[1], "At most, points", "sweep_evaluations", low=1, placeholder="no limit"
    )
    seconds = url_state.number_or_none(
        top[2], "At most, s", "sweep_seconds", low=1, placeholder="no limit"
    )
    below = st.columns([3, 1, 1], gap="small", vertical_alignment="bottom")
    cluster = url_state.text(
        below[0], "Run on", "sweep_on", placeholder=HERE, help=TERMS["sweep_on"]
    )
    execute = url_state.toggle(
        below[1], "Execute", "sweep_execute", default=True, help=TERMS["sweep_execute"]
    )
    # On a cluster it is for the machines there to say whether they have a GPU.
    full = (local_gpu().spec is not None or bool(cluster)) and url_state.toggle(
        below[2], "Everything", "sweep_full", help=TERMS["sweep_full"]
    )
    return _Search(
        strategy=strategy,
        budget=Budget(evaluations, None if seconds is None else float(seconds)),
        execute=execute,
        full=full,
        cluster=cluster,
    )
