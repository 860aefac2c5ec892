"""Cost, phases and decision of a session: stored, shown first, summed over sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from compare_data import evaluation, session
from words import says

from engine.cli import main
from engine.sessions.session import resume_session, start_session
from engine.sessions.snapshot import Decision, Goal, Phase, Spent, dumps, loads, summarise
from engine.sessions.store import default_store
from engine.sessions.tables import session_tables, spent_table

SPENT = Spent(hours=3.0, gpu_hours=2.0, budget_usd=5.0)
KEPT = Decision(outcome="kept", why="It is twice as fast.")
TILING = Phase(name="tiling", target=Goal(metric="latency_us", value=400))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTUNE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("ATTUNE_SESSIONS", str(tmp_path / "store"))


def test_cost_phases_and_decision_are_stored_and_shown_first() -> None:
    working = start_session("Tiling")
    working.add(evaluation(100.0))
    working.edit(spent=SPENT, decision=KEPT, phases=[TILING])
    again = resume_session(working.id)
    assert (again.spent, again.decision, again.phases) == (SPENT, KEPT, (TILING,))
    snapshot = again.to_snapshot()
    assert loads(dumps(snapshot), name="x") == snapshot
    summary = summarise(snapshot)
    assert (summary.spent, summary.decision) == (SPENT, KEPT)
    first, phases, *_ = session_tables(snapshot)
    told = dict(first.texts)
    assert first.title == "Summary"
    assert told["decision"] == f"{KEPT.outcome}: {KEPT.why}"
    assert told["GPU-hours"] == "2 h"
    assert says(told["cost"], "at_the_list")
    assert "left" in told["budget"]
    assert phases.texts[0][:2] == ("tiling", "latency ≤ 400 µs")
    assert phases.texts[0][2].startswith("Met")
    working.edit(decision=None)
    assert working.decision is None


def test_costs_are_summed_over_sessions_and_a_session_counts_once() -> None:
    store = default_store()
    first = session(evaluation()).model_copy(update={"spent": Spent(cost_usd=1.5, hours=1.0)})
    again = first.model_copy(update={"spent": Spent(cost_usd=2.5, hours=2.0)})
    other = session(evaluation()).model_copy(update={"spent": SPENT, "decision": KEPT})
    later = {"updated": "2030-01-01T00:00:00+00:00"}
    for snapshot in (first, again.model_copy(update=later), session(evaluation())):
        store.save(snapshot)
    store.save(other.model_copy(update={"updated": "2031-01-01T00:00:00+00:00"}))
    table = spent_table(store.list())
    assert len(table.rows) == 2
    last = dict(zip(table.columns, table.rows[-1], strict=True))
    assert last["hours so far"] == 5.0
    assert last["decision"] == f"{KEPT.outcome}: {KEPT.why}"


def test_the_command_line_stores_a_decision_and_adds_costs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "s.json.gz"
    path.write_bytes(dumps(session(evaluation())))
    argv = ["sessions", "decide", str(path), "--decision", "next", "--why", "Spills remain."]
    argv += ["--hours", "2", "--cost", "3", "--budget", "10", "--phase", "tiling: latency_us 400"]
    assert main(argv) == 0
    name = capsys.readouterr().out.split()[-1].rstrip(".")
    assert main(["sessions", "show", name]) == 0
    shown = capsys.readouterr().out
    assert shown.index("Summary") < shown.index("Phases") < shown.index("Results")
    assert "next: Spills remain." in shown
    assert "7.00 left" in shown
    assert main(["sessions", "spent", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["cost so far, US$"] == "3.00"
    assert main(["sessions", "decide", str(path), "--phase", "a: b c"]) == 2
    assert says(capsys.readouterr().err, "phase_form")
    assert main(["sessions", "decide", str(path)]) == 2
    assert says(capsys.readouterr().err, "nothing_said")
    assert main(["sessions", "decide", str(path), "--why", "x"]) == 2


def test_a_decision_is_compared_with_its_numbers_and_budget() -> None:
    store = default_store()
    hypothesis = "Splits help."
    working = start_session("Splits")
    for us in (100.0, 80.0, 50.0):
        working.add(evaluation(us))
    working.edit(hypothesis=hypothesis, spent=Spent(hours=2.0, cost_usd=3.6, budget_usd=2.0))
    states = {}
    for value in (None, 60.0, 20.0):
        working.edit(target=value and Goal(metric="latency_us", value=value))
        snapshot = working.to_snapshot()
        states[value] = dict(session_tables(snapshot)[0].texts)["hypothesis"].split(".")[0]
    assert states == {None: "open", 60.0: "confirmed", 20.0: "refuted"}
    store.save(snapshot)
    table = spent_table(store.list(), store.open)
    assert says(table.remark, "over_its_budget", "Splits", "3.60", "2.00")
    (row,) = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (row["over its budget"], row["hypothesis"]) == ("yes", "refuted")
    assert row["gain"].startswith("2× ")  # the time was halved in two hours: 25 % an hour
    assert (row["saved per hour"], row["saved per US$"]) == ("25%", "13.9%")
