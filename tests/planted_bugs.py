"""Bugs to plant in the kernels of the ladder, and what the check must say of each.

`MUTATIONS` is data; `tests/bench/bench_mutations.py` runs all of it and
`tests/kernels/test_mutations.py` samples it. A mutation that is meant for several variants counts
once for each.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from engine.evaluation import Evaluation, Status
from engine.pipeline.evaluate import Evaluator
from engine.pipeline.request import EvaluationRequest
from engine.problem import Problem
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR

Mode = Literal["plain", "random", "check"]

SCALAR = ("v01", "v02", "v05", "v06")
TILED = ("v03", "v04")
LOOPED = (*SCALAR, *TILED, "v08", "v09")  # over key tiles, K and V by load_tile
ALL = (*LOOPED, "v07", "v10", "v11", "v12", "v14")
SPLIT = ("v05", "v06")

# Odd sizes; v12 takes at most 128 keys with its default config.
_ODD = (Problem(1, 3, 200, 64), Problem(2, 2, 77, 64, dtype="bfloat16"))
_CAUSAL = (Problem(1, 2, 200, 64, causal=True), Problem(2, 2, 77, 64, True, "bfloat16"))
_SHORT_ODD = (Problem(1, 3, 113, 64), Problem(2, 2, 77, 64, dtype="bfloat16"))
_SHORT_CAUSAL = (Problem(1, 2, 113, 64, causal=True), Problem(2, 2, 77, 64, True, "bfloat16"))
# One key more than whole tiles.
_ONE_MORE = (Problem(1, 2, 193, 64),)

# Two query heads to a K/V head.
_GQA = (Problem(2, 4, 113, 64, num_heads_kv=2),)

Shapes = Literal["odd", "causal", "one more", "gqa"]


@dataclass(frozen=True)
class Mutation:
    """A change to a kernel's text.

    `words`: one of them must be in what the check says; the line that was changed does as well.
    """

    name: str
    variants: tuple[str, ...]
    old: str
    new: str
    words: tuple[str, ...]
    shapes: Shapes = "odd"
    nth: int | None = None  # which place of several; None: all of them
    header: str = ""  # the file that is changed, if it is not the variant's own
    config: dict[str, int] = field(default_factory=dict)

    def problems(self, variant: str) -> tuple[Problem, ...]:
        """What it is tried on, one after the other until it is found."""
        if self.shapes in ("one more", "gqa"):
            return _ONE_MORE if self.shapes == "one more" else _GQA
        if variant == "v12":
            return _SHORT_ODD if self.shapes == "odd" else _SHORT_CAUSAL
        return _ODD if self.shapes == "odd" else _CAUSAL


@dataclass(frozen=True)
class Seen:
    """What one mode said of a mutation."""

    found: bool
    named: bool  # one of the words, or the changed line
    text: str
    warned: bool = False  # found by a warning alone


def cases() -> list[tuple[str, Mutation]]:
    """(variant, mutation), in the order of the table."""
    return [(variant, mutation) for mutation in MUTATIONS for variant in mutation.variants]


def plant(mutation: Mutation, variant: str, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Write the mutated kernel with its headers.

    Returns:
        Its source, and the places `file:line` that were changed.
    """
    source = by_id(variant).source
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, folder)
    shutil.copy(source, folder)
    changed = folder / (mutation.header or source.name)
    pieces = changed.read_text(encoding="utf-8").split(mutation.old)
    if len(pieces) <= (mutation.nth or 0) + 1:
        raise AssertionError(f"{changed.name} no longer holds {mutation.old!r}")
    places, text = [], pieces[0]
    for index, piece in enumerate(pieces[1:]):
        here = mutation.nth in (None, index)
        if here:
            line = text.count("\n") + 1
            lines = range(line, line + mutation.old.strip("\n").count("\n") + 1)
            places += [f"{changed.name}:{number}" for number in lines]
        text += (mutation.new if here else mutation.old) + piece
    changed.write_text(text, encoding="utf-8")
    return folder / source.name, tuple(places)


def look(evaluator: Evaluator, mutation: Mutation, variant: str, mode: Mode, folder: Path) -> Seen:
    """Evaluate the mutated kernel in one mode, on its problems until it is found."""
    source, places = plant(mutation, variant, folder)
    seen = Seen(False, False, "")
    for problem in mutation.problems(variant):
        request = EvaluationRequest(
            variant,
            problem,
            mutation.config,
            backend="cpu",
            check=mode == "check",
            schedule="random" if mode == "random" else "in_order",
            timeout_s=20.0,
        )
        evaluation = evaluator.evaluate(request, source=source).evaluation
        if (seen := _seen(evaluation, mutation, places)).found:
            return seen
    return seen


def _seen(evaluation: Evaluation, mutation: Mutation, places: tuple[str, ...]) -> Seen:
    correctness = evaluation.correctness
    said = [evaluation.reason]
    warned = False
    if evaluation.status is Status.SKIPPED:
        raise AssertionError(f"{evaluation.variant} cannot show {mutation.name}: {said[0]}")
    if evaluation.status is Status.PASSED:
        said = list(correctness.warnings) if correctness is not None else []
        warned = bool(said)
    elif correctness is not None:
        said += [f"{f.sentence} ({f.place})" for f in correctness.findings]
    text = " | ".join(said)
    named = any(word in text for word in mutation.words) or any(
        re.search(rf"{re.escape(place)}\b", text) for place in places
    )
    return Seen(evaluation.status is not Status.PASSED or warned, named, text, warned)


_MASK = ("missing tail mask",)
_ONE_KEY = ("one padded key",)
_OFF_BY_ONE = ("off by one",)
_RACE = (
    "__syncthreads() or __syncwarp() is missing",
    "with no barrier since",
    "no barrier orders",
    "a barrier is missing",
)
_MAXIMUM = ("maximum",)
_BOUNDS = ("out of bounds",)

MUTATIONS: tuple[Mutation, ...] = (
    # ---- masks ----
    Mutation("no tail mask", ALL, "key < seqlen_kv && ", "", _MASK),
    Mutation("tail mask off by one", ALL, "key < seqlen_kv &&", "key <= seqlen_kv &&", _ONE_KEY),
    Mutation(
        "causal mask misses the diagonal",
        (*SCALAR, "v08", "v09", "v10", "v11", "v12"),
        "key <= query",
        "key < query",
        _OFF_BY_ONE,
        "causal",
    ),
    Mutation(
        "causal mask misses the diagonal",
        TILED,
        "key <= m0 + row",
        "key < m0 + row",
        _OFF_BY_ONE,
        "causal",
    ),
    Mutation(
        "causal mask with one key too many",
        (*SCALAR, "v08", "v09", "v10", "v11", "v12"),
        "key <= query",
        "key <= query + 1",
        _OFF_BY_ONE,
        "causal",
    ),
    Mutation(
        "causal mask with one key too many",
        TILED,
        "key <= m0 + row",
        "key <= m0 + row + 1",
        _OFF_BY_ONE,
        "causal",
    ),
    Mutation(
        "no causal mask inside the tiles",
        (*SCALAR, "v08", "v09", "v10", "v11", "v12"),
        "(!IS_CAUSAL || key <= query)",
        "true",
        ("by whole tiles", "without the causal mask"),
        "causal",
    ),
    Mutation(
        "no causal mask inside the tiles",
        TILED,
        "(!IS_CAUSAL || key <= m0 + row)",
        "true",
        ("by whole tiles", "without the causal mask"),
        "causal",
    ),
    # ---- the key loop ----
    Mutation(
        "causal loop ends a query tile early",
        LOOPED,
        "min(seqlen_kv, m0 + BLOCK_M)",
        "min(seqlen_kv, m0)",
        ("sees no key", "keys of its own query tile"),
        "causal",
    ),
    Mutation(
        "loop leaves out the last key",
        LOOPED,
        ": seqlen_kv;",
        ": seqlen_kv - 1;",
        ("leaves out the last",),
        "one more",
    ),
    Mutation(
        "loop begins at the second tile",
        ("v01", "v02", "v03", "v04", "v08", "v09", "v10", "v11"),
        "for (int n0 = 0; n0",
        "for (int n0 = BLOCK_N; n0",
        ("leaving out key tile 0",),
    ),
    Mutation(
        "loop takes every second tile",
        ("v01", "v02", "v03", "v04", "v08", "v09", "v10", "v11"),
        "n0 += BLOCK_N",
        "n0 += 2 * BLOCK_N",
        ("every second key tile", "leaving out key tile 1"),
    ),
    # ---- the online softmax ----
    Mutation("l not rescaled", ("v01", "v02"), "l *= correction;", "", ("rescales O but not l",)),
    Mutation(
        "l not rescaled",
        SPLIT,
        "l *= correction;",
        "",
        ("rescales O but not l",),
        config={"num_splits": 2},
    ),
    Mutation("l not rescaled", TILED, "l_rmem[i] *= correction;", "", ("rescales O but not l",)),
    Mutation(
        "l not rescaled",
        (
            "v08",
            "v09",
            "v10",
        ),
        "l_rmem[r] *= correction[r];",
        "",
        ("rescales O but not l",),
    ),
    Mutation(
        "O not rescaled",
        ("v01", "v02"),
        "acc_rmem[d] *= correction;",
        ";",
        ("rescales l but not O",),
    ),
    Mutation(
        "O not rescaled",
        SPLIT,
        "acc_rmem[d] *= correction;",
        ";",
        ("rescales l but not O",),
        config={"num_splits": 2},
    ),
    Mutation(
        "half of O not rescaled",
        TILED,
        "acc_rmem[i][j].x *= correction;",
        "",
        ("rescales l but not O",),
    ),
    Mutation(
        "O not rescaled",
        (
            "v08",
            "v09",
            "v10",
        ),
        "acc_rmem[tile][i] *= correction[i / 2];",
        ";",
        ("rescales l but not O",),
    ),
    Mutation(
        "rows' corrections exchanged",
        (
            "v08",
            "v09",
            "v10",
            "v11",
        ),
        "*= correction[i / 2];",
        "*= correction[1 - i / 2];",
        ("rescale", "correction"),
    ),
    Mutation(
        "scores not scaled",
        SCALAR,
        "score * softmax_scale",
        "score",
        ("without the scale",),
    ),
    Mutation(
        "scores not scaled",
        ("v07", "v08", "v09", "v10", "v11", "v12", "v14"),
        "softmax_scale * LOG2_E",
        "LOG2_E",
        ("without the scale",),
    ),
    Mutation(
        "exp2 for exp",
        ("v07", "v08", "v09", "v10", "v11", "v12", "v14"),
        "softmax_scale * LOG2_E",
        "softmax_scale",
        ("exp2 of scores",),
    ),
    Mutation(
        "scores not scaled",
        TILED,
        "s_rmem[i][j] * softmax_scale",
        "s_rmem[i][j]",
        ("without the scale",),
    ),
    Mutation("exp2 for exp", (*SCALAR, *TILED), "__expf(", "exp2f(", ("exp2 of scores",)),
    Mutation(
        "maximum begins at 0",
        ("v01", "v02"),
        "float m = -INFINITY;",
        "float m = 0.0f;",
        _MAXIMUM,
    ),
    Mutation(
        "maximum begins at 0",
        SPLIT,
        "float m = -INFINITY;",
        "float m = 0.0f;",
        _MAXIMUM,
        nth=0,
    ),
    Mutation("maximum begins at 0", TILED, "m_rmem[i] = -INFINITY;", "m_rmem[i] = 0.0f;", _MAXIMUM),
    Mutation(
        "maximum begins at 0",
        (
            "v08",
            "v09",
            "v10",
        ),
        "{-INFINITY, -INFINITY};",
        "{0.0f, 0.0f};",
        _MAXIMUM,
    ),
    Mutation(
        "maximum begins at 0",
        ("v12",),
        "m_rmem[t][1] = -INFINITY;",
        "m_rmem[t][1] = 0.0f;",
        _MAXIMUM,
    ),
    Mutation(
        "maximum never taken",
        SCALAR,
        "m_new = fmaxf(m_new, score);",
        "m_new = 0.0f;",
        _MAXIMUM,
    ),
    Mutation(
        "maximum never taken",
        TILED,
        "m_new = fmaxf(m_new, s_rmem[i][j]);",
        "m_new = 0.0f;",
        _MAXIMUM,
    ),
    Mutation(
        "maximum never taken",
        (
            "v08",
            "v09",
            "v10",
        ),
        "m_new[i / 2] = fmaxf(m_new[i / 2], s_rmem[tile][i]);",
        "m_new[i / 2] = 0.0f;",
        _MAXIMUM,
    ),
    Mutation(
        "maximum of the other row",
        (
            "v08",
            "v09",
            "v10",
        ),
        "m_new[i / 2] = fmaxf(m_new[i / 2], s_rmem[tile][i]);",
        "m_new[1 - i / 2] = fmaxf(m_new[1 - i / 2], s_rmem[tile][i]);",
        _MAXIMUM,
    ),
    Mutation(
        "maximum of the other row",
        ("v12",),
        "fmaxf(scores[2 * r], scores[2 * r + 1])",
        "fmaxf(scores[2 - 2 * r], scores[3 - 2 * r])",
        _MAXIMUM,
    ),
    Mutation(
        "maximum of the last key alone",
        SCALAR,
        "m_new = fmaxf(m_new, score);",
        "m_new = fmaxf(m, score);",
        _MAXIMUM,
    ),
    Mutation(
        "maximum over the whole warp",
        ("v02", "v05", "v06"),
        "lane_bit < THREADS_PER_ROW; lane_bit *= 2) {\n        x = fmaxf",
        "lane_bit < 32; lane_bit *= 2) {\n        x = fmaxf",
        _MAXIMUM,
    ),
    Mutation(
        "maximum over half of the lanes",
        ("v02", "v05", "v06"),
        "lane_bit < THREADS_PER_ROW; lane_bit *= 2) {\n        x = fmaxf",
        "lane_bit < THREADS_PER_ROW / 2; lane_bit *= 2) {\n        x = fmaxf",
        _MAXIMUM,
    ),
    Mutation(
        "maximum over half of the lanes",
        TILED,
        "lane_bit < ROW_THREADS; lane_bit *= 2) {\n        x = fmaxf",
        "lane_bit < ROW_THREADS / 2; lane_bit *= 2) {\n        x = fmaxf",
        _MAXIMUM,
    ),
    Mutation(
        "maximum over half of the lanes",
        ("v08", "v09", "v10", "v11", "v12"),
        "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));",
        "return x;",
        _MAXIMUM,
    ),
    Mutation(
        "maximum over the wrong lanes",
        ("v08", "v09", "v10", "v11", "v12"),
        "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));",
        "return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 4));",
        _MAXIMUM,
    ),
    Mutation(
        "sum over half of the lanes",
        ("v02", "v05", "v06"),
        "lane_bit < THREADS_PER_ROW; lane_bit *= 2) {\n        x +=",
        "lane_bit < THREADS_PER_ROW / 2; lane_bit *= 2) {\n        x +=",
        ("row sum",),
    ),
    Mutation(
        "sum over half of the lanes",
        TILED,
        "lane_bit < ROW_THREADS; lane_bit *= 2) {\n        x +=",
        "lane_bit < ROW_THREADS / 2; lane_bit *= 2) {\n        x +=",
        ("row sum",),
    ),
    Mutation(
        "sum over half of the lanes",
        ("v08", "v09", "v10", "v11", "v12"),
        "return x + __shfl_xor_sync(FULL_WARP, x, 2);",
        "return x;",
        ("row sum",),
    ),
    Mutation("not divided by l", ("v01",), "1.0f / l;", "1.0f;", ("never divided by l",)),
    Mutation("not divided by l", ("v02",), "1.0f / row_sum(l);", "1.0f;", ("never divided by l",)),
    Mutation(
        "not divided by l", TILED, "1.0f / row_sum(l_rmem[i]);", "1.0f;", ("never divided by l",)
    ),
    Mutation(
        "not divided by l",
        (
            "v08",
            "v09",
            "v10",
        ),
        "1.0f / row_sum(l_rmem[r]);",
        "1.0f;",
        ("never divided by l",),
    ),
    Mutation(
        "not divided by l", ("v05",), "acc_rmem[i] / l)", "acc_rmem[i])", ("never divided by l",)
    ),
    Mutation(
        "not divided by l", ("v06",), "acc_rmem[d] / l)", "acc_rmem[d])", ("never divided by l",)
    ),
    Mutation("not divided by l", ("v12",), "1.0f / l;", "1.0f;", ("never divided by l",)),
    Mutation(
        "sum of this thread's keys", ("v02",), "1.0f / row_sum(l);", "1.0f / l;", ("row sum",)
    ),
    Mutation("sum of this thread's keys", SPLIT, "l = row_sum(l);", "", ("row sum",)),
    Mutation(
        "sum of this thread's keys",
        TILED,
        "1.0f / row_sum(l_rmem[i]);",
        "1.0f / l_rmem[i];",
        ("row sum",),
    ),
    Mutation(
        "sum of this thread's keys",
        (
            "v08",
            "v09",
            "v10",
        ),
        "1.0f / row_sum(l_rmem[r]);",
        "1.0f / l_rmem[r];",
        ("row sum",),
    ),
    # ---- the fusion ----
    Mutation(
        "fusion without weights",
        SPLIT,
        "= __expf(m_split - m);",
        "= 1.0f;",
        ("without the rescale by exp(m_i − m)",),
    ),
    Mutation(
        "fusion without weights",
        ("v12",),
        "= fast_exp2((m_smem[w * BLOCK_M + row] - m) * scale_log2);",
        "= 1.0f;",
        ("without the rescale by exp(m_i − m)",),
    ),
    Mutation(
        "fusion forgets the weight of l",
        SPLIT,
        "l += weight * l_partial",
        "l += l_partial",
        ("rescales O_i but not l_i",),
    ),
    Mutation(
        "fusion forgets the weight of l",
        ("v12",),
        "l += weight * l_smem",
        "l += l_smem",
        ("rescales O_i but not l_i",),
    ),
    Mutation(
        "fusion forgets the weight of O",
        ("v05",),
        "+= weight * o_partial",
        "+= o_partial",
        ("rescales l_i but not O_i",),
    ),
    Mutation(
        "fusion forgets the weight of O",
        ("v06",),
        "+= weight * o_row[d]",
        "+= o_row[d]",
        ("rescales l_i but not O_i",),
    ),
    Mutation(
        "fusion forgets the last split",
        ("v05",),
        "split < NUM_SPLITS; split++) {\n        const size_t partial_row",
        "split < NUM_SPLITS - 1; split++) {\n        const size_t partial_row",
        ("leaving out split 3", "leaving out warp 3", "last, partial key tile"),
    ),
    Mutation(
        "fusion forgets the last split",
        ("v06",),
        "s < NUM_SPLITS; s++) {\n        const size_t partial_row",
        "s < NUM_SPLITS - 1; s++) {\n        const size_t partial_row",
        ("leaving out split 3", "leaving out warp 3", "last, partial key tile"),
    ),
    Mutation(
        "merge forgets the last warp",
        ("v12",),
        "for (int w = 0; w < NUM_WARPS; w++) {",
        "for (int w = 0; w < NUM_WARPS - 1; w++) {",
        ("leaving out split 3", "leaving out warp 3", "last, partial key tile"),
    ),
    Mutation(
        "fusion's maximum begins at 0",
        ("v05",),
        "float m = -INFINITY;",
        "float m = 0.0f;",
        _MAXIMUM,
        nth=1,
    ),
    Mutation(
        "fusion's maximum begins at 0",
        ("v06",),
        "    m = -INFINITY;",
        "    m = 0.0f;",
        _MAXIMUM,
    ),
    Mutation(
        "fusion's maximum begins at 0",
        ("v12",),
        "float m = -INFINITY;",
        "float m = 0.0f;",
        _MAXIMUM,
    ),
    Mutation(
        "fusion reads what no CTA wrote",
        SPLIT,
        "if (m_split == -INFINITY) continue;",
        "",
        ("partial result that no CTA wrote", "uninitialised global memory"),
        "causal",
    ),
    Mutation(
        "chunks overlap by a tile",
        SPLIT,
        "(split + 1) * chunk_rows)",
        "(split + 1) * chunk_rows + BLOCK_N)",
        ("first key tile of every split but the first twice", "every split but the first twice"),
    ),
    Mutation(
        "chunks leave out their last tile",
        SPLIT,
        "(split + 1) * chunk_rows)",
        "(split + 1) * chunk_rows - BLOCK_N)",
        ("last key tile of every split",),
        config={"num_splits": 2},
    ),
    Mutation(
        "chunks rounded down",
        SPLIT,
        "(num_tiles + NUM_SPLITS - 1) / NUM_SPLITS * BLOCK_N",
        "num_tiles / NUM_SPLITS * BLOCK_N",
        ("leaving out", "leaves out", "using"),
        config={"num_splits": 2, "block_n": 32},
    ),
    # ---- addresses ----
    Mutation(
        "Q a row too far on",
        (*SCALAR, *TILED),
        "q + q_head, m0, seqlen);",
        "q + q_head, m0 + 1, seqlen);",
        ("the next row",),
    ),
    Mutation(
        "Q a row too far on",
        (
            "v08",
            "v09",
            "v10",
            "v11",
        ),
        "q + q_head + (size_t)query * HEAD_DIM + d;",
        "q + q_head + (size_t)(query + 1) * HEAD_DIM + d;",
        ("the next row", "out of bounds"),
    ),
    Mutation(
        "Q of the first tile",
        (*SCALAR, *TILED),
        "q + q_head, m0, seqlen);",
        "q + q_head, 0, seqlen);",
        ("the first query tile",),
    ),
    Mutation(
        "K a row too far on",
        LOOPED,
        "k + kv_head, n0, seqlen_kv);",
        "k + kv_head, n0 + 1, seqlen_kv);",
        ("K of a head", "K read one row"),
    ),
    Mutation(
        "V a row too early",
        LOOPED,
        "v + kv_head, n0, seqlen_kv);",
        "v + kv_head, n0 - 1, seqlen_kv);",
        ("V of a head", "V read one row", "out of bounds"),
    ),
    Mutation(
        "V without the head's offset",
        LOOPED,
        "v + kv_head, n0,",
        "v, n0,",
        ("where the first head of the first batch begins", "leaves out the head"),
    ),
    Mutation(
        "V without the head's offset",
        ("v12",),
        "v + kv_head + (size_t)",
        "v + (size_t)",
        ("where the first head of the first batch begins", "leaves out the head"),
    ),
    Mutation(
        "K at V's tile",
        LOOPED,
        "load_tile<BLOCK_N>(k_smem, k + kv_head",
        "load_tile<BLOCK_N>(k_smem, v + kv_head",
        ("V in K's place", "K and V"),
    ),
    Mutation(
        "batch without num_heads",
        ("v01", "v02", "v03", "v04"),
        "(size_t)blockIdx.y * num_heads + blockIdx.x;",
        "(size_t)blockIdx.y + blockIdx.x;",
        ("without num_heads", "ever written", "in this launch"),
    ),
    Mutation(
        "batch without num_heads",
        ("v08", "v09", "v10", "v11", "v12"),
        "(size_t)blockIdx.z * num_heads + blockIdx.y;",
        "(size_t)blockIdx.z + blockIdx.y;",
        ("without num_heads", "ever written", "in this launch"),
    ),
    Mutation(
        "K/V head by the remainder",
        (
            "v08",
            "v09",
            "v10",
        ),
        "blockIdx.y / group;",
        "blockIdx.y % num_heads_kv;",
        ("by head % num_heads_kv",),
        "gqa",
    ),
    Mutation(
        "K/V head by the remainder",
        ("v12",),
        "blockIdx.y / (num_heads / num_heads_kv);",
        "blockIdx.y % num_heads_kv;",
        ("by head % num_heads_kv",),
        "gqa",
    ),
    Mutation(
        "K/V head of the query head",
        (
            "v08",
            "v09",
            "v10",
        ),
        "blockIdx.y / group;",
        "blockIdx.y;",
        ("by the query head", *_BOUNDS),
        "gqa",
    ),
    Mutation(
        "load reads one row past the end",
        (*SCALAR,),
        "row < length ?",
        "row <= length ?",
        _BOUNDS,
    ),
    Mutation(
        "load reads one row past the end",
        (*TILED, "v08", "v09", "v10"),
        "first_row + row < length",
        "first_row + row <= length",
        _BOUNDS,
    ),
    Mutation(
        "load reads one row past the end",
        ("v12",),
        "if (row >= length)",
        "if (row > length)",
        _BOUNDS,
    ),
    Mutation(
        "load does not look at the end",
        SCALAR,
        "row < length ?",
        "true ?",
        _BOUNDS,
    ),
    # ---- stores ----
    Mutation(
        "last row not stored",
        ("v01", "v02"),
        "query < seqlen) {",
        "query < seqlen - 1) {",
        ("ever written",),
    ),
    Mutation(
        "last row not stored",
        (*TILED, "v08", "v09", "v10"),
        "if (query >= seqlen) continue;",
        "if (query >= seqlen - 1) continue;",
        ("ever written",),
    ),
    Mutation(
        "last row not stored",
        ("v05", "v06", "v12"),
        "if (query >= seqlen) return;",
        "if (query >= seqlen - 1) return;",
        ("ever written",),
    ),
    Mutation(
        "a row too many stored",
        (*TILED, "v08", "v09", "v10"),
        "if (query >= seqlen) continue;",
        "if (query > seqlen) continue;",
        (*_BOUNDS, "in this launch"),
    ),
    Mutation(
        "a row too many stored",
        ("v05", "v06", "v12"),
        "if (query >= seqlen) return;",
        "if (query > seqlen) return;",
        (*_BOUNDS, "in this launch", "uninitialised global memory"),
    ),
    Mutation(
        "neighbouring columns swapped",
        ("v01",),
        "HEAD_DIM + d] = to_element(acc",
        "HEAD_DIM + (d ^ 1)] = to_element(acc",
        ("column 0 holds column 1",),
    ),
    Mutation(
        "neighbouring columns swapped",
        ("v02", "v06"),
        "out_row[d] = to",
        "out_row[d ^ 1] = to",
        ("column 0 holds column 1",),
    ),
    Mutation(
        "neighbouring tiles of columns swapped",
        (
            "v08",
            "v09",
            "v10",
        ),
        "(out_row + tile * 8 + pair)",
        "(out_row + (tile ^ 1) * 8 + pair)",
        ("column 0 holds column 8",),
    ),
    Mutation(
        "lanes store to another column",
        ("v05",),
        "out[row * HEAD_DIM + 32 * i + lane]",
        "out[row * HEAD_DIM + 32 * i + 31 - lane]",
        ("column 0 holds column 31",),
    ),
    Mutation(
        "V of another column",
        ("v02", "v05", "v06"),
        "v_smem[n * HEAD_DIM + part * DIMS_PER_THREAD + d]",
        "v_smem[n * HEAD_DIM + (part ^ 1) * DIMS_PER_THREAD + d]",
        ("column 0 holds column 16",),
    ),
    Mutation(
        "nothing is stored",
        ("v01",),
        "if (tid < BLOCK_M && query < seqlen) {",
        "if (false) {",
        ("ever written",),
    ),
    Mutation(
        "half of a row is stored",
        ("v02",),
        "d < DIMS_PER_THREAD; d++) out_row",
        "d < DIMS_PER_THREAD / 2; d++) out_row",
        ("ever written",),
    ),
    Mutation(
        "a NaN is stored",
        ("v01", "v02"),
        "const float inv_l = 1.0f /",
        "const float inv_l = (query == 17 ? INFINITY - INFINITY : 1.0f) /",
        ("row 17",),
    ),
    # ---- barriers and lanes ----
    Mutation("no barrier after the loads", LOOPED, "__syncthreads();", ";", _RACE, nth=0),
    Mutation("no barrier before the next tile", LOOPED, "__syncthreads();", ";", _RACE, nth=1),
    Mutation("no barrier before the merge", ("v12",), "__syncthreads();", ";", _RACE),
    Mutation(
        "no warp barrier", ("v02", "v03", "v04", "v05", "v06", "v12"), "__syncwarp();", ";", _RACE
    ),
    Mutation(
        "half of the warp in the mask",
        ("v02", "v03", "v04", "v05", "v06", "v08", "v09", "v10", "v11", "v12"),
        "FULL_WARP = 0xffffffffu",
        "FULL_WARP = 0x0000ffffu",
        ("mask",),
    ),
    Mutation(
        "a barrier that half of the CTA reaches",
        ("v01",),
        "which slower threads are still reading.\n        __syncthreads();",
        "which slower threads read.\n        if (tid < BLOCK_M) __syncthreads();",
        ("__syncthreads", "barrier"),
    ),
    Mutation(
        "rows that drop out before a barrier",
        ("v02",),
        "    load_tile<BLOCK_M>(q_smem",
        "    if (query >= seqlen) return;\n    load_tile<BLOCK_M>(q_smem",
        ("barrier", "uninitialised", "exited", "lane"),
    ),
    # ---- the counter of v06 ----
    Mutation(
        "no release fence",
        ("v06", "v14"),
        "__threadfence();",
        ";",
        ("fence", "in this launch"),
        nth=0,
    ),
    Mutation(
        "no acquire fence",
        ("v06", "v14"),
        "__threadfence();",
        ";",
        ("fence", "in this launch"),
        nth=1,
    ),
    Mutation(
        "thread 0 alone fences",
        ("v06",),
        "    __threadfence();\n    // Thread 0 arrives",
        "    if (threadIdx.x == 0) __threadfence();\n    // Thread 0 arrives",
        ("fence", "in this launch"),
    ),
    Mutation(
        "counter not atomic",
        ("v06",),
        "atomicAdd(tile_arrivals, 1)",
        "(*tile_arrivals)++",
        ("arrivals",),
    ),
    Mutation(
        "fused one split early",
        ("v06", "v14"),
        "== NUM_SPLITS - 1;",
        "== NUM_SPLITS - 2;",
        ("in this launch", "uninitialised global memory"),
    ),
    Mutation(
        "counter not reset",
        ("v06",),
        "if (threadIdx.x == 0) *tile_arrivals = 0;",
        "",
        ("arrivals", "second run"),
    ),
    Mutation(
        "counter of another tile",
        ("v06",),
        "arrivals + head_index * gridDim.z + blockIdx.z",
        "arrivals + head_index + blockIdx.z",
        ("arrivals", "ever written", "in this launch"),
    ),
    Mutation(
        "no barrier before the arrival",
        ("v06",),
        "__syncthreads();",
        ";",
        (*_RACE, "in this launch"),
        nth=2,
    ),
    # ---- precision ----
    Mutation(
        "O summed in 16 bits",
        ("v01",),
        "acc_rmem[d] += p * to_float(v_smem[n * HEAD_DIM + d]);",
        "acc_rmem[d] = to_float(to_element(acc_rmem[d] + p * to_float(v_smem[n * HEAD_DIM + d])));",
        ("precision",),
    ),
    Mutation(
        "l summed in 16 bits",
        ("v01", "v02"),
        "l += p;",
        "l = to_float(to_element(l + p));",
        ("precision", "systematically"),
    ),
    Mutation(
        "S rounded to 16 bits",
        (*SCALAR,),
        "s_row[n] = score;",
        "s_row[n] = to_float(to_element(score));",
        ("precision",),
    ),
    Mutation(
        "P truncated",
        ("v08", "v11", "v12"),
        "    pair.elements = to_element2(low, high);\n",
        "#if IS_BF16\n"
        "    pair.bits = __float_as_uint(low) >> 16 | (__float_as_uint(high) & 0xffff0000u);\n"
        "#else\n"
        "    pair.elements = to_element2(low, high);\n"
        "#endif\n",
        ("systematically",),
        header="mma.cuh",
    ),
    # ---- fragments of v08 and v12 ----
    Mutation(
        "K's fragments exchanged",
        (
            "v08",
            "v09",
            "v10",
        ),
        "q_rmem[step], k_rmem[0], k_rmem[1]);",
        "q_rmem[step], k_rmem[1], k_rmem[0]);",
        ("mma",),
    ),
    Mutation(
        "V's fragments exchanged",
        (
            "v08",
            "v09",
            "v10",
        ),
        "p_rmem, v_rmem[0], v_rmem[1]);",
        "p_rmem, v_rmem[2], v_rmem[3]);",
        ("columns",),
    ),
    Mutation(
        "P's rows exchanged",
        (
            "v08",
            "v09",
            "v10",
        ),
        "pack(left[0], left[1]), pack(left[2], left[3])",
        "pack(left[2], left[3]), pack(left[0], left[1])",
        ("mma", "row"),
    ),
    Mutation(
        "P's rows exchanged",
        ("v12",),
        "p_rmem[t][0] = pack(left[0], left[1]), p_rmem[t][1] = pack(left[2], left[3]);",
        "p_rmem[t][1] = pack(left[0], left[1]), p_rmem[t][0] = pack(left[2], left[3]);",
        ("mma", "row"),
    ),
    Mutation(
        "ldmatrix reads the same 8 rows twice",
        (
            "v08",
            "v09",
            "v10",
        ),
        "lane / 16 * 8 + lane % 8;",
        "lane % 8;",
        ("mma", "ldmatrix"),
    ),
    Mutation(
        "output rows 8 apart exchanged",
        (
            "v08",
            "v09",
            "v10",
        ),
        "const int query = query0 + r * 8;",
        "const int query = query0 + (1 - r) * 8;",
        ("row 0 holds row 8",),
    ),
    Mutation(
        "no wait for the copies",
        ("v12",),
        "        cp_async_wait_all();",
        "",
        ("waited", "asynchronous copy", "cp.async"),
    ),
    Mutation(
        "V copied to another row",
        ("v12",),
        "cp_async_16(v_smem + row * V_STRIDE + d,",
        "cp_async_16(v_smem + (row ^ 1) * V_STRIDE + d,",
        ("of V", "V of", "V read"),
    ),
    Mutation(
        "the second step of Q and K left out",
        ("v12",),
        "mma_m16n8k16(s_rmem[t][tile], second[t], keys.z, keys.w);",
        "",
        ("columns of Q and K",),
    ),
    # ---- inline PTX ----
    *(
        Mutation(name, (variant,), old, new, words, nth=nth, header=header)
        for name, header, old, new, nth, variant, words in (
            (
                "K loaded transposed",
                "mma.cuh",
                "m8n8.x4.shared",
                "m8n8.x4.trans.shared",
                0,
                "v08",
                ("mma",),
            ),
            (
                "V loaded plain",
                "mma.cuh",
                "m8n8.x4.trans.shared",
                "m8n8.x4.shared",
                0,
                "v08",
                ("mma",),
            ),
            (
                "V loaded plain",
                "mma.cuh",
                "m8n8.x4.trans.shared",
                "m8n8.x4.shared",
                0,
                "v12",
                ("mma",),
            ),
            (
                "matrices swapped",
                "mma.cuh",
                "{%0, %1, %2, %3}, [%4];",
                "{%1, %0, %2, %3}, [%4];",
                0,
                "v08",
                ("mma",),
            ),
            (
                "matrices of V swapped",
                "mma.cuh",
                "{%0, %1, %2, %3}, [%4];",
                "{%0, %2, %1, %3}, [%4];",
                1,
                "v12",
                ("mma",),
            ),
            (
                "address 16 bytes on",
                "mma.cuh",
                "{%0, %1, %2, %3}, [%4];",
                "{%0, %1, %2, %3}, [%4+16];",
                0,
                "v08",
                ("mma", "uninitialised shared"),
            ),
            (
                "address misaligned",
                "mma.cuh",
                "{%0, %1, %2, %3}, [%4];",
                "{%0, %1, %2, %3}, [%4+2];",
                1,
                "v08",
                ("align",),
            ),
            ("halves of B swapped", "mma.cuh", "{%8, %9}", "{%9, %8}", 0, "v08", ("mma",)),
            (
                "rows of A swapped",
                "mma.cuh",
                "{%4, %5, %6, %7}",
                "{%5, %4, %7, %6}",
                0,
                "v12",
                ("mma", "row"),
            ),
            (
                "columns of A swapped",
                "mma.cuh",
                "{%4, %5, %6, %7}",
                "{%6, %7, %4, %5}",
                0,
                "v08",
                ("mma",),
            ),
            ("one B twice", "mma.cuh", "{%8, %9}", "{%8, %8}", 0, "v12", ("mma",)),
            (
                "sums of the wrong rows",
                "mma.cuh",
                ", {%0, %1, %2, %3};",
                ", {%2, %3, %0, %1};",
                0,
                "v08",
                ("mma",),
            ),
            (
                "result of the wrong columns",
                "mma.cuh",
                '"{%0, %1, %2, %3}, {%4',
                '"{%1, %0, %3, %2}, {%4',
                0,
                "v08",
                ("mma",),
            ),
            (
                "sums not read",
                "mma.cuh",
                ", {%0, %1, %2, %3};",
                ", {0f00000000, 0.0, 0.0, 0.0};",
                0,
                "v08",
                ("mma",),
            ),
            (
                "another element type",
                "mma.cuh",
                "f32.f16.f16.f32",
                "f32.bf16.bf16.f32",
                0,
                "v08",
                ("mma",),
            ),
            (
                "half the products",
                "mma.cuh",
                "m16n8k16.row.col.f32.f16",
                "m16n8k8.row.col.f32.f16",
                0,
                "v08",
                ("mma",),
            ),
            ("A by columns", "mma.cuh", ".row.col.f32.f16", ".col.col.f32.f16", 0, "v08", ("mma",)),
            ("sums written only", "mma.cuh", '"+f"(d[3])', '"=f"(d[3])', 0, "v08", ("mma",)),
            ("sums of another index", "mma.cuh", '"+f"(d[3])', '"+f"(d[2])', 0, "v12", ("mma",)),
            ("8 bytes copied", "async_copy.cuh", "16, %2;", "8, %2;", 0, "v12", ("cp.async",)),
            (
                "rows past the end not zero",
                "async_copy.cuh",
                "[%1], 16, %2;",
                "[%1], 16, 4;",
                0,
                "v12",
                ("of V", "V of", "V read"),
            ),
            (
                "no wait",
                "async_copy.cuh",
                "cp.async.wait_all;",
                "",
                0,
                "v12",
                ("waited", "asynchronous copy"),
            ),
            (
                "waits for too few",
                "async_copy.cuh",
                "wait_all;",
                "commit_group; cp.async.wait_group 1;",
                0,
                "v12",
                ("waited", "asynchronous copy"),
            ),
            (
                "waits before the group is closed",
                "async_copy.cuh",
                "cp.async.wait_all;",
                "cp.async.wait_group 0;",
                0,
                "v12",
                ("waited", "asynchronous copy"),
            ),
            (
                "copied to the next row",
                "async_copy.cuh",
                "[%0], [%1], 16",
                "[%0+16], [%1], 16",
                0,
                "v12",
                ("uninitialised shared", "of V", "V of"),
            ),
            (
                "an instruction that is not there",
                "async_copy.cuh",
                "cp.async.cg",
                "cp.async.cx",
                0,
                "v12",
                ("cp.async.cx",),
            ),
        )
    ),
)
