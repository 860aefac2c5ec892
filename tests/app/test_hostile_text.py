"""Snapshots full of Markdown and HTML probes: no page renders any of them as markup."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from app_driver import charts, metric
from hostile import NUMBERS, PROBE, VALID, filled, probe_snapshot
from slow_cases import one_in
from streamlit.testing.v1.element_tree import Block, Element, Node
from tuned_data import ENTRY as TUNED
from words import says

from app.evaluation import tabs
from app.shared.widgets import plain_markdown
from app.sweep.results import TABS as SWEEP_TABS
from engine.attention.config import problem_class, save_tuned
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.search.ranking import SweepRow
from engine.search.space import Location, Space, SweepOptions
from engine.search.sweep.journal import SweepJournal, SweepSpec
from engine.sessions import store as store_module
from engine.sessions.snapshot import Snapshot, dumps, loads

# Parts of the probe that take effect if they are unescaped in Markdown.
ALIVE = re.compile(
    r"!\[evil|\]\(http|<img|\*\*evil|`evil|\$evil|:red\[|:material/evil|:100:|https?://|www\.evil|@evil"
)
# Fields that Streamlit shows as plain text, without Markdown, by kind of element.
PLAIN = {
    *(("text", "body"), ("code", "code_text"), ("code", "language")),
    *(("selectbox", "options"), ("multiselect", "options"), ("multiselect", "default")),
    *(("multiselect", "raw_values"), ("selectbox", "raw_value")),
    *(("text_input", "value"), ("text_input", "default"), ("text_input", "placeholder")),
    *(("text_area", "value"), ("text_area", "default"), ("text_area", "placeholder")),
}
TABS = ("Latency", "Occupancy", "Correctness", "Source and resources")


@pytest.fixture(scope="module")
def hostile() -> Snapshot:
    return probe_snapshot()


pytestmark = pytest.mark.usefixtures("no_shipped_sessions")


def save(snapshot: Snapshot) -> str:
    return store_module.default_store().save(snapshot)


def elements(node: Node) -> Iterator[Element]:
    if isinstance(node, Block):
        for child in node.children.values():
            yield from elements(child)
    elif isinstance(node, Element):
        yield node


def strings(message: Any) -> Iterator[tuple[str, str]]:
    """Yield (field, text) for every text in a protobuf message."""
    for field, value in message.ListFields():
        several = isinstance(value, (list, tuple)) or hasattr(value, "append")
        for item in value if several else [value]:
            if isinstance(item, str):
                yield field.name, item
            elif hasattr(item, "ListFields"):
                yield from strings(item)


def blocks(node: Node) -> Iterator[Any]:
    if isinstance(node, Block):
        if getattr(node, "proto", None) is not None:
            yield node
        for child in node.children.values():
            yield from blocks(child)


def alive(text: str) -> list[str]:
    return ALIVE.findall(re.sub(r"\\[^A-Za-z0-9\s]", "", text))


def check(at: Any) -> int:
    """Check that no probe takes effect; return how many of the page's texts contain one."""
    assert not at.exception, at.exception
    seen = 0
    for node in [*elements(at._tree), *blocks(at._tree)]:
        if node.type in ("bidi_component", "arrow_data_frame", "imgs") or node.proto is None:
            continue
        for field, text in strings(node.proto):
            seen += "evil" in text
            if (node.type, field) not in PLAIN and field not in ("id", "key", "query_string"):
                assert not alive(text), (node.type, field, text)
    for chart in charts(at).values():  # Plotly renders some HTML, including links
        assert "<img" not in json.dumps(chart)
    return seen


def test_the_probe_text_is_in_every_text_field(hostile) -> None:
    count = dumps(hostile, compress=False).count(b"evil/p")
    assert count >= 45


def test_snapshot_texts_are_escaped_on_the_sessions_page(open_app, hostile) -> None:
    name = save(hostile)
    at = open_app("sessions", session=name)
    assert check(at) > 5
    for opened in ("session_sources", "session_advice"):
        at.session_state[opened] = True
    for tab in TABS:
        at.session_state["session_tab"] = tab
        at.run()
        assert check(at) > 5, tab


def test_snapshot_texts_are_escaped_on_the_compare_page(open_app, hostile) -> None:
    environment = hostile.environment.model_copy(update={"driver": "another"})
    save(hostile)
    save(hostile.model_copy(update={"id": "f" * 32, "environment": environment}))
    assert check(open_app("compare")) > 3


@pytest.mark.parametrize(
    "text", ["- x", "+ x", "1. x", "12) x", "---", "# x", "> x", "    x", "&lt;"]
)
def test_no_text_becomes_a_markdown_block(text: str) -> None:
    safe = plain_markdown(text)
    assert not re.match(r"([-+*]|\d+[.)])(\s|$)|---|[#>&]|\s{4}", safe)


def test_numbers_are_not_escaped() -> None:
    for text in ("12.5 µs", "-3 %", "1,024", "4.9e-04"):
        assert plain_markdown(text) == text


@pytest.mark.parametrize(
    "value", one_in(5, [0, 1, 1e-6, 255, 1024, 2**53, 1e15, 1e39, -1, None], 2, slow=3)
)
def test_extreme_valid_figures_are_displayed(open_app, value) -> None:
    """With an extreme value in every field that accepts it, no tab raises."""
    raw = filled(value, [p for p in NUMBERS if p[0] in ("evaluations", "error_maps")])
    raw["error_maps"] = [raw["error_maps"][0] | {"name": name} for name in ("a__b", "a__b", "c")]
    name = save(loads(json.dumps(raw).encode(), name="evil.json"))
    at = open_app("sessions", session=name)
    for tab in TABS:
        at.session_state["session_tab"] = tab
        at.run()
        assert not at.exception, (tab, at.exception)
        assert metric(at, "Registers")


def test_a_failing_view_shows_an_error_in_its_tab(open_app, monkeypatch, view_errors) -> None:
    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(tabs.latency, "draw", broken)
    at = open_app("sessions", session=save(loads(VALID, name="valid.json")))
    assert not at.exception
    assert view_errors
    view_errors.clear()
    assert any(says(e.value, "cannot_be_shown") for e in at.error)
    assert metric(at, "Registers")


@pytest.fixture
def hostile_files(hostile: Snapshot, cache_dir: Path) -> Iterator[Path]:
    """Put the probe into all files that Tune, Batch size and Sweep read."""
    save(hostile)
    recorded = hostile.opened()[0]
    gpu, variant, problem = "L4", "v05", Problem(1, 1, 128, 64)
    texts = {"reason": PROBE, "log": PROBE, "notes": (PROBE,), "device": PROBE, "flags": (PROBE,)}
    described = {"problem": PROBE, "when": PROBE, "strategy": PROBE}
    known = replace(TUNED, problem_class=problem_class(problem), **described)
    save_tuned(replace(known, gpu=gpu, variant=variant))
    spec = SweepSpec(Space((variant,), (problem,)), SweepOptions(gpu=gpu))
    book = SweepJournal(cache_dir / "sweeps" / "hostile.jsonl")
    place = Location(host=PROBE, gpu=PROBE)
    with book.claim():
        book.begin(spec)
        for point in spec.space.points(spec.options):
            request = point.request
            made = replace(recorded, **texts, variant=variant, problem=problem)
            made = replace(made, config=dict(request.config))
            failed = replace(made, status=Status.CRASHED, latency=None)
            for evaluation in (made, failed):
                book.add(point, SweepRow.make(point, evaluation, 0.1, place))
        book.end("finished")
    yield book.path
    book.path.unlink()


@pytest.mark.usefixtures("hostile_files")
@pytest.mark.parametrize("page", ["", "batch", "devices"])
def test_file_texts_are_escaped_on_the_other_pages(open_app, page) -> None:
    assert check(open_app(page, gpu="L4", variant="v05", S="128")) >= (page != "devices")


@pytest.mark.usefixtures("hostile_files")
@pytest.mark.parametrize("tab", one_in(3, SWEEP_TABS))
def test_journal_texts_are_escaped_on_the_sweep_page(open_app, tab) -> None:
    at = open_app("sweep", gpu="L4", sweep="cli-hostile", sweep_tab=tab)
    assert check(at) >= (tab not in ("Table", "Not timed"))  # these tabs show only dataframes
    assert metric(at, "Done")
