"""Describe where and why an output is wrong.

First, unwritten elements and NaN are located. Then the outputs that some 500 suspected bugs would
give are computed and compared with the actual one. Last, patterns in the positions of wrong
elements are searched: one head, the tail tile, the rows of one warp, columns of d.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.attention.evaluation import Finding
from engine.attention.tensors import Inputs
from engine.correctness.diagnosis.patterns import (
    find_patterns,
    moved_blocks_of_v,
    moved_columns,
    moved_rows,
    wrong_key_counts,
)
from engine.correctness.diagnosis.weights import far_scores_clause, wrong_weights
from engine.correctness.findings import FindingCode, Region, place_of
from engine.correctness.output_error import BrokenElements, ComparedOutput, Tiles
from engine.correctness.reference import BoolArray, Coverage, everything
from engine.correctness.suspected_bugs import (
    Case,
    Match,
    best_match,
    choose_cases,
    in_wrong_columns,
    lost_precision,
)


def diagnose(
    inputs: Inputs,
    broken: BrokenElements,
    compared: ComparedOutput,
    tiles: Tiles,
    source: Path | None = None,
) -> tuple[Finding, ...]:
    """Diagnose one output by its broken elements and by comparison with its reference.

    Args:
        source: the kernel's source, in which findings name a line.

    Returns:
        Findings, the most informative first; empty if nothing is wrong.
    """
    findings = _findings(inputs, broken, compared, tiles)
    return tuple(replace(f, place=place_of(f.pattern, source, f.sentence)) for f in findings)


def _findings(
    inputs: Inputs, broken: BrokenElements, compared: ComparedOutput, tiles: Tiles
) -> tuple[Finding, ...]:
    whole = everything(inputs.problem)
    unwritten, nonfinite = whole.take(broken.unwritten), whole.take(broken.nonfinite)
    counts = [int(np.count_nonzero(mask)) for mask in (unwritten, nonfinite, compared.over)]
    total = sum(counts)
    findings: list[Finding] = []
    if counts[0]:
        findings.append(_unwritten(unwritten, whole, tiles, counts[0] / total))
    far = ""
    if counts[1] or counts[2]:
        wrong = compared.coverage.take(broken.nonfinite) | compared.over
        far = far_scores_clause(inputs, compared, wrong)
    if counts[1]:
        name = FindingCode.ROW_MAXIMUM if far else FindingCode.NAN_ROW
        findings.append(_nonfinite(name, nonfinite, whole, tiles, counts[1] / total, far))
    if counts[2]:
        findings += _wrong_values(inputs, compared, tiles, counts[2] / total, far)
    # The best explanation first; equal ones keep their order, the most informative first.
    return tuple(sorted(findings, key=lambda finding: -round(finding.share, 1)))


def _wrong_values(
    inputs: Inputs, compared: ComparedOutput, tiles: Tiles, share: float, far: str
) -> list[Finding]:
    """Return findings on the finite elements over the tolerance: a known cause, and positions."""
    cases = choose_cases(inputs, compared, tiles)
    if far:
        rounded = lost_precision(cases)
        if rounded is not None:
            return [_cause(rounded, share)]
        return [Finding(FindingCode.ROW_MAXIMUM, f"{far[0].upper()}{far[1:]}.", share)]
    cause = _cause_of(cases)
    known = [_cause(cause, share)] if cause is not None else []
    return known + [
        Finding(pattern.name, pattern.sentence, share)
        for pattern in find_patterns(compared, tiles)
        if not known or pattern.tells_more
    ]


def _cause_of(cases: list[Case]) -> Match | None:
    if not cases:
        return None
    return (
        best_match(cases)
        or moved_columns(cases)
        or moved_rows(cases)
        or moved_blocks_of_v(cases)
        or wrong_key_counts(cases)
        or _in_wrong_columns(cases)
        or wrong_weights(cases)
    )


def _in_wrong_columns(cases: list[Case]) -> Match | None:
    """Return a bug that explains only the columns with a wrong element, if there are others."""
    restricted = in_wrong_columns(cases)
    if restricted[0].columns.all():
        return None
    match = best_match(restricted)
    if match is None:
        return None
    what = f"{match.bug.what}, in the wrong columns only"
    return replace(match, bug=replace(match.bug, what=what))


def _cause(match: Match, share: float) -> Finding:
    bug = match.bug
    return Finding(
        bug.pattern,
        f"The output matches {bug.what} ({math.floor(1e4 * match.explained) / 100:g}% of the "
        f"error explained). {bug.look_at[0].upper()}{bug.look_at[1:]}.",
        round(min(match.explained, 1.0) * share, 4),
    )


def _unwritten(mask: BoolArray, coverage: Coverage, tiles: Tiles, share: float) -> Finding:
    region = Region.of(mask, coverage)
    if mask.all():
        text = "The output was never written: look at the store of O and at the launch's grid."
    else:
        has_all_columns = len(region.columns) == region.problem.value_dim
        grid = "the launch's grid, its threads per CTA and the guard of the store"
        where = grid if has_all_columns else "the store of O"
        text = f"Never written: {region.words()}{_tail(region, tiles)}. Look at {where}."
    return Finding(FindingCode.UNWRITTEN, text, share)


def _nonfinite(
    name: FindingCode, mask: BoolArray, coverage: Coverage, tiles: Tiles, share: float, far: str
) -> Finding:
    region = Region.of(mask, coverage)
    where = "everywhere" if mask.all() else f"in {region.words()}{_tail(region, tiles)}"
    return Finding(name, f"NaN or infinity {where}: {far or _nan_hint(region, tiles)}.", share)


def _nan_hint(region: Region, tiles: Tiles) -> str:
    """Return a likely cause of NaN in the region."""
    problem = region.problem
    if len(region.columns) < problem.value_dim:
        return (
            "only some columns of a row, so the division by the row sum is not the cause: look at "
            "what is read for these columns before it is written"
        )
    if problem.causal and not region.all_rows:
        parts = f"tile, {tiles.chunk_name}" if tiles.num_chunks > 1 else "tile"
        return (
            f"a {'row of a window' if problem.window else 'causal row'} without a visible key in a "
            f"{parts} subtracts −inf from −inf or divides 0 by 0" + _of_scratch(tiles)
        )
    if region.all_rows and tiles.page_rows:
        return (
            "an unused page of K or V is read, or rows of a page behind the last key, which are "
            "NaN: look at the index into block_table, the row within the page, and the number of "
            "keys that a load uses" + _of_scratch(tiles)
        )
    if region.all_rows:
        return (
            "something is read before it is written (shared memory starts as NaN), the row sum is "
            "0 because no key is visited or a running maximum is never kept, or a rescale "
            "overflows, as exp(m_new − m_old) instead of exp(m_old − m_new) does"
            + _of_scratch(tiles)
        )
    if problem.window or problem.seqlens is not None:
        return "a row without a visible key divides 0 by 0" + _of_scratch(tiles)
    return (
        "something is read before it is written (shared memory starts as NaN), or a row behind "
        "the end of Q, K or V is read, which is NaN" + _of_scratch(tiles)
    )


def _of_scratch(tiles: Tiles) -> str:
    if not tiles.has_scratch:
        return ""
    return ", or the fusion reads a partial result that no CTA wrote (scratch starts as NaN)"


def _tail(region: Region, tiles: Tiles) -> str:
    """Return a clause if the rows are those of the last, partial query tile; else empty."""
    begin = tiles.seqlen // tiles.block_m * tiles.block_m
    if tiles.seqlen % tiles.block_m and not region.all_rows and region.rows[0] == begin:
        return ", the last, partial query tile"
    return ""
