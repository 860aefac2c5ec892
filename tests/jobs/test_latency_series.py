"""Summary of a stream so far: independent of the chunks it came in, by the sampler's rules."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest

from engine.jobs.latency_series import LatencySample, LatencySeries, StreamPart
from engine.measure.statistics import median_interval

CAP, HOT = "power cap", "software thermal slowdown"


def gpu_samples(count: int, begin: float = 1e9) -> list[LatencySample]:
    """Return ten samples a second, the second quarter power-capped, the third thermally slowed."""
    times = np.random.default_rng(count).lognormal(3.0, 0.01, count).tolist()
    found = []
    for i, time_us in enumerate(times):
        quarter = 4 * i // count
        reasons = (HOT,) if quarter == 2 else (CAP,) if quarter == 1 else ()
        slow, clock = (1.3, 1380) if quarter == 2 else (1.0, 1980)
        found.append(LatencySample(begin + i / 10, slow * time_us, clock, 500.0, 60, reasons))
    return found


def fed(
    samples: list[LatencySample], *, step: int = 10**9, kind: str = "device_warm"
) -> LatencySeries:
    series = LatencySeries()
    series.extend(StreamPart(kind, "H200", (), 10))  # type: ignore[arg-type]
    for i in range(0, len(samples), step):
        series.extend(StreamPart(None, "", tuple(samples[i : i + step]), 11 + i))
        series.view()
    return series


def test_an_empty_stream_has_only_its_kind() -> None:
    view = fed([]).view()
    assert (view.kind, view.device, view.summary, view.times) == ("device_warm", "H200", None, None)
    assert not view.has_gpu_state


def test_the_median_is_of_the_samples_that_count() -> None:
    samples = gpu_samples(400)
    view = fed(samples).view()
    assert view.summary is not None
    kept = [s.time_us for s in samples if HOT not in s.throttle_reasons]
    assert view.summary.median == median_interval(kept)
    assert (view.summary.samples, view.summary.dropped) == (400, 100)
    assert view.summary.low_us < view.summary.median.low
    assert view.summary.median.high < view.summary.high_us
    assert view.summary.lasted_s == pytest.approx(39.9)


def test_a_low_clock_does_not_count_even_without_a_reason() -> None:
    samples = [LatencySample(1e9 + i, 10.0, 1000 if i < 5 else 1980) for i in range(40)]
    summary = fed(samples).view().summary
    assert summary is not None
    assert summary.dropped == 5


def test_all_samples_count_if_too_few_are_valid() -> None:
    samples = [LatencySample(1e9 + i, 10.0 + i, 1980, None, None, (HOT,)) for i in range(9)]
    summary = fed(samples).view().summary
    assert summary is not None
    assert (summary.dropped, summary.median.median) == (9, 14.0)


@pytest.mark.parametrize("step", [1, 7, 100])
def test_the_series_does_not_depend_on_chunks(step: int) -> None:
    samples = gpu_samples(700)
    at_once, bit_by_bit = fed(samples).view(), fed(samples, step=step).view()
    assert at_once.summary == bit_by_bit.summary
    assert at_once.spans == bit_by_bit.spans
    for name in ("times", "clock", "power", "history"):
        a, b = getattr(at_once, name), getattr(bit_by_bit, name)
        for field in a.__dataclass_fields__:
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


def test_the_median_so_far_is_that_of_the_first_samples() -> None:
    samples = gpu_samples(100)
    history = fed(samples).view().history
    assert history is not None
    first = [s.time_us for s in samples[:6]]
    assert history.median_us[0] == np.median(first)
    assert (history.low_us <= history.median_us).all()
    assert (history.median_us <= history.high_us).all()
    assert history.at_s[0] == pytest.approx(0.5)
    assert history.at_s[-1] == pytest.approx(9.9)


def test_causes_of_throttling_have_spans_and_marked_samples() -> None:
    view = fed(gpu_samples(400)).view()
    spans = {span.reason: (span.start_s, span.end_s) for span in view.spans}
    assert spans[CAP] == pytest.approx((10.0, 20.0))
    assert spans[HOT] == pytest.approx((20.0, 30.0))
    assert view.times is not None
    assert view.dropped is not None
    marked = view.times.at_s[view.dropped]
    assert marked.size
    assert marked.min() >= 20.0
    assert marked.max() < 30.0


def test_a_cpu_series_has_no_gpu_values() -> None:
    view = fed([LatencySample(1e9 + i, 900.0) for i in range(20)], kind="cpu_execution").view()
    assert view.kind == "cpu_execution"
    assert (view.clock, view.power, view.spans, view.has_gpu_state) == (None, None, (), False)
    assert view.summary is not None
    assert view.summary.dropped == 0


def test_outliers_do_not_set_the_scale() -> None:
    samples = gpu_samples(400)
    samples[7] = LatencySample(samples[7].at, 9_000.0, 1980)
    summary = fed(samples).view().summary
    assert summary is not None
    assert (summary.far_out, summary.slowest_us) == (1, 9_000.0)
    assert summary.usual_us[1] == max(s.time_us for i, s in enumerate(samples) if i != 7)


def test_a_clock_set_back_stops_time_for_a_while() -> None:
    samples = [LatencySample(at, 10.0) for at in (100.0, 101.0, 50.0, 102.0, 103.0, 104.0)]
    for step in (1, 6):
        times = fed(samples, step=step).view().times
        assert times is not None
        assert times.at_s.tolist() == [0, 1, 1, 2, 3, 4]


def test_the_view_is_made_once_for_all_tabs() -> None:
    series = fed(gpu_samples(50))
    first = series.view()
    series.extend(StreamPart(None, "", (), 99))
    assert series.view() is first
    assert series.after == 99


def test_the_table_has_every_sample_and_the_kind_of_time() -> None:
    samples = [*gpu_samples(40), LatencySample(1e9 + 4.25, 21.5)]
    rows = list(csv.DictReader(io.StringIO(fed(samples).csv())))
    assert [float(r["device_warm_us"]) for r in rows] == [s.time_us for s in samples]
    assert rows[0] | {"device_warm_us": ""} == {
        "time_utc": "2001-09-09T01:46:40.000Z",
        "device_warm_us": "",
        "sm_clock_mhz": "1980",
        "power_w": "500",
        "temperature_c": "60",
        "throttle_reasons": "",
    }
    assert rows[25]["throttle_reasons"] == HOT
    assert (rows[-1]["sm_clock_mhz"], rows[-1]["temperature_c"]) == ("", "")
    assert "cpu_execution_us" in fed(samples, kind="cpu_execution").csv().splitlines()[0]
