"""Options that several commands share: sizes of a problem, configs, where to execute."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from engine.config import default_config
from engine.errors import InvalidProblem
from engine.input_kinds import MEANINGS, NORMAL, InputKind, check_input_kind
from engine.names import find_variant
from engine.presets import find_preset
from engine.problem import Problem
from kernels.variant import AUTO, Dtype

# A parser, or a group of its options.
Options: TypeAlias = argparse._ActionsContainer

DTYPES: dict[str, Dtype] = {
    "fp16": "float16",
    "float16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
}

_SIZES = (
    ("batch", "B", "batch size (default 1)"),
    ("heads", "H", "number of heads (default 1)"),
    ("seqlen", "S", "sequence length (default 128)"),
    ("head-dim", "D", "head dimension (default 64)"),
)


def add_sizes(p: Options, parse: Callable[[str], Any] = int, metavar: str = "N") -> None:
    """`--batch`, `--heads`, `--seqlen` and `--head-dim`; None where they are not given."""
    for name, letter, meaning in _SIZES:
        p.add_argument(f"--{name}", f"-{letter}", type=parse, metavar=metavar, help=meaning)


def add_kv_sizes(p: Options, parse: Callable[[str], Any] = int, metavar: str = "N") -> None:
    """`--seqlen-kv` and `--heads-kv`; None where they are not given."""
    meaning = "length of K and V where it differs from the queries', as in decoding"
    p.add_argument("--seqlen-kv", type=parse, metavar=metavar, help=meaning)
    meaning = "heads of K and V where query heads share them (grouped-query attention)"
    p.add_argument("--heads-kv", type=parse, metavar=metavar, help=meaning)


def add_dtype(p: Options, default: str | None = "fp16") -> None:
    names = sorted(DTYPES)
    p.add_argument("--dtype", choices=names, default=default, help="fp16 (default) or bf16")


def add_problem(p: Options) -> None:
    """A preset, and the sizes that override it; see `problem_from`."""
    p.add_argument("--preset", help="a named shape, for instance gpt2; options below override it")
    add_sizes(p)
    add_kv_sizes(p)
    p.add_argument(
        "--causal", action=argparse.BooleanOptionalAction, default=None, help="causal mask"
    )
    add_dtype(p, default=None)


def problem_from(args: argparse.Namespace) -> Problem:
    """The problem that `add_problem`'s options describe.

    Raises:
        InvalidProblem, UnknownName: sizes out of range, no such preset.
    """
    base = find_preset(args.preset).problem if args.preset else Problem(1, 1, 128, 64)
    given = {
        "batch": args.batch,
        "num_heads": args.heads,
        "seqlen": args.seqlen,
        "head_dim": args.head_dim,
        "causal": args.causal,
        "dtype": DTYPES[args.dtype] if args.dtype else None,
        "seqlen_kv": args.seqlen_kv,
        "num_heads_kv": args.heads_kv,
    }
    if args.heads is not None and args.heads_kv is None and args.preset:
        # Other heads than the preset's do not share its K/V heads.
        base = replace(base, num_heads_kv=None)
    merged = {
        name: getattr(base, name) if value is None else value for name, value in given.items()
    }
    return Problem(**merged)


def kernel(text: str) -> str:
    """For `type=`: a variant by name, or by the path of an own kernel, which is taken into use.

    Raises:
        InvalidKernel: the file is not there, or does not describe itself as it must.
    """
    if "/" not in text and "\\" not in text and not text.endswith(".cu"):
        return text
    from engine.own_kernels.registry import use_kernel

    return use_kernel(Path(text)).id


def add_config(p: Options) -> None:
    p.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a tunable, for instance num_splits=4; repeatable",
    )


def add_defaults_only(p: Options) -> None:
    p.add_argument(
        "--defaults-only",
        action="store_true",
        help="tunables not given take the variant's defaults, not what was tuned",
    )


def given_config(args: argparse.Namespace) -> dict[str, int]:
    """The tunables given by `--config`. InvalidProblem for an item that is not of its form."""
    return parse_config(args.config, "--config takes NAME=VALUE, for instance num_splits=4")


def config_from(args: argparse.Namespace) -> dict[str, int]:
    """The tunables given by `--config`; with `--defaults-only` all of them.

    Raises:
        InvalidProblem: an item that is not name=whole number.
        UnknownName: no such variant.
    """
    config = given_config(args)
    if getattr(args, "defaults_only", False) and args.variant != AUTO:
        return default_config(find_variant(args.variant), config)
    return config


def parse_config(items: Iterable[str], usage: str) -> dict[str, int]:
    """`num_splits=4` and so on. InvalidProblem with `usage` for what is not of that form."""
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


def add_target(p: Options, default: str = "the one in this machine") -> None:
    p.add_argument("--gpu", help=f"target GPU, for instance L4 (default: {default})")
    p.add_argument(
        "--backend",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where to execute (default: the GPU when it is the target, else the CPU)",
    )


def add_run(p: Options, inputs: str | None = NORMAL) -> None:
    """How a run is made: `--check`, `--seed`, `--timeout` and `--inputs`."""
    p.add_argument(
        "--check",
        action="store_true",
        help="CPU backend: look for races, accesses out of bounds and uninitialised reads (slower)",
    )
    p.add_argument(
        "--seed", type=seed, default=0, help="of the inputs and of a random order (default 0)"
    )
    p.add_argument(
        "--timeout",
        type=positive_float,
        default=60.0,
        metavar="SECONDS",
        help="of one evaluation's run (default 60)",
    )
    kinds = "; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS.items())
    p.add_argument(
        "--inputs",
        type=input_kind,
        metavar="KIND",
        default=inputs,
        help=f"what the input tensors hold (default: {NORMAL}). {kinds}",
    )


def input_kind(text: str) -> InputKind:
    """For `type=`: a kind of inputs."""
    try:
        return check_input_kind(text)
    except InvalidProblem as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def positive_int(text: str) -> int:
    """For `type=`: a whole number from 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def positive_float(text: str) -> float:
    """For `type=`: a finite number above 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return value


def seed(text: str) -> int:
    """For `type=`: what NumPy and a snapshot take as a seed."""
    value = int(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"must be 0 to 2^63 - 1, not {text}")
    return value


def day(text: str) -> str:
    """For `type=`: a date or time in UTC, as it is; or nothing."""
    if text:
        datetime.fromisoformat(text)
    return text
