"""`attune-gate.toml`: kernels, problems, GPUs, thresholds of differences, and budgets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.attention.problem import Direction, Problem, parse_seqlens
from engine.base.errors import AttuneError, BadInput
from engine.devices import find_device
from engine.gate.trees import SETTINGS_NAME, settings_of
from engine.versions.figures import (
    COUNTED,
    LABELS,
    Figures,
    Finding,
    GateVerdict,
    Thresholds,
    figure_text,
    finding,
)
from engine.versions.workers import DEFAULT_MEMORY_GIB, DEFAULT_SECONDS
from kernels.variant import Variant

# Budgets: absolute limits of a kernel's figures on one problem and GPU.

LIMITS = tuple(name for name in LABELS if name != "ctas_per_sm")  # figures for which less is better


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper limits of a kernel's figures."""

    kernel: str
    gpu: str
    problem: Problem
    limits: Mapping[str, float]

    @property
    def label(self) -> str:
        """Return `v08 on L4 at B1 H8 S512 D64 fp16`."""
        return f"{self.kernel} on {self.gpu} at {self.problem.label()}"


def exceeded(budget: Budget, figures: Figures) -> tuple[Finding, ...]:
    """Return the limits that the figures exceed."""
    findings = []
    for name, limit in budget.limits.items():
        value = getattr(figures, name)
        if value is None:
            sentence = f"{LABELS[name]} is not known, so its budget cannot be judged"
            findings.append(finding(GateVerdict.NOT_JUDGED, sentence))
        elif value > limit:
            what = f"{LABELS[name]} {figure_text(name, value)}, its budget is "
            findings.append(finding(GateVerdict.OVER_BUDGET, what + figure_text(name, limit)))
    return tuple(findings)


DEFAULT_GPUS = ("L4", "H100 80GB SXM")
DEFAULT_ARCHS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_KEYS = ("kernels", "gpus", "archs", "problems", "thresholds", "config", "budget", "limits")
_WORD = re.compile(r"(?P<name>B|H|HKV|S|KV|DV|D)(?P<size>\d+)", re.IGNORECASE)
_FEATURE = re.compile(r"(?P<name>window|softcap|seqlens)(?P<value>[\d.,]{1,200})")
_FIELDS = {
    "B": "batch", "H": "num_heads", "HKV": "num_heads_kv",
    "S": "seqlen", "KV": "seqlen_kv", "D": "head_dim", "DV": "head_dim_v",
}  # fmt: skip
_DTYPES = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
_MAX_BYTES = 1 << 20


class SettingsError(BadInput):
    """A mistake in `attune-gate.toml`."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings; everything has a default."""

    kernels: tuple[str, ...] = ()  # patterns of file names; empty: all with a description
    gpus: tuple[str, ...] = DEFAULT_GPUS
    archs: tuple[str, ...] = DEFAULT_ARCHS
    problems: tuple[Problem, ...] = ()  # empty: three that suit the kernel
    thresholds: Thresholds = field(default_factory=Thresholds)
    config: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # by kernel
    budgets: tuple[Budget, ...] = ()
    seconds: float = DEFAULT_SECONDS  # time limit of one kernel on one GPU
    memory_gib: float = DEFAULT_MEMORY_GIB  # address space of a process that compiles and simulates
    path: Path | None = None

    def problems_of(self, variant: Variant) -> tuple[Problem, ...]:
        """Return the problems in the file; by default one with whole tiles for each mask that
        the kernel supports, and one with a partial last tile."""
        if self.problems:
            return self.problems
        head_dim = 64 if 64 in variant.head_dims else variant.head_dims[0]
        dtype = variant.dtypes[0]
        direction: Direction = "backward" if variant.is_backward else "forward"
        plain = Problem(
            4, 8, 512, head_dim, causal=variant.causal[0], dtype=dtype, direction=direction
        )
        if variant.unsupported(plain, variant.default_config()) is not None:
            plain = replace(plain, seqlen=128)  # few keys only
        ragged = replace(plain, batch=1, seqlen=plain.seqlen - 13)
        other = [replace(plain, causal=mask) for mask in variant.causal[1:]]
        return (plain, *other, ragged)


def read_settings(root: Path) -> Settings:
    """Read the file at a tree's root; return the defaults if there is none.

    Raises:
        SettingsError: it cannot be read or has a mistake.
    """
    path = settings_of(root)
    if not path.is_file():
        return Settings()
    try:
        data = path.read_bytes()
        if len(data) > _MAX_BYTES:
            raise SettingsError(f"{SETTINGS_NAME} is larger than a MiB.")
        raw = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{SETTINGS_NAME} is not UTF-8 text: save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{SETTINGS_NAME} is no TOML: {error}.") from None
    return replace(_settings(raw), path=path)


def parse_problem(text: str) -> Problem:
    """Parse a problem such as `B4 H8 S512 D64 causal bf16`; missing parts are B1 H1 S128 D64 fp16.

    Raises:
        SettingsError: an unknown word.
        InvalidProblem: sizes out of range.
    """
    given: dict[str, Any] = {"batch": 1, "num_heads": 1, "seqlen": 128, "head_dim": 64}
    for word in text.split():
        if match := _WORD.fullmatch(word):
            given[_FIELDS[match["name"].upper()]] = int(match["size"])
        elif word == "causal":
            given["causal"] = True
        elif word in ("alibi", "sinks", "lse"):
            given[word] = True
        elif word == "kvfp8":
            given["kv_dtype"] = "float8_e4m3"
        elif word == "backward":
            given["direction"] = word
        elif match := _FEATURE.fullmatch(word):
            given |= _feature(match["name"], match["value"])
        elif word in _DTYPES:
            given["dtype"] = _DTYPES[word]
        else:
            raise SettingsError(
                f"A problem is written like 'B4 H8 S512 D64 causal bf16': {word!r} in {text!r} "
                "is not such a word."
            )
    return Problem(**given)


def _feature(name: str, value: str) -> dict[str, Any]:
    """Parse `window128`, `softcap50` or `seqlens5,17,200` into fields of a problem."""
    if name != "seqlens":
        return {name: int(value) if name == "window" else float(value)}
    lengths = parse_seqlens(value)
    return {"seqlens": lengths, "batch": len(lengths)}


def _settings(raw: Mapping[str, Any]) -> Settings:
    for key in raw:
        if key not in _KEYS:
            raise _mistake(f"there is no {key!r}: known are {', '.join(_KEYS)}")
    limits = _table(raw, "limits")
    thresholds = _table(raw, "thresholds")
    counted = dict(COUNTED)
    for name, share in thresholds.items():
        if name != "simulated" and (name not in LABELS or name == "simulated_us"):
            known = ", ".join(["simulated", *(n for n in LABELS if n != "simulated_us")])
            raise _mistake(f"there is no threshold {name!r}: known are {known}")
        if not _is_number(share) or share < 0:
            raise _mistake(f"threshold {name} is a share of at least 0 (0.02: 2 %), not {share!r}")
        if name != "simulated":
            counted[name] = float(share)
    simulated = thresholds.get("simulated")
    if simulated is not None and simulated <= 0:
        raise _mistake("threshold simulated is a share above 0 (0.1: 10 %)")
    config: dict[str, dict[str, int]] = {}
    for kernel, values in _table(raw, "config").items():
        if not isinstance(values, dict) or not all(type(v) is int for v in values.values()):
            raise _mistake(f"[config.{kernel}] takes whole numbers: num_warps = 4")
        config[kernel] = values
    for name in limits:
        if name not in ("seconds", "memory_gib") or not _is_number(limits[name]):
            raise _mistake(f"[limits] takes seconds and memory_gib, numbers, not {name!r}")
        if limits[name] <= 0:
            raise _mistake(f"limit {name} is a number above 0")
    budgets = raw.get("budget", [])
    if not isinstance(budgets, list):
        raise _mistake("a budget is a table of its own: [[budget]]")
    try:
        gpus = tuple(find_device(name).name for name in _texts(raw, "gpus", DEFAULT_GPUS))
        problems = tuple(parse_problem(text) for text in _texts(raw, "problems", ()))
        budgets = tuple(_budget(entry) for entry in budgets)
    except SettingsError as error:
        text = str(error)
        raise (
            error if text.startswith(SETTINGS_NAME) else _mistake(text.removesuffix("."))
        ) from None
    except AttuneError as error:
        raise _mistake(str(error).removesuffix(".")) from None
    defaults = Thresholds()
    return Settings(
        kernels=_texts(raw, "kernels", ()),
        gpus=gpus,
        archs=_texts(raw, "archs", DEFAULT_ARCHS),
        problems=problems,
        thresholds=Thresholds(counted, float(simulated or defaults.simulated)),
        config=config,
        budgets=budgets,
        seconds=float(limits.get("seconds", DEFAULT_SECONDS)),
        memory_gib=float(limits.get("memory_gib", DEFAULT_MEMORY_GIB)),
    )


def _budget(entry: Any) -> Budget:
    if not isinstance(entry, dict):
        raise _mistake("a budget is a table of its own: [[budget]]")
    for name in ("kernel", "gpu", "problem"):
        if not isinstance(entry.get(name), str):
            raise _mistake(f"a [[budget]] names its {name}, as text")
    limits = {name: value for name, value in entry.items() if name in LIMITS}
    known = ", ".join(LIMITS)
    for name in entry:
        if name not in LIMITS and name not in ("kernel", "gpu", "problem"):
            raise _mistake(f"a [[budget]] has the limits {known}, not {name}")
    if not limits:
        raise _mistake(f"a [[budget]] holds limits: {known}")
    for name, value in limits.items():
        if not _is_number(value) or value < 0:
            raise _mistake(f"{name} of a [[budget]] is a number of at least 0, not {value!r}")
    gpu = find_device(entry["gpu"]).name
    return Budget(entry["kernel"], gpu, parse_problem(entry["problem"]), limits)


def _table(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise _mistake(f"{key} is a table: [{key}]")
    return value


def _texts(raw: Mapping[str, Any], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    value = raw.get(key)
    if value is None:
        return default
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise _mistake(f'{key} is a list of texts, for instance {key} = ["…"]')
    return tuple(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mistake(sentence: str) -> SettingsError:
    return SettingsError(f"{SETTINGS_NAME}: {sentence}.")
