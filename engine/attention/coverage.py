"""Line coverage of a kernel's source: line ranges, sentences, and marked source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from annotated_types import MaxLen

from engine.base.schema import Count, Line, Stored
from kernels.variant import Config

LineRange: TypeAlias = tuple[Count, Count]  # first and last line
LineRanges: TypeAlias = Annotated[tuple[LineRange, ...], MaxLen(4096)]


@dataclass(frozen=True, slots=True)
class LineCoverage(Stored):
    """Coverage of the device code in one source file."""

    file: Line
    lines: Count  # number of lines with statements
    not_run: LineRanges  # never executed
    partly_run: LineRanges  # lines with several statements of which one was not executed
    not_compiled: LineRanges  # code excluded by `#if`

    @property
    def lines_not_run(self) -> int:
        return _count(self.not_run)


def _count(ranges: LineRanges) -> int:
    return sum(last - first + 1 for first, last in ranges)


def describe_lines(coverage: tuple[LineCoverage, ...]) -> str:
    """Return one sentence on the source lines that were not executed."""
    if not coverage:
        return ""
    kernel, *headers = coverage
    parts = []
    if kernel.not_run:
        parts.append(f"of {kernel.file}, {_lines(kernel.not_run)} never ran")
    if kernel.not_compiled:
        parts.append(f"{_lines(kernel.not_compiled)} of {kernel.file} are not in this build (#if)")
    not_run = [h.file for h in headers if h.not_run]
    if not_run:
        count = sum(h.lines_not_run for h in headers)
        lines = "line" if count == 1 else "lines"
        parts.append(f"of the headers, {count:,} {lines} never ran ({', '.join(not_run)})")
    left_out = [h.file for h in headers if h.not_compiled]
    if left_out:
        parts.append(f"parts of {', '.join(left_out)} are not in this build (#if)")
    if not parts:
        return "Every line of device code ran."
    return f"Not executed, so not checked: {'; '.join(parts)}."


_LARGE = 6  # lines; shorter blocks are not reported
_CONDITION = re.compile(r"^\s*(?:\}\s*else\s+)?(?:if|for|while)\b.*")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of lines that never ran, and its condition."""

    sentence: str
    tunable: str = ""  # tunable of which another value may reach the block; empty: not known


def largest_block(
    source: str, coverage: LineCoverage, tunables: Mapping[str, Sequence[int]], config: Config
) -> Block | None:
    """Return the largest block that never ran, with its condition and a tunable that the condition
    uses.

    Args:
        source: the text of the covered file.
        coverage: of that file.
        tunables: values of each tunable.
        config: the config of the run.

    Returns:
        None if no block has at least 6 lines.
    """
    if not coverage.not_run:
        return None
    first, last = max(coverage.not_run, key=lambda lines: lines[1] - lines[0])
    if last - first + 1 < _LARGE:
        return None
    lines = source.split("\n")
    condition = _condition_above(lines, first - 1)
    if not condition:
        return None
    what = f"Lines {first}–{last}, the largest block that never ran, depend on `{condition}`: "
    # Constants in the condition are often computed from tunables further up.
    names = set(re.findall(r"\b[A-Z][A-Z0-9_]*\b", condition))
    made_of = {
        name
        for line in lines
        if (made := re.match(r"\s*constexpr\s+\w+\s+(\w+)\s*=(.*)", line)) and made[1] in names
        for name in re.findall(r"\b[A-Z][A-Z0-9_]*\b", made[2])
    }
    if "IS_CAUSAL" in names | made_of:
        return Block(f"{what}check a problem that is causal, and one that is not.")
    for name, values in tunables.items():
        others = [value for value in values if value != config.get(name)]
        if name.upper() in names | made_of and others:
            listed = " or ".join(map(str, others))
            advice = f"check with {name} = {listed}, where it is {config.get(name)} here."
            return Block(f"{what}{advice}", name)
    return Block(f"{what}check a problem of other lengths, or of more heads than there are CTAs.")


def _condition_above(lines: Sequence[str], index: int) -> str:
    """Return the nearest less-indented condition above a line, without its opening brace."""
    indent = len(lines[index]) - len(lines[index].lstrip())
    for line in reversed(lines[max(0, index - 200) : index]):
        if not line.strip() or line.lstrip().startswith(("//", "#")):
            continue
        if len(line) - len(line.lstrip()) < indent and (match := _CONDITION.match(line)):
            return match[0].strip().removesuffix("{").strip()
    return ""


LEGEND = "✗ never ran, ◐ ran in part, · not compiled into this build"


def marked_source(source: str, coverage: LineCoverage) -> str:
    """Return the source with a sign before each line: see `LEGEND`."""
    signs: dict[int, str] = {}
    for ranges, sign in (
        (coverage.not_compiled, "·"),
        (coverage.partly_run, "◐"),
        (coverage.not_run, "✗"),
    ):
        signs |= {line: sign for first, last in ranges for line in range(first, last + 1)}
    return "\n".join(
        f"{signs.get(number, ' ')} {line}" for number, line in enumerate(source.split("\n"), 1)
    )


_NAMED_RANGES = 6


def _lines(ranges: tuple[LineRange, ...]) -> str:
    """Return `line 7` or `lines 7–9 and 12`, the longest first, and the number of other places."""
    ranges = tuple(sorted(ranges, key=lambda lines: lines[0] - lines[1]))
    words = format_ranges(ranges[:_NAMED_RANGES])
    more = len(ranges) - _NAMED_RANGES
    if more > 0:
        words.append(f"{more} more places")
    listed = " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
    return f"{'line' if len(ranges) == 1 and ranges[0][0] == ranges[0][1] else 'lines'} {listed}"


def format_ranges(ranges: tuple[LineRange, ...]) -> list[str]:
    """Return `7–9`, or `12` for one line."""
    return [f"{first}–{last}" if last > first else f"{first}" for first, last in ranges]
