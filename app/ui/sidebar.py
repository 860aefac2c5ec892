"""The global context: target GPU, variant, problem, config and how to execute."""

from __future__ import annotations

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


def _note_unknown_links() -> None:
    """A link may name a GPU or variant that does not exist here: say so instead of dropping it."""
    if "link_checked" in st.session_state:
        return
    st.session_state["link_checked"] = True
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

    chosen = st.selectbox(
        "Target GPU",
        options,
        index=options.index(default),
        format_func=label,
        key="gpu",
        help=TERMS["gpu"],
        **_BOUND,
    )
    if chosen == state.LOCAL_GPU:
        return None, local.name
    return chosen, chosen


def _variant() -> Variant:
    titles = {v.id: f"{v.id}  {v.title}" for v in LADDER}
    chosen = st.selectbox(
        "Kernel variant",
        list(titles),
        format_func=lambda v: titles[v],
        key="variant",
        help=TERMS["variant"],
        **_BOUND,
    )
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
    labels = {"B": "batch", "H": "num_heads", "S": "seqlen", "D": "head_dim"}
    for left, right in (("B", "H"), ("S", "D")):
        for column, name in zip(st.columns(2, gap="xsmall"), (left, right), strict=True):
            values[name] = column.number_input(
                f"{name}  :gray[{labels[name].replace('_', ' ')}]",
                value=state.SIZES[name],
                step=1,
                key=name,
                help=TERMS[labels[name]],
                **_BOUND,
            )
    left, right = st.columns(2, gap="xsmall", vertical_alignment="bottom")
    values["dtype"] = left.segmented_control(
        "Format",
        state.DTYPES,
        default=state.DTYPES[0],
        required=True,
        format_func=lambda d: "FP16" if d == "float16" else "BF16",
        key="dtype",
        help=TERMS["dtype"],
        **_BOUND,
    )
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
        config[tunable.name] = st.select_slider(
            tunable.name.replace("_", " "),
            tunable.values,
            value=tunable.default,
            key=state.tunable_key(variant, tunable),
            help=tunable.meaning,
            **_BOUND,
        )
    return config


def _execution() -> dict[str, Any]:
    with st.expander("Execution", icon=":material/tune:"):
        check = st.toggle("Check build", key="check", help=TERMS["check"], **_BOUND)
        schedule = st.selectbox(
            "Schedule",
            state.SCHEDULES,
            format_func=lambda s: s.replace("_", " "),
            key="schedule",
            help=TERMS["schedule"],
            **_BOUND,
        )
        input_kind = st.selectbox(
            "Inputs",
            state.INPUT_KINDS,
            format_func=lambda k: k.replace("_", " "),
            key="inputs",
            help=TERMS["inputs"],
            **_BOUND,
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
