"""The arithmetic of v13's shares on the host: correct for costs of a head beyond 2^31."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from engine.base.cxx import find_toolchain
from kernels.ladder import by_id

BLOCK_M, BLOCK_N = 64, 32
START_TILES = 2  # cost of a query tile without its keys, in key tiles
MILLION = 1 << 20


def _program(causal: bool) -> str:
    """Return the kernel's functions with a `main` that prints a head's cost."""
    source = by_id("v13").source.read_text("utf-8")
    functions = []
    for name in ("tiles_of", "cost_of", "cost_of_head"):
        found = re.search(rf"__device__ __forceinline__ [\w ]+\b{name}\(.*?\n}}\n", source, re.S)
        assert found is not None, name
        functions.append(found[0].replace("__device__ __forceinline__", "static"))
    start = re.search(r"constexpr int START_TILES = [^;]+;", source)
    assert start is not None
    return "\n".join(
        (
            "#include <algorithm>\n#include <cstdio>\n#include <cstdlib>\nusing std::min;",
            f"constexpr int BLOCK_M = {BLOCK_M}, BLOCK_N = {BLOCK_N}, HEAD_DIM = 64;",
            f"constexpr bool IS_CAUSAL = {str(causal).lower()};",
            start[0],
            *functions,
            "int main(int, char** given) {",
            "    const int tiles = std::atoi(given[1]), keys = std::atoi(given[2]);",
            '    std::printf("%lld\\n", (long long)cost_of_head(tiles, keys));',
            "}",
        )
    )


@pytest.mark.parametrize("causal", [False, True])
def test_the_cost_of_a_head_may_exceed_2_to_the_31(causal: bool, tmp_path: Path) -> None:
    source, program = tmp_path / "cost.cpp", tmp_path / "cost"
    source.write_text(_program(causal), "utf-8")
    subprocess.run([*find_toolchain().command, str(source), "-o", str(program)], check=True)
    for seqlen in (BLOCK_M, 1000, 3 * MILLION, 5 * MILLION):
        rows = range(0, seqlen, BLOCK_M)
        seen = [min(seqlen, row + BLOCK_M) if causal else seqlen for row in rows]
        wanted = sum(START_TILES - (-keys // BLOCK_N) for keys in seen)
        said = subprocess.check_output([str(program), str(len(rows)), str(seqlen)], text=True)
        assert int(said) == wanted
    assert wanted > 2**31
