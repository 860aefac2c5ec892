"""The kernel to compare with: a variant in one of its configs, or the selected kernel before its
last edit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import streamlit as st

from app.shared import known_times
from app.shared.machine import device_of
from app.shared.selection import Selection, variant_label
from app.tune.machine_code.reading import Reading, read
from app.tune.source_watch import source_digest
from engine.attention.config import all_variants, resolve_config
from engine.attention.evaluation import Latency
from engine.machine_code.launch_report import MachineCode
from engine.pipeline.request import EvaluationRequest, preview
from kernels.variant import Config, Variant

_NOTHING, _BEFORE = "nothing", "this kernel before its last edit"
_SEEN = "machine_code_seen"  # in the tab's state: by request, the newest code and the previous one


@dataclass(frozen=True, slots=True)
class Other:
    """The kernel to compare with; `is_before`: the selected kernel before its last edit."""

    name: str
    reading: Reading
    predicted: Latency | None
    is_before: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """The machine code of a launch, and its predicted time."""

    code: MachineCode
    predicted: Latency | None


def choose(selection: Selection, seen: Seen, version: str) -> Other | None:
    """Draw the menu; return the code to compare with, or None."""
    assert selection.problem is not None
    before = _before(selection, seen)
    variants = {variant_label(v): v for v in all_variants()}
    options = [_NOTHING, *([_BEFORE] if before is not None else []), *variants]
    left, right = st.columns(2)
    chosen = left.selectbox("Compare with", options, key="machine_code_other")
    if chosen == _BEFORE and before is not None:
        return Other("before the edit", Reading(before.code), before.predicted, is_before=True)
    variant = variants.get(chosen)
    if variant is None:
        return None
    default = resolve_config(variant, {}, selection.problem, device_of(selection.gpu)).values
    configs = {_name(config): config for config in (default, *_configs(selection, variant))}
    name = right.selectbox(
        "in the config", list(configs), key=f"machine_code_other_config.{variant.id}"
    )
    request = EvaluationRequest(
        variant.id, selection.problem, configs[name], gpu=selection.gpu, execute=False
    )
    version = version if variant.id == selection.variant.id else source_digest(variant)
    reading = read(request, version)
    # Reading the code simulates it first, so the prediction exists.
    seen = preview(request, known_times.history()) if reading.code else None
    latency = seen.predicted if seen is not None else None
    return Other(f"{variant.id} {name}".strip(), reading, latency)


def _configs(selection: Selection, variant: Variant) -> list[Config]:
    """Return all configs of the variant that are valid for this problem."""
    assert selection.problem is not None
    names = [tunable.name for tunable in variant.tunables]
    device = device_of(selection.gpu)
    num_sms = device.num_sms if device is not None else None
    values = product(*(tunable.values_on(num_sms) for tunable in variant.tunables))
    made = [dict(zip(names, each, strict=True)) for each in values]
    return [config for config in made if variant.unsupported(selection.problem, config) is None]


def _name(config: Config) -> str:
    return " ".join(f"{k}={v}" for k, v in sorted(config.items()))


def _before(selection: Selection, now: Seen) -> Seen | None:
    """Return the code of the same request before its source changed, if this tab has seen it."""
    seen: dict[str, tuple[Seen, Seen | None]] = st.session_state.setdefault(_SEEN, {})
    key = repr(selection.request(execute=False))
    newest, before = seen.get(key, (now, None))
    if newest.code.source != now.code.source:
        before = newest
    seen[key] = now, before
    return before
