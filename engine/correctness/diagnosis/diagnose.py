"""Where and why an output is wrong, in words.

Three questions in turn. Is something missing or NaN, and where? Does a known bug explain the rest:
the outputs that some 250 suspected bugs would give are computed and compared with the actual one.
And what sets the wrong elements apart: one head, the tail tile, the rows of one warp, columns of d.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.correctness.compared_output import BoolArray, BrokenElements, ComparedOutput
from engine.correctness.diagnosis.patterns import find_patterns
from engine.correctness.diagnosis.permuted import moved_columns, moved_rows
from engine.correctness.diagnosis.regions import Region
from engine.correctness.maps import ErrorMap, error_maps
from engine.correctness.reference import Coverage, everything
from engine.correctness.suspected_bugs import Match, best_match, choose_cases
from engine.correctness.tiles import Tiles
from engine.evaluation import Finding
from engine.tensors import Inputs


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Error maps, and findings in order of how much they tell (none when nothing is wrong)."""

    maps: tuple[ErrorMap, ...]
    findings: tuple[Finding, ...]


def diagnose(
    inputs: Inputs, broken: BrokenElements, compared: ComparedOutput, tiles: Tiles
) -> Diagnosis:
    """Look at one output: at its broken elements, and at it beside its reference."""
    return Diagnosis(
        error_maps(inputs, compared, tiles), _findings(inputs, broken, compared, tiles)
    )


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
    if counts[1]:
        findings.append(_nonfinite(nonfinite, whole, tiles, counts[1] / total))
    if counts[2]:
        share = counts[2] / total
        cases = choose_cases(inputs, compared, tiles)
        cause = best_match(cases) or moved_columns(cases) or moved_rows(cases)
        if cause is not None:
            findings.append(_cause(cause, share))
        findings += [
            Finding(pattern.name, pattern.sentence, share)
            for pattern in find_patterns(compared, tiles)
            if pattern.tells_more or not findings
        ]
    return tuple(findings)


def _cause(match: Match, share: float) -> Finding:
    bug = match.bug
    return Finding(
        bug.pattern,
        f"The output matches {bug.what} ({math.floor(1e4 * match.explained) / 100:g} % of the "
        f"error explained). {bug.look_at[0].upper()}{bug.look_at[1:]}.",
        round(match.share * share, 4),
    )


def _unwritten(mask: BoolArray, coverage: Coverage, tiles: Tiles, share: float) -> Finding:
    region = Region.of(mask, coverage)
    if mask.all():
        text = "The output was never written: look at the store of O and at the launch's grid."
    else:
        text = f"Never written: {region.words()}{_tail(region, tiles)}."
    return Finding("unwritten", text, share)


def _nonfinite(mask: BoolArray, coverage: Coverage, tiles: Tiles, share: float) -> Finding:
    region = Region.of(mask, coverage)
    hint = (
        "a row that sees no key divides 0 by 0 or subtracts −inf from −inf"
        if not tiles.has_scratch
        else "a row that sees no key divides 0 by 0, or the fusion reads a partial result that no "
        "CTA wrote (scratch starts as NaN)"
    )
    where = "everywhere" if mask.all() else f"in {region.words()}{_tail(region, tiles)}"
    return Finding("nan_row", f"NaN or infinity {where}: {hint}.", share)


def _tail(region: Region, tiles: Tiles) -> str:
    """Says so when the rows are those of the last, partial query tile."""
    begin = tiles.seqlen // tiles.block_m * tiles.block_m
    if tiles.seqlen % tiles.block_m and not region.all_rows and region.rows[0] == begin:
        return ", the last, partial query tile"
    return ""
