"""Options that several commands share: the problem, the config, and argument types.

Every command imports this module, and few have a problem or a kernel: modules for these are
imported inside functions.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.base.errors import AttuneError, InvalidProblem
from engine.history import History
from engine.pipeline.request import BackendChoice, EvaluationRequest, ResolvedRequest, resolve
from kernels.variant import AUTO, DTYPES, Dtype, Variant

if TYPE_CHECKING:
    from engine.attention.problem import Problem
    from engine.attention.tensors import InputKind


# Options of `[shared.…]` in commands.toml, inherited by the options of commands.


@dataclass(frozen=True)
class Sizes:
    """The options of `[shared.sizes]`."""

    batch: int | None
    heads: int | None
    seqlen: int | None
    head_dim: int | None


@dataclass(frozen=True)
class KvSizes:
    """The options of `[shared.kv-sizes]`."""

    seqlen_kv: int | None
    heads_kv: int | None
    head_dim_v: int | None


@dataclass(frozen=True)
class DtypeOption:
    """The options of `[shared.dtype]`."""

    dtype: str | None


@dataclass(frozen=True)
class ScoreOptions:
    """The options of `[shared.scores]`."""

    window: int | None
    softcap: float | None
    alibi: bool | None
    sinks: bool | None
    lse: bool | None
    kv_dtype: str | None


@dataclass(frozen=True)
class FeatureOptions(ScoreOptions):
    """The options of `[shared.features]`."""

    seqlens: tuple[int, ...] | None
    backward: bool | None


@dataclass(frozen=True)
class ProblemOptions(Sizes, KvSizes, FeatureOptions, DtypeOption):
    """The options of `[shared.problem]`."""

    preset: str | None
    causal: bool | None


@dataclass(frozen=True)
class ConfigOptions:
    """The options of `[shared.config]`."""

    config: list[str]


@dataclass(frozen=True)
class DefaultsOption:
    """The options of `[shared.defaults]`."""

    defaults_only: bool


@dataclass(frozen=True)
class BackendOption:
    """The options of `[shared.backend]`."""

    backend: BackendChoice


@dataclass(frozen=True)
class RunOptions:
    """The options of `[shared.run]`."""

    check: bool
    seed: int
    timeout: float
    inputs: InputKind | None


@dataclass(frozen=True)
class FilterOptions:
    """The options of `[shared.filters]`."""

    text: str
    gpu: str
    variant: str
    problem: str
    since: str
    until: str


@dataclass(frozen=True)
class FormatOptions:
    """The options of `[shared.format]`."""

    json: bool
    markdown: bool
    csv: bool


# The options of `[shared.problem]`.
PROBLEM = (
    *("preset", "batch", "heads", "seqlen", "head_dim"),
    *("seqlen_kv", "heads_kv", "head_dim_v", "causal", "dtype"),
    *("window", "softcap", "alibi", "sinks", "lse", "kv_dtype", "seqlens", "backward"),
)


def problem_from(args: ProblemOptions, variant: Variant | None = None) -> Problem:
    """Return the problem that the options of `[shared.problem]` describe.

    Args:
        variant: gives the format if `--dtype` is missing; None: the variant of the options.

    Raises:
        InvalidProblem, UnknownName: sizes out of range, no such preset.
    """
    from engine.attention.problem import Problem, find_preset

    base = Problem(1, 1, 128, 64) if args.preset is None else find_preset(args.preset).problem
    given: dict[str, Any] = {
        "batch": args.batch,
        "num_heads": args.heads,
        "seqlen": args.seqlen,
        "head_dim": args.head_dim,
        "causal": args.causal,
        "dtype": _dtype(args, variant),
        "seqlen_kv": args.seqlen_kv,
        "num_heads_kv": args.heads_kv,
        "head_dim_v": args.head_dim_v,
    }
    for name, value in _supported_defaults(args, variant).items():
        given[name] = value if given[name] is None else given[name]
    for name, value in features_from(args).items():  # explicit sizes override those from lengths
        given[name] = value if given.get(name) is None else given[name]
    if args.backward is False:
        given["direction"] = "forward"
    if args.heads is not None and args.heads_kv is None and args.preset:
        # With another number of heads, the preset's K/V heads do not apply.
        base = replace(base, num_heads_kv=None)
    sizes = (args.batch, args.seqlen, args.seqlen_kv)
    if args.seqlens is None and any(size is not None for size in sizes):
        base = replace(base, seqlens=None)  # a preset's lengths belong to its batch
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def scores_from(args: ScoreOptions) -> dict[str, Any]:
    """Return the fields of a problem given by the options of `[shared.scores]`."""
    names = ("window", "softcap", "alibi", "sinks", "lse")
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    if args.kv_dtype is not None:
        from engine.attention.problem import KV_DTYPES

        given["kv_dtype"] = KV_DTYPES[args.kv_dtype]
    return given


def features_from(args: FeatureOptions) -> dict[str, Any]:
    """Return the fields given by `[shared.features]`; lengths also give batch and rows."""
    given = scores_from(args)
    if args.backward:
        given["direction"] = "backward"
    if args.seqlens is not None:
        longest = max(args.seqlens)
        given |= {"seqlens": args.seqlens, "batch": len(args.seqlens)}
        given |= {"seqlen": longest, "seqlen_kv": longest}
    return given


def _supported_defaults(args: ProblemOptions, variant: Variant | None) -> dict[str, Any]:
    """Return the head dimension and mask that the variant supports, as defaults; empty with a
    preset."""
    name = getattr(args, "variant", None)
    if args.preset is not None or (variant is None and (not isinstance(name, str) or name == AUTO)):
        return {}
    from engine.attention.config import find_variant, usual_causal, usual_head_dim

    with contextlib.suppress(AttuneError):  # reported where the variant is looked up
        found = variant or find_variant(str(name))
        return {"head_dim": usual_head_dim(found), "causal": usual_causal([found])}
    return {}


def _dtype(args: ProblemOptions, variant: Variant | None) -> Dtype | None:
    """Return the format; None if it is left out and the preset's or FP16 applies."""
    if args.dtype:
        return DTYPES[args.dtype]
    names = getattr(args, "variants", None) or [getattr(args, "variant", None)]
    named = [variant] if variant is not None else [n for n in names if isinstance(n, str)]
    dtype = dtype_from(None, named)
    return None if dtype == "float16" else dtype


def dtype_from(name: str | None, variants: Iterable[str | Variant]) -> Dtype:
    """Return the format of `--dtype`, else `engine.attention.config.usual_dtype`."""
    from engine.attention.config import usual_dtype

    return DTYPES[name] if name is not None else usual_dtype(variants)


def kernel(text: str) -> str:
    """Convert an argument (`type=`): as `kernel_named`."""
    from engine.own_kernels.registry import kernel_named

    return kernel_named(text)


def kernel_file(text: str) -> Path:
    """Convert an argument (`type=`): as `source_named`."""
    from engine.own_kernels.registry import source_named

    return source_named(text)


def given_config(args: ConfigOptions) -> dict[str, int]:
    """Return the tunables given by `--config`. Raises InvalidProblem for a malformed item."""
    return parse_config(args.config, "--config takes NAME=VALUE, for instance num_splits=4")


def config_from(args: ConfigOptions, name: str, problem: Problem | None) -> dict[str, int]:
    """Return the tunables given by `--config`; with `--defaults-only` all of them, without tuned
    configs.

    Args:
        problem: that defaults must fit, if it is one.

    Raises:
        InvalidProblem: an item that is not name=whole number, or a value that the variant does not
            offer.
        UnknownName: no such variant.
    """
    config = given_config(args)
    if name == AUTO:
        return config
    from engine.attention.config import (
        check_given,
        default_config,
        find_variant,
        fitting_config,
    )
    from engine.pipeline.request import target_device

    variant = find_variant(name)
    check_given(variant, config)
    if not getattr(args, "defaults_only", False):
        return config
    device = target_device(getattr(args, "gpu", None))
    if problem is None:
        return default_config(variant, config, device)
    return fitting_config(variant, config, problem, device)


def first_given(args: object, names: Sequence[str]) -> str | None:
    """Return the first of these options that was given."""
    return next((name for name in names if getattr(args, name)), None)


def fields_from(args: object, kind: type[Any], *without: str) -> dict[str, Any]:
    """Return the options whose names are fields of a dataclass."""
    names = [f.name for f in fields(kind) if f.name not in without]
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def parse_config(items: Iterable[str], usage: str) -> dict[str, int]:
    """Parse items such as `num_splits=4`. Raises InvalidProblem with `usage` for a malformed
    item."""
    config = {}
    for item in items:
        name, _, value = item.partition("=")
        try:
            config[name.strip()] = int(value)
        except ValueError:
            raise InvalidProblem(f"{usage}, not {item!r}: values are whole numbers.") from None
        if not name.strip():
            raise InvalidProblem(f"{usage}, not {item!r}: a tunable has a name.")
    return config


def input_kind(text: str) -> InputKind:
    """Convert an argument (`type=`): a kind of inputs."""
    from engine.attention.tensors import check_input_kind

    try:
        return check_input_kind(text)
    except InvalidProblem as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def integer(text: str) -> int:
    """Convert an argument (`type=`): a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes a whole number, not {text!r}") from None


def seqlens(text: str) -> tuple[int, ...]:
    """Convert an argument (`type=`): lengths of sequences."""
    from engine.attention.problem import parse_seqlens

    try:
        return parse_seqlens(text)
    except InvalidProblem as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def number(text: str) -> float:
    """Convert an argument (`type=`): a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes a number, not {text!r}") from None


def positive_int(text: str) -> int:
    """Convert an argument (`type=`): a whole number of at least 1."""
    value = integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def not_negative(text: str) -> float:
    """Convert an argument (`type=`): a finite number of at least 0."""
    value = number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be 0 or more and finite, not {text}")
    return value


def positive_float(text: str) -> float:
    """Convert an argument (`type=`): a finite number above 0."""
    value = number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0 and finite, not {text}")
    return value


def seed(text: str) -> int:
    """Convert an argument (`type=`): a seed that NumPy and snapshots support."""
    value = integer(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"must be 0 to 2^63 - 1, not {text}")
    return value


def day(text: str) -> str:
    """Convert an argument (`type=`): a date or time in UTC, unchanged, or an empty text."""
    try:
        if text:
            datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a day like 2026-11-21, not {text!r}") from None
    return text


# Choices of `auto` by the times known on this machine.


def resolved_with_note(request: EvaluationRequest, history: History) -> ResolvedRequest:
    """Resolve the request; print the choice of `auto` and its reason to stderr."""
    resolved = resolve(request, history)
    if resolved.choice is not None:
        print(resolved.choice.note(), file=sys.stderr)
    return resolved


def as_resolved(request: EvaluationRequest, resolved: ResolvedRequest) -> EvaluationRequest:
    """Return the request with the variant and config to which it was resolved."""
    return replace(request, variant=resolved.variant.id, config=resolved.config)
