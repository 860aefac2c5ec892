"""The global context: target GPU, variant, problem, config and how to execute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from app.ui import state
from app.ui.machine import local_gpu
from app.ui.terms import TERMS
from engine.devices import all_devices, find_device
from engine.errors import UnknownName
from engine.presets import presets
from kernels.ladder import LADDER, by_id
from kernels.variant import Variant

_BOUND: dict[str, Any] = {"bind": "query-params"}
_FEW = 4  # this many values of a tunable still stand side by side


def draw() -> state.Chosen:
    """Draw the sidebar and return what is chosen."""
    _note_unknown_links()
    with st.sidebar:
        gpu, gpu_name = _gpu()
        variant = _variant()
        problem, why = _problem()
        config = _config(variant)
        execution = _execution()
    return state.Chosen(
        variant=variant,
        config=config,
        gpu=gpu,
        gpu_name=gpu_name,
        problem=problem,
        why=why,
        **execution,
    )


def _linked(key: str, options: list[str], default: str) -> None:
    """Seed a widget that shows labels but whose link holds the plain option.

    `bind` would put the label into the URL, and a link must survive a new wording.
    """
    if key not in st.session_state:
        asked = st.query_params.get(key)
        st.session_state[key] = asked if asked in options else default


def _link(key: str, value: str | None, default: str) -> str:
    """After the widget: its value, kept in the URL unless it is the default."""
    if value is None:
        return default
    if value == default:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != value:
        st.query_params[key] = value
    return value


def _select(
    label: str, key: str, options: list[str], default: str, format_func: Callable[[str], str]
) -> str:
    _linked(key, options, default)
    chosen = st.selectbox(
        label,
        options,
        format_func=format_func,
        key=key,
        help=TERMS[key],
        persist_state="session",
    )
    return _link(key, chosen, default)


def _note_unknown_links() -> None:
    """A link may name a GPU or variant that does not exist here: say so instead of dropping it."""
    if "link_notes" in st.session_state:
        return
    notes = []
    asked = st.query_params.get("gpu")
    if asked and asked != state.LOCAL_GPU and asked not in {d.name for d in all_devices()}:
        try:
            st.session_state["gpu"] = find_device(asked).name
        except UnknownName as error:
            notes.append(str(error))
    if asked == state.LOCAL_GPU and local_gpu().spec is None:
        notes.append(f"The link asks for the local GPU: {local_gpu().why}")
    variant = st.query_params.get("variant")
    if variant and variant not in {v.id for v in LADDER}:
        known = ", ".join(v.id for v in LADDER)
        notes.append(f"There is no variant called {variant!r}: known are {known}.")
    st.session_state["link_notes"] = notes


def _gpu() -> tuple[str | None, str]:
    local = local_gpu()
    names = [d.name for d in all_devices()]
    options = [state.LOCAL_GPU, *names] if local.spec is not None else names
    default = state.LOCAL_GPU if local.spec is not None else state.DEFAULT_GPU

    def label(option: str) -> str:
        return f"{local.name} (this machine)" if option == state.LOCAL_GPU else option

    chosen = _select("Target GPU", "gpu", options, default, label)
    if chosen == state.LOCAL_GPU:
        return None, local.name
    return chosen, chosen


def _variant() -> Variant:
    titles = {v.id: f"{v.id}  {v.title}" for v in LADDER}
    chosen = _select("Kernel variant", "variant", list(titles), LADDER[0].id, titles.__getitem__)
    variant = by_id(chosen)
    st.caption(variant.idea)
    return variant


def _apply_preset() -> None:
    preset = state.preset_named(st.session_state["preset"])
    if preset is not None:
        st.session_state.update(state.problem_values(preset.problem))


def _problem() -> tuple[Any, str]:
    place = st.container()
    values: dict[str, Any] = {}
    terms = {"B": "batch", "H": "num_heads", "S": "seqlen", "D": "head_dim"}
    for left, right in (("B", "H"), ("S", "D")):
        for column, name in zip(st.columns(2, gap="xsmall"), (left, right), strict=True):
            values[name] = column.number_input(
                f"{name}, {_words(terms[name])}",
                value=state.SIZES[name],
                step=1,
                key=name,
                help=TERMS[terms[name]],
                **_BOUND,
            )
    left, right = st.columns(2, gap="xsmall", vertical_alignment="bottom")
    _linked("dtype", list(state.DTYPES), state.DTYPES[0])
    dtype = left.segmented_control(
        "Format",
        state.DTYPES,
        required=True,
        format_func={"float16": "FP16", "bfloat16": "BF16"}.__getitem__,
        key="dtype",
        help=TERMS["dtype"],
        persist_state="session",
    )
    values["dtype"] = _link("dtype", dtype, state.DTYPES[0])
    values["causal"] = right.toggle("Causal", key="causal", help=TERMS["causal"], **_BOUND)
    problem, why = state.make_problem(values)
    st.session_state["preset"] = state.matching_preset(
        problem, st.session_state.get("preset", state.CUSTOM)
    )
    groups = {p.name: f"{p.group}: {p.name}" for p in presets()}
    place.selectbox(
        "Problem",
        [state.CUSTOM, *groups],
        format_func=lambda name: groups.get(name, "your own"),
        key="preset",
        on_change=_apply_preset,
        help=TERMS["preset"],
    )
    preset = state.preset_named(st.session_state["preset"])
    if preset is not None:
        place.caption(preset.note, help=f"Source: {preset.source}")
    return problem, why


def _config(variant: Variant) -> dict[str, int]:
    config = {}
    for tunable in variant.tunables:
        if len(tunable.values) == 1:
            config[tunable.name] = tunable.default
            continue
        draw: dict[str, Any] = {
            "label": tunable.name.replace("_", " "),
            "options": tunable.values,
            "key": state.tunable_key(variant, tunable),
            "help": tunable.meaning,
            **_BOUND,
        }
        if len(tunable.values) <= _FEW:
            value = st.segmented_control(default=tunable.default, required=True, **draw)
        else:
            value = st.select_slider(value=tunable.default, **draw)
        config[tunable.name] = tunable.default if value is None else int(value)
    return config


def _words(name: str) -> str:
    return name.replace("_", " ")


def _execution() -> dict[str, Any]:
    with st.expander("Execution", icon=":material/tune:"):
        check = st.toggle("Check build", key="check", help=TERMS["check"], **_BOUND)
        schedule = _select(
            "Schedule", "schedule", list(state.SCHEDULES), state.SCHEDULES[0], _words
        )
        input_kind = _select(
            "Inputs", "inputs", list(state.INPUT_KINDS), state.INPUT_KINDS[0], _words
        )
        seed = st.number_input(
            "Seed", 0, 2**31 - 1, 0, step=1, key="seed", help=TERMS["seed"], **_BOUND
        )
        timeout_s = st.number_input(
            "Time limit, s", 1, 3600, 60, step=1, key="timeout", help=TERMS["timeout"], **_BOUND
        )
    return {
        "check": check,
        "schedule": schedule,
        "input_kind": input_kind,
        "seed": seed,
        "timeout_s": float(timeout_s),
    }
