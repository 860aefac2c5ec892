"""Commands and pages that predict without compiling give the same time.

Commands, and pages after a run, are tested in `test_agreement.py`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from agreement_cases import Case, evaluation_of, figures
from words import says

from engine.attention.evaluation import Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.schema import encode
from engine.base.units import format_us
from engine.devices import find_device
from engine.sessions.session import make_snapshot

if TYPE_CHECKING:
    from engine.choose.batch.types import BatchResult
    from engine.history import History

MIG = "H200 MIG 1g.18gb"
SMALL = Problem(1, 4, 512, 64)
SMALL_CAUSAL = replace(SMALL, causal=True)
DECODE = Problem(1, 4, 1, 64, seqlen_kv=1024)
GQA = replace(SMALL, num_heads_kv=2)
TIMES = ("latency_us", "low_us", "high_us")
QUICK = [
    ("v08", "L4", SMALL, ()),
    ("v08", "L4", SMALL_CAUSAL, ((replace(SMALL_CAUSAL, seqlen=256), 25.0),)),
    ("v08", "L4", SMALL, ((SMALL, 61.0),)),
    ("v08", "L4", DECODE, ((DECODE, 31.0),)),
    ("v08", "L4", GQA, ((GQA, 58.0),)),
    ("v13", "H100 PCIe", SMALL, ()),
    ("v13", MIG, SMALL, ()),
    ("v08", MIG, SMALL, ((SMALL, 310.0),)),
]


def of_batch_page(result: BatchResult, made: Latency, time: Latency) -> None:
    """Assert that the page's curve, table and tile of a batch have the history's time, and that the
    table has the prediction, too."""
    from app.batch import frames, summary

    batch = result.problem.batch
    lines = frames.selected_rows(result, batch)
    dots = frames.measured((), result, heads_free=False)
    of_time = (time.median_us, time.low_us, time.high_us, time.origin)
    points = dots[["latency_us", "low_us", "high_us", "origin"]]
    assert list(points.itertuples(index=False, name=None)) == [of_time] * (
        time.origin != "predicted"
    )
    line = frames.table(lines, dots).set_index("B").loc[batch]
    drawn = frames.curve(result.table).set_index("batch").loc[batch]
    for shown, latency in (
        ((line["latency µs"], line["low µs"], line["high µs"]), time),
        ((drawn["latency_us"], drawn["low_us"], drawn["high_us"]), made),
    ):
        assert shown == pytest.approx((latency.median_us, latency.low_us, latency.high_us))
    assert line["predicted µs"] == pytest.approx(made.median_us)
    assert line["origin"] == time.origin
    now = summary.now_note(summary.present(result))
    assert says(now, "present_batch", format_us(time.median_us), time.origin)


def of_sweep_page(evaluation: Evaluation, history: History, recorded: list[float]) -> None:
    """Assert that the page's tables have the point's time and its kernel's known times."""
    from app.sweep import frames
    from app.sweep.result_rows import ResultRows
    from engine.search.autotune import problem_result
    from engine.search.ranking import SweepRow

    made = evaluation.latency
    assert made is not None
    row = SweepRow.from_result("p", encode(evaluation), 0.0)
    rows = ResultRows()
    rows.update([row], is_over=True)
    table = frames.beside_known(frames.table(rows.frame), {"p": row}, history, "latency µs")
    line = table.loc["p"]
    assert line["latency µs"] == made.median_us
    assert " by ".join(filter(None, (line["origin"], line["by"]))) == made.basis
    (columns,) = rows.frame[["low_us", "high_us"]].itertuples(index=False)
    assert tuple(columns) == (made.low_us, made.high_us)
    result = problem_result(row.device, [row])
    assert result is not None
    (best,) = frames.best(result, [row])
    interval = f"{format_us(made.low_us)} – {format_us(made.high_us)}"
    assert (best["latency"], best["interval"]) == (format_us(made.median_us), interval)
    assert (best["origin"], best["against the best"]) == (made.origin, "1×")

    known = {name: line[name] for name in table.columns if name.startswith("known")}
    assert list(known.items()) == [("known µs, recorded", us) for us in recorded]


def of_compare_page(point: Evaluation, made: Latency, shown: Latency) -> None:
    """Assert that Compare shows the prediction before, and the history's time after."""
    from app.compare.results import rows_table
    from engine.sessions.compare import compare_sessions
    from engine.sessions.compare.formats import rows_frame, winners_frame

    sessions = {
        name: make_snapshot([replace(point, latency=latency)], environment={}, title=name)
        for name, latency in (("before", made), ("after", shown))
    }
    found = compare_sessions(sessions)
    (row,) = found.rows
    (line,) = rows_table(found.rows).to_dict("records")
    times = [line["time before"], line["time after"]]
    assert times == [format_us(made.median_us), format_us(shown.median_us)]
    same = made.origin == shown.origin
    assert line["origin"] == (shown.origin if same else f"{made.origin} → {shown.origin}")
    for side, latency in ((row.before, made), (row.after, shown)):
        figure = side.times[latency.origin]
        assert figures(figure) == figures(latency)
        assert figure.basis == latency.basis
    (csv,) = rows_frame(found).to_dict("records")
    assert csv[f"{shown.origin}_us_after"] == shown.median_us
    winners = winners_frame(found)
    ranked = [] if shown.origin == "predicted" else [(shown.median_us, shown.origin)]
    assert [(w.median_us, w.origin) for w in winners.itertuples()] == ranked


@pytest.mark.parametrize(("name", "gpu", "problem", "times"), QUICK)
def test_predictions_without_compiling_agree(
    name: str, gpu: str, problem: Problem, times: tuple[tuple[Problem, float], ...]
) -> None:
    """Advice and reports, alternatives, the batch curve, counters of `profile`, `time_of`, and
    what the pages Sweep, Batch and Compare show."""
    from made_up_history import MadeUpHistory, Times

    from app.batch import frames
    from engine.choose.advice import advise
    from engine.choose.batch.alternatives import Situation, rank_options
    from engine.choose.batch.recommend import recommend_batch
    from engine.choose.batch.types import BatchRequest
    from engine.history.known_time import times_of
    from engine.model.kernel import Kernel
    from engine.sessions.importers.nsight_compute import counters_table

    device = find_device(gpu)
    case = Case("", name, problem, device.name)
    taken = times_of([evaluation_of(case, p, us) for p, us in times], session="Mine: test data")
    history = MadeUpHistory(Times({device.name: taken}))
    kernel = Kernel.of(name, device)
    made = history.estimate(kernel, problem).latency
    assert made is not None
    asked = BatchRequest(
        name,
        gpu=device,
        heads=problem.num_heads,
        seqlen=problem.seqlen,
        head_dim=problem.head_dim,
        causal=problem.causal,
        seqlen_kv=problem.seqlen_kv,
        heads_kv=problem.num_heads_kv,
        max_batch=problem.batch,
    )
    batch = recommend_batch(asked, history)
    row = batch.table.iloc[-1]
    options, _ = rank_options(Situation(kernel, problem, None), [], (), None, history)
    (accept,) = options
    (option,) = frames.options(options).to_dict("records")
    assert (option["latency µs"], option["origin"]) == (accept.latency_us, accept.basis)
    shown = {"batch": (row["predicted_us"], row["predicted_low_us"], row["predicted_high_us"])}
    time = history.time_of(kernel, problem)
    assert time is not None
    accepted = (accept.latency_us, accept.low_us, accept.high_us, accept.basis)
    assert accepted == (time.us, time.low_us, time.high_us, time.latency.basis)
    for us in ((row[n] for n in TIMES), (getattr(batch.recommended, n) for n in TIMES)):
        assert tuple(us) == pytest.approx((time.us, time.low_us, time.high_us))
    assert row["origin"] == batch.recommended.origin == time.origin
    recorded = [us for p, us in times if p == problem]
    if not recorded:
        shown["time_of"] = (time.us, time.low_us, time.high_us)
        assert (time.origin, time.method) == (made.origin, made.method)
        assert time.calibrated_on == len(times)
    assert (time.us, time.origin) == (
        (recorded[0], "recorded") if recorded else (made.median_us, "predicted")
    )
    expected = pytest.approx((made.median_us, made.low_us, made.high_us))
    assert {who: each for who, each in shown.items() if each != expected} == {}
    assert batch.method == made.method
    of_batch_page(batch, made, time.latency)
    point = replace(evaluation_of(case, problem, 1.0), config=kernel.config)
    of_sweep_page(replace(point, latency=made), history, recorded)
    of_compare_page(point, made, time.latency)

    evaluated = evaluation_of(case, problem, 600.0)
    advised = " ".join(each.reason for each in advise([evaluated], history))
    now = f"{time.origin.capitalize()} {format_us(time.us)}"
    assert set(re.findall(r"([A-Z]\w+ [\d.,]+ \S+) now", advised)) == {now}
    by_tool = Latency("recorded", 600.0, 600.0, 600.0, "Nsight Compute counted it.")
    counted = replace(evaluated, latency=by_tool, notes=("Duration: 600 us",))
    (line,) = counters_table([counted], history).texts
    assert format_us(made.median_us) in line


def test_a_recorded_batch_among_predicted_ones_has_no_ratio_to_them() -> None:
    """The present batch was recorded, others are predicted: times, shares, waiting and costs."""
    from made_up_history import MadeUpHistory, Times

    from app.batch import frames, summary
    from engine.choose.batch.recommend import recommend_batch
    from engine.choose.batch.types import BatchRequest
    from engine.history.known_time import NOT_COMPARABLE, are_comparable, times_of

    problem = Problem(4, 8, 512, 64)
    taken = times_of([evaluation_of(Case("", "v08", problem, "L4"), problem, 45.0)], session="Mine")
    history = MadeUpHistory(Times({"L4": taken}))
    asked = BatchRequest("v08", gpu="L4", heads=8, seqlen=512, head_dim=64, batch_now=4)
    asked = replace(asked, max_batch=64, arrivals_per_s=5_000, budget_ms=50, targets=(0.8, 0.9, 1))
    result = recommend_batch(asked, history)
    assert says(result.notes, "batches_ranked_by")
    assert not says(recommend_batch(asked, MadeUpHistory()).notes, "batches_ranked_by")
    shares = {}
    for r, encoded in zip(result.recommendations, result.to_dict()["recommendations"], strict=True):
        comparable = are_comparable(r.origin, r.plateau_origin)
        assert (encoded["share_of_plateau"] is not None) == comparable
        assert (NOT_COMPARABLE in r.reason) == (not comparable)
        assert ("% of the plateau" in r.reason) == ("%" in summary._of_plateau(r)) == comparable
        shares[r.origin] = comparable
    assert set(shares) == {"recorded", "predicted"}
    assert False in shares.values()

    saving = result.saving
    assert saving is not None
    assert (saving.now.origin, saving.then.origin) == ("recorded", result.recommended.origin)
    comparable = are_comparable(saving.now.origin, saving.then.origin)
    for difference in (saving.gpu_hours_per_day, saving.usd_per_day, saving.usd_per_year):
        assert (difference is not None) == comparable
    costs = frames.costs(saving)
    assert list(costs)[1:] == [f"now, {saving.now.origin}", f"recommended, {saving.then.origin}"]
    assert result.wait is not None
    waiting = frames.waiting(result.wait).set_index("batch")["origin"]
    assert waiting[4] == "recorded"
    assert set(waiting.drop(4)) == {"predicted"}


def test_points_of_one_session_do_not_hide_the_times_of_others() -> None:
    """The Batch page shows the points of one session; its times are still the history's."""
    from made_up_history import MadeUpHistory, Times

    from engine.choose.batch.recommend import recommend_batch
    from engine.choose.batch.types import BatchRequest
    from engine.history.known_time import points_of, times_of
    from engine.model.kernel import Kernel

    case, kernel = Case("", "v08", SMALL, "L4"), Kernel.of("v08", "L4")
    older = evaluation_of(case, SMALL, 90.0)
    newer = replace(evaluation_of(case, SMALL, 61.0), when="2026-05-01T00:00:00+00:00")
    longer = evaluation_of(case, replace(SMALL, seqlen=1024), 400.0)
    shown = times_of([older], session="Shown: test data")
    history = MadeUpHistory(
        Times({"L4": (*shown, *times_of([newer, longer], session="Others: test data"))})
    )
    made, time = history.estimate(kernel, SMALL), history.time_of(kernel, SMALL)
    assert made.latency is not None
    assert time is not None
    result = recommend_batch(
        BatchRequest(
            "v08",
            gpu="L4",
            heads=4,
            seqlen=512,
            head_dim=64,
            max_batch=1,
            measured=points_of(shown),
        ),
        history,
    )
    (row,) = result.table.to_dict("records")
    figures_of_batch = row["predicted_us"], row["predicted_low_us"], row["predicted_high_us"]
    assert figures_of_batch == pytest.approx(figures(made.latency), abs=1e-3)
    assert (row["latency_us"], row["origin"]) == (time.us, time.origin) == (61.0, "recorded")
    assert result.calibration is not None
    assert result.calibration.points == 3


@pytest.mark.parametrize("us", [0.5, 5_000.0])
def test_an_alternative_has_its_known_time_and_rank(us: float) -> None:
    """A kernel that was timed faster than all others, or slower, has that time and place in auto,
    in alternatives and in advice."""
    from made_up_history import MadeUpHistory, Times

    from engine.choose.advice import advise
    from engine.choose.auto import choose
    from engine.choose.batch.alternatives import Situation, rank_options
    from engine.history.known_time import NOT_COMPARABLE, times_of
    from engine.model.kernel import Estimate, Kernel
    from kernels.ladder import LADDER

    class Simulated(MadeUpHistory):
        """The roofline's times, under the name of simulated ones, which rank."""

        def estimate(self, *args: Any) -> Estimate:
            made = super().estimate(*args)
            assert made.latency is not None
            reason = made.latency.reason.replace("By roofline", "By machine code")
            latency = replace(made.latency, reason=reason)
            return replace(made, by_machine_code=True, latency=latency)

    case = Case("", "v08", SMALL, "L4")
    timed = evaluation_of(case, SMALL, us)
    history = Simulated(Times({"L4": times_of([timed], session="Mine: test data")}))
    kernel, now = Kernel.of("v08", "L4"), Kernel.of("v05", "L4")
    options, notes = rank_options(Situation(now, SMALL, None), LADDER.of(SMALL), (), None, history)
    mine = next(o for o in options if (o.variant, o.config) == ("v08", kernel.config))
    assert (mine.latency_us, mine.low_us, mine.high_us) == (us, 0.98 * us, 1.04 * us)
    assert (mine.origin, mine.basis, mine.speedup) == ("recorded", "recorded", None)
    assert "Mine: test data" in mine.reason
    assert any("v08" in note and NOT_COMPARABLE in note for note in notes)
    chosen = choose(SMALL, kernel.device, history=history)
    is_best = us < 1
    assert (chosen.kernel == kernel) == is_best
    assert (options[0] == mine) == is_best
    (present,) = (o for o in options if o.kind == "accept")
    assert (options.index(mine) < options.index(present)) == is_best

    at_v05 = replace(timed, variant="v05", config=now.config, source_sha256="", latency=None)
    told = [s for s in advise([at_v05], history) if s.variant == "v08"]
    for each in told:
        assert each.latency is not None
        if each.config == kernel.config:
            assert (each.latency.origin, each.latency.median_us, each.gain) == (
                "recorded",
                us,
                None,
            )
    assert any(s.config == kernel.config for s in told) == is_best


# (variant, GPU, problem, given values, values that nobody gave and that are not the default)
UNFIT = [
    ("v12", "L4", replace(SMALL, seqlen=256), {}, {"keys_per_warp": 64}),
    ("v12", "L4", replace(SMALL, seqlen=256), {"keys_per_warp": 32}, {"num_warps": 8}),
    ("v14", "T4", Problem(1, 8, 1, 128, seqlen_kv=512), {}, {"num_warps": 2}),
    ("v20", "H200", Problem(1, 32, 2048, 128), {}, {"block_n": 64}),
    ("v12", "L4", replace(SMALL, seqlen=8192), {}, {}),  # no config fits
    ("v08", "L4", SMALL, {"num_warps": 8}, {}),
]


@pytest.mark.parametrize(("name", "gpu", "problem", "given", "fitting"), UNFIT)
def test_values_that_nobody_gave_are_the_same_everywhere(
    name: str, gpu: str, problem: Problem, given: dict[str, int], fitting: dict[str, int]
) -> None:
    from types import SimpleNamespace

    from made_up_history import compiled_on_an_l4

    from app.shared import sidebar
    from engine.attention.config import default_config, find_variant
    from engine.choose.auto.choice import candidates_for
    from engine.choose.batch.alternatives import _spread
    from engine.choose.batch.recommend import recommend_batch
    from engine.choose.batch.types import BatchRequest
    from engine.cli.options import config_from
    from engine.kernel_figures.rung import request_of
    from engine.model.kernel import Kernel
    from engine.pipeline.request import EvaluationRequest, preview, resolve
    from engine.search.space import Space, SweepOptions
    from engine.search.strategies import Group

    variant, device, history = find_variant(name), find_device(gpu), compiled_on_an_l4()
    expected = default_config(variant, given, device) | fitting
    request = EvaluationRequest(name, problem, given, gpu=gpu)
    resolved = resolve(request, history)
    origins = dict.fromkeys(expected, "default") | dict.fromkeys(fitting, "fitting")
    assert resolved.config_origin.origins == origins | dict.fromkeys(given, "given")
    shown = ", ".join(f"{n}={value}" for n, value in fitting.items())
    assert says(resolved.notes, "default_unfit", shown) == bool(fitting)

    typed = SimpleNamespace(
        config=[f"{n}={value}" for n, value in given.items()], defaults_only=True, gpu=gpu
    )
    options = SweepOptions(gpu=gpu)
    tunables = {n: (value,) for n, value in given.items()}
    (point,) = Space((name,), (problem,), tunables, own_values=False).points(options)
    configs = {
        "evaluate": resolved.config,
        "preview": preview(request, history).config,
        "--defaults-only": config_from(typed, name, problem),  # type: ignore[arg-type]
        "variants": request_of(variant, problem, gpu, given).config,
        "sweep": point.request.config,
    }
    is_supported = Kernel.of(variant, device, expected).fits(problem)
    if is_supported:
        asked = BatchRequest(
            name,
            gpu=device,
            config=given,
            **{"heads" if f == "num_heads" else f: getattr(problem, f) for f in _SIZES},
            max_batch=2,
        )
        configs["recommend-batch"] = recommend_batch(asked, history).config
    if not given:
        configs["Tune"] = sidebar._defaults(gpu, variant, problem)
        configs["alternatives"] = next(_spread(variant, problem, device)).config
        every = [p for p in Space((name,), (problem,)).points(options) if p.why_not is None]
        if every:
            group = Group({tuple(p.request.config.values()): p for p in every})
            configs["first point of a search"] = group.points[group.start].request.config
    assert {who: config for who, config in configs.items() if config != expected} == {}
    if is_supported and gpu == "H200":  # auto's table has no row of it
        assert Kernel.of(variant, device, expected) in candidates_for(problem, device, history)


_SIZES = ("num_heads", "seqlen", "head_dim", "causal", "seqlen_kv")
