"""Following only the printed advice makes a deliberately slow kernel 3 times as fast.

The edits are scripted and selected by the code of an advice. One of them breaks the kernel, and the
loop must revert it.
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine.cli.mcp_server import Rights, Tools
from tests.gate.repositories import edit, kernel_file, repository

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is an extra")

PROBLEM, GPU = "B4 H8 S512 D64", "L4"
LOAD = "            vector = *reinterpret_cast<const uint4*>(source);"
BY_ELEMENT = (
    "            for (int e = 0; e < VECTOR; e++)\n"
    "                reinterpret_cast<element*>(&vector)[e] = source[e];"
)
POOR = (
    ("ROW_STRIDE = HEAD_DIM + VECTOR", "ROW_STRIDE = HEAD_DIM"),  # bank conflicts
    (LOAD, BY_ELEMENT),  # 2 bytes a load
    ("unroll 4", "unroll 1"),  # loads do not overlap
)
BARRIER = (
    "        // Every warp reads rows that other warps loaded.\n        __syncthreads();\n",
    "        // Every warp reads rows that other warps loaded.\n",
)
PADDED, WIDE, AHEAD = ((new, old) for old, new in POOR)
# The edit that follows from each advice, by the code of the advice.
EDITS = {
    "tensor_idle": BARRIER,
    "conflicts": PADDED,
    "narrow": WIDE,
    "packing": WIDE,
    "sectors": WIDE,
    "copy_ahead": AHEAD,
}


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("native", [True, False], ids=["native", "machine-code"])
def test_following_advice_makes_a_poor_kernel_three_times_as_fast(
    tmp_path: Path, native: bool
) -> None:
    repo = repository(tmp_path / "r", "v08").resolve()
    source = kernel_file(repo, "v08").rename(repo / "kernels" / "mine.cu")
    edit(source, *POOR)
    tools = Tools(Rights(repo, run=native, seconds=300.0), tmp_path / "data")
    asyncio.run(_improve(tools, source))


async def _improve(tools: Tools, source: Path) -> None:
    name = f"kernels/{source.name}"
    first = await tools.advice(name, PROBLEM, GPU)
    now, tried, taken_back = first, set(), []
    while True:
        codes = [each["code"] for each in now["advice"]]
        chosen = next((c for c in codes if c in EDITS and EDITS[c] not in tried), None)
        if chosen is None:
            break
        tried.add(EDITS[chosen])
        before = source.read_text()
        edit(source, EDITS[chosen])
        after = await tools.advice(name, PROBLEM, GPU)
        checked = await tools.check(name, "B1 H1 S130 D64", GPU)
        if checked["status"] == "PASSED" and after["predicted_us"] <= now["predicted_us"]:
            now = after
        else:
            source.write_text(before)
            taken_back.append((chosen, checked["status"]))
    assert [code for code, status in taken_back if status != "PASSED"] == ["tensor_idle"]
    assert first["predicted_us"] / now["predicted_us"] >= 3.0
    final = await tools.check(name, "B1 H1 S130 D64", GPU)
    assert final["status"] == "PASSED", final["reason"]
