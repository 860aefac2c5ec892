"""The description block of a `.cu` file: one comment, `/* attune … */`, with TOML in it.

    /* attune
    idea = "one sentence"
    head_dims = [32, 64]
    min_compute_capability = 8.0
    tunables.block_n = {values = [32, 64], default = 64, meaning = "K/V rows per tile"}
    let.block_m = 64                                   # a name for formulas, to say a thing once
    constraints = [{condition = "seqlen <= 4096", sentence = "v30 ends at 4,096, not {seqlen:,}."}]
    scratch.partial = {dtype = "float32", shape = ["batch", "seqlen"], fill = "zero"}

    [[passes]]
    entry = "attention_forward"
    grid = ["num_heads", "batch", "ceil_div(seqlen, block_m)"]
    threads = 128
    smem_bytes = "2 * block_n * head_dim * element_bytes"   # dynamic; 0 where it is left out
    args = ["q", "k", "v", "out", "partial", "seqlen", {name = "n", ctype = "int32", value = 7}]

    [work]                                             # see `kernels.variant.Work`
    math_unit = "tensor"
    math_threads = 128                                 # those of the first pass where left out
    query_rows = "block_m"
    kv_rows = "round_up(seqlen_kv, block_n)"
    conflict_ways = 1                                  # may be left out: see there
    */

`dtypes` (both where left out), `gqa` (false: query heads may not share K/V heads, whose number is
`num_heads_kv`) and `arch_specific` (false) may be added. Formulas are those of
`kernels.formula`. CUDA's limits of the grid need no constraint: they follow from the passes.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from kernels.formula import RESERVED, Expression, FormulaError, Scope
from kernels.toml_block import KernelDescriptionError, Table, load_block, shown
from kernels.variant import (
    Constraint,
    Dtype,
    IntFormula,
    MathUnit,
    Pass,
    ProblemLike,
    Scalar,
    ScalarType,
    Scratch,
    ScratchFill,
    ScratchType,
    Tunable,
    Variant,
    Work,
)

TENSORS: Final = ("q", "k", "v", "out")
INT_SCALARS: Final = ("batch", "num_heads", "num_heads_kv", "seqlen", "seqlen_kv", "head_dim")
_ARGUMENTS: Final = (*TENSORS, *INT_SCALARS, "softmax_scale")
MAX_SOURCE_BYTES: Final = 1_000_000
MAX_GRID: Final = (2**31 - 1, 65535, 65535)  # CUDA programming guide, technical specifications

_BLOCK = re.compile(r"^/\*[ \t]*attune[ \t]*\n(?P<toml>.*?)\*/", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r"// (?P<id>v\d\d) (?P<title>[^:\n]+): ")
_LADDER_NAME = re.compile(r"(?P<id>v\d\d)_\w+")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ENTRY = re.compile(r"[A-Za-z_]\w*")


def read_text(path: Path) -> str:
    """The file's text. Raises KernelDescriptionError if it cannot be read or is not UTF-8."""
    try:
        # Without O_NONBLOCK the opening of a pipe would wait for a writer.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise KernelDescriptionError(path, 1, "it is no regular file.")
            data = file.read(MAX_SOURCE_BYTES + 1)
        if len(data) > MAX_SOURCE_BYTES:
            raise KernelDescriptionError(path, 1, f"it is larger than {MAX_SOURCE_BYTES:,} bytes.")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise KernelDescriptionError(path, 1, f"it is not UTF-8 (byte {error.start}).") from None
    except OSError as error:
        sentence = f"it cannot be read: {error.strerror or error}."
        raise KernelDescriptionError(path, 1, sentence) from None


def read_variant(path: Path) -> Variant:
    """The variant that a `.cu` file describes.

    Raises:
        KernelDescriptionError: the file cannot be read, or as `parse_variant`.
    """
    return parse_variant(read_text(path), path)


def has_block(text: str) -> bool:
    """Whether a source describes itself; those of old snapshots do not."""
    return _BLOCK.search(text) is not None


def without_block(text: str) -> str:
    """The source with its block left empty. Lines keep their numbers."""
    return _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)


def description_of(text: str) -> tuple[str, ...]:
    """All of a source that its description depends on: the title's line, the blocks, their lines.

    Sources for which it is equal have equal descriptions, whatever the rest of them says.
    """
    blocks = (f"{text.count(chr(10), 0, m.start())} {m[0]}" for m in _BLOCK.finditer(text))
    return (text.partition("\n")[0], *blocks)


def parse_variant(text: str, path: Path) -> Variant:
    """The variant that a source describes.

    Args:
        path: the source's own file, whose name gives the variant's: `v05_kv_split.cu` is v05.

    Raises:
        KernelDescriptionError: there is no block, or a mistake in it.
    """
    blocks = list(_BLOCK.finditer(text))
    if not blocks:
        raise KernelDescriptionError(path, 1, "it has no description block `/* attune … */`.")
    lines = [text.count("\n", 0, block.start("toml")) + 1 for block in blocks]
    if len(blocks) > 1:
        raise KernelDescriptionError(path, lines[1] - 1, "a file has one description block.")
    return _Reader(load_block(path, blocks[0]["toml"], lines[0]), text).variant()


@dataclass
class _Reader:
    """Reads the block's tables in an order in which each finds the names it needs."""

    block: Table
    text: str
    scope: Scope = field(init=False)
    buffers: dict[str, Scratch] = field(default_factory=dict)

    def variant(self) -> Variant:
        path, block = self.block.place.path, self.block
        block.allow(
            "idea", "head_dims", "dtypes", "gqa", "min_compute_capability", "arch_specific",
            "tunables", "let", "constraints", "scratch", "passes", "work",
        )  # fmt: skip
        on_ladder = _LADDER_NAME.fullmatch(path.stem)
        variant_id = on_ladder["id"] if on_ladder else path.stem
        title = _TITLE.match(self.text)
        tunables = tuple(_tunable(table, name) for table, name in self._named("tunables"))
        self.scope = Scope(path.name, {t.name: t.values for t in tunables})
        for table, name in self._named("let", taken={t.name for t in tunables}):
            self.scope.define(name, self._expression(table, name, self.scope.expression))
        for table, name in self._named("scratch"):
            self.buffers[name] = self._scratch(table.table(name), name)
        constraints = [self._constraint(table) for table in block.tables("constraints", [])]
        grids = []
        passes = []
        for table in block.tables("passes"):
            grids.append(self._grid(table))
            passes.append(self._pass(table, grids[-1]))
        self._require_all_tensors(passes)
        return Variant(
            id=variant_id,
            name=path.stem,
            title=title["title"] if title and title["id"] == variant_id else path.stem,
            idea=block.string("idea", ""),
            head_dims=block.integers("head_dims"),
            dtypes=_dtypes(block),
            min_compute_capability=_compute_capability(block),
            tunables=tunables,
            constraints=(*constraints, *self._grid_limits(variant_id, grids)),
            scratch=tuple(self.buffers.values()),
            passes=tuple(passes),
            work=self._work(passes[0].threads),
            source=path,
            gqa=block.get("gqa", bool, "true or false", False),
            arch_specific=block.get("arch_specific", bool, "true or false", False),
        )

    def _named(self, key: str, taken: Collection[str] = ()) -> Iterator[tuple[Table, str]]:
        """The table of a key, with each name in it that is free to be given."""
        table = self.block.table(key, {})
        for name in table.values:
            if not _NAME.fullmatch(name):
                table.error(name, "a name is made of a-z, 0-9 and _")
            if name in RESERVED or name in _ARGUMENTS or name in taken:
                table.error(name, "this name is taken")
            yield table, name

    def _expression(
        self, table: Table, key: str, parse: Callable[[Any], Expression] | None = None
    ) -> Expression:
        """The formula of a key: a number, unless `parse` says otherwise."""
        formula = table.get(key, (int, str), "a whole number or a formula in quotes")
        try:
            return (parse or self.scope.number)(formula)
        except FormulaError as error:
            table.error(key, str(error))

    def _expressions(self, table: Table, key: str, expected: str) -> list[Expression]:
        try:
            return [self.scope.number(formula) for formula in table.items(key, expected)]
        except FormulaError as error:
            table.error(key, str(error))

    def _formula(self, table: Table, key: str) -> IntFormula:
        return self.scope.function(self._expression(table, key))

    def _constraint(self, table: Table) -> Constraint:
        table.allow("condition", "sentence")
        table.string("sentence")
        condition = self._expression(table, "condition", self.scope.condition)
        sentence = self._expression(table, "sentence", self.scope.sentence)
        return Constraint(self.scope.function(condition), self.scope.function(sentence))

    def _scratch(self, table: Table, name: str) -> Scratch:
        table.allow("dtype", "shape", "fill")
        return Scratch(
            name,
            table.choice("dtype", get_args(ScratchType), "float32"),
            self.scope.tuple_function(self._expressions(table, "shape", "a list of formulas")),
            table.choice("fill", get_args(ScratchFill), "poison"),
        )

    def _grid(self, table: Table) -> list[Expression]:
        grid = self._expressions(table, "grid", "a list of three formulas: x, y, z")
        if len(grid) != 3:
            table.error("grid", f"it has three sizes (x, y, z), not {len(grid)}")
        return grid

    def _pass(self, table: Table, grid: list[Expression]) -> Pass:
        table.allow("entry", "grid", "threads", "smem_bytes", "args")
        return Pass(
            table.matching("entry", _ENTRY, "the name of a kernel of this file"),
            self.scope.tuple_function(grid),
            self._formula(table, "threads"),
            self._formula(table.with_default("smem_bytes", 0), "smem_bytes"),
            tuple(self._arg(table, a) for a in table.items("args", "a list of arguments")),
        )

    def _arg(self, table: Table, value: object) -> str | Scalar:
        if isinstance(value, dict):
            scalar = Table(table.place, value, (*table.keys, "args"))
            scalar.allow("name", "ctype", "value")
            return Scalar(
                scalar.matching("name", _NAME, "a name of a-z, 0-9 and _"),
                scalar.choice("ctype", get_args(ScalarType)),
                self._formula(scalar, "value"),
            )
        known = (*_ARGUMENTS, *self.buffers)
        if not isinstance(value, str) or value not in known:
            near = difflib.get_close_matches(shown(value), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            table.error("args", f"there is no argument {shown(value)}: {hint}")
        if value == "softmax_scale":
            return Scalar(value, "float32", _softmax_scale)
        if value in INT_SCALARS:
            return Scalar(value, "int32", self.scope.function(self.scope.number(value)))
        return value

    def _require_all_tensors(self, passes: Iterable[Pass]) -> None:
        used = {arg for launch in passes for arg in launch.args if isinstance(arg, str)}
        for name in TENSORS:
            if name not in used:
                self.block.error("passes", f"no pass takes the argument `{name}`")
        for name in self.buffers:
            if name not in used:
                self.block.table("scratch").error(name, "no pass takes this buffer")

    def _grid_limits(self, variant_id: str, grids: Iterable[list[Expression]]) -> list[Constraint]:
        """CUDA's limits of the grid, once for each formula that may exceed one."""
        limits: dict[str, Constraint] = {}
        for grid in grids:
            for axis, size, limit in zip("xyz", grid, MAX_GRID, strict=True):
                if size.text.isdigit() and int(size.text) <= limit:
                    continue
                holds = self.scope.at_most(size, limit)
                name = variant_id.replace("{", "{{").replace("}", "}}")
                sentence = self.scope.sentence(
                    f"{name} would launch {{{size.text}:,}} CTAs along the grid's {axis} "
                    f"axis ({size.text}), and CUDA allows {limit:,}: choose a smaller problem."
                )
                limits.setdefault(
                    f"{limit} {size.text}",
                    Constraint(self.scope.function(holds), self.scope.function(sentence)),
                )
        return list(limits.values())

    def _work(self, threads: IntFormula) -> Work:
        table = self.block.table("work")
        table.allow("math_unit", "math_threads", "query_rows", "kv_rows", "conflict_ways")
        optional = {
            key: self._formula(table, key)
            for key in ("math_threads", "conflict_ways")
            if key in table.values
        }
        return Work(
            math_unit=table.choice("math_unit", get_args(MathUnit)),
            math_threads=optional.get("math_threads", threads),
            query_rows=self._formula(table, "query_rows"),
            kv_rows=self._formula(table, "kv_rows"),
            conflict_ways=optional.get("conflict_ways"),
        )


def _tunable(group: Table, name: str) -> Tunable:
    table = group.table(name)
    table.allow("values", "default", "meaning")
    values = table.integers("values")
    default = table.get("default", int, "one of the values")
    if default not in values:
        table.error("default", f"{shown(default)} is not one of the values")
    return Tunable(name, values, default, table.string("meaning"))


def _dtypes(block: Table) -> tuple[Dtype, ...]:
    known: tuple[Dtype, ...] = get_args(Dtype)
    values = block.items("dtypes", f"a list of {' and '.join(known)}", list(known))
    if not values or not all(v in known for v in values) or len(set(values)) < len(values):
        block.error("dtypes", f"it is a list of {' and '.join(known)}, not {shown(values)}")
    return tuple(values)


def _compute_capability(block: Table) -> tuple[int, int]:
    key, expected = "min_compute_capability", "a compute capability such as 8.0"
    value = block.get(key, (int, float), expected)
    if not 5 <= value < 100 or abs(10 * value - round(10 * value)) > 1e-6:
        block.error(key, f"it is {expected}, not {shown(value)}")
    tenths = round(10 * value)
    return tenths // 10, tenths % 10


def _softmax_scale(problem: ProblemLike, _: object) -> float:
    return 1.0 / math.sqrt(problem.head_dim)
