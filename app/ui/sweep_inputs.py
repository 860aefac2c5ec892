"""What a sweep tries and how: the axes over problems, variants and tunables, strategy, budget.

An axis that is left empty holds the sidebar's value, so that the sidebar stays the starting point.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import streamlit as st

from app.ui.machine import local_gpu
from app.ui.state import DTYPES, Chosen, preset_named
from app.ui.sweep_terms import AXES, TERMS
from engine.presets import presets
from engine.problem import Problem
from engine.search.space import ProblemAxes, Space, SweepOptions, parse_values
from engine.search.strategies import STRATEGIES
from engine.search.sweep_journal import Budget, SweepSpec
from kernels.ladder import LADDER, by_id
from kernels.variant import Variant

_BOUND: dict[str, Any] = {"bind": "query-params"}
_CAUSAL = {"no": (False,), "yes": (True,), "both": (False, True)}
_FORMATS = {"float16": "FP16", "bfloat16": "BF16"}
OWN, DEFAULTS = "every value", "the default"


def spec(chosen: Chosen) -> SweepSpec:
    """Draw the inputs and return what they ask for.

    Raises:
        InvalidProblem, UnknownName: what they ask for cannot exist; the sentence says why.
    """
    variants = _variants(chosen)
    problem_columns = st.columns(len(AXES) + 2, gap="small", vertical_alignment="bottom")
    texts = {
        axis.name: column.text_input(
            f"{axis.letter}, {axis.name.replace('_', ' ')}",
            key=f"sweep_{axis.letter}",
            placeholder=str(getattr(chosen.problem, axis.name, "")),
            help=TERMS["axis"],
            **_BOUND,
        )
        for column, axis in zip(problem_columns, AXES, strict=False)
    }
    causal = _pills(problem_columns[-2], "Causal", "sweep_causal", list(_CAUSAL))
    dtypes = problem_columns[-1].multiselect(
        "Formats",
        DTYPES,
        format_func=_FORMATS.__getitem__,
        key="sweep_dtypes",
        placeholder=_FORMATS[chosen.problem.dtype] if chosen.problem else "",
        persist_state="session",
    )
    names = st.multiselect(
        "Named problems, added to those of the axes",
        [p.name for p in presets()],
        key="sweep_presets",
        placeholder="none",
        help=TERMS["presets"],
        persist_state="session",
    )
    tunables, own_values = _tunables(variants)
    strategy, budget, execute, full = _search()
    return SweepSpec(
        space=Space(
            variants=tuple(v.id for v in variants),
            problems=_problems(chosen.problem, texts, causal, dtypes, names),
            tunables={n: parse_values(text, n) for n, text in tunables.items() if text.strip()},
            own_values=own_values,
        ),
        options=SweepOptions(
            gpu=chosen.gpu,
            check=chosen.check,
            schedule=chosen.schedule,  # type: ignore[arg-type]  # the sidebar's own options
            seed=chosen.seed,
            timeout_s=chosen.timeout_s,
            execute=execute,
            effort="full" if full else "quick",
        ),
        strategy=strategy,
        budget=budget,
        seed=chosen.seed,
    )


def _variants(chosen: Chosen) -> list[Variant]:
    titles = {v.id: f"{v.id}  {v.title}" for v in LADDER}
    ids = st.multiselect(
        "Variants",
        list(titles),
        format_func=titles.__getitem__,
        key="sweep_variants",
        placeholder=f"{chosen.variant.id}, the sidebar's",
        help=TERMS["variants"],
        persist_state="session",
    )
    return [by_id(name) for name in ids or [chosen.variant.id]]


def _pills(place: Any, label: str, key: str, options: list[str]) -> str | None:
    """One of a few, or none."""
    found: str | None = place.segmented_control(
        label, options, key=key, help=TERMS[key], persist_state="session"
    )
    return found


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
        name: parse_values(text, name.replace("_", " "))
        for name, text in texts.items()
        if text.strip()
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
    own = columns[0].segmented_control(
        "Tunables take",
        (OWN, DEFAULTS),
        default=OWN,
        required=True,
        key="sweep_own",
        help=TERMS["sweep_own"],
        persist_state="session",
    )
    texts = {
        name: column.text_input(
            name.replace("_", " "),
            key=f"sweep_{name}",
            placeholder=",".join(map(str, sorted(values[name]))) if own == OWN else DEFAULTS,
            help=f"{meanings[name]} {TERMS['axis']}",
            **_BOUND,
        )
        for name, column in zip(values, columns[1:], strict=True)
    }
    return texts, own == OWN


def _search() -> tuple[Any, Budget, bool, bool]:
    """Strategy, budget, whether kernels are executed, whether everything of each is measured."""
    columns = st.columns([2, 1, 1, 1, 1], gap="small", vertical_alignment="bottom")
    strategy = columns[0].segmented_control(
        "Strategy",
        STRATEGIES,
        default=STRATEGIES[0],
        required=True,
        key="sweep_strategy",
        help=TERMS["sweep_strategy"],
        persist_state="session",
    )
    evaluations = columns[1].number_input(
        "At most, points",
        min_value=1,
        value=None,
        step=10,
        key="sweep_evaluations",
        placeholder="no limit",
        persist_state="session",
    )
    seconds = columns[2].number_input(
        "At most, s",
        min_value=1.0,
        value=None,
        step=60.0,
        key="sweep_seconds",
        placeholder="no limit",
        format="%g",
        persist_state="session",
    )
    execute = columns[3].toggle(
        "Execute",
        value=True,
        key="sweep_execute",
        help=TERMS["sweep_execute"],
        persist_state="session",
    )
    full = local_gpu().spec is not None and columns[4].toggle(
        "Everything", key="sweep_full", help=TERMS["sweep_full"], persist_state="session"
    )
    return strategy, Budget(evaluations, seconds), execute, full
