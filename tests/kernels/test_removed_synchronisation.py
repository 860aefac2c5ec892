"""Each wait, arrival, fence and commit of the persistent Hopper kernels left out once, and found.

`backward_bugs.py` does it for v26 (that it leaves none out is held here),
`tests/planted_bugs/hopper.py` for the rungs before, and `tests/planted_bugs/clusters.py` for what
v19 has for clusters alone.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from backward_bugs import BUGS
from planted_bugs.anchors import spans
from planted_bugs.mutation import PERSISTENT, Mutation
from planted_bugs.planting import look, mutated, source_of
from slow_cases import slow_ones
from untimed import untimed

_STATEMENT = re.compile(
    r"(?:if \(lane == [01]\) |if \(!?is_last\) )?"
    r"(?:mbarrier_(?:wait|arrive|arrive_at|arrive_expect|init_fence)"
    r"|named_barrier(?:_arrive)?|wgmma_(?:fence|commit|wait<\d>)|async_proxy_fence|__sync\w+"
    r"|tma_store_(?:wait|commit))\([^;]*\);"
)


def _places(variant: str) -> list[tuple[str, str, int]]:
    """(variant, statement, which of the places of that text, also within a longer one)."""
    text = source_of(variant).read_text(encoding="utf-8")
    return [
        (variant, found[0], text.count(found[0], 0, found.start()))
        for found in _STATEMENT.finditer(text)
        if "cluster" not in found[0]
    ]


def _without(variant: str, statement: str, nth: int) -> Mutation:
    config = {"num_ctas": 2}  # so that a CTA has several tiles
    return Mutation(f"without {statement}", (variant,), statement, ";", (), nth=nth, config=config)


CASES = [place for variant in PERSISTENT for place in _places(variant)]


def test_all_that_a_ring_and_turns_need_is_among_them() -> None:
    for variant in PERSISTENT:
        texts = {text for name, text, _ in CASES if name == variant}
        for part in ("k_empty", "v_empty", "k_full", "v_full", "q_full", "o_full", "next_turn"):
            assert any(part in text for text in texts), (variant, part)
        assert len(texts) >= 18


def test_all_of_v26_is_left_out_by_a_planted_bug() -> None:
    text = source_of("v26").read_text(encoding="utf-8")
    removed = set()
    for bug in BUGS:
        if bug.variant == "v26" and bug.new in ("", ";"):
            places = spans(text, bug.old)
            removed |= {end for _, end in (places if bug.nth is None else [places[bug.nth]])}
    found = list(_STATEMENT.finditer(text))
    assert len(found) >= 26
    assert [place[0] for place in found if place.end() not in removed] == []


@pytest.mark.parametrize(("variant", "statement", "nth"), slow_ones(37, CASES))
def test_it_is_missed(variant: str, statement: str, nth: int, tmp_path: Path) -> None:
    with untimed() as evaluator:
        seen = look(evaluator, _without(variant, statement, nth), variant, "check", tmp_path)
    assert seen.found


@pytest.mark.parametrize("variant", PERSISTENT)
def test_each_place_is_left_out_by_one_case_alone(variant: str) -> None:
    text = source_of(variant).read_text(encoding="utf-8")
    found = [m for m in _STATEMENT.finditer(text) if "cluster" not in m[0]]
    cases = [case for case in CASES if case[0] == variant]
    others = [
        place[0]
        for place, case in zip(found, cases, strict=True)
        if mutated(_without(*case), text)[0] != text[: place.start()] + ";" + text[place.end() :]
    ]
    assert others == []
