"""One kernel, batch and number of splits for a mix of problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_up_history import MadeUpHistory, Times
from words import says

from engine.attention.config import find_variant
from engine.attention.evaluation import METHODS, Evaluation, Latency
from engine.attention.problem import Problem
from engine.base.errors import Status
from engine.base.units import format_usd
from engine.choose.batch import mix
from engine.devices import find_device
from engine.history import History
from engine.history.known_time import not_comparable, times_of
from engine.model.kernel import Kernel, variant_sources

L4 = find_device("L4")
V05 = find_variant("v05")
LINE = mix.MixLine(1000, Problem(1, 8, 512, 64))


def _tried(splits: int, us: list[float]) -> mix._Tried:
    """Return a kernel with `splits` splits and its launch time at each supported batch."""
    latency = np.array(us)
    hours = LINE.count * latency / np.arange(1, len(us) + 1) / 3.6e9
    return mix._Tried(
        Kernel.of(V05, L4, {"num_splits": splits}),
        METHODS[0],
        (latency,),
        (latency,),
        (latency,),
        hours,
        hours,
        float(hours[0]),
        ({},),
    )


def test_kernels_that_support_only_small_batches_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few splits support large batches; many are fastest at the smaller batch that suffices."""
    tried = {1: _tried(1, [200.0, 230.0, 300.0, 400.0]), 8: _tried(8, [110.0, 220.0])}
    monkeypatch.setattr(mix, "_candidates", lambda *_: list(tried))
    monkeypatch.setattr(mix._Tried, "of", lambda splits, *_: tried[splits])
    found = mix.recommend_mix([LINE], L4, History())
    assert (found.config["num_splits"], found.batch) == (8, 1)
    assert found.plateau_hours == pytest.approx(tried[1].hours[3])
    # For the last per cent a large batch is needed, which only few splits support.
    most = mix.recommend_mix([LINE], L4, History(), target=1.0)
    assert (most.config["num_splits"], most.batch) == (1, 3)


def test_a_known_time_is_used_in_place_of_a_prediction() -> None:
    sha256 = variant_sources(V05).source_sha256
    timed = Evaluation(
        status=Status.SKIPPED,
        reason="Recorded elsewhere.",
        variant="v05",
        problem=LINE.problem,
        config=V05.default_config(),
        device="L4",
        when="",
        latency=Latency("recorded", 0.5, 0.5, 0.5, "test data"),
        source_sha256=sha256,
    )
    history = MadeUpHistory(Times({"L4": times_of([timed], session="Mine: test data")}))
    found = mix.recommend_mix([LINE], L4, history, variant="v05", max_batch=4)
    assert (found.config, found.batch) == (dict(timed.config), 1)
    assert found.problems[0].latency_us == 0.5
    assert says(found.notes, "not_a_prediction", "0.5 µs recorded")
    assert found.ranking_only == ()
    assert "of GPU recorded" in found.reason  # hours of recorded times alone say so, too


def test_hours_of_recorded_and_predicted_times_are_summed_apart() -> None:
    """Also if the total ranks batches; no share, gain or saving of such a sum is written."""
    other = mix.MixLine(500, Problem(2, 8, 1024, 64))
    timed = Evaluation(
        status=Status.SKIPPED,
        reason="Recorded elsewhere.",
        variant="v05",
        problem=replace(LINE.problem, batch=2),
        config=V05.default_config(),
        device="L4",
        when="",
        latency=Latency("recorded", 1.0, 1.0, 1.0, "test data"),
        source_sha256=variant_sources(V05).source_sha256,
    )
    history = MadeUpHistory(Times({"L4": times_of([timed], session="Mine: test data")}))
    found = mix.recommend_mix(
        [LINE, other],
        L4,
        history,
        variant="v05",
        max_batch=2,
        target=1.0,
        price_usd_per_hour=2e9,
    )
    assert (found.config, found.batch) == (dict(timed.config), 2)
    recorded, predicted = found.problems
    assert (recorded.origin, recorded.now_origin) == ("recorded", "predicted")
    assert (predicted.origin, predicted.now_origin) == ("predicted", "predicted")
    of = found.by_origin["hours"]
    assert of == {
        "recorded": pytest.approx(500 * 1.0 / 3.6e9),
        "predicted": pytest.approx(predicted.gpu_hours_per_day),
    }
    assert sum(of.values()) == pytest.approx(found.hours)
    assert set(found.by_origin["hours_now"]) == {"predicted"}
    texts = (found.reason, *(" ".join(row) for table in found.tables() for row in table.texts))
    assert any("recorded + " in text for text in texts)
    assert not_comparable("recorded", "predicted") in found.reason
    assert not says(found.reason, "keep_todays_batches")
    assert not says(found.reason, "gains_nothing")
    lines, kernels = found.tables()
    assert lines.frame()["share of the hours"].tolist() == ["–", "–"]
    assert says(kernels.remark, "mix_ranked_by", "recorded + predicted")
    # Price and interval have the same parts, also in JSON, which says what the totals are.
    data = found.to_dict()
    usd = {origin: 2e9 * hours for origin, hours in of.items()}
    assert data["by_origin"]["usd_per_day"] == pytest.approx(usd)
    assert data["usd_per_day"] == pytest.approx(sum(usd.values()))
    assert (
        " + ".join(f"{format_usd(part)} {origin}" for origin, part in usd.items()) in found.reason
    )
    assert format_usd(found.usd_per_day) not in found.reason
    assert found.interval.count("recorded + ") == 2
    ends = [data["by_origin"][name] for name in ("low_hours", "high_hours")]
    assert ends[0]["recorded"] == ends[1]["recorded"] == of["recorded"]
    assert ends[0]["predicted"] < of["predicted"] < ends[1]["predicted"]
    summed = {"hours", "low_hours", "high_hours", "usd_per_day", "gpus_needed"}
    assert summed <= set(data["ranking_only"])
    assert not {"hours_now", "usd_per_day_now"} & set(data["ranking_only"])
    assert {*summed, "plateau_hours"} <= data.keys()
    assert dict(found.curve)[2] > found.hours  # the curve is the prediction


RESULT = mix.MixResult(
    variant="v05",
    config={},
    device="L4",
    batch=2,
    target=0.9,
    method=METHODS[0],
    hours_now=2.0,
    hours=1.0,
    low_hours=0.9,
    high_hours=1.1,
    own_hours=1.0,
    plateau_hours=0.9,
    usd_per_day=None,
    usd_per_day_now=None,
    gpus_needed=1,
    problems=(),
    kernels=(),
    curve=((1, 2.0), (2, 1.0)),
    notes=(),
)


@pytest.mark.parametrize(
    ("hours_now", "name", "hours"),
    [
        (2.0, "with_todays_batches", "2 GPU-hours"),
        (1.004, "gains_nothing", "1 GPU-hour"),
        (0.5, "keep_todays_batches", "0.5 GPU-hours"),
    ],
)
def test_the_reason_names_the_gain_of_the_batch(hours_now: float, name: str, hours: str) -> None:
    reason = replace(RESULT, hours_now=hours_now).reason
    assert says(reason, name, "1 GPU-hour", hours)
    assert says(reason, "keep_todays_batches") == (hours_now < 1)
    assert says(reason, "gains_nothing") == (hours_now == 1.004)


@pytest.mark.parametrize(
    ("usd_per_day", "price", "price_now", "unit"),
    [
        (2.5, "$2.50", "$5.00", "a day"),
        # A launch of 4 sequences a day.
        (3.11e-8, "$0.00777", "$0.0155", "per million sequences"),
    ],
)
def test_small_traffic_is_priced_per_million(
    usd_per_day: float, price: str, price_now: str, unit: str
) -> None:
    line = mix.MixLine(1, Problem(4, 8, 128, 64))
    result = replace(
        RESULT,
        usd_per_day=usd_per_day,
        usd_per_day_now=2 * usd_per_day,
        problems=(mix.MixProblem(line, 2.0, 1.0, 100, 1.0, "v05", 1.0),),
    )
    assert says(result.reason, "with_todays_batches", price, f"{price_now} {unit}")
    alike = replace(result, hours_now=result.hours)
    assert says(alike.reason, "gains_nothing", f"({price} {unit})")
