"""The Kernels page: figures of the rungs appear as they are computed; known ones at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from app_driver import charts, plain_texts, texts
from fake_jobs import FakeManager
from words import says

from app.ladder import charts as ladder_charts
from app.ladder import rungs
from app.shared import auto, runs
from app.shared.palette import DARK, LIGHT
from engine.attention.evaluation import Latency
from engine.attention.problem import Problem
from engine.base.schema import encode
from engine.gate.commits import KernelHistory, Step, history_frame
from engine.history.known_time import KnownTime
from engine.jobs.manager import use_manager
from engine.kernel_figures import changes
from engine.kernel_figures.rung import Rung, TileCounts, known_rung, request_of
from engine.model.kernel import Kernel
from engine.versions.figures import Answer, Figures, Finding, GateVerdict
from kernels.ladder import LADDER

PROBLEM = Problem(1, 8, 1024, 64)
# Rungs that an L4 can run on this problem; v12 cannot, as its CTA does not hold all keys.
POSSIBLE = [v for v in LADDER if Kernel.of(v, "L4").unsupported(PROBLEM) is None]
COUNTS = TileCounts({"tensor": 256.0, "fma": 500.0}, 320.0, 320.0, 832)


def rung(name: str, us: float, known_us: float | None = None) -> Rung:
    variant = LADDER.by_id(name)
    request = request_of(variant, PROBLEM, "L4")
    known = None
    if known_us is not None:
        taken = Latency("recorded", known_us, known_us, known_us, "taken")
        known = KnownTime(
            *(name, False, dict(request.config), PROBLEM, "L4", taken),
            *("2026-11-22", "a session", "", False, True, ""),
        )
    return Rung(
        variant=variant,
        config=dict(request.config),
        request=request,
        why_not="",
        main=None,
        spill_bytes=0,
        counts=COUNTS,
        latency=Latency("predicted", us, us / 1.5, us * 1.5, "simulated"),
        is_simulated=True,
        known=known,
        is_complete=True,
    )


@pytest.fixture
def jobs() -> Iterator[FakeManager]:
    fake = FakeManager()
    before = use_manager(fake)
    yield fake
    use_manager(before)


@pytest.mark.slow
def test_each_rung_is_computed_by_one_cancellable_job(open_app, jobs):
    # No other test computes these figures, and none ship for BF16 with a mask.
    link = {"gpu": "L4", "H": "8", "S": "1024", "dtype": "bfloat16", "causal": "true"}
    at = open_app("ladder", **link, variant="v09")
    assert not at.exception
    shown = texts(at)
    asked = len(jobs.submitted)
    assert asked >= len(POSSIBLE)
    assert says(shown, "compiling_simulating_counting", f"{len(POSSIBLE)}", f"{len(LADDER)}")
    assert says(shown.replace("\\", ""), "one_shot_keys")
    assert set(at.dataframe[0].value["title"]) >= {variant.title for variant in POSSIBLE}
    assert at.selectbox(key="kernels_rung").value == "v09"
    at.button(key="kernels_stop").click().run()
    assert len(jobs.cancelled) == asked
    assert says(texts(at), "rungs_worked_out")
    assert len(jobs.submitted) == asked
    at.button(key="kernels_go_on").click().run()
    assert len(jobs.submitted) == asked + len(POSSIBLE)


@pytest.mark.usefixtures("jobs")
@pytest.mark.parametrize("is_complete", [True, False])
def test_auto_candidates_are_simulated_after_all_rungs(open_app, monkeypatch, is_complete):
    """Auto waits until every rung has a time, as an unknown one could be the fastest."""
    asked = []
    known = [replace(rung("v10", 33.0), is_complete=is_complete), rung("v01", 2370.0)]
    monkeypatch.setattr(rungs, "of", lambda _: (known, []))
    monkeypatch.setattr(auto, "simulate_candidates", lambda *args: asked.append(args[1:]))
    open_app("ladder", gpu="L4", H="8", S="1027", variant="v01")
    assert ((Problem(1, 8, 1027, 64), "L4") in asked) == is_complete


def test_concurrent_cancels_cancel_each_job_once(monkeypatch):
    """Two threads cancel at the same time: each job is cancelled once."""

    class Meanwhile(FakeManager):
        def cancel(self, job_id):
            super().cancel(job_id)
            submitted.pop(key, None)

    jobs = Meanwhile()
    before = use_manager(jobs)
    jobs.compile_answer = {"state": "queued"}
    key = runs._key("rung", request_of(LADDER.by_id("v01"), PROBLEM, "L4"), "")
    submitted = {key: jobs.submit(request_of(LADDER.by_id("v01"), PROBLEM, "L4"), "rung")}
    monkeypatch.setattr(runs.st, "session_state", {runs._COMPILES: submitted})
    try:
        runs.cancel_queued_compiles()
    finally:
        use_manager(before)
    assert jobs.cancelled == ["job-1"]
    assert not submitted


@pytest.mark.usefixtures("nothing_ships")
def test_a_failed_job_is_reported_and_not_retried(open_app, jobs):
    why = "nvdisasm is not installed."
    jobs.compile_answer = {"state": "failed", "error": why}
    at = open_app("ladder", gpu="L4", H="8", S="1024")
    assert why in texts(at)
    assert not says(texts(at), "rungs_worked_out")


@pytest.mark.usefixtures("jobs")
def test_the_tree_is_computed_when_its_expander_opens(open_app, ladder_of):
    """Comparing all sources takes a third of a second, so it waits for the expander."""
    ladder_of("v01", "v02")
    at = open_app("ladder", gpu="L4")
    assert not at.code
    at.session_state["kernels_tree"] = True
    at.run()
    (tree,) = [c.value for c in at.code]
    assert [line for line in tree.splitlines() if "v01" in line or "v02" in line]


@pytest.mark.usefixtures("jobs")
def test_forecasts_are_shown_with_simulated_gains(open_app, monkeypatch):
    times = {"v01": 100.0, "v02": 40.0, "v03": 10.0, "v04": 9.0, "v05": 8.0, "v11": 5.0}
    monkeypatch.setattr(changes, "_simulated_us", lambda name, _: times.get(name))
    at = open_app("ladder", gpu="L4")
    at.session_state["kernels_forecasts"] = True
    at.run()
    assert not at.exception
    [table] = [d.value for d in at.dataframe if "expected" in d.value]
    # v13 is not simulated yet.
    assert list(table["simulated"]) == ["2.5×", "1.1×", "12×", "–"]
    assert says(table["came out"][0], "as_expected")
    assert list(table["came out"])[1:] == ["less", "more", "–"]


def test_known_figures_are_table_and_chart(open_app, monkeypatch):
    def known(variant, request, *_):
        found = known_rung(variant, request)
        return found if found.why_not else rung(variant.id, 10.0 + int(variant.id[1:]))

    monkeypatch.setattr(rungs, "known_rung", known)
    at = open_app("ladder", gpu="L4", H="8", S="1024", variant="v09")
    assert not at.exception
    frame = at.dataframe[0].value
    shown = [v.id for v in POSSIBLE]
    assert list(frame["rung"]) == shown
    assert set(frame["instructions"]) == {756}
    assert list(frame.columns)[:4] == ["rung", "title", "predicted", "order"]
    order = dict(zip(frame["rung"], frame["order"], strict=True))
    assert says(order["v09"], "rung_within_error", "v08")  # 19 and 18 µs
    assert set(frame["config"]) == {"defaults"}
    assert "Config: block_n=64 num_warps=4" in texts(at).replace("\\", "")
    assert says(texts(at), "needs_compute_capability", "9", "0", "L4", "8", "9")
    figure = charts(at)["kernels_chart"]
    assert figure["data"][0]["error_x"]["array"]
    # One rung is described: at first the one of the sidebar, then the selected one.
    assert says(
        texts(at).replace("\\", ""), "simulated_where_takes", "Against v08", "19 µs", "18 µs"
    )
    assert "Against v07" not in texts(at)
    at.button(key="kernels_before").click().run()
    assert at.selectbox(key="kernels_rung").value == "v08"
    assert "v08 mma.sync" in texts(at).replace("\\", "")
    assert not at.exception


def test_shipped_figures_are_shown_at_once_and_labelled(open_app, jobs, monkeypatch, tmp_path):
    """Machine code is compiled only when its changes are opened."""
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path))
    jobs.compile_answer = {"state": "queued"}
    at = open_app("ladder", gpu="L4", H="8", S="1024", variant="v09")
    assert not at.exception
    shown = [v.id for v in POSSIBLE]
    frame = at.dataframe[0].value
    assert list(frame["rung"]) == shown
    assert set(frame["predicted"]) & {None, "–"} == set()
    number = str(len(shown))
    assert says(texts(at), "figures_ship", number, number)
    asked = len(jobs.submitted)
    at.session_state["code_v09"] = True
    at.run()
    assert not at.exception
    compiled = [request["variant"] for request in jobs.submitted[asked:]]
    assert compiled == ["v08", "v09"]


FIGURES = Figures(100, 0, 1024, 3, 8000, 1000, 0, 500, 4000, 0, 40.0)


def made_up_history() -> KernelHistory:
    slower = Finding(GateVerdict.SIMULATED_SLOWER, "simulated time 40 µs → 60 µs", True)
    slow = replace(FIGURES, simulated_us=60.0)
    steps = (
        Step("a" * 40, "2026-11-01", "First", Answer("a", FIGURES), ()),
        Step("b" * 40, "2026-11-02", "<b>One</b> load", Answer("b", slow), (slower,), "-fast\n"),
        Step("c" * 40, "2026-11-03", "Slip", Answer(fault="No."), (), "+slip\n"),
    )
    return KernelHistory("v08", PROBLEM, "L4", steps)


def open_history(at):
    at.session_state["kernels_tab"] = "History"
    return at.run()


@pytest.mark.slow
def test_history_opens_at_the_first_regression(open_app, jobs):
    jobs.compile_answer = {"state": "done", "result": encode(made_up_history())}
    at = open_history(open_app("ladder", gpu="L4", H="8", S="1024", variant="v08"))
    assert not at.exception
    frame = at.dataframe[0].value
    assert list(frame["commit"]) == ["ccccccc", "bbbbbbb", "aaaaaaa"]
    assert GateVerdict.SIMULATED_SLOWER in texts(at)
    assert at.code[0].value.strip() == "-fast"
    at.selectbox(key="history_commit").select("c" * 40).run()
    assert at.code[0].value.strip() == "+slip"
    assert "No." in texts(at)
    figure = charts(at)["history_chart"]
    assert [len(trace["x"]) for trace in figure["data"]] == [3, 3, 3]
    assert figure["data"][0]["y"] == [40.0, 60.0, None]
    assert "&lt;b&gt;One" in figure["data"][0]["text"][1]


@pytest.mark.slow
def test_an_unreadable_history_gives_a_message(open_app, jobs, ladder_of):
    why = "git is not installed."
    jobs.compile_answer = {"state": "failed", "error": why}
    at = open_history(open_app("ladder", gpu="L4", variant="v08"))
    assert why in texts(at)
    before = len(jobs.submitted)
    at.button(key="history_again").click().run()
    assert len(jobs.submitted) == before + 1
    folder = ladder_of("v08")  # not in a git repository
    at = open_history(open_app("ladder", gpu="L4", variant="v08"))
    assert says(plain_texts(at), "no_history", str(folder))
    assert not at.exception


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_history_chart_marks_regressions(theme):
    figure = ladder_charts.history(history_frame(made_up_history()), theme)
    assert [trace.marker.color[1] for trace in figure.data] == [theme.bad] * 3
    assert figure.data[0].marker.color[0] == theme.accent
    assert list(figure.layout.xaxis.ticktext) == ["aaaaaaa", "bbbbbbb", "ccccccc"]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_chart_marks_measured_times(theme):
    frame = ladder_charts.times_frame([rung("v08", 39.0), rung("v09", 33.0, 31.0)], "v09")
    figure = ladder_charts.times(frame, theme)
    bars, marks = figure.data
    assert list(bars.x) == [39.0, 33.0]
    assert bars.marker.color == (theme.muted, theme.accent)
    assert list(marks.x) == [31.0]
    assert says(figure.layout.xaxis.title.text, "time_launch_logarithmic")
