"""The order of the tensors' dimensions, as a description block says it.

layout = "bshd"                            # of all tensors
layout = {q = "bshd", out = "bshd"}        # of some; the others are bhsd
layout = "bs3hd"                           # Q, K and V as one tensor, O as bshd
layout = {qkv = "bs3hd", out = "bhsd"}     # and O otherwise
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from kernels.arguments import PACKED, TENSORS
from kernels.toml_block import Table
from kernels.variant import Layout

_PACKED_LAYOUT: Final = "bs3hd"


def read_layouts(block: Table) -> dict[str, Layout]:
    """The layout of each tensor that is not bhsd, and of `qkv` where the three are one."""
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
