"""Tensors that a kernel takes by value, as PyTorch passes them with `packed_accessor32`.

Such an argument is a structure: the address, then a size and then a stride for each axis.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.own_kernels.host_launch import Parameter
from engine.own_kernels.parameter_names import buffer_name, tensor_named
from kernels.variant import PACKED, TENSORS

_ACCESSOR = re.compile(
    r"(?:(?:torch|at)::)?(?:Generic)?PackedTensorAccessor(?P<bits>32|64)?\s*"
    r"<\s*(?P<element>[\w:]+)\s*,\s*(?P<axes>[1-9])\s*(?:,(?P<more>.*))?>",
    re.DOTALL,
)
# `key.size(2)`, `key.sizes()[2]`
_SIZE = re.compile(
    r"\b(?P<name>[A-Za-z]\w*)\s*\.\s*sizes?\s*\((?:\s*\)\s*\[)?\s*(?P<axis>-?\d)\s*[\])]"
)


@dataclass(frozen=True, slots=True)
class Accessor:
    """A parameter of an accessor type: `pointer` is its first member, written as a parameter;
    `axes` the number of dimensions; `index` the type of sizes and strides."""

    pointer: Parameter
    axes: int
    index: str

    def fields(self, tensor: str, layout: str) -> list[str]:
        """Return the sizes and strides, as items of a description's list of fields after the
        pointer.

        Args:
            tensor: the name of the buffer in the description.
            layout: the order of the axes, `bhsd` or `bshd`.
        """
        sizes, strides = _axes(tensor, self.axes, layout)
        name = self.pointer.name
        return [
            f'{{name = "{name}_{what}_{axis}", ctype = "{self.index}", value = {_value(formula)}}}'
            for what, formulas in (("size", sizes), ("stride", strides))
            for axis, formula in enumerate(formulas)
        ]


def accessor_of(parameter: Parameter) -> Accessor | None:
    """Return the accessor that a parameter is; None for other types."""
    match = _ACCESSOR.fullmatch(parameter.type)
    if match is None or parameter.is_pointer:
        return None
    is_small = match["bits"] == "32" or re.search(r",\s*(?:int32_t|int)\s*$", match["more"] or "")
    pointer = replace(parameter, type=match["element"], is_pointer=True)
    return Accessor(pointer, int(match["axes"]), "int32" if is_small else "int64")


def _axes(tensor: str, num_axes: int, layout: str) -> tuple[list[str], list[str]]:
    """Return sizes and strides of a tensor's axes as formulas. An accessor with fewer axes than the
    tensor has its outer axes merged."""
    kv = "_kv" if tensor in ("k", "v") else ""
    heads, rows = f"num_heads{kv}", f"seqlen{kv}"
    middle = [(rows, "row"), (heads, "head")] if layout == "bshd" else [
        (heads, "head"), (rows, "row")
    ]  # fmt: skip
    if tensor == PACKED:
        sizes = ["batch", "seqlen", "3", "num_heads", "head_dim"]
    elif tensor in ("q", "k", "v", "out"):
        sizes = ["batch", *(size for size, _ in middle), "head_dim"]
    else:
        sizes = ["batch", "num_heads", "seqlen", *["1"] * (num_axes - 3)]
    joined = max(len(sizes) - num_axes + 1, 1)
    sizes = [" * ".join(sizes[:joined]), *sizes[joined:], *["1"] * (num_axes - len(sizes))]
    strides = [" * ".join(sizes[axis + 1 :]) or "1" for axis in range(len(sizes))]
    if tensor in ("q", "k", "v", "out"):
        names = ["batch", *(name for _, name in middle)][joined - 1 :]
        strides[: len(names)] = [f"{tensor}_stride_{name}" for name in names]
    return sizes, strides


def _value(formula: str) -> str:
    return formula if formula.isdigit() else f'"{formula}"'


def pointers_of(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the pointers among a kernel's parameters, including those of accessors."""
    accessors = map(accessor_of, parameters)
    return [
        accessor.pointer if accessor else parameter
        for parameter, accessor in zip(parameters, accessors, strict=True)
        if accessor or parameter.is_pointer
    ]


def with_sizes_named(text: str, parameters: Sequence[Parameter], layout: str) -> str:
    """Return the text with sizes of tensors replaced by formulas: `seqlen_kv` for `key.size(2)`.

    A tensor has as many axes as its accessor, else four. If only its first three sizes are used, it
    may have three axes and is left unchanged.

    Args:
        layout: the order of the axes, `bhsd` or `bshd`.
    """
    declared = {
        tensor_named(buffer_name(accessor.pointer.name).split("_")): accessor.axes
        for accessor in map(accessor_of, parameters)
        if accessor is not None
    }
    asked: dict[str, set[int]] = {}
    for match in _SIZE.finditer(text):
        asked.setdefault(match["name"], set()).add(int(match["axis"]))

    def named(match: re.Match[str]) -> str:
        tensor, axis = tensor_named(buffer_name(match["name"]).split("_")), int(match["axis"])
        axes = declared.get(tensor, 5 if tensor == PACKED else 4)
        may_have_three = tensor not in declared and asked[match["name"]] == {0, 1, 2}
        if tensor not in (*TENSORS, PACKED) or may_have_three or not -axes <= axis < axes:
            return match[0]
        formula = _axes(tensor, axes, layout)[0][axis]
        return formula if " " not in formula else f"({formula})"

    return _SIZE.sub(named, text)
