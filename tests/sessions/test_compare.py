"""Comparing sessions: when there is a verdict, when there is none, and the order of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from compare_data import evaluation, latency, session, source
from words import raises, says

from engine.attention.evaluation import BaselineTiming, Evaluation, PassReport
from engine.attention.problem import Problem
from engine.base.errors import AttuneError, InvalidProblem, Status, UnknownName
from engine.history.known_time import RECORDED, not_comparable
from engine.measure.statistics import Verdict
from engine.sessions.compare import (
    ComparedRow,
    Pick,
    SessionComparison,
    changes,
    compare_sessions,
    parse_pick,
)
from engine.sessions.compare.formats import (
    comparison_tables,
    to_dict,
    unmatched_frame,
    winners_frame,
)
from engine.sessions.snapshot import Snapshot
from engine.sessions.store import default_store


def the_row(comparison: SessionComparison) -> ComparedRow:
    assert len(comparison.rows) == 1
    return comparison.rows[0]


class TestVerdicts:
    @pytest.mark.parametrize(
        ("after_us", "verdict"),
        [
            (80.0, Verdict.FASTER),
            (125.0, Verdict.SLOWER),
            (100.05, Verdict.SAME),
            (101.5, Verdict.UNDECIDED),
        ],
    )
    def test_follow_the_rule(self, after_us: float, verdict: Verdict) -> None:
        row = the_row(
            compare_sessions({"a": session(evaluation()), "b": session(evaluation(after_us))})
        )
        assert row.verdict is verdict
        assert row.speedup == pytest.approx(100 / after_us, rel=0.002)
        assert row.speedup_low is not None
        assert row.speedup_high is not None
        assert row.speedup_low <= row.speedup <= row.speedup_high
        assert row.regressed is (verdict is Verdict.SLOWER)
        assert "50 samples" in row.reason

    def test_the_baseline_can_be_pinned(self) -> None:
        sessions = {"a": session(evaluation()), "b": session(evaluation(50.0))}
        assert the_row(compare_sessions(sessions)).speedup == pytest.approx(2, rel=0.01)
        pinned = compare_sessions(sessions, baseline="b")
        assert (pinned.baseline, pinned.sessions) == ("b", ("a",))
        assert the_row(pinned).speedup == pytest.approx(0.5, rel=0.01)

    def test_stored_intervals_replace_missing_samples_with_a_note(self) -> None:
        slower = evaluation(latency=latency(120.0, samples=0))
        row = the_row(compare_sessions({"a": session(evaluation()), "b": session(slower)}))
        assert row.verdict is Verdict.SLOWER
        assert says(row.reason, "raw_samples_missing")

    def test_a_single_figure_gets_a_ratio_and_no_verdict(self) -> None:
        bare = evaluation(latency=latency(200.0, samples=0, low_us=200.0, high_us=200.0))
        row = the_row(compare_sessions({"a": session(evaluation()), "b": session(bare)}))
        assert row.verdict is None
        assert row.speedup == 0.5
        assert row.speedup_low is None
        assert says(row.reason, "no_verdict_single")

    def test_a_prediction_gets_no_verdict(self) -> None:
        guess = evaluation(latency=latency(50.0, origin="predicted"))
        row = the_row(compare_sessions({"a": session(evaluation()), "b": session(guess)}))
        assert row.verdict is None
        assert "predicted" in row.reason
        assert row.origin == "predicted"
        bounds = {
            "a": session(guess),
            "b": session(replace(guess, latency=latency(9.0, origin="predicted"))),
        }
        row = the_row(compare_sessions(bounds))
        assert (row.verdict, row.speedup) == (None, None)
        assert compare_sessions(bounds).exit_code == 3

    @pytest.mark.parametrize(
        ("after_us", "verdict", "code"),
        [
            (810.0, "SIMULATED SLOWER", 1),
            (400.0, "UNDECIDED", 0),
            (200.0, "SIMULATED FASTER", 0),
        ],
    )
    def test_two_simulated_times_have_the_gates_verdict(
        self, after_us: float, verdict: str, code: int
    ) -> None:
        def simulated(us: float, device: str = "L4") -> Evaluation:
            times = latency(us, origin="predicted", samples=0, reason="By machine code: simulated.")
            return evaluation(latency=times, device=device)

        before, after = session(simulated(382.0)), session(simulated(after_us))
        comparison = compare_sessions({"a": before, "b": after})
        row = the_row(comparison)
        assert str(row.verdict) == verdict
        assert bool(comparison.regressions) is (code == 1)
        assert comparison.exit_code == code
        assert "measured" in row.reason or says(row.reason, "recorded_pairs_times")
        other = session(simulated(after_us, "A100 80GB SXM"))
        assert the_row(compare_sessions({"a": before, "b": other})).verdict is None

    def test_a_recorded_time_counts_and_is_labelled_unchecked(self) -> None:
        elsewhere = evaluation(
            latency=latency(50.0, origin="recorded"),
            status=Status.SKIPPED,
            reason="Recorded elsewhere.",
        )
        comparison = compare_sessions({"a": session(evaluation()), "b": session(elsewhere)})
        assert the_row(comparison).verdict is Verdict.FASTER
        assert says(the_row(comparison).reason, "result_unchecked")
        assert comparison.winners[0].best.session == "b"
        (figures,) = [t for t in comparison_tables(comparison) if t.columns[0] == "figure"]
        assert figures.texts[0][:3] == ("status", "PASSED", RECORDED)
        assert to_dict(comparison)["rows"][0]["status"] == "SKIPPED"
        why = "No kernel for this."
        skipped = evaluation(None, status=Status.SKIPPED, reason=why)
        row = the_row(compare_sessions({"a": session(evaluation()), "b": session(skipped)}))
        assert row.verdict is None
        assert f"{Status.SKIPPED}: {why}" in row.reason
        assert not row.regressed

    def test_only_times_of_one_kind_are_compared(self) -> None:
        cold = evaluation(other_latencies=(latency(300.0, kind="device_cold"),))
        a, b = session(evaluation()), session(cold)
        row = the_row(compare_sessions({"a": a, "b": b}, kind="device_cold"))
        assert row.baseline_us is None
        assert row.time_us == 300.0
        assert row.verdict is None
        assert says(row.reason, "no_time_of")
        both = the_row(compare_sessions({"a": b, "b": b}, kind="device_cold"))
        assert both.verdict is Verdict.SAME


class TestAcrossConditions:
    @pytest.mark.parametrize(
        ("change", "name", "facts"),
        [
            ({"driver": "580.2"}, "differing_condition", ("driver", "580.2", "570.1")),
            ({"driver": None}, "recorded_status", ("driver",)),
            (
                {"gpus": [{"name": "NVIDIA L4", "max_sm_clock_mhz": 1500}]},
                "differing_condition",
                ("SM clock", "1500", "2040"),
            ),
            (
                {"gpus": [{"name": "NVIDIA H200", "max_sm_clock_mhz": 2040}]},
                "differing_condition",
                ("GPU", "NVIDIA H200"),
            ),
        ],
    )
    def test_no_verdict_unless_asked_and_then_labelled(
        self, change: dict[str, Any], name: str, facts: tuple[str, ...]
    ) -> None:
        sessions = {"a": session(evaluation()), "b": session(evaluation(50.0), **change)}
        row = the_row(compare_sessions(sessions))
        assert row.verdict is None
        assert not row.across
        assert says(row.reason, name, *facts)
        assert row.speedup == pytest.approx(2, rel=0.01)
        asked = the_row(compare_sessions(sessions, across=True))
        assert asked.verdict is Verdict.FASTER
        assert asked.across
        assert says(asked.reason, "across_different_conditions")
        assert says(asked.reason, name, *facts)

    def test_another_target_device_is_a_difference(self) -> None:
        sessions = {"a": session(evaluation()), "b": session(evaluation(50.0, device="A10"))}
        row = the_row(compare_sessions(sessions))
        assert row.verdict is None
        assert says(row.reason, "the_gpu_is", "A10", "L4")

    def test_the_same_device_is_preferred(self) -> None:
        base = session(evaluation(100.0), evaluation(10.0, device="H200"))
        row = the_row(compare_sessions({"a": base, "b": session(evaluation(50.0))}))
        assert row.baseline_us == 100.0
        assert row.verdict is Verdict.FASTER

    def test_momentary_values_are_no_difference(self) -> None:
        later = {
            "collected": "2027-01-01T00:00:00+00:00",
            "gpus": [{"name": "NVIDIA L4", "max_sm_clock_mhz": 2040, "sm_clock_mhz": 2040}],
        }
        comparison = compare_sessions(
            {"a": session(evaluation()), "b": session(evaluation(50.0), **later)}
        )
        assert comparison.differences[0].nothing
        assert the_row(comparison).verdict is Verdict.FASTER

    def test_across_adds_no_note_without_differences(self) -> None:
        sessions = {"a": session(evaluation()), "b": session(evaluation(50.0))}
        assert not the_row(compare_sessions(sessions, across=True)).across


class TestAlignment:
    def test_other_problems_are_listed_and_not_compared(self) -> None:
        a = session(evaluation(), evaluation(seqlen=256), evaluation(variant="v01", config={}))
        b = session(evaluation(), evaluation(config={"num_splits": 8}))
        comparison = compare_sessions({"a": a, "b": b})
        assert len(comparison.rows) == 1
        found = {(u.session, u.missing_in, u.variant) for u in comparison.unmatched}
        assert found == {("a", "b", "v05"), ("a", "b", "v01"), ("b", "a", "v05")}
        frame = unmatched_frame(comparison)
        assert set(frame["config"]) == {"num_splits=4", "num_splits=8", "default"}

    def test_the_newest_evaluation_counts(self) -> None:
        old, new = evaluation(90.0), evaluation(50.0, when="2026-02-01T00:00:00+00:00")
        a = session(evaluation())
        for order in ((old, new), (new, old)):
            assert the_row(compare_sessions({"a": a, "b": session(*order)})).time_us == 50.0

    def test_a_kernel_that_fails_now_is_listed_first_as_a_regression(self) -> None:
        broken = evaluation(
            None, status=Status.INCORRECT, reason="The largest error is 3.", seqlen=512
        )
        slow, slower = evaluation(110.0, seqlen=64), evaluation(150.0, seqlen=256)
        fast = evaluation(50.0)
        a = session(*(evaluation(seqlen=s) for s in (64, 128, 256, 512)))
        comparison = compare_sessions({"a": a, "b": session(fast, slow, slower, broken)})
        assert [r.problem.seqlen for r in comparison.rows] == [512, 256, 64, 128]
        assert [r.problem.seqlen for r in comparison.regressions] == [512, 256, 64]
        first = comparison.rows[0]
        assert first.broken
        assert first.verdict is None
        assert str(Status.INCORRECT) in first.reason
        assert "The largest error is 3." in first.reason

    def test_a_fixed_kernel_is_no_regression(self) -> None:
        a = session(evaluation(None, status=Status.INCORRECT, reason="wrong"))
        comparison = compare_sessions({"a": a, "b": session(evaluation())})
        assert comparison.regressions == ()

    def test_many_sessions_against_one(self) -> None:
        sessions = {n: session(evaluation(t)) for n, t in (("a", 100.0), ("b", 80.0), ("c", 60.0))}
        comparison = compare_sessions(sessions)
        assert [r.session for r in comparison.rows] == ["c", "b"]
        assert [d.session for d in comparison.differences] == ["b", "c"]

    def test_no_session_and_unknown_names_are_refused(self) -> None:
        with raises(AttuneError, "nothing_to_compare"):
            compare_sessions({})
        with raises(UnknownName, "session_unknown", "a, b"):
            compare_sessions({"a": session(), "b": session()}, baseline="c")
        assert compare_sessions({"a": session(evaluation())}).rows == ()


class TestPairing:
    """Sessions are matched by problem; which evaluations are compared can be selected."""

    V01 = evaluation(100.0, "v01", config={"block_n": 64})

    def test_two_variants_on_one_problem_are_compared(self) -> None:
        sessions = {"a": session(self.V01), "b": session(evaluation(50.0))}
        row = the_row(compare_sessions(sessions))
        assert (row.baseline_variant, row.variant) == ("v01", "v05")
        assert row.verdict is Verdict.FASTER
        assert compare_sessions(sessions).unmatched == ()
        assert compare_sessions(sessions, pairing="same").rows == ()

    def test_two_configs_of_one_variant_are_compared(self) -> None:
        a, b = (
            session(evaluation(t, config={"num_splits": n})) for t, n in ((100.0, 4), (50.0, 8))
        )
        row = the_row(compare_sessions({"a": a, "b": b}))
        assert (row.baseline_config, row.config) == ({"num_splits": 4}, {"num_splits": 8})
        assert row.verdict is Verdict.FASTER

    def test_best_selects_the_fastest_correct_kernel_of_each_session(self) -> None:
        a = session(self.V01, evaluation(60.0), evaluation(None, "sdpa", config={}))
        wrong = evaluation(10.0, "v02", status=Status.INCORRECT, reason="wrong", latency=None)
        b = session(evaluation(40.0, "v03", config={}), evaluation(55.0), wrong)
        row = the_row(compare_sessions({"a": a, "b": b}, pairing="best"))
        assert (row.baseline_variant, row.variant) == ("v05", "v03")
        same = compare_sessions({"a": a, "b": b})
        assert [(r.baseline_variant, r.variant) for r in same.rows] == [("v05", "v05")]

    def test_a_pair_may_be_picked_within_one_session(self) -> None:
        sessions = {"a": session(self.V01, evaluation(50.0), evaluation(seqlen=256))}
        row = the_row(compare_sessions(sessions, pairs=[(Pick("v01"), Pick("v05"))]))
        assert (row.baseline_variant, row.variant, row.problem.seqlen) == ("v01", "v05", 128)
        assert row.verdict is Verdict.FASTER

    def test_a_pick_is_read_from_text(self) -> None:
        pick = parse_pick("2:v05,num_splits=8", ["a", "b"])
        assert pick == Pick("v05", {"num_splits": 8}, "b")
        with raises(UnknownName, "file_number"):
            parse_pick("3:v05", ["a", "b"])
        with raises(InvalidProblem, "pick_form", "v05,num_splits"):
            parse_pick("v05,num_splits", ["a"])
        with raises(UnknownName, "filter_matches_nothing", "v09", "v05 (num_splits=4)"):
            compare_sessions({"a": session(evaluation())}, pairs=[(Pick("v09"), Pick("v05"))])


def rebuilt(registers: int = 96, spills: int = 12, occupancy: float = 1 / 3) -> Evaluation:
    """Return the evaluation with other registers, spills and occupancy."""
    base = evaluation()
    main = base.passes[0]
    resources = replace(
        main.resources,
        registers_per_thread=registers,
        spill_store_bytes=spills,
        spill_load_bytes=0,
    )
    warps = round(occupancy * main.occupancy.max_warps_per_sm)
    held = replace(main.occupancy, active_warps_per_sm=warps)
    return replace(base, passes=(PassReport(resources, held),))


class TestFindings:
    """Regressions other than the time."""

    def test_registers_spills_and_occupancy_are_separate_findings(self) -> None:
        before, after = session(rebuilt(64, 0, 0.5)), session(rebuilt(71, 16, 0.25))
        comparison = compare_sessions({"a": before, "b": after})
        row = the_row(comparison)
        assert row.verdict is Verdict.SAME
        assert [f.kind for f in row.findings] == ["counts", "registers"]
        assert says(row.findings[0].sentence, "spills_counted", "0 → 16")
        assert says(row.findings[1].sentence, "registers_per_thread_before", "71", "64")
        assert comparison.exit_code == 1
        few = session(rebuilt(71, 0, 0.5))  # more registers alone are no regression
        assert compare_sessions({"a": before, "b": few}).exit_code == 0
        assert compare_sessions({"a": after, "b": before}).exit_code == 0
        changed = {c.figure: (c.before, c.after, c.change) for c in changes(row.before, row.after)}
        assert changed["registers per thread"] == ("64", "71", "+7")
        assert changed["occupancy"] == ("50%", "25%", "−25 points")
        wrong = replace(row.after, max_abs_err=0.675, tolerance=0.001)
        (share,) = (c for c in changes(wrong, wrong) if c.figure == "share of the tolerance")
        assert share.after == "675×"  # not 67502%

    def test_another_variant_may_take_more_registers(self) -> None:
        other = replace(rebuilt(128), variant="v06")
        comparison = compare_sessions({"a": session(rebuilt(64)), "b": session(other)})
        assert comparison.exit_code == 0

    def test_an_error_closer_to_the_tolerance_is_a_correctness_finding(self) -> None:
        worse = evaluation()
        assert worse.correctness is not None
        worse = replace(worse, correctness=replace(worse.correctness, max_abs_err=8.0e-4))
        comparison = compare_sessions({"a": session(evaluation()), "b": session(worse)})
        (finding,) = the_row(comparison).findings
        assert finding.kind == "correctness"
        assert says(finding.sentence, "of_the_tolerance", "96%", "59%")
        assert comparison.exit_code == 1

    def test_a_row_has_every_time_that_the_sessions_hold_with_its_origin(self) -> None:
        guess = evaluation(
            latency=latency(130.0, origin="predicted"), when="2025-12-31T00:00:00+00:00"
        )
        row = the_row(compare_sessions({"a": session(guess, evaluation()), "b": session(guess)}))
        assert {o: t.median_us for o, t in row.before.times.items()} == {
            "predicted": 130.0,
            "recorded": 100.0,
        }
        assert list(row.after.times) == ["predicted"]


class TestDifferences:
    def test_environment_flags_and_source(self) -> None:
        a = session(evaluation(), sources=[source("one\ntwo\nthree\n", flags=("-O2", "-G"))])
        b = session(
            evaluation(),
            sources=[source("one\n2\nthree\n", flags=("-O3", "-G"))],
            driver="580.2",
            torch="2.10.0",
        )
        found = compare_sessions({"a": a, "b": b}).differences[0]
        assert [(e.field, e.decisive) for e in found.environment] == [
            ("driver", True),
            ("torch", False),
        ]
        assert (found.flags[0].removed, found.flags[0].added) == (("-O2",), ("-O3",))
        diff = found.sources[0]
        assert "-two\n+2" in diff.diff
        assert (diff.added_lines, diff.removed_lines) == (1, 1)
        assert not found.nothing

    def test_equal_sources_make_no_difference(self) -> None:
        a = session(evaluation(), sources=[source("one\n", flags=("-O2",))])
        assert compare_sessions({"a": a, "b": a}).differences[0].nothing

    def test_a_change_whose_text_is_missing_is_mentioned(self) -> None:
        a, b = (session(evaluation(source_sha256=c * 64)) for c in "12")
        remarks = compare_sessions({"a": a, "b": b}).differences[0].remarks
        assert len(remarks) == 1
        assert says(remarks[0], "source_differs_not_stored", "v05")
        both = session(*(evaluation(source_sha256=c * 64) for c in "12"))
        remarks = compare_sessions({"a": a, "both": both}).differences[0].remarks
        assert says(remarks[0], "source_differs_not_stored", "v05")
        stored = session(evaluation(), sources=[source("x")])
        remarks = compare_sessions({"a": session(evaluation()), "b": stored}).differences[0].remarks
        assert says(remarks[0], "is_stored_in")
        two = session(evaluation(), sources=[source("x"), source("y", "w.cu")])
        remarks = compare_sessions({"a": session(evaluation()), "b": two}).differences[0].remarks
        (remark,) = (r for r in remarks if says(r, "is_stored_in"))
        assert says(remark, "is_stored_in", "v05_kv_split.cu, w.cu")

    def test_a_difference_of_line_endings_is_described(self) -> None:
        a, b = (
            session(evaluation(), sources=[source(t)]) for t in ("one\ntwo\n", "one\r\ntwo\r\n")
        )
        assert says(
            compare_sessions({"a": a, "b": b}).differences[0].sources[0].diff, "line_endings_last"
        )


class TestWinners:
    def test_the_fastest_variant_and_by_how_much(self) -> None:
        a = session(
            evaluation(100.0, variant="v01"),
            evaluation(70.0, config={"num_splits": 2}),
            evaluation(50.0),
            evaluation(40.0, variant="v02", status=Status.INCORRECT, reason="wrong"),
            evaluation(30.0, variant="v03", latency=latency(30.0, origin="predicted")),
        )
        winner = compare_sessions({"a": a}).winners[0]
        assert (winner.best.variant, winner.best.config) == ("v05", {"num_splits": 4})
        assert winner.tied == ()
        assert winner.runner_up is not None
        assert winner.runner_up.variant == "v01"
        assert winner.speedup == pytest.approx(2, rel=0.01)

    def test_indistinguishable_variants_tie(self) -> None:
        a = session(
            evaluation(50.0), evaluation(50.1, variant="v02"), evaluation(90.0, variant="v01")
        )
        winner = compare_sessions({"a": a}).winners[0]
        assert [e.variant for e in winner.tied] == ["v02"]
        assert winner.runner_up is not None
        assert winner.runner_up.variant == "v01"

    def test_single_figures_tie_only_when_they_are_close(self) -> None:
        def bare(time_us: float, variant: str) -> Evaluation:
            only = latency(time_us, samples=0, low_us=time_us, high_us=time_us)
            return evaluation(variant=variant, latency=only)

        a = session(bare(50.0, "v05"), bare(51.0, "v02"), bare(90.0, "v01"))
        winner = compare_sessions({"a": a}).winners[0]
        assert [e.variant for e in winner.tied] == ["v02"]
        assert winner.speedup == pytest.approx(1.8)
        assert winner.speedup_low is None

    def test_each_problem_has_one_winner_labelled_if_without_verdict(self) -> None:
        a, b = session(evaluation(100.0)), session(evaluation(50.0, variant="v01"), driver="580.2")
        (winner,) = compare_sessions({"a": a, "b": b}).winners
        assert (winner.best.variant, winner.sessions) == ("v01", ("a", "b"))
        assert says(winner.caveat, "differing_condition", "driver", "570.1", "580.2")
        same = session(evaluation(50.0, variant="v01"))
        (pooled,) = compare_sessions({"a": a, "b": same}).winners
        assert (pooled.best.variant, pooled.caveat) == ("v01", "")

    def test_imported_times_of_two_variants_have_one_winner_and_a_runner_up(self) -> None:
        def imported(time_us: float, variant: str) -> Snapshot:
            only = latency(time_us, samples=0, low_us=time_us, high_us=time_us, origin="recorded")
            e = evaluation(variant=variant, latency=only, status=Status.SKIPPED, reason="elsewhere")
            return session(e, driver=None)

        sessions = {"a": imported(543.0, "v01"), "b": imported(12.0, "v05")}
        (winner,) = compare_sessions(sessions).winners
        # Kernels of unknown source are references, not this variant: only the problem is the same.
        assert says(winner.best.variant, "given_as", "v05")
        assert winner.best.is_reference
        assert winner.runner_up is not None
        assert says(winner.runner_up.variant, "given_as", "v01")
        assert winner.speedup == pytest.approx(543 / 12)
        assert says(winner.caveat, "how_timed_unknown")
        assert says(winner.caveat, "recorded_status", "driver")

    def test_two_series_of_one_kernel_are_ranked_by_time(self) -> None:
        study = default_store().open("20261121T000000Z_l4_v01_7-problems.json")
        winner = next(
            w
            for w in compare_sessions({"study": study}).winners
            if w.problem == Problem(1, 1, 128, 64)
        )
        assert winner.runner_up is not None
        assert (winner.best.median_us, winner.runner_up.median_us) == (543.0, 579.0)

    def test_the_runner_up_of_a_single_variant_is_its_next_config(self) -> None:
        a = session(evaluation(70.0, config={"num_splits": 2}), evaluation(50.0))
        (winner,) = compare_sessions({"a": a}).winners
        assert winner.runner_up is not None
        assert winner.runner_up.config == {"num_splits": 2}
        assert winners_frame(compare_sessions({"a": a}))["runner_up"][0] == "v05 num_splits=2"

    def test_a_session_of_baselines_gives_ratios_to_sdpa(self) -> None:
        sdpa = evaluation(
            None, "sdpa", config={}, baselines=(BaselineTiming("flash", latency(2.0)),)
        )
        sessions = {"a": session(evaluation(90.0)), "b": session(sdpa)}
        (winner,) = compare_sessions(sessions).winners
        assert winner.speedup_over_sdpa == pytest.approx(2 / 90)
        (table,) = [
            t for t in comparison_tables(compare_sessions(sessions)) if "Fastest" in t.title
        ]
        assert says(table.texts[0], "times_slower", "45×", "SDPA flash")

    def test_sdpa_is_compared_by_the_same_kind_of_time(self) -> None:
        cold = latency(80.0, kind="device_cold")
        timing = BaselineTiming(
            "flash", latency(2.0), other_latencies=(latency(20.0, kind="device_cold"),)
        )
        a = session(evaluation(90.0, other_latencies=(cold,), baselines=(timing,)))
        (winner,) = compare_sessions({"a": a}, kind="device_cold").winners
        assert winner.speedup_over_sdpa == pytest.approx(20 / 80)

    def test_another_kernels_time_is_not_compared_as_the_variants(self) -> None:
        only = latency(543.0, samples=0, low_us=543.0, high_us=543.0, origin="recorded")
        other = evaluation(
            latency=only, status=Status.SKIPPED, reason="elsewhere", notes=("series: length",)
        )
        sessions = {"study": session(other), "mine": session(evaluation(100.0))}
        (row,) = compare_sessions(sessions).rows
        assert says(row.baseline_variant, "of_series", "length")
        assert (row.variant, row.same_kernel) == ("v05", False)
        pick = parse_pick("v05", list(sessions))
        (picked,) = compare_sessions(sessions, pairs=[(pick, pick)]).rows
        assert picked.baseline_variant == row.baseline_variant

    def test_predictions_by_two_methods_have_no_ratio(self) -> None:
        a, b = (
            session(evaluation(latency=latency(50.0 * i, origin="predicted", reason=f"By {by}.")))
            for i, by in enumerate(("machine code", "roofline"), start=1)
        )
        (row,) = compare_sessions({"a": a, "b": b}).rows
        assert row.speedup is None
        (time,) = (c for c in changes(row.before, row.after) if c.figure == "predicted time")
        assert time.change.startswith(
            not_comparable("predicted by machine code", "predicted by roofline")
        )

    def test_imported_times_have_no_ratio_to_sdpa(self) -> None:
        """The timing method is unknown, so there is no verdict and no ratio either."""
        recorded = replace(latency(90.0), origin="recorded", samples_us=())
        imported = evaluation(90.0, baselines=(BaselineTiming("flash", recorded),))
        imported = replace(
            imported, status=Status.SKIPPED, reason="Imported.", latency=recorded, source_sha256=""
        )
        compared = compare_sessions({"a": session(imported)})
        (winner,) = compared.winners
        assert winner.best.sdpa_us == 90.0
        assert winner.speedup_over_sdpa is None
        (table,) = [t for t in comparison_tables(compared) if "Fastest" in t.title]
        assert not_comparable("recorded", "recorded") in table.texts[0]

    def test_the_winner_is_compared_with_the_best_sdpa(self) -> None:
        timed = (
            BaselineTiming("flash", latency(200.0)),
            BaselineTiming("cudnn", latency(150.0)),
            BaselineTiming("math", None, "not offered"),
        )
        winner = compare_sessions({"a": session(evaluation(50.0, baselines=timed))}).winners[0]
        assert winner.best.sdpa_name == "cudnn"
        assert winner.speedup_over_sdpa == pytest.approx(3.0)
