"""The global context: target GPU, variant, problem, config and how to execute."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import streamlit as st

from app.shared import auto, copy_link, tuned_config, url_state
from app.shared.machine import local_gpu
from app.shared.selection import (
    DEFAULT_GPU,
    DTYPES,
    FORMATS,
    LOCAL_GPU,
    SCHEDULES,
    SIZES,
    STOPS,
    Selection,
    make_problem,
    matching_preset,
    preset_named,
    problem_values,
    tunable_key,
    variant_label,
)
from app.shared.terms import TERMS
from app.shared.widgets import plain_markdown
from engine.auto import Choice
from engine.devices import all_devices, find_device
from engine.errors import UnknownName
from engine.input_kinds import DEFAULT_FACTOR, INPUT_KINDS, MAX_FACTOR, MEANINGS
from engine.own_kernels.registry import OWN, all_variants
from engine.presets import Preset, presets
from engine.problem import Problem
from kernels.ladder import LADDER
from kernels.variant import AUTO, Variant


class _Subject(NamedTuple):
    """What is run: the kernel and its problem, which is None where it is invalid."""

    variant: Variant
    config: dict[str, int]
    problem: Problem | None
    error: str
    choice: Choice | None  # of `auto`


_FEW = 4  # this many values of a tunable still stand side by side


def draw(draggable: tuple[str, ...] = ()) -> Selection:
    """Draw the sidebar and return what is selected. `draggable` sizes get sliders."""
    return _draw(partial(_kernel_and_problem, draggable))


def draw_target() -> Selection:
    """The sidebar of a page that has variants and problems of its own: the GPU and the execution.

    The variant, in its default config, and the problem are those that other pages selected.
    """
    return _draw(_remembered)


def _draw(select: Callable[[str | None, str], _Subject]) -> Selection:
    url_state.follow_link()
    _note_unknown_links()
    with st.sidebar:
        notes = st.container()
        gpu, gpu_name = _gpu()
        subject = select(gpu, gpu_name)
        execution = _execution()
        copy_link.button()
    with notes:
        _link_notes()
    return Selection(
        variant=subject.variant,
        config=subject.config,
        gpu=gpu,
        gpu_name=gpu_name,
        problem=subject.problem,
        error=subject.error,
        choice=subject.choice,
        **execution,
    )


def _kernel_and_problem(draggable: tuple[str, ...], gpu: str | None, gpu_name: str) -> _Subject:
    above = st.container()  # of the problem, which `auto` has to know
    problem, error = _problem(draggable)
    choice = auto.choice_for(problem, gpu, gpu_name)
    with above:
        variant, is_auto = _variant(choice)
    if is_auto and choice is not None:
        auto.draw(choice, problem, gpu_name)
        return _Subject(variant, choice.config, problem, error, choice)
    config = _config(variant)
    tuned_config.draw(variant, config, problem, gpu_name)
    return _Subject(variant, config, problem, error, None)


def _remembered(gpu: str | None, gpu_name: str) -> _Subject:
    variants = {v.id: v for v in all_variants()}
    kept = url_state.remembered
    name = kept("variant", LADDER[0].id, {name: name for name in (AUTO, *variants)}.get)
    values: dict[str, Any] = {
        **{name: kept(name, size, url_state.whole) for name, size in SIZES.items()},
        **{name: kept(name, None, url_state.whole) for name in ("KV", "HKV")},
        "dtype": kept("dtype", DTYPES[0], {name: name for name in DTYPES}.get),
        "causal": kept("causal", False, url_state.TRUTH.get),
    }
    problem, error = make_problem(values)
    choice = auto.choice_for(problem, gpu, gpu_name) if name == AUTO else None
    if choice is not None:
        return _Subject(choice.variant, choice.config, problem, error, choice)
    variant = variants.get(name, LADDER[0])
    config = {tunable.name: tunable.default for tunable in variant.tunables}
    return _Subject(variant, config, problem, error, None)


def _note_unknown_links() -> None:
    """A link may name a GPU or variant that does not exist here: say so instead of dropping it."""
    if "link_checked" in st.session_state:
        return
    st.session_state["link_checked"] = True
    asked = st.query_params.get("gpu")
    if asked and asked != LOCAL_GPU and asked not in {d.name for d in all_devices()}:
        try:
            st.session_state["gpu"] = find_device(asked).name
        except UnknownName as error:
            url_state.note(str(error))
        del st.query_params["gpu"]
    if asked == LOCAL_GPU and local_gpu().spec is None:
        url_state.note(f"The link asks for the local GPU: {local_gpu().why}")
        del st.query_params["gpu"]
    variant = st.query_params.get("variant")
    if variant and variant not in {AUTO, *(v.id for v in all_variants())}:
        known = ", ".join(v.id for v in all_variants())
        url_state.note(f"There is no variant called {variant!r}: known are {known}.")
        del st.query_params["variant"]


def _link_notes() -> None:
    """What of the link could not be had, until it is dismissed."""
    if not url_state.notes():
        return
    for sentence in url_state.notes():
        st.warning(plain_markdown(sentence), icon=":material/link_off:")
    st.button("Dismiss", key="link_dismiss", on_click=url_state.notes().clear)


def _gpu() -> tuple[str | None, str]:
    local = local_gpu()
    names = [d.name for d in sorted(all_devices(), key=lambda d: d.compute_capability)]
    options = [LOCAL_GPU, *names] if local.spec is not None else names
    default = LOCAL_GPU if local.spec is not None else DEFAULT_GPU

    def label(option: str) -> str:
        if option == LOCAL_GPU:
            return f"{local.name} (this machine)"
        device = find_device(option)
        return f"{option} · {device.architecture} {device.arch}, {device.num_sms} SMs"

    selected = url_state.select(
        st, "Target GPU", "gpu", options, default, format_func=label, help=TERMS["gpu"]
    )
    if selected == LOCAL_GPU:
        return None, local.name
    return selected, selected


def _variant(choice: Choice | None) -> tuple[Variant, bool]:
    """The variant, and whether it is the one that `auto` takes."""
    variants = {v.id: v for v in all_variants()}
    labels = {AUTO: auto.label(choice), **{name: variant_label(v) for name, v in variants.items()}}
    selected = url_state.select(
        st,
        "Kernel variant",
        "variant",
        list(labels),
        LADDER[0].id,
        format_func=labels.__getitem__,
        help=TERMS["variant"],
    )
    is_auto = selected == AUTO
    variant = variants.get(selected) or (choice.variant if choice is not None else LADDER[0])
    st.caption(plain_markdown(variant.idea))
    for error in (*LADDER.errors, *OWN.errors):
        st.error(plain_markdown(str(error)))
    return variant, is_auto


def _apply_preset() -> None:
    preset = preset_named(st.session_state["preset"] or "")
    if preset is not None:
        st.session_state.update(problem_values(preset.problem))


def _problem(draggable: tuple[str, ...]) -> tuple[Problem | None, str]:
    container = st.container()
    values: dict[str, Any] = {}
    typed = [name for name in SIZES if name not in draggable]
    for pair in (typed[i : i + 2] for i in range(0, len(typed), 2)):
        for column, name in zip(st.columns(2, gap="xsmall"), pair, strict=False):
            values[name] = _size(column, name, url_state.number)
    for name in draggable:
        values[name] = _size(st, name, url_state.stops, choices=STOPS[name])
    for column, name, label, of_q in zip(
        st.columns(2, gap="xsmall"),
        ("KV", "HKV"),
        ("KV, keys", "HKV, K/V heads"),
        "SH",
        strict=True,
    ):
        values[name] = url_state.number_or_none(
            column,
            label,
            name,
            low=1,
            placeholder=f"as {of_q}: {values[of_q]}",
            help=TERMS["seqlen_kv" if name == "KV" else "num_heads_kv"],
        )
    left, right = st.columns(2, gap="xsmall", vertical_alignment="bottom")
    values["dtype"] = url_state.segments(
        left,
        "Format",
        "dtype",
        DTYPES,
        DTYPES[0],
        format_func=FORMATS.__getitem__,
        help=TERMS["dtype"],
    )
    values["causal"] = url_state.toggle(right, "Causal", "causal", help=TERMS["causal"])
    problem, error = make_problem(values)
    _presets(container, matching_preset(problem))
    return problem, error


def _size(container: Any, name: str, draw: Any, **options: Any) -> int:
    term = {"B": "batch", "H": "num_heads", "S": "seqlen", "D": "head_dim"}[name]
    label = f"{name}, {_words(term)}"
    value: int = draw(container, label, name, default=SIZES[name], help=TERMS[term], **options)
    return value


def _presets(container: Any, present: Preset | None) -> None:
    """A menu, which has no value of its own that could fight with the numbers below it."""
    groups = {p.name: f"{p.group}: {p.name} · {p.problem.label()}" for p in presets()}
    container.menu_button(
        f"Problem: {present.name if present else 'your own'}",
        list(groups),
        format_func=groups.__getitem__,
        key="preset",
        on_click=_apply_preset,
        help=TERMS["preset"],
        width="stretch",
    )
    if present is not None:
        container.caption(present.note, help=f"Source: {present.source}")


def _config(variant: Variant) -> dict[str, int]:
    config = {}
    for tunable in variant.tunables:
        if len(tunable.values) == 1:
            config[tunable.name] = tunable.default
            continue
        draw = url_state.segments if len(tunable.values) <= _FEW else url_state.slider
        config[tunable.name] = draw(
            st,
            _words(tunable.name),
            tunable_key(variant, tunable),
            tunable.values,
            tunable.default,
            help=plain_markdown(tunable.meaning),
        )
    return config


def _words(name: str) -> str:
    return name.replace("_", " ")


def _inputs_help() -> str:
    kinds = (f"- {_words(kind)}: {plain_markdown(text)}" for kind, text in MEANINGS.items())
    return "\n".join([TERMS["inputs"], "", *kinds])


def _execution() -> dict[str, Any]:
    with st.expander("Execution", icon=":material/tune:"):
        check = url_state.toggle(st, "Check build", "check", help=TERMS["check"])
        schedule = url_state.select(
            st,
            "Schedule",
            "schedule",
            SCHEDULES,
            SCHEDULES[0],
            format_func=_words,
            help=TERMS["schedule"],
        )
        input_kind = url_state.select(
            st,
            "Inputs",
            "inputs",
            INPUT_KINDS,
            INPUT_KINDS[0],
            format_func=_words,
            help=_inputs_help(),
        )
        if input_kind == "scaled":
            factor = url_state.amount(
                st,
                "Factor",
                "factor",
                DEFAULT_FACTOR,
                low=0.001,
                high=MAX_FACTOR,
                help="What Q and K are multiplied by.",
            )
            input_kind = f"scaled:{factor:g}"
        seed = url_state.number(st, "Seed", "seed", 0, low=0, high=2**31 - 1, help=TERMS["seed"])
        timeout_s = url_state.number(
            st, "Time limit, s", "timeout", 60, low=1, high=3600, help=TERMS["timeout"]
        )
    return {
        "check": check,
        "schedule": schedule,
        "input_kind": input_kind,
        "seed": seed,
        "timeout_s": float(timeout_s),
    }
