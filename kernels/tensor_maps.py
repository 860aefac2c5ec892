"""Tensor maps, as a description block lists them: what TMA copies to shared memory, and how.

    [tensor_maps]
    k_map = {tensor = "k", box = [64, "block_n", 1, 1], swizzle = 128}
    q_map = {tensor = "q", dims = ["head_dim", "head", "row", "batch"], box = [64, 4, 16, 1]}

A map stands among the arguments of a pass by its name, and the kernel takes it by value, as a
`const __grid_constant__` structure of 128 bytes, aligned to 64. `dims` are the tensor's dimensions
in the order of the copy's coordinates, head_dim, row, head, batch where it is left out; `box` says
how many elements of each a copy brings. `swizzle` is 0, 32, 64 or 128 bytes, or a formula; 128.
What lies outside of the tensor arrives as zeros, and is not stored. Backward kernels have maps of
dout, dq, dk and dv, too.
"""

from __future__ import annotations

from typing import Final, get_args

from kernels.formula import Expression, FormulaError, Scope
from kernels.toml_block import Table, shown
from kernels.variant import DOUT, GRADIENTS, TENSORS, TensorDim, TensorMap

DIMS: Final[tuple[TensorDim, ...]] = get_args(TensorDim)


def read_tensor_map(
    table: Table, name: str, scope: Scope, *, is_backward: bool = False
) -> TensorMap:
    """The map that a table describes.

    Raises:
        KernelDescriptionError: there is a mistake in it.
    """
    table.allow("tensor", "dims", "box", "swizzle")
    tensor = table.choice("tensor", (*TENSORS, *((DOUT, *GRADIENTS) if is_backward else ())))
    like = tensor.removeprefix("d")  # a gradient lies as what it is of
    dims = _dims(table)
    box = table.items("box", "a list of formulas, one for each dimension")
    if len(box) != len(dims):
        table.error("box", f"it has {len(dims)} sizes ({', '.join(dims)}), not {len(box)}")
    swizzle = table.get("swizzle", (int, str), "a number of bytes or a formula", 128)

    def number(key: str, formula: object) -> Expression:
        try:
            return scope.number(formula)
        except FormulaError as error:
            table.error(key, str(error))

    boxes, swizzle_bytes = [number("box", size) for size in box], number("swizzle", swizzle)
    heads, rows = ("num_heads_kv", "seqlen_kv") if like in "kv" else ("num_heads", "seqlen")
    size_of = dict(zip(DIMS, ("head_dim", rows, heads, "batch"), strict=True))
    told = set(scope.used)  # a map's bounds tell the kernel nothing
    sizes = [scope.number(size_of[dim]) for dim in dims]
    scope.used.intersection_update(told)
    return TensorMap(
        name,
        tensor,
        sizes=scope.tuple_function(sizes),
        strides=scope.tuple_function(scope.number(f"{like}_stride_{dim}") for dim in dims[1:]),
        box=scope.tuple_function(boxes),
        swizzle_bytes=scope.function(swizzle_bytes),
    )


def _dims(table: Table) -> list[TensorDim]:
    dims = table.items("dims", f"a list of {', '.join(DIMS)}", list(DIMS))
    if dims[:1] != ["head_dim"] or sorted(map(str, dims)) != sorted(DIMS):
        table.error("dims", f"it orders {', '.join(DIMS)}, head_dim first, not {shown(dims)}")
    return dims
