"""The CTA of a launch that executes most."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from engine.sass.emulation import EXECUTED, Emulator
from engine.sass.trace import CtaTrace


def heaviest_cta(emulator: Emulator) -> CtaTrace:
    grid = emulator.launch.grid
    trace, totals = emulator.trace()
    # Along an axis that steers nothing every CTA executes the same.
    steered = zip(grid, totals.control_axes, strict=True)
    ends = [(False, True) if n > 1 and steers else (False,) for n, steers in steered]

    def executed(last: tuple[bool, ...]) -> int:
        here = emulator.totals(_corner(grid, last)) if any(last) else totals
        return int(here.values[:, EXECUTED].sum())

    is_last = max(product(*ends), key=executed)
    return emulator.trace(_corner(grid, is_last))[0] if any(is_last) else trace


def _corner(grid: tuple[int, int, int], is_last: Sequence[bool]) -> tuple[int, int, int]:
    x, y, z = (n - 1 if last else 0 for n, last in zip(grid, is_last, strict=True))
    return x, y, z
