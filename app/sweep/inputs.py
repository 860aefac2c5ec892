"""Inputs of a sweep: axes over problems, variants and tunables, strategy, budget.

An empty axis takes the value selected on the Tune page. The URL holds all inputs, so that a link or
a reload describes the same sweep, except a cluster's address: data from a scheduler are unpickled,
so a link must not be able to name one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import streamlit as st

from app.shared import known_times, url_state
from app.shared.machine import device_of, local_gpu
from app.shared.selection import DTYPES, FORMATS, Selection, preset_named, variant_label
from app.shared.terms import TERMS
from engine.attention.config import all_variants, find_variant
from engine.attention.problem import Problem, presets
from engine.choose.auto import chosen_variants
from engine.search.space import ProblemAxes, Space, SweepOptions, parse_values
from engine.search.strategies import STRATEGIES
from engine.search.sweep.journal import Budget, SweepSpec
from kernels.variant import AUTO, Variant

_CAUSAL = {"no": (False,), "yes": (True,), "both": (False, True)}
_OWN, _DEFAULTS = "every value", "the default"


# Meaning of an empty size of K and V.
_AS_Q = {"seqlen_kv": "as S", "num_heads_kv": "as H"}


class Axis(NamedTuple):
    """A size of the problem: its letter, its label and its name in the engine."""

    letter: str
    word: str
    name: str


_AXES = (
    Axis("B", "batch", "batch"),
    Axis("H", "heads", "num_heads"),
    Axis("S", "seqlen", "seqlen"),
    Axis("KV", "keys", "seqlen_kv"),
    Axis("HKV", "K/V heads", "num_heads_kv"),
    Axis("D", "head dim", "head_dim"),
)


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A sweep, and the Dask scheduler that runs it; empty for this machine."""

    spec: SweepSpec
    cluster: str


@dataclass(frozen=True, slots=True)
class _SearchInputs:
    strategy: Any
    budget: Budget
    execute: bool
    full: bool
    cluster: str


def draw(selection: Selection) -> SweepRequest:
    """Draw the inputs and return the sweep that they describe.

    Raises:
        InvalidProblem, UnknownName: An input is invalid.
    """
    chosen = _variant_names(selection)
    texts = _sizes(selection.problem)
    # Wide enough for two formats at a window width of 1024 pixels.
    left, middle, right = st.columns([1.8, 2.4, 4], gap="small", vertical_alignment="bottom")
    causal = url_state.optional_select(
        left,
        "Causal",
        "sweep_causal",
        list(_CAUSAL),
        placeholder=_causal_on_tune(selection.problem),
        help=TERMS["sweep_causal"],
    )
    dtypes = url_state.multiselect(
        middle,
        "Formats",
        "sweep_dtypes",
        DTYPES,
        format_func=FORMATS.__getitem__,
        placeholder=FORMATS[selection.problem.dtype] if selection.problem else "",
    )
    names = url_state.multiselect(
        right,
        "Presets, added to these problems",
        "sweep_presets",
        [p.name for p in presets()],
        placeholder="none",
        help=TERMS["sweep_presets"],
    )
    problems = partial(_problems, selection.problem, texts, causal, dtypes, names)
    variants = _variants(selection, chosen, problems)
    tunables, own_values = _tunables(variants)
    search = _search()
    spec = SweepSpec(
        space=Space(
            variants=tuple(v.id for v in variants),
            problems=problems(),
            tunables={n: parse_values(text, n) for n, text in tunables.items() if text},
            own_values=own_values,
        ),
        options=SweepOptions(
            gpu=selection.gpu,
            backend=selection.backend,
            check=selection.check,
            schedule=selection.schedule,  # type: ignore[arg-type]  # the sidebar's own options
            seed=selection.seed,
            timeout_s=selection.timeout_s,
            execute=search.execute,
            effort="full" if search.full else "quick",
            input_kind=selection.input_kind,  # type: ignore[arg-type]  # the sidebar's own options
            refuse_spills=True,
        ),
        strategy=search.strategy,
        budget=search.budget,
        seed=selection.seed,
    )
    return SweepRequest(spec, search.cluster)


def _sizes(selected: Problem | None) -> dict[str, str]:
    """Draw a field for each size of the problem; return the texts."""
    columns = st.columns([1, 1, 1, 1, 1.4, 1.1], gap="small", vertical_alignment="bottom")
    return {
        axis.name: url_state.text(
            column,
            f"{axis.letter}, {axis.word}",
            f"sweep_{axis.letter}",
            placeholder=_selected_value(selected, axis.name),
            help=TERMS["sweep_axis"],
        )
        for column, axis in zip(columns, _AXES, strict=True)
    }


def _selected_value(problem: Problem | None, name: str) -> str:
    """Return the value of an empty axis, as text."""
    value = getattr(problem, name, None)
    return str(value) if value is not None else _AS_Q.get(name, "")


def _causal_on_tune(problem: Problem | None) -> str:
    return f"{'yes' if problem.causal else 'no'}, as on Tune" if problem is not None else ""


def _variant_names(selection: Selection) -> tuple[str, ...]:
    """Return the chosen names, including `auto`."""
    titles = {AUTO: "auto, for each problem", **{v.id: variant_label(v) for v in all_variants()}}
    ids = url_state.multiselect(
        st,
        "Variants",
        "sweep_variants",
        list(titles),
        format_func=titles.__getitem__,
        placeholder=f"{selection.variant.id}, as on Tune",
        help=TERMS["sweep_variants"],
    )
    return ids or (selection.variant.id,)


def _variants(
    selection: Selection, names: tuple[str, ...], problems: Callable[[], Iterable[Problem]]
) -> list[Variant]:
    """Return the chosen variants, with `auto` replaced by its choices for the problems."""
    if AUTO in names:
        names = chosen_variants(names, problems(), device_of(selection.gpu), known_times.history())
    return [find_variant(name) for name in names]


def _problems(
    base: Problem | None,
    texts: dict[str, str],
    causal: str | None,
    dtypes: Iterable[Any],
    names: Iterable[str],
) -> tuple[Problem, ...]:
    """Return the product of the axes and the presets; only the presets if all axes are empty."""
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
    """Draw a field for each tunable of the chosen variants, and the choice for empty ones;
    return both."""
    values: dict[str, list[int]] = {}
    meanings: dict[str, str] = {}
    for tunable in (t for v in variants for t in v.tunables):
        known = values.setdefault(tunable.name, [])
        known += [value for value in tunable.values if value not in known]
        meanings.setdefault(tunable.name, tunable.meaning)
    own = url_state.segments(
        st,
        "Values of other tunables",
        "sweep_own",
        (_OWN, _DEFAULTS),
        _OWN,
        help=TERMS["sweep_own_values"],
    )
    columns = st.columns(max(1, len(values)), gap="small", vertical_alignment="bottom")
    texts = {
        name: url_state.text(
            column,
            name.replace("_", " "),
            f"sweep_{name}",
            placeholder=",".join(map(str, sorted(values[name]))) if own == _OWN else _DEFAULTS,
            help=f"{meanings[name]} {TERMS['sweep_axis']}",
        )
        for name, column in zip(values, columns, strict=False)
    }
    return texts, own == _OWN


def _search() -> _SearchInputs:
    """Draw strategy, budget, effort at each point, and where the sweep runs."""
    strategy = url_state.segments(
        st,
        "Strategy",
        "sweep_strategy",
        STRATEGIES,
        STRATEGIES[0],
        help=TERMS["sweep_strategy"],
    )
    columns = st.columns(3, gap="small")
    evaluations = url_state.number_or_none(
        columns[0], "Points, at most", "sweep_evaluations", low=1, placeholder="no limit"
    )
    seconds = url_state.number_or_none(
        columns[1], "Time, at most, s", "sweep_seconds", low=1, placeholder="no limit"
    )
    cluster = columns[2].text_input(
        "Run on",
        key="sweep_on",
        placeholder="this machine",
        help=TERMS["sweep_on"],
        persist_state="session",
    )
    switches = st.container(horizontal=True)
    execute = url_state.toggle(
        switches, "Execute", "sweep_execute", default=True, help=TERMS["sweep_execute"]
    )
    # It is not known whether a cluster's machines have a GPU.
    local = local_gpu()
    is_timed = local.spec is not None and not local.in_software
    full = (is_timed or bool(cluster)) and url_state.toggle(
        switches, "All timings", "sweep_full", help=TERMS["sweep_full"]
    )
    return _SearchInputs(
        strategy=strategy,
        budget=Budget(evaluations, None if seconds is None else float(seconds)),
        execute=execute,
        full=full,
        cluster=cluster.strip(),
    )
