"""Tensor maps in a description block, by which TMA copies boxes of a tensor to shared memory.

    [tensor_maps]
    k_map = {tensor = "k", box = [64, "block_n", 1, 1], swizzle = 128}
    q_map = {tensor = "q", dims = ["head_dim", "head", "row", "batch"], box = [64, 4, 16, 1]}

A map is an argument of a pass under its name. The kernel's parameter is a
`const __grid_constant__` structure of 128 bytes, passed by value and aligned to 64. `dims` are the
tensor's dimensions in the order of the copy's coordinates; default: head_dim, row, head, batch.
`box` has the elements that one copy transfers along each of them. `swizzle` is 0, 32, 64 or 128
bytes, or a formula; default: 128. Elements outside of the tensor are read as zeros and not written.
Maps of backward kernels may be of dout, dq, dk and dv, too.
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
    """Return the tensor map that a table describes.

    Args:
        name: of the map, as arguments use it.
        scope: for its formulas.
        is_backward: True if gradients are possible tensors.

    Raises:
        KernelDescriptionError: there is a mistake in the table.
    """
    table.allow("tensor", "dims", "box", "swizzle")
    tensor = table.choice("tensor", (*TENSORS, *((DOUT, *GRADIENTS) if is_backward else ())))
    like = tensor.removeprefix("d")  # a gradient has the layout of its tensor
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
    used = set(scope.used)  # the kernel does not get the numbers in a map's bounds
    sizes = [scope.number(size_of[dim]) for dim in dims]
    scope.used.intersection_update(used)
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
