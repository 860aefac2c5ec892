"""What a person should know about an analysis' counts before believing them; a sentence each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.sass.analysis import Analysis
from engine.sass.summary import outer_line


def notes(analysis: Analysis, iterations: tuple[int, int] | None = None) -> Iterator[str]:
    """Where loaded data steers the code, what was made up, what was interpolated.

    Args:
        iterations: of the longest CTA's loop (simulated, executed), where not all were.
    """
    counts = analysis.counts
    if iterations is not None:
        simulated, executed = iterations
        yield (
            f"CTAs are long: of the {executed:,} iterations of the loop {simulated:,} were "
            "simulated, and what the others take is a straight line. The counts are of all."
        )
    if counts.data_branch.any():
        lines = _lines(analysis, counts.data_branch)
        yield (
            f"Loaded data decides what is executed at {lines}: the counts are those of floats "
            "and halves that are all 1.0, and of integers with the same bits (1,065,353,216)."
        )
    if counts.data_address.any():
        lines = _lines(analysis, counts.data_address)
        yield f"Addresses at {lines} depend on loaded data: their sectors are a guess."
    if counts.stand_in.any():
        names = sorted(
            {
                i.mnemonic
                for i, made_up in zip(analysis.program.instructions, counts.stand_in, strict=True)
                if made_up
            }
        )
        yield (
            f"What {', '.join(names)} computes is not known here and taken to be data: counts of "
            "code that depends on it may be wrong."
        )
    if not counts.exact:
        yield (
            f"CTAs differ too much to run each kind: {counts.emulated} were run, and the others' "
            "counts are interpolated."
        )
    elif not counts.exact_sectors:
        yield (
            "Rows begin at different places in a sector, depending on the CTA: the number of "
            f"global sectors is interpolated from the {counts.emulated} CTAs that were run."
        )


def _lines(analysis: Analysis, where: np.ndarray) -> str:
    sources = {
        outer_line(i)
        for i, marked in zip(analysis.program.instructions, where, strict=True)
        if marked
    }
    named = sorted({(s.file, s.line) for s in sources if s is not None})
    if not named:
        return f"{int(where.sum())} instructions"
    shown = ", ".join(f"{file}:{line}" for file, line in named[:4])
    return shown + (f" and {len(named) - 4} more lines" if len(named) > 4 else "")
