"""`compare --counts`: machine code of the sources in two snapshots, by the gate's rules."""

from __future__ import annotations

import hashlib

import pytest
from sessions_data import evaluation_maker

from engine.problem import Problem
from engine.sessions.build import make_snapshot, make_source
from engine.sessions.compare import compare_sessions
from engine.sessions.compare.machine_code import count_rows, counted_dict
from engine.sessions.snapshot import Snapshot
from kernels.ladder import by_id
from kernels.variant import KERNELS_DIR

VARIANT = by_id("v08")
TEXT = VARIANT.source.read_text()


def session(text: str, *, with_source: bool = True) -> Snapshot:
    made = evaluation_maker(
        variant="v08",
        problem=Problem(1, 2, 128, 64),
        config=VARIANT.default_config(),
        device="L4",
        source_sha256=hashlib.sha256(text.encode()).hexdigest(),
    )
    headers = [make_source(p.name, p.read_text(), ()) for p in KERNELS_DIR.glob("*.cuh")]
    sources = [make_source(VARIANT.source.name, text, ()), *headers] if with_source else []
    return make_snapshot([made], environment={"gpus": []}, sources=sources)


def verdicts(before: Snapshot, after: Snapshot) -> set[str]:
    sessions = {"a": before, "b": after}
    rows = count_rows(compare_sessions(sessions), sessions)
    return {str(each["verdict"]) for each in counted_dict(rows)}


@pytest.mark.slow
def test_the_sources_of_both_sessions_are_counted() -> None:
    before = session(TEXT)
    assert verdicts(before, session(TEXT + "\n// a comment\n")) == {"SAME CODE"}
    padded = "ROW_STRIDE = HEAD_DIM + VECTOR"
    assert padded in TEXT
    worse = verdicts(before, session(TEXT.replace(padded, "ROW_STRIDE = HEAD_DIM")))
    assert "COUNTED WORSE" in worse


def test_a_session_without_its_source_is_not_judged() -> None:
    assert verdicts(session(TEXT), session(TEXT, with_source=False)) == {"NOT JUDGED"}
