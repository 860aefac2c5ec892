"""The options that name a variant, a problem and a target; shared by several commands."""

from __future__ import annotations

import argparse

from engine.config import default_config
from engine.errors import InvalidProblem
from engine.names import find_variant
from engine.presets import find_preset
from engine.problem import Problem
from kernels.variant import Dtype

DTYPES: dict[str, Dtype] = {
    "fp16": "float16",
    "float16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
}

KEYS_HELP = "length of K and V where it is not that of the queries, as in decoding"


def add_problem_options(p: argparse.ArgumentParser) -> None:
    p.add_argument("--preset", help="a named shape, for instance gpt2; options below override it")
    p.add_argument("--batch", "-B", type=int, help="batch size (default 1)")
    p.add_argument("--heads", "-H", type=int, help="number of heads (default 1)")
    p.add_argument("--seqlen", "-S", type=int, help="sequence length (default 128)")
    p.add_argument("--seqlen-kv", type=int, help=KEYS_HELP)
    p.add_argument("--head-dim", "-D", type=int, help="head dimension (default 64)")
    p.add_argument(
        "--causal", action=argparse.BooleanOptionalAction, default=None, help="causal mask"
    )
    p.add_argument("--dtype", choices=sorted(DTYPES), help="float16 (default) or bfloat16")


def problem_from(args: argparse.Namespace) -> Problem:
    """The problem the options describe.

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
    }
    merged = {
        name: getattr(base, name) if value is None else value for name, value in given.items()
    }
    return Problem(**merged)


def add_config_option(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a tunable, for instance num_splits=4; repeatable",
    )


def add_defaults_option(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--defaults-only",
        action="store_true",
        help="tunables not named keep their default, whatever was tuned",
    )


def config_from(args: argparse.Namespace) -> dict[str, int]:
    """The tunables given by `--config`, without gaps when defaults are to fill them.

    Raises:
        InvalidProblem: an item that is not name=whole number.
        UnknownName: no such variant.
    """
    config = {}
    for item in args.config:
        name, _, value = item.partition("=")
        try:
            config[name.strip()] = int(value)
        except ValueError:
            raise InvalidProblem(
                f"--config takes name=whole number, for instance num_splits=4, not {item!r}."
            ) from None
    if getattr(args, "defaults_only", False):
        return default_config(find_variant(args.variant), config)
    return config
