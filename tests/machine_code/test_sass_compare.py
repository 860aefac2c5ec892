"""Comparing two launches: figures by name, instructions by operation."""

from __future__ import annotations

from engine.machine_code.launch_report import Count, Listing, PassReport, align, compare_counts

BEFORE = "int a;\nload();\nadd();\n"
AFTER = "// a comment\nint a;\nload();\nwait();\nadd();\n"


def listing(rows: list[tuple[str, int]]) -> Listing:
    """Return a listing of (instruction, line) pairs."""
    texts, lines = zip(*rows, strict=True)
    none, empty = (0,) * len(rows), ("",) * len(rows)
    return Listing(
        address=tuple(16 * n for n in range(len(rows))),
        text=texts,
        pipe=empty,
        schedule=empty,
        line=lines,
        inlined=empty,
        live=none,
        executed=none,
        wavefronts=none,
        ideal_wavefronts=none,
        sectors=none,
        ideal_sectors=none,
        cycles=none,
        reason=empty,
        loops=(),
    )


def report(*counts: Count) -> PassReport:
    return PassReport("k", 32, counts, (), listing([("EXIT", 0)]), ())


def test_lines_that_moved_and_registers_that_changed_are_no_difference() -> None:
    first = listing([("LDG.E R4, [R2]", 2), ("FADD R4, R4, R5", 3), ("EXIT", 0)])
    second = listing(
        [("LDG.E R8, [R6]", 3), ("BAR.SYNC 0x0", 4), ("FADD R8, R8, R9", 5), ("EXIT", 0)]
    )
    pairs = align(first, second, (BEFORE, AFTER))
    assert pairs == ((0, 0, True), (-1, 1, False), (1, 2, True), (2, 3, True))


def test_changed_instructions_are_shown_side_by_side() -> None:
    first, second = listing([("LDG.E R4, [R2]", 2)]), listing([("LDG.E.128 R4, [R2]", 2)])
    assert align(first, second, (BEFORE, BEFORE)) == ((0, 0, False),)


def test_counts_of_one_side_are_listed_and_zero_counts_are_not() -> None:
    first = report(Count("on fma", 10), Count("MUFU", 0), Count("on tensor", 3))
    second = report(Count("on fma", 20), Count("MUFU", 0), Count("on xu", 4))
    pairs = [(p.name, p.first, p.second) for p in compare_counts(first, second)]
    assert pairs == [("on fma", 10, 20), ("on tensor", 3, None), ("on xu", None, 4)]
