"""Bugs planted in the backward rungs, and the finding that the check must report."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from planted_bugs.anchors import replaced

from engine.attention.plan import make_plan
from engine.attention.problem import Problem
from engine.backends.base import RunOptions
from engine.backends.cpu import CpuBackend
from engine.base.errors import Status
from engine.correctness import check_with_maps, inputs_of
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR

PLAIN = Problem(1, 2, 90, 64, direction="backward")
CAUSAL = Problem(1, 2, 90, 64, causal=True, direction="backward")
OFFSET = Problem(1, 2, 70, 64, causal=True, seqlen_kv=150, direction="backward")
SHARED = Problem(1, 4, 70, 64, num_heads_kv=2, direction="backward")
LONG = Problem(1, 2, 150, 64, direction="backward")
RING = Problem(1, 1, 330, 128, direction="backward")  # more query tiles than v26 has stages


@dataclass(frozen=True)
class GradientMutation:
    """A change to a rung's text; `codes`: one of them must be the first finding's, or the status
    or kind of the error that the check ends with."""

    name: str
    variant: str
    old: str
    new: str
    codes: tuple[str, ...]
    problem: Problem = PLAIN
    nth: int | None = None  # which occurrence; None: all
    config: dict[str, int] = field(default_factory=dict)


_RACE = ("RACE", "uninitialised shared memory")
_UNFENCED = ("wgmma_fence missing",)
_OPEN = ("registers of a running wgmma", "wgmma not complete")
_DEADLOCK = ("deadlock",)
BUGS: tuple[GradientMutation, ...] = (
    GradientMutation("no D", "v23", "ds = p * (dp - own_delta)", "ds = p * dp", ("missing_delta",)),
    GradientMutation(
        "D added", "v25", "(ds_rmem[tile][i] - row_d)", "(ds_rmem[tile][i] + row_d)",
        ("missing_delta",),
    ),
    GradientMutation(
        "dQ without the scale", "v24", "dq_sum[at] * softmax_scale", "dq_sum[at]",
        ("softmax_scale",),
    ),
    GradientMutation(
        "dK without the scale", "v25", "dk_rmem, softmax_scale", "dk_rmem, 1.0f",
        ("softmax_scale",),
    ),
    GradientMutation(
        "dK and dV of the first query head alone", "v23", "head < group", "head < 1",
        ("kv_head",), SHARED,
    ),
    GradientMutation(
        "dQ reads another head's keys", "v25", "blockIdx.y / group;\n    const size_t q_head",
        "blockIdx.y % num_heads_kv;\n    const size_t q_head", ("some_heads", "kv_head"), SHARED,
    ),
    GradientMutation(
        "a store where an add belongs", "v24",
        "atomicAdd(to + tile * 8, dq_rmem[tile][2 * r]);",
        "to[tile * 8] = dq_rmem[tile][2 * r];", ("RACE", "lost_sum", "columns_of_d"), LONG,
    ),
    GradientMutation(
        "no atomics at all", "v24",
        "atomicAdd(to + tile * 8, dq_rmem[tile][2 * r]);\n"
        "                atomicAdd(to + tile * 8 + 1, dq_rmem[tile][2 * r + 1]);",
        "to[tile * 8] += dq_rmem[tile][2 * r];\n"
        "                to[tile * 8 + 1] += dq_rmem[tile][2 * r + 1];", _RACE, LONG,
    ),
    GradientMutation(
        "the diagonal is masked", "v23", "key <= query + offset", "key < query + offset",
        ("causal_diagonal", "causal_mask"), CAUSAL,
    ),
    GradientMutation(
        "one key too many", "v25", "key <= query + offset", "key <= query + offset + 1",
        ("causal_diagonal", "causal_mask"), CAUSAL,
    ),
    GradientMutation(
        "the mask begins at the first key", "v23", "const int offset = seqlen_kv - seqlen;",
        "const int offset = 0;", ("causal_corner",), OFFSET,
    ),
    GradientMutation(
        "LSE in base 2", "v24", "lse[row] * LOG2_E", "lse[row]", ("not_normalised",),
    ),
    GradientMutation(
        "sums that nobody clears", "v24", "dq_sum[row * HEAD_DIM + d + lane] = 0.0f;", ";",
        ("nan_row", "uninitialised global memory"),
    ),
    GradientMutation(
        "the last query tile is left out", "v25", "m0 < seqlen; m0 += BLOCK",
        "m0 + BLOCK <= seqlen; m0 += BLOCK", ("key_tile",), LONG,
    ),
    GradientMutation(
        "dV and dK change places", "v23", "HEAD_DIM, dv_rmem",
        "HEAD_DIM, dk_rmem", ("operand", "everywhere"),
    ),
    GradientMutation(
        "D of the row before", "v25", "delta[row] = sum", "delta[row > 0 ? row - 1 : 0] = sum",
        ("nan_row", "uninitialised global memory", "RACE"),
    ),
    GradientMutation("no barrier before S", "v23", "__syncthreads();", "", _RACE, nth=0),
    GradientMutation("no barrier behind P", "v23", "__syncthreads();", "", _RACE, nth=1),
    GradientMutation("no barrier behind dV", "v23", "__syncthreads();", "", _RACE, LONG, nth=2),
    GradientMutation("no barrier before dS", "v23", "__syncthreads();", "", _RACE, nth=3),
    GradientMutation("no barrier of the row", "v23", "__syncwarp();", "", _RACE, nth=0),
    GradientMutation("no barrier behind dQ", "v23", "__syncthreads();", "", _RACE, LONG, nth=4),
    GradientMutation("no barrier behind the copies", "v24", "__syncthreads();", "", _RACE, nth=0),
    GradientMutation("no barrier before dQ", "v24", "__syncthreads();", "", _RACE, nth=1),
    GradientMutation("no barrier before dK", "v25", "__syncthreads();", "", _RACE, nth=0),
    GradientMutation("no barrier behind dK", "v25", "__syncthreads();", "", _RACE, LONG, nth=1),
    GradientMutation("no barrier before dQ", "v25", "__syncthreads();", "", _RACE, nth=2),
    GradientMutation("no barrier behind dQ", "v25", "__syncthreads();", "", _RACE, LONG, nth=3),
    GradientMutation(
        "copies that nobody waits for", "v24", "cp_async_wait<STAGES - 1>();", "",
        ("RACE", "asynchronous copy not complete", "uninitialised shared memory"),
    ),
    GradientMutation(
        "no D", "v26", "s_rmem[i] *= dp_rmem[i] - (i % 2 ? delta.y : delta.x);",
        "s_rmem[i] *= dp_rmem[i];", ("missing_delta",),
    ),
    GradientMutation(
        "dK without the scale", "v26", "dk_rmem, softmax_scale", "dk_rmem, 1.0f",
        ("softmax_scale",),
    ),
    GradientMutation(
        "LSE in base 2", "v26", "lse[row] * LOG2_E", "lse[row]", ("not_normalised",),
    ),
    GradientMutation(
        "one key too many", "v26", "key <= query + offset", "key <= query + offset + 1",
        ("causal_diagonal", "causal_mask"), CAUSAL,
    ),
    GradientMutation(
        "a store where an add belongs", "v26",
        "atomicAdd(to + i * WARPGROUP, dq_rmem[i])", "to[i * WARPGROUP] = dq_rmem[i]",
        ("RACE", "lost_sum", "columns_of_d"), LONG,
    ),
    GradientMutation(
        "dQ of the other group's keys alone", "v26", "step < KEY_STEPS; step++",
        "step < KEY_STEPS / 2; step++", ("key_tile", "key_block"), LONG,
    ),
    GradientMutation("no barrier behind mbarrier_init", "v26", "__syncthreads();", "", _RACE),
    *(
        GradientMutation(
            f"no barrier {where}", "v26", f"named_barrier({which});", "", _RACE, RING, n
        )
        for where, which, n in (
            ("before dQ", "BOTH_GROUPS, COMPUTING", 0),
            ("before dK takes the place of K", "BOTH_GROUPS, COMPUTING", 1),
            ("before the store", "OWN_GROUP + group, WARPGROUP", 0),
        )
    ),
    *(
        GradientMutation(
            f"nobody waits until {what}", "v26", f"mbarrier_wait({which});", "",
            (*_RACE, "too many mbarrier arrivals"), RING, n,
        )
        for what, which, n in (
            ("K and V are there", "kv_full, 0", 0),
            ("Q and dO are there", "full + stage, parity_of(visit)", 0),
            ("the rows' place is free", "empty + stage, parity_of(visit) ^ 1", 0),
            ("the tiles' place is free", "empty + stage, parity_of(visit) ^ 1", 1),
        )
    ),
    *(
        GradientMutation(f"no wait for {what}", "v26", f"wgmma_wait<{which});", "", _RACE, RING)
        for what, which in (
            ("S", "1>(s_rmem"),
            ("dP", "1>(dp_rmem"),
            ("dQ", "1>(dq_rmem, dv_rmem"),
            ("dK", "0>(dk_rmem"),
        )
    ),
    *(
        GradientMutation(
            f"no proxy fence {where}", "v26", "async_proxy_fence();", "", _RACE, RING, n
        )
        for n, where in enumerate(("behind dS", "behind dK and dV"))
    ),
    *(
        GradientMutation(f"no wgmma_fence {where}", "v26", "wgmma_fence();", "", _UNFENCED, nth=n)
        for n, where in enumerate(("before S", "before dV", "before dQ"))
    ),
    *(
        GradientMutation(f"no commit of {what}", "v26", "wgmma_commit();", "", _OPEN, RING, n)
        for n, what in enumerate(("S or dP", "dV or dK", "dQ"))
    ),
    GradientMutation(
        "no fence behind mbarrier_init", "v26", "mbarrier_init_fence();", "",
        ("mbarrier fence missing",), RING,
    ),
    *(
        GradientMutation(
            f"nobody says that {what}", "v26", f"mbarrier_arrive{which};", ";",
            (*_DEADLOCK, "too many mbarrier arrivals"), RING,
        )
        for what, which in (
            ("the rows are there", "(full + stage)"),
            ("a stage is free", "(empty + stage)"),
            ("K and V come", "_expect(kv_full, 2 * KV_BYTES)"),
            ("Q and dO come", "_expect(full + stage, 2 * Q_BYTES)"),
        )
    ),
    GradientMutation("nobody waits for the store", "v26", "tma_store_wait();", "", _RACE),
    GradientMutation("the store is not committed", "v26", "tma_store_commit();", "", _RACE),
)  # fmt: skip


def planted(backend: CpuBackend, bug: GradientMutation, folder: Any) -> tuple[bool, bool, str]:
    """Return (found, named, message) of the check build, in random order."""
    variant = by_id(bug.variant)
    for header in KERNELS_DIR.glob("*.cuh"):
        shutil.copy(header, Path(folder) / header.name)
    text = variant.source.read_text(encoding="utf-8")
    text, _ = replaced(text, bug.old, bug.new, bug.nth)
    source = Path(folder) / variant.source.name
    source.write_text(text, encoding="utf-8")
    config = variant.default_config() | bug.config
    plan = make_plan(variant, bug.problem, config)
    plan, inputs = replace(plan, source=source), inputs_of(bug.problem)
    result = backend.run(plan, inputs, RunOptions(check=True, schedule="random", repeat=False))
    if result.status is not Status.PASSED:
        is_named = not {result.status.name, result.code}.isdisjoint(bug.codes)
        return True, is_named, f"{result.status} {result.code}: {result.reason}"
    found = check_with_maps(inputs, result, plan)[0]
    codes = [str(finding.pattern) for finding in found.findings]
    said = f"{found.reason} {[f.text() for f in found.findings]}"
    return not found.passed, bool(codes) and codes[0] in bug.codes, said
