"""The description of a kernel: TOML in one comment `/* attune … */` of its `.cu` file, or in a file
beside it, `my_kernel.attune.toml`.

    /* attune
    idea = "one sentence"
    head_dims = [32, 64]
    min_compute_capability = 8.0
    tunables.block_n = {values = [32, 64], default = 64, meaning = "K/V rows per tile"}
    let.block_m = 64                                   # a name that formulas can use
    constraints = [{condition = "seqlen <= 4096", sentence = "v30 ends at 4,096, not {seqlen:,}."}]
    scratch.partial = {dtype = "float32", shape = ["batch", "seqlen"], fill = "zero"}
                                                       # fill: zero, -inf, or poison (default);
                                                       # each_launch = true: filled before each
                                                       # launch, which is the default of -inf

    [[passes]]
    entry = "attention_forward"                        # or "flash::fwd<{head_dim}, {causal}>"
    grid = ["num_heads", "batch", "ceil_div(seqlen, block_m)"]
    threads = 128                                      # or [32, 4, 1]
    smem_bytes = "2 * block_n * head_dim * element_bytes"   # dynamic; default: 0
    args = ["q", "k", "v", "out", "partial", "seqlen", "softmax_scale"]  # see `kernels.arguments`
    cluster = [2, 1, 1]                                # CTAs of a cluster; default: no clusters
    warpgroup_registers = [24, 240, 240]               # registers per thread set by setmaxnreg, for
                                                       # each warpgroup; 0: there is none

    [work]                                             # see `kernels.variant.Work`
    math_unit = "tensor"
    math_threads = 128                                 # default: threads of the first pass
    query_rows = "block_m"
    kv_rows = "round_up(seqlen_kv, block_n)"
    conflict_ways = 1                                  # optional
    schedule = {shares = "key tiles"}                  # of a persistent kernel: `Schedule`
    */

Optional keys:

    tunables.num_ctas.per_sm = 2                       # persistent CTAs: the default is 2 per SM,
                                                       # and any number is valid
    dtypes = ["float16"]                               # default: float16 and bfloat16; also float32
    tf32 = true                                        # multiplies FP32 in TF32, with its tolerance
    causal = [false]                                   # supported masks; default: both
    repeatable = false                                 # results differ between runs, as with
                                                       # atomic sums
    takes = ["window", "softcap"]                      # supported features: `FEATURES` and
                                                       # `feature_macros` of `kernels.variant`
    dim_pairs = [[192, 128]]                           # [head_dim, head_dim_v] if different
    gqa = true                                         # query heads may share K/V heads; default of
                                                       # an own kernel: if it gets num_heads_kv
    arch_specific = true                               # needs sm_90a or similar
    layout = "bshd"                                    # of all tensors, or {q = "bshd"}; default:
                                                       # bhsd. "bs3hd": Q, K, V in one tensor `qkv`,
                                                       # O bshd; or {qkv = "bs3hd", out = "bhsd"}
    out_fill = "zero"                                  # of O before each launch; default: poison
    page_rows = "page_size"                            # K and V are paged, with this many keys per
                                                       # page: [pages, num_heads_kv, page_rows,
                                                       # head_dim], and argument `block_table`
    lse = {base = "2", layout = "bsh"}                 # how `lse` is stored; default: "e" and bhs
    defines = {D = "{head_dim}", T = "{element_type}"} # -D macros instead of the default ones
    std = "c++20"                                      # C++ standard; default: c++17
    include = ["../common"]                            # header folders, relative to the file
    cubin = ["fwd_80.cubin", "fwd_90.cubin"]           # machine code of another compiler, one file
                                                       # or one per arch; the source has no code
    tensor_maps.k_map = {tensor = "k", box = [64, "block_n", 1, 1]}  # see `kernels.tensor_maps`

Only `head_dims` and `passes` are required. Without `[work]`, all CTAs are assumed to have equal
shares of the query rows. A kernel that does not get the number of keys or of K/V heads, the mask or
the element type, by an argument, macro or template, is assumed to support only the simplest case:
as many keys and K/V heads as Q has, no mask, FP16.

Formulas: see `kernels.formula`; in `entry` and `defines` they are in braces. CUDA's limits of the
grid need no constraint, because they follow from the passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args

from kernels import declared
from kernels.arguments import KNOWN, ArgumentReader, pointers_of, read_layouts, stride_formulas
from kernels.formula import ELEMENT_TYPE, RESERVED, Expression, FormulaError, Scope
from kernels.possible import possible_values
from kernels.source_text import description_blocks, read_sidecar, read_text, sidecar_of
from kernels.tensor_maps import read_tensor_map
from kernels.toml_block import KernelDescriptionError, Table, load_block
from kernels.variant import (
    BLOCK_TABLE,
    DOUT,
    GRADIENTS,
    KERNELS_DIR,
    LSE,
    PACKED,
    TENSORS,
    Constraint,
    CppStandard,
    IntFormula,
    MathUnit,
    OutFill,
    Pass,
    Schedule,
    Scratch,
    ScratchFill,
    ScratchType,
    Shares,
    TensorMap,
    TextFormula,
    Variant,
    Work,
)

MAX_GRID: Final = (2**31 - 1, 65535, 65535)  # CUDA programming guide, technical specifications

_TITLE = re.compile(r"// (?P<id>v\d\d) (?P<title>[^:\n]+): ")
_LADDER_NAME = re.compile(r"(?P<id>v\d\d)_\w+")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_ENTRY = re.compile(r"(?:::)?[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*\s*(?:<[^;\"\n]*>)?")
_MACRO = re.compile(r"[A-Za-z_]\w*")
_STEM = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_USES_TENSOR_CORES = re.compile(r"\bmma\b|\bwgmma\b|\bwmma\b|\bldmatrix\b|\btcgen05\b")


class MissingDescription(KernelDescriptionError):
    """A source that has no description block, and no description file beside it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 1, "it has no description block `/* attune … */`.")


def read_own(path: Path) -> Variant:
    """Return the variant of an own kernel, described in its source or in the file beside it.

    Its id is the file's name without `.cu`.

    Raises:
        KernelDescriptionError: a file cannot be read, or as `parse_variant`.
    """
    return parse_variant(read_text(path), path, sidecar=read_sidecar(path), is_own=True)


def place_of_key(path: Path, keys: tuple[str | int, ...]) -> tuple[Path, int]:
    """Return the file and line of a key in an own kernel's description, or of the table around it.

    Args:
        keys: path of the key, such as `("passes", 0, "threads")`.

    Raises:
        KernelDescriptionError: a file cannot be read, or the description is no longer there.
    """
    if (sidecar := read_sidecar(path)) is not None:
        place = load_block(sidecar_of(path), sidecar, 1).place
    elif (block := next(description_blocks(read_text(path)), None)) is not None:
        place = load_block(path, block.toml, block.line + 1).place
    else:
        raise MissingDescription(path)
    return place.path, place.line(keys)


def parse_variant(
    text: str, path: Path, *, sidecar: str | None = None, is_own: bool = False
) -> Variant:
    """Return the variant that a source describes.

    Args:
        text: the source.
        path: its file, from whose name the variant's id follows: `v05_kv_split.cu` is v05.
        sidecar: text of the description file beside it; None if there is none.
        is_own: True for an own kernel, whose id is the file's name without `.cu`.

    Raises:
        MissingDescription: there is no block.
        KernelDescriptionError: there is a mistake in it.
    """
    blocks = list(description_blocks(text))
    lines = [block.line + 1 for block in blocks]
    if sidecar is not None:
        if blocks:
            sentence = f"{sidecar_of(path).name} describes this kernel too: remove one of the two."
            raise KernelDescriptionError(path, lines[0] - 1, sentence, code="described_twice")
        return _Reader(load_block(sidecar_of(path), sidecar, 1), text, path, is_own).variant()
    if not blocks:
        raise MissingDescription(path)
    if len(blocks) > 1:
        raise KernelDescriptionError(path, lines[1] - 1, "a file has one description block.")
    block = load_block(path, blocks[0].toml, lines[0])
    return _Reader(block, text, path, is_own).variant()


@dataclass
class _Reader:
    """Parser of one block. It reads the tables in an order in which names are defined before their
    use."""

    block: Table
    text: str
    path: Path  # of the source
    is_own: bool
    scope: Scope = field(init=False)
    buffers: dict[str, Scratch] = field(default_factory=dict)
    tensor_maps: dict[str, TensorMap] = field(default_factory=dict)

    def variant(self) -> Variant:
        path, block = self.path, self.block
        block.allow(
            "idea", "head_dims", "dtypes", "causal", "gqa", "min_compute_capability",
            "arch_specific", "layout", "page_rows", "lse", "defines", "include", "cubin", "tf32",
            "out_fill", "std", "takes", "dim_pairs", "repeatable", "tunables", "let", "constraints",
            "scratch", "tensor_maps", "passes", "work",
        )  # fmt: skip
        on_ladder = None if self.is_own else _LADDER_NAME.fullmatch(path.stem)
        variant_id = on_ladder["id"] if on_ladder else path.stem
        if not _STEM.fullmatch(path.stem):
            block.error(
                "", "rename the file: a kernel's name is made of letters, digits, _ . and -"
            )
        title = _TITLE.match(self.text) if on_ladder else None
        tunables = tuple(declared.tunable(table, name) for table, name in self._named("tunables"))
        self.scope = Scope(path.name, {t.name: t.values for t in tunables})
        layouts = read_layouts(block)
        packed = layouts.pop(PACKED, None) is not None
        page_rows = self._expression(block, "page_rows") if "page_rows" in block.values else None
        if page_rows is not None and not layouts.keys().isdisjoint("kv"):
            block.error("layout", "K and V in pages are bhsd, page by page")
        keys = "seqlen_kv" if page_rows is None else page_rows.text
        for name, formula in stride_formulas(layouts, keys, packed=packed):
            self.scope.define(name, self.scope.number(formula))
        self.scope.used.clear()
        takes = declared.takes(block)
        is_backward = "backward" in takes
        for table, name in self._named("let", taken={t.name for t in tunables}):
            self.scope.define(name, self._expression(table, name, self.scope.expression))
        for table, name in self._named("scratch"):
            self.buffers[name] = self._scratch(table.table(name), name)
        for table, name in self._named("tensor_maps", taken=self.buffers):
            self.tensor_maps[name] = read_tensor_map(
                table.table(name), name, self.scope, is_backward=is_backward
            )
        constraints = [self._constraint(table) for table in block.tables("constraints", [])]
        cubins = declared.cubins(block, path)
        macros = () if cubins else self._macros()
        pointers = (*self.buffers, *((BLOCK_TABLE,) if page_rows is not None else ()))
        pointers += (PACKED,) if packed else ()
        pointers += (DOUT, *GRADIENTS) if is_backward else ()
        arguments = ArgumentReader(self.scope, pointers, self.tensor_maps)
        grids = []
        passes = []
        for table in block.tables("passes"):
            grids.append(self._grid(table))
            passes.append(self._pass(table, grids[-1], arguments))
        if not passes:
            block.error("passes", "it is a list of at least one pass")
        used = self._require_all_tensors(passes, is_backward=is_backward)
        if page_rows is not None and BLOCK_TABLE not in used:
            block.error("page_rows", f"no pass takes the argument `{BLOCK_TABLE}`")
        for name in self.tensor_maps:
            if name not in arguments.taken:
                block.table("tensor_maps").error(name, "no pass takes this map")
        known = self.scope.used | arguments.taken
        if packed:  # Q, K and V of one tensor have the same length and heads
            known -= {"seqlen_kv", "num_heads_kv"}
        if macros is None:
            known |= {"causal", ELEMENT_TYPE}
        dtypes = declared.dtypes(block, ELEMENT_TYPE in known)
        # The source does not show what a cubin executes: all dtypes but FP32 suggest tensor cores.
        uses_tensor_cores = (
            dtypes != ("float32",) if cubins else _USES_TENSOR_CORES.search(self.text) is not None
        )
        variant = Variant(
            id=variant_id,
            name=path.stem,
            title=title["title"] if title and title["id"] == variant_id else path.stem,
            idea=block.string("idea", ""),
            head_dims=block.integers("head_dims"),
            dtypes=dtypes,
            min_compute_capability=declared.compute_capability(block),
            tunables=tunables,
            constraints=(
                *constraints,
                *self._equal_lengths_constraints(variant_id, known),
                *self._grid_limits(variant_id, grids),
            ),
            scratch=tuple(self.buffers.values()),
            passes=tuple(passes),
            work=self._work(passes[0].threads, grids[0], "tensor" if uses_tensor_cores else "fma"),
            source=path,
            gqa=block.get("gqa", bool, "true or false", self.is_own and "num_heads_kv" in known),
            arch_specific=block.get("arch_specific", bool, "true or false", False),
            causal=declared.masks(block, "causal" in known),
            takes=takes,
            dim_pairs=declared.dim_pairs(block),
            layouts=tuple(layouts.items()),
            lse=declared.lse(block, LSE in used and not is_backward, "lse" in takes),
            page_rows=None if page_rows is None else self.scope.function(page_rows),
            macros=macros,
            # A copy of a ladder kernel finds the ladder's headers.
            include_folders=(
                *declared.include_folders(block, path),
                *((KERNELS_DIR,) if path.parent != KERNELS_DIR else ()),
            ),
            cubins=cubins,
            out_fill=block.choice("out_fill", get_args(OutFill), "poison"),
            packed=packed,
            cpp=block.choice("std", get_args(CppStandard), "c++17"),
            tf32=block.get("tf32", bool, "true or false", False),
            repeatable=block.get("repeatable", bool, "true or false", True),
        )
        if not self.is_own:
            return variant
        # The formulas of an own kernel may be wrong for some problems.
        return replace(variant, constraints=(*variant.constraints, possible_values(variant)))

    def _named(self, key: str, taken: Collection[str] = ()) -> Iterator[tuple[Table, str]]:
        """Yield the table of a key with each name in it, after checking that the name is valid and
        free."""
        table = self.block.table(key, {})
        for name in table.values:
            if not _NAME.fullmatch(name):
                table.error(name, "a name is made of a-z, 0-9 and _")
            if name in RESERVED or name in KNOWN or name in taken:
                table.error(name, "this name is taken")
            yield table, name

    def _expression(
        self, table: Table, key: str, parse: Callable[[Any], Expression] | None = None
    ) -> Expression:
        """Return the formula of a key, parsed as a number unless `parse` is given."""
        formula = table.get(key, (int, str), "a whole number or a formula in quotes")
        try:
            return (parse or self.scope.number)(formula)
        except FormulaError as error:
            table.error(key, str(error), code=error.code)

    def _expressions(self, table: Table, key: str, expected: str) -> list[Expression]:
        try:
            return [self.scope.number(formula) for formula in table.items(key, expected)]
        except FormulaError as error:
            table.error(key, str(error), code=error.code)

    def _formula(self, table: Table, key: str) -> IntFormula:
        return self.scope.function(self._expression(table, key))

    def _constraint(self, table: Table) -> Constraint:
        table.allow("condition", "sentence")
        table.string("sentence")
        condition = self._expression(table, "condition", self.scope.condition)
        sentence = self._expression(table, "sentence", self.scope.sentence)
        return Constraint(self.scope.function(condition), self.scope.function(sentence))

    def _scratch(self, table: Table, name: str) -> Scratch:
        table.allow("dtype", "shape", "fill", "each_launch")
        dtype = table.choice("dtype", get_args(ScratchType), "float32")
        fill = table.choice("fill", get_args(ScratchFill), "poison")
        if fill == "-inf" and "float" not in dtype:
            table.error("fill", f"{dtype} has no infinity: take a float type, or fill it with zero")
        return Scratch(
            name,
            dtype,
            self.scope.tuple_function(self._expressions(table, "shape", "a list of formulas")),
            fill,
            # A running maximum only grows, so its buffer is refilled before each launch.
            table.get("each_launch", bool, "true or false", fill == "-inf"),
        )

    def _grid(self, table: Table) -> list[Expression]:
        if not isinstance(table.values.get("grid"), list):
            grid = [self._expression(table, "grid")]
        else:
            grid = self._expressions(table, "grid", "a list of formulas: x, y, z")
        if not 1 <= len(grid) <= 3:
            table.error("grid", f"it has up to three sizes (x, y, z), not {len(grid)}")
        return grid + [self.scope.number(1)] * (3 - len(grid))

    def _pass(self, table: Table, grid: list[Expression], arguments: ArgumentReader) -> Pass:
        table.allow(
            "entry", "grid", "threads", "smem_bytes", "args", "cluster", "warpgroup_registers"
        )
        entry = table.matching("entry", _ENTRY, "the name of a kernel of this file")
        block = self._block(table)
        threads = self.scope.product(block)
        return Pass(
            entry=entry,
            grid=self.scope.tuple_function(grid),
            threads=self.scope.function(threads),
            dynamic_smem_bytes=self._formula(table.with_default("smem_bytes", 0), "smem_bytes"),
            args=arguments.read(table),
            entry_of=self._cpp(table, "entry", entry) if "{" in entry else None,
            block=self.scope.tuple_function(block) if len(block) > 1 else None,
            cluster=self._sizes(table, "cluster", 3),
            warpgroup_registers=self._sizes(table, "warpgroup_registers"),
        )

    def _sizes(self, table: Table, key: str, count: int | None = None) -> Any:
        """Return one function for all formulas of a key; None without the key.

        Args:
            count: how many formulas are required; None: at least one.
        """
        if key not in table.values:
            return None
        sizes = self._expressions(table, key, "a list of formulas")
        if not sizes or count not in (None, len(sizes)):
            table.error(key, f"it has {count or 'some'} sizes, not {len(sizes)}")
        return self.scope.tuple_function(sizes)

    def _block(self, table: Table) -> list[Expression]:
        """Return the number of threads, or the CTA's three sizes."""
        if not isinstance(table.values.get("threads"), list):
            sizes = [self._expression(table, "threads")]
        else:
            sizes = self._expressions(table, "threads", "a list of formulas: x, y, z")
            if not 1 <= len(sizes) <= 3:
                table.error("threads", f"it has up to three sizes (x, y, z), not {len(sizes)}")
            sizes += [self.scope.number(1)] * (3 - len(sizes))
        return sizes

    def _cpp(self, table: Table, key: str, text: str) -> TextFormula:
        try:
            return self.scope.function(self.scope.cpp(text))
        except FormulaError as error:
            table.error(key, str(error), code=error.code)

    def _macros(self) -> tuple[tuple[str, TextFormula], ...] | None:
        """Return the block's own macros; None if it has no `defines`."""
        if "defines" not in self.block.values:
            return None
        table = self.block.table("defines")
        macros = []
        for name, value in table.values.items():
            if not _MACRO.fullmatch(name):
                table.error(name, "it is not a macro name")
            text = str(int(value)) if isinstance(value, bool) else value
            if isinstance(text, int):
                text = str(text)
            if not isinstance(text, str) or not text.isprintable():
                table.error(
                    name,
                    "it is a whole number, or C++ text on one line in quotes",
                    code="macro_value",
                )
            macros.append((name, self._cpp(table, name, text)))
        return tuple(macros)

    def _require_all_tensors(self, passes: Iterable[Pass], *, is_backward: bool) -> set[str]:
        """Return the buffers that the passes use, after checking that none is missing or unused."""
        used = {name for launch in passes for name in pointers_of(launch.args)}
        for name in (*TENSORS, *((DOUT, LSE, *GRADIENTS) if is_backward else ())):
            if name not in used and not (PACKED in used and name != "out"):
                self.block.error(
                    "passes", f"no pass takes the argument `{name}`", code="argument_not_taken"
                )
        for name in self.buffers:
            if name not in used:
                self.block.table("scratch").error(name, "no pass takes this buffer")
        return used

    def _equal_lengths_constraints(
        self, variant_id: str, known: Collection[str]
    ) -> Iterator[Constraint]:
        """Yield the constraint seqlen = seqlen_kv if the kernel does not get the number of keys."""
        if "seqlen_kv" in known:
            return
        name = variant_id.replace("{", "{{").replace("}", "}}")
        sentence = self.scope.sentence(
            f"{name} does not get the number of keys and assumes as many as queries, but there are "
            "{seqlen_kv:,} keys and {seqlen:,} queries: choose equal numbers, or give it the "
            "argument seqlen_kv."
        )
        holds = self.scope.condition("seqlen == seqlen_kv")
        yield Constraint(self.scope.function(holds), self.scope.function(sentence))

    def _grid_limits(self, variant_id: str, grids: Iterable[list[Expression]]) -> list[Constraint]:
        """Return CUDA's limits of the grid as constraints, one for each formula that may exceed a
        limit."""
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

    def _work(self, threads: IntFormula, grid: list[Expression], unit: MathUnit) -> Work:
        table = self.block.table("work", {})
        known = ("math_unit", "math_threads", "query_rows", "kv_rows", "conflict_ways", "schedule")
        table.allow(*known)
        optional = {
            key: self._formula(table, key)
            for key in ("math_threads", "conflict_ways", "query_rows")
            if key in table.values
        }
        return Work(
            math_unit=table.choice("math_unit", get_args(MathUnit), unit),
            math_threads=optional.get("math_threads", threads),
            query_rows=optional.get("query_rows") or self.scope.function(self._share(grid)),
            kv_rows=self._formula(table.with_default("kv_rows", "seqlen_kv"), "kv_rows"),
            conflict_ways=optional.get("conflict_ways"),
            schedule=self._schedule(table),
        )

    def _schedule(self, work: Table) -> Schedule | None:
        if "schedule" not in work.values:
            return None
        table = work.table("schedule")
        table.allow("shares", "heads_at_once", "start_tiles")
        return Schedule(
            table.choice("shares", get_args(Shares)),
            *(
                self._formula(table, name) if name in table.values else None
                for name in ("heads_at_once", "start_tiles")
            ),
        )

    def _share(self, grid: list[Expression]) -> Expression:
        """Return the query rows of a CTA if all CTAs have an equal share."""
        return self.scope.share("batch * num_heads * seqlen", self.scope.product(grid))
