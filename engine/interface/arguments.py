"""What the functions of the interface take in the same way: a problem, a kernel's name."""

from __future__ import annotations

import atexit
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from engine.base.errors import InvalidProblem
from engine.own_kernels.registry import kernel_named
from engine.pipeline.evaluate import Evaluator
from engine.presets import find_preset
from engine.problem import Problem
from engine.sessions.known_times import open_history
from kernels.variant import DTYPES, Dtype, Variant


class Sizes(TypedDict, total=False):
    """A problem by keywords. Q is `[batch, heads, seqlen, head_dim]`."""

    preset: str  # a named shape, as `--preset`; what else is given stands in its place
    batch: int  # 1 where left out
    heads: int  # 1
    seqlen: int  # 128
    head_dim: int  # 64
    causal: bool  # False
    dtype: str  # "fp16", "bf16" or "fp32"; fp16, or the one that the kernel takes
    seqlen_kv: int | None  # length of K and V where it differs, as in decoding
    heads_kv: int | None  # heads of K and V where query heads share them
    head_dim_v: int | None  # columns of V and O where K has others
    # See `engine.problem.Problem` for what these mean.
    window: int | None
    softcap: float | None
    alibi: bool
    sinks: bool
    seqlens: tuple[int, ...] | None  # then batch and lengths may be left out


def problem_of(sizes: Sizes, variant: Variant | None = None) -> Problem:
    """The problem that the keywords describe.

    Raises:
        InvalidProblem, UnknownName: sizes that cannot be, no such preset.
    """
    if (name := sizes.get("preset")) is not None:
        return _changed(find_preset(name).problem, sizes)
    lengths = sizes.get("seqlens")
    longest = max(lengths) if lengths else None
    return Problem(
        batch=sizes.get("batch", len(lengths) if lengths else 1),
        num_heads=sizes.get("heads", 1),
        seqlen=sizes.get("seqlen", longest or 128),
        head_dim=sizes.get("head_dim", 64),
        causal=sizes.get("causal", False),
        dtype=dtype_of(sizes.get("dtype"), variant),
        seqlen_kv=sizes.get("seqlen_kv", longest),
        num_heads_kv=sizes.get("heads_kv"),
        window=sizes.get("window"),
        softcap=sizes.get("softcap"),
        alibi=sizes.get("alibi", False),
        sinks=sizes.get("sinks", False),
        seqlens=lengths,
        head_dim_v=sizes.get("head_dim_v"),
    )


def _changed(preset: Problem, sizes: Sizes) -> Problem:
    names = {"heads": "num_heads", "heads_kv": "num_heads_kv"}
    given: dict[str, Any] = {names.get(n, n): x for n, x in sizes.items() if n != "preset"}
    if "dtype" in sizes:
        given["dtype"] = dtype_of(sizes["dtype"], None)
    if sizes.get("seqlens"):
        longest = max(sizes["seqlens"] or ())
        given = {"batch": len(sizes["seqlens"] or ()), "seqlen_kv": longest} | given
        given.setdefault("seqlen", longest)
    elif {"batch", "seqlen", "seqlen_kv"} & set(given):
        given.setdefault("seqlens", None)  # the preset's lengths are of its own batch
    if "num_heads" in given and "num_heads_kv" not in given:
        given["num_heads_kv"] = None  # other heads than the preset's do not share its K/V heads
    return replace(preset, **given)


def dtype_of(name: str | None, variant: Variant | None) -> Dtype:
    """InvalidProblem for a name that there is not."""
    if name is None:
        return variant.dtypes[0] if variant is not None and len(variant.dtypes) == 1 else "float16"
    if name not in DTYPES:
        raise InvalidProblem(f"dtype is one of {', '.join(sorted(DTYPES))}, not {name!r}.")
    return DTYPES[name]


def variant_name(kernel: str | Path) -> str:
    """As `kernel_named`; a path may be a `Path`, too."""
    return kernel_named(str(kernel) if isinstance(kernel, str) else str(kernel.expanduser()))


@cache
def evaluator() -> Evaluator:
    """The one of this process: its child processes stay for the next call."""
    made = Evaluator(open_history())
    atexit.register(made.close)
    return made
