"""Removal of each statement of a rung that orders accesses: waits, arrivals, fences, barriers.

Those of Hopper's kernels stand in the tables as well, with the words that must name them; here are
all of every rung, with problems and tunables that execute them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from engine.attention.problem import Problem
from kernels.ladder import LADDER
from kernels.variant import Variant
from planted_bugs.hopper import ordering_statements

_OTHERS = re.compile(
    r"\b(?:cp_async_(?:commit|wait|wait_all)(?:<[^>;]*>)?\(\)|cluster_(?:arrive|wait)\(\)"
    r"|mbarrier_arrive_at\([^;]*\)|__threadfence\(\));|__syncthreads_or(?=\()"
)
_CLUSTERS = (
    {"num_splits": 4, "cluster_size": 2, "num_warps": 2},  # two clusters to fuse
    {"num_splits": 2, "cluster_size": 2, "num_warps": 2},
)
_PERSISTENT = {"num_ctas": 4, "block_n": 64}
# Besides the defaults: rings that wrap around, several CTAs that synchronise.
_CONFIGS: dict[str, tuple[dict[str, int], ...]] = {
    "v05": ({"num_splits": 2},),
    "v06": ({"num_splits": 2},),
    "v10": ({"block_n": 32}, {"block_n": 32, "stages": 3}),
    "v11": ({"stages": 3},),
    "v12": ({"num_warps": 8, "row_warps": 4, "keys_per_warp": 64},),
    "v13": ({"num_ctas": 4},),
    "v14": ({"num_splits": 2}, *_CLUSTERS),
    "v15": ({"block_n": 64},),
    "v16": ({"block_n": 64},),
    "v17": ({"block_n": 64},),
    "v18": ({"block_n": 64},),
    "v19": (_PERSISTENT, {**_PERSISTENT, "cluster_size": 2}),
    "v20": (_PERSISTENT,),
    "v21": ({"num_splits": 2}, *_CLUSTERS),
    "v24": ({"stages": 2},),
}


def tried(variant: Variant) -> list[tuple[Problem, dict[str, int]]]:
    """Return odd problems and tunables that are tried in order until the removal is found."""
    if variant.is_backward:
        long = Problem(1, 1, 330, 128, direction="backward")  # more tiles than v26 has stages
        problems = [Problem(1, 1, 150, 64, direction="backward"), long]
    elif variant.id == "v12":  # the most keys of a CTA
        problems = [Problem(1, 1, 113, 64), Problem(1, 1, 260, 32, seqlen_kv=100)]
    elif variant.id == "v22":
        problems = [Problem(1, 1, 113, 64), Problem(1, 1, 260, 32, seqlen_kv=250)]
    else:  # and six query tiles of 128 rows; a share ends within one
        problems = [Problem(1, 2, 260, 32), Problem(1, 3, 200, 64)]
    configs = (*_CONFIGS.get(variant.id, ()), {})
    return [(problem, config) for config in configs for problem in problems]


def left_out(variant: Variant) -> Iterator[tuple[str, str]]:
    """Return (name, the source without it) of each such statement."""
    text = variant.source.read_text(encoding="utf-8")
    code = re.sub(r"//[^\n]*", lambda comment: " " * len(comment[0]), text)
    found = [*ordering_statements(text), *_OTHERS.finditer(code)]
    for statement in sorted(found, key=lambda m: m.start()):
        line = text.count("\n", 0, statement.start()) + 1
        # A vote without its barrier is replaced by each thread's own value.
        instead = ";" if statement[0].endswith(";") else ""
        source = text[: statement.start()] + instead + text[statement.end() :]
        yield f"line {line}, {statement[0]}", source


REMOVED = [
    (variant.id, number) for variant in LADDER.every() for number, _ in enumerate(left_out(variant))
]
