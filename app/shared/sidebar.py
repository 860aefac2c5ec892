"""The sidebar: target GPU, variant, problem, config and execution options."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import streamlit as st

from app.shared import auto, copy_link, tuned_config, url_state
from app.shared.machine import device_of, local_gpu
from app.shared.selection import (
    BACKENDS,
    DEFAULT_GPU,
    DTYPES,
    FORMATS,
    LOCAL_GPU,
    SCHEDULES,
    SIZES,
    STOPS,
    Selection,
    is_gpu,
    make_problem,
    matching_preset,
    preset_named,
    problem_values,
    tunable_key,
    variant_label,
)
from app.shared.terms import TERMS
from app.shared.widgets import plain_markdown
from engine.attention.config import (
    OWN,
    all_variants,
    default_config,
    fitting_config,
    usual_causal,
    usual_dtype,
)
from engine.attention.problem import Preset, Problem, presets
from engine.attention.tensors import (
    DEFAULT_FACTOR,
    INPUT_KIND_OF,
    INPUT_KINDS,
    MAX_FACTOR,
    MEANINGS,
)
from engine.choose.auto import Choice
from engine.devices import all_devices, find_device
from kernels.ladder import LADDER
from kernels.variant import AUTO, Variant


class _Subject(NamedTuple):
    """The kernel and its problem, which is None if it is invalid."""

    variant: Variant
    config: dict[str, int]
    problem: Problem | None
    error: str
    choice: Choice | None  # of `auto`, if it was asked


# Reads a value by key, default and parser: `url_state.value_of` or `remembered`.
_Read: TypeAlias = Callable[[str, Any, Callable[[str], Any]], Any]

_SWITCHES = {
    "alibi": "ALiBi",
    "sinks": "Sinks",
    "kvfp8": "FP8 K/V",
    "lse": "LSE",
    "backward": "Backward",
}
_FEATURES: dict[str, tuple[Any, Callable[[str], Any]]] = {  # the value when unset, and its parser
    "window": (None, url_state.whole_from(1)),
    "softcap": (None, url_state.amount_from(0)),
    "DV": (None, url_state.whole_from(1)),
    "seqlens": ("", str),
    **dict.fromkeys(_SWITCHES, (False, url_state.TRUTH.get)),
}
_FEW = 4  # up to this many values of a tunable are shown side by side
_FACTORS = (0.001, MAX_FACTOR)
_SEEDS = (0, 2**31 - 1)
_TIME_LIMIT_S = 60
_TIME_LIMITS_S = (1, 3600)


def selection_before_drawing() -> Selection:
    """Return what `draw` will return, so that a page can draw its content before the sidebar."""
    gpu, gpu_name = _named(url_state.chosen("gpu", *_gpus()))

    def config_of(variant: Variant, problem: Problem | None) -> dict[str, int]:
        return {
            name: url_state.chosen(key, values, default)
            for name, (key, values, default) in _offered(variant, problem, gpu).items()
        }

    subject = _subject(gpu, url_state.value_of, config_of)
    return _selection(gpu, gpu_name, subject, _execution_values(url_state.value_of))


def draw(draggable: tuple[str, ...] = ()) -> Selection:
    """Draw the sidebar and return what is selected. `draggable` sizes get sliders."""
    return _draw(partial(_kernel_and_problem, draggable))


def draw_target() -> Selection:
    """Draw the sidebar of a page with its own variants and problems: GPU and execution only.

    The returned variant, in its default config, and problem are those selected on other pages.
    """
    return _draw(_remembered)


def _draw(select: Callable[[str | None, str], _Subject]) -> Selection:
    with st.sidebar:
        gpu, gpu_name = _gpu()
        subject = select(gpu, gpu_name)
        execution = _execution()
        if local_gpu().spec is None:  # far from the menus, which its help would cover
            st.markdown(
                ":gray-badge[:material/developer_board_off: No NVIDIA GPU on this machine]",
                help=TERMS["no_gpu"],
            )
        copy_link.button()
    return _selection(gpu, gpu_name, subject, execution)


def _selection(
    gpu: str | None, gpu_name: str, subject: _Subject, execution: dict[str, Any]
) -> Selection:
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
    above = st.container()  # filled after the problem's widgets: `auto` needs the problem
    problem, error = _problem(draggable)
    choice = auto.choice_for(problem, gpu)
    with above:
        variant, is_auto = _variant(choice)
    if is_auto and choice is not None:
        auto.draw(choice, problem, gpu, gpu_name)
        return _Subject(variant, choice.config, problem, error, choice)
    config = _config(variant, problem, gpu)
    tuned_config.draw(variant, config, problem, gpu_name)
    return _Subject(variant, config, problem, error, choice)


def _remembered(gpu: str | None, _: str) -> _Subject:
    return _subject(gpu, url_state.remembered, partial(_defaults, gpu))


def _subject(
    gpu: str | None,
    read: _Read,
    config_of: Callable[[Variant, Problem | None], dict[str, int]],
) -> _Subject:
    """Return kernel and problem from the values that `read` returns, without drawing widgets."""
    variants = {v.id: v for v in all_variants()}
    name = read("variant", LADDER[0].id, {name: name for name in (AUTO, *variants)}.get)
    values: dict[str, Any] = {
        **{name: read(name, size, url_state.whole) for name, size in SIZES.items()},
        **{name: read(name, None, url_state.whole_from(1)) for name in ("KV", "HKV")},
        "dtype": read("dtype", DTYPES[0], {name: name for name in DTYPES}.get),
        "causal": read("causal", False, url_state.TRUTH.get),
        **{name: read(name, *how) for name, how in _FEATURES.items()},
    }
    problem, error = make_problem(values)
    choice = auto.choice_for(problem, gpu) if name == AUTO else None
    if choice is not None:
        return _Subject(choice.variant, choice.config, problem, error, choice)
    variant = variants.get(name, LADDER[0])
    return _Subject(variant, config_of(variant, problem), problem, error, None)


def _gpus() -> tuple[list[str], str]:
    """Return the menu's options and its default; a part of a GPU is offered while it is chosen."""
    names = [d.name for d in sorted(all_devices(), key=lambda d: d.compute_capability)]
    chosen = st.session_state.get("gpu") or st.query_params.get("gpu", "")
    if chosen not in ("", LOCAL_GPU, *names) and is_gpu(chosen):
        names.append(chosen)
    return (
        ([LOCAL_GPU, *names], LOCAL_GPU) if local_gpu().spec is not None else (names, DEFAULT_GPU)
    )


def _named(option: str) -> tuple[str | None, str]:
    """Return an option of the GPU menu as a `Selection` stores it."""
    return (None, local_gpu().name) if option == LOCAL_GPU else (option, option)


def _gpu() -> tuple[str | None, str]:
    options, default = _gpus()

    def label(option: str) -> str:
        if option == LOCAL_GPU:
            return local_gpu().label
        device = find_device(option)
        return f"{option} · {device.architecture} {device.arch}, {device.num_sms} SMs"

    selected = url_state.select(
        st, "Target GPU", "gpu", options, default, format_func=label, help=TERMS["gpu"]
    )
    return _named(selected)


def _variant(choice: Choice | None) -> tuple[Variant, bool]:
    """Return the variant, and whether `auto` chose it."""
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
        on_change=_set_supported_format,
    )
    is_auto = selected == AUTO
    variant = variants.get(selected) or (choice.variant if choice is not None else LADDER[0])
    st.caption(plain_markdown(variant.idea))
    for error in (*LADDER.errors, *OWN.errors):
        st.error(plain_markdown(str(error)))
    return variant, is_auto


def _set_supported_format() -> None:
    """Set dtype and mask to values that the chosen kernel supports."""
    state, chosen = st.session_state, st.session_state["variant"]
    variant = next((v for v in all_variants() if v.id == chosen), None)
    dtypes = ("float16", "bfloat16") if variant is None else variant.dtypes
    if state.get("dtype") is not None and state["dtype"] not in dtypes:
        state["dtype"] = usual_dtype([chosen])
    if variant is not None and state.get("causal") not in (None, *variant.causal):
        state["causal"] = usual_causal([variant])


def _apply_preset() -> None:
    preset = preset_named(st.session_state["preset"] or "")
    if preset is not None:
        st.session_state.update(problem_values(preset.problem))


def _problem(draggable: tuple[str, ...]) -> tuple[Problem | None, str]:
    container = st.container()
    values: dict[str, Any] = {}
    typed = [name for name in SIZES if name not in draggable]
    for pair in (typed[i : i + 2] for i in range(0, len(typed), 2)):
        row = st.container(horizontal=True, gap="xsmall")
        for name in pair:
            values[name] = _size(row, name, url_state.number)
    for name in draggable:
        values[name] = _size(st, name, url_state.number_slider, choices=STOPS[name])
    row = st.container(horizontal=True, gap="xsmall")
    for name, label, of_q in (("KV", "KV, keys", "S"), ("HKV", "HKV, K/V heads", "H")):
        values[name] = url_state.number_or_none(
            row,
            label,
            name,
            low=1,
            placeholder=f"as {of_q}: {values[of_q]}",
            help=TERMS["seqlen_kv" if name == "KV" else "num_heads_kv"],
        )
    row = st.container(horizontal=True, gap="xsmall", vertical_alignment="bottom")
    values["dtype"] = url_state.segments(
        row,
        "Format",
        "dtype",
        DTYPES,
        DTYPES[0],
        format_func=FORMATS.__getitem__,
        help=TERMS["dtype"],
    )
    values["causal"] = url_state.toggle(row, "Causal", "causal", help=TERMS["causal"])
    values |= _features()
    problem, error = make_problem(values)
    _presets(container, matching_preset(problem))
    return problem, error


def _features() -> dict[str, Any]:
    """Draw further features of the problem; the part is open if one is set."""
    is_set = any(url_state.value_of(name, *how) != how[0] for name, how in _FEATURES.items())
    if is_set and not st.session_state.get("features_set"):
        st.session_state["features"] = True  # and stays open when the last feature is removed
    st.session_state["features_set"] = is_set
    with st.expander("More", icon=":material/add:", key="features", on_change="rerun") as expander:
        if expander.open:  # closed it costs every step of a slider nothing
            _draw_features()
    read = url_state.value_of if expander.open else url_state.remembered
    return {name: read(name, *how) for name, how in _FEATURES.items()}


def _draw_features() -> None:
    row = st.container(horizontal=True, gap="xsmall")
    url_state.number_or_none(
        row, "Window, keys", "window", low=1, placeholder="none", help=TERMS["window"]
    )
    url_state.amount_or_none(
        row,
        "Softcap",
        "softcap",
        low=0.0,
        format="%g",
        placeholder="none",
        help=TERMS["softcap"],
    )
    url_state.number_or_none(
        row, "DV, V's width", "DV", low=1, placeholder="as D", help=TERMS["head_dim_v"]
    )
    url_state.text(
        st, "Keys of each sequence", "seqlens", placeholder="5,17,200", help=TERMS["seqlens"]
    )
    row = st.container(horizontal=True, gap="xsmall")
    for name, label in _SWITCHES.items():
        url_state.toggle(row, label, name, help=TERMS[name])


def _size(container: Any, name: str, draw: Any, **options: Any) -> int:
    term = {"B": "batch", "H": "num_heads", "S": "seqlen", "D": "head_dim"}[name]
    label = f"{name}, {_words(term)}"
    value: int = draw(container, label, name, default=SIZES[name], help=TERMS[term], **options)
    return value


def _presets(container: Any, present: Preset | None) -> None:
    """Draw the presets as a menu, which has no value that could contradict the numbers below it."""
    groups = {p.name: f"{p.group}: {p.name} · {p.problem.label()}" for p in presets()}
    container.menu_button(
        f"Problem: {present.name if present else 'custom'}",
        list(groups),
        format_func=groups.__getitem__,
        key="preset",
        on_click=_apply_preset,
        help=TERMS["preset"],
        width="stretch",
    )
    if present is not None:
        container.caption(present.note, help=f"Source: {present.source}")


def _defaults(gpu: str | None, variant: Variant, problem: Problem | None) -> dict[str, int]:
    device = device_of(gpu)
    if problem is None:
        return default_config(variant, {}, device)
    return fitting_config(variant, {}, problem, device)


def _offered(
    variant: Variant, problem: Problem | None, gpu: str | None
) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Return for each tunable its key, the values to choose from on a GPU, and the default,
    which applies until a value is chosen."""
    device = device_of(gpu)
    num_sms = device.num_sms if device is not None else None
    defaults = _defaults(gpu, variant, problem)
    offered = {}
    for tunable in variant.tunables:
        key, default = tunable_key(variant, tunable), defaults[tunable.name]
        url_state.follow_default(key, default)
        values = tuple(sorted({*tunable.values, *tunable.values_on(num_sms), default}))
        offered[tunable.name] = (key, values, default)
    return offered


def _config(variant: Variant, problem: Problem | None, gpu: str | None) -> dict[str, int]:
    config = {}
    meanings = {t.name: plain_markdown(t.meaning) for t in variant.tunables}
    for name, (key, values, default) in _offered(variant, problem, gpu).items():
        if len(values) == 1:
            config[name] = default
            continue
        draw = url_state.segments if len(values) <= _FEW else url_state.slider
        config[name] = draw(st, _words(name), key, values, default, help=meanings[name])
    return config


def _words(name: str) -> str:
    return name.replace("_", " ")


def _inputs_help() -> str:
    kinds = (f"- {_words(kind)}: {plain_markdown(text)}" for kind, text in MEANINGS.items())
    return "\n".join([TERMS["inputs"], "", *kinds])


def _execution() -> dict[str, Any]:
    with st.expander(
        "Execution", icon=":material/tune:", key="execution", on_change="rerun"
    ) as expander:
        if expander.open:  # closed it costs every step of a slider nothing
            _draw_execution()
    return _execution_values(url_state.value_of if expander.open else url_state.remembered)


def _draw_execution() -> None:
    url_state.select(
        st,
        "Execute",
        "backend",
        tuple(BACKENDS),
        "auto",
        format_func=BACKENDS.__getitem__,
        help=TERMS["backend"],
    )
    url_state.toggle(st, "Check build", "check", help=TERMS["check"])
    url_state.select(
        st,
        "Schedule",
        "schedule",
        SCHEDULES,
        SCHEDULES[0],
        format_func=_words,
        help=TERMS["schedule"],
    )
    url_state.seed("inputs", INPUT_KINDS[0], INPUT_KIND_OF.get)  # former names, too
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
        low, high = _FACTORS
        url_state.amount(
            st,
            "Factor",
            "factor",
            DEFAULT_FACTOR,
            low=low,
            high=high,
            help="Factor by which Q and K are multiplied.",
        )
    low, high = _SEEDS
    url_state.number(st, "Seed", "seed", 0, low=low, high=high, help=TERMS["seed"])
    low, high = _TIME_LIMITS_S
    help_ = TERMS["timeout"]
    url_state.number(st, "Time limit, s", "timeout", _TIME_LIMIT_S, low=low, high=high, help=help_)


def _execution_values(read: _Read) -> dict[str, Any]:
    """Return the execution options from the values that `read` returns, without drawing widgets."""
    input_kind = read("inputs", INPUT_KINDS[0], INPUT_KIND_OF.get)
    if input_kind == "scaled":
        factor = read("factor", DEFAULT_FACTOR, url_state.amount_from(*_FACTORS))
        input_kind = f"scaled:{factor:g}"
    return {
        "backend": read("backend", "auto", {name: name for name in BACKENDS}.get),
        "check": read("check", False, url_state.TRUTH.get),
        "schedule": read("schedule", SCHEDULES[0], {name: name for name in SCHEDULES}.get),
        "input_kind": input_kind,
        "seed": read("seed", 0, url_state.whole_from(*_SEEDS)),
        "timeout_s": float(read("timeout", _TIME_LIMIT_S, url_state.whole_from(*_TIME_LIMITS_S))),
    }
