"""Check that the values of a description's formulas are possible for a problem.

A formula that is right for most problems may give a page without keys, a negative size or a number
too large for its type for another. Own kernels therefore get one more constraint, whose sentence
names the formula: such problems are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kernels.variant import (
    Argument,
    Config,
    Constraint,
    Pass,
    ProblemLike,
    Scalar,
    Structure,
    TensorMap,
    Variant,
)

_MAX_INT32: Final = 2**31 - 1  # of a launch's sizes, which are ints in CUDA
_MAX_ELEMENTS: Final = 2**47  # of a buffer: more than any address space
_RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "float32": (-3.4028234e38, 3.4028234e38),
    "float64": (-1.7976931e308, 1.7976931e308),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}


@dataclass(frozen=True, slots=True)
class _Bounded:
    """One or several formulas, and the limits of their values; None: any value."""

    what: str
    keys: tuple[str | int, ...]  # path of the formula in the description
    formula: Callable[[ProblemLike, Config], Any]
    low: float | None
    high: float | None


def possible_values(variant: Variant) -> Constraint:
    """Return the constraint that all formulas of the variant have possible values."""
    formulas = tuple(_formulas(variant))
    name = variant.id

    def holds(problem: ProblemLike, config: Config) -> bool:
        return all(_mistake(f, problem, config) is None for f in formulas)

    def reason(problem: ProblemLike, config: Config) -> str:
        mistakes = (_mistake(f, problem, config) for f in formulas)
        why = next((m for m in mistakes if m is not None), "a formula has no value")
        return f"{name} cannot be launched for this problem: {why}; see its description."

    return Constraint(holds, reason)


def invalid_formula_keys(
    variant: Variant, problem: ProblemLike, config: Config
) -> tuple[str | int, ...] | None:
    """Return the keys of the first formula with an impossible value, such as `("passes", 0,
    "threads")`; None if all values are possible."""
    if any(name not in config for name in variant.default_config()):
        return None
    return next((f.keys for f in _formulas(variant) if _mistake(f, problem, config)), None)


def _mistake(of: _Bounded, problem: ProblemLike, config: Config) -> str | None:
    """Return what is wrong with a formula's value, as the end of a sentence; None if nothing is."""
    try:
        values = of.formula(problem, config)
    except ArithmeticError as error:
        return f"the formula of {of.what} has no value ({str(error).rstrip('.')})"
    if of.low is None or of.high is None:
        return None
    for value in values if isinstance(values, tuple) else (values,):
        fits = (value >= of.low) & (value <= of.high)
        if not (fits if isinstance(fits, bool) else fits.all()):  # of an array of problems
            return f"{of.what} is {_short(value)}, and it is {of.low:,} to {of.high:,}"
    return None


def _short(value: object) -> str:
    is_short = isinstance(value, int) and abs(value) < 10**30
    return f"{value:,}" if is_short or isinstance(value, float) else "too large a number"


def _formulas(variant: Variant) -> Iterator[_Bounded]:
    if variant.page_rows is not None:
        yield _Bounded("page_rows", ("page_rows",), variant.page_rows, 1, _MAX_INT32)
    for scratch in variant.scratch:
        what, keys = f"scratch.{scratch.name}", ("scratch", scratch.name)
        yield _Bounded(f"a size of {what}", keys, scratch.shape, 0, _MAX_INT32)
        yield _Bounded(f"the size of {what}", keys, _product(scratch.shape), 0, _MAX_ELEMENTS)
    work, schedule = variant.work, variant.work.schedule
    for name, formula, low in (
        ("math_threads", work.math_threads, 1),
        ("query_rows", work.query_rows, 1),
        ("kv_rows", work.kv_rows, 1),
        ("conflict_ways", work.conflict_ways, 1),
        ("heads_at_once", schedule.heads_at_once if schedule is not None else None, 1),
        ("start_tiles", schedule.start_tiles if schedule is not None else None, 0),
    ):
        if formula is not None:
            yield _Bounded(f"work.{name}", ("work", name), formula, low, _MAX_INT32)
    for number, launch in enumerate(variant.passes):
        yield from _of_pass(launch, ("passes", number))
    for name, text in variant.macros or ():
        yield _Bounded(f"defines.{name}", ("defines", name), text, None, None)


def _of_pass(launch: Pass, keys: tuple[str | int, ...]) -> Iterator[_Bounded]:
    where = f"of the pass {launch.entry}"
    yield _Bounded(f"the grid {where}", (*keys, "grid"), launch.grid, 1, _MAX_INT32)
    yield _Bounded(f"threads {where}", (*keys, "threads"), launch.threads, 1, 1024)
    smem = launch.dynamic_smem_bytes
    yield _Bounded(f"smem_bytes {where}", (*keys, "smem_bytes"), smem, 0, _MAX_INT32)
    for name, key, sizes, low in (
        ("a size of the block", "threads", launch.block, 1),
        ("the cluster", "cluster", launch.cluster, 1),
        ("warpgroup_registers", "warpgroup_registers", launch.warpgroup_registers, 0),
    ):
        if sizes is not None:
            yield _Bounded(f"{name} {where}", (*keys, key), sizes, low, 1024)
    if launch.entry_of is not None:
        entry = launch.entry_of
        yield _Bounded(f"the entry {launch.entry}", (*keys, "entry"), entry, None, None)
    for argument in launch.args:
        yield from _of_argument(argument, (*keys, "args"))


def _of_argument(argument: Argument, keys: tuple[str | int, ...]) -> Iterator[_Bounded]:
    if isinstance(argument, Structure):
        for field in argument.fields:
            yield from _of_argument(field, keys)
    elif isinstance(argument, TensorMap):
        keys = ("tensor_maps", argument.name)
        yield _Bounded(f"a size of the box of {argument.name}", keys, argument.box, 1, 256)
    elif isinstance(argument, Scalar):
        # Any number is true or false.
        low, high = _RANGES.get(argument.ctype, (None, None))
        yield _Bounded(f"the argument {argument.name}", keys, argument.value, low, high)


def _product(shape: Callable[[ProblemLike, Config], tuple[int, ...]]) -> Callable[..., int]:
    def product(problem: ProblemLike, config: Config) -> int:
        total = 1
        for size in shape(problem, config):
            total = total * size
        return total

    return product
