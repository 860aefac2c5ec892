"""Arguments of a pass, and layouts of its tensors, in a description block.

    args = ["q", "k", "v", "out", "lse", "seqlen", "softmax_scale",           # known names
            {name = "q_stride_row", ctype = "int64"},                         # with another type
            {name = "window", ctype = "int32", value = "2 * block_n"},        # a formula
            {name = "mask", ctype = "null"},                                  # a null pointer
        {name = "rows", ctype = "int32", value = "seqlen", feature = "lse"},  # only with LSE
            {name = "params", fields = ["q", {name = "scale", ctype = "float32", value = 0.5}]}]

Known names:

- tensors `q k v out`; for the backward pass also `dout` and the outputs `dq dk dv` (`out` and `lse`
  are then inputs);
- `qkv`: Q, K and V in one tensor (`q k v` are then pointers into it);
- `lse`;
- `block_table`: `[batch, pages of a sequence]`, int32, if K and V are paged;
- `alibi_slopes` and `sinks`: `[num_heads]`, float32;
- `k_scale` and `v_scale`: `[num_heads_kv]`, float32, factors of K and V in FP8;
- `seqlens`: `[batch]`, int32, keys of each sequence;
- scratch buffers and tensor maps;
- `batch num_heads num_heads_kv seqlen seqlen_kv head_dim` and `causal` of the problem;
- `softmax_scale`, and `softmax_scale_log2` for exp2;
- strides in elements, by the tensor's layout: `q_stride_batch q_stride_head q_stride_row`, and the
  same for k, v and out.

Arguments of features (slopes, sinks, factors, sequence lengths) are passed only for problems with
the feature, as for a parameter list under `#if HAS_SINKS`; so is `lse` if the kernel `takes` it.
By default, whole numbers are int32 and fractions float32.

With `cu_seqlens_q` and `cu_seqlens_k` (`[batch + 1]`, int32) instead of `seqlens`, sequences of
different lengths are packed: Q, K, V and O are `[sum of lengths, heads, head_dim]`, and these
arguments give the position of each sequence's first row in Q and O, and in K and V.

Layouts, which determine the strides:

    layout = "bshd"                            # of all tensors
    layout = {q = "bshd", out = "bshd"}        # of some; the others are bhsd
    layout = "bs3hd"                           # Q, K and V in one tensor, O as bshd
    layout = {qkv = "bs3hd", out = "bhsd"}     # the same with another layout of O
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, get_args

from kernels.formula import FRACTIONS, FormulaError, Scope
from kernels.toml_block import Table, shown
from kernels.variant import (
    FEATURE_BUFFERS,
    LSE,
    PACKED,
    TENSORS,
    Argument,
    Feature,
    Layout,
    NullPointer,
    Scalar,
    ScalarType,
    Structure,
    TensorMap,
)

NUMBERS: Final = ("batch", "num_heads", "num_heads_kv", "seqlen", "seqlen_kv", "head_dim")
STRIDES: Final = tuple(f"{t}_stride_{d}" for t in TENSORS for d in ("batch", "head", "row"))
KNOWN: Final = (*TENSORS, LSE, *NUMBERS, *STRIDES, "causal", *FRACTIONS)

_PACKED_LAYOUT: Final = "bs3hd"
_NULL: Final = "null"
_FLOATS: Final = ("float32", "float64")
_NAME = re.compile(r"[A-Za-z_]\w*")


def read_layouts(block: Table) -> dict[str, Layout]:
    """Return the layout of each tensor that is not bhsd, and of `qkv` if Q, K and V are one tensor.

    Raises:
        KernelDescriptionError: the block names another tensor or layout.
    """
    if (layout := block.values.get("layout")) == _PACKED_LAYOUT:
        return dict.fromkeys((*TENSORS, PACKED), "bshd")
    if isinstance(layout, dict) and PACKED in layout:
        table = block.table("layout")
        table.allow(PACKED, "out")
        table.choice(PACKED, (_PACKED_LAYOUT,))
        out = table.choice("out", get_args(Layout), "bhsd")
        of_q: dict[str, Layout] = dict.fromkeys((*"qkv", PACKED), "bshd")
        return of_q | ({"out": out} if out != "bhsd" else {})
    table = block
    keys: Mapping[str, str] = dict.fromkeys(TENSORS, "layout")
    if isinstance(block.values.get("layout"), dict):
        table = block.table("layout")
        table.allow(*TENSORS)
        keys = {name: name for name in TENSORS}
    known = (*get_args(Layout), *((_PACKED_LAYOUT,) if table is block else ()))
    chosen = {name: table.choice(key, known, "bhsd") for name, key in keys.items()}
    return {name: layout for name, layout in chosen.items() if layout != "bhsd"}


def stride_formulas(
    layouts: Mapping[str, Layout], keys: str = "seqlen_kv", *, packed: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield (name, formula) of every tensor's strides, in elements.

    Args:
        layouts: layouts of the tensors that are not bhsd.
        keys: formula for the number of contiguous keys: all keys, or those of a page, whose stride
            is then the one between batches.
        packed: Q, K and V are one tensor, `[batch, seqlen, 3, num_heads, head_dim]`.
    """
    for tensor in TENSORS:
        heads, rows = ("num_heads_kv", f"({keys})") if tensor in "kv" else ("num_heads", "seqlen")
        if packed and tensor != "out":
            yield f"{tensor}_stride_batch", "3 * seqlen * num_heads * head_dim"
            yield f"{tensor}_stride_head", "head_dim"
            yield f"{tensor}_stride_row", "3 * num_heads * head_dim"
            continue
        by_row = layouts.get(tensor, "bhsd") == "bshd"
        yield f"{tensor}_stride_batch", f"{heads} * {rows} * head_dim"
        yield f"{tensor}_stride_head", "head_dim" if by_row else f"{rows} * head_dim"
        yield f"{tensor}_stride_row", f"{heads} * head_dim" if by_row else "head_dim"


class ArgumentReader:
    """Parse the arguments of a kernel's passes, and record which names they use."""

    def __init__(
        self, scope: Scope, buffers: Iterable[str], tensor_maps: Mapping[str, TensorMap]
    ) -> None:
        self._scope = scope
        self._tensor_maps = tensor_maps
        self._pointers = (*TENSORS, LSE, *FEATURE_BUFFERS, *buffers)
        self.taken: set[str] = set()

    def read(self, table: Table) -> tuple[Argument, ...]:
        return self._list(table, "args", "a list of arguments")

    def _list(self, table: Table, key: str, expected: str) -> tuple[Argument, ...]:
        return tuple(self._one(table, key, value) for value in table.items(key, expected))

    def _one(self, table: Table, key: str, value: object) -> Argument:
        if isinstance(value, dict):
            return self._described(Table(table.place, value, (*table.keys, key)))
        if isinstance(value, str) and value in self._tensor_maps:
            self.taken.add(value)
            return self._tensor_maps[value]
        if not isinstance(value, str) or value not in (*self._pointers, *KNOWN):
            known = (*self._pointers, *self._tensor_maps, *KNOWN[len(TENSORS) + 1 :])
            near = difflib.get_close_matches(shown(value), known, n=1)
            usual = [name for name in known if name not in STRIDES]
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(usual)}"
            table.error(key, f"there is no argument {shown(value)}: {hint}")
        self.taken.add(value)
        if value in self._pointers:
            return value
        return self._scalar(table, key, value, "float32" if value in FRACTIONS else "int32", value)

    def _described(self, table: Table) -> Argument:
        table.allow("name", "ctype", "value", "fields", "feature")
        name = table.matching("name", _NAME, "a name as in C++")
        if "fields" in table.values:
            return Structure(name, self._list(table, "fields", "a list of arguments"))
        if "ctype" not in table.values:
            hint = f'write "{name}" alone' if name in self._pointers else "give it one, as in C++"
            table.error("", f"args: {name} has no `ctype`: {hint}")
        ctype = table.choice("ctype", (*get_args(ScalarType), _NULL))
        if ctype == _NULL:
            return NullPointer(name)
        known = name in (*NUMBERS, *STRIDES, "causal", *FRACTIONS)
        value = table.get(
            "value",
            (int, str, bool, *((float,) if ctype in _FLOATS else ())),
            "a number or a formula in quotes",
            name if known else ...,
        )
        self.taken |= {name} if known and value == name else set()
        feature = table.choice("feature", get_args(Feature)) if "feature" in table.values else None
        return self._scalar(table, "value", name, ctype, value, feature)

    def _scalar(
        self,
        table: Table,
        key: str,
        name: str,
        ctype: ScalarType,
        formula: object,
        feature: Feature | None = None,
    ) -> Scalar:
        try:
            if isinstance(formula, bool):
                formula = int(formula)
            if ctype in _FLOATS:
                expression = self._scope.real(formula)
            elif ctype == "bool" or formula == "causal":
                expression = self._scope.expression(formula)
            else:
                expression = self._scope.number(formula)
        except FormulaError as error:
            table.error(key, str(error), code=error.code)
        return Scalar(name, ctype, self._scope.function(expression), feature)


def pointers_of(arguments: Iterable[Argument]) -> Iterator[str]:
    """Yield the buffers that arguments point to, including those in structures and tensor maps."""
    for argument in arguments:
        if isinstance(argument, str):
            yield argument
        elif isinstance(argument, TensorMap):
            yield argument.tensor
        elif isinstance(argument, Structure):
            yield from pointers_of(argument.fields)
