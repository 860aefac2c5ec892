"""The report has the figures of the session, and no text in it acts as markup."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hostile import HOSTILE_TEXTS, STRINGS, outcome, put, value_at
from make_shipped import h200_baselines, l4_study
from markdown_it import MarkdownIt
from sessions_data import evaluation_maker, make_latency, snapshot_maker
from words import says

from engine.attention.evaluation import Evaluation
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.table import Table
from engine.history.known_time import not_comparable
from engine.sessions.palette import LIGHT
from engine.sessions.report import (
    MAX_MAPS,
    MAX_POINTS,
    escape_markdown,
    html_templates,
    report_figures,
    to_html,
    to_markdown,
)
from engine.sessions.session import make_error_map
from engine.sessions.snapshot import Snapshot, loads
from engine.sessions.tables import batch_table, passes_table, session_tables


def tables(snapshot: Snapshot) -> dict[str, Table]:
    return {table.title: table for table in session_tables(snapshot)}


def cells(table: Table, column: str) -> list[str]:
    return [row[table.columns.index(column)] for row in table.texts]


def test_setup_and_target() -> None:
    setup = dict(row[:2] for row in tables(snapshot_maker())["Summary"].rows)
    assert says(setup["target"], "speedup_goal", "1.5×", "flash", "S=128")
    assert says(setup["result"], "goal_met", "2× (1.98× to 2.02×)")
    assert says(setup["evaluations"], "of_which_passed", "2", "1")


def test_results_name_their_origin() -> None:
    predicted = make_latency(50.0, 0, origin="predicted")
    snapshot = snapshot_maker(
        evaluations=[evaluation_maker(), evaluation_maker(latency=predicted, variant="v01")],
        timeline=[],
        error_maps=[],
    )
    results = tables(snapshot)["Results"]
    assert cells(results, "origin") == ["recorded", "predicted"]
    assert cells(results, "latency") == ["12.5 µs", "50 µs"]
    assert cells(results, "95 % interval") == ["12.4 µs to 12.6 µs", "49.8 µs to 50.2 µs"]
    # 4 · 128² · 64 operations in 12.5 µs
    assert cells(results, "TFLOP/s") == ["0.336", "0.0839"]
    mine, predicted = cells(results, "against the best baseline")
    assert says(mine, "times_faster", "2×", "flash")
    assert predicted == not_comparable("predicted", "recorded")


def test_failures_are_rows_too() -> None:
    snapshot = snapshot_maker()
    results = tables(snapshot)["Results"]
    assert cells(results, "status") == ["PASSED", "SKIPPED"]
    assert cells(results, "reason")[1] == snapshot.evaluations[1].reason
    assert cells(results, "latency")[1] == "–"


def test_the_batch_table_of_the_l4_study() -> None:
    batch = tables(l4_study())["Batch"]
    # The kernel of the other series has one batch only. Neither is the variant v01 itself.
    assert set(cells(batch, "variant")) == {"L4 study kernel (series: batch)"}
    assert cells(batch, "batch · heads") == ["1", "32", "256"]
    assert cells(batch, "gain per unit") == ["1×", "24.6×", "40.9×"]
    assert cells(batch, "per (batch, head)")[-1] == "14.2 µs"
    assert set(cells(batch, "origin")) == {"recorded"}


def test_times_of_other_kernels_have_their_own_names() -> None:
    found = tables(l4_study())
    names = {"L4 study kernel (series: length)", "L4 study kernel (series: batch)"}
    assert set(cells(found["Results"], "variant")) == names
    result = dict(row[:2] for row in found["Summary"].rows)["result"]
    assert "L4 study kernel (series: batch) at B32 H8" in str(result)


def test_times_predicted_by_two_methods_are_not_in_one_batch_table() -> None:
    def at(batch: int, method: str) -> Evaluation:
        latency = make_latency(10.0, 0, origin="predicted", reason=f"By {method}: test data.")
        return evaluation_maker(problem=Problem(batch, 1, 128, 64), latency=latency)

    code, roofline = "machine code", "roofline"
    assert not batch_table([at(1, roofline), at(2, code)]).rows
    assert len(batch_table([at(1, code), at(2, code)]).rows) == 2


def test_recorded_baselines_without_a_kernel() -> None:
    found = tables(h200_baselines())
    assert "Results" not in found
    assert len(found["Baselines"].rows) == 152
    assert cells(found["Baselines"], "end to end")[0] == "81.6 µs"


def test_all_parts_of_a_session_have_tables() -> None:
    found = tables(snapshot_maker())
    assert cells(found["Occupancy"], "limiter") == ["registers and shared memory"] * 2
    assert cells(found["Occupancy"], "occupancy") == ["33%", "33%"]
    assert cells(found["Correctness"], "SDPA's error") == ["0.00041 (math fp16)"]
    assert cells(found["Timeline"], "gain since the start") == ["1×", "–"]
    assert ("driver", "000.00 (test data)") in found["Environment"].rows
    assert cells(found["Sources"], "flags") == ["-DHEAD_DIM=64"]


def test_charts_of_a_report() -> None:
    # The kernel passed, so there is an error map only on request.
    first, second = (f.title for f in report_figures(snapshot_maker(), html_templates()))
    assert first == "Latency"
    assert says(second, "occupancy_of_passes")
    *_, heat = report_figures(snapshot_maker(), html_templates(), maps=True)
    assert says(heat.title, "error_map_of", "query row and column d", "0")
    assert heat.svg.count("<rect") <= 12
    passed = LIGHT.within[0]
    assert f'fill="{passed}"' in heat.svg
    assert "tolerance 0.00083" in heat.remark


def test_a_wrong_result_has_its_maps_in_warm_colours() -> None:
    first, *rest = snapshot_maker().evaluations
    assert first.correctness is not None
    wrong = replace(
        first,
        status=Status.INCORRECT,
        reason="wrong",
        latency=None,
        correctness=replace(first.correctness, passed=False, tolerance=1.1e-4),
    )
    snapshot = snapshot_maker().model_copy(update={"evaluations": (wrong, *rest)})
    *_, heat = report_figures(snapshot, html_templates())
    assert says(heat.title, "error_map_of")
    assert LIGHT.beyond[1] in heat.svg


def test_charts_of_a_large_session_are_truncated_with_a_note() -> None:
    from sessions_data import map_stub

    snapshot = snapshot_maker(
        evaluations=[evaluation_maker(problem=Problem(1, 1, s, 64)) for s in range(1, 130)],
        error_maps=[make_error_map(0, map_stub()) for _ in range(30)],
        timeline=[],
    )
    figures = report_figures(snapshot, html_templates(), maps=True)
    assert len(figures) == 2 + MAX_MAPS
    assert figures[0].svg.count("<circle") + figures[0].svg.count("<path") == MAX_POINTS
    assert says(figures[0].remark, "first_tables_hold", "200", "258")


def test_the_summary_comes_first_and_one_evaluation_is_small() -> None:
    text = to_html(snapshot_maker(), maps=True)
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings[0] == "Summary"
    assert len(text.encode()) < 300_000


def test_an_empty_session_has_a_report() -> None:
    empty = snapshot_maker().model_copy(
        update={"evaluations": (), "error_maps": (), "timeline": (), "target": None}
    )
    assert "<svg" not in to_html(empty)
    assert to_markdown(empty).startswith("# Test data")


# -- untrusted texts


def spoiled(text: str) -> Snapshot:
    """Return a valid snapshot with `text` in every string that accepts it."""
    raw = json.loads(put(("title",), "x"))
    for path in STRINGS:
        if path[0] != "format" and outcome(put(path, text)) == "":
            at: Any = raw
            for part in path[:-1]:
                at = at[part]
            at[path[-1]] = text
    raw["sources"][0]["text"] = value_at(("sources", 0, "text"))
    for report in raw["evaluations"][0]["passes"]:
        report["occupancy"]["reason"] = text
        report["resources"]["entry"] = text.replace("\n", " ")
    return loads(json.dumps(raw).encode(), name="spoiled")


class Elements(HTMLParser):
    """Collects every tag with its attributes, and the text outside of scripts."""

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.scripts: list[str] = []
        self.text = ""
        self._in_script = False
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, _tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text += data


TAGS = set("html head meta title style body h1 h2 p div pre table thead tbody tr th td".split())
SVG_TAGS = {"svg", "line", "text", "rect", "circle", "path"}
ATTRIBUTES = {"class", "lang", "charset", "http-equiv", "content", "name"}
SVG_ATTRIBUTES = set(
    "viewbox x y x1 y1 x2 y2 cx cy r d width height fill stroke stroke-width stroke-dasharray "
    "transform".split()
)


@pytest.mark.parametrize("text", [*HOSTILE_TEXTS, "</script><script>alert(1)</script>", "<!--"])
def test_html_of_texts_is_escaped(text: str) -> None:
    snapshot = spoiled(text)
    found = Elements(to_html(snapshot, maps=True))
    assert found.tags <= TAGS | {"details", "summary"} | SVG_TAGS
    assert found.attributes <= ATTRIBUTES | SVG_ATTRIBUTES
    assert not found.scripts
    assert found.text.count(text) > 15


def active(markdown: str) -> set[str]:
    """Return the elements that a Markdown reader makes, without tables, headings, paragraphs."""
    kinds = set()
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown):
        kinds |= {token.type, *(child.type for child in token.children or [])}
    return {k.removesuffix("_open").removesuffix("_close") for k in kinds}


@pytest.mark.parametrize(
    "text", [*HOSTILE_TEXTS, "| a | b |", "```\n# x", "https://example.org", "*a* _b_ ~~c~~", "- a"]
)
def test_markdown_of_texts_is_escaped(text: str) -> None:
    document = to_markdown(spoiled(text))
    table = {"table", "thead", "tbody", "tr", "th", "td"}
    assert active(document) <= table | {"heading", "paragraph", "inline", "text", "fence"}
    clean = to_markdown(snapshot_maker())
    parse = MarkdownIt("commonmark").enable("table").parse
    count = [sum(t.type == "td_open" for t in parse(d)) for d in (document, clean)]
    assert count[0] == count[1]


@pytest.mark.parametrize(
    "text", [*HOSTILE_TEXTS, "a|b", "`x`", "www.example.org", "\\*a\\*", "&lt;"]
)
def test_escaped_markdown_reads_as_the_text(text: str) -> None:
    (_, inline, _) = MarkdownIt("commonmark").parse("x " + escape_markdown(text))
    assert "".join(c.content for c in inline.children or []) == "x " + " ".join(text.split())


def test_the_html_loads_no_external_resource() -> None:
    document = to_html(snapshot_maker())
    assert "default-src 'none'" in document
    assert "<script" not in document
    assert "http://" not in document
    assert "https://" not in document


def test_a_column_of_passes_is_of_one_kind() -> None:
    """A column has one type, as Arrow refuses numbers and texts in one column."""
    reports = evaluation_maker().passes
    columns = passes_table(reports).frame().drop(columns="figure")
    kinds = {type(value) for name in columns for value in columns[name] if value is not None}
    assert kinds == {str}
