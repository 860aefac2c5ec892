"""Table, recommendations and wave steps on curves with known answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from words import raises, says

from engine.attention.evaluation import Latency
from engine.attention.problem import Problem
from engine.base.errors import InvalidProblem
from engine.choose.batch.batch_table import (
    batch_table,
    explain_knee,
    memory_feasible,
    recommended_batches,
    step_warning,
)
from engine.devices import find_device
from engine.devices.spec import limits_for
from engine.history.known_time import not_comparable
from engine.model.occupancy import occupancy

L4 = find_device("L4")
ONE_TILE = Problem(1, 1, 64, 64)  # one CTA per batch element


def curve(total_us: np.ndarray, ctas_per_sm: int = 1, limit: str = "CTAs per SM") -> pd.DataFrame:
    """Return a curve with the given times, of one CTA per batch element on 58 SMs."""
    batch = np.arange(1, len(total_us) + 1)
    waves = batch / (58 * ctas_per_sm)
    return pd.DataFrame(
        {
            "batch": batch,
            "ctas": batch,
            "useful_ctas": batch,
            "thread_fill": batch * 256 / (58 * 1536),
            "ctas_per_sm": ctas_per_sm,
            "load_per_sm": -(-batch // 58),
            "waves": waves,
            "wave_efficiency": waves / np.ceil(waves),
            "sm_fill": np.minimum(batch, 58) / 58,
            "predicted_us": total_us,
            "low_us": 0.8 * total_us,
            "high_us": 1.3 * total_us,
            "binds": limit,
            "device_bytes": 32768 * batch,
            "flops": 4 * 64**3 * batch,
        }
    )


def waves_of_58(n: int, wave_us: float = 100.0) -> np.ndarray:
    return wave_us * -(-np.arange(1, n + 1) // 58)


def measured(times: dict[int, float]) -> dict[int, Latency]:
    """Return times with an interval of −2 and +4 %."""
    return {b: Latency("measured", us, 0.98 * us, 1.04 * us, "") for b, us in times.items()}


def table_of(total_us: np.ndarray, **kwargs: object) -> pd.DataFrame:
    return batch_table(curve(total_us, **kwargs), ONE_TILE, L4)  # type: ignore[arg-type]


def test_the_table_has_figures_per_unit_and_per_query() -> None:
    table = batch_table(curve(waves_of_58(300)), replace(ONE_TILE, num_heads=4), L4)
    row = table.iloc[57]
    assert (row["units"], row["queries"]) == (232, 232 * 64)
    assert row["per_unit_us"] == pytest.approx(100 / 232)
    assert row["per_query_us"] == pytest.approx(100 / 232 / 64)
    assert row["queries_per_s"] == pytest.approx(232 * 64 * 1e4)
    assert row["tokens_per_s"] == pytest.approx(58 * 64 * 1e4)
    assert row["speedup_per_unit"] == pytest.approx(58)
    assert row["tflops"] == pytest.approx(4 * 64**3 * 58 / 100 / 1e6)
    assert row["percent_of_peak"] == pytest.approx(100 * row["tflops"] / 121.0)
    assert row["memory_share"] == pytest.approx(32768 * 58 / L4.memory_bytes)
    assert table["predicted_us"].is_monotonic_increasing


def test_the_study_reads_41_times_per_unit() -> None:
    """From 579 µs for one unit to 3,624 µs for 256, the time per unit drops 41×."""
    both = curve(np.array([579.0, 3624.0]))
    both["batch"] = [1, 256]
    table = batch_table(both, replace(ONE_TILE, seqlen=128), L4)
    assert table["speedup_per_unit"].iloc[1] == pytest.approx(41, abs=0.2)
    assert table["per_query_us"].tolist() == pytest.approx([4.523, 0.1106], rel=1e-3)


def test_steps_are_where_the_busiest_sm_gets_another_cta() -> None:
    table = table_of(waves_of_58(200))
    assert table.loc[table["step"], "batch"].tolist() == [59, 117, 175]


def test_a_batch_just_past_a_step_is_warned_about() -> None:
    table = table_of(waves_of_58(200))
    found = step_warning(table, 59)
    assert says(found, "cheaper_per_unit", "59", "58", "1.72 µs", "3.39 µs")
    assert says(found, "costs_wave", "second")
    found = step_warning(table, 117)
    assert says(found, "cheaper_per_unit", "117", "116")
    assert says(found, "costs_wave", "third")
    assert step_warning(table, 58) == ""
    assert step_warning(table, 116) == ""
    assert step_warning(table, 1) == ""
    with raises(InvalidProblem, "batch_not_in_table", "B=999"):
        step_warning(table, 999)


def test_a_second_resident_cta_is_not_called_a_wave() -> None:
    total = np.where(np.arange(1, 117) <= 58, 100.0, 130.0)
    table = table_of(total, ctas_per_sm=2)
    found = step_warning(table, 59)
    assert says(found, "cheaper_per_unit", "58")
    assert says(found, "puts_cta_on", "second")
    assert step_warning(table, 116) == ""


def test_format_of_ordinals() -> None:
    table = table_of(waves_of_58(58 * 22 + 1))
    assert says(step_warning(table, 58 * 5 + 1), "costs_wave", "sixth")
    quarter = table.copy()
    quarter["cheaper_batch"] = np.where(quarter["batch"] == 58 * 11, 1, quarter["cheaper_batch"])
    assert says(step_warning(quarter, 58 * 11), "costs_wave", "11th")
    last = table.copy()
    last["cheaper_batch"] = np.where(last["batch"] == 58 * 20 + 1, 58, 0)
    assert says(step_warning(last, 58 * 20 + 1), "costs_wave", "21st")


@pytest.mark.parametrize(("target", "enough"), [(0.5, 29), (0.7, 41), (0.9, 53), (1.0, 58)])
def test_the_end_of_the_wave_that_reaches_the_target(target: float, enough: int) -> None:
    table = table_of(waves_of_58(300))
    (found,) = recommended_batches(table, table["predicted_us"].to_numpy()[None], L4, (target,))
    assert (found.batch, found.enough_batch, found.target) == (58, enough, target)
    assert found.share_of_plateau == pytest.approx(1.0)
    assert enough / 58 >= target > (enough - 1) / 58
    assert found.same_latency_up_to == 58
    assert (
        found.low_batch == found.high_batch == 58
    )  # the wave of the smallest sufficient batch ends here
    assert found.latency_us == 100.0
    assert (found.low_us, found.high_us) == (80.0, 130.0)
    assert found.sm_fill == pytest.approx(1.0)
    assert "B=58" in found.reason
    assert says(found.reason, "sms_were_idle")
    assert (says(found.reason, "is_enough_for", f"{enough}", f"{target:.0%}")) == (enough < 58)
    assert found.warning == ""


def test_the_interval_of_the_batch_follows_the_parameters_interval() -> None:
    table = table_of(waves_of_58(300))
    batches = np.arange(1, 301)
    slow_floor = waves_of_58(300) + 500.0  # a larger launch floor favours large batches
    ends = np.stack([waves_of_58(300), slow_floor])
    (found,) = recommended_batches(table, ends, L4, (0.9,))
    rate = batches / slow_floor
    expected = int(batches[np.argmax(rate >= 0.9 * rate.max())])
    assert (found.batch, found.enough_batch) == (58, 53)
    assert found.low_batch == 58
    # Added in quadrature to the interval of the latency, so at least that of the parameters
    # alone. Both batches end a wave.
    end = 58 * -(-expected // 58)
    assert end <= found.high_batch <= 1.1 * end + 58
    assert found.high_batch % 58 == 0 or found.high_batch == 300


def test_the_interval_follows_the_uncertainty_of_the_latency() -> None:
    total = waves_of_58(300) + 0.6 * np.arange(300)  # all times differ
    widths = []
    for factor in (1.0, 1.2, 5.0):
        frame = curve(total).assign(low_us=total / factor, high_us=total * factor)
        table = batch_table(frame, ONE_TILE, L4)
        (found,) = recommended_batches(table, total[None], L4, (0.9,))
        assert found.low_batch <= found.batch <= found.high_batch
        widths.append(found.high_batch - found.low_batch)
    assert widths[0] == 0
    assert widths[0] < widths[1] < widths[2]


def test_a_measured_point_takes_precedence_over_the_model() -> None:
    total = waves_of_58(300)
    table = batch_table(curve(total), ONE_TILE, L4, measured({58: 200.0, 40: 50.0}))
    row = table.set_index("batch")
    assert (row["latency_us"][58], row["origin"][58]) == (200.0, "measured")
    assert (row["low_us"][58], row["high_us"][58], row["predicted_us"][58]) == (196.0, 208.0, 100.0)
    assert (row["predicted_low_us"][58], row["predicted_high_us"][58]) == (80.0, 130.0)
    assert row["per_unit_us"][40] == 50.0 / 40
    assert (row["origin"][57], row["latency_us"][57]) == ("predicted", 100.0)
    (found,) = recommended_batches(table, total[None], L4, (1.0,))
    # 40 in 50 µs is a higher throughput than the model predicts for any batch.
    assert (found.batch, found.latency_us, found.origin) == (40, 50.0, "measured")
    assert (found.low_us, found.high_us) == (49.0, 52.0)


def test_no_share_of_predicted_and_measured_times_is_given() -> None:
    total = waves_of_58(300)
    table = batch_table(curve(total), ONE_TILE, L4, measured({1: 100.0, 40: 100.0, 290: 450.0}))
    gained = table.set_index("batch")["speedup_per_unit"]
    assert gained[40] == pytest.approx(40)  # both measured
    assert np.isnan(gained[59])
    words = not_comparable("predicted", "measured")
    (found,) = recommended_batches(table, total[None], L4, (0.85,))
    assert (found.origin, found.plateau_origin) == ("predicted", "measured")
    assert found.speedup_per_unit is None
    assert found.share_of_plateau is None
    assert words in found.reason
    assert "% of the plateau" not in found.reason
    assert not says(found.reason, "is_enough_for")
    assert says(found.reason, "unit_costs_instead", "measured", "B=1")
    assert says(step_warning(table, 59), "cheaper_per_unit", "predicted")


def test_the_knee_is_explained_by_the_ctas_that_run_at_once() -> None:
    main = occupancy(limits_for((8, 9)), 58, 4, 256, 96, 0)
    words = explain_knee(main, table_of(waves_of_58(300)), L4)
    assert main.ctas_per_sm == 2
    assert says(words, "at_once_which", "2 CTAs fit", "registers", "58", "116 at once", "B=116")
    assert says(words, "thread_fill_at_knee", "348 CTAs", "B=348", "33%")
    of_eight = table_of(waves_of_58(300)).assign(useful_ctas=lambda t: 8 * t["batch"])
    words = explain_knee(main, of_eight, L4)
    assert says(words, "at_once_which", "B=14.5")
    assert says(words, "thread_fill_at_knee", "B=43.5")
    assert explain_knee(main, table_of(waves_of_58(9)), replace(L4, num_sms=None)) == ""


def test_the_batch_that_leaves_l2_is_named() -> None:
    total = np.where(np.arange(1, 101) < 90, np.arange(1.0, 101), 3 * np.arange(1.0, 101))
    table = table_of(total)
    main = occupancy(limits_for((8, 9)), 58, 4, 256, 96, 0)
    assert not says(explain_knee(main, table, L4), "beyond_l2")
    table["binds"] = np.where(table["batch"] < 90, "one CTA", "DRAM")
    words = explain_knee(main, table, L4)
    assert says(words, "beyond_l2", "B=90", "3 µs", "1 µs", "B=89")
    assert says(step_warning(table, 95), "b_exceeds_l2", "B=95")


def test_several_targets_are_in_ascending_order() -> None:
    table = table_of(waves_of_58(300))
    found = recommended_batches(table, table["predicted_us"].to_numpy()[None], L4, (0.95, 0.7))
    assert [r.target for r in found] == [0.7, 0.95]


def test_reasons_name_the_limiting_term() -> None:
    linear = 10.0 * np.arange(1.0, 101.0)
    cases = [
        (linear, {"limit": "CTAs per SM"}, 0.9, "at once"),
        (50 + linear, {"limit": "DRAM"}, 0.9, "DRAM bandwidth"),
        (50 + 0.01 * linear, {"limit": "launch floor"}, 0.9, "launch overhead"),
        (waves_of_58(90) - 0.5 * np.arange(1, 91), {}, 1.0, "SMs were idle"),
    ]
    for total, kwargs, target, words in cases:
        table = table_of(total, **kwargs)
        (found,) = recommended_batches(table, total[None], L4, (target,))
        assert words in found.reason


def test_wave_quantization_is_a_reason() -> None:
    """Wave quantization is the reason given for a curve that ends within a wave."""
    total = waves_of_58(70)
    table = batch_table(curve(total).iloc[60:].reset_index(drop=True), ONE_TILE, L4)
    (found,) = recommended_batches(table, total[None, 60:], L4, (1.0,))
    assert found.batch == 70
    assert says(found.reason, "wave_quantization_costs")


@pytest.mark.parametrize("targets", [(0.0,), (-0.1,), (1.01,), (70,), (float("nan"),)])
def test_targets_out_of_range(targets: tuple[float, ...]) -> None:
    table = table_of(waves_of_58(10))
    with raises(InvalidProblem, "target_range"):
        recommended_batches(table, table["predicted_us"].to_numpy()[None], L4, targets)


def test_a_missing_target_is_refused() -> None:
    table = table_of(waves_of_58(10))
    with raises(InvalidProblem, "no_target"):
        recommended_batches(table, table["predicted_us"].to_numpy()[None], L4, ())


def test_memory_limits_the_batch() -> None:
    need = 2**30 * np.arange(1, 100)
    assert memory_feasible(need, L4) == 22
    assert memory_feasible(need, replace(L4, memory_bytes=None)) == 99
    with raises(InvalidProblem, "no_batch_fits", "25 GiB", "22.5 GiB"):
        memory_feasible(25 * need, L4)


def test_unknown_peak_and_memory_remain_unknown() -> None:
    unknown = replace(L4, memory_bytes=None, fp16_tensor_tflops=None)
    table = batch_table(curve(waves_of_58(60)), ONE_TILE, unknown)
    assert table["percent_of_peak"].isna().all()
    assert table["memory_share"].isna().all()
    (found,) = recommended_batches(table, table["predicted_us"].to_numpy()[None], unknown, (0.9,))
    assert found.memory_share is None
