"""Which kernel stands beside the selected one: a variant in one of its configs, or this one as it
was before the last edit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import streamlit as st

from app.shared.selection import Selection, variant_label
from app.tune.machine_code.reading import Reading, read
from app.tune.source_watch import source_digest
from engine.config import resolve_config
from engine.own_kernels.registry import all_variants
from engine.pipeline.request import EvaluationRequest
from engine.sass.report import MachineCode
from kernels.variant import Config, Variant

_NOTHING, _BEFORE = "nothing", "itself before the last edit"
_SEEN = "machine_code_seen"  # in the tab's state: by request, the newest code and the one before


@dataclass(frozen=True, slots=True)
class Other:
    name: str
    reading: Reading
    is_before: bool = False


def choose(selection: Selection, code: MachineCode, version: str) -> Other | None:
    """What was chosen to compare with; None for nothing."""
    assert selection.problem is not None
    before = _before(selection, code)
    variants = {variant_label(v): v for v in all_variants()}
    options = [_NOTHING, *([_BEFORE] if before is not None else []), *variants]
    left, right = st.columns(2)
    chosen = left.selectbox("Compare with", options, key="machine_code_other")
    if chosen == _BEFORE and before is not None:
        return Other("before the edit", Reading(before), is_before=True)
    variant = variants.get(chosen)
    if variant is None:
        return None
    default = resolve_config(variant, {}, selection.problem, selection.gpu_name).values
    configs = {_name(config): config for config in (default, *_configs(selection, variant))}
    name = right.selectbox(
        "in the config", list(configs), key=f"machine_code_other_config.{variant.id}"
    )
    request = EvaluationRequest(
        variant.id, selection.problem, configs[name], gpu=selection.gpu, execute=False
    )
    version = version if variant.id == selection.variant.id else source_digest(variant)
    return Other(f"{variant.id} {name}".strip(), read(request, version))


def _configs(selection: Selection, variant: Variant) -> list[Config]:
    """All that the variant takes for this problem."""
    assert selection.problem is not None
    names = [tunable.name for tunable in variant.tunables]
    values = product(*(tunable.values for tunable in variant.tunables))
    made = [dict(zip(names, each, strict=True)) for each in values]
    return [config for config in made if variant.unsupported(selection.problem, config) is None]


def _name(config: Config) -> str:
    return " ".join(f"{k}={v}" for k, v in sorted(config.items()))


def _before(selection: Selection, code: MachineCode) -> MachineCode | None:
    """The code of the same request before its source changed, as far as this tab has seen it."""
    seen: dict[str, tuple[MachineCode, MachineCode | None]] = st.session_state.setdefault(_SEEN, {})
    key = repr(selection.request(execute=False))
    newest, before = seen.get(key, (code, None))
    if newest.source != code.source:
        newest, before = code, newest
    seen[key] = newest, before
    return before
